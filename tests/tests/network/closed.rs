//! Tests that packets to an unserved port cross the wire only a few times, whatever leaders the
//! nodes believe in.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use vipmux_common::abi::Mac;
use vipmux_datapath::bpf::maps::Maps;
use vipmux_tests::{
    agent,
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Node, Options},
    manifests::{Condition, Endpoint, Manifests, Service, VIP, VIP_V6},
    wait,
    wire::Tap,
};

/// TCP repeats its SYN after a second.
const AGAIN: Duration = Duration::from_millis(900);
/// Refused and unanswered requests: the expected errors, and the time limits.
type Refusal = (&'static [ErrorKind], Duration);
const REFUSED: Refusal = (&[ErrorKind::ConnectionRefused], AGAIN);
const SILENT: Refusal = (&[ErrorKind::TimedOut, ErrorKind::WouldBlock], Duration::from_millis(100));
const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP), IpAddr::V6(VIP_V6)];
/// A port without a Service.
const CLOSED: u16 = 81;
/// The port of a Service without backends.
const WEB: u16 = 80;

#[test]
fn a_closed_port_is_refused_once_by_whichever_node_is_asked() -> Result<()> {
    // Each packet is seen once, on its way into the node.
    knock_everywhere("reject", REFUSED, 2)
}

#[test]
fn a_closed_port_is_silent_and_sends_nothing_on_if_it_is_to_be_dropped() -> Result<()> {
    knock_everywhere("drop", SILENT, 2)
}

/// The node's stack does not have the address, so it forwards the packet to the supposed leader.
/// There it comes from a peer, and is refused.
#[test]
fn a_closed_port_that_is_left_to_the_stack_makes_one_hop_at_most() -> Result<()> {
    // Into the node, out of it, and into the next one.
    knock_everywhere("pass", REFUSED, 6)
}

/// Sends through each node, to both ports at both addresses. `passes`: how often a SYN and a
/// datagram cross the nodes' ports.
fn knock_everywhere(unclaimed: &'static str, refusal: Refusal, passes: usize) -> Result<()> {
    let Some((cluster, mut wire)) = stale(unclaimed)? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        for (vip, port) in VIPS.into_iter().flat_map(|vip| [(vip, CLOSED), (vip, WEB)]) {
            // After such a delay, the client has repeated its SYN.
            let seen = wait::until("a knock in time", PATIENCE, || {
                wire.packets_to(vip)?;
                let begin = Instant::now();
                let knocked = knock(&cluster, node, (vip, port).into(), refusal);
                let seen = wire.packets_to(vip)?;
                ensure!(begin.elapsed() < AGAIN, "it took {:?}", begin.elapsed());
                Ok(knocked.map(|()| seen))
            })??;
            let all = seen.iter().sum::<usize>();
            ensure!(all == passes, "port {port} of {}: {seen:?} at the ports, not {passes} in all", node.name);
        }
    }
    Ok(())
}

/// Taps on the switch's ports to the nodes.
struct Wire(Vec<Tap>);

impl Wire {
    /// Returns how many packets to the VIP crossed each port since the last call.
    fn packets_to(&mut self, vip: IpAddr) -> Result<Vec<usize>> {
        self.0.iter_mut().map(|tap| tap.packets_to(vip)).collect()
    }
}

/// Makes a cluster without backends for [`WEB`]. Each node's kernel takes the next node for the
/// VIPs' owner.
fn stale(unclaimed: &'static str) -> Result<Option<(Cluster, Wire)>> {
    let Some(lan) = Lan::for_test(Options::default())? else { return Ok(None) };
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    let mut web = Service::sharing("shop/web", WEB, "TCP", 8080).dual_stack().with(no_pod(&cluster.lan.nodes[0]));
    web.endpoints.iter_mut().for_each(|endpoint| endpoint.condition = Condition::NotReady);
    cluster.manifests.write_service(&web)?;
    cluster.start_agents(&agent::Options { unclaimed, ..cluster.agent_options() })?;
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
        wait::until("shop/web without a backend", PATIENCE, || {
            let view = agent.inspect_json(node, &["services"])?;
            let all = view["services"].as_array().context("no services")?;
            let without = all.iter().filter(|service| service["port"] == WEB && service["ready"] == 0);
            ensure!(without.count() == VIPS.len(), "{view}");
            Ok(())
        })?;
        wait::until("the other nodes' MACs", PATIENCE, || {
            let peers = Maps::open(agent.pins())?.peers.read()?;
            let mut others = cluster.lan.nodes.iter().filter(|other| other.name != node.name);
            ensure!(others.all(|other| peers.contains_key(&Mac::new(other.mac.octets()))), "{peers:?}");
            Ok(())
        })?;
    }
    let nodes = &cluster.lan.nodes;
    for (node, next) in nodes.iter().zip(nodes.iter().cycle().skip(1)) {
        node.namespace().links(|links| VIPS.iter().try_for_each(|vip| links.add_neighbor("eth0", *vip, next.mac)))?;
    }
    let taps = nodes.iter().map(|node| Tap::open(cluster.lan.switch(), &node.name)).collect::<Result<_>>()?;
    Ok(Some((cluster, Wire(taps))))
}

/// Returns endpoints of a pod that does not exist.
fn no_pod(node: &Node) -> [Endpoint; 2] {
    [Endpoint::new(node.pod_address(9), &node.name), Endpoint::new(node.pod_address_v6(9), &node.name)]
}

/// Sends a SYN and a datagram to a port through a node, and checks the answers.
fn knock(cluster: &Cluster, node: &Node, server: SocketAddr, (expected, timeout): Refusal) -> Result<()> {
    let client = cluster.lan.client()?.namespace();
    client.links(|links| links.add_neighbor("eth0", server.ip(), node.mac))?;
    let check = |result: std::io::Result<()>| {
        let kind = result.as_ref().err().map(std::io::Error::kind);
        ensure!(kind.is_some_and(|kind| expected.contains(&kind)), "{server} by way of {}: {result:?}", node.name);
        Ok(())
    };
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    client.run(|| {
        check(TcpStream::connect_timeout(&server, timeout).map(drop)).context("TCP")?;
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(timeout))?;
        socket.connect(server)?;
        socket.send(b"a question")?;
        check(socket.recv(&mut [0; 64]).map(drop)).context("UDP")
    })
}
