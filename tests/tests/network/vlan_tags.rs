//! Tests `rx-vlan-offload`, which the agent turns off and others turn on again. With it, a frame of any VLAN
//! looks untagged.

use std::ffi::OsStr;

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent::{self, Agent},
    cluster::{Cluster, PATIENCE},
    lan::{Node, Options, Uplink},
    manifests::VIP,
    offload::{self, Feature},
    wait,
};

use crate::{
    services,
    veths::{await_gauge, await_readiness},
};

/// How often the agent turns it off within an hour.
const REPAIRS: usize = 5;
const GIVING_WAY: &str = "others keep turning rx-vlan-offload on";

/// As `ethtool -K INTERFACE rxvlan on` does.
fn turn_on(node: &Node, interface: &str) -> Result<()> {
    node.namespace().run(|| Feature::named("rxvlan")?.turn_on(interface))
}

fn turn_off(node: &Node, interface: &str) -> Result<()> {
    node.namespace().run(|| Feature::named("rxvlan")?.turn_off(interface))
}

/// Turns it on until the agent gives way.
fn insist(agent: &Agent, node: &Node, interface: &str) -> Result<()> {
    for repair in 1..=REPAIRS {
        ensure!(!node.namespace().run(|| offload::strips_tags(interface))?, "rx-vlan-offload is on");
        turn_on(node, interface)?;
        wait::until("a repair", PATIENCE, || {
            let output = agent.process().output();
            ensure!(output.matches("turned it off again").count() == repair, "{output}");
            Ok(())
        })?;
    }
    turn_on(node, interface)?;
    agent.process().wait_for_line("the end", PATIENCE, |line| line.contains(GIVING_WAY) && line.contains(interface))?;
    ensure!(node.namespace().run(|| offload::strips_tags(interface))?, "the agent insists");
    Ok(())
}

/// Runs `vipmux check`, and returns what it says about VLAN tags.
fn check(cluster: &Cluster, node: &Node) -> Result<String> {
    let pins = cluster.agent(&node.name)?.pins().as_os_str();
    let arguments = ["--interface", "eth0", "--node-name", &node.name, "--manifests"].map(OsStr::new);
    let arguments = arguments.into_iter().chain([cluster.manifests.path().as_os_str(), OsStr::new("--pin-path"), pins]);
    let (_, said) = agent::check(node, arguments)?;
    let checks = said["checks"].as_array().with_context(|| said.to_string())?;
    let of_tags = checks.iter().filter(|check| check["check"] == "vlan-tags");
    Ok(of_tags.map(|check| format!("{} {}", check["verdict"], check["found"])).collect::<Vec<_>>().join("\n"))
}

#[test]
fn rx_vlan_offload_that_others_turn_on_is_turned_off_again_five_times() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    cluster.start_agents(&cluster.agent_options())?;
    services::await_all(&cluster)?;
    let (node, agent) = (cluster.lan.node("node-1")?, cluster.agent("node-1")?);
    ensure!(check(&cluster, node)?.is_empty(), "nothing is wrong: {}", check(&cluster, node)?);
    insist(agent, node, "eth0")?;

    let (code, differences) = agent.diff(node)?;
    let difference = &differences["differences"][0];
    ensure!(code == 2 && difference["entry"] == "rx-vlan-offload of eth0", "{code}: {differences}");
    let found = check(&cluster, node)?;
    ensure!(found.contains("warn") && found.contains("turned on again"), "{found}");
    // Untagged VIPs are served as before.
    await_readiness(&cluster, "node-1", 200, "[+]sending ok")?;
    services::ask_all(&cluster, 5)?;

    turn_off(node, "eth0")?;
    agent.process().wait_for_line("the end", PATIENCE, |line| line.contains("VLAN tags stay in frames again"))?;
    ensure!(agent.diff(node)?.0 == 0, "{}", agent.diff(node)?.1);
    Ok(())
}

#[test]
fn a_node_whose_vlan_tags_others_take_out_leads_nothing_in_vlans_until_they_stop() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options { uplink: Uplink::Vlan(100), ..Options::default() })? else {
        return Ok(());
    };
    cluster.start_agents(&cluster.agent_options())?;
    services::await_all(&cluster)?;
    let node = cluster.await_leader(VIP)?;
    insist(cluster.agent(&node.name)?, node, "card0")?;

    await_readiness(&cluster, &node.name, 503, "[-]sending failed: VLAN tags are taken out of frames on card0")?;
    await_gauge(&cluster, &node.name, "vipmux_lossy_interfaces", "1")?;
    let found = check(&cluster, node)?;
    ensure!(found.contains("fail") && found.contains("turned on again"), "{found}");
    wait::until("another leader", PATIENCE, || {
        let now = &cluster.await_leader(VIP)?.name;
        ensure!(*now != node.name, "{now} still answers");
        Ok(())
    })
    .with_context(|| cluster.last_outputs())?;
    services::await_all(&cluster)?;

    turn_off(node, "card0")?;
    await_readiness(&cluster, &node.name, 200, "[+]sending ok")?;
    services::await_all(&cluster)?;
    services::ask_all(&cluster, 5).map(drop)
}
