//! The interfaces that VIPs are announced on: choosing them, and following carriers and MACs.

mod port;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use vipmux_common::abi::Mac;

pub(super) use self::port::Attached;
use super::{Agent, AgentError, settle::Settled};
use crate::{
    datapath::pins::LinkKind,
    link::{Ethtool, Links, Segment, Segments},
    model::{Vip, advertisement::Interfaces as Allowed},
};

/// Where the programs are attached.
#[derive(Debug)]
pub(super) struct Interfaces {
    /// What VIPs are announced on; the programs are attached to all of it.
    pub(super) segments: Segments,
    /// By ifindex, where XDP runs.
    pub(super) attached: BTreeMap<u32, Attached>,
    /// Where replies are translated: the segments' interfaces, their ports, and where routes lead out to a gateway.
    outlets: BTreeSet<u32>,
    /// Ports, and whether the program for direct server return is on their way in; not there: that is not known.
    inlets: BTreeMap<u32, bool>,
    ethtool: Ethtool,
}

impl Interfaces {
    pub(super) fn new(ethtool: Ethtool) -> Self {
        Self {
            segments: Segments::default(),
            attached: BTreeMap::new(),
            outlets: BTreeSet::new(),
            inlets: BTreeMap::new(),
            ethtool,
        }
    }

    /// Where the programs are attached.
    pub(super) fn linked(&self) -> BTreeSet<(LinkKind, u32)> {
        let attached = self.attached.keys().map(|port| (LinkKind::Xdp, *port));
        let outlets = self.outlets.iter().map(|outlet| (LinkKind::Egress, *outlet));
        let inlets = self.inlets.iter().filter(|(_, attached)| **attached);
        attached.chain(outlets).chain(inlets.map(|(inlet, _)| (LinkKind::Ingress, *inlet))).collect()
    }

    /// Lets the programs be attached anew to an interface.
    pub(super) fn unlink(&mut self, ifindex: u32) {
        self.attached.remove(&ifindex);
        self.outlets.remove(&ifindex);
        self.inlets.remove(&ifindex);
    }

    /// Where a VIP is announced of these interfaces, as the maps have it: the bits of the ports, and the VLAN.
    pub(super) fn place(&self, links: &Links, vip: Vip, allowed: &Allowed) -> (u32, u16) {
        // A segment is meant by its own name, and by that of each of its ports.
        let index = |name: &String| links.named(name).map(|interface| interface.ifindex).ok();
        let allowed: Option<BTreeSet<u32>> = match allowed {
            Allowed::All => None,
            Allowed::Named(names) => Some(names.iter().filter_map(index).collect()),
        };
        let is_allowed = |segment: &Segment| {
            let is_in = |set: &BTreeSet<u32>| set.contains(&segment.ifindex) || !set.is_disjoint(&segment.ports);
            allowed.as_ref().is_none_or(is_in)
        };
        let (ports, vlan) = self.segments.place(links, vip.0, is_allowed);
        let bits = ports.iter().filter_map(|port| self.attached.get(port)).map(|attached| attached.bit);
        (bits.fold(0, |a, b| a | b), vlan)
    }

    /// Whether a VIP with these bits and this VLAN can be announced now.
    pub(super) fn carries(&self, bits: u32, vlan: u32) -> bool {
        let mut on = self.announced_on(bits, vlan);
        on.any(|(ifindex, _)| self.segments.get(ifindex).is_some_and(|segment| segment.carrier))
    }

    /// The MACs that VIPs are announced with.
    pub(super) fn macs(&self) -> BTreeSet<Mac> {
        self.segments.iter().map(|segment| segment.mac).collect()
    }

    /// The segments that a VIP with these bits and this VLAN is announced on, with the MACs to announce.
    pub(super) fn announced_on(&self, bits: u32, vlan: u32) -> impl Iterator<Item = (u32, Mac)> {
        let has = move |port: &u32| self.attached.get(port).is_some_and(|attached| attached.bit & bits != 0);
        let on = move |segment: &&Segment| u32::from(segment.vlan) == vlan && segment.ports.iter().any(has);
        self.segments.iter().filter(on).map(|segment| (segment.ifindex, segment.mac))
    }
}

impl Agent {
    /// Attaches the programs where they are not yet, and follows carriers and MACs. Once the agent is ready, an interface
    /// that cannot be used is told and stops nothing.
    pub(super) fn attach(
        &mut self,
        links: &Links,
        settled: &Settled,
        complaints: &mut BTreeSet<String>,
    ) -> Result<(), AgentError> {
        let (mut segments, problems) = self.wanted(links, settled);
        for problem in problems {
            self.complain(problem, complaints)?;
        }
        self.release(links, &segments, complaints)?;
        if !segments.is_empty() {
            // Before anything is served.
            self.attach_exits(links, &segments.outlets(), complaints);
        }
        for segment in segments.clone().iter() {
            if let Err(error) = self.attach_segment(links, &segments, segment) {
                self.complain(error, complaints)?;
                segments.remove(segment.ifindex);
            }
        }
        self.announce_on(segments);
        if self.interfaces.attached.is_empty() {
            let node = &self.options.node;
            complaints.insert(format!("there is no interface to announce on yet: Node {node} shows no InternalIP"));
        }
        Ok(())
    }

    pub(super) fn complain(&self, problem: AgentError, complaints: &mut BTreeSet<String>) -> Result<(), AgentError> {
        if !self.ready {
            return Err(problem);
        }
        complaints.insert(format!("{:#}", anyhow::Error::from(problem)));
        Ok(())
    }

    /// The segments to announce on. An interface that was named must be there at the start, and may come back later.
    fn wanted(&self, links: &Links, settled: &Settled) -> (Segments, Vec<AgentError>) {
        let named = |name: &String| links.named(name);
        let chosen: Vec<_> = match settled.nodes.get(&self.options.node) {
            _ if !self.options.interfaces.is_empty() => self.options.interfaces.iter().map(named).collect(),
            Some(addresses) if !addresses.is_empty() => match links.holding(addresses) {
                Ok(found) => found.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            },
            _ => Vec::new(),
        };
        let (mut segments, mut problems) = (Segments::default(), Vec::new());
        for interface in chosen {
            let segment = interface.and_then(|interface| links.segment(interface));
            if let Err(error) = segment.and_then(|segment| segments.add(links, segment)) {
                problems.push(error.into());
            }
        }
        (segments, problems)
    }

    /// Gives up interfaces that are gone or no longer wanted, and with them their bits, those of an earlier agent too. As
    /// long as nothing is known to be wanted, only what is gone.
    fn release(
        &mut self,
        links: &Links,
        wanted: &Segments,
        complaints: &mut BTreeSet<String>,
    ) -> Result<(), AgentError> {
        let mut used = wanted.outlets();
        used.extend(wanted.ports().values().flat_map(|port| port.receivers.iter().copied()));
        let exits = links.exits().map(|exit| exit.ifindex);
        used.extend(exits.filter(|exit| self.kernel.is_outlet_alone(*exit)));
        let is_idle = |ifindex: &u32| links.get(*ifindex).is_none() || !wanted.is_empty() && !used.contains(ifindex);
        for ifindex in self.kernel.touched().into_iter().filter(is_idle) {
            if let Err(error) = self.let_go(links, ifindex) {
                self.complain(error, complaints)?;
            }
        }
        Ok(())
    }

    /// Takes in where VIPs are announced now.
    fn announce_on(&mut self, segments: Segments) {
        let before = std::mem::replace(&mut self.interfaces.segments, segments);
        let segments = &self.interfaces.segments;
        for old in before.iter().filter(|old| segments.get(old.ifindex).is_none()) {
            self.announcer.removed(old.ifindex);
        }
        // Also where it went and came since the last look.
        let came_back = |segment: &&Segment| {
            let before = before.get(segment.ifindex);
            before.is_some_and(|before| !before.carrier || before.carrier_ups != segment.carrier_ups)
        };
        for segment in segments.iter().filter(|segment| segment.carrier).filter(came_back) {
            self.announcer.again(segment.ifindex, Instant::now());
        }
        self.carrier = segments.iter().any(|segment| segment.carrier);
    }
}
