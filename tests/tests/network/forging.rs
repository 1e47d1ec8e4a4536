//! Tests a hostile machine on the LAN that forges frames of other clients and of nodes.

use anyhow::{Context as _, Result, ensure};
use pnet::util::MacAddr;
use vipmux_tests::{
    client::{Kind, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    frames::{ACK, Ethernet, Ipv4, RST, SYN, Tcp},
    lan::Options,
    manifests::{Service, VIP},
    pod::Listener,
    wait, wire,
};

use crate::services;

/// Returns three nodes, each with a pod of `shop/secure`, of which node-2 leads nothing.
fn cluster() -> Result<Option<Cluster>> {
    let Some(mut cluster) = services::prepared(Options { clients: 2, ..Options::default() })? else { return Ok(None) };
    for (node, pod) in [("node-1", "secure-2"), ("node-3", "secure-3")] {
        cluster.add_pod(node, pod, 12, &[Listener::new(Kind::Echo, 8443, "shop/secure")])?;
    }
    let endpoints = ["secure-1", "secure-2", "secure-3"].map(|pod| cluster.endpoint(pod));
    let endpoints = endpoints.into_iter().collect::<Result<Vec<_>>>()?;
    cluster.manifests.write_service(&Service::sharing("shop/secure", 443, "TCP", 8443).with(endpoints))?;
    cluster.manifests.write_nodes(&cluster.lan, &["node-2"])?;
    cluster.start_agents(&cluster.agent_options())?;
    services::await_all(&cluster)?;
    Ok(Some(cluster))
}

/// Opens a connection to the pod on node-2.
fn connect(cluster: &Cluster) -> Result<Session> {
    wait::until("a connection to node-2", PATIENCE, || {
        let mut session = cluster.lan.client()?.namespace().run(|| Session::connect((VIP, 443).into(), TIMEOUT))?;
        let answer = session.echo("where")?;
        ensure!(answer.pod == "secure-1", "{answer:?}");
        Ok(session)
    })
}

/// Sends a segment of the session to the leader, from another machine than the client, with this
/// source MAC.
fn forge(cluster: &Cluster, session: &Session, source: MacAddr, flags: u8) -> Result<()> {
    let segment = Tcp::new(session.local_address()?.port(), 443, flags).numbers(1, 1);
    let packet = Ipv4::tcp(cluster.lan.client()?.address, VIP, segment);
    let frame = Ethernet::new(source.octets(), cluster.await_leader(VIP)?.mac.octets()).ipv4(&packet);
    let hostile = cluster.lan.clients.last().context("no second client")?;
    wire::send(hostile.namespace(), "eth0", &frame, 1)
}

#[test]
fn forged_frames_of_nodes_end_no_connection() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let mut session = connect(&cluster)?;
    // What any host can make of the MACs that it sees.
    let made_up = |mac: MacAddr| MacAddr::new(0x0e, 0x76, 0x6d, mac.3, mac.4, mac.5);
    let macs = cluster.lan.nodes.iter().flat_map(|node| [node.mac, made_up(node.mac)]);
    for mac in macs {
        for flags in [ACK, SYN, SYN | ACK, RST] {
            forge(&cluster, &session, mac, flags)?;
            let answer = session.echo("still there").with_context(|| format!("after {flags:#x} from {mac}"))?;
            ensure!(answer.pod == "secure-1", "{answer:?}");
        }
    }
    Ok(())
}
