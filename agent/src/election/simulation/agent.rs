//! An agent's process: the two state machines, and what the runtime does between them and the world.

mod lan;
mod voice;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{Mutation, Operation, Turn, World};
use crate::{
    election::{Command, Election, HEARTBEAT, Input, Outcome},
    membership::{self, Event, Item, Membership, Peers},
    model::Vip,
};

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Agent {
    membership: Membership,
    pub(super) election: Election,
    /// What the event loop believes that the kernel answers for, each leadership with a number.
    led: BTreeMap<Vip, u64>,
    /// Of each VIP the operation whose end is of interest.
    pub(super) latest: BTreeMap<Vip, u64>,
    pub(super) operations: u64,
    pub(super) waiting: VecDeque<(u64, Operation)>,
    pub(super) under_way: usize,
    surveying: bool,
    /// When the event loop turned last; by its own clock.
    turned: Duration,
    synced: bool,
    carrier: bool,
    /// Evidence must rest on a look at the manifests that is still to come.
    awaits: bool,
    /// When it is to be woken; of the world.
    wake: Option<Duration>,
    /// When it was told to stop.
    leaving: Option<Duration>,
    /// It says farewell.
    parting: bool,
    /// The last evidence, and when it was first seen.
    evidence: (Option<Duration>, Duration),
}

impl World {
    /// Starts a node's agent, whose memory is empty.
    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() {
            return;
        }
        self.tell(Some(node), || "agent: started".to_owned());
        let (now, seed) = (self.local(node), self.dice.number());
        let names = self.nodes.iter().map(|node| node.name.clone()).collect();
        let local = self.nodes[node].name.clone();
        let mut membership = Membership::new(local.clone(), seed, membership::Settings::default(), now);
        membership.know(names, now);
        let mut election = Election::new(local, self.settings, now);
        election.mutation = self.mutation;
        self.nodes[node].run += 1;
        self.nodes[node].since = self.now;
        self.nodes[node].leaving = false;
        self.nodes[node].agent = Some(Box::new(Agent {
            membership,
            election,
            led: BTreeMap::new(),
            latest: BTreeMap::new(),
            operations: 0,
            waiting: VecDeque::new(),
            under_way: 0,
            surveying: false,
            turned: now,
            synced: false,
            carrier: false,
            awaits: false,
            wake: None,
            leaving: None,
            parting: false,
            evidence: (None, Duration::ZERO),
        }));
        let (beat, sync) = (self.dice.micros(0, 5_000), self.dice.millis(20, 150));
        self.turn_after(node, beat, Turn::Beat);
        self.turn_after(node, sync, Turn::Sync { looked: true });
        self.flush(node);
    }

    /// The process is gone; what it put into the kernel is not.
    pub(super) fn kill(&mut self, node: usize) {
        if self.nodes[node].agent.take().is_some() {
            self.tell(Some(node), || "agent: gone".to_owned());
        }
        self.nodes[node].paused = None;
    }

    pub(super) fn pause(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() && self.nodes[node].paused.is_none() {
            self.tell(Some(node), || "agent: stopped by a signal".to_owned());
            self.nodes[node].paused = Some(VecDeque::new());
        }
    }

    pub(super) fn resume(&mut self, node: usize) {
        let Some(backlog) = self.nodes[node].paused.take() else { return };
        self.nodes[node].since = self.now;
        self.tell(Some(node), || format!("agent: goes on, {} turns behind", backlog.len()));
        // Gossip is taken in by a task of its own, before the event loop's next turn or after; and that loop may have been
        // stopped just before it took something up.
        let (speaks_first, loop_first) = (self.dice.chance(500), self.dice.chance(200));
        let (voice, others): (VecDeque<_>, VecDeque<_>) =
            backlog.into_iter().partition(|turn| matches!(turn, Turn::Payload { .. } | Turn::Wake));
        let (beats, others): (VecDeque<_>, VecDeque<_>) =
            others.into_iter().partition(|turn| matches!(turn, Turn::Beat));
        let order = match (speaks_first, loop_first) {
            (true, true) => [voice, others, beats],
            (true, false) => [voice, beats, others],
            (false, true) => [others, beats, voice],
            (false, false) => [beats, voice, others],
        };
        let run = self.nodes[node].run;
        for turn in order.into_iter().flatten() {
            self.take_turn(node, run, turn);
        }
    }

    pub(super) fn take_turn(&mut self, node: usize, run: u64, turn: Turn) {
        let at = &mut self.nodes[node];
        if at.run != run || at.agent.is_none() {
            return;
        }
        if let Some(backlog) = &mut at.paused {
            let alone = match turn {
                Turn::Beat => !backlog.iter().any(|turn| matches!(turn, Turn::Beat)),
                Turn::Wake => !backlog.iter().any(|turn| matches!(turn, Turn::Wake)),
                _ => backlog.len() < 4096,
            };
            if alone {
                backlog.push_back(turn);
            }
            return;
        }
        match turn {
            Turn::Sync { looked } => self.sync(node, looked),
            Turn::Beat => self.beat(node),
            Turn::Wake => self.wake(node),
            Turn::Payload { from, bytes } => self.receive(node, from, &bytes),
            Turn::Stored { vip, number, outcome } => self.report(node, vip, number, outcome),
            Turn::Surveyed { asked, leases } => {
                if let Some(agent) = &mut self.nodes[node].agent {
                    agent.surveying = false;
                }
                self.work(node, vec![Input::Surveyed { asked, leases }]);
            }
            Turn::Announce { vip, lead, round } => self.announce(node, vip, lead, round),
            Turn::Probe { vip, detect, round } => self.probe(node, vip, detect, round),
            Turn::Elect => self.elect(node),
        }
    }

    /// The maps are brought to what is wanted, by who leads now.
    fn sync(&mut self, node: usize, looked: bool) {
        let carrier = !self.network.unplugged.contains(&node);
        let Some(agent) = self.nodes[node].agent.as_deref_mut().filter(|agent| !agent.parting) else { return };
        let first = !std::mem::replace(&mut agent.synced, true);
        let plugged = std::mem::replace(&mut agent.carrier, carrier) != carrier && carrier;
        agent.awaits &= !looked;
        let chosen = !agent.awaits;
        let led: BTreeSet<Vip> = agent.led.keys().copied().collect();
        let stale: Vec<_> = self.nodes[node]
            .kernel
            .flags
            .iter()
            .filter(|vip| first && !led.contains(vip) || !self.vips.contains(vip))
            .copied()
            .collect();
        for vip in stale {
            self.set_flag(node, vip, false);
        }
        let unable = if carrier { BTreeSet::new() } else { self.vips.clone() };
        self.work(node, vec![Input::Unable(unable)]);
        if chosen {
            let wanted = Arc::clone(&self.wanted);
            let said = self.work(node, vec![Input::Wanted(wanted)]);
            if said {
                self.tick(node);
            }
        }
        if plugged {
            for vip in led {
                self.burst(node, vip);
            }
        }
    }

    fn beat(&mut self, node: usize) {
        if self.nodes[node].agent.as_ref().is_none_or(|agent| agent.parting) {
            return;
        }
        self.tick(node);
        let now = self.local(node);
        if self.nodes[node].agent.as_ref().is_some_and(|agent| agent.has_left(now)) {
            if let Some(agent) = &mut self.nodes[node].agent {
                agent.parting = true;
                agent.membership.leave(now);
            }
            self.tell(Some(node), || "agent: says farewell".to_owned());
            return self.flush(node);
        }
        let after = HEARTBEAT + self.dice.micros(0, 2_000);
        self.turn_after(node, after, Turn::Beat);
    }

    fn tick(&mut self, node: usize) {
        let now = self.local(node);
        let at = &mut self.nodes[node];
        let Some(agent) = &mut at.agent else { return };
        agent.turned = now;
        let yielded = agent.led.keys().filter(|vip| !at.kernel.flags.contains(vip));
        let mut inputs: Vec<_> = yielded.map(|vip| Input::PeerAnnounced(*vip)).collect();
        inputs.push(Input::Tick { carrier: agent.carrier });
        self.work(node, inputs);
    }

    /// Tells an agent to stop, or to drain.
    pub(super) fn drain(&mut self, node: usize, drains: bool, stops: bool) {
        let now = self.local(node);
        let Some(agent) = &mut self.nodes[node].agent else { return };
        if stops {
            agent.leaving = Some(now);
        }
        self.nodes[node].leaving = drains;
        self.work(node, vec![Input::Drain(drains)]);
    }

    fn elect(&mut self, node: usize) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
        if agent.parting {
            return self.flush(node);
        }
        let events = agent.membership.take_events().into_iter().map(|event| match event {
            Event::Changed => Input::Peers,
            Event::Disowned => Input::Disowned,
            Event::Told { from, message } => Input::Told { from, message },
        });
        let inputs = events.chain([Input::Peers]).collect();
        self.work(node, inputs);
    }

    fn report(&mut self, node: usize, vip: Vip, number: u64, outcome: Outcome) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
        agent.under_way = agent.under_way.saturating_sub(1);
        if let Some((number, operation)) = agent.waiting.pop_front() {
            agent.under_way += 1;
            self.operate(node, number, operation);
        }
        let Some(agent) = &mut self.nodes[node].agent else { return };
        if agent.latest.get(&vip) == Some(&number) {
            agent.latest.remove(&vip);
            self.work(node, vec![Input::Stored { vip, outcome }]);
        }
    }

    /// Gives the election something and carries out what it says. Whether it said anything.
    fn work(&mut self, node: usize, mut pending: Vec<Input>) -> bool {
        let mut said = false;
        while !pending.is_empty() {
            for input in std::mem::take(&mut pending) {
                let now = self.local(node);
                if !matches!(input, Input::Tick { .. } | Input::Peers | Input::Wanted(_) | Input::Surveyed { .. }) {
                    self.tell(Some(node), || format!("  <- {input:?}"));
                }
                let counts_from_answer = self.mutation == Some(Mutation::CountsFromTheAnswer);
                let Some(agent) = &mut self.nodes[node].agent else { return said };
                let commands = if counts_from_answer {
                    let peers = agent.counted_from_the_answer(now);
                    agent.election.handle(input, &peers, now)
                } else {
                    agent.election.handle(input, agent.membership.peers(), now)
                };
                said |= !commands.is_empty();
                for command in commands {
                    self.carry_out(node, command, now, &mut pending);
                }
            }
        }
        self.flush(node);
        said
    }

    fn carry_out(&mut self, node: usize, command: Command, now: Duration, pending: &mut Vec<Input>) {
        match &command {
            Command::Extend(_) | Command::Ask => {}
            command => self.tell(Some(node), || format!("  -> {command:?}")),
        }
        let Some(agent) = &mut self.nodes[node].agent else { return };
        match command {
            Command::Follow { vip, .. } => {
                agent.led.remove(&vip);
                self.set_flag(node, vip, false);
            }
            Command::Lead { vip, epoch, .. } => {
                self.set_flag(node, vip, true);
                self.checker.led(vip, node, self.nodes[node].run, epoch);
                self.burst(node, vip);
            }
            Command::Extend(deadline) => {
                let kernel = &mut self.nodes[node].kernel;
                if kernel.deadline <= now {
                    self.checker.touch_these(&kernel.flags);
                }
                kernel.deadline = deadline;
            }
            Command::Gather => {
                agent.awaits = true;
                let after = self.dice.millis(5, 60);
                self.turn_after(node, after, Turn::Sync { looked: true });
            }
            Command::Ask => agent.membership.ask(now),
            Command::Renounce => agent.membership.renounce(now),
            Command::Tell { to, message } => agent.membership.tell(&to, message),
            Command::Publish(item) => self.publish(node, item, now),
            Command::Withdraw(key) => agent.membership.withdraw(&key, now),
            Command::Read(vip) => self.begin(node, vip, Operation::Read(vip)),
            Command::Swap { vip, expected, epoch } => {
                self.begin(node, vip, Operation::Swap { vip, expected, epoch });
            }
            Command::Delete { vip, version } => {
                let operation = Operation::Delete { vip, version };
                self.operate(node, 0, operation);
            }
            Command::Survey if agent.surveying => pending.push(Input::Surveyed { asked: now, leases: None }),
            Command::Survey => {
                agent.surveying = true;
                self.operate(node, 0, Operation::Survey);
            }
            Command::Probe { vip, detect } => {
                let after = self.dice.micros(50, 500);
                self.turn_after(node, after, Turn::Probe { vip, detect, round: 0 });
            }
            Command::Conflict { .. } => {}
        }
    }

    fn publish(&mut self, node: usize, item: Item, now: Duration) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
        if let Err(full) = agent.membership.publish(item, now) {
            self.checker.violate(|| full.to_string());
        }
    }
}

impl Agent {
    /// Whether it was told to stop, and has handed over what others can take.
    fn has_left(&self, now: Duration) -> bool {
        let waited = self.leaving.map(|since| now.saturating_sub(since));
        waited.is_some_and(|waited| self.election.has_left(waited, self.membership.peers()))
    }

    /// What [`Mutation::CountsFromTheAnswer`] makes of the peers.
    fn counted_from_the_answer(&mut self, now: Duration) -> Peers {
        let mut peers = self.membership.peers().clone();
        if peers.evidence != self.evidence.0 {
            self.evidence = (peers.evidence, now);
        }
        peers.evidence = peers.evidence.map(|_| self.evidence.1);
        peers
    }
}
