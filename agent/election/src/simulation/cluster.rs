//! The simulated nodes, the networks between them, and the VIPs that they lead.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use super::{
    AgentEvent, StoreAccess, agent::Agent, clock::Clock, kernel::SimulatedKernel, network::Network, random::Dice, vip,
};
use crate::placement::{Candidate, Candidates};
use vipmux_model::{NodeName, Vip};

/// How the builds of agents differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Build {
    /// Its payloads have what this version does not know.
    pub(super) later: bool,
    /// The time for which its kernel answers after the last evidence; `None`: as the world's settings say.
    pub(super) lease: Option<Duration>,
}

/// An interruption of an agent between two commands of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interruption {
    /// The next command is an extension of the deadline. Otherwise it is another one, but no heartbeat.
    pub(super) extends: bool,
    /// The number of such commands that are executed before.
    pub(super) after: u64,
    /// The agent dies, as when a write to the kernel fails. Otherwise it is stopped, as by SIGSTOP.
    pub(super) dies: bool,
    /// The time until the agent starts again, or goes on.
    pub(super) lasts: Duration,
}

/// The state of a node's object in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeObject {
    Schedulable,
    Cordoned,
    /// The machine and its agent go on.
    Deleted,
}

/// A simulated node.
pub(super) struct Node {
    pub(super) name: NodeName,
    pub(super) clock: Clock,
    /// The time since when the whole machine stands still, and its clock.
    pub(super) frozen: Option<Duration>,
    pub(super) kernel: SimulatedKernel,
    /// The machine has no power.
    pub(super) off: bool,
    pub(super) agent: Option<Box<Agent>>,
    pub(super) interruption: Option<Interruption>,
    /// The build that starts next.
    pub(super) build: Build,
    /// The number of starts of its agent.
    pub(super) run: u64,
    /// The events for an agent that is stopped by SIGSTOP.
    pub(super) paused: Option<VecDeque<AgentEvent>>,
    /// Only the event loop stands still, and gossip goes on.
    pub(super) hangs: bool,
    pub(super) access: StoreAccess,
    /// The time that its source takes to read the objects again; `None`: milliseconds.
    pub(super) reload: Option<Duration>,
    pub(super) object: NodeObject,
    /// It was asked to drain or to stop.
    pub(super) leaving: bool,
    /// The time at which it was last started, resumed or plugged in.
    pub(super) since: Duration,
}

impl Node {
    fn new(number: usize, dice: &mut Dice) -> Self {
        Self {
            name: node_name(number),
            clock: Clock {
                offset: dice.millis(100_000, 1_000_000_000),
                drift: i64::try_from(dice.below(20_001)).unwrap_or(0) - 10_000,
            },
            frozen: None,
            kernel: SimulatedKernel::default(),
            off: false,
            agent: None,
            interruption: None,
            build: Build::default(),
            run: 0,
            paused: None,
            hangs: false,
            access: StoreAccess::Open,
            reload: None,
            object: NodeObject::Schedulable,
            leaving: false,
            since: Duration::ZERO,
        }
    }
}

/// The cluster, without the store.
pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
    names: BTreeMap<NodeName, usize>,
    pub(super) network: Network,
    /// The VIPs that Services use.
    pub(super) vips: BTreeSet<Vip>,
    /// Addresses that foreign speakers have.
    pub(super) foreign_speakers: BTreeSet<Vip>,
    /// The node that announced each VIP last, as switches and clients know it.
    pub(super) announced: BTreeMap<Vip, usize>,
    /// The announcements of each VIP that were lost for clients since its leader took it, or since one was not.
    pub(super) lost: BTreeMap<Vip, usize>,
    /// Switches answer in the names of nodes that do not.
    pub(super) proxies: bool,
    /// Candidates for every other VIP have scores.
    scores: bool,
}

impl Cluster {
    pub(super) fn new(nodes: usize, vips: usize, scores: bool, dice: &mut Dice) -> Self {
        let nodes: Vec<_> = (0..nodes).map(|number| Node::new(number, dice)).collect();
        let names = nodes.iter().enumerate().map(|(at, node)| (node.name.clone(), at)).collect();
        Self {
            nodes,
            names,
            network: Network::new(),
            vips: (0..vips).map(vip).collect(),
            foreign_speakers: BTreeSet::new(),
            announced: BTreeMap::new(),
            lost: BTreeMap::new(),
            proxies: false,
            scores,
        }
    }

    /// Returns the number of the node with this name.
    pub(super) fn number(&self, name: &NodeName) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Returns `CLOCK_BOOTTIME` of a node.
    pub(super) fn local(&self, node: usize, now: Duration) -> Duration {
        self.nodes[node].clock.local(self.nodes[node].frozen.unwrap_or(now))
    }

    /// Returns whether a node's kernel would answer for this VIP to a client that can reach it.
    pub(super) fn answers(&self, node: usize, vip: Vip, now: Duration) -> bool {
        self.nodes[node].kernel.answers(vip, self.local(node, now)) && self.network.is_on(node)
    }

    /// Returns the node whose MAC clients have for a VIP, if it has no power or no link. Any other one answers or
    /// forwards.
    pub(super) fn dead_end(&self, vip: Vip) -> Option<usize> {
        let last = self.announced.get(&vip).copied();
        last.filter(|last| self.nodes[*last].off || !self.network.is_on(*last))
    }

    /// Returns the other node that answers a node that asks the LAN for an address.
    pub(super) fn answerer(&self, node: usize, vip: Vip, now: Duration) -> Option<usize> {
        (0..self.nodes.len()).find(|&other| {
            other != node
                && self.answers(other, vip, now)
                && self.network.hears(node, other)
                && self.network.hears(other, node)
        })
    }

    /// Returns the other node in whose name switches answer a node that asks the LAN for an address.
    pub(super) fn proxied(&self, node: usize, vip: Vip) -> Option<usize> {
        let last = self.announced.get(&vip).copied();
        last.filter(|last| self.proxies && *last != node && self.network.is_on(node))
    }

    /// Returns the numbers of the nodes that have a Node object.
    pub(super) fn registered(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.object != NodeObject::Deleted).map(|(number, _)| number)
    }

    /// Returns whether an agent runs there that can lead.
    pub(super) fn is_there(&self, node: usize) -> bool {
        let at = &self.nodes[node];
        at.agent.is_some() && at.paused.is_none() && at.object != NodeObject::Deleted && self.network.is_on(node)
    }

    /// Returns the nodes that should lead: all that can, without unstable ones if there are others.
    pub(super) fn foremost(&self) -> Vec<usize> {
        let there = || (0..self.nodes.len()).filter(|node| self.is_there(*node));
        let is_stable = |agent: &Agent| !agent.executor.election().is_unstable();
        let stable: Vec<_> = there().filter(|node| self.nodes[*node].agent.as_deref().is_some_and(is_stable)).collect();
        if stable.is_empty() { there().collect() } else { stable }
    }

    /// Returns the VIPs and who may lead them, as from the manifests.
    pub(super) fn candidates(&self) -> BTreeMap<Vip, Candidates> {
        let list = |scores: bool| -> Candidates {
            let candidate = |number: usize| Candidate {
                node: self.nodes[number].name.clone(),
                weight: 1,
                score: if scores { Self::score(number) } else { 0 },
                excluded: false,
                cordoned: self.nodes[number].object == NodeObject::Cordoned,
            };
            self.registered().map(candidate).collect()
        };
        let (ordinary, scored) = (list(false), list(self.scores));
        let of = |vip: Vip| if Self::is_scored(vip) { &scored } else { &ordinary };
        self.vips.iter().map(|vip| (*vip, of(*vip).clone())).collect()
    }

    /// Returns the score of a node, if candidates have scores.
    pub(super) const fn score(node: usize) -> u32 {
        [0, 50, 100][node % 3]
    }

    /// Returns whether the candidates for a VIP have scores.
    pub(super) fn is_scored(vip: Vip) -> bool {
        vip.number().is_multiple_of(2)
    }
}

#[expect(clippy::expect_used, reason = "a letter and digits are a Node's name")]
fn node_name(number: usize) -> NodeName {
    NodeName::new(format!("n{number}")).expect("a Node's name")
}
