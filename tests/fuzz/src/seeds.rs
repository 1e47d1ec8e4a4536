//! Writes the frames that fuzzing starts from into the folder that it is given.

#![allow(clippy::unwrap_used, clippy::panic, dead_code, reason = "all of this is test code, partly the packet suite's")]

#[path = "../../tests/packet/family.rs"]
mod family;
#[path = "../../tests/packet/fixture.rs"]
mod fixture;
#[path = "../../tests/packet/property.rs"]
mod property;

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).context("usage: seeds FOLDER")?);
    for (number, frame) in property::seeds().iter().enumerate() {
        let path = folder.join(format!("seed-{number}"));
        fs::write(&path, frame).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
