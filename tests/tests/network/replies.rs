//! Tests that replies come from the VIP, whatever the node's rules and connection tracking do.

use std::{collections::BTreeSet, fs, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Datagrams, HELD, HOLD, Kind, RELEASE, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    conntrack,
    lan::Options,
    manifests::{Endpoint, Service, VIP},
    pod::Listener,
    wait,
};

use crate::services;

#[test]
fn every_service_answers_in_spite_of_masquerading_and_of_the_reverse_path_filter() -> Result<()> {
    let Some(cluster) = services::served(Options::HOSTILE)? else { return Ok(()) };
    services::ask_all(&cluster, 10).map(drop)
}

/// The pod sends first after its node has forgotten the connection. To the CNI's rules that is the
/// pod's own connection, which they masquerade.
#[test]
fn a_tcp_reply_keeps_its_source_when_conntrack_has_forgotten_the_connection() -> Result<()> {
    let Some(cluster) = services::served(Options::HOSTILE)? else { return Ok(()) };
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
    let Some(cluster) = with_syslog()? else { return Ok(()) };
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
    let Some(mut cluster) = services::served(Options::HOSTILE)? else { return Ok(()) };
    let bulk = Service::sharing("ops/bulk", 515, "UDP", 5140);
    exchange_fragments(&mut cluster, bulk, VIP.into(), Cluster::endpoint, 1_473)
}

/// Serves datagrams on three nodes, and exchanges datagrams with and without fragments: those from
/// `too_long` bytes on have fragments.
pub(crate) fn exchange_fragments(
    cluster: &mut Cluster,
    bulk: Service,
    vip: IpAddr,
    endpoint: fn(&Cluster, &str) -> Result<Endpoint>,
    too_long: usize,
) -> Result<()> {
    /// With 16 flows, the chance that all go to one of three equal backends is below 1 in 10
    /// million.
    const FLOWS: usize = 16;
    let mut endpoints = Vec::new();
    for node in ["node-1", "node-2", "node-3"] {
        let pod = format!("bulk-{node}");
        cluster.add_pod(node, &pod, 50, &[Listener::new(Kind::UdpEcho, 5140, "ops/bulk")])?;
        endpoints.push(endpoint(cluster, &pod)?);
    }
    let pods = endpoints.len();
    cluster.manifests.write_service(&bulk.with(endpoints))?;
    cluster.await_ready(515, pods)?;
    let text = "0123456789".repeat(3_000);
    let mut pods = BTreeSet::new();
    for _ in 0..FLOWS {
        let datagrams = cluster.lan.client()?.namespace().run(|| Datagrams::connect((vip, 515).into(), TIMEOUT))?;
        for answer in datagrams.echo_all(&[1_000, too_long, 3_000, 30_000].map(|length| &text[..length]))? {
            assert_eq!(answer.service, "ops/bulk");
            pods.insert(answer.pod);
        }
    }
    ensure!(pods.len() > 1, "all went to {pods:?}");
    Ok(())
}

/// Neither side has an answer to its FIN, so the backend sends its own again. The fifth repetition
/// comes after six seconds.
#[test]
fn a_fin_that_is_sent_again_comes_from_the_vip() -> Result<()> {
    const FINS: u64 = 7;
    let Some(cluster) = services::served(Options::HOSTILE)? else { return Ok(()) };
    let client = cluster.lan.client()?.namespace();
    let mut session = client.run(|| Session::connect((VIP, 443).into(), TIMEOUT))?;
    session.echo("the last line")?;
    client.nft(&format!(
        "table inet lost {{ counter pods {{}}; counter fins {{}}; chain in {{
             type filter hook prerouting priority raw; ip saddr 10.244.0.0/16 counter name pods drop;
             ip saddr {VIP} tcp flags & fin == fin counter name fins drop; }}; }}"
    ))?;
    drop(session);
    let packets = |counter| client.nft_packets(("inet", "lost", counter));
    wait::until("the FIN to be sent again", PATIENCE, || {
        let (fins, pods) = (packets("fins")?, packets("pods")?);
        ensure!(fins >= FINS || pods > 0, "{fins} FINs");
        Ok(())
    })?;
    assert_eq!(packets("pods")?, 0, "they came from the pod");
    Ok(())
}

/// The client has closed its socket when the reply comes, and its kernel reports that to the VIP.
#[test]
fn an_icmp_error_about_a_reply_reaches_the_pod() -> Result<()> {
    let Some(cluster) = with_syslog()? else { return Ok(()) };
    let pod = cluster.pod("syslog-1")?;
    let before = pod.namespace().run(unreachables_received)?;
    cluster.lan.client()?.namespace().run(|| {
        let datagrams = Datagrams::connect((VIP, 514).into(), TIMEOUT)?;
        datagrams.send(HOLD)?;
        datagrams.close()
    })?;
    let mut control = pod.namespace().run(|| Session::connect((pod.address, 5141).into(), TIMEOUT))?;
    control.echo(HELD)?;
    control.echo(RELEASE)?;
    wait::until("the ICMP error at the pod", TIMEOUT, || {
        let received = pod.namespace().run(unreachables_received)?;
        ensure!(received > before, "{received} were received, as before");
        Ok(())
    })
}

/// Returns the ICMP destination unreachable messages that the calling thread's network namespace
/// received: `InDestUnreachs` of `/proc/net/snmp`.
pub(crate) fn unreachables_received() -> Result<u64> {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Icmp: "));
    let (names, values) = lines.next().zip(lines.next()).context("no ICMP counters")?;
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(name, _)| *name == "InDestUnreachs").context("no InDestUnreachs")?;
    Ok(value.parse()?)
}

/// Makes the demo's Services and one more: `ops/syslog` on 514/UDP, whose one pod can hold replies.
fn with_syslog() -> Result<Option<Cluster>> {
    let Some(mut cluster) = services::served(Options::HOSTILE)? else { return Ok(None) };
    let listeners = [Listener::new(Kind::UdpEcho, 5140, "ops/syslog"), Listener::new(Kind::Echo, 5141, "ops/control")];
    cluster.add_pod("node-3", "syslog-1", 40, &listeners)?;
    let endpoint = cluster.endpoint("syslog-1")?;
    cluster.manifests.write_service(&Service::sharing("ops/syslog", 514, "UDP", 5140).with([endpoint]))?;
    cluster.await_service(Request::new(Kind::UdpEcho, VIP, 514), "ops/syslog")?;
    // The NAT chain's set follows the maps a moment later.
    let (pod, node) = (cluster.pod("syslog-1")?.address.to_string(), cluster.lan.node("node-3")?);
    wait::until("replies that keep their source", PATIENCE, || {
        let set = node.nft("list set inet vipmux backends4")?;
        ensure!(set.contains(&pod), "{set}");
        Ok(())
    })?;
    Ok(Some(cluster))
}

/// Lets a pod send a held reply as the first packet that its node sees of a connection. The control
/// connection stays inside the pod, so that none of its packets cross the node.
pub(crate) fn forget_connections_and_release(cluster: &Cluster, pod: &str, control: u16) -> Result<()> {
    let pod = cluster.pod(pod)?;
    let mut control = pod.namespace().run(|| Session::connect((pod.address, control).into(), TIMEOUT))?;
    control.echo(HELD)?;
    cluster.lan.nodes.iter().try_for_each(|node| node.namespace().run(conntrack::flush))?;
    control.echo(RELEASE).map(drop)
}
