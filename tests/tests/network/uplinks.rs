//! Tests machines whose address is not on the card itself, and egress programs without a link.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context as _, Result, ensure};
use aya::util::KernelVersion;
use pnet::util::MacAddr;
use vipmux_tests::{
    agent, arp,
    cleanup::Folder,
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Node, Options, Uplink},
    links::End,
    manifests::{Manifests, VIP},
    offload, process, wait,
};

use crate::{ipv6, leading::WINDOW, services};

const VLAN: Uplink = Uplink::Vlan(100);
/// With that many connections to each Service, local and remote pods both get some.
const CONNECTIONS: usize = 20;

/// Starts the five Services with agents with these options, and waits until each has answered
/// often, from here and from other nodes.
fn served(uplink: Uplink, change: impl FnOnce(agent::Options) -> agent::Options) -> Result<Option<Cluster>> {
    let options = Options { uplink, ..Options::default() };
    let Some(mut cluster) = services::prepared(options)? else { return Ok(None) };
    cluster.start_agents(&change(cluster.agent_options()))?;
    services::await_all(&cluster)?;
    services::ask_all(&cluster, CONNECTIONS)?;
    Ok(Some(cluster))
}

fn has_xdp(node: &Node, interface: &str) -> Result<bool> {
    node.namespace().links(|links| links.has_xdp(interface))
}

#[test]
fn a_vip_on_a_vlan_is_served_with_its_tag() -> Result<()> {
    let Some(mut cluster) = served(VLAN, |options| options)? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    let node = cluster.lan.node(&leader)?;
    assert!(has_xdp(node, "card0")? && !has_xdp(node, "eth0")?);
    assert!(!node.namespace().run(|| offload::strips_tags("card0"))?, "the agent turned that off");
    let vips = cluster.agent(&leader)?.inspect_json(node, &["vips"])?;
    assert!(vips.to_string().contains(r#""vlan":100"#), "{vips}");

    cluster.agent_mut(&leader)?.process_mut().kill()?;
    let node = cluster.lan.node(&leader)?;
    cluster.agent(&leader)?.unload(node)?;
    assert!(!has_xdp(node, "card0")?);
    assert!(node.namespace().run(|| offload::strips_tags("card0"))?, "it was on before");
    Ok(())
}

#[test]
fn generic_xdp_serves_a_vlan_as_well() -> Result<()> {
    served(VLAN, |options| agent::Options { xdp_mode: "generic", ..options }).map(drop)
}

#[test]
fn a_vlan_that_goes_and_comes_back_is_served_again() -> Result<()> {
    let Some(cluster) = served(VLAN, |options| options)? else { return Ok(()) };
    let node = cluster.await_leader(VIP)?;
    node.namespace().links(|links| links.delete("eth0"))?;
    cluster
        .agent(&node.name)?
        .process()
        .wait_for_line("it is missed", PATIENCE, |line| line.contains("eth0") && line.contains("does not exist"))?;
    node.namespace().links(|links| {
        links.add_vlan("eth0", "card0", 100)?;
        links.set_up("eth0")?;
        links.add_address("eth0", node.address, 24)
    })?;
    services::await_all(&cluster)
}

/// Bonds run native XDP since Linux 5.15.
fn has_native_bonds() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(5, 15, 0))
}

fn on_a_bond(options: agent::Options) -> agent::Options {
    agent::Options { xdp_mode: if has_native_bonds() { "native" } else { "generic" }, ..options }
}

/// Native XDP runs on the bond, which passes it on to its cards. Generic XDP runs on the cards.
fn expect_programs(cluster: &Cluster, is_native: bool) -> Result<()> {
    for node in &cluster.lan.nodes {
        assert_eq!((has_xdp(node, "eth0")?, has_xdp(node, "card0")?), (is_native, !is_native), "{}", node.name);
        // A node that does not lead hears of the leader a moment later.
        wait::until("nothing to explain", PATIENCE, || {
            let (code, explanation) = cluster.agent(&node.name)?.explain(node, "shop/web", &[])?;
            ensure!(code == 0, "{explanation}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_vip_on_a_bond_is_served() -> Result<()> {
    let Some(cluster) = served(Uplink::Bond, on_a_bond)? else { return Ok(()) };
    expect_programs(&cluster, has_native_bonds())
}

#[test]
fn a_bond_whose_mode_changes_is_served_by_its_cards_and_by_itself_again() -> Result<()> {
    let Some(mut cluster) = served(Uplink::Bond, on_a_bond)? else { return Ok(()) };
    for xdp_mode in ["generic", "native"].into_iter().filter(|mode| has_native_bonds() || *mode == "generic") {
        for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
            let options = agent::Options { xdp_mode, ..agent.options_mut().clone() };
            agent.restart_with(node, options)?;
            agent.wait_ready(PATIENCE)?;
        }
        services::await_all(&cluster)?;
        services::ask_all(&cluster, CONNECTIONS)?;
        expect_programs(&cluster, xdp_mode == "native")?;
    }
    Ok(())
}

#[test]
fn a_bonds_card_stands_for_the_bond() -> Result<()> {
    served(Uplink::Bond, |options| agent::Options { interface: "card0".to_owned(), ..on_a_bond(options) }).map(drop)
}

/// A team has no native XDP.
#[test]
fn a_team_is_served_by_its_cards() -> Result<()> {
    let default = |options| agent::Options { xdp_mode: "auto", ..options };
    let Some(cluster) = served(Uplink::Team, default)? else { return Ok(()) };
    expect_programs(&cluster, false)
}

#[test]
fn a_bond_of_two_cards_answers_a_broadcast_once_whichever_card_it_uses() -> Result<()> {
    answers_broadcasts_once(on_a_bond)
}

#[test]
fn a_bond_of_two_cards_in_generic_mode_answers_a_broadcast_once_whichever_card_it_uses() -> Result<()> {
    answers_broadcasts_once(|options| agent::Options { xdp_mode: "generic", ..options })
}

/// Each card gets the client's broadcasts, and XDP runs on each.
fn answers_broadcasts_once(change: impl FnOnce(agent::Options) -> agent::Options) -> Result<()> {
    let options = Options { uplink: Uplink::Bond, ..Options::default() };
    let Some(mut cluster) = ipv6::served_with(change, options)? else { return Ok(()) };
    cluster.lan.add_bond_cards()?;
    for leader in await_single_answers(&cluster)? {
        // Its first card goes, and the second one stands in. Then the first one comes back unused.
        cluster.lan.unplug(&leader)?;
        await_single_answers(&cluster)?;
        cluster.lan.plug(&leader)?;
        await_single_answers(&cluster)?;
    }
    Ok(())
}

/// Waits until many requests in a row have one answer each, and returns the leaders.
fn await_single_answers(cluster: &Cluster) -> Result<BTreeSet<String>> {
    const REQUESTS: usize = 10;
    let client = cluster.lan.client()?;
    let leader = |answers: &[MacAddr]| {
        ensure!(answers.len() == 1, "{answers:?}");
        Ok(cluster.lan.node_of(answers[0]).context("no node's MAC")?.name.clone())
    };
    wait::until("one answer to each request", PATIENCE, || {
        let mut leaders = BTreeSet::new();
        for _ in 0..REQUESTS {
            leaders.insert(leader(&arp::answers(client.namespace(), client.address, VIP, WINDOW)?)?);
            leaders.insert(leader(&ipv6::answers(cluster)?)?);
        }
        Ok(leaders)
    })
    .with_context(|| cluster.last_outputs())
}

#[test]
fn a_vip_on_a_bridge_is_served_at_its_port() -> Result<()> {
    let Some(cluster) = served(Uplink::Bridge, |options| agent::Options { interface: "card0".to_owned(), ..options })?
    else {
        return Ok(());
    };
    let node = cluster.await_leader(VIP)?;
    assert!(has_xdp(node, "card0")? && !has_xdp(node, "eth0")?);
    Ok(())
}

#[test]
fn generic_xdp_serves_a_bridge_as_well() -> Result<()> {
    let generic = |options| agent::Options { interface: "card0".to_owned(), xdp_mode: "generic", ..options };
    served(Uplink::Bridge, generic).map(drop)
}

#[test]
fn a_bridge_whose_ports_may_all_lead_to_pods_is_refused() -> Result<()> {
    let options = Options { uplink: Uplink::Bridge, nodes: 3, ..Options::default() };
    let Some(cluster) = services::prepared(options)? else { return Ok(()) };
    let mut agent = agent::Agent::start(&cluster.lan.nodes[0], &cluster.agent_options())?;
    assert!(!agent.process_mut().wait(PATIENCE)?.success());
    let output = agent.process().output();
    assert!(output.contains("name the port that leads to the LAN") && output.contains("card0"), "{output}");
    Ok(())
}

#[test]
fn a_port_that_leaves_its_bridge_and_joins_again_is_followed() -> Result<()> {
    let by_port = |options| agent::Options { interface: "card0".to_owned(), ..options };
    let Some(cluster) = served(Uplink::Bridge, by_port)? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?;
    let agent = cluster.agent(&leader.name)?;
    let ports = |name: &str| {
        let output = agent.process().output();
        output.lines().filter(|line| line.contains(r#""message":"attached""#) && line.contains(name)).count()
    };
    assert_eq!(ports("02:00:"), 1, "{}", agent.process().output());
    leader.namespace().links(|links| links.remove_port("card0"))?;
    // It has its own MAC, which the programs get.
    agent.process().wait_for_line("the card's own MAC", PATIENCE, |line| {
        line.contains(r#""message":"attached""#) && line.contains("02:01:")
    })?;
    leader.namespace().links(|links| links.add_port("eth0", "card0"))?;
    wait::until("the bridge's MAC again", PATIENCE, || {
        ensure!(ports("02:00:") == 2, "{}", agent.process().output());
        Ok(())
    })?;
    services::await_all(&cluster)
}

#[test]
fn an_agent_that_is_given_another_interface_lets_go_of_the_old_one() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let node = &lan.nodes[0];
    node.namespace().links(|links| links.add_macvlan("mac0", "eth0"))?;
    let manifests = Manifests::for_lan(&lan)?;
    let state = Folder::temporary("state")?;
    let options = agent::Options::new(manifests.path(), state.path());
    let mut agent = agent::Agent::start(node, &agent::Options { tc: "clsact", ..options.clone() })?;
    agent.wait_ready(PATIENCE)?;
    assert!(has_xdp(node, "eth0")?);
    agent.restart_with(node, agent::Options { interface: "mac0".to_owned(), xdp_mode: "generic", ..options })?;
    agent.wait_ready(PATIENCE)?;
    assert!(has_xdp(node, "mac0")? && !has_xdp(node, "eth0")?);
    assert!(!node.tc(&["qdisc", "show", "dev", "eth0"])?.contains("clsact"));
    let links = fs::read_dir(agent.pins().join("links"))?.count();
    assert_eq!(links, 3, "the new interface's: XDP, and both directions of tc");
    Ok(())
}

#[test]
fn native_xdp_runs_where_frames_are_longer_than_a_page() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let node = &lan.nodes[0];
    // A separate pair: the program at the switch's end of eth0 is not made for such frames.
    node.namespace().links(|links| links.add_veth(End::named("big0"), End::named("big1"), lan.switch()))?;
    lan.switch().links(|links| links.set_mtu("big1", 9000))?;
    node.namespace().links(|links| links.set_mtu("big0", 9000))?;
    let manifests = Manifests::for_lan(&lan)?;
    let state = Folder::temporary("state")?;
    let options = agent::Options::new(manifests.path(), state.path());
    let agent = agent::Agent::start(node, &agent::Options { interface: "big0".to_owned(), ..options })?;
    agent.wait_ready(PATIENCE)?;
    assert!(agent.process().output().contains(r#""mode":"native""#), "{}", agent.process().output());
    Ok(())
}

/// Ports hand frames over to each other, and a card without native XDP takes none from native XDP.
#[test]
fn one_card_without_native_xdp_makes_all_cards_generic() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let node = &lan.nodes[0];
    let mut tap = node.namespace().command("ip")?;
    tap.args(["tuntap", "add", "tap0", "mode", "tap"]);
    process::run(tap).context("no tap, which has native XDP and is no veth")?;
    node.namespace().links(|links| {
        links.add_macvlan("mac0", "eth0")?;
        links.set_up("tap0")
    })?;
    let manifests = Manifests::for_lan(&lan)?;
    let state = Folder::temporary("state")?;
    let options = agent::Options::new(manifests.path(), state.path());
    let start = |interfaces: &str| {
        let options = agent::Options { interface: interfaces.to_owned(), xdp_mode: "auto", ..options.clone() };
        let agent = agent::Agent::start(node, &options)?;
        agent.wait_ready(PATIENCE)?;
        anyhow::Ok(agent)
    };
    let modes = |agent: &agent::Agent| {
        let programs = agent.inspect_json(node, &["prog"])?;
        let attached = programs["programs"][0]["attached"].as_array().context("no places")?.clone();
        let mode =
            |place: &serde_json::Value| Some((place["interface"].as_str()?.to_owned(), place["generic"].as_bool()?));
        anyhow::Ok(attached.iter().filter_map(mode).collect::<BTreeMap<_, _>>())
    };
    let mut agent = start("tap0")?;
    assert_eq!(modes(&agent)?, BTreeMap::from([("tap0".to_owned(), false)]), "alone it is native");
    let both = agent::Options { interface: "tap0,mac0".to_owned(), xdp_mode: "auto", ..options.clone() };
    agent.restart_with(node, both)?;
    agent.wait_ready(PATIENCE)?;
    assert_eq!(modes(&agent)?, ["mac0", "tap0"].map(|name| (name.to_owned(), true)).into());
    Ok(())
}

#[test]
fn replies_are_translated_by_a_filter_where_there_are_no_tcx_links() -> Result<()> {
    let Some(mut cluster) = served(Uplink::Card, |options| agent::Options { tc: "clsact", ..options })? else {
        return Ok(());
    };
    let node = "node-1".to_owned();
    let filters = |cluster: &Cluster| cluster.lan.node(&node)?.tc(&["filter", "show", "dev", "eth0", "egress"]);
    let before = filters(&cluster)?;
    assert_eq!(before.matches("handle 0x7669706d vipmux_egress").count(), 1, "{before}");

    cluster.restart_agent(&node)?;
    let after = filters(&cluster)?;
    assert_eq!(after.matches("handle 0x7669706d vipmux_egress").count(), 1, "{after}");
    assert_ne!(after, before, "it is another program");
    services::ask_all(&cluster, CONNECTIONS)?;

    cluster.agent_mut(&node)?.process_mut().kill()?;
    cluster.agent(&node)?.unload(cluster.lan.node(&node)?)?;
    let qdiscs = cluster.lan.node(&node)?.tc(&["qdisc", "show", "dev", "eth0"])?;
    assert!(!qdiscs.contains("clsact"), "{qdiscs}");
    Ok(())
}

#[test]
fn filters_of_others_on_a_clsact_qdisc_stay() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let [first, second] = ["node-1", "node-2"];
    cluster.lan.node(first)?.tc(&["qdisc", "add", "dev", "eth0", "clsact"])?;
    cluster.start_agents(&agent::Options { tc: "clsact", ..cluster.agent_options() })?;
    services::await_all(&cluster)?;
    let foreign = "filter add dev eth0 egress pref 7 protocol ip u32 match u32 0 0 classid 1:1";
    cluster.lan.node(second)?.tc(&foreign.split(' ').collect::<Vec<_>>())?;
    services::ask_all(&cluster, CONNECTIONS)?;
    for node in [first, second] {
        cluster.agent_mut(node)?.process_mut().kill()?;
        cluster.agent(node)?.unload(cluster.lan.node(node)?)?;
        let qdiscs = cluster.lan.node(node)?.tc(&["qdisc", "show", "dev", "eth0"])?;
        assert!(qdiscs.contains("clsact"), "{node}: {qdiscs}");
        let filters = cluster.lan.node(node)?.tc(&["filter", "show", "dev", "eth0", "egress"])?;
        assert!(!filters.contains("vipmux_egress"), "{node}: {filters}");
        assert_eq!(filters.contains("pref 7"), node == second, "{node}: {filters}");
    }
    Ok(())
}
