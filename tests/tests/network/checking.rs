//! Tests that the agent detects and repairs drift of the kernel's state.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::net::if_::if_nametoindex;
use serde_json::Value;
use vipmux_common::{
    abi::{Backend, Config, Interface, Node, ServiceState, ServiceValue},
    service_index::IndexedService,
};
use vipmux_datapath::bpf::{attach::XdpAttachMode, load, maps::Maps, pins::Pins};
use vipmux_tests::{
    cleanup::Folder,
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{self, Options},
    manifests::VIP,
    scrape,
    traffic::Traffic,
    wait,
};

use crate::services;

const PAUSE: Duration = Duration::from_millis(10);

/// Starts the five Services, with agents that check the kernel's state at this interval. Returns
/// the leader too.
fn served(self_check: &'static str) -> Result<Option<(Cluster, String)>> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(None) };
    let mut options = cluster.agent_options();
    options.self_check = self_check;
    cluster.start_agents(&options)?;
    services::await_all(&cluster)?;
    let leader = cluster.await_leader(VIP)?.name.clone();
    Ok(Some((cluster, leader)))
}

fn on<'a>(cluster: &'a Cluster, name: &str) -> Result<(&'a vipmux_tests::agent::Agent, &'a lan::Node)> {
    Ok((cluster.agent(name)?, cluster.lan.node(name)?))
}

/// Returns the `what` of each difference.
fn differing(diff: &Value) -> Vec<&str> {
    diff["differences"].as_array().into_iter().flatten().filter_map(|difference| difference["what"].as_str()).collect()
}

fn await_no_difference(cluster: &Cluster, name: &str) -> Result<()> {
    let (agent, node) = on(cluster, name)?;
    wait::until("nothing that differs", PATIENCE, || {
        let (code, diff) = agent.diff(node)?;
        ensure!(code == 0, "{diff}");
        Ok(())
    })
}

/// Damages one map, by name.
fn harm(pins: &Path, map: &str) -> Result<()> {
    let mut maps = Maps::open(pins)?;
    let missing = || format!("{map} is empty");
    match map {
        "VIPS" => maps.vips.remove(&VIP.into())?,
        "SERVICES" => {
            let key = *maps.read_services()?.keys().next().with_context(missing)?;
            maps.services.remove(&key)?;
        }
        "SERVICE_INDEX" => {
            // A copy that programs would follow.
            let services = maps.read_services()?;
            let (key, value) = services.first_key_value().with_context(missing)?;
            let emptied = ServiceValue { table_length: 0, local_length: 0, ..*value };
            let copy = IndexedService::new(*key, &emptied).context("the Service has no copy")?;
            maps.service_index.set(key.index(), copy, 0)?;
        }
        "SERVICE_STATES" => {
            let slot = *maps.read_service_states()?.keys().next().with_context(missing)?;
            maps.service_states.set(slot, ServiceState::default(), 0)?;
        }
        "TABLES" => {
            let services = maps.read_services()?;
            let service = services.values().find(|service| service.table_length > 0).with_context(missing)?;
            maps.write_table(service.table, &vec![9; service.table_length as usize])?;
        }
        "BACKENDS" => {
            let index = *maps.read_backends()?.keys().next().with_context(missing)?;
            maps.backends.set(index, Backend::default(), 0)?;
        }
        "NODES" => {
            for index in maps.read_nodes()?.into_keys() {
                maps.nodes.set(index, Node::default(), 0)?;
            }
        }
        "PEERS" => {
            let mac = *maps.peers.read()?.keys().next().with_context(missing)?;
            maps.peers.remove(&mac)?;
        }
        "INTERFACES" => {
            let ifindex = *maps.read_interfaces()?.keys().next().with_context(missing)?;
            maps.interfaces.set(ifindex, Interface::default(), 0)?;
        }
        "LOCAL_PORTS" => {
            let element = *maps.local_ports.read()?.keys().next().with_context(missing)?;
            maps.local_ports.set(element, 0, 0)?;
        }
        "BACKEND_NODES" => {
            let element = *maps.read_backend_nodes(maps.backends.len())?.keys().next().with_context(missing)?;
            maps.backend_nodes.set(element, 0, 0)?;
        }
        "CONFIG" => {
            let config = maps.read_config()?;
            maps.config.set(0, Config { tcp_idle: 1, udp_idle: 1, ..config }, 0)?;
        }
        other => anyhow::bail!("no way to harm {other}"),
    }
    Ok(())
}

/// The maps whose entries the self-check compares.
const CHECKED: [&str; 12] = [
    "VIPS",
    "SERVICES",
    "SERVICE_INDEX",
    "SERVICE_STATES",
    "TABLES",
    "BACKENDS",
    "BACKEND_NODES",
    "LOCAL_PORTS",
    "NODES",
    "PEERS",
    "INTERFACES",
    "CONFIG",
];

#[test]
fn drift_of_each_map_shows_in_the_diff() -> Result<()> {
    let Some((cluster, leader)) = served("0")? else { return Ok(()) };
    let (agent, node) = on(&cluster, &leader)?;
    await_no_difference(&cluster, &leader)?;
    for map in CHECKED {
        harm(agent.pins(), map)?;
        let (code, diff) = agent.diff(node)?;
        ensure!(code == 2 && differing(&diff).contains(&map), "{map}: {code}, {diff}");
    }
    Ok(())
}

#[test]
fn drift_of_each_map_is_repaired() -> Result<()> {
    let Some((cluster, leader)) = served("1s")? else { return Ok(()) };
    let (agent, _) = on(&cluster, &leader)?;
    for map in CHECKED {
        harm(agent.pins(), map)?;
        agent.process().wait_for_line("a repair", PATIENCE, |line| {
            line.contains("repairing") && line.contains(&format!("\"what\":\"{map}\""))
        })?;
        await_no_difference(&cluster, &leader)?;
        services::await_all(&cluster).with_context(|| format!("after {map} was harmed"))?;
    }
    ensure!(Maps::open(agent.pins())?.read_config()?.tcp_idle > 1, "the configuration stayed as it was harmed");
    Ok(())
}

#[test]
fn programs_that_somebody_took_off_come_back_and_so_do_pins_and_the_nat_chain() -> Result<()> {
    let Some((cluster, leader)) = served("1s")? else { return Ok(()) };
    let (agent, node) = on(&cluster, &leader)?;
    let pins = agent.pins();
    let links: Vec<_> = fs::read_dir(pins.join("links"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    ensure!(links.len() == 2, "{links:?}");
    for pin in links.iter().cloned().chain([pins.join("maps/FLOWS"), pins.join("programs/vipmux_xdp")]) {
        fs::remove_file(&pin)?;
        wait::until("the pin again", PATIENCE, || pin.exists().then_some(()).context("it is missing"))?;
        await_no_difference(&cluster, &leader)?;
        services::await_all(&cluster)?;
    }
    node.nft("delete table inet vipmux")?;
    wait::until("the NAT chain again", PATIENCE, || node.nft("list table inet vipmux"))?;
    await_no_difference(&cluster, &leader)
}

/// Without it nobody answers, so the agent does not wait for a self-check.
#[test]
fn a_program_that_somebody_took_off_comes_back_without_a_self_check() -> Result<()> {
    let Some((cluster, leader)) = served("0")? else { return Ok(()) };
    let (agent, _) = on(&cluster, &leader)?;
    for entry in fs::read_dir(agent.pins().join("links"))? {
        let pin = entry?.path();
        fs::remove_file(&pin)?;
        wait::until("the pin again", PATIENCE, || pin.exists().then_some(()).context("it is missing"))?;
        await_no_difference(&cluster, &leader)?;
        services::await_all(&cluster)?;
    }
    Ok(())
}

/// The interface has room for one XDP program.
#[test]
fn a_node_whose_program_was_replaced_by_a_foreign_one_gives_up_its_vips() -> Result<()> {
    let Some((cluster, leader)) = served("0")? else { return Ok(()) };
    cluster.await_all_alive()?;
    let (agent, node) = on(&cluster, &leader)?;
    let foreign_pins = Folder::of_pins("foreign");
    let (mut foreign, _) = load::load(&Pins::new(foreign_pins.path()), 1024)?;
    let ifindex = node.namespace().run(|| Ok(if_nametoindex("eth0")?))?;
    wait::until("the foreign program", PATIENCE, || {
        // The agent may be faster.
        fs::remove_file(agent.pins().join(format!("links/xdp-{ifindex}"))).ok();
        node.namespace().run(|| Ok(foreign.attach_xdp("eth0", (ifindex, 1500), XdpAttachMode::Native, None)?))
    })?;
    agent.process().wait_for_line("what is wrong", PATIENCE, |line| line.contains("already has an XDP program"))?;
    wait::until("another leader", PATIENCE, || {
        let now = &cluster.await_leader(VIP)?.name;
        ensure!(*now != leader, "it is still {leader}");
        let (status, body) = scrape::get(node.namespace(), node.address, "/readyz", TIMEOUT)?;
        ensure!(status == 503 && body.contains("[-]attached failed"), "{status}: {body}");
        Ok(())
    })?;
    // The agent sees by itself that its place is free again.
    foreign.detach(ifindex)?;
    wait::until("readiness", PATIENCE, || {
        let (status, body) = scrape::get(node.namespace(), node.address, "/readyz", TIMEOUT)?;
        ensure!(status == 200, "{body}");
        Ok(())
    })?;
    services::await_all(&cluster)
}

/// The self-check reads beside the event loop, and writes nothing if there is no drift.
#[test]
fn checks_disturb_no_traffic_and_repair_nothing_that_is_right() -> Result<()> {
    let Some((cluster, leader)) = served("1s")? else { return Ok(()) };
    let client = cluster.lan.client()?;
    cluster.lan.nodes.iter().try_for_each(|node| await_no_difference(&cluster, &node.name))?;
    let repairs = || -> usize {
        let outputs = cluster.agents.iter().map(|agent| agent.process().output());
        outputs.map(|output| output.matches("repairing").count()).sum()
    };
    let before = repairs();
    let requests = Traffic::start(client.namespace(), Request::new(Kind::Http, VIP, 80), PAUSE)?;
    let (agent, node) = on(&cluster, &leader)?;
    for _ in 0..20 {
        requests.wait_for_more(20, PATIENCE)?;
        let (code, diff) = agent.diff(node)?;
        ensure!(code == 0, "{diff}");
    }
    requests.stop()?.check_all_by("shop/web")?;
    for agent in &cluster.agents {
        let output = agent.process().output();
        ensure!(!output.contains("cannot check kernel state"), "{output}");
    }
    let outputs = cluster.last_outputs();
    ensure!(repairs() == before, "{outputs}");
    Ok(())
}

#[test]
fn inspect_diff_without_an_agent_says_what_to_do() -> Result<()> {
    let Some((mut cluster, leader)) = served("0")? else { return Ok(()) };
    cluster.agent_mut(&leader)?.process_mut().kill()?;
    let (agent, node) = on(&cluster, &leader)?;
    let (code, said) = agent.diff(node)?;
    let said = said.as_str().context("it wrote JSON")?;
    ensure!(code == 1 && said.contains("no agent listens on") && said.contains("--socket"), "{code}: {said}");
    Ok(())
}
