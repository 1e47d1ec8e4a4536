//! A small cluster whose API server takes what is applied, for tests.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::Leaders;
use crate::{
    api::{ALLOCATED, ANNOUNCED, VipPolicy, VipPool},
    model::{NodeName, ServiceName, Vip, ingest::object},
    source::Objects,
};

/// The field manager of [`Server::apply`].
const OURS: &str = "vipmux-allocator";

/// An API server, as far as statuses go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub(crate) objects: Objects,
    pub(crate) leaders: Leaders,
    /// Who else owns the addresses of which Services.
    foreign: std::collections::BTreeMap<ServiceName, String>,
    version: u64,
}

/// What the server answers to an [`apply`](Server::apply).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Applied {
    Made(Arc<Service>),
    Stale,
    Taken(String),
    Gone,
}

pub(crate) fn name(text: &str) -> ServiceName {
    ServiceName { namespace: "shop".to_owned(), name: text.to_owned() }
}

pub(crate) fn vip(text: &str) -> Vip {
    Vip(text.parse().unwrap())
}

impl Server {
    /// One with a VipPool `lan` of these addresses, a Node `n1` and one `n2`.
    pub(crate) fn new(addresses: &[&str]) -> Self {
        let mut server = Self::default();
        server.pool("lan", addresses);
        for (node, address) in [("n1", "192.0.2.201"), ("n2", "192.0.2.202")] {
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}]});
            server.objects.nodes.insert(NodeName(node.to_owned()), object(json!({ "status": status })));
        }
        server
    }

    pub(crate) fn next(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    pub(crate) fn pool(&mut self, name: &str, addresses: &[&str]) {
        let metadata = json!({"name": name, "generation": 1, "resourceVersion": self.next()});
        let pool: Arc<VipPool> = object(json!({"metadata": metadata, "spec": {"addresses": addresses}}));
        self.objects.vip_pools.insert(name.to_owned(), pool);
    }

    pub(crate) fn policy(&mut self, name: &str, spec: &Value) {
        let metadata = json!({"name": name, "generation": 3, "resourceVersion": self.next()});
        let policy: Arc<VipPolicy> = object(json!({"metadata": metadata, "spec": spec}));
        self.objects.vip_policies.insert(name.to_owned(), policy);
    }

    pub(crate) fn lead(&mut self, vip: &str, node: &str) {
        self.leaders.insert(self::vip(vip), NodeName(node.to_owned()));
    }

    /// Makes a Service, or lets it have another spec.
    pub(crate) fn put(&mut self, service: &str, port: u16, annotations: &[(&str, &str)]) {
        let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
        let spec = json!({"type": "LoadBalancer", "ports": [{"port": port}]});
        self.write(service, |object| {
            object["metadata"]["annotations"] = json!(annotations);
            object["spec"] = spec;
        });
    }

    /// Changes a Service, or makes it; with a new generation if its spec is another.
    pub(crate) fn write(&mut self, service: &str, change: impl FnOnce(&mut Value)) {
        let name = name(service);
        let before = self.objects.services.get(&name).map_or_else(
            || json!({"metadata": {"namespace": "shop", "name": service, "uid": service, "generation": 0}}),
            |it| serde_json::to_value(&**it).unwrap(),
        );
        let mut after = before.clone();
        change(&mut after);
        if after["spec"] != before["spec"] {
            after["metadata"]["generation"] = json!(after["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        after["metadata"]["resourceVersion"] = json!(self.next());
        self.objects.services.insert(name, object(after));
    }

    /// Deletes a Service.
    pub(crate) fn remove(&mut self, service: &str) -> Option<Arc<Service>> {
        self.foreign.remove(&name(service));
        self.objects.services.remove(&name(service))
    }

    /// Another controller writes these addresses.
    pub(crate) fn intrude(&mut self, service: &str, manager: &str, addresses: &[&str]) {
        let entries: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        self.write(service, |object| object["status"]["loadBalancer"] = json!({ "ingress": entries }));
        self.foreign.insert(name(service), manager.to_owned());
    }

    /// Takes what is applied, as the API server does.
    pub(crate) fn apply(&mut self, name: &ServiceName, body: &Value) -> Applied {
        let Some(there) = self.objects.services.get(name) else { return Applied::Gone };
        if body["metadata"]["resourceVersion"] != json!(there.metadata.resource_version) {
            return Applied::Stale;
        }
        let mut after = serde_json::to_value(&**there).unwrap();
        let (wanted, shown) = (&body["status"]["loadBalancer"]["ingress"], &after["status"]["loadBalancer"]["ingress"]);
        if let Some(manager) = self.foreign.get(name) {
            if !wanted.is_null() && wanted != shown {
                return Applied::Taken(manager.clone());
            }
        } else {
            after["status"]["loadBalancer"] = body["status"]["loadBalancer"].clone();
        }
        let ours = |condition: &Value| [ALLOCATED, ANNOUNCED].iter().any(|kind| condition["type"] == *kind);
        let of = |object: &Value| object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut conditions: Vec<_> = of(&after).into_iter().filter(|it| !ours(it)).collect();
        conditions.extend(of(body));
        after["status"]["conditions"] = json!(conditions);
        if after == serde_json::to_value(&**there).unwrap() {
            return Applied::Made(Arc::clone(there));
        }
        after["metadata"]["resourceVersion"] = json!(self.next());
        let made: Arc<Service> = object(after);
        self.objects.services.insert(name.clone(), Arc::clone(&made));
        Applied::Made(made)
    }

    /// Who else wrote a Service's addresses.
    pub(crate) fn intruder(&self, name: &ServiceName) -> Option<&str> {
        self.foreign.get(name).map(String::as_str)
    }

    /// Whose status [`apply`](Self::apply) left to whom.
    pub(crate) fn manager(&self, name: &ServiceName) -> &str {
        self.foreign.get(name).map_or(OURS, String::as_str)
    }

    /// The addresses that a Service's status shows.
    pub(crate) fn shown(&self, service: &str) -> BTreeSet<Vip> {
        let shown = self.objects.services.get(&name(service)).map(|it| crate::model::shown::Shown::of(it));
        shown.unwrap_or_default().addresses
    }
}
