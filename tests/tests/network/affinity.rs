//! Tests session affinity: a client stays with one pod for its Service's timeout.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::json;
use vipmux_tests::{
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::Options,
    manifests::Service,
    wait,
};

use crate::policies::{CONNECTIONS, VIPS, add_web_pod, await_ready, await_web, prepared, started, to_web, web};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// The affinity timeout in seconds: longer than the precision of the records' times.
const SHORT: (u32, Duration) = (1, Duration::from_millis(1_500));

#[test]
fn a_client_stays_with_its_pod_until_that_goes() -> Result<()> {
    let Some((mut cluster, mut pods)) = with_a_pod_on_each_node(None)? else { return Ok(()) };
    let before = homes(&cluster)?;
    ensure!(before.iter().collect::<BTreeSet<_>>().len() > 1, "all clients at {before:?}");

    // Without records, four of eight clients would move.
    double(&mut cluster, &mut pods, None)?;
    assert_eq!(homes(&cluster)?, before, "with {pods:?}");

    let gone = before[0].clone();
    pods.retain(|pod| *pod != gone);
    cluster.manifests.write_service(&affine(&cluster, &pods, None)?)?;
    await_ready(&cluster, pods.len())?;
    for (home, now) in before.iter().zip(homes(&cluster)?) {
        assert_eq!(now == *home, *home != gone, "from {home} to {now}, without {gone}");
    }
    Ok(())
}

/// After the timeout, the address decides again. That moves some clients, as the test above shows.
#[test]
fn a_client_that_was_away_for_longer_than_its_service_says_is_balanced_anew() -> Result<()> {
    let (seconds, longer) = SHORT;
    let Some((mut cluster, mut pods)) = with_a_pod_on_each_node(Some(seconds))? else { return Ok(()) };
    let before = homes(&cluster)?;
    let last_seen = Instant::now();
    double(&mut cluster, &mut pods, Some(seconds))?;
    wait::until("the clients' time", PATIENCE, || {
        ensure!(last_seen.elapsed() > longer, "it is not over yet");
        Ok(())
    })?;
    let after = homes(&cluster)?;
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    ensure!(moved > 0 && moved < before.len(), "{moved} of {before:?} moved, to {after:?}");
    Ok(())
}

/// Makes four clients, and `shop/web` with pods on three nodes. The affinity timeout is in seconds,
/// by default hours. `None` if the test is skipped.
fn with_a_pod_on_each_node(seconds: Option<u32>) -> Result<Option<(Cluster, Vec<String>)>> {
    let Some(cluster) = prepared(Options { clients: 4, ..Options::default() }, &NODES)? else { return Ok(None) };
    let pods: Vec<_> = (1..=NODES.len()).map(|number| format!("web-{number}")).collect();
    let service = affine(&cluster, &pods, seconds)?;
    let cluster = started(cluster, &[service])?;
    await_web(cluster.lan.client()?)?;
    Ok(Some((cluster, pods)))
}

/// Adds a pod on each node.
fn double(cluster: &mut Cluster, pods: &mut Vec<String>, seconds: Option<u32>) -> Result<()> {
    for node in NODES {
        pods.push(add_web_pod(cluster, node)?);
    }
    cluster.manifests.write_service(&affine(cluster, pods, seconds)?)?;
    await_ready(cluster, pods.len())
}

fn affine(cluster: &Cluster, pods: &[String], seconds: Option<u32>) -> Result<Service> {
    let pods: Vec<_> = pods.iter().map(String::as_str).collect();
    let service = web(cluster, &pods)?.with_field("sessionAffinity", json!("ClientIP"));
    let config = seconds.map(|seconds| json!({ "clientIP": { "timeoutSeconds": seconds } }));
    Ok(config.into_iter().fold(service, |service, config| service.with_field("sessionAffinityConfig", config)))
}

/// Returns the pod of each client at each address, which all its connections reach.
fn homes(cluster: &Cluster) -> Result<Vec<String>> {
    let all = cluster.lan.clients.iter().flat_map(|client| VIPS.map(|vip| (client, vip)));
    let home = |(client, vip): (&vipmux_tests::lan::Client, _)| {
        let connect = |_| Ok(client.namespace().run(|| to_web(vip).send(TIMEOUT))?.pod);
        let mut reached = (0..CONNECTIONS).map(connect).collect::<Result<BTreeSet<_>>>()?;
        ensure!(reached.len() == 1, "{} at {vip} reached {reached:?}", client.address);
        Ok(reached.pop_first().unwrap_or_default())
    };
    all.map(home).collect()
}
