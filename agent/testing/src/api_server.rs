//! Simulates a small cluster whose API server accepts applied statuses, for tests.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use crate::{
    names::{self, node_name, service_name},
    object,
};
use imbl::OrdMap;
use vipmux_model::{
    NodeName, ServiceName, Vip,
    api::{ALLOCATED, ANNOUNCED, REQUEST, VipPolicy, VipPool},
    objects::Objects,
    published_status::PublishedStatus,
};

/// The field manager of [`Server::apply`].
const OURS: &str = "vipmux-allocator";

/// An API server that handles statuses.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// The objects.
    pub objects: Objects,
    /// The leader of each VIP.
    pub leaders: OrdMap<Vip, NodeName>,
    /// The other field manager that owns the addresses of a Service alone.
    foreign: std::collections::BTreeMap<ServiceName, String>,
    version: u64,
}

/// The server's answer to an [`apply`](Server::apply).
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// The object as it is now.
    Made(Arc<Service>),
    /// The version was not the current one.
    Stale,
    /// Another field manager owns the addresses.
    Taken(String),
    /// There is no such Service.
    Gone,
}

impl Server {
    /// Creates a server with a VipPool `lan` of these addresses, a Node `n1` and a Node `n2`.
    pub fn new(addresses: &[&str]) -> Self {
        let mut server = Self::default();
        server.pool("lan", addresses);
        for (node, address) in [("n1", "192.0.2.201"), ("n2", "192.0.2.202")] {
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}]});
            server.objects.nodes.insert(node_name(node), object(json!({ "status": status })));
        }
        server
    }

    /// Returns the next resource version.
    pub fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    /// Creates or changes a VipPool.
    pub fn pool(&mut self, name: &str, addresses: &[&str]) {
        let metadata = json!({"name": name, "generation": 1, "resourceVersion": self.next_version()});
        let pool: Arc<VipPool> = object(json!({"metadata": metadata, "spec": {"addresses": addresses}}));
        self.objects.vip_pools.insert(name.to_owned(), pool);
    }

    /// Creates or changes a VipPolicy.
    pub fn policy(&mut self, name: &str, spec: &Value) {
        let metadata = json!({"name": name, "generation": 3, "resourceVersion": self.next_version()});
        let policy: Arc<VipPolicy> = object(json!({"metadata": metadata, "spec": spec}));
        self.objects.vip_policies.insert(name.to_owned(), policy);
    }

    /// Makes a node the leader of a VIP.
    pub fn lead(&mut self, vip: &str, node: &str) {
        self.leaders.insert(names::vip(vip), node_name(node));
    }

    /// Creates a Service, or changes its spec.
    pub fn put(&mut self, service: &str, port: u16, annotations: &[(&str, &str)]) {
        let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
        let spec = json!({"type": "LoadBalancer", "ports": [{"port": port}]});
        self.write(service, |object| {
            object["metadata"]["annotations"] = json!(annotations);
            object["spec"] = spec;
        });
    }

    /// Creates or changes a Service. An API server sets no generation of Services.
    pub fn write(&mut self, service: &str, change: impl FnOnce(&mut Value)) {
        let name = service_name(service);
        let before = self.objects.services.get(&name).map_or_else(
            || json!({"metadata": {"namespace": "shop", "name": service, "uid": service}}),
            |it| serde_json::to_value(&**it).unwrap(),
        );
        let mut after = before;
        change(&mut after);
        after["metadata"]["resourceVersion"] = json!(self.next_version());
        self.objects.services.insert(name, object(after));
    }

    /// Deletes a Service.
    pub fn remove(&mut self, service: &str) -> Option<Arc<Service>> {
        self.foreign.remove(&service_name(service));
        self.objects.services.remove(&service_name(service))
    }

    /// Writes these addresses as another controller.
    pub fn intrude(&mut self, service: &str, manager: &str, addresses: &[&str]) {
        let entries: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        self.write(service, |object| object["status"]["loadBalancer"] = json!({ "ingress": entries }));
        self.foreign.insert(service_name(service), manager.to_owned());
    }

    /// Handles an apply request as the API server does.
    pub fn apply(&mut self, name: &ServiceName, body: &Value) -> Applied {
        let Some(there) = self.objects.services.get(name) else { return Applied::Gone };
        if body["metadata"]["resourceVersion"] != json!(there.metadata.resource_version) {
            return Applied::Stale;
        }
        let mut after = serde_json::to_value(&**there).unwrap();
        let (wanted, shown) = (&body["status"]["loadBalancer"]["ingress"], &after["status"]["loadBalancer"]["ingress"]);
        if !wanted.is_null() && wanted == shown {
            // Both own them. What the allocator writes later overwrites them.
            self.foreign.remove(name);
        }
        if let Some(manager) = self.foreign.get(name) {
            if !wanted.is_null() && wanted != shown {
                return Applied::Taken(manager.clone());
            }
        } else {
            after["status"]["loadBalancer"] = body["status"]["loadBalancer"].clone();
        }
        let ours = |condition: &Value| [ALLOCATED, ANNOUNCED, REQUEST].iter().any(|kind| condition["type"] == *kind);
        let of = |object: &Value| object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut conditions: Vec<_> = of(&after).into_iter().filter(|it| !ours(it)).collect();
        conditions.extend(of(body));
        after["status"]["conditions"] = json!(conditions);
        if after == serde_json::to_value(&**there).unwrap() {
            return Applied::Made(Arc::clone(there));
        }
        after["metadata"]["resourceVersion"] = json!(self.next_version());
        let made: Arc<Service> = object(after);
        self.objects.services.insert(name.clone(), Arc::clone(&made));
        Applied::Made(made)
    }

    /// Returns the other field manager that wrote a Service's addresses.
    pub fn intruder(&self, name: &ServiceName) -> Option<&str> {
        self.foreign.get(name).map(String::as_str)
    }

    /// Returns the field manager that [`apply`](Self::apply) left the status of this Service to.
    pub fn manager(&self, name: &ServiceName) -> &str {
        self.foreign.get(name).map_or(OURS, String::as_str)
    }

    /// Returns the addresses in a Service's status.
    pub fn shown(&self, service: &str) -> BTreeSet<Vip> {
        let shown = self.objects.services.get(&service_name(service)).map(|it| PublishedStatus::of(it));
        shown.unwrap_or_default().addresses
    }
}
