//! Repeats the XDP program's decisions about a TCP, UDP or SCTP packet, step by step.
//!
//! It follows `ebpf/src/demux.rs` and `flow.rs`. A test runs both on the same maps.

use std::net::SocketAddr;

use vipmux_common::{
    abi::{
        AffinityKey, BACKEND_LOCAL, BACKEND_READY, Backend, Config, DropReason, FLOW_NEW, FlowKey, FlowRecord,
        INTERFACE_OWN_MAC, Interface, Mac, NODE_ATTACHED, Node, PEER_HANDOVER, SERVICE_DIRECT, SERVICE_KERNEL,
        SERVICE_SPARE, ServiceKey, ServiceState, ServiceValue, UNCLAIMED_PASS, UNCLAIMED_REJECT, VIP_ALL_PORTS,
        VipValue,
    },
    hash,
};

use super::{Lookup, LookupEndpoint, LookupMaps, LookupOutcome, LookupStep};
use crate::{clock::Clock, freshness, names};
use vipmux_datapath::{
    bpf::maps::{Maps, MapsError},
    link::interface_name,
};
use vipmux_model::{Protocol, ServiceName};

/// The source MAC of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSource {
    /// A client's or a router's MAC, not a node's.
    Client,
    /// A node's hand-over MAC: another node has balanced the frame already.
    Peer,
    /// This MAC, such as a node's ordinary one.
    Mac(Mac),
}

/// The packet to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupPacket {
    /// The client.
    pub client: SocketAddr,
    /// The destination.
    pub vip: SocketAddr,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// It is the first segment of a TCP connection or the INIT of an SCTP association; otherwise it
    /// belongs to an established one. For UDP it does not matter.
    pub syn: bool,
    /// The frame's source.
    pub source: FrameSource,
    /// The interface where it comes in; `None`: one where the VIP is announced.
    pub ifindex: Option<u32>,
    /// Its 802.1Q VLAN; 0: untagged; `None`: the VIP's.
    pub vlan: Option<u32>,
}

/// Predicts what happens to the packet.
pub fn walk(maps: &Maps, clock: &Clock, request: &LookupPacket) -> Result<Lookup, MapsError> {
    let (entries, config) = (LookupMaps(maps), maps.read_config()?);
    let mut walk = Walk { maps, entries, clock, request, config, vip_flags: 0, steps: Vec::new() };
    let outcome = match walk.outcome() {
        Ok(outcome) => outcome,
        Err(WalkError::Dropped(reason @ (DropReason::NoService | DropReason::NoBackend))) => walk.unclaimed(reason)?,
        Err(WalkError::Dropped(reason)) => reason.into(),
        Err(WalkError::Maps(error)) => return Err(error),
    };
    let (client, vip, protocol) = (request.client, request.vip, request.protocol.to_string());
    Ok(Lookup { client, vip, protocol, steps: walk.steps, outcome })
}

struct Walk<'a> {
    maps: &'a Maps,
    entries: LookupMaps<'a>,
    clock: &'a Clock,
    request: &'a LookupPacket,
    config: Config,
    /// The flags of the VIP.
    vip_flags: u32,
    steps: Vec<LookupStep>,
}

/// A backend with its index.
#[derive(Clone, Copy)]
struct IndexedBackend {
    index: u32,
    backend: Backend,
}

impl IndexedBackend {
    fn is_local(&self) -> bool {
        self.backend.flags & BACKEND_LOCAL != 0
    }
}

/// The end of a walk without a verdict for a backend.
#[derive(Debug, thiserror::Error)]
enum WalkError {
    /// The packet is dropped or rejected.
    #[error("{}", .0.text())]
    Dropped(DropReason),
    /// A map could not be read.
    #[error(transparent)]
    Maps(#[from] MapsError),
}

impl From<DropReason> for WalkError {
    fn from(reason: DropReason) -> Self {
        Self::Dropped(reason)
    }
}

impl Walk<'_> {
    fn note(&mut self, step: &'static str, finding: impl Into<String>) {
        self.steps.push(LookupStep { step, finding: finding.into() });
    }

    fn outcome(&mut self) -> Result<LookupOutcome, WalkError> {
        let Some((vip, interface)) = self.vip()? else { return Ok(LookupOutcome::Passed) };
        self.vip_flags = vip.flags;
        let is_abandoned = freshness::is_abandoned(&self.maps.read_fence()?, &self.config, self.clock)
            && !self.may_be_handed_over(interface)?;
        let key = FlowKey {
            client: self.request.client.ip().into(),
            vip: vip.id,
            client_port: self.request.client.port().to_be(),
            vip_port: self.request.vip.port().to_be(),
            protocol: self.request.protocol.number().into(),
            ..FlowKey::default()
        };
        let recorded = self.recorded(&key, interface);
        let is_left = match &recorded {
            Ok(Some((target, _))) => !target.is_local(),
            Ok(None) | Err(WalkError::Dropped(_)) => true,
            Err(WalkError::Maps(_)) => false,
        };
        if is_abandoned && is_left {
            self.note(
                "fence",
                "the agent has been away for too long: what is not handed over, nor of a flow to a backend here, is left \
                 to the node's own stack",
            );
            return Ok(LookupOutcome::Passed);
        }
        let recorded = recorded?;
        if recorded.is_none() && self.maps.read_vip(&key.client)?.is_some() {
            self.note("client", "the client is a VIP, whose packets start no flow");
            return Err(DropReason::Malformed.into());
        }
        let service = if recorded.is_none() { self.service(&key, &vip)? } else { None };
        let slot = recorded.map(|(_, slot)| slot).or(service.map(|service| service.slot));
        let slot = slot.ok_or(DropReason::NoService)?;
        let state = self.maps.service_states.look_up(slot)?.unwrap_or_default();
        if !self.is_admitted(&state)? {
            return Err(DropReason::SourceRange.into());
        }
        let target = match (recorded, service) {
            (Some((target, _)), _) => target,
            (None, Some(service)) if service.flags & SERVICE_KERNEL == 0 => self.balanced(&key, &service)?,
            _ => {
                self.note("kernel", "the Service's packets are left to the node's own stack");
                return Ok(LookupOutcome::LeftToKernel);
            }
        };
        let direct = state.flags & SERVICE_DIRECT != 0;
        let target = match service.filter(|_| !direct) {
            Some(service) => self.without_collision(&key, &service, target)?,
            None => target,
        };
        if target.is_local() { self.deliver(&key, &target, direct) } else { self.hand_over(&target, interface) }
    }

    /// Returns whether the Service's source ranges admit the client.
    fn is_admitted(&mut self, state: &ServiceState) -> Result<bool, MapsError> {
        if state.ranges == 0 {
            return Ok(true);
        }
        let client = self.request.client.ip();
        let lets = self.entries.is_in_range(state.ranges, &client.into())?;
        self.note(
            "ranges",
            format!("{client} is in {} of the Service's source ranges", if lets { "one" } else { "none" }),
        );
        Ok(lets)
    }

    /// Returns the VIP, and the interface where the frame comes in; `None`: the packet is not for
    /// vipmux.
    fn vip(&mut self) -> Result<Option<(VipValue, Interface)>, MapsError> {
        let address = self.request.vip.ip();
        let Some(vip) = self.maps.read_vip(&address.into())? else {
            self.note("vip", format!("{address} is not a VIP"));
            return Ok(None);
        };
        let mut announced = self.maps.read_interfaces()?;
        announced.retain(|_, interface| interface.bit & vip.interfaces != 0);
        let entered = match self.request.ifindex {
            None => announced.values().next(),
            Some(ifindex) => announced.get(&ifindex),
        };
        let on = announced.keys().map(|ifindex| interface_name(*ifindex)).collect::<Vec<_>>().join(",");
        let on = if on.is_empty() { "no interface".to_owned() } else { on };
        let vlan = if vip.vlan == 0 { String::new() } else { format!(" VLAN {}", vip.vlan) };
        let Some(&interface) = entered.filter(|_| self.request.vlan.is_none_or(|vlan| vlan == vip.vlan)) else {
            self.note("vip", format!("{address} is announced on {on}{vlan}, not where the frame comes in"));
            return Ok(None);
        };
        self.note("vip", format!("{address} is announced on {on}{vlan}"));
        Ok(Some((vip, interface)))
    }

    fn target(&self, index: u32) -> Result<Option<IndexedBackend>, MapsError> {
        Ok(self.maps.backends.look_up(index)?.map(|backend| IndexedBackend { index, backend }))
    }

    fn endpoint(&self, target: &IndexedBackend) -> Result<LookupEndpoint, MapsError> {
        Ok(LookupEndpoint {
            index: target.index,
            address: target.backend.address.into(),
            port: u16::from_be(names::port(&target.backend, self.request.vip.port().to_be())),
            node: self.entries.node_name(target.backend.node)?,
        })
    }

    fn unclaimed(&self, reason: DropReason) -> Result<LookupOutcome, MapsError> {
        let sent_on = match self.request.source {
            FrameSource::Mac(mac) => self.maps.peers.look_up(&mac)?.is_some_and(|peer| peer & PEER_HANDOVER == 0),
            FrameSource::Client | FrameSource::Peer => false,
        };
        Ok(match self.config.unclaimed {
            _ if self.is_handed_over()? => reason.into(),
            UNCLAIMED_PASS if !sent_on => LookupOutcome::Passed,
            UNCLAIMED_PASS | UNCLAIMED_REJECT => LookupOutcome::Rejected { reason: reason.name() },
            _ => reason.into(),
        })
    }

    fn is_handed_over(&self) -> Result<bool, MapsError> {
        Ok(match self.request.source {
            FrameSource::Client => false,
            FrameSource::Peer => true,
            FrameSource::Mac(mac) => self.maps.peers.look_up(&mac)?.is_some_and(|peer| peer & PEER_HANDOVER != 0),
        })
    }

    /// Returns whether the frame is another node's, so that it is served even after the agent has been away
    /// for too long.
    fn may_be_handed_over(&self, entered: Interface) -> Result<bool, MapsError> {
        let FrameSource::Mac(mac) = self.request.source else { return self.is_handed_over() };
        let is_node = || Ok(self.maps.peers.look_up(&mac)?.is_some_and(|peer| peer & PEER_HANDOVER == 0));
        Ok(self.is_handed_over()? || entered.flags & INTERFACE_OWN_MAC != 0 && is_node()?)
    }

    fn attached(&self, target: &IndexedBackend) -> Result<Option<Node>, MapsError> {
        Ok(self.entries.node(target.backend.node, self.vip_flags)?.filter(|node| node.flags & NODE_ATTACHED != 0))
    }

    fn came_from(&self, node: &Node) -> bool {
        matches!(self.request.source, FrameSource::Mac(mac) if mac == node.mac)
    }

    /// Returns whether the frame may go to this backend: a handed-over frame only to a local one,
    /// and none back to the node it came from.
    fn is_fit(&self, target: &IndexedBackend) -> Result<bool, MapsError> {
        let elsewhere = || Ok(self.attached(target)?.is_some_and(|node| !self.came_from(&node)));
        if target.is_local() {
            Ok(true)
        } else if self.is_handed_over()? {
            Ok(false)
        } else {
            elsewhere()
        }
    }

    /// Returns the backend of a valid flow record, and the Service's slot.
    fn recorded(&mut self, key: &FlowKey, entered: Interface) -> Result<Option<(IndexedBackend, u32)>, WalkError> {
        let Some(flow) = self.maps.flow_table()?.find(key) else {
            self.note("flow", "no record");
            return Ok(None);
        };
        let (target, state) = (self.target(flow.backend)?, self.maps.service_states.look_up(flow.slot)?);
        let vouched = freshness::is_vouched(&flow, self.entries.node(flow.node.into(), self.vip_flags)?.as_ref());
        let backend = target.as_ref().map(|target| &target.backend);
        if let Some(why) = freshness::stale(&flow, vouched, backend, state.as_ref(), &self.config, self.clock) {
            self.note("flow", format!("a stale record: {why}"));
            return Ok(None);
        }
        let Some(mut target) = target else { return Ok(None) };
        if vouched {
            // Such a record decides by itself, whatever the backend's entry says.
            target.backend = Backend { flags: BACKEND_READY, node: flow.node.into(), ..target.backend };
        }
        let age = self.clock.since(self.clock.full(flow.seen));
        let record = format!("a record of backend {}, {} s old", target.index, age.as_secs());
        match freshness::reopened(&flow, &target.backend, &self.config, self.clock) {
            Some(why) if self.request.syn && self.request.protocol != Protocol::Udp => {
                self.note("flow", format!("{record}, not for a new connection: {why}"));
                return Ok(None);
            }
            Some(why) if self.request.protocol != Protocol::Udp => {
                let opening = if self.request.protocol == Protocol::Tcp { "a SYN" } else { "an INIT" };
                self.note("flow", format!("{record}; {opening} would not keep it: {why}"));
            }
            _ => self.note("flow", record),
        }
        if self.is_fit(&target)? {
            return Ok(Some((target, flow.slot)));
        }
        let Some(reason) = self.kept_away(&target, &flow, entered)? else {
            self.note("flow", "this frame cannot reach the recorded backend: balanced again");
            return Ok(None);
        };
        self.note("flow", "this frame cannot reach the recorded backend, and must not change the record");
        Err(reason.into())
    }

    /// Returns why a frame that cannot reach the backend of a live record is dropped; `None`: another
    /// backend is chosen.
    fn kept_away(
        &self,
        target: &IndexedBackend,
        flow: &FlowRecord,
        entered: Interface,
    ) -> Result<Option<DropReason>, MapsError> {
        let handed_over = self.is_handed_over()?;
        let is_udp = self.request.protocol == Protocol::Udp;
        let may_begin = self.request.syn || is_udp;
        let is_new = u32::from(flow.flags) & FLOW_NEW != 0;
        let is_trusted = handed_over || entered.flags & INTERFACE_OWN_MAC != 0 || is_new || is_udp;
        let reason = if handed_over { DropReason::NotLocal } else { DropReason::Hairpin };
        Ok((self.attached(target)?.is_some() && !(is_trusted && may_begin)).then_some(reason))
    }

    fn at(&self, table: u32, length: u32, hash: u32) -> Result<Option<(u32, IndexedBackend)>, MapsError> {
        let slot = hash::slot(hash, length);
        let Some(index) = self.entries.table_slot(table.wrapping_add(slot))? else { return Ok(None) };
        Ok(self.target(index)?.map(|target| (slot, target)))
    }

    fn owner(&self, slot: u32) -> Result<String, MapsError> {
        let owner: Option<ServiceName> = self.entries.owner(slot)?;
        Ok(owner.map_or_else(|| format!("an unnamed Service (slot {slot})"), |owner| owner.to_string()))
    }

    /// Returns the Service that claims the port, or all ports.
    fn service(&mut self, key: &FlowKey, vip: &VipValue) -> Result<Option<ServiceValue>, MapsError> {
        let (port, protocol) = (self.request.vip.port(), self.request.protocol);
        let claim = ServiceKey { vip: key.vip, port: key.vip_port, protocol: protocol.number(), padding: 0 };
        let (copy, entry) = (self.entries.service_copy(claim)?, self.maps.services.look_up(&claim)?);
        let mut found = copy.or(entry);
        let mut what = format!("port {port}/{protocol}");
        if copy.is_some() && copy != entry {
            what += ", by a copy in SERVICE_INDEX that differs from SERVICES";
        }
        if found.is_none() && vip.flags & VIP_ALL_PORTS != 0 {
            found = self.maps.services.look_up(&ServiceKey { port: 0, ..claim })?;
            what = format!("every {protocol} port");
        }
        match &found {
            Some(service) => {
                let owner = self.owner(service.slot)?;
                self.note("service", format!("{owner} claims {what}"));
            }
            None => self.note("service", format!("no Service claims port {port}/{protocol}")),
        }
        Ok(found)
    }

    /// Returns the hash that selects a new flow's backend.
    fn hash(&self, key: &FlowKey, service: &ServiceValue) -> u32 {
        let vip = self.request.vip.ip().into();
        if service.affinity == 0 { hash::flow(key, hash::salt(service, &vip)) } else { hash::client(&key.client) }
    }

    fn balanced(&mut self, key: &FlowKey, service: &ServiceValue) -> Result<IndexedBackend, WalkError> {
        if let Some(target) = self.remembered(key, service)? {
            return Ok(target);
        }
        let by = self.hash(key, service);
        let chosen = self.choose(service, by);
        if let Err(WalkError::Dropped(reason)) = &chosen {
            self.note("table", reason.text());
        }
        chosen
    }

    /// Returns the backend that session affinity remembers for the client.
    fn remembered(&mut self, key: &FlowKey, service: &ServiceValue) -> Result<Option<IndexedBackend>, MapsError> {
        if service.affinity == 0 {
            return Ok(None);
        }
        let key = AffinityKey { client: key.client, slot: service.slot, generation: service.generation };
        let remembered = self.maps.affinity.look_up(&key)?.filter(|value| value.tag == hash::affinity(&key));
        let Some(value) = remembered else {
            self.note("affinity", "the client is not remembered");
            return Ok(None);
        };
        if self.clock.ticks_since(value.seen) > u64::from(service.affinity) {
            self.note("affinity", "the client was remembered too long ago");
            return Ok(None);
        }
        let same = |target: &IndexedBackend| {
            target.backend.generation == value.backend_generation && target.backend.flags & BACKEND_READY != 0
        };
        match self.target(value.backend)?.filter(same) {
            Some(target) if self.is_fit(&target)? => {
                self.note("affinity", format!("the client is remembered with backend {}", target.index));
                Ok(Some(target))
            }
            _ => {
                self.note("affinity", "the client is remembered with a backend that cannot be used");
                Ok(None)
            }
        }
    }

    /// Returns the backend of a new flow, or another one where that one's replies would be those of
    /// another live flow. If the next choices have such flows too, returns the last one.
    fn without_collision(
        &mut self,
        key: &FlowKey,
        service: &ServiceValue,
        first: IndexedBackend,
    ) -> Result<IndexedBackend, WalkError> {
        let by = self.hash(key, service);
        let mut target = first;
        for attempt in 1..=hash::MOST_ATTEMPTS {
            if !target.is_local() {
                break;
            }
            let Some(vip) = self.collision(key, &target)? else { break };
            self.note("replies", format!("backend {} has an active flow of this client port to {vip}", target.index));
            target = self.choose(service, hash::after(by, attempt))?;
        }
        Ok(target)
    }

    fn choose(&mut self, service: &ServiceValue, flow: u32) -> Result<IndexedBackend, WalkError> {
        if service.table_length == 0 {
            return Err(DropReason::NoBackend.into());
        }
        let (slot, first) = self.at(service.table, service.table_length, flow)?.ok_or(DropReason::NoBackend)?;
        if self.is_fit(&first)? {
            self.note("table", format!("slot {slot} of {}: backend {}", service.table_length, first.index));
            return Ok(first);
        }
        if self.is_handed_over()? {
            let is_here = service.local_length != 0;
            return if is_here { self.choose_here(service, flow, &first) } else { Err(DropReason::NotLocal.into()) };
        }
        let came_back =
            self.entries.node(first.backend.node, self.vip_flags)?.is_some_and(|node| self.came_from(&node));
        if came_back && service.local_length != 0 && service.flags & SERVICE_SPARE == 0 {
            return self.choose_here(service, flow, &first);
        }
        if let Some(target) = self.probe(service, flow, &first)? {
            return Ok(target);
        }
        match (service.local_length, came_back) {
            (0, true) => Err(DropReason::Hairpin.into()),
            (0, false) => Err(DropReason::NodeUnreachable.into()),
            _ => self.choose_here(service, flow, &first),
        }
    }

    /// Returns the first usable backend of further slots.
    fn probe(
        &mut self,
        service: &ServiceValue,
        flow: u32,
        first: &IndexedBackend,
    ) -> Result<Option<IndexedBackend>, MapsError> {
        let mut next = flow;
        for probe in 1..=hash::PROBES {
            next = hash::next(next);
            if let Some((slot, target)) = self.at(service.table, service.table_length, next)?
                && self.is_fit(&target)?
            {
                let (unfit, index) = (first.index, target.index);
                self.note(
                    "table",
                    format!("backend {unfit} cannot be reached; probe {probe}, slot {slot}: backend {index}"),
                );
                return Ok(Some(target));
            }
        }
        Ok(None)
    }

    /// Chooses from the table of this node's own backends, because the first choice cannot be used.
    fn choose_here(
        &mut self,
        service: &ServiceValue,
        flow: u32,
        first: &IndexedBackend,
    ) -> Result<IndexedBackend, WalkError> {
        let local = self.at(service.local_table, service.local_length, flow)?;
        let (slot, local) = local.ok_or(DropReason::NoBackend)?;
        let unfit = format!("this frame cannot reach backend {}", first.index);
        let length = service.local_length;
        self.note("table", format!("{unfit}; slot {slot} of {length} of the local table: backend {}", local.index));
        Ok(local)
    }

    fn deliver(&mut self, key: &FlowKey, target: &IndexedBackend, direct: bool) -> Result<LookupOutcome, WalkError> {
        let backend = self.endpoint(target)?;
        self.note("backend", format!("{} is {}", target.index, backend.text()));
        if direct {
            return Ok(LookupOutcome::Delivered { backend, direct });
        }
        if let Some(vip) = self.collision(key, target)? {
            let what = format!("the backend's replies to this client port belong to an active flow to {vip}");
            self.note("replies", what);
            return Err(DropReason::TupleCollision.into());
        }
        Ok(LookupOutcome::Delivered { backend, direct })
    }

    /// Returns the destination of another live flow of the same client port that ends at the same
    /// port of this backend.
    fn collision(&self, key: &FlowKey, target: &IndexedBackend) -> Result<Option<SocketAddr>, MapsError> {
        let port = |backend: &Backend, vip_port| names::port(backend, vip_port);
        for flow in self.maps.flow_table()?.of_client(key) {
            let Some(other) = self.target(flow.backend)? else { continue };
            let is_same = other.backend.is_of(flow.backend_generation)
                && other.backend.address == target.backend.address
                && port(&other.backend, flow.vip_port) == port(&target.backend, key.vip_port);
            let Some(state) = self.maps.service_states.look_up(flow.slot)? else { continue };
            let is_live =
                !freshness::is_closed(&flow) && freshness::translates(&flow, Some(&state), &self.config, self.clock);
            if is_same && is_live && flow.key() != *key {
                return Ok(Some(SocketAddr::new(state.vip.into(), u16::from_be(flow.vip_port))));
            }
        }
        Ok(None)
    }

    fn hand_over(&mut self, target: &IndexedBackend, entered: Interface) -> Result<LookupOutcome, WalkError> {
        let backend = self.endpoint(target)?;
        self.note("backend", format!("{} is {}", target.index, backend.text()));
        let Some(node) = self.attached(target)? else {
            self.note("node", "its program is not attached, or its MAC is not resolved");
            return Err(DropReason::NodeUnreachable.into());
        };
        let limit = if self.request.vip.is_ipv4() { "TTL" } else { "hop limit" };
        self.note(
            "node",
            format!("its program is attached, its MAC is {}; a packet with a {limit} of 1 would be dropped", node.mac),
        );
        Ok(LookupOutcome::HandedOver {
            backend,
            mac: node.mac.to_string(),
            source_mac: self.source_mac(&node, entered)?.to_string(),
            interface: interface_name(node.ifindex),
        })
    }

    /// Returns the source MAC of a frame that is handed over to `node`.
    fn source_mac(&self, node: &Node, entered: Interface) -> Result<Mac, MapsError> {
        if entered.flags & INTERFACE_OWN_MAC == 0 && self.config.handover != Mac::default() {
            return Ok(self.config.handover);
        }
        Ok(self.maps.read_interfaces()?.get(&node.ifindex).map_or(entered.mac, |outlet| outlet.mac))
    }
}
