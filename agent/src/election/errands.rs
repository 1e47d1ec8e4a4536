//! What comes back from the store and from the LAN.

use std::time::Duration;

use super::{
    Command, Election, Found, Outcome, Role,
    permission::Permission,
    tenure::{Errand, Hold, Lost, Place, Tenure, Written},
};
#[cfg(any(test, feature = "simulation"))]
use super::{lease::Version, simulation::Mutation};
use crate::{
    election::lease::Lease,
    membership::{Peers, Standing, Why},
    model::Vip,
};

/// After somebody else was quicker.
const QUICKLY: Duration = Duration::from_millis(20);
/// How soon an unavailable store is tried again by who waits for it to answer,
const SOON: Duration = Duration::from_millis(200);
/// and by who only has to write down what is.
const LATER: Duration = Duration::from_secs(1);
/// How long a VIP that a peer announced is left alone where this one has led it for less than that.
const RETAKE: Duration = Duration::from_secs(1);
/// When the LAN is asked again that has another owner.
const ASK_AGAIN: Duration = Duration::from_secs(10);

impl Election {
    /// Begins an errand, unless one is under way or it is too early.
    pub(super) fn attempt(&mut self, vip: Vip, errand: Errand, now: Duration) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        if place.errand.is_some() {
            return;
        }
        let rest = place.rest;
        if rest > now {
            return self.wake_at(rest);
        }
        self.commands.push(match errand {
            Errand::Detect => Command::Probe { vip, detect: true },
            _ => Command::Read(vip),
        });
        place.errand = Some(errand);
    }

    /// Swaps a Lease, as the errand of that.
    fn swap(&mut self, vip: Vip, lease: Option<&Lease>, epoch: u64, errand: Errand) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        place.errand = Some(errand);
        self.commands.push(Command::Swap { vip, expected: lease.map(|lease| lease.version.clone()), epoch });
    }

    /// Nothing is tried about it for a while.
    fn rest(&mut self, vip: Vip, until: Duration) {
        if let Some(place) = self.places.get_mut(&vip) {
            place.rest = until;
            self.dirty = true;
        }
    }

    pub(super) fn stored(&mut self, vip: Vip, outcome: Outcome, peers: &Peers, now: Duration) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        self.dirty = true;
        #[cfg(any(test, feature = "simulation"))]
        if self.mutation == Some(Mutation::LeadsInSpiteOfConflict)
            && let (Some(Errand::TakeSwap { epoch, why }), Outcome::Conflict) = (&place.errand, &outcome)
        {
            let written = Some(Written { at: now, version: Version("lost".to_owned()) });
            let tenure = Tenure { epoch: *epoch, why: why.clone(), since: now, written };
            place.errand = None;
            return self.begin(vip, tenure, Role::Leading, now);
        }
        match (place.errand.take(), outcome) {
            (Some(Errand::TakeRead), Outcome::Read(lease)) => self.take(vip, lease, peers, now),
            (Some(Errand::TakeRead), _) => self.take_without_store(vip, peers, now),
            (Some(Errand::TakeSwap { epoch, why }), Outcome::Swapped(version)) => {
                let first = why == Why::First && self.settings.detect;
                let role = if first { Role::Detecting } else { Role::Leading };
                let written = Some(Written { at: now, version });
                self.begin(vip, Tenure { epoch, why, since: now, written }, role, now);
            }
            (Some(Errand::TakeSwap { .. } | Errand::CheckSwap), Outcome::Conflict) => self.rest(vip, now + QUICKLY),
            // It may have been written all the same: the next reading tells.
            (Some(Errand::TakeSwap { .. }), _) => self.rest(vip, now + SOON),
            (Some(Errand::CheckRead), Outcome::Read(lease)) => self.check(vip, lease, now),
            (Some(Errand::CheckSwap), Outcome::Swapped(version)) => {
                if let Some(tenure) = &mut place.tenure {
                    tenure.written = Some(Written { at: now, version });
                    if matches!(place.role, Role::Suspended | Role::Yielded) {
                        self.lead(vip, now);
                    }
                }
            }
            (Some(Errand::CheckRead | Errand::CheckSwap), _) => self.check_without_store(vip, peers, now),
            // What was asked about has changed since.
            (Some(Errand::TakeAsk { .. } | Errand::Detect) | None, _) => {}
        }
    }

    /// Nobody is known to lead it, and this is its Lease.
    fn take(&mut self, vip: Vip, lease: Option<Lease>, peers: &Peers, now: Duration) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        if place.tenure.is_some() {
            return;
        }
        if let Some(lease) = &lease {
            place.learn(lease, now);
            self.overview.touched.insert(vip);
        }
        let claimed = peers.members.values().any(|peer| peer.standing.lives() && peer.state.claims.contains_key(&vip));
        let epoch = place.epoch();
        match self.permission(vip, peers, now) {
            _ if claimed => {}
            Permission::Later(_) => {
                if let Some(place) = self.places.get_mut(&vip) {
                    place.open = None;
                }
            }
            Permission::Granted { why: Why::Resumed, .. } if lease.is_some() => {
                self.swap(vip, lease.as_ref(), epoch, Errand::TakeSwap { epoch, why: Why::Resumed });
            }
            Permission::Granted { why, witnessed: true } => {
                // What is known of it came by a Lease that somebody removed.
                let why = if why == Why::Resumed { Why::First } else { why };
                self.swap(vip, lease.as_ref(), epoch + 1, Errand::TakeSwap { epoch: epoch + 1, why });
            }
            Permission::Granted { why, witnessed: false } => {
                if let Some(place) = self.places.get_mut(&vip) {
                    place.errand = Some(Errand::TakeAsk { lease, why });
                    self.commands.push(Command::Probe { vip, detect: false });
                }
            }
        }
    }

    /// Nobody is known to lead it, and the store is away: then a majority must have seen its holder go.
    fn take_without_store(&mut self, vip: Vip, peers: &Peers, now: Duration) {
        match self.permission(vip, peers, now) {
            Permission::Granted { why, witnessed: true } if peers.majority => {
                let epoch = self.places.get(&vip).map_or(0, Place::epoch) + 1;
                let why = if matches!(why, Why::First | Why::Resumed) { Why::Unwritten } else { why };
                self.begin(vip, Tenure { epoch, why, since: now, written: None }, Role::Leading, now);
                self.rest(vip, now + LATER);
            }
            _ => self.rest(vip, now + SOON),
        }
    }

    /// The Lease of what this node believes to be its own.
    fn check(&mut self, vip: Vip, lease: Option<Lease>, now: Duration) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        let Some(tenure) = &mut place.tenure else { return };
        let epoch = tenure.epoch;
        match lease {
            Some(lease) if lease.holder == self.local && lease.epoch >= epoch => {
                if place.role == Role::Leading {
                    let written = Written { at: now, version: lease.version };
                    (tenure.epoch, tenure.written) = (lease.epoch, Some(written));
                } else {
                    self.swap(vip, Some(&lease), lease.epoch, Errand::CheckSwap);
                }
            }
            Some(lease) if lease.epoch >= epoch => {
                self.give_up(vip, Lost::Taken(lease.holder.clone()), now);
                if let Some(place) = self.places.get_mut(&vip) {
                    let Lease { holder: node, epoch, .. } = lease;
                    place.hold = Some(Hold { node, epoch, since: now, why: None });
                }
            }
            lease => self.swap(vip, lease.as_ref(), epoch, Errand::CheckSwap),
        }
    }

    /// The Lease of what this node believes to be its own cannot be read: what all peers say decides, once it is newer than the
    /// doubt.
    fn check_without_store(&mut self, vip: Vip, peers: &Peers, now: Duration) {
        let Some(place) = self.places.get(&vip) else { return };
        if place.role == Role::Leading {
            return self.rest(vip, now + LATER);
        }
        let mut there = peers.members.values().filter(|peer| peer.standing == Standing::Alive);
        let clear = there.all(|peer| peer.current > Some(place.since) && !peer.state.claims.contains_key(&vip));
        if clear && peers.majority && matches!(place.role, Role::Suspended | Role::Yielded) {
            self.lead(vip, now);
        }
        self.rest(vip, now + SOON);
    }

    pub(super) fn announced(&mut self, vip: Vip, now: Duration) {
        if let Some(place) = self.places.get_mut(&vip)
            && place.role == Role::Leading
        {
            let led = now.saturating_sub(place.since);
            place.rest = if led < RETAKE { now + RETAKE } else { now };
            self.stop(vip, Role::Yielded, Lost::Announced, now);
        }
    }

    pub(super) fn probed(&mut self, vip: Vip, found: &Found, now: Duration) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        match (place.errand.take(), found) {
            // Whoever is cut off leaves the Lease to those who are not. A client that looks for the VIP is heard.
            (Some(Errand::TakeAsk { .. }), Found::Nothing) => {
                place.open = None;
                self.rest(vip, now + SOON);
            }
            // It leads, and only gossip does not reach it.
            (Some(Errand::TakeAsk { .. }), Found::Peer) => {
                place.open = None;
                self.rest(vip, now + ASK_AGAIN);
            }
            (Some(Errand::TakeAsk { lease, why }), Found::Nobody | Found::Stranger(_)) => {
                let epoch = place.epoch() + 1;
                self.swap(vip, lease.as_ref(), epoch, Errand::TakeSwap { epoch, why });
            }
            // Who was suspended meanwhile looks at the Lease first.
            (Some(Errand::Detect), _) if place.role == Role::Suspended => self.dirty = true,
            (Some(Errand::Detect), Found::Stranger(mac)) => {
                place.rest = now + ASK_AGAIN;
                (place.role, place.since) = (Role::Conflicted, now);
                self.dirty = true;
                self.commands.push(Command::Conflict { vip, mac: *mac });
            }
            // A peer that answers has an older epoch, and will see the announcement.
            (Some(Errand::Detect), Found::Nobody | Found::Nothing | Found::Peer) => self.lead(vip, now),
            (other, _) => place.errand = other,
        }
    }
}
