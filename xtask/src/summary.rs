//! Prints how each part of a run ended.

use anyhow::{Result, bail};

/// The result of one part of a run.
pub(crate) enum Outcome {
    Passed,
    Failed(anyhow::Error),
    /// It cannot run here. The text says what to do about it.
    Skipped(String),
}

/// Prints one line per part with its name and duration. Fails if a part failed, and with `ci` also
/// if a part was skipped.
pub(crate) fn print(title: &str, rows: &[(String, Outcome, String)], ci: bool) -> Result<()> {
    crate::workspace::progress(&format!("{title} summary"));
    let (mut failed, mut skipped) = (0, 0);
    for (name, outcome, time) in rows {
        let text = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(error) => {
                failed += 1;
                format!("FAILED   {error:#}")
            }
            Outcome::Skipped(remedy) => {
                skipped += 1;
                format!("skipped  {remedy}")
            }
        };
        eprintln!("    {name:<11} {time:>8}  {text}");
    }
    if failed > 0 {
        bail!("{failed} of {} failed", rows.len());
    }
    if ci && skipped > 0 {
        bail!("{skipped} of {} could not run, and CI=true requires all of them", rows.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_part_fails_the_run_in_ci_alone() {
        let rows = [
            ("pure".to_owned(), Outcome::Passed, "1 s".to_owned()),
            ("network".to_owned(), Outcome::Skipped("no root".to_owned()), "0 s".to_owned()),
        ];
        assert!(print("test", &rows, false).is_ok());
        assert!(print("test", &rows, true).is_err());
    }

    #[test]
    fn a_failed_part_fails_the_run() {
        let rows = [("pure".to_owned(), Outcome::Failed(anyhow::anyhow!("it broke")), "1 s".to_owned())];
        assert!(print("test", &rows, false).is_err());
    }
}
