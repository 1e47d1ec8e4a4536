//! Computes the desired state of the maps from the serving state, the interfaces and the neighbors.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
};

use vipmux_common::abi::{self, Mac, NODE_ATTACHED, NODE_SILENT};

use super::{interfaces::AttachedInterfaces, pipeline::ServingState};
use crate::problems::warnings::Warnings;
use vipmux_datapath::{
    announce::groups::SolicitedNodeGroup,
    link::{Links, Neighbor, NetworkSegment, ResolvedNeighbors},
};
use vipmux_model::{
    NodeName, PortClaim, Vip,
    advertisement::Interfaces as Allowed,
    desired::{Desired, DesiredNode, DesiredPath, DesiredVip, Reach, Unreachable},
    hashing::Hashing,
};
use vipmux_plan::Observed;

/// The MACs that each peer publishes: 0 is that on the segment of its InternalIP.
pub(crate) type PeerMacs = BTreeMap<NodeName, BTreeMap<u8, Mac>>;

/// The addresses that each peer publishes of its segments. A peer that was not heard is missing.
pub(crate) type PeerAddresses = BTreeMap<NodeName, BTreeSet<IpAddr>>;

/// Everything that the desired state depends on. It does no I/O.
pub(crate) struct DesiredInputs<'a> {
    /// This node.
    pub(crate) node: &'a NodeName,
    pub(crate) unreachable: Unreachable,
    pub(crate) hashing: Hashing,
    pub(crate) state: &'a ServingState,
    pub(crate) links: &'a Links,
    pub(crate) neighbors: &'a ResolvedNeighbors,
    pub(crate) interfaces: &'a AttachedInterfaces,
    pub(crate) peer_macs: &'a PeerMacs,
    pub(crate) peer_addresses: &'a PeerAddresses,
    pub(crate) handover_macs: &'a Arc<BTreeMap<NodeName, Vec<Mac>>>,
    pub(crate) observed: &'a Observed,
    /// The VIPs that this node leads, with their epochs.
    pub(crate) led: &'a BTreeMap<Vip, u64>,
}

impl DesiredInputs<'_> {
    /// Returns the desired state. Adds a warning for each part that cannot be.
    pub(crate) fn desired(&self, warnings: &mut Warnings) -> Desired {
        let vips = self.vips(warnings);
        let nodes = self.nodes(warnings);
        let mut services = self.state.services.clone();
        if vips.len() < self.state.leaders.len() {
            services = services.into_iter().filter(|(claim, _)| vips.contains_key(&claim.vip)).collect();
        }
        let of_node = |(name, macs): (&NodeName, &BTreeMap<u8, Mac>)| {
            let name = name.clone();
            macs.values().map(move |mac| (*mac, name.clone())).collect::<Vec<_>>()
        };
        let speakers = self.peer_macs.iter().flat_map(of_node).collect();
        let (local, handover_macs) = (self.node.clone(), Arc::clone(self.handover_macs));
        let (unreachable, hashing) = (self.unreachable, self.hashing);
        Desired { local, nodes, speakers, handover_macs, vips, services, unreachable, hashing }
    }

    fn vips(&self, warnings: &mut Warnings) -> BTreeMap<Vip, DesiredVip> {
        let owners = self.links.owners();
        let mut vips = BTreeMap::new();
        for vip in self.state.leaders.keys() {
            if let Some(owner) = owners.get(&vip.address()) {
                warnings.add(format!("VIP {vip} is refused: it is an address of this node's {}", owner.name));
                continue;
            }
            let (interfaces, vlan) = self.place(*vip, warnings);
            let (leading, epoch) = (self.led.contains_key(vip), self.led.get(vip).copied().unwrap_or_default());
            let segment = self.interfaces.segment_number(interfaces, vlan.into());
            vips.insert(*vip, DesiredVip { leading, interfaces, vlan: NonZeroU16::new(vlan), segment, epoch });
        }
        vips
    }

    fn nodes(&self, warnings: &mut Warnings) -> BTreeMap<NodeName, DesiredNode> {
        let mut nodes = BTreeMap::new();
        for (name, addresses) in &*self.state.nodes {
            // A frame is handed over by MAC. So one address is enough, whatever the packet's family
            // is.
            match self.path(name, addresses.first().copied()) {
                Ok(path) => {
                    let numbered = self.interfaces.numbered();
                    let by_segment =
                        numbered.map(|(number, segment)| (number, self.path_on(segment, number, name, path)));
                    nodes.insert(name.clone(), DesiredNode { path, by_segment: by_segment.collect() });
                }
                Err(reason) => warnings.add(format!("Node {name} gets no packets: {reason}")),
            }
        }
        nodes
    }

    /// Returns where a VIP is announced: the bits of the interfaces, and the VLAN.
    fn place(&self, vip: Vip, warnings: &mut Warnings) -> (u32, u16) {
        let allowed = self.state.eligible_nodes.get(&vip).map_or(&Allowed::All, |all| all.interfaces(self.node));
        let place = self.interfaces.place(self.links, vip, allowed);
        if let (0, Allowed::Named(names), false) = (place.0, allowed, self.interfaces.attached.is_empty()) {
            let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            warnings.add(format!(
                "VIP {vip} is announced nowhere on this node: its L2Advertisements and VipPolicies want {names}, and this agent \
                 announces on none of these (--interface)"
            ));
        }
        if let Some(loss) = self.interfaces.loss(self.links).filter(|_| self.interfaces.loses(place.0, place.1.into()))
        {
            warnings.add(format!("VIP {vip} is not announced on this node: {loss}"));
        }
        if self.interfaces.is_cut(place.0, place.1.into()) {
            warnings.add(format!(
                "VIP {vip} is not announced on this node: no other node answers it on the VIP's segment, while others \
                 answer each other there"
            ));
        }
        place
    }

    /// Returns the path to a node: by its InternalIP, or on any segment where it answers. Else returns
    /// why there is none.
    fn path(&self, name: &NodeName, address: Option<IpAddr>) -> Result<DesiredPath, String> {
        if name == self.node {
            let first = self.interfaces.segments.iter().next();
            let port = first.and_then(|segment| segment.ports.first().copied()).unwrap_or_default();
            let mtu = first.map_or(0, |segment| self.mtu(segment.ifindex));
            let (mac, vlan) = (first.map(|segment| segment.mac), first.map(|segment| segment.vlan));
            return Ok(DesiredPath { mac, ifindex: port, vlan, mtu, reach: Reach::Attached });
        }
        let address = address.ok_or("it has no InternalIP")?;
        let by_internal_ip = self.path_by(name, address);
        let attached = by_internal_ip.filter(|path| path.reach == Reach::Attached);
        let elsewhere = || self.interfaces.segments.iter().find_map(|segment| self.resolved_on(segment, name));
        let path = attached.or_else(elsewhere).or_else(|| self.by_other_card(name, address));
        let path = path.or(by_internal_ip).or_else(|| self.last_known_by_address(name));
        path.ok_or_else(|| format!("its address {address} is {}, nor is another one of its agent", Neighbor::OffLink))
    }

    /// Returns the path by a node's InternalIP. `None`: it is in no subnet of the segments, but on a
    /// tunnel or a management network.
    fn path_by(&self, name: &NodeName, address: IpAddr) -> Option<DesiredPath> {
        Some(match self.neighbors.get(&address) {
            Some(neighbor @ (Neighbor::Resolved { ifindex, .. } | Neighbor::Unresolved { ifindex })) => {
                // A peer's own message is sealed. Any host on the LAN can write the neighbor table.
                let published = self.peer_macs.get(name).and_then(|macs| macs.get(&0)).copied();
                let port = self.interfaces.segments.port_to(*neighbor);
                let mac = published.or(neighbor.mac());
                let reach = if mac.is_some() && port.is_some() { Reach::Attached } else { Reach::Detached };
                let vlan = self.interfaces.segments.get(*ifindex).map(|segment| segment.vlan);
                DesiredPath { mac, ifindex: port.unwrap_or_default(), vlan, mtu: self.mtu(*ifindex), reach }
            }
            Some(Neighbor::Silent { ifindex }) => {
                DesiredPath { reach: Reach::Silent, ..self.last_known(name, Some(*ifindex)) }
            }
            // The kernel was just asked to resolve it: nothing is wrong yet.
            None => self.last_known(name, None),
            Some(Neighbor::Pending { ifindex }) => self.last_known(name, Some(*ifindex)),
            Some(Neighbor::Local { .. } | Neighbor::OffLink) => return None,
        })
    }

    /// Returns the path to a node none of whose addresses answers on a segment now. `None`: its agent
    /// has published none that is on one; or it was not heard, and the maps have no path.
    fn last_known_by_address(&self, name: &NodeName) -> Option<DesiredPath> {
        let known = self.last_known(name, None);
        let Some(published) = self.peer_addresses.get(name) else { return known.mac.map(|_| known) };
        let neighbors = published.iter().map(|address| self.neighbors.get(address));
        let here: Vec<_> = neighbors.filter(|neighbor| *neighbor != Some(&Neighbor::OffLink)).collect();
        if here.is_empty() {
            return None;
        }
        let is_silent = |neighbor: Option<&Neighbor>| matches!(neighbor, Some(Neighbor::Silent { .. }));
        let reach = match known.reach {
            _ if here.iter().copied().all(is_silent) => Reach::Silent,
            reach if here.iter().copied().any(is_pending) => reach,
            _ => Reach::Detached,
        };
        Some(DesiredPath { reach, ..known })
    }

    /// Returns the path to a node that is being resolved by another card of this node than before, in the
    /// same subnet. Its MAC is still the one in the maps.
    fn by_other_card(&self, name: &NodeName, address: IpAddr) -> Option<DesiredPath> {
        let segments = &self.interfaces.segments;
        let before = self.observed.node(name).filter(|node| node.flags & NODE_ATTACHED != 0)?;
        let old = segments.iter().find(|segment| segment.ports.contains(&before.ifindex))?;
        let published = self.peer_addresses.get(name).into_iter().flatten().copied();
        let neighbors = published.chain([address]).filter_map(|address| self.neighbors.get(&address));
        let mut pending = neighbors.filter(|neighbor| matches!(neighbor, Neighbor::Pending { .. }));
        pending.find_map(|neighbor| {
            let new = segments.get(neighbor.ifindex()?)?;
            let is_beside = new.vlan == old.vlan && self.links.share_a_subnet(new.ifindex, old.ifindex);
            is_beside.then_some(self.attached(new, before.mac, segments.port_to(*neighbor)?))
        })
    }

    /// Returns the path to a node for the VIPs of a segment; if the node does not answer there, the one
    /// for all others (`other`).
    fn path_on(&self, segment: &NetworkSegment, number: u8, name: &NodeName, other: DesiredPath) -> DesiredPath {
        let leads_here = |ifindex, vlan| segment.ports.contains(&ifindex) && vlan == Some(segment.vlan);
        if leads_here(other.ifindex, other.vlan) {
            return other;
        }
        if let Some(path) = self.resolved_on(segment, name) {
            return path;
        }
        // Neither the peer nor the kernel has said anything yet.
        let published = self.peer_addresses.get(name);
        let may_return = published.is_none() || self.on(segment, name).any(|neighbor| is_pending(neighbor.as_ref()));
        let known = self.observed.path(name, number).filter(|node| may_return && node.flags & NODE_ATTACHED != 0);
        let known = known.filter(|node| segment.carrier && leads_here(node.ifindex, vlan(node)));
        known.map_or(other, |node| self.attached(segment, node.mac, node.ifindex))
    }

    /// Returns the path to an address of a node on a segment that answers there.
    ///
    /// Any host on the segment can answer for the node's address. So the MAC must be one that the
    /// node has published.
    fn resolved_on(&self, segment: &NetworkSegment, name: &NodeName) -> Option<DesiredPath> {
        let is_its_own = |mac: &Mac| self.peer_macs.get(name).is_some_and(|macs| macs.values().any(|own| own == mac));
        let (mac, port) = self.on(segment, name).flatten().find_map(|neighbor| {
            Some((neighbor.mac().filter(is_its_own)?, self.interfaces.segments.port_to(neighbor)?))
        })?;
        Some(self.attached(segment, mac, port))
    }

    /// Returns the addresses that a node has published and that are on a segment, or not looked up yet.
    fn on(&self, segment: &NetworkSegment, name: &NodeName) -> impl Iterator<Item = Option<Neighbor>> {
        let published = self.peer_addresses.get(name).into_iter().flatten();
        let neighbors = published.map(|address| self.neighbors.get(address).copied());
        neighbors.filter(|neighbor| is_on(*neighbor, segment))
    }

    fn attached(&self, segment: &NetworkSegment, mac: Mac, port: u32) -> DesiredPath {
        let (vlan, mtu) = (Some(segment.vlan), self.mtu(segment.ifindex));
        DesiredPath { mac: Some(mac), ifindex: port, vlan, mtu, reach: Reach::Attached }
    }

    fn mtu(&self, ifindex: u32) -> u32 {
        self.links.get(ifindex).map_or(0, |interface| interface.mtu)
    }

    /// Returns a node that is being resolved, as the maps have it. An earlier agent may have filled
    /// them. Otherwise each start of an agent would send the node's flows to other backends.
    fn last_known(&self, name: &NodeName, ifindex: Option<u32>) -> DesiredPath {
        let segments = &self.interfaces.segments;
        let segment = ifindex.and_then(|ifindex| segments.get(ifindex));
        let usable = |node: &&abi::Node| {
            ifindex.is_none() && segments.ports().contains_key(&node.ifindex)
                || segment.is_some_and(|segment| segment.ports.contains(&node.ifindex))
        };
        let has_carrier = |node: &&abi::Node| self.links.had_carrier(node.ifindex);
        let known = self.observed.node(name).filter(|node| node.mac != Mac::default());
        let known = known.filter(usable).filter(has_carrier);
        let first = segment.and_then(|segment| segment.ports.first().copied());
        let port = known.map(|node| node.ifindex).or(first).unwrap_or_default();
        let mtu = self.mtu(ifindex.unwrap_or(port));
        let reach = match known.map_or(0, |node| node.flags) {
            flags if flags & NODE_ATTACHED != 0 => Reach::Attached,
            flags if flags & NODE_SILENT != 0 => Reach::Silent,
            _ => Reach::Detached,
        };
        let vlan = segment.map(|segment| segment.vlan).or(known.and_then(vlan));
        DesiredPath { mac: known.map(|node| node.mac), ifindex: port, vlan, mtu, reach }
    }
}

/// Returns the VLAN of a path in the maps.
fn vlan(node: &abi::Node) -> Option<u16> {
    node.vlan().and_then(|vlan| u16::try_from(vlan).ok())
}

/// Returns whether the kernel has not said anything about an address yet.
fn is_pending(neighbor: Option<&Neighbor>) -> bool {
    matches!(neighbor, None | Some(Neighbor::Pending { .. }))
}

/// Returns whether an address is on the segment, or not looked up yet.
fn is_on(neighbor: Option<Neighbor>, segment: &NetworkSegment) -> bool {
    neighbor.is_none_or(|neighbor| neighbor.ifindex() == Some(segment.ifindex))
}

/// Returns the warning about a claim none of whose endpoints can be reached.
pub(crate) fn unreachable_warning(claim: &PortClaim, unreachable: Unreachable) -> String {
    let consequence = match unreachable {
        Unreachable::Kernel => "its packets are left to the leader's own stack, which may hide the client's address",
        Unreachable::Refuse => "it is refused; --unreachable-endpoints kernel would leave it to kube-proxy",
    };
    format!("{claim}: none of its endpoints is on a node that frames can be handed over to, so {consequence}")
}

/// Returns the groups in which neighbors ask for the VIPs: of all, since this node may lead any of
/// them next.
pub(crate) fn solicited_groups(desired: &Desired, interfaces: &AttachedInterfaces) -> BTreeSet<SolicitedNodeGroup> {
    let mut groups = BTreeSet::new();
    for (vip, wanted) in &desired.vips {
        if let IpAddr::V6(address) = vip.address() {
            let outlets = interfaces.announced_on(wanted.interfaces, wanted.vlan.map_or(0, NonZeroU16::get).into());
            groups.extend(outlets.map(|(ifindex, _)| SolicitedNodeGroup::of(address, ifindex)));
        }
    }
    groups
}

#[cfg(test)]
mod tests;
