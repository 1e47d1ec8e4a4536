//! Recognizes the programs of other load balancers by their images.

use std::fmt;

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, StatefulSet},
        core::v1::{Container, Pod, PodSpec},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

/// A load balancer that vipmux takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// MetalLB.
    MetalLb,
    /// kube-vip with its cloud provider.
    KubeVip,
    /// Cilium's LB IPAM and L2 announcements.
    Cilium,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MetalLb => "MetalLB",
            Self::KubeVip => "kube-vip",
            Self::Cilium => "Cilium",
        })
    }
}

/// A program of one of the systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Announces addresses.
    MetalLbSpeaker,
    /// Assigns addresses and answers the webhooks.
    MetalLbController,
    /// Announces addresses and writes the statuses of Services.
    KubeVip,
    /// Assigns addresses.
    KubeVipCloudProvider,
    /// Assigns addresses. The agents of Cilium announce them.
    CiliumOperator,
}

impl Program {
    /// Returns the program of a container image, such as `quay.io/metallb/speaker:v0.15.2`.
    pub fn of_image(image: &str) -> Option<Self> {
        let path = image.split('@').next().unwrap_or(image);
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let name = file.split(':').next().unwrap_or(file);
        let of = |system: &str| folder.contains(system) || name.contains(system);
        match name {
            "speaker" | "metallb-speaker" if of("metallb") => Some(Self::MetalLbSpeaker),
            "controller" | "metallb-controller" if of("metallb") => Some(Self::MetalLbController),
            "kube-vip" | "kube-vip-iptables" => Some(Self::KubeVip),
            "kube-vip-cloud-provider" => Some(Self::KubeVipCloudProvider),
            _ if name.starts_with("operator") && of("cilium") || name.starts_with("cilium-operator") => {
                Some(Self::CiliumOperator)
            }
            _ => None,
        }
    }

    /// Returns the system that it belongs to.
    pub const fn system(self) -> System {
        match self {
            Self::MetalLbSpeaker | Self::MetalLbController => System::MetalLb,
            Self::KubeVip | Self::KubeVipCloudProvider => System::KubeVip,
            Self::CiliumOperator => System::Cilium,
        }
    }

    /// Returns whether it announces addresses. Else it assigns them.
    pub const fn announces(self) -> bool {
        matches!(self, Self::MetalLbSpeaker | Self::KubeVip)
    }

    /// Returns the program of a Pod and its container. A kube-vip that only has the control plane's
    /// address counts for nothing.
    fn of_pod(spec: &PodSpec) -> Option<(Self, &Container)> {
        let program = |container: &Container| Self::of_image(container.image.as_deref()?);
        let found = spec.containers.iter().find_map(|container| Some((program(container)?, container)))?;
        (found.0 != Self::KubeVip || is_set(found.1, "svc_enable", "services")).then_some(found)
    }
}

/// Whether a container of kube-vip sets a feature, by its environment or by a flag.
fn is_set(container: &Container, variable: &str, flag: &str) -> bool {
    let by_environment = container.env.iter().flatten().any(|entry| {
        entry.name == variable && entry.value.as_deref().is_some_and(|value| value.eq_ignore_ascii_case("true"))
    });
    let flags = [format!("--{flag}"), format!("--{flag}=true")];
    by_environment || container.args.iter().flatten().any(|argument| flags.contains(argument))
}

/// A DaemonSet, Deployment or StatefulSet of a known program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The program.
    pub program: Program,
    /// `daemonset`, `deployment` or `statefulset`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The wanted number of Pods; 0 for a DaemonSet.
    pub replicas: i32,
    /// Selects its Pods, as `kubectl --selector` takes it.
    pub selector: String,
    /// It is a kube-vip that also has the control plane's address.
    pub control_plane: bool,
    /// The environment of the container, without values from elsewhere.
    pub environment: Vec<(String, String)>,
}

impl Workload {
    /// Reads a DaemonSet; `None`: its program is not known.
    pub fn of_daemon_set(set: &DaemonSet) -> Option<Self> {
        let spec = &set.spec;
        Self::new("daemonset", &set.metadata, spec.template.spec.as_ref()?, 0, &spec.selector)
    }

    /// Reads a Deployment.
    pub fn of_deployment(set: &Deployment) -> Option<Self> {
        let spec = &set.spec;
        let replicas = spec.replicas.unwrap_or(1);
        Self::new("deployment", &set.metadata, spec.template.spec.as_ref()?, replicas, &spec.selector)
    }

    /// Reads a StatefulSet.
    pub fn of_stateful_set(set: &StatefulSet) -> Option<Self> {
        let spec = &set.spec;
        let replicas = spec.replicas.unwrap_or(1);
        Self::new("statefulset", &set.metadata, spec.template.spec.as_ref()?, replicas, &spec.selector)
    }

    fn new(
        kind: &'static str,
        metadata: &ObjectMeta,
        pod: &PodSpec,
        replicas: i32,
        selector: &LabelSelector,
    ) -> Option<Self> {
        let (program, container) = Program::of_pod(pod)?;
        let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
        let environment = container.env.iter().flatten();
        Some(Self {
            program,
            kind,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            replicas,
            selector: labels.collect::<Vec<_>>().join(","),
            control_plane: program == Program::KubeVip && is_set(container, "cp_enable", "controlplane"),
            environment: environment.filter_map(|it| Some((it.name.clone(), it.value.clone()?))).collect(),
        })
    }

    /// Returns the value of a variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A Pod of a known program that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPod {
    /// The program.
    pub program: Program,
    /// Its namespace and name.
    pub name: String,
    /// Its node; empty: none yet.
    pub node: String,
    /// The kubelet runs it from a file on the node.
    pub is_static: bool,
}

impl ProgramPod {
    /// Reads a Pod; `None`: its program is not known, or it has ended.
    pub fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let (program, _) = Program::of_pod(spec)?;
        let ObjectMeta { namespace, name, owner_references, .. } = &pod.metadata;
        Some(Self {
            program,
            name: format!("{}/{}", namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default()),
            node: spec.node_name.clone().unwrap_or_default(),
            is_static: owner_references.iter().flatten().any(|owner| owner.kind == "Node"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::kube_vip;

    #[test]
    fn programs_are_recognized_by_their_images() {
        for (image, program) in [
            ("quay.io/metallb/speaker:v0.15.2", Some(Program::MetalLbSpeaker)),
            ("registry.example:5000/mirror/metallb-controller@sha256:00", Some(Program::MetalLbController)),
            ("ghcr.io/kube-vip/kube-vip-iptables:v1.0.1", Some(Program::KubeVip)),
            ("kube-vip/kube-vip-cloud-provider:v0.0.12", Some(Program::KubeVipCloudProvider)),
            ("quay.io/cilium/operator-generic:v1.18.0@sha256:00", Some(Program::CiliumOperator)),
            ("quay.io/cilium/cilium:v1.18.0", None),
            ("example/controller:v1", None),
            ("example/speaker", None),
            ("", None),
        ] {
            assert_eq!(Program::of_image(image), program, "{image}");
        }
    }

    #[test]
    fn a_kube_vip_counts_only_if_it_serves_services() {
        let of = |env: Value| Workload::of_daemon_set(&serde_json::from_value(kube_vip(&env)).unwrap());
        assert_eq!(of(json!([{"name": "cp_enable", "value": "true"}])), None);
        let both =
            of(json!([{"name": "cp_enable", "value": "true"}, {"name": "svc_enable", "value": "true"}])).unwrap();
        assert!(both.control_plane);
        assert_eq!(
            (both.to_string().as_str(), both.selector.as_str()),
            ("daemonset kube-system/kube-vip", "app=kube-vip")
        );
    }

    #[test]
    fn a_pod_counts_until_it_has_ended() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"namespace": "a", "name": "speaker-x"},
                "spec": {"nodeName": "n1", "containers": [{"name": "s", "image": "quay.io/metallb/speaker:v1"}]},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let running = ProgramPod::of(&pod("Running")).unwrap();
        assert_eq!((running.name.as_str(), running.node.as_str(), running.is_static), ("a/speaker-x", "n1", false));
        assert_eq!(ProgramPod::of(&pod("Failed")), None);
    }
}
