//! A deterministic simulation of whole clusters: the election and the membership of each node as the agent runs them, and
//! a model of what they run on: boot clocks that are apart, kernels that answer until their deadline whatever becomes of the
//! agent, a gossip network, a LAN and a store, all with faults. One seed is one run, to the last bit.
//!
//! What is checked at every event, and what is promised after which faults, is in [`checker`]; what is done to a cluster, in
//! [`scenario`]. A run that breaks a promise ends there; run again with a trace, it tells what led to it.

mod agent;
mod checker;
mod clock;
mod fault;
mod kernel;
mod mutation;
mod network;
mod random;
mod scenario;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use self::{
    agent::Agent,
    checker::Checker,
    clock::Clock,
    fault::Fault,
    kernel::Kernel,
    network::Network,
    random::Dice,
    store::{Access, Operation, Server},
};
pub use self::{mutation::Mutation, scenario::Scenario};
use super::{
    Outcome, Settings,
    placement::{Contender, Contenders},
};
use crate::{
    election::lease::Lease,
    model::{NodeName, Vip},
};

/// Lines of a trace that are kept.
const MOST_LINES: usize = 400;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What is done to the cluster.
    pub scenario: Scenario,
    /// What is left to chance.
    pub seed: u64,
    /// Nodes; `None`: as the scenario and the seed say.
    pub nodes: Option<usize>,
    /// VIPs; `None`: likewise.
    pub vips: Option<usize>,
    /// How the machine is broken on purpose.
    pub mutation: Option<Mutation>,
    /// Whether to tell what happened.
    pub trace: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The promise that was broken.
    pub violation: Option<String>,
    /// The last lines of what happened, if that was asked for.
    pub trace: Vec<String>,
    /// Figures.
    pub figures: Figures,
}

/// What was measured on the way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Events.
    pub events: u64,
    /// Time that went by in the world.
    pub simulated: Duration,
    /// The longest that two nodes answered for one VIP where a client could reach both.
    pub overlap: Duration,
    /// The longest that a VIP was without an answer for which one was due, counted from the last fault.
    pub dark: Duration,
    /// Most moves of one VIP since everything had settled.
    pub moves: u32,
    /// Writes at the store since then.
    pub writes: u64,
}

impl Setup {
    /// As the scenario and the seed say.
    pub const fn new(scenario: Scenario, seed: u64) -> Self {
        Self { scenario, seed, nodes: None, vips: None, mutation: None, trace: false }
    }

    /// Runs it.
    pub fn run(&self) -> Report {
        let mut world = World::new(self);
        while world.step() {}
        let now = world.now;
        let mut figures = world.checker.figures;
        figures.simulated = now;
        Report { violation: world.checker.violation.take(), trace: world.trace.lines.into(), figures }
    }
}

/// What will happen. Of an agent that is not running any more nothing does: each start has a number.
#[derive(Clone, Debug)]
enum Happening {
    Fault(Fault),
    /// Something of a node's agent.
    Turn {
        node: usize,
        run: u64,
        turn: Turn,
    },
    /// An operation reaches the store.
    Served {
        node: usize,
        run: u64,
        number: u64,
        operation: Operation,
        asked: Duration,
    },
    /// A node's kernel hears that another announces a VIP.
    Heard {
        node: usize,
        from: usize,
        vip: Vip,
    },
    /// The checker looks, whether or not something happened.
    Look,
}

/// What happens to an agent.
#[derive(Clone, Debug)]
enum Turn {
    /// Manifests were read, or links changed: the maps are brought in sync.
    Sync {
        looked: bool,
    },
    Beat,
    Wake,
    Payload {
        from: usize,
        bytes: Arc<[u8]>,
    },
    Stored {
        vip: Vip,
        number: u64,
        outcome: Outcome,
    },
    Surveyed {
        asked: Duration,
        leases: Option<imbl::OrdMap<Vip, Lease>>,
    },
    /// An announcement of a leadership, and which of the burst it is.
    Announce {
        vip: Vip,
        lead: u64,
        round: usize,
    },
    /// The LAN is asked for a VIP, again.
    Probe {
        vip: Vip,
        detect: bool,
        round: u32,
    },
    /// The event loop looks at what the task that speaks has heard.
    Elect,
}

/// A node.
struct Node {
    name: NodeName,
    clock: Clock,
    kernel: Kernel,
    agent: Option<Box<Agent>>,
    /// How often an agent was started.
    run: u64,
    /// What came for an agent that is stopped, by SIGSTOP.
    paused: Option<VecDeque<Turn>>,
    access: Access,
    cordoned: bool,
    /// It was told to drain, or to stop.
    leaving: bool,
    /// Since when it is there: it was started, resumed or plugged in last.
    since: Duration,
}

struct Trace {
    on: bool,
    lines: VecDeque<String>,
}

struct World {
    now: Duration,
    until: Duration,
    sequence: u64,
    queue: BTreeMap<(Duration, u64), Happening>,
    dice: Dice,
    settings: Settings,
    mutation: Option<Mutation>,
    nodes: Vec<Node>,
    names: BTreeMap<NodeName, usize>,
    network: Network,
    server: Server,
    vips: BTreeSet<Vip>,
    wanted: Arc<BTreeMap<Vip, Contenders>>,
    /// Addresses that others have.
    strangers: BTreeSet<Vip>,
    checker: Checker,
    trace: Trace,
}

/// The VIP of this number.
fn vip(number: usize) -> Vip {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Vip(Ipv4Addr::from_bits(0x0a00_0001_u32.saturating_add(number)).into())
}

impl World {
    fn new(setup: &Setup) -> Self {
        let mut dice = Dice::new(setup.seed);
        let plan = setup.scenario.plan(setup, &mut dice);
        let nodes: Vec<_> = (0..plan.nodes)
            .map(|number| Node {
                name: NodeName(format!("n{number}")),
                clock: Clock {
                    offset: dice.millis(1000, 1_000_000_000),
                    drift: i64::try_from(dice.below(20_001)).unwrap_or(0) - 10_000,
                },
                kernel: Kernel::default(),
                agent: None,
                run: 0,
                paused: None,
                access: Access::Open,
                cordoned: false,
                leaving: false,
                since: Duration::ZERO,
            })
            .collect();
        let names = nodes.iter().enumerate().map(|(at, node)| (node.name.clone(), at)).collect();
        let mut world = Self {
            now: Duration::ZERO,
            until: plan.length,
            sequence: 0,
            queue: BTreeMap::new(),
            dice,
            settings: plan.settings,
            mutation: setup.mutation,
            nodes,
            names,
            network: Network::new(),
            server: Server::default(),
            vips: (0..plan.vips).map(vip).collect(),
            wanted: Arc::default(),
            strangers: BTreeSet::new(),
            checker: Checker::new(plan.promise),
            trace: Trace { on: setup.trace, lines: VecDeque::new() },
        };
        world.contend();
        for (at, fault) in plan.faults {
            world.at(at, Happening::Fault(fault));
        }
        world.at(Duration::ZERO, Happening::Look);
        world
    }

    /// Whether it goes on.
    fn step(&mut self) -> bool {
        let Some(((at, _), happening)) = self.queue.pop_first() else { return false };
        if at > self.until || self.checker.violation.is_some() {
            self.finish();
            return false;
        }
        self.now = at;
        self.checker.figures.events += 1;
        match happening {
            Happening::Fault(fault) => self.fault(&fault),
            Happening::Turn { node, run, turn } => self.take_turn(node, run, turn),
            Happening::Served { node, run, number, operation, asked } => {
                self.serve(node, run, number, operation, asked);
            }
            Happening::Heard { node, from, vip } => self.hear(node, from, vip),
            Happening::Look => {
                self.checker.touch_all();
                self.after(self.checker.interval(), Happening::Look);
            }
        }
        self.check();
        true
    }

    fn at(&mut self, at: Duration, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), happening);
    }

    fn after(&mut self, after: Duration, happening: Happening) {
        self.at(self.now + after, happening);
    }

    /// Something of the agent that runs on a node now.
    fn turn_after(&mut self, node: usize, after: Duration, turn: Turn) {
        let run = self.nodes[node].run;
        self.after(after, Happening::Turn { node, run, turn });
    }

    /// `CLOCK_BOOTTIME` of a node.
    fn local(&self, node: usize) -> Duration {
        self.nodes[node].clock.local(self.now)
    }

    fn tell(&mut self, node: Option<usize>, what: impl FnOnce() -> String) {
        if self.trace.on {
            if self.trace.lines.len() == MOST_LINES {
                self.trace.lines.pop_front();
            }
            let name = node.map_or("--", |node| self.nodes[node].name.0.as_str());
            self.trace.lines.push_back(format!("{:>11.6} {name:>4} {}", self.now.as_secs_f64(), what()));
        }
    }

    /// What the manifests say, anew.
    fn contend(&mut self) {
        let contenders: Contenders = self
            .nodes
            .iter()
            .map(|node| Contender { node: node.name.clone(), weight: 1, excluded: false, cordoned: node.cordoned })
            .collect();
        self.wanted = Arc::new(self.vips.iter().map(|vip| (*vip, contenders.clone())).collect());
        for node in 0..self.nodes.len() {
            let after = self.dice.millis(5, 100);
            self.turn_after(node, after, Turn::Sync { looked: true });
        }
    }

    /// A node's kernel would answer a client for this VIP, if that can reach it.
    fn answers(&self, node: usize, vip: Vip) -> bool {
        self.nodes[node].kernel.answers(vip, self.local(node)) && self.network.is_on(node)
    }
}

#[cfg(test)]
mod tests;
