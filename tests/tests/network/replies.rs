//! Replies come from the VIP, whatever the node's own rules and its connection tracking make of them.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Datagrams, HELD, HOLD, Kind, RELEASE, Request, Session},
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
        forget_connections_and_release(&cluster, "secure-1", 8443)?;
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
        forget_connections_and_release(&cluster, "syslog-1", 5141)?;
        assert_eq!(datagrams.receive()?.service, "ops/syslog");
    }
    Ok(())
}

#[test]
fn datagrams_in_fragments_arrive_whole_in_both_directions() -> Result<()> {
    /// With 16 flows, the chance that one of three equal backends gets none is below 1 in 200; any of them will do.
    const FLOWS: usize = 16;
    let Some(mut cluster) = services::served(HOSTILE)? else { return Ok(()) };
    let mut endpoints = Vec::new();
    for node in ["node-1", "node-2", "node-3"] {
        let pod = format!("bulk-{node}");
        cluster.add_pod(node, &pod, 50, &[Listener::new(Kind::UdpEcho, 5140, "ops/bulk")])?;
        endpoints.push(cluster.endpoint(&pod)?);
    }
    cluster.manifests.write_service(&Service::sharing("ops/bulk", 515, "UDP", 5140).with(endpoints))?;
    cluster.await_service(Request::new(Kind::UdpEcho, VIP, 515), "ops/bulk")?;
    let text = "0123456789".repeat(3_000);
    let mut pods = BTreeSet::new();
    for _ in 0..FLOWS {
        let datagrams = cluster.lan.client()?.namespace().run(|| Datagrams::connect((VIP, 515).into(), TIMEOUT))?;
        for length in [1_000, 1_473, 3_000, 30_000] {
            let answer = datagrams.say(&text[..length]).with_context(|| format!("{length} bytes"))?;
            assert_eq!(answer.service, "ops/bulk");
            pods.insert(answer.pod);
        }
    }
    ensure!(pods.len() > 1, "all went to {pods:?}");
    Ok(())
}

/// Lets a pod that holds a reply back send it as the first packet that its node sees of a connection. The pod is told
/// from within, so that no packet of that passes the node.
fn forget_connections_and_release(cluster: &Cluster, pod: &str, control: u16) -> Result<()> {
    let pod = cluster.pod(pod)?;
    let mut control = pod.namespace().run(|| Session::connect((pod.address, control).into(), TIMEOUT))?;
    control.say(HELD)?;
    cluster.lan.nodes.iter().try_for_each(|node| node.namespace().run(conntrack::flush))?;
    control.say(RELEASE).map(drop)
}
