//! Tests a hostile machine on the LAN that announces VIPs with the MAC of a node.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use pnet::util::MacAddr;
use vipmux_tests::{
    agent::Agent,
    arp,
    cluster::{Cluster, PATIENCE},
    frames::{Arp, BROADCAST, Ethernet, Ipv6, NA_OVERRIDE, Ndp, multicast_mac},
    lan::{Node, Options},
    manifests::{VIP, VIP_V6},
    ndp, wait,
    wire::Repeater,
};

use crate::{ipv6, leading};

const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP), IpAddr::V6(VIP_V6)];
/// Once and ten times a second.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(100)];
/// The number of frames in each direction while clients ask.
const FRAMES: u64 = 24;
/// An answer takes well under a millisecond. A VIP that was silent for so long lost the question.
const ANSWER: Duration = Duration::from_millis(500);

/// Returns all that announces the VIPs of both families: ARP with the MAC in it, and Neighbor
/// Discovery from it.
fn announcements(cluster: &Cluster, mac: MacAddr) -> Result<Vec<Vec<u8>>> {
    let (mac, all) = (mac.octets(), "ff02::1".parse()?);
    let own = cluster.lan.clients.last().context("no client")?.mac.octets();
    let reply = Arp::reply(mac, VIP, BROADCAST, VIP);
    let advertisement = Ndp::advertisement(VIP_V6, NA_OVERRIDE).mac(mac);
    Ok(vec![
        Ethernet::new(own, BROADCAST).arp(&Arp::announcement(mac, VIP)),
        Ethernet::new(mac, multicast_mac(all)).ipv6(&Ipv6::ndp(VIP_V6, all, &advertisement)),
        Ethernet::new(mac, BROADCAST).arp(&reply),
    ])
}

/// Begins to announce the VIPs with the MAC of a node, from the second client.
fn forge(cluster: &Cluster, node: &Node, pause: Duration) -> Result<Repeater> {
    let hostile = cluster.lan.clients.last().context("no second client")?;
    Repeater::start(hostile.namespace(), announcements(cluster, node.mac)?, pause)
}

/// Returns the leaders of both VIPs, and a node that leads neither.
fn leaders(cluster: &Cluster) -> Result<([&Node; 2], &Node)> {
    let leaders = [cluster.await_leader(VIPS[0])?, cluster.await_leader(VIPS[1])?];
    let is_other = |node: &&Node| leaders.iter().all(|leader| leader.name != node.name);
    Ok((leaders, cluster.lan.nodes.iter().find(is_other).context("no other node")?))
}

/// Asks once for each VIP. Returns who answers.
fn ask(cluster: &Cluster) -> Result<[Option<MacAddr>; 2]> {
    let client = cluster.lan.client()?;
    Ok([
        arp::first_answer(client.namespace(), client.address, VIP, ANSWER)?,
        ndp::first_answer(client.namespace(), client.address_v6, VIP_V6, ANSWER)?,
    ])
}

/// Waits until a node reports that a VIP is announced with the MAC of another.
fn await_report(agent: &Agent, vip: IpAddr, owner: &Node) -> Result<()> {
    let (what, mac) = (format!("announces the address {vip} with {}", owner.mac), format!("the MAC of {}", owner.name));
    let reports = |line: &str| line.contains("new warning") && line.contains(&what) && line.contains(&mac);
    agent.process().wait_for_line("the forged announcement", PATIENCE, reports).map(drop)
}

/// Returns how often a node's programs took back an announced VIP.
fn yields(cluster: &Cluster, node: &Node) -> Result<usize> {
    let output = cluster.agent(&node.name)?.process().output();
    Ok(output.lines().filter(|line| line.contains("a peer announced it")).count())
}

#[test]
fn announcements_with_the_mac_of_a_node_cost_no_answer_but_at_the_beginning() -> Result<()> {
    let Some(cluster) = ipv6::served(Options { clients: 2, ..Options::default() })? else { return Ok(()) };
    cluster.await_all_alive()?;
    let (leaders, other) = leaders(&cluster)?;
    let macs = leaders.map(|leader| Some(leader.mac));
    for pause in PAUSES {
        let forger = forge(&cluster, other, pause)?;
        for (leader, vip) in leaders.iter().zip(VIPS) {
            await_report(cluster.agent(&leader.name)?, vip, other)?;
        }
        let (begin, yielded) = (forger.sent(), leaders.map(|leader| yields(&cluster, leader)));
        let mut asked = 0;
        while forger.sent() < begin + FRAMES {
            let answers = ask(&cluster)?;
            ensure!(answers == macs, "question {asked}: {answers:?} answered\n{}", cluster.last_outputs());
            asked += 1;
        }
        for (leader, before) in leaders.iter().zip(yielded) {
            assert_eq!(yields(&cluster, leader)?, before?, "{} went on answering", leader.name);
        }
        forger.stop()?;
    }
    let explained = cluster.agent(&leaders[0].name)?.explain(leaders[0], &VIP.to_string(), &[])?.1.to_string();
    ensure!(explained.contains("which does not lead it"), "{explained}");
    Ok(())
}

/// The others do not hear the leader and take its VIPs, while the announcements go on.
#[test]
fn a_leader_that_withstands_forged_announcements_still_stops_when_a_peer_takes_over() -> Result<()> {
    let Some(cluster) = ipv6::served(Options { clients: 2, ..Options::default() })? else { return Ok(()) };
    cluster.await_all_alive()?;
    let (leaders, other) = leaders(&cluster)?;
    let [leader, _] = leaders;
    let forger = forge(&cluster, other, PAUSES[1])?;
    await_report(cluster.agent(&leader.name)?, VIPS[0], other)?;
    leader.nft(
        "table inet mute {
            chain output { type filter hook output priority 0; udp dport 7944 drop; }
            chain input { type filter hook input priority 0; udp dport 7944 drop; }
        }",
    )?;
    let begin = forger.sent();
    let next = wait::until("another node answers alone", PATIENCE, || {
        let found = leading::answers(&cluster, VIP)?;
        let [next] = found[..] else { anyhow::bail!("{found:?} answer") };
        ensure!(next != leader.mac, "{} still answers", leader.name);
        Ok(next)
    })?;
    while forger.sent() < begin + FRAMES {
        let found = leading::answers(&cluster, VIP)?;
        ensure!(found.iter().all(|mac| *mac == next), "{found:?} answer\n{}", cluster.last_outputs());
    }
    leader.nft("delete table inet mute").map(drop)?;
    forger.stop()
}
