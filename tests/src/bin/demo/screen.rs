//! The demo's output: headings, steps with progress, output of commands, and the final table.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Instant,
};

use anyhow::Result;

/// A terminal, or a file, which gets the same without colors and overwritten lines.
pub(crate) struct Screen {
    terminal: bool,
    colors: bool,
    shown: Vec<(String, String)>,
}

const GREEN: &str = "32";
const RED: &str = "31";
const BOLD: &str = "1";
const DIM: &str = "2";

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        let colors = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { terminal, colors, shown: Vec::new() }
    }

    pub(crate) fn heading(&self, text: &str) {
        println!("\n{}", self.colored(BOLD, text));
    }

    /// Runs a step, and prints its duration.
    pub(crate) fn step<T>(&self, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.terminal {
            print!("  {} {what} ...", self.colored(DIM, "·"));
            let _ = io::stdout().flush();
        }
        let start = Instant::now();
        let result = work();
        let mark = if result.is_ok() { self.colored(GREEN, "ok") } else { self.colored(RED, "failed") };
        let begin = if self.terminal { "\r\x1b[K" } else { "" };
        println!("{begin}  {mark} {what} ({:.1} s)", start.elapsed().as_secs_f32());
        result
    }

    /// Prints a command and its output.
    pub(crate) fn command(&self, command: &str, output: &str) {
        println!("  {}", self.colored(DIM, &format!("$ {command}")));
        for line in output.lines() {
            println!("    {line}");
        }
    }

    /// Records a result for the final table.
    pub(crate) fn shown(&mut self, what: &str, evidence: impl Into<String>) {
        let evidence = evidence.into();
        println!("  {} {what}: {evidence}", self.colored(GREEN, "ok"));
        self.shown.push((what.to_owned(), evidence));
    }

    pub(crate) fn summary(&self) {
        self.heading("What was shown");
        let width = self.shown.iter().map(|(what, _)| what.chars().count()).max().unwrap_or(0);
        for (what, evidence) in &self.shown {
            println!("  {} {what:width$}  {evidence}", self.colored(GREEN, "ok"));
        }
    }

    pub(crate) fn failure(&self, text: &str) {
        println!("\n{} {text}", self.colored(RED, "the demo failed:"));
    }

    fn colored(&self, color: &str, text: &str) -> String {
        if self.colors { format!("\x1b[{color}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
