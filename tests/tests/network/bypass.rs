//! Tests nodes whose frames bypass the XDP program although the kernel has attached it: some drivers
//! accept a program and do not run it, and others may divert frames.

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent,
    cluster::{Cluster, PATIENCE},
    lan::Options,
    manifests::VIP,
    wait,
};

use crate::{
    services,
    veths::{await_gauge, await_readiness, check},
};

/// The metric that counts interfaces whose frames bypass the program.
const BYPASSED: &str = "vipmux_bypassed_interfaces";
const REASON: &str = "[-]sending failed: frames bypass the XDP program on eth0";

/// Returns the number of frames that a node's eth0 has received.
fn received(cluster: &Cluster, node: &str) -> Result<u64> {
    cluster.lan.node(node)?.namespace().links(|links| links.received("eth0"))
}

/// Returns whether the kernel counts frames that bypass native XDP. Before Linux 6.7, and some stable
/// kernels, it does not, so no agent can find them.
fn are_counted(cluster: &Cluster, node: &str) -> Result<bool> {
    let before = received(cluster, node)?;
    // Gossip goes on.
    Ok(wait::until("frames that are counted", PATIENCE, || {
        ensure!(received(cluster, node)? > before + 3);
        Ok(())
    })
    .is_ok())
}

#[test]
fn a_leader_whose_frames_bypass_its_program_hands_its_vips_over_until_they_meet_it_again() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    await_gauge(&cluster, &leader, BYPASSED, "0")?;
    let bypass = cluster.lan.bypass(&leader)?;
    if !are_counted(&cluster, &leader)? {
        eprintln!("skipped: this kernel does not count frames of bpf_redirect_peer");
        return cluster.lan.end_bypass(bypass);
    }
    await_readiness(&cluster, &leader, 503, REASON)?;
    await_gauge(&cluster, &leader, BYPASSED, "1")?;
    wait::until("another leader", PATIENCE, || {
        let now = &cluster.await_leader(VIP)?.name;
        ensure!(*now != leader, "{now} still answers");
        Ok(())
    })
    .with_context(|| cluster.last_outputs())?;
    // To attach it anew does not help here.
    let node = cluster.agent_mut(&leader)?.process();
    for line in ["attaching it anew", "leading no VIP here"] {
        node.wait_for_line(line, PATIENCE, |it| it.contains("frames bypass the XDP program") && it.contains(line))?;
    }
    let (status, mode) = check(&cluster, &leader, "native")?;
    assert_eq!(status, 2, "{mode}");
    assert!(mode.contains("fail") && mode.contains("frames bypass") && mode.contains("--xdp-mode auto"), "{mode}");
    let (code, explanation) = cluster.agent(&leader)?.explain(cluster.lan.node(&leader)?, "shop/web", &[])?;
    let finding = explanation["broken"]["finding"].as_str().unwrap_or_default();
    assert!(code == 2 && finding.contains("frames bypass the XDP program on eth0"), "{explanation}");

    cluster.lan.end_bypass(bypass)?;
    await_readiness(&cluster, &leader, 200, "[+]sending ok")?;
    await_gauge(&cluster, &leader, BYPASSED, "0")?;
    let (status, mode) = check(&cluster, &leader, "native")?;
    assert_eq!(status, 0, "{mode}");
    services::ask_all(&cluster, 5).map(drop)
}

/// Generic XDP runs in the stack, where these frames come to.
#[test]
fn a_generic_program_meets_frames_that_bypass_the_driver() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let bypasses: Vec<_> =
        ["node-1", "node-2", "node-3"].iter().map(|node| cluster.lan.bypass(node)).collect::<Result<_>>()?;
    cluster.start_agents(&agent::Options { xdp_mode: "generic", ..cluster.agent_options() })?;
    services::await_all(&cluster)?;
    services::ask_all(&cluster, 20)?;
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
        await_gauge(&cluster, &node.name, BYPASSED, "0")?;
        let lines = agent.process().output();
        ensure!(!lines.contains("frames bypass"), "{lines}");
    }
    bypasses.into_iter().try_for_each(|bypass| cluster.lan.end_bypass(bypass))
}
