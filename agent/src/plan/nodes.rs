//! Nodes and their MACs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{self, Mac};

use crate::{
    model::NodeName,
    plan::{CapacityMap, Desired, DesiredNode, Observed, PlanError, Refusal, Shortage, Step, Subject},
};

/// The steps for `NODES`, `NODE_NAMES` and `PEERS`.
#[derive(Default)]
pub(super) struct Nodes<'a> {
    /// The index of each node that there is to be.
    pub(super) indices: BTreeMap<&'a NodeName, u32>,
    /// What they hold after `arrivals`.
    values: BTreeMap<u32, abi::Node>,
    /// What comes before the backends.
    pub(super) arrivals: Vec<Step>,
    /// Epochs that end, before the first backend changes that they vouch for.
    pub(super) endings: Vec<Step>,
    /// Epochs that begin, after the last one did.
    pub(super) beginnings: Vec<Step>,
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
            let epoch = observed.nodes.get(index).map_or(0, |entry| entry.node.epoch);
            let value = value(node, *name == desired.local, epoch);
            if observed.nodes.get(index).is_none_or(|entry| entry.node != value) {
                nodes.arrivals.push(Step::Node(index, value));
            }
            nodes.values.insert(index, value);
            nodes.indices.insert(name, index);
        }
        nodes.plan_peers(desired, observed, refused);
        nodes
    }

    fn plan_peers(&mut self, desired: &Desired, observed: &Observed, refused: &mut Vec<Refusal>) {
        let mut peers: BTreeMap<Mac, (&NodeName, u32)> = BTreeMap::new();
        let nodes = desired.nodes.iter().filter_map(|(name, node)| Some((node.mac?, name)));
        for (mac, name) in nodes.chain(desired.speakers.iter().map(|(mac, name)| (*mac, name))) {
            // This node is no peer of its own: its announcements must not make it yield.
            if let Some(index) = self.indices.get(name).filter(|_| *name != desired.local) {
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

    /// Changes the epochs of the nodes in `unsettled`, some of whose backends are no longer what a flow record's epoch
    /// vouches for, from `next` on; the first that is left over.
    ///
    /// Neither one write before the backends' nor one after them would do. Before: a packet in between finds the backend
    /// as it was, and gives its record the new epoch. After: if the agent dies in between, the next one finds nothing to
    /// change. So the epoch is 0 from before to after, in which records get none, and a node that is found so gets its
    /// new epoch from whichever plan comes to its end.
    pub(super) fn turn(&mut self, observed: &Observed, unsettled: &BTreeSet<u32>, next: u32) -> Result<u32, PlanError> {
        for index in unsettled {
            // A node that is to go, too: it could be wanted again before its entry is cleared.
            let known = || observed.nodes.get(*index).map(|entry| entry.node);
            let Some(node) = self.values.get(index).copied().or_else(known).filter(|node| node.epoch != 0) else {
                continue;
            };
            let node = abi::Node { epoch: 0, ..node };
            self.endings.push(Step::Node(*index, node));
            self.values.entry(*index).and_modify(|value| *value = node);
        }
        let mut next = next;
        for (index, node) in self.values.iter_mut().filter(|(_, node)| node.epoch == 0) {
            node.epoch = next;
            self.beginnings.push(Step::Node(*index, *node));
            next = next.checked_add(1).ok_or(PlanError::GenerationsExhausted)?;
        }
        Ok(next)
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

fn value(node: &DesiredNode, local: bool, epoch: u32) -> abi::Node {
    let attached = if node.attached { abi::NODE_ATTACHED } else { 0 };
    let own = if local { abi::NODE_SELF } else { 0 };
    abi::Node {
        mac: node.mac.unwrap_or_default(),
        handover: node.mac.map(Mac::handover).unwrap_or_default(),
        ifindex: node.ifindex,
        mtu: node.mtu,
        flags: attached | own,
        epoch,
    }
}
