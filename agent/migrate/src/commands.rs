//! The commands that stop other load balancers, and those that undo that.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    live::LiveCluster,
    programs::{Program, System, Workload},
};

/// A label that no node has. A DaemonSet that selects it has no Pods.
const NOWHERE: &str = "vipmux.io/stopped";

/// The commands, each list in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Commands {
    /// Stop what assigns addresses. Traffic goes on.
    pub assigners: Vec<String>,
    /// Stop what announces addresses. From here on nobody answers for them.
    pub announcers: Vec<String>,
    /// Start the system again, if vipmux was removed.
    pub undo: Vec<String>,
}

/// Returns the systems that the cluster has.
pub fn systems(cluster: &LiveCluster) -> BTreeSet<System> {
    let LiveCluster { objects, workloads, pods, foreign, .. } = cluster;
    let programs = workloads.iter().map(|workload| workload.program).chain(pods.iter().map(|pod| pod.program));
    // Cilium is a CNI in the first place.
    let mut found: BTreeSet<_> = programs.map(Program::system).filter(|system| *system != System::Cilium).collect();
    if !objects.address_pools.is_empty() {
        found.insert(System::MetalLb);
    }
    if !foreign.kube_vip.is_empty() {
        found.insert(System::KubeVip);
    }
    if uses_cilium(cluster) {
        found.insert(System::Cilium);
    }
    found
}

/// Whether Cilium assigns or announces addresses of Services.
pub fn uses_cilium(cluster: &LiveCluster) -> bool {
    !cluster.foreign.cilium_pools.is_empty() || !cluster.foreign.cilium_policies.is_empty()
}

impl Commands {
    /// Returns the commands for a cluster. `folder`: the folder of the migration's files.
    pub fn of(cluster: &LiveCluster, folder: &str) -> Self {
        let mut commands = Self::default();
        for workload in &cluster.workloads {
            commands.stop(workload);
        }
        for pod in cluster.pods.iter().filter(|pod| pod.is_static && pod.program.announces()) {
            let file = format!("the manifest of Pod {} on node {} (/etc/kubernetes/manifests)", pod.name, pod.node);
            commands.announcers.push(format!("# set svc_enable to \"false\" in {file}"));
            commands.undo.push(format!("# set svc_enable to \"true\" in {file}"));
        }
        if uses_cilium(cluster) {
            commands.stop_cilium(cluster, folder);
        }
        commands
    }

    fn stop(&mut self, workload: &Workload) {
        let Workload { program, kind, namespace, name, replicas, control_plane, .. } = workload;
        match program {
            Program::MetalLbController | Program::KubeVipCloudProvider => {
                self.assigners.push(format!("kubectl -n {namespace} scale {kind} {name} --replicas 0"));
                self.undo.push(format!("kubectl -n {namespace} scale {kind} {name} --replicas {replicas}"));
            }
            Program::KubeVip if *control_plane => {
                self.announcers.push(format!("kubectl -n {namespace} set env {kind}/{name} svc_enable=false"));
                self.undo.push(format!("kubectl -n {namespace} set env {kind}/{name} svc_enable=true"));
            }
            Program::KubeVip | Program::MetalLbSpeaker => {
                let path = "/spec/template/spec/nodeSelector";
                let on = format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"{NOWHERE}":"true"}}}}}}}}}}"#);
                let off = format!(r#"[{{"op":"remove","path":"{path}/{}"}}]"#, NOWHERE.replace('/', "~1"));
                self.announcers.push(format!("kubectl -n {namespace} patch {kind} {name} -p '{on}'"));
                self.undo.push(format!("kubectl -n {namespace} patch {kind} {name} --type json -p '{off}'"));
            }
            Program::CiliumOperator => {}
        }
    }

    /// The operator takes the addresses of a deleted pool out of the statuses. So the pools go while
    /// it is away. Without pools it leaves Services alone when it is back.
    fn stop_cilium(&mut self, cluster: &LiveCluster, folder: &str) {
        let operator = cluster.workloads.iter().find(|workload| workload.program == Program::CiliumOperator);
        if let Some(Workload { kind, namespace, name, replicas, selector, .. }) = operator {
            self.assigners.extend([
                format!("kubectl -n {namespace} scale {kind} {name} --replicas 0"),
                format!("kubectl -n {namespace} wait pod --selector {selector} --for delete --timeout 2m"),
                "kubectl delete ciliumloadbalancerippools --all".to_owned(),
                format!("kubectl -n {namespace} scale {kind} {name} --replicas {replicas}"),
            ]);
        } else {
            self.assigners.push("# stop Cilium's operator".to_owned());
            self.assigners.push("kubectl delete ciliumloadbalancerippools --all".to_owned());
            self.assigners.push("# start Cilium's operator".to_owned());
        }
        self.announcers.push("kubectl delete ciliuml2announcementpolicies --all".to_owned());
        self.undo.push(format!("kubectl apply -f {folder}/cilium.yaml"));
    }

    /// Returns the commands that stop programs of this kind, in one line.
    pub fn remedy(&self, announces: bool) -> String {
        let list = if announces { &self.announcers } else { &self.assigners };
        if list.is_empty() {
            "delete it".to_owned()
        } else {
            list.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{fixture::kube_vip, programs::ProgramPod};

    fn workload(program: Program, kind: &'static str, name: &str) -> Workload {
        Workload {
            program,
            kind,
            namespace: "a".to_owned(),
            name: name.to_owned(),
            replicas: 2,
            selector: "name=x".to_owned(),
            control_plane: false,
            environment: Vec::new(),
        }
    }

    #[test]
    fn metallb_is_stopped_and_can_be_started_again() {
        let workloads = vec![
            workload(Program::MetalLbSpeaker, "daemonset", "speaker"),
            workload(Program::MetalLbController, "deployment", "controller"),
        ];
        let cluster = LiveCluster { workloads, ..LiveCluster::default() };
        assert_eq!(systems(&cluster), [System::MetalLb].into());
        let commands = Commands::of(&cluster, "out");
        assert_eq!(commands.assigners, ["kubectl -n a scale deployment controller --replicas 0"]);
        let on = r#"{"spec":{"template":{"spec":{"nodeSelector":{"vipmux.io/stopped":"true"}}}}}"#;
        assert_eq!(commands.announcers, [format!("kubectl -n a patch daemonset speaker -p '{on}'")]);
        let off = r#"[{"op":"remove","path":"/spec/template/spec/nodeSelector/vipmux.io~1stopped"}]"#;
        assert_eq!(
            commands.undo,
            [
                format!("kubectl -n a patch daemonset speaker --type json -p '{off}'"),
                "kubectl -n a scale deployment controller --replicas 2".to_owned(),
            ]
        );
    }

    #[test]
    fn a_kube_vip_keeps_the_control_planes_address() {
        let env = json!([{"name": "cp_enable", "value": "true"}, {"name": "svc_enable", "value": "true"}]);
        let set = Workload::of_daemon_set(&serde_json::from_value(kube_vip(&env)).unwrap()).unwrap();
        let pod = ProgramPod {
            program: Program::KubeVip,
            name: "b/kube-vip-n1".to_owned(),
            node: "n1".to_owned(),
            is_static: true,
        };
        let cluster = LiveCluster { workloads: vec![set], pods: vec![pod], ..LiveCluster::default() };
        let commands = Commands::of(&cluster, "out");
        assert_eq!(commands.announcers[0], "kubectl -n kube-system set env daemonset/kube-vip svc_enable=false");
        assert!(commands.announcers[1].contains("Pod b/kube-vip-n1 on node n1"), "{:?}", commands.announcers);
    }

    #[test]
    fn ciliums_pools_go_while_its_operator_is_away() {
        let mut cluster = LiveCluster {
            workloads: vec![workload(Program::CiliumOperator, "deployment", "cilium-operator")],
            ..LiveCluster::default()
        };
        assert_eq!(systems(&cluster), BTreeSet::new(), "a CNI announces nothing");
        cluster.foreign.cilium_pools = vec![json!({"metadata": {"name": "blue"}})];
        let commands = Commands::of(&cluster, "out");
        let position = |text: &str| commands.assigners.iter().position(|command| command.contains(text)).unwrap();
        assert_eq!(commands.undo, ["kubectl apply -f out/cilium.yaml"]);
        assert!(
            position("--replicas 0") < position("delete cilium")
                && position("delete cilium") < position("--replicas 2")
        );
        assert_eq!(commands.announcers, ["kubectl delete ciliuml2announcementpolicies --all"]);
    }
}
