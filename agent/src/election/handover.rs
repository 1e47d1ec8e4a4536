//! Planned handover: the old leader stops answering and says so, the new one answers and announces, and the old one goes on
//! forwarding what still arrives. The new one writes the Lease; nobody else can, as long as the old one is there.

use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use super::simulation::Mutation;
use super::{
    Election, Role,
    placement::{Contender, Placement},
    takeover::SETTLE,
    tenure::{Errand, Hold, Lost, Tenure},
};
use crate::{
    election::lease::Lease,
    membership::{Message, Peers, Why},
    model::{NodeName, Vip},
};

/// How often an heir is told that does not answer,
const AGAIN: Duration = Duration::from_millis(25);
/// for how long,
const TOLD: Duration = Duration::from_millis(100);
/// and when this node answers again. It could not take up later what it was told by then
/// ([`Settings::fresh`](crate::membership::Settings::fresh)).
const PATIENCE: Duration = Duration::from_millis(300);
/// How long nothing is handed over that was declined,
const DECLINED: Duration = Duration::from_secs(10);
/// and that was not answered: each time twice as long as before, up to that. Mostly the heir has just come, and is busy.
const UNANSWERED: Duration = Duration::from_secs(1);
/// From one VIP that moves for the sake of balance to the next.
const BALANCE: Duration = Duration::from_secs(1);

/// How long an agent that was told to stop waits for others to take what it leads.
pub const LEAVING: Duration = Duration::from_secs(5);
/// How long a VIP stays that nobody can take, until that is taken for settled.
const UNMOVED: Duration = Duration::from_secs(1);

/// A VIP that another should lead.
struct Leaver {
    vip: Vip,
    heir: NodeName,
    /// This node cannot or should not lead at all; otherwise it only leads more than its share.
    must: bool,
}

/// What is to become of what this node leads.
#[derive(Default)]
struct Departures {
    leavers: Vec<Leaver>,
    /// Neither this node nor another that is there may lead these.
    forbidden: Vec<Vip>,
    /// When others are to be looked at again.
    rest: Option<Duration>,
}

impl Election {
    /// Hands over what another should lead.
    pub(super) fn leave(&mut self, peers: &Peers, now: Duration) {
        let led: Vec<Vip> = self.leading().collect();
        if led.is_empty() {
            return;
        }
        if !self.is_settled(peers, now) {
            self.wake_at(self.started + SETTLE);
            return;
        }
        let Departures { leavers, forbidden, rest } = self.departures(&led, peers, now);
        if let Some(rest) = rest {
            self.wake_at(rest);
        }
        for vip in forbidden {
            self.give_up(vip, Lost::Forbidden, now);
        }
        self.hand_over(leavers, now);
    }

    fn departures(&self, led: &[Vip], peers: &Peers, now: Duration) -> Departures {
        let mut departures = Departures::default();
        let Some(standings) = &self.overview.standings else { return departures };
        let standing = |contender: &Contender| self.standing(contender, peers);
        let mut placement = Placement::new(&self.wanted, &standing, standings, &self.overview.loads);
        let unable = self.unable(peers);
        let mut spare = u64::try_from(led.len()).unwrap_or(u64::MAX).saturating_sub(standings.bound(&self.local));
        for &vip in led {
            let Some(place) = self.places.get(&vip).filter(|place| place.errand.is_none()) else { continue };
            let rest = place.rest.max(place.kept);
            if rest > now {
                departures.rest = Some(departures.rest.map_or(rest, |first| first.min(rest)));
                continue;
            }
            let able = |node: &NodeName| !unable.includes(node, vip);
            let own = self.wanted.get(&vip).and_then(|all| all.iter().find(|contender| contender.node == self.local));
            let Some(best) = placement.best(vip, able) else {
                departures.forbidden.extend(own.is_none().then_some(vip));
                continue;
            };
            let mine = own.filter(|own| able(&own.node)).and_then(standing);
            let must = mine.is_none_or(|mine| best.precedes(mine));
            if !must && spare == 0 {
                continue;
            }
            let heir = placement.place(vip, 0, |node| *node != self.local && able(node));
            let Some(heir) = heir.filter(|heir| must || placement.has_room(heir)) else { continue };
            spare -= u64::from(!must);
            departures.leavers.push(Leaver { vip, heir: heir.clone(), must });
        }
        departures
    }

    /// Whether an agent that was told so long ago to stop has handed over what others can take, or waits in vain.
    pub fn has_left(&self, waited: Duration, peers: &Peers) -> bool {
        if waited >= LEAVING || self.held().next().is_none() {
            return true;
        }
        let alone = !peers.members.values().any(|peer| peer.standing.lives());
        let moves = |(vip, role)| role == Role::Handing || self.has_other(vip, peers);
        alone || waited >= UNMOVED && !self.held().any(moves)
    }

    fn hand_over(&mut self, leavers: Vec<Leaver>, now: Duration) {
        for Leaver { vip, heir, must } in leavers {
            if !must {
                let next = self.rebalanced + BALANCE;
                if now < next {
                    self.wake_at(next);
                    continue;
                }
                self.rebalanced = now;
            }
            self.stop(vip, Role::Handing, Lost::Handed(heir.clone()), now);
            #[cfg(any(test, feature = "simulation"))]
            if self.is_broken(Mutation::AnswersWhileHanding) {
                self.commands.pop();
            }
            if let Some(place) = self.places.get_mut(&vip) {
                place.heir = Some((heir, 0));
            }
        }
    }

    /// Tells the heirs whom it is time to tell, and takes back what none of them took.
    pub(super) fn remind(&mut self, vip: Vip, now: Duration) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        let (Some((heir, told)), Some(tenure)) = (&mut place.heir, &place.tenure) else { return };
        if now >= place.since + PATIENCE {
            place.kept = now + (UNANSWERED * (1 << place.unanswered.min(4))).min(DECLINED);
            place.unanswered += 1;
            return self.lead(vip, now);
        }
        if now > place.since + TOLD {
            let end = place.since + PATIENCE;
            return self.wake_at(end);
        }
        let next = place.since + AGAIN * *told;
        if now < next {
            return self.wake_at(next);
        }
        *told += 1;
        let (to, message) = (heir.clone(), Message::Take { vip, epoch: tenure.epoch + 1 });
        self.tell(to, message);
        self.wake_at(now + AGAIN);
    }

    pub(super) fn told(&mut self, from: &NodeName, message: &Message, now: Duration) {
        match *message {
            Message::Take { vip, epoch } => {
                let accepted = self.accept(vip, epoch, from, now);
                if let Some(place) = self.places.get_mut(&vip).filter(|_| !accepted) {
                    place.declined = Some((epoch, now));
                }
                let answer = if accepted { Message::Taken { vip, epoch } } else { Message::Declined { vip, epoch } };
                self.tell(from.clone(), answer);
            }
            Message::Taken { vip, epoch } if self.is_handing(vip, epoch, from) => {
                self.give_up(vip, Lost::Handed(from.clone()), now);
                if let Some(place) = self.places.get_mut(&vip) {
                    let why = Some(Why::Handed(self.local.clone()));
                    place.hold = Some(Hold { node: from.clone(), epoch, since: now, why });
                }
            }
            Message::Declined { vip, epoch } if self.is_handing(vip, epoch, from) => {
                self.lead(vip, now);
                if let Some(place) = self.places.get_mut(&vip) {
                    place.kept = now + DECLINED;
                }
                // Perhaps the Lease has a higher epoch: one that wrote it need not have learned that it did.
                self.attempt(vip, Errand::CheckRead, now);
            }
            Message::Taken { .. } | Message::Declined { .. } => {}
        }
    }

    fn is_handing(&self, vip: Vip, epoch: u64, to: &NodeName) -> bool {
        self.places.get(&vip).is_some_and(|place| {
            let heir = place.heir.as_ref().is_some_and(|(heir, _)| heir == to);
            let next = place.tenure.as_ref().is_some_and(|tenure| tenure.epoch + 1 == epoch);
            place.role == Role::Handing && heir && next
        })
    }

    /// Begins to lead what another handed over, if it can. Whether the other is rid of it: also where this node has it from an
    /// earlier word, and may be handing it on, and where somebody has had it since.
    fn accept(&mut self, vip: Vip, epoch: u64, from: &NodeName, now: Duration) -> bool {
        let can = self.informed && self.is_open(now) && !self.unable.contains(&vip) && !self.draining;
        let Some(place) = self.places.get_mut(&vip) else { return false };
        if let Some(tenure) = &place.tenure {
            return tenure.epoch >= epoch;
        }
        if epoch <= place.epoch() {
            return true;
        }
        // The other one leads again since it was declined: what it said before must not be taken up.
        let late = |(declined, at): (u64, Duration)| declined == epoch && now < at + DECLINED / 2;
        if !can || epoch > Lease::MAX_EPOCH || place.declined.is_some_and(late) {
            return false;
        }
        place.errand = None;
        place.rest = now;
        let why = Why::Handed(from.clone());
        self.begin(vip, Tenure { epoch, why, since: now, written: None }, Role::Leading, now);
        true
    }

    /// Looks after what this node holds and must do something about.
    pub(super) fn attend(&mut self, now: Duration) {
        let (held, open): (Vec<_>, _) = (self.held().collect(), self.is_open(now));
        for (vip, role) in held {
            let Some(place) = self.places.get(&vip) else { continue };
            let unwritten = !place.is_written();
            match role {
                Role::Handing => self.remind(vip, now),
                Role::Conflicted => self.attempt(vip, Errand::Detect, now),
                Role::Suspended | Role::Yielded if open => self.attempt(vip, Errand::CheckRead, now),
                Role::Leading if unwritten => self.attempt(vip, Errand::CheckRead, now),
                Role::Leading | Role::Detecting | Role::Following | Role::Suspended | Role::Yielded => {}
            }
        }
    }
}
