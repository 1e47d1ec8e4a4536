//! The flow table's entry of a packet's flow: where it goes, and what becomes of its record.

use core::ptr;

use vipmux_common::{
    abi::{
        BACKEND_FAILING, BACKEND_GONE, BACKEND_LOCAL, BACKEND_READY, BACKEND_STOPPING, Backend, Config, DropReason,
        FLOW_DIRECT, FLOW_HALF_OPEN, FLOW_ISN, FLOW_NEW, FLOW_REPLIES, FLOW_RESET, FLOW_UNPROVEN, FlowKey, FlowRecord,
        INTERFACE_OWN_MAC, Node, SERVICE_DIRECT, SERVICE_GONE, ServiceState,
    },
    flow_table::{Place, RESERVE_EPOCH},
};

use crate::{
    destination::{Destination, EntryState},
    flow::{Flow, Target, after_client, after_syn, is_closed, is_idle, is_late, is_over, refresh},
    maps::{BACKENDS, SERVICE_STATES, config},
    packet::UDP,
    position::{self, search},
    segment::{ACK, FIN, RST, SYN, Segment},
    service::{self, Source},
    vip,
    wire::after_load,
};

impl Source<'_> {
    /// Returns whether the frame may go to the backend of a live record. `Ok(false)`: no, and the
    /// record may be replaced.
    ///
    /// A handed-over frame stays here, and no frame goes back to its node. Such a frame may be
    /// forged. So it only replaces a record if it may begin a flow. (An earlier flow of the same
    /// ports may have left the record.) Also, a node must vouch for it, or the record is new: a node
    /// without the programs sends a flow's first packet back. It sends datagrams back at any time.
    #[inline(always)]
    fn is_fit(&self, target: &Target, segment: &Segment, flags: u32) -> Result<bool, DropReason> {
        if target.local.is_some() {
            return Ok(true);
        }
        let Ok(node) = service::node(target) else { return Ok(false) };
        let came_back = node.mac.word() == self.frame.source.word();
        if !self.vip.is_handed_over() && !came_back {
            return Ok(true);
        }
        let is_trusted = self.vip.is_handed_over()
            || self.interface.flags & INTERFACE_OWN_MAC != 0
            || flags & FLOW_NEW != 0
            || segment.protocol == UDP;
        if is_trusted && segment.may_begin() {
            return Ok(false);
        }
        Err(if self.vip.is_handed_over() { DropReason::NotLocal } else { DropReason::Hairpin })
    }
}

/// A flow's record, with the Service port and the node that it names.
pub(crate) struct FlowEntry {
    record: *mut FlowRecord,
    flow: Flow,
    /// Of the Service port that has the slot now.
    state: &'static ServiceState,
    node: &'static Node,
    /// [`Node::flags`] in the lower half, [`Node::epoch`] in the upper half.
    flags_epoch: u64,
}

impl FlowEntry {
    /// Returns a flow's record, if it is whole.
    #[inline(always)]
    pub(crate) fn get(config: &Config, key: &FlowKey, place: Place, vip: vip::Flags) -> Option<Self> {
        let record = search(config, key, place)?;
        // SAFETY: in the table.
        let flow = unsafe { Flow::whole(record, place) }?;
        let state = SERVICE_STATES.get(flow.slot())?;
        let node = vip.path(flow.node())?;
        // SAFETY: a map value. The two fields are one aligned word.
        let flags_epoch = unsafe { ptr::read_volatile((&raw const node.flags).cast()) };
        Some(Self { record, flow, state, node, flags_epoch })
    }

    /// [`FlowRecord::slot`].
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.flow.slot()
    }

    #[inline(always)]
    fn epoch(&self) -> u32 {
        (self.flags_epoch >> 32) as u32
    }

    /// Returns whether the packet leaves the record as it is, and its Service port admits all clients and
    /// has its packets translated. `unstable`: flags that the packet may change.
    #[inline(always)]
    fn is_steady(&self, config: &Config, segment: &Segment, unstable: u32, now: u64) -> bool {
        let Self { flow, state, .. } = self;
        // SAFETY: a map value. The two fields are one aligned word.
        let generation_flags: u64 = unsafe { ptr::read_volatile((&raw const state.generation).cast()) };
        generation_flags == u64::from(flow.slot_generation())
            && state.ranges == 0
            && segment.flags & (SYN | FIN | RST) == 0
            && flow.flags() & unstable == 0
            && flow.is_fresh(config, now as u32)
    }

    /// Returns the node that a plain packet goes to: the record remains as it is, and so does the frame but
    /// for its MACs and its TTL. Nearly all packets are like that, so few comparisons find it out. They
    /// have the same result as those of [`Self::destination`] and [`service::node`].
    #[inline(always)]
    pub(crate) fn plain_node(
        &self,
        config: &Config,
        segment: &Segment,
        source: &Source,
        now: u64,
    ) -> Option<&'static Node> {
        let Self { flow, node, .. } = self;
        let vouched = u64::from(flow.epoch()) << 32 | u64::from(Node::attached(source.frame.vlan));
        let is_plain = flow.epoch() != 0
            && self.flags_epoch == vouched
            && self.is_steady(config, segment, FLOW_UNPROVEN | FLOW_RESET, now)
            && !source.vip.is_handed_over()
            && node.mac.word() != source.frame.source.word();
        is_plain.then_some(node)
    }

    /// Returns the backend on this node that a plain packet goes to. Local flows have no epoch. (If the
    /// client has just turned to the backend itself, its packet changes nothing: it is late.)
    #[inline(always)]
    pub(crate) fn plain_backend(&self, config: &Config, segment: &Segment, now: u64) -> Option<&'static Backend> {
        let flow = &self.flow;
        if flow.epoch() != 0 || flow.flags() & FLOW_REPLIES == 0 {
            return None;
        }
        let backend = BACKENDS.get(flow.backend())?;
        // SAFETY: a map value.
        let flags = unsafe { ptr::read_volatile(&raw const backend.flags) };
        let is_plain = backend.is_of(flow.backend_generation())
            && flags == BACKEND_LOCAL | BACKEND_READY
            && self.is_steady(config, segment, FLOW_HALF_OPEN | FLOW_RESET, now);
        is_plain.then_some(backend)
    }

    /// Returns the record's backend, if it is still the same, and its flags. Either the epoch of its node
    /// confirms that, or the backend's own entry. This then gives the record the node's epoch,
    /// whatever becomes of the packet, if it `renews` the record. `leaves`: the flow leaves a backend
    /// that stops or fails.
    ///
    /// The epoch must be read before the entry. Before a change that matters, the agent sets the epoch
    /// to zero, and then to a new value. So an epoch that fits an old entry never comes again.
    #[inline(always)]
    fn target(&self, leaves: bool, renews: bool) -> Option<(Target, u16)> {
        let (flow, epoch) = (&self.flow, self.epoch());
        let (index, generation, node, remote) =
            (flow.backend(), flow.backend_generation(), flow.node(), Some(self.node));
        if epoch != 0 && epoch == flow.epoch() {
            return Some((Target { index, generation, node, local: None, remote }, BACKEND_READY));
        }
        let backend = BACKENDS.get(after_load(index, epoch))?;
        // SAFETY: a map value.
        let flags = unsafe { ptr::read_volatile(&raw const backend.flags) };
        if !backend.is_of(generation) || flags & BACKEND_GONE != 0 {
            return None;
        }
        let (is_local, ready) = (flags & BACKEND_LOCAL != 0, flags & BACKEND_READY != 0);
        if leaves && !ready && flags & (BACKEND_STOPPING | BACKEND_FAILING) != 0 {
            return None;
        }
        if renews && ready && !is_local && epoch != 0 {
            // SAFETY: in the table.
            unsafe { ptr::write_volatile(&raw mut (*self.record).epoch, epoch) };
        }
        Some((Target { index, generation, node, local: is_local.then_some(backend), remote }, flags))
    }

    /// Returns whether the record's backend is on this node.
    #[inline(always)]
    pub(crate) fn is_local(&self) -> bool {
        self.target(false, false).is_some_and(|(target, _)| target.local.is_some())
    }

    /// Returns the destination of a live record, and refreshes the record. `None`: it is not live, or may
    /// be replaced.
    #[inline(always)]
    pub(crate) fn destination(
        &self,
        segment: &Segment,
        source: &Source,
        now: u64,
    ) -> Result<Option<Destination>, DropReason> {
        let &Self { record, ref flow, state, .. } = self;
        if !self.has_service() {
            return Ok(None);
        }
        // Datagrams need not go to one backend until a flow ends.
        let Some((target, backend_flags)) = self.target(segment.protocol == UDP, true) else { return Ok(None) };
        let Flow { state: recorded, time, .. } = *flow;
        let tcp = u64::from(segment.sequence) << 32 | u64::from(segment.flags);
        let service = u64::from(state.idle) << 32 | u64::from(state.flags & SERVICE_DIRECT) << 16;
        let change = flow_change(recorded, time, tcp, service | u64::from(backend_flags), now as u32);
        if change & REPLACED != 0 || !source.is_fit(&target, segment, flow.flags())? {
            return Ok(None);
        }
        if change & REFRESHED != 0 {
            refresh(record, flow, change & 0xff, now as u32, false);
        }
        let entry = match change >> ENTRY_STATE & 3 {
            0 => EntryState::Present,
            1 => EntryState::Partial,
            2 => EntryState::Renewed,
            _ => EntryState::Reserve,
        };
        Ok(Some(Destination {
            target,
            slot: flow.slot(),
            slot_generation: flow.slot_generation(),
            flags: state.flags,
            ranges: state.ranges,
            entry,
        }))
    }

    /// Returns whether the record's Service port is still the same one, and not gone.
    #[inline(always)]
    fn has_service(&self) -> bool {
        self.state.generation == self.flow.slot_generation() && self.state.flags & SERVICE_GONE == 0
    }
}

// What `flow_change` returns, beside the record's new flags in bits 0 to 7.
/// The record may be replaced.
const REPLACED: u32 = 1 << 8;
/// The record gets the flags, and the time.
const REFRESHED: u32 = 1 << 9;
/// A [`EntryState`] from this bit on.
const ENTRY_STATE: u32 = 10;

/// Returns what becomes of a record with a packet of its flow. `recorded`, `time`: [`Flow`]'s. `tcp`: the packet's
/// TCP flags, and its sequence number from bit 32 on. `target`: the backend's flags, the Service's from bit 16
/// on, and its idle timeout from bit 32 on.
///
/// The verifier checks this function on its own, since its comparisons would multiply with all that follows.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flow_change(recorded: u64, time: u64, tcp: u64, target: u64, now: u32) -> u32 {
    const ESTABLISHED: u32 = FLOW_UNPROVEN | FLOW_RESET | FLOW_REPLIES | FLOW_DIRECT;
    let config = config();
    let flow = Flow::of_words(recorded, time);
    let (flags, age) = (flow.flags(), flow.age(now));
    let (sequence, tcp) = ((tcp >> 32) as u32, tcp as u8);
    let is_syn = tcp & (SYN | ACK) == SYN;
    let (idle, is_ready) = ((target >> 32) as u32, target & u64::from(BACKEND_READY) != 0);
    let is_fresh = age < config.hz;
    // A mark of the agent: the Service does not have the backend any more.
    let is_orphan = flow.protocol() == UDP && flags & FLOW_RESET != 0;
    if is_orphan || is_syn && (!is_ready || is_over(config, flags, age)) || is_idle(config, flow.protocol(), idle, age)
    {
        return REPLACED;
    }
    let after = if is_syn { after_syn(flags) } else { after_client(flags, tcp) };
    // The backend is on this node, and its replies are translated.
    if target & (u64::from(BACKEND_LOCAL) | u64::from(SERVICE_DIRECT) << 16) == u64::from(BACKEND_LOCAL) {
        // What was sent before the client turned to the backend itself changes nothing.
        let is_late = !is_syn && flags & FLOW_DIRECT != 0 && is_late(config, age);
        let other_syn = is_syn && (is_closed(flags) || flags & FLOW_ISN == 0 || flow.isn() != sequence);
        if other_syn || !is_late && flags & (FLOW_REPLIES | FLOW_DIRECT) != FLOW_REPLIES {
            let is_established = is_syn && flags & ESTABLISHED == FLOW_REPLIES;
            return if is_established {
                (EntryState::Renewed as u32) << ENTRY_STATE
            } else {
                (EntryState::Partial as u32) << ENTRY_STATE
            };
        }
        if is_late {
            return 0;
        }
    }
    // With the packet that proves the flow, and if there was no room then, after each pause of a second.
    let moves = flow.epoch() == RESERVE_EPOCH
        && tcp & (SYN | FIN | RST) == 0
        && !is_closed(flags)
        && after & FLOW_UNPROVEN == 0
        && (flags & FLOW_UNPROVEN != 0 || !is_fresh);
    if moves {
        (EntryState::Reserve as u32) << ENTRY_STATE
    } else if after == flags && is_fresh {
        0
    } else {
        after & 0xff | REFRESHED
    }
}

/// Returns the destination of a flow's live record, and refreshes the record. `None`: there is none, or
/// it may be replaced.
#[inline(always)]
pub(crate) fn find(
    config: &Config,
    key: &FlowKey,
    place: Place,
    segment: &Segment,
    source: &Source,
    now: u64,
) -> Result<Option<Destination>, DropReason> {
    FlowEntry::get(config, key, place, source.vip).map_or(Ok(None), |entry| entry.destination(segment, source, now))
}

/// Returns a record's backend and its Service's flags. The record stays unchanged: this is for
/// packets about the flow, not of it.
#[inline(always)]
pub(crate) fn look(key: &FlowKey, vip: vip::Flags) -> Option<(Target, u32)> {
    let config = config();
    let entry = FlowEntry::get(config, key, position::place(config, key), vip)?;
    let (target, _) = entry.target(false, false)?;
    entry.has_service().then_some((target, entry.state.flags))
}
