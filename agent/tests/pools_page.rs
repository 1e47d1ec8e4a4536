//! The example in docs/pools.md: it is what it says.

use std::{fs, process::Command};

use anyhow::{Context, Result};

const PAGE: &str = include_str!("../../docs/pools.md");

/// The first block of this language.
fn block(language: &str) -> Result<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).with_context(|| format!("no {language} block"))?;
    Ok(rest.split_once("```").context("the block has no end")?.0)
}

#[test]
fn the_pages_example_is_planned_as_the_page_shows() -> Result<()> {
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("example.yaml"), block("yaml")?)?;
    let (command, shown) = block("console")?.split_once('\n').context("no output")?;
    let arguments = command.strip_prefix("$ vipmux ").context("no command")?.split_whitespace();
    let output = Command::new(env!("CARGO_BIN_EXE_vipmux")).args(arguments).current_dir(directory.path()).output()?;
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), shown);
    Ok(())
}
