//! Tests that frames which the kernel refuses after the program's verdict are counted. Drivers refuse them,
//! so these frames come in on real interfaces.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, ensure};
use vipmux_common::abi::{Interface, RefusalKey, Stat};
use vipmux_datapath::link::Ethtool;
use vipmux_tests::{
    cluster::PATIENCE,
    frames::{Ipv4, SYN, Tcp},
    links::End,
    netns::Namespace,
    offload,
    program::{IFINDEX, Program},
    wait, wire,
};

use crate::{
    demux::syn,
    fixture::{CLIENT, CLIENT_PORT, FAR, FLOWS, REDIRECTED, from_client, state},
};

/// `XDP_REDIRECT` (include/uapi/linux/bpf.h).
const REDIRECT: u16 = 4;
const FRAMES: usize = 3;
/// A way to another node: a bridge, whose driver takes no frames of native XDP.
const OUTLET: &str = "br0";

/// Loads the program for a node with this card and this way to another node, and attaches it.
fn attached(node: &Namespace, card: &str, outlet: &str) -> Result<(u32, Program)> {
    let (ifindex, outlet) = node.links(|links| Ok((links.index(card)?, links.index(outlet)?)))?;
    let mut state = state();
    let entry = state.interfaces[IFINDEX];
    let place = usize::try_from(ifindex)?;
    state.interfaces.resize(state.interfaces.len().max(place + 1), Interface::default());
    state.interfaces[place] = entry;
    state.nodes[usize::try_from(FAR.node)?].ifindex = outlet;
    let mut program = Program::load(&state, FLOWS)?;
    node.run(|| program.attach(card))?;
    Ok((ifindex, program))
}

#[test]
fn frames_that_the_next_interface_refuses_are_counted_with_the_error() -> Result<()> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        eprintln!("skipped: this kernel has no BTF, so refused frames cannot be counted");
        return Ok(());
    }
    let (node, peer) = (Namespace::new("refusals-node")?, Namespace::new("refusals-peer")?);
    node.links(|links| {
        for card in ["eth0", "eth1"] {
            links.add_veth(End::named(card), End::named(card), &peer)?;
        }
        links.add_bridge(OUTLET)?;
        links.set_up(OUTLET)
    })?;
    let (card, mut program) = attached(&node, "eth0", OUTLET)?;
    program.count_refusals()?;
    let frame = from_client().ipv4(&syn(REDIRECTED));
    let send = |from, program: &Program, to: u64| {
        wire::send(&peer, from, &frame, FRAMES)?;
        wait::until("hand-overs", PATIENCE, || {
            let handed = program.counters()?.stats[Stat::HandedOver as usize].packets;
            ensure!(handed >= to, "{handed}");
            Ok(())
        })
    };
    send("eth0", &program, FRAMES as u64)?;
    let errno = u16::try_from(libc::EOPNOTSUPP)?;
    let expected = BTreeMap::from([(RefusalKey { ifindex: card, action: REDIRECT, errno }, FRAMES as u64)]);
    wait::until("refused frames", PATIENCE, || {
        let found = program.refusals()?;
        ensure!(found == expected, "{found:?}");
        Ok(())
    })?;
    // Of another agent on the same machine.
    let (_, other) = attached(&node, "eth1", OUTLET)?;
    send("eth1", &other, FRAMES as u64)?;
    ensure!(program.refusals()? == expected && other.refusals()?.is_empty());
    Ok(())
}

/// A veth counts what its other end does not take. That frame has gone into its queue, so no tracepoint of
/// single frames reports it.
#[test]
fn frames_that_a_driver_loses_are_in_its_counters() -> Result<()> {
    const SHORT_MTU: u32 = 1280;
    let (node, peer) = (Namespace::new("losses-node")?, Namespace::new("losses-peer")?);
    node.links(|links| {
        for card in ["eth0", "eth1"] {
            links.add_veth(End::named(card), End::named(card), &peer)?;
        }
        Ok(())
    })?;
    peer.links(|links| links.set_mtu("eth1", SHORT_MTU))?;
    // Its other end takes frames of native XDP only with this.
    peer.run(|| offload::Feature::named("gro")?.turn_on("eth1"))?;
    let (_, program) = attached(&node, "eth0", "eth1")?;
    let tcp = Tcp::new(CLIENT_PORT, REDIRECTED.port, SYN).data(&[0x5a; SHORT_MTU as usize]);
    wire::send(&peer, "eth0", &from_client().ipv4(&Ipv4::tcp(CLIENT, REDIRECTED.vip, tcp)), FRAMES)?;
    wait::until("lost frames", PATIENCE, || {
        let lost = node.run(|| Ok(Ethtool::open()?.lost_by_xdp("eth1")?))?;
        let expected = BTreeMap::from([("tx_queue_xdp_xmit_errors".to_owned(), FRAMES as u64)]);
        ensure!(lost == expected, "{lost:?}, {:?}", program.counters()?.stats);
        Ok(())
    })
}
