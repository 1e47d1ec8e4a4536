//! The scenarios: the faults of a run, by the scenario's name and the seed.

mod script;

use std::time::Duration;

use script::Script;

use super::{
    Fault, Setup, StoreAccess,
    checker::{COLD, Promise, WINDOW},
    random::Dice,
};
use crate::ElectionSettings;

/// A kind of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// Nothing.
    Quiet,
    /// Three of ten gossip messages are lost.
    Loss,
    /// Agents and nodes die and come back.
    Crash,
    /// Agents are stopped and go on.
    Pause,
    /// Event loops stand still, and gossip goes on.
    Hang,
    /// One agent, or its event loop, stands still for a third of each second.
    Stutter,
    /// Agents are stopped for a moment, and read their objects again for seconds.
    SlowSource,
    /// Hypervisors stop machines, whose clocks stand still meanwhile.
    Freeze,
    /// Links go down and come up.
    Link,
    /// Nodes are drained, cordoned, and stopped in order.
    Drain,
    /// Node objects are deleted and made again, also when agents stop or die.
    Delete,
    /// Nodes are cut off behind the switch.
    Cut,
    /// The store cannot be reached, or its answers do not come, while agents come and go.
    Store,
    /// The store answers slowly, or no request of all nodes, while a node dies.
    SlowStore,
    /// Gossip is filtered, also one way, while the LAN and the store work.
    Gossip,
    /// An agent starts, and hears no other, while the LAN and the store work.
    Solitude,
    /// The LAN is in parts, or loses frames one way.
    Lan,
    /// Gossip, LAN and store at once are in two parts.
    Partition,
    /// Agents are upgraded and rolled back. The builds speak differently, and have a `--lease` of
    /// their own.
    Versions,
    /// Half of the nodes or more go at once, for long, also while the store is slow.
    Half,
    /// One of two nodes dies, and switches answer in its name.
    Proxy,
    /// One node at a time dies, stands still or loses its link. A majority lives.
    Single,
    /// Nodes die, drain and come back. Some VIPs prefer nodes to others.
    Scores,
    /// VIPs come and go.
    Vips,
    /// VIPs are announced in a peer's name, and foreign speakers have addresses.
    Spoof,
    /// VIPs are announced in a peer's name, again and again.
    Forge,
    /// The same, while nodes and networks have faults.
    Siege,
    /// One agent dies and comes back all the time.
    Flap,
    /// All of these.
    Chaos,
    /// One node starts, and takes all of a thousand VIPs. The others come later.
    Cold,
    /// One of two nodes dies, and the other one takes its share of a thousand VIPs, by a slow store.
    Pair,
    /// A thousand nodes, ten thousand VIPs, and a tenth of the nodes dies at once.
    Large,
}

/// The plan of a run.
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) vips: usize,
    pub(super) settings: ElectionSettings,
    pub(super) length: Duration,
    pub(super) faults: Vec<(Duration, Fault)>,
    pub(super) promise: Promise,
}

/// The time at which faults begin, milliseconds. All nodes have started by then, and VIPs have
/// moved to nodes that came later.
const BEGIN: u64 = 10_000;
/// The quiet time at the end, milliseconds.
const TAIL: u64 = 14_000;

/// The time until nodes that come late have their share.
const BALANCED: Duration = Duration::from_mins(4);

const STRICT: Promise = Promise {
    overlap: Duration::ZERO,
    // The time that a read and a write of the Lease take is beside the second.
    answer: Duration::from_millis(1_050),
    half: COLD,
    without_store: COLD,
    moves: u32::MAX,
    writes: u64::MAX,
    gaps: Duration::MAX,
    balance: true,
    scores: false,
    interval: Duration::from_millis(50),
};

impl Scenario {
    /// The scenarios that are small enough to run often.
    pub const SMALL: [Self; 29] = [
        Self::Quiet,
        Self::Loss,
        Self::Crash,
        Self::Pause,
        Self::Link,
        Self::Drain,
        Self::Cut,
        Self::Store,
        Self::Gossip,
        Self::Lan,
        Self::Partition,
        Self::Vips,
        Self::Spoof,
        Self::Flap,
        Self::Chaos,
        Self::Forge,
        Self::Siege,
        Self::Solitude,
        Self::SlowStore,
        Self::Freeze,
        Self::Versions,
        Self::Half,
        Self::Single,
        Self::Scores,
        Self::Proxy,
        Self::Hang,
        Self::SlowSource,
        Self::Delete,
        Self::Stutter,
    ];

    /// The scenarios that also run with a store of each node's own.
    pub const OWN_STORES: [Self; 9] = [
        Self::Crash,
        Self::Pause,
        Self::Link,
        Self::Drain,
        Self::Cut,
        Self::Partition,
        Self::Flap,
        Self::Half,
        Self::Single,
    ];

    /// Returns the scenario's name, in lower-case letters.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Returns the scenario of this name. The error lists all names.
    pub fn named(name: &str) -> Result<Self, String> {
        let all = || Self::SMALL.into_iter().chain([Self::Cold, Self::Pair, Self::Large]);
        all().find(|scenario| scenario.name() == name).ok_or_else(|| {
            let names: Vec<_> = all().map(Self::name).collect();
            format!("choose one of {}", names.join(", "))
        })
    }

    pub(super) fn plan(self, setup: &Setup, dice: &mut Dice) -> Plan {
        match self {
            Self::Large => return large(setup, dice),
            Self::Cold => return cold(setup, dice),
            Self::Pair => return pair(setup, dice),
            _ => {}
        }
        let nodes = setup.nodes.unwrap_or_else(|| [3, 3, 3, 4, 5, 2][dice.index(6)]);
        let nodes = match self {
            Self::Single | Self::Hang | Self::SlowSource => nodes.max(3),
            Self::Proxy => 2,
            _ => nodes,
        };
        // Balance and scores are at odds only with many VIPs.
        let times = if self == Self::Scores { 5 } else { 1 };
        let vips = setup.vips.unwrap_or_else(|| times * (1 + dice.index(4)));
        let settings = ElectionSettings {
            hold_down: Duration::from_millis([0, 500, 2000][dice.index(3)]),
            detect: dice.chance(500),
            ..ElectionSettings::default()
        };
        let mut script = Script { dice, nodes, vips, faults: Vec::new() };
        for node in 0..nodes {
            let at = script.dice.below(300);
            script.add(at, Fault::Start(node));
        }
        let spell = BEGIN + 8_000 + script.dice.below(12_000);
        let during = BEGIN..spell;
        let (mut promise, length) = script.write(self, during);
        if setup.own_stores {
            // docs/failover.md says so. A node that is cut off leads on, and others take its VIPs.
            let more = Duration::from_millis(200);
            (promise.answer, promise.without_store) = (promise.answer + more, promise.without_store + more);
            if matches!(self, Self::Cut | Self::Single) {
                promise.overlap = WINDOW;
            }
        }
        let faults = script.faults;
        // A leader gives up one VIP a second. The lengths suffice for as many as are the default.
        let to_balance = Duration::from_secs(setup.vips.unwrap_or(0) as u64);
        Plan { nodes, vips, settings, length: Duration::from_millis(length) + to_balance, faults, promise }
    }
}

fn cold(setup: &Setup, dice: &mut Dice) -> Plan {
    let (nodes, vips) = (setup.nodes.unwrap_or(3), setup.vips.unwrap_or(1_000));
    let settings = ElectionSettings { hold_down: Duration::ZERO, detect: false, ..ElectionSettings::default() };
    let mut script = Script { dice, nodes, vips, faults: Vec::new() };
    script.add(0, Fault::Start(0));
    for node in 1..nodes {
        let at = BEGIN + script.dice.below(500);
        script.add(at, Fault::Start(node));
    }
    let answer = Duration::from_mins(1);
    let promise = Promise { moves: 1, answer, interval: Duration::from_secs(1), ..STRICT };
    let faults = script.faults;
    Plan { nodes, vips, settings, length: Duration::from_millis(BEGIN) + BALANCED, faults, promise }
}

fn pair(setup: &Setup, dice: &mut Dice) -> Plan {
    let (nodes, vips) = (2, setup.vips.unwrap_or(2_000));
    let settings = ElectionSettings { hold_down: Duration::ZERO, detect: false, ..ElectionSettings::default() };
    let mut script = Script { dice, nodes, vips, faults: Vec::new() };
    for node in 0..nodes {
        let at = script.dice.below(300);
        script.add(at, Fault::Start(node));
        script.add(BEGIN - 1, Fault::Access(node, StoreAccess::Slow(100)));
    }
    let node = script.node();
    script.add(BEGIN, Fault::PowerOff(node));
    // A slow store adds 0.8 s.
    let promise = Promise { half: Duration::from_millis(2_200), answer: COLD, balance: false, ..STRICT };
    let faults = script.faults;
    Plan { nodes, vips, settings, length: Duration::from_millis(BEGIN + 10_000), faults, promise }
}

fn large(setup: &Setup, dice: &mut Dice) -> Plan {
    let (nodes, vips) = (setup.nodes.unwrap_or(1_000), setup.vips.unwrap_or(10_000));
    let settings = ElectionSettings { hold_down: Duration::ZERO, detect: false, ..ElectionSettings::default() };
    let mut script = Script { dice, nodes, vips, faults: Vec::new() };
    for node in 0..nodes {
        let at = script.dice.below(500);
        script.add(at, Fault::Start(node));
    }
    let dies = 8_000;
    script.add(dies - 1, Fault::Mark);
    for node in script.dice.some(nodes.div_ceil(10), nodes) {
        script.faults.push((Duration::from_millis(dies), Fault::Crash(node)));
    }
    let promise = Promise {
        answer: Duration::from_secs(3),
        moves: 1,
        balance: false,
        interval: Duration::from_millis(20),
        ..STRICT
    };
    let faults = script.faults;
    Plan { nodes, vips, settings, length: Duration::from_millis(dies + 4_000), faults, promise }
}
