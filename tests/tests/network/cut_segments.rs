//! Tests leaders whose interface to a segment has a carrier and no way to the others. Gossip runs on
//! another segment, so all agents hear each other.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vipmux_tests::{
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, SHORT_TIMEOUT},
    lan::Client,
    scrape::Metrics,
    wait,
};

use crate::segments::{self, PORT, VIPS};

const BRIDGE: &str = "br1";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// A VIP on the second segment, with a client there.
struct Setup {
    cluster: Cluster,
    client: Client,
    nodes: &'static [&'static str],
}

impl Setup {
    /// `None` if the test is skipped. All of the nodes lead nothing but VIPs on the second segment.
    fn new(nodes: &'static [&'static str]) -> Result<Option<Self>> {
        let started = segments::on_both_segments(nodes, "generic", "derived")?;
        let Some(setup) = started.map(|(cluster, client)| Self { cluster, client, nodes }) else { return Ok(None) };
        for vip in [IpAddr::from(VIPS.0), VIPS.1.into()] {
            setup.await_answer(vip)?;
        }
        Ok(Some(setup))
    }

    fn port(node: &str) -> String {
        format!("{node}-eth1")
    }

    /// Takes a node's port out of the switch. The carrier stays.
    fn cut(&self, node: &str) -> Result<()> {
        self.cluster.lan.switch().links(|links| links.remove_port(&Self::port(node)))
    }

    fn join(&self, node: &str) -> Result<()> {
        self.cluster.lan.switch().links(|links| links.add_port(BRIDGE, &Self::port(node)))
    }

    fn inspect(&self, node: &str, what: &str) -> Result<Value> {
        self.cluster.agent(node)?.inspect_json(self.cluster.lan.node(node)?, &[what])
    }

    /// Returns the nodes that lead this VIP.
    fn leaders(&self, vip: IpAddr) -> Result<Vec<&'static str>> {
        let mut leaders = Vec::new();
        for node in self.nodes {
            let view = self.inspect(node, "vips")?;
            let vips = view["vips"].as_array().context("no vips")?;
            let leads = |it: &Value| it["address"] == vip.to_string() && it["leading"] == true;
            leaders.extend(vips.iter().any(leads).then_some(*node));
        }
        Ok(leaders)
    }

    /// Returns the epochs of all VIPs, as the first node knows them.
    fn epochs(&self) -> Result<Vec<(String, u64)>> {
        let view = self.inspect(NODES[0], "vips")?;
        let vips = view["vips"].as_array().context("no vips")?;
        let epoch = |it: &Value| Some((it["address"].as_str()?.to_owned(), it["epoch"].as_u64()?));
        vips.iter().map(|it| epoch(it).with_context(|| format!("{it} has no epoch"))).collect()
    }

    fn leader(&self, vip: IpAddr) -> Result<&'static str> {
        match self.leaders(vip)?[..] {
            [leader] => Ok(leader),
            ref others => anyhow::bail!("{others:?} lead {vip}"),
        }
    }

    fn await_answer(&self, vip: IpAddr) -> Result<()> {
        let request = Request::new(Kind::Echo, vip, PORT);
        let ask = || self.client.namespace().run(|| request.send(SHORT_TIMEOUT));
        let answer = wait::until(&format!("an answer at {vip}"), PATIENCE, ask);
        answer.map(drop).with_context(|| self.cluster.last_outputs())
    }

    /// Waits until a node reaches so many segments in this way, of the two.
    fn await_reach(&self, node: &str, reach: &str, segments: u64) -> Result<()> {
        let node = self.cluster.lan.node(node)?;
        let awaited = wait::until(&format!("{} has {reach} segments", node.name), PATIENCE, || {
            let metrics = Metrics::scrape(node.namespace(), node.address, SHORT_TIMEOUT)?;
            let found = metrics.by_label("vipmux_segments", "reach").remove(reach).unwrap_or_default();
            ensure!(found == segments, "{found}");
            Ok(())
        });
        awaited.with_context(|| self.cluster.last_outputs())
    }

    /// Waits until another node than this one leads a VIP, and answers a client.
    fn await_other(&self, vip: IpAddr, than: &str) -> Result<()> {
        let moved = wait::until(&format!("another leader of {vip} than {than}"), PATIENCE, || {
            let leader = self.leader(vip)?;
            ensure!(leader != than, "{leader} leads");
            Ok(())
        });
        moved.with_context(|| self.cluster.last_outputs())?;
        self.await_answer(vip)
    }
}

#[test]
fn a_leader_that_no_peer_answers_on_its_vips_segment_hands_over() -> Result<()> {
    let Some(setup) = Setup::new(&NODES)? else { return Ok(()) };
    let vip = VIPS.0.into();
    let first = setup.leader(vip)?;
    setup.cut(first)?;
    setup.await_other(vip, first)?;
    ensure!(!setup.leaders(VIPS.1.into())?.contains(&first), "{first} leads the other VIP");
    setup.join(first)?;
    setup.await_reach(first, "cut", 0)?;
    // It may lead again: all others are cut off in turn.
    for other in NODES.into_iter().filter(|node| *node != first) {
        setup.cut(other)?;
        setup.await_reach(other, "cut", 1)?;
    }
    Ok(())
}

/// The others hear the client and the leader hears nothing.
#[test]
fn of_two_nodes_the_one_that_hears_nobody_hands_over() -> Result<()> {
    let Some(setup) = Setup::new(&NODES[..2])? else { return Ok(()) };
    let vip = VIPS.0.into();
    let first = setup.leader(vip)?;
    setup.cut(first)?;
    setup.await_other(vip, first)
}

#[test]
fn nothing_moves_when_nobody_is_answered_on_a_segment() -> Result<()> {
    let Some(setup) = Setup::new(&NODES)? else { return Ok(()) };
    NODES.iter().try_for_each(|node| setup.await_reach(node, "answered", 2))?;
    let before = setup.epochs()?;
    NODES.iter().try_for_each(|node| setup.cut(node))?;
    NODES.iter().try_for_each(|node| setup.await_reach(node, "deaf", 1))?;
    NODES.iter().try_for_each(|node| setup.join(node))?;
    NODES.iter().try_for_each(|node| setup.await_reach(node, "answered", 2))?;
    [IpAddr::from(VIPS.0), VIPS.1.into()].into_iter().try_for_each(|vip| setup.await_answer(vip))?;
    assert_eq!(setup.epochs()?, before);
    Ok(())
}
