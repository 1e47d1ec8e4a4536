//! Several memberships on a network in memory, with a clock of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand_core::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;

use super::super::{
    MOST_PAYLOAD, MemberStatus, Membership, MembershipEvent, MembershipSettings, Peer, as_of_a_later_version,
};
use vipmux_model::NodeName;
use vipmux_testing::names::node_name;

/// How often the nodes ask.
pub(super) const HEARTBEAT: Duration = ms(100);

pub(super) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(super) fn name(node: usize) -> NodeName {
    node_name(format!("n{node}"))
}

pub(super) struct Network {
    pub(super) now: Duration,
    pub(super) settings: MembershipSettings,
    rng: XorShiftRng,
    /// Payloads lost, of a thousand.
    pub(super) loss: u64,
    /// The pairs of nodes between which nothing gets through.
    pub(super) cut: Box<dyn Fn(usize, usize) -> bool>,
    /// Nodes that send what this version does not know.
    pub(super) later: BTreeSet<usize>,
    /// `None`: it is not running.
    nodes: Vec<Option<Membership>>,
    /// Running, but it neither takes in nor does anything.
    pub(super) paused: BTreeSet<usize>,
    asking: Vec<Duration>,
    woken: BTreeSet<(Duration, usize)>,
    wakes: Vec<Duration>,
    flying: BTreeMap<(Duration, u64), (usize, usize, Vec<u8>)>,
    pub(super) sent: u64,
    /// The payloads that each node has sent.
    pub(super) sent_by: Vec<u64>,
    pub(super) events: Vec<Vec<(Duration, MembershipEvent)>>,
}

impl Network {
    /// So many nodes, all of which know all names, started at once.
    pub(super) fn new(nodes: usize, seed: u64) -> Self {
        let mut network = Self::idle(nodes, seed);
        (0..nodes).for_each(|node| network.start(node));
        network
    }

    /// So many names, of which none runs.
    pub(super) fn idle(nodes: usize, seed: u64) -> Self {
        let never = Duration::MAX;
        Self {
            now: ms(1_000_000),
            settings: MembershipSettings::default(),
            rng: XorShiftRng::seed_from_u64(seed),
            loss: 0,
            cut: Box::new(|_, _| false),
            later: BTreeSet::new(),
            nodes: (0..nodes).map(|_| None).collect(),
            paused: BTreeSet::new(),
            asking: vec![never; nodes],
            woken: BTreeSet::new(),
            wakes: vec![never; nodes],
            flying: BTreeMap::new(),
            sent: 0,
            sent_by: vec![0; nodes],
            events: vec![Vec::new(); nodes],
        }
    }

    pub(super) fn start(&mut self, node: usize) {
        let mut membership = Membership::new(name(node), self.rng.next_u64(), self.settings.clone(), self.now);
        membership.set_nodes((0..self.nodes.len()).map(name).collect(), self.now);
        self.nodes[node] = Some(membership);
        // Heartbeats are not in step.
        self.asking[node] = self.now + ms(1) + HEARTBEAT * u32::try_from(self.rng.next_u64() % 100).unwrap() / 100;
        self.act(node, |_, _| ());
    }

    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
        self.sleep(node, Duration::MAX);
    }

    /// Takes it out of the network, and goes on with it no more.
    pub(super) fn take(&mut self, node: usize) -> Membership {
        let taken = self.nodes[node].take().unwrap();
        self.sleep(node, Duration::MAX);
        taken
    }

    pub(super) fn resume(&mut self, node: usize) {
        self.paused.remove(&node);
        self.act(node, |_, _| ());
    }

    pub(super) fn of(&self, node: usize) -> &Membership {
        self.nodes[node].as_ref().unwrap()
    }

    pub(super) fn peer(&self, of: usize, node: usize) -> &Peer {
        &self.of(of).peers().members[&name(node)]
    }

    pub(super) fn status(&self, of: usize, node: usize) -> Option<MemberStatus> {
        self.of(of).peers().members.get(&name(node)).map(|peer| peer.status)
    }

    /// Returns whether each running node considers exactly the other running ones alive.
    pub(super) fn whole(&self) -> bool {
        let running: Vec<_> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_some()).collect();
        running.iter().all(|of| {
            let alive = self.of(*of).peers().members.values().filter(|peer| peer.status.is_alive()).count();
            alive == running.len() - 1
                && running.iter().all(|node| node == of || self.status(*of, *node).is_some_and(MemberStatus::is_alive))
        })
    }

    pub(super) fn count(&self, node: usize, wanted: &MembershipEvent) -> usize {
        self.events[node].iter().filter(|(_, event)| event == wanted).count()
    }

    /// Does something with a node, and sends what comes of it.
    pub(super) fn act<T>(&mut self, node: usize, act: impl FnOnce(&mut Membership, Duration) -> T) -> Option<T> {
        let now = self.now;
        let membership = self.nodes[node].as_mut()?;
        let result = act(membership, now);
        let outbox = membership.take_outbox();
        self.events[node].extend(membership.take_events(now).into_iter().map(|event| (now, event)));
        let next = membership.next().unwrap_or(Duration::MAX).min(self.asking[node]).max(now);
        self.sleep(node, next);
        for (to, payload) in outbox {
            let payload = if self.later.contains(&node) { as_of_a_later_version(&payload) } else { payload };
            assert!(payload.len() <= MOST_PAYLOAD && MOST_PAYLOAD <= 1200, "{} bytes", payload.len());
            self.sent += 1;
            self.sent_by[node] += 1;
            let to: usize = to.as_str()[1..].parse().unwrap();
            if (self.cut)(node, to) || self.rng.next_u64() % 1000 < self.loss {
                continue;
            }
            let delay = Duration::from_micros(100 + self.rng.next_u64() % 400);
            self.flying.insert((now + delay, self.sent), (node, to, payload));
        }
        Some(result)
    }

    fn sleep(&mut self, node: usize, until: Duration) {
        self.woken.remove(&(self.wakes[node], node));
        self.wakes[node] = until;
        if until < Duration::MAX {
            self.woken.insert((until, node));
        }
    }

    /// Lets time go by.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let wake = self.woken.first().map_or(Duration::MAX, |(due, _)| *due);
            let arrival = self.flying.first_key_value().map_or(Duration::MAX, |((due, _), _)| *due);
            if wake.min(arrival) > end {
                break;
            }
            if arrival <= wake {
                let ((due, _), (from, to, payload)) = self.flying.pop_first().unwrap();
                self.now = due;
                if !self.paused.contains(&to) {
                    self.act(to, |membership, now| membership.receive(&name(from), &payload, now).unwrap());
                }
                continue;
            }
            let (due, node) = self.woken.pop_first().unwrap();
            self.wakes[node] = Duration::MAX;
            self.now = due.max(self.now);
            if self.paused.contains(&node) {
                continue;
            }
            let ask = self.asking[node] <= self.now;
            if ask {
                self.asking[node] = self.now + HEARTBEAT;
            }
            self.act(node, |membership, now| {
                membership.turn(now);
                if ask {
                    membership.schedule_heartbeats(now);
                }
            });
        }
        self.now = end;
    }

    /// Lets time go by until something holds; how long it took.
    pub(super) fn until(&mut self, limit: Duration, mut holds: impl FnMut(&Self) -> bool) -> Option<Duration> {
        let start = self.now;
        while !holds(self) {
            if self.now - start >= limit {
                return None;
            }
            self.run(ms(1));
        }
        Some(self.now - start)
    }
}
