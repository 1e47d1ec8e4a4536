//! A node: network, mount, UTS, IPC, PID and cgroup namespaces with containerd and the kubelet.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{Plan, cgroups::Cgroups};
use crate::{
    api_server::ApiServer,
    cleanup::Folder,
    cluster_programs,
    ip_families::IpFamilies,
    kube_proxy::KubeProxy,
    lan,
    process::{self, Process},
    wait,
};

/// The time limit for a start on a busy machine.
const START: Duration = Duration::from_mins(2);
const FIRST_PROCESS: &str = include_str!("node.sh");
const CONTAINERD: &str = r#"
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:latest"
  disable_apparmor = true
  # A node in a container may not lower it.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"#;
const SOCKET: &str = "run/containerd/containerd.sock";

/// A running node. On drop all its processes end.
#[derive(Debug)]
pub struct RealNode {
    /// Its name.
    pub name: String,
    // Dropped first: they run in the namespaces.
    _proxy: KubeProxy,
    process: Process,
    _cgroups: Cgroups,
    folder: Folder,
}

impl RealNode {
    /// Starts a node on a machine of the LAN, with these image archives. It is not Ready yet.
    pub(super) fn start(node: &lan::Node, api: &ApiServer, how: &Plan, images: &[PathBuf]) -> Result<Self> {
        let folder = Folder::temporary(&node.name)?;
        let at = folder.path();
        for place in ["var/lib", "var/log", "work", "etc/cni/net.d"] {
            fs::create_dir_all(at.join(place)).with_context(|| format!("cannot make {place}"))?;
        }
        let cgroups = Cgroups::make(&node.name)?;
        write(&at.join("cgroups"), &cgroups.files())?;
        if let Some(controllers) = cgroups.controllers() {
            write(&at.join("controllers"), &controllers)?;
        }
        write(&at.join("node.sh"), FIRST_PROCESS)?;
        write(&at.join("containerd.toml"), CONTAINERD)?;
        write(&at.join("kubelet.json"), &kubelet(node.families()))?;
        how.cni.prepare(node, api, at)?;

        for family in ["iptables", "ip6tables"] {
            node.namespace().sysctl(&format!("net/bridge/bridge-nf-call-{family}"), "1")?;
        }
        let mut command = node.namespace().command("unshare")?;
        command.args(["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]);
        command.args(["--propagation", "private", "sh"]).arg(at.join("node.sh")).arg(&node.name).arg(at);
        command.arg(cluster_programs::find("kubelet")?).arg("--config").arg(at.join("kubelet.json"));
        command.arg("--kubeconfig").arg(api.kubeconfig(&format!("system:node:{}", node.name))?);
        command.args(["--hostname-override", &node.name, "--root-dir", "/var/lib/kubelet"]);
        command.args(["--node-ip", &node.families().list(&node.address, &node.address_v6)]);
        let process = Process::spawn(&node.name, command)?;
        process.wait_for_line("the node's first process", START, |line| line == "ready")?;
        let proxy = KubeProxy::start(node, api, how.mode)?;
        let started = Self { name: node.name.clone(), _proxy: proxy, process, _cgroups: cgroups, folder };
        started.import(images)?;
        Ok(started)
    }

    /// Returns the id of its first process, as this machine sees it.
    pub fn pid(&self) -> Result<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.process.id());
        let children = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        children.split_whitespace().next().and_then(|pid| pid.parse().ok()).context("the node has no process")
    }

    /// Returns the folder of its logs: `kubelet.log`, `containerd.log`, and `var/log`.
    pub fn logs(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a command in all its namespaces.
    pub fn command(&self, program: &str) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid()?.to_string()]);
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--", program]);
        Ok(command)
    }

    fn import(&self, images: &[PathBuf]) -> Result<()> {
        let socket = PathBuf::from(format!("/proc/{}/root/{SOCKET}", self.pid()?));
        wait::until("containerd's socket", START, || {
            ensure!(socket.exists(), "{} is missing", socket.display());
            Ok(())
        })?;
        for image in images {
            let mut import = self.command("ctr")?;
            import.args(["--namespace", "k8s.io", "images", "import"]).arg(image);
            process::run(import).with_context(|| format!("cannot import {} on {}", image.display(), self.name))?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The kubelet's configuration. The network namespace keeps strangers away from it.
fn kubelet(families: IpFamilies) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false,
        "containerRuntimeEndpoint": format!("unix:///{SOCKET}"),
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "clusterDomain": "cluster.local",
        "clusterDNS": [super::dns(families)],
        "resolvConf": "",
        "evictionHard": { "memory.available": "100Mi", "nodefs.available": "0%", "imagefs.available": "0%" },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    })
    .to_string()
}
