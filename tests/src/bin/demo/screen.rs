//! What the demo writes: headings, steps with their progress, what commands print, and the table at the end.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Instant,
};

use anyhow::Result;

/// A terminal, or a file that gets the same without colours and without lines that are written over.
pub(crate) struct Screen {
    terminal: bool,
    colours: bool,
    shown: Vec<(String, String)>,
}

const GREEN: &str = "32";
const RED: &str = "31";
const BOLD: &str = "1";
const DIM: &str = "2";

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { terminal, colours, shown: Vec::new() }
    }

    pub(crate) fn heading(&self, text: &str) {
        println!("\n{}", self.coloured(BOLD, text));
    }

    /// Does something that takes its time, and says how long.
    pub(crate) fn step<T>(&self, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.terminal {
            print!("  {} {what} ...", self.coloured(DIM, "·"));
            let _ = io::stdout().flush();
        }
        let start = Instant::now();
        let result = work();
        let mark = if result.is_ok() { self.coloured(GREEN, "ok") } else { self.coloured(RED, "failed") };
        let begin = if self.terminal { "\r\x1b[K" } else { "" };
        println!("{begin}  {mark} {what} ({:.1} s)", start.elapsed().as_secs_f32());
        result
    }

    /// What a command printed, below the command.
    pub(crate) fn command(&self, command: &str, output: &str) {
        println!("  {}", self.coloured(DIM, &format!("$ {command}")));
        for line in output.lines() {
            println!("    {line}");
        }
    }

    /// Remembers something that was shown to be so, for the table at the end.
    pub(crate) fn shown(&mut self, what: &str, evidence: impl Into<String>) {
        let evidence = evidence.into();
        println!("  {} {what}: {evidence}", self.coloured(GREEN, "ok"));
        self.shown.push((what.to_owned(), evidence));
    }

    pub(crate) fn summary(&self) {
        self.heading("What was shown");
        let width = self.shown.iter().map(|(what, _)| what.chars().count()).max().unwrap_or(0);
        for (what, evidence) in &self.shown {
            println!("  {} {what:width$}  {evidence}", self.coloured(GREEN, "ok"));
        }
    }

    pub(crate) fn failure(&self, text: &str) {
        println!("\n{} {text}", self.coloured(RED, "the demo failed:"));
    }

    fn coloured(&self, colour: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
