//! A node with its agent: the two state machines, and the runtime between them and the world.

mod gossip;
mod lan;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    AgentEvent, Mutation, StoreOperation, World,
    cluster::Node,
    store::{Operations, StoreRequest},
};
use crate::{
    Command, Election, ElectionSettings, HEARTBEAT, Input, LeaseOutcome,
    membership::{AgentInfo, Item, Membership, MembershipEvent, MembershipSettings, Peers, WireVersions},
};
use vipmux_model::{NodeName, Vip};

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Agent {
    membership: Membership,
    pub(super) election: Election,
    /// The VIPs that the kernel answers for, as the event loop believes. Each leadership has a
    /// number.
    led: BTreeMap<Vip, u64>,
    store: Operations,
    /// Its `--lease`.
    lease: Duration,
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

/// A node of the world, and the world around it.
pub(super) struct NodeHandle<'w> {
    pub(super) world: &'w mut World,
    /// The number of the node.
    pub(super) node: usize,
}

impl NodeHandle<'_> {
    fn get(&self) -> &Node {
        &self.world.cluster.nodes[self.node]
    }

    fn get_mut(&mut self) -> &mut Node {
        &mut self.world.cluster.nodes[self.node]
    }

    fn agent(&mut self) -> Option<&mut Agent> {
        self.get_mut().agent.as_deref_mut()
    }

    /// Returns `CLOCK_BOOTTIME` of the node.
    fn now(&self) -> Duration {
        self.world.cluster.local(self.node, self.world.schedule.now)
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
        self.world.log(Some(self.node), what);
    }

    /// Schedules an event of the agent that runs now.
    fn schedule(&mut self, after: Duration, event: AgentEvent) {
        self.world.schedule_agent(self.node, after, event);
    }

    /// Starts the agent with empty memory.
    pub(super) fn start(&mut self) {
        if self.get().agent.is_some() {
            return;
        }
        self.log(|| "agent: started".to_owned());
        let (now, seed) = (self.now(), self.world.dice.number());
        let names = self.nodes();
        let local = self.get().name.clone();
        let build = self.get().build;
        let lease = build.lease.unwrap_or(self.world.settings.lease);
        let settings = ElectionSettings { lease, ..self.world.settings };
        let mut membership = Membership::new(local.clone(), seed, MembershipSettings::for_lease(lease), now);
        let info = AgentInfo { version: "0".to_owned(), wire: WireVersions::OWN, lease };
        let _ = membership.publish(Item::Agent(info), now);
        membership.set_nodes(names, now);
        let kernel = &self.get().kernel;
        let led = if now < kernel.deadline { kernel.flags.clone() } else { BTreeSet::new() };
        let mut election = Election::new(local, settings, now).resuming(led);
        election.mutate(self.world.mutation);
        let agent = Agent {
            membership,
            election,
            led: BTreeMap::new(),
            store: Operations::default(),
            lease,
            synced: false,
            carrier: false,
            awaits: false,
            wake: None,
            leaving: None,
            parting: false,
            evidence: (None, Duration::ZERO),
        };
        let since = self.world.schedule.now;
        let node = self.get_mut();
        // Others wait no longer than the lease that this agent publishes.
        node.kernel.deadline = node.kernel.deadline.min(now + lease);
        node.run += 1;
        node.since = since;
        node.leaving = false;
        node.agent = Some(Box::new(agent));
        let (beat, sync) = (self.world.dice.micros(0, 5_000), self.world.dice.millis(20, 150));
        self.schedule(beat, AgentEvent::Beat);
        self.schedule(sync, AgentEvent::Sync { looked: true });
        self.world.show_records(self.node);
        self.flush();
    }

    /// Returns the names of the Node objects.
    fn nodes(&self) -> BTreeSet<NodeName> {
        let cluster = &self.world.cluster;
        cluster.registered().map(|node| cluster.nodes[node].name.clone()).collect()
    }

    /// Kills the process. The kernel's maps stay.
    pub(super) fn kill(&mut self) {
        if self.get_mut().agent.take().is_some() {
            self.log(|| "agent: gone".to_owned());
        }
        (self.get_mut().paused, self.get_mut().hangs) = (None, false);
    }

    pub(super) fn pause(&mut self) {
        if self.get().agent.is_some() && self.get().paused.is_none() {
            self.log(|| "agent: stopped by a signal".to_owned());
            self.get_mut().paused = Some(VecDeque::new());
        }
    }

    pub(super) fn hang(&mut self) {
        if self.get().paused.is_none() {
            self.pause();
            self.get_mut().hangs = self.get().paused.is_some();
        }
    }

    pub(super) fn resume(&mut self) {
        let Some(backlog) = self.get_mut().paused.take() else { return };
        self.get_mut().hangs = false;
        self.get_mut().since = self.world.schedule.now;
        self.log(|| format!("agent: goes on, {} turns behind", backlog.len()));
        // A task of its own handles gossip, before or after the event loop goes on. The loop may
        // have been stopped just before it handled an event.
        let (speaks_first, loop_first) = (self.world.dice.chance(500), self.world.dice.chance(200));
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
        let run = self.get().run;
        for event in order.into_iter().flatten() {
            self.handle_agent_event(run, event);
        }
    }

    pub(super) fn handle_agent_event(&mut self, run: u64, event: AgentEvent) {
        let at = self.get_mut();
        if at.run != run || at.agent.is_none() {
            return;
        }
        let is_gossip = matches!(event, AgentEvent::Payload { .. } | AgentEvent::Wake);
        if let Some(backlog) = at.paused.as_mut().filter(|_| !at.hangs || !is_gossip) {
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
            AgentEvent::Sync { looked } => self.sync(looked),
            AgentEvent::Beat => self.beat(),
            AgentEvent::Wake => self.wake(),
            AgentEvent::Payload { from, bytes } => self.receive(from, &bytes),
            AgentEvent::Stored { vip, number, outcome } => self.report(vip, number, outcome),
            AgentEvent::Surveyed { asked, leases } => {
                if let Some(agent) = self.agent() {
                    agent.store.surveying = false;
                }
                self.work(vec![Input::Surveyed { asked, leases }]);
            }
            AgentEvent::LeaseChanged { vip, lease } => drop(self.work(vec![Input::LeaseChanged { vip, lease }])),
            AgentEvent::Recorded { node, asked, outcome } => {
                self.work(vec![Input::Recorded { node, asked, outcome }]);
            }
            AgentEvent::RecordChanged { node, record } => {
                self.work(vec![Input::RecordChanged { node, record: Some(record) }]);
            }
            AgentEvent::Announce { vip, lead, round } => self.announce(vip, lead, round),
            AgentEvent::Probe { vip, detect, round } => self.probe(vip, detect, round),
            AgentEvent::Elect => self.elect(),
        }
    }

    /// Syncs the maps with the wanted VIPs.
    fn sync(&mut self, looked: bool) {
        let carrier = !self.world.cluster.network.unplugged.contains(&self.node);
        let Some(agent) = self.get_mut().agent.as_deref_mut().filter(|agent| !agent.parting) else { return };
        let first = !std::mem::replace(&mut agent.synced, true);
        let plugged = std::mem::replace(&mut agent.carrier, carrier) != carrier && carrier;
        agent.awaits &= !looked;
        let chosen = !agent.awaits;
        let led: BTreeSet<Vip> = agent.led.keys().copied().collect();
        if first {
            self.get_mut().kernel.assured.clear();
        }
        let stale: Vec<_> = self.world.cluster.nodes[self.node]
            .kernel
            .flags
            .iter()
            .filter(|vip| first && !led.contains(vip) || !self.world.cluster.vips.contains(vip))
            .copied()
            .collect();
        for vip in stale {
            self.set_flag(vip, false);
        }
        let unable = if carrier { BTreeSet::new() } else { self.world.cluster.vips.clone() };
        self.work(vec![Input::Unable(unable)]);
        if chosen {
            let (nodes, now) = (self.nodes(), self.now());
            if let Some(agent) = self.agent() {
                agent.membership.set_nodes(nodes, now);
            }
            let wanted = Arc::clone(&self.world.wanted);
            let said = self.work(vec![Input::Wanted(wanted)]);
            if said {
                self.tick();
            }
        }
        if plugged {
            for vip in led {
                self.burst(vip);
            }
        }
    }

    fn beat(&mut self) {
        if self.get().agent.as_ref().is_none_or(|agent| agent.parting) {
            return;
        }
        self.tick();
        let now = self.now();
        if self.get().agent.as_ref().is_some_and(|agent| agent.has_left(now)) {
            if let Some(agent) = self.agent() {
                agent.parting = true;
                agent.membership.leave(now);
            }
            self.log(|| "agent: says farewell".to_owned());
            return self.flush();
        }
        let after = HEARTBEAT + self.world.dice.micros(0, 2_000);
        self.schedule(after, AgentEvent::Beat);
    }

    fn tick(&mut self) {
        let now = self.now();
        let Some(agent) = self.agent() else { return };
        agent.membership.note_event_loop(agent.lease, now);
        let carrier = agent.carrier;
        let mut inputs: Vec<_> = self.take_heard().into_iter().map(Input::PeerAnnounced).collect();
        inputs.push(Input::Tick { carrier });
        self.work(inputs);
    }

    /// Tells an agent to drain, or to stop.
    pub(super) fn drain(&mut self, drains: bool, stops: bool) {
        let now = self.now();
        let Some(agent) = self.agent() else { return };
        if stops {
            agent.leaving = Some(now);
        }
        self.get_mut().leaving = drains;
        self.work(vec![Input::Drain(drains)]);
    }

    fn elect(&mut self) {
        let now = self.now();
        let Some(agent) = self.agent() else { return };
        if agent.parting {
            return self.flush();
        }
        let events = agent.membership.take_events(now).into_iter().map(|event| match event {
            MembershipEvent::Changed => Input::Peers,
            MembershipEvent::Disowned => Input::Disowned,
            MembershipEvent::Message { from, message } => Input::Message { from, message },
        });
        let inputs = events.chain([Input::Peers]).collect();
        self.work(inputs);
    }

    fn report(&mut self, vip: Vip, number: Option<u64>, outcome: LeaseOutcome) {
        let Some(agent) = self.agent() else { return };
        let is_latest = agent.store.end(vip, number);
        if let Some((number, operation)) = agent.store.begin_next() {
            self.operate(Some(number), operation);
        }
        if is_latest {
            self.work(vec![Input::Stored { vip, outcome }]);
        }
    }

    /// Gives inputs to the election and executes its commands. Returns whether there were any.
    fn work(&mut self, mut pending: Vec<Input>) -> bool {
        let mut any = false;
        while !pending.is_empty() {
            for input in std::mem::take(&mut pending) {
                let now = self.now();
                if !matches!(input, Input::Tick { .. } | Input::Peers | Input::Wanted(_) | Input::Surveyed { .. }) {
                    self.log(|| format!("  <- {input:?}"));
                }
                let counts_from_answer = self.world.mutation == Some(Mutation::CountsFromTheAnswer);
                let Some(agent) = self.agent() else { return any };
                let commands = if counts_from_answer {
                    let peers = agent.counted_from_the_answer(now);
                    agent.election.handle(input, &peers, now)
                } else {
                    agent.election.handle(input, agent.membership.peers(), now)
                };
                any |= !commands.is_empty();
                for command in commands {
                    self.execute(command, now, &mut pending);
                }
            }
        }
        self.flush();
        any
    }

    fn execute(&mut self, command: Command, now: Duration, pending: &mut Vec<Input>) {
        match &command {
            Command::Extend(_) | Command::Heartbeat => {}
            command => self.log(|| format!("  -> {command:?}")),
        }
        let Some(agent) = self.agent() else { return };
        match command {
            Command::Follow { vip, .. } => {
                agent.led.remove(&vip);
                self.get_mut().kernel.assure(vip, false);
                self.set_flag(vip, false);
            }
            Command::Lead { vip, epoch, .. } => {
                self.set_flag(vip, true);
                self.world.checker.led(vip, self.node, self.get().run, epoch);
                self.burst(vip);
            }
            Command::Extend(deadline) => {
                let kernel = &mut self.world.cluster.nodes[self.node].kernel;
                if kernel.deadline <= now {
                    self.world.checker.touch_these(&kernel.flags);
                }
                kernel.deadline = deadline;
                if let Some(agent) = self.agent() {
                    agent.membership.note_deadline(deadline, now);
                }
            }
            Command::Reload => {
                agent.awaits = true;
                let after = self.world.dice.millis(5, 60);
                let after = self.get().reload.unwrap_or(after);
                self.schedule(after, AgentEvent::Sync { looked: true });
            }
            Command::Heartbeat => agent.membership.send_heartbeats(now),
            Command::DiscardEvidence => agent.membership.discard_evidence(now),
            Command::Send { to, message } => agent.membership.send_message(&to, message),
            Command::Publish(item) => self.publish(item, now),
            Command::Withdraw(key) => agent.membership.withdraw(&key, now),
            Command::Read(vip) => self.begin(vip, StoreOperation::Read(vip)),
            Command::Swap { vip, expected, epoch } => {
                self.begin(vip, StoreOperation::Swap { vip, expected, epoch });
            }
            Command::Delete { vip, version } => {
                let operation = StoreOperation::Delete { vip, version };
                self.operate(None, operation);
            }
            Command::ReadRecord(node) => self.operate(None, StoreOperation::ReadRecord(node)),
            Command::SwapRecord { node, expected, content } => {
                self.operate(None, StoreOperation::SwapRecord { node, expected, content });
            }
            Command::Survey if agent.store.surveying => pending.push(Input::Surveyed { asked: now, leases: None }),
            Command::Survey => {
                agent.store.surveying = true;
                self.operate(None, StoreOperation::Survey);
            }
            Command::Probe { vip, detect } => {
                let after = self.world.dice.micros(50, 500);
                self.schedule(after, AgentEvent::Probe { vip, detect, round: 0 });
            }
            Command::Assure { vip, assured } => self.get_mut().kernel.assure(vip, assured),
            Command::Ask(name) => agent.membership.ask(&name, now),
            Command::Conflict { .. } | Command::Forged { .. } => {}
        }
    }

    /// Begins an operation whose result the election handles.
    fn begin(&mut self, vip: Vip, operation: StoreOperation) {
        let Some(agent) = self.agent() else { return };
        agent.store.push(vip, operation);
        if let Some((number, operation)) = agent.store.begin_next() {
            self.operate(Some(number), operation);
        }
    }

    fn operate(&mut self, number: Option<u64>, operation: StoreOperation) {
        let request = StoreRequest { node: self.node, run: self.get().run, number, asked: self.now(), operation };
        self.world.send(request);
    }

    fn publish(&mut self, item: Item, now: Duration) {
        let Some(agent) = self.agent() else { return };
        if let Err(full) = agent.membership.publish(item, now) {
            self.world.checker.violate(|| full.to_string());
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
