//! Tests frames that stand for several: the kernel joins a sender's segments before generic XDP
//! (GRO), and a sender on the same machine sends segments in one piece (TSO).

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent::{self, Agent},
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Options, SwitchPorts},
    manifests::{Manifests, Service},
    offload::{self, Offload},
    pod::Listener,
    wait,
};

use crate::{
    segments::{BETWEEN, VIPS, write_beside},
    transfers,
};

/// Bytes of a transfer. If each merged frame is lost, 2 % of them arrive in 25 s.
const WHOLE: u64 = 20_000_000;

/// The client's own stack leaves its segments in one piece, and no interface on the way divides them.
#[test]
fn segments_in_one_piece_leave_by_another_interface_than_they_came_in() -> Result<()> {
    leaves_by_another_interface(true, |_| Ok(()))
}

/// The client sends segments as a card does. The node's interface merges them.
#[test]
fn merged_segments_leave_by_another_interface_than_they_came_in() -> Result<()> {
    leaves_by_another_interface(false, |lan| lan.node(BETWEEN)?.namespace().run(|| offload::enable_gro("eth1")))
}

#[test]
fn segments_in_one_piece_leave_by_another_card_that_divides_nothing() -> Result<()> {
    leaves_by_another_interface(true, |lan| without_segmentation(lan, BETWEEN))
}

#[test]
fn segments_in_one_piece_go_back_by_a_card_that_divides_nothing() -> Result<()> {
    let options = Options { offloads: true, ports: SwitchPorts::Plain, ..Options::HOSTILE };
    let Some(mut cluster) = transfers::prepared(options)? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        without_segmentation(&cluster.lan, &node.name)?;
    }
    cluster.start_agents(&generic(&cluster))?;
    let client = cluster.lan.client()?.namespace();
    for vip in transfers::VIPS {
        cluster.await_service(Request::new(Kind::Bulk, vip, transfers::FAR), "bulk/far")?;
        transfers::transfer(client, (vip, transfers::FAR).into(), WHOLE)?;
    }
    ensure!(cluster.counted("stats", "handed_over")? > 0, "no frame was handed over");
    Ok(())
}

/// Makes a node's eth0 a card that does not divide what it sends, on a wire that loses longer frames.
fn without_segmentation(lan: &Lan, node: &str) -> Result<()> {
    lan.node(node)?.namespace().run(|| offload::disable("eth0", Offload::TxChecksum))?;
    lan.drop_long_frames_of(node)
}

fn generic(cluster: &Cluster) -> agent::Options {
    agent::Options { xdp_mode: "generic", ..cluster.agent_options() }
}

/// Sends much to a VIP whose client is on a segment with one node. The pod is on another node, which
/// only the other segment leads to. `offloads`: the client leaves its segments in one piece.
fn leaves_by_another_interface(offloads: bool, prepare: impl FnOnce(&Lan) -> Result<()>) -> Result<()> {
    let options = Options { nodes: 2, offloads, ports: SwitchPorts::Plain, ..Options::default() };
    let Some(mut lan) = Lan::for_test(options)? else { return Ok(()) };
    let client = lan.add_segment(&[BETWEEN])?;
    prepare(&lan)?;
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.add_pod("node-2", "far", 10, &[Listener::new(Kind::Bulk, 7000, "bulk/far")])?;
    cluster.manifests.write_nodes(&cluster.lan, &["node-2"])?;
    write_beside(&cluster, Service::sharing("bulk/far", transfers::FAR, "TCP", 7000), &["far"])?;
    let options = generic(&cluster);
    cluster.start_agents_but(BETWEEN, &options)?;
    let both = agent::Options { interface: "eth0,eth1".to_owned(), ..options };
    cluster.agents.insert(0, Agent::start(cluster.lan.node(BETWEEN)?, &both)?);
    cluster.agents[0].wait_ready(PATIENCE)?;
    for vip in [IpAddr::from(VIPS.0), VIPS.1.into()] {
        let request = Request::new(Kind::Bulk, vip, transfers::FAR);
        let ask = || client.namespace().run(|| request.send(TIMEOUT));
        wait::until(&format!("an answer at {vip}"), PATIENCE, ask).with_context(|| cluster.last_outputs())?;
        transfers::transfer(client.namespace(), (vip, transfers::FAR).into(), WHOLE)?;
    }
    ensure!(cluster.counted("stats", "handed_over")? > 0, "no frame was handed over");
    Ok(())
}
