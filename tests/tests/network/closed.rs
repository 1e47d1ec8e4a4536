//! What is sent to a port that nobody serves passes the wire a few times at most, whoever believes whom to lead.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent,
    cluster::{Cluster, PATIENCE},
    lan::{Node, Options},
    manifests::{Condition, VIP},
    wait,
    wire::Tap,
};

use crate::services;

/// For what is not answered at all; shorter than it takes TCP to send its SYN again.
const TIMEOUT: Duration = Duration::from_millis(100);
/// A port of no Service.
const CLOSED: u16 = 81;
/// A Service's port, for a while without backends.
const WEB: u16 = 80;

#[test]
fn a_closed_port_is_refused_once_by_whichever_node_is_asked() -> Result<()> {
    let Some((cluster, mut wire)) = stale("reject")? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        for port in [CLOSED, WEB] {
            knock(&cluster, node, port, &[ErrorKind::ConnectionRefused])?;
            // Each is seen where it goes into the node.
            wire.expect(2, &format!("port {port} of {}", node.name))?;
        }
    }
    Ok(())
}

#[test]
fn a_closed_port_is_silent_and_sends_nothing_on_if_it_is_to_be_dropped() -> Result<()> {
    let Some((cluster, mut wire)) = stale("drop")? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        for port in [CLOSED, WEB] {
            knock(&cluster, node, port, &[ErrorKind::TimedOut, ErrorKind::WouldBlock])?;
            wire.expect(2, &format!("port {port} of {}", node.name))?;
        }
    }
    Ok(())
}

/// The node's stack does not have the address, so it forwards the packet to the node that it believes to lead. There it
/// has come from a peer, and is refused.
#[test]
fn a_closed_port_that_is_left_to_the_stack_makes_one_hop_at_most() -> Result<()> {
    let Some((cluster, mut wire)) = stale("pass")? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        for port in [CLOSED, WEB] {
            knock(&cluster, node, port, &[ErrorKind::ConnectionRefused])?;
            // Into the node, out of it, and into the next.
            wire.expect(6, &format!("port {port} of {}", node.name))?;
        }
    }
    Ok(())
}

/// Taps on the switch's ports to the nodes.
struct Wire(Vec<Tap>);

impl Wire {
    /// That so many packets to the VIP passed since the last look.
    fn expect(&mut self, expected: usize, what: &str) -> Result<()> {
        let seen: Vec<_> = self.0.iter_mut().map(|tap| tap.packets_to(VIP)).collect::<Result<_>>()?;
        ensure!(seen.iter().sum::<usize>() == expected, "{what}: {seen:?} packets at the ports, not {expected} in all");
        Ok(())
    }
}

/// A cluster in which nobody serves [`WEB`], and each node's kernel holds the next one to have the VIP.
fn stale(unclaimed: &'static str) -> Result<Option<(Cluster, Wire)>> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(None) };
    let options = agent::Options { unclaimed, ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    services::await_all(&cluster)?;
    let mut web = services::web(&cluster)?;
    web.endpoints.iter_mut().for_each(|endpoint| endpoint.condition = Condition::NotReady);
    cluster.manifests.write_service(&web)?;
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
        wait::until("shop/web without a backend", PATIENCE, || {
            let view = agent.inspect_json(node, &["services"])?;
            let all = view["services"].as_array().context("no services")?;
            ensure!(all.iter().any(|service| service["port"] == WEB && service["ready"] == 0), "{view}");
            Ok(())
        })?;
    }
    let nodes = &cluster.lan.nodes;
    for (node, next) in nodes.iter().zip(nodes.iter().cycle().skip(1)) {
        node.namespace().links(|links| links.add_neighbour("eth0", VIP, next.mac))?;
    }
    let taps = nodes.iter().map(|node| Tap::open(cluster.lan.switch(), &node.name)).collect::<Result<_>>()?;
    Ok(Some((cluster, Wire(taps))))
}

/// Sends a SYN and a datagram to a port of the VIP by way of a node, and sees what they are answered with.
fn knock(cluster: &Cluster, node: &Node, port: u16, expected: &[ErrorKind]) -> Result<()> {
    let client = cluster.lan.client()?.namespace();
    client.links(|links| links.add_neighbour("eth0", VIP, node.mac))?;
    let check = |result: std::io::Result<()>| {
        let kind = result.as_ref().err().map(std::io::Error::kind);
        ensure!(kind.is_some_and(|kind| expected.contains(&kind)), "{result:?}, by way of {}", node.name);
        Ok(())
    };
    client.run(|| {
        let server = SocketAddr::from((VIP, port));
        check(TcpStream::connect_timeout(&server, TIMEOUT).map(drop)).context("TCP")?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.connect(server)?;
        socket.send(b"a question")?;
        check(socket.recv(&mut [0; 64]).map(drop)).context("UDP")
    })
}
