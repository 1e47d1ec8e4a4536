//! Tests that all nodes choose backends by one hashing, also while agents are updated and rolled back.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent,
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP},
    pod::Listener,
};

const PORT: u16 = 9443;
/// Another VIP, with the same pods.
const OTHER_VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 201);
/// How many client ports one count of short connections uses, and the ports of lasting connections.
const PORTS: u16 = 24;
const LASTING_PORTS: std::ops::Range<u16> = 41_000..41_024;
const CHANGED: &str = "nodes agree on another hashing";

/// With the first hashing, each client port meets one pod by both VIPs. With the second one, about half of the
/// ports meet two.
#[test]
fn nodes_use_the_second_hashing_while_no_agent_is_older() -> Result<()> {
    let Some(mut cluster) = prepared()? else { return Ok(()) };
    let options = cluster.agent_options();
    cluster.start_agents(&agent::Options { first_hashing: true, hold_down: "5s", ..options })?;
    cluster.await_all_alive()?;
    await_both(&cluster)?;
    let names: Vec<_> = cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    let (last, others) = names.split_last().context("no node")?;
    for name in others {
        restart(&mut cluster, name, false)?;
    }
    ensure!(different(&cluster, 40_000)? == 0, "one agent is older, so the VIP's address must not count");
    let mut sessions: Vec<_> = LASTING_PORTS.map(|port| connect(&cluster, port, VIP)).collect::<Result<_>>()?;

    restart(&mut cluster, last, false)?;
    await_change(&cluster, &names, 1)?;
    await_both(&cluster)?;
    ensure!(different(&cluster, 40_100)? > 0, "each client port still meets one pod by both VIPs");

    restart(&mut cluster, last, true)?;
    await_change(&cluster, others, 0)?;
    await_both(&cluster)?;
    ensure!(different(&cluster, 40_200)? == 0, "an agent was rolled back, so the VIP's address must not count");
    for (session, pod) in &mut sessions {
        ensure!(session.echo("still there?")?.pod == *pod, "a connection went to another pod");
    }
    Ok(())
}

#[test]
fn new_nodes_begin_with_the_second_hashing() -> Result<()> {
    let Some(mut cluster) = prepared()? else { return Ok(()) };
    cluster.start_agents(&cluster.agent_options())?;
    cluster.await_all_alive()?;
    await_both(&cluster)?;
    ensure!(different(&cluster, 40_300)? > 0, "each client port meets one pod by both VIPs");
    Ok(())
}

/// Makes two VIPs of the same pods, which are on two nodes.
fn prepared() -> Result<Option<Cluster>> {
    let Some(lan) = Lan::for_test(Options::default())? else { return Ok(None) };
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    for (node, pod) in [("node-1", "pair-1"), ("node-2", "pair-2")] {
        cluster.add_pod(node, pod, 10, &[Listener::new(Kind::Echo, PORT, "shop/pair")])?;
    }
    for (name, vip) in [("shop/pair", VIP), ("shop/pair-too", OTHER_VIP)] {
        let endpoints = [cluster.endpoint("pair-1")?, cluster.endpoint("pair-2")?];
        let mut service = Service::sharing(name, PORT, "TCP", PORT).with(endpoints);
        (service.address, service.sharing_key) = (Some(vip), None);
        cluster.manifests.write_service(&service)?;
    }
    Ok(Some(cluster))
}

fn await_both(cluster: &Cluster) -> Result<()> {
    for vip in [VIP, OTHER_VIP] {
        cluster.await_service(Request::new(Kind::Echo, vip, PORT), "shop/pair")?;
    }
    Ok(())
}

/// Starts an agent again, as one that knows only the first hashing or both.
fn restart(cluster: &mut Cluster, name: &str, first_hashing: bool) -> Result<()> {
    let agent = cluster.agent_mut(name)?;
    agent.stop()?;
    agent.options_mut().first_hashing = first_hashing;
    cluster.restart_agent(name)?;
    cluster.await_all_alive()
}

fn await_change(cluster: &Cluster, nodes: &[String], hashing: u32) -> Result<()> {
    let (what, number) = (format!("{CHANGED} {hashing}"), format!("\"hashing\":{hashing}"));
    for name in nodes {
        let is_it = |line: &str| line.contains(CHANGED) && line.contains(&number);
        cluster.agent(name)?.process().wait_for_line(&what, PATIENCE, is_it)?;
    }
    Ok(())
}

/// Returns how many client ports meet different pods by the two VIPs. `first`: the first port. A port that was
/// used within 125 s stays with its backend.
fn different(cluster: &Cluster, first: u16) -> Result<usize> {
    let mut different = 0;
    for port in first..first + PORTS {
        let [one, other] = [VIP, OTHER_VIP].map(|vip| -> Result<String> {
            let (session, pod) = connect(cluster, port, vip)?;
            session.reset()?;
            Ok(pod)
        });
        different += usize::from(one? != other?);
    }
    Ok(different)
}

fn connect(cluster: &Cluster, port: u16, vip: Ipv4Addr) -> Result<(Session, String)> {
    let server = SocketAddr::from((vip, PORT));
    let mut session = cluster.lan.client()?.namespace().run(|| Session::connect_from(port, server, TIMEOUT))?;
    let pod = session.echo("hello")?.pod;
    Ok((session, pod))
}
