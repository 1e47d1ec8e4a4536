//! What the kernel is to hold: what was settled, on the interfaces and neighbours of now.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use vipmux_common::abi::{self, Mac, NODE_ATTACHED};

use super::{Agent, AgentError, settle::Settled};
use crate::{
    announce::groups::Group,
    election::Input,
    link::{Links, Neighbor, Neighbors},
    membership::{Item, Key, MOST_SEGMENTS, Peer},
    model::{NodeName, PortClaim, Vip, advertisement::Interfaces as Allowed},
    plan::{Desired, DesiredNode, DesiredVip, Unreachable},
};

impl Agent {
    /// With complaints about what cannot be.
    pub(super) fn desired(
        &self,
        links: &Links,
        settled: &Settled,
        neighbors: &Neighbors,
        complaints: &mut BTreeSet<String>,
    ) -> Desired {
        let owners = links.owners();
        let mut vips = BTreeMap::new();
        for vip in settled.leaders.keys() {
            if let Some(owner) = owners.get(&vip.0) {
                complaints.insert(format!("VIP {vip} is refused: it is an address of this node's {}", owner.name));
                continue;
            }
            let (interfaces, vlan) = self.place(links, settled, *vip, complaints);
            let (leading, epoch) = (self.kernel.leads(*vip), self.kernel.epoch(*vip));
            vips.insert(*vip, DesiredVip { leading, interfaces, vlan, epoch });
        }
        let mut nodes = BTreeMap::new();
        for (name, addresses) in &*settled.nodes {
            // A hand-over is a matter of MACs: one address tells it, whatever the packet's family is.
            match self.node(name, addresses.first().copied(), links, neighbors) {
                Ok(node) => {
                    nodes.insert(name.clone(), node);
                }
                Err(reason) => {
                    complaints.insert(format!("Node {name} gets no packets: {reason}"));
                }
            }
        }
        let mut services = settled.services.clone();
        if vips.len() < settled.leaders.len() {
            services = services.into_iter().filter(|(claim, _)| vips.contains_key(&claim.vip)).collect();
        }
        let of_node = |(name, macs): (&NodeName, &BTreeMap<u8, Mac>)| {
            let name = name.clone();
            macs.range(1..).map(move |(_, mac)| (*mac, name.clone())).collect::<Vec<_>>()
        };
        let speakers = self.macs.iter().flat_map(of_node).collect();
        let unreachable = self.options.unreachable;
        Desired { local: self.options.node.clone(), nodes, speakers, vips, services, unreachable }
    }

    /// Tells peers of this node what they need to know, and the election where VIPs can be announced.
    pub(super) fn tell_peers(&mut self, links: &Links, settled: &Settled, desired: &Desired) -> Result<(), AgentError> {
        self.elector.know(&settled.nodes)?;
        let (own, owners) = (settled.nodes.get(&self.options.node).map_or(&[][..], Vec::as_slice), links.owners());
        let mac = own.first().and_then(|own| owners.get(own).and_then(|interface| interface.mac));
        self.tell_macs(mac)?;
        // Another machine's agent that was given this Node's name by mistake holds its Leases as well.
        let elsewhere = !own.is_empty() && own.iter().all(|address| !owners.contains_key(address));
        let carried = |vip: &DesiredVip| !elsewhere && self.interfaces.carries(vip.interfaces, vip.vlan.into());
        let unable = desired.vips.iter().filter(|(_, wanted)| !carried(wanted)).map(|(vip, _)| *vip).collect();
        let commands = self.elector.give(&mut self.kernel, Input::Unable(unable))?;
        self.react(&commands)
    }

    /// Tells peers this node's MACs, that of its InternalIP's interface first: what it announces elsewhere must be known for a
    /// node's, too.
    fn tell_macs(&self, first: Option<Mac>) -> Result<(), AgentError> {
        if let Some(mac) = first {
            self.elector.publish(Item::Mac { segment: 0, mac })?;
        }
        let mut others = self.interfaces.macs().into_iter().filter(|mac| Some(*mac) != first);
        for segment in 1..MOST_SEGMENTS {
            match others.next() {
                Some(mac) => self.elector.publish(Item::Mac { segment, mac })?,
                None => self.elector.withdraw(&Key::Mac(segment))?,
            }
        }
        Ok(())
    }

    /// Whether peers say otherwise than before where they are.
    pub(super) fn follow_macs(&mut self) -> bool {
        // Of one that is down the neighbour table knows better where frames go; but it may speak for VIPs all the same.
        let of_peer = |(name, peer): (&NodeName, &Peer)| {
            let macs = peer.state.macs.iter().filter(|(segment, _)| **segment > 0 || peer.standing.lives());
            (name.clone(), macs.map(|(segment, mac)| (*segment, *mac)).collect())
        };
        let macs: BTreeMap<NodeName, BTreeMap<u8, Mac>> =
            self.elector.peers(|peers| peers.members.iter().map(of_peer).collect());
        let changed = macs != self.macs;
        self.macs = macs;
        changed
    }

    /// Where a VIP is announced: the bits of the interfaces, and the VLAN.
    fn place(&self, links: &Links, settled: &Settled, vip: Vip, complaints: &mut BTreeSet<String>) -> (u32, u16) {
        let allowed = settled.candidates.get(&vip).map_or(&Allowed::All, |all| all.interfaces(&self.options.node));
        let place = self.interfaces.place(links, vip, allowed);
        if let (0, Allowed::Named(names), false) = (place.0, allowed, self.interfaces.attached.is_empty()) {
            let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            complaints.insert(format!(
                "VIP {vip} is announced nowhere on this node: its L2Advertisements and VipPolicies want {names}, and this agent \
                 announces on none of these (--interface)"
            ));
        }
        place
    }

    /// What is told of a claim none of whose endpoints can be reached.
    pub(super) fn lost(&self, claim: &PortClaim) -> String {
        let what = match self.options.unreachable {
            Unreachable::Kernel => {
                "its packets are left to the leader's own stack, which may hide the client's address"
            }
            Unreachable::Refuse => "it is refused; --unreachable-endpoints kernel would leave it to kube-proxy",
        };
        format!("{claim}: none of its endpoints is on a node that frames can be handed over to, so {what}")
    }

    /// The groups in which neighbours ask for the VIPs: of all, since any may be led next.
    pub(super) fn solicited(&self, desired: &Desired) -> BTreeSet<Group> {
        let mut groups = BTreeSet::new();
        for (vip, wanted) in &desired.vips {
            if let IpAddr::V6(address) = vip.0 {
                let outlets = self.interfaces.announced_on(wanted.interfaces, wanted.vlan.into());
                groups.extend(outlets.map(|(ifindex, _)| Group::of(address, ifindex)));
            }
        }
        groups
    }

    /// How a node is reached, or why it is not.
    fn node(
        &self,
        name: &NodeName,
        address: Option<IpAddr>,
        links: &Links,
        neighbors: &Neighbors,
    ) -> Result<DesiredNode, String> {
        let mtu = |ifindex| links.get(ifindex).map_or(0, |interface| interface.mtu);
        if *name == self.options.node {
            let first = self.interfaces.segments.iter().next();
            let port = first.and_then(|segment| segment.ports.first().copied()).unwrap_or_default();
            let mtu = first.map_or(0, |segment| mtu(segment.ifindex));
            return Ok(DesiredNode { mac: first.map(|segment| segment.mac), ifindex: port, mtu, attached: true });
        }
        let address = address.ok_or("it has no InternalIP")?;
        match neighbors.get(&address) {
            Some(neighbor @ (Neighbor::Resolved { ifindex, .. } | Neighbor::Unresolved { ifindex })) => {
                // What a peer says of itself is sealed; what the neighbour table has, anybody on the LAN may have said.
                let said = self.macs.get(name).and_then(|macs| macs.get(&0)).copied();
                let port = self.interfaces.segments.port_to(*neighbor);
                let mac = said.or(neighbor.mac());
                let is_attached = mac.is_some() && port.is_some();
                let port = port.unwrap_or_default();
                Ok(DesiredNode { mac, ifindex: port, mtu: mtu(*ifindex), attached: is_attached })
            }
            // Just asked for: nothing is wrong yet.
            None => Ok(self.as_before(name, None, links)),
            Some(Neighbor::Pending { ifindex }) => Ok(self.as_before(name, Some(*ifindex), links)),
            Some(other) => Err(format!("its address {address} is {other}")),
        }
    }

    /// A node while it is being resolved: as the maps have it, which an earlier agent may have filled. Otherwise each
    /// start would send its flows to other backends.
    fn as_before(&self, name: &NodeName, ifindex: Option<u32>, links: &Links) -> DesiredNode {
        let segments = &self.interfaces.segments;
        let segment = ifindex.and_then(|ifindex| segments.get(ifindex));
        let usable = |node: &&abi::Node| {
            ifindex.is_none() && segments.ports().contains_key(&node.ifindex)
                || segment.is_some_and(|segment| segment.ports.contains(&node.ifindex))
        };
        let has_carrier = |node: &&abi::Node| links.get(node.ifindex).is_some_and(|interface| interface.carrier);
        let known = self.kernel.observed().node(name).filter(|node| node.mac != Mac::default());
        let known = known.filter(usable).filter(has_carrier);
        let first = segment.and_then(|segment| segment.ports.first().copied());
        let port = known.map(|node| node.ifindex).or(first).unwrap_or_default();
        let mtu = links.get(ifindex.unwrap_or(port)).map_or(0, |interface| interface.mtu);
        let attached = known.is_some_and(|node| node.flags & NODE_ATTACHED != 0);
        DesiredNode { mac: known.map(|node| node.mac), ifindex: port, mtu, attached }
    }
}
