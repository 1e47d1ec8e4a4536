//! Tests that frames which the kernel refuses after the program's verdict are counted. Drivers refuse them,
//! so these frames come in on real interfaces.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, ensure};
use vipmux_common::abi::{Interface, RefusalKey, Stat};
use vipmux_tests::{
    cluster::PATIENCE,
    links::End,
    netns::Namespace,
    program::{IFINDEX, Program},
    wait, wire,
};

use crate::{
    demux::syn,
    fixture::{FAR, FLOWS, REDIRECTED, from_client, state},
};

/// `XDP_REDIRECT` (include/uapi/linux/bpf.h).
const REDIRECT: u16 = 4;
const FRAMES: usize = 3;
/// The node's way to another node: a bridge, whose driver takes no frames of native XDP.
const OUTLET: &str = "br0";

/// Loads the program for a node with this card, and attaches it there.
fn attached(node: &Namespace, card: &str) -> Result<(u32, Program)> {
    let (ifindex, outlet) = node.links(|links| Ok((links.index(card)?, links.index(OUTLET)?)))?;
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
    let (card, mut program) = attached(&node, "eth0")?;
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
    let (_, other) = attached(&node, "eth1")?;
    send("eth1", &other, FRAMES as u64)?;
    ensure!(program.refusals()? == expected && other.refusals()?.is_empty());
    Ok(())
}
