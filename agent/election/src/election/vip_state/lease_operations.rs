//! Operations at the store and on the LAN for one VIP: what begins them, and what their results
//! lead to.

use std::time::Duration;

use super::{Follower, LeaseOperation, Phase, VipState, WrittenLease};
use crate::{
    election::{
        context::Context,
        io::{AddressOwner, Command, LeaseOutcome},
        role::{Lost, Role},
        takeover_guard::Takeover,
        timing::{
            ADDRESS_PROBE_PAUSE, DELETED_NODE_PROBE_PAUSE, FENCED_LEADER_STOP, HEARTBEAT, LEASE_WRITE_RETRY,
            SHORT_RETRY, STORE_RETRY, TAKEOVER_TURN,
        },
    },
    lease::{Lease, Version},
    membership::{Peers, Why},
    mutation::Mutation,
    store_operation::StoreOperation,
};
use vipmux_model::{NodeName, Vip};

/// What became of the leader before this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Predecessor {
    /// It does not answer.
    Gone,
    /// That will be known soon.
    Unclear,
    /// It may lead the VIP again.
    Leads(NodeName),
}

/// Returns whether a living peer claims the VIP.
fn is_claimed(vip: Vip, peers: &Peers) -> bool {
    peers.members.values().any(|peer| peer.status.is_alive() && peer.state.leads(vip))
}

impl VipState {
    /// Begins an operation, unless one is under way or it is too early.
    pub(in crate::election) fn attempt(&mut self, operation: LeaseOperation, cx: &mut Context<'_>) {
        if self.operation.is_some() {
            return;
        }
        if self.not_before > cx.now {
            return cx.schedule.wake_at(self.not_before);
        }
        cx.commands.push(match operation {
            LeaseOperation::Detect => Command::Probe { vip: cx.vip, detect: true },
            _ => Command::Store(StoreOperation::Read(cx.vip)),
        });
        (self.operation, self.operating_since) = (Some(operation), cx.now);
        self.hedge_later(cx);
    }

    /// Returns whether the turn of this node has passed in which it began to take the VIP. Another node may be
    /// about to take it, too.
    pub(in crate::election) fn is_late(&self, now: Duration) -> bool {
        let Some(since) = self.follower().and_then(|follower| follower.takeable_since) else { return false };
        let turn = |at: Duration| at.saturating_sub(since).as_millis() / TAKEOVER_TURN.as_millis();
        turn(now) != turn(self.operating_since)
    }

    /// Counts the turns of a takeover anew, from when the VIP may be taken again.
    const fn end_turns(&mut self) {
        if let Some(follower) = self.follower_mut() {
            follower.takeable_since = None;
        }
    }

    /// Swaps the Lease as part of an operation.
    fn swap(&mut self, lease: Option<&Lease>, epoch: u64, operation: LeaseOperation, cx: &mut Context<'_>) {
        self.operation = Some(operation);
        let expected = lease.map(|lease| lease.version.clone());
        let (vip, holder) = (cx.vip, cx.local.clone());
        cx.commands.push(Command::Store(StoreOperation::Swap { vip, expected, holder, epoch }));
    }

    /// Waits no longer for the store's answer about an own VIP: the connection may be gone on which it
    /// was asked. A swap that is still carried out is found by the next read.
    pub(in crate::election) fn abandon_check(&mut self) {
        self.operation.take_if(|operation| {
            matches!(
                operation,
                LeaseOperation::CheckRead | LeaseOperation::CheckRefused { .. } | LeaseOperation::CheckSwap
            )
        });
    }

    /// Reads the Lease anew for a takeover that waits for the store's answer since before this node was cut off. The
    /// Lease may be its own by now, and no other node takes it for a while.
    pub(in crate::election) fn read_anew(&mut self, cx: &mut Context<'_>) {
        let is_waiting = |operation: &mut LeaseOperation| {
            matches!(operation, LeaseOperation::TakeoverRead | LeaseOperation::TakeoverSwap { .. })
        };
        if self.operation.take_if(is_waiting).is_some() {
            self.attempt(LeaseOperation::TakeoverRead, cx);
        }
    }

    /// Begins no operation for a while.
    pub(in crate::election) fn pause(&mut self, time: Duration, cx: &mut Context<'_>) {
        self.not_before = cx.now + time;
        cx.schedule.dirty = true;
    }

    /// Handles the result of a store operation. `detect`: the LAN is asked before an address is
    /// first used.
    pub(in crate::election) fn stored(
        &mut self,
        outcome: LeaseOutcome,
        detect: bool,
        peers: &Peers,
        cx: &mut Context<'_>,
    ) {
        cx.schedule.dirty = true;
        let now = cx.now;
        match (self.operation.take(), outcome) {
            (Some(LeaseOperation::TakeoverRead), LeaseOutcome::Read(lease)) => self.take_over(lease, peers, cx),
            (Some(LeaseOperation::TakeoverRead), _) => {
                self.operation = Some(LeaseOperation::TakeoverRefused { until: now + STORE_RETRY });
            }
            (Some(LeaseOperation::TakeoverSwap { .. }), LeaseOutcome::Swapped(_))
                if cx.guard.stores_differ && is_claimed(cx.vip, peers) =>
            {
                self.pause(SHORT_RETRY, cx);
            }
            (Some(LeaseOperation::TakeoverSwap { epoch, why }), LeaseOutcome::Swapped(version)) => {
                let phase = match why {
                    Why::First if detect => Phase::Detecting,
                    // The last leader came back meanwhile, or it was another node's turn. It may not have
                    // waited for the store either, and gives the VIP up when it hears the claim.
                    _ if is_claimed(cx.vip, peers) => Phase::Suspended,
                    Why::Down(_) if peers.majority && self.is_late(now) => Phase::Suspended,
                    // Another node may take it at the same time.
                    _ if cx.guard.stores_differ => Phase::Suspended,
                    _ => Phase::Leading,
                };
                self.begin(epoch, why, Some(WrittenLease { at: now, version }), phase, cx);
            }
            (Some(LeaseOperation::TakeoverSwap { epoch, why }), LeaseOutcome::Conflict)
                if cx.mutated.is(Mutation::LeadsInSpiteOfConflict) =>
            {
                let written = WrittenLease { at: now, version: Version::new("lost") };
                self.begin(epoch, why, Some(written), Phase::Leading, cx);
            }
            (Some(LeaseOperation::TakeoverSwap { .. } | LeaseOperation::CheckSwap), LeaseOutcome::Conflict) => {
                self.pause(SHORT_RETRY, cx);
            }
            // The store may have written it all the same. The next read tells.
            (Some(LeaseOperation::TakeoverSwap { .. }), _) => self.pause(STORE_RETRY, cx),
            (Some(LeaseOperation::CheckRead), LeaseOutcome::Read(lease)) => self.check(lease, peers, cx),
            (Some(LeaseOperation::CheckSwap), LeaseOutcome::Swapped(version)) => {
                let Some(own) = self.own_mut() else { return };
                (own.written, own.must_reread) = (Some(WrittenLease { at: now, version }), false);
                if matches!(own.phase, Phase::Suspended | Phase::Yielded) {
                    self.lead(cx);
                }
            }
            (Some(LeaseOperation::CheckRead | LeaseOperation::CheckSwap), _) if self.role() == Role::Leading => {
                self.pause(LEASE_WRITE_RETRY, cx);
            }
            (Some(LeaseOperation::CheckRead | LeaseOperation::CheckSwap), _) => {
                self.operation = Some(LeaseOperation::CheckRefused { until: now + STORE_RETRY });
            }
            // The operation changed since.
            (None, _) => {}
            (Some(operation), _) => self.operation = Some(operation),
        }
    }

    /// Takes a VIP over that has no known leader and this Lease.
    fn take_over(&mut self, lease: Option<Lease>, peers: &Peers, cx: &mut Context<'_>) {
        if self.own().is_some() {
            return;
        }
        if let Some(lease) = &lease {
            self.learn(lease, cx.now);
            cx.index.touched.insert(cx.vip);
        }
        let leader = self.latest.as_ref().map(|known| &known.node);
        if !cx.able || leader.is_some_and(|leader| cx.guard.is_about_to_know(leader, peers, cx.now)) {
            // The leader's promise may be a long one. The Lease is read again then.
            return;
        }
        let epoch = self.epoch();
        match self.takeover(&cx.guard, cx.vip, peers, cx.now) {
            _ if is_claimed(cx.vip, peers) => {}
            Takeover::Later(_) | Takeover::Unfenced(_) => self.end_turns(),
            Takeover::Granted { why: Why::Resumed, witnessed: true } if lease.is_some() => {
                self.swap(lease.as_ref(), epoch, LeaseOperation::TakeoverSwap { epoch, why: Why::Resumed }, cx);
            }
            Takeover::Granted { why, witnessed: true } => {
                // The known leader came from a Lease that somebody removed.
                let why = if why == Why::Resumed { Why::First } else { why };
                let epoch = epoch + 1;
                self.swap(lease.as_ref(), epoch, LeaseOperation::TakeoverSwap { epoch, why }, cx);
            }
            Takeover::Granted { why, witnessed: false } => {
                self.operation = Some(LeaseOperation::TakeoverProbe { lease, why });
                cx.commands.push(Command::Probe { vip: cx.vip, detect: false });
            }
        }
    }

    /// Compares the Lease with the leadership that this node believes to have.
    fn check(&mut self, lease: Option<Lease>, peers: &Peers, cx: &mut Context<'_>) {
        let Some(own) = self.own_mut() else { return };
        let epoch = own.epoch;
        own.must_reread = false;
        match lease {
            Some(lease) if lease.holder == *cx.local && lease.epoch >= epoch => {
                if matches!(own.phase, Phase::Leading) {
                    let written = WrittenLease { at: cx.now, version: lease.version };
                    (own.epoch, own.written) = (lease.epoch, Some(written));
                } else {
                    self.swap(Some(&lease), lease.epoch, LeaseOperation::CheckSwap, cx);
                }
            }
            Some(lease) if lease.epoch >= epoch => {
                self.give_up(Lost::Taken(lease.holder.clone()), cx);
                self.set_latest(lease.holder, lease.epoch, None, cx.now);
            }
            lease => {
                if let Some(lease) = &lease {
                    self.learn(lease, cx.now);
                }
                match self.predecessor(peers, cx) {
                    Predecessor::Gone => self.swap(lease.as_ref(), epoch, LeaseOperation::CheckSwap, cx),
                    Predecessor::Unclear => self.pause(HEARTBEAT, cx),
                    // It may be taken from there like any other VIP.
                    Predecessor::Leads(node) => drop(self.give_up(Lost::Taken(node), cx)),
                }
            }
        }
    }

    /// Returns what became of the leader from whom this node took the VIP, if no Lease says that it did, and
    /// this node has stopped answering since. Of a transfer that was not acknowledged, the old leader has taken
    /// the VIP back.
    pub(super) fn predecessor(&self, peers: &Peers, cx: &Context<'_>) -> Predecessor {
        let leader = self.latest.as_ref().map(|known| &known.node).filter(|node| *node != cx.local);
        let is_unwritten = self.own().is_some_and(|own| own.written.is_none());
        let Some(leader) = leader.filter(|_| self.role() != Role::Leading && is_unwritten) else {
            return Predecessor::Gone;
        };
        match peers.members.get(leader).filter(|peer| peer.status.is_alive()) {
            Some(peer) if peer.current > Some(self.since) && !peer.state.leads(cx.vip) => Predecessor::Gone,
            // It gives the VIP up when it hears the claim of this node.
            Some(_) => Predecessor::Unclear,
            None => match self.takeover(&cx.guard, cx.vip, peers, cx.now) {
                Takeover::Granted { witnessed: true, .. } => Predecessor::Gone,
                _ => Predecessor::Leads(leader.clone()),
            },
        }
    }

    /// Takes in a Lease that changed. It may be older than what this node knows, so only a later
    /// epoch of another node ends a leadership. Otherwise the Lease is read. `stop`: this node answers no
    /// longer until then.
    pub(in crate::election) fn lease_changed(&mut self, lease: Option<&Lease>, stop: bool, cx: &mut Context<'_>) {
        match (self.own_mut(), lease) {
            (None, Some(lease)) => {
                if self.learn(lease, cx.now) {
                    cx.index.touched.insert(cx.vip);
                    cx.schedule.dirty = true;
                }
            }
            (None, None) => {}
            (Some(own), Some(lease)) if lease.holder == *cx.local && lease.epoch == own.epoch => {}
            (Some(own), Some(lease)) if lease.holder != *cx.local && lease.epoch > own.epoch => {
                self.give_up(Lost::Taken(lease.holder.clone()), cx);
                self.set_latest(lease.holder.clone(), lease.epoch, None, cx.now);
            }
            // It is written again if it is gone or older.
            (Some(own), _) => {
                (own.must_reread, cx.schedule.dirty) = (true, true);
                if stop && matches!(own.phase, Phase::Leading) {
                    self.stop(Phase::Suspended, Lost::Unrecorded, cx);
                }
            }
        }
    }

    /// Returns whether something else than the last leader answers on the LAN: a switch does that for
    /// stations that are gone. The leader has been fenced for so long that it would have stopped:
    ///
    /// - Of two Nodes, it is no majority without this one. So it only answers as its record allows.
    /// - It shares the store, since it holds the Lease. So it reads in its record that it is fenced.
    /// - Cut off from the store, it stops after the promise in its record.
    fn is_answered_by_the_network(&self, lease: Option<&Lease>, peers: &Peers, cx: &Context<'_>) -> bool {
        let leader = self.latest.as_ref().map(|known| &known.node).filter(|leader| *leader != cx.local);
        let is_shared = leader.is_some() && lease.map(|lease| &lease.holder) == leader;
        is_shared
            && peers.pair
            && leader.is_some_and(|leader| cx.guard.fencings.is_fenced_for(leader, FENCED_LEADER_STOP, cx.now))
    }

    /// Handles the result of a probe on the LAN.
    pub(in crate::election) fn probed(&mut self, owner: &AddressOwner, peers: &Peers, cx: &mut Context<'_>) {
        match (self.operation.take(), owner) {
            // A node that is cut off leaves the Lease to the others. A client that looks for the
            // VIP would be heard.
            (Some(LeaseOperation::TakeoverProbe { .. }), AddressOwner::Unknown) => {
                self.end_turns();
                self.pause(STORE_RETRY, cx);
            }
            // The leader answers, and only gossip does not reach it. Its MAC need not be known: a node
            // publishes its MACs by gossip.
            (
                Some(LeaseOperation::TakeoverProbe { lease, why }),
                AddressOwner::Peer | AddressOwner::ForeignSpeaker(_),
            ) => {
                if let AddressOwner::ForeignSpeaker(mac) = owner {
                    cx.commands.push(Command::Conflict { vip: cx.vip, mac: *mac });
                }
                if self.is_answered_by_the_network(lease.as_ref(), peers, cx) {
                    let epoch = self.epoch() + 1;
                    return self.swap(lease.as_ref(), epoch, LeaseOperation::TakeoverSwap { epoch, why }, cx);
                }
                let is_deleted = self.latest.as_ref().is_some_and(|known| !peers.members.contains_key(&known.node));
                let was_answered = self.follower().is_some_and(|follower| follower.answered);
                // Who answers for this node's own VIP may have no agent any more, and stop soon.
                let pause = match why {
                    Why::Resumed => STORE_RETRY,
                    // It is heard again, and may end before the LAN would be asked once more.
                    _ if is_claimed(cx.vip, peers) => SHORT_RETRY,
                    // Its deadline may not have passed yet, or it transfers the VIP now.
                    _ if is_deleted && !was_answered => DELETED_NODE_PROBE_PAUSE,
                    _ => ADDRESS_PROBE_PAUSE,
                };
                if let Some(Follower { takeable_since, answered, .. }) = self.follower_mut() {
                    (*takeable_since, *answered) = (None, why != Why::Resumed);
                }
                self.pause(pause, cx);
            }
            (Some(LeaseOperation::TakeoverProbe { .. }), AddressOwner::Nobody) if is_claimed(cx.vip, peers) => {
                self.pause(SHORT_RETRY, cx);
            }
            (Some(LeaseOperation::TakeoverProbe { lease, why }), AddressOwner::Nobody) => {
                let epoch = self.epoch() + 1;
                self.swap(lease.as_ref(), epoch, LeaseOperation::TakeoverSwap { epoch, why }, cx);
            }
            // A VIP that was suspended meanwhile needs its Lease first.
            (Some(LeaseOperation::Detect), _) if self.role() == Role::Suspended => cx.schedule.dirty = true,
            (Some(LeaseOperation::Detect), AddressOwner::ForeignSpeaker(mac)) => {
                self.not_before = cx.now + ADDRESS_PROBE_PAUSE;
                self.stop(Phase::Conflicted, Lost::Announced, cx);
                cx.commands.push(Command::Conflict { vip: cx.vip, mac: *mac });
            }
            // Nobody knows which one of the two epochs is later.
            (Some(LeaseOperation::Detect), AddressOwner::Peer) if cx.guard.stores_differ => {
                self.stop(Phase::Suspended, Lost::Announced, cx);
            }
            // A peer that answers has an older epoch, and will see the announcement.
            (Some(LeaseOperation::Detect), AddressOwner::Nobody | AddressOwner::Unknown | AddressOwner::Peer) => {
                self.lead(cx);
            }
            (other, _) => self.operation = other,
        }
    }
}
