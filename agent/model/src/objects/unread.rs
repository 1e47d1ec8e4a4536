//! Collects objects that vipmux does not read, although they ask for what vipmux does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::ServiceName;

const NO_BGP: &str = "there is no BGP in vipmux";
const MIGRATE_CILIUM: &str =
    "write a VipPool or VipPolicy instead; `vipmux migrate plan` makes them from those of a cluster";
const WRITE_POOL: &str = "write a VipPool with its name and addresses instead";

/// Kinds that are not read: the group, the kind, and what to do.
const KINDS: &[(&str, &str, &str)] = &[
    ("metallb.io", "AddressPool", "write an IPAddressPool or a VipPool with its addresses instead"),
    ("metallb.io", "BFDProfile", NO_BGP),
    ("metallb.io", "BGPAdvertisement", NO_BGP),
    ("metallb.io", "BGPPeer", NO_BGP),
    ("metallb.io", "Community", NO_BGP),
    ("cilium.io", "CiliumL2AnnouncementPolicy", MIGRATE_CILIUM),
    ("cilium.io", "CiliumLoadBalancerIPPool", MIGRATE_CILIUM),
    ("purelb.io", "ServiceGroup", WRITE_POOL),
    ("network.kubesphere.io", "Eip", WRITE_POOL),
];

/// ConfigMaps that are not read: the namespace, the name, the text for people, and what to do.
const CONFIG_MAPS: &[(&str, &str, &str, &str)] = &[
    (
        "kube-system",
        "kubevip",
        "ConfigMap kube-system/kubevip",
        "write a VipPool for each range instead; `vipmux migrate plan` makes them from that of a cluster",
    ),
    (
        "metallb-system",
        "config",
        "ConfigMap metallb-system/config",
        "write an IPAddressPool or a VipPool for each range instead",
    ),
];

/// Objects of manifests that are not read, although they ask for what vipmux does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadObjects {
    /// Kinds, and objects of general kinds, each with what to do.
    pub kinds: BTreeMap<&'static str, &'static str>,
    /// Services that have core Endpoints.
    pub endpoints: BTreeSet<ServiceName>,
}

/// Returns what to do about objects of this kind.
pub(super) fn remedy(api_version: &str, kind: &str) -> Option<(&'static str, &'static str)> {
    let is = |(of, name, _): &&(&str, &str, &str)| *of == group(api_version) && *name == kind;
    KINDS.iter().find(is).map(|(_, kind, remedy)| (*kind, *remedy))
}

/// Returns the group of an `apiVersion`; that of Kubernetes' core is empty.
pub(super) fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

impl UnreadObjects {
    /// Adds an object of a kind that is not read, if it asks for what vipmux does.
    pub fn add(&mut self, object: &Value) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        let namespace =
            Some(text("/metadata/namespace")).filter(|namespace| !namespace.is_empty()).unwrap_or("default");
        match (api_version, kind) {
            ("v1", "Endpoints") => drop(self.endpoints.insert(ServiceName::new(namespace, name))),
            ("v1", "ConfigMap") => {
                let named = CONFIG_MAPS.iter().filter(|(of, called, ..)| (*of, *called) == (namespace, name));
                self.kinds.extend(named.map(|(_, _, object, remedy)| (*object, *remedy)));
            }
            _ => self.kinds.extend(remedy(api_version, kind)),
        }
    }

    /// Adds those of the other value.
    pub fn extend(&mut self, other: Self) {
        self.kinds.extend(other.kinds);
        self.endpoints.extend(other.endpoints);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_is_told_once_and_general_kinds_by_their_name() {
        let mut unread = UnreadObjects::default();
        for (api_version, kind, namespace, name) in [
            ("metallb.io/v1beta1", "AddressPool", "metallb-system", "a"),
            ("metallb.io/v1beta1", "AddressPool", "metallb-system", "b"),
            ("cilium.io/v2alpha1", "CiliumLoadBalancerIPPool", "", "a"),
            ("example.org/v1", "CiliumLoadBalancerIPPool", "", "a"),
            ("metallb.io/v1beta1", "ServiceL2Status", "metallb-system", "a"),
            ("v1", "ConfigMap", "kube-system", "kubevip"),
            ("v1", "ConfigMap", "kube-system", "other"),
            ("v1", "Endpoints", "shop", "web"),
        ] {
            let metadata = json!({"name": name, "namespace": namespace});
            unread.add(&json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}));
        }
        let kinds: Vec<_> = unread.kinds.into_keys().collect();
        assert_eq!(kinds, ["AddressPool", "CiliumLoadBalancerIPPool", "ConfigMap kube-system/kubevip"]);
        assert_eq!(unread.endpoints, [ServiceName::new("shop", "web")].into());
    }
}
