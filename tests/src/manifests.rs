//! Writes manifests for tests, to a folder and optionally to a real API server.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{
    api_server::{self, ApiServer},
    cleanup::Folder,
    lan::{Lan, Node},
};

/// The range of the pool that [`Manifests::for_lan`] writes.
pub const POOL: &str = "192.0.2.200-192.0.2.219";
/// The pool's first address.
pub const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);
/// The IPv6 range of the pool that [`Manifests::for_dual_stack_lan`] writes.
pub const POOL_V6: &str = "2001:db8::200-2001:db8::213";
/// The IPv6 pool's first address.
pub const VIP_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x200);

/// The folder, removed on drop.
#[derive(Debug)]
pub struct Manifests {
    folder: Folder,
    /// The API server with the same objects: written files are applied, and objects that they no
    /// longer have are deleted.
    api: Option<ApiServer>,
}

impl Manifests {
    /// Makes an empty folder.
    pub fn empty() -> Result<Self> {
        Ok(Self { folder: Folder::temporary("manifests")?, api: None })
    }

    /// Makes an empty folder with an API server that follows it. It has vipmux's and MetalLB's
    /// kinds.
    pub fn applied_to(api: ApiServer) -> Result<Self> {
        api.add_custom_kinds()?;
        api.add_metallb_kinds()?;
        Self::applied_to_bare(api)
    }

    /// Like [`Self::applied_to`], without custom kinds.
    pub fn applied_to_bare(api: ApiServer) -> Result<Self> {
        Ok(Self { api: Some(api), ..Self::empty()? })
    }

    /// Returns the API server.
    pub fn api(&self) -> Option<&ApiServer> {
        self.api.as_ref()
    }

    /// Returns the API server.
    pub fn api_mut(&mut self) -> Option<&mut ApiServer> {
        self.api.as_mut()
    }

    /// Makes a folder with a LAN's Nodes and an address pool.
    pub fn for_lan(lan: &Lan) -> Result<Self> {
        Self::empty()?.of_lan(lan)
    }

    /// Adds a LAN's Nodes and an address pool.
    pub fn of_lan(self, lan: &Lan) -> Result<Self> {
        self.write_nodes(lan, &[])?;
        self.write("pool.yaml", &[pool("lan", &[POOL])])?;
        Ok(self)
    }

    /// Like [`Self::for_lan`], with addresses of both families in the pool.
    pub fn for_dual_stack_lan(lan: &Lan) -> Result<Self> {
        let manifests = Self::for_lan(lan)?;
        manifests.write("pool.yaml", &[pool("lan", &[POOL, POOL_V6])])?;
        Ok(manifests)
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a LAN's Nodes. Cordoned nodes lead nothing.
    pub fn write_nodes(&self, lan: &Lan, cordoned: &[&str]) -> Result<()> {
        let addresses = |node: &Node| vec![node.address.into(), node.address_v6.into()];
        let document = |node| node_document(node, &addresses(node), cordoned.contains(&node.name.as_str()));
        self.write("nodes.yaml", &lan.nodes.iter().map(document).collect::<Vec<_>>())
    }

    /// Writes a LAN's Nodes without one of them.
    pub fn write_nodes_but(&self, lan: &Lan, deleted: &str) -> Result<()> {
        let nodes = lan.nodes.iter().filter(|node| node.name != deleted);
        let document = |node: &Node| node_document(node, &[node.address.into(), node.address_v6.into()], false);
        self.write("nodes.yaml", &nodes.map(document).collect::<Vec<_>>())
    }

    /// Writes a LAN's Nodes with these InternalIPs, in the order of the nodes.
    pub fn write_nodes_at(&self, lan: &Lan, addresses: &[Vec<IpAddr>]) -> Result<()> {
        let nodes = lan.nodes.iter().zip(addresses).map(|(node, addresses)| node_document(node, addresses, false));
        self.write("nodes.yaml", &nodes.collect::<Vec<_>>())
    }

    /// Writes a LAN's Nodes with only their IPv6 addresses.
    pub fn write_nodes_v6(&self, lan: &Lan) -> Result<()> {
        let document = |node: &Node| node_document(node, &[node.address_v6.into()], false);
        self.write("nodes.yaml", &lan.nodes.iter().map(document).collect::<Vec<_>>())
    }

    /// Writes a Service with its EndpointSlice to its own file.
    pub fn write_service(&self, service: &Service) -> Result<()> {
        self.write(&service.file(), &service.documents())
    }

    /// Removes a Service's file.
    pub fn remove_service(&self, service: &Service) -> Result<()> {
        self.remove(&service.file())
    }

    /// Writes a file of documents atomically. JSON is valid YAML.
    pub fn write(&self, file: &str, documents: &[Value]) -> Result<()> {
        if let Some(api) = &self.api {
            self.apply(api, file, documents)?;
        }
        let text = documents.iter().try_fold(String::new(), |text, document| {
            anyhow::Ok(text + "---\n" + &serde_json::to_string_pretty(document)? + "\n")
        })?;
        self.write_text(file, &text)
    }

    /// Writes a file atomically.
    pub fn write_text(&self, file: &str, text: &str) -> Result<()> {
        let path = self.file(file);
        let draft = self.file(&format!(".{file}.draft"));
        fs::write(&draft, text).with_context(|| format!("cannot write {}", draft.display()))?;
        fs::rename(&draft, &path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes a file.
    pub fn remove(&self, file: &str) -> Result<()> {
        if let Some(api) = &self.api {
            self.apply(api, file, &[])?;
        }
        let path = self.file(file);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Applies these documents to the API server, and deletes the file's former objects that they
    /// lack.
    fn apply(&self, api: &ApiServer, file: &str, documents: &[Value]) -> Result<()> {
        let identity = |document: &Value| {
            let metadata = &document["metadata"];
            [&document["kind"], &metadata["namespace"], &metadata["name"]].map(Value::to_string)
        };
        let stay: BTreeSet<_> = documents.iter().map(identity).collect();
        let namespaces = documents.iter().filter_map(|document| document["metadata"]["namespace"].as_str());
        namespaces.collect::<BTreeSet<_>>().into_iter().try_for_each(|name| api.add_namespace(name))?;
        api.apply_all(documents)?;
        let before = match fs::read_to_string(self.file(file)) {
            Ok(text) => api_server::documents(&text)?,
            Err(_) => Vec::new(),
        };
        let gone: Vec<_> = before.into_iter().filter(|document| !stay.contains(&identity(document))).collect();
        api.delete_all(&gone)
    }
}

/// A Service with one port and its endpoints.
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
    /// The address that it requests.
    pub address: Option<Ipv4Addr>,
    /// The IPv6 address that it requests: with an IPv4 address, or alone.
    pub address_v6: Option<Ipv6Addr>,
    /// Its sharing key, in MetalLB's dialect.
    pub sharing_key: Option<String>,
    /// Its other annotations.
    pub annotations: Vec<(&'static str, &'static str)>,
    /// Other fields of its `spec`.
    pub fields: Vec<(&'static str, Value)>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its node.
    pub node: String,
    /// Its conditions.
    pub condition: Condition,
}

/// An endpoint's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Ready: it takes new connections.
    Ready,
    /// Not ready: it takes none.
    NotReady,
    /// Terminating: it keeps its connections.
    Terminating,
}

impl Endpoint {
    /// A ready endpoint.
    pub fn new(address: impl Into<IpAddr>, node: &str) -> Self {
        Self { address: address.into(), node: node.to_owned(), condition: Condition::Ready }
    }
}

impl Service {
    /// Returns a Service (`namespace/name`) of the group that shares [`VIP`], without endpoints.
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
            address_v6: None,
            sharing_key: Some("lan".to_owned()),
            annotations: Vec::new(),
            fields: Vec::new(),
        }
    }

    /// Adds IPv6: dual stack, also on [`VIP_V6`].
    pub fn dual_stack(self) -> Self {
        Self { address_v6: Some(VIP_V6), ..self }
    }

    /// Replaces IPv4: only IPv6, on [`VIP_V6`].
    pub fn ipv6(self) -> Self {
        Self { address: None, ..self.dual_stack() }
    }

    /// Adds an annotation.
    pub fn annotated(mut self, name: &'static str, value: &'static str) -> Self {
        self.annotations.push((name, value));
        self
    }

    /// Adds a field of its `spec`.
    pub fn with_field(mut self, name: &'static str, value: Value) -> Self {
        self.fields.push((name, value));
        self
    }

    /// Sets the endpoints.
    pub fn with(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        self.endpoints = endpoints.into_iter().collect();
        self
    }

    /// Returns `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.name.0, self.name.1)
    }

    fn file(&self) -> String {
        format!("{}-{}.yaml", self.name.0, self.name.1)
    }

    /// Returns the Service and its EndpointSlices, one per family of its endpoints.
    pub fn documents(&self) -> Vec<Value> {
        let (namespace, name) = &self.name;
        let mut annotations = json!({});
        if let Some(key) = &self.sharing_key {
            annotations["metallb.io/allow-shared-ip"] = json!(key);
        }
        let addresses = [self.address.map(IpAddr::V4), self.address_v6.map(IpAddr::V6)];
        let addresses: Vec<_> = addresses.into_iter().flatten().map(|address| address.to_string()).collect();
        if !addresses.is_empty() {
            annotations["metallb.io/loadBalancerIPs"] = json!(addresses.join(","));
        }
        for (name, value) in &self.annotations {
            annotations[name] = json!(value);
        }
        let policy = if self.local { "Local" } else { "Cluster" };
        let mut service = json!({
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
        if self.address_v6.is_some() {
            let (families, policy) = match self.address {
                Some(_) => (json!(["IPv4", "IPv6"]), "RequireDualStack"),
                None => (json!(["IPv6"]), "SingleStack"),
            };
            service["spec"]["ipFamilies"] = families;
            service["spec"]["ipFamilyPolicy"] = json!(policy);
        }
        for (name, value) in &self.fields {
            service["spec"][name] = value.clone();
        }
        let v6 = self.endpoints.iter().any(|endpoint| endpoint.address.is_ipv6());
        let v4 = !v6 || self.endpoints.iter().any(|endpoint| endpoint.address.is_ipv4());
        let mut documents = vec![service];
        documents.extend(v4.then(|| self.endpoint_slice("IPv4", 1)));
        documents.extend(v6.then(|| self.endpoint_slice("IPv6", 2)));
        documents
    }

    fn endpoint_slice(&self, family: &str, number: u8) -> Value {
        let (namespace, name) = &self.name;
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.address.is_ipv6() == (family == "IPv6"))
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
                "name": format!("{name}-{number}"),
                "labels": { "kubernetes.io/service-name": name },
            },
            "addressType": family,
            "ports": [{ "name": "main", "port": self.target_port, "protocol": self.protocol }],
            "endpoints": endpoints,
        })
    }
}

pub(crate) fn node_document(node: &Node, addresses: &[IpAddr], cordoned: bool) -> Value {
    let address = |address: &IpAddr| json!({ "type": "InternalIP", "address": address.to_string() });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": node.name },
        "spec": { "unschedulable": cordoned, "podCIDRs": node.pod_ranges() },
        "status": {
            "addresses": addresses.iter().map(address).collect::<Vec<_>>(),
            "conditions": conditions("2026-01-01T00:00:00Z"),
        },
    })
}

/// Returns a ready Node's conditions, with a heartbeat.
pub fn conditions(heartbeat: &str) -> Value {
    json!([{
        "type": "Ready",
        "status": "True",
        "lastHeartbeatTime": heartbeat,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }])
}

/// Returns an IPAddressPool of these ranges.
pub fn pool(name: &str, ranges: &[&str]) -> Value {
    json!({
        "apiVersion": "metallb.io/v1beta1",
        "kind": "IPAddressPool",
        "metadata": { "namespace": "metallb-system", "name": name },
        "spec": { "addresses": ranges },
    })
}
