//! Chooses among objects with the same name in several namespaces, of kinds that vipmux takes as
//! cluster-wide.
//!
//! These are MetalLB's, which itself reads its own namespace alone. The oldest object counts, and
//! among objects of one second that of the first namespace by name. So all agents agree whatever
//! they received first, and a stray copy that comes or goes changes nothing.

use std::collections::BTreeMap;

use kube::{ResourceExt as _, api::DynamicObject};

/// Objects by name and namespace.
#[derive(Debug, Default)]
pub(super) struct DuplicateNames(BTreeMap<String, BTreeMap<String, DynamicObject>>);

impl DuplicateNames {
    /// Adds or replaces an object. Returns the one of its name that counts.
    pub(super) fn put(&mut self, object: DynamicObject) -> DynamicObject {
        let all = self.0.entry(object.name_any()).or_default();
        all.insert(object.namespace().unwrap_or_default(), object.clone());
        oldest(all).unwrap_or(object)
    }

    /// Removes an object. Returns the one of its name that counts now.
    pub(super) fn remove(&mut self, object: &DynamicObject) -> Option<DynamicObject> {
        let name = object.name_any();
        let all = self.0.get_mut(&name)?;
        all.remove(&object.namespace().unwrap_or_default());
        let next = oldest(all);
        if next.is_none() {
            self.0.remove(&name);
        }
        next
    }

    /// Forgets all objects, since they are listed again.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

fn oldest(objects: &BTreeMap<String, DynamicObject>) -> Option<DynamicObject> {
    objects.values().min_by_key(|object| object.creation_timestamp()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(namespace: &str) -> DynamicObject {
        created(namespace, 0)
    }

    /// Returns a pool that was created at this second.
    fn created(namespace: &str, second: u8) -> DynamicObject {
        let created = format!("2026-11-20T10:00:{second:02}Z");
        let metadata = serde_json::json!({"name": "lan", "namespace": namespace, "creationTimestamp": created});
        serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn a_newer_copy_in_an_earlier_namespace_replaces_nothing() {
        let (old, new) = (created("metallb-system", 1), created("default", 2));
        for order in [[&old, &new], [&new, &old]] {
            let mut duplicates = DuplicateNames::default();
            let [_, last] = order.map(|object| duplicates.put(object.clone()));
            assert_eq!(last.namespace().as_deref(), Some("metallb-system"));
            let next = duplicates.remove(&old).and_then(|object| object.namespace());
            assert_eq!(next.as_deref(), Some("default"));
        }
    }

    #[test]
    fn the_first_namespace_counts_in_any_order_and_a_deleted_copy_changes_nothing_else() {
        let counts = |object: Option<DynamicObject>| object.and_then(|object| object.namespace());
        for order in [["default", "metallb-system"], ["metallb-system", "default"]] {
            let mut duplicates = DuplicateNames::default();
            let [_, last] = order.map(|namespace| duplicates.put(pool(namespace)));
            assert_eq!(counts(Some(last)).as_deref(), Some("default"));
            assert_eq!(counts(duplicates.remove(&pool("default"))).as_deref(), Some("metallb-system"));
            assert_eq!(counts(duplicates.remove(&pool("default"))).as_deref(), Some("metallb-system"), "twice");
            assert_eq!(counts(duplicates.remove(&pool("metallb-system"))), None);
            assert!(duplicates.0.is_empty());
        }
    }
}
