//! Tests the records of nodes: Leases by which nodes know each other without gossip.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vipmux_cluster::store::record_name;
use vipmux_common::abi::Mac;
use vipmux_datapath::bpf::maps::Maps;
use vipmux_model::NodeName;
use vipmux_tests::{
    agent,
    api_server::SYSTEM,
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Node, Options},
    wait,
};

const MACS: &str = "vipmux.io/macs";
const NODES: [&str; 2] = ["node-1", "node-2"];

/// A cluster of two nodes on two segments, before its agents have started.
fn cluster() -> Result<Option<(Cluster, agent::Options)>> {
    let Some(mut lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(None) };
    lan.add_segment(&NODES)?;
    let Some(cluster) = Cluster::in_kubernetes(lan)? else { return Ok(None) };
    let options = agent::Options { interface: "eth0,eth1".to_owned(), ..cluster.agent_options() };
    Ok(Some((cluster, options)))
}

/// Returns the MACs of a node on both segments.
fn macs(node: &Node) -> Result<BTreeSet<Mac>> {
    let mac = |name: &str| Ok(Mac::new(node.namespace().links(|links| links.mac(name))?.octets()));
    ["eth0", "eth1"].into_iter().map(mac).collect()
}

fn kubectl_json(cluster: &Cluster, args: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&cluster.api()?.kubectl(&[args, &["-o", "json"]].concat())?)?)
}

/// Waits until the record of a node has its MACs. Returns it.
fn await_record(cluster: &Cluster, node: &Node) -> Result<Value> {
    let expected = macs(node)?.iter().map(Mac::to_string).collect::<Vec<_>>().join(",");
    let name = record_name(&NodeName::new(&node.name)?);
    wait::until(&format!("the MACs of {} in its record", node.name), PATIENCE, || {
        let record = kubectl_json(cluster, &["get", "lease", "-n", SYSTEM, &name])?;
        let found = &record["metadata"]["annotations"][MACS];
        ensure!(*found == expected, "{found}");
        Ok(record)
    })
    .with_context(|| cluster.last_outputs())
}

#[test]
fn each_node_has_a_record_with_its_macs_that_goes_with_its_node() -> Result<()> {
    let Some((mut cluster, options)) = cluster()? else { return Ok(()) };
    cluster.start_agents(&options)?;
    for node in &cluster.lan.nodes {
        let record = await_record(&cluster, node)?;
        let owner = &record["metadata"]["ownerReferences"][0];
        let uid = &kubectl_json(&cluster, &["get", "node", &node.name])?["metadata"]["uid"];
        ensure!(owner["kind"] == "Node" && owner["uid"] == *uid, "{record}");
    }
    // What somebody deletes is written again, also by an agent that was started anew.
    let lease = record_name(&NodeName::new(NODES[0])?);
    cluster.api()?.kubectl(&["delete", "lease", "-n", SYSTEM, &lease])?;
    await_record(&cluster, cluster.lan.node(NODES[0])?)?;
    cluster.restart_agent(NODES[0])?;
    cluster.api()?.kubectl(&["annotate", "lease", "-n", SYSTEM, &lease, &format!("{MACS}-")])?;
    await_record(&cluster, cluster.lan.node(NODES[0])?).map(drop)
}

/// So an announcement of the other one on any segment is no foreign speaker's.
#[test]
fn agents_that_hear_nobody_know_each_others_macs_on_all_segments() -> Result<()> {
    let Some((mut cluster, options)) = cluster()? else { return Ok(()) };
    for node in &cluster.lan.nodes {
        node.filter_gossip("drop")?;
    }
    cluster.start_agents(&options)?;
    for (node, other) in [(NODES[0], NODES[1]), (NODES[1], NODES[0])] {
        let expected = macs(cluster.lan.node(other)?)?;
        let maps = Maps::open(cluster.agent(node)?.pins())?;
        wait::until(&format!("the MACs of {other} among the peers of {node}"), PATIENCE, || {
            let peers = maps.peers.read()?;
            ensure!(expected.iter().all(|mac| peers.contains_key(mac)), "{peers:?}");
            Ok(())
        })
        .with_context(|| cluster.last_outputs())?;
    }
    Ok(())
}
