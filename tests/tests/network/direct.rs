//! Tests a client that reaches the same pod through the VIP and directly, from the same port. To
//! the pod, both are the same connection, one after the other.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use vipmux_tests::{
    client::Session,
    cluster::{Cluster, TIMEOUT},
    frames::{ACK, Ethernet, FIN, Ipv4, Ipv6, RST, Tcp},
    lan::{Node, Options},
    manifests::{VIP, VIP_V6},
    wire,
};

use crate::ipv6;

/// The first of the client's ports, outside of the kernel's ephemeral range.
const FIRST_PORT: u16 = 20_000;

/// How a client ends a connection.
#[derive(Clone, Copy, Debug)]
enum End {
    /// With a FIN: both sides close in turn.
    Closed,
    /// By a RST.
    Reset,
    /// Silently, as after a power failure: the pod still has the connection.
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

/// The path to the pod.
#[derive(Clone, Copy, Debug)]
enum Way {
    Vip,
    Pod,
}

/// The last packets of a connection may come late or twice, after the pod itself has answered the
/// client.
#[test]
fn late_segments_through_the_vip_do_not_disturb_the_connection_to_the_pod() -> Result<()> {
    each_way(&[End::Closed, End::Reset], |cluster, node, vip, port, end| {
        let client = cluster.lan.client()?;
        for flags in [ACK, FIN | ACK, RST | ACK] {
            open(cluster, vip, Way::Vip, port)?.leave(end, cluster)?;
            let mut direct = open(cluster, vip, Way::Pod, port)?;
            let late = Tcp::new(port, 443, flags).numbers(1, 1);
            let way = Ethernet::new(client.mac.octets(), node.mac.octets());
            let late = match vip {
                IpAddr::V4(vip) => way.ipv4(&Ipv4::tcp(client.address, vip, late)),
                IpAddr::V6(vip) => way.ipv6(&Ipv6::tcp(client.address_v6, vip, late)),
            };
            wire::send(client.namespace(), "eth0", &late, 1)?;
            // It takes the same path and arrives later.
            client.namespace().run(|| Session::connect((vip, 443).into(), TIMEOUT)?.echo("there"))?;
            direct.talk().with_context(|| format!("after a segment with flags {flags:#04x}"))?;
            direct.leave(end, cluster)?;
        }
        Ok(())
    })
}

/// Takes these paths in turn from one port, through the pod's own node and through another one,
/// with each of these ends.
fn alternate(ways: &[Way], ends: &[End]) -> Result<()> {
    each_way(ends, |cluster, _, vip, port, end| {
        ways.iter().enumerate().try_for_each(|(step, way)| {
            let connected = open(cluster, vip, *way, port);
            connected
                .and_then(|connection| connection.leave(end, cluster))
                .with_context(|| format!("step {step} of {ways:?}"))
        })
    })
}

/// Does that with each of these ends, in both families, through the pod's own node and through
/// another one, each from its own port.
fn each_way(ends: &[End], run: impl Fn(&Cluster, &Node, IpAddr, u16, End) -> Result<()>) -> Result<()> {
    let Some(cluster) = ipv6::served(Options::HOSTILE)? else { return Ok(()) };
    let own = cluster.lan.node(&cluster.pod("secure-1")?.node)?;
    let other = cluster.lan.nodes.iter().find(|node| node.name != own.name).context("no other node")?;
    cluster.lan.client()?.route_pods_of(own)?;
    let mut port = FIRST_PORT;
    for (node, vip) in [own, other].into_iter().flat_map(|node| [(node, IpAddr::V4(VIP)), (node, VIP_V6.into())]) {
        cluster.lan.client()?.namespace().links(|links| links.add_neighbor("eth0", vip, node.mac))?;
        for end in ends {
            port += 1;
            run(&cluster, node, vip, port, *end).with_context(|| format!("{end:?}, {vip} by way of {}", node.name))?;
        }
    }
    Ok(())
}

/// A connection to the pod, and the client that the pod must see.
struct Connection {
    session: Session,
    client: SocketAddr,
}

fn open(cluster: &Cluster, vip: IpAddr, way: Way, port: u16) -> Result<Connection> {
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
    let session = client.namespace().run(|| Session::connect_from(port, server.into(), TIMEOUT))?;
    let mut connection = Connection { session, client: (own, port).into() };
    connection.talk()?;
    Ok(connection)
}

impl Connection {
    fn talk(&mut self) -> Result<()> {
        for line in ["one", "two"] {
            let answer = self.session.echo(line)?;
            assert_eq!((answer.pod.as_str(), answer.client), ("secure-1", self.client));
        }
        Ok(())
    }

    fn leave(self, end: End, cluster: &Cluster) -> Result<()> {
        match end {
            End::Closed => self.session.close(),
            End::Reset => self.session.reset(),
            End::Abandoned => {
                let client = cluster.lan.client()?.namespace();
                client.nft(
                    "table inet mute { chain output { type filter hook output priority 0; tcp flags & rst == rst drop; }; }",
                )?;
                self.session.reset()?;
                client.nft("delete table inet mute").map(drop)
            }
        }
    }
}
