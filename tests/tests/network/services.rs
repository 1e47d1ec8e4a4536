//! The start of most tests: five Services on one address, with pods on three nodes.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Kind, Request, Session},
    cluster::{Cluster, TIMEOUT},
    lan::{Lan, Node, Options},
    manifests::{Endpoint, Manifests, Service, VIP},
    pod::{self, Listener},
};

/// One of the five: its name, its request, and the number of its pods.
pub(crate) struct Expected {
    pub(crate) name: &'static str,
    pub(crate) request: Request,
    pub(crate) pods: usize,
}

/// All five.
pub(crate) fn expected() -> [Expected; 5] {
    let expected = |name, kind, port, pods| Expected { name, request: Request::new(kind, VIP, port), pods };
    [
        expected("shop/web", Kind::Http, 80, 2),
        expected("shop/secure", Kind::Echo, 443, 1),
        expected("infra/dns-udp", Kind::DnsUdp, 53, 1),
        expected("infra/dns-tcp", Kind::DnsTcp, 53, 1),
        expected("ops/admin", Kind::Http, 8080, 1),
    ]
}

/// Returns the manifest of `shop/web`: 80/TCP, pods on node-1 and node-2.
pub(crate) fn web(cluster: &Cluster) -> Result<Service> {
    let endpoints = [cluster.endpoint("web-1")?, cluster.endpoint("web-2")?];
    Ok(Service::sharing("shop/web", 80, "TCP", 8080).with(endpoints))
}

/// Makes the five Services with their pods, without running agents; `None` if the test is skipped.
pub(crate) fn prepared(options: Options) -> Result<Option<Cluster>> {
    let Some(cluster) = with_pods(options)? else { return Ok(None) };
    write(&cluster)?;
    Ok(Some(cluster))
}

/// Makes the pods of the five Services, without manifests.
pub(crate) fn with_pods(options: Options) -> Result<Option<Cluster>> {
    let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    for (node, pod) in [("node-1", "web-1"), ("node-2", "web-2")] {
        cluster.add_pod(node, pod, 10, &[Listener::new(Kind::Http, 8080, "shop/web")])?;
    }
    cluster.add_pod("node-2", "secure-1", 11, &[Listener::new(Kind::Echo, 8443, "shop/secure")])?;
    let dns = [Listener::new(Kind::DnsUdp, 5353, "infra/dns-udp"), Listener::new(Kind::DnsTcp, 5353, "infra/dns-tcp")];
    cluster.add_pod("node-3", "dns-1", 10, &dns)?;
    cluster.add_pod("node-1", "admin-1", 11, &[Listener::new(Kind::Http, 9000, "ops/admin")])?;
    Ok(Some(cluster))
}

/// Writes the five Services.
pub(crate) fn write(cluster: &Cluster) -> Result<()> {
    let mut admin = Service::sharing("ops/admin", 8080, "TCP", 9000).with([cluster.endpoint("admin-1")?]);
    admin.local = true;
    let services = [
        web(cluster)?,
        Service::sharing("shop/secure", 443, "TCP", 8443).with([cluster.endpoint("secure-1")?]),
        Service::sharing("infra/dns-udp", 53, "UDP", 5353).with([cluster.endpoint("dns-1")?]),
        Service::sharing("infra/dns-tcp", 53, "TCP", 5353).with([cluster.endpoint("dns-1")?]),
        admin,
    ];
    services.iter().try_for_each(|service| cluster.manifests.write_service(service))
}

/// Starts the five Services, and waits until each has answered.
pub(crate) fn served(options: Options) -> Result<Option<Cluster>> {
    let Some(mut cluster) = prepared(options)? else { return Ok(None) };
    cluster.start_agents(&cluster.agent_options())?;
    await_all(&cluster)?;
    Ok(Some(cluster))
}

/// Sends this many requests to each of the five. The right Service must answer, and see the client.
/// Returns how many pods of each did.
pub(crate) fn ask_all(cluster: &Cluster, times: usize) -> Result<[usize; 5]> {
    let client = cluster.lan.client()?.address;
    let mut reached = [0; 5];
    for (expected, reached) in expected().into_iter().zip(&mut reached) {
        let mut pods = BTreeSet::new();
        for _ in 0..times {
            let answer = cluster.ask(expected.request, TIMEOUT).with_context(|| cluster.last_outputs())?;
            ensure!(answer.service == expected.name && answer.client.ip() == client, "{}: {answer}", expected.name);
            pods.insert(answer.pod);
        }
        *reached = pods.len();
    }
    Ok(reached)
}

/// Waits until each of the five answers.
pub(crate) fn await_all(cluster: &Cluster) -> Result<()> {
    expected().iter().try_for_each(|service| cluster.await_service(service.request, service.name).map(drop))
}

/// Opens connections of a client to the pod `secure-1`, directly and through the VIP. The pod sees
/// the client's own address and port on both.
pub(crate) fn connect_to_pod_and_vip(cluster: &Cluster, pod: IpAddr, vip: IpAddr) -> Result<()> {
    let client = cluster.lan.client()?;
    client.route_pods_of(cluster.lan.node("node-2")?)?;
    let connect = |server| client.namespace().run(|| Session::connect(server, TIMEOUT));
    let mut direct = connect((pod, 8443).into())?;
    let mut balanced = connect((vip, 443).into())?;
    for _ in 0..3 {
        assert_eq!(direct.echo("direct")?.client, direct.local_address()?);
        assert_eq!(balanced.echo("balanced")?.client, balanced.local_address()?);
    }
    Ok(())
}

/// Serves `exporter` (port 9100) from a host-network pod on every node, with addresses of the VIP's
/// family. All of them are reached, and see the client.
pub(crate) fn serve_from_nodes(cluster: &Cluster, exporter: Service, vip: IpAddr, requests: usize) -> Result<()> {
    let listeners = [Listener::new(Kind::Http, 9100, "ops/exporter")];
    let nodes = &cluster.lan.nodes;
    let address = |node: &Node| if vip.is_ipv4() { node.address.into() } else { IpAddr::V6(node.address_v6) };
    let servers: Vec<_> = nodes
        .iter()
        .map(|node| pod::start(node.namespace(), &format!("exporter-{}", node.name), address(node), &listeners))
        .collect::<Result<_>>()?;
    let endpoints = nodes.iter().map(|node| Endpoint::new(address(node), &node.name));
    cluster.manifests.write_service(&exporter.with(endpoints))?;
    let request = Request::new(Kind::Http, vip, 9100);
    cluster.await_service(request, "ops/exporter")?;
    let client = cluster.lan.client()?;
    let own = if vip.is_ipv4() { IpAddr::V4(client.address) } else { IpAddr::V6(client.address_v6) };
    let mut pods = BTreeSet::new();
    for _ in 0..requests {
        let answer = cluster.ask(request, TIMEOUT)?;
        assert_eq!(answer.client.ip(), own);
        pods.insert(answer.pod);
    }
    assert_eq!(pods.len(), servers.len(), "{pods:?}");
    Ok(())
}
