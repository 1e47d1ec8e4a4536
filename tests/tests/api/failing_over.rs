//! Tests failovers and outages of the API server, which has the agents' Leases.

use std::{collections::BTreeMap, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use vipmux_cluster::store::lease_name;
use vipmux_model::Vip;
use vipmux_tests::{
    api_server::SYSTEM,
    cluster::PATIENCE,
    failover::{ADDRESS, FailoverCluster, LAN, ObservedFailover},
    wait,
};

use crate::serving::holder;

/// The time that the API server is away.
const OUTAGE: Duration = Duration::from_mins(1);

fn failover() -> Result<Option<ObservedFailover>> {
    FailoverCluster::in_kubernetes(LAN)?.map(ObservedFailover::of).transpose()
}

#[test]
fn a_killed_agents_address_is_taken_over() -> Result<()> {
    let Some(mut failover) = failover()? else { return Ok(()) };
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    failover.setup.start_agent(&failover.node)?;
    failover.await_return(other)?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn an_api_server_that_is_away_for_a_minute_changes_nothing() -> Result<()> {
    let Some(mut failover) = failover()? else { return Ok(()) };
    failover.setup.break_store()?;
    thread::sleep(OUTAGE);
    failover.go_on()?;
    failover.setup.restore_store()?;
    failover.go_on()?;
    failover.check_sessions()?;
    for agent in &failover.setup.cluster.agents {
        check_complaints(&agent.process().output())?;
    }
    failover.undisturbed()?.check_nothing_lost()
}

/// Each failure of a watch is logged, and at most once a minute.
fn check_complaints(output: &str) -> Result<()> {
    let mut complaints = BTreeMap::<_, usize>::new();
    for line in output.lines() {
        if let Some((_, fields)) = line.split_once("cannot watch the API server") {
            *complaints.entry(fields).or_default() += 1;
        }
    }
    ensure!(!complaints.is_empty(), "no agent says that the API server is away: {output}");
    ensure!(complaints.values().all(|count| *count <= 2), "{complaints:#?}");
    Ok(())
}

#[test]
fn a_lease_that_somebody_deletes_is_written_again_and_nothing_changes() -> Result<()> {
    let Some(mut failover) = failover()? else { return Ok(()) };
    let cluster = &failover.setup.cluster;
    cluster.api()?.kubectl(&["delete", "lease", "-n", SYSTEM, &lease_name(Vip::new(ADDRESS.into()))])?;
    wait::until("the leader's Lease", PATIENCE, || {
        let holder = holder(cluster, ADDRESS.into())?;
        ensure!(holder == failover.node, "{holder} has it, and {} leads", failover.node);
        Ok(())
    })
    .with_context(|| cluster.last_outputs())?;
    failover.go_on()?;
    failover.check_sessions()?;
    failover.undisturbed()?.check_nothing_lost()
}

/// As if a leader that nobody hears had lost the VIP to another node.
#[test]
fn a_leader_whose_lease_names_another_node_gives_up_at_once() -> Result<()> {
    let Some(mut failover) = failover()? else { return Ok(()) };
    let cluster = &failover.setup.cluster;
    let other = cluster.lan.nodes.iter().find(|node| node.name != failover.node).context("no other node")?;
    let patch = json!({ "spec": { "holderIdentity": other.name, "leaseTransitions": 1000 } });
    let (name, patch) = (lease_name(Vip::new(ADDRESS.into())), patch.to_string());
    cluster.api()?.kubectl(&["patch", "lease", "-n", SYSTEM, &name, "--type=merge", "-p", &patch])?;
    cluster.agent(&failover.node)?.process().wait_for_line("the end of its leadership", PATIENCE, |line| {
        line.contains("no longer leading") && line.contains(&format!("{} took it", other.name))
    })?;
    // The node that the Lease names knows nothing of it, and so somebody takes the VIP anew.
    failover.setup.cluster.await_leader(ADDRESS)?;
    failover.go_on()
}

#[test]
fn a_majority_takes_over_while_the_api_server_is_away() -> Result<()> {
    let Some(mut failover) = failover()? else { return Ok(()) };
    failover.setup.break_store()?;
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    failover.setup.restore_store()?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn a_rolling_update_of_the_agents_loses_nothing() -> Result<()> {
    failover()?.map_or(Ok(()), ObservedFailover::outlives_a_rolling_restart)
}
