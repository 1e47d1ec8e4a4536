//! `vipmux allocator` beside an API server, with the rights of its ServiceAccount.

use std::{
    net::Ipv4Addr,
    path::PathBuf,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    agent,
    api_server::{ApiServer, SYSTEM},
    cluster::PATIENCE,
    process::Process,
    scrape::{self, Metrics},
};

/// Its ServiceAccount and its Lease.
pub const NAME: &str = "vipmux-allocator";
/// As whom its requests are told.
pub const USER: &str = "system:serviceaccount:vipmux-system:vipmux-allocator";
/// How long a stopped one may take to end.
const END: Duration = Duration::from_mins(1);
/// How many were started.
static STARTED: AtomicU8 = AtomicU8::new(0);

/// What it may do, as it is deployed.
const RIGHTS: &str = include_str!("../../deploy/kustomize/rbac-allocator.yaml");

/// Makes vipmux's namespace and kinds, and the allocator's account with its rights. What [`Allocator::start`] wants.
pub fn prepare(api: &ApiServer) -> Result<PathBuf> {
    api.add_namespace(SYSTEM)?;
    api.add_custom_kinds()?;
    api.apply(RIGHTS)?;
    Ok(api.service_account(SYSTEM, NAME)?.kubeconfig)
}

/// A running allocator; killed when dropped.
#[derive(Debug)]
pub struct Allocator {
    process: Process,
    /// Where it tells how it fares.
    listens: Ipv4Addr,
}

impl Allocator {
    /// Starts one of this name, on the API server's machine.
    pub fn start(api: &ApiServer, kubeconfig: &PathBuf, name: &str, arguments: &[&str]) -> Result<Self> {
        // Several are on one machine.
        let listens = Ipv4Addr::new(127, 0, 1, STARTED.fetch_add(1, Ordering::Relaxed));
        let mut command = api.machine().namespace.command(agent::binary()?)?;
        command.args(["allocator", "--name", name, "--namespace", SYSTEM, "--kubeconfig"]).arg(kubeconfig);
        command.arg("--http-listen").arg(format!("{listens}:{}", scrape::PORT));
        let process = Process::spawn(name, {
            command.args(arguments);
            command
        })?;
        Ok(Self { process, listens })
    }

    /// What it tells by HTTP.
    pub fn metrics(&self, api: &ApiServer) -> Result<Metrics> {
        Metrics::scrape(&api.machine().namespace, self.listens, PATIENCE)
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Kills it, as a machine's failure does.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Asks it to end, and waits for that.
    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.wait(END)?;
        anyhow::ensure!(status.success(), "it ended with {status}:\n{}", self.process.last_output());
        Ok(())
    }

    /// Who holds the allocators' Lease: the name of one; empty: nobody.
    pub fn holder(api: &ApiServer) -> Result<String> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "namespace": SYSTEM, "name": NAME },
        });
        let lease: Value = api.get(&lease)?.context("there is no Lease")?;
        let identity = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        Ok(identity.split('_').next().unwrap_or_default().to_owned())
    }
}
