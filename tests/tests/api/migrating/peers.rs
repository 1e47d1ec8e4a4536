//! Objects as MetalLB, kube-vip and Cilium leave them. The field managers, the form of the statuses
//! and the webhooks are those of their sources (docs/migrating.md).

use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use vipmux_tests::api_server::ApiServer;

/// The namespace of the programs.
const SYSTEM: &str = "other-system";

/// Another load balancer, with one pool.
pub(super) struct Peer {
    /// The name of the pool that vipmux makes of its pool.
    pub(super) pool: &'static str,
    /// The manager of the addresses in the statuses.
    pub(super) manager: &'static str,
    /// Its images: what announces addresses, and what assigns them.
    images: [&'static str; 2],
    /// It writes the ports beside each address.
    writes_ports: bool,
    /// Its pool and policies, with their kinds.
    objects: fn(&ApiServer) -> Result<Vec<Value>>,
}

pub(super) const METALLB: Peer = Peer {
    pool: "lan",
    manager: "controller",
    images: ["quay.io/metallb/speaker:v0.15.2", "quay.io/metallb/controller:v0.15.2"],
    writes_ports: false,
    objects: metallb,
};

pub(super) const KUBE_VIP: Peer = Peer {
    pool: "kube-vip-global",
    manager: "kube-vip",
    images: ["ghcr.io/kube-vip/kube-vip:v1.0.1", "ghcr.io/kube-vip/kube-vip-cloud-provider:v0.0.12"],
    writes_ports: true,
    objects: kube_vip,
};

pub(super) const CILIUM: Peer = Peer {
    pool: "lan",
    manager: "cilium-operator-lb-ipam",
    images: ["quay.io/cilium/cilium:v1.18.0", "quay.io/cilium/operator-generic:v1.18.0"],
    writes_ports: false,
    objects: cilium,
};

impl Peer {
    /// Installs it: its pool, its workloads and a Pod of each.
    pub(super) fn install(&self, api: &ApiServer) -> Result<()> {
        api.add_namespace(SYSTEM)?;
        // A controller manager would make it. Pods need it.
        api.apply_all(&[json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": SYSTEM, "name": "default"}})])?;
        api.apply_all(&(self.objects)(api)?)?;
        for (kind, image) in ["DaemonSet", "Deployment"].into_iter().zip(self.images) {
            let spec = json!({"containers": [{"name": "main", "image": image,
                "env": [{"name": "svc_enable", "value": "true"}]}]});
            let name = kind.to_lowercase();
            let labels = json!({"app": name});
            api.apply_all(&[
                json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"namespace": SYSTEM, "name": name},
                    "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}}),
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": SYSTEM, "name": name, "labels": labels},
                    "spec": spec}),
            ])?;
        }
        Ok(())
    }

    /// Gives a Service an address, by a write like this system's.
    pub(super) fn give(&self, api: &ApiServer, name: &str, address: &str) -> Result<()> {
        let mut entry = json!({"ip": address});
        if self.writes_ports {
            entry["ports"] = json!([{"port": 80, "protocol": "TCP"}]);
        }
        let patch = json!({"status": {"loadBalancer": {"ingress": [entry]}}});
        let params = PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() };
        let client = api.client()?;
        api.block_on(async {
            let services: Api<Service> = Api::namespaced(client, "shop");
            Ok(services.patch_status(name, &params, &Patch::Merge(&patch)).await.map(drop)?)
        })
    }

    /// Stops it, as the commands of the plan do where controllers run: its Pods end, and of Cilium
    /// the pools and policies are deleted.
    pub(super) fn stop(&self, api: &ApiServer) -> Result<()> {
        api.kubectl(&["-n", SYSTEM, "delete", "pods", "--all", "--grace-period=0", "--force"])?;
        if self.manager == CILIUM.manager {
            api.kubectl(&["delete", "ciliumloadbalancerippools,ciliuml2announcementpolicies", "--all"])?;
        }
        Ok(())
    }
}

fn metallb(api: &ApiServer) -> Result<Vec<Value>> {
    api.add_metallb_kinds()?;
    let of = |kind: &str, spec: Value| json!({"apiVersion": "metallb.io/v1beta1", "kind": kind, "metadata": {"namespace": SYSTEM, "name": "lan"}, "spec": spec});
    Ok(vec![
        of("IPAddressPool", json!({"addresses": ["192.0.2.200-192.0.2.203"]})),
        of("L2Advertisement", json!({"ipAddressPools": ["lan"]})),
    ])
}

#[expect(clippy::unnecessary_wraps, reason = "it is one of several functions")]
fn kube_vip(_: &ApiServer) -> Result<Vec<Value>> {
    Ok(vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "kubevip"},
        "data": {"range-global": "192.0.2.200-192.0.2.203"}}),
    ])
}

fn cilium(api: &ApiServer) -> Result<Vec<Value>> {
    let pool = ("cilium.io/v2", "CiliumLoadBalancerIPPool", "ciliumloadbalancerippools");
    let policy = ("cilium.io/v2alpha1", "CiliumL2AnnouncementPolicy", "ciliuml2announcementpolicies");
    for (version, kind, plural) in [pool, policy] {
        api.add_foreign_kind(version, "Cluster", kind, plural)?;
    }
    let of = |version: &str, kind: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "lan"}, "spec": spec});
    Ok(vec![
        of(pool.0, pool.1, json!({"blocks": [{"start": "192.0.2.200", "stop": "192.0.2.203"}]})),
        of(policy.0, policy.1, json!({"loadBalancerIPs": true, "interfaces": ["^eth0$"]})),
    ])
}

/// Returns MetalLB's webhook, whose program is gone.
pub(super) fn webhook() -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "metallb-webhook-configuration"},
        "webhooks": [{"name": "ipaddresspoolvalidationwebhook.metallb.io", "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": SYSTEM, "name": "metallb-webhook-service",
                "path": "/validate-metallb-io-v1beta1-ipaddresspool"}},
            "rules": [{"apiGroups": ["metallb.io"], "apiVersions": ["v1beta1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["ipaddresspools"]}]}]})
}
