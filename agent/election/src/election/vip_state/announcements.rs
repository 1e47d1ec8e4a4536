//! The announcements of one VIP with the MACs of peers.

use std::{collections::BTreeMap, time::Duration};

use super::{OpenAnnouncements, OwnLeadership, Phase, VipState};
use crate::{
    election::{
        context::Context,
        io::{Command, PeerAnnouncement},
        role::Lost,
        timing::{FORGERY_WINDOW, RETAKE_PAUSE},
    },
    membership::{Peer, Peers},
    mutation::Mutation,
};
use vipmux_model::Vip;

/// Whether announcements are a peer's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Authorship {
    /// They are not: the peer does not lead the VIP.
    Denied,
    /// They may be.
    Possible,
    /// The peer has not answered yet.
    Unknown,
}

impl OpenAnnouncements {
    /// Returns what the peer says. `patience`: the time that it has to answer.
    fn authorship(self, vip: Vip, peer: Option<&Peer>, patience: Duration, now: Duration) -> Authorship {
        let Some(peer) = peer.filter(|peer| peer.status.is_alive()) else { return Authorship::Possible };
        if peer.state.leads(vip) {
            Authorship::Possible
        } else if peer.current > Some(self.last) {
            Authorship::Denied
        } else if now >= self.first + patience {
            Authorship::Possible
        } else {
            Authorship::Unknown
        }
    }
}

impl VipState {
    /// Notes announcements, and yields to them unless the VIP is assured.
    pub(in crate::election) fn announced(&mut self, announcement: &PeerAnnouncement, cx: &mut Context<'_>) {
        let PeerAnnouncement { by, at, yielded, .. } = announcement;
        let Some(own) = self.own_mut().filter(|own| matches!(own.phase, Phase::Leading)) else { return };
        // A peer that led the VIP before announced it, too.
        if *at < own.since && !yielded {
            return;
        }
        for name in by {
            let open = OpenAnnouncements { first: *at, last: *at };
            let entry = own.announced_by.entry(name.clone()).or_insert(open);
            entry.last = entry.last.max(*at);
        }
        if by.is_empty() {
            own.announced_by.clear();
        }
        cx.schedule.dirty = true;
        if *yielded || by.is_empty() || !own.is_assured() {
            self.yield_to_peer(cx);
        }
    }

    /// Yields the VIP to a peer that announced it.
    fn yield_to_peer(&mut self, cx: &mut Context<'_>) {
        let led = cx.now.saturating_sub(self.since);
        self.not_before = if led < RETAKE_PAUSE { cx.now + RETAKE_PAUSE } else { cx.now };
        if let Some(own) = self.own_mut() {
            own.forged = None;
        }
        self.stop(Phase::Yielded, Lost::Announced, cx);
    }

    /// Decides about announcements by what the peers say of themselves.
    pub(in crate::election) fn settle_announcements(&mut self, peers: &Peers, cx: &mut Context<'_>) {
        let Some(own) = self.own_mut().filter(|own| own.is_assured() || !own.announced_by.is_empty()) else { return };
        let was_assured = own.is_assured();
        let (denied, possible) = own.settle(peers, cx);
        match own.phase {
            Phase::Leading if possible && was_assured => self.yield_to_peer(cx),
            Phase::Leading if denied && !was_assured => {
                cx.commands.push(Command::Assure { vip: cx.vip, assured: true });
            }
            // Only the Lease can decide. Another peer's denial changes nothing.
            Phase::Yielded if possible => (own.forged, own.announced_by) = (None, BTreeMap::new()),
            Phase::Yielded if denied && own.announced_by.is_empty() => self.lead(cx),
            _ => {}
        }
        if let Some(own) = self.own_mut() {
            own.end_assurance(cx);
        }
    }
}

impl OwnLeadership {
    /// Forgets the announcements that are decided, and reports the announcements that a peer denies. Returns whether there
    /// is such a one, and one that may be a peer's own.
    fn settle(&mut self, peers: &Peers, cx: &mut Context<'_>) -> (bool, bool) {
        let (mut denied, mut possible) = (false, false);
        let (vip, patience, now, forged) = (cx.vip, cx.guard.lease, cx.now, &mut self.forged);
        self.announced_by.retain(|name, open| {
            let authorship = open.authorship(vip, peers.members.get(name), patience, now);
            if authorship == Authorship::Denied {
                *forged = (*forged).max(Some(open.last));
                cx.commands.push(Command::Forged { vip, by: name.clone() });
            }
            denied |= authorship == Authorship::Denied;
            possible |= authorship == Authorship::Possible && !cx.mutated.is(Mutation::IgnoresAnnouncements);
            authorship == Authorship::Unknown
        });
        (denied, possible)
    }

    /// Ends the assurance some time after the last forged announcement.
    fn end_assurance(&mut self, cx: &mut Context<'_>) {
        let Some(end) = self.forged.map(|at| at + FORGERY_WINDOW) else { return };
        if cx.now < end {
            cx.schedule.wake_at(end);
        } else if self.announced_by.is_empty() {
            self.forged = None;
            cx.commands.push(Command::Assure { vip: cx.vip, assured: false });
        }
    }
}
