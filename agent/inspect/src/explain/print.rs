//! Prints an explanation for people.

use std::io::{self, Write};

use super::{DetailsSource, Explanation, StepState};
use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};

impl Report for Explanation {
    const KIND: &'static str = "explain";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let source = match &self.source {
            DetailsSource::Agent(node) => format!("as known to the agent on {node}"),
            DetailsSource::Manifests => "computed from the manifests; the agent was not asked".to_owned(),
            DetailsSource::Nowhere(_) => "from the kernel alone; the agent does not answer".to_owned(),
        };
        writeln!(out, "{}, {source}", self.target)?;
        let mut table = Table::new(&["STEP", "STATE", "FINDING"]);
        for step in &self.steps {
            let (state, tone) = match step.state {
                StepState::Holds => ("holds", Tone::Good),
                StepState::Broken => ("broken", Tone::Bad),
                StepState::Note => ("note", Tone::Plain),
                StepState::Unknown => ("unknown", Tone::Warn),
            };
            table.row([Cell::from(step.step.name()), Cell::toned(state, tone), Cell::from(&step.finding)]);
        }
        table.print(out, color)?;
        match &self.broken {
            Some(step) => {
                // Through a cell, which escapes what must not reach a terminal.
                let mut first = Table::new(&["FIRST BROKEN", "WHAT TO DO"]);
                first.row([step.step.name(), step.remedy.as_deref().unwrap_or_default()]);
                writeln!(out)?;
                first.print(out, color)
            }
            None if self.steps.iter().any(|step| step.state == StepState::Unknown) => {
                let unknown = self.steps.iter().filter(|step| step.state == StepState::Unknown);
                let remedy = unknown.filter_map(|step| step.remedy.as_deref()).next_back().unwrap_or_default();
                writeln!(out, "nothing is known to be broken; to check the rest, {remedy}")
            }
            None => writeln!(out, "nothing is broken"),
        }
    }
}
