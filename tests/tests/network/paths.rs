//! Paths of all widths: narrow links on the way, which are found by path MTU discovery (RFC 1191), and jumbo frames.

use std::time::Duration;

use anyhow::{Result, ensure};
use vipmux_tests::{
    client::Datagrams,
    cluster::{Cluster, PATIENCE},
    lan::Options,
    manifests::VIP,
    netns::Namespace,
    router::Router,
    wait,
};

use crate::{
    replies::unreachables_received,
    transfers::{FAR, NEAR, UDP, served, transfer},
};

/// Bytes.
const TRANSFER: u64 = 10_000_000;
const ATTEMPT: Duration = Duration::from_millis(500);
const NARROW: u32 = 1_300;
const NARROWER: u32 = 1_200;
const JUMBO: u32 = 9_000;

/// Neither end has a narrow link of its own, so that both learn only from ICMP what the path takes. The router's message
/// about a reply is addressed to the VIP, and has to find the pod.
#[test]
fn a_router_with_narrow_links_passes_transfers_both_ways() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    let router = Router::plug_in(&cluster.lan)?;
    router.narrow(VIP, NARROWER, NARROW)?;
    let told = |namespace: &Namespace| namespace.run(unreachables_received);
    for (port, pod) in [(NEAR, "near"), (FAR, "far")] {
        let (client, pod) = (router.client(), cluster.pod(pod)?.namespace());
        let before = (told(client)?, told(pod)?);
        transfer(client, port, TRANSFER)?;
        let after = (told(client)?, told(pod)?);
        ensure!(after.0 > before.0, "the client of port {port} was told nothing by ICMP");
        ensure!(after.1 > before.1, "the pod of port {port} was told nothing by ICMP");
        // The client has learned the width, and would ask the next pod for segments that fit.
        client.sysctl("net/ipv4/route/flush", "1")?;
    }
    Ok(())
}

#[test]
fn a_pod_behind_a_narrow_link_gets_a_transfer_whole() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    narrow_pods(&cluster)?;
    [NEAR, FAR].into_iter().try_for_each(|port| transfer(cluster.lan.client()?.namespace(), port, TRANSFER))
}

/// The first one is lost, and the client told why; it sends the next ones in fragments.
#[test]
fn a_datagram_too_long_for_the_pods_link_arrives_once_the_client_knows_its_width() -> Result<()> {
    let Some(cluster) = served(Options::HOSTILE, "native")? else { return Ok(()) };
    narrow_pods(&cluster)?;
    let client = cluster.lan.client()?.namespace();
    let before = client.run(unreachables_received)?;
    say(client, 1_400)?;
    ensure!(client.run(unreachables_received)? > before, "the client was told nothing by ICMP");
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
    let client = cluster.lan.client()?.namespace();
    say(client, 8_000)?;
    [NEAR, FAR].into_iter().try_for_each(|port| transfer(client, port, TRANSFER))
}

fn narrow_pods(cluster: &Cluster) -> Result<()> {
    cluster.pods.iter().try_for_each(|pod| pod.narrow(cluster.lan.node(&pod.node)?, NARROW))
}

/// Sends datagrams of this length from some ports, each until one is answered.
fn say(client: &Namespace, length: usize) -> Result<()> {
    let text = "x".repeat(length);
    for _ in 0..8 {
        let datagrams = client.run(|| Datagrams::connect((VIP, UDP).into(), ATTEMPT))?;
        let answer = wait::until("an answered datagram", PATIENCE, || datagrams.say(&text))?;
        ensure!(answer.service == "bulk/udp", "{answer}");
    }
    Ok(())
}
