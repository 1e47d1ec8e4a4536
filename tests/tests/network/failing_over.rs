//! Tests failovers: another node leads, no request is answered by two nodes, and connections to
//! pods elsewhere continue. `cargo xtask bench failover` measures the duration.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::{
        ptrace,
        signal::Signal,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use serde_json::{Value, json};
use vipmux_tests::{
    cluster::{LONG, PATIENCE, TIMEOUT},
    failover::{ADDRESS, BULK, DEFAULT_LEASE, FailoverCluster, LAN, ObservedFailover, await_stopped},
    lan::Options,
    scrape::Metrics,
    transfer::Transfer,
    wait,
};

use crate::leading::await_candidate;

/// Bytes before the event, and after another node leads.
const TRANSFERRED: u64 = 10 << 20;
/// The pause between a transfer's chunks, so that agents get CPU time.
const PAUSE: Duration = Duration::from_millis(5);

#[test]
fn a_killed_agents_address_is_taken_over_while_its_node_goes_on_forwarding() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    failover.check_sessions()?;
    failover.setup.start_agent(&failover.node)?;
    failover.await_return(other)?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

/// The others have a longer lease.
#[test]
fn with_the_lease_that_agents_come_with_a_killed_one_is_followed_and_no_two_answer() -> Result<()> {
    let Some(mut failover) =
        FailoverCluster::for_test_with(LAN, DEFAULT_LEASE)?.map(ObservedFailover::of).transpose()?
    else {
        return Ok(());
    };
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    failover.await_another()?;
    failover.check_sessions()?;
    failover.setup.start_agent(&failover.node)?;
    failover.go_on()?;
    failover.check_sessions()?;
    failover.answered_once()
}

/// Neither half is a majority. The others find in the store that the leader does not answer.
#[test]
fn half_of_four_nodes_follow_a_leader_that_is_killed_with_another_node() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(Options { nodes: 4, ..LAN })? else { return Ok(()) };
    let leader = failover.node.clone();
    let other = failover.setup.cluster.lan.nodes.iter().find(|node| node.name != leader).context("no other node")?;
    for node in [&other.name.clone(), &leader] {
        failover.setup.signal(node, Signal::SIGKILL)?;
    }
    failover.await_another()?;
    let record = failover.setup.cluster.agent_options().state.join("leases").join(format!("node-{leader}.yaml"));
    let record = fs::read_to_string(&record).with_context(|| record.display().to_string())?;
    ensure!(record.contains("vipmux.io/standing: fenced"), "{record}");
    failover.check_sessions()?;
    failover.answered_once()
}

#[test]
fn an_agent_that_is_woken_after_its_address_was_taken_over_does_not_answer() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.signal(&failover.node, Signal::SIGSTOP)?;
    await_stopped(failover.setup.cluster.agent(&failover.node)?.process().id())?;
    let other = failover.await_another()?;
    failover.setup.signal(&failover.node, Signal::SIGCONT)?;
    failover.await_the_end_of_its_leadership()?;
    failover.stays_with(other).map(drop)
}

/// Its gossip goes on, so it is alive in the eyes of the others.
#[test]
fn the_address_of_an_agent_whose_event_loop_hangs_is_taken_over_and_stays_when_the_loop_goes_on() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    // A debugger stops one thread, the agent's first one: the event loop.
    let agent = failover.setup.cluster.agent(&failover.node)?;
    let event_loop = Pid::from_raw(agent.process().id().try_into()?);
    ptrace::seize(event_loop, ptrace::Options::empty()).context("cannot trace the agent")?;
    ptrace::interrupt(event_loop)?;
    waitpid(event_loop, Some(WaitPidFlag::__WALL))?;
    let other = failover.await_another()?;
    let (node, cluster) = (failover.setup.cluster.lan.node_of(other).context("no node")?, &failover.setup.cluster);
    let is_reason = |line: &str| line.contains("\"leading\"") && line.contains("was alive and stopped answering");
    cluster.agent(&node.name)?.process().wait_for_line("why it leads", PATIENCE, is_reason)?;
    ptrace::detach(event_loop, None)?;
    failover.await_the_end_of_its_leadership()?;
    failover.stays_with(other).map(drop)
}

#[test]
fn an_address_moves_when_its_leader_loses_the_link_and_stays_when_that_is_back() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.cluster.lan.unplug(&failover.node)?;
    let other = failover.await_another()?;
    failover.check_sessions()?;
    failover.setup.cluster.lan.plug(&failover.node)?;
    failover.await_return(other)?;
    failover.stays_with(other).map(drop)
}

#[test]
fn an_address_moves_when_the_switch_forwards_nothing_of_its_leader_and_stays_when_it_does_again() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.cluster.lan.cut_off(&failover.node)?;
    let other = failover.await_another()?;
    failover.check_sessions()?;
    failover.setup.cluster.lan.join(&failover.node)?;
    failover.await_the_end_of_its_leadership()?;
    failover.stays_with(other).map(drop)
}

#[test]
fn an_agent_that_is_told_to_stop_hands_over_and_nothing_is_lost() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.stop_agent(&failover.node)?;
    let other = failover.await_another()?;
    failover.check_sessions()?;
    failover.setup.start_agent(&failover.node)?;
    failover.await_return(other)?;
    failover.stays_with(other)?.check_nothing_lost()
}

#[test]
fn a_rolling_restart_of_all_agents_loses_nothing() -> Result<()> {
    ObservedFailover::for_test(LAN)?.map_or(Ok(()), ObservedFailover::outlives_a_rolling_restart)
}

#[test]
fn a_cordoned_node_hands_over_and_nothing_is_lost() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.cluster.manifests.write_nodes(&failover.setup.cluster.lan, &[&failover.node])?;
    let other = failover.await_another()?;
    failover.setup.cluster.manifests.write_nodes(&failover.setup.cluster.lan, &[])?;
    await_candidate(&failover.setup.cluster, ADDRESS, &failover.node)?;
    failover.stays_with(other)?.check_nothing_lost()
}

#[test]
fn a_node_that_is_excluded_by_its_label_hands_over_and_nothing_is_lost() -> Result<()> {
    const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    let manifests = &failover.setup.cluster.manifests;
    let text = fs::read_to_string(manifests.path().join("nodes.yaml"))?;
    let documents = text.split("---\n").filter(|document| !document.is_empty());
    let mut nodes = documents.map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let node = nodes.iter_mut().find(|node| node["metadata"]["name"] == failover.node.as_str());
    node.context("the leader is no Node")?["metadata"]["labels"] = json!({ EXCLUDE: "" });
    manifests.write("nodes.yaml", &nodes)?;
    let other = failover.await_another()?;
    failover.check_sessions()?;
    failover.followed_by(other)?.check_nothing_lost()
}

#[test]
fn without_the_store_nothing_changes_and_a_killed_leader_is_followed_all_the_same() -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    failover.setup.break_store()?;
    failover.go_on()?;
    failover.check_sessions()?;
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    failover.check_sessions()?;

    failover.setup.restore_store()?;
    let name = &failover.setup.cluster.lan.node_of(other).context("no node has that MAC")?.name;
    let leases = failover.setup.cluster.agent_options().state.join("leases");
    wait::until(&format!("the Lease is {name}'s"), PATIENCE, || {
        let files = fs::read_dir(&leases)?.map(|file| Ok(fs::read_to_string(file?.path())?));
        let texts = files.collect::<Result<Vec<_>>>()?;
        ensure!(texts.iter().any(|text| text.contains(&format!("holderIdentity: {name}"))), "{texts:?}");
        Ok(())
    })?;
    failover.setup.start_agent(&failover.node)?;
    failover.go_on()?;
    failover.followed_by(other)?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn a_transfer_to_a_pod_elsewhere_survives_its_leaders_agent() -> Result<()> {
    transfer_survives(|setup, node| setup.signal(node, Signal::SIGKILL))
}

#[test]
fn a_transfer_to_a_pod_elsewhere_survives_its_leaders_link() -> Result<()> {
    transfer_survives(|setup, node| setup.cluster.lan.unplug(node))
}

/// Both directions continue during the failover, and the digests show that all bytes arrive.
fn transfer_survives(happen: impl FnOnce(&FailoverCluster, &str) -> Result<()>) -> Result<()> {
    let Some(mut failover) = ObservedFailover::for_test(LAN)? else { return Ok(()) };
    let namespace = failover.setup.cluster.lan.client()?.namespace();
    let mut transfer = Transfer::start(namespace, (ADDRESS, BULK).into(), PAUSE)?;
    transfer.wait_for_more(TRANSFERRED, LONG)?;
    happen(&failover.setup, &failover.node)?;
    let other = failover.await_another()?;
    let client = failover.setup.cluster.lan.client()?;
    wait::until("the client sends to the new leader", PATIENCE, || {
        let known = client.neighbor(ADDRESS)?;
        ensure!(known == Some(other), "it knows {known:?}");
        Ok(())
    })?;
    transfer.wait_for_more(TRANSFERRED, LONG)?;
    let answer = transfer.finish()?;
    ensure!(answer.service == "failing/bulk", "{answer}");
    failover.followed_by(other).map(drop)
}

/// The other agents are gone, then also the Leases, then everything is there again.
#[test]
fn an_agent_logs_and_counts_that_it_needs_the_leases_and_that_it_must_not_answer_without_them() -> Result<()> {
    let Some(mut setup) = FailoverCluster::for_test(LAN)? else { return Ok(()) };
    let leader = setup.leader()?.name.clone();
    let others: Vec<_> = setup.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    let others: Vec<_> = others.into_iter().filter(|name| *name != leader).collect();
    let logs = |setup: &FailoverCluster, words: &str| {
        let process = setup.cluster.agent(&leader)?.process();
        process.wait_for_line(words, LONG, |line| line.contains(words))
    };
    let shows = |setup: &FailoverCluster, metric: &str, expected: u64| {
        let node = setup.cluster.lan.node(&leader)?;
        wait::until(&format!("{metric} is {expected}"), PATIENCE, || {
            let found = Metrics::scrape(node.namespace(), node.address, TIMEOUT)?.sum(metric, &[]);
            ensure!(found.to_string() == expected.to_string(), "it is {found}");
            Ok(())
        })
    };
    shows(&setup, "vipmux_store_evidence", 0)?;
    others.iter().try_for_each(|node| setup.signal(node, Signal::SIGKILL))?;
    logs(&setup, "no majority of the peers answers, only the leases say that this node may answer")?;
    shows(&setup, "vipmux_store_evidence", 1)?;
    let missing = logs(&setup, "nodes have no living agent")?;
    ensure!(missing.contains("\"count\":2"), "{missing}");

    setup.break_store()?;
    logs(&setup, "fence deadline passed, this node answers for no VIP")?;
    shows(&setup, "vipmux_store_evidence", 0)?;
    shows(&setup, "vipmux_fence_lapses_total", 1)?;

    setup.restore_store()?;
    others.iter().try_for_each(|node| setup.start_agent(node))?;
    logs(&setup, "fence deadline is ahead again, this node may answer")?;
    logs(&setup, "the leases are not needed any more to say that this node may answer")?;
    logs(&setup, "all nodes have a living agent again").map(drop)
}
