//! Objects for the tests.

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

/// Returns a Service of type LoadBalancer with port 80. `address` may be empty; `manager` wrote it.
pub(super) fn service(name: &str, address: &str, manager: &str) -> Service {
    let (namespace, name) = name.split_once('/').unwrap();
    let entry = || json!([{"ip": address, "ipMode": "VIP"}]);
    let written = || {
        json!([{"manager": manager, "operation": "Update", "subresource": "status",
            "fieldsV1": {"f:status": {"f:loadBalancer": {"f:ingress": {}}}}}])
    };
    let (ingress, fields) = if address.is_empty() { (json!([]), json!([])) } else { (entry(), written()) };
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": name, "managedFields": fields},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": ingress}},
    }))
    .unwrap()
}

/// Returns the DaemonSet of kube-vip with this environment.
pub(super) fn kube_vip(env: &Value) -> Value {
    let containers = json!([{"name": "kube-vip", "image": "ghcr.io/kube-vip/kube-vip:v1.0.1", "env": env}]);
    json!({
        "metadata": {"namespace": "kube-system", "name": "kube-vip"},
        "spec": {
            "selector": {"matchLabels": {"app": "kube-vip"}},
            "template": {"metadata": {"labels": {"app": "kube-vip"}}, "spec": {"containers": containers}},
        },
    })
}
