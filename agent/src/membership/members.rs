//! Who is alive: what SWIM says goes in and out here, and what is due.

use std::time::Duration;

use foca::OwnedNotification as Notification;
use rand_core::Rng;

use crate::{
    membership::{
        Identity, Membership, Peer, Peers, Standing, Timer,
        contact::Contact,
        state::State,
        wire::{Departed, MOST_DEPARTED, Wire},
    },
    model::NodeName,
};

/// Of the nodes that are not alive, so many are spoken to each [`crate::membership::Settings::join`].
const ANNOUNCED: usize = 8;
/// How often the others are asked about one who was found down.
const INQUIRIES: u32 = 10;

impl Standing {
    /// Counted among the living.
    pub const fn lives(self) -> bool {
        matches!(self, Self::Alive | Self::Suspected)
    }
}

/// Those who have not left.
pub(super) fn known(peers: &Peers) -> impl Iterator<Item = &NodeName> {
    peers.members.iter().filter(|(_, peer)| peer.standing != Standing::Left).map(|(name, _)| name)
}

/// So many of these, any of them as likely as another.
pub(super) fn draw<T>(rng: &mut impl Rng, mut from: Vec<T>, most: usize) -> Vec<T> {
    for at in 0..most.min(from.len()) {
        // Both are below 2^32, and a bias of 2^-32 is none.
        let left = u64::try_from(from.len() - at).unwrap_or(1);
        let step = usize::try_from(rng.next_u64() % left).unwrap_or(0);
        from.swap(at, at + step);
    }
    from.truncate(most);
    from
}

impl Membership {
    /// Does what is due.
    pub(super) fn fire(&mut self, timer: Timer, due: Duration, now: Duration) {
        match timer {
            Timer::Swim(timer) => self.swim_timer(timer, due, now),
            Timer::Again(asked) => self.ask_again(asked, now),
            Timer::Press(name) => self.press(name, now),
            Timer::Inquire(left) => self.inquire(left, now),
            Timer::Pull(name) => self.pull_again(&name, now),
            Timer::Join => {
                self.join();
                let often = if self.hurry > 0 { 10 } else { 1 };
                self.hurry = self.hurry.saturating_sub(1);
                self.set(now + self.settings.join / often, Timer::Join);
                self.settle(now);
            }
            Timer::News => self.tell_news(now),
            Timer::Alarm => {
                self.alarm_from = Some(now + self.settings.alarm);
                let _ = self.swim.gossip();
                self.settle(now);
            }
            Timer::Farewell(left) => {
                let Identity { node, generation } = self.swim.identity();
                let farewell = Wire::Left(vec![Departed { node, generation }]);
                let known: Vec<_> = known(&self.peers).cloned().collect();
                for name in &known {
                    self.send(name, &farewell);
                }
                if left > 1 {
                    self.set(now + self.settings.again, Timer::Farewell(left - 1));
                }
            }
        }
    }

    fn swim_timer(&mut self, timer: foca::Timer<Identity>, due: Duration, now: Duration) {
        if let foca::Timer::ChangeSuspectToDown { member_id, .. } = &timer {
            // Who slept does not know whether it was answered.
            if now.saturating_sub(due) > self.settings.probe_period {
                return self.set(now + self.settings.suspicion, Timer::Swim(timer));
            }
            let probed = due.saturating_sub(self.settings.suspicion + self.settings.probe_period);
            let contact = self.nodes.get(&member_id.node).and_then(|name| self.contacts.get(name));
            if contact.and_then(|contact| contact.answered).is_some_and(|asked| asked >= probed) {
                return;
            }
        }
        self.swim.notify(self.judges(now));
        // An error tells that a probe was cut off, and the next one goes on.
        let _ = self.swim.timer(timer);
        self.settle(now);
    }

    /// Takes what SWIM says.
    pub(super) fn settle(&mut self, now: Duration) {
        loop {
            while let Some(notification) = self.swim.outputs.to_notify() {
                self.notice(&notification, now);
            }
            self.count(now);
            while let Some((after, timer)) = self.swim.outputs.to_schedule() {
                if let foca::Timer::ChangeSuspectToDown { member_id, .. } = &timer {
                    self.suspect(*member_id, now);
                }
                self.set(now + after, Timer::Swim(timer));
            }
            while let Some((to, packet)) = self.swim.outputs.to_send() {
                if let Some(name) = self.nodes.get(&to.node).filter(|name| **name != self.local).cloned() {
                    self.send(&name, &Wire::Swim { majority: self.judges(now), packet: &packet });
                }
            }
            if self.swim.outputs.backlog() == 0 {
                return;
            }
        }
    }

    fn notice(&mut self, notification: &Notification<Identity>, now: Duration) {
        match notification {
            Notification::MemberUp(member) => self.stand(*member, Standing::Alive, now),
            Notification::MemberDown(member) => {
                self.doubtful |= !self.prevails(now);
                self.stand(*member, Standing::Down, now);
                if let Some(from) = self.alarm_from.take() {
                    self.set(from.max(now), Timer::Alarm);
                }
                self.set(now, Timer::Inquire(INQUIRIES));
            }
            Notification::Rename(_, member) => {
                let Some(name) = self.nodes.get(&member.node) else { return };
                if let (Some(peer), Some(contact)) = (self.peers.members.get_mut(name), self.contacts.get_mut(name)) {
                    peer.generation = member.generation;
                    contact.down = contact.down.map(|_| member.generation);
                }
            }
            Notification::Rejoin(_) | Notification::Defunct => self.disowned(now),
            Notification::Active | Notification::Idle => {}
        }
    }

    fn stand(&mut self, member: Identity, standing: Standing, now: Duration) {
        let Some(name) = self.nodes.get(&member.node) else { return };
        let contact = self.contacts.entry(name.clone()).or_default();
        contact.down = (!standing.lives()).then_some(member.generation);
        let peer = self.peers.members.entry(name.clone()).or_insert_with(|| Peer {
            standing: Standing::Left,
            since: now,
            generation: member.generation,
            heard: None,
            silent: None,
            answered: None,
            current: None,
            state: State::default(),
        });
        peer.generation = member.generation;
        let comes = standing.lives() && !peer.standing.lives();
        if comes {
            // It may be another run, which is not ready yet and leads nothing. What it says now is pulled.
            (peer.state, peer.current) = (State::default(), None);
            contact.restart();
        }
        if peer.standing != standing && (peer.standing, standing) != (Standing::Left, Standing::Down) {
            (peer.standing, peer.since) = (standing, now);
            (self.uncounted, self.happened.changed) = (true, true);
        }
        if comes {
            let name = name.clone();
            self.pull(&name, 0, now);
        }
    }

    /// Counts the members anew, where that is needed.
    fn count(&mut self, now: Duration) {
        if !std::mem::take(&mut self.uncounted) {
            return;
        }
        let count = |counted: fn(&Peer) -> bool| self.peers.members.values().filter(|peer| counted(peer)).count();
        let alive = count(|peer| peer.standing.lives());
        self.known = count(|peer| peer.standing != Standing::Left);
        self.peers.majority = (alive + 1) * 2 > self.known + 1;
        self.weigh(now);
        self.witness();
    }

    /// Somebody did not know us for what we are: we have another generation now, which they are to hear of.
    pub(super) fn disowned(&mut self, now: Duration) {
        if !self.left {
            self.happened.disowned = true;
            self.join();
            self.news(now);
        }
    }

    /// Speaks to a few of the nodes that are not alive.
    fn join(&mut self) {
        let alive = |name| self.peers.members.get(name).is_some_and(|peer| peer.standing.lives());
        let others = self.nodes.iter().filter(|(_, name)| !alive(name)).map(|(key, _)| *key).collect();
        self.announce(others, ANNOUNCED);
    }

    /// Speaks to so many of these nodes, if they are not this one.
    pub(super) fn announce(&mut self, mut nodes: Vec<u64>, most: usize) {
        let local = self.swim.identity().node;
        nodes.retain(|node| *node != local);
        for node in draw(&mut self.rng, nodes, most) {
            // Whatever generation it has, it takes an announcement.
            let _ = self.swim.announce(Identity { node, generation: 0 });
        }
    }

    fn suspect(&mut self, member: Identity, now: Duration) {
        let Some(name) = self.nodes.get(&member.node) else { return };
        if let Some(peer) = self.peers.members.get_mut(name).filter(|peer| peer.standing == Standing::Alive) {
            (peer.standing, peer.since) = (Standing::Suspected, now);
            self.happened.changed = true;
            self.press(name.clone(), now);
        }
    }

    /// Asks a suspect, and does so again until it has answered or is down.
    fn press(&mut self, name: NodeName, now: Duration) {
        if self.peers.members.get(&name).is_some_and(|peer| peer.standing == Standing::Suspected) {
            let ask = self.question(now);
            self.send(&name, &Wire::Ask(ask));
            self.set(now + self.settings.press, Timer::Press(name));
        }
    }

    /// Whether we are on the side of a majority. A node that is cut off finds the others down one by one, and they have not
    /// answered it for longer than that takes.
    fn prevails(&self, now: Duration) -> bool {
        let answered = self.assent.is_some_and(|asked| now.saturating_sub(asked) <= self.settings.suspicion);
        self.peers.majority && answered
    }

    /// Whether others should hear whom we hold for down.
    pub(super) fn judges(&self, now: Duration) -> bool {
        self.prevails(now) && !self.doubtful
    }

    /// Forgets that others are down, where one of them speaks, or a majority answers, and it was rather us who were cut off.
    /// Those who were not are to hear nothing of it.
    pub(super) fn forgive(&mut self, from: &NodeName, now: Duration) {
        let down = self.contacts.get(from).is_some_and(|contact| contact.down.is_some());
        let mistaken = if self.prevails(now) { self.doubtful } else { down };
        if !mistaken {
            return;
        }
        (self.doubtful, self.forgiven) = (false, Some(now));
        self.timers.retain(|_, timer| !matches!(timer, Timer::Swim(_)));
        self.contacts.values_mut().for_each(|contact| contact.down = None);
        let _ = self.swim.forgive(self.rng.next_u64());
        self.join();
        self.settle(now);
    }

    /// A node has left, as itself or somebody who heard it says.
    pub(super) fn parted(&mut self, Departed { node, generation }: Departed, now: Duration) {
        let Some(name) = self.nodes.get(&node).cloned() else { return };
        let here = |peer: &Peer| peer.standing != Standing::Left && peer.generation <= generation;
        if !self.peers.members.get(&name).is_some_and(here) {
            return;
        }
        let _ = self.swim.learn(Identity { node, generation }, foca::State::Down, true);
        self.settle(now);
        if let Some(peer) = self.peers.members.get_mut(&name) {
            (peer.standing, peer.since) = (Standing::Left, now);
            (self.uncounted, self.happened.changed) = (true, true);
        }
        self.count(now);
    }

    /// Tells a peer who has left, if it knows so many members that it may have missed that.
    pub(super) fn pass_on_departed(&mut self, to: &NodeName, known: u64, now: Duration) {
        let may_be_told = |contact: &Contact| contact.tell_departed <= now;
        if known <= self.known as u64 || !self.contacts.get(to).is_some_and(may_be_told) {
            return;
        }
        let left = self.peers.members.iter().filter(|(_, peer)| peer.standing == Standing::Left);
        let departed =
            |(name, peer): (&NodeName, &Peer)| Departed { node: Identity::key(name), generation: peer.generation };
        let departed: Vec<_> = left.map(departed).collect();
        if !departed.is_empty() {
            let some = draw(&mut self.rng, departed, MOST_DEPARTED);
            self.send(to, &Wire::Left(some));
            if let Some(contact) = self.contacts.get_mut(to) {
                contact.tell_departed = now + self.settings.join;
            }
        }
    }
}
