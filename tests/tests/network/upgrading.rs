//! Tests that agents which replace their maps, or run several versions, lose nothing.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use vipmux_datapath::bpf::flow_table::elements;
use vipmux_tests::{
    agent,
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::Options,
    manifests::{Service, VIP},
    pod::Listener,
    requirement,
    scrape::Metrics,
    traffic::Traffic,
    wait,
};

use crate::{removal::egress_programs, services};

const PAUSE: Duration = Duration::from_millis(10);
/// The version that upgraded agents name.
const LATER: &str = "99.0.0";
/// A Service with pods on two nodes.
const PAIR: u16 = 9443;
/// Lasting connections.
const SESSIONS: usize = 12;

/// To the transition, another size is another layout. Unit tests cover differences between layouts.
#[test]
fn maps_that_are_made_anew_lose_no_request_and_no_connection() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    let client = cluster.lan.client()?;
    // The switch and the client keep this node as leader, whichever node answers while the agent
    // starts.
    client.namespace().links(|links| links.add_neighbor("eth0", VIP, cluster.lan.node(&leader)?.mac))?;
    let mut sessions = sessions(&mut cluster, &leader)?;
    let client = cluster.lan.client()?;
    let requests = Traffic::start(client.namespace(), Request::new(Kind::Http, VIP, 80), PAUSE)?;
    let datagrams = Traffic::start(client.namespace(), Request::new(Kind::DnsUdp, VIP, 53), PAUSE)?;
    requests.wait_for_more(5, PATIENCE)?;

    for flows in [32_768, 16_384, 65_536] {
        for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
            agent.options_mut().flows = flows;
            agent.restart(node)?;
            agent.wait_ready(PATIENCE)?;
            agent.process().wait_for_line("carried over", PATIENCE, |line| line.contains("were carried over"))?;
            ensure!(node.namespace().run(egress_programs)? == 1, "the old egress program is still there");
            let sets = entries(&agent.inspect_json(node, &["maps"])?, "FLOWS");
            ensure!(sets == Some(u64::from(elements(flows))), "{sets:?} sets for {flows} flows");
        }
        for (session, pod) in &mut sessions {
            ensure!(session.echo("still there?")?.pod == *pod, "it went elsewhere");
        }
        requests.wait_for_more(10, PATIENCE)?;
        datagrams.wait_for_more(10, PATIENCE)?;
    }
    requests.stop()?.check_all_by("shop/web")?;
    datagrams.stop()?.check_all_by("infra/dns-udp")
}

/// An endpoint comes while the older agents run. So without their records, many connections would go
/// elsewhere.
#[test]
fn an_upgrade_from_an_older_program_loses_no_request_and_no_connection() -> Result<()> {
    let Some(older) = requirement::older_program()? else { return Ok(()) };
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let options = cluster.agent_options();
    cluster.start_agents(&agent::Options { older: Some(older), ..options })?;
    services::await_all(&cluster)?;
    let leader = cluster.await_leader(VIP)?.name.clone();
    let client = cluster.lan.client()?;
    client.namespace().links(|links| links.add_neighbor("eth0", VIP, cluster.lan.node(&leader)?.mac))?;
    let mut sessions = sessions(&mut cluster, &leader)?;
    cluster.add_pod(&leader, "late", 41, &[Listener::new(Kind::Echo, PAIR, "shop/pair")])?;
    let endpoints = [cluster.endpoint("near")?, cluster.endpoint("far")?, cluster.endpoint("late")?];
    cluster.manifests.write_service(&Service::sharing("shop/pair", PAIR, "TCP", PAIR).with(endpoints))?;
    cluster.await_ready(PAIR, 3)?;
    let client = cluster.lan.client()?;
    let requests = Traffic::start(client.namespace(), Request::new(Kind::Http, VIP, 80), PAUSE)?;
    let datagrams = Traffic::start(client.namespace(), Request::new(Kind::DnsUdp, VIP, 53), PAUSE)?;
    requests.wait_for_more(5, PATIENCE)?;

    for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
        agent.options_mut().older = None;
        agent.restart(node)?;
        agent.wait_ready(PATIENCE)?;
        ensure!(node.namespace().run(egress_programs)? == 1, "the old egress program is still there");
        requests.wait_for_more(10, PATIENCE)?;
        datagrams.wait_for_more(10, PATIENCE)?;
        for (session, pod) in &mut sessions {
            ensure!(session.echo("still there?")?.pod == *pod, "it went elsewhere");
        }
    }
    requests.stop()?.check_all_by("shop/web")?;
    datagrams.stop()?.check_all_by("infra/dns-udp")
}

/// Later agents add to gossip what these do not know. They are upgraded one after the other, each drained
/// first, and rolled back likewise.
#[test]
fn agents_of_two_versions_lead_together_and_lose_no_request() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let client = cluster.lan.client()?;
    let requests = Traffic::start(client.namespace(), Request::new(Kind::Http, VIP, 80), PAUSE)?;
    requests.wait_for_more(5, PATIENCE)?;
    let names: Vec<_> = cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    let last = names.last().context("no node")?;
    for (later, word) in [(Some(LATER), "nodes run several versions"), (None, "all nodes run one version again")] {
        for name in &names {
            let agent = cluster.agent_mut(name)?;
            agent.stop()?;
            agent.options_mut().later_version = later;
            cluster.restart_agent(name)?;
            for other in names.iter().filter(|other| *other != name) {
                cluster.await_standing(name, other, "alive")?;
                cluster.await_standing(other, name, "alive")?;
            }
            requests.wait_for_more(10, PATIENCE)?;
        }
        // The first one sees all others change.
        let logs_it = |line: &str| line.contains(word);
        let (watcher, version) = (&names[0], later.unwrap_or(env!("CARGO_PKG_VERSION")));
        cluster.agent(watcher)?.process().wait_for_line(word, PATIENCE, logs_it)?;
        await_versions(&cluster, watcher, &[(version, names.len())])?;
    }
    let undecoded = metrics(&cluster, last)?.sum("vipmux_gossip_datagrams_total", &[("outcome", "undecoded")]);
    ensure!(undecoded < 1.0, "{undecoded} payloads could not be decoded");
    requests.stop()?.check_all_by("shop/web")
}

fn metrics(cluster: &Cluster, node: &str) -> Result<Metrics> {
    let node = cluster.lan.node(node)?;
    Metrics::scrape(node.namespace(), node.address, TIMEOUT)
}

/// Waits until a node counts these numbers of nodes by version, and no others.
fn await_versions(cluster: &Cluster, by: &str, expected: &[(&str, usize)]) -> Result<()> {
    wait::until(&format!("{expected:?} on {by}"), PATIENCE, || {
        let metrics = metrics(cluster, by)?;
        let count = |labels: &[(&str, &str)]| metrics.sum("vipmux_agent_versions", labels).to_string();
        let all: usize = expected.iter().map(|(_, nodes)| nodes).sum();
        for (version, nodes) in expected {
            let found = count(&[("version", version)]);
            ensure!(found == nodes.to_string(), "{found} nodes run {version}");
        }
        ensure!(count(&[]) == all.to_string(), "{} nodes in all", count(&[]));
        Ok(())
    })
}

/// Opens connections to a Service with pods on the leader and on another node. Returns each one's
/// pod too.
fn sessions(cluster: &mut Cluster, leader: &str) -> Result<Vec<(Session, String)>> {
    let other = cluster.lan.nodes.iter().find(|node| node.name != leader).context("no other node")?.name.clone();
    for (node, pod) in [(leader, "near"), (&other, "far")] {
        cluster.add_pod(node, pod, 40, &[Listener::new(Kind::Echo, PAIR, "shop/pair")])?;
    }
    let endpoints = [cluster.endpoint("near")?, cluster.endpoint("far")?];
    cluster.manifests.write_service(&Service::sharing("shop/pair", PAIR, "TCP", PAIR).with(endpoints))?;
    cluster.await_service(Request::new(Kind::Echo, VIP, PAIR), "shop/pair")?;
    let namespace = cluster.lan.client()?.namespace();
    let connect = |_| {
        let mut session = namespace.run(|| Session::connect((VIP, PAIR).into(), TIMEOUT))?;
        let pod = session.echo("hello")?.pod;
        Ok((session, pod))
    };
    (0..SESSIONS).map(connect).collect()
}

fn entries(maps: &serde_json::Value, name: &str) -> Option<u64> {
    maps["maps"].as_array()?.iter().find(|map| map["name"] == name)?["max_entries"].as_u64()
}
