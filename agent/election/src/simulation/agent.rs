//! A node with its agent: the two state machines, and the runtime between them and the world.

mod gossip;
mod lan;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use super::{
    AgentEvent, Fault, Mutation, World, WorldEvent,
    cluster::{Interruption, Node},
    store::{Operations, StoreRequest},
};
use crate::{
    Command, Election, ElectionSettings, Executor, HEARTBEAT, Input, NodeIo, StoreOperation,
    membership::{AgentInfo, Full, Item, Membership, MembershipSettings, Peers, Why, WireVersions},
};
use vipmux_model::{NodeName, Vip};

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Agent {
    membership: Membership,
    pub(super) executor: Executor,
    /// The VIPs that the kernel answers for, as the event loop believes. Each leadership has a
    /// number.
    led: BTreeMap<Vip, u64>,
    store: Operations,
    /// The commands that the executor has executed, and that the event loop has not looked at.
    executed: Vec<Command>,
    /// Its `--lease`.
    lease: Duration,
    /// Its version is a later one.
    later: bool,
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
            executor: Executor::new(election),
            led: BTreeMap::new(),
            store: Operations::default(),
            executed: Vec::new(),
            lease,
            later: build.later,
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
        node.off = false;
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
        if self.get().agent.as_ref().is_some_and(|agent| agent.executor.next_command().is_some()) {
            self.work();
        }
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
            AgentEvent::Reported { asked, input } => {
                let is_survey = matches!(input, Input::Surveyed { leases: Some(_), .. });
                let store = self.world.store_id(self.node).filter(|_| is_survey).map(Input::Store);
                self.give(store);
                self.report(asked, input);
            }
            AgentEvent::LeaseChange(change) => drop(self.give([change])),
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
        self.give([Input::Unable(unable)]);
        if chosen {
            let (nodes, now) = (self.nodes(), self.now());
            if let Some(agent) = self.agent() {
                agent.membership.set_nodes(nodes, now);
            }
            let wanted = Arc::clone(&self.world.wanted);
            if self.give([Input::Wanted(wanted)]) {
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
        let runs = self.get().paused.is_none();
        if runs && self.get().agent.as_ref().is_some_and(|agent| agent.has_left(now)) {
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
        let (now, heard) = (self.now(), self.take_heard());
        let Some(agent) = self.agent() else { return };
        agent.membership.note_event_loop(agent.lease, now);
        agent.executor.push_heartbeat(heard, agent.carrier);
        self.work();
    }

    /// Tells an agent to drain, or to stop.
    pub(super) fn drain(&mut self, drains: bool, stops: bool) {
        let now = self.now();
        let Some(agent) = self.agent() else { return };
        if stops {
            agent.leaving = Some(now);
        }
        self.get_mut().leaving = drains;
        self.give([Input::Drain(drains)]);
    }

    fn elect(&mut self) {
        let now = self.now();
        let Some(agent) = self.agent() else { return };
        if agent.parting {
            return self.flush();
        }
        let events = agent.membership.take_events(now);
        agent.executor.push_events(events);
        self.work();
    }

    fn report(&mut self, asked: Duration, input: Input) {
        let Some(agent) = self.agent() else { return };
        let next = agent.store.end(&input);
        agent.executor.push_report(asked, input);
        if let Some((operation, asked)) = next {
            self.operate(operation, asked);
        }
        self.work();
    }

    /// Gives inputs to the election. Returns whether there were commands.
    fn give(&mut self, inputs: impl IntoIterator<Item = Input>) -> bool {
        let Some(agent) = self.agent() else { return false };
        agent.executor.push(inputs);
        self.work()
    }

    /// Lets the agent handle its inputs and execute the commands. Returns whether there were any.
    fn work(&mut self) -> bool {
        if self.get().paused.is_some() {
            return false;
        }
        let Some(mut agent) = self.get_mut().agent.take() else { return false };
        let interruption = self.process(&mut agent);
        let executed = if interruption.is_none() { std::mem::take(&mut agent.executed) } else { Vec::new() };
        self.get_mut().agent = Some(agent);
        if let Some(interruption) = interruption {
            self.interrupt(interruption);
            return false;
        }
        for command in &executed {
            self.execute(command);
        }
        self.flush();
        !executed.is_empty()
    }

    /// Handles the inputs and executes the commands until an interruption.
    fn process(&mut self, agent: &mut Agent) -> Option<Interruption> {
        loop {
            while let Some(next) = agent.executor.next_command() {
                if let Some(interruption) = self.take_interruption(next) {
                    return Some(interruption);
                }
                let Agent { membership, executor, led, store, .. } = agent;
                let mut io = AgentIo { handle: self, led, store };
                let Ok(command) = executor.execute_next(membership, &mut io);
                if let Some(command) =
                    command.as_ref().filter(|it| !matches!(it, Command::Extend(_) | Command::Heartbeat))
                {
                    self.log(|| format!("  -> {command:?}"));
                }
                agent.executed.extend(command);
            }
            let input = agent.executor.next_input()?;
            if !matches!(input, Input::Tick { .. } | Input::Peers | Input::Wanted(_) | Input::Surveyed { .. }) {
                self.log(|| format!("  <- {input:?}"));
            }
            let now = self.now();
            if self.world.mutation == Some(Mutation::CountsFromTheAnswer) {
                let peers = agent.counted_from_the_answer(now);
                agent.executor.handle_next(&peers, now);
            } else {
                agent.executor.handle_next(agent.membership.peers(), now);
            }
        }
    }

    /// Takes the interruption of the agent if it comes before this command.
    fn take_interruption(&mut self, next: &Command) -> Option<Interruption> {
        let interruption = &mut self.get_mut().interruption;
        let is_meant =
            |at: &&mut Interruption| *next != Command::Heartbeat && at.extends == matches!(next, Command::Extend(_));
        let at = interruption.as_mut().filter(is_meant)?;
        if at.after == 0 {
            return interruption.take();
        }
        at.after -= 1;
        None
    }

    fn interrupt(&mut self, interruption: Interruption) {
        self.log(|| "agent: interrupted between two commands".to_owned());
        let end = if interruption.dies {
            self.kill();
            Fault::Start(self.node)
        } else {
            self.pause();
            Fault::Resume(self.node)
        };
        self.world.schedule.after(interruption.lasts, WorldEvent::Fault(end));
        self.world.checker.disturbed = self.world.schedule.now;
    }

    /// Executes what the executor leaves to the agent.
    fn execute(&mut self, command: &Command) {
        match *command {
            Command::Lead { ref why, .. }
                if *why != Why::First && self.world.mutation == Some(Mutation::AnnouncesNoTakeover) => {}
            Command::Lead { vip, .. } if self.agent().is_some_and(|agent| agent.led.contains_key(&vip)) => {
                self.burst(vip);
            }
            Command::Reload => {
                if let Some(agent) = self.agent() {
                    agent.awaits = true;
                }
                let after = self.world.dice.millis(5, 60);
                let after = self.get().reload.unwrap_or(after);
                self.schedule(after, AgentEvent::Sync { looked: true });
            }
            Command::Probe { vip, detect } => {
                let after = self.world.dice.micros(50, 500);
                self.schedule(after, AgentEvent::Probe { vip, detect, round: 0 });
            }
            _ => {}
        }
    }

    fn operate(&mut self, operation: StoreOperation, asked: Duration) {
        let request = StoreRequest { node: self.node, run: self.get().run, asked, operation };
        self.world.send(request);
    }
}

/// The kernel of a node and its way to the store, while its agent executes commands.
struct AgentIo<'a, 'w> {
    handle: &'a mut NodeHandle<'w>,
    led: &'a mut BTreeMap<Vip, u64>,
    store: &'a mut Operations,
}

impl NodeIo for AgentIo<'_, '_> {
    /// The shipped agent ends when a write of its kernel fails, as [`Fault::Interrupt`] ends this one.
    type Error = Infallible;

    fn lead(&mut self, vip: Vip, epoch: u64) -> Result<(), Infallible> {
        let run = self.handle.get().run;
        self.led.insert(vip, 0);
        self.handle.set_flag(vip, true);
        self.handle.world.checker.led(vip, self.handle.node, run, epoch);
        Ok(())
    }

    fn follow(&mut self, vip: Vip) -> Result<(), Infallible> {
        self.led.remove(&vip);
        self.handle.get_mut().kernel.assure(vip, false);
        self.handle.set_flag(vip, false);
        Ok(())
    }

    fn assure(&mut self, vip: Vip, assured: bool) -> Result<(), Infallible> {
        self.handle.get_mut().kernel.assure(vip, assured);
        Ok(())
    }

    fn extend(&mut self, deadline: Duration) -> Result<(), Infallible> {
        let now = self.handle.now();
        let World { cluster, checker, .. } = &mut *self.handle.world;
        let kernel = &mut cluster.nodes[self.handle.node].kernel;
        if kernel.deadline <= now {
            checker.touch_these(&kernel.flags);
        }
        kernel.deadline = deadline;
        Ok(())
    }

    fn begin(&mut self, operation: StoreOperation, asked: Duration) -> bool {
        if operation == StoreOperation::Survey && std::mem::replace(&mut self.store.surveying, true) {
            return false;
        }
        if let Some((operation, asked)) = self.store.push(operation, asked) {
            self.handle.operate(operation, asked);
        }
        true
    }

    fn note_full(&mut self, full: Full) {
        self.handle.world.checker.violate(|| full.to_string());
    }
}

impl Agent {
    /// Returns whether it was asked to stop and may stop now.
    fn has_left(&self, now: Duration) -> bool {
        let waited = self.leaving.map(|since| now.saturating_sub(since));
        waited.is_some_and(|waited| self.executor.election().has_left(waited, self.membership.peers()))
    }

    /// Returns the peers as [`Mutation::CountsFromTheAnswer`] sees them.
    fn counted_from_the_answer(&mut self, now: Duration) -> Peers {
        let mut peers = self.membership.peers().clone();
        if peers.evidence_since != self.evidence.0 {
            self.evidence = (peers.evidence_since, now + HEARTBEAT);
        }
        peers.evidence_since = peers.evidence_since.map(|_| self.evidence.1);
        peers
    }
}
