//! Tests frames that stand for several: the kernel joins a sender's segments before generic XDP
//! (GRO), and a sender on the same machine sends segments in one piece (TSO).

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent::{self, Agent},
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Client, Lan, Options, SwitchPorts, Uplink},
    manifests::{Manifests, Service},
    offload::{self, Offload},
    pod::Listener,
    transfer::Transfer,
    wait,
    wire::{self, Tap},
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
    go_back(Uplink::Card)
}

#[test]
fn segments_in_one_piece_go_back_by_a_bond_that_divides_nothing() -> Result<()> {
    go_back(Uplink::Bond)
}

fn go_back(uplink: Uplink) -> Result<()> {
    let options = Options { uplink, offloads: true, ports: SwitchPorts::Plain, ..Options::HOSTILE };
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

/// The client leaves checksums to its card, and so does the kernel when it joins segments. Veths carry such frames
/// on as they are. A card without checksum offload would send a wrong checksum.
#[test]
fn frames_that_leave_a_card_without_checksum_offload_have_checksums() -> Result<()> {
    let options = Options { offloads: true, ports: SwitchPorts::Plain, ..Options::HOSTILE };
    let Some(mut cluster) = transfers::prepared(options)? else { return Ok(()) };
    cluster.start_agents(&generic(&cluster))?;
    // The agents follow this setting.
    let nodes = || cluster.lan.nodes.iter();
    nodes().try_for_each(|node| node.namespace().run(|| offload::disable("eth0", Offload::TxChecksum)))?;
    let taps = nodes().map(|node| Tap::open(cluster.lan.switch(), &node.name));
    let mut taps = taps.collect::<Result<Vec<_>>>()?;
    let client = cluster.lan.client()?;
    for vip in transfers::VIPS {
        wait::until("frames with checksums alone", PATIENCE, || {
            // One of the two pods is not on the leader.
            for port in [transfers::NEAR, transfers::FAR] {
                cluster.ask(Request::new(Kind::Bulk, vip, port), TIMEOUT)?;
            }
            let (mut right, mut wrong) = (0, 0);
            for tap in &mut taps {
                tap.count(|frame| {
                    let is_handed_over = wire::destination(frame) == Some(vip) && frame[6..12] != client.mac.octets();
                    match wire::has_right_checksum(frame).filter(|_| is_handed_over) {
                        Some(true) => right += 1,
                        Some(false) => wrong += 1,
                        None => {}
                    }
                    is_handed_over
                })?;
            }
            ensure!(right > 0 && wrong == 0, "{vip}: {right} right and {wrong} wrong checksums");
            Ok(())
        })?;
    }
    Ok(())
}

/// The other end of the way out takes only short frames. The driver counts the frames that it loses there.
#[test]
fn frames_that_a_driver_loses_are_told() -> Result<()> {
    const SHORT_MTU: u32 = 1280;
    let options = Options { nodes: 2, ..Options::default() };
    let Some((cluster, client)) = on_two_segments(options, "native", |_| Ok(()))? else { return Ok(()) };
    cluster.lan.switch().links(|links| links.set_mtu(BETWEEN, SHORT_MTU))?;
    let node = cluster.lan.node(BETWEEN)?;
    let vip = (VIPS.0, transfers::FAR).into();
    let transfer = Transfer::start(client.namespace(), vip, Duration::ZERO)?;
    wait::until("lost frames", PATIENCE, || {
        let stats = cluster.agent(BETWEEN)?.inspect_json(node, &["stats"])?;
        let refused = stats["refused"].as_array().context("no refused frames")?;
        let lost = refused.iter().find(|it| it["action"] == "driver").with_context(|| stats.to_string())?;
        ensure!(lost["interface"] == "eth0" && lost["error"] == "tx_queue_xdp_xmit_errors", "{lost}");
        Ok(())
    })?;
    let text = cluster.agent(BETWEEN)?.inspect(node, &["stats"])?;
    ensure!(text.contains("refused:driver tx_queue_xdp_xmit_errors (eth0)"), "{text}");
    drop(transfer);
    Ok(())
}

/// Senders with BIG TCP. The length fields of their frames are zero.
#[test]
fn segments_in_one_piece_of_more_than_64_kib_arrive() -> Result<()> {
    let options = Options { offloads: true, ports: SwitchPorts::Plain, ..Options::HOSTILE };
    let Some(mut cluster) = transfers::prepared(options)? else { return Ok(()) };
    let lan = &cluster.lan;
    let mut interfaces = vec![(lan.client()?.namespace(), "eth0"), (lan.switch(), "client-1"), (lan.switch(), "br0")];
    for node in &lan.nodes {
        interfaces.extend([(node.namespace(), "eth0"), (lan.switch(), &*node.name)]);
    }
    for (namespace, interface) in interfaces {
        namespace.links(|links| links.enable_big_tcp(interface))?;
    }
    cluster.start_agents(&generic(&cluster))?;
    let client = cluster.lan.client()?.namespace();
    for vip in transfers::VIPS {
        for port in [transfers::NEAR, transfers::FAR] {
            wait::until("an answer", PATIENCE, || cluster.ask(Request::new(Kind::Bulk, vip, port), TIMEOUT))?;
            transfers::transfer(client, (vip, port).into(), WHOLE).with_context(|| format!("{vip} port {port}"))?;
        }
    }
    ensure!(cluster.counted("drops", "malformed")? == 0, "a frame was taken for malformed");
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

/// Sends much to a VIP from another segment than that of the pod's node. `offloads`: the client leaves its segments in one piece.
fn leaves_by_another_interface(offloads: bool, prepare: impl FnOnce(&Lan) -> Result<()>) -> Result<()> {
    let options = Options { nodes: 2, offloads, ports: SwitchPorts::Plain, ..Options::default() };
    let Some((cluster, client)) = on_two_segments(options, "generic", prepare)? else { return Ok(()) };
    for vip in [IpAddr::from(VIPS.0), VIPS.1.into()] {
        transfers::transfer(client.namespace(), (vip, transfers::FAR).into(), WHOLE)?;
    }
    ensure!(cluster.counted("stats", "handed_over")? > 0, "no frame was handed over");
    Ok(())
}

/// Serves a client on a segment with one node. The pod is on another node, which only the other segment leads
/// to. `None` if the test is skipped.
fn on_two_segments(
    options: Options,
    xdp_mode: &'static str,
    prepare: impl FnOnce(&Lan) -> Result<()>,
) -> Result<Option<(Cluster, Client)>> {
    let Some(mut lan) = Lan::for_test(options)? else { return Ok(None) };
    let client = lan.add_segment(&[BETWEEN])?;
    prepare(&lan)?;
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.add_pod("node-2", "far", 10, &[Listener::new(Kind::Bulk, 7000, "bulk/far")])?;
    cluster.manifests.write_nodes(&cluster.lan, &["node-2"])?;
    write_beside(&cluster, Service::sharing("bulk/far", transfers::FAR, "TCP", 7000), &["far"])?;
    let options = agent::Options { xdp_mode, ..cluster.agent_options() };
    cluster.start_agents_but(BETWEEN, &options)?;
    let both = agent::Options { interface: "eth0,eth1".to_owned(), ..options };
    cluster.agents.insert(0, Agent::start(cluster.lan.node(BETWEEN)?, &both)?);
    cluster.agents[0].wait_ready(PATIENCE)?;
    for vip in [IpAddr::from(VIPS.0), VIPS.1.into()] {
        let request = Request::new(Kind::Bulk, vip, transfers::FAR);
        let ask = || client.namespace().run(|| request.send(TIMEOUT));
        wait::until(&format!("an answer at {vip}"), PATIENCE, ask).with_context(|| cluster.last_outputs())?;
    }
    Ok(Some((cluster, client)))
}
