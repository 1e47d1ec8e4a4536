//! Tests what drivers of cards differ in. Under `cargo xtask vm drivers` the nodes' cards are real ones.
//!
//! The clients leave checksums and segmentation to the cards.

use std::{fs, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent, arp,
    client::{Datagrams, Kind, Request},
    cluster::{Cluster, LONG, PATIENCE, TIMEOUT},
    lan::{self, Lan, Node, Options, Uplink},
    manifests::{Manifests, Service, VIP},
    offload::{self, Feature},
    pod::Listener,
    requirement, wait,
};

use crate::{
    ipv6,
    leading::WINDOW,
    segments::{self, BETWEEN},
    transfers::{FAR, NEAR, UDP, VIPS, await_served, exchange, finish, served, start_both, transfer},
    veths,
};

/// Bytes of a transfer. It has segments of all lengths.
const TRANSFER: u64 = 1_000_000;
/// Bytes that must pass with each setting.
const PART: u64 = 100_000;
/// Between chunks, so that a transfer leaves CPU time for the drivers.
const EASY: Duration = Duration::from_millis(10);
const FLOWS: usize = 8;
const VLAN: &str = "vlan100";

#[test]
fn a_card_serves_everything_in_native_mode() -> Result<()> {
    serves_everything("native")
}

#[test]
fn a_card_serves_everything_in_generic_mode() -> Result<()> {
    serves_everything("generic")
}

#[test]
fn a_card_serves_everything_in_the_default_mode() -> Result<()> {
    serves_everything("auto")
}

/// Also after each event that makes a driver set up its queues anew, or without a program.
fn serves_everything(xdp_mode: &'static str) -> Result<()> {
    let Some(mut cluster) = served(Options { offloads: true, ..Options::HOSTILE }, xdp_mode)? else { return Ok(()) };
    reach_all(&cluster).context("at the start")?;
    let names: Vec<_> = cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    for name in &names {
        change_features(&cluster, name)?;
    }
    reach_all(&cluster).context("after changes of offloads")?;
    for name in &names {
        flap(cluster.lan.node(name)?)?;
        reach_all(&cluster).with_context(|| format!("after the card of {name} was down"))?;
        pull_cable(&cluster.lan, name)?;
        reach_all(&cluster).with_context(|| format!("after the cable of {name} was out"))?;
    }
    cluster.restart_agent(&names[0])?;
    reach_all(&cluster).context("after a restart")?;
    expect_valid_checksums(&cluster)?;
    for name in &names {
        unload(&mut cluster, name)?;
    }
    Ok(())
}

/// Checks ARP and NDP, long transfers both ways, and datagrams with and without fragments: in both families, to a
/// pod on the leader and to one elsewhere.
fn reach_all(cluster: &Cluster) -> Result<()> {
    let client = cluster.lan.client()?;
    let reach = || -> Result<()> {
        await_served(cluster)?;
        // After an event the VIP may be on its way to another node.
        wait::until("one answer to each request", PATIENCE, || {
            let by_arp = arp::answers(client.namespace(), client.address, VIP, WINDOW)?;
            for answers in [by_arp, ipv6::answers(cluster)?] {
                ensure!(answers.len() == 1 && cluster.lan.node_of(answers[0]).is_some(), "{answers:?} answered");
            }
            Ok(())
        })?;
        for vip in VIPS {
            [NEAR, FAR].into_iter().try_for_each(|port| transfer(client.namespace(), (vip, port).into(), TRANSFER))?;
            for _ in 0..FLOWS {
                exchange(&client.namespace().run(|| Datagrams::connect((vip, UDP).into(), TIMEOUT))?)?;
            }
        }
        Ok(())
    };
    reach().with_context(|| cluster.last_outputs())
}

/// Changes each setting of `ethtool -K` and back, during transfers.
fn change_features(cluster: &Cluster, node: &str) -> Result<()> {
    let namespace = cluster.lan.node(node)?.namespace();
    let mut transfers = start_both(cluster, EASY)?;
    for feature in Feature::ALL {
        for _ in 0..2 {
            if namespace.run(|| feature.invert("eth0"))? {
                for (_, transfer) in &mut transfers {
                    let passed = transfer.wait_for_more(PART, LONG);
                    passed.with_context(|| format!("{node}, {}\n{}", feature.name, cluster.last_outputs()))?;
                }
            }
        }
    }
    transfers.into_iter().try_for_each(|(port, transfer)| finish(transfer, port))
}

/// Sets a node's card down and up.
fn flap(node: &Node) -> Result<()> {
    node.namespace().sysctl("net/ipv6/conf/eth0/keep_addr_on_down", "1")?;
    node.namespace().links(|links| {
        links.set_down("eth0")?;
        links.set_up("eth0")
    })
}

/// Pulls a node's cable out until its card has no carrier, and plugs it in again. QEMU's card on the USB does not
/// tell the guest of its cable.
fn pull_cable(lan: &Lan, name: &str) -> Result<()> {
    if lan::driver().as_deref() == Some("cdc_ether") {
        return Ok(());
    }
    let namespace = lan.node(name)?.namespace();
    let await_carrier = |expected| {
        wait::until(&format!("a carrier: {expected}"), PATIENCE, || {
            ensure!(namespace.links(|links| links.has_carrier("eth0"))? == expected);
            Ok(())
        })
    };
    lan.unplug(name)?;
    await_carrier(false)?;
    lan.plug(name)?;
    await_carrier(true)
}

/// Checks that neither the client nor a pod has received a TCP segment or a UDP datagram with a wrong checksum.
fn expect_valid_checksums(cluster: &Cluster) -> Result<()> {
    let pods = cluster.pods.iter().map(|pod| (pod.name.as_str(), pod.namespace()));
    for (name, namespace) in pods.chain([("client", cluster.lan.client()?.namespace())]) {
        for (protocol, wrong) in namespace.run(wrong_checksums)? {
            ensure!(wrong == 0, "{name}: {wrong} wrong checksums of {protocol}");
        }
    }
    Ok(())
}

/// Returns the packets with wrong checksums that the calling thread's network namespace received, by protocol:
/// `InCsumErrors` of `/proc/net/snmp`, `Udp6InCsumErrors` of `/proc/net/snmp6`. TCP counts both families in one.
fn wrong_checksums() -> Result<Vec<(&'static str, u64)>> {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let of = |protocol| {
        let mut lines = snmp.lines().filter(|line| line.starts_with(protocol)).map(str::split_whitespace);
        let (names, values) = (lines.next()?, lines.next()?);
        names.zip(values).find(|(name, _)| *name == "InCsumErrors")?.1.parse().ok()
    };
    let snmp6 = fs::read_to_string("/proc/thread-self/net/snmp6")?;
    let udp6 =
        snmp6.lines().find_map(|line| line.strip_prefix("Udp6InCsumErrors")).and_then(|it| it.trim().parse().ok());
    [("Tcp:", of("Tcp:")), ("Udp:", of("Udp:")), ("Udp6", udp6)]
        .into_iter()
        .map(|(name, count)| Ok((name, count.with_context(|| format!("no InCsumErrors of {name}"))?)))
        .collect()
}

/// Ends a node's agent, and checks that `unload` leaves no program.
fn unload(cluster: &mut Cluster, name: &str) -> Result<()> {
    cluster.agent_mut(name)?.process_mut().kill()?;
    let node = cluster.lan.node(name)?;
    cluster.agent(name)?.unload(node)?;
    ensure!(!node.namespace().links(|links| links.has_xdp("eth0"))?, "{name} has a program");
    Ok(())
}

#[test]
fn a_vlan_is_served_after_its_cards_tags_were_turned_on_in_native_mode() -> Result<()> {
    keeps_tags_in_frames("native")
}

#[test]
fn a_vlan_is_served_after_its_cards_tags_were_turned_on_in_generic_mode() -> Result<()> {
    keeps_tags_in_frames("generic")
}

/// As `ethtool -K card0 rxvlan on` does. The agent turns it off again.
fn keeps_tags_in_frames(xdp_mode: &'static str) -> Result<()> {
    let Some(cluster) = beside(Uplink::Card, xdp_mode)? else { return Ok(()) };
    let namespace = cluster.lan.node(BETWEEN)?.namespace();
    let agent = cluster.agent(BETWEEN)?.process();
    if agent.output().contains("turned off rx-vlan-offload") {
        namespace.run(|| Feature::named("rxvlan")?.turn_on("eth0"))?;
        agent.wait_for_line("the repair", PATIENCE, |line| line.contains("turned it off again"))?;
    }
    ensure!(!namespace.run(|| offload::strips_tags("eth0"))?, "the card takes tags out");
    reach_beside(&cluster)
}

/// virtio_net without `ctrl_guest_offloads`, as in some clouds.
#[test]
fn native_xdp_that_the_host_prevents_has_a_remedy() -> Result<()> {
    const REMEDY: &str = "ctrl_guest_offloads";
    if !requirement::cards()? {
        return Ok(());
    }
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.start_agents(&agent::Options { xdp_mode: "auto", ..cluster.agent_options() })?;
    let output = cluster.agent(BETWEEN)?.process().output();
    ensure!(output.contains(REMEDY), "{output}");
    let (_, mode) = veths::check(&cluster, BETWEEN, "auto")?;
    ensure!(mode.starts_with("\"warn\"") && mode.contains(REMEDY), "{mode}");
    Ok(())
}

/// Without agents: this shows that the tests of carriers pull the cable of the card under test.
#[test]
fn a_cable_that_is_out_takes_the_cards_carrier() -> Result<()> {
    if !requirement::cards()? {
        return Ok(());
    }
    let Some(lan) = Lan::for_test(Options { clients: 0, ..Options::default() })? else { return Ok(()) };
    lan.nodes.iter().try_for_each(|node| pull_cable(&lan, &node.name))
}

#[test]
fn a_vlan_on_a_bond_is_served_in_native_mode() -> Result<()> {
    beside(Uplink::Bond, "native").map(drop)
}

#[test]
fn a_vlan_on_a_bond_is_served_in_generic_mode() -> Result<()> {
    beside(Uplink::Bond, "generic").map(drop)
}

/// Serves a client in a VLAN of a node's only interface; `None` if the test is skipped.
fn beside(uplink: Uplink, xdp_mode: &'static str) -> Result<Option<Cluster>> {
    if !requirement::uplink(Uplink::Vlan(100))? {
        return Ok(None);
    }
    let options = Options { nodes: 1, uplink, offloads: true, ..Options::default() };
    let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
    lan.add_vlan(BETWEEN)?;
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.add_pod(BETWEEN, "near", 10, &[Listener::new(Kind::Http, 8080, "shop/web")])?;
    segments::write_beside(&cluster, Service::sharing("shop/web", segments::PORT, "TCP", 8080), &["near"])?;
    let options = agent::Options { xdp_mode, interface: format!("eth0,{VLAN}"), ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    reach_beside(&cluster)?;
    Ok(Some(cluster))
}

fn reach_beside(cluster: &Cluster) -> Result<()> {
    for vip in [IpAddr::from(segments::VIPS.0), segments::VIPS.1.into()] {
        cluster.await_service(Request::new(Kind::Http, vip, segments::PORT), "shop/web")?;
    }
    Ok(())
}
