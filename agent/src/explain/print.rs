//! The chain for people.

use std::io::{self, Write};

use super::{Explanation, Source, State};
use crate::{
    cli::table::{Cell, Colour, Table, Tone},
    inspect::Report,
};

impl Report for Explanation {
    const KIND: &'static str = "explain";

    fn print(&self, out: &mut impl Write, colour: Colour) -> io::Result<()> {
        let source = match &self.source {
            Source::Agent(node) => format!("as the agent on {node} has it"),
            Source::Manifests => "as the manifests have it; the agent was not asked".to_owned(),
            Source::Nowhere(_) => "as the kernel has it; the agent does not answer".to_owned(),
        };
        writeln!(out, "{}, {source}", self.target)?;
        let mut table = Table::new(&["LINK", "STATE", "FINDING"]);
        for link in &self.chain {
            let (state, tone) = match link.state {
                State::Holds => ("holds", Tone::Good),
                State::Broken => ("broken", Tone::Bad),
                State::Note => ("note", Tone::Plain),
                State::Unknown => ("unknown", Tone::Warn),
            };
            table.row([Cell::from(link.step.name()), Cell::toned(state, tone), Cell::from(&link.finding)]);
        }
        table.print(out, colour)?;
        match &self.broken {
            Some(link) => {
                // Through a cell, which escapes what must not reach a terminal.
                let mut verdict = Table::new(&["FIRST BROKEN", "WHAT TO DO"]);
                verdict.row([link.step.name(), link.remedy.as_deref().unwrap_or_default()]);
                writeln!(out)?;
                verdict.print(out, colour)
            }
            None if self.chain.iter().any(|link| link.state == State::Unknown) => {
                let unknown = self.chain.iter().filter(|link| link.state == State::Unknown);
                let remedy = unknown.filter_map(|link| link.remedy.as_deref()).next_back().unwrap_or_default();
                writeln!(out, "nothing that is known is broken; for the rest, {remedy}")
            }
            None => writeln!(out, "nothing is broken"),
        }
    }
}
