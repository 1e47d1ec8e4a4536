//! Tests nodes on two segments. A packet is handed over on the segment where it came in, if the
//! backend's node is there too, and otherwise on the one that leads to its InternalIP.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::replace,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent::{self, Agent},
    client::{Datagrams, Kind, Request, Session},
    cluster::{Cluster, PATIENCE, SHORT_TIMEOUT, TIMEOUT},
    frames::{Ethernet, Ipv4, SYN, Tcp},
    lan::{Client, Lan, Options, Uplink},
    manifests::{self, Manifests, Service, VIP},
    offload::{self, Offload},
    pod::Listener,
    requirement, wait, wire,
};

use crate::{
    policies::{CONNECTIONS, endpoints},
    services,
};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// The node on both segments.
pub(crate) const BETWEEN: &str = "node-1";
/// Addresses on its second segment.
pub(crate) const VIPS: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(203, 0, 113, 200), Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 0x200));
pub(crate) const PORT: u16 = 80;
/// The client on that segment.
const CLIENT: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(203, 0, 113, 101), Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 101));
/// Names of the interface to that segment: a card, or a VLAN of the first segment's card.
const CARD: &str = "eth1";
const VLAN: &str = "vlan100";

#[test]
fn a_client_on_one_segment_reaches_pods_on_the_other_in_native_mode() -> Result<()> {
    reaches_both("native", CARD, "derived", |_| Ok(()))
}

#[test]
fn a_client_on_one_segment_reaches_pods_on_the_other_in_generic_mode() -> Result<()> {
    reaches_both("generic", CARD, "derived", |_| Ok(()))
}

/// They have the MAC of the segment between the nodes, where the VIP is not announced.
#[test]
fn frames_with_nodes_own_macs_reach_pods_on_the_other_segment() -> Result<()> {
    reaches_both("generic", CARD, "own", |_| Ok(()))
}

/// The frames come in with a tag, and go on without one.
#[test]
fn a_client_in_a_vlan_reaches_pods_on_nodes_outside_of_it_in_native_mode() -> Result<()> {
    reaches_both("native", VLAN, "derived", |_| Ok(()))
}

#[test]
fn a_client_in_a_vlan_reaches_pods_on_nodes_outside_of_it_in_generic_mode() -> Result<()> {
    reaches_both("generic", VLAN, "derived", |_| Ok(()))
}

/// Until then the other node leads it, which the client cannot reach.
#[test]
fn vips_on_a_segment_move_to_the_node_there_that_comes_late() -> Result<()> {
    reaches_both("generic", CARD, "derived", |cluster| {
        wait::until("the other node leads", PATIENCE, || {
            let view = cluster.agent("node-2")?.inspect_json(cluster.lan.node("node-2")?, &["vips"])?;
            let vips = view["vips"].as_array().context("no vips")?;
            ensure!(vips.len() == 2 && vips.iter().all(|vip| vip["role"] == "leading"), "{view}");
            Ok(())
        })
    })
}

/// Checks that a client reaches both pods: the one on the node on both segments, which comes last,
/// and the one on a node on only one segment. `second`: the first node's interface on the second one.
fn reaches_both(
    xdp_mode: &'static str,
    second: &str,
    handover_mac: &'static str,
    before_it_comes: impl FnOnce(&Cluster) -> Result<()>,
) -> Result<()> {
    if second == VLAN && !requirement::uplink(Uplink::Vlan(100))? {
        return Ok(());
    }
    let Some(mut lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let client = if second == CARD { Some(lan.add_segment(&[BETWEEN])?) } else { None };
    if second == VLAN {
        lan.add_vlan(BETWEEN)?;
    }
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    let pods = ["near", "far"];
    for (node, pod) in [BETWEEN, "node-2"].into_iter().zip(pods) {
        cluster.add_pod(node, pod, 10, &[Listener::new(Kind::Http, 8080, "shop/web")])?;
    }
    // The other node is no way into that segment.
    cluster.manifests.write_nodes(&cluster.lan, &["node-2"])?;
    write_beside(&cluster, Service::sharing("shop/web", PORT, "TCP", 8080), &pods)?;
    let options = agent::Options { xdp_mode, handover_mac, ..cluster.agent_options() };
    cluster.start_agents_but(BETWEEN, &options)?;
    before_it_comes(&cluster)?;
    let both = agent::Options { interface: format!("eth0,{second}"), ..options };
    let agent = Agent::start(cluster.lan.node(BETWEEN)?, &both)?;
    agent.wait_ready(PATIENCE)?;
    cluster.agents.insert(0, agent);

    let client = match &client {
        Some(client) => client.namespace(),
        None => cluster.lan.client()?.namespace(),
    };
    for (vip, own) in [(IpAddr::from(VIPS.0), IpAddr::from(CLIENT.0)), (VIPS.1.into(), CLIENT.1.into())] {
        let request = Request::new(Kind::Http, vip, PORT);
        let ask = || client.run(|| request.send(TIMEOUT));
        wait::until(&format!("an answer at {vip}"), PATIENCE, ask).with_context(|| cluster.last_outputs())?;
        let mut reached = BTreeSet::new();
        for _ in 0..2 * CONNECTIONS {
            let answer = ask()?;
            assert_eq!((answer.service.as_str(), answer.client.ip()), ("shop/web", own));
            reached.insert(answer.pod);
        }
        ensure!(reached.len() == pods.len(), "{vip}: {reached:?} were reached");
    }
    ensure!(cluster.counted("stats", "handed_over")? > 0, "no frame was handed over");
    Ok(())
}

#[test]
fn a_strict_reverse_path_filter_passes_vips_on_a_second_segment_in_native_mode() -> Result<()> {
    passes_strict_filters("native")
}

#[test]
fn a_strict_reverse_path_filter_passes_vips_on_a_second_segment_in_generic_mode() -> Result<()> {
    passes_strict_filters("generic")
}

/// There they have the MACs of that segment, so nodes know them.
#[test]
fn frames_with_nodes_own_macs_do_not_loop_on_a_second_segment() -> Result<()> {
    let Some((cluster, client)) = on_both_segments(&NODES, "generic", "own")? else { return Ok(()) };
    reach_all(&cluster, &client)?;
    let loops = cluster.counted("drops", "ttl_exceeded")?;
    ensure!(loops == 0, "{loops} packets went from node to node until the end of their TTL");
    Ok(())
}

/// All nodes are on both segments. Clients of the second one are reached there, so a strict filter
/// drops their packets on the first one, which has the nodes' InternalIPs.
fn passes_strict_filters(xdp_mode: &'static str) -> Result<()> {
    let Some((mut cluster, client)) = on_both_segments(&NODES, xdp_mode, "derived")? else { return Ok(()) };
    let mut sessions = reach_all(&cluster, &client)?;
    for name in NODES {
        let (agent, node) = (cluster.agent(name)?, cluster.lan.node(name)?);
        let neighbors = agent.inspect_json(node, &["neighbors"])?;
        let neighbors = neighbors["neighbors"].as_array().context("no neighbors")?;
        for other in neighbors.iter().filter(|neighbor| neighbor["self"] == false) {
            let path = &other["paths"][0];
            ensure!(path["interface"] == "eth1" && path["attached"] == true, "{name}: {other}");
        }
        let (code, differences) = agent.diff(node)?;
        ensure!(code == 0, "{name}: {differences}");
    }
    // A new agent uses the paths in the maps until it knows them by itself.
    for name in NODES {
        cluster.restart_agent(name)?;
        for session in &mut sessions {
            session.echo("after a restart").with_context(|| cluster.last_outputs())?;
        }
    }
    reach_all(&cluster, &client).map(drop)
}

/// Starts agents on all nodes, at most three, that are all on both segments and have a pod each, and
/// strict filters. Returns the client on the second segment too.
pub(crate) fn on_both_segments(
    nodes: &[&str],
    xdp_mode: &'static str,
    handover_mac: &'static str,
) -> Result<Option<(Cluster, Client)>> {
    let options = Options { nodes: u8::try_from(nodes.len())?, ..Options::HOSTILE };
    let Some(mut lan) = Lan::for_test(options)? else { return Ok(None) };
    let client = lan.add_segment(nodes)?;
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    let pods = ["web-1", "web-2", "web-3"];
    for (node, pod) in nodes.iter().zip(pods) {
        cluster.add_pod(node, pod, 10, &[Listener::new(Kind::Echo, 8080, "shop/web")])?;
    }
    write_beside(&cluster, Service::sharing("shop/web", PORT, "TCP", 8080), &pods[..nodes.len()])?;
    let options =
        agent::Options { xdp_mode, interface: "eth0,eth1".to_owned(), handover_mac, ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    Ok(Some((cluster, client)))
}

/// Connects until all pods answered, in both families. Returns a connection to each.
fn reach_all(cluster: &Cluster, client: &Client) -> Result<Vec<Session>> {
    let mut sessions = Vec::new();
    for vip in [IpAddr::from(VIPS.0), VIPS.1.into()] {
        let connect = |timeout| {
            let mut session = client.namespace().run(|| Session::connect((vip, PORT).into(), timeout))?;
            let answer = session.echo("where")?;
            anyhow::Ok((answer.pod, session))
        };
        wait::until(&format!("an answer at {vip}"), PATIENCE, || connect(SHORT_TIMEOUT))
            .with_context(|| cluster.last_outputs())?;
        let mut reached = BTreeMap::new();
        for _ in 0..3 * CONNECTIONS {
            let (pod, session) = connect(TIMEOUT).with_context(|| format!("{vip}\n{}", cluster.last_outputs()))?;
            reached.insert(pod, session);
        }
        ensure!(reached.len() == cluster.pods.len(), "{vip}: {:?} were reached", reached.keys());
        sessions.extend(reached.into_values());
    }
    ensure!(cluster.counted("stats", "handed_over")? > 0, "no frame was handed over");
    Ok(sessions)
}

#[test]
fn clients_learn_the_width_of_the_way_between_nodes_in_native_mode() -> Result<()> {
    learns_the_width("native")
}

#[test]
fn clients_learn_the_width_of_the_way_between_nodes_in_generic_mode() -> Result<()> {
    learns_the_width("generic")
}

/// The segment between the nodes has a lower MTU than the client's. The first datagram is lost, and
/// the client learns why. Later the MTU gets still lower.
fn learns_the_width(xdp_mode: &'static str) -> Result<()> {
    const SYSLOG: u16 = 514;
    const NARROW: u32 = 1_400;
    const NARROWER: u32 = 1_340;
    let Some(mut lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let client = lan.add_segment(&[BETWEEN])?;
    for node in &lan.nodes {
        node.namespace().links(|links| links.set_mtu("eth0", NARROW))?;
    }
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.add_pod("node-2", "far", 10, &[Listener::new(Kind::UdpEcho, 5140, "ops/syslog")])?;
    cluster.manifests.write_nodes(&cluster.lan, &["node-2"])?;
    write_beside(&cluster, Service::sharing("ops/syslog", SYSLOG, "UDP", 5140), &["far"])?;
    let options = agent::Options { xdp_mode, ..cluster.agent_options() };
    cluster.start_agents_but(BETWEEN, &options)?;
    let both = agent::Options { interface: "eth0,eth1".to_owned(), ..options };
    cluster.agents.insert(0, Agent::start(cluster.lan.node(BETWEEN)?, &both)?);
    let mut long = 0;
    for (mtu, length) in [(NARROW, 1_420), (NARROWER, 1_350)] {
        for node in &cluster.lan.nodes {
            node.namespace().links(|links| links.set_mtu("eth0", mtu))?;
        }
        let text = "x".repeat(length);
        for vip in [IpAddr::from(VIPS.0), VIPS.1.into()] {
            let datagrams = client.namespace().run(|| Datagrams::connect((vip, SYSLOG).into(), SHORT_TIMEOUT))?;
            let answer = wait::until("an answered datagram", PATIENCE, || datagrams.echo(&text));
            let answer = answer.with_context(|| format!("{vip}, {mtu}\n{}", cluster.last_outputs()))?;
            ensure!(answer.service == "ops/syslog", "{answer}");
            let before = replace(&mut long, cluster.counted("drops", "too_big")?);
            ensure!(long > before, "{vip}, {mtu}: no packet was too long");
        }
    }
    Ok(())
}

/// Writes a Service at [`VIPS`] with these pods, and the pool with these addresses.
pub(crate) fn write_beside(cluster: &Cluster, service: Service, pods: &[&str]) -> Result<()> {
    let ranges = [format!("{}/32", VIPS.0), format!("{}/128", VIPS.1)];
    let pool = manifests::pool("beside", &[&ranges[0], &ranges[1]]);
    cluster.manifests.write("pool-2.yaml", &[pool])?;
    let (address, address_v6) = (Some(VIPS.0), Some(VIPS.1));
    let service = service.with(endpoints(cluster, pods)?);
    cluster.manifests.write_service(&Service { address, address_v6, sharing_key: None, ..service })
}

#[test]
fn frames_of_another_vlan_reach_no_vip_in_native_mode() -> Result<()> {
    other_vlans_are_left_alone(Uplink::Card, "native")
}

#[test]
fn frames_of_another_vlan_reach_no_vip_in_generic_mode() -> Result<()> {
    other_vlans_are_left_alone(Uplink::Card, "generic")
}

/// Where generic XDP sees the bond's frames, the kernel has taken their tags out.
#[test]
fn frames_of_another_vlan_reach_no_vip_on_a_bond_in_generic_mode() -> Result<()> {
    other_vlans_are_left_alone(Uplink::Bond, "generic")
}

#[test]
fn frames_of_another_vlan_reach_no_vip_on_a_team_in_generic_mode() -> Result<()> {
    other_vlans_are_left_alone(Uplink::Team, "generic")
}

/// A frame in a VLAN that nobody configured, from the port where VIPs are announced untagged.
fn other_vlans_are_left_alone(uplink: Uplink, xdp_mode: &'static str) -> Result<()> {
    let Some(mut cluster) = services::prepared(Options { uplink, ..Options::default() })? else { return Ok(()) };
    // On a wire, tags are in the frames.
    for node in &cluster.lan.nodes {
        cluster.lan.switch().run(|| offload::disable(&node.name, Offload::TxVlan))?;
    }
    cluster.start_agents(&agent::Options { xdp_mode, ..cluster.agent_options() })?;
    services::await_all(&cluster)?;
    let (client, leader) = (cluster.lan.client()?, cluster.await_leader(VIP)?);
    ensure!(!leader.namespace().run(|| offload::strips_tags(uplink.card()))?, "the card takes tags out of frames");
    let frame = |port: u16, tag: Option<u16>| {
        let ethernet = Ethernet::new(client.mac.octets(), leader.mac.octets());
        let ethernet = tag.into_iter().fold(ethernet, Ethernet::tagged);
        ethernet.ipv4(&Ipv4::tcp(client.address, VIP, Tcp::new(port, 443, SYN)))
    };
    let recorded = |port: u16| {
        let flows = cluster.agent(&leader.name)?.inspect_json(leader, &["flows"])?;
        let flows = flows["flows"].as_array().context("no flows")?;
        anyhow::Ok(flows.iter().any(|flow| flow["client_port"] == port))
    };
    let [tagged, untagged] = [20_001, 20_002];
    wire::send(client.namespace(), "eth0", &frame(tagged, Some(200)), 1)?;
    wire::send(client.namespace(), "eth0", &frame(untagged, None), 1)?;
    wait::until("a record of the untagged frame", PATIENCE, || {
        ensure!(recorded(untagged)?, "there is none");
        Ok(())
    })?;
    ensure!(!recorded(tagged)?, "the frame of another VLAN was served");
    Ok(())
}
