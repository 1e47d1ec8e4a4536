//! The command lines of etcd and kube-apiserver.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{
    access, audit,
    host::{Launch, PORT},
};
use crate::{cleanup::Folder, cluster_programs, lan::Machine, process::Process};

/// etcd's port. Only the API server is in the namespace.
const ETCD: &str = "http://127.0.0.1:2379";
/// etcd's port for peers, which a single etcd does not need.
const ETCD_PEERS: &str = "http://127.0.0.1:2380";
/// The folders of etcd's data and of its backup.
const ETCD_DATA: &str = "etcd";
const ETCD_BACKUP: &str = "etcd-backup";
/// The range of the Services' cluster addresses.
const SERVICE_NETWORKS: (&str, &str) = ("10.96.0.0/16", "2001:db8:96::/112");

impl Launch {
    pub(super) fn prepare(machine: Machine) -> Result<Self> {
        let launch = Self { folder: Folder::temporary("api-server")?, machine };
        let write = |file: &str, text: &str| {
            let path = launch.path(file);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write(audit::POLICY_FILE, audit::POLICY)?;
        write(access::TOKENS_FILE, &access::tokens())?;
        Ok(launch)
    }

    /// Copies the data of etcd, which does not run.
    pub(super) fn back_up(&self) -> Result<()> {
        self.copy(ETCD_DATA, ETCD_BACKUP)
    }

    /// Copies the data back.
    pub(super) fn restore(&self) -> Result<()> {
        fs::remove_dir_all(self.path(ETCD_DATA)).context("cannot remove etcd's data")?;
        self.copy(ETCD_BACKUP, ETCD_DATA)
    }

    fn copy(&self, from: &str, to: &str) -> Result<()> {
        let status = Command::new("cp").arg("-a").arg(self.path(from)).arg(self.path(to)).status();
        let status = status.context("cannot run cp")?;
        ensure!(status.success(), "cannot copy {from} to {to}");
        Ok(())
    }

    pub(super) fn etcd(&self) -> Result<Process> {
        let mut command = self.command("etcd")?;
        command.arg("--data-dir").arg(self.path(ETCD_DATA));
        // The data is useless after a crash of this machine, so it is not synchronized.
        command.args(["--unsafe-no-fsync", "--log-level", "warn"]);
        command.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
        command.args(["--listen-peer-urls", ETCD_PEERS, "--initial-advertise-peer-urls", ETCD_PEERS]);
        command.args(["--initial-cluster", &format!("default={ETCD_PEERS}")]);
        Process::spawn("etcd", command)
    }

    pub(super) fn api_server(&self) -> Result<Process> {
        let mut command = self.command("kube-apiserver")?;
        let networks = self.machine.families.list(&SERVICE_NETWORKS.0, &SERVICE_NETWORKS.1);
        let address = self.address().to_string();
        command.args(["--advertise-address", &address, "--secure-port", &PORT.to_string()]);
        command.args(["--etcd-servers", ETCD, "--service-cluster-ip-range", &networks]);
        command.args(["--authorization-mode", "Node,RBAC", "--service-account-issuer", access::ISSUER]);
        let key = self.path(access::KEY_FILE);
        command.arg("--service-account-signing-key-file").arg(&key).arg("--service-account-key-file").arg(&key);
        // Its machine has no kube-proxy, and webhooks are reached by their Pods' addresses.
        command.arg("--enable-aggregator-routing");
        command.args(["--allow-privileged", "--kubelet-preferred-address-types", "InternalIP"]);
        command.arg("--token-auth-file").arg(self.path(access::TOKENS_FILE));
        command.arg("--cert-dir").arg(self.path(access::CERTIFICATES));
        command.arg("--audit-policy-file").arg(self.path(audit::POLICY_FILE));
        command.arg("--audit-log-path").arg(self.path(audit::LOG_FILE));
        // One file of any size.
        command.args(["--audit-log-maxsize", "100000"]);
        Process::spawn("kube-apiserver", command)
    }

    /// Starts the controller manager. The nodes' Pods have their address ranges without it.
    pub(super) fn controller_manager(&self) -> Result<Process> {
        let mut command = self.controller("kube-controller-manager", access::CONTROLLER_MANAGER)?;
        command.arg("--use-service-account-credentials").arg("--service-account-private-key-file");
        command.arg(self.path(access::KEY_FILE)).arg("--root-ca-file").arg(self.path(access::CERTIFICATE_FILE));
        Process::spawn("kube-controller-manager", command)
    }

    pub(super) fn scheduler(&self) -> Result<Process> {
        Process::spawn("kube-scheduler", self.controller("kube-scheduler", access::SCHEDULER)?)
    }

    fn controller(&self, program: &str, user: &str) -> Result<Command> {
        let mut command = self.command(program)?;
        command.arg("--leader-elect=false").arg("--kubeconfig").arg(self.kubeconfig(user)?);
        Ok(command)
    }

    /// Returns a command of a cluster program on the machine, with a home folder of its own.
    pub(super) fn command(&self, program: &str) -> Result<Command> {
        let mut command = self.machine.namespace.command(cluster_programs::find(program)?)?;
        command.env("HOME", self.folder.path()).current_dir(self.folder.path());
        for variable in
            ["KUBECONFIG", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HTTPS_PROXY", "https_proxy"]
        {
            command.env_remove(variable);
        }
        Ok(command)
    }
}
