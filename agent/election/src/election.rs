//! The election state machine of one node.
//!
//! [`Election::handle`] takes an [`Input`], the view of the [`Peers`] and the time. It returns
//! [`Command`]s. There is no clock, socket or randomness in it.
//!
//! A VIP's roles on one node:
//!
//! ```text
//!             nobody leads it, and it is this node's turn: it reads the Lease, probes the LAN unless it
//!             witnessed the leader's end, and swaps the Lease; or a leader transfers it (Take)
//!             ┌──────────────────────────────────────────────────────────────────────────────────┐
//!             │                                              the first leader ever               ▼
//!         Following ──────────────────────────────────────► Detecting ── the address is free ─► Leading
//!          ▲ ▲ ▲ ▲                                            │    ▲                            │ │ │
//!          │ │ │ │                  a foreign speaker has it  ▼    │ asked again                │ │ │
//!          │ │ │ └── another node has the Lease ─────────── Conflicted                           │ │ │
//!          │ │ │                                                                                │ │ │
//!          │ │ │      a peer has the Lease, or a higher epoch            a peer announced it    │ │ │
//!          │ │ └────────────────────────────────────────── Yielded ◄────────────────────────────┘ │ │
//!          │ │                                                ├─ the peer denies it ──────► Leading │
//!          │ │                                                └─ the Lease is still ours ─► Leading │
//!          │ │        the same                               the fence deadline passed, or a peer   │
//!          │ └──────────────────────────────────────────── Suspended ◄── held this node for down ─┘ │
//!          │                                                  └─ the Lease is still ours ─► Leading │
//!          │                                                                                        │
//!          │     Taken                                                    another node should lead  │
//!          └──────────────────────────────────────────────── Handing ◄────────────────────────────┘
//!                                                              └─ Declined, or no answer ─► Leading
//! ```
//!
//! The Lease is written only when leadership changes, and when a node leads its own VIP again.
//! Comparing and swapping its version keeps two nodes from doing so at once. Its number of
//! transitions is the epoch. Without the store, a node may take a VIP if it sees a majority and
//! witnessed the leader's end. It writes the Lease when the store is back. It gives the VIP up if
//! that Lease shows an epoch as high as its own.
//!
//! The fence: each [`Input::Tick`] extends the kernel's deadline to *the time the evidence was
//! asked for* + [`ElectionSettings::lease`]. Evidence is a majority of the known members that
//! answered ([`Peers::evidence`]). Otherwise it is a write of this node's record in the store, without
//! a conflict. A deadline that has passed is never simply extended: every VIP is suspended, and
//! [`Command::Reload`] asks for evidence anew.

mod ability;
mod context;
mod fence;
mod fencings;
mod io;
mod leader_index;
mod leadership_transfer;
mod node_records;
mod peer_announcements;
mod role;
mod schedule;
mod stability;
mod surveys;
mod takeover;
mod takeover_guard;
mod timing;
mod vip_state;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use self::{
    ability::AbilityToLead,
    context::Context,
    fence::FenceDeadline,
    fencings::Fencings,
    leader_index::LeaderIndex,
    node_records::OwnRecord,
    peer_announcements::Inquiries,
    schedule::EvaluationSchedule,
    stability::Stability,
    surveys::Surveys,
    takeover_guard::TakeoverGuard,
    timing::DISCOVERY_TIME,
    vip_state::{Phase, VipState},
};
pub use self::{
    io::{AddressOwner, Command, Input, LeaseOutcome, Outcome, PeerAnnouncement, RecordOutcome},
    role::{Leadership, Lost, Role},
    timing::{DRAIN_TIMEOUT, HEARTBEAT, LEASE},
};
#[cfg(any(test, feature = "simulation"))]
use crate::mutation::Mutation;
use crate::{
    lease::{Lease, StoreId},
    membership::{Item, MemberStatus, Peer, Peers},
    mutation::Mutated,
    placement::{Candidate, Candidates},
};
use vipmux_model::{NodeName, Vip};

/// The most operations on the Leases of VIPs that a node has at the store at a time. So it takes 1,000 VIPs
/// within 3 s where the store needs 100 ms for each, and fills no queue of an API server: they hold hundreds for
/// each client.
pub const MAX_LEASE_OPERATIONS: usize = 128;

/// Times that the user may set, or that tests shorten.
#[derive(Clone, Copy, Debug)]
pub struct ElectionSettings {
    /// The time that the kernel answers after the last evidence.
    pub lease: Duration,
    /// The time that a new node waits before VIPs are moved to it. It takes a VIP without a leader
    /// at once.
    pub hold_down: Duration,
    /// Asks the LAN for another owner before an address is first used.
    pub detect: bool,
}

impl Default for ElectionSettings {
    /// [`LEASE`]; one minute; yes.
    fn default() -> Self {
        Self { lease: LEASE, hold_down: Duration::from_mins(1), detect: true }
    }
}

/// The state machine of one node.
#[derive(Debug)]
pub struct Election {
    local: NodeName,
    settings: ElectionSettings,
    started: Duration,
    /// The VIPs that the kernel answered for then.
    led_at_start: BTreeSet<Vip>,
    wanted: Arc<BTreeMap<Vip, Candidates>>,
    availability: AbilityToLead,
    stability: Stability,
    states: BTreeMap<Vip, VipState>,
    index: LeaderIndex,
    surveys: Surveys,
    inquiries: Inquiries,
    fence: FenceDeadline,
    /// The time of the last heartbeat.
    ticked: Duration,
    /// This node's record in the store, and those of nodes whose VIPs this one is about to take.
    record: OwnRecord,
    fencings: Fencings,
    /// The id of this node's directory of Leases.
    store: Option<StoreId>,
    /// Another member has another store, or may have: its id is not known, or no member was heard. So no Lease or
    /// record says what that member does.
    stores_differ: bool,
    /// Nodes with another gossip key may lead rather than this one.
    outranked: bool,
    schedule: EvaluationSchedule,
    /// The time at which a VIP was last transferred for the sake of balance.
    rebalanced: Duration,
    /// VIPs that this node declined before it wanted them, with the epoch and the time.
    declined_unknown: BTreeMap<Vip, (u64, Duration)>,
    commands: Vec<Command>,
    mutated: Mutated,
}

impl Election {
    /// Creates the state machine of a node that leads nothing yet.
    pub fn new(local: NodeName, settings: ElectionSettings, now: Duration) -> Self {
        let mutated = Mutated::default();
        Self {
            local,
            settings,
            started: now,
            led_at_start: BTreeSet::new(),
            wanted: Arc::default(),
            availability: AbilityToLead::default(),
            stability: Stability::default(),
            states: BTreeMap::new(),
            index: LeaderIndex::default(),
            surveys: Surveys::default(),
            inquiries: Inquiries::default(),
            fence: FenceDeadline::new(settings.lease, mutated),
            ticked: now,
            record: OwnRecord::default(),
            fencings: Fencings::default(),
            store: None,
            stores_differ: false,
            outranked: false,
            schedule: EvaluationSchedule::default(),
            rebalanced: now,
            declined_unknown: BTreeMap::new(),
            commands: Vec::new(),
            mutated,
        }
    }

    /// Notes the VIPs that the kernel answers for since an earlier agent left it, before the first input.
    /// If their Leases say the same, this node answers on at once. Otherwise it asks the LAN first.
    #[must_use]
    pub fn resuming(self, led_at_start: BTreeSet<Vip>) -> Self {
        Self { led_at_start, ..self }
    }

    /// Builds a fault in, before the first input.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn mutate(&mut self, mutation: Option<Mutation>) {
        self.mutated = Mutated::new(mutation);
        self.fence = FenceDeadline::new(self.settings.lease, self.mutated);
    }

    /// Returns whether this node may answer at `now`, and only because its record in the store says so.
    pub fn uses_store_evidence(&self, peers: &Peers, now: Duration) -> bool {
        self.fence.is_open(now) && self.fence.rests_on_record(peers.evidence_since)
    }

    /// Returns the VIPs that this node answers for.
    pub fn leading(&self) -> impl Iterator<Item = Vip> {
        self.own_vips().filter(|(_, role)| *role == Role::Leading).map(|(vip, _)| vip)
    }

    /// Returns whether this node answers for the VIP.
    #[cfg(test)]
    fn leads(&self, vip: Vip) -> bool {
        self.states.get(&vip).is_some_and(|state| state.role() == Role::Leading)
    }

    /// Returns the wanted VIPs.
    pub fn vips(&self) -> impl Iterator<Item = Vip> {
        self.states.keys().copied()
    }

    /// Returns what this node publishes as [`Item::Ready`] and [`Item::Draining`].
    pub fn published_ability(&self) -> (bool, bool) {
        self.availability.published()
    }

    /// Returns whether this node transfers its VIPs, since its deadline passes again and again.
    pub fn is_unstable(&self) -> bool {
        self.availability.unstable
    }

    /// Returns whether another node should lead a VIP rather than this one, and can now.
    pub fn has_other(&self, vip: Vip, peers: &Peers) -> bool {
        let preference = |candidate: &Candidate| {
            self.preference(candidate, peers).filter(|_| self.is_able(&candidate.node, vip, peers))
        };
        let Some(candidates) = self.wanted.get(&vip) else { return false };
        let own = self.candidate(vip, &self.local).and_then(preference);
        let mut others = candidates.iter().filter(|candidate| candidate.node != self.local).filter_map(preference);
        others.any(|other| own.is_none_or(|own| other.precedes(own)))
    }

    /// Returns the known leader of a wanted VIP.
    pub fn leadership(&self, vip: Vip) -> Option<Leadership> {
        self.states.get(&vip).map(|state| state.leadership(&self.local))
    }

    /// Returns the leaders of wanted VIPs by their Leases, if this node has heard no other since it
    /// started. It should have: its gossip may be blocked. Without that, or soon after the start,
    /// there are none.
    pub fn unheard_leaders(&self, peers: &Peers, now: Duration) -> BTreeSet<&NodeName> {
        if !peers.members.is_empty() || now < self.started + DISCOVERY_TIME {
            return BTreeSet::new();
        }
        let known = self.states.values().filter_map(|state| Some(&state.latest.as_ref()?.node));
        known.filter(|node| **node != self.local).collect()
    }

    /// Returns the VIPs that are this node's own, whether or not it answers for them.
    pub fn own_vips(&self) -> impl Iterator<Item = (Vip, Role)> {
        self.index.own.iter().filter_map(|vip| Some((*vip, self.states.get(vip)?.role())))
    }

    /// Returns when to give an [`Input::Peers`] if no other input comes before. It is never much
    /// later than the next [`Input::Tick`].
    pub fn next(&self) -> Option<Duration> {
        // Nothing is evaluated until the wanted VIPs are known.
        let wake = self.schedule.wake.filter(|_| self.fence.informed);
        wake.into_iter().chain(self.record.seeks_at).min()
    }

    /// Handles an input at `now` (`CLOCK_BOOTTIME`). Returns the commands to execute, in their
    /// order.
    pub fn handle(&mut self, input: Input, peers: &Peers, now: Duration) -> Vec<Command> {
        self.compare_stores(peers);
        self.fence.note_evidence(peers.evidence_since, now);
        match input {
            Input::Wanted(wanted) => self.set_wanted(wanted, now),
            Input::Unable(unable) => self.set_unable(unable, now),
            Input::Lossy(lossy) => self.set_lossy(lossy),
            Input::Tick { carrier } => self.tick(carrier, peers, now),
            Input::Outranked(outranked) => self.set_outranked(outranked, now),
            Input::Peers => self.schedule.dirty = true,
            Input::Disowned => self.suspend(&Lost::Disowned, now),
            Input::Message { from, message } => self.receive(&from, message, now),
            Input::Stored { vip, outcome } => {
                let detect = self.settings.detect;
                self.change_state(vip, now, |state, cx| state.stored(outcome, detect, peers, cx));
            }
            Input::Surveyed { asked, leases } => self.surveyed(asked, leases, peers, now),
            Input::Store(store) => self.set_store(store),
            Input::Recorded { node, asked, outcome } => self.recorded(&node, asked, outcome, peers, now),
            Input::RecordChanged { node, record } => self.record_changed(&node, record.as_ref(), now),
            Input::LeaseChanged { vip, lease } => {
                self.change_state(vip, now, |state, cx| state.lease_changed(lease.as_ref(), false, cx));
            }
            Input::PeerAnnounced(announcement) => {
                self.change_state(announcement.vip, now, |state, cx| state.announced(&announcement, cx));
            }
            Input::Probed { vip, owner } => {
                self.change_state(vip, now, |state, cx| state.probed(&owner, peers, cx));
            }
            Input::Drain(draining) => self.set_ability(|ability| ability.draining = draining),
        }
        if self.schedule.is_due(now) && self.fence.informed {
            self.evaluate(peers, now);
        }
        self.seek_evidence(peers, now);
        std::mem::take(&mut self.commands)
    }

    /// Returns the state of a VIP, and the parts of the election that its methods need.
    fn state_of(&mut self, vip: Vip, now: Duration) -> Option<(&mut VipState, Context<'_>)> {
        let guard = TakeoverGuard {
            local: &self.local,
            started: self.started,
            led_at_start: &self.led_at_start,
            back: self.fence.back(now),
            steady: self.fence.steady,
            lease: self.settings.lease,
            stores_differ: self.stores_differ,
            fencings: &self.fencings,
            mutated: self.mutated,
        };
        let context = Context {
            vip,
            now,
            local: &self.local,
            open: self.fence.is_open(now),
            able: !self.availability.unable.contains(&vip),
            guard,
            index: &mut self.index,
            schedule: &mut self.schedule,
            commands: &mut self.commands,
            mutated: self.mutated,
        };
        self.states.get_mut(&vip).map(|state| (state, context))
    }

    /// Changes the state of a VIP, if the VIP is wanted.
    fn change_state(&mut self, vip: Vip, now: Duration, change: impl FnOnce(&mut VipState, &mut Context<'_>)) {
        if let Some((state, mut cx)) = self.state_of(vip, now) {
            change(state, &mut cx);
        }
    }

    /// Gives a VIP up. Returns the Lease as this node wrote it last.
    fn give_up(&mut self, vip: Vip, why: Lost, now: Duration) -> Option<Lease> {
        let (state, mut cx) = self.state_of(vip, now)?;
        state.give_up(why, &mut cx)
    }

    fn set_wanted(&mut self, wanted: Arc<BTreeMap<Vip, Candidates>>, now: Duration) {
        if !self.fence.informed && !self.surveys.ended && !self.surveys.under_way {
            self.survey();
            self.read_own_record(None, now);
        }
        self.fence.informed = true;
        self.schedule.dirty = true;
        if self.wanted == wanted {
            return;
        }
        let gone: Vec<_> = self.states.keys().filter(|vip| !wanted.contains_key(vip)).copied().collect();
        for vip in gone {
            let written = self.give_up(vip, Lost::Unwanted, now);
            self.states.remove(&vip);
            self.index.forget(vip);
            if let Some(lease) = written {
                self.surveys.leftover.insert(vip, (lease, now));
            }
        }
        for vip in wanted.keys() {
            let epoch_floor = self.surveys.leftover.remove(vip).map_or(0, |(lease, _)| lease.epoch);
            let unknown = &mut self.declined_unknown;
            self.states.entry(*vip).or_insert_with(|| VipState::new(epoch_floor, unknown.remove(vip)));
        }
        self.index.touched.extend(wanted.keys());
        self.index.preferences = None;
        self.wanted = wanted;
    }

    fn compare_stores(&mut self, peers: &Peers) {
        let differs = |peer: &Peer| peer.status != MemberStatus::Left && peer.state.store != self.store;
        let is_unheard = peers.members.is_empty() && !peers.majority;
        self.stores_differ = self.store.is_some() && (is_unheard || peers.members.values().any(differs));
    }

    fn set_store(&mut self, store: StoreId) {
        if self.store.replace(store) != Some(store) {
            self.commands.push(Command::Publish(Item::Store(store)));
            self.schedule.dirty = true;
        }
    }

    /// Stops answering at once, or begins anew.
    fn set_outranked(&mut self, outranked: bool, now: Duration) {
        if std::mem::replace(&mut self.outranked, outranked) == outranked {
            return;
        }
        self.fence.carrier = false;
        self.fence.lapse(now);
        self.suspend(&Lost::Outranked, now);
        self.commands.extend([Command::DiscardEvidence, Command::Reload]);
    }

    /// Handles a heartbeat of the event loop: asks the peers, and extends the deadline or finds
    /// that it has passed.
    fn tick(&mut self, carrier: bool, peers: &Peers, now: Duration) {
        self.commands.push(Command::Heartbeat);
        // Two rounds of heartbeats by default.
        let late = now.saturating_sub(std::mem::replace(&mut self.ticked, now)) >= self.settings.lease * 3 / 5;
        let ready = now.saturating_sub(self.started) >= self.settings.hold_down;
        let unstable = self.stability.is_unstable(now);
        self.set_ability(|ability| (ability.ready, ability.unstable) = (ready, unstable));
        let carrier = carrier && !self.outranked;
        self.fence.carrier = carrier;
        if !carrier {
            return;
        }
        if self.fence.is_past(now) {
            self.fence.lapse(now);
            // A node that leads nothing, and hears nobody, need not look for evidence in the store.
            if late || !self.index.own.is_empty() {
                self.stability.note_lapse(now);
            }
            self.fencings.note_cut_off(now);
            self.suspend(&Lost::Fenced, now);
            self.commands.extend([Command::DiscardEvidence, Command::Reload]);
            return;
        }
        if !self.fence.informed {
            return;
        }
        self.extend(peers, now);
        self.delete_leftover(peers, now);
    }

    fn extend(&mut self, peers: &Peers, now: Duration) {
        if let Some(extension) = self.fence.extend(peers.evidence_since, now) {
            self.schedule.dirty |= extension.opens;
            self.commands.push(Command::Extend(extension.deadline));
        }
    }

    /// Stops answering for all VIPs, until each Lease is seen to be this node's own.
    fn suspend(&mut self, why: &Lost, now: Duration) {
        // What this node knows of its peers may be old.
        self.states.values_mut().for_each(|state| state.operating_since = now);
        let own = self.states.iter().filter(|(_, state)| state.own().is_some() && state.role() != Role::Conflicted);
        let own: Vec<_> = own.map(|(vip, _)| *vip).collect();
        for vip in own {
            self.change_state(vip, now, |state, cx| {
                if cx.guard.stores_differ {
                    // Who leads it now is in none of the Leases that this node can read.
                    let epoch = state.epoch();
                    state.give_up(why.clone(), cx);
                    state.set_latest(cx.local.clone(), epoch, None, now);
                } else {
                    state.stop(Phase::Suspended, why.clone(), cx);
                    state.abandon_check();
                }
            });
        }
    }
}
