//! Tests agents that come back: they know little at first, and their knowledge may be outdated.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use vipmux_common::abi::Config;
use vipmux_datapath::bpf::maps::Maps;
use vipmux_tests::{
    agent, arp,
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, SHORT_TIMEOUT, SILENCE, TIMEOUT},
    failover::await_stopped,
    lan::Options,
    manifests::{Service, VIP},
    pod::{self, Listener},
    traffic::Traffic,
    wait,
};

use crate::{
    leading::{DEADLINE, answers},
    services,
};

const PAUSE: Duration = Duration::from_millis(5);
/// The port of the Service with a pod on the leading node and one on another node.
const PAIR: u16 = 9443;

#[test]
fn an_agent_that_was_away_does_not_take_an_address_back_from_its_new_leader() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let old = cluster.await_leader(VIP)?.name.clone();
    let agent = cluster.agent(&old)?.process();
    agent.signal(Signal::SIGSTOP)?;
    await_stopped(agent.id())?;
    let stopped = Instant::now();
    cluster.manifests.write_nodes(&cluster.lan, &[&old])?;
    while stopped.elapsed() <= DEADLINE {
        answers(&cluster, VIP)?;
    }
    let new = cluster.await_leader(VIP)?;
    assert_ne!(new.name, old);

    let capture = arp::Capture::start(cluster.lan.client()?.namespace())?;
    agent.signal(Signal::SIGCONT)?;
    agent.wait_for_line("that it was away", PATIENCE, |line| line.contains("no longer leading"))?;
    for _ in 0..8 {
        assert_eq!(answers(&cluster, VIP)?, [new.mac]);
    }
    let claims = capture.claims(VIP);
    assert!(claims.iter().all(|mac| *mac == new.mac), "{claims:?}, leader {}", new.mac);
    Ok(())
}

/// On a large cluster reading takes long, and interfaces come and go.
#[test]
fn an_agent_that_has_not_read_anything_yet_leaves_the_maps_alone() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let (leader, traffic) = traffic_through_the_leader(&cluster)?;
    let state = cluster.agent_options().state;
    let (assignments, aside, pipe) =
        (state.join("assignments.yaml"), state.join("assignments.aside"), state.join("assignments.pipe"));
    // A FIFO: the agent that reads it waits for a writer. It replaces the file atomically, or an
    // agent would write the missing file.
    fs::hard_link(&assignments, &aside)?;
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR)?;
    fs::rename(&pipe, &assignments)?;

    let node = cluster.lan.node(&leader)?;
    let agent = cluster.agents.iter_mut().find(|agent| agent.node() == leader).context("no agent on the leader")?;
    let program = agent.pins().join("programs/vipmux_xdp");
    let before = fs::metadata(&program)?.ino();
    agent.restart(node)?;
    await_another(&program, before)?;
    for number in 0..10 {
        node.namespace().links(|links| links.add_holder(&format!("extra{number}")))?;
        traffic.wait_for_more(5, PATIENCE)?;
    }

    // The reader waits until it is closed.
    let writer = wait::until("somebody who reads", PATIENCE, || {
        Ok(OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&assignments)?)
    })?;
    fs::rename(&assignments, &pipe)?;
    fs::rename(&aside, &assignments)?;
    drop(writer);
    agent.wait_ready(PATIENCE)?;
    traffic.wait_for_more(5, PATIENCE)?;
    traffic.stop()?.check_all_by("shop/web")
}

#[test]
fn a_restarted_agent_sends_no_flow_elsewhere_while_it_finds_its_neighbors() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    let other = cluster.lan.nodes.iter().find(|node| node.name != leader).context("no other node")?.name.clone();
    for (node, pod) in [(&leader, "near"), (&other, "far")] {
        cluster.add_pod(node, pod, 40, &[Listener::new(Kind::Echo, PAIR, "shop/pair")])?;
    }
    let endpoints = [cluster.endpoint("near")?, cluster.endpoint("far")?];
    cluster.manifests.write_service(&Service::sharing("shop/pair", PAIR, "TCP", PAIR).with(endpoints))?;
    cluster.await_service(Request::new(Kind::Echo, VIP, PAIR), "shop/pair")?;
    let mut session = wait::until("a connection to the far pod", PATIENCE, || {
        let mut session = cluster.lan.client()?.namespace().run(|| Session::connect((VIP, PAIR).into(), TIMEOUT))?;
        ensure!(session.echo("hello")?.pod == "far", "it went to the near one");
        Ok(session)
    })?;

    cluster.agent_mut(&leader)?.process_mut().kill()?;
    let (node, far) = (cluster.lan.node(&leader)?, cluster.lan.node(&other)?);
    cluster.lan.client()?.namespace().links(|links| links.add_neighbor("eth0", VIP, node.mac))?;
    far.namespace().sysctl("net/ipv4/conf/all/arp_ignore", "8")?;
    // The kernel sends ARP requests for as long as that takes.
    node.namespace().sysctl("net/ipv4/neigh/eth0/mcast_solicit", "90")?;
    node.namespace().links(|links| links.forget_neighbor(far.address))?;
    cluster.restart_agent(&leader)?;
    for line in ["one", "two", "three"] {
        assert_eq!(session.echo(line)?.pod, "far");
    }
    cluster.lan.node(&other)?.namespace().sysctl("net/ipv4/conf/all/arp_ignore", "0")?;
    assert_eq!(session.echo("four")?.pod, "far");
    Ok(())
}

/// An agent that was removed without `vipmux unload` must not swallow its VIPs forever.
#[test]
fn a_node_whose_agent_is_long_gone_leaves_the_vip_to_its_own_stack_until_an_agent_is_back() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let (leader, traffic) = traffic_through_the_leader(&cluster)?;
    let node = cluster.lan.node(&leader)?;
    node.namespace().links(|links| {
        links.add_holder("kube-ipvs0")?;
        links.add_address("kube-ipvs0", VIP, 32)
    })?;
    let own = pod::start(node.namespace(), "own", VIP, &[Listener::new(Kind::Http, 80, "node/own")])?;
    traffic.wait_for_more(5, PATIENCE)?;
    traffic.stop()?.check_all_by("shop/web")?;

    let request = Request::new(Kind::Http, VIP, 80);
    let answered_by = |cluster: &Cluster, service: &str| {
        wait::until(&format!("an answer by {service}"), PATIENCE, || {
            let answer = cluster.ask(request, TIMEOUT)?;
            ensure!(answer.service == service, "it was {answer}");
            Ok(())
        })
    };
    cluster.agent_mut(&leader)?.process_mut().kill()?;
    let mut maps = Maps::open(cluster.agent(&leader)?.pins())?;
    let config = maps.read_config()?;
    maps.config.set(0, Config { abandon_after: 1, ..config }, 0)?;
    answered_by(&cluster, "node/own")?;

    cluster.restart_agent(&leader)?;
    answered_by(&cluster, "shop/web")?;
    let Config { next_vip, next_generation, removed, .. } = config;
    let now = Config { next_vip, next_generation, removed, ..maps.read_config()? };
    ensure!(now == config, "the agent left the configuration of somebody else in place");
    drop(own);
    Ok(())
}

/// The node's own VIPs go to another leader, which still hands over to its pods: their node's kernel answers.
#[test]
fn a_node_whose_agent_is_long_gone_serves_what_others_hand_over_to_it() -> Result<()> {
    serves_hand_overs("derived")
}

#[test]
fn a_node_whose_agent_is_long_gone_serves_what_others_hand_over_with_their_own_macs() -> Result<()> {
    serves_hand_overs("own")
}

fn serves_hand_overs(handover_mac: &'static str) -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    cluster.start_agents(&agent::Options { handover_mac, ..cluster.agent_options() })?;
    services::await_all(&cluster)?;
    let old = cluster.await_leader(VIP)?.name.clone();
    cluster.add_pod(&old, "near", 40, &[Listener::new(Kind::Echo, PAIR, "shop/pair")])?;
    let endpoints = [cluster.endpoint("near")?];
    cluster.manifests.write_service(&Service::sharing("shop/pair", PAIR, "TCP", PAIR).with(endpoints))?;
    let request = Request::new(Kind::Echo, VIP, PAIR);
    cluster.await_service(request, "shop/pair")?;
    cluster.await_ready(PAIR, 1)?;
    let mut session = cluster.lan.client()?.namespace().run(|| Session::connect((VIP, PAIR).into(), TIMEOUT))?;
    session.echo("led here")?;

    cluster.agent_mut(&old)?.process_mut().kill()?;
    let mut maps = Maps::open(cluster.agent(&old)?.pins())?;
    let config = maps.read_config()?;
    maps.config.set(0, Config { abandon_after: 1, ..config }, 0)?;
    // The client keeps the node's MAC until another one announces the address.
    session.echo("led by nobody")?;
    let new = wait::until("another leader", PATIENCE, || {
        let leader = cluster.await_leader(VIP)?;
        ensure!(leader.name != old, "{old} still answers");
        Ok(leader)
    })?;
    wait::until("programs that notice it", PATIENCE, || {
        cluster.ask(request, SHORT_TIMEOUT).ok();
        ensure!(maps.read_fence()?.abandoned_until != 0, "they have not looked yet");
        Ok(())
    })?;
    for _ in 0..6 {
        let answer = cluster.ask(request, TIMEOUT)?;
        assert_eq!(answer.service, "shop/pair", "led by {}", new.name);
    }
    session.echo("led elsewhere")?;

    let old = cluster.lan.node(&old)?;
    cluster.lan.client()?.namespace().links(|links| links.add_neighbor("eth0", VIP, old.mac))?;
    session.echo("sent to the former leader")?;
    assert!(cluster.ask(request, SILENCE).is_err(), "a new flow was balanced by a node without an agent");
    Ok(())
}

/// Starts requests of a client with a permanent neighbor entry for the leader.
fn traffic_through_the_leader(cluster: &Cluster) -> Result<(String, Traffic)> {
    let leader = cluster.await_leader(VIP)?;
    let client = cluster.lan.client()?;
    client.namespace().links(|links| links.add_neighbor("eth0", VIP, leader.mac))?;
    let traffic = Traffic::start(client.namespace(), Request::new(Kind::Http, VIP, 80), PAUSE)?;
    traffic.wait_for_more(5, PATIENCE)?;
    Ok((leader.name.clone(), traffic))
}

/// Waits until a pin has another inode than this one.
fn await_another(pin: &Path, before: u64) -> Result<()> {
    wait::until("the program pinned anew", PATIENCE, || {
        ensure!(fs::metadata(pin)?.ino() != before, "it is the old one");
        Ok(())
    })
}
