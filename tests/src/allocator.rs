//! `vipmux allocator` beside an API server, with the rights of its ServiceAccount.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    agent,
    api_server::{ApiServer, SYSTEM},
    process::Process,
};

/// Its ServiceAccount and its Lease.
pub const NAME: &str = "vipmux-allocator";
/// As whom its requests are told.
pub const USER: &str = "system:serviceaccount:vipmux-system:vipmux-allocator";
/// How long a stopped one may take to end.
const END: Duration = Duration::from_secs(20);

/// What it may do.
const RIGHTS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: { namespace: vipmux-system, name: vipmux-allocator }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: vipmux-allocator }
rules:
- { apiGroups: [''], resources: [services, nodes, namespaces], verbs: [list, watch] }
- { apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch] }
- { apiGroups: [vipmux.io], resources: [vippools, vippolicies], verbs: [list, watch] }
- { apiGroups: [metallb.io], resources: [ipaddresspools, l2advertisements], verbs: [list, watch] }
- { apiGroups: [''], resources: [services/status], verbs: [patch] }
- { apiGroups: [vipmux.io], resources: [vippools/status, vippolicies/status], verbs: [patch] }
- { apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: vipmux-allocator }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: vipmux-allocator }
subjects: [{ kind: ServiceAccount, namespace: vipmux-system, name: vipmux-allocator }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { namespace: vipmux-system, name: vipmux-allocator }
rules:
- { apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, list, watch] }
- { apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [vipmux-allocator], verbs: [get, update] }
- { apiGroups: [''], resources: [secrets], verbs: [create] }
- { apiGroups: [''], resources: [secrets], resourceNames: [vipmux-gossip], verbs: [get] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { namespace: vipmux-system, name: vipmux-allocator }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: vipmux-allocator }
subjects: [{ kind: ServiceAccount, namespace: vipmux-system, name: vipmux-allocator }]
";

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
}

impl Allocator {
    /// Starts one of this name, on the API server's machine.
    pub fn start(api: &ApiServer, kubeconfig: &PathBuf, name: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = api.machine().namespace.command(agent::binary()?)?;
        command.args(["allocator", "--name", name, "--namespace", SYSTEM, "--kubeconfig"]).arg(kubeconfig);
        let process = Process::spawn(name, {
            command.args(arguments);
            command
        })?;
        Ok(Self { process })
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
