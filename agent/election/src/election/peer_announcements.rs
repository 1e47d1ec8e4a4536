//! Announcements of this node's VIPs with the MACs of peers: real ones, and forged ones.
//!
//! Any host on the LAN can announce a VIP with a node's MAC. The program yields to the first such
//! announcement, since a peer that took the VIP over announces it too. Only that peer knows whether
//! it did. It publishes its claim before it announces. So if its state is newer than the
//! announcement and has no claim, the announcement was not its own: it was forged.
//!
//! Then this node leads again, and is *assured*: for a minute after the last forged announcement,
//! the program does not yield. The peers are still asked about each announcement. If one claims the
//! VIP, is not alive, or does not answer in time, this node yields. Then the Lease decides.
//!
//! ```text
//!                        announced                  denied by all announcers
//!  Leading ───────────────────────────► Yielded ──────────────────────────────► Leading, assured
//!    ▲                                   │   ▲                                     │   │     ▲
//!    └─── the Lease is still ours ───────┘   └──── not denied, or of no known peer ┘   └─────┘
//!                                                                               announced, denied
//! ```

use std::{collections::BTreeMap, time::Duration};

use super::{
    Command, Election,
    context::Context,
    io::PeerAnnouncement,
    role::{Lost, Role},
    timing::{FORGERY_WINDOW, LEASE_READ_INTERVAL, PEER_QUESTION_RETRY, RETAKE_PAUSE},
    vip_state::{OpenAnnouncements, VipState},
};
use crate::{
    membership::{Peer, Peers},
    mutation::Mutation,
};
use vipmux_model::{NodeName, Vip};

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

/// The peers that were asked about announcements, and the last look at the Leases.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    /// The peers that have not answered, and when each was asked.
    asked: BTreeMap<NodeName, Duration>,
    /// The Leases were looked at.
    looked: Option<Duration>,
}

impl Election {
    /// Asks the peers with whose MACs VIPs were announced, until each has answered.
    pub(super) fn ask_announcers(&mut self, now: Duration) {
        let mut open: BTreeMap<&NodeName, Duration> = BTreeMap::new();
        for state in self.index.own.iter().filter_map(|vip| self.states.get(vip)) {
            for (name, announcements) in &state.announced_by {
                let last = open.entry(name).or_default();
                *last = announcements.last.max(*last);
            }
        }
        self.inquiries.asked.retain(|name, _| open.contains_key(name));
        for (name, last) in open {
            let asked = self.inquiries.asked.get(name).copied();
            if asked.is_none_or(|asked| asked <= last || now >= asked + PEER_QUESTION_RETRY) {
                self.inquiries.asked.insert(name.clone(), now);
                self.commands.push(Command::Ask(name.clone()));
            }
            self.schedule.wake_at(now + PEER_QUESTION_RETRY);
        }
    }

    /// Looks at the Leases now and then, while a VIP is assured.
    pub(super) fn look_at_leases(&mut self, now: Duration) {
        let due = self.inquiries.looked.map_or(now, |looked| looked + LEASE_READ_INTERVAL);
        if now < due {
            self.schedule.wake_at(due);
        } else if !self.surveys.under_way {
            self.inquiries.looked = Some(now);
            self.survey();
        }
    }
}

impl VipState {
    /// Returns whether the program does not yield to announcements.
    pub(super) const fn is_assured(&self) -> bool {
        self.forged.is_some()
    }

    /// Notes announcements, and yields to them unless the VIP is assured.
    pub(super) fn announced(&mut self, announcement: &PeerAnnouncement, cx: &mut Context<'_>) {
        let PeerAnnouncement { by, at, yielded, .. } = announcement;
        // A peer that led the VIP before announced it, too.
        let before = self.own.as_ref().is_none_or(|own| *at < own.since);
        if self.role != Role::Leading || before && !yielded {
            return;
        }
        for name in by {
            let open = OpenAnnouncements { first: *at, last: *at };
            let known = self.announced_by.entry(name.clone()).or_insert(open);
            known.last = known.last.max(*at);
        }
        if by.is_empty() {
            self.announced_by.clear();
        }
        cx.schedule.dirty = true;
        if *yielded || by.is_empty() || !self.is_assured() {
            self.yield_to_peer(cx);
        }
    }

    /// Yields the VIP to a peer that announced it.
    fn yield_to_peer(&mut self, cx: &mut Context<'_>) {
        let led = cx.now.saturating_sub(self.since);
        self.not_before = if led < RETAKE_PAUSE { cx.now + RETAKE_PAUSE } else { cx.now };
        self.forged = None;
        self.stop(Role::Yielded, Lost::Announced, cx);
    }

    /// Decides about announcements by what the peers say of themselves.
    pub(super) fn settle_announcements(&mut self, peers: &Peers, cx: &mut Context<'_>) {
        if self.announced_by.is_empty() && !self.is_assured() {
            return;
        }
        let was_assured = self.is_assured();
        let (denied, possible) = self.settle(peers, cx);
        match self.role {
            Role::Leading if possible && was_assured => self.yield_to_peer(cx),
            Role::Leading if denied && !was_assured => {
                cx.commands.push(Command::Assure { vip: cx.vip, assured: true });
            }
            // Only the Lease can decide. Another peer's denial changes nothing.
            Role::Yielded if possible => (self.forged, self.announced_by) = (None, BTreeMap::new()),
            Role::Yielded if denied && self.announced_by.is_empty() => self.lead(cx),
            _ => {}
        }
        self.end_assurance(cx);
    }

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
