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
    desired::{Desired, DesiredNode, DesiredPath, Reach},
};

/// The steps for `NODES`, `NODE_NAMES` and `PEERS`.
#[derive(Default)]
pub(super) struct NodeSteps<'a> {
    /// The index of each desired node.
    pub(super) indices: BTreeMap<&'a NodeName, u32>,
    /// The elements of `NODES` after `arrivals`, by the index of their node: the element for its
    /// InternalIP first.
    values: BTreeMap<u32, Vec<(u32, abi::Node)>>,
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
            let own = if *name == desired.local { abi::NODE_SELF } else { 0 };
            let value = |path| abi::Node { handover, epoch, ..value(path, own) };
            let elements: Vec<_> = elements(index, node).map(|(element, path)| (element, value(path))).collect();
            nodes.plan_elements(maps, index, &elements);
            nodes.values.insert(index, elements);
            nodes.indices.insert(name, index);
        }
        nodes.plan_peers(desired, maps, refused);
        nodes
    }

    /// Paths for segments without a number go last, when no VIP has these numbers any more.
    fn plan_elements(&mut self, maps: &MapMirror, index: u32, elements: &[(u32, abi::Node)]) {
        let differs = |(element, value): &&(u32, abi::Node)| maps.node_element(*element) != *value;
        self.arrivals.extend(elements.iter().filter(differs).map(|(element, value)| Step::Node(*element, *value)));
        let is_wanted = |element| elements.iter().any(|(wanted, _)| *wanted == element);
        let gone = maps.node_elements(index).map(|(element, _)| element).filter(|element| !is_wanted(*element));
        self.departures.extend(gone.map(|element| Step::Node(element, abi::Node::default())));
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
        let nodes = desired.nodes.iter().filter_map(|(name, node)| Some((node.path.mac?, name, 0)));
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
            // Also a node that is to go: it could be desired again before its entry is cleared. And
            // paths that are to go: packets may still take them.
            let mut all: BTreeMap<u32, abi::Node> = maps.node_elements(*index).collect();
            all.extend(self.values.get(index).into_iter().flatten().copied());
            let ended = all.into_iter().filter(|(_, node)| node.epoch != 0);
            self.endings.extend(ended.map(|(element, node)| Step::Node(element, abi::Node { epoch: 0, ..node })));
            self.values.get_mut(index).into_iter().flatten().for_each(|(_, node)| node.epoch = 0);
        }
        let mut next = next;
        for elements in self.values.values_mut().filter(|elements| elements.iter().any(|(_, node)| node.epoch == 0)) {
            for (element, node) in elements {
                node.epoch = next;
                self.beginnings.push(Step::Node(*element, *node));
            }
            next = next.checked_add(1).ok_or(PlanError::GenerationsExhausted)?;
        }
        Ok(next)
    }

    /// Frees the indices that no node has and that no remaining backend refers to.
    pub(super) fn release(&mut self, maps: &MapMirror, referred: &BTreeSet<u32>) {
        let kept: BTreeSet<u32> = self.indices.values().copied().collect();
        let known = maps.nodes.iter().map(|(index, _)| index);
        let all: BTreeSet<u32> = known.chain(maps.paths.keys().map(|element| abi::node_of_element(*element))).collect();
        for index in all.into_iter().filter(|index| !kept.contains(index) && !referred.contains(index)) {
            let elements = maps.node_elements(index).map(|(element, _)| Step::Node(element, abi::Node::default()));
            self.departures.extend(elements);
            if maps.nodes.get(index).is_some_and(|entry| entry.name.is_some()) {
                self.departures.push(Step::NodeName(index, None));
            }
        }
    }
}

/// Returns the hand-over MACs of a node, the one in use first.
pub(super) fn handover_macs<'a>(desired: &'a Desired, node: &NodeName) -> &'a [Mac] {
    desired.handover_macs.get(node).map_or(&[], Vec::as_slice)
}

/// Returns the elements of `NODES` of a node with this index: that for its InternalIP first.
fn elements(index: u32, node: &DesiredNode) -> impl Iterator<Item = (u32, &DesiredPath)> {
    let element = move |segment: u8| abi::node_element(u32::from(segment) << abi::VIP_SEGMENT_SHIFT, index);
    let others = node.by_segment.iter().map(move |(segment, path)| (element(*segment), path));
    std::iter::once((index, &node.path)).chain(others.filter(move |(element, _)| *element != index))
}

fn value(path: &DesiredPath, own: u32) -> abi::Node {
    let reach = match path.reach {
        Reach::Attached => abi::NODE_ATTACHED,
        Reach::Detached => 0,
        Reach::Silent => abi::NODE_SILENT,
    };
    let vlan = path.vlan.map_or(0, |vlan| abi::NODE_VLAN | u32::from(vlan) << abi::NODE_VLAN_SHIFT);
    abi::Node {
        mac: path.mac.unwrap_or_default(),
        ifindex: path.ifindex,
        mtu: path.mtu,
        flags: reach | own | vlan,
        ..abi::Node::default()
    }
}
