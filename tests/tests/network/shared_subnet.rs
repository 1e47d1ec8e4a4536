//! Tests nodes with two cards in one subnet, on one segment, and with a strict reverse path filter. Gossip
//! runs on a tunnel, so that a node whose card fails can go on leading.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use pnet::util::MacAddr;
use vipmux_tests::{
    agent, arp,
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, SHORT_TIMEOUT, TIMEOUT},
    lan::{Lan, Options, Tunnel},
    manifests::{Manifests, Service, VIP, VIP_V6},
    ndp,
    pod::Listener,
    wait,
};

use crate::policies::endpoints;

const NODES: [&str; 2] = ["node-1", "node-2"];
const PODS: [&str; 2] = ["web-1", "web-2"];
const PORT: u16 = 80;
/// Requests, each of a new connection. They meet all pods.
const REQUESTS: usize = 40;
/// The time in which all cards that answer have answered.
const WINDOW: Duration = Duration::from_millis(300);

struct Setup {
    cluster: Cluster,
    /// The MACs of the second cards, by node.
    second: Vec<MacAddr>,
    _tunnel: Tunnel,
}

impl Setup {
    /// `None`: the test is skipped.
    fn new(xdp_mode: &'static str) -> Result<Option<Self>> {
        let Some(mut lan) = Lan::for_test(Options { nodes: 2, ..Options::HOSTILE })? else { return Ok(None) };
        let second = lan.add_cards_beside()?;
        let tunnel = lan.add_tunnel()?;
        let manifests = Manifests::for_dual_stack_lan(&lan)?;
        let internal = NODES.iter().map(|node| Ok(vec![tunnel.address(node)?.into()]));
        manifests.write_nodes_at(&lan, &internal.collect::<Result<Vec<_>>>()?)?;
        let mut cluster = Cluster::new(lan, manifests)?;
        for (node, pod) in NODES.iter().zip(PODS) {
            cluster.add_pod(node, pod, 10, &[Listener::new(Kind::Echo, 8080, "shop/web")])?;
        }
        let service = Service::sharing("shop/web", PORT, "TCP", 8080).dual_stack();
        cluster.manifests.write_service(&service.with(endpoints(&cluster, &PODS)?))?;
        let interface = "eth0,eth1".to_owned();
        cluster.start_agents(&agent::Options { interface, xdp_mode, ..cluster.agent_options() })?;
        cluster.await_all_alive()?;
        let setup = Self { cluster, second, _tunnel: tunnel };
        setup.await_all_pods()?;
        Ok(Some(setup))
    }

    /// Waits until both pods answer, at both VIPs.
    fn await_all_pods(&self) -> Result<()> {
        for vip in [IpAddr::V4(VIP), VIP_V6.into()] {
            let mut left = BTreeSet::from(PODS);
            wait::until(&format!("all pods at {vip}"), PATIENCE, || {
                let answer = self.cluster.ask(Request::new(Kind::Echo, vip, PORT), SHORT_TIMEOUT)?;
                left.remove(answer.pod.as_str());
                ensure!(left.is_empty(), "{left:?} did not answer");
                Ok(())
            })
            .with_context(|| self.cluster.last_outputs())?;
        }
        Ok(())
    }

    /// Asks many times. Each request is answered, and both pods answer.
    fn ask_all_pods(&self) -> Result<()> {
        for vip in [IpAddr::V4(VIP), VIP_V6.into()] {
            let ask = |_| Ok(self.cluster.ask(Request::new(Kind::Echo, vip, PORT), TIMEOUT)?.pod);
            let reached = (0..REQUESTS).map(ask).collect::<Result<BTreeSet<_>>>();
            let reached = reached.with_context(|| format!("{vip}\n{}", self.cluster.last_outputs()))?;
            ensure!(reached.iter().eq(PODS), "{vip}: {reached:?} were reached");
        }
        Ok(())
    }

    /// Returns all MACs that answer for a VIP.
    fn answers(&self, vip: IpAddr) -> Result<BTreeSet<MacAddr>> {
        let client = self.cluster.lan.client()?;
        let answers = match vip {
            IpAddr::V4(vip) => arp::answers(client.namespace(), client.address, vip, WINDOW)?,
            IpAddr::V6(vip) => ndp::answers(client.namespace(), client.address_v6, vip, WINDOW)?,
        };
        Ok(answers.into_iter().collect())
    }

    /// Waits until this card alone answers for the IPv4 VIP.
    fn await_answers_of(&self, mac: MacAddr) -> Result<()> {
        let awaited = wait::until(&format!("answers of {mac} alone"), PATIENCE, || {
            let answers = self.answers(VIP.into())?;
            ensure!(answers.iter().eq([&mac]), "{answers:?} answered");
            Ok(())
        });
        awaited.with_context(|| self.cluster.last_outputs())
    }

    /// Waits until the client's kernel has learned this MAC for the IPv4 VIP from an announcement.
    fn await_learned(&self, mac: MacAddr) -> Result<()> {
        let client = self.cluster.lan.client()?;
        let awaited = wait::until(&format!("the client to learn {mac}"), PATIENCE, || {
            let learned = client.neighbor(VIP)?;
            ensure!(learned == Some(mac), "{learned:?}");
            Ok(())
        });
        awaited.with_context(|| self.cluster.last_outputs())
    }

    /// Returns the place of the node that leads the IPv4 VIP, and the MACs of its cards.
    fn leader(&self) -> Result<(usize, [MacAddr; 2])> {
        let mac = *self.answers(VIP.into())?.first().context("nobody answers")?;
        let nodes = self.cluster.lan.nodes.iter().zip(&self.second).map(|(node, second)| [node.mac, *second]);
        nodes.enumerate().find(|(_, macs)| macs.contains(&mac)).with_context(|| format!("{mac} is no node's"))
    }

    /// Returns the epoch of the IPv4 VIP, and the interfaces that announce it on a node.
    fn view(&self, node: &str) -> Result<(u64, Vec<String>)> {
        let view = self.cluster.agent(node)?.inspect_json(self.cluster.lan.node(node)?, &["vips"])?;
        let vips = view["vips"].as_array().context("no vips")?;
        let vip = vips.iter().find(|vip| vip["address"] == VIP.to_string()).context("no VIP")?;
        let interfaces = vip["interfaces"].as_array().context("no interfaces")?;
        let names = interfaces.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
        Ok((vip["epoch"].as_u64().context("no epoch")?, names))
    }
}

#[test]
fn one_card_of_a_subnet_answers_for_a_vip_and_the_other_one_takes_over_in_native_mode() -> Result<()> {
    one_card_answers("native")
}

#[test]
fn one_card_of_a_subnet_answers_for_a_vip_and_the_other_one_takes_over_in_generic_mode() -> Result<()> {
    one_card_answers("generic")
}

fn one_card_answers(xdp_mode: &'static str) -> Result<()> {
    let Some(setup) = Setup::new(xdp_mode)? else { return Ok(()) };
    let (at, [first, second]) = setup.leader()?;
    let (leader, other) = (NODES[at], NODES[1 - at]);
    setup.await_answers_of(first)?;
    ensure!(setup.answers(VIP_V6.into())?.len() == 1, "several cards answer for {VIP_V6}");
    setup.ask_all_pods()?;
    for node in NODES {
        ensure!(setup.view(node)?.1 == ["eth0"], "{node}: {:?}", setup.view(node)?);
        let output = setup.cluster.agent(node)?.process().output();
        let line = output.lines().find(|line| line.contains("several cards are in one subnet, one announces"));
        let line = line.context("the choice is not logged")?;
        ensure!(line.contains(r#""interface":"eth0""#) && line.contains("replies leave by it"), "{line}");
    }
    let found = agent::check(setup.cluster.lan.node(leader)?, ["--interface", "eth0", "--interface", "eth1"])?.1;
    let findings = found["checks"].as_array().context("no checks")?;
    ensure!(findings.iter().any(|it| it["check"] == "shared-subnet" && it["subject"] == "eth0"), "{found}");

    // The other one takes over. The node goes on leading.
    let epoch = setup.view(leader)?.0;
    let mut session = setup.cluster.lan.client()?.namespace().run(|| Session::connect((VIP, PORT).into(), TIMEOUT))?;
    session.echo("before")?;
    setup.cluster.lan.unplug(leader)?;
    setup.await_learned(second)?;
    session.echo("after").with_context(|| setup.cluster.last_outputs())?;
    setup.await_answers_of(second)?;
    setup.await_all_pods()?;
    setup.ask_all_pods()?;
    ensure!(setup.view(leader)? == (epoch, vec!["eth1".to_owned()]), "{:?}", setup.view(leader)?);

    // Replies leave by the first card again, so it answers again.
    setup.cluster.lan.plug(leader)?;
    setup.await_learned(first)?;
    setup.await_answers_of(first)?;
    setup.await_all_pods()?;
    setup.ask_all_pods()?;
    ensure!(setup.view(leader)?.0 == epoch, "the VIP has moved");

    // A peer's card that nothing is announced on takes what is handed over.
    setup.cluster.lan.unplug(other)?;
    setup.await_all_pods()?;
    setup.ask_all_pods()
}

/// The card that replies leave by stays, whichever has a carrier again.
#[test]
fn a_card_that_comes_back_takes_nothing_while_replies_leave_by_the_other_one() -> Result<()> {
    let Some(setup) = Setup::new("generic")? else { return Ok(()) };
    let (at, [first, second]) = setup.leader()?;
    let leader = setup.cluster.lan.node(NODES[at])?;
    setup.await_answers_of(first)?;
    leader.namespace().links(|links| links.prefer_route("eth1", (Ipv4Addr::new(192, 0, 2, 0), 24)))?;
    setup.await_answers_of(second)?;
    let choices = || {
        let output = setup.cluster.agent(&leader.name).map(|agent| agent.process().output());
        let is_choice = |line: &&str| line.contains("several cards are in one subnet") && line.contains("192.0.2.0/24");
        output.map(|output| output.lines().filter(is_choice).count())
    };
    // The reason of the choice is another one without a carrier.
    let await_choice = |after: usize| {
        wait::until("a choice", PATIENCE, || {
            let choices = choices()?;
            ensure!(choices > after, "{}", setup.cluster.last_outputs());
            Ok(choices)
        })
    };
    let before = choices()?;
    setup.cluster.lan.unplug(&leader.name)?;
    let before = await_choice(before)?;
    setup.cluster.lan.plug(&leader.name)?;
    await_choice(before)?;
    ensure!(setup.view(&leader.name)?.1 == ["eth1"], "{:?}", setup.view(&leader.name)?);
    setup.await_answers_of(second)?;
    setup.ask_all_pods()
}
