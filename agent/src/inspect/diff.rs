//! `inspect diff`: what the kernel holds otherwise than the agent wants it, as the agent says.

use std::{
    io::{self, Write},
    path::Path,
};

use super::{InspectError, Report};
use crate::{
    cli::table::{Cell, Colour, Table, Tone},
    control::{Answer, AskError, Command, Diff, ask},
};

impl Diff {
    /// Asks the agent that listens on `socket`.
    pub fn read(socket: &Path) -> Result<Self, InspectError> {
        match ask(socket, Command::Diff)? {
            Answer::Diff(diff) => Ok(diff),
            Answer::Error(error) => Err(AskError::Failed(error).into()),
            Answer::Account(_) | Answer::Unknown(_) | Answer::Drain(_) => {
                Err(AskError::Unasked { path: socket.into() }.into())
            }
        }
    }

    /// Whether the kernel holds what the agent wants, and the agent all that was asked of it.
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty() && self.refused.is_empty()
    }
}

impl Report for Diff {
    const KIND: &'static str = "diff";

    fn print(&self, out: &mut impl Write, colour: Colour) -> io::Result<()> {
        let mut table = Table::new(&["WHAT", "ENTRY", "WANTED", "FOUND"]);
        let side = |text: &Option<String>, tone| Cell::toned(text.as_deref().unwrap_or("none"), tone);
        for difference in &self.differences {
            let (what, entry) = (Cell::from(&difference.what), Cell::from(&difference.entry));
            table.row([what, entry, side(&difference.wanted, Tone::Good), side(&difference.found, Tone::Bad)]);
        }
        for refused in &self.refused {
            table.row([Cell::from("refused"), Cell::from(refused)]);
        }
        table.print(out, colour)
    }
}
