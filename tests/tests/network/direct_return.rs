//! Tests direct server return: pods get packets with the VIP as destination, and answer from the
//! VIP.

use std::{
    collections::BTreeSet,
    net::{IpAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::programs::{SchedClassifier, TcAttachType};
use vipmux_common::abi::INTERFACE_NO_DIRECT;
use vipmux_datapath::bpf::maps::Maps;
use vipmux_tests::{
    agent,
    client::{Datagrams, Kind, Request},
    cluster::{Cluster, LONG, PATIENCE, TIMEOUT},
    lan::{Lan, Node, Options, Uplink},
    manifests::{Manifests, Service, VIP, VIP_V6},
    pod::Listener,
    traffic::Traffic,
    transfer::Transfer,
    wait,
};

const PAUSE: Duration = Duration::from_millis(10);
const WHOLE: u64 = 10_000_000;
const PART: u64 = 1_000_000;
/// With 40 new connections, the chance that one of two equal backends gets none is below 10^-11.
const CONNECTIONS: usize = 40;
const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP), IpAddr::V6(VIP_V6)];

/// A node's rules drop what conntrack finds invalid and masquerade packets from pods. There is no
/// reverse path filter, since the route to a VIP is not through the pod. On interfaces without an
/// IPv4 address, such as the pods' links, even the loose filter drops these packets.
pub(crate) const OPTIONS: Options = Options { reverse_path_filter: 0, ..Options::HOSTILE };

/// Names, protocols and ports of the Services.
const WEB: (&str, Kind, u16) = ("direct/web", Kind::Http, 80);
const UDP: (&str, Kind, u16) = ("direct/udp", Kind::UdpEcho, 514);
const BULK: (&str, Kind, u16) = ("direct/bulk", Kind::Bulk, 7000);
const SERVICES: [(&str, Kind, u16); 3] = [WEB, UDP, BULK];

/// Makes Services in dual stack with a pod on the planned leader and one on another node. The pods
/// serve only at the VIPs. Agents are not started.
pub(crate) fn prepared(options: Options) -> Result<Option<Cluster>> {
    let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    SERVICES.iter().try_for_each(|spec| cluster.manifests.write_service(&service(&cluster, *spec, &[])?))?;
    let leader = cluster.planned_leader(VIP)?.name.clone();
    let other = cluster.lan.nodes.iter().find(|node| node.name != leader).context("no other node")?.name.clone();
    for (node, name) in [(&leader, "near"), (&other, "far")] {
        let mut pod = cluster.lan.node(node)?.add_pod(name, 70)?;
        pod.serve_as(&VIPS, &SERVICES.map(|(service, kind, port)| Listener::new(kind, port, service)))?;
        cluster.pods.push(pod);
    }
    let both = ["near", "far"];
    SERVICES.iter().try_for_each(|spec| cluster.manifests.write_service(&service(&cluster, *spec, &both)?))?;
    Ok(Some(cluster))
}

fn service(cluster: &Cluster, (name, kind, port): (&str, Kind, u16), pods: &[&str]) -> Result<Service> {
    let v4 = pods.iter().map(|pod| cluster.endpoint(pod));
    let endpoints = v4.chain(pods.iter().map(|pod| cluster.endpoint_v6(pod))).collect::<Result<Vec<_>>>()?;
    let service = Service::sharing(name, port, kind.protocol(), port).with(endpoints).dual_stack();
    Ok(Service { annotations: vec![("vipmux.io/direct-server-return", "true")], ..service })
}

fn served(options: Options, change: impl FnOnce(agent::Options) -> agent::Options) -> Result<Option<Cluster>> {
    let Some(mut cluster) = prepared(options)? else { return Ok(None) };
    cluster.start_agents(&change(cluster.agent_options()))?;
    await_all(&cluster)?;
    Ok(Some(cluster))
}

pub(crate) fn await_all(cluster: &Cluster) -> Result<()> {
    for (name, kind, port) in SERVICES {
        for vip in VIPS {
            cluster.await_service(Request::new(kind, vip, port), name)?;
        }
    }
    Ok(())
}

/// Sends many requests. Both pods must answer, and see the client.
pub(crate) fn ask_all(cluster: &Cluster) -> Result<()> {
    let client = cluster.lan.client()?;
    for (name, kind, port) in SERVICES {
        for vip in VIPS {
            let mut pods = BTreeSet::new();
            for _ in 0..CONNECTIONS {
                let answer =
                    cluster.ask(Request::new(kind, vip, port), TIMEOUT).with_context(|| format!("{name} at {vip}"))?;
                let own = if vip.is_ipv4() { client.address.into() } else { IpAddr::V6(client.address_v6) };
                assert_eq!((answer.service.as_str(), answer.client.ip()), (name, own));
                pods.insert(answer.pod);
            }
            assert_eq!(pods.len(), 2, "{name} at {vip} was answered by {pods:?}");
        }
    }
    Ok(())
}

/// Returns the programs on a node's ingress.
fn inlets(node: &Node) -> Result<usize> {
    node.namespace().run(|| {
        let (_, programs) = SchedClassifier::query_tcx("eth0", TcAttachType::Ingress)
            .context("cannot list the programs on eth0's way in")?;
        Ok(programs.len())
    })
}

#[test]
fn pods_here_and_elsewhere_answer_in_the_vips_name() -> Result<()> {
    let Some(cluster) = served(OPTIONS, |options| options)? else { return Ok(()) };
    ask_all(&cluster)
}

#[test]
fn generic_xdp_serves_direct_return_as_well() -> Result<()> {
    let generic = |options| agent::Options { xdp_mode: "generic", ..options };
    let Some(cluster) = served(OPTIONS, generic)? else { return Ok(()) };
    ask_all(&cluster)
}

#[test]
fn pods_behind_a_vlan_answer_in_the_vips_name() -> Result<()> {
    ["native", "generic"].into_iter().try_for_each(|xdp_mode| behind(Uplink::Vlan(100), xdp_mode))
}

#[test]
fn pods_behind_a_bond_answer_in_the_vips_name() -> Result<()> {
    behind(Uplink::Bond, "native")
}

#[test]
fn pods_behind_a_bridge_answer_in_the_vips_name() -> Result<()> {
    ["native", "generic"].into_iter().try_for_each(|xdp_mode| behind(Uplink::Bridge, xdp_mode))
}

fn behind(uplink: Uplink, xdp_mode: &'static str) -> Result<()> {
    let interface = if uplink == Uplink::Bridge { uplink.card() } else { "eth0" };
    let change = |options| agent::Options { interface: interface.to_owned(), xdp_mode, ..options };
    let Some(cluster) = served(Options { uplink, ..OPTIONS }, change)? else { return Ok(()) };
    ask_all(&cluster).with_context(|| format!("{uplink:?}, {xdp_mode}"))
}

#[test]
fn packets_are_brought_to_pods_by_a_filter_where_there_are_no_tcx_links() -> Result<()> {
    let Some(mut cluster) = served(OPTIONS, |options| agent::Options { tc: "clsact", ..options })? else {
        return Ok(());
    };
    ask_all(&cluster)?;
    let near = cluster.pod("near")?.node.clone();
    cluster.agent_mut(&near)?.process_mut().kill()?;
    let (agent, node) = (cluster.agent(&near)?, cluster.lan.node(&near)?);
    let filters = || node.tc(&["filter", "show", "dev", "eth0", "ingress"]);
    let before = filters()?;
    assert_eq!(before.matches("handle 0x7669706d vipmux_ingress").count(), 1, "{before}");
    agent.unload(node)?;
    let qdiscs = node.tc(&["qdisc", "show", "dev", "eth0"])?;
    assert!(!qdiscs.contains("clsact"), "{qdiscs}");
    Ok(())
}

#[test]
fn ten_megabytes_arrive_whole_and_so_do_fragments() -> Result<()> {
    for offloads in [false, true] {
        let Some(cluster) = served(Options { offloads, ..OPTIONS }, |options| options)? else { return Ok(()) };
        let client = cluster.lan.client()?.namespace();
        let text = "0123456789".repeat(3_000);
        for vip in VIPS {
            let mut pods = BTreeSet::new();
            while pods.len() < 2 {
                let mut transfer = Transfer::start(client, (vip, BULK.2).into(), Duration::ZERO)?;
                transfer.wait_for_more(WHOLE, LONG)?;
                pods.insert(transfer.finish()?.pod);
            }
            let mut pods = BTreeSet::new();
            while pods.len() < 2 {
                let datagrams = client.run(|| Datagrams::connect((vip, UDP.2).into(), TIMEOUT))?;
                let answers = datagrams.echo_all(&[0, 1_000, 1_473, 30_000].map(|length| &text[..length]))?;
                pods.extend(answers.into_iter().map(|answer| answer.pod));
            }
        }
    }
    Ok(())
}

/// A pod's kernel refuses connections in the VIP's name. To conntrack these errors belong to no
/// known connection.
#[test]
fn a_closed_port_of_a_pod_is_refused_in_the_vips_name() -> Result<()> {
    let Some(mut cluster) = served(OPTIONS, |options| options)? else { return Ok(()) };
    cluster.pods.iter_mut().try_for_each(vipmux_tests::pod::Pod::stop)?;
    for vip in VIPS {
        let any: IpAddr = if vip.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let socket = cluster.lan.client()?.namespace().run(|| Ok(UdpSocket::bind((any, 0))?))?;
        socket.connect((vip, UDP.2))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.send(b"anyone?")?;
        let error = socket.recv(&mut [0; 64]).err().context("somebody answered")?;
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{vip}: {error}");
    }
    Ok(())
}

#[test]
fn agents_that_are_killed_in_turn_lose_no_request_and_no_transfer() -> Result<()> {
    let Some(mut cluster) = served(OPTIONS, |options| options)? else { return Ok(()) };
    // The client has a permanent neighbor entry: the test is about traffic, not ARP.
    let leader = cluster.await_leader(VIP)?.mac;
    let client = cluster.lan.client()?.namespace();
    client.links(|links| links.add_neighbor("eth0", VIP, leader))?;
    let mut transfer = Transfer::start(client, (VIP, BULK.2).into(), PAUSE)?;
    let traffic =
        [WEB, UDP].map(|(name, kind, port)| (name, Traffic::start(client, Request::new(kind, VIP, port), PAUSE)));
    let traffic: Vec<_> = traffic.into_iter().map(|(name, traffic)| Ok((name, traffic?))).collect::<Result<_>>()?;
    // Another size of the flow tables is another layout: the maps are carried over.
    let nodes = || cluster.lan.nodes.iter().zip(0..);
    let twice = nodes().map(|node| (node, None)).chain(nodes().map(|node| (node, Some(32_768))));
    for ((node, index), flows) in twice {
        let (agent, before) = (&mut cluster.agents[index], inlets(node)?);
        agent.process_mut().kill()?;
        if let Some(flows) = flows {
            agent.options_mut().flows = flows;
        }
        traffic.iter().try_for_each(|(_, traffic)| traffic.wait_for_more(5, PATIENCE))?;
        agent.restart(node)?;
        agent.wait_ready(PATIENCE)?;
        assert_eq!(inlets(node)?, before, "the link was taken over");
        traffic.iter().try_for_each(|(_, traffic)| traffic.wait_for_more(5, PATIENCE))?;
        transfer.wait_for_more(PART, LONG)?;
    }
    for (name, traffic) in traffic {
        traffic.stop()?.check_all_by(name)?;
    }
    transfer.finish().map(drop)
}

/// Whether a packet meets the moment of a mistake is luck. A look at the flag all the time is none.
#[test]
fn an_agent_that_starts_again_never_leaves_packets_for_such_pods_to_the_stack() -> Result<()> {
    let Some(mut cluster) = served(OPTIONS, |options| options)? else { return Ok(()) };
    let pod = cluster.pod("near")?.node.clone();
    let maps = Maps::open(cluster.agent(&pod)?.pins())?;
    let ended = AtomicBool::new(false);
    let closed = || -> Result<(usize, usize)> {
        let (mut looks, mut closed) = (0, 0);
        while !ended.load(Ordering::Relaxed) {
            looks += 1;
            let interfaces = maps.read_interfaces()?;
            closed += usize::from(interfaces.values().any(|entry| entry.flags & INTERFACE_NO_DIRECT != 0));
        }
        Ok((looks, closed))
    };
    let (looks, closed) = thread::scope(|scope| {
        let watch = scope.spawn(closed);
        let index = cluster.agents.iter().position(|agent| agent.node() == pod).context("no agent")?;
        let agent = &mut cluster.agents[index];
        let restarted = agent.process_mut().kill().and_then(|()| agent.restart(cluster.lan.node(&pod)?));
        let ready = restarted.and_then(|()| agent.wait_ready(PATIENCE));
        ended.store(true, Ordering::Relaxed);
        let looks = watch.join().map_err(|_| anyhow!("the watch panicked"))?;
        ready.and(looks)
    })?;
    ensure!(looks > 0 && closed == 0, "closed at {closed} of {looks} looks");
    Ok(())
}

#[test]
fn the_way_in_is_looked_through_only_where_such_pods_are_and_unload_leaves_nothing() -> Result<()> {
    let Some(mut cluster) = served(OPTIONS, |options| options)? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        let expected = usize::from(cluster.pods.iter().any(|pod| pod.node == node.name));
        wait::until(&format!("{}'s program and rules", node.name), PATIENCE, || {
            let (programs, rules) = (inlets(node)?, node.nft("list ruleset")?);
            let right = programs == expected && rules.matches("notrack").count() == 4 * expected;
            ensure!(right, "{programs} programs, not {expected}, {rules}");
            Ok(())
        })?;
    }
    let near = cluster.pod("near")?.node.clone();
    let node = cluster.lan.node(&near)?;
    let programs = cluster.agent(&near)?.inspect(node, &["prog"])?;
    let attached = programs.lines().find(|line| line.starts_with("vipmux_ingress")).context("no vipmux_ingress")?;
    assert!(attached.ends_with("  eth0 (1 of 1)"), "{programs}");
    assert_eq!(cluster.agent(&near)?.diff(node)?.0, 0, "nothing differs");

    let other = cluster.pod("far")?.node.clone();
    for (service_name, kind, port) in SERVICES {
        let translated = service(&cluster, (service_name, kind, port), &["near", "far"])?;
        cluster.manifests.write_service(&Service { annotations: Vec::new(), ..translated })?;
    }
    let node = cluster.lan.node(&other)?;
    wait::until("the program to be detached", PATIENCE, || {
        let (programs, rules) = (inlets(node)?, node.nft("list ruleset")?);
        ensure!(programs == 0 && !rules.contains("notrack"), "{programs} programs, {rules}");
        Ok(())
    })?;
    assert_eq!(cluster.agent(&other)?.diff(node)?.0, 0, "nothing differs");

    for spec in SERVICES {
        cluster.manifests.write_service(&service(&cluster, spec, &["near", "far"])?)?;
    }
    await_all(&cluster)?;
    wait::until("the program to be attached again", PATIENCE, || {
        let programs = cluster.agent(&other)?.inspect(node, &["prog"])?;
        ensure!(inlets(node)? == 1 && programs.contains("vipmux_ingress"), "{programs}");
        Ok(())
    })?;
    cluster.agent_mut(&other)?.process_mut().kill()?;
    let (agent, node) = (cluster.agent(&other)?, cluster.lan.node(&other)?);
    let reported = agent.unload(node)?;
    assert!(reported.contains("detached vipmux_ingress from eth0"), "{reported}");
    assert_eq!(inlets(node)?, 0);
    assert!(!agent.pins().exists() && !node.nft("list tables")?.contains("vipmux"));
    Ok(())
}
