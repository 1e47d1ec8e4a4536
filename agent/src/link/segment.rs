//! Where the frames of a layer-2 segment come in: not always at the interface that has the node's address there.
//!
//! ```text
//!  address on        frames come in at          tag
//!  eth0              eth0                       none
//!  eth0.100          eth0                       100
//!  bond0             bond0, whose cards run it  none
//!  br0               its ports to the LAN       none, or that of a port like eth0.100
//! ```

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::IpAddr,
};

use vipmux_common::abi::Mac;

use super::{Interface, InterfaceError, Kind, Links, Neighbor};

/// A layer-2 segment that VIPs are announced on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The interface that has the node's addresses there: announcements and the node's own replies leave by it.
    pub ifindex: u32,
    /// Its MAC, which frames to this node carry.
    pub mac: Mac,
    /// The 802.1Q VLAN id of its frames, as they come in; 0: untagged.
    pub vlan: u16,
    /// Interfaces where its frames come in from the LAN; never empty.
    pub ports: BTreeSet<u32>,
    /// What is sent on it leaves, and one of its ports has a carrier.
    pub carrier: bool,
    /// Changes whenever a carrier came, its own or a port's.
    pub carrier_ups: u32,
}

/// An interface where frames of one or more segments come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The MAC that frames to this node carry: the segment's, so the bridge's for a bridge's port.
    pub mac: Mac,
    /// Some of its segments' frames are tagged.
    pub tagged: bool,
    /// The indices under which a program attached here may see frames come in: its own, and those of a bond's cards.
    pub receivers: BTreeSet<u32>,
}

/// All segments that VIPs are announced on, and their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    segments: BTreeMap<u32, Segment>,
    ports: BTreeMap<u32, Port>,
}

impl Links {
    /// The segment that an interface is on. The port of a bridge stands for the bridge as it is seen through that port
    /// alone; a bond's card stands for the bond.
    pub fn segment(&self, interface: &Interface) -> Result<Segment, InterfaceError> {
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
        Ok(Segment { ifindex: whole.ifindex, mac, vlan, ports, carrier, carrier_ups })
    }

    /// Where what arrives at `interface` comes in, and with which tag.
    fn entrances(&self, interface: &Interface) -> Result<(BTreeSet<u32>, u16), InterfaceError> {
        let name = || interface.name.clone();
        match interface.kind {
            Kind::Vlan { customer: false, .. } => Err(InterfaceError::Stacked { name: name() }),
            Kind::Vlan { parent, id, .. } => {
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

    /// A bridge's ports to the LAN: cards, bonds and VLANs of them. Other ports lead to pods and virtual machines.
    fn uplinks(&self, bridge: &Interface) -> Result<(BTreeSet<u32>, u16), InterfaceError> {
        let name = || bridge.name.clone();
        let is_uplink = |port: &&Interface| match &port.kind {
            Kind::Device | Kind::Vlan { .. } => true,
            // A port of a switch that the node has in hardware.
            Kind::Virtual(kind) => port.kind.is_aggregate() || kind == "dsa",
            Kind::Loopback | Kind::Dummy => false,
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

    /// The bridge that frames to the neighbours on an interface go through, if it is one or a VLAN of one.
    pub(super) fn bridge(&self, ifindex: u32) -> Option<u32> {
        let interface = self.get(ifindex)?;
        match interface.kind {
            Kind::Vlan { parent, .. } => self.get(parent?).filter(|parent| parent.kind.is_bridge()),
            _ => Some(interface).filter(|interface| interface.kind.is_bridge()),
        }
        .map(|bridge| bridge.ifindex)
    }

    fn port(&self, port: u32, segment: &Segment) -> Port {
        let is_bond = self.get(port).is_some_and(|interface| interface.kind.is_aggregate());
        let cards = self.ports_of(port).filter(|_| is_bond).map(|card| card.ifindex);
        Port { mac: segment.mac, tagged: segment.vlan != 0, receivers: cards.chain([port]).collect() }
    }
}

impl Segments {
    /// Adds a segment. One that is there already is there by all its ports then.
    pub fn add(&mut self, links: &Links, segment: Segment) -> Result<(), InterfaceError> {
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

    /// All of them, by [`Segment::ifindex`].
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    /// The one whose addresses are on that interface.
    pub fn get(&self, ifindex: u32) -> Option<&Segment> {
        self.segments.get(&ifindex)
    }

    /// None is known.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Their ports, by index.
    pub fn ports(&self) -> &BTreeMap<u32, Port> {
        &self.ports
    }

    /// The interfaces by which replies leave: those with the addresses, and the ports, where a bridge's own pods' do.
    pub fn outlets(&self) -> BTreeSet<u32> {
        self.segments.keys().chain(self.ports.keys()).copied().collect()
    }

    /// Forgets a segment that cannot be used, and the ports that no other has.
    pub fn remove(&mut self, ifindex: u32) {
        self.segments.remove(&ifindex);
        let segments = &self.segments;
        self.ports.retain(|port, _| segments.values().any(|segment| segment.ports.contains(port)));
    }

    /// Where a VIP is announced on those of the segments that are `allowed`: the ports, and its VLAN. That is the segment with the longest of the subnets' prefixes
    /// that hold it, and others of the same length and VLAN (the lowest index decides which). A VIP on no subnet
    /// is announced on all untagged segments, or, where there are none, on those of the first one's VLAN.
    pub fn place(&self, links: &Links, address: IpAddr, allowed: impl Fn(&Segment) -> bool) -> (BTreeSet<u32>, u16) {
        let prefix = |segment: &Segment| links.get(segment.ifindex).and_then(|interface| interface.subnet(address));
        let rank = |segment: &&Segment| {
            let prefix = prefix(segment);
            (prefix, Reverse((prefix.is_none() && segment.vlan != 0, segment.ifindex)))
        };
        let all = || self.iter().filter(|segment| allowed(segment));
        let Some(first) = all().max_by_key(rank) else { return (BTreeSet::new(), 0) };
        let same = |segment: &&Segment| segment.vlan == first.vlan && prefix(segment) == prefix(first);
        (all().filter(same).flat_map(|segment| segment.ports.iter().copied()).collect(), first.vlan)
    }

    /// The port that leads to a neighbour: what its segment's bridge has learnt, if it has several. Where that is not
    /// known, the first one: who is asked again answers soon, and the bridge learns it.
    pub fn port_to(&self, neighbor: Neighbor) -> Option<u32> {
        let segment = self.get(neighbor.ifindex()?)?;
        let learnt = match neighbor {
            Neighbor::Resolved { port, .. } => port.filter(|port| segment.ports.contains(port)),
            _ => None,
        };
        learnt.or_else(|| segment.ports.first().copied())
    }
}

#[cfg(test)]
mod tests;
