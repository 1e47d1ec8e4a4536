//! Tests that floods of forged packets evict no live connection, and leave room for new ones.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use pnet::util::MacAddr;
use vipmux_tests::{
    client::Session,
    cluster::{Cluster, TIMEOUT},
    flood,
    lan::Options,
    manifests::{Service, VIP},
};

use crate::policies::{WEB, await_web, endpoints, prepared, to_web, web};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const PODS: [&str; 3] = ["web-1", "web-2", "web-3"];
/// A port that no pod answers on.
const ISOLATED: u16 = 9443;
/// Idle connections during the flood.
const CONNECTIONS: usize = 400;
/// Five times the records of an agent's table.
const FLOOD: u32 = 80_000;
/// New connections during the flood and after it, and the time for one of them.
const TRIES: usize = 40;
const PATIENCE: Duration = Duration::from_secs(3);

#[test]
fn forged_syns_evict_no_live_connection_and_leave_room_for_new_ones() -> Result<()> {
    let Some(mut cluster) = prepared(Options::default(), &NODES)? else { return Ok(()) };
    cluster.manifests.write_service(&web(&cluster, &PODS)?)?;
    cluster.start_agents(&cluster.agent_options())?;
    survive(&cluster, |leader| flood::send_forged_syns(leader, VIP, WEB.0, 0..FLOOD))?;
    ensure!(cluster.counted("stats", "evicted_half_open")? > u64::from(FLOOD / 2), "the tables were not full");
    ensure!(cluster.counted("stats", "evicted_live")? == 0, "a live flow was evicted");
    Ok(())
}

#[test]
fn connections_to_pods_that_a_policy_isolates_keep_no_new_one_out() -> Result<()> {
    let Some(mut cluster) = prepared(Options::default(), &NODES)? else { return Ok(()) };
    cluster.manifests.write_service(&web(&cluster, &PODS)?)?;
    let isolated = Service::sharing("shop/isolated", ISOLATED, "TCP", ISOLATED).dual_stack();
    cluster.manifests.write_service(&isolated.with(endpoints(&cluster, &PODS)?))?;
    for pod in PODS {
        // A network plugin does so for a NetworkPolicy.
        cluster.pod(pod)?.namespace().nft(&format!(
            "table inet isolation {{
                chain input {{
                    type filter hook input priority 0;
                    tcp dport {ISOLATED} drop
                }}
            }}"
        ))?;
    }
    cluster.start_agents(&cluster.agent_options())?;
    survive(&cluster, |leader| flood::send_forged_connections(leader, VIP, ISOLATED, 0..FLOOD))?;
    let evicted = cluster.counted("stats", "evicted_half_open")? + cluster.counted("stats", "evicted_unconfirmed")?;
    ensure!(evicted > u64::from(FLOOD / 8), "the tables were not full: {evicted} flows were evicted");
    Ok(())
}

/// Runs a flood to the leader's MAC. Meanwhile new connections are answered, and idle ones survive.
fn survive(cluster: &Cluster, flood: impl FnOnce(MacAddr) -> Result<()> + Send) -> Result<()> {
    let client = cluster.lan.client()?;
    await_web(client)?;
    let mut sessions = sessions(cluster, PODS.len())?;
    let leader = client.neighbor(VIP)?.context("the client has no neighbor entry of the VIP")?;

    let answered = std::thread::scope(|scope| {
        let flood = scope.spawn(|| client.namespace().run(|| flood(leader)));
        let ask = || cluster.ask(to_web(VIP.into()), PATIENCE).is_ok();
        let mut answered = (0..TRIES / 2).filter(|_| ask()).count();
        flood.join().map_err(|_| anyhow!("the flood panicked"))??;
        answered += (0..TRIES / 2).filter(|_| ask()).count();
        anyhow::Ok(answered)
    })?;
    ensure!(answered * 100 >= TRIES * 95, "{answered} of {TRIES} new connections were answered");
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
