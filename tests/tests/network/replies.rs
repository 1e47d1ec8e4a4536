//! Replies come from the VIP, whatever the node's own rules and its connection tracking make of them.

use std::time::Duration;

use anyhow::Result;
use vipmux_tests::{
    client::{Datagrams, HOLD, Kind, RELEASE, Request, Session},
    cluster::Cluster,
    conntrack,
    lan::Options,
    manifests::{Service, VIP},
    pod::Listener,
};

use crate::services;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Rules like those of kube-proxy and of a CNI, and the strict reverse path filter that distributions set.
const HOSTILE: Options = Options { nodes: 3, clients: 1, kubernetes_rules: true, reverse_path_filter: 1 };

#[test]
fn every_service_answers_in_spite_of_masquerading_and_of_the_reverse_path_filter() -> Result<()> {
    let Some(cluster) = services::served(HOSTILE)? else { return Ok(()) };
    for expected in services::expected() {
        for _ in 0..10 {
            let answer = cluster.ask(expected.request, TIMEOUT)?;
            assert_eq!(
                (answer.service.as_str(), answer.client.ip()),
                (expected.name, cluster.lan.client()?.address.into())
            );
        }
    }
    Ok(())
}

/// The pod speaks first after its node has forgotten the connection: to the CNI's rules that is a connection of the
/// pod's own, to be masqueraded.
#[test]
fn a_tcp_reply_keeps_its_source_when_conntrack_has_forgotten_the_connection() -> Result<()> {
    let Some(cluster) = services::served(HOSTILE)? else { return Ok(()) };
    let mut session = cluster.lan.client()?.namespace().run(|| Session::connect((VIP, 443).into(), TIMEOUT))?;
    for _ in 0..3 {
        session.send(HOLD)?;
        forget_connections(&cluster)?;
        release(&cluster, "secure-1", 8443)?;
        assert_eq!(session.receive(HOLD)?.service, "shop/secure");
    }
    Ok(())
}

#[test]
fn a_udp_reply_keeps_its_source_when_conntrack_has_forgotten_the_flow() -> Result<()> {
    let Some(mut cluster) = services::served(HOSTILE)? else { return Ok(()) };
    let listeners = [Listener::new(Kind::UdpEcho, 5140, "ops/syslog"), Listener::new(Kind::Echo, 5141, "ops/control")];
    cluster.add_pod("node-3", "syslog-1", 40, &listeners)?;
    let endpoint = cluster.endpoint("syslog-1")?;
    cluster.manifests.write_service(&Service::sharing("ops/syslog", 514, "UDP", 5140).with([endpoint]))?;
    cluster.await_service(Request::new(Kind::UdpEcho, VIP, 514), "ops/syslog")?;
    let datagrams = cluster.lan.client()?.namespace().run(|| Datagrams::connect((VIP, 514).into(), TIMEOUT))?;
    for _ in 0..3 {
        datagrams.send(HOLD)?;
        forget_connections(&cluster)?;
        release(&cluster, "syslog-1", 5141)?;
        assert_eq!(datagrams.receive()?.service, "ops/syslog");
    }
    Ok(())
}

fn forget_connections(cluster: &Cluster) -> Result<()> {
    cluster.lan.nodes.iter().try_for_each(|node| node.namespace().run(conntrack::flush))
}

/// From within the pod, so that no packet of it passes the node.
fn release(cluster: &Cluster, pod: &str, port: u16) -> Result<()> {
    let pod = cluster.pod(pod)?;
    pod.namespace().run(|| Session::connect((pod.address, port).into(), TIMEOUT)?.say(RELEASE)).map(drop)
}
