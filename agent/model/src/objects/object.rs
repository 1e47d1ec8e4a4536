//! Defines the kinds that are read, and an object of one of them.

use std::{fmt, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, Service},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Objects, decode_error,
    field::FieldPath,
    unread::{self, group},
    validate::{self, Flaw},
};
use crate::{
    NodeName, ServiceName,
    api::{self, IpAddressPool, L2Advertisement, VipPolicy, VipPool},
};

/// A kind that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `v1` Node.
    Node,
    /// `v1` Namespace.
    Namespace,
    /// MetalLB's IPAddressPool.
    IpAddressPool,
    /// MetalLB's L2Advertisement.
    L2Advertisement,
    /// VipPool.
    VipPool,
    /// VipPolicy.
    VipPolicy,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::Namespace,
        Self::IpAddressPool,
        Self::L2Advertisement,
        Self::VipPool,
        Self::VipPolicy,
    ];

    /// Returns the `kind`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::Namespace => "Namespace",
            Self::IpAddressPool => "IPAddressPool",
            Self::L2Advertisement => "L2Advertisement",
            Self::VipPool => "VipPool",
            Self::VipPolicy => "VipPolicy",
        }
    }

    /// Returns the one `apiVersion` that is read.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Service | Self::Node | Self::Namespace => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::IpAddressPool | Self::L2Advertisement => "metallb.io/v1beta1",
            Self::VipPool | Self::VipPolicy => api::API_VERSION,
        }
    }

    /// Returns its plural, as in paths of the API server.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::Node => "nodes",
            Self::Namespace => "namespaces",
            Self::IpAddressPool => "ipaddresspools",
            Self::L2Advertisement => "l2advertisements",
            Self::VipPool => "vippools",
            Self::VipPolicy => "vippolicies",
        }
    }

    /// Whether an object's namespace is part of its identity. MetalLB's kinds are identified
    /// without it, since MetalLB reads them only from its own namespace.
    const fn namespaced(self) -> bool {
        matches!(self, Self::Service | Self::EndpointSlice)
    }

    /// Whether it has namespaces that are not part of its identity.
    pub const fn is_named_across_namespaces(self) -> bool {
        matches!(self, Self::IpAddressPool | Self::L2Advertisement)
    }

    /// Whether an API server may lack it. A server without, for example, Services is not an API
    /// server.
    pub const fn is_custom(self) -> bool {
        self.is_own() || self.is_named_across_namespaces()
    }

    /// Whether it is one of vipmux's own kinds.
    pub const fn is_own(self) -> bool {
        matches!(self, Self::VipPool | Self::VipPolicy)
    }
}

/// The meaning of a document's `apiVersion` and `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An object that is read.
    Object(Kind),
    /// A list, either of one kind or (`v1` List) of any.
    List(Option<Kind>),
    /// A kind that is read, or its list, in another version; with the version that is read.
    OtherVersion(Kind, &'static str),
    /// No kind of a group of which all are read; with the kind that is near to it.
    Misspelled(Option<Kind>),
    /// Something else.
    Foreign,
}

impl Class {
    /// Reads a document's `apiVersion` and `kind`.
    pub fn of(api_version: &str, kind: &str) -> Self {
        if kind == "List" && api_version == "v1" {
            return Self::List(None);
        }
        let item = kind.strip_suffix("List");
        let Some(known) = Kind::ALL.into_iter().find(|known| [Some(kind), item].contains(&Some(known.name()))) else {
            return Self::other(api_version, kind);
        };
        if api_version != known.api_version() {
            return if foreign_group(api_version, known) {
                Self::Foreign
            } else {
                Self::OtherVersion(known, known.api_version())
            };
        }
        if kind == known.name() { Self::Object(known) } else { Self::List(Some(known)) }
    }

    /// Returns the meaning of a `kind` that is not read.
    fn other(api_version: &str, kind: &str) -> Self {
        if unread::remedy(api_version, kind).is_some() {
            return Self::Foreign;
        }
        let near = |known: Kind| Some((validate::distance(kind, known.name())?, known));
        let of_group = Kind::ALL.into_iter().filter(|known| group(known.api_version()) == group(api_version));
        match of_group.filter_map(near).min() {
            Some((_, known)) => Self::Misspelled(Some(known)),
            None if group(api_version) == group(api::API_VERSION) => Self::Misspelled(None),
            None => Self::Foreign,
        }
    }
}

/// Whether `api_version` is of a group that may have a different kind with this name, as
/// `serving.knative.dev` has a Service. Kubernetes' own groups have a name without a dot, or one
/// under `k8s.io`.
fn foreign_group(api_version: &str, kind: Kind) -> bool {
    let (own, other) = (group(kind.api_version()), group(api_version));
    other != own && other.contains('.') && !other.ends_with(".k8s.io")
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    kind: Kind,
    /// `None` for kinds that are identified without it.
    namespace: Option<String>,
    name: String,
}

impl Identity {
    /// Returns the identity of an object of `kind`, valid or not, if its name can be read.
    pub fn of(kind: Kind, object: &Value) -> Option<Self> {
        let metadata = object.get("metadata")?;
        let name = metadata.get("name")?.as_str().filter(|name| !name.is_empty())?;
        let namespace = metadata.get("namespace").and_then(Value::as_str);
        Some(Self { kind, namespace: scope(kind, namespace), name: name.to_owned() })
    }

    /// Returns the namespace and the name. Keys of kinds without a namespace use the name alone.
    fn key(&self) -> (String, String) {
        (self.namespace.clone().unwrap_or_default(), self.name.clone())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        match &self.namespace {
            Some(namespace) => write!(f, " {namespace}/{}", self.name),
            None => write!(f, " {}", self.name),
        }
    }
}

/// Returns the namespace in an identity: `default` if a namespaced object names none, as in
/// kubectl.
fn scope(kind: Kind, namespace: Option<&str>) -> Option<String> {
    let named = namespace.filter(|namespace| !namespace.is_empty());
    kind.namespaced().then(|| named.unwrap_or("default").to_owned())
}

/// An object, valid and with its namespace filled in.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// `v1` Service.
    Service(Arc<Service>),
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice(Arc<EndpointSlice>),
    /// `v1` Node.
    Node(Arc<Node>),
    /// `v1` Namespace.
    Namespace(Arc<Namespace>),
    /// MetalLB's IPAddressPool.
    IpAddressPool(Arc<IpAddressPool>),
    /// MetalLB's L2Advertisement.
    L2Advertisement(Arc<L2Advertisement>),
    /// VipPool.
    VipPool(Arc<VipPool>),
    /// VipPolicy.
    VipPolicy(Arc<VipPolicy>),
}

impl Object {
    /// Decodes and validates an object of `kind`. Else returns all of its flaws.
    pub fn decode(kind: Kind, value: Value) -> Result<(Identity, Self), Vec<Flaw>> {
        /// Decodes a type. Takes its fields of `metadata`, its validator and its variant.
        macro_rules! as_a {
            ($type:ident, $flaws:expr) => {
                decode(kind, value, |object: &mut $type| &mut object.metadata, $flaws, Self::$type)
            };
        }
        match kind {
            Kind::Service => as_a!(Service, validate::service),
            Kind::EndpointSlice => as_a!(EndpointSlice, validate::endpoint_slice),
            Kind::Node => as_a!(Node, validate::node),
            Kind::Namespace => as_a!(Namespace, validate::namespace),
            Kind::IpAddressPool => as_a!(IpAddressPool, validate::address_pool),
            Kind::L2Advertisement => as_a!(L2Advertisement, validate::l2_advertisement),
            Kind::VipPool => as_a!(VipPool, validate::vip_pool),
            Kind::VipPolicy => as_a!(VipPolicy, validate::vip_policy),
        }
    }

    /// Puts this object into `objects` as `identity`.
    pub fn put(&self, identity: &Identity, objects: &mut Objects) {
        let (namespace, name) = identity.key();
        match self {
            Self::Service(o) => drop(objects.services.insert(ServiceName::new(namespace, name), Arc::clone(o))),
            Self::EndpointSlice(o) => drop(objects.endpoint_slices.insert((namespace, name), Arc::clone(o))),
            Self::Node(o) => {
                // The name was checked when the object was read.
                if let Ok(name) = NodeName::new(name) {
                    objects.nodes.insert(name, Arc::clone(o));
                }
            }
            Self::Namespace(o) => drop(objects.namespaces.insert(name, Arc::clone(o))),
            Self::IpAddressPool(o) => drop(objects.address_pools.insert(name, Arc::clone(o))),
            Self::L2Advertisement(o) => drop(objects.l2_advertisements.insert(name, Arc::clone(o))),
            Self::VipPool(o) => drop(objects.vip_pools.insert(name, Arc::clone(o))),
            Self::VipPolicy(o) => drop(objects.vip_policies.insert(name, Arc::clone(o))),
        }
    }
}

impl Object {
    /// Whether `objects` have this object as `identity`.
    pub fn is_in(&self, identity: &Identity, objects: &Objects) -> bool {
        fn same<T: PartialEq>(object: &Arc<T>, there: Option<&Arc<T>>) -> bool {
            there.is_some_and(|there| there == object)
        }
        let (namespace, name) = identity.key();
        match self {
            Self::Service(o) => same(o, objects.services.get(&ServiceName::new(namespace, name))),
            Self::EndpointSlice(o) => same(o, objects.endpoint_slices.get(&(namespace, name))),
            Self::Node(o) => same(o, objects.nodes.get(name.as_str())),
            Self::Namespace(o) => same(o, objects.namespaces.get(&name)),
            Self::IpAddressPool(o) => same(o, objects.address_pools.get(&name)),
            Self::L2Advertisement(o) => same(o, objects.l2_advertisements.get(&name)),
            Self::VipPool(o) => same(o, objects.vip_pools.get(&name)),
            Self::VipPolicy(o) => same(o, objects.vip_policies.get(&name)),
        }
    }
}

impl Identity {
    /// Whether `objects` have an object of this identity.
    pub fn is_in(&self, objects: &Objects) -> bool {
        let (namespace, name) = self.key();
        match self.kind {
            Kind::Service => objects.services.contains_key(&ServiceName::new(namespace, name)),
            Kind::EndpointSlice => objects.endpoint_slices.contains_key(&(namespace, name)),
            Kind::Node => objects.nodes.contains_key(name.as_str()),
            Kind::Namespace => objects.namespaces.contains_key(&name),
            Kind::IpAddressPool => objects.address_pools.contains_key(&name),
            Kind::L2Advertisement => objects.l2_advertisements.contains_key(&name),
            Kind::VipPool => objects.vip_pools.contains_key(&name),
            Kind::VipPolicy => objects.vip_policies.contains_key(&name),
        }
    }

    /// Removes the object of this identity from `objects`.
    pub fn take_from(&self, objects: &mut Objects) {
        let (namespace, name) = self.key();
        match self.kind {
            Kind::Service => drop(objects.services.remove(&ServiceName::new(namespace, name))),
            Kind::EndpointSlice => drop(objects.endpoint_slices.remove(&(namespace, name))),
            Kind::Node => drop(objects.nodes.remove(name.as_str())),
            Kind::Namespace => drop(objects.namespaces.remove(&name)),
            Kind::IpAddressPool => drop(objects.address_pools.remove(&name)),
            Kind::L2Advertisement => drop(objects.l2_advertisements.remove(&name)),
            Kind::VipPool => drop(objects.vip_pools.remove(&name)),
            Kind::VipPolicy => drop(objects.vip_policies.remove(&name)),
        }
    }
}

fn decode<T: DeserializeOwned>(
    kind: Kind,
    value: Value,
    metadata: impl Fn(&mut T) -> &mut ObjectMeta,
    validate: impl Fn(&T) -> Vec<Flaw>,
    wrap: impl Fn(Arc<T>) -> Object,
) -> Result<(Identity, Object), Vec<Flaw>> {
    let (mut object, mut flaws): (T, _) = read(value, kind.is_own())?;
    flaws.extend(validate(&object));
    if !flaws.is_empty() {
        return Err(flaws);
    }
    let metadata = metadata(&mut object);
    // It records who wrote which field, and when. It is often the larger half of the output of
    // `kubectl get`, and nothing here reads it.
    metadata.managed_fields = None;
    let name = metadata.name.clone().unwrap_or_default();
    let identity = Identity { kind, namespace: scope(kind, metadata.namespace.as_deref()), name };
    if identity.namespace.is_some() {
        metadata.namespace.clone_from(&identity.namespace);
    }
    Ok((identity, wrap(Arc::new(object))))
}

/// Returns the object and, if `strict`, flaws for unknown fields below `spec`. `kubectl` refuses
/// unknown fields, too. Kinds of other projects may have newer fields, so they are not read
/// strictly.
fn read<T: DeserializeOwned>(value: Value, strict: bool) -> Result<(T, Vec<Flaw>), Vec<Flaw>> {
    let mut unknown = Vec::new();
    let result = if strict {
        let mut tell = |path: serde_ignored::Path<'_>| unknown.push(FieldPath::from(&path));
        serde_path_to_error::deserialize(serde_ignored::Deserializer::new(value, &mut tell))
    } else {
        serde_path_to_error::deserialize(value)
    };
    let object = result.map_err(|error| {
        let message = decode_error::message(&error.inner().to_string());
        vec![Flaw::new(FieldPath::from(error.path()), message)]
    })?;
    let unknown = unknown.into_iter().filter(|path| path.begins_with("spec"));
    Ok((object, unknown.map(|path| Flaw::new(path, "unknown field")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_by_its_group_and_version() {
        let table = [
            ("v1", "Service", Class::Object(Kind::Service)),
            ("v1", "ServiceList", Class::List(Some(Kind::Service))),
            ("v1", "List", Class::List(None)),
            ("discovery.k8s.io/v1", "EndpointSlice", Class::Object(Kind::EndpointSlice)),
            ("discovery.k8s.io/v1", "EndpointSliceList", Class::List(Some(Kind::EndpointSlice))),
            (
                "discovery.k8s.io/v1beta1",
                "EndpointSlice",
                Class::OtherVersion(Kind::EndpointSlice, "discovery.k8s.io/v1"),
            ),
            ("v1", "EndpointSlice", Class::OtherVersion(Kind::EndpointSlice, "discovery.k8s.io/v1")),
            ("apps/v1", "Service", Class::OtherVersion(Kind::Service, "v1")),
            ("v2", "NodeList", Class::OtherVersion(Kind::Node, "v1")),
            ("serving.knative.dev/v1", "Service", Class::Foreign),
            ("metallb.io/v1beta1", "IPAddressPool", Class::Object(Kind::IpAddressPool)),
            ("metallb.io/v1alpha1", "IPAddressPool", Class::OtherVersion(Kind::IpAddressPool, "metallb.io/v1beta1")),
            ("metallb.io/v1beta1", "L2Advertisement", Class::Object(Kind::L2Advertisement)),
            ("vipmux.io/v1alpha1", "VipPool", Class::Object(Kind::VipPool)),
            ("vipmux.io/v1alpha1", "VipPolicyList", Class::List(Some(Kind::VipPolicy))),
            ("vipmux.io/v1", "VipPolicy", Class::OtherVersion(Kind::VipPolicy, "vipmux.io/v1alpha1")),
            ("v1", "service", Class::Misspelled(Some(Kind::Service))),
            ("vipmux.io/v1alpha1", "VIPPool", Class::Misspelled(Some(Kind::VipPool))),
            ("vipmux.io/v1alpha1", "Pool", Class::Misspelled(None)),
            ("metallb.io/v1beta1", "L2Advertisements", Class::Misspelled(Some(Kind::L2Advertisement))),
            ("metallb.io/v1beta1", "AddressPool", Class::Foreign),
            ("metallb.io/v1beta1", "BGPAdvertisement", Class::Foreign),
            ("metallb.io/v1beta1", "ServiceL2Status", Class::Foreign),
            ("v1", "Secret", Class::Foreign),
            ("v1", "Pod", Class::Foreign),
            ("apps/v1", "Deployment", Class::Foreign),
            ("v1", "ConfigMapList", Class::Foreign),
        ];
        for (api_version, kind, class) in table {
            assert_eq!(Class::of(api_version, kind), class, "{api_version} {kind}");
        }
    }
}
