//! Attaches the programs to one interface, and detaches them.

use std::{collections::BTreeSet, sync::PoisonError, time::Instant};

use vipmux_common::abi::{
    self, INTERFACE_BACKUP, INTERFACE_BYPASSED, INTERFACE_FILTER, INTERFACE_GENERIC, INTERFACE_MERGED,
    INTERFACE_MTU_SHIFT, INTERFACE_NO_DIRECT, INTERFACE_OWN_MAC, INTERFACE_PARTIAL, INTERFACE_QDISC, INTERFACE_TAGS,
    INTERFACE_UNSUMMED,
};

use super::AttachedInterfaces;
use crate::{AgentError, problems::warnings::Warnings, serving::link_kernel::LinkKernel};
use vipmux_datapath::{
    bpf::{
        attach::{ClassifierAttachment, HandoverMac, XdpAttachMode},
        direction::Direction,
        pins::{EGRESS_PROGRAM, INGRESS_PROGRAM},
        programs::{LoadError, Programs},
    },
    error_chain::error_chain,
    link::{Interface, Links, NetworkSegment, SegmentPort, Segments},
};

/// The flags of an interface that are for the agent, not for the programs.
const MARKS: u32 = INTERFACE_TAGS | INTERFACE_FILTER | INTERFACE_QDISC;

/// The flags that follow the Services and the cards' settings: those of a port that an earlier agent served
/// stay until then.
const UNTIL_FOLLOWED: u32 = INTERFACE_NO_DIRECT | INTERFACE_UNSUMMED;

/// An interface where XDP runs.
#[derive(Clone, Debug)]
pub(crate) struct PortAttachment {
    pub(crate) bit: u32,
    /// XDP runs in the network stack, not in the driver.
    pub(super) generic: bool,
    /// Bytes.
    mtu: u32,
    pub(super) port: SegmentPort,
}

impl PortAttachment {
    /// Returns the interfaces that the XDP program is attached to. `port`: this port's index.
    pub(crate) fn places(&self, port: u32) -> BTreeSet<u32> {
        self.port.program_places(port, self.generic)
    }
}

impl AttachedInterfaces {
    /// Attaches the programs to all interfaces of a segment. They pass all frames before the last
    /// step, which writes the port's entry.
    pub(super) fn attach_segment(
        &mut self,
        kernel: &mut LinkKernel,
        links: &Links,
        all: &Segments,
        segment: &NetworkSegment,
    ) -> Result<(), AgentError> {
        let outlets = segment.ports.iter().chain([&segment.ifindex]).filter_map(|outlet| links.get(*outlet));
        for outlet in outlets {
            self.attach_outlet(kernel, outlet)?;
        }
        let mode = self.mode(links, all);
        for ifindex in &segment.ports {
            if let (Some(port), Some(interface)) = (all.ports().get(ifindex), links.get(*ifindex)) {
                let attached = self.attach_port(kernel, links, (interface, port), mode);
                self.note_attaching(None);
                attached?;
            }
        }
        Ok(())
    }

    /// Attaches the egress program to an interface, so that replies that leave there are
    /// translated.
    fn attach_outlet(&mut self, kernel: &mut LinkKernel, outlet: &Interface) -> Result<(), AgentError> {
        if self.outlets.contains(&outlet.ifindex) {
            return Ok(());
        }
        let by =
            kernel.programs.attach_classifier(Direction::Egress, &outlet.name, outlet.ifindex, self.settings.tc)?;
        Self::mark(kernel, outlet, by)?;
        self.outlets.insert(outlet.ifindex);
        Ok(())
    }

    /// Attaches the egress program to other interfaces than the segments' own: those with a route
    /// to a gateway. An interface that refuses the program is a warning, and stops nothing.
    pub(super) fn attach_exits(
        &mut self,
        kernel: &mut LinkKernel,
        links: &Links,
        own: &BTreeSet<u32>,
        warnings: &mut Warnings,
    ) {
        for exit in links.exits().filter(|exit| !own.contains(&exit.ifindex)) {
            let known = self.outlets.contains(&exit.ifindex);
            match self.attach_outlet(kernel, exit) {
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    warnings.add(format!("replies by {} have the backends' addresses: {error:#}", exit.name));
                }
                Ok(()) if known => {}
                Ok(()) => tracing::info!(interface = exit.name, program = EGRESS_PROGRAM, "attached for a route"),
            }
        }
    }

    /// Marks how a classifier was attached to an interface. If it is by a link, removes the filters
    /// of an earlier agent.
    fn mark(kernel: &mut LinkKernel, interface: &Interface, by: ClassifierAttachment) -> Result<(), AgentError> {
        let mut entry = kernel.interface(interface.ifindex);
        match by {
            ClassifierAttachment::Filter { qdisc_added } => {
                entry.flags |= INTERFACE_FILTER | if qdisc_added { INTERFACE_QDISC } else { 0 }
            }
            ClassifierAttachment::Link => {
                remove_filters(interface.ifindex, entry.flags)?;
                entry.flags &= !(INTERFACE_FILTER | INTERFACE_QDISC);
            }
        }
        Ok(kernel.write_interface(interface.ifindex, entry)?)
    }

    /// Attaches the ingress program to all ports, which Services with direct server return need, or
    /// detaches it from native ones. In generic mode it also sends merged frames, so it stays.
    pub(super) fn set_direct(
        &mut self,
        kernel: &mut LinkKernel,
        links: &Links,
        warnings: &mut Warnings,
    ) -> Result<(), AgentError> {
        let Some(direct) = self.direct else { return Ok(()) };
        let ports: Vec<_> = self.attached.iter().map(|(port, attached)| (*port, attached.generic)).collect();
        for (port, generic) in ports {
            let Some(port) = links.get(port) else { continue };
            if let Err(error) = self.set_inlet(kernel, port, direct || generic) {
                warnings.add_error(error)?;
            }
            let mut entry = kernel.interface(port.ifindex);
            let flags = entry.flags & !INTERFACE_NO_DIRECT | self.direct_flag();
            if flags != entry.flags {
                entry.flags = flags;
                kernel.write_interface(port.ifindex, entry)?;
            }
        }
        Ok(())
    }

    /// Lets tc send all frames that generic mode hands over, as long as an interface where they leave computes no
    /// checksums. The kernel makes partial ones when it joins segments, also in a frame of no more than the MTU.
    pub(super) fn follow_checksums(&self, kernel: &mut LinkKernel, links: &Links) -> Result<(), AgentError> {
        let generic = || self.attached.iter().filter(|(_, attached)| attached.generic);
        let mut cards = generic().flat_map(|(port, attached)| attached.port.cards(*port));
        let lacks = |card: u32| {
            let card = links.get(card)?;
            Some(!self.ethtool.computes_checksums(&card.name).unwrap_or(true))
        };
        let flag = if cards.any(|card| lacks(card).unwrap_or_default()) { INTERFACE_UNSUMMED } else { 0 };
        for receiver in generic().flat_map(|(_, attached)| &attached.port.receivers) {
            let mut entry = kernel.interface(*receiver);
            if entry.flags & INTERFACE_UNSUMMED != flag {
                entry.flags ^= INTERFACE_UNSUMMED;
                kernel.write_interface(*receiver, entry)?;
            }
        }
        Ok(())
    }

    /// Returns the flag for the ingress program.
    fn direct_flag(&self) -> u32 {
        if self.direct == Some(true) { 0 } else { INTERFACE_NO_DIRECT }
    }

    /// Attaches the ingress program to a port, or detaches it, unless that is done.
    fn set_inlet(&mut self, kernel: &mut LinkKernel, port: &Interface, wanted: bool) -> Result<(), AgentError> {
        if self.inlets.get(&port.ifindex) == Some(&wanted) {
            return Ok(());
        }
        if wanted {
            self.attach_inlet(kernel, port)?;
        } else {
            Self::detach_inlet(kernel, port)?;
        }
        self.inlets.insert(port.ifindex, wanted);
        Ok(())
    }

    fn attach_inlet(&self, kernel: &mut LinkKernel, port: &Interface) -> Result<(), AgentError> {
        let by = kernel.programs.attach_classifier(Direction::Ingress, &port.name, port.ifindex, self.settings.tc)?;
        Self::mark(kernel, port, by)?;
        let reason = if self.direct == Some(true) { "direct server return" } else { "merged frames" };
        tracing::info!(interface = port.name, program = INGRESS_PROGRAM, reason, "attached for incoming packets");
        Ok(())
    }

    fn detach_inlet(kernel: &mut LinkKernel, port: &Interface) -> Result<(), AgentError> {
        let flags = kernel.interface(port.ifindex).flags;
        Ok(kernel.programs.detach_ingress(port.ifindex, flags & INTERFACE_FILTER != 0)?)
    }

    fn attach_port(
        &mut self,
        kernel: &mut LinkKernel,
        links: &Links,
        (interface, port): (&Interface, &SegmentPort),
        (mode, why): (XdpAttachMode, Option<&str>),
    ) -> Result<(), AgentError> {
        let (name, ifindex) = (&interface.name, interface.ifindex);
        let suits = |attached: &PortAttachment| {
            attached.mtu == interface.mtu && (attached.generic || mode != XdpAttachMode::Generic)
        };
        if self.attached.get(&ifindex).is_some_and(|attached| attached.port == *port && suits(attached)) {
            return Ok(());
        }
        if let Some(why) = why {
            tracing::warn!(interface = name, why, "using the slower generic mode on all ports");
        }
        let pinned = Some(kernel.interface(ifindex)).filter(|known| known.bit != 0);
        let Some(bit) = pinned.map(|known| known.bit).or_else(|| Self::free_bit(kernel)) else {
            let attached = kernel.interfaces().values().filter(|interface| interface.bit != 0);
            return Err(AgentError::TooManyInterfaces(attached.count() + 1));
        };
        // A program that runs in the same mode is replaced in place.
        let is_bare = self.attached.get(&ifindex).is_none_or(|it| !it.generic && mode == XdpAttachMode::Generic);
        self.note_attaching(is_bare.then(|| (ifindex, Instant::now())));
        let receivers: Vec<_> = port.receivers.iter().filter_map(|receiver| links.get(*receiver)).collect();
        let cards: Vec<_> = port.cards(ifindex).iter().filter_map(|card| links.get(*card)).collect();
        cards.iter().try_for_each(|card| self.keep_tags(kernel, card, port.tagged))?;
        let generic = pinned.map(|known| known.flags & INTERFACE_GENERIC != 0);
        let attached = attach_xdp(&mut kernel.programs, interface, &cards, mode, generic);
        if mode != XdpAttachMode::Generic && !matches!(attached, Ok(false)) {
            for card in &cards {
                self.log_remedy(card);
            }
        }
        let generic = attached?;
        if generic {
            self.set_inlet(kernel, interface, true)?;
        }
        for receiver in receivers {
            let mut entry = kernel.interface(receiver.ifindex);
            let partial = generic || self.ethtool.has_local_senders(&receiver.name)?;
            // The flags of an earlier agent hold until this one has its Services.
            let kept = if entry.bit == 0 { self.direct_flag() } else { entry.flags & UNTIL_FOLLOWED };
            (entry.mac, entry.bit, entry.flags) = (port.mac, bit, entry.flags & MARKS | kept);
            let own = self.settings.handover_mac == HandoverMac::Own;
            let backup = port.backups.contains(&receiver.ifindex);
            let flags = [
                (generic, INTERFACE_GENERIC | INTERFACE_MERGED),
                (partial, INTERFACE_PARTIAL),
                (own, INTERFACE_OWN_MAC),
                (backup, INTERFACE_BACKUP),
                (receiver.ifindex == ifindex && self.bypassed.contains(&ifindex), INTERFACE_BYPASSED),
            ];
            entry.flags |= flags.iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag);
            entry.flags |= interface.mtu.min(u16::MAX.into()) << INTERFACE_MTU_SHIFT;
            kernel.write_interface(receiver.ifindex, entry)?;
        }
        self.attached.insert(ifindex, PortAttachment { bit, generic, mtu: interface.mtu, port: port.clone() });
        self.changed = true;
        let mode = if generic { "generic" } else { "native" };
        tracing::info!(interface = name, mac = %port.mac, mode, tagged = port.tagged, "attached");
        Ok(())
    }

    fn note_attaching(&self, port: Option<(u32, Instant)>) {
        *self.attaching.lock().unwrap_or_else(PoisonError::into_inner) = port;
    }

    /// Logs what helps against a refusal of native XDP, if that is known.
    fn log_remedy(&self, card: &Interface) {
        if self.ethtool.has_fixed_guest_offloads(&card.name).unwrap_or_default() {
            let remedy =
                "let the hypervisor offer ctrl_guest_offloads, or turn guest offloads off (docs/interfaces.md)";
            tracing::warn!(
                interface = card.name,
                remedy,
                "virtio_net refuses native XDP, since its host merges segments"
            );
        }
    }

    /// Detaches the programs from an interface, and undoes all changes to it. If that fails, it is
    /// tried again.
    pub(super) fn detach(&mut self, kernel: &mut LinkKernel, links: &Links, ifindex: u32) -> Result<(), AgentError> {
        let announced = self.segments.get(ifindex).is_some() || !kernel.is_outlet_alone(ifindex);
        self.unlink(ifindex);
        self.never_native.remove(&ifindex);
        let entry = kernel.interface(ifindex);
        kernel.write_interface(ifindex, abi::Interface { flags: entry.flags & MARKS, ..Default::default() })?;
        kernel.programs.detach(ifindex)?;
        if let Some(interface) = links.get(ifindex) {
            remove_filters(ifindex, entry.flags)?;
            if entry.flags & INTERFACE_TAGS != 0 {
                self.ethtool.strip_tags(&interface.name, true)?;
            }
            let reason = if announced { "no VIP is announced there" } else { "no route leads out there" };
            tracing::info!(interface = interface.name, reason, "detached");
        } else if announced {
            tracing::warn!(ifindex, "announcing interface is gone");
        } else {
            tracing::info!(ifindex, "interface of replies is gone");
        }
        kernel.write_interface(ifindex, abi::Interface::default())?;
        Ok(kernel.note_links()?)
    }

    fn free_bit(kernel: &LinkKernel) -> Option<u32> {
        let used = kernel.interfaces().values().fold(0, |bits, interface| bits | interface.bit);
        (0..u32::BITS).map(|place| 1 << place).find(|bit| used & bit == 0)
    }
}

/// Attaches the XDP program to a port, or to a bond's cards in generic mode, and returns whether it runs in
/// generic mode. `pinned`: the mode of an earlier program. The kernel refuses programs on a bond and on its
/// cards at the same time.
fn attach_xdp(
    programs: &mut Programs,
    port: &Interface,
    cards: &[&Interface],
    mode: XdpAttachMode,
    pinned: Option<bool>,
) -> Result<bool, AgentError> {
    let (name, place) = (&port.name, (port.ifindex, port.mtu));
    if cards.iter().all(|card| card.ifindex == port.ifindex) {
        return Ok(programs.attach_xdp(name, place, mode, pinned)?);
    }
    if mode == XdpAttachMode::Native || mode == XdpAttachMode::Auto && pinned != Some(true) {
        cards.iter().try_for_each(|card| programs.detach_xdp(card.ifindex))?;
        match programs.attach_xdp(name, place, XdpAttachMode::Native, pinned) {
            Err(error) if mode == XdpAttachMode::Auto && !matches!(error, LoadError::Occupied { .. }) => {
                let error = error_chain(&error);
                tracing::warn!(interface = name, error, "no native XDP, using the slower generic mode");
            }
            attached => return Ok(attached?),
        }
    }
    programs.detach_xdp(port.ifindex)?;
    for card in cards {
        programs.attach_xdp(&card.name, (card.ifindex, card.mtu), XdpAttachMode::Generic, Some(true))?;
    }
    Ok(true)
}

/// Removes the filters that an interface's flags name.
fn remove_filters(ifindex: u32, flags: u32) -> Result<(), AgentError> {
    if flags & INTERFACE_FILTER == 0 {
        return Ok(());
    }
    Ok(Programs::remove_filters(ifindex, flags & INTERFACE_QDISC != 0)?)
}
