//! Tests IPv6 VIPs, alone and beside IPv4 ones, like the other modules test IPv4.

use std::{collections::BTreeSet, fs, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pnet::util::MacAddr;
use vipmux_tests::{
    agent,
    client::{self, Datagrams, HELD, HOLD, Kind, RELEASE, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    failover::await_stopped,
    frames::solicited_node,
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP, VIP_V6},
    ndp,
    pod::Listener,
    traffic::Traffic,
    wait,
};

use crate::{
    leading::WINDOW,
    replies::{self, forget_connections_and_release},
    services,
};

/// With 40 new connections, the chance that one of two equal backends gets none is below 10^-11.
const CONNECTIONS: usize = 40;

/// A Service: name, request, its pods' port, its pods with their nodes, and whether it also has
/// IPv4.
type Spec = (&'static str, Kind, u16, u16, &'static [(&'static str, &'static str)], bool);

const SERVICES: [Spec; 5] = [
    ("shop/web", Kind::Http, 80, 8080, &[("node-1", "web-1"), ("node-2", "web-2")], true),
    ("shop/secure", Kind::Echo, 443, 8443, &[("node-2", "secure-1")], true),
    ("infra/dns", Kind::DnsUdp, 53, 5353, &[("node-3", "dns-1")], true),
    ("ops/syslog", Kind::UdpEcho, 514, 5140, &[("node-3", "syslog-1")], true),
    ("ops/admin", Kind::Http, 8080, 9000, &[("node-1", "admin-1")], false),
];

/// Starts the Services, and waits until each has answered at each of its addresses.
pub(crate) fn served(options: Options) -> Result<Option<Cluster>> {
    served_with(|options| options, options)
}

pub(crate) fn served_with(
    change: impl FnOnce(agent::Options) -> agent::Options,
    options: Options,
) -> Result<Option<Cluster>> {
    let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    let mut host = 10;
    for (name, kind, port, target_port, pods, dual_stack) in SERVICES {
        let mut endpoints = Vec::new();
        for (node, pod) in pods {
            // The control port is for tests that reach a pod without the VIP.
            let listeners = [Listener::new(kind, target_port, name), Listener::new(Kind::Echo, CONTROL, "ops/control")];
            cluster.add_pod(node, pod, host, &listeners)?;
            endpoints.push(cluster.endpoint_v6(pod)?);
            endpoints.extend(dual_stack.then(|| cluster.endpoint(pod)).transpose()?);
            host += 1;
        }
        let service = Service::sharing(name, port, kind.protocol(), target_port).with(endpoints);
        cluster.manifests.write_service(&if dual_stack { service.dual_stack() } else { service.ipv6() })?;
    }
    cluster.start_agents(&change(cluster.agent_options()))?;
    requests().iter().try_for_each(|(request, service, _)| cluster.await_service(*request, service).map(drop))?;
    Ok(Some(cluster))
}

const CONTROL: u16 = 7000;

/// Returns every request with its Service and the number of pods.
fn requests() -> Vec<(Request, &'static str, usize)> {
    let mut requests = Vec::new();
    for (name, kind, port, _, pods, dual_stack) in SERVICES {
        let v4 = dual_stack.then_some(IpAddr::V4(VIP));
        for vip in v4.into_iter().chain([IpAddr::V6(VIP_V6)]) {
            requests.push((Request::new(kind, vip, port), name, pods.len()));
        }
    }
    requests
}

pub(crate) fn answers(cluster: &Cluster) -> Result<Vec<MacAddr>> {
    let client = cluster.lan.client()?;
    ndp::answers(client.namespace(), client.address_v6, VIP_V6, WINDOW)
}

#[test]
fn each_port_of_each_family_reaches_its_own_service_which_sees_the_client() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    let client = cluster.lan.client()?;
    for (request, service, expected) in requests() {
        let own: IpAddr = if request.server.is_ipv4() { client.address.into() } else { client.address_v6.into() };
        let mut pods = BTreeSet::new();
        for _ in 0..CONNECTIONS {
            let answer = cluster.ask(request, TIMEOUT)?;
            assert_eq!((answer.service.as_str(), answer.client.ip()), (service, own), "{request}");
            pods.insert(answer.pod);
        }
        assert_eq!(pods.len(), expected, "{request} was answered by {pods:?}");
    }
    let closed = Request::new(Kind::Http, VIP, 8080);
    assert!(cluster.ask(closed, WINDOW).is_err(), "ops/admin has IPv6 alone");
    Ok(())
}

#[test]
fn in_generic_mode_ipv6_is_served_as_well() -> Result<()> {
    let generic = |options| agent::Options { xdp_mode: "generic", ..options };
    let Some(cluster) = served_with(generic, Options::default())? else { return Ok(()) };
    for (request, service, _) in requests() {
        for _ in 0..CONNECTIONS {
            assert_eq!(cluster.ask(request, TIMEOUT)?.service, service, "{request}");
        }
    }
    Ok(())
}

#[test]
fn only_the_leader_answers_solicitations_and_the_client_knows_its_mac() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP_V6)?;
    for _ in 0..5 {
        assert_eq!(answers(&cluster)?, [leader.mac]);
    }
    assert_eq!(cluster.lan.client()?.neighbor(VIP_V6)?, Some(leader.mac));
    Ok(())
}

/// A kernel answers for addresses of a proxy entry like for its own.
#[test]
fn only_the_leader_answers_though_every_nodes_kernel_would_and_no_other_can_advertise() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        node.namespace().sysctl("net/ipv6/conf/eth0/proxy_ndp", "1")?;
        node.namespace().sysctl("net/ipv6/neigh/eth0/proxy_delay", "0")?;
        node.namespace().links(|links| links.add_proxy("eth0", VIP_V6))?;
    }
    let leader = cluster.await_leader(VIP_V6)?;
    for _ in 0..5 {
        assert_eq!(answers(&cluster)?, [leader.mac]);
    }
    let client = cluster.lan.client()?;
    for node in cluster.lan.nodes.iter().filter(|node| node.name != leader.name) {
        assert!(!ndp::advertise(node.namespace(), VIP_V6)?, "{} has advertised it", node.name);
        // Its answer comes after the frames that the client has received.
        cluster.ask(Request::new(Kind::Http, VIP_V6, 80), TIMEOUT)?;
        assert_eq!(client.neighbor(VIP_V6)?, Some(leader.mac), "{} was heard", node.name);
    }
    assert!(cluster.counted("drops", "ndp_egress")? >= 2, "who was not heard was not counted");
    Ok(())
}

/// A switch with MLD snooping forwards solicitations only to members of the group.
#[test]
fn every_node_is_in_the_vips_solicited_node_group_while_its_agent_runs() -> Result<()> {
    let Some(mut cluster) = served(Options::default())? else { return Ok(()) };
    let group = format!("{:032x}", solicited_node(VIP_V6).to_bits());
    let reported = || fs::read_to_string("/proc/thread-self/net/igmp6").map_err(Into::into);
    for node in &cluster.lan.nodes {
        wait::until("the group", PATIENCE, || {
            let text: String = node.namespace().run(reported)?;
            ensure!(text.contains(&group), "{} is in {text}", node.name);
            Ok(())
        })?;
    }
    cluster.agents[0].process_mut().kill()?;
    let node = &cluster.lan.nodes[0];
    let text: String = node.namespace().run(reported)?;
    assert!(!text.contains(&group), "{} without its agent is in {text}", node.name);
    Ok(())
}

#[test]
fn a_vip_moves_with_its_leader_and_the_client_learns_the_new_mac() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    let client = cluster.lan.client()?;
    let request = Request::new(Kind::Http, VIP_V6, 80);
    // While packets are answered, a client keeps the MAC unless an advertisement changes it.
    let traffic = Traffic::start(client.namespace(), request, Duration::from_millis(5))?;
    traffic.wait_for_more(5, PATIENCE)?;
    for _ in 0..2 {
        let old = cluster.await_leader(VIP_V6)?;
        cluster.manifests.write_nodes(&cluster.lan, &[&old.name])?;
        let new = wait::until("another as the client's neighbor", PATIENCE, || {
            let known = client.neighbor(VIP_V6)?.context("none")?;
            ensure!(known != old.mac, "it is {known}");
            Ok(known)
        })?;
        assert_eq!(answers(&cluster)?, [new]);
        traffic.wait_for_more(5, PATIENCE)?;
    }
    traffic.stop()?.check_none_by_others("shop/web")
}

#[test]
fn stopped_agents_nodes_answer_no_solicitation_after_the_deadline() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    for agent in &cluster.agents {
        agent.process().signal(Signal::SIGSTOP)?;
        await_stopped(agent.process().id())?;
    }
    wait::until("silence", PATIENCE, || {
        let answers = answers(&cluster)?;
        ensure!(answers.is_empty(), "{answers:?} answered");
        Ok(())
    })?;
    cluster.agents.iter().try_for_each(|agent| agent.process().signal(Signal::SIGCONT))?;
    cluster.await_leader(VIP_V6).map(drop)
}

#[test]
fn a_node_that_does_not_lead_serves_what_still_arrives() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    let client = cluster.lan.client()?;
    for node in &cluster.lan.nodes {
        client.namespace().links(|links| links.add_neighbor("eth0", VIP_V6, node.mac))?;
        for (request, service, _) in requests() {
            cluster.await_service(request, service).with_context(|| format!("by way of {}", node.name))?;
        }
    }
    Ok(())
}

#[test]
fn a_vip_answers_echo_requests() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    cluster.lan.client()?.namespace().run(|| {
        for length in [0, 56, 1_400] {
            client::ping_v6(VIP_V6, length, TIMEOUT).with_context(|| format!("{length} bytes"))?;
        }
        Ok(())
    })
}

#[test]
fn every_service_answers_in_spite_of_masquerading() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE)? else { return Ok(()) };
    for (request, service, _) in requests() {
        for _ in 0..10 {
            assert_eq!(cluster.ask(request, TIMEOUT)?.service, service);
        }
    }
    Ok(())
}

#[test]
fn a_tcp_reply_keeps_its_source_when_conntrack_has_forgotten_the_connection() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE)? else { return Ok(()) };
    let mut session = cluster.lan.client()?.namespace().run(|| Session::connect((VIP_V6, 443).into(), TIMEOUT))?;
    for _ in 0..3 {
        session.send(HOLD)?;
        forget_connections_and_release(&cluster, "secure-1", CONTROL)?;
        assert_eq!(session.receive(HOLD)?.service, "shop/secure");
    }
    Ok(())
}

#[test]
fn a_udp_reply_keeps_its_source_when_conntrack_has_forgotten_the_flow() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE)? else { return Ok(()) };
    let datagrams = cluster.lan.client()?.namespace().run(|| Datagrams::connect((VIP_V6, 514).into(), TIMEOUT))?;
    for _ in 0..3 {
        datagrams.send(HOLD)?;
        forget_connections_and_release(&cluster, "syslog-1", CONTROL)?;
        assert_eq!(datagrams.receive()?.service, "ops/syslog");
    }
    Ok(())
}

#[test]
fn datagrams_in_fragments_arrive_whole_in_both_directions() -> Result<()> {
    let Some(mut cluster) = served(Options::HOSTILE)? else { return Ok(()) };
    let bulk = Service::sharing("ops/bulk", 515, "UDP", 5140).ipv6();
    replies::exchange_fragments(&mut cluster, bulk, VIP_V6.into(), Cluster::endpoint_v6, 1_453)
}

/// The client has closed its socket when the reply comes, and its kernel reports that to the VIP.
#[test]
fn an_icmpv6_error_about_a_reply_reaches_the_pod() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE)? else { return Ok(()) };
    let pod = cluster.pod("syslog-1")?;
    let before = pod.namespace().run(unreachables_received)?;
    cluster.lan.client()?.namespace().run(|| {
        let datagrams = Datagrams::connect((VIP_V6, 514).into(), TIMEOUT)?;
        datagrams.send(HOLD)?;
        datagrams.close()
    })?;
    let mut control = pod.namespace().run(|| Session::connect((pod.address_v6, CONTROL).into(), TIMEOUT))?;
    control.echo(HELD)?;
    control.echo(RELEASE)?;
    wait::until("the ICMPv6 error at the pod", TIMEOUT, || {
        let received = pod.namespace().run(unreachables_received)?;
        ensure!(received > before, "{received} were received, as before");
        Ok(())
    })
}

/// Returns the ICMPv6 destination unreachable messages that the calling thread's network namespace
/// received.
fn unreachables_received() -> Result<u64> {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp6")?;
    let line = snmp.lines().find_map(|line| line.strip_prefix("Icmp6InDestUnreachs"));
    Ok(line.context("no Icmp6InDestUnreachs")?.trim().parse()?)
}

#[test]
fn a_connection_to_a_pod_past_the_vip_is_left_alone() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    services::connect_to_pod_and_vip(&cluster, cluster.pod("secure-1")?.address_v6.into(), VIP_V6.into())
}

#[test]
fn a_pod_in_its_nodes_network_is_a_backend_like_others() -> Result<()> {
    let Some(cluster) = served(Options::default())? else { return Ok(()) };
    let exporter = Service::sharing("ops/exporter", 9100, "TCP", 9100).ipv6();
    services::serve_from_nodes(&cluster, exporter, VIP_V6.into(), 2 * CONNECTIONS)
}
