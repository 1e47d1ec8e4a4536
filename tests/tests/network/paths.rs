//! Tests path MTUs: narrow links on the way, found by path MTU discovery (RFC 1191, RFC 8201), and
//! jumbo frames.

use std::{fs, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::Datagrams,
    cluster::{Cluster, PATIENCE},
    lan::Options,
    manifests::{VIP, VIP_V6},
    netns::Namespace,
    router::Router,
    wait,
};

use crate::{
    replies::unreachables_received,
    transfers::{FAR, NEAR, UDP, VIPS, served, transfer},
};

/// Bytes.
const TRANSFER: u64 = 10_000_000;
const ATTEMPT: Duration = Duration::from_millis(500);
const NARROW: u32 = 1_300;
const NARROWER: u32 = 1_200;
/// IPv6's minimum MTU (RFC 8200, 5).
const NARROWEST_OF_IPV6: u32 = 1_280;
const JUMBO: u32 = 9_000;

/// Neither end has a narrow link of its own, so only ICMP shows them the path MTU. The router's
/// message about a reply goes to the VIP, and must reach the pod.
#[test]
fn a_router_with_narrow_links_passes_transfers_both_ways() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    let router = Router::plug_in(&cluster.lan)?;
    router.narrow(VIP.into(), NARROWER, NARROW)?;
    let errors_received = |namespace: &Namespace| namespace.run(unreachables_received);
    for (port, pod) in [(NEAR, "near"), (FAR, "far")] {
        let (client, pod) = (router.client(), cluster.pod(pod)?.namespace());
        let before = (errors_received(client)?, errors_received(pod)?);
        transfer(client, (VIP, port).into(), TRANSFER)?;
        let after = (errors_received(client)?, errors_received(pod)?);
        ensure!(after.0 > before.0, "the client of port {port} got no ICMP error");
        ensure!(after.1 > before.1, "the pod of port {port} got no ICMP error");
        // The client has learned the MTU, and would request fitting segments from the next pod.
        client.sysctl("net/ipv4/route/flush", "1")?;
    }
    Ok(())
}

/// In IPv6 the client cannot be made to forget the MTU. It learns it from the first transfer. Each
/// pod learns it too.
#[test]
fn a_router_with_narrow_links_passes_transfers_both_ways_in_ipv6() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    let router = Router::plug_in(&cluster.lan)?;
    router.narrow(VIP_V6.into(), NARROW, NARROWEST_OF_IPV6)?;
    let client = router.client();
    let before = client.run(too_big_received)?;
    for (port, pod) in [(NEAR, "near"), (FAR, "far")] {
        let pod = cluster.pod(pod)?.namespace();
        let before = pod.run(too_big_received)?;
        transfer(client, (VIP_V6, port).into(), TRANSFER)?;
        ensure!(pod.run(too_big_received)? > before, "the pod of port {port} got no ICMPv6 error");
    }
    ensure!(client.run(too_big_received)? > before, "the client got no ICMPv6 error");
    Ok(())
}

/// A pod that sends fragments gets an error about the first one, which has the ports.
#[test]
fn answers_in_fragments_pass_a_router_with_a_narrow_link_to_the_client() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    let router = Router::plug_in(&cluster.lan)?;
    for (vip, width) in VIPS.into_iter().zip([NARROW, NARROWEST_OF_IPV6]) {
        router.narrow(vip, JUMBO, width)?;
        send_until_answered(router.client(), vip, 3_000).with_context(|| vip.to_string())?;
    }
    Ok(())
}

#[test]
fn a_pod_behind_a_narrow_link_gets_a_transfer_whole() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    narrow_pods(&cluster)?;
    transfer_to_all(&cluster)
}

/// The first datagram is lost, and the client learns why. It sends the next ones in fragments.
#[test]
fn a_datagram_too_long_for_the_pods_link_arrives_once_the_client_knows_its_width() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    narrow_pods(&cluster)?;
    let client = cluster.lan.client()?.namespace();
    for (vip, errors_received) in VIPS.into_iter().zip([unreachables_received, too_big_received]) {
        let before = client.run(errors_received)?;
        send_until_answered(client, vip, 1_400).with_context(|| vip.to_string())?;
        ensure!(client.run(errors_received)? > before, "the client got no ICMP error about {vip}");
    }
    Ok(())
}

#[test]
fn jumbo_frames_pass_in_native_mode() -> Result<()> {
    jumbo("native")
}

#[test]
fn jumbo_frames_pass_in_generic_mode() -> Result<()> {
    jumbo("generic")
}

fn jumbo(xdp_mode: &'static str) -> Result<()> {
    let Some(cluster) = served(Options { mtu: JUMBO, ..Options::HOSTILE }, xdp_mode)? else { return Ok(()) };
    for vip in VIPS {
        send_until_answered(cluster.lan.client()?.namespace(), vip, 8_000).with_context(|| vip.to_string())?;
    }
    transfer_to_all(&cluster)
}

fn transfer_to_all(cluster: &Cluster) -> Result<()> {
    let client = cluster.lan.client()?.namespace();
    VIPS.into_iter()
        .try_for_each(|vip| [NEAR, FAR].into_iter().try_for_each(|port| transfer(client, (vip, port).into(), TRANSFER)))
}

fn narrow_pods(cluster: &Cluster) -> Result<()> {
    cluster.pods.iter().try_for_each(|pod| pod.narrow(cluster.lan.node(&pod.node)?, NARROW))
}

/// Sends datagrams of this length from some ports, until one from each is answered.
fn send_until_answered(client: &Namespace, vip: IpAddr, length: usize) -> Result<()> {
    let text = "x".repeat(length);
    for _ in 0..8 {
        let datagrams = client.run(|| Datagrams::connect((vip, UDP).into(), ATTEMPT))?;
        let answer = wait::until("an answered datagram", PATIENCE, || datagrams.echo(&text))?;
        ensure!(answer.service == "bulk/udp", "{answer}");
    }
    Ok(())
}

/// Returns the ICMPv6 packet too big messages that the calling thread's network namespace received:
/// `Icmp6InPktTooBigs` of `/proc/net/snmp6`.
fn too_big_received() -> Result<u64> {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp6")?;
    let line = snmp.lines().find_map(|line| line.strip_prefix("Icmp6InPktTooBigs"));
    Ok(line.context("no Icmp6InPktTooBigs")?.trim().parse()?)
}
