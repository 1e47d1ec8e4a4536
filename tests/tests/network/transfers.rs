//! Tests long transfers, checked by their digests, during events at the nodes.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use vipmux_tests::{
    agent::{self, Agent},
    client::{Datagrams, Kind, Request},
    cluster::{Cluster, LONG, PATIENCE, TIMEOUT},
    conntrack,
    lan::{Lan, Options, SwitchPorts},
    manifests::{Endpoint, Manifests, Service, VIP, VIP_V6},
    netns::Namespace,
    pod::{self, Listener},
    traffic::Traffic,
    transfer::Transfer,
    wait,
};

use crate::policies::endpoints;

/// Bytes of a long transfer: in IPv4, and in IPv6.
const WHOLE: [u64; 2] = [100_000_000, 20_000_000];
/// Bytes of a part of it.
const PART: u64 = 5_000_000;
/// With 16 flows, the chance that one of two equal backends gets none is below 1 in 10,000; any of
/// them will do.
const FLOWS: usize = 16;
/// The pause between chunks of transfers that leave CPU time for other traffic.
const EASY: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_millis(10);

/// The IPv4 address of all Services.
pub(crate) const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP), IpAddr::V6(VIP_V6)];
/// The port of the Service with a pod on the node that leads [`VIP`].
pub(crate) const NEAR: u16 = 7001;
/// The port of the Service with a pod on another node.
pub(crate) const FAR: u16 = 7002;
/// The TCP port of a Service with both pods.
const WEB: u16 = 80;
/// The UDP port of a Service with both pods.
pub(crate) const UDP: u16 = 514;

#[test]
fn a_hundred_megabytes_arrive_whole_in_native_mode_as_from_a_wire() -> Result<()> {
    both_ways("native", Options::HOSTILE)
}

#[test]
fn a_hundred_megabytes_arrive_whole_in_generic_mode_as_from_a_wire() -> Result<()> {
    both_ways("generic", Options::HOSTILE)
}

#[test]
fn a_hundred_megabytes_arrive_whole_in_native_mode_with_offloads() -> Result<()> {
    both_ways("native", Options { offloads: true, ..Options::HOSTILE })
}

#[test]
fn a_hundred_megabytes_arrive_whole_in_generic_mode_with_offloads() -> Result<()> {
    both_ways("generic", Options { offloads: true, ..Options::HOSTILE })
}

/// As with kind: segments of many packets pass the switch in one piece.
#[test]
fn a_hundred_megabytes_arrive_whole_over_plain_veths_with_offloads() -> Result<()> {
    both_ways("auto", Options { offloads: true, ports: SwitchPorts::Plain, ..Options::HOSTILE })
}

/// To a pod on the leading node and to one on another, and back.
fn both_ways(xdp_mode: &'static str, options: Options) -> Result<()> {
    let Some(cluster) = served(options, xdp_mode)? else { return Ok(()) };
    let client = cluster.lan.client()?.namespace();
    for (vip, whole) in VIPS.into_iter().zip(WHOLE) {
        for port in [NEAR, FAR] {
            transfer(client, (vip, port).into(), whole)?;
        }
    }
    for vip in VIPS {
        for flow in 0..FLOWS {
            let datagrams = client.run(|| Datagrams::connect((vip, UDP).into(), TIMEOUT))?;
            if vip.is_ipv4() && flow % 2 == 0 {
                datagrams.leave_checksums_out()?;
            }
            exchange(&datagrams).with_context(|| format!("flow {flow} to {vip}"))?;
        }
    }
    Ok(())
}

/// Sends datagrams with and without fragments, and gets all of them back.
pub(crate) fn exchange(datagrams: &Datagrams) -> Result<()> {
    let text = "0123456789".repeat(3_000);
    datagrams.echo_all(&[0, 1_000, 1_473, 30_000].map(|length| &text[..length])).map(drop)
}

/// The node's own stack sends and receives such a pod's packets.
#[test]
fn a_transfer_to_a_pod_in_its_nodes_network_arrives_whole_with_offloads() -> Result<()> {
    const PORT: u16 = 7003;
    let options = Options { offloads: true, ..Options::HOSTILE };
    let Some(cluster) = served(options, "generic")? else { return Ok(()) };
    let client = cluster.lan.client()?.namespace();
    for name in ["near", "far"] {
        let node = cluster.lan.node(&cluster.pod(name)?.node)?;
        let listeners = [Listener::new(Kind::Bulk, PORT, "bulk/host")];
        let _server = pod::start(node.namespace(), name, node.address, &listeners)?;
        let endpoint = Endpoint::new(node.address, &node.name);
        cluster.manifests.write_service(&Service::sharing("bulk/host", PORT, "TCP", PORT).with([endpoint]))?;
        wait::until("the pod in its node's network", PATIENCE, || {
            let answer = cluster.ask(Request::new(Kind::Bulk, VIP, PORT), TIMEOUT)?;
            ensure!(answer.pod == name, "{answer}");
            Ok(())
        })?;
        let mut transfer = Transfer::start(client, (VIP, PORT).into(), Duration::ZERO)?;
        transfer.wait_for_more(PART, LONG)?;
        transfer.finish()?;
    }
    Ok(())
}

#[test]
fn a_transfer_goes_on_when_every_node_forgets_its_connections() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    let mut transfers = start_both(&cluster, Duration::ZERO)?;
    for _ in 0..5 {
        for (_, transfer) in &mut transfers {
            transfer.wait_for_more(PART, LONG)?;
        }
        cluster.lan.nodes.iter().try_for_each(|node| node.namespace().run(conntrack::flush))?;
    }
    for (port, mut transfer) in transfers {
        transfer.wait_for_more(PART, LONG)?;
        finish(transfer, port)?;
    }
    Ok(())
}

#[test]
fn killing_every_agent_in_turn_loses_no_datagram_no_request_and_no_transfer() -> Result<()> {
    restarting(Signal::SIGKILL)
}

#[test]
fn stopping_every_agent_in_turn_loses_no_datagram_no_request_and_no_transfer() -> Result<()> {
    restarting(Signal::SIGTERM)
}

fn restarting(signal: Signal) -> Result<()> {
    let Some(mut cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    // The client has a permanent neighbor entry: the test is about traffic, not ARP.
    for vip in VIPS {
        let leader = cluster.await_leader(vip)?.mac;
        cluster.lan.client()?.namespace().links(|links| links.add_neighbor("eth0", vip, leader))?;
    }
    let mut transfers = start_both(&cluster, EASY)?;
    let mut requests = Vec::new();
    for vip in VIPS {
        for (kind, port, service) in [(Kind::Http, WEB, "bulk/web"), (Kind::UdpEcho, UDP, "bulk/udp")] {
            requests.push((start_requests(&cluster, Request::new(kind, vip, port))?, service));
        }
    }
    for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
        agent.process().signal(signal)?;
        agent.process_mut().wait(PATIENCE)?;
        for (traffic, _) in &requests {
            traffic.wait_for_more(5, PATIENCE)?;
        }
        agent.restart(node)?;
        agent.wait_ready(PATIENCE)?;
        for (_, transfer) in &mut transfers {
            transfer.wait_for_more(PART / 5, LONG)?;
        }
    }
    requests.into_iter().try_for_each(|(traffic, service)| traffic.stop()?.check_all_by(service))?;
    transfers.into_iter().try_for_each(|(port, transfer)| finish(transfer, port))
}

/// The third node has a pod of a Service that also has one on the leader. It never has an agent.
#[test]
fn a_node_that_never_had_the_program_is_left_out_and_the_others_serve() -> Result<()> {
    let Some(mut cluster) = prepared(Options::HOSTILE)? else { return Ok(()) };
    let third = third(&cluster)?;
    let service = with_third(&mut cluster, &third)?;
    cluster.start_agents_but(&third, &cluster.agent_options())?;
    await_served(&cluster)?;
    cluster.manifests.write_service(&service)?;
    cluster.await_service(Request::new(Kind::Http, VIP, service.port), "bulk/third")?;
    serves_without(&cluster, service.port, &third)
}

#[test]
fn a_node_whose_program_goes_disturbs_no_flow_to_others() -> Result<()> {
    let Some(mut cluster) = prepared(Options::HOSTILE)? else { return Ok(()) };
    let third = third(&cluster)?;
    let service = with_third(&mut cluster, &third)?;
    cluster.manifests.write_service(&service)?;
    let options = cluster.agent_options();
    cluster.start_agents_but(&third, &options)?;
    await_served(&cluster)?;
    // The last agent to start leads nothing.
    let agent = Agent::start(cluster.lan.node(&third)?, &options)?;
    agent.wait_ready(PATIENCE)?;
    cluster.agents.push(agent);
    cluster.await_service(Request::new(Kind::Http, VIP, service.port), "bulk/third")?;
    let mut transfers = start_both(&cluster, EASY)?;
    let [web, udp] = [Request::new(Kind::Http, VIP, WEB), Request::new(Kind::UdpEcho, VIP, UDP)]
        .map(|request| start_requests(&cluster, request));
    let (web, udp) = (web?, udp?);
    cluster.agent_mut(&third)?.process_mut().kill()?;
    cluster.agent(&third)?.unload(cluster.lan.node(&third)?)?;

    serves_without(&cluster, service.port, &third)?;
    for (_, transfer) in &mut transfers {
        transfer.wait_for_more(PART, LONG)?;
    }
    web.stop()?.check_all_by("bulk/web")?;
    udp.stop()?.check_all_by("bulk/udp")?;
    transfers.into_iter().try_for_each(|(port, transfer)| finish(transfer, port))
}

/// A hundred new connections: none is lost or goes to a pod on the node without the program.
fn serves_without(cluster: &Cluster, port: u16, node: &str) -> Result<()> {
    let traffic = start_requests(cluster, Request::new(Kind::Http, VIP, port))?;
    traffic.wait_for_more(100, PATIENCE)?;
    let tally = traffic.stop()?;
    tally.check_all_by("bulk/third")?;
    for (_, pod) in tally.by_pod.keys() {
        ensure!(cluster.pod(pod)?.node != node, "{:?}", tally.by_pod);
    }
    Ok(())
}

/// Returns the node that neither leads nor has a pod yet.
fn third(cluster: &Cluster) -> Result<String> {
    let is_other = |name: &str| cluster.pods.iter().all(|pod| pod.node != name);
    let node = cluster.lan.nodes.iter().find(|node| is_other(&node.name)).context("no third node")?;
    Ok(node.name.clone())
}

/// Returns a Service with a pod on the far node and one on the third.
fn with_third(cluster: &mut Cluster, third: &str) -> Result<Service> {
    const PORT: u16 = 8088;
    let far = cluster.pod("far")?.node.clone();
    for (node, pod) in [(far.as_str(), "third-1"), (third, "third-2")] {
        cluster.add_pod(node, pod, 61, &[Listener::new(Kind::Http, PORT, "bulk/third")])?;
    }
    let endpoints = [cluster.endpoint("third-1")?, cluster.endpoint("third-2")?];
    Ok(Service::sharing("bulk/third", PORT, "TCP", PORT).with(endpoints))
}

/// Makes a cluster with a pod on the node that is planned to lead [`VIP`] and one on another, which
/// leads [`VIP_V6`] if possible. Each pod has a bulk Service of its own, and both are in those of
/// [`WEB`] and [`UDP`], in dual stack. So in each family one pod is on the leader and one
/// elsewhere. Agents are not started.
pub(crate) fn prepared(options: Options) -> Result<Option<Cluster>> {
    const BULK: u16 = 7000;
    const HTTP: u16 = 7080;
    const ECHO: u16 = 7514;
    let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    // The planned leader is known once there is an address.
    cluster.manifests.write_service(&Service::sharing("bulk/near", NEAR, "TCP", BULK).dual_stack())?;
    let leader = cluster.planned_leader(VIP)?.name.clone();
    let mut others = std::iter::once(cluster.planned_leader(VIP_V6)?).chain(&cluster.lan.nodes);
    let other = others.find(|node| node.name != leader).context("no other node")?.name.clone();
    for (node, pod) in [(&leader, "near"), (&other, "far")] {
        let listeners = [
            Listener::new(Kind::Bulk, BULK, &format!("bulk/{pod}")),
            Listener::new(Kind::Http, HTTP, "bulk/web"),
            Listener::new(Kind::UdpEcho, ECHO, "bulk/udp"),
        ];
        cluster.add_pod(node, pod, 60, &listeners)?;
    }
    for (service, pods) in [
        (Service::sharing("bulk/near", NEAR, "TCP", BULK), ["near"].as_slice()),
        (Service::sharing("bulk/far", FAR, "TCP", BULK), &["far"]),
        (Service::sharing("bulk/web", WEB, "TCP", HTTP), &["near", "far"]),
        (Service::sharing("bulk/udp", UDP, "UDP", ECHO), &["near", "far"]),
    ] {
        let service = service.dual_stack().with(endpoints(&cluster, pods)?);
        cluster.manifests.write_service(&service)?;
    }
    Ok(Some(cluster))
}

/// Makes the same with running agents.
pub(crate) fn served(options: Options, xdp_mode: &'static str) -> Result<Option<Cluster>> {
    let Some(mut cluster) = prepared(options)? else { return Ok(None) };
    let options = agent::Options { xdp_mode, ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    await_served(&cluster)?;
    Ok(Some(cluster))
}

pub(crate) fn await_served(cluster: &Cluster) -> Result<()> {
    let requests = [
        (Kind::Bulk, NEAR, "bulk/near"),
        (Kind::Bulk, FAR, "bulk/far"),
        (Kind::Http, WEB, "bulk/web"),
        (Kind::UdpEcho, UDP, "bulk/udp"),
    ];
    for vip in VIPS {
        for (kind, port, service) in requests {
            cluster.await_service(Request::new(kind, vip, port), service)?;
        }
    }
    Ok(())
}

fn start(cluster: &Cluster, port: u16, pause: Duration) -> Result<Transfer> {
    Transfer::start(cluster.lan.client()?.namespace(), (VIP, port).into(), pause)
}

pub(crate) fn start_both(cluster: &Cluster, pause: Duration) -> Result<[(u16, Transfer); 2]> {
    Ok([(NEAR, start(cluster, NEAR, pause)?), (FAR, start(cluster, FAR, pause)?)])
}

fn start_requests(cluster: &Cluster, request: Request) -> Result<Traffic> {
    Traffic::start(cluster.lan.client()?.namespace(), request, PAUSE)
}

/// Sends this many bytes and gets them back.
pub(crate) fn transfer(client: &Namespace, server: SocketAddr, bytes: u64) -> Result<()> {
    let mut transfer = Transfer::start(client, server, Duration::ZERO)?;
    transfer.wait_for_more(bytes, LONG).with_context(|| format!("to {server}"))?;
    finish(transfer, server.port()).with_context(|| format!("to {server}"))
}

pub(crate) fn finish(transfer: Transfer, port: u16) -> Result<()> {
    let answer = transfer.finish().with_context(|| format!("port {port}"))?;
    let expected = if port == NEAR { "near" } else { "far" };
    ensure!(answer.pod == expected, "port {port} was served by {answer}");
    Ok(())
}
