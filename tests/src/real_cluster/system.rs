//! The load balancers that serve a real cluster: vipmux, and those that it is compared with and migrated
//! from. Their manifests are their own.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{PATIENCE, RealCluster};
use crate::{api_server::SYSTEM, cluster_programs, process, wait};

/// The addresses of every pool here.
const RANGE: &str = "192.0.2.200-192.0.2.219";
/// The manifests that MetalLB and kube-vip's cloud provider publish, as they are kept beside the programs.
const METALLB: (&str, &str) = ("metallb-controller", "metallb-native.yaml");
const CLOUD_PROVIDER: (&str, &str) = ("kube-vip-cloud-provider", "kube-vip-cloud-controller.yaml");
/// Services by ARP, and an election for each Service: the options that kube-vip's documentation has for a
/// cluster with a load balancer for Services only.
const KUBE_VIP: [&str; 6] = ["--services", "--inCluster", "--arp", "--servicesElection", "--interface", "eth0"];

/// A load balancer for Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// vipmux, as `deploy/kustomize` has it.
    Vipmux,
    /// MetalLB's native mode with L2 announcements.
    #[value(name = "metallb")]
    MetalLb,
    /// kube-vip with its cloud provider.
    KubeVip,
}

/// An image: its name without the tag, its program, and the program's path in it, which its containers run.
#[derive(Debug)]
pub(super) struct SystemImage {
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    pub(super) entrypoint: [&'static str; 1],
}

impl SystemImage {
    /// Returns its name with the tag of the program's version.
    pub(super) fn reference(&self) -> Result<String> {
        let version = cluster_programs::version(self.program).context("the program is of no module")?;
        Ok(format!("{}:{version}", self.name))
    }
}

impl System {
    /// Returns its images. That of vipmux is made otherwise.
    pub(super) const fn images(self) -> &'static [SystemImage] {
        match self {
            Self::Vipmux => &[],
            Self::MetalLb => &[
                SystemImage {
                    name: "quay.io/metallb/controller",
                    program: "metallb-controller",
                    entrypoint: ["/controller"],
                },
                SystemImage { name: "quay.io/metallb/speaker", program: "metallb-speaker", entrypoint: ["/speaker"] },
            ],
            Self::KubeVip => &[
                SystemImage { name: "ghcr.io/kube-vip/kube-vip", program: "kube-vip", entrypoint: ["/kube-vip"] },
                SystemImage {
                    name: "ghcr.io/kube-vip/kube-vip-cloud-provider",
                    program: "kube-vip-cloud-provider",
                    entrypoint: ["/kube-vip-cloud-provider"],
                },
            ],
        }
    }

    /// Returns the programs that `cargo xtask` builds only for those who ask for this system.
    pub fn programs(self) -> impl Iterator<Item = &'static str> {
        self.images().iter().map(|image| image.program)
    }

    /// Returns its name and version.
    pub fn title(self) -> String {
        let version = |program| cluster_programs::version(program).unwrap_or_default();
        match self {
            Self::Vipmux => format!("vipmux v{}", env!("CARGO_PKG_VERSION")),
            Self::MetalLb => format!("MetalLB {}", version("metallb-speaker")),
            Self::KubeVip => {
                let provider = version("kube-vip-cloud-provider");
                format!("kube-vip {}, its cloud provider {provider}", version("kube-vip"))
            }
        }
    }

    /// Installs it with a pool for all Services, and waits until it runs.
    pub fn deploy(self, cluster: &RealCluster) -> Result<()> {
        match self {
            Self::Vipmux => drop(cluster.as_admin("kubectl apply -k deploy/kustomize")?),
            Self::MetalLb => drop(cluster.api.kubectl_apply(&manifest(METALLB)?, &[])?),
            Self::KubeVip => {
                cluster.api.kubectl_apply(&kube_vip("rbac")?, &[])?;
                cluster.api.kubectl_apply(&kube_vip("daemonset")?, &[])?;
                // Nodes here pull no image.
                let provider = manifest(CLOUD_PROVIDER)?.replace("imagePullPolicy: Always", "");
                cluster.api.kubectl_apply(&provider, &[])?;
            }
        }
        self.await_rollouts(cluster)?;
        // MetalLB's webhook answers a little later.
        wait::until("its pool", PATIENCE, || cluster.api.kubectl_apply(&self.pool(), &[]).map(drop))
    }

    /// Returns the manifests of its pool.
    fn pool(self) -> String {
        let object = |kind: &str, spec: serde_json::Value| {
            json!({"apiVersion": "metallb.io/v1beta1", "kind": kind,
                "metadata": {"namespace": "metallb-system", "name": "lan"}, "spec": spec})
        };
        let objects = match self {
            Self::Vipmux => vec![json!({"apiVersion": "vipmux.io/v1alpha1", "kind": "VipPool",
                "metadata": {"name": "lan"}, "spec": {"addresses": [RANGE]}})],
            Self::MetalLb => {
                vec![object("IPAddressPool", json!({"addresses": [RANGE]})), object("L2Advertisement", json!({}))]
            }
            Self::KubeVip => vec![json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": "kube-system", "name": "kubevip"}, "data": {"range-global": RANGE}})],
        };
        // A list is one document.
        json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
    }

    /// Waits until its workloads have the Pods that they want.
    pub fn await_rollouts(self, cluster: &RealCluster) -> Result<()> {
        let (announcer, assigner) = self.workloads();
        cluster.await_rollout(self.namespace(), announcer)?;
        cluster.await_rollout(self.namespace(), assigner)
    }

    /// Returns the namespace of its Pods.
    pub const fn namespace(self) -> &'static str {
        match self {
            Self::Vipmux => SYSTEM,
            Self::MetalLb => "metallb-system",
            Self::KubeVip => "kube-system",
        }
    }

    /// Returns what announces addresses, and what assigns them.
    pub const fn workloads(self) -> (&'static str, &'static str) {
        match self {
            Self::Vipmux => ("daemonset/vipmux-agent", "deployment/vipmux-allocator"),
            Self::MetalLb => ("daemonset/speaker", "deployment/controller"),
            Self::KubeVip => ("daemonset/kube-vip-ds", "deployment/kube-vip-cloud-provider"),
        }
    }

    /// Returns what selects the Pods that announce addresses.
    pub(super) const fn announcers(self) -> &'static str {
        match self {
            Self::Vipmux => "app.kubernetes.io/component=agent",
            Self::MetalLb => "component=speaker",
            Self::KubeVip => "app.kubernetes.io/name=kube-vip-ds",
        }
    }

    /// Returns patterns of the shell for the command lines of its processes, those that announce addresses
    /// first.
    pub(super) const fn processes(self) -> [&'static str; 2] {
        match self {
            Self::Vipmux => ["/usr/bin/vipmux agent *", "/usr/bin/vipmux allocator *"],
            Self::MetalLb => ["/speaker *", "/controller *"],
            Self::KubeVip => ["/kube-vip *", "/kube-vip-cloud-provider *"],
        }
    }

    /// Returns how its users' names start at the API server.
    pub(super) fn users(self) -> String {
        let accounts = if self == Self::KubeVip { "kube-vip" } else { "" };
        format!("system:serviceaccount:{}:{accounts}", self.namespace())
    }

    /// Returns the annotation by which a Service names its address.
    pub const fn address_annotation(self) -> &'static str {
        match self {
            Self::Vipmux => "vipmux.io/addresses",
            Self::MetalLb => "metallb.io/loadBalancerIPs",
            Self::KubeVip => "kube-vip.io/loadbalancerIPs",
        }
    }
}

/// Returns a manifest that a module has.
fn manifest((program, file): (&str, &str)) -> Result<String> {
    let path: PathBuf = cluster_programs::find(program)?.with_file_name(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns a manifest that kube-vip writes for itself.
fn kube_vip(kind: &str) -> Result<String> {
    let mut command = Command::new(cluster_programs::find("kube-vip")?);
    command.args(["manifest", kind]).args(KUBE_VIP);
    process::run(command)
}
