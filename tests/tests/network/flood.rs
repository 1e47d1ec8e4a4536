//! Tests that a flood of new flows only affects new flows. Existing flows continue, and so do new
//! ones to other nodes, by the table.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use vipmux_common::abi::Config;
use vipmux_datapath::bpf::maps::Maps;
use vipmux_tests::{
    agent,
    client::Session,
    cluster::{Cluster, SHORT_TIMEOUT, TIMEOUT},
    lan::Options,
};

use crate::policies::{VIPS, WEB, await_web, prepared, to_web, web};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// With 60 connections, the chance that one of three equal backends gets none is below 10^-10.
const CONNECTIONS: usize = 60;

#[test]
fn beyond_the_limit_on_records_known_flows_go_on_and_so_do_new_ones_to_other_nodes() -> Result<()> {
    let Some(mut cluster) = prepared(Options::default(), &NODES)? else { return Ok(()) };
    let pods = ["web-1", "web-2", "web-3"];
    cluster.manifests.write_service(&web(&cluster, &pods)?)?;
    // The self-check must not repair the changes of maps below.
    cluster.start_agents(&agent::Options { self_check: "0", ..cluster.agent_options() })?;
    await_web(cluster.lan.client()?)?;
    for vip in VIPS {
        let leader = cluster.await_leader(vip)?.name.clone();
        let local = pods.into_iter().find(|pod| cluster.pod(pod).is_ok_and(|pod| pod.node == leader));
        let local = local.context("the leader has no pod")?;
        let mut sessions = sessions_to_all(&cluster, vip, pods.len())?;

        let mut maps = Maps::open(cluster.agent(&leader)?.pins())?;
        let config = maps.read_config()?;
        // As if a flood had used it up.
        maps.config.set(0, Config { records_per_second: 0, ..config }, 0)?;
        let refused = cluster.counted("drops", "record_limited")?;
        let reached = reached(&cluster, vip);
        ensure!(!reached.contains(local) && reached.len() == pods.len() - 1, "{vip}: {reached:?}, and {local} is here");
        ensure!(cluster.counted("drops", "record_limited")? > refused, "{vip}: what was refused was not counted");
        ensure!(cluster.counted("stats", "unrecorded")? > 0, "{vip}: what went on without a record was not counted");
        for session in &mut sessions {
            session.echo("still there?").with_context(|| vip.to_string())?;
        }

        maps.config.set(0, config, 0)?;
        drop(sessions_to_all(&cluster, vip, pods.len())?);
    }
    Ok(())
}

/// Returns the pods that new connections reach.
fn reached(cluster: &Cluster, vip: IpAddr) -> BTreeSet<String> {
    (0..CONNECTIONS).filter_map(|_| Some(cluster.ask(to_web(vip), SHORT_TIMEOUT).ok()?.pod)).collect()
}

/// Opens a connection to each of this many pods.
fn sessions_to_all(cluster: &Cluster, vip: IpAddr, pods: usize) -> Result<Vec<Session>> {
    let (mut sessions, mut reached) = (Vec::new(), BTreeSet::new());
    for _ in 0..CONNECTIONS {
        let client = cluster.lan.client()?.namespace();
        let mut session = client.run(|| Session::connect((vip, WEB.0).into(), TIMEOUT))?;
        if reached.insert(session.echo("hello")?.pod) {
            sessions.push(session);
        }
    }
    ensure!(reached.len() == pods, "{vip}: {reached:?}");
    Ok(sessions)
}
