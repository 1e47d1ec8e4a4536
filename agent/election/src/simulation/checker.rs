//! Checks the promises of the election at every event.
//!
//! - *One answers.* After a crash, a kill, a pause, a restart, a lost link or a drain, two nodes
//!   never answer for one VIP if one client can reach both. After other faults two nodes may. Such
//!   faults are filtered gossip, loss one way, a store that only some reach, and partitions. It
//!   ends when the second node's announcement reaches the first one. At the latest it ends with a
//!   deadline that rests on the first node's next round of heartbeats:
//!   [`HEARTBEAT`](crate::HEARTBEAT) plus [`LEASE`](crate::LEASE), and a hundredth for clocks that
//!   differ. If the parts of a LAN came together while gossip did not, it ends with the next
//!   announcement, however late.
//! - *A node answers*, and clients do not send to a machine that is gone, until the first announcement that is
//!   not lost. While the networks are whole and the
//!   store answers, each VIP has an answer
//!   within [`Promise::answer`] of the last fault, if a majority of the nodes has run for
//!   [`SETTLED`]. With fewer nodes, or after a cold start, it has one within [`COLD`]: it takes 3 s
//!   until a node that is not heard of counts as silent. Without a store only a majority that knows
//!   the last leader takes the VIP, also within [`COLD`]. Otherwise nothing is promised.
//! - *Epochs* in the store never go back, and no epoch belongs to two nodes. A node's epoch of a
//!   VIP does not go back while the VIP is wanted.
//! - *Rest*: leadership moves, and the store is written, at most as often as [`Promise`] says.
//! - *Balance*: at the end no node leads more than its share, rounded up, and one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Figures, Server, StoreAccess, cluster::Cluster, network::Network};
use crate::lease::Lease;
use vipmux_model::{NodeName, Vip};

/// The longest time for which two nodes may answer after faults that allow it.
pub(super) const WINDOW: Duration = Duration::from_millis(410);
/// The same if the agent of one of them is stopped: its record may promise that its kernel answers for so
/// long, and a majority that had no store did not know.
const STOPPED_WINDOW: Duration = Duration::from_millis(2_050);
/// The time that a node must run until it knows the leaders.
const SETTLED: Duration = Duration::from_secs(5);
/// The time until there is an answer after a cold start.
pub(super) const COLD: Duration = Duration::from_secs(8);

/// The seconds from the first announcement to each later one (docs/failover.md).
const REPEATS: [u64; 4] = [1, 3, 7, 15];

/// The promises of a scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// The longest time for which two nodes may answer for one VIP.
    pub(super) overlap: Duration,
    /// The longest time after the last fault for which a VIP may have no answer, if a majority
    /// runs.
    pub(super) answer: Duration,
    /// The same if exactly half runs and the store answers. A slow one has eight times its delay more.
    pub(super) half: Duration,
    /// The same while the store is slow, or answers nobody, and a majority runs.
    pub(super) without_store: Duration,
    /// The most moves of a VIP,
    pub(super) moves: u32,
    /// and the most writes, after everything had settled.
    pub(super) writes: u64,
    /// The longest time in all for which a VIP may have no answer since then.
    pub(super) gaps: Duration,
    /// Loads are balanced at the end.
    pub(super) balance: bool,
    /// Candidates for every other VIP have scores, and at the end the highest leads.
    pub(super) scores: bool,
    /// The time from one look at everything to the next.
    pub(super) interval: Duration,
}

/// The observations of a VIP.
#[derive(Debug, Default)]
struct Watch {
    flagged: BTreeSet<usize>,
    overlap: Option<Duration>,
    /// The time at which a node that answered heard another one announce it.
    heard: Option<Duration>,
    dark: Option<Duration>,
    /// A node answers, and clients do not know it.
    unknown: bool,
    /// The last look, if there was no answer.
    looked_dark: Option<Duration>,
    /// The time without an answer since everything had settled.
    gaps: Duration,
    leader: Option<usize>,
    moves: u32,
}

impl Watch {
    /// Notes that two nodes answer. Returns the time for which they do, without the time in which
    /// that is excused: gossip between them is lost, and no announcement came through.
    fn note_overlap(&mut self, one: usize, other: usize, network: &Network, now: Duration) -> Duration {
        let apart = !network.gossips(one, other) || !network.gossips(other, one);
        let excused = apart && self.heard.is_none_or(|heard| self.overlap.is_none_or(|since| heard < since));
        let since = self.overlap.filter(|_| !excused).unwrap_or(now);
        self.overlap = Some(since);
        now.saturating_sub(since)
    }

    /// Notes whether an answer is missing. Returns the time for which it is, if one is due. That
    /// counts from the last fault.
    fn note_dark(
        &mut self,
        (is_dark, is_answered): (bool, bool),
        is_due: bool,
        disturbed: Duration,
        now: Duration,
    ) -> Option<Duration> {
        if !is_dark {
            self.dark = None;
            return None;
        }
        // Clients that do not know the leader wait for another time than for a leader.
        let is_new = std::mem::replace(&mut self.unknown, is_answered) && !is_answered;
        let since = self.dark.filter(|_| is_due && !is_new).unwrap_or(now);
        self.dark = Some(since);
        is_due.then(|| now.saturating_sub(since.max(disturbed)))
    }

    /// Counts the time without an answer.
    fn note_gap(&mut self, is_dark: bool, now: Duration) {
        self.gaps += self.looked_dark.map_or(Duration::ZERO, |looked| now.saturating_sub(looked));
        self.looked_dark = is_dark.then_some(now);
    }

    /// Notes the leader if one node answers, and counts the moves.
    fn note_leader(&mut self, answering: &[usize], is_wanted: bool) {
        if let [leader] = *answering {
            if self.leader.is_some_and(|before| before != leader) {
                self.moves += 1;
            }
            self.leader = Some(leader);
        }
        if !is_wanted {
            // A node that begins with it anew does not move it.
            self.leader = None;
        }
    }
}

/// Returns the first two of the nodes that one client can reach.
fn pair_in_reach(nodes: &[usize], network: &Network) -> Option<(usize, usize)> {
    nodes.iter().enumerate().find_map(|(at, one)| {
        let other = nodes[at + 1..].iter().find(|other| network.is_common(*one, **other))?;
        Some((*one, *other))
    })
}

pub(super) struct Checker {
    promise: Promise,
    watched: BTreeMap<Vip, Watch>,
    touched: BTreeSet<Vip>,
    all: bool,
    /// VIPs that two nodes answer for.
    overlapping: BTreeSet<Vip>,
    /// The time of the last fault.
    pub(super) disturbed: Duration,
    /// How soon every VIP must have an answer, at the last check. It counts from when it changes.
    due: Option<Duration>,
    /// The store's writes and operations at the time when everything had settled.
    marked: Option<(u64, u64)>,
    /// The nodes that each store recorded for each epoch.
    consented: BTreeMap<(Vip, usize, u64), NodeName>,
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
            due: None,
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

    /// Notes that a flag was set or cleared.
    pub(super) fn touch(&mut self, vip: Vip, node: usize, leads: bool) {
        let flagged = &mut self.watched.entry(vip).or_default().flagged;
        if leads {
            flagged.insert(node)
        } else {
            flagged.remove(&node)
        };
        self.touched.insert(vip);
    }

    /// Notes that a node that answered hears another one announce.
    pub(super) fn heard(&mut self, vip: Vip, now: Duration) {
        self.watched.entry(vip).or_default().heard = Some(now);
    }

    pub(super) fn touch_these<'a>(&mut self, vips: impl IntoIterator<Item = &'a Vip>) {
        self.touched.extend(vips);
    }

    pub(super) fn touch_all(&mut self) {
        self.all = true;
    }

    pub(super) fn mark(&mut self, servers: &[Server]) {
        self.marked = Some(Server::work(servers));
        self.watched.values_mut().for_each(|watch| (watch.moves, watch.gaps) = (0, Duration::ZERO));
    }

    /// Notes that a node leads.
    pub(super) fn led(&mut self, vip: Vip, node: usize, run: u64, epoch: u64) {
        let before = self.led.insert((vip, node, run), epoch);
        if before.is_some_and(|before| before > epoch) {
            self.violate(|| format!("n{node} leads {vip} in epoch {epoch} after a later one"));
        }
    }

    /// Forgets a VIP that is not wanted. If it comes again while the store is away, no node knows
    /// its epoch. Its leader then withdraws once the store is back.
    pub(super) fn forget(&mut self, vip: Vip) {
        self.led.retain(|(led, ..), _| *led != vip);
    }

    /// Notes that a Lease was deleted. A node that has never led the VIP begins with the first epoch
    /// again.
    pub(super) fn erased(&mut self, vip: Vip) {
        self.consented.retain(|(erased, ..), _| *erased != vip);
    }

    /// Notes that a store swapped a Lease.
    pub(super) fn swapped(
        &mut self,
        (vip, store): (Vip, usize),
        holder: &NodeName,
        epoch: u64,
        before: Option<&Lease>,
    ) {
        if before.is_some_and(|before| before.epoch > epoch) {
            self.violate(|| format!("the epoch of {vip} went back to {epoch}"));
        }
        let known = self.consented.entry((vip, store, epoch)).or_insert_with(|| holder.clone());
        if known != holder {
            let known = known.clone();
            self.violate(|| format!("{vip} was {known}'s and {holder}'s in epoch {epoch}"));
        }
    }

    /// Checks the VIPs that may have changed.
    pub(super) fn check(&mut self, cluster: &Cluster, now: Duration) {
        if !self.all && self.touched.is_empty() && self.overlapping.is_empty() {
            return;
        }
        let mut touched = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.all) {
            touched.extend(&cluster.vips);
            touched.extend(self.watched.keys());
        }
        touched.extend(&self.overlapping);
        let due = self.due(cluster, now);
        if std::mem::replace(&mut self.due, due) != due {
            self.disturbed = now;
        }
        for vip in touched {
            self.check_one(vip, due, cluster, now);
        }
    }

    fn check_one(&mut self, vip: Vip, due: Option<Duration>, cluster: &Cluster, now: Duration) {
        let is_wanted = cluster.vips.contains(&vip);
        let Some(watch) = self.watched.get_mut(&vip) else {
            if is_wanted {
                self.watched.insert(vip, Watch::default());
            }
            return;
        };
        let promise = self.promise;
        let answering: Vec<usize> =
            watch.flagged.iter().filter(|node| cluster.answers(**node, vip, now)).copied().collect();
        let dead_end = cluster.dead_end(vip);
        let is_dark =
            (answering.is_empty() || dead_end.is_some()) && is_wanted && !cluster.foreign_speakers.contains(&vip);
        let mut broken = None;
        if let Some((one, other)) = pair_in_reach(&answering, &cluster.network) {
            let lasts = watch.note_overlap(one, other, &cluster.network, now);
            self.overlapping.insert(vip);
            self.figures.overlap = self.figures.overlap.max(lasts);
            let is_stopped = |node: &usize| cluster.nodes[*node].paused.is_some() && !cluster.nodes[*node].hangs;
            let stopped = [one, other].iter().any(is_stopped);
            let allowed = if stopped { STOPPED_WINDOW } else { promise.overlap };
            if promise.overlap.is_zero() || lasts > allowed {
                broken = Some(format!(
                    "n{one} and n{other} both answer for {vip}, for {lasts:?} by now; {allowed:?} are allowed"
                ));
            }
        } else if watch.overlap.take().is_some() {
            self.overlapping.remove(&vip);
        }
        let unanswered = watch.note_dark((is_dark, !answering.is_empty()), due.is_some(), self.disturbed, now);
        if let (Some(unanswered), Some(due)) = (unanswered, due) {
            self.figures.dark = self.figures.dark.max(unanswered);
            // Clients learn of the leader by the next announcement. After the last one nothing is promised.
            let lost = cluster.lost.get(&vip).filter(|_| !answering.is_empty());
            let repeat = lost.map_or(Some(0), |lost| REPEATS.get(lost - 1).copied());
            let due = repeat.map_or(Duration::MAX, |repeat| due + Duration::from_secs(repeat));
            if unanswered > due {
                let what = match dead_end {
                    Some(node) if !answering.is_empty() => format!("clients send {vip} to n{node}, which is gone,"),
                    _ => format!("nobody answers for {vip}"),
                };
                broken = Some(format!("{what} for {unanswered:?}; {due:?} are allowed"));
            }
        }
        watch.note_gap(is_dark, now);
        watch.note_leader(&answering, is_wanted);
        if let Some(broken) = broken {
            self.violate(|| broken);
        }
    }

    /// Returns how soon every VIP must have an answer, in the present state.
    fn due(&self, cluster: &Cluster, now: Duration) -> Option<Duration> {
        let there: Vec<usize> = (0..cluster.nodes.len()).filter(|node| cluster.is_there(*node)).collect();
        if there.is_empty() || !cluster.network.is_whole() || cluster.network.loss > 300 {
            return None;
        }
        let settled = there.iter().filter(|node| cluster.nodes[**node].since + SETTLED <= now).count();
        let registered = cluster.registered().count();
        let majority = settled * 2 > registered;
        let open = there.iter().all(|node| cluster.nodes[*node].access == StoreAccess::Open);
        if settled * 2 == registered && there.len() == settled {
            let delays = there.iter().map(|node| cluster.nodes[*node].access.slowness());
            let slowest = delays.reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other)))?;
            return slowest.map(|delay| self.promise.half + delay * 8);
        }
        match (open, majority) {
            (true, true) => Some(self.promise.answer),
            (false, true) => Some(self.promise.without_store.max(self.promise.answer)),
            (true, false) => Some(COLD.max(self.promise.answer)),
            (false, false) => None,
        }
    }

    /// Checks what must hold at the end.
    pub(super) fn finish(&mut self, cluster: &Cluster, servers: &[Server], now: Duration) {
        if self.violation.is_some() {
            return;
        }
        let promise = self.promise;
        if let Some((writes, operations)) = self.marked {
            let most = self.watched.values().map(|watch| watch.moves).max().unwrap_or(0);
            let (all_writes, all_operations) = Server::work(servers);
            let (writes, operations) = (all_writes - writes, all_operations - operations);
            (self.figures.moves, self.figures.writes) = (most, writes);
            if most > promise.moves {
                self.violate(|| format!("a VIP moved {most} times; {} are allowed", promise.moves));
            }
            let gaps = self.watched.values().map(|watch| watch.gaps).max().unwrap_or_default();
            self.figures.gaps = gaps;
            if gaps > promise.gaps {
                self.violate(|| format!("a VIP had no answer for {gaps:?} in all; {:?} are allowed", promise.gaps));
            }
            if writes > promise.writes {
                self.violate(|| {
                    format!(
                        "{writes} writes and {operations} operations at the store; {} writes are allowed",
                        promise.writes
                    )
                });
            }
        }
        if promise.balance {
            self.check_balance(cluster, now);
        }
        if promise.scores {
            self.check_scores(cluster, now);
        }
    }

    fn check_scores(&mut self, cluster: &Cluster, now: Duration) {
        let foremost = cluster.foremost();
        let highest = foremost.iter().copied().map(Cluster::score).max().unwrap_or(0);
        for vip in cluster.vips.iter().filter(|vip| Cluster::is_scored(**vip)) {
            let leader = foremost.iter().copied().find(|node| cluster.answers(*node, *vip, now));
            if leader.map(Cluster::score) != Some(highest) {
                self.violate(|| format!("{leader:?} leads {vip:?}, and the highest score is {highest}"));
            }
        }
    }

    fn check_balance(&mut self, cluster: &Cluster, now: Duration) {
        let most = cluster.vips.len().div_ceil(cluster.foremost().len().max(1)) + 1;
        for node in 0..cluster.nodes.len() {
            let load = cluster.vips.iter().filter(|vip| cluster.answers(node, **vip, now)).count();
            if load > most {
                self.violate(|| format!("n{node} leads {load} VIPs; its bound is {most}"));
            }
        }
    }
}
