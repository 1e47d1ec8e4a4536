//! Asks the agent for the drift and prints it, for `vipmux inspect diff`.

use std::{
    io::{self, Write},
    path::Path,
};

use super::{Answer, AskError, ControlCommand, Diff, ask};
use vipmux_inspect::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};

impl Diff {
    /// Asks the agent at `socket` for the drift.
    pub fn read(socket: &Path) -> Result<Self, AskError> {
        match ask(socket, ControlCommand::Diff)? {
            Answer::Diff(diff) => Ok(diff),
            Answer::Error(error) => Err(AskError::Failed(error)),
            Answer::Details(_) | Answer::Unknown(_) | Answer::Drain(_) => {
                Err(AskError::Unasked { path: socket.into() })
            }
        }
    }

    /// Returns whether there is no difference, and no request that the agent cannot fulfill.
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty() && self.refused.is_empty()
    }
}

impl Report for Diff {
    const KIND: &'static str = "diff";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        fn side(text: Option<&str>, tone: Tone) -> Cell<'_> {
            Cell::toned(text.unwrap_or("none"), tone)
        }
        let mut table = Table::new(&["WHAT", "ENTRY", "WANTED", "FOUND"]);
        for difference in &self.differences {
            let (what, entry) = (Cell::from(&difference.what), Cell::from(&difference.entry));
            let [wanted, found] = [&difference.wanted, &difference.found].map(|text| text.as_deref());
            table.row([what, entry, side(wanted, Tone::Good), side(found, Tone::Bad)]);
        }
        for refused in &self.refused {
            table.row([Cell::from("refused"), Cell::from(refused)]);
        }
        table.print(out, color)
    }
}
