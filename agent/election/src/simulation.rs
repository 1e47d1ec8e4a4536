//! A deterministic simulation of whole clusters with faults.
//!
//! It runs the election, its executor and the membership of each node as the agent does. Around them it models
//! boot clocks that differ, kernels that answer until their deadline whatever happens to the agent,
//! a gossip network, a LAN and a store. One seed is one run, to the last bit.
//!
//! [`checker`] has the promises after each kind of fault, and checks them at every event.
//! [`scenario`] has the faults. A run ends when it breaks a promise. Run it again with a trace to
//! see what led to it.

mod agent;
mod checker;
mod clock;
mod cluster;
mod fault;
mod kernel;
mod network;
mod random;
mod scenario;
mod schedule;
mod store;

use std::{
    collections::{BTreeMap, VecDeque},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

pub use self::scenario::Scenario;
use self::{
    agent::NodeHandle,
    checker::Checker,
    cluster::{Build, Cluster},
    fault::Fault,
    random::Dice,
    schedule::Schedule,
    store::{Server, StoreAccess, StoreRequest},
};
pub use crate::mutation::Mutation;
use crate::{ElectionSettings, Input, placement::Candidates};
use vipmux_model::Vip;

/// The most lines of a trace that are kept.
const MOST_LINES: usize = 400;

/// A run of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The faults.
    pub scenario: Scenario,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The number of nodes; `None`: by scenario and seed.
    pub nodes: Option<usize>,
    /// The number of VIPs; `None`: by scenario and seed.
    pub vips: Option<usize>,
    /// The fault that is built into the state machine.
    pub mutation: Option<Mutation>,
    /// Each node has a store of its own, as a directory on its disk.
    pub own_stores: bool,
    /// Record a trace.
    pub trace: bool,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The broken promise.
    pub violation: Option<String>,
    /// The last lines of the trace, if one was recorded.
    pub trace: Vec<String>,
    /// The measurements.
    pub figures: Figures,
}

/// The measurements of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// The number of events.
    pub events: u64,
    /// The simulated time.
    pub simulated: Duration,
    /// The longest time for which two nodes answered for one VIP while a client could reach both.
    pub overlap: Duration,
    /// The longest time for which a VIP had no answer although one was due, counted from the last
    /// fault.
    pub dark: Duration,
    /// The longest time in all for which a VIP had no answer since everything had settled.
    pub gaps: Duration,
    /// The most moves of one VIP since everything had settled.
    pub moves: u32,
    /// The writes at the store since then.
    pub writes: u64,
}

impl Setup {
    /// Creates a run with the sizes that scenario and seed give.
    pub const fn new(scenario: Scenario, seed: u64) -> Self {
        Self { scenario, seed, nodes: None, vips: None, mutation: None, own_stores: false, trace: false }
    }

    /// Returns the command that repeats this run with a trace.
    pub fn command(&self) -> String {
        let Self { scenario, seed, nodes, vips, mutation, own_stores, .. } = *self;
        let mutation = mutation.and_then(|mutation| Mutation::ALL.iter().position(|other| *other == mutation));
        let sizes = [("nodes", nodes), ("vips", vips), ("mutation", mutation)];
        let sizes = sizes.iter().filter_map(|(name, size)| Some(format!(" --{name} {}", (*size)?))).collect::<String>();
        let stores = if own_stores { " --own-stores" } else { "" };
        format!("cargo xtask sim --scenario {} --seed {seed}{sizes}{stores} --trace", scenario.name())
    }

    /// Runs the simulation.
    pub fn run(&self) -> Report {
        let mut world = World::new(self);
        while world.step() {}
        let now = world.schedule.now;
        let mut figures = world.checker.figures;
        figures.simulated = now;
        Report { violation: world.checker.violation.take(), trace: world.trace.lines.into(), figures }
    }
}

/// An event of the world. Each start of an agent has a number. Events of an agent that no longer
/// runs are dropped.
#[derive(Clone, Debug)]
enum WorldEvent {
    Fault(Fault),
    /// An event of a node's agent.
    Agent {
        node: usize,
        run: u64,
        event: AgentEvent,
    },
    /// A request reaches the store.
    Served(StoreRequest),
    /// A node's kernel hears that another announces a VIP.
    Heard {
        node: usize,
        from: usize,
        vip: Vip,
    },
    /// The checker looks at everything.
    Look,
}

/// An event of an agent.
#[derive(Clone, Debug)]
enum AgentEvent {
    /// Manifests were read, or links changed. The maps are synced.
    Sync {
        looked: bool,
    },
    Beat,
    Wake,
    Payload {
        from: usize,
        bytes: Arc<[u8]>,
    },
    /// An operation at the store is done, or was given up.
    Reported {
        asked: Duration,
        input: Input,
    },
    /// The watch of the store reports a change.
    LeaseChange(Input),
    /// An announcement of a leadership: one of a burst.
    Announce {
        vip: Vip,
        lead: u64,
        round: usize,
    },
    /// The LAN is asked for a VIP once more.
    Probe {
        vip: Vip,
        detect: bool,
        round: u32,
    },
    /// The event loop handles the events of the gossip task.
    Elect,
}

struct Trace {
    on: bool,
    lines: VecDeque<String>,
}

impl Trace {
    fn push(&mut self, line: String) {
        if self.lines.len() == MOST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

struct World {
    schedule: Schedule,
    dice: Dice,
    settings: ElectionSettings,
    mutation: Option<Mutation>,
    cluster: Cluster,
    /// The wanted VIPs, as computed from the manifests.
    wanted: Arc<BTreeMap<Vip, Candidates>>,
    /// One that all nodes share, or one of each node.
    servers: Vec<Server>,
    checker: Checker,
    trace: Trace,
}

/// Returns the VIP with this number.
fn vip(number: usize) -> Vip {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Vip::new(Ipv4Addr::from_bits(0x0a00_0001_u32.saturating_add(number)).into())
}

impl World {
    fn new(setup: &Setup) -> Self {
        let mut dice = Dice::new(setup.seed);
        let plan = setup.scenario.plan(setup, &mut dice);
        let cluster = Cluster::new(plan.nodes, plan.vips, plan.promise.scores, &mut dice);
        let servers = if setup.own_stores { plan.nodes } else { 1 };
        let servers = (0..servers).map(|_| Server::default()).collect();
        let mut world = Self {
            schedule: Schedule::new(plan.length),
            dice,
            settings: plan.settings,
            mutation: setup.mutation,
            cluster,
            wanted: Arc::default(),
            servers,
            checker: Checker::new(plan.promise),
            trace: Trace { on: setup.trace, lines: VecDeque::new() },
        };
        world.update_wanted();
        for (at, fault) in plan.faults {
            world.schedule.at(at, WorldEvent::Fault(fault));
        }
        world.schedule.at(Duration::ZERO, WorldEvent::Look);
        world
    }

    /// Handles the next event. Returns whether the run goes on.
    fn step(&mut self) -> bool {
        let Some((at, event)) = self.schedule.pop() else { return false };
        if self.checker.violation.is_some() || !self.schedule.advance(at) {
            self.checker.finish(&self.cluster, &self.servers, self.schedule.now);
            return false;
        }
        self.checker.figures.events += 1;
        match event {
            WorldEvent::Fault(fault) => self.fault(&fault),
            WorldEvent::Agent { node, run, event } => self.at(node).handle_agent_event(run, event),
            WorldEvent::Served(request) => self.serve(&request),
            WorldEvent::Heard { node, from, vip } => self.at(node).hear(from, vip, false),
            WorldEvent::Look => {
                self.checker.touch_all();
                self.schedule.after(self.checker.interval(), WorldEvent::Look);
            }
        }
        self.checker.check(&self.cluster, self.schedule.now);
        true
    }

    /// Schedules an event of the agent that runs on a node now.
    fn schedule_agent(&mut self, node: usize, after: Duration, event: AgentEvent) {
        let run = self.cluster.nodes[node].run;
        self.schedule.after(after, WorldEvent::Agent { node, run, event });
    }

    const fn at(&mut self, node: usize) -> NodeHandle<'_> {
        NodeHandle { world: self, node }
    }

    fn log(&mut self, node: Option<usize>, what: impl FnOnce() -> String) {
        if self.trace.on {
            let name = node.map_or("--", |node| self.cluster.nodes[node].name.as_str());
            self.trace.push(format!("{:>11.6} {name:>4} {}", self.schedule.now.as_secs_f64(), what()));
        }
    }

    /// Computes the wanted VIPs again, as from the manifests.
    fn update_wanted(&mut self) {
        self.wanted = Arc::new(self.cluster.candidates());
        for node in 0..self.cluster.nodes.len() {
            let after = self.dice.millis(5, 100);
            self.schedule_agent(node, after, AgentEvent::Sync { looked: true });
        }
    }
}

#[cfg(test)]
mod tests;
