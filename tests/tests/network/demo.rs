//! Tests the demo as a user runs it.

use std::{fs, process::Command};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use vipmux_tests::{
    agent::Plan,
    cleanup,
    cluster::PATIENCE,
    demo,
    manifests::{Manifests, VIP},
    process::Process,
    requirement,
};

/// A running demo. On drop it is interrupted: if it were killed, it could not clean up.
struct Demo(Process);

impl Demo {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
        command.args(arguments);
        Process::spawn("the demo", command).map(Self)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::SIGTERM).and_then(|()| self.0.wait(PATIENCE));
    }
}

/// Returns what a process has on this machine, by the names of [`cleanup`].
fn belongings(process: u32) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for place in [cleanup::NAMESPACES.into(), cleanup::BPF_FILE_SYSTEM.into(), std::env::temp_dir()] {
        for entry in fs::read_dir(place)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("vipmux-{process}-")) {
                found.push(name);
            }
        }
    }
    Ok(found)
}

#[test]
fn it_shows_everything_is_held_and_ends_well_by_ctrl_c() -> Result<()> {
    if !requirement::root()? {
        return Ok(());
    }
    let mut running = Demo::start(&["--hold"])?;
    let demo = &mut running.0;
    demo.wait_for_line("held", 2 * PATIENCE, |line| line.contains("Ctrl-C"))?;
    for service in demo::SERVICES {
        demo.wait_for_line("showing every Service", PATIENCE, |line| line.contains(service.name))?;
    }
    assert!(!belongings(demo.id())?.is_empty());
    demo.signal(Signal::SIGINT)?;
    let status = demo.wait(PATIENCE)?;
    assert!(status.success(), "{status}: {}", demo.last_output());
    assert_eq!(belongings(demo.id())?, [""; 0]);
    Ok(())
}

#[test]
fn interrupted_at_any_time_it_leaves_nothing() -> Result<()> {
    if !requirement::root()? {
        return Ok(());
    }
    for moment in ["a switch, three nodes", "an agent on each node", "every port answers"] {
        let mut running = Demo::start(&["--hold"])?;
        let demo = &mut running.0;
        demo.wait_for_line(moment, PATIENCE, |line| line.contains(moment))?;
        demo.signal(Signal::SIGTERM)?;
        let status = demo.wait(PATIENCE)?;
        let output = demo.output();
        // With `--hold`, Ctrl-C is a success.
        let expected = status.code() == Some(130) || output.contains("Ctrl-C") && status.success();
        ensure!(expected, "{status} when interrupted after {moment:?}: {output}");
        assert_eq!(belongings(demo.id())?, [""; 0], "after {moment:?}");
    }
    Ok(())
}

#[test]
fn its_manifests_give_every_service_the_same_address() -> Result<()> {
    let manifests = Manifests::empty()?;
    for (file, text) in demo::MANIFESTS.into_iter().chain([demo::LATER]) {
        manifests.write_text(file, text)?;
    }
    let plan = Plan::of(manifests.path())?;
    for service in demo::SERVICES.into_iter().chain([demo::LATER_SERVICE]) {
        assert_eq!(plan.address(service.name)?, VIP, "{}", service.name);
    }
    Ok(())
}
