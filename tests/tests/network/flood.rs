//! Tests that a flood of forged SYNs evicts no live connection, and leaves room for new ones.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::Session,
    cluster::{Cluster, TIMEOUT},
    flood,
    lan::Options,
    manifests::VIP,
};

use crate::policies::{WEB, await_web, prepared, to_web, web};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Idle connections during the flood.
const CONNECTIONS: usize = 400;
/// Five times the records of an agent's table.
const FLOOD: u32 = 80_000;
/// New connections during the flood, and the time for one of them.
const TRIES: usize = 40;
const PATIENCE: Duration = Duration::from_secs(3);

#[test]
fn forged_syns_evict_no_live_connection_and_leave_room_for_new_ones() -> Result<()> {
    let Some(mut cluster) = prepared(Options::default(), &NODES)? else { return Ok(()) };
    let pods = ["web-1", "web-2", "web-3"];
    cluster.manifests.write_service(&web(&cluster, &pods)?)?;
    cluster.start_agents(&cluster.agent_options())?;
    await_web(cluster.lan.client()?)?;
    let client = cluster.lan.client()?;
    let mut sessions = sessions(&cluster, pods.len())?;
    let leader = client.neighbor(VIP)?.context("the client has no neighbor entry of the VIP")?;

    let namespace = cluster.lan.client()?.namespace();
    let answered = std::thread::scope(|scope| {
        let flood = scope.spawn(|| namespace.run(|| flood::send_forged_syns(leader, VIP, WEB.0, 0..FLOOD)));
        let answered = (0..TRIES).filter(|_| cluster.ask(to_web(VIP.into()), PATIENCE).is_ok()).count();
        flood.join().expect("the flood panicked").map(|()| answered)
    })?;
    ensure!(answered * 100 >= TRIES * 95, "{answered} of {TRIES} new connections were answered");
    ensure!(cluster.counted("stats", "evicted_half_open")? > u64::from(FLOOD / 2), "the tables were not full");
    ensure!(cluster.counted("stats", "evicted_live")? == 0, "a live flow was evicted");
    // A CPU can be taken away while it holds the lock of a set.
    let refused = cluster.counted("drops", "record_limited")?;
    ensure!(refused < u64::from(FLOOD / 1_000), "{refused} flows were refused");
    for session in &mut sessions {
        session.echo("still there?").context("an idle connection is lost")?;
    }
    Ok(())
}

/// Opens connections, to each of this many pods at least one.
fn sessions(cluster: &Cluster, pods: usize) -> Result<Vec<Session>> {
    let client = cluster.lan.client()?.namespace();
    let mut reached = BTreeSet::new();
    let mut open = || {
        let mut session = client.run(|| Session::connect((VIP, WEB.0).into(), TIMEOUT))?;
        reached.insert(session.echo("hello")?.pod);
        Ok(session)
    };
    let sessions = (0..CONNECTIONS).map(|_| open()).collect::<Result<Vec<_>>>()?;
    ensure!(reached.len() == pods, "{reached:?}");
    Ok(sessions)
}
