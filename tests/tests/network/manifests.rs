//! Tests a directory of manifests that goes away, and objects that are defined twice.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, SILENCE, TIMEOUT},
    lan::Options,
    manifests::{Manifests, Service, VIP},
    pod::Listener,
    wait,
};

use crate::services;

/// Returns the finding of `vipmux explain` about the manifests, on each node.
fn manifest_findings(cluster: &Cluster) -> Result<Vec<String>> {
    let finding = |agent: &vipmux_tests::agent::Agent| {
        let (_, explanation) = agent.explain(cluster.lan.node(agent.node())?, "shop/web", &[])?;
        let steps = explanation["chain"].as_array().with_context(|| explanation.to_string())?;
        let step = steps.iter().find(|step| step["step"] == "manifest").context("no step `manifest`")?;
        Ok(format!("{}: {}", step["state"], step["finding"]))
    };
    cluster.agents.iter().map(finding).collect()
}

/// Waits until each agent says this about the manifests, in its log and to `vipmux explain`.
fn await_said(cluster: &Cluster, text: &str) -> Result<()> {
    for agent in &cluster.agents {
        agent.process().wait_for_line(text, PATIENCE, |line| line.contains("new warning") && line.contains(text))?;
    }
    wait::until("the explanation", PATIENCE, || {
        let findings = manifest_findings(cluster)?;
        ensure!(findings.iter().all(|it| it.contains("note") && it.contains(text)), "{findings:?}");
        Ok(())
    })
}

#[test]
fn while_the_manifests_directory_is_gone_everything_stays_served() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let root = cluster.manifests.path();
    fs::remove_dir_all(root)?;
    await_said(&cluster, "cannot list the directory")?;
    services::ask_all(&cluster, 1)?;
    // A mount point whose volume is gone looks like this, and a copy that begins.
    fs::create_dir(root)?;
    await_said(&cluster, "an empty directory has taken its place")?;
    services::ask_all(&cluster, 1)?;

    let filled = Manifests::for_lan(&cluster.lan)?;
    filled.write_service(&services::web(&cluster)?)?;
    fs::remove_dir(root)?;
    fs::rename(filled.path(), root)?;
    let gone = services::expected().into_iter().skip(1);
    for expected in gone {
        wait::until("silence", PATIENCE, || {
            ensure!(cluster.ask(expected.request, SILENCE).is_err(), "{} is served", expected.name);
            Ok(())
        })?;
    }
    cluster.ask(services::expected()[0].request, TIMEOUT)?;
    services::write(&cluster)?;
    services::await_all(&cluster)?;
    let findings = manifest_findings(&cluster)?;
    ensure!(findings.iter().all(|finding| finding.contains("holds")), "{findings:?}");
    Ok(())
}

#[test]
fn a_second_definition_in_a_file_that_sorts_earlier_does_not_replace_what_is_served() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    cluster.add_pod("node-3", "other-1", 20, &[Listener::new(Kind::Http, 9100, "ops/other")])?;
    let request = Request::new(Kind::Http, VIP, 80);
    let other = Service::sharing("shop/web", 80, "TCP", 9100).with([cluster.endpoint("other-1")?]);
    cluster.manifests.write("a.yaml", &other.documents())?;
    await_said(&cluster, "shop-web.yaml, document 1, too; that one is in force")?;
    services::ask_all(&cluster, 4)?;
    // The older file stays in force.
    for node in ["node-1", "node-2", "node-3"] {
        cluster.restart_agent(node)?;
    }
    services::await_all(&cluster)?;
    services::ask_all(&cluster, 4)?;

    let path = |name: &str| cluster.manifests.path().join(name);
    fs::rename(path("shop-web.yaml"), path("z.yaml"))?;
    await_said(&cluster, "z.yaml, document 1, too; that one is in force")?;
    services::ask_all(&cluster, 4)?;
    fs::remove_file(path("z.yaml"))?;
    wait::until("the other definition", PATIENCE, || {
        let answer = cluster.ask(request, TIMEOUT)?;
        ensure!(answer.service == "ops/other", "{answer}");
        Ok(())
    })
}
