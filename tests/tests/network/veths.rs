//! Tests nodes whose cards are veths: kind, k3d, minikube and LXC make such nodes. A veth loses
//! frames that native XDP sends, unless its other end has an XDP program.

use std::ffi::OsStr;

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent::{self, Agent},
    arp,
    cluster::{Cluster, PATIENCE, SILENCE, TIMEOUT},
    lan::{Options, SwitchPorts, Uplink},
    manifests::{VIP, VIP_V6},
    scrape::{self, Metrics},
    wait,
};

use crate::{ipv6, services};

const PLAIN: Options = Options { ports: SwitchPorts::Plain, ..Options::DEFAULT };
/// The VIP's Lease.
const LEASE: &str = "vip-c00002c8.yaml";
/// The metric that counts interfaces whose frames are lost.
const LOSSY: &str = "vipmux_lossy_interfaces";

fn auto(options: agent::Options) -> agent::Options {
    agent::Options { xdp_mode: "auto", ..options }
}

/// Starts the five Services in mode `auto`, and waits until each answers.
fn served(options: Options) -> Result<Option<Cluster>> {
    let Some(mut cluster) = services::prepared(options)? else { return Ok(None) };
    cluster.start_agents(&auto(cluster.agent_options()))?;
    services::await_all(&cluster)?;
    services::ask_all(&cluster, 20)?;
    Ok(Some(cluster))
}

/// Checks that the XDP program runs in this mode on the card of each node.
fn expect_mode(cluster: &Cluster, card: &str, generic: bool) -> Result<()> {
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
        let programs = agent.inspect_json(node, &["prog"])?;
        let attached = serde_json::json!({"interface": card, "generic": generic, "place": null});
        ensure!(programs["programs"][0]["attached"] == serde_json::json!([attached]), "{}: {programs}", node.name);
    }
    Ok(())
}

/// Waits until `/readyz` on a node has this status and this line.
pub(crate) fn await_readiness(cluster: &Cluster, node: &str, status: u16, line: &str) -> Result<()> {
    let node = cluster.lan.node(node)?;
    wait::until(&format!("{status} with {line} from {}", node.name), PATIENCE, || {
        let (found, body) = scrape::get(node.namespace(), node.address, "/readyz", TIMEOUT)?;
        ensure!(found == status && body.lines().any(|it| it.starts_with(line)), "status {found}: {body}");
        Ok(())
    })
    .with_context(|| cluster.last_outputs())
}

fn await_lossy(cluster: &Cluster, node: &str, expected: &str) -> Result<()> {
    await_gauge(cluster, node, LOSSY, expected)
}

/// Waits until a node's metric without labels has this value.
pub(crate) fn await_gauge(cluster: &Cluster, node: &str, metric: &str, expected: &str) -> Result<()> {
    let node = cluster.lan.node(node)?;
    wait::until(&format!("{metric} {expected}"), PATIENCE, || {
        let metrics = Metrics::scrape(node.namespace(), node.address, TIMEOUT)?;
        ensure!(metrics.has(metric) && metrics.sum(metric, &[]).to_string() == expected);
        Ok(())
    })
}

/// Runs `vipmux check` on an agent's node.
pub(crate) fn check(cluster: &Cluster, node: &str, mode: &str) -> Result<(i32, String)> {
    let pins = cluster.agent(node)?.pins().as_os_str();
    let arguments = ["--interface", "eth0", "--xdp-mode", mode, "--node-name", node, "--manifests"].map(OsStr::new);
    let arguments = arguments.into_iter().chain([cluster.manifests.path().as_os_str(), OsStr::new("--pin-path"), pins]);
    let (status, said) = agent::check(cluster.lan.node(node)?, arguments)?;
    let checks = said["checks"].as_array().with_context(|| said.to_string())?;
    let mode = checks.iter().find(|check| check["check"] == "xdp-mode").context("no xdp-mode")?;
    Ok((status, format!("{} {} -> {}", mode["verdict"], mode["found"], mode["remedy"])))
}

#[test]
fn plain_veths_serve_with_the_default_mode() -> Result<()> {
    let Some(cluster) = served(PLAIN)? else { return Ok(()) };
    expect_mode(&cluster, "eth0", true)?;
    let leader = cluster.await_leader(VIP)?.name.clone();
    await_readiness(&cluster, &leader, 200, "[+]sending ok")?;
    await_lossy(&cluster, &leader, "0")?;
    let (status, mode) = check(&cluster, &leader, "auto")?;
    assert_eq!(status, 0, "{mode}");
    assert!(mode.contains("warn") && mode.contains("generic"), "{mode}");
    Ok(())
}

#[test]
fn plain_veths_serve_ipv6_with_the_default_mode() -> Result<()> {
    let Some(cluster) = ipv6::served_with(auto, PLAIN)? else { return Ok(()) };
    let leader = cluster.await_leader(VIP_V6)?;
    assert_eq!(ipv6::answers(&cluster)?, [leader.mac]);
    Ok(())
}

#[test]
fn a_vlan_of_a_plain_veth_is_served_with_the_default_mode() -> Result<()> {
    let Some(cluster) = served(Options { uplink: Uplink::Vlan(100), ..PLAIN })? else { return Ok(()) };
    expect_mode(&cluster, "card0", true)
}

#[test]
fn a_bond_of_plain_veths_is_served_with_the_default_mode() -> Result<()> {
    let Some(cluster) = served(Options { uplink: Uplink::Bond, ..PLAIN })? else { return Ok(()) };
    expect_mode(&cluster, "card0", true)
}

/// Whatever is at the other end now: it may change at any time.
#[test]
fn the_default_mode_is_generic_on_a_veth_even_where_native_xdp_would_work() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    cluster.start_agents(&cluster.agent_options())?;
    services::await_all(&cluster)?;
    expect_mode(&cluster, "eth0", false)?;
    // An agent of an older version attached it in native mode.
    let node = cluster.lan.nodes[0].name.clone();
    let options = auto(cluster.agent_options());
    for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
        agent.restart_with(node, options.clone())?;
        agent.wait_ready(PATIENCE)?;
    }
    expect_mode(&cluster, "eth0", true)?;
    cluster
        .agent(&node)?
        .process()
        .wait_for_line("the reason", PATIENCE, |line| line.contains("veth") && line.contains("generic mode"))?;
    services::await_all(&cluster)?;
    services::ask_all(&cluster, 5).map(drop)
}

#[test]
fn native_xdp_whose_frames_are_lost_leads_nothing_and_says_why() -> Result<()> {
    let Some(mut cluster) = services::prepared(PLAIN)? else { return Ok(()) };
    let options = cluster.agent_options();
    cluster.agents = cluster.lan.nodes.iter().map(|node| Agent::start(node, &options)).collect::<Result<_>>()?;
    for node in ["node-1", "node-2", "node-3"] {
        await_readiness(&cluster, node, 503, "[-]sending failed: frames that native XDP sends are lost on eth0")?;
        await_readiness(&cluster, node, 503, "[+]fence ok")?;
        await_lossy(&cluster, node, "1")?;
        let (status, mode) = check(&cluster, node, "native")?;
        assert_eq!(status, 2, "{mode}");
        assert!(mode.contains("fail") && mode.contains("are lost") && mode.contains("--xdp-mode auto"), "{mode}");
        let (code, explanation) = cluster.agent(node)?.explain(cluster.lan.node(node)?, "shop/web", &[])?;
        let finding = explanation["broken"]["finding"].as_str().unwrap_or_default();
        assert!(code == 2 && finding.contains("frames that native XDP sends are lost on eth0"), "{explanation}");
    }
    expect_nobody(&cluster)?;
    assert_eq!(cluster.counted("stats", "arp_answered")?, 0, "answers that nobody gets");

    cluster.lan.attach_pass("node-2")?;
    await_readiness(&cluster, "node-2", 200, "[+]sending ok")?;
    services::await_all(&cluster)?;
    services::ask_all(&cluster, 5)?;
    assert_eq!(cluster.await_leader(VIP)?.name, "node-2");
    let (status, mode) = check(&cluster, "node-2", "native")?;
    assert_eq!(status, 0, "{mode}");
    Ok(())
}

#[test]
fn a_leader_whose_frames_come_to_be_lost_hands_its_vips_over_until_they_arrive_again() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    await_readiness(&cluster, &leader, 200, "[+]sending ok")?;
    cluster.lan.detach_pass(&leader)?;
    await_readiness(&cluster, &leader, 503, "[-]sending failed: frames that native XDP sends are lost on eth0")?;
    wait::until("another leader", PATIENCE, || {
        let now = &cluster.await_leader(VIP)?.name;
        ensure!(*now != leader, "{now} still answers");
        Ok(())
    })?;
    services::await_all(&cluster)?;
    cluster.lan.attach_pass(&leader)?;
    await_readiness(&cluster, &leader, 200, "[+]sending ok")?;
    await_lossy(&cluster, &leader, "0")
}

/// A Lease would say that the VIP is announced. The agents were killed, so they cannot give it up.
#[test]
fn no_node_that_loses_its_answers_keeps_a_lease_of_an_earlier_agent() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let lease = cluster.agent_options().state.join("leases").join(LEASE);
    ensure!(lease.exists(), "{} is missing", lease.display());
    cluster.agents.iter_mut().try_for_each(|agent| agent.process_mut().kill())?;
    let nodes = ["node-1", "node-2", "node-3"];
    nodes.iter().try_for_each(|node| cluster.lan.detach_pass(node))?;
    for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
        agent.restart(node)?;
    }
    wait::until("no Lease", PATIENCE, || {
        ensure!(!lease.exists(), "{}", std::fs::read_to_string(&lease)?);
        Ok(())
    })
    .with_context(|| cluster.last_outputs())?;
    expect_nobody(&cluster)?;
    nodes.iter().try_for_each(|node| cluster.lan.attach_pass(node))?;
    let leader = cluster.await_leader(VIP)?;
    ensure!(lease.exists(), "{} leads without a Lease", leader.name);
    services::await_all(&cluster)
}

#[test]
fn a_leader_that_comes_to_lose_its_answers_gives_up_the_lease_if_nobody_else_can_lead() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let nodes = ["node-1", "node-2", "node-3"];
    nodes.iter().try_for_each(|node| cluster.lan.detach_pass(node))?;
    wait::until("no leader", PATIENCE, || expect_nobody(&cluster)).with_context(|| cluster.last_outputs())?;
    let lost = nodes.iter().map(|node| {
        let node = cluster.lan.node(node)?;
        let metrics = Metrics::scrape(node.namespace(), node.address, TIMEOUT)?;
        Ok(metrics.sum("vipmux_leaderships_lost_total", &[("why", "lossy")]))
    });
    ensure!(lost.sum::<Result<f64>>()? > 0.0, "no agent says why");
    nodes.iter().try_for_each(|node| cluster.lan.attach_pass(node))?;
    cluster.await_leader(VIP)?;
    services::await_all(&cluster)
}

/// Checks that nobody leads the VIP: neither by an agent's view, nor by a Lease, nor on the LAN.
fn expect_nobody(cluster: &Cluster) -> Result<()> {
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
        let vips = agent.inspect_json(node, &["vips"])?;
        let vips = vips["vips"].as_array().context("no vips")?;
        ensure!(!vips.is_empty() && vips.iter().all(|vip| vip["leading"] == false), "{}: {vips:?}", node.name);
    }
    let leases = cluster.agent_options().state.join("leases");
    ensure!(!leases.join(LEASE).exists(), "{VIP} has a Lease");
    let client = cluster.lan.client()?;
    let heard = arp::answers(client.namespace(), client.address, VIP, SILENCE)?;
    ensure!(heard.is_empty(), "{heard:?} answer for {VIP}");
    Ok(())
}
