//! Runs `vipmux allocator` beside an API server, with the rights of its ServiceAccount.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use vipmux_model::permissions::allocator_namespace;

use crate::{
    agent,
    api_server::{ApiServer, SYSTEM},
    cluster::PATIENCE,
    process::Process,
    scrape::{self, Metrics},
};

/// The name of its ServiceAccount and of its Lease.
pub const NAME: &str = "vipmux-allocator";
/// Its user name in the audit log.
pub const USER: &str = "system:serviceaccount:vipmux-system:vipmux-allocator";
/// The time limit for its stop.
const END: Duration = Duration::from_mins(1);
/// The number of allocators started so far.
static STARTED: AtomicU8 = AtomicU8::new(0);

/// Its rights, as deployed.
const RIGHTS: &str = include_str!("../../deploy/kustomize/rbac-allocator.yaml");

/// Makes vipmux's namespaces and custom kinds, and the allocator's account with its rights. Required
/// before [`Allocator::start`].
pub fn prepare(api: &ApiServer) -> Result<PathBuf> {
    api.add_namespace(SYSTEM)?;
    api.add_custom_kinds()?;
    api.apply(RIGHTS)?;
    Ok(api.service_account(SYSTEM, NAME)?.kubeconfig)
}

/// A running allocator, killed on drop.
#[derive(Debug)]
pub struct Allocator {
    process: Process,
    /// The address of its metrics.
    listens: Ipv4Addr,
}

impl Allocator {
    /// Starts an allocator of this name, on the API server's machine.
    pub fn start(api: &ApiServer, kubeconfig: &Path, name: &str, arguments: &[&str]) -> Result<Self> {
        // Several allocators run on one machine.
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

    /// Returns its metrics, by HTTP.
    pub fn metrics(&self, api: &ApiServer) -> Result<Metrics> {
        Metrics::scrape(&api.machine().namespace, self.listens, PATIENCE)
    }

    /// Returns whether it is ready (`/readyz`), and why not.
    pub fn readiness(&self, api: &ApiServer) -> Result<(bool, String)> {
        let (status, body) = scrape::get(&api.machine().namespace, self.listens, "/readyz", PATIENCE)?;
        Ok((status == 200, body))
    }

    /// Returns its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Kills it, as a failing machine does.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Stops it with SIGTERM, and waits for its end.
    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.wait(END)?;
        anyhow::ensure!(status.success(), "it ended with {status}:\n{}", self.process.last_output());
        Ok(())
    }

    /// Returns the holder of the allocators' Lease; empty: nobody.
    pub fn holder(api: &ApiServer) -> Result<String> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "namespace": allocator_namespace(SYSTEM), "name": NAME },
        });
        let lease: Value = api.get(&lease)?.context("there is no Lease")?;
        let identity = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        Ok(identity.split('_').next().unwrap_or_default().to_owned())
    }
}
