//! Tests datagrams that a backend sends by itself from its Service's port, as NTP, SIP and WireGuard
//! do. They are the pod's own and get the node's address, and replies to clients keep the VIP's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, bail, ensure};
use vipmux_tests::{
    cluster::{Cluster, PATIENCE, TIMEOUT},
    conntrack,
    lan::{Lan, Node, Options},
    manifests::{Manifests, Service, VIP, VIP_V6},
    netns::Namespace,
    pod::Pod,
    wait,
};

/// The pods' port in `infra/ntp-1` to `infra/ntp-3`. Each Service has one pod, on the node of its
/// number, so two of them are on other nodes than the leader.
const TARGET: u16 = 1_230;
/// The first of these Services' ports.
const NTP: u16 = 123;
/// The addresses that `phone/sip` has alone, with every port. Its pod is on node-2.
const OWN: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(192, 0, 2, 201), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x201));
const SIP: u16 = 5_060;

/// The only socket of a pod for its Service, of one family.
struct Server {
    vip: SocketAddr,
    node: String,
    socket: UdpSocket,
}

/// Starts the Services. The pods have no process: the test sends and receives for them.
fn served() -> Result<Option<(Cluster, Vec<Server>)>> {
    let Some(lan) = Lan::for_test(Options::HOSTILE)? else { return Ok(None) };
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    let mut servers = Vec::new();
    for (number, port) in (1..=3).zip(NTP..) {
        let (node, pod) = (format!("node-{number}"), format!("ntp-{number}"));
        cluster.pods.push(cluster.lan.node(&node)?.add_pod(&pod, 10)?);
        let service = Service::sharing(&format!("infra/{pod}"), port, "UDP", TARGET).dual_stack();
        servers.extend(serve(&cluster, service, &pod, [VIP.into(), VIP_V6.into()], (port, TARGET))?);
    }
    cluster.pods.push(cluster.lan.node("node-2")?.add_pod("sip-1", 11)?);
    let service = Service::sharing("phone/sip", SIP, "UDP", SIP).annotated("vipmux.io/all-ports", "true");
    let service = service.annotated("vipmux.io/udp-idle-timeout", "1h");
    let service = Service { address: Some(OWN.0), address_v6: Some(OWN.1), sharing_key: None, ..service };
    servers.extend(serve(&cluster, service, "sip-1", [OWN.0.into(), OWN.1.into()], (SIP, SIP))?);
    cluster.start_agents(&cluster.agent_options())?;
    (NTP..NTP + 3).try_for_each(|port| cluster.await_ready(port, 1))?;
    cluster.await_ready(0, 1)?;
    for node in &cluster.lan.nodes {
        await_backends(node, &cluster)?;
    }
    Ok(Some((cluster, servers)))
}

/// Writes a Service with one pod, and opens the pod's sockets. `ports`: the Service's and the pod's.
fn serve(cluster: &Cluster, service: Service, pod: &str, vips: [IpAddr; 2], ports: (u16, u16)) -> Result<Vec<Server>> {
    cluster.manifests.write_service(&service.with([cluster.endpoint(pod)?, cluster.endpoint_v6(pod)?]))?;
    let pod: &Pod = cluster.pod(pod)?;
    let server = |(vip, address): (IpAddr, IpAddr)| {
        let socket = open(pod.namespace(), (address, ports.1).into())?;
        Ok(Server { vip: (vip, ports.0).into(), node: pod.node.clone(), socket })
    };
    vips.into_iter().zip([pod.address.into(), pod.address_v6.into()]).map(server).collect()
}

fn open(namespace: &Namespace, address: SocketAddr) -> Result<UdpSocket> {
    let socket = namespace.run(|| Ok(UdpSocket::bind(address)?))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

/// Waits until the node's NAT rules know its pods. They follow the maps a moment later.
fn await_backends(node: &Node, cluster: &Cluster) -> Result<()> {
    let pods: Vec<_> = cluster.pods.iter().filter(|pod| pod.node == node.name).collect();
    wait::until("replies that keep their source", PATIENCE, || {
        let table = node.nft("list table inet vipmux")?;
        let all = pods.iter().flat_map(|pod| [pod.address.to_string(), pod.address_v6.to_string()]);
        let missing: Vec<_> = all.filter(|address| !table.contains(address)).collect();
        ensure!(missing.is_empty(), "{missing:?} in {table}");
        Ok(())
    })
}

impl Server {
    /// Opens a client's socket of the same family.
    fn client(&self, cluster: &Cluster) -> Result<UdpSocket> {
        let client = cluster.lan.client()?;
        let own: IpAddr = if self.vip.is_ipv4() { client.address.into() } else { client.address_v6.into() };
        open(client.namespace(), (own, 0).into())
    }

    /// Sends by itself: the peer sees the node, and its answer arrives.
    fn start_flow(&self, cluster: &Cluster, peer: &UdpSocket) -> Result<()> {
        let node = cluster.lan.node(&self.node)?;
        let own: IpAddr = if self.vip.is_ipv4() { node.address.into() } else { node.address_v6.into() };
        self.socket.send_to(b"a question of the pod", peer.local_addr()?)?;
        let (_, from) = peer.recv_from(&mut [0; 32])?;
        ensure!(from.ip() == own, "a datagram that the pod of {} on {} sent came from {from}", self.vip, self.node);
        peer.send_to(b"answer", from)?;
        let (_, from) = self.socket.recv_from(&mut [0; 32])?;
        ensure!(from == peer.local_addr()?, "{from}");
        Ok(())
    }

    /// Sends to a client of the VIP, which gets it from the VIP.
    fn reply(&self, client: &UdpSocket) -> Result<()> {
        self.socket.send_to(b"reply", client.local_addr()?)?;
        let (_, from) = client.recv_from(&mut [0; 32])?;
        ensure!(from == self.vip, "a reply of {} on {} came from {from}", self.vip, self.node);
        Ok(())
    }
}

fn forget_connections(cluster: &Cluster) -> Result<()> {
    cluster.lan.nodes.iter().try_for_each(|node| node.namespace().run(conntrack::flush))
}

#[test]
fn datagrams_that_a_backend_sends_itself_have_the_nodes_address_and_replies_the_vips() -> Result<()> {
    let Some((mut cluster, servers)) = served()? else { return Ok(()) };
    let peers = servers.iter().map(|server| server.client(&cluster)).collect::<Result<Vec<_>>>()?;
    let start_flows = |cluster: &Cluster| {
        servers.iter().zip(&peers).try_for_each(|(server, peer)| {
            server.start_flow(cluster, peer)?;
            cluster.lan.node(&server.node)?.namespace().run(conntrack::flush)?;
            server.start_flow(cluster, peer)
        })
    };
    start_flows(&cluster)?;

    // The machine of the peers is a client, too, from another port.
    let clients = servers.iter().map(|server| server.client(&cluster)).collect::<Result<Vec<_>>>()?;
    for (server, client) in servers.iter().zip(&clients) {
        client.send_to(b"question", server.vip)?;
        let (_, from) = server.socket.recv_from(&mut [0; 32])?;
        ensure!(from == client.local_addr()?, "{} sees {from}", server.vip);
        server.reply(client)?;
    }
    let reply_to_all = || servers.iter().zip(&clients).try_for_each(|(server, client)| server.reply(client));
    for _ in 0..2 {
        forget_connections(&cluster)?;
        reply_to_all()?;
    }
    start_flows(&cluster)?;

    // A new agent writes new rules. Their counters start at 0.
    for node in ["node-1", "node-2", "node-3"] {
        cluster.restart_agent(node)?;
        let node = cluster.lan.node(node)?;
        wait::until("new rules", PATIENCE, || {
            let chain = node.nft("list chain inet vipmux postrouting")?;
            let counters = chain.split("packets ").skip(1).map(|rest| rest.starts_with("0 "));
            ensure!(counters.clone().count() == 4 && counters.clone().all(|is_new| is_new), "{chain}");
            Ok(())
        })?;
        await_backends(node, &cluster)?;
    }
    forget_connections(&cluster)?;
    reply_to_all()?;
    start_flows(&cluster)
}

#[test]
fn a_client_is_remembered_as_long_as_its_flow_which_a_reply_refreshes_too() -> Result<()> {
    let Some((cluster, servers)) = served()? else { return Ok(()) };
    for (server, set) in servers.iter().filter(|server| server.vip.port() == SIP).zip(["clients4", "clients6"]) {
        let client = server.client(&cluster)?;
        let node = cluster.lan.node(&server.node)?;
        let rest = || remembered(&node.nft(&format!("list set inet vipmux {set}"))?, client.local_addr()?);
        client.send_to(b"question", server.vip)?;
        server.socket.recv_from(&mut [0; 32])?;
        let first = rest()?;
        ensure!((3_500_000..=3_600_000).contains(&first), "{first} ms of the Service's hour");
        wait::until("some time", PATIENCE, || {
            let now = rest()?;
            ensure!(now + 1_000 < first, "{now} ms, {first} ms at first");
            Ok(())
        })?;
        let before = rest()?;
        server.reply(&client)?;
        let after = rest()?;
        ensure!(after > before, "{after} ms, {before} ms before");
    }
    Ok(())
}

/// Returns for how long a client will be in a set, by nft's list, in milliseconds.
fn remembered(listed: &str, client: SocketAddr) -> Result<u64> {
    let (address, port) = (format!("{} . ", client.ip()), format!(" . {} . ", client.port()));
    let entry = listed.split([',', '{']).find(|entry| entry.contains(&address) && entry.contains(&port));
    let words = entry.context("it is not there").with_context(|| listed.to_owned())?.split_whitespace();
    let time = words.skip_while(|word| *word != "expires").nth(1).with_context(|| listed.to_owned())?;
    // As in `59m58s4ms`.
    let (mut milliseconds, mut rest) = (0, time);
    while let Some(end) = rest.find(|letter: char| !letter.is_ascii_digit()) {
        let (number, after) = rest.split_at(end);
        let (unit, after) = after.split_at(after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len()));
        let factor = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => bail!("{time}"),
        };
        milliseconds += number.parse::<u64>()? * factor;
        rest = after;
    }
    Ok(milliseconds)
}
