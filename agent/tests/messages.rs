//! Compares the output of `vipmux plan` word for word: messages are part of the interface.
//! `messages/` has a manifest for each case, `snapshots/` the reviewed output.
//!
//! A snapshot that is missing or differs fails. Where it should differ, `INSTA_UPDATE=always cargo
//! test -p vipmux --test messages` writes it, and `git diff` shows what changed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result};
use serde_json::Value;
use vipmux_model::reason::Reason;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messages")
}

/// Returns the names of the manifests, without their extensions.
fn cases() -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(corpus())?.collect::<Result<Vec<_>, _>>()?;
    let names = entries.iter().filter(|entry| entry.path().is_file());
    names.map(|entry| Ok(entry.path().file_stem().context("a name")?.to_string_lossy().into_owned())).collect()
}

fn plan(args: &[&str]) -> Result<Output> {
    Ok(Command::new(env!("CARGO_BIN_EXE_vipmux")).arg("plan").args(args).current_dir(corpus()).output()?)
}

/// Returns everything that a person sees.
fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let status = output.status.code().map_or_else(|| "none".to_owned(), |code| code.to_string());
    format!("exit status {status}\n--- stdout\n{}--- stderr\n{}", text(&output.stdout), text(&output.stderr))
}

#[test]
fn each_manifest_has_its_reviewed_output() -> Result<()> {
    for name in cases()? {
        insta::assert_snapshot!(name.as_str(), shown(&plan(&[&format!("{name}.yaml")])?));
    }
    Ok(())
}

/// Returns all reasons, as serde names them.
fn reasons() -> BTreeSet<String> {
    let error = serde_json::from_str::<Reason>("\"?\"").map_or_else(|error| error.to_string(), |_| String::new());
    error.split('`').skip(1).step_by(2).filter(|name| *name != "?").map(str::to_owned).collect()
}

#[test]
fn every_reason_is_in_a_snapshot() -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in cases()? {
        let output = plan(&["-o", "json", &format!("{name}.yaml")])?;
        let plan: Value = serde_json::from_slice(&output.stdout)?;
        let reasons =
            plan["services"].as_array().into_iter().flatten().filter_map(|service| service["reason"].as_str());
        seen.extend(reasons.map(str::to_owned));
    }
    assert!(seen.contains("PortConflict"), "{seen:?}");
    // For a Service that waits for its controller, which exists only in a cluster.
    seen.insert("Unallocated".to_owned());
    assert_eq!(seen, reasons());
    Ok(())
}

#[test]
fn each_change_has_its_reviewed_output() -> Result<()> {
    let entries = fs::read_dir(corpus().join("changes"))?.collect::<Result<Vec<_>, _>>()?;
    let names: BTreeSet<_> = entries.iter().map(fs::DirEntry::file_name).collect();
    for name in names {
        let name = name.to_string_lossy();
        let (before, after) = (format!("changes/{name}/before.yaml"), format!("changes/{name}/after.yaml"));
        insta::assert_snapshot!(format!("change-{name}"), shown(&plan(&["--before", &before, &after])?));
    }
    Ok(())
}
