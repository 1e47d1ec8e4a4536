//! Members and their status: passes messages, timers and notifications to and from SWIM.

use std::time::Duration;

use foca::OwnedNotification as Notification;
use rand_core::Rng;

use crate::membership::{
    DELETED, MemberId, MemberStatus, Membership, MembershipSettings, Peer, Timer,
    items::State,
    peer_record::PeerRecord,
    peers::known,
    wire::{MOST_DEPARTED, Wire},
};
use vipmux_model::NodeName;

/// The number of nodes that are not alive and are contacted each
/// [`crate::membership::MembershipSettings::join`].
const ANNOUNCED: usize = 8;
/// The number of times that the others are asked about a node that was found down.
const INQUIRIES: u32 = 10;

/// Returns a random sample of at most `most` items.
pub(super) fn sample<T>(rng: &mut impl Rng, mut from: Vec<T>, most: usize) -> Vec<T> {
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
    /// Handles a timer that was `due`.
    pub(super) fn handle_timer(&mut self, timer: Timer, due: Duration, now: Duration) {
        match timer {
            Timer::Swim(timer) => self.swim_timer(timer, due, now),
            Timer::Heartbeats if due == self.pace.next_beat => self.send_heartbeats(now),
            // The event loop had another heartbeat since.
            Timer::Heartbeats => {}
            Timer::Again(asked) => self.ask_again(asked, now),
            Timer::AskSuspect(name) => self.ask_suspect(name, due, now),
            Timer::ConfirmDown(left) => self.confirm_down(left, now),
            Timer::Pull(name) => self.pull_again(&name, now),
            Timer::Join => {
                self.join();
                let often = if self.pace.hurry > 0 { 10 } else { 1 };
                self.pace.hurry = self.pace.hurry.saturating_sub(1);
                self.set(now + self.settings.join / often, Timer::Join);
                self.forget_deleted(now);
                self.process_swim(now);
            }
            Timer::AnnounceState => self.announce_state(now),
            Timer::SpreadDown => {
                self.pace.down_from = Some(now + self.settings.alarm);
                let _ = self.swim.gossip();
                self.process_swim(now);
            }
            Timer::Farewell(left) => {
                let farewell = Wire::Left(vec![self.swim.identity()]);
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

    /// Returns whether SWIM need not probe: heartbeats go to all members, and all that are alive answered one
    /// lately.
    pub(super) fn heartbeats_suffice(&self, now: Duration) -> bool {
        let answered = |peer: &Peer| peer.answered.is_some_and(|answered| now < answered + self.settings.suspicion);
        let mut alive = self.peers.members.values().filter(|peer| peer.status.is_alive());
        self.view.known <= self.settings.sample && alive.all(answered)
    }

    pub(super) fn swim_timer(&mut self, timer: foca::Timer<MemberId>, due: Duration, now: Duration) {
        if matches!(timer, foca::Timer::ProbeRandomMember(_)) && self.heartbeats_suffice(now) {
            self.swim.probe = Some(timer);
            return;
        }
        if let foca::Timer::ChangeSuspectToDown { member_id, .. } = &timer {
            // A node that slept does not know whether it was answered.
            if now.saturating_sub(due) > self.settings.probe_period {
                return self.set(now + self.settings.suspicion, Timer::Swim(timer));
            }
            let probed = due.saturating_sub(self.settings.suspicion + self.settings.probe_period);
            let record = self.nodes.get(&member_id.node).and_then(|name| self.records.get(name));
            if record.and_then(|record| record.answered).is_some_and(|asked| asked >= probed) {
                return;
            }
        }
        self.swim.notify(self.may_declare_down(now));
        // An error means that a probe was cut off. The next one goes on.
        let _ = self.swim.timer(timer);
        self.process_swim(now);
    }

    /// Processes the outputs of SWIM, until there are none.
    pub(super) fn process_swim(&mut self, now: Duration) {
        loop {
            while let Some(notification) = self.swim.outputs.to_notify() {
                self.handle_notification(&notification, now);
            }
            self.count(now);
            while let Some((after, timer)) = self.swim.outputs.to_schedule() {
                if let foca::Timer::ChangeSuspectToDown { member_id, .. } = &timer {
                    self.suspect(*member_id, now);
                }
                if matches!(timer, foca::Timer::PeriodicGossip(_)) {
                    self.swim.gossip = Some(timer);
                } else {
                    self.set(now + after, Timer::Swim(timer));
                }
            }
            while let Some((to, packet)) = self.swim.outputs.to_send() {
                if let Some(name) = self.nodes.get(&to.node).filter(|name| **name != self.local).cloned() {
                    self.send(&name, &Wire::Swim { majority: self.may_declare_down(now), packet: &packet });
                }
            }
            if self.swim.outputs.backlog() == 0 {
                return;
            }
        }
    }

    fn handle_notification(&mut self, notification: &Notification<MemberId>, now: Duration) {
        match notification {
            Notification::MemberUp(member) => self.set_status(*member, MemberStatus::Alive, now),
            Notification::MemberDown(member) => {
                self.view.doubtful |= !self.is_with_majority(now);
                self.set_status(*member, MemberStatus::Down, now);
                if let Some(from) = self.pace.down_from.take() {
                    self.set(from.max(now), Timer::SpreadDown);
                }
                self.set(now, Timer::ConfirmDown(INQUIRIES));
            }
            Notification::Rename(_, member) => {
                let Some(name) = self.nodes.get(&member.node) else { return };
                if let (Some(peer), Some(record)) = (self.peers.members.get_mut(name), self.records.get_mut(name)) {
                    peer.generation = member.generation;
                    record.down = record.down.map(|_| member.generation);
                }
            }
            Notification::Rejoin(_) | Notification::Defunct => self.disowned(now),
            Notification::Active | Notification::Idle => {}
        }
    }

    fn set_status(&mut self, member: MemberId, status: MemberStatus, now: Duration) {
        let Some(name) = self.nodes.get(&member.node) else { return };
        let record = self.records.entry(name.clone()).or_default();
        record.down = (!status.is_alive()).then_some(member.generation);
        let new = || Peer { since: now, ..Peer::default() };
        let peer = self.peers.members.entry(name.clone()).or_insert_with(new);
        peer.generation = member.generation;
        let comes = status.is_alive() && !peer.status.is_alive();
        if comes {
            // It may be another run, which is not ready yet and leads nothing. Its state is pulled.
            // Until then its lease is what it was.
            peer.state = State { agent: peer.state.agent.take(), ..State::default() };
            peer.current = None;
            record.restart();
        }
        if peer.status != status && (peer.status, status) != (MemberStatus::Left, MemberStatus::Down) {
            (peer.status, peer.since) = (status, now);
            (self.view.uncounted, self.output.changed) = (true, true);
        }
        if comes {
            let name = name.clone();
            self.pull(&name, 0, now);
        }
    }

    /// Counts the members again if a status changed.
    fn count(&mut self, now: Duration) {
        if !std::mem::take(&mut self.view.uncounted) {
            return;
        }
        let count = |counted: fn(&Peer) -> bool| self.peers.members.values().filter(|peer| counted(peer)).count();
        let alive = count(|peer| peer.status.is_alive());
        self.view.known = count(|peer| peer.status != MemberStatus::Left);
        // A node that nobody ever answered may be cut off since its start. It is no majority.
        let unheard = self.peers.members.is_empty() && self.nodes.len() > 1;
        self.peers.majority = !unheard && (alive + 1) * 2 > self.view.known + 1;
        self.update_evidence(now);
        self.update_silence();
    }

    /// Handles that a peer considered this node down. This node has another generation now, and
    /// announces it.
    pub(super) fn disowned(&mut self, now: Duration) {
        if !self.left {
            self.output.disowned = true;
            self.join();
            self.state_changed(now);
        }
    }

    /// Contacts a few of the nodes that are not alive.
    fn join(&mut self) {
        let others = self.nodes.iter().filter(|(_, name)| !self.peers.is_alive(name)).map(|(key, _)| *key).collect();
        self.announce(others, ANNOUNCED);
    }

    /// Contacts at most `most` of these nodes, without this one.
    pub(super) fn announce(&mut self, mut nodes: Vec<u64>, most: usize) {
        let local = self.swim.identity().node;
        nodes.retain(|node| *node != local);
        for node in sample(&mut self.rng, nodes, most) {
            // A node takes an announcement to any of its generations.
            let _ = self.swim.announce(MemberId { node, generation: 0 });
        }
    }

    /// Forgets the members without a Node object that were gone for [`DELETED`].
    pub(super) fn forget_deleted(&mut self, now: Duration) {
        let is_over = |key: &u64| {
            self.nodes.get(key).and_then(|name| self.peers.members.get(name)).is_none_or(|peer| match peer.status {
                MemberStatus::Alive | MemberStatus::Suspected => false,
                MemberStatus::Down | MemberStatus::Left => now >= peer.since + DELETED,
            })
        };
        let over: Vec<_> = self.deleted.iter().filter(|key| is_over(key)).copied().collect();
        for key in over {
            self.deleted.remove(&key);
            let Some(name) = self.nodes.remove(&key) else { continue };
            self.records.remove(&name);
            if let Some(peer) = self.peers.members.remove(&name) {
                let _ = self.swim.forget(MemberId { node: key, generation: peer.generation });
                (self.view.uncounted, self.output.changed) = (true, true);
            }
        }
        self.swim.expect(self.nodes.len());
        self.peers.pair = self.nodes.len() == 2;
    }

    fn suspect(&mut self, member: MemberId, now: Duration) {
        let Some(name) = self.nodes.get(&member.node) else { return };
        if let Some(peer) = self.peers.members.get_mut(name).filter(|peer| peer.status == MemberStatus::Alive) {
            (peer.status, peer.since) = (MemberStatus::Suspected, now);
            self.output.changed = true;
            self.ask_suspect(name.clone(), now, now);
        }
    }

    /// Suspects the members that did not answer the last round of heartbeats. Only in a cluster whose members
    /// are all asked.
    pub(super) fn suspect_silent(&mut self, now: Duration) {
        if self.view.known > self.settings.sample {
            return;
        }
        let old = |at: Duration| now >= at + self.settings.suspicion;
        // A heartbeat that is late itself is no silence of others.
        let unanswered = |answered: Duration| old(answered) && answered < self.pace.beat;
        let is_silent = |peer: &Peer| {
            peer.status == MemberStatus::Alive && old(peer.since) && peer.answered.is_some_and(unanswered)
        };
        let silent = self.peers.members.iter().filter(|(_, peer)| is_silent(peer));
        let silent: Vec<_> = silent.map(|(name, peer)| member_id(name, peer)).collect();
        for member in silent {
            self.suspect(member, now);
        }
    }

    /// Sends a heartbeat to a suspect, again and again until it answers or is down.
    fn ask_suspect(&mut self, name: NodeName, due: Duration, now: Duration) {
        let suspect = self.peers.members.get_mut(&name).filter(|peer| peer.status == MemberStatus::Suspected);
        let Some(peer) = suspect else { return };
        let MembershipSettings { suspicion, probe_period, press, sample, .. } = self.settings;
        if now.saturating_sub(due) > probe_period {
            // A node that slept does not know whether it was answered.
            peer.since = now;
        }
        let is_silent = peer.answered.is_some_and(|answered| now >= answered + suspicion * 2);
        if self.view.known <= sample && is_silent && now >= peer.since + suspicion * 2 / 3 {
            let _ = self.swim.learn(member_id(&name, peer), foca::State::Down, true);
            return self.process_swim(now);
        }
        let ask = self.heartbeat(now);
        self.send(&name, &Wire::Heartbeat(ask));
        self.set(now + press, Timer::AskSuspect(name));
    }

    /// Returns whether this node is with a majority. A node that is cut off finds the others down
    /// one by one. They have not answered it for longer than that takes.
    fn is_with_majority(&self, now: Duration) -> bool {
        let answered = self.evidence.assent.is_some_and(|asked| now.saturating_sub(asked) <= self.settings.suspicion);
        self.peers.majority && answered
    }

    /// Returns whether others should hear which nodes this one considers down.
    pub(super) fn may_declare_down(&self, now: Duration) -> bool {
        self.is_with_majority(now) && !self.view.doubtful
    }

    /// Forgets that others are down, if one of them speaks, or a majority answers: then rather this
    /// node was cut off. Nodes that were not cut off must hear nothing of it.
    pub(super) fn forget_downs(&mut self, from: &NodeName, now: Duration) {
        let down = self.records.get(from).is_some_and(|record| record.down.is_some());
        let mistaken = if self.is_with_majority(now) { self.view.doubtful } else { down };
        if !mistaken {
            return;
        }
        (self.view.doubtful, self.view.forgotten) = (false, Some(now));
        self.timers.due.retain(|_, timer| !matches!(timer, Timer::Swim(_)));
        self.records.values_mut().for_each(|record| record.down = None);
        let _ = self.swim.forget_downs(self.rng.next_u64());
        self.join();
        self.process_swim(now);
    }

    /// Handles that a node left, as it says itself or a node that heard it.
    pub(super) fn receive_left(&mut self, departed: MemberId, now: Duration) {
        let Some(name) = self.nodes.get(&departed.node).cloned() else { return };
        let here = |peer: &Peer| peer.status != MemberStatus::Left && peer.generation <= departed.generation;
        if !self.peers.members.get(&name).is_some_and(here) {
            return;
        }
        let _ = self.swim.learn(departed, foca::State::Down, true);
        self.process_swim(now);
        if let Some(peer) = self.peers.members.get_mut(&name) {
            (peer.status, peer.since) = (MemberStatus::Left, now);
            (self.view.uncounted, self.output.changed) = (true, true);
        }
        self.count(now);
    }

    /// Tells a peer which nodes left, if it knows so many members that it may have missed that.
    pub(super) fn pass_on_departed(&mut self, to: &NodeName, known: u64, now: Duration) {
        let may_be_told = |record: &PeerRecord| record.tell_departed <= now;
        if known <= self.view.known as u64 || !self.records.get(to).is_some_and(may_be_told) {
            return;
        }
        let left = self.peers.members.iter().filter(|(_, peer)| peer.status == MemberStatus::Left);
        let departed: Vec<_> = left.map(|(name, peer)| member_id(name, peer)).collect();
        if !departed.is_empty() {
            let some = sample(&mut self.rng, departed, MOST_DEPARTED);
            self.send(to, &Wire::Left(some));
            if let Some(record) = self.records.get_mut(to) {
                record.tell_departed = now + self.settings.join;
            }
        }
    }
}

fn member_id(name: &NodeName, peer: &Peer) -> MemberId {
    MemberId { node: MemberId::key(name), generation: peer.generation }
}
