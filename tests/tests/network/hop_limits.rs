//! Tests packets whose TTL or hop limit ends on the way to a pod: each node that forwards them tells
//! their sender, so traceroute shows it.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use anyhow::{Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use vipmux_tests::{
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, SILENCE},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP, VIP_V6},
    pod::Listener,
    wait,
};

/// The ports of a Service with a pod on the leader of [`VIP`], and of one with a pod elsewhere.
const NEAR: u16 = 7_001;
const FAR: u16 = 7_002;
const TARGET: u16 = 7_000;

/// The leader of the IPv4 VIP has one of the pods. In IPv6, the leader may be the other node.
#[test]
fn each_node_on_the_way_tells_that_the_ttl_is_exceeded() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::HOSTILE })? else { return Ok(()) };
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.manifests.write_service(&service(NEAR))?;
    let leader = cluster.planned_leader(VIP)?.name.clone();
    let other = if leader == "node-1" { "node-2" } else { "node-1" };
    for (node, port) in [(leader.as_str(), NEAR), (other, FAR)] {
        let pod = format!("pod-{port}");
        cluster.add_pod(node, &pod, 10, &[Listener::new(Kind::UdpEcho, TARGET, "hops/echo")])?;
        let endpoints = [cluster.endpoint(&pod)?, cluster.endpoint_v6(&pod)?];
        cluster.manifests.write_service(&service(port).with(endpoints))?;
    }
    cluster.start_agents(&cluster.agent_options())?;
    for vip in [IpAddr::V4(VIP), VIP_V6.into()] {
        for port in [NEAR, FAR] {
            cluster.await_service(Request::new(Kind::UdpEcho, vip, port), "hops/echo")?;
        }
    }
    for vip in [IpAddr::V4(VIP), VIP_V6.into()] {
        let leader = cluster.await_leader(vip)?.name.clone();
        for port in [NEAR, FAR] {
            let nodes = if cluster.pod(&format!("pod-{port}"))?.node == leader { 1 } else { 2 };
            for hops in 1..=nodes {
                await_outcome(&cluster, (vip, port).into(), hops, false)?;
            }
            await_outcome(&cluster, (vip, port).into(), nodes + 1, true)?;
        }
    }
    ensure!(cluster.counted("drops", "ttl_exceeded")? >= 2, "no packet ended before a hand-over");
    Ok(())
}

fn service(port: u16) -> Service {
    Service::sharing(&format!("hops/echo-{port}"), port, "UDP", TARGET).dual_stack()
}

/// Sends datagrams until one has this outcome: kernels limit how often they tell. `arrives`: the pod
/// answers. Otherwise the sender is told.
fn await_outcome(cluster: &Cluster, to: SocketAddr, hops: u32, arrives: bool) -> Result<()> {
    let client = cluster.lan.client()?;
    wait::until(&format!("the outcome of {hops} hops to {to}"), PATIENCE, || {
        let socket = client.namespace().run(|| limited(to, hops))?;
        socket.send(b"hello")?;
        match socket.recv(&mut [0; 256]) {
            Ok(_) if arrives => Ok(()),
            Err(error) if !arrives && error.kind() == io::ErrorKind::HostUnreachable => Ok(()),
            Ok(_) => bail!("it was answered"),
            Err(error) => bail!("{error}"),
        }
    })
}

/// Opens a socket that gets ICMP errors about its datagrams.
fn limited(to: SocketAddr, hops: u32) -> Result<UdpSocket> {
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0".parse()? } else { "[::]:0".parse()? };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(SILENCE))?;
    if to.is_ipv4() {
        socket.set_ttl(hops)?;
        setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv6Ttl, &i32::try_from(hops)?)?;
        setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
    }
    socket.connect(to)?;
    Ok(socket)
}
