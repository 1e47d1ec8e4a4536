//! Tests a node's own rules, for example a NetworkPolicy's: they see client and pod, and their
//! refusals come from the VIP.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, UdpSocket},
};

use anyhow::{Context as _, Result, bail};
use vipmux_tests::{
    client::{Kind, Request},
    cluster::{Cluster, TIMEOUT},
    lan::{Client, Options},
    manifests::Service,
};

use crate::policies::{CONNECTIONS, VIPS, VOICE, WEB, await_web, endpoints, prepared, started, to_web, web};

/// Refused datagrams. Kernels send only a few errors at once (`icmp_ratelimit`).
const DATAGRAMS: usize = 3;

#[test]
fn packets_that_a_nodes_rules_refuse_are_refused_in_the_vips_name() -> Result<()> {
    let Some(cluster) = prepared(Options { clients: 2, ..Options::HOSTILE }, &["node-1", "node-2"])? else {
        return Ok(());
    };
    let pods = ["web-1", "web-2"];
    let voice = Service::sharing("shop/voice", VOICE.0, "UDP", VOICE.2).dual_stack().with(endpoints(&cluster, &pods)?);
    let services = [web(&cluster, &pods)?, voice];
    let cluster = started(cluster, &services)?;
    let [welcome, unwelcome] = cluster.lan.clients.as_slice() else { bail!("there are two clients") };
    await_web(welcome)?;
    for vip in VIPS {
        cluster.await_service(Request::new(Kind::UdpEcho, vip, VOICE.0), "shop/voice")?;
    }
    refuse_to(&cluster, unwelcome, &pods)?;
    for vip in VIPS {
        for _ in 0..CONNECTIONS {
            assert_eq!(welcome.namespace().run(|| to_web(vip).send(TIMEOUT))?.service, "shop/web");
            refused(unwelcome.namespace().run(|| Ok(connect(vip)))?).with_context(|| format!("TCP to {vip}"))?;
        }
        assert_eq!(cluster.ask(Request::new(Kind::UdpEcho, vip, VOICE.0), TIMEOUT)?.service, "shop/voice");
        for _ in 0..DATAGRAMS {
            refused(unwelcome.namespace().run(|| Ok(send_datagram(vip)))?).with_context(|| format!("UDP to {vip}"))?;
        }
    }
    Ok(())
}

/// As a CNI does it: by the client's address and the pod's address and port, in the forward hook.
fn refuse_to(cluster: &Cluster, client: &Client, pods: &[&str]) -> Result<()> {
    let (tcp, udp) = (WEB.1, VOICE.2);
    let mut rules = Vec::new();
    for pod in pods {
        let pod = cluster.pod(pod)?;
        for ends in [
            format!("ip saddr {} ip daddr {}", client.address, pod.address),
            format!("ip6 saddr {} ip6 daddr {}", client.address_v6, pod.address_v6),
        ] {
            rules.push(format!("{ends} tcp dport {tcp} reject with tcp reset"));
            rules.push(format!("{ends} udp dport {udp} reject"));
        }
    }
    let rules = rules.join("\n");
    let table = format!("table inet cni {{ chain forward {{ type filter hook forward priority 10;\n{rules}\n}}\n}}");
    cluster.lan.nodes.iter().try_for_each(|node| node.nft(&table).map(drop))
}

fn connect(vip: IpAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&(vip, WEB.0).into(), TIMEOUT).map(drop)
}

/// The socket only gets an error that comes from the VIP, about its own packet.
fn send_datagram(vip: IpAddr) -> io::Result<()> {
    let any: IpAddr = if vip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect((vip, VOICE.0))?;
    socket.send(b"anyone?")?;
    socket.recv(&mut [0; 64]).map(drop)
}

fn refused(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => bail!("it was not refused: {other:?}"),
    }
}
