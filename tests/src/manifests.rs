//! A folder of manifests that a test writes and edits.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{
    cleanup::Folder,
    lan::{Lan, Node},
};

/// The range of the pool that [`Manifests::for_lan`] writes.
pub const POOL: &str = "192.0.2.200-192.0.2.219";
/// The pool's first address.
pub const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);

/// The folder; removed when dropped.
#[derive(Debug)]
pub struct Manifests {
    folder: Folder,
}

impl Manifests {
    /// An empty folder.
    pub fn empty() -> Result<Self> {
        Ok(Self { folder: Folder::temporary("manifests")? })
    }

    /// A folder with a LAN's Nodes and an address pool.
    pub fn for_lan(lan: &Lan) -> Result<Self> {
        let manifests = Self::empty()?;
        manifests.write_nodes(lan, &[])?;
        manifests.write("pool.yaml", &[pool_document()])?;
        Ok(manifests)
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a LAN's Nodes; those that are cordoned lead nothing.
    pub fn write_nodes(&self, lan: &Lan, cordoned: &[&str]) -> Result<()> {
        let document = |node: &Node| node_document(&node.name, node.address, cordoned.contains(&node.name.as_str()));
        self.write("nodes.yaml", &lan.nodes.iter().map(document).collect::<Vec<_>>())
    }

    /// Writes a Service with its EndpointSlice into a file of its own.
    pub fn write_service(&self, service: &Service) -> Result<()> {
        self.write(&service.file(), &service.documents())
    }

    /// Removes a Service's file.
    pub fn remove_service(&self, service: &Service) -> Result<()> {
        self.remove(&service.file())
    }

    /// Writes a file, whole or not at all, of documents; JSON is YAML.
    pub fn write(&self, file: &str, documents: &[Value]) -> Result<()> {
        let text = documents.iter().try_fold(String::new(), |text, document| {
            anyhow::Ok(text + "---\n" + &serde_json::to_string_pretty(document)? + "\n")
        })?;
        self.write_text(file, &text)
    }

    /// Writes a file, whole or not at all.
    pub fn write_text(&self, file: &str, text: &str) -> Result<()> {
        let path = self.file(file);
        let draft = self.file(&format!(".{file}.draft"));
        fs::write(&draft, text).with_context(|| format!("cannot write {}", draft.display()))?;
        fs::rename(&draft, &path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes a file.
    pub fn remove(&self, file: &str) -> Result<()> {
        let path = self.file(file);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

/// A Service with one port, and its endpoints.
#[derive(Clone, Debug)]
pub struct Service {
    /// `namespace/name`.
    pub name: (String, String),
    /// Service port.
    pub port: u16,
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// The endpoints' port.
    pub target_port: u16,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// `externalTrafficPolicy: Local`.
    pub local: bool,
    /// The address it asks for.
    pub address: Option<Ipv4Addr>,
    /// The key of its sharing group, in MetalLB's dialect.
    pub sharing_key: Option<String>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its node.
    pub node: String,
    /// Whether it takes connections.
    pub condition: Condition,
}

/// An endpoint's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It takes new connections.
    Ready,
    /// It takes none.
    NotReady,
    /// It keeps those that it has.
    Terminating,
}

impl Endpoint {
    /// A ready endpoint.
    pub fn new(address: Ipv4Addr, node: &str) -> Self {
        Self { address, node: node.to_owned(), condition: Condition::Ready }
    }
}

impl Service {
    /// A Service (named `namespace/name`) of the group that shares [`VIP`], without endpoints.
    pub fn sharing(name: &str, port: u16, protocol: &'static str, target_port: u16) -> Self {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        Self {
            name: (namespace.to_owned(), name.to_owned()),
            port,
            protocol,
            target_port,
            endpoints: Vec::new(),
            local: false,
            address: Some(VIP),
            sharing_key: Some("lan".to_owned()),
        }
    }

    /// With these endpoints.
    pub fn with(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        self.endpoints = endpoints.into_iter().collect();
        self
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.name.0, self.name.1)
    }

    fn file(&self) -> String {
        format!("{}-{}.yaml", self.name.0, self.name.1)
    }

    /// The Service and its EndpointSlice.
    pub fn documents(&self) -> [Value; 2] {
        let (namespace, name) = &self.name;
        let mut annotations = json!({});
        if let Some(key) = &self.sharing_key {
            annotations["metallb.io/allow-shared-ip"] = json!(key);
        }
        if let Some(address) = self.address {
            annotations["metallb.io/loadBalancerIPs"] = json!(address.to_string());
        }
        let policy = if self.local { "Local" } else { "Cluster" };
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "namespace": namespace, "name": name, "annotations": annotations },
            "spec": {
                "type": "LoadBalancer",
                "externalTrafficPolicy": policy,
                "selector": { "app": name },
                "ports": [{ "name": "main", "port": self.port, "protocol": self.protocol }],
            },
        });
        [service, self.endpoint_slice()]
    }

    fn endpoint_slice(&self) -> Value {
        let (namespace, name) = &self.name;
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(|endpoint| {
                let conditions = match endpoint.condition {
                    Condition::Ready => json!({ "ready": true, "serving": true, "terminating": false }),
                    Condition::NotReady => json!({ "ready": false, "serving": false, "terminating": false }),
                    Condition::Terminating => json!({ "ready": false, "serving": true, "terminating": true }),
                };
                json!({
                    "addresses": [endpoint.address.to_string()],
                    "nodeName": endpoint.node,
                    "conditions": conditions,
                })
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": namespace,
                "name": format!("{name}-1"),
                "labels": { "kubernetes.io/service-name": name },
            },
            "addressType": "IPv4",
            "ports": [{ "name": "main", "port": self.target_port, "protocol": self.protocol }],
            "endpoints": endpoints,
        })
    }
}

fn node_document(name: &str, address: Ipv4Addr, cordoned: bool) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name },
        "spec": { "unschedulable": cordoned },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": address.to_string() }],
            "conditions": [{
                "type": "Ready",
                "status": "True",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "reason": "KubeletReady",
                "message": "kubelet is posting ready status",
            }],
        },
    })
}

fn pool_document() -> Value {
    json!({
        "apiVersion": "metallb.io/v1beta1",
        "kind": "IPAddressPool",
        "metadata": { "namespace": "metallb-system", "name": "lan" },
        "spec": { "addresses": [POOL] },
    })
}
