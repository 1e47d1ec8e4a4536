//! A client that reaches the same pod through the VIP and past it, from the same port: to the pod, both are the same
//! connection, one after the other.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use vipmux_tests::{
    client::Session,
    cluster::{Cluster, TIMEOUT},
    lan::Options,
    manifests::{VIP, VIP_V6},
};

use crate::ipv6;

/// The first of the client's ports; outside of those that the kernel gives by itself.
const FIRST_PORT: u16 = 20_000;

/// How a client leaves a connection.
#[derive(Clone, Copy, Debug)]
enum End {
    /// By a FIN: both sides close in turn.
    Closed,
    /// By a RST.
    Reset,
    /// Without a word, as a client does that loses its power: the pod still has the connection.
    Abandoned,
}

#[test]
fn a_port_that_was_used_through_the_vip_reaches_the_pod_directly() -> Result<()> {
    alternate(&[Way::Vip, Way::Pod], &[End::Closed, End::Reset, End::Abandoned])
}

#[test]
fn a_port_that_was_used_to_the_pod_directly_reaches_it_through_the_vip() -> Result<()> {
    alternate(&[Way::Pod, Way::Vip], &[End::Closed, End::Reset, End::Abandoned])
}

#[test]
fn a_port_that_goes_to_and_fro_between_the_vip_and_the_pod_always_reaches_it() -> Result<()> {
    alternate(&[Way::Vip, Way::Pod, Way::Vip, Way::Vip, Way::Pod, Way::Pod, Way::Vip], &[End::Closed, End::Reset])
}

/// How the pod is reached.
#[derive(Clone, Copy, Debug)]
enum Way {
    Vip,
    Pod,
}

/// Takes these ways one after the other from one port, by the pod's own node and by another, for each of these ends.
fn alternate(ways: &[Way], ends: &[End]) -> Result<()> {
    let Some(cluster) = ipv6::served(Options::HOSTILE)? else { return Ok(()) };
    let own = cluster.lan.node(&cluster.pod("secure-1")?.node)?;
    let other = cluster.lan.nodes.iter().find(|node| node.name != own.name).context("no other node")?;
    cluster.lan.client()?.route_pods_of(own)?;
    let mut port = FIRST_PORT;
    for (node, vip) in [own, other].into_iter().flat_map(|node| [(node, IpAddr::V4(VIP)), (node, VIP_V6.into())]) {
        cluster.lan.client()?.namespace().links(|links| links.add_neighbour("eth0", vip, node.mac))?;
        for end in ends {
            port += 1;
            for (step, way) in ways.iter().enumerate() {
                reach(&cluster, vip, *way, port, *end)
                    .with_context(|| format!("step {step} of {ways:?}, {end:?}, {vip} by way of {}", node.name))?;
            }
        }
    }
    Ok(())
}

fn reach(cluster: &Cluster, vip: IpAddr, way: Way, port: u16, end: End) -> Result<()> {
    let (pod, client) = (cluster.pod("secure-1")?, cluster.lan.client()?);
    let (pod, own): (IpAddr, IpAddr) = if vip.is_ipv4() {
        (pod.address.into(), client.address.into())
    } else {
        (pod.address_v6.into(), client.address_v6.into())
    };
    let server = match way {
        Way::Vip => (vip, 443),
        Way::Pod => (pod, 8443),
    };
    let mut session = client.namespace().run(|| Session::connect_from(port, server.into(), TIMEOUT))?;
    for line in ["one", "two"] {
        let answer = session.say(line)?;
        assert_eq!((answer.pod.as_str(), answer.client), ("secure-1", (own, port).into()));
    }
    match end {
        End::Closed => session.close(),
        End::Reset => session.reset(),
        End::Abandoned => {
            client.namespace().nft(
                "table inet mute { chain output { type filter hook output priority 0; tcp flags & rst == rst drop; }; }",
            )?;
            session.reset()?;
            client.namespace().nft("delete table inet mute").map(drop)
        }
    }
}
