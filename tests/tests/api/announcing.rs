//! Tests the condition `Announced` of Services whose leader's answers nobody receives.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use vipmux_tests::{
    agent::{self, Access, Origin},
    allocator::{self, Allocator},
    api_server::ApiServer,
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Options},
    wait,
};

const LOST: &str = "frames that native XDP sends are lost on eth0";

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "shop", "name": "web" },
        "spec": { "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{ "port": 80 }] },
    })
}

/// Waits until the condition `Announced` has this status, reason and message.
fn await_announced(api: &ApiServer, expected: [&str; 3]) -> Result<()> {
    wait::until(&format!("Announced is {expected:?}"), PATIENCE, || {
        let service = api.get(&service())?.context("no Service")?;
        let conditions = service["status"]["conditions"].as_array().context("no conditions")?;
        let announced = conditions.iter().find(|it| it["type"] == "vipmux.io/Announced").context("no Announced")?;
        let found = ["status", "reason", "message"].map(|field| announced[field].as_str().unwrap_or_default());
        ensure!(found == expected, "it is {found:?}");
        Ok(())
    })
}

/// Returns the notes of the Events that say that answers are lost.
fn events(api: &ApiServer) -> Result<Vec<String>> {
    let events = api.kubectl(&["get", "events", "--namespace", "shop", "--output", "json"])?;
    let events: Value = serde_json::from_str(&events)?;
    let events = events["items"].as_array().into_iter().flatten().filter(|event| event["reason"] == "AnswersLost");
    Ok(events.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect())
}

#[test]
fn a_service_whose_leaders_answers_are_lost_is_not_announced_and_an_event_says_why() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let Some(mut cluster) = Cluster::in_kubernetes(lan)? else { return Ok(()) };
    let account = allocator::prepare(cluster.api()?)?;
    let _allocator = Allocator::start(cluster.api()?, &account, "a", &[])?;
    let options = cluster.agent_options();
    let Origin::Cluster(access) = options.origin.clone() else { bail!("the agents have no API server") };
    let origin = Origin::Cluster(Access { allocator: "on", ..access });
    cluster.start_agents(&agent::Options { origin, ..options })?;
    cluster.api()?.add_namespace("shop")?;
    cluster.api()?.apply_all(&[service()])?;
    let vip = wait::until("an address", PATIENCE, || {
        let service = cluster.api()?.get(&service())?.context("no Service")?;
        let vip = service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().context("no address")?;
        Ok(vip.parse::<IpAddr>()?)
    })?;
    let leader = cluster.await_leader(vip)?.name.clone();
    await_announced(cluster.api()?, ["True", "Led", &format!("{vip} by {leader}")])?;

    let other = if leader == "node-1" { "node-2" } else { "node-1" };
    cluster.lan.detach_pass(&leader)?;
    await_announced(cluster.api()?, ["True", "Led", &format!("{vip} by {other}")])?;
    cluster.lan.detach_pass(other)?;
    await_announced(cluster.api()?, ["False", "NoLeader", &format!("{vip} by nobody yet")])?;
    for node in [&leader, other] {
        let expected = format!("{vip} is not announced by {node}: {LOST}");
        wait::until(&expected, PATIENCE, || {
            let events = events(cluster.api()?)?;
            ensure!(events.iter().any(|event| event.starts_with(&expected)), "{events:?}");
            Ok(())
        })?;
    }

    cluster.lan.attach_pass(other)?;
    await_announced(cluster.api()?, ["True", "Led", &format!("{vip} by {other}")])
}
