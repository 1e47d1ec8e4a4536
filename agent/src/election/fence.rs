//! The fence: how far the kernel's deadline is pushed, on what evidence, and what becomes of one that has passed.

use std::time::Duration;

use imbl::OrdMap;

#[cfg(any(test, feature = "simulation"))]
use super::simulation::Mutation;
use super::{
    Command, Election, HEARTBEAT,
    tenure::{Lost, Place},
};
use crate::{
    election::lease::Lease,
    membership::{Item, Peers},
    model::Vip,
};

impl Election {
    pub(super) fn tick(&mut self, carrier: bool, peers: &Peers, now: Duration) {
        self.commands.push(Command::Ask);
        if !self.ready && now.saturating_sub(self.started) >= self.settings.hold_down {
            (self.ready, self.overview.standings) = (true, None);
            self.commands.push(Command::Publish(Item::Ready(true)));
        }
        self.carrier = carrier;
        if !carrier {
            return;
        }
        if self.is_past(now) {
            (self.deadline, self.informed, self.surveyed, self.lapsed) = (None, false, None, now);
            self.suspend(&Lost::Fenced, now);
            self.commands.extend([Command::Renounce, Command::Gather]);
            return;
        }
        if !self.informed {
            return;
        }
        self.extend(peers, now);
        let fresh = self.evidence(peers).is_some_and(|asked| now.saturating_sub(asked) <= HEARTBEAT + HEARTBEAT / 2);
        if !fresh && !self.surveying {
            self.survey();
        }
        self.tidy(peers, now);
    }

    /// When the newest evidence was asked for.
    fn evidence(&self, peers: &Peers) -> Option<Duration> {
        peers.evidence.max(self.surveyed)
    }

    /// Pushes the deadline to where the evidence allows. One that has passed is left to the next tick.
    fn extend(&mut self, peers: &Peers, now: Duration) {
        if !self.carrier || !self.informed || self.is_past(now) {
            return;
        }
        if let Some(deadline) =
            self.evidence(peers).map(|asked| asked + self.settings.lease).filter(|deadline| *deadline > now)
            && self.deadline.is_none_or(|before| before < deadline)
        {
            if self.deadline.is_none() {
                (self.back, self.dirty) = (now, true);
            }
            self.deadline = Some(deadline);
            self.commands.push(Command::Extend(deadline));
        }
    }

    /// The fence's deadline has passed.
    fn is_past(&self, now: Duration) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if self.is_broken(Mutation::ExtendsWhatHasPassed) {
            return false;
        }
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Whether this node may answer now.
    pub(super) fn is_open(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| now < deadline)
    }

    pub(super) fn survey(&mut self) {
        self.surveying = true;
        self.commands.push(Command::Survey);
    }

    pub(super) fn surveyed(
        &mut self,
        asked: Duration,
        leases: Option<OrdMap<Vip, Lease>>,
        peers: &Peers,
        now: Duration,
    ) {
        self.surveying = false;
        let first = !std::mem::replace(&mut self.begun, true);
        self.dirty |= first;
        let Some(leases) = leases else { return };
        for (vip, lease) in &leases {
            let Some(place) = self.places.get_mut(vip) else {
                if self.informed {
                    self.leftover.entry(*vip).or_insert_with(|| (lease.clone(), now)).0 = lease.clone();
                }
                continue;
            };
            if place.learn(lease, now) {
                self.overview.touched.insert(*vip);
            }
        }
        for vip in self.lost(&leases, asked) {
            let holder = leases.get(&vip).map(|lease| lease.holder.clone());
            self.give_up(vip, holder.map_or(Lost::Unwanted, Lost::Taken), now);
        }
        if asked >= self.lapsed {
            self.surveyed = self.surveyed.max(Some(asked));
            // The next tick but one may come too late: the store is only asked once other evidence has grown old.
            self.extend(peers, now);
        }
    }

    /// What this node has written that is another's, or nobody's, by a look at the Leases.
    fn lost(&self, leases: &OrdMap<Vip, Lease>, asked: Duration) -> Vec<Vip> {
        let lost = |(vip, place): (&Vip, &Place)| {
            let written = place.tenure.as_ref()?.written.as_ref()?;
            // What was written after it was read is not lost.
            let theirs = leases.get(vip).is_none_or(|lease| lease.holder != self.local);
            (written.at < asked && theirs).then_some(*vip)
        };
        self.places.iter().filter_map(lost).collect()
    }
}
