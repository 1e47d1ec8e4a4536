//! Nodes and their MACs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{self, Mac};

use crate::{
    model::NodeName,
    plan::{CapacityMap, Desired, DesiredNode, Observed, Refusal, Shortage, Step, Subject},
};

/// The steps for `NODES`, `NODE_NAMES` and `PEERS`.
#[derive(Default)]
pub(super) struct Nodes<'a> {
    /// The index of each node that there is to be.
    pub(super) indices: BTreeMap<&'a NodeName, u32>,
    /// What comes before the backends.
    pub(super) arrivals: Vec<Step>,
    /// What comes after them.
    pub(super) departures: Vec<Step>,
}

impl<'a> Nodes<'a> {
    pub(super) fn plan(desired: &'a Desired, observed: &Observed, now: Duration, refused: &mut Vec<Refusal>) -> Self {
        let mut nodes = Self::default();
        let mut vacancies = observed.nodes.vacancies(now);
        for (name, node) in &desired.nodes {
            let known = observed.node_indices.get(name).copied();
            let Some(index) = known.or_else(|| vacancies.take()) else {
                let capacity = observed.nodes.capacity();
                let shortage = Shortage { map: CapacityMap::Nodes, capacity, free: 0, needed: 1 };
                refused.push(Refusal { subject: Subject::Node(name.clone()), shortage });
                continue;
            };
            if known.is_none() {
                nodes.arrivals.push(Step::NodeName(index, Some(name.clone())));
            }
            let value = value(node, *name == desired.local);
            if observed.nodes.get(index).is_none_or(|entry| entry.node != value) {
                nodes.arrivals.push(Step::Node(index, value));
            }
            nodes.indices.insert(name, index);
        }
        nodes.plan_peers(desired, observed, refused);
        nodes
    }

    fn plan_peers(&mut self, desired: &Desired, observed: &Observed, refused: &mut Vec<Refusal>) {
        let mut peers: BTreeMap<Mac, (&NodeName, u32)> = BTreeMap::new();
        for (name, index) in &self.indices {
            let mac = desired.nodes.get(*name).and_then(|node| node.mac);
            // This node is no peer of its own: its announcements must not make it yield.
            if let Some(mac) = mac.filter(|_| **name != desired.local) {
                peers.entry(mac).or_insert((name, *index));
            }
        }
        let gone = observed.peers.keys().filter(|mac| !peers.contains_key(mac));
        let before = self.arrivals.len();
        self.arrivals.extend(gone.map(|mac| Step::Peer(*mac, None)));
        let gone = self.arrivals.len() - before;
        let capacity = observed.capacities.peers;
        let mut free = (capacity as usize + gone).saturating_sub(observed.peers.len());
        for (mac, (name, index)) in peers {
            let current = observed.peers.get(&mac);
            if current.is_none() && free == 0 {
                let shortage = Shortage { map: CapacityMap::Peers, capacity, free: 0, needed: 1 };
                refused.push(Refusal { subject: Subject::Node(name.clone()), shortage });
            } else if current != Some(&index) {
                free -= usize::from(current.is_none());
                self.arrivals.push(Step::Peer(mac, Some(index)));
            }
        }
    }

    /// Frees the indices that no node has and no backend, of those that stay, refers to.
    pub(super) fn release(&mut self, observed: &Observed, referred: &BTreeSet<u32>) {
        let kept: BTreeSet<u32> = self.indices.values().copied().collect();
        for (index, entry) in observed.nodes.iter().filter(|(index, _)| !kept.contains(index)) {
            if referred.contains(&index) {
                continue;
            }
            if entry.node != abi::Node::default() {
                self.departures.push(Step::Node(index, abi::Node::default()));
            }
            if entry.name.is_some() {
                self.departures.push(Step::NodeName(index, None));
            }
        }
    }
}

fn value(node: &DesiredNode, local: bool) -> abi::Node {
    let attached = if node.attached { abi::NODE_ATTACHED } else { 0 };
    let own = if local { abi::NODE_SELF } else { 0 };
    abi::Node {
        mac: node.mac.unwrap_or_default(),
        handover: node.mac.map(Mac::handover).unwrap_or_default(),
        ifindex: node.ifindex,
        mtu: node.mtu,
        flags: attached | own,
        reserved: 0,
    }
}
