//! Tests what the program for replies does to the headers of sent packets: those of the node's own
//! traffic stay where the stack made them, and replies are translated wherever theirs are.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use vipmux_tests::{
    cluster::{Cluster, TIMEOUT},
    foreign_program::{self, LinearParts},
    frames::{Ethernet, Extension, Ipv4, Ipv6, Udp},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP, VIP_V6},
    netns::Namespace,
    packet_ring,
};

/// Ethernet, and IPv6 and TCP with options: the most that the stack makes for a segment.
const HEADERS: u64 = 14 + 40 + 60;
/// Bytes of a transfer.
const BYTES: usize = 10_000_000;
/// The port of the Service, and that of its pod.
const PORTS: (u16, u16) = (514, 5_140);
/// The port for the node's own traffic.
const OWN: u16 = 9_000;

/// Makes a node with an agent and a Service, whose pod has no process.
fn served() -> Result<Option<Cluster>> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, offloads: true, ..Options::DEFAULT })? else { return Ok(None) };
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.pods.push(cluster.lan.node("node-1")?.add_pod("syslog", 10)?);
    let service = Service::sharing("ops/syslog", PORTS.0, "UDP", PORTS.1).dual_stack();
    let endpoints = [cluster.endpoint("syslog")?, cluster.endpoint_v6("syslog")?];
    cluster.manifests.write_service(&service.with(endpoints))?;
    cluster.start_agents(&cluster.agent_options())?;
    cluster.await_ready(PORTS.0, 1)?;
    Ok(Some(cluster))
}

/// Segments with data have it in pages behind their headers.
#[test]
fn a_nodes_own_segments_leave_as_its_stack_made_them() -> Result<()> {
    let Some(cluster) = served()? else { return Ok(()) };
    if !foreign_program::has_tcx() {
        return Ok(());
    }
    let (node, client) = (cluster.lan.node("node-1")?, cluster.lan.client()?);
    client.route_pods_of(node)?;
    let parts = LinearParts::note(node)?;
    for address in [IpAddr::V4(client.address), client.address_v6.into()] {
        for sender in [node.namespace(), cluster.pod("syslog")?.namespace()] {
            transfer(sender, client.namespace(), (address, OWN).into())?;
        }
    }
    let (packets, longest) = parts.noted()?;
    assert!(packets > 100, "{packets} packets had their data in pages");
    assert!(longest <= HEADERS, "{longest} bytes of a packet were pulled to its linear part");
    Ok(())
}

fn transfer(sender: &Namespace, receiver: &Namespace, to: SocketAddr) -> Result<()> {
    let listener = receiver.run(|| Ok(TcpListener::bind(to)?))?;
    let download = thread::spawn(move || -> Result<usize> {
        let (mut stream, _) = listener.accept()?;
        Ok(stream.read_to_end(&mut Vec::new())?)
    });
    let mut stream = sender.run(|| Ok(TcpStream::connect_timeout(&to, TIMEOUT)?))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(&vec![7; BYTES])?;
    drop(stream);
    let bytes = download.join().map_err(|_| anyhow!("the receiver panicked"))??;
    ensure!(bytes == BYTES, "{bytes} bytes arrived");
    Ok(())
}

/// A program in a pod may send such packets, and some drivers make them of what they receive.
#[test]
fn a_reply_whose_headers_are_out_of_reach_comes_from_the_vip() -> Result<()> {
    let Some(cluster) = served()? else { return Ok(()) };
    let (pod, client) = (cluster.pod("syslog")?, cluster.lan.client()?);
    let link = Ethernet::new(pod.mac.octets(), pod.gateway.octets());
    let frame = |port: u16, extensions: Option<Extension>, is_v6: bool| {
        let udp = Udp::new(PORTS.1, port, b"reply");
        if !is_v6 {
            return link.ipv4(&Ipv4::udp(pod.address, client.address, udp));
        }
        let packet = Ipv6::udp(pod.address_v6, client.address_v6, udp);
        link.ipv6(&extensions.into_iter().fold(packet, Ipv6::extension))
    };
    let options = || Some(Extension::DestinationOptions(vec![]));
    for (vip, extensions) in [(IpAddr::V4(VIP), None), (VIP_V6.into(), None), (VIP_V6.into(), options())] {
        let (own, target): (IpAddr, IpAddr) = match vip {
            IpAddr::V4(_) => (client.address.into(), pod.address.into()),
            IpAddr::V6(_) => (client.address_v6.into(), pod.address_v6.into()),
        };
        let server = bound(pod.namespace(), (target, PORTS.1).into())?;
        let asking = bound(client.namespace(), (own, 0).into())?;
        asking.send_to(b"question", (vip, PORTS.0))?;
        let (_, from) = server.recv_from(&mut [0; 32]).with_context(|| format!("a question to {vip}"))?;
        ensure!(from == asking.local_addr()?, "{from}");
        packet_ring::send_frame(pod.namespace(), &frame(from.port(), extensions, vip.is_ipv6()))?;
        let mut reply = [0; 32];
        let (length, from) = asking.recv_from(&mut reply).with_context(|| format!("a reply of {vip}"))?;
        ensure!((from, &reply[..length]) == ((vip, PORTS.0).into(), b"reply"), "{from}");
    }
    Ok(())
}

fn bound(namespace: &Namespace, address: SocketAddr) -> Result<UdpSocket> {
    let socket = namespace.run(|| Ok(UdpSocket::bind(address)?))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}
