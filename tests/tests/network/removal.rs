//! Tests what is visible and what remains without the agent.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use vipmux_tests::{
    client::Request,
    cluster::{PATIENCE, TIMEOUT},
    lan::Options,
    links::Links,
    manifests::VIP,
    wait,
};

use crate::services;

#[test]
fn inspect_tells_the_same_while_the_agent_is_down() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    let views = [["services"].as_slice(), &["backends"], &["neighbors"]];
    let node = cluster.lan.node(&leader)?;
    let before: Vec<_> = views.iter().map(|view| cluster.agent(&leader)?.inspect(node, view)).collect::<Result<_>>()?;
    for expected in services::expected() {
        assert!(before[0].contains(expected.name), "no {} in:\n{}", expected.name, before[0]);
    }
    cluster.agent_mut(&leader)?.process_mut().kill()?;
    let (agent, node) = (cluster.agent(&leader)?, cluster.lan.node(&leader)?);
    for (view, before) in views.iter().zip(&before).skip(1) {
        assert_eq!(agent.inspect(node, view)?, *before, "{view:?}");
    }
    for view in ["vips", "services", "backends", "flows", "neighbors", "stats"] {
        assert!(!agent.inspect(node, &[view])?.is_empty(), "{view}");
        assert!(agent.inspect_json(node, &[view])?.is_object(), "{view} -j");
    }
    let path = agent.inspect(node, &["lookup", "192.0.2.101:40000", "192.0.2.200:80", "tcp"])?;
    assert!(path.contains("shop/web"), "{path}");
    Ok(())
}

#[test]
fn unload_leaves_no_trace() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    // The backend's node has all of them: links, maps and the nftables table.
    let node = cluster.lan.node("node-1")?.name.clone();
    wait::until("neighbors that the agent keeps", PATIENCE, || {
        let kept = cluster.lan.node(&node)?.namespace().links(Links::managed_neighbors)?;
        ensure!(kept.len() == 2, "{kept:?}");
        Ok(())
    })?;
    wait::until("the table", PATIENCE, || {
        ensure!(cluster.lan.node(&node)?.nft("list tables")?.contains("vipmux"), "there is none");
        Ok(())
    })?;
    cluster.agent_mut(&node)?.process_mut().kill()?;
    let (agent, node) = (cluster.agent(&node)?, cluster.lan.node(&node)?);
    assert!(node.namespace().links(|links| links.has_xdp("eth0"))?);
    assert!(agent.pins().exists());
    assert!(node.nft("list tables")?.contains("vipmux"));

    agent.unload(node)?;
    assert!(node.namespace().links(Links::managed_neighbors)?.is_empty());
    assert!(!node.namespace().links(|links| links.has_xdp("eth0"))?);
    assert!(!agent.pins().exists());
    assert!(!node.nft("list tables")?.contains("vipmux"));
    let egress = node.namespace().run(egress_programs)?;
    assert_eq!(egress, 0, "programs on the way out");
    // The second time there is nothing to do, which is no error.
    agent.unload(node)?;
    Ok(())
}

#[test]
fn unload_beside_a_running_agent_is_refused_and_changes_nothing() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?;
    let agent = cluster.agent(&leader.name)?;
    let refused = format!("{:#}", agent.unload(leader).err().context("it was not refused")?);
    assert!(refused.contains("an agent runs on this node") && refused.contains("stop it first"), "{refused}");
    let (code, diff) = agent.diff(leader)?;
    assert_eq!(code, 0, "{diff}");
    assert!(leader.nft("list tables")?.contains("vipmux"));
    assert_eq!(cluster.await_leader(VIP)?.name, leader.name);
    services::ask_all(&cluster, 1).map(drop)
}

/// As by `rm -rf`. Nothing answers for the node's VIPs any more, so it must not lead them.
#[test]
fn an_agent_without_its_pins_gives_up_its_vips_and_stops() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let mut leader = cluster.await_leader(VIP)?.name.clone();
    for part in ["", "maps"] {
        cluster.await_all_alive()?;
        fs::remove_dir_all(cluster.agent(&leader)?.pins().join(part))?;
        let process = cluster.agent_mut(&leader)?.process_mut();
        let status = process.wait(PATIENCE)?;
        let output = process.output();
        assert!(!status.success(), "{output}");
        assert!(output.contains("somebody removed vipmux from the kernel"), "{output}");
        let other = wait::until("another leader", PATIENCE, || {
            let other = cluster.await_leader(VIP)?.name.clone();
            ensure!(other != leader, "it is still {leader}");
            Ok(other)
        })?;
        // As a supervisor does. The node's pods are reached again.
        cluster.restart_agent(&leader)?;
        let (agent, node) = (cluster.agent(&leader)?, cluster.lan.node(&leader)?);
        assert_eq!(agent.diff(node)?.0, 0, "{}", agent.process().output());
        services::await_all(&cluster)?;
        leader = other;
    }
    Ok(())
}

/// Packets through the node are untouched again: clients reach its pods with their own addresses.
#[test]
fn an_unloaded_node_is_an_ordinary_one() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    let other = cluster.lan.nodes.iter().find(|node| node.name != leader).context("no other node")?.name.clone();
    cluster.agent_mut(&other)?.process_mut().kill()?;
    cluster.agent(&other)?.unload(cluster.lan.node(&other)?)?;
    let client = cluster.lan.client()?;
    client.route_pods_of(cluster.lan.node(&other)?)?;
    for pod in cluster.pods.iter().filter(|pod| pod.node == other) {
        for listener in pod.listeners() {
            let answer = cluster.ask(Request::new(listener.kind, pod.address, listener.port), TIMEOUT)?;
            assert_eq!((&answer.pod, answer.client.ip()), (&pod.name, client.address.into()));
        }
    }
    Ok(())
}

/// Returns how many egress programs the calling thread's eth0 has, by tcx links.
pub(crate) fn egress_programs() -> Result<usize> {
    match SchedClassifier::query_tcx("eth0", TcAttachType::Egress) {
        Ok((_, programs)) => Ok(programs.len()),
        // Before Linux 6.6 there are no such links, only filters (see `uplinks`).
        Err(ProgramError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EINVAL) => Ok(0),
        Err(error) => Err(error).context("cannot list the programs on eth0's way out"),
    }
}
