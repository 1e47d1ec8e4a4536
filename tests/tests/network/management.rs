//! Tests nodes whose InternalIPs are on another network than the VIPs: on a second card, on a tunnel
//! without Ethernet, or on a dummy with routes. Gossip runs there. That network does not decide whether
//! frames are handed over on the VIPs' own segment.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent,
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, SHORT_TIMEOUT, TIMEOUT},
    lan::{Lan, Options, Tunnel},
    manifests::{Manifests, Service, VIP, VIP_V6},
    pod::Listener,
    wait,
};

use crate::policies::endpoints;

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const PODS: [&str; 3] = ["web-1", "web-2", "web-3"];
const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP), IpAddr::V6(VIP_V6)];
const PORT: u16 = 80;
/// Requests, each of a new connection. They meet all pods.
const REQUESTS: usize = 60;

/// Three nodes with a pod each, and VIPs on the first network.
struct Setup {
    cluster: Cluster,
    tunnel: Option<Tunnel>,
}

impl Setup {
    /// `internal`: gives the nodes the network of their InternalIPs, and returns these. `None`: the test
    /// is skipped.
    fn start(
        interface: &str,
        internal: impl FnOnce(&mut Lan) -> Result<(Vec<Vec<IpAddr>>, Option<Tunnel>)>,
    ) -> Result<Option<Self>> {
        let Some(mut lan) = Lan::for_test(Options::HOSTILE)? else { return Ok(None) };
        let (addresses, tunnel) = internal(&mut lan)?;
        let manifests = Manifests::for_dual_stack_lan(&lan)?;
        manifests.write_nodes_at(&lan, &addresses)?;
        let mut cluster = Cluster::new(lan, manifests)?;
        for (node, pod) in NODES.iter().zip(PODS) {
            cluster.add_pod(node, pod, 10, &[Listener::new(Kind::Echo, 8080, "shop/web")])?;
        }
        let service = Service::sharing("shop/web", PORT, "TCP", 8080).dual_stack();
        cluster.manifests.write_service(&service.with(endpoints(&cluster, &PODS)?))?;
        let options = agent::Options { interface: interface.to_owned(), ..cluster.agent_options() };
        cluster.start_agents(&options)?;
        cluster.await_all_alive()?;
        Ok(Some(Self { cluster, tunnel }))
    }

    /// The InternalIPs are on a second card, 203.0.113.0/24 and 2001:db8:113::/64.
    fn with_card() -> Result<Option<Self>> {
        Self::start("eth0,eth1", |lan| {
            lan.add_segment(&NODES)?;
            let addresses = |number: u8| {
                let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, number.into());
                vec![Ipv4Addr::new(203, 0, 113, number).into(), v6.into()]
            };
            Ok(((1..=3).map(addresses).collect(), None))
        })
    }

    /// The InternalIPs are on a tunnel, and the agents use eth0 alone.
    fn with_tunnel() -> Result<Option<Self>> {
        Self::start("eth0", |lan| {
            let tunnel = lan.add_tunnel()?;
            let addresses = NODES.iter().map(|node| Ok(vec![tunnel.address(node)?.into()])).collect::<Result<_>>()?;
            Ok((addresses, Some(tunnel)))
        })
    }

    fn tunnel(&self) -> Result<&Tunnel> {
        self.tunnel.as_ref().context("there is no tunnel")
    }

    /// Waits until all pods answer, at both VIPs.
    fn await_all(&self) -> Result<()> {
        for vip in VIPS {
            let mut left = BTreeSet::from(PODS);
            let request = Request::new(Kind::Echo, vip, PORT);
            let awaited = wait::until(&format!("all pods at {vip}"), PATIENCE, || {
                left.remove(self.cluster.ask(request, SHORT_TIMEOUT)?.pod.as_str());
                ensure!(left.is_empty(), "{left:?} did not answer");
                Ok(())
            });
            awaited.with_context(|| self.cluster.last_outputs())?;
        }
        Ok(())
    }

    /// Asks many times. Each request is answered, and these pods answer.
    fn ask_all(&self, pods: &[&str]) -> Result<()> {
        for vip in VIPS {
            let request = Request::new(Kind::Echo, vip, PORT);
            let ask = |_| self.cluster.ask(request, TIMEOUT).map(|answer| answer.pod);
            let reached = (0..REQUESTS).map(ask).collect::<Result<BTreeSet<_>>>();
            let reached = reached.with_context(|| format!("{vip}\n{}", self.cluster.last_outputs()))?;
            ensure!(reached.iter().eq(pods), "{vip}: {reached:?} were reached");
        }
        Ok(())
    }

    /// Waits until each agent has these nodes as down.
    fn await_down(&self, by: &[&str], nodes: &[&str]) -> Result<()> {
        let pairs = by.iter().flat_map(|by| nodes.iter().filter(move |node| *node != by).map(move |node| (by, node)));
        pairs.into_iter().try_for_each(|(by, node)| self.cluster.await_standing(by, node, "down"))
    }

    /// Waits until the kernels have given up resolving these addresses, on all nodes.
    fn await_unresolved(&self, addresses: &[IpAddr]) -> Result<()> {
        for node in &self.cluster.lan.nodes {
            wait::until(&format!("{} has given up", node.name), PATIENCE, || {
                for address in addresses {
                    let mac = node.namespace().links(|links| links.neighbor(*address))?;
                    ensure!(mac.is_none(), "{address} is at {mac:?}");
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns the epochs of the VIPs, as a node knows them.
    fn epochs(&self, node: &str) -> Result<Vec<u64>> {
        let view = self.cluster.agent(node)?.inspect_json(self.cluster.lan.node(node)?, &["vips"])?;
        let vips = view["vips"].as_array().context("no vips")?;
        vips.iter().map(|vip| vip["epoch"].as_u64().context("no epoch")).collect()
    }

    /// Returns how a node reaches another one: `STATE` of `vipmux inspect neighbors`.
    fn states(&self, by: &str, node: &str) -> Result<Vec<String>> {
        let table = self.cluster.agent(by)?.inspect(self.cluster.lan.node(by)?, &["neighbors"])?;
        let rows = table.lines().filter(|line| line.starts_with(node));
        Ok(rows.map(|row| row.rsplit("  ").next().unwrap_or_default().trim().to_owned()).collect())
    }
}

/// The Leases can be reached, so the leaders stay.
#[test]
fn pods_on_other_nodes_are_served_while_the_management_network_is_down() -> Result<()> {
    let Some(mut setup) = Setup::with_card()? else { return Ok(()) };
    setup.await_all()?;
    let leader = setup.cluster.await_leader(VIP)?.name.clone();
    let before = setup.epochs(&leader)?;
    for node in NODES {
        setup.cluster.lan.switch().links(|links| links.remove_port(&format!("{node}-eth1")))?;
    }
    setup.await_down(&NODES, &NODES)?;
    let internal = |number: u8| IpAddr::from(Ipv4Addr::new(203, 0, 113, number));
    setup.await_unresolved(&[internal(1), internal(2), internal(3)])?;
    setup.ask_all(&PODS)?;
    ensure!(setup.epochs(&leader)? == before, "the VIPs have moved");
    // A new agent hears no peer. It has the paths that are in the maps.
    for node in NODES {
        setup.cluster.restart_agent(node)?;
        setup.await_all()?;
        setup.ask_all(&PODS)?;
    }
    for node in NODES {
        setup.cluster.lan.switch().links(|links| links.add_port("br1", &format!("{node}-eth1")))?;
    }
    setup.cluster.await_all_alive()?;
    setup.ask_all(&PODS)
}

#[test]
fn an_agent_on_the_vips_card_serves_nodes_whose_internal_ips_are_on_a_tunnel() -> Result<()> {
    let Some(setup) = Setup::with_tunnel()? else { return Ok(()) };
    setup.await_all()?;
    setup.ask_all(&PODS)?;
    setup.tunnel()?.cut_off(&NODES)?;
    setup.await_down(&NODES, &NODES)?;
    setup.ask_all(&PODS)?;
    setup.tunnel()?.cut_off(&[])?;
    setup.cluster.await_all_alive()?;
    setup.ask_all(&PODS)?;
    // Now one node alone loses it.
    let alone = setup.cluster.await_leader(VIP)?.name.clone();
    setup.tunnel()?.cut_off(&[&alone])?;
    let others: Vec<_> = NODES.into_iter().filter(|node| *node != alone).collect();
    setup.await_down(&others, &[&alone])?;
    wait::until("another leader", PATIENCE, || {
        ensure!(setup.cluster.await_leader(VIP)?.name != alone, "{alone} leads");
        Ok(())
    })?;
    setup.await_all()?;
    setup.ask_all(&PODS)
}

#[test]
fn a_node_that_dies_on_its_tunnel_and_on_the_vips_segment_gets_no_flows() -> Result<()> {
    let Some(setup) = Setup::with_tunnel()? else { return Ok(()) };
    setup.await_all()?;
    let leader = setup.cluster.await_leader(VIP)?.name.clone();
    let at = NODES.iter().rposition(|node| *node != leader).context("no other node")?;
    let (dead, left) = (NODES[at], PODS.iter().copied().filter(|pod| *pod != PODS[at]).collect::<Vec<_>>());
    setup.cluster.lan.cut_off(dead)?;
    setup.tunnel()?.cut_off(&[dead])?;
    for other in NODES.iter().filter(|node| **node != dead) {
        wait::until(&format!("{other} avoids {dead}"), PATIENCE, || {
            let states = setup.states(other, dead)?;
            ensure!(states == ["does not answer"], "{states:?}");
            Ok(())
        })
        .with_context(|| setup.cluster.last_outputs())?;
    }
    // The dead node may have led one of them.
    let living = |vip: &IpAddr| setup.cluster.await_leader(*vip).is_ok_and(|node| node.name != dead);
    ensure!(VIPS.iter().all(living), "{dead} leads");
    setup.ask_all(&left)
}

/// Gossip runs on the tunnel, so all agents hear each other.
#[test]
fn a_leader_with_one_card_that_is_cut_off_from_its_segment_hands_over() -> Result<()> {
    let Some(setup) = Setup::with_tunnel()? else { return Ok(()) };
    setup.await_all()?;
    let leader = setup.cluster.await_leader(VIP)?.name.clone();
    setup.cluster.lan.cut_off(&leader)?;
    wait::until("another leader", PATIENCE, || {
        let next = setup.cluster.await_leader(VIP)?;
        ensure!(next.name != leader, "{leader} leads");
        setup.cluster.ask(Request::new(Kind::Echo, VIP, PORT), SHORT_TIMEOUT).map(drop)
    })
    .with_context(|| setup.cluster.last_outputs())
}

/// As in fabrics where each node announces its address by a routing protocol.
#[test]
fn nodes_whose_internal_ips_are_on_a_dummy_lead_and_serve() -> Result<()> {
    let setup = Setup::start("eth0", |lan| {
        let internal = |number: usize| anyhow::Ok(Ipv4Addr::new(10, 99, 0, u8::try_from(number)? + 1));
        for (number, node) in lan.nodes.iter().enumerate() {
            node.namespace().links(|links| {
                links.add_holder("node0")?;
                links.set_up("node0")?;
                links.add_address("node0", internal(number)?, 32)?;
                let others = lan.nodes.iter().enumerate().filter(|(other, _)| *other != number);
                others
                    .into_iter()
                    .try_for_each(|(other, to)| links.add_route("eth0", (internal(other)?, 32), Some(to.address)))
            })?;
        }
        let addresses = (0..lan.nodes.len()).map(|number| Ok(vec![internal(number)?.into()])).collect::<Result<_>>()?;
        Ok((addresses, None))
    })?;
    let Some(setup) = setup else { return Ok(()) };
    setup.await_all()?;
    setup.ask_all(&PODS)
}
