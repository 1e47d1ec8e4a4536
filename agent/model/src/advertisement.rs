//! Decides which nodes may announce which pools on which interfaces, by L2Advertisements and
//! VipPolicies.
//!
//! A policy that names no pools covers all pools of both kinds. One that selects no nodes allows
//! all nodes. A node may announce a pool if any policy allows it. Without policies, every node
//! announces every pool. With policies, nobody announces a pool that none of them covers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::{
    NodeName,
    api::{L2Advertisement, VipPolicy, rules::WEIGHTS},
    node::Node,
    objects::Objects,
    pool::Pool,
    reason::Note,
    selector::{Labels, Selector},
};

/// The weight of a node that no policy prefers.
pub const ORDINARY_WEIGHT: u32 = 1;

/// The nodes that may announce the addresses of each pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertisements {
    /// For each pool, in the order of the model's pools.
    pools: Vec<Arc<EligibleNodes>>,
    /// The eligible nodes for addresses that are in no pool any more: all nodes that may announce
    /// anything. So the addresses stay reachable.
    elsewhere: Arc<EligibleNodes>,
}

/// The nodes that may lead an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EligibleNodes {
    nodes: BTreeMap<NodeName, EligibleNode>,
    /// The objects that allow it. Empty: there are no such objects, or none covers the pool.
    by: BTreeSet<String>,
}

/// A node that may lead an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EligibleNode {
    /// The node's share of leadership relative to other nodes; at least [`ORDINARY_WEIGHT`].
    pub weight: u32,
    /// Nodes with the highest score lead, as long as one of them can.
    pub score: u32,
    /// The interfaces on which the node announces the address.
    pub interfaces: Interfaces,
}

/// Interfaces of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Interfaces {
    /// All interfaces that the agent announces on.
    #[default]
    All,
    /// Those of them with these names.
    Named(BTreeSet<String>),
}

impl Interfaces {
    fn new(names: &[String]) -> Self {
        if names.is_empty() { Self::All } else { Self::Named(names.iter().cloned().collect()) }
    }

    /// Adds the interfaces of the other value.
    fn extend(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Named(names), Self::Named(others)) => names.extend(others.iter().cloned()),
            _ => *self = Self::All,
        }
    }
}

impl EligibleNodes {
    /// Returns each node with its weight and interfaces.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, &EligibleNode)> {
        self.nodes.iter()
    }

    /// Returns the interfaces on which a node announces the address if it leads it.
    ///
    /// A node that may not lead the address has it on all interfaces. It takes packets that are
    /// handed over to it, and keeps its own stack from answering.
    pub fn interfaces(&self, node: &NodeName) -> &Interfaces {
        self.nodes.get(node).map_or(&Interfaces::All, |node| &node.interfaces)
    }

    /// Returns the names of the objects that allow it, for people; `None`: nothing covers the pool.
    pub fn selected_by(&self) -> Option<String> {
        (!self.by.is_empty()).then(|| self.by.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
    }

    /// Returns all nodes, on all interfaces, with equal weights.
    pub fn everybody(nodes: &BTreeMap<NodeName, Node>) -> Self {
        let node = |name: &NodeName| (name.clone(), EligibleNode { weight: 0, score: 0, interfaces: Interfaces::All });
        Self { nodes: nodes.keys().map(node).collect(), by: BTreeSet::new() }.weighed()
    }

    /// Whether this object, as `Kind name`, is among those that allow it.
    pub fn is_by(&self, object: &str) -> bool {
        self.by.contains(object)
    }

    fn allow(&mut self, advertisement: &Advertisement, nodes: &BTreeMap<NodeName, Node>) {
        self.by.insert(advertisement.object.clone());
        for node in nodes.values().filter(|node| advertisement.selects(node)) {
            let (weight, score) = (advertisement.preferred.of(&node.labels), advertisement.scored.of(&node.labels));
            let interfaces = &advertisement.interfaces;
            let new = || EligibleNode { weight: 0, score: 0, interfaces: interfaces.clone() };
            let node = self.nodes.entry(node.name.clone()).or_insert_with(new);
            node.weight = node.weight.saturating_add(weight);
            node.score = node.score.saturating_add(score);
            node.interfaces.extend(interfaces);
        }
    }

    /// Gives [`ORDINARY_WEIGHT`] to each node that no policy prefers.
    fn weighed(mut self) -> Self {
        for node in self.nodes.values_mut() {
            node.weight = node.weight.max(ORDINARY_WEIGHT);
        }
        self
    }
}

impl Advertisements {
    /// Returns the eligible nodes for each of these pools, in their order, from these nodes. Notes
    /// each entry that has no effect.
    pub(super) fn ingest(
        objects: &Objects,
        pools: &[Pool],
        nodes: &BTreeMap<NodeName, Node>,
        remarks: &mut Vec<Note>,
    ) -> Self {
        let all = Advertisement::all(objects, remarks);
        if all.is_empty() {
            let everybody = Arc::new(EligibleNodes::everybody(nodes));
            return Self { pools: vec![Arc::clone(&everybody); pools.len()], elsewhere: everybody };
        }
        for advertisement in &all {
            advertisement.note_missing_targets(pools, nodes, remarks);
        }
        let of = |pool: Option<&Pool>| {
            let mut eligible = EligibleNodes::default();
            for advertisement in all.iter().filter(|it| pool.is_none_or(|pool| it.covers(pool))) {
                eligible.allow(advertisement, nodes);
            }
            Arc::new(eligible.weighed())
        };
        let made = Self { pools: pools.iter().map(|pool| of(Some(pool))).collect(), elsewhere: of(None) };
        for (pool, _) in pools.iter().zip(&made.pools).filter(|(_, eligible)| eligible.by.is_empty()) {
            remarks.push(Note::new(
                pool.object(),
                format!("its addresses are announced by nobody: {}", not_covered(pool)),
            ));
        }
        made
    }

    /// Whether there are L2Advertisements or VipPolicies, and none covers the pool with this index.
    pub(super) fn leave_out(&self, pool: usize) -> bool {
        self.pools.get(pool).is_some_and(|eligible| eligible.by.is_empty()) && !self.elsewhere.by.is_empty()
    }

    /// Returns the nodes that may lead the addresses of the pool with this index; `None`: addresses
    /// in no pool.
    pub fn of(&self, pool: Option<usize>) -> &Arc<EligibleNodes> {
        pool.and_then(|pool| self.pools.get(pool)).unwrap_or(&self.elsewhere)
    }
}

/// Returns why nobody announces a pool that nothing covers, and what to do about it.
pub(super) fn not_covered(pool: &Pool) -> String {
    format!("no L2Advertisement or VipPolicy covers pool {0}; name {0} in one of them", pool.name)
}

/// An L2Advertisement or a VipPolicy.
struct Advertisement {
    object: String,
    /// The pools, by name and by label; `None`: all.
    pools: Option<(BTreeSet<String>, Vec<Selector>)>,
    /// The nodes; `None`: all.
    nodes: Option<Vec<Selector>>,
    interfaces: Interfaces,
    /// The weights of nodes, by a VipPolicy,
    preferred: Weights,
    /// and their scores, by an L2Advertisement.
    scored: Weights,
}

/// Numbers that selectors give nodes.
#[derive(Default)]
struct Weights(Vec<(u32, Selector)>);

impl Weights {
    /// Reads a field's entries. Notes those that are left out.
    fn new<'a>(
        object: &str,
        field: [&str; 2],
        entries: impl Iterator<Item = (i32, &'a LabelSelector)>,
        notes: &mut Vec<Note>,
    ) -> Self {
        let mut weights = Vec::new();
        for (i, (weight, selector)) in entries.enumerate() {
            match Selector::new(selector) {
                // The API server admits no others.
                Ok(selector) => weights.push((weight.clamp(*WEIGHTS.start(), *WEIGHTS.end()).unsigned_abs(), selector)),
                Err(error) => {
                    let message = format!("spec.{}[{i}].{}: {error}; left out", field[0], field[1]);
                    notes.push(Note::new(object.to_owned(), message));
                }
            }
        }
        Self(weights)
    }

    /// Returns the sum of those that select a node with these labels; 0: none does.
    fn of(&self, labels: &Labels) -> u32 {
        self.0
            .iter()
            .filter(|(_, selector)| selector.matches(labels))
            .fold(0, |sum, (weight, _)| sum.saturating_add(*weight))
    }
}

/// The fields that both kinds have, with their names.
struct Written<'a> {
    object: String,
    pools: &'a [String],
    pool_selectors: (&'static str, &'a [LabelSelector]),
    node_selectors: &'a [LabelSelector],
    interfaces: &'a [String],
}

impl Advertisement {
    fn all(objects: &Objects, notes: &mut Vec<Note>) -> Vec<Self> {
        let of_metallb = objects.l2_advertisements.iter();
        let mut all: Vec<Self> = of_metallb.map(|(name, it)| Self::of_metallb(name, it, notes)).collect();
        all.extend(objects.vip_policies.iter().map(|(name, policy)| Self::of_vipmux(name, policy, notes)));
        all
    }

    fn of_metallb(name: &str, advertisement: &L2Advertisement, notes: &mut Vec<Note>) -> Self {
        let spec = &advertisement.spec;
        let object = format!("L2Advertisement {name}");
        if !spec.service_selectors.is_empty() {
            let message = "spec.serviceSelectors has no effect: an address is announced for all Services that share it";
            notes.push(Note::new(object.clone(), message));
        }
        let written = Written {
            object,
            pools: &spec.ip_address_pools,
            pool_selectors: ("ipAddressPoolSelectors", &spec.ip_address_pool_selectors),
            node_selectors: &spec.node_selectors,
            interfaces: &spec.interfaces,
        };
        let mut made = Self::new(written, notes);
        let scored = spec.preferred_node_selectors.iter().map(|it| (it.weight, &it.preference));
        made.scored = Weights::new(&made.object, ["preferredNodeSelectors", "preference"], scored, notes);
        made
    }

    fn of_vipmux(name: &str, policy: &VipPolicy, notes: &mut Vec<Note>) -> Self {
        let spec = &policy.spec;
        let written = Written {
            object: format!("VipPolicy {name}"),
            pools: &spec.pools,
            pool_selectors: ("poolSelectors", &spec.pool_selectors),
            node_selectors: &spec.node_selectors,
            interfaces: &spec.interfaces,
        };
        let mut made = Self::new(written, notes);
        let preferred = spec.preferred_nodes.iter().map(|it| (it.weight, &it.node_selector));
        made.preferred = Weights::new(&made.object, ["preferredNodes", "nodeSelector"], preferred, notes);
        made
    }

    /// Creates the advertisement. A malformed selector selects nothing, so that nothing is
    /// announced by mistake.
    fn new(written: Written<'_>, notes: &mut Vec<Note>) -> Self {
        let Written { object, pools, pool_selectors: (field, pool_selectors), node_selectors, interfaces } = written;
        let mut bad = |message: String| notes.push(Note::new(object.clone(), format!("{message}; left out")));
        let by_label = Selector::list(&format!("spec.{field}"), pool_selectors, &mut bad);
        let by_node = Selector::list("spec.nodeSelectors", node_selectors, &mut bad);
        let any_pool = pools.is_empty() && pool_selectors.is_empty();
        Self {
            object,
            pools: (!any_pool).then(|| (pools.iter().cloned().collect(), by_label)),
            nodes: (!node_selectors.is_empty()).then_some(by_node),
            interfaces: Interfaces::new(interfaces),
            preferred: Weights::default(),
            scored: Weights::default(),
        }
    }

    fn covers(&self, pool: &Pool) -> bool {
        self.pools.as_ref().is_none_or(|(names, selectors)| {
            names.iter().any(|name| pool.is_called(name))
                || selectors.iter().any(|selector| selector.matches(&pool.labels))
        })
    }

    fn selects(&self, node: &Node) -> bool {
        self.nodes.as_ref().is_none_or(|selectors| selectors.iter().any(|selector| selector.matches(&node.labels)))
    }

    fn note_missing_targets(&self, pools: &[Pool], nodes: &BTreeMap<NodeName, Node>, remarks: &mut Vec<Note>) {
        let mut note = |message: String| remarks.push(Note::new(self.object.clone(), message));
        let names = self.pools.iter().flat_map(|(names, _)| names);
        for name in names.filter(|name| !pools.iter().any(|pool| pool.is_called(name))) {
            note(format!("it names pool {name}, which does not exist"));
        }
        if !nodes.is_empty() && !nodes.values().any(|node| self.selects(node)) {
            note("spec.nodeSelectors selects no Node, so nothing is announced by it".to_owned());
        }
    }
}

#[cfg(test)]
mod tests;
