//! Tests the container image with the DaemonSet's rights.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vipmux_datapath::capabilities::CAPABILITIES;
use vipmux_tests::{
    agent::{self, Plan},
    cluster::{Cluster, PATIENCE},
    lan::Options,
    manifests::VIP,
    process, requirement, wait,
};

use crate::services;

/// Starts the five Services, with agents in containers; `None` if the test is skipped.
fn served() -> Result<Option<(Cluster, agent::Options)>> {
    let Some(image) = requirement::image()? else { return Ok(None) };
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(None) };
    let options = agent::Options { image: Some(image), ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    services::await_all(&cluster)?;
    Ok(Some((cluster, options)))
}

/// Returns a field of `/proc/PID/status`.
fn status(pid: u32, field: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("no {field}"))?.trim().to_owned())
}

#[test]
fn the_images_agents_serve_and_hand_over_with_what_their_daemonset_gives_them() -> Result<()> {
    let Some((cluster, options)) = served()? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?;
    let pid = cluster.agent(&leader.name)?.process().id();
    let mask = CAPABILITIES.iter().fold(0_u64, |mask, (bit, _)| mask | 1 << bit);
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(status(pid, set)?, format!("{mask:016x}"), "{set}");
    }
    assert_eq!(status(pid, "NoNewPrivs")?, "1");
    let mounts = fs::read_to_string(format!("/proc/{pid}/mounts"))?;
    let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/")).context("no root")?;
    assert!(root.contains(" ro,"), "{root}");

    // As its preStop hook does.
    let mut drain = options.program(leader.namespace())?;
    drain.args(["drain", "--socket"]).arg(options.socket(&leader.name));
    let output = process::run(drain)?;
    assert!(output.contains(&format!("{VIP} handed over to ")), "{output}");
    let name = leader.name.clone();
    wait::until("another leader", PATIENCE, || {
        let now = cluster.await_leader(VIP)?;
        ensure!(now.name != name, "still {name}");
        Ok(())
    })?;
    services::await_all(&cluster)
}

#[test]
fn the_images_other_commands_work_in_it_and_it_takes_vipmux_out_of_a_node() -> Result<()> {
    let Some((mut cluster, options)) = served()? else { return Ok(()) };
    let mut plan = options.program(cluster.lan.nodes[0].namespace())?;
    plan.args(["plan", "-o", "json"]).arg(cluster.manifests.path());
    let planned: Value = serde_json::from_str(&process::run(plan)?)?;
    let planned = planned["services"].as_array().context("no services")?;
    assert_eq!(planned.len(), services::expected().len());
    let expected = Plan::of(cluster.manifests.path())?;
    for service in planned {
        let text = |field: &str| service[field].as_str().unwrap_or_default();
        assert_eq!(service, expected.service(&format!("{}/{}", text("namespace"), text("name")))?);
    }

    let name = cluster.lan.nodes[0].name.clone();
    cluster.agent_mut(&name)?.process_mut().kill()?;
    let (agent, node) = (cluster.agent(&name)?, cluster.lan.node(&name)?);
    let mut inspect = options.program(node.namespace())?;
    inspect.args(["inspect", "services", "--pin-path"]).arg(agent.pins());
    let shown = process::run(inspect)?;
    assert!(services::expected().iter().all(|service| shown.contains(service.name)), "{shown}");
    let mut unload = options.program(node.namespace())?;
    unload.args(["unload", "--pin-path"]).arg(agent.pins());
    let output = process::run(unload)?;
    assert!(output.contains("detached vipmux_xdp from eth0"), "{output}");
    assert!(!node.namespace().links(|links| links.has_xdp("eth0"))?);
    assert!(!agent.pins().exists());
    assert!(!node.nft("list tables")?.contains("vipmux"));
    Ok(())
}
