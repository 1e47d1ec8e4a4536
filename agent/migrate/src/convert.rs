//! Converts the pools and policies of other load balancers to VipPools and VipPolicies.

mod cilium;
mod kube_vip;
mod metallb;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};
use serde_saphyr::SerializeError;

use vipmux_model::{
    api::{OnConflict, PoolSharing, VipPolicy, VipPool, VipPoolSpec},
    objects::Objects,
    range::AddressRange,
    reason::Note,
};

/// The pools and policies of a cluster's other load balancers.
#[derive(Clone, Debug, Default)]
pub struct ForeignPools {
    /// The data of the ConfigMap of kube-vip's cloud provider.
    pub kube_vip: BTreeMap<String, String>,
    /// CiliumLoadBalancerIPPools.
    pub cilium_pools: Vec<Value>,
    /// CiliumL2AnnouncementPolicies.
    pub cilium_policies: Vec<Value>,
    /// Objects that say how addresses are announced by BGP, as `Kind name`.
    pub bgp: Vec<String>,
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct Converted {
    /// The pools.
    pub pools: Vec<VipPool>,
    /// The policies.
    pub policies: Vec<VipPolicy>,
    /// Settings without a counterpart.
    pub notes: Vec<Note>,
}

impl Converted {
    /// Converts everything that the cluster has. MetalLB's objects are among `objects`.
    pub fn of(objects: &Objects, foreign: &ForeignPools) -> Self {
        let mut converted = Self::default();
        metallb::convert(objects, &mut converted);
        kube_vip::convert(&foreign.kube_vip, &mut converted);
        cilium::convert(&foreign.cilium_pools, &foreign.cilium_policies, &mut converted);
        for object in &foreign.bgp {
            converted.note(object, "vipmux has no BGP: addresses that only BGP announces stay with the present system");
        }
        converted.rename_duplicates();
        converted
    }

    /// Returns `objects` as they are when these pools and policies have taken the place of
    /// MetalLB's.
    pub fn replaced_in(&self, objects: &Objects) -> Objects {
        let mut objects = objects.clone();
        (objects.address_pools, objects.l2_advertisements) = Default::default();
        for pool in &self.pools {
            objects.vip_pools.insert(name(&pool.metadata), pool.clone().into());
        }
        for policy in &self.policies {
            objects.vip_policies.insert(name(&policy.metadata), policy.clone().into());
        }
        objects
    }

    /// Returns the pools and policies as a YAML stream.
    pub fn yaml(&self) -> Result<String, SerializeError> {
        let documents = self.pools.iter().map(document).chain(self.policies.iter().map(document));
        Ok(documents.collect::<Result<Vec<_>, _>>()?.join("---\n"))
    }

    fn note(&mut self, object: impl Into<String>, message: impl Into<String>) {
        self.notes.push(Note::new(object, message));
    }

    /// Adds a pool, unless it has no address.
    fn add_pool(&mut self, object: &str, mut pool: VipPool) {
        let (usable, refused): (Vec<_>, Vec<_>) = std::mem::take(&mut pool.spec.addresses)
            .into_iter()
            .map(|text| text.split_whitespace().collect::<String>())
            .partition(|text| text.parse::<AddressRange>().is_ok());
        for text in refused {
            let why = text.parse::<AddressRange>().err().map(|error| error.to_string()).unwrap_or_default();
            self.note(object, format!("left out: {why}"));
        }
        if usable.is_empty() {
            return self.note(object, "left out: it has no addresses that vipmux can give");
        }
        pool.spec.addresses = usable;
        self.pools.push(pool);
    }

    /// Two systems may have pools or policies of one name. The later one gets another name.
    fn rename_duplicates(&mut self) {
        let Self { pools, policies, notes } = self;
        rename("VipPool", pools.iter_mut().map(|pool| &mut pool.metadata), notes);
        rename("VipPolicy", policies.iter_mut().map(|policy| &mut policy.metadata), notes);
    }
}

fn rename<'a>(kind: &str, objects: impl Iterator<Item = &'a mut ObjectMeta>, notes: &mut Vec<Note>) {
    let mut names = BTreeSet::new();
    for metadata in objects {
        let old = name(metadata);
        let mut new = old.clone();
        while !names.insert(new.clone()) {
            new.push_str("-2");
        }
        if new != old {
            notes.push(Note::new(format!("{kind} {new}"), format!("two objects have the name {old}")));
            metadata.name = Some(new);
        }
    }
}

impl ForeignPools {
    /// Returns Cilium's pools and policies as a YAML stream, for their return; `None`: there are
    /// none.
    pub fn cilium_yaml(&self) -> Result<Option<String>, SerializeError> {
        let objects = self.cilium_pools.iter().chain(&self.cilium_policies).map(essence);
        let documents = objects.map(|object| document(&object)).collect::<Result<Vec<_>, _>>()?;
        Ok((!documents.is_empty()).then(|| documents.join("---\n")))
    }
}

/// Returns an object without the fields that the API server sets.
fn essence(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut kept = json!({"name": metadata["name"]});
    for field in ["labels", "annotations"] {
        if !metadata[field].is_null() {
            kept[field] = metadata[field].clone();
        }
    }
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": kept, "spec": object["spec"]})
}

/// Returns a pool with the defaults.
fn pool(name: &str, addresses: Vec<String>) -> VipPool {
    let spec = VipPoolSpec {
        addresses,
        auto_assign: true,
        avoid_buggy_ips: false,
        priority: None,
        sharing: PoolSharing::default(),
        on_conflict: OnConflict::default(),
        namespaces: Vec::new(),
        namespace_selectors: Vec::new(),
        service_selectors: Vec::new(),
        aliases: Vec::new(),
        address_names: BTreeMap::new(),
    };
    VipPool::new(name, spec)
}

/// Returns a CIDR of more than two addresses without the first and the last one, and any other text
/// as it is.
fn without_ends(cidr: &str) -> String {
    let whole = Some(cidr).filter(|text| text.contains('/')).and_then(|text| text.parse::<AddressRange>().ok());
    whole.and_then(AddressRange::without_ends).map_or_else(|| cidr.to_owned(), |inside| inside.to_string())
}

pub(super) fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

fn document(object: &impl Serialize) -> Result<String, SerializeError> {
    serde_saphyr::to_string(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_one_name_in_two_systems_both_stay() {
        let pool = json!({"metadata": {"name": "kube-vip-global"}, "spec": {"blocks": [{"start": "192.0.2.9"}]}});
        let foreign = ForeignPools {
            kube_vip: [("range-global".to_owned(), "192.0.2.1-192.0.2.2".to_owned())].into(),
            cilium_pools: vec![pool],
            ..ForeignPools::default()
        };
        let converted = Converted::of(&Objects::default(), &foreign);
        let names: Vec<_> = converted.pools.iter().map(|pool| name(&pool.metadata)).collect();
        assert_eq!(names, ["kube-vip-global", "kube-vip-global-2"]);
        assert!(converted.notes.iter().any(|note| note.message == "two objects have the name kube-vip-global"));
    }

    #[test]
    fn ciliums_objects_are_saved_as_kubectl_applies_them() {
        let pool = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool", "status": {"a": 1},
            "metadata": {"name": "blue", "labels": {"a": "b"}, "uid": "7", "resourceVersion": "9"},
            "spec": {"blocks": [{"start": "192.0.2.9"}]}});
        let foreign = ForeignPools { cilium_pools: vec![pool.clone(), pool], ..ForeignPools::default() };
        let saved = foreign.cilium_yaml().unwrap().unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&saved).unwrap();
        let expected = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool",
            "metadata": {"name": "blue", "labels": {"a": "b"}}, "spec": {"blocks": [{"start": "192.0.2.9"}]}});
        assert_eq!(documents, [expected.clone(), expected]);
        assert!(ForeignPools::default().cilium_yaml().unwrap().is_none());
    }

    #[test]
    fn the_yaml_is_what_vipmux_reads() {
        let mut converted = Converted::default();
        converted.add_pool("x", pool("lan", vec!["192.0.2.1 - 192.0.2.2".to_owned(), "0.0.0.0/32".to_owned()]));
        converted.policies.push(VipPolicy::new("lan", vipmux_model::api::VipPolicySpec::default()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pools.yaml");
        std::fs::write(&path, converted.yaml().unwrap()).unwrap();
        let read = vipmux_cluster::source::manifests::read(&[path]).unwrap();
        assert_eq!(read.problems, []);
        assert_eq!(read.vip_pools["lan"].spec.addresses, ["192.0.2.1-192.0.2.2"]);
        assert_eq!(read.vip_policies.len(), 1);
        assert!(converted.notes[0].message.starts_with("left out: "), "{:?}", converted.notes);
    }

    #[test]
    fn a_pool_without_usable_addresses_is_left_out_and_noted() {
        let mut converted = Converted::default();
        converted.add_pool("x", pool("lan", vec!["192.0.2.300".to_owned()]));
        assert!(converted.pools.is_empty());
        assert_eq!(converted.notes.len(), 2);
    }
}
