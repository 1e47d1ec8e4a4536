//! Attaching the programs to one interface, and taking back what was done to it.

use std::collections::BTreeSet;

use vipmux_common::abi::{
    self, INTERFACE_FILTER, INTERFACE_GENERIC, INTERFACE_OWN_MAC, INTERFACE_PARTIAL, INTERFACE_QDISC, INTERFACE_TAGS,
};

use super::super::{Agent, AgentError};
use crate::{
    datapath::{
        attach::{By, HandoverMac, Side},
        load::Programs,
        pins::{EGRESS_PROGRAM, INGRESS_PROGRAM},
    },
    link::{Interface, Links, Port, Segment, Segments},
};

/// What the agent remembers by an interface's flags, rather than telling the programs.
const MARKS: u32 = INTERFACE_TAGS | INTERFACE_FILTER | INTERFACE_QDISC;

/// An interface where XDP runs.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct Attached {
    pub(in crate::runtime) bit: u32,
    port: Port,
}

impl Agent {
    /// Attaches the programs to all that a segment needs. Programs mind no frame before the last step, which tells them
    /// about the port.
    pub(super) fn attach_segment(
        &mut self,
        links: &Links,
        all: &Segments,
        segment: &Segment,
    ) -> Result<(), AgentError> {
        let outlets = segment.ports.iter().chain([&segment.ifindex]).filter_map(|outlet| links.get(*outlet));
        for outlet in outlets {
            self.attach_outlet(outlet)?;
        }
        for ifindex in &segment.ports {
            if let (Some(port), Some(interface)) = (all.ports().get(ifindex), links.get(*ifindex)) {
                self.attach_port(links, interface, port)?;
            }
        }
        Ok(())
    }

    /// Has replies translated that leave by this interface.
    fn attach_outlet(&mut self, outlet: &Interface) -> Result<(), AgentError> {
        if self.interfaces.outlets.contains(&outlet.ifindex) {
            return Ok(());
        }
        let by = self.kernel.programs.attach_classifier(Side::Out, &outlet.name, outlet.ifindex, self.options.tc)?;
        self.mark(outlet, by)?;
        self.interfaces.outlets.insert(outlet.ifindex);
        Ok(())
    }

    /// Has replies translated that leave by other interfaces than the segments' own: where routes lead out to a gateway. One
    /// that does not take the program is told, and stops nothing.
    pub(super) fn attach_exits(&mut self, links: &Links, own: &BTreeSet<u32>, complaints: &mut BTreeSet<String>) {
        for exit in links.exits().filter(|exit| !own.contains(&exit.ifindex)) {
            let known = self.interfaces.outlets.contains(&exit.ifindex);
            match self.attach_outlet(exit) {
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    complaints.insert(format!("replies by {} have the backends' addresses: {error:#}", exit.name));
                }
                Ok(()) if known => {}
                Ok(()) => tracing::info!(interface = exit.name, "attached {EGRESS_PROGRAM}: a route leads out there"),
            }
        }
    }

    /// Remembers how a classifier was attached to an interface. Where it is by a link, filters of an earlier agent go.
    fn mark(&mut self, interface: &Interface, by: By) -> Result<(), AgentError> {
        let mut entry = self.kernel.interface(interface.ifindex);
        match by {
            By::Filter { made } => entry.flags |= INTERFACE_FILTER | if made { INTERFACE_QDISC } else { 0 },
            By::Link => {
                remove_filters(interface.ifindex, entry.flags)?;
                entry.flags &= !(INTERFACE_FILTER | INTERFACE_QDISC);
            }
        }
        Ok(self.kernel.write_interface(interface.ifindex, entry)?)
    }

    /// Has what comes in by the ports looked through for packets of Services with direct server return, or no longer.
    pub(in crate::runtime) fn look_in(
        &mut self,
        links: &Links,
        wanted: bool,
        complaints: &mut BTreeSet<String>,
    ) -> Result<(), AgentError> {
        let is_so = |ifindex: &u32| self.interfaces.inlets.get(ifindex) == Some(&wanted);
        let others: Vec<_> = self.interfaces.attached.keys().copied().filter(|port| !is_so(port)).collect();
        for port in others.into_iter().filter_map(|port| links.get(port)) {
            match if wanted { self.attach_inlet(port) } else { self.detach_inlet(port) } {
                Ok(()) => drop(self.interfaces.inlets.insert(port.ifindex, wanted)),
                Err(error) => self.complain(error, complaints)?,
            }
        }
        Ok(())
    }

    fn attach_inlet(&mut self, port: &Interface) -> Result<(), AgentError> {
        let by = self.kernel.programs.attach_classifier(Side::In, &port.name, port.ifindex, self.options.tc)?;
        self.mark(port, by)?;
        tracing::info!(interface = port.name, "attached {INGRESS_PROGRAM}: backends here have direct server return");
        Ok(())
    }

    fn detach_inlet(&mut self, port: &Interface) -> Result<(), AgentError> {
        let flags = self.kernel.interface(port.ifindex).flags;
        Ok(self.kernel.programs.detach_ingress(port.ifindex, flags & INTERFACE_FILTER != 0)?)
    }

    fn attach_port(&mut self, links: &Links, interface: &Interface, port: &Port) -> Result<(), AgentError> {
        let (name, ifindex) = (&interface.name, interface.ifindex);
        if self.interfaces.attached.get(&ifindex).is_some_and(|attached| attached.port == *port) {
            return Ok(());
        }
        let pinned = Some(self.kernel.interface(ifindex)).filter(|known| known.bit != 0);
        let Some(bit) = pinned.map(|known| known.bit).or_else(|| self.free_bit()) else {
            let attached = self.kernel.interfaces().values().filter(|interface| interface.bit != 0);
            return Err(AgentError::TooManyInterfaces(attached.count() + 1));
        };
        let receivers: Vec<_> = port.receivers.iter().filter_map(|receiver| links.get(*receiver)).collect();
        if port.tagged {
            receivers.iter().try_for_each(|receiver| self.leave_tags_in(receiver))?;
        }
        let generic = pinned.map(|known| known.flags & INTERFACE_GENERIC != 0);
        let programs = &mut self.kernel.programs;
        let generic = programs.attach_xdp(name, (ifindex, interface.mtu), self.options.mode, generic)?;
        for receiver in receivers {
            let mut entry = self.kernel.interface(receiver.ifindex);
            let partial = self.interfaces.ethtool.has_local_senders(&receiver.name)?;
            (entry.mac, entry.bit, entry.flags) = (port.mac, bit, entry.flags & MARKS);
            let own = self.options.handover_mac == HandoverMac::Own;
            let told = [(generic, INTERFACE_GENERIC), (partial, INTERFACE_PARTIAL), (own, INTERFACE_OWN_MAC)];
            entry.flags |= told.iter().filter(|(is_so, _)| *is_so).fold(0, |flags, (_, flag)| flags | flag);
            self.kernel.write_interface(receiver.ifindex, entry)?;
        }
        self.interfaces.attached.insert(ifindex, Attached { bit, port: port.clone() });
        self.changed = true;
        let mode = if generic { "generic" } else { "native" };
        tracing::info!(interface = name, mac = %port.mac, mode, tagged = port.tagged, "attached");
        Ok(())
    }

    /// Keeps the driver from taking VLAN tags out of frames. That is marked first, so that it is taken back for certain.
    fn leave_tags_in(&mut self, receiver: &Interface) -> Result<(), AgentError> {
        let ethtool = &self.interfaces.ethtool;
        if !ethtool.strips_tags(&receiver.name)? {
            return Ok(());
        }
        let mut entry = self.kernel.interface(receiver.ifindex);
        entry.flags |= INTERFACE_TAGS;
        self.kernel.write_interface(receiver.ifindex, entry)?;
        ethtool.strip_tags(&receiver.name, false)?;
        tracing::info!(interface = receiver.name, "turned rx-vlan-offload off, so that programs see VLAN tags");
        Ok(())
    }

    /// Detaches the programs from an interface, and takes back what was done to it. Where that fails, it is tried again.
    pub(super) fn let_go(&mut self, links: &Links, ifindex: u32) -> Result<(), AgentError> {
        let announced = self.interfaces.segments.get(ifindex).is_some() || !self.kernel.is_outlet_alone(ifindex);
        self.interfaces.unlink(ifindex);
        let entry = self.kernel.interface(ifindex);
        self.kernel.write_interface(ifindex, abi::Interface { flags: entry.flags & MARKS, ..Default::default() })?;
        self.kernel.programs.detach(ifindex)?;
        if let Some(interface) = links.get(ifindex) {
            remove_filters(ifindex, entry.flags)?;
            if entry.flags & INTERFACE_TAGS != 0 {
                self.interfaces.ethtool.strip_tags(&interface.name, true)?;
            }
            let reason = if announced { "no VIP is announced there" } else { "no route leads out there" };
            tracing::info!(interface = interface.name, "detached: {reason} any more");
        } else if announced {
            tracing::warn!(ifindex, "an interface that VIPs are announced on is gone");
        } else {
            tracing::info!(ifindex, "an interface that replies left by is gone");
        }
        self.kernel.write_interface(ifindex, abi::Interface::default())?;
        Ok(self.kernel.note_links()?)
    }

    fn free_bit(&self) -> Option<u32> {
        let used = self.kernel.interfaces().values().fold(0, |bits, interface| bits | interface.bit);
        (0..u32::BITS).map(|place| 1 << place).find(|bit| used & bit == 0)
    }
}

/// Removes the filters that an interface's flags tell of.
fn remove_filters(ifindex: u32, flags: u32) -> Result<(), AgentError> {
    if flags & INTERFACE_FILTER == 0 {
        return Ok(());
    }
    Ok(Programs::remove_filters(ifindex, flags & INTERFACE_QDISC != 0)?)
}
