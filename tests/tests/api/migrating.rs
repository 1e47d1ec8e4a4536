//! Tests `vipmux migrate` from the plan to the check of the result, with the real allocator, and
//! once under traffic.

mod peers;
mod traffic;

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vipmux_tests::{
    agent,
    allocator::{self, Allocator},
    api_server::{ADMIN, ApiServer, SYSTEM},
    cleanup::Folder,
    wait,
};

use self::peers::{CILIUM, KUBE_VIP, METALLB, Peer};

/// The findings of `vipmux migrate ready` or `verify`, by check.
struct Findings(Value);

impl Findings {
    fn of(&self, check: &str) -> Result<(&str, &str)> {
        let mut checks = self.0["checks"].as_array().context("no checks")?.iter();
        let found =
            checks.find(|found| found["check"] == check).with_context(|| format!("no {check}: {:#}", self.0))?;
        let text = |key: &str| found[key].as_str().unwrap_or_default();
        Ok((text("verdict"), text("found")))
    }

    /// Returns the checks that fail, in order.
    fn failed(&self) -> Vec<&str> {
        let checks = self.0["checks"].as_array().into_iter().flatten();
        checks.filter(|found| found["verdict"] == "fail").filter_map(|found| found["check"].as_str()).collect()
    }
}

/// A cluster with another load balancer and two Services, of which one has an address.
struct Migration {
    api: ApiServer,
    folder: Folder,
    /// The allocator's access.
    kubeconfig: std::path::PathBuf,
}

impl Migration {
    /// `None` if the test is skipped.
    fn from(peer: &Peer) -> Result<Option<Self>> {
        let Some(api) = ApiServer::alone()? else { return Ok(None) };
        let kubeconfig = allocator::prepare(&api)?;
        api.add_namespace("shop")?;
        peer.install(&api)?;
        for (name, port) in [("web", 80), ("new", 81)] {
            api.apply_all(&[
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
                "spec": {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{"port": port}]}}),
            ])?;
        }
        peer.give(&api, "web", "192.0.2.202")?;
        Ok(Some(Self { api, folder: Folder::temporary("migration")?, kubeconfig }))
    }

    fn files(&self) -> std::path::PathBuf {
        self.folder.path().join("out")
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Result<(i32, Value)> {
        let kubeconfig = self.api.kubeconfig(ADMIN)?;
        agent::migrate(&self.api.machine().namespace, &kubeconfig, command, &self.files(), arguments)
    }

    fn findings(&self, command: &str) -> Result<(i32, Findings)> {
        let (status, said) = self.run(command, &[])?;
        ensure!(matches!(status, 0 | 2), "{status}: {said}");
        Ok((status, Findings(said)))
    }

    /// Waits until the checks after the cut-over fail so.
    fn await_failures(&self, expected: &[&str]) -> Result<Findings> {
        wait::until(&format!("only {expected:?} to fail"), vipmux_tests::cluster::PATIENCE, || {
            let (_, found) = self.findings("verify")?;
            ensure!(found.failed() == expected, "{:#}", found.0);
            Ok(found)
        })
    }

    fn apply_pools(&self) -> Result<()> {
        self.api.apply(&fs::read_to_string(self.files().join("pools.yaml"))?).map(drop)
    }

    /// Lets a node lead the address, as an agent does.
    fn lead(&self) -> Result<()> {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let lease = |name: &str| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": SYSTEM, "name": name},
                "spec": {"holderIdentity": "n1", "leaseTransitions": 1}})
        };
        self.api.apply_all(&[node, lease("vip-c00002ca")]).map(drop)
    }
}

fn migrates(peer: &Peer, owner_fails_without_adopt: bool) -> Result<()> {
    let Some(migration) = Migration::from(peer)? else { return Ok(()) };
    let api = &migration.api;
    let after = api.mark()?;
    let (status, plan) = migration.run("plan", &[])?;
    assert_eq!(status, 0, "{plan:#}");
    let written: Vec<_> =
        api.requests(after)?.into_iter().filter(|request| request.user == ADMIN && request.is_write()).collect();
    assert!(written.is_empty(), "a plan changes the cluster: {written:?}");
    let web = &plan["services"][1];
    assert_eq!((&web["service"], &web["owner"]), (&json!("shop/web"), &json!(peer.manager)));
    assert_eq!((&web["now"], &web["with_vipmux"]), (&json!(["192.0.2.202"]), &json!(["192.0.2.202"])));
    assert!(
        plan["changes"]
            .as_array()
            .context("no changes")?
            .iter()
            .any(|it| it["object"] == format!("VipPool {}", peer.pool))
    );
    let (status, error) = migration.run("plan", &[])?;
    assert_eq!(status, 1, "the record of an earlier plan is lost");
    assert!(error.to_string().contains("before.json exists"), "{error}");

    let (status, found) = migration.findings("ready")?;
    assert_eq!((status, found.failed()), (2, vec!["pools", "speakers", "assigners"]), "{:#}", found.0);
    migration.apply_pools()?;
    let (_, found) = migration.findings("ready")?;
    assert_eq!(found.failed(), ["speakers", "assigners"], "{:#}", found.0);
    if peer.manager == CILIUM.manager {
        // What is deleted can come back.
        let saved = fs::read_to_string(migration.files().join("cilium.yaml"))?;
        peer.stop(api)?;
        api.kubectl_apply(&saved, &[])?;
        assert_eq!(migration.findings("ready")?.1.failed(), ["speakers"]);
    }
    peer.stop(api)?;
    let (status, found) = migration.findings("ready")?;
    assert_eq!((status, found.failed()), (0, vec![]), "{:#}", found.0);

    let mut careful = Allocator::start(api, &migration.kubeconfig, "careful", &[])?;
    // No agent runs, so nobody leads and nobody answers.
    let owner: &[&str] = if owner_fails_without_adopt { &["status-owner"] } else { &[] };
    migration.await_failures(&[owner, &["announced", "lan"]].concat())?;
    careful.stop()?;
    let _adopting = Allocator::start(api, &migration.kubeconfig, "adopting", &["--adopt"])?;
    migration.await_failures(&["announced", "lan"])?;
    migration.lead()?;
    let found = migration.await_failures(&[])?;
    assert_eq!(found.of("addresses")?, ("pass", "the addresses of all 1 Services are as before"));
    assert_eq!(found.of("status-owner")?.0, "pass");
    assert_eq!(migration.run("verify", &[])?.0, 0);
    Ok(())
}

#[test]
fn services_of_metallb_keep_their_addresses() -> Result<()> {
    migrates(&METALLB, false)
}

/// kube-vip writes ports into the status, so vipmux cannot share its ownership.
#[test]
fn services_of_kube_vip_keep_their_addresses_with_adopt() -> Result<()> {
    migrates(&KUBE_VIP, true)
}

#[test]
fn services_of_cilium_keep_their_addresses() -> Result<()> {
    migrates(&CILIUM, false)
}

#[test]
fn metallbs_webhook_without_its_controller_is_reported_and_harms_no_pool_of_vipmux() -> Result<()> {
    let Some(migration) = Migration::from(&METALLB)? else { return Ok(()) };
    let api = &migration.api;
    api.apply_all(&[peers::webhook()])?;
    assert_eq!(migration.run("plan", &[])?.0, 0);
    METALLB.stop(api)?;
    wait::until("the webhook to refuse a pool of MetalLB", vipmux_tests::cluster::PATIENCE, || {
        let refused = api.kubectl(&["-n", "other-system", "annotate", "--overwrite", "ipaddresspool", "lan", "a=b"]);
        ensure!(refused.is_err(), "it is accepted");
        Ok(())
    })?;
    migration.apply_pools()?;
    let (status, found) = migration.findings("ready")?;
    assert_eq!(status, 0, "{:#}", found.0);
    let (verdict, text) = found.of("webhooks")?;
    assert_eq!(verdict, "warn");
    assert!(text.contains("metallb-webhook-configuration"), "{text}");
    api.kubectl(&["delete", "validatingwebhookconfiguration", "metallb-webhook-configuration"])?;
    assert_eq!(migration.findings("ready")?.1.of("webhooks")?.0, "pass");
    Ok(())
}

#[test]
fn a_service_that_would_move_is_reported_by_the_exit_status() -> Result<()> {
    let Some(migration) = Migration::from(&METALLB)? else { return Ok(()) };
    METALLB.give(&migration.api, "new", "198.51.100.9")?;
    let (status, plan) = migration.run("plan", &[])?;
    assert_eq!(status, 2, "{plan:#}");
    assert_eq!(plan["services"][0]["keeps"], false);
    assert!(Path::new(&migration.files()).join("before.json").exists());
    Ok(())
}

#[test]
fn a_cluster_without_another_load_balancer_is_an_error() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    let folder = Folder::temporary("migration")?;
    let (status, error) =
        agent::migrate(&api.machine().namespace, &api.kubeconfig(ADMIN)?, "plan", folder.path(), &[])?;
    assert_eq!(status, 1);
    assert!(error.to_string().contains("found no MetalLB"), "{error}");
    Ok(())
}
