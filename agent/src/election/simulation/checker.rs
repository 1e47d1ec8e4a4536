//! What is promised, and whether it is kept.
//!
//! - *One answers.* After a crash, a kill, a pause, a restart, a lost link or a drain, never do two nodes answer for one VIP
//!   where one client can reach both. After other faults (gossip that is filtered, loss one way, a store that some reach and
//!   others do not, partitions) two may, until the second one's announcement reaches the first one, or at most until a
//!   deadline has passed that rests on the first one's next round of asks: [`HEARTBEAT`](crate::election::HEARTBEAT) and
//!   [`LEASE`](crate::election::LEASE), and a hundredth for clocks that are apart. Where the LAN was in two parts and came
//!   together while gossip did not, that is until the next announcement, however late.
//! - *Somebody answers.* While the networks are whole and the store answers, each VIP has an answer within
//!   [`Promise::answer`] of the last fault, where a majority of the nodes runs, and has for [`SETTLED`]. With less, or
//!   after a cold start, within [`COLD`]; it takes 3 s until a node that is not heard of counts as silent. Without a store
//!   only a majority that knows who led succeeds it, also within [`COLD`]; nothing is promised to others.
//! - *Epochs* in the store never go back, and none is ever two nodes'. Nor does one node's epoch of a VIP go back while that
//!   is wanted.
//! - *Rest*: as often as [`Promise`] says, and no more, does leadership move, and is the store written.
//! - *Balance*: at the end no node leads more than its share, rounded up, and one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Access, Figures, Server, World};
use crate::{
    election::lease::Lease,
    model::{NodeName, Vip},
};

/// How long two may answer after other faults than those after which none do.
pub(super) const WINDOW: Duration = Duration::from_millis(410);
/// How long a node must run to count as one that knows who led.
const SETTLED: Duration = Duration::from_secs(5);
/// How long it takes where one begins from nothing.
const COLD: Duration = Duration::from_secs(8);

/// What a scenario promises.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// How long two nodes may answer for one VIP.
    pub(super) overlap: Duration,
    /// How long after the last fault a VIP may be without an answer, where a majority runs.
    pub(super) answer: Duration,
    /// How often a VIP may move,
    pub(super) moves: u32,
    /// and how many writes there may be, after everything had settled.
    pub(super) writes: u64,
    /// Loads are as they should be at the end.
    pub(super) balance: bool,
    /// From one look at everything to the next.
    pub(super) interval: Duration,
}

/// What is known of a VIP.
#[derive(Debug, Default)]
struct Watch {
    flagged: BTreeSet<usize>,
    overlap: Option<Duration>,
    /// When a node that answered heard another announce it.
    heard: Option<Duration>,
    dark: Option<Duration>,
    leader: Option<usize>,
    moves: u32,
}

pub(super) struct Checker {
    promise: Promise,
    watched: BTreeMap<Vip, Watch>,
    touched: BTreeSet<Vip>,
    all: bool,
    /// VIPs that two answer for.
    overlapping: BTreeSet<Vip>,
    /// When the last fault was.
    pub(super) disturbed: Duration,
    /// When everything had settled, and what the store had been through then.
    marked: Option<(u64, u64)>,
    /// The epochs that were led, and by whose consent.
    consented: BTreeMap<(Vip, u64), NodeName>,
    led: BTreeMap<(Vip, usize, u64), u64>,
    pub(super) figures: Figures,
    pub(super) violation: Option<String>,
}

impl Checker {
    pub(super) fn new(promise: Promise) -> Self {
        Self {
            promise,
            watched: BTreeMap::new(),
            touched: BTreeSet::new(),
            all: false,
            overlapping: BTreeSet::new(),
            disturbed: Duration::ZERO,
            marked: None,
            consented: BTreeMap::new(),
            led: BTreeMap::new(),
            figures: Figures::default(),
            violation: None,
        }
    }

    pub(super) const fn interval(&self) -> Duration {
        self.promise.interval
    }

    pub(super) fn violate(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    /// A flag was set or cleared.
    pub(super) fn touch(&mut self, vip: Vip, node: usize, leads: bool) {
        let flagged = &mut self.watched.entry(vip).or_default().flagged;
        if leads {
            flagged.insert(node)
        } else {
            flagged.remove(&node)
        };
        self.touched.insert(vip);
    }

    /// A node that answered hears that another does.
    pub(super) fn heard(&mut self, vip: Vip, now: Duration) {
        self.watched.entry(vip).or_default().heard = Some(now);
    }

    pub(super) fn touch_these(&mut self, vips: &BTreeSet<Vip>) {
        self.touched.extend(vips);
    }

    pub(super) fn touch_all(&mut self) {
        self.all = true;
    }

    pub(super) fn mark(&mut self, server: &Server) {
        self.marked = Some((server.writes, server.operations));
        self.watched.values_mut().for_each(|watch| watch.moves = 0);
    }

    /// A node leads.
    pub(super) fn led(&mut self, vip: Vip, node: usize, run: u64, epoch: u64) {
        let before = self.led.insert((vip, node, run), epoch);
        if before.is_some_and(|before| before > epoch) {
            self.violate(|| format!("n{node} leads {vip} in epoch {epoch} after a later one"));
        }
    }

    /// A VIP went. If it comes again while the store is away nobody knows its epoch, and who leads it then withdraws once
    /// the store is back.
    pub(super) fn forget(&mut self, vip: Vip) {
        self.led.retain(|(led, ..), _| *led != vip);
    }

    /// The store consents.
    pub(super) fn swapped(&mut self, vip: Vip, holder: &NodeName, epoch: u64, before: Option<&Lease>) {
        if before.is_some_and(|before| before.epoch > epoch) {
            self.violate(|| format!("the epoch of {vip} went back to {epoch}"));
        }
        let known = self.consented.entry((vip, epoch)).or_insert_with(|| holder.clone());
        if known != holder {
            let known = known.clone();
            self.violate(|| format!("{vip} was {known}'s and {holder}'s in epoch {epoch}"));
        }
    }
}

impl World {
    /// Whether all is well.
    pub(super) fn check(&mut self) {
        if !self.checker.all && self.checker.touched.is_empty() && self.checker.overlapping.is_empty() {
            return;
        }
        let mut touched = std::mem::take(&mut self.checker.touched);
        if std::mem::take(&mut self.checker.all) {
            touched.extend(&self.vips);
            touched.extend(self.checker.watched.keys());
        }
        touched.extend(&self.checker.overlapping);
        let due = self.due();
        for vip in touched {
            self.check_one(vip, due);
        }
    }

    fn check_one(&mut self, vip: Vip, due: Option<Duration>) {
        let Some(watch) = self.checker.watched.get(&vip) else {
            if self.vips.contains(&vip) {
                self.checker.watched.insert(vip, Watch::default());
            }
            return;
        };
        let answering: Vec<usize> = watch.flagged.iter().filter(|node| self.answers(**node, vip)).copied().collect();
        let two = answering.iter().enumerate().find_map(|(at, one)| {
            let other = answering[at + 1..].iter().find(|other| self.network.is_common(*one, **other))?;
            Some((*one, *other))
        });
        let excused = two.is_some_and(|(one, other)| {
            let apart = !self.network.gossips(one, other) || !self.network.gossips(other, one);
            apart && watch.heard.is_none_or(|heard| watch.overlap.is_none_or(|since| heard < since))
        });
        let wanted = self.vips.contains(&vip) && !self.strangers.contains(&vip);
        let (now, promise) = (self.now, self.checker.promise);
        let disturbed = self.checker.disturbed;
        let figures = &mut self.checker.figures;
        let Some(watch) = self.checker.watched.get_mut(&vip) else { return };
        let mut broken = None;
        if let Some((one, other)) = two {
            let since = *watch.overlap.get_or_insert(now);
            let since = if excused { now } else { since };
            watch.overlap = Some(since);
            let lasts = now.saturating_sub(since);
            figures.overlap = figures.overlap.max(lasts);
            if promise.overlap.is_zero() || lasts > promise.overlap {
                broken = Some(format!(
                    "n{one} and n{other} both answer for {vip}, for {:?} by now; {:?} are allowed",
                    lasts, promise.overlap
                ));
            }
            self.checker.overlapping.insert(vip);
        } else if watch.overlap.take().is_some() {
            self.checker.overlapping.remove(&vip);
        }
        if answering.is_empty() && wanted {
            let dark = *watch.dark.get_or_insert(now);
            match due {
                None => watch.dark = Some(now),
                Some(due) => {
                    let unanswered = now.saturating_sub(dark.max(disturbed));
                    figures.dark = figures.dark.max(unanswered);
                    if unanswered > due {
                        broken = Some(format!("nobody answers for {vip} for {unanswered:?}; {due:?} are allowed"));
                    }
                }
            }
        } else {
            watch.dark = None;
        }
        if let [leader] = answering[..] {
            if watch.leader.is_some_and(|before| before != leader) {
                watch.moves += 1;
            }
            watch.leader = Some(leader);
        }
        if !self.vips.contains(&vip) {
            // Whoever begins anew with it does not move it.
            watch.leader = None;
        }
        if let Some(broken) = broken {
            self.checker.violate(|| broken);
        }
    }

    /// How soon there must be an answer for every VIP, as things are.
    fn due(&self) -> Option<Duration> {
        let there: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_there(*node)).collect();
        if there.is_empty() || !self.network.is_whole() || self.network.loss > 300 {
            return None;
        }
        let settled = there.iter().filter(|node| self.nodes[**node].since + SETTLED <= self.now).count();
        let majority = settled * 2 > self.nodes.len();
        let open = there.iter().all(|node| self.nodes[*node].access == Access::Open);
        match (open, majority) {
            (true, true) => Some(self.checker.promise.answer),
            (true, false) | (false, true) => Some(COLD.max(self.checker.promise.answer)),
            (false, false) => None,
        }
    }

    /// What must hold at the end.
    pub(super) fn finish(&mut self) {
        if self.checker.violation.is_some() {
            return;
        }
        let promise = self.checker.promise;
        if let Some((writes, operations)) = self.checker.marked {
            let most = self.checker.watched.values().map(|watch| watch.moves).max().unwrap_or(0);
            let (writes, operations) = (self.server.writes - writes, self.server.operations - operations);
            (self.checker.figures.moves, self.checker.figures.writes) = (most, writes);
            if most > promise.moves {
                self.checker.violate(|| format!("a VIP moved {most} times; {} are allowed", promise.moves));
            }
            if writes > promise.writes {
                self.checker.violate(|| {
                    format!(
                        "{writes} writes and {operations} operations at the store; {} writes are allowed",
                        promise.writes
                    )
                });
            }
        }
        if promise.balance {
            self.weigh();
        }
    }

    fn weigh(&mut self) {
        let there = (0..self.nodes.len()).filter(|node| self.is_there(*node)).count().max(1);
        let most = self.vips.len().div_ceil(there) + 1;
        for node in 0..self.nodes.len() {
            let load = self.vips.iter().filter(|vip| self.answers(node, **vip)).count();
            if load > most {
                self.checker.violate(|| format!("n{node} leads {load} VIPs; its bound is {most}"));
            }
        }
    }
}
