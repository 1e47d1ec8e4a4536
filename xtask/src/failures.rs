//! Finds what failed tests have printed, so that a run can repeat it at its end, where users look.

use std::{
    io::{self, BufRead as _, BufReader, IsTerminal as _, Read, Write},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use crate::workspace;

/// The lines of one test that are repeated at most.
const LINES: usize = 80;

/// What libtest prints of failed tests: for each a line `---- NAME stdout ----`, then its output.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// The tests' lines.
    tests: Vec<Vec<String>>,
    /// Whether the next line belongs to the last test.
    inside: bool,
}

impl Failures {
    /// Like [`workspace::run`], and notes the failed tests in the command's stdout.
    pub(crate) fn run(&mut self, command: &mut Command) -> Result<()> {
        let mut child = workspace::started(command.stdout(Stdio::piped()).spawn(), command)?;
        let output = child.stdout.take().context("no stdout")?;
        self.pass(output, io::stdout());
        workspace::succeeded(workspace::started(child.wait(), command)?, command)
    }

    /// Passes output on until its end, and notes the failed tests in it.
    fn pass(&mut self, output: impl Read, mut to: impl Write) {
        let (mut output, mut line) = (BufReader::new(output), Vec::new());
        while let Ok(1..) = output.read_until(b'\n', &mut line) {
            // If nobody reads it any more, the tests still go on.
            let _ = to.write_all(&line).and_then(|()| to.flush());
            self.note_line(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
    }

    fn note_line(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.tests.push(vec![line.to_owned()]);
            self.inside = true;
        } else if line == "failures:" {
            self.inside = false;
        } else if let Some(test) = self.tests.last_mut().filter(|_| self.inside && !is_of_backtrace(line)) {
            test.push(line.to_owned());
        }
    }

    /// Prints the tests to stderr.
    pub(crate) fn print(&self) {
        for test in &self.tests {
            eprintln!();
            test.iter().take(LINES).for_each(|line| eprintln!("{line}"));
            if let Some(more @ 1..) = test.len().checked_sub(LINES) {
                eprintln!("[{more} more lines above]");
            }
        }
    }
}

/// Returns whether it is a stack frame: `12: function`, and below it `at file`. They would push out what
/// the test has said.
fn is_of_backtrace(line: &str) -> bool {
    let frame = line.trim_start();
    let numbered = frame.split_once(": ").is_some_and(|(number, _)| number.parse::<u16>().is_ok());
    line.starts_with("  ") && (numbered || frame.starts_with("at "))
}

/// Returns libtest's arguments for output as if it went directly to this process's stdout.
pub(crate) fn colors() -> &'static [&'static str] {
    if io::stdout().is_terminal() { &["--", "--color=always"] } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "test a ... ok\ntest b ... FAILED\ntest c ... FAILED\n\nfailures:\n\n---- b stdout ----\nError: no \
                          reply\n  10: a::b\n             at /c.rs:3:5\n\n---- c stdout ----\nthread panicked\n\nfailures:\n    b\n    c\n\ntest result: FAILED.\n";

    #[test]
    fn output_is_passed_on_and_that_of_failed_tests_is_noted() {
        let (mut failures, mut passed) = (Failures::default(), Vec::new());
        failures.pass(OUTPUT.as_bytes(), &mut passed);
        let expected = [["---- b stdout ----", "Error: no reply", ""], ["---- c stdout ----", "thread panicked", ""]];
        assert_eq!(failures.tests, expected);
        assert_eq!(passed, OUTPUT.as_bytes());
    }

    #[test]
    fn a_command_that_fails_is_an_error() {
        let error = Failures::default().run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 3` failed (exit status: 3)");
    }
}
