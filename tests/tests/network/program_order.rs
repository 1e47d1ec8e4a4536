//! Tests that vipmux's classifiers run before the programs of other components, which may pass
//! every packet and so end the chain. Cilium's `cil_to_netdev` does.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{LinkOrder, TcAttachType};
use serde_json::Value;
use vipmux_tests::{
    agent,
    cleanup::Folder,
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    foreign_program::{self, Behavior, ForeignProgram},
    lan::{Node, Options},
    manifests::VIP,
    scrape::Metrics,
    traffic::Traffic,
    wait,
};

use crate::{direct_return, services};

const EGRESS: TcAttachType = TcAttachType::Egress;
const INGRESS: TcAttachType = TcAttachType::Ingress;
const REQUESTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(5);
/// The node with backends of most of the five Services.
const NODE: &str = "node-2";

/// Makes the five Services with agents that check the kernel's state at this interval. `None`: this
/// kernel has no tcx links.
fn prepared(self_check: &'static str) -> Result<Option<(Cluster, agent::Options)>> {
    if !foreign_program::has_tcx() {
        return Ok(None);
    }
    let Some(cluster) = services::prepared(Options::default())? else { return Ok(None) };
    let options = agent::Options { self_check, ..cluster.agent_options() };
    Ok(Some((cluster, options)))
}

fn served(self_check: &'static str) -> Result<Option<Cluster>> {
    let Some((mut cluster, options)) = prepared(self_check)? else { return Ok(None) };
    cluster.start_agents(&options)?;
    services::await_all(&cluster)?;
    Ok(Some(cluster))
}

/// Returns the place of a program on a node's eth0, as `inspect` shows it: `1 of 2`.
fn place(cluster: &Cluster, node: &str, program: &str) -> Result<String> {
    let shown = cluster.agent(node)?.inspect(cluster.lan.node(node)?, &["prog"])?;
    let line = shown.lines().find(|line| line.starts_with(program)).context("no such program")?;
    let place = line.split_once("eth0 (").and_then(|(_, rest)| rest.split_once(')'));
    Ok(place.with_context(|| shown.clone())?.0.to_owned())
}

fn await_place(cluster: &Cluster, node: &str, program: &str, wanted: &str) -> Result<()> {
    wait::until(&format!("{program} at {wanted} on {node}"), PATIENCE, || {
        let found = place(cluster, node, program)?;
        ensure!(found == wanted, "{found}\n{}", cluster.agent(node)?.process().last_output());
        Ok(())
    })
}

#[test]
fn replies_are_translated_whatever_is_attached_before_and_behind() -> Result<()> {
    let Some((mut cluster, options)) = prepared("30s")? else { return Ok(()) };
    let mut others = Vec::new();
    let orders = || [LinkOrder::first(), LinkOrder::last()];
    for node in &cluster.lan.nodes {
        for order in orders() {
            others.push(ForeignProgram::attach(node, EGRESS, order, Behavior::EndsChain)?);
        }
    }
    cluster.start_agents(&options)?;
    services::await_all(&cluster)?;
    for node in &cluster.lan.nodes {
        others.push(ForeignProgram::attach(node, EGRESS, LinkOrder::last(), Behavior::EndsChain)?);
        assert_eq!(place(&cluster, &node.name, "vipmux_egress")?, "1 of 4");
    }
    services::ask_all(&cluster, REQUESTS).map(drop)
}

#[test]
fn a_program_that_comes_first_later_is_put_behind_by_the_self_check() -> Result<()> {
    let Some(cluster) = served("1s")? else { return Ok(()) };
    let node = cluster.lan.node(NODE)?;
    let mut session = cluster.lan.client()?.namespace().run(|| Session::connect((VIP, 443).into(), TIMEOUT))?;
    let other = ForeignProgram::attach(node, EGRESS, LinkOrder::first(), Behavior::EndsChain)?;
    await_place(&cluster, NODE, "vipmux_egress", "1 of 2")?;
    services::ask_all(&cluster, REQUESTS)?;
    session.echo("an older connection")?;
    let (code, differences) = cluster.agent(NODE)?.diff(node)?;
    ensure!(code == 0, "{differences}");

    let other = other.replace(Behavior::EndsChain)?;
    services::ask_all(&cluster, REQUESTS)?;
    assert_eq!(place(&cluster, NODE, "vipmux_egress")?, "1 of 2");
    drop(other);
    services::ask_all(&cluster, REQUESTS)?;
    assert_eq!(place(&cluster, NODE, "vipmux_egress")?, "1 of 1");
    session.echo("the same connection")?;
    Ok(())
}

#[test]
fn no_packet_leaves_untranslated_while_the_program_is_moved() -> Result<()> {
    for tc in ["auto", "clsact"] {
        moved_under_load(tc).with_context(|| format!("--tc {tc}"))?;
    }
    Ok(())
}

fn moved_under_load(tc: &'static str) -> Result<()> {
    let Some((mut cluster, options)) = prepared("1s")? else { return Ok(()) };
    cluster.start_agents(&agent::Options { tc, ..options })?;
    services::await_all(&cluster)?;
    let client = cluster.lan.client()?;
    client.namespace().nft(
        "table inet leaks { counter pods {}; chain in { type filter hook prerouting priority raw; \
         ip saddr 10.244.0.0/16 counter name pods; }; }",
    )?;
    let requests = [(Kind::Echo, 443, "shop/secure"), (Kind::DnsUdp, 53, "infra/dns-udp")];
    let traffic: Vec<_> = requests
        .iter()
        .map(|(kind, port, _)| Traffic::start(client.namespace(), Request::new(*kind, VIP, *port), PAUSE))
        .collect::<Result<_>>()?;
    let nodes = [NODE, "node-3"];
    for _ in 0..3 {
        let mut others = Vec::new();
        for name in nodes {
            let node = cluster.lan.node(name)?;
            if tc == "clsact" {
                foreign_program::add_filter(node, EGRESS, Behavior::GoesOn)?;
            } else {
                others.push(ForeignProgram::attach(node, EGRESS, LinkOrder::first(), Behavior::GoesOn)?);
            }
        }
        let wanted = if tc == "clsact" { "filter, 1 of 2" } else { "1 of 2" };
        nodes.iter().try_for_each(|node| await_place(&cluster, node, "vipmux_egress", wanted))?;
        traffic.iter().try_for_each(|traffic| traffic.wait_for_more(20, PATIENCE))?;
        if tc == "clsact" {
            let delete = ["filter", "del", "dev", "eth0", "egress", "pref", "1", "handle", "0x77", "bpf"];
            nodes.iter().try_for_each(|node| cluster.lan.node(node)?.tc(&delete).map(drop))?;
        }
    }
    for (traffic, (_, _, service)) in traffic.into_iter().zip(requests) {
        traffic.stop()?.check_all_by(service)?;
    }
    let leaks = client.namespace().nft_packets(("inet", "leaks", "pods"))?;
    ensure!(leaks == 0, "{leaks} packets came from pods");
    Ok(())
}

#[test]
fn an_agent_that_starts_puts_its_program_first_again() -> Result<()> {
    let Some(mut cluster) = served("0s")? else { return Ok(()) };
    cluster.agent_mut(NODE)?.process_mut().kill()?;
    let node = cluster.lan.node(NODE)?;
    let _other = ForeignProgram::attach(node, EGRESS, LinkOrder::first(), Behavior::EndsChain)?;
    cluster.restart_agent(NODE)?;
    services::ask_all(&cluster, REQUESTS)?;
    assert_eq!(place(&cluster, NODE, "vipmux_egress")?, "1 of 2");
    Ok(())
}

/// Two components that both want to be first must not go on for ever.
#[test]
fn the_agent_gives_way_to_a_component_that_keeps_coming_first_and_says_so() -> Result<()> {
    let Some(cluster) = served("1s")? else { return Ok(()) };
    let (agent, node) = (cluster.agent(NODE)?, cluster.lan.node(NODE)?);
    let gives_way = |line: &str| line.contains("giving way");
    let mut other = None;
    for moves in 0.. {
        // The older one leaves the way in.
        drop(other.replace(ForeignProgram::attach(node, EGRESS, LinkOrder::first(), Behavior::GoesOn)?));
        let moved = wait::until("the next move, or none", PATIENCE, || {
            let found = place(&cluster, NODE, "vipmux_egress")?;
            let moved = found == "1 of 2";
            ensure!(moved || agent.process().output().lines().any(gives_way), "{found}, after {moves} moves");
            Ok(moved)
        })?;
        if !moved {
            assert_eq!(moves, 5, "{}", agent.process().last_output());
            break;
        }
    }
    let (code, differences) = agent.diff(node)?;
    ensure!(code == 2 && differences.to_string().contains("go_on (id "), "{differences}");
    let metrics = Metrics::scrape(node.namespace(), node.address, PATIENCE)?;
    ensure!(metrics.sum("vipmux_classifiers_not_first", &[]) > 0.0, "the metric does not say so");
    checked(node, agent.pins(), &[])?.expect("fail", "before vipmux's: go_on (id", "BPF_F_AFTER")?;
    // Others go on, and so do replies.
    services::ask_all(&cluster, REQUESTS).map(drop)
}

/// The finding of `vipmux check` about programs on eth0.
struct Finding(Value);

impl Finding {
    fn expect(&self, verdict: &str, found: &str, remedy: &str) -> Result<()> {
        let Self(finding) = self;
        let contains = |field: &str, words| finding[field].as_str().unwrap_or_default().contains(words);
        ensure!(finding["verdict"] == verdict && contains("found", found) && contains("remedy", remedy), "{finding:#}");
        Ok(())
    }
}

fn checked(node: &Node, pins: &Path, more: &[&str]) -> Result<Finding> {
    let pins = pins.to_str().context("pins")?;
    let arguments = ["--interface", "eth0", "--node-name", &node.name, "--pin-path", pins];
    let (_, mut said) = agent::check(node, arguments.iter().chain(more))?;
    let mut checks = said["checks"].as_array_mut().context("no checks")?.drain(..);
    checks.find(|check| check["check"] == "tc-programs").map(Finding).context("no check of programs")
}

#[test]
fn a_filter_of_another_component_is_put_behind_and_a_filter_that_is_gone_comes_back() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let before = cluster.lan.node(NODE)?;
    before.tc(&["qdisc", "add", "dev", "eth0", "clsact"])?;
    foreign_program::add_filter(before, EGRESS, Behavior::EndsChain)?;
    cluster.start_agents(&agent::Options { tc: "clsact", self_check: "1s", ..cluster.agent_options() })?;
    services::await_all(&cluster)?;
    services::ask_all(&cluster, REQUESTS)?;
    assert_eq!(place(&cluster, NODE, "vipmux_egress")?, "filter, 1 of 2");

    let later = cluster.lan.node("node-1")?;
    foreign_program::add_filter(later, EGRESS, Behavior::EndsChain)?;
    await_place(&cluster, "node-1", "vipmux_egress", "filter, 1 of 2")?;
    services::ask_all(&cluster, REQUESTS)?;

    let node = cluster.lan.node("node-3")?;
    node.tc(&["qdisc", "del", "dev", "eth0", "clsact"])?;
    await_place(&cluster, "node-3", "vipmux_egress", "filter, 1 of 1")?;
    services::ask_all(&cluster, REQUESTS)?;
    for name in [NODE, "node-1", "node-3"] {
        let (code, differences) = cluster.agent(name)?.diff(cluster.lan.node(name)?)?;
        ensure!(code == 0, "{name}: {differences}");
        cluster.agent_mut(name)?.process_mut().kill()?;
        cluster.agent(name)?.unload(cluster.lan.node(name)?)?;
        let left = cluster.lan.node(name)?.tc(&["filter", "show", "dev", "eth0", "egress"])?;
        ensure!(!left.contains("vipmux"), "{name}: {left}");
    }
    Ok(())
}

#[test]
fn packets_for_pods_with_direct_return_are_found_before_other_programs_see_them() -> Result<()> {
    if !foreign_program::has_tcx() {
        return Ok(());
    }
    let Some(mut cluster) = direct_return::prepared(direct_return::OPTIONS)? else { return Ok(()) };
    let first = || LinkOrder::first();
    let attach = |node: &Node| ForeignProgram::attach(node, INGRESS, first(), Behavior::EndsChain);
    let _before: Vec<_> = cluster.lan.nodes.iter().map(attach).collect::<Result<_>>()?;
    cluster.start_agents(&agent::Options { self_check: "1s", ..cluster.agent_options() })?;
    direct_return::await_all(&cluster)?;
    let near = cluster.pod("near")?.node.clone();
    let _later = attach(cluster.lan.node(&near)?)?;
    await_place(&cluster, &near, "vipmux_ingress", "1 of 3")?;
    direct_return::ask_all(&cluster)
}

#[test]
fn obstacles_to_the_first_place_are_named_before_an_agent_starts() -> Result<()> {
    let Some((cluster, options)) = prepared("30s")? else { return Ok(()) };
    let node = cluster.lan.node(NODE)?;
    let pins = Folder::of_pins("order");
    let check = |more: &[&str]| checked(node, pins.path(), more);
    let other = ForeignProgram::attach(node, EGRESS, LinkOrder::last(), Behavior::EndsChain)?;
    check(&[])?.expect("pass", &format!("all: end_chain (id {})", other.id), "")?;
    check(&["--tc", "clsact"])?.expect(
        "fail",
        "tcx programs run before vipmux's filter",
        "without VIPMUX_TC=clsact",
    )?;
    drop(other);
    node.tc(&["qdisc", "add", "dev", "eth0", "clsact"])?;
    let taken = "filter add dev eth0 egress pref 1 protocol ip u32 match u32 0 0 classid 1:1";
    node.tc(&taken.split(' ').collect::<Vec<_>>())?;
    check(&[])?.expect("pass", "a u32 filter of priority 1", "")?;
    check(&["--tc", "clsact"])?.expect("fail", "a u32 filter of priority 1, which vipmux's filter needs", "pref 10")?;
    let refused = agent::Agent::start(node, &agent::Options { tc: "clsact", ..options })?;
    refused
        .process()
        .wait_for_line("the reason", PATIENCE, |line| line.contains("cannot attach vipmux_egress to eth0"))?;
    Ok(())
}
