//! Plans nodes and their MACs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{self, Mac};

use crate::{
    capacity::{CapacityMap, CapacityRefusal, Shortage, Subject},
    error::PlanError,
    mirror::MapMirror,
    step::Step,
};
use vipmux_model::{
    NodeName,
    desired::{Desired, DesiredNode, Reach},
};

/// The steps for `NODES`, `NODE_NAMES` and `PEERS`.
#[derive(Default)]
pub(super) struct NodeSteps<'a> {
    /// The index of each desired node.
    pub(super) indices: BTreeMap<&'a NodeName, u32>,
    /// The entries of `NODES` after `arrivals`.
    values: BTreeMap<u32, abi::Node>,
    /// Steps before those of the backends.
    pub(super) arrivals: Vec<Step>,
    /// Ends epochs, before the first change of a backend that they vouch for.
    pub(super) endings: Vec<Step>,
    /// Starts epochs, after the last such change.
    pub(super) beginnings: Vec<Step>,
    /// Steps after all of these.
    pub(super) departures: Vec<Step>,
}

impl<'a> NodeSteps<'a> {
    pub(super) fn plan(
        desired: &'a Desired,
        maps: &MapMirror,
        now: Duration,
        refused: &mut Vec<CapacityRefusal>,
    ) -> Self {
        let mut nodes = Self::default();
        let mut vacancies = maps.nodes.vacancies(now);
        for (name, node) in &desired.nodes {
            let known = maps.node_index(name);
            let Some(index) = known.or_else(|| vacancies.take()) else {
                let capacity = maps.nodes.capacity();
                let shortage = Shortage { map: CapacityMap::Nodes, capacity, free: 0, needed: 1 };
                refused.push(CapacityRefusal { subject: Subject::Node(name.clone()), shortage });
                continue;
            };
            if known.is_none() {
                nodes.arrivals.push(Step::NodeName(index, Some(name.to_string())));
            }
            let epoch = maps.nodes.get(index).map_or(0, |entry| entry.node.epoch);
            let handover = handover_macs(desired, name).first().copied().unwrap_or_default();
            let value = value(node, *name == desired.local, handover, epoch);
            if maps.nodes.get(index).is_none_or(|entry| entry.node != value) {
                nodes.arrivals.push(Step::Node(index, value));
            }
            nodes.values.insert(index, value);
            nodes.indices.insert(name, index);
        }
        nodes.plan_peers(desired, maps, refused);
        nodes
    }

    fn plan_peers(&mut self, desired: &Desired, maps: &MapMirror, refused: &mut Vec<CapacityRefusal>) {
        let peers = self.peers(desired);
        let gone = maps.peers.keys().filter(|mac| !peers.contains_key(mac));
        let before = self.arrivals.len();
        self.arrivals.extend(gone.map(|mac| Step::Peer(*mac, None)));
        let gone = self.arrivals.len() - before;
        let capacity = maps.capacities.peers;
        let mut free = (capacity as usize + gone).saturating_sub(maps.peers.len());
        for (mac, (name, index)) in peers {
            let current = maps.peers.get(&mac);
            if current.is_none() && free == 0 {
                let shortage = Shortage { map: CapacityMap::Peers, capacity, free: 0, needed: 1 };
                refused.push(CapacityRefusal { subject: Subject::Node(name.clone()), shortage });
            } else if current != Some(&index) {
                free -= usize::from(current.is_none());
                self.arrivals.push(Step::Peer(mac, Some(index)));
            }
        }
    }

    /// Returns the elements of `PEERS`. This node is not its own peer: its announcements must not
    /// make it yield.
    fn peers(&self, desired: &'a Desired) -> BTreeMap<Mac, (&'a NodeName, u32)> {
        let nodes = desired.nodes.iter().filter_map(|(name, node)| Some((node.mac?, name, 0)));
        let speakers = desired.speakers.iter().map(|(mac, name)| (*mac, name, 0));
        let handing_over = desired
            .nodes
            .keys()
            .flat_map(|name| handover_macs(desired, name).iter().map(move |mac| (*mac, name, abi::PEER_HANDOVER)));
        let mut peers = BTreeMap::new();
        for (mac, name, flag) in
            nodes.chain(speakers).chain(handing_over).filter(|(_, name, _)| **name != desired.local)
        {
            if let Some(index) = self.indices.get(name) {
                peers.entry(mac).or_insert((name, *index | flag));
            }
        }
        peers
    }

    /// Changes the epochs of the nodes in `stale_epochs`: flow records' epochs no longer vouch for
    /// some of their backends. New epochs start at `next`. Returns the first one that is left.
    ///
    /// One write is not enough, neither before those of the backends nor after them:
    ///
    /// - Before: a packet in between finds the old backend, and gives its record the new epoch.
    /// - After: if the agent dies in between, the next one finds nothing to change.
    ///
    /// So the epoch is 0 from before until after. Records get no epoch meanwhile. Any plan that
    /// comes to its end gives a node with epoch 0 a new epoch.
    pub(super) fn change_epochs(
        &mut self,
        maps: &MapMirror,
        stale_epochs: &BTreeSet<u32>,
        next: u32,
    ) -> Result<u32, PlanError> {
        for index in stale_epochs {
            // Also a node that is to go: it could be desired again before its entry is cleared.
            let known = || maps.nodes.get(*index).map(|entry| entry.node);
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

    /// Frees the indices that no node has and that no remaining backend refers to.
    pub(super) fn release(&mut self, maps: &MapMirror, referred: &BTreeSet<u32>) {
        let kept: BTreeSet<u32> = self.indices.values().copied().collect();
        for (index, entry) in maps.nodes.iter().filter(|(index, _)| !kept.contains(index)) {
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

/// Returns the hand-over MACs of a node, the one in use first.
pub(super) fn handover_macs<'a>(desired: &'a Desired, node: &NodeName) -> &'a [Mac] {
    desired.handover_macs.get(node).map_or(&[], Vec::as_slice)
}

fn value(node: &DesiredNode, local: bool, handover: Mac, epoch: u32) -> abi::Node {
    let reach = match node.reach {
        Reach::Attached => abi::NODE_ATTACHED,
        Reach::Detached => 0,
        Reach::Silent => abi::NODE_SILENT,
    };
    let own = if local { abi::NODE_SELF } else { 0 };
    abi::Node {
        mac: node.mac.unwrap_or_default(),
        handover,
        ifindex: node.ifindex,
        mtu: node.mtu,
        flags: reach | own,
        epoch,
    }
}
