//! Tests `vipmux explain` on nodes with and without agents.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vipmux_datapath::bpf::maps::Maps;
use vipmux_tests::{
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::Options,
    manifests::{Service, VIP},
    wait,
};

use crate::services;

/// Runs `vipmux explain` on a node.
fn explain(cluster: &Cluster, node: &str, target: &str, arguments: &[&str]) -> Result<(i32, Value)> {
    cluster.agent(node)?.explain(cluster.lan.node(node)?, target, arguments)
}

/// Returns the findings of a step.
fn findings<'a>(explanation: &'a Value, step: &str) -> Vec<&'a str> {
    let steps = explanation["chain"].as_array().into_iter().flatten().filter(|found| found["step"] == step);
    steps.filter_map(|step| step["finding"].as_str()).collect()
}

/// Waits until this is the first broken step; `null` for none.
fn await_broken(cluster: &Cluster, node: &str, target: &str, step: Option<&str>) -> Result<Value> {
    wait::until("the explanation", PATIENCE, || {
        let (code, explanation) = explain(cluster, node, target, &[])?;
        let found = explanation["broken"]["step"].as_str();
        ensure!(found == step && code == if step.is_some() { 2 } else { 0 }, "{code}: {explanation}");
        Ok(explanation)
    })
}

#[test]
fn a_served_service_and_its_vip_are_explained_by_leader_and_others() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let (leader, planned) = (cluster.await_leader(VIP)?.name.clone(), &cluster.planned_leader(VIP)?.name);
    let vip = VIP.to_string();
    for request in services::expected().map(|expected| expected.request).iter().take(1) {
        cluster.ask(*request, TIMEOUT)?;
    }
    for target in ["shop/web", &vip] {
        let explanation = await_broken(&cluster, &leader, target, None)?;
        assert_eq!(explanation["source"]["agent"], *leader);
        assert!(
            findings(&explanation, "leader")[0].starts_with(&format!("{planned} is preferred for {vip}")),
            "{explanation}"
        );
        assert!(findings(&explanation, "announced")[0].contains("this node answers"), "{explanation}");
        let traffic = findings(&explanation, "traffic");
        assert!(
            traffic.iter().any(|finding| finding.contains("packets") && finding.contains("shop/web")),
            "{traffic:?}"
        );
    }
    let other = if leader == "node-1" { "node-2" } else { "node-1" };
    let explanation = wait::until("who leads", PATIENCE, || {
        let explanation = await_broken(&cluster, other, "shop/web", None)?;
        let reported = findings(&explanation, "announced").first().is_some_and(|finding| finding.contains(&leader));
        ensure!(reported, "{explanation}");
        Ok(explanation)
    })?;
    assert_eq!(explanation["services"][0]["group"].as_array().context("group")?.len(), 4);
    let (code, error) = explain(&cluster, other, "shop/wbe", &[])?;
    assert_eq!(code, 1);
    assert!(error.as_str().context("an error")?.contains("did you mean shop/web"), "{error}");
    Ok(())
}

#[test]
fn broken_steps_are_found_on_a_live_agent() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    cluster.manifests.write_service(&Service::sharing("shop/empty", 81, "TCP", 8080))?;
    let explanation = await_broken(&cluster, &leader, "shop/empty", Some("endpoints"))?;
    assert!(findings(&explanation, "endpoints")[0].contains("has no IPv4 endpoints"), "{explanation}");
    let elsewhere =
        Service::sharing("shop/elsewhere", 82, "TCP", 8080).annotated("metallb.io/loadBalancerIPs", "203.0.113.1");
    cluster.manifests.write_service(&elsewhere)?;
    let explanation = await_broken(&cluster, &leader, "shop/elsewhere", Some("allocation"))?;
    assert!(explanation["broken"]["remedy"].as_str().context("a remedy")?.contains("pool"), "{explanation}");

    // Changed by hand, without the agent.
    let mut maps = Maps::open(cluster.agent(&leader)?.pins())?;
    let services = maps.read_services()?;
    let web = services.keys().find(|key| u16::from_be(key.port) == 80).context("no 80/TCP")?;
    // The agent's self-check may repair it before the command runs.
    wait::until("what is missing", PATIENCE, || {
        drop(maps.services.remove(web));
        let (code, explanation) = explain(&cluster, &leader, "shop/web", &[])?;
        ensure!((code, &explanation["broken"]["step"]) == (2, &"service".into()), "{explanation}");
        Ok(())
    })?;
    await_broken(&cluster, &leader, "shop/web", None)?;
    Ok(())
}

#[test]
fn without_its_agent_a_node_explains_what_its_kernel_holds_and_manifests_tell_the_rest() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    // The others first: nobody may take over.
    let mut others = cluster.agents.iter_mut().filter(|agent| agent.node() != leader);
    others.try_for_each(|agent| agent.process_mut().kill())?;
    cluster.agent_mut(&leader)?.process_mut().kill()?;
    let explanation = await_broken(&cluster, &leader, "shop/web", Some("announced"))?;
    assert!(explanation["source"]["nowhere"].as_str().context("why")?.contains("no agent listens"), "{explanation}");
    assert!(findings(&explanation, "announced")[0].contains("does not answer"), "{explanation}");
    assert!(findings(&explanation, "service")[0].contains("ready"), "{explanation}");
    let manifests = cluster.manifests.path().to_str().context("a path")?.to_owned();
    let (code, explanation) = explain(&cluster, &leader, "shop/web", &["--manifests", &manifests])?;
    assert_eq!((code, &explanation["source"]), (2, &"manifests".into()));
    let planned = &cluster.planned_leader(VIP)?.name;
    assert!(findings(&explanation, "leader")[0].starts_with(&format!("{planned} is preferred for")), "{explanation}");
    let (code, error) = explain(&cluster, &leader, "shop/gone", &[])?;
    assert_eq!(code, 1, "{error}");
    Ok(())
}
