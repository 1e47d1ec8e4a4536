//! Tests what happens to the flows of a backend's node that dies, and of one whose agent alone dies.
//! No manifest changes: Kubernetes takes far longer to notice.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use vipmux_tests::{
    agent,
    client::{Datagrams, Kind, Request, Session},
    cluster::{Cluster, PATIENCE, SHORT_TIMEOUT, TIMEOUT},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP, VIP_V6},
    pod::Listener,
    traffic::Traffic,
    wait,
};

use crate::ipv6_nodes::NO_IPV4;

/// Services with their ports and kinds.
const SERVICES: [(&str, u16, Kind); 2] = [("shop/web", WEB, Kind::Echo), ("shop/dns", DATAGRAMS, Kind::UdpEcho)];
const WEB: u16 = 80;
const DATAGRAMS: u16 = 53;
const NODES: u8 = 4;
/// New connections whose pods are counted.
const CONNECTIONS: u32 = 400;
/// Client sockets for datagrams, each with a port of its own.
const SOCKETS: usize = 24;
/// Requests that are answered one after the other.
const IN_A_ROW: u64 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// Four nodes with a pod on each.
struct Setup {
    cluster: Cluster,
    vip: IpAddr,
    leader: String,
    /// A node that does not lead.
    victim: String,
}

impl Setup {
    /// `None` if the test is skipped. `is_ipv6`: the nodes have no IPv4.
    fn new(is_ipv6: bool) -> Result<Option<Self>> {
        let Some(lan) = Lan::for_test(Options { nodes: NODES, ..Options::default() })? else { return Ok(None) };
        let manifests = if is_ipv6 { Manifests::for_dual_stack_lan(&lan)? } else { Manifests::for_lan(&lan)? };
        if is_ipv6 {
            manifests.write_nodes_v6(&lan)?;
            lan.nodes.iter().try_for_each(|node| node.nft(NO_IPV4).map(drop))?;
        }
        let mut cluster = Cluster::new(lan, manifests)?;
        add_services(&mut cluster, is_ipv6)?;
        // Else the kernels would find out by themselves that a neighbor is gone.
        for (node, family) in cluster.lan.nodes.iter().flat_map(|node| [(node, "ipv4"), (node, "ipv6")]) {
            node.namespace().sysctl(&format!("net/{family}/neigh/eth0/ucast_solicit"), "10000")?;
        }
        let options = agent::Options { lease: "1s", ..cluster.agent_options() };
        cluster.start_agents(&options)?;
        let vip = if is_ipv6 { IpAddr::V6(VIP_V6) } else { IpAddr::V4(VIP) };
        for (name, port, kind) in SERVICES {
            cluster.await_ready(port, NODES.into())?;
            cluster.await_service(Request::new(kind, vip, port), name)?;
        }
        cluster.await_all_alive()?;
        let leader = cluster.await_leader(vip)?.name.clone();
        let victim = cluster.lan.nodes.iter().find(|node| node.name != leader).context("no other node")?.name.clone();
        Ok(Some(Self { cluster, vip, leader, victim }))
    }

    fn web(&self) -> Request {
        Request::new(Kind::Echo, self.vip, WEB)
    }

    /// Returns how many new connections each pod answers. All are answered.
    fn reached(&self) -> Result<BTreeMap<String, u32>> {
        let mut pods = BTreeMap::new();
        for _ in 0..CONNECTIONS {
            *pods.entry(self.cluster.ask(self.web(), SHORT_TIMEOUT)?.pod).or_default() += 1;
        }
        Ok(pods)
    }

    /// Opens client sockets, each with the pod that answers it. They reach the pods of all nodes.
    fn sockets(&self) -> Result<Vec<(Datagrams, String)>> {
        let server = SocketAddr::new(self.vip, DATAGRAMS);
        let open = || {
            let socket = Datagrams::connect(server, SHORT_TIMEOUT)?;
            let pod = wait::until("an answer", TIMEOUT, || socket.echo("first"))?.pod;
            Ok((socket, pod))
        };
        let client = self.cluster.lan.client()?.namespace();
        let (mut sockets, mut pods) = (Vec::new(), BTreeSet::new());
        wait::until("datagrams reach all pods", PATIENCE, || {
            for _ in 0..SOCKETS {
                let (socket, pod) = client.run(open)?;
                pods.insert(pod.clone());
                sockets.push((socket, pod));
            }
            ensure!(pods.len() == usize::from(NODES), "{pods:?}");
            Ok(())
        })?;
        Ok(sockets)
    }

    /// Opens a lasting connection to this pod.
    fn session(&self, pod: &str) -> Result<Session> {
        let client = self.cluster.lan.client()?.namespace();
        wait::until(&format!("a connection to {pod}"), PATIENCE, || {
            let mut session = client.run(|| Session::connect(SocketAddr::new(self.vip, WEB), TIMEOUT))?;
            let answer = session.echo("first")?;
            ensure!(answer.pod == pod, "{answer}");
            Ok(session)
        })
    }

    /// Returns how the leader reaches the victim: `STATE` of `vipmux inspect neighbors`.
    fn state(&self) -> Result<String> {
        let node = self.cluster.lan.node(&self.leader)?;
        let table = self.cluster.agent(&self.leader)?.inspect(node, &["neighbors"])?;
        let row = table.lines().find(|line| line.starts_with(&self.victim)).with_context(|| table.clone())?;
        Ok(row.rsplit("  ").next().unwrap_or_default().trim().to_owned())
    }
}

/// Serves [`SERVICES`] from a pod on each node, `on-node-1` and so on.
fn add_services(cluster: &mut Cluster, is_ipv6: bool) -> Result<()> {
    let names: Vec<_> = cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    for name in &names {
        cluster.add_pod(
            name,
            &pod_on(name),
            10,
            &SERVICES.map(|(name, port, kind)| Listener::new(kind, port, name)),
        )?;
    }
    for (name, port, kind) in SERVICES {
        let service = Service::sharing(name, port, kind.protocol(), port);
        let service = if is_ipv6 { service.ipv6() } else { service };
        let endpoint = |node: &String| {
            if is_ipv6 { cluster.endpoint_v6(&pod_on(node)) } else { cluster.endpoint(&pod_on(node)) }
        };
        cluster.manifests.write_service(&service.with(names.iter().map(endpoint).collect::<Result<Vec<_>>>()?))?;
    }
    Ok(())
}

fn pod_on(node: &str) -> String {
    format!("on-{node}")
}

#[test]
fn new_connections_and_datagrams_avoid_a_node_that_died_and_are_spread_over_all_others() -> Result<()> {
    avoided(false)
}

#[test]
fn a_node_with_ipv6_alone_that_died_is_avoided_too() -> Result<()> {
    avoided(true)
}

fn avoided(is_ipv6: bool) -> Result<()> {
    let Some(mut setup) = Setup::new(is_ipv6)? else { return Ok(()) };
    let dead = pod_on(&setup.victim);
    let mut sockets = setup.sockets()?;
    sockets.retain(|(_, pod)| *pod == dead);
    assert_eq!(setup.state()?, "attached");

    setup.cluster.lan.unplug(&setup.victim)?;
    let reached = wait::until("all new connections are answered", PATIENCE, || setup.reached())
        .with_context(|| setup.cluster.last_outputs())?;
    ensure!(!reached.contains_key(&dead) && reached.len() == usize::from(NODES) - 1, "{reached:?}");
    // A third each. The leader's own pod had a quarter of all before, and would have a half with
    // all of the dead node's.
    ensure!(reached.values().all(|count| *count < CONNECTIONS * 42 / 100), "{reached:?}");
    for (socket, _) in &sockets {
        let answer = wait::until("an answer to the same port", PATIENCE, || socket.echo("again"))?;
        ensure!(answer.pod != dead, "{answer}");
    }
    assert_eq!(setup.state()?, "does not answer");
    let told = |line: &str| line.contains("nodes do not answer") && line.contains(&setup.victim);
    setup.cluster.agent(&setup.leader)?.process().wait_for_line("that the node is gone", PATIENCE, told)?;

    setup.cluster.restart_agent(&setup.leader)?;
    assert_eq!(setup.state()?, "does not answer", "a restarted agent knows nothing any more");

    setup.cluster.lan.plug(&setup.victim)?;
    wait::until("the node gets connections again", PATIENCE, || {
        let reached = setup.reached()?;
        ensure!(reached.contains_key(&dead), "{reached:?}");
        Ok(())
    })
    .with_context(|| setup.cluster.last_outputs())?;
    assert_eq!(setup.state()?, "attached");
    Ok(())
}

/// The node's programs and pods serve on, so that an upgrade or a crash of agents disturbs nobody.
#[test]
fn a_node_whose_agent_alone_died_keeps_all_its_flows_and_gets_new_ones() -> Result<()> {
    let Some(mut setup) = Setup::new(false)? else { return Ok(()) };
    let pod = pod_on(&setup.victim);
    let sockets = setup.sockets()?;
    let mut session = setup.session(&pod)?;
    let traffic = Traffic::start(setup.cluster.lan.client()?.namespace(), setup.web(), PAUSE)?;
    traffic.wait_for_more(IN_A_ROW, PATIENCE)?;
    let unreachable = |setup: &Setup| setup.cluster.counted("drops", "node_unreachable");
    let before = unreachable(&setup)?;

    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let standing = if signal == Signal::SIGKILL { "down" } else { "left" };
        setup.cluster.agent(&setup.victim)?.process().signal(signal)?;
        setup.cluster.await_standing(&setup.leader, &setup.victim, standing)?;
        // For longer than it takes to find out that a node is dead.
        for _ in 0..5 {
            traffic.wait_for_more(20 * IN_A_ROW, PATIENCE)?;
            assert_eq!(setup.state()?, "attached", "{}", setup.cluster.last_outputs());
            for (socket, pod) in &sockets {
                assert_eq!(socket.echo("again")?.pod, *pod);
            }
            assert_eq!(session.echo("again")?.pod, pod);
        }
        assert!(setup.reached()?.contains_key(&pod));
        setup.cluster.restart_agent(&setup.victim)?;
        setup.cluster.await_standing(&setup.leader, &setup.victim, "alive")?;
        assert_eq!(setup.state()?, "attached");
    }
    assert_eq!(session.echo("at the end")?.pod, pod);
    assert_eq!(unreachable(&setup)?, before);
    traffic.stop()?.check_all_by("shop/web")
}

/// It hears nobody and nobody answers it. When it is back, it must not have moved a flow.
#[test]
fn a_leader_that_is_cut_off_itself_takes_no_node_for_dead() -> Result<()> {
    /// Of each of three nodes, more than make it silent.
    const REQUESTS: u64 = 3 * 6;
    let Some(setup) = Setup::new(false)? else { return Ok(()) };
    let (lan, leader) = (&setup.cluster.lan, setup.cluster.lan.node(&setup.leader)?);
    leader.nft(
        "table arp watch {
            counter asked {}
            chain output { type filter hook output priority 0; arp operation request counter name asked; }
        }",
    )?;
    let others = || lan.nodes.iter().filter(|node| node.name != setup.leader);
    lan.cut_off(&setup.leader)?;
    for other in others() {
        setup.cluster.await_standing(&setup.leader, &other.name, "down")?;
    }
    wait::until("it asked enough", PATIENCE, || {
        let asked = leader.nft_packets(("arp", "watch", "asked"))?;
        ensure!(asked >= REQUESTS, "{asked} ARP requests");
        Ok(())
    })?;
    assert_eq!(setup.state()?, "attached");
    lan.join(&setup.leader)?;
    for other in others() {
        setup.cluster.await_standing(&setup.leader, &other.name, "alive")?;
    }
    assert_eq!(setup.state()?, "attached");
    let output = setup.cluster.agent(&setup.leader)?.process().output();
    ensure!(!output.contains("do not answer"), "{output}");
    Ok(())
}
