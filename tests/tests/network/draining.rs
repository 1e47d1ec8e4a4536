//! Tests `vipmux drain` on live agents: its output, where the VIPs go, and what keeps them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use anyhow::{Context as _, Result, ensure};
use pnet::util::MacAddr;
use vipmux_tests::{
    cluster::{Cluster, PATIENCE},
    lan::Options,
    manifests::VIP,
    wait,
};

use crate::{leading, services};

/// So many VIPs that no node leads all of them: at least two of three nodes have one.
const VIPS: u32 = 10;

/// Makes three nodes that lead these VIPs.
fn led() -> Result<Option<Cluster>> {
    let Some(mut cluster) = services::with_pods(Options::default())? else { return Ok(None) };
    cluster.start_agents(&cluster.agent_options())?;
    // A lone agent would lead all of them, and transfer some later.
    cluster.await_all_alive()?;
    vips().into_iter().try_for_each(|vip| leading::write_web(&cluster, vip))?;
    await_led(&cluster, |_| true)?;
    Ok(Some(cluster))
}

fn vips() -> Vec<Ipv4Addr> {
    (0..VIPS).map(|n| Ipv4Addr::from(u32::from(VIP) + n)).collect()
}

/// Returns the VIPs that a node says it leads.
fn own(cluster: &Cluster, node: &str) -> Result<BTreeSet<Ipv4Addr>> {
    let view = cluster.agent(node)?.inspect_json(cluster.lan.node(node)?, &["vips"])?;
    let vips = view["vips"].as_array().context("no vips")?.iter();
    let led = vips.filter(|vip| vip["role"] == "leading");
    led.map(|vip| Ok(vip["address"].as_str().context("no address")?.parse()?)).collect()
}

/// Waits until one of these nodes leads each VIP.
fn await_led(cluster: &Cluster, may: impl Fn(&str) -> bool) -> Result<()> {
    let nodes = || cluster.lan.nodes.iter().filter(|node| may(&node.name));
    wait::until("each VIP is led", PATIENCE, || {
        let all = nodes().map(|node| own(cluster, &node.name)).collect::<Result<Vec<_>>>()?;
        let led: Vec<_> = all.iter().flatten().copied().collect();
        ensure!(led.len() == vips().len() && led.iter().collect::<BTreeSet<_>>().len() == led.len(), "{all:?}");
        Ok(())
    })
    .with_context(|| cluster.last_outputs())
}

/// Checks that exactly one of these nodes answers for each VIP.
fn check_answers(cluster: &Cluster, may: impl Fn(&str) -> bool) -> Result<()> {
    vips().into_iter().try_for_each(|vip| {
        let node = answering(cluster, vip)?;
        ensure!(may(&node), "{node} answers for {vip}");
        Ok(())
    })
}

/// Returns the one node that answers for a VIP.
fn answering(cluster: &Cluster, vip: Ipv4Addr) -> Result<String> {
    let answers = wait::until(&format!("an answer for {vip}"), PATIENCE, || {
        let answers = leading::answers(cluster, vip)?;
        ensure!(!answers.is_empty(), "there is none");
        Ok(answers)
    })
    .with_context(|| cluster.last_outputs())?;
    let node = |mac: &MacAddr| Some(cluster.lan.node_of(*mac)?.name.clone());
    let nodes: Vec<_> = answers.iter().filter_map(node).collect();
    ensure!(nodes.len() == 1 && answers.len() == 1, "{answers:?} answer for {vip}");
    Ok(nodes.concat())
}

/// Runs `vipmux drain` on a node. Returns its exit status, its VIPs with their new nodes, its last
/// line and its stderr.
fn drain(
    cluster: &Cluster,
    node: &str,
    arguments: &[&str],
) -> Result<(i32, BTreeMap<Ipv4Addr, String>, String, String)> {
    let (code, said, error) = cluster.agent(node)?.drain(cluster.lan.node(node)?, arguments)?;
    let (mut reported, mut last) = (BTreeMap::new(), "");
    for line in said.lines() {
        match line.split_once(' ').map(|(vip, what)| (vip.parse(), what)) {
            Some((Ok(vip), what)) => ensure!(reported.insert(vip, what.to_owned()).is_none(), "{vip} twice in {said}"),
            _ => last = line,
        }
    }
    Ok((code, reported, last.to_owned(), error))
}

/// Drains a node successfully. Returns the VIPs' new nodes.
fn drained(cluster: &Cluster, node: &str) -> Result<BTreeMap<Ipv4Addr, String>> {
    let (code, reported, last, error) = drain(cluster, node, &[])?;
    ensure!((code, error.as_str()) == (0, ""), "{code}, {reported:?}, {last}, {error}");
    let count = if reported.len() == 1 { "1 VIP".to_owned() } else { format!("{} VIPs", reported.len()) };
    ensure!(last.starts_with(&format!("drained: {count} handed over in ")), "{last}, after {reported:?}");
    let to = |(vip, what): (_, String)| Some((vip, what.strip_prefix("handed over to ")?.to_owned()));
    let handed: BTreeMap<_, _> = reported.clone().into_iter().filter_map(to).collect();
    ensure!(handed.len() == reported.len(), "{reported:?}");
    Ok(handed)
}

/// The report if no other node can lead anything.
fn kept() -> BTreeMap<Ipv4Addr, String> {
    vips().into_iter().map(|vip| (vip, "is still led here: no other node can lead it now".to_owned())).collect()
}

/// Returns the other two nodes.
fn others<'a>(cluster: &'a Cluster, node: &str) -> Result<[&'a str; 2]> {
    let others: Vec<_> =
        cluster.lan.nodes.iter().map(|other| other.name.as_str()).filter(|name| *name != node).collect();
    others.try_into().ok().context("the LAN has three nodes")
}

#[test]
fn a_drained_node_says_where_its_addresses_went_and_takes_none_until_it_takes_part_again() -> Result<()> {
    let Some(mut cluster) = led()? else { return Ok(()) };
    let first = cluster.await_leader(VIP)?.name.clone();
    let before = own(&cluster, &first)?;
    let handed = drained(&cluster, &first)?;
    assert_eq!(handed.keys().copied().collect::<BTreeSet<_>>(), before);
    assert_eq!(own(&cluster, &first)?, BTreeSet::new());
    for (vip, heir) in &handed {
        assert_eq!(answering(&cluster, *vip)?, *heir, "{vip}");
    }
    check_answers(&cluster, |node| node != first)?;

    let [killed, left] = others(&cluster, &first)?.map(str::to_owned);
    cluster.agent_mut(&killed)?.process_mut().kill()?;
    await_led(&cluster, |node| node == left)?;
    check_answers(&cluster, |node| node == left)?;
    assert_eq!(own(&cluster, &first)?, BTreeSet::new());

    let (code, reported, last, error) = drain(&cluster, &first, &["--cancel"])?;
    assert_eq!(
        (code, reported.len(), last.as_str(), error.as_str()),
        (0, 0, "drain ended: this node may lead VIPs again", "")
    );
    wait::until("a share of the addresses", PATIENCE, || {
        ensure!(!own(&cluster, &first)?.is_empty(), "it leads none");
        Ok(())
    })
    .with_context(|| cluster.last_outputs())?;
    check_answers(&cluster, |node| node != killed)
}

/// The others start last, so this node leads everything at first.
#[test]
fn a_drained_node_whose_agent_is_started_again_takes_part_again() -> Result<()> {
    let Some(mut cluster) = led()? else { return Ok(()) };
    let first = cluster.await_leader(VIP)?.name.clone();
    drained(&cluster, &first)?;
    cluster.manifests.write_nodes(&cluster.lan, &others(&cluster, &first)?)?;
    cluster.restart_agent(&first)?;
    await_led(&cluster, |node| node == first)?;
    check_answers(&cluster, |node| node == first)
}

#[test]
fn vips_that_no_other_node_can_take_stay_and_go_as_soon_as_one_can() -> Result<()> {
    let Some(mut cluster) = led()? else { return Ok(()) };
    let first = cluster.await_leader(VIP)?.name.clone();
    let [second, third] = others(&cluster, &first)?.map(str::to_owned);
    for gone in [&second, &third] {
        cluster.agent_mut(gone)?.stop()?;
        cluster.await_standing(&first, gone, "left")?;
    }
    await_led(&cluster, |node| node == first)?;
    let (code, reported, _, error) = drain(&cluster, &first, &[])?;
    assert_eq!((code, &reported), (1, &kept()));
    ensure!(error.contains("not drained: 10 VIPs still led here; the node keeps draining"), "{error}");
    check_answers(&cluster, |node| node == first)?;

    cluster.restart_agent(&second)?;
    await_led(&cluster, |node| node == second)?;
    check_answers(&cluster, |node| node == second)?;
    assert_eq!(drained(&cluster, &first)?, vips().into_iter().map(|vip| (vip, second.clone())).collect());

    // It is the last choice, but a choice.
    cluster.agent_mut(&second)?.stop()?;
    await_led(&cluster, |node| node == first)?;
    check_answers(&cluster, |node| node == first)
}

#[test]
fn the_last_node_that_does_not_drain_hands_nothing_to_those_that_do() -> Result<()> {
    let Some(cluster) = led()? else { return Ok(()) };
    let last = cluster.await_leader(VIP)?.name.clone();
    for other in others(&cluster, &last)? {
        drained(&cluster, other)?;
    }
    await_led(&cluster, |node| node == last)?;
    let (code, reported, _, error) = drain(&cluster, &last, &["--timeout", "5s"])?;
    assert_eq!((code, &reported), (1, &kept()), "{error}");
    check_answers(&cluster, |node| node == last)
}

#[test]
fn drain_without_an_agent_says_what_to_do() -> Result<()> {
    let Some(mut cluster) = led()? else { return Ok(()) };
    let first = cluster.await_leader(VIP)?.name.clone();
    cluster.agent_mut(&first)?.process_mut().kill()?;
    for arguments in [&[][..], &["--cancel"]] {
        let (code, reported, last, error) = drain(&cluster, &first, arguments)?;
        assert_eq!((code, reported.len(), last.as_str()), (1, 0, ""));
        ensure!(error.contains("no agent listens on") && error.contains("--socket"), "{error}");
    }
    Ok(())
}
