//! An agent's process: the two state machines, and the runtime between them and the world.

mod gossip;
mod lan;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{AgentEvent, Mutation, StoreOperation, World};
use crate::{
    Command, Election, HEARTBEAT, Input, LeaseOutcome,
    membership::{self, Item, Membership, MembershipEvent, Peers},
};
use vipmux_model::Vip;

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Agent {
    membership: Membership,
    pub(super) election: Election,
    /// The VIPs that the kernel answers for, as the event loop believes. Each leadership has a
    /// number.
    led: BTreeMap<Vip, u64>,
    /// The latest store operation of each VIP.
    pub(super) latest: BTreeMap<Vip, u64>,
    pub(super) operations: u64,
    pub(super) waiting: VecDeque<(u64, StoreOperation)>,
    pub(super) under_way: usize,
    surveying: bool,
    /// The time of the event loop's last heartbeat, by the node's clock.
    turned: Duration,
    synced: bool,
    carrier: bool,
    /// The manifests must be read again before the wanted VIPs count.
    awaits: bool,
    /// The time at which it is woken, by the world's clock.
    wake: Option<Duration>,
    /// The time at which it was asked to stop.
    leaving: Option<Duration>,
    /// It is saying that it leaves.
    parting: bool,
    /// The last evidence, and the time at which it was first seen.
    evidence: (Option<Duration>, Duration),
}

impl World {
    /// Starts a node's agent with empty memory.
    pub(super) fn start(&mut self, node: usize) {
        if self.cluster.nodes[node].agent.is_some() {
            return;
        }
        self.log(Some(node), || "agent: started".to_owned());
        let (now, seed) = (self.local(node), self.dice.number());
        let names = self.cluster.nodes.iter().map(|node| node.name.clone()).collect();
        let local = self.cluster.nodes[node].name.clone();
        let mut membership = Membership::new(local.clone(), seed, membership::MembershipSettings::default(), now);
        membership.set_nodes(names, now);
        let mut election = Election::new(local, self.settings, now);
        election.mutate(self.mutation);
        self.cluster.nodes[node].run += 1;
        self.cluster.nodes[node].since = self.schedule.now;
        self.cluster.nodes[node].leaving = false;
        self.cluster.nodes[node].agent = Some(Box::new(Agent {
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
        self.schedule_agent(node, beat, AgentEvent::Beat);
        self.schedule_agent(node, sync, AgentEvent::Sync { looked: true });
        self.flush(node);
    }

    /// Kills the process. The kernel's maps stay.
    pub(super) fn kill(&mut self, node: usize) {
        if self.cluster.nodes[node].agent.take().is_some() {
            self.log(Some(node), || "agent: gone".to_owned());
        }
        self.cluster.nodes[node].paused = None;
    }

    pub(super) fn pause(&mut self, node: usize) {
        if self.cluster.nodes[node].agent.is_some() && self.cluster.nodes[node].paused.is_none() {
            self.log(Some(node), || "agent: stopped by a signal".to_owned());
            self.cluster.nodes[node].paused = Some(VecDeque::new());
        }
    }

    pub(super) fn resume(&mut self, node: usize) {
        let Some(backlog) = self.cluster.nodes[node].paused.take() else { return };
        self.cluster.nodes[node].since = self.schedule.now;
        self.log(Some(node), || format!("agent: goes on, {} turns behind", backlog.len()));
        // A task of its own handles gossip, before or after the event loop goes on. The loop may
        // have been stopped just before it handled an event.
        let (speaks_first, loop_first) = (self.dice.chance(500), self.dice.chance(200));
        let (gossip, others): (VecDeque<_>, VecDeque<_>) =
            backlog.into_iter().partition(|event| matches!(event, AgentEvent::Payload { .. } | AgentEvent::Wake));
        let (beats, others): (VecDeque<_>, VecDeque<_>) =
            others.into_iter().partition(|event| matches!(event, AgentEvent::Beat));
        let order = match (speaks_first, loop_first) {
            (true, true) => [gossip, others, beats],
            (true, false) => [gossip, beats, others],
            (false, true) => [others, beats, gossip],
            (false, false) => [beats, gossip, others],
        };
        let run = self.cluster.nodes[node].run;
        for event in order.into_iter().flatten() {
            self.handle_agent_event(node, run, event);
        }
    }

    pub(super) fn handle_agent_event(&mut self, node: usize, run: u64, event: AgentEvent) {
        let at = &mut self.cluster.nodes[node];
        if at.run != run || at.agent.is_none() {
            return;
        }
        if let Some(backlog) = &mut at.paused {
            let alone = match event {
                AgentEvent::Beat => !backlog.iter().any(|event| matches!(event, AgentEvent::Beat)),
                AgentEvent::Wake => !backlog.iter().any(|event| matches!(event, AgentEvent::Wake)),
                _ => backlog.len() < 4096,
            };
            if alone {
                backlog.push_back(event);
            }
            return;
        }
        match event {
            AgentEvent::Sync { looked } => self.sync(node, looked),
            AgentEvent::Beat => self.beat(node),
            AgentEvent::Wake => self.wake(node),
            AgentEvent::Payload { from, bytes } => self.receive(node, from, &bytes),
            AgentEvent::Stored { vip, number, outcome } => self.report(node, vip, number, outcome),
            AgentEvent::Surveyed { asked, leases } => {
                if let Some(agent) = &mut self.cluster.nodes[node].agent {
                    agent.surveying = false;
                }
                self.work(node, vec![Input::Surveyed { asked, leases }]);
            }
            AgentEvent::Announce { vip, lead, round } => self.announce(node, vip, lead, round),
            AgentEvent::Probe { vip, detect, round } => self.probe(node, vip, detect, round),
            AgentEvent::Elect => self.elect(node),
        }
    }

    /// Syncs the maps with the wanted VIPs.
    fn sync(&mut self, node: usize, looked: bool) {
        let carrier = !self.cluster.network.unplugged.contains(&node);
        let Some(agent) = self.cluster.nodes[node].agent.as_deref_mut().filter(|agent| !agent.parting) else { return };
        let first = !std::mem::replace(&mut agent.synced, true);
        let plugged = std::mem::replace(&mut agent.carrier, carrier) != carrier && carrier;
        agent.awaits &= !looked;
        let chosen = !agent.awaits;
        let led: BTreeSet<Vip> = agent.led.keys().copied().collect();
        let stale: Vec<_> = self.cluster.nodes[node]
            .kernel
            .flags
            .iter()
            .filter(|vip| first && !led.contains(vip) || !self.cluster.vips.contains(vip))
            .copied()
            .collect();
        for vip in stale {
            self.set_flag(node, vip, false);
        }
        let unable = if carrier { BTreeSet::new() } else { self.cluster.vips.clone() };
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
        if self.cluster.nodes[node].agent.as_ref().is_none_or(|agent| agent.parting) {
            return;
        }
        self.tick(node);
        let now = self.local(node);
        if self.cluster.nodes[node].agent.as_ref().is_some_and(|agent| agent.has_left(now)) {
            if let Some(agent) = &mut self.cluster.nodes[node].agent {
                agent.parting = true;
                agent.membership.leave(now);
            }
            self.log(Some(node), || "agent: says farewell".to_owned());
            return self.flush(node);
        }
        let after = HEARTBEAT + self.dice.micros(0, 2_000);
        self.schedule_agent(node, after, AgentEvent::Beat);
    }

    fn tick(&mut self, node: usize) {
        let now = self.local(node);
        let at = &mut self.cluster.nodes[node];
        let Some(agent) = &mut at.agent else { return };
        agent.turned = now;
        let yielded = agent.led.keys().filter(|vip| !at.kernel.flags.contains(vip));
        let mut inputs: Vec<_> = yielded.map(|vip| Input::PeerAnnounced(*vip)).collect();
        inputs.push(Input::Tick { carrier: agent.carrier });
        self.work(node, inputs);
    }

    /// Tells an agent to drain, or to stop.
    pub(super) fn drain(&mut self, node: usize, drains: bool, stops: bool) {
        let now = self.local(node);
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        if stops {
            agent.leaving = Some(now);
        }
        self.cluster.nodes[node].leaving = drains;
        self.work(node, vec![Input::Drain(drains)]);
    }

    fn elect(&mut self, node: usize) {
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        if agent.parting {
            return self.flush(node);
        }
        let events = agent.membership.take_events().into_iter().map(|event| match event {
            MembershipEvent::Changed => Input::Peers,
            MembershipEvent::Disowned => Input::Disowned,
            MembershipEvent::Message { from, message } => Input::Message { from, message },
        });
        let inputs = events.chain([Input::Peers]).collect();
        self.work(node, inputs);
    }

    fn report(&mut self, node: usize, vip: Vip, number: u64, outcome: LeaseOutcome) {
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        agent.under_way = agent.under_way.saturating_sub(1);
        if let Some((number, operation)) = agent.waiting.pop_front() {
            agent.under_way += 1;
            self.operate(node, number, operation);
        }
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        if agent.latest.get(&vip) == Some(&number) {
            agent.latest.remove(&vip);
            self.work(node, vec![Input::Stored { vip, outcome }]);
        }
    }

    /// Gives inputs to the election and executes its commands. Returns whether there were any.
    fn work(&mut self, node: usize, mut pending: Vec<Input>) -> bool {
        let mut any = false;
        while !pending.is_empty() {
            for input in std::mem::take(&mut pending) {
                let now = self.local(node);
                if !matches!(input, Input::Tick { .. } | Input::Peers | Input::Wanted(_) | Input::Surveyed { .. }) {
                    self.log(Some(node), || format!("  <- {input:?}"));
                }
                let counts_from_answer = self.mutation == Some(Mutation::CountsFromTheAnswer);
                let Some(agent) = &mut self.cluster.nodes[node].agent else { return any };
                let commands = if counts_from_answer {
                    let peers = agent.counted_from_the_answer(now);
                    agent.election.handle(input, &peers, now)
                } else {
                    agent.election.handle(input, agent.membership.peers(), now)
                };
                any |= !commands.is_empty();
                for command in commands {
                    self.execute(node, command, now, &mut pending);
                }
            }
        }
        self.flush(node);
        any
    }

    fn execute(&mut self, node: usize, command: Command, now: Duration, pending: &mut Vec<Input>) {
        match &command {
            Command::Extend(_) | Command::Heartbeat => {}
            command => self.log(Some(node), || format!("  -> {command:?}")),
        }
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        match command {
            Command::Follow { vip, .. } => {
                agent.led.remove(&vip);
                self.set_flag(node, vip, false);
            }
            Command::Lead { vip, epoch, .. } => {
                self.set_flag(node, vip, true);
                self.checker.led(vip, node, self.cluster.nodes[node].run, epoch);
                self.burst(node, vip);
            }
            Command::Extend(deadline) => {
                let kernel = &mut self.cluster.nodes[node].kernel;
                if kernel.deadline <= now {
                    self.checker.touch_these(&kernel.flags);
                }
                kernel.deadline = deadline;
            }
            Command::Reload => {
                agent.awaits = true;
                let after = self.dice.millis(5, 60);
                self.schedule_agent(node, after, AgentEvent::Sync { looked: true });
            }
            Command::Heartbeat => agent.membership.send_heartbeats(now),
            Command::DiscardEvidence => agent.membership.discard_evidence(now),
            Command::Send { to, message } => agent.membership.send_message(&to, message),
            Command::Publish(item) => self.publish(node, item, now),
            Command::Withdraw(key) => agent.membership.withdraw(&key, now),
            Command::Read(vip) => self.begin(node, vip, StoreOperation::Read(vip)),
            Command::Swap { vip, expected, epoch } => {
                self.begin(node, vip, StoreOperation::Swap { vip, expected, epoch });
            }
            Command::Delete { vip, version } => {
                let operation = StoreOperation::Delete { vip, version };
                self.operate(node, 0, operation);
            }
            Command::Survey if agent.surveying => pending.push(Input::Surveyed { asked: now, leases: None }),
            Command::Survey => {
                agent.surveying = true;
                self.operate(node, 0, StoreOperation::Survey);
            }
            Command::Probe { vip, detect } => {
                let after = self.dice.micros(50, 500);
                self.schedule_agent(node, after, AgentEvent::Probe { vip, detect, round: 0 });
            }
            Command::Conflict { .. } => {}
        }
    }

    fn publish(&mut self, node: usize, item: Item, now: Duration) {
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        if let Err(full) = agent.membership.publish(item, now) {
            self.checker.violate(|| full.to_string());
        }
    }
}

impl Agent {
    /// Returns whether it was asked to stop and may stop now.
    fn has_left(&self, now: Duration) -> bool {
        let waited = self.leaving.map(|since| now.saturating_sub(since));
        waited.is_some_and(|waited| self.election.has_left(waited, self.membership.peers()))
    }

    /// Returns the peers as [`Mutation::CountsFromTheAnswer`] sees them.
    fn counted_from_the_answer(&mut self, now: Duration) -> Peers {
        let mut peers = self.membership.peers().clone();
        if peers.evidence != self.evidence.0 {
            self.evidence = (peers.evidence, now);
        }
        peers.evidence = peers.evidence.map(|_| self.evidence.1);
        peers
    }
}
