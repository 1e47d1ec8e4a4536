//! What most tests begin with: five Services on one address, with pods on three nodes.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Kind, Request},
    cluster::{Cluster, TIMEOUT},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP},
    pod::Listener,
};

/// One of the five: its name, how a client asks for it, and how many pods it has.
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

/// The manifest of `shop/web`: 80/TCP, pods on node-1 and node-2.
pub(crate) fn web(cluster: &Cluster) -> Result<Service> {
    let endpoints = [cluster.endpoint("web-1")?, cluster.endpoint("web-2")?];
    Ok(Service::sharing("shop/web", 80, "TCP", 8080).with(endpoints))
}

/// The five Services with their pods, and agents that are not started yet; `None` if the test is to be skipped.
pub(crate) fn prepared(options: Options) -> Result<Option<Cluster>> {
    let Some(cluster) = with_pods(options)? else { return Ok(None) };
    write(&cluster)?;
    Ok(Some(cluster))
}

/// The pods of the five Services, which are not written yet.
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

/// The five Services, served: each has answered once.
pub(crate) fn served(options: Options) -> Result<Option<Cluster>> {
    let Some(mut cluster) = prepared(options)? else { return Ok(None) };
    cluster.start_agents(&cluster.agent_options())?;
    await_all(&cluster)?;
    Ok(Some(cluster))
}

/// Asks for each of the five so often: it must be itself that answers, and it sees the client. How many pods of each did.
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
