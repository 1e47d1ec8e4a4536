//! Chooses the interfaces that VIPs are announced on, and follows their carriers and MACs.

mod port;
mod tags;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use vipmux_common::abi::{INTERFACE_BYPASSED, Mac, capacity};

pub(crate) use self::port::PortAttachment;
use self::tags::TagContests;
use super::link_kernel::LinkKernel;
use crate::{AgentError, problems::warnings::Warnings};
use vipmux_datapath::{
    bpf::{
        attach::{HandoverMac, TcAttachMode, XdpAttachMode},
        pins::LinkKind,
    },
    link::{Delivery, Ethtool, Interface, Links, NetworkSegment, Segments, SharedSubnet},
};
use vipmux_model::{NodeName, Vip, advertisement::Interfaces as Allowed};

/// The options about interfaces.
#[derive(Clone, Debug)]
pub(crate) struct InterfaceSettings {
    /// This node.
    pub(crate) node: NodeName,
    /// Interfaces to announce on; empty: those whose subnet holds the Node's InternalIP.
    pub(crate) names: Vec<String>,
    pub(crate) mode: XdpAttachMode,
    pub(crate) handover_mac: HandoverMac,
    pub(crate) tc: TcAttachMode,
}

/// Changes of where VIPs are announced.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentChanges {
    /// Interfaces of segments that are no longer announced on.
    pub(crate) removed: Vec<u32>,
    /// Interfaces of segments whose carrier came back.
    pub(crate) returned: Vec<u32>,
}

/// The time for which a port may be without its program before no VIP is led there. With most drivers, an
/// attach takes milliseconds.
const ATTACH_GRACE: Duration = Duration::from_millis(200);

/// The port that gets its program now, and since when. Until then nobody answers there.
type AttachingPort = Arc<Mutex<Option<(u32, Instant)>>>;

/// The interfaces that the programs are attached to.
///
/// An [`AttachTask`](super::attach_task::AttachTask) attaches them, with a copy. The event loop uses its own
/// until that ends.
#[derive(Clone, Debug)]
pub(crate) struct AttachedInterfaces {
    settings: InterfaceSettings,
    /// The segments that VIPs are announced on. The programs are attached to all of them.
    pub(crate) segments: Segments,
    /// The interfaces of the segments that have taken the programs, as of the last attach.
    usable: BTreeSet<u32>,
    /// The ports where XDP runs, by ifindex.
    pub(crate) attached: BTreeMap<u32, PortAttachment>,
    /// The interfaces where replies are translated: the segments' own, their ports, and those with
    /// a route to a gateway.
    outlets: BTreeSet<u32>,
    /// The ports that are known to have the ingress program, or not to have it.
    inlets: BTreeMap<u32, bool>,
    /// There are backends with direct server return; `None`: the Services are not known yet.
    pub(crate) direct: Option<bool>,
    ethtool: Arc<Ethtool>,
    tags: TagContests,
    /// The ports in native mode whose frames are not known to arrive.
    silent: BTreeMap<u32, Delivery>,
    /// The ports whose frames bypass the program.
    bypassed: BTreeSet<u32>,
    attaching: AttachingPort,
    /// The port that has been without its program for longer than [`ATTACH_GRACE`].
    without_program: Option<u32>,
    /// The ports whose frames bypassed the native program, although it was attached anew.
    never_native: BTreeSet<u32>,
    /// The segments on which this node has no path to others.
    cut: BTreeSet<u32>,
    /// The Node's InternalIPs. While it has none, its last ones: an agent whose Node was deleted transfers its
    /// VIPs.
    own: Vec<IpAddr>,
    /// The Node's InternalIP is on none of the segments, but on a tunnel or a management network.
    has_internal_ip_elsewhere: bool,
    /// The subnets with several cards, and the choice for each.
    shared: Vec<SharedSubnet>,
    /// An interface refused a program at the last attempt.
    refused: bool,
    /// An interface or its MAC is new, so led VIPs must be announced there.
    changed: bool,
}

impl AttachedInterfaces {
    pub(crate) fn new(settings: InterfaceSettings, ethtool: Ethtool) -> Self {
        Self {
            settings,
            segments: Segments::default(),
            usable: BTreeSet::new(),
            attached: BTreeMap::new(),
            outlets: BTreeSet::new(),
            inlets: BTreeMap::new(),
            direct: None,
            ethtool: Arc::new(ethtool),
            tags: TagContests::default(),
            silent: BTreeMap::new(),
            bypassed: BTreeSet::new(),
            attaching: AttachingPort::default(),
            without_program: None,
            never_native: BTreeSet::new(),
            cut: BTreeSet::new(),
            own: Vec::new(),
            has_internal_ip_elsewhere: false,
            shared: Vec::new(),
            refused: false,
            changed: false,
        }
    }

    /// Returns whether an interface or a MAC is new since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns whether an interface refused a program at the last attempt. The program that was
    /// there may go, also one of ours: the kernel frees a link some time after its pin.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused
    }

    /// Returns whether at least one segment has a carrier.
    pub(crate) fn has_carrier(&self) -> bool {
        self.segments.iter().any(|segment| segment.carrier)
    }

    /// Returns where the programs are attached.
    pub(crate) fn linked(&self) -> BTreeSet<(LinkKind, u32)> {
        let places = self.attached.iter().flat_map(|(port, attached)| attached.places(*port));
        let attached = places.map(|place| (LinkKind::Xdp, place));
        let outlets = self.outlets.iter().map(|outlet| (LinkKind::Egress, *outlet));
        let inlets = self.inlets.iter().filter(|(_, attached)| **attached);
        attached.chain(outlets).chain(inlets.map(|(inlet, _)| (LinkKind::Ingress, *inlet))).collect()
    }

    /// Forgets an interface, so that the programs are attached to it again, and to the bond whose card it
    /// is.
    pub(crate) fn unlink(&mut self, ifindex: u32) {
        self.attached.retain(|port, attached| *port != ifindex && !attached.places(*port).contains(&ifindex));
        self.outlets.remove(&ifindex);
        self.inlets.remove(&ifindex);
    }

    /// Returns where a VIP is announced, as the maps have it: the bits of the ports, and the VLAN.
    pub(crate) fn place(&self, links: &Links, vip: Vip, allowed: &Allowed) -> (u32, u16) {
        // Both the segment's own name and the names of its ports select it.
        let index = |name: &String| links.named(name).map(|interface| interface.ifindex).ok();
        let allowed: Option<BTreeSet<u32>> = match allowed {
            Allowed::All => None,
            Allowed::Named(names) => Some(names.iter().filter_map(index).collect()),
        };
        let is_allowed = |segment: &NetworkSegment| {
            let is_in = |set: &BTreeSet<u32>| set.contains(&segment.ifindex) || !set.is_disjoint(&segment.ports);
            allowed.as_ref().is_none_or(is_in)
        };
        let is_usable = |segment: &NetworkSegment| self.is_usable(segment);
        let (ports, vlan) = self.segments.announcing_ports(links, vip.address(), is_allowed, is_usable);
        let bits = ports.iter().filter_map(|port| self.attached.get(port)).map(|attached| attached.bit);
        (bits.fold(0, |a, b| a | b), vlan)
    }

    /// Sets the segments on which this node has no path to others.
    pub(crate) fn set_cut(&mut self, cut: BTreeSet<u32>) {
        self.cut = cut;
    }

    /// Returns the segments on which this node has no path to others.
    pub(crate) fn cut(&self) -> &BTreeSet<u32> {
        &self.cut
    }

    /// Returns whether this node has no path to others on all segments of a VIP with these bits and
    /// this VLAN.
    pub(crate) fn is_cut(&self, bits: u32, vlan: u32) -> bool {
        let mut announced = self.announced_on(bits, vlan).map(|(ifindex, _)| ifindex).peekable();
        announced.peek().is_some() && announced.all(|ifindex| self.cut.contains(&ifindex))
    }

    /// Returns whether a VIP with these bits and this VLAN can be announced now: a segment has a
    /// carrier and a path to others, and the program runs there and its frames arrive.
    pub(crate) fn carries(&self, bits: u32, vlan: u32) -> bool {
        let mut announced = self.announced_on(bits, vlan).filter_map(|(ifindex, _)| self.segments.get(ifindex));
        announced.any(|segment| self.sends(segment, bits))
    }

    /// Returns whether VIPs can be announced on a segment now.
    fn is_usable(&self, segment: &NetworkSegment) -> bool {
        self.sends(segment, u32::MAX)
    }

    /// Returns whether a segment has a carrier and a path to others, and the program runs and its frames arrive
    /// there, at a port with one of these bits.
    fn sends(&self, segment: &NetworkSegment, bits: u32) -> bool {
        let is_dark = |port: &u32| {
            let is_bare = self.without_program == Some(*port);
            is_bare || self.silent.contains_key(port) || self.is_dark(*port, segment.vlan.into())
        };
        let is_heard = |port: &u32| self.has(*port, bits) && !is_dark(port);
        segment.carrier && !self.cut.contains(&segment.ifindex) && segment.ports.iter().any(is_heard)
    }

    /// Returns whether a port has one of these bits.
    pub(crate) fn has(&self, port: u32, bits: u32) -> bool {
        self.attached.get(&port).is_some_and(|attached| attached.bit & bits != 0)
    }

    /// Returns the veths that send for ports in native mode. What is at their other ends decides
    /// whether frames arrive.
    pub(crate) fn native_veths(&self, links: &Links) -> BTreeSet<u32> {
        let native = self.attached.values().filter(|attached| !attached.generic);
        native.flat_map(|attached| links.veths_of(&attached.port)).map(|veth| veth.ifindex).collect()
    }

    /// Returns whether no program sees the frames of a VLAN at a port.
    fn is_dark(&self, port: u32, vlan: u32) -> bool {
        self.bypassed.contains(&port) || vlan != 0 && self.loses_tags(port)
    }

    /// Returns whether this node gives no answers in a VLAN on all ports with one of these bits: the frames of
    /// the programs are lost, or no program sees those for it.
    pub(crate) fn loses(&self, bits: u32, vlan: u32) -> bool {
        let mut ports = self.attached.keys().filter(|port| self.has(**port, bits)).peekable();
        let is_lost = |port: &u32| self.is_dark(*port, vlan) || self.silent.get(port) == Some(&Delivery::Lost);
        ports.peek().is_some() && ports.all(is_lost)
    }

    /// Returns why this node gives no answers on some ports, if there are such.
    pub(crate) fn loss(&self, links: &Links) -> Option<String> {
        let names = |ports: &mut dyn Iterator<Item = u32>| {
            let names: Vec<_> = ports.filter_map(|port| links.get(port)).map(|port| port.name.as_str()).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        let lossy = names(&mut self.lossy()).map(|names| {
            format!(
                "frames that native XDP sends are lost on {names}: a veth needs an XDP program at its other end, or \
                 generic mode (--xdp-mode auto)"
            )
        });
        let bypassed = names(&mut self.bypassed.iter().copied()).map(|names| {
            format!(
                "frames bypass the XDP program on {names}: it is attached, and does not run; generic mode helps if the \
                 driver is the cause (--xdp-mode auto)"
            )
        });
        let tags = names(&mut self.lost_tags()).map(|names| {
            format!(
                "VLAN tags are taken out of frames on {names}, since another component keeps turning rx-vlan-offload \
                 on: let it leave that off"
            )
        });
        let all: Vec<_> = lossy.into_iter().chain(bypassed).chain(tags).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Returns the interfaces where the program of each port runs: itself, or the cards that a bond
    /// uses.
    pub(crate) fn entrances(&self) -> BTreeMap<u32, BTreeSet<u32>> {
        let of_port = |(ifindex, PortAttachment { port, .. }): (&u32, &PortAttachment)| {
            (*ifindex, &port.cards(*ifindex) - &port.backups)
        };
        self.attached.iter().map(of_port).collect()
    }

    /// Returns the number of ports whose frames bypass the program.
    pub(crate) fn bypassed(&self) -> usize {
        self.bypassed.len()
    }

    /// Sets the ports whose frames bypass the program. Returns whether that changed.
    pub(crate) fn set_bypassed(
        &mut self,
        kernel: &mut LinkKernel,
        bypassed: BTreeSet<u32>,
    ) -> Result<bool, AgentError> {
        let before = std::mem::replace(&mut self.bypassed, bypassed);
        for ifindex in before.symmetric_difference(&self.bypassed).filter(|port| self.attached.contains_key(port)) {
            let mut entry = kernel.interface(*ifindex);
            let is_bypassed = self.bypassed.contains(ifindex);
            entry.flags = entry.flags & !INTERFACE_BYPASSED | if is_bypassed { INTERFACE_BYPASSED } else { 0 };
            kernel.write_interface(*ifindex, entry)?;
        }
        Ok(before != self.bypassed)
    }

    /// Lets a port take the program in generic mode, since its frames bypass the native one. Returns
    /// false if generic mode is not allowed, or does not help either.
    pub(crate) fn leave_native(&mut self, ifindex: u32) -> bool {
        let is_native = self.attached.get(&ifindex).is_some_and(|attached| !attached.generic);
        is_native && self.settings.mode == XdpAttachMode::Auto && self.never_native.insert(ifindex)
    }

    /// Returns the ports where frames of the programs are lost.
    pub(crate) fn lossy(&self) -> impl Iterator<Item = u32> {
        self.silent.iter().filter(|(_, delivery)| **delivery == Delivery::Lost).map(|(port, _)| *port)
    }

    /// Returns the segments that have paths of their own to other nodes, by number: none if there is one
    /// segment with the Node's InternalIP, and else all. The numbers begin at 1.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u8, &NetworkSegment)> {
        const MOST: usize = capacity::SEGMENTS as usize - 1;
        let is_one = self.segments.iter().nth(1).is_none() && !self.has_internal_ip_elsewhere;
        (1..).zip(self.segments.iter()).take(if is_one { 0 } else { MOST })
    }

    /// Returns the number of the segment on which a VIP with these bits and this VLAN is announced;
    /// 0: it has none, or the VIP is announced on several.
    pub(crate) fn segment_number(&self, bits: u32, vlan: u32) -> u8 {
        let mut announced = self.announced_on(bits, vlan).map(|(ifindex, _)| ifindex);
        let (Some(only), None) = (announced.next(), announced.next()) else { return 0 };
        self.numbered().find(|(_, segment)| segment.ifindex == only).map_or(0, |(number, _)| number)
    }

    /// Returns the node's addresses on segments with a number, for other nodes. Without a carrier,
    /// a segment leads nowhere.
    pub(crate) fn addresses(&self, links: &Links) -> BTreeSet<IpAddr> {
        let usable = self.numbered().filter(|(_, segment)| segment.carrier);
        let interfaces = usable.filter_map(|(_, segment)| links.get(segment.ifindex));
        interfaces.flat_map(Interface::subnet_addresses).collect()
    }

    /// Returns the MACs that VIPs are announced with.
    pub(crate) fn macs(&self) -> BTreeSet<Mac> {
        self.segments.iter().map(|segment| segment.mac).collect()
    }

    /// Returns the segments that a VIP with these bits and this VLAN is announced on, with the MACs
    /// to announce.
    pub(crate) fn announced_on(&self, bits: u32, vlan: u32) -> impl Iterator<Item = (u32, Mac)> {
        let has = move |port: &u32| self.has(*port, bits);
        let on = move |segment: &&NetworkSegment| u32::from(segment.vlan) == vlan && segment.ports.iter().any(has);
        self.segments.iter().filter(on).map(|segment| (segment.ifindex, segment.mac))
    }

    /// Attaches the programs where they are not yet, and changes the cards' settings. Waits for drivers. Once
    /// the agent is ready, an interface that cannot be used is a warning and stops nothing.
    pub(crate) fn attach(
        &mut self,
        kernel: &mut LinkKernel,
        links: &Links,
        warnings: &mut Warnings,
    ) -> Result<(), AgentError> {
        let (segments, errors) = self.wanted(links);
        for error in errors {
            warnings.add_error(error)?;
        }
        self.release(kernel, links, &segments, warnings)?;
        if !segments.is_empty() {
            // Before anything is served.
            self.attach_exits(kernel, links, &segments.outlets(), warnings);
        }
        let mode = self.mode(links, &segments);
        let mut usable = self.attach_segments(kernel, links, &segments, warnings)?;
        if self.mode(links, &segments) != mode {
            // A card without native XDP showed up among others.
            usable = self.attach_segments(kernel, links, &segments, warnings)?;
        }
        self.usable = usable.iter().map(|segment| segment.ifindex).collect();
        self.set_direct(kernel, links, warnings)?;
        self.follow_checksums(kernel, links)?;
        self.defend_tags(kernel, links, warnings)
    }

    /// Returns a copy for an attach. `direct`: there are backends with direct server return.
    pub(crate) fn copy(&self, direct: Option<bool>) -> Self {
        Self { changed: false, direct, ..self.clone() }
    }

    /// Takes over what an attach has changed in its copy. Returns whether that matters to the desired state.
    pub(crate) fn adopt(&mut self, attached: Self) -> bool {
        let Self { usable, attached, outlets, inlets, direct, tags, never_native, refused, changed, .. } = attached;
        let is_new = self.usable != usable || self.direct != direct || !self.tags.loses_the_same(&tags) || changed;
        (self.usable, self.attached, self.outlets, self.inlets) = (usable, attached, outlets, inlets);
        (self.direct, self.tags, self.never_native, self.refused) = (direct, tags, never_native, refused);
        self.changed |= changed;
        self.without_program.take().is_some() || is_new
    }

    /// Follows the node's InternalIPs, and carriers and MACs of the segments that have the programs. `own`:
    /// these InternalIPs.
    pub(crate) fn follow(&mut self, links: &Links, own: &[IpAddr]) -> SegmentChanges {
        if !own.is_empty() {
            self.own = own.to_vec();
        }
        let (mut segments, _) = self.wanted(links);
        let bare: Vec<_> = segments.iter().map(|it| it.ifindex).filter(|it| !self.usable.contains(it)).collect();
        for ifindex in bare {
            segments.remove(ifindex);
        }
        let changes = self.replace_segments(segments);
        self.has_internal_ip_elsewhere = self.own.first().is_some_and(|own| !self.has_address(links, *own));
        self.update_silent(links);
        self.note_shared_subnets(links);
        changes
    }

    /// Finds out which port has no program for long, since its driver takes long. Returns whether that
    /// changed.
    pub(crate) fn check_attach(&mut self, now: Instant) -> bool {
        let attaching = *self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
        let bare = attaching.filter(|(_, since)| now.duration_since(*since) >= ATTACH_GRACE).map(|(port, _)| port);
        let changed = bare != self.without_program;
        self.without_program = bare;
        changed
    }

    /// Warns of ports where this node gives no answers, and if there is no interface.
    pub(crate) fn warn(&self, links: &Links, warnings: &mut Warnings) {
        self.loss(links).into_iter().for_each(|loss| warnings.add(loss));
        if self.attached.is_empty() {
            let node = &self.settings.node;
            warnings.add(format!("there is no interface to announce on yet: Node {node} shows no InternalIP"));
        }
    }

    /// Returns the MAC that VIPs are announced with where frames come in by this interface.
    pub(crate) fn mac(&self, receiver: u32) -> Mac {
        let port = self.attached.values().find(|attached| attached.port.receivers.contains(&receiver));
        port.map(|attached| attached.port.mac).unwrap_or_default()
    }

    /// Returns whether this is an address of the node on a segment.
    fn has_address(&self, links: &Links, address: IpAddr) -> bool {
        let mut interfaces = self.segments.iter().filter_map(|segment| links.get(segment.ifindex));
        interfaces.any(|interface| interface.has(address))
    }

    /// Attaches the programs to segments, and returns the usable segments.
    fn attach_segments(
        &mut self,
        kernel: &mut LinkKernel,
        links: &Links,
        segments: &Segments,
        warnings: &mut Warnings,
    ) -> Result<Segments, AgentError> {
        let mut usable = segments.clone();
        self.refused = false;
        for segment in segments.iter() {
            if let Err(error) = self.attach_segment(kernel, links, &usable, segment) {
                self.refused = true;
                warnings.add_error(error)?;
                usable.remove(segment.ifindex);
            }
        }
        Ok(usable)
    }

    /// Returns the segments to announce on. A named interface must be there at the start, and may
    /// come back later.
    fn wanted(&self, links: &Links) -> (Segments, Vec<AgentError>) {
        let names = &self.settings.names;
        let chosen: Vec<_> = if !names.is_empty() {
            names.iter().map(|name| links.named(name)).collect()
        } else if self.own.is_empty() {
            Vec::new()
        } else {
            match links.holding(&self.own) {
                Ok(found) => found.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            }
        };
        let (mut segments, mut errors) = (Segments::default(), Vec::new());
        for interface in chosen {
            let segment = interface.and_then(|interface| links.segment(interface));
            if let Err(error) = segment.and_then(|segment| segments.add(links, segment)) {
                errors.push(error.into());
            }
        }
        (segments, errors)
    }

    /// Releases interfaces that are gone or no longer wanted, and with them their bits, those of an
    /// earlier agent too. While no segment is known to be wanted, it releases only those that are
    /// gone.
    fn release(
        &mut self,
        kernel: &mut LinkKernel,
        links: &Links,
        wanted: &Segments,
        warnings: &mut Warnings,
    ) -> Result<(), AgentError> {
        let mut used = wanted.outlets();
        used.extend(wanted.ports().values().flat_map(|port| port.receivers.iter().copied()));
        let exits = links.exits().map(|exit| exit.ifindex);
        used.extend(exits.filter(|exit| kernel.is_outlet_alone(*exit)));
        let is_idle = |ifindex: &u32| links.get(*ifindex).is_none() || !wanted.is_empty() && !used.contains(ifindex);
        for ifindex in kernel.touched().into_iter().filter(is_idle) {
            if let Err(error) = self.detach(kernel, links, ifindex) {
                warnings.add_error(error)?;
            }
        }
        Ok(())
    }

    /// Returns the mode in which programs run, and why it is generic in `auto`. Ports hand frames over to
    /// each other. Native XDP loses them on a veth, and on a card that cannot send what native XDP redirects
    /// (`ndo_xdp_xmit`): each of these frames is refused with EOPNOTSUPP. So `auto` is generic on all ports
    /// as soon as one is a veth, runs in generic mode, or does not run a native program that it took.
    fn mode(&self, links: &Links, segments: &Segments) -> (XdpAttachMode, Option<&'static str>) {
        let ports = segments.ports();
        let is_generic = |port: &u32| self.attached.get(port).is_some_and(|attached| attached.generic);
        let why = if links.has_veth(segments) {
            "a veth loses frames of native XDP"
        } else if ports.keys().any(|port| self.never_native.contains(port)) {
            "frames bypass native XDP"
        } else if ports.keys().any(is_generic) {
            "a port has no native XDP"
        } else {
            return (self.settings.mode, None);
        };
        match self.settings.mode {
            XdpAttachMode::Auto => (XdpAttachMode::Generic, Some(why)),
            mode => (mode, None),
        }
    }

    fn update_silent(&mut self, links: &Links) {
        let native = self.attached.iter().filter(|(_, attached)| !attached.generic);
        let deliveries = native.map(|(port, attached)| (*port, links.delivery(&attached.port)));
        self.silent = deliveries.filter(|(_, delivery)| *delivery != Delivery::Arrives).collect();
    }

    /// Logs which card announces VIPs where several cards are in one subnet, if that changed.
    fn note_shared_subnets(&mut self, links: &Links) {
        let shared = self.segments.shared_subnets(links, |segment| self.is_usable(segment));
        let name = |ifindex: &u32| links.get(*ifindex).map_or("", |interface| interface.name.as_str());
        for SharedSubnet { subnet, chosen, others, reason } in shared.iter().filter(|it| !self.shared.contains(it)) {
            let (subnet, interface) = (format!("{}/{}", subnet.0, subnet.1), name(chosen));
            let others = others.iter().map(name).collect::<Vec<_>>().join(",");
            tracing::info!(subnet, interface, others, %reason, "several cards are in one subnet, one announces");
        }
        self.shared = shared;
    }

    /// Replaces the segments that VIPs are announced on, and returns the differences.
    fn replace_segments(&mut self, segments: Segments) -> SegmentChanges {
        let before = std::mem::replace(&mut self.segments, segments);
        let segments = &self.segments;
        let removed = before.iter().filter(|old| segments.get(old.ifindex).is_none());
        // Also if it went and came since the last look.
        let has_returned = |segment: &&NetworkSegment| {
            let before = before.get(segment.ifindex);
            before.is_some_and(|before| !before.carrier || before.carrier_ups != segment.carrier_ups)
        };
        let returned = segments.iter().filter(|segment| segment.carrier).filter(has_returned);
        let index = |segment: &NetworkSegment| segment.ifindex;
        SegmentChanges { removed: removed.map(index).collect(), returned: returned.map(index).collect() }
    }
}
