//! Tracks which backends are probed, for which Services, and by which node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use vipmux_model::{
    NodeName, ServiceName,
    health::{Checkup, Checkups, Health, HealthKey},
};

/// Most checkups of one node.
const MOST: usize = 4096;
/// Most checkups of one namespace, so that others have room beside it.
const MOST_OF_NAMESPACE: usize = 1024;

/// The probed backends, by Service and by node.
#[derive(Clone, Debug, Default)]
pub(super) struct ProbedBackends {
    of: BTreeMap<ServiceName, BTreeSet<(NodeName, HealthKey)>>,
    by: BTreeMap<NodeName, BTreeMap<HealthKey, ProbeTarget>>,
}

/// A checkup, and the Services that depend on it.
#[derive(Clone, Debug)]
struct ProbeTarget {
    checkup: Checkup,
    services: BTreeSet<ServiceName>,
}

impl ProbedBackends {
    /// Replaces the checkups of a Service.
    pub(super) fn set(&mut self, owner: &ServiceName, checkups: Vec<(NodeName, HealthKey, Checkup)>) {
        for (node, key) in self.of.remove(owner).into_iter().flatten() {
            self.release(owner, &node, key);
        }
        if checkups.is_empty() {
            return;
        }
        let mut keys = BTreeSet::new();
        for (node, key, checkup) in checkups {
            let of_node = self.by.entry(node.clone()).or_default();
            let target = of_node.entry(key).or_insert_with(|| ProbeTarget { checkup, services: BTreeSet::new() });
            target.services.insert(owner.clone());
            keys.insert((node, key));
        }
        self.of.insert(owner.clone(), keys);
    }

    fn release(&mut self, owner: &ServiceName, node: &NodeName, key: HealthKey) {
        let Some(of_node) = self.by.get_mut(node) else { return };
        let Some(target) = of_node.get_mut(&key) else { return };
        target.services.remove(owner);
        if target.services.is_empty() {
            of_node.remove(&key);
        }
        if of_node.is_empty() {
            self.by.remove(node);
        }
    }

    /// Returns the Services that a change of health may affect.
    pub(super) fn concerned(&self, before: &Health, after: &Health) -> BTreeSet<ServiceName> {
        let changed = before.differences(after).into_iter();
        let target = changed.filter_map(|(node, key)| self.by.get(&node)?.get(&key));
        target.flat_map(|target| &target.services).cloned().collect()
    }

    /// Returns the checkups of a node, up to the limits.
    pub(super) fn checkups(&self, node: &NodeName) -> Checkups {
        let mut checkups = Checkups::default();
        let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for (key, ProbeTarget { checkup, services }) in self.by.get(node).into_iter().flatten() {
            let namespace = services.first().map_or("", ServiceName::namespace);
            let namespace =
                counts.get_key_value(namespace).map_or_else(|| namespace.into(), |(known, _)| Arc::clone(known));
            let count = counts.entry(Arc::clone(&namespace)).or_default();
            if *count < MOST_OF_NAMESPACE && checkups.all.len() < MOST {
                *count += 1;
                checkups.all.insert(*key, (checkup.clone(), namespace));
            } else {
                *checkups.left_out.entry(namespace).or_default() += 1;
            }
        }
        checkups
    }
}

#[cfg(test)]
mod tests;
