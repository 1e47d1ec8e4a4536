//! Tests policies of a Service: admitted clients, idle timeouts, and a claim on all ports.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vipmux_common::abi::capacity::SOURCE_RANGES;
use vipmux_tests::{
    agent::Plan,
    arp,
    client::{Datagrams, Kind, Request, Session},
    cluster::{Cluster, PATIENCE, SHORT_TIMEOUT, SILENCE, TIMEOUT},
    lan::{Client, Lan, Options},
    manifests::{Condition, Endpoint, Manifests, Service, VIP, VIP_V6},
    pod::Listener,
    sctp,
    traffic::Traffic,
    wait,
};

use crate::leading::WINDOW;

const PAUSE: Duration = Duration::from_millis(5);
/// The addresses that the Services share.
pub(crate) const VIPS: [IpAddr; 2] = [IpAddr::V4(VIP), IpAddr::V6(VIP_V6)];
/// The port of `shop/web`, and of its pods.
pub(crate) const WEB: (u16, u16) = (443, 8443);
/// The port of `shop/voice`, that of `shop/radio`, and that of their pods.
pub(crate) const VOICE: (u16, u16, u16) = (5060, 5061, 5140);
/// Connections of one client that must reach one pod.
pub(crate) const CONNECTIONS: usize = 20;

/// Makes a cluster without running agents: pods `web-1`, `web-2` etc., one on each of these nodes,
/// and `ops/admin`, which nothing may disturb. `None` if the test is skipped.
pub(crate) fn prepared(options: Options, nodes: &[&str]) -> Result<Option<Cluster>> {
    let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
    let manifests = Manifests::for_dual_stack_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.add_pod("node-3", "admin-1", 9, &[Listener::new(Kind::Http, 9000, "ops/admin")])?;
    for node in nodes {
        add_web_pod(&mut cluster, node)?;
    }
    let admin = Service::sharing("ops/admin", 8080, "TCP", 9000).dual_stack();
    cluster.manifests.write_service(&admin.with(endpoints(&cluster, &["admin-1"])?))?;
    Ok(Some(cluster))
}

/// Adds the next of the pods `web-1`, `web-2` etc. Returns its name.
pub(crate) fn add_web_pod(cluster: &mut Cluster, node: &str) -> Result<String> {
    let number = cluster.pods.len();
    let name = format!("web-{number}");
    let listeners = [Listener::new(Kind::Echo, WEB.1, "shop/web"), Listener::new(Kind::UdpEcho, VOICE.2, "shop/voice")];
    cluster.add_pod(node, &name, 10 + u8::try_from(number)?, &listeners)?;
    Ok(name)
}

/// Makes the same with running agents that have read this manifest and serve `ops/admin`.
pub(crate) fn started(mut cluster: Cluster, services: &[Service]) -> Result<Cluster> {
    services.iter().try_for_each(|service| cluster.manifests.write_service(service))?;
    cluster.start_agents(&cluster.agent_options())?;
    for vip in VIPS {
        cluster.await_service(Request::new(Kind::Http, vip, 8080), "ops/admin")?;
    }
    Ok(cluster)
}

/// Returns endpoints of both families.
pub(crate) fn endpoints(cluster: &Cluster, pods: &[&str]) -> Result<Vec<Endpoint>> {
    let both = |pod: &&str| Ok([cluster.endpoint(pod)?, cluster.endpoint_v6(pod)?]);
    Ok(pods.iter().map(both).collect::<Result<Vec<_>>>()?.concat())
}

/// Returns `shop/web` on both addresses, with these pods.
pub(crate) fn web(cluster: &Cluster, pods: &[&str]) -> Result<Service> {
    Ok(Service::sharing("shop/web", WEB.0, "TCP", WEB.1).dual_stack().with(endpoints(cluster, pods)?))
}

/// Returns a request to `shop/web`.
pub(crate) fn to_web(vip: IpAddr) -> Request {
    Request::new(Kind::Echo, vip, WEB.0)
}

/// Starts requests to `ops/admin`, none of which may be lost.
pub(crate) fn bystanders(cluster: &Cluster) -> Result<Vec<Traffic>> {
    let client = cluster.lan.client()?.namespace();
    VIPS.into_iter().map(|vip| Traffic::start(client, Request::new(Kind::Http, vip, 8080), PAUSE)).collect()
}

pub(crate) fn check_bystanders(bystanders: Vec<Traffic>) -> Result<()> {
    bystanders.into_iter().try_for_each(|traffic| {
        traffic.wait_for_more(5, PATIENCE)?;
        traffic.stop()?.check_all_by("ops/admin")
    })
}

/// Returns a client's address of the same family.
pub(crate) fn address_for(client: &Client, vip: IpAddr) -> IpAddr {
    if vip.is_ipv4() { client.address.into() } else { client.address_v6.into() }
}

/// Waits until `shop/web` answers a client at both addresses.
pub(crate) fn await_web(client: &Client) -> Result<()> {
    VIPS.into_iter().try_for_each(|vip| {
        wait::until(&format!("an answer at {vip}"), PATIENCE, || {
            client.namespace().run(|| to_web(vip).send(SHORT_TIMEOUT)).map(drop)
        })
    })
}

/// Returns `loadBalancerSourceRanges` with all addresses of these clients.
fn allowing(service: Service, clients: &[&Client]) -> Service {
    let ranges =
        clients.iter().flat_map(|client| [format!("{}/32", client.address), format!("{}/128", client.address_v6)]);
    service.with_field("loadBalancerSourceRanges", json!(ranges.collect::<Vec<_>>()))
}

/// The annotation for the same.
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// Waits until every agent has reported this flaw of `shop/web`.
fn await_named(cluster: &Cluster, malformed: &str) -> Result<()> {
    cluster.agents.iter().try_for_each(|agent| {
        let names = |line: &str| line.contains("web") && line.contains(malformed);
        agent.process().wait_for_line("naming what is malformed", PATIENCE, names).map(drop)
    })
}

/// Returns the frames that all nodes dropped because their sender is in no source range.
fn out_of_range(cluster: &Cluster) -> Result<u64> {
    cluster.counted("drops", "source_range")
}

#[test]
fn only_a_client_within_the_source_ranges_is_answered_and_others_get_no_word() -> Result<()> {
    let Some(cluster) = prepared(Options { clients: 2, ..Options::default() }, &["node-1", "node-2"])? else {
        return Ok(());
    };
    let service = allowing(web(&cluster, &["web-1", "web-2"])?, &[&cluster.lan.clients[0]]);
    let cluster = started(cluster, &[service])?;
    let [inside, outside] = cluster.lan.clients.as_slice() else { return Ok(()) };
    await_web(inside)?;
    for vip in VIPS {
        for _ in 0..CONNECTIONS {
            let answer = inside.namespace().run(|| to_web(vip).send(TIMEOUT))?;
            assert_eq!((answer.service.as_str(), answer.client.ip()), ("shop/web", address_for(inside, vip)));
        }
        let before = out_of_range(&cluster)?;
        let error = outside.namespace().run(|| Ok(to_web(vip).send(SILENCE).err()))?.context("it was answered")?;
        let kinds: Vec<_> =
            error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind).collect();
        assert_eq!(kinds, [io::ErrorKind::TimedOut], "{vip}: {error:#}");
        assert!(out_of_range(&cluster)? > before, "{vip}: no drop was counted");
        let other = Request::new(Kind::Http, vip, 8080);
        assert_eq!(outside.namespace().run(|| other.send(TIMEOUT))?.service, "ops/admin");
    }
    Ok(())
}

#[test]
fn a_vip_of_which_nothing_found_room_in_the_maps_has_no_leader_until_it_does() -> Result<()> {
    let Some(cluster) = prepared(Options::default(), &["node-1"])? else { return Ok(()) };
    let alone = Ipv4Addr::new(192, 0, 2, 205);
    let large = |count: u32| {
        let range = |number| format!("{}/32", Ipv4Addr::from_bits(0x0a00_0000 + number));
        let service = Service::sharing("shop/large", WEB.0, "TCP", WEB.1).with([cluster.endpoint("web-1")?]);
        let ranges = json!((0..count).map(range).collect::<Vec<_>>());
        let service = Service { address: Some(alone), sharing_key: None, ..service };
        Ok::<_, anyhow::Error>(service.with_field("loadBalancerSourceRanges", ranges))
    };
    let (too_many, few) = (large(SOURCE_RANGES + 1)?, large(9)?);
    let cluster = started(cluster, &[too_many])?;
    for agent in &cluster.agents {
        let lacks = |line: &str| line.contains("the map SOURCE_RANGES lacks room");
        agent.process().wait_for_line("a warning", PATIENCE, lacks)?;
    }
    let client = cluster.lan.client()?;
    let nobody = arp::answers(client.namespace(), client.address, alone, WINDOW)?;
    assert!(nobody.is_empty(), "{nobody:?} answer");
    cluster.manifests.write_service(&few)?;
    cluster.await_leader(alone).map(drop)
}

#[test]
fn an_edit_of_the_source_ranges_holds_for_connections_that_are_there() -> Result<()> {
    let Some(cluster) = prepared(Options { clients: 2, ..Options::default() }, &["node-1", "node-2"])? else {
        return Ok(());
    };
    let service = web(&cluster, &["web-1", "web-2"])?;
    let cluster = started(cluster, std::slice::from_ref(&service))?;
    let [first, second] = cluster.lan.clients.as_slice() else { return Ok(()) };
    await_web(first)?;
    let bystanders = bystanders(&cluster)?;
    let connect = |vip| first.namespace().run(|| Session::connect((vip, WEB.0).into(), TIMEOUT));
    let mut sessions = VIPS.into_iter().map(connect).collect::<Result<Vec<_>>>()?;
    for session in &mut sessions {
        session.echo("before")?;
    }

    cluster.manifests.write_service(&allowing(service.clone(), &[second]))?;
    wait::until("the ranges on every node", PATIENCE, || {
        let views = views(&cluster, WEB.0)?;
        ensure!(views.iter().all(|view| !view["source_ranges"].is_null()), "{views:?}");
        Ok(())
    })?;
    await_web(second)?;
    let before = out_of_range(&cluster)?;
    for session in &mut sessions {
        session.limit(SILENCE)?;
        assert!(session.echo("meanwhile").is_err(), "it is answered");
        session.limit(TIMEOUT)?;
    }
    assert!(out_of_range(&cluster)? >= before + 2, "no drop was counted");

    cluster.manifests.write_service(&allowing(service, &[first, second]))?;
    for session in &mut sessions {
        wait::until("the answer to what was sent meanwhile", PATIENCE, || session.receive("meanwhile"))?;
        session.echo("after")?;
    }
    check_bystanders(bystanders)
}

#[test]
fn malformed_source_ranges_open_a_service_to_nobody() -> Result<()> {
    let Some(cluster) = prepared(Options { clients: 2, ..Options::default() }, &["node-1", "node-2"])? else {
        return Ok(());
    };
    let service = web(&cluster, &["web-1", "web-2"])?;
    let restricted = allowing(service.clone(), &[&cluster.lan.clients[0]]);
    let cluster = started(cluster, std::slice::from_ref(&restricted))?;
    let [inside, outside] = cluster.lan.clients.as_slice() else { return Ok(()) };
    await_web(inside)?;
    let bystanders = bystanders(&cluster)?;
    let start = |vip| Traffic::with_timeout(outside.namespace(), to_web(vip), PAUSE, SHORT_TIMEOUT);
    let intruders = VIPS.into_iter().map(start).collect::<Result<Vec<_>>>()?;

    // Kubernetes would reject this document, so the last good state stays in force.
    let refused = service.clone().with_field("loadBalancerSourceRanges", json!(["192.0.2.0/33"]));
    cluster.manifests.write_service(&refused)?;
    await_named(&cluster, "spec.loadBalancerSourceRanges[0]")?;
    for vip in VIPS {
        assert_eq!(inside.namespace().run(|| to_web(vip).send(TIMEOUT))?.service, "shop/web");
    }
    // An annotation can have any value.
    cluster.manifests.write_service(&service.annotated(RANGES, "192.0.2.0/33"))?;
    await_named(&cluster, RANGES)?;
    for vip in VIPS {
        wait::until("nobody served", PATIENCE, || {
            let answer = cluster.ask(to_web(vip), SHORT_TIMEOUT);
            ensure!(answer.is_err(), "{answer:?}");
            Ok(())
        })?;
    }
    cluster.manifests.write_service(&restricted)?;
    await_web(inside)?;
    for traffic in intruders {
        traffic.wait_for_a_loss(PATIENCE)?;
        let tally = traffic.stop()?;
        assert_eq!(tally.answered, 0, "{tally:?}");
    }
    check_bystanders(bystanders)
}

/// Returns the entries of a port in `inspect services`, on every node and at every address.
fn views(cluster: &Cluster, port: u16) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
        let view = agent.inspect_json(node, &["services"])?;
        let all = view["services"].as_array().context("no services")?;
        found.extend(all.iter().filter(|service| service["port"] == port).cloned());
    }
    ensure!(found.len() == VIPS.len() * cluster.agents.len(), "port {port}: {found:?}");
    Ok(found)
}

/// Waits until every node has this many pods for `shop/web` at each address.
pub(crate) fn await_ready(cluster: &Cluster, pods: usize) -> Result<()> {
    wait::until(&format!("{pods} pods of shop/web"), PATIENCE, || {
        let views = views(cluster, WEB.0)?;
        ensure!(views.iter().all(|view| view["ready"] == pods), "{views:?}");
        Ok(())
    })
}

/// Two Services with the same pods, one with a short idle timeout. Their pod drains, so it keeps
/// its flows and gets no others.
#[test]
fn a_flow_that_was_idle_for_longer_than_its_service_allows_is_balanced_anew() -> Result<()> {
    let Some(cluster) = prepared(Options::default(), &["node-1", "node-2"])? else { return Ok(()) };
    let pair = |cluster: &Cluster, draining: &[&str], ready: &[&str]| -> Result<[Service; 2]> {
        let mut all = endpoints(cluster, draining)?;
        for endpoint in &mut all {
            endpoint.condition = Condition::Terminating;
        }
        all.extend(endpoints(cluster, ready)?);
        let service = |name, port| Service::sharing(name, port, "UDP", VOICE.2).dual_stack().with(all.clone());
        let voice = service("shop/voice", VOICE.0).annotated("vipmux.io/udp-idle-timeout", "10s");
        Ok([voice, service("shop/radio", VOICE.1)])
    };
    let services = pair(&cluster, &[], &["web-1"])?;
    let cluster = started(cluster, &services)?;
    let client = cluster.lan.client()?;
    let mut flows = Vec::new();
    for (vip, port) in VIPS.into_iter().flat_map(|vip| [(vip, VOICE.0), (vip, VOICE.1)]) {
        cluster.await_service(Request::new(Kind::UdpEcho, vip, port), "shop/voice")?;
        let flow = client.namespace().run(|| Datagrams::connect((vip, port).into(), TIMEOUT))?;
        assert_eq!(flow.echo("at first")?.pod, "web-1");
        flows.push((vip, port, flow));
    }
    assert!(views(&cluster, VOICE.0)?.iter().all(|view| view["idle_s"] == 10));
    assert!(views(&cluster, VOICE.1)?.iter().all(|view| view["idle_s"].is_null()));

    for service in pair(&cluster, &["web-1"], &["web-2"])? {
        cluster.manifests.write_service(&service)?;
    }
    for (vip, port, flow) in &flows {
        let request = Request::new(Kind::UdpEcho, *vip, *port);
        // A datagram may be lost while nodes change, and no flow may become idle meanwhile.
        wait::until("a new flow at the new pod", PATIENCE, || {
            for (_, _, flow) in &flows {
                assert_eq!(flow.echo("meanwhile")?.pod, "web-1");
            }
            let answer = cluster.ask(request, SHORT_TIMEOUT)?;
            ensure!(answer.pod == "web-2", "{answer}");
            Ok(())
        })?;
        assert_eq!(flow.echo("while it drains")?.pod, "web-1");
    }
    await_idle(&cluster)?;
    for (vip, port, flow) in &flows {
        let expected = if *port == VOICE.0 { "web-2" } else { "web-1" };
        assert_eq!(flow.echo("after a while")?.pod, expected, "{vip} port {port}");
    }
    Ok(())
}

/// Waits until all flows of `shop/voice` have been idle for longer than its timeout, by more than
/// the records' precision. Those of `shop/radio` are as old.
fn await_idle(cluster: &Cluster) -> Result<()> {
    wait::until("all flows of shop/voice idle", PATIENCE, || {
        let mut idle = 0;
        for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
            let view = agent.inspect_json(node, &["flows"])?;
            let flows = view["flows"].as_array().context("no flows")?;
            for flow in flows.iter().filter(|flow| flow["protocol"] == "UDP") {
                let age = flow["age_ms"].as_u64().context("no age")?;
                ensure!(age >= 11_500, "{flow}");
                let stale = if flow["vip_port"] == VOICE.0 { json!("idle") } else { Value::Null };
                ensure!(flow["stale"] == stale, "{flow}");
                idle += usize::from(!stale.is_null());
            }
        }
        ensure!(idle >= VIPS.len(), "{idle} flows of shop/voice");
        Ok(())
    })
}

/// Addresses that one Service has alone.
const OWN: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(192, 0, 2, 201), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x201));
const OWN_VIPS: [IpAddr; 2] = [IpAddr::V4(OWN.0), IpAddr::V6(OWN.1)];

/// Returns `shop/gateway` on its own addresses. Of its ports, its spec has 8080/TCP.
fn gateway(cluster: &Cluster) -> Result<Service> {
    let service = Service::sharing("shop/gateway", 8080, "TCP", 8080).with(endpoints(cluster, &["gateway-1"])?);
    Ok(Service { address: Some(OWN.0), address_v6: Some(OWN.1), sharing_key: None, ..service })
}

fn with_every_port(service: Service) -> Service {
    service.annotated("vipmux.io/all-ports", "true")
}

/// Returns its pod's listeners.
fn gateway_ports() -> Result<Vec<(Kind, u16)>> {
    let mut ports = vec![(Kind::Http, 8080), (Kind::Echo, 9443), (Kind::DnsTcp, 53), (Kind::DnsUdp, 53)];
    ports.extend([(Kind::UdpEcho, 8080), (Kind::UdpEcho, 65_535)]);
    ports.extend(sctp::is_supported()?.then_some((Kind::Sctp, 36_412)));
    Ok(ports)
}

/// Makes the cluster with that pod.
fn with_gateway() -> Result<Option<Cluster>> {
    let Some(mut cluster) = prepared(Options::default(), &[])? else { return Ok(None) };
    let listener = |(kind, port)| Listener::new(kind, port, "shop/gateway");
    let listeners: Vec<_> = gateway_ports()?.into_iter().map(listener).collect();
    cluster.add_pod("node-2", "gateway-1", 10, &listeners)?;
    Ok(Some(cluster))
}

#[test]
fn every_port_of_an_address_reaches_the_service_that_has_it_for_itself() -> Result<()> {
    let Some(cluster) = with_gateway()? else { return Ok(()) };
    let service = with_every_port(gateway(&cluster)?);
    let cluster = started(cluster, &[service])?;
    let (client, ports) = (cluster.lan.client()?, gateway_ports()?);
    let all_answer = || {
        for (vip, (kind, port)) in OWN_VIPS.into_iter().flat_map(|vip| ports.iter().map(move |port| (vip, *port))) {
            let answer = cluster.await_service(Request::new(kind, vip, port), "shop/gateway")?;
            assert_eq!(answer.client.ip(), address_for(client, vip), "{kind} {vip} {port}");
        }
        anyhow::Ok(())
    };
    all_answer()?;

    let bystanders = bystanders(&cluster)?;
    let latecomer = Service::sharing("shop/latecomer", 9443, "TCP", 9000).with(endpoints(&cluster, &["admin-1"])?);
    let latecomer = Service { address: Some(OWN.0), address_v6: Some(OWN.1), ..latecomer };
    cluster.manifests.write_service(&latecomer)?;
    for agent in &cluster.agents {
        let names = |line: &str| line.contains("latecomer") && line.contains("gateway");
        agent.process().wait_for_line("naming who has the ports", PATIENCE, names)?;
    }
    let plan = Plan::of(cluster.manifests.path())?;
    let refused = plan.service("shop/latecomer")?;
    assert_eq!(refused["addresses"], json!([]), "{refused}");
    for _ in 0..CONNECTIONS {
        for vip in OWN_VIPS {
            assert_eq!(cluster.ask(Request::new(Kind::Echo, vip, 9443), TIMEOUT)?.service, "shop/gateway");
        }
    }
    all_answer()?;
    check_bystanders(bystanders)
}

#[test]
fn a_service_that_takes_every_port_and_gives_them_back_loses_no_request_on_its_own() -> Result<()> {
    let Some(cluster) = with_gateway()? else { return Ok(()) };
    let service = gateway(&cluster)?;
    let cluster = started(cluster, std::slice::from_ref(&service))?;
    let client = cluster.lan.client()?.namespace();
    let mut traffic = Vec::new();
    for vip in OWN_VIPS {
        let request = Request::new(Kind::Http, vip, 8080);
        cluster.await_service(request, "shop/gateway")?;
        traffic.push(Traffic::start(client, request, PAUSE)?);
    }
    for _ in 0..3 {
        cluster.manifests.write_service(&with_every_port(service.clone()))?;
        for vip in OWN_VIPS {
            cluster.await_service(Request::new(Kind::Echo, vip, 9443), "shop/gateway")?;
        }
        cluster.manifests.write_service(&service)?;
        for vip in OWN_VIPS {
            wait::until("the other port closed", PATIENCE, || {
                let answer = cluster.ask(Request::new(Kind::Echo, vip, 9443), SHORT_TIMEOUT);
                ensure!(answer.is_err(), "{answer:?}");
                Ok(())
            })?;
        }
    }
    traffic.into_iter().try_for_each(|traffic| {
        traffic.wait_for_more(5, PATIENCE)?;
        traffic.stop()?.check_all_by("shop/gateway")
    })
}
