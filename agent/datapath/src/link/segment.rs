//! Finds the ports by which frames of a layer-2 segment come in: not always the interface with the
//! node's address.
//!
//! ```text
//!  address on        frames come in at          tag
//!  eth0              eth0                       none
//!  eth0.100          eth0                       100
//!  bond0             bond0, at its cards        none
//!  br0               its ports to the LAN       none, or that of a port like eth0.100
//! ```

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use vipmux_common::abi::Mac;

use super::{Interface, InterfaceError, InterfaceKind, Links, Neighbor};

/// A layer-2 segment that VIPs are announced on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSegment {
    /// The interface with the node's addresses on the segment. Announcements and the node's own
    /// replies leave by it.
    pub ifindex: u32,
    /// Its MAC: the destination of frames to this node.
    pub mac: Mac,
    /// The 802.1Q VLAN id of received frames; 0: untagged.
    pub vlan: u16,
    /// The interfaces by which its frames come in from the LAN; never empty.
    pub ports: BTreeSet<u32>,
    /// It sends frames, and one of its ports has a carrier.
    pub carrier: bool,
    /// Changes whenever its own carrier or a port's comes up.
    pub carrier_ups: u32,
}

/// An interface by which frames of one or more segments come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPort {
    /// The destination MAC of frames to this node: the segment's, so the bridge's MAC for a port of
    /// a bridge.
    pub mac: Mac,
    /// Frames of some of its segments are tagged.
    pub tagged: bool,
    /// The ifindexes that a program attached here may see on received frames: its own, and those of
    /// a bond's cards.
    pub receivers: BTreeSet<u32>,
    /// Those that are cards which their bond does not use now.
    pub backups: BTreeSet<u32>,
}

impl SegmentPort {
    /// Returns the interfaces by which frames come in from the wire: the port itself, which has this
    /// index, or a bond's cards.
    pub fn cards(&self, port: u32) -> BTreeSet<u32> {
        let is_card = |receiver: &u32| *receiver != port || self.receivers.len() == 1;
        self.receivers.iter().copied().filter(is_card).collect()
    }

    /// Returns the interfaces that the XDP program is attached to. A bond passes a native program on to
    /// its cards, and generic XDP runs only where it is attached. On the bond it would run too late: the
    /// kernel takes the VLAN tag out of a frame before it gives the frame to the bond
    /// (`__netif_receive_skb_core` in net/core/dev.c).
    pub fn program_places(&self, port: u32, generic: bool) -> BTreeSet<u32> {
        if generic { self.cards(port) } else { [port].into() }
    }
}

/// All segments that VIPs are announced on, and their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    segments: BTreeMap<u32, NetworkSegment>,
    ports: BTreeMap<u32, SegmentPort>,
}

impl Links {
    /// Returns the segment of an interface. A port of a bridge stands for the bridge, with that
    /// port only. A card of a bond stands for the bond.
    pub fn segment(&self, interface: &Interface) -> Result<NetworkSegment, InterfaceError> {
        let controller = interface.controller.and_then(|controller| self.get(controller));
        let (whole, entrance) = match controller {
            Some(bridge) if bridge.kind.is_bridge() => (bridge, interface),
            Some(bond) if bond.kind.is_aggregate() => return self.segment(bond),
            _ => (interface, interface),
        };
        let (ports, vlan) = self.entrances(entrance)?;
        let Some(mac) = whole.suitable()?.mac else {
            return Err(InterfaceError::NoMac { name: whole.name.clone() });
        };
        let found = || ports.iter().filter_map(|port| self.get(*port));
        found().try_for_each(|port| port.suitable().map(drop))?;
        let carrier = whole.carrier && found().any(|port| port.carrier);
        let carrier_ups = found().fold(whole.carrier_ups, |ups, port| ups.wrapping_add(port.carrier_ups));
        Ok(NetworkSegment { ifindex: whole.ifindex, mac, vlan, ports, carrier, carrier_ups })
    }

    /// Returns the ports by which frames to `interface` come in, and their VLAN id.
    fn entrances(&self, interface: &Interface) -> Result<(BTreeSet<u32>, u16), InterfaceError> {
        let name = || interface.name.clone();
        match interface.kind {
            InterfaceKind::Vlan { customer: false, .. } => Err(InterfaceError::Stacked { name: name() }),
            InterfaceKind::Vlan { parent, id, .. } => {
                let parent = parent.and_then(|parent| self.get(parent));
                let parent = parent.ok_or_else(|| InterfaceError::ParentElsewhere { name: name() })?;
                match self.entrances(parent)? {
                    (ports, 0) => Ok((ports, id)),
                    _ => Err(InterfaceError::Stacked { name: name() }),
                }
            }
            _ if interface.kind.is_bridge() => self.uplinks(interface),
            _ => Ok((BTreeSet::from([interface.ifindex]), 0)),
        }
    }

    /// Returns a bridge's ports to the LAN: cards, bonds and VLANs of them. Other ports lead to
    /// pods and virtual machines.
    fn uplinks(&self, bridge: &Interface) -> Result<(BTreeSet<u32>, u16), InterfaceError> {
        let name = || bridge.name.clone();
        let is_uplink = |port: &&Interface| match &port.kind {
            InterfaceKind::Device | InterfaceKind::Vlan { .. } => true,
            // A port of a hardware switch in the node.
            InterfaceKind::Virtual(kind) => port.kind.is_aggregate() || kind == "dsa",
            InterfaceKind::Loopback | InterfaceKind::Dummy => false,
        };
        let (mut ports, mut tags) = (BTreeSet::new(), BTreeSet::new());
        for port in self.ports_of(bridge.ifindex).filter(is_uplink) {
            let (entrances, vlan) = self.entrances(port)?;
            ports.extend(entrances);
            tags.insert(vlan);
        }
        match (tags.pop_first(), tags.is_empty()) {
            (Some(vlan), true) => Ok((ports, vlan)),
            (Some(_), false) => Err(InterfaceError::MixedTags { name: name() }),
            (None, _) => {
                let ports = self.ports_of(bridge.ifindex).map(|port| port.name.clone()).collect();
                Err(InterfaceError::NoUplink { name: name(), ports })
            }
        }
    }

    fn ports_of(&self, controller: u32) -> impl Iterator<Item = &Interface> {
        self.iter().filter(move |interface| interface.controller == Some(controller))
    }

    /// Returns the interface itself if it is a bridge, or its parent if it is a VLAN of a bridge.
    pub(super) fn bridge(&self, ifindex: u32) -> Option<u32> {
        let interface = self.get(ifindex)?;
        match interface.kind {
            InterfaceKind::Vlan { parent, .. } => self.get(parent?).filter(|parent| parent.kind.is_bridge()),
            _ => Some(interface).filter(|interface| interface.kind.is_bridge()),
        }
        .map(|bridge| bridge.ifindex)
    }

    fn port(&self, port: u32, segment: &NetworkSegment) -> SegmentPort {
        let is_bond = self.get(port).is_some_and(|interface| interface.kind.is_aggregate());
        let cards = || self.ports_of(port).filter(|_| is_bond);
        SegmentPort {
            mac: segment.mac,
            tagged: segment.vlan != 0,
            receivers: cards().map(|card| card.ifindex).chain([port]).collect(),
            backups: cards().filter(|card| card.backup).map(|card| card.ifindex).collect(),
        }
    }
}

impl Segments {
    /// Adds a segment. If it exists, adds the ports to it.
    pub fn add(&mut self, links: &Links, segment: NetworkSegment) -> Result<(), InterfaceError> {
        for port in &segment.ports {
            if let Some(known) = self.ports.get(port).filter(|known| known.mac != segment.mac) {
                let name = links.get(*port).map_or_else(String::new, |port| port.name.clone());
                return Err(InterfaceError::TwoMacs { port: name, first: known.mac, second: segment.mac });
            }
        }
        let known = self.segments.get(&segment.ifindex);
        if known.is_some_and(|known| known.vlan != segment.vlan) {
            let name = links.get(segment.ifindex).map_or_else(String::new, |interface| interface.name.clone());
            return Err(InterfaceError::MixedTags { name });
        }
        for &port in &segment.ports {
            let new = links.port(port, &segment);
            self.ports.entry(port).and_modify(|known| known.tagged |= new.tagged).or_insert(new);
        }
        match self.segments.entry(segment.ifindex) {
            Entry::Occupied(mut known) => {
                known.get_mut().ports.extend(segment.ports);
                known.get_mut().carrier |= segment.carrier;
                known.get_mut().carrier_ups = known.get().carrier_ups.wrapping_add(segment.carrier_ups);
            }
            Entry::Vacant(place) => drop(place.insert(segment)),
        }
        Ok(())
    }

    /// Returns all segments, by [`NetworkSegment::ifindex`].
    pub fn iter(&self) -> impl Iterator<Item = &NetworkSegment> {
        self.segments.values()
    }

    /// Returns the segment whose addresses are on this interface.
    pub fn get(&self, ifindex: u32) -> Option<&NetworkSegment> {
        self.segments.get(&ifindex)
    }

    /// Returns whether there are no segments.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the ports of all segments, by index.
    pub fn ports(&self) -> &BTreeMap<u32, SegmentPort> {
        &self.ports
    }

    /// Returns the interfaces by which replies leave: those with the addresses, and the ports, by
    /// which replies of a bridge's own pods leave.
    pub fn outlets(&self) -> BTreeSet<u32> {
        self.segments.keys().chain(self.ports.keys()).copied().collect()
    }

    /// Removes a segment that cannot be used, and ports that no other segment has.
    pub fn remove(&mut self, ifindex: u32) {
        self.segments.remove(&ifindex);
        let segments = &self.segments;
        self.ports.retain(|port, _| segments.values().any(|segment| segment.ports.contains(port)));
    }

    /// Returns the port that leads to a neighbor. If the segment's bridge has several ports, it is
    /// the learned one. If none is learned, it is the first one: the neighbor soon answers a new
    /// solicitation, and the bridge learns its port.
    pub fn port_to(&self, neighbor: Neighbor) -> Option<u32> {
        let segment = self.get(neighbor.ifindex()?)?;
        let learned = match neighbor {
            Neighbor::Resolved { port, .. } => port.filter(|port| segment.ports.contains(port)),
            _ => None,
        };
        learned.or_else(|| segment.ports.first().copied())
    }
}

#[cfg(test)]
mod tests;
