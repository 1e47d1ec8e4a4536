//! Finds out which nodes died, among those whose agent does not answer. Pure: it returns the
//! addresses to ask.
//!
//! An agent's death is not its node's: the node's programs and pods serve on. So the node's kernel
//! is asked, by ARP or neighbor solicitations for the node's address:
//!
//! ```text
//!           doubted                 answered                      (its agent is heard, at any time:
//! (reached) ───────► asked quickly ─────────► asked once a while     reached)
//!                        │   ▲                     │
//!                        │   └──── not answered ───┘
//!   ASKS times not answered, it is down, and frames came in meanwhile
//!                        ▼
//!                     silent ── answered within REBOOT ──► asked once a while
//! ```
//!
//! - Frames must have come in between the asks. Else this node's own link is the cause, and nothing
//!   may move.
//! - A kernel that answers later than [`REBOOT`] may have been started anew, without programs and
//!   pods. Such a node stays silent until its agent is heard.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use tokio::time::Instant;

/// The number of asks without an answer that make a node silent.
const ASKS: usize = 4;
/// The time in which a kernel answers, and the pause between asks that are not answered.
const ANSWER: Duration = Duration::from_millis(40);
/// The pause after an answer, and after [`ASKS`] asks without one. It grows with the time since the
/// first doubt, up to [`LONGEST_PAUSE`]: an agent may be gone for good.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// No machine starts anew in less than this.
const REBOOT: Duration = Duration::from_secs(5);
/// The limit of asks at once, and the pause after them.
const MOST_ASKS: usize = 64;
const BATCH_PAUSE: Duration = Duration::from_millis(20);

/// Why a node may be dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    /// Its agent is down or left. If not, it is only suspected, which is not enough.
    pub is_down: bool,
    /// It was silent before this agent started.
    pub was_silent: bool,
}

/// The nodes in doubt, by address.
pub type Doubts = BTreeMap<IpAddr, Doubt>;

/// The state of each node in doubt.
#[derive(Debug, Default)]
pub(super) struct UnreachabilityDetection {
    nodes: BTreeMap<IpAddr, DoubtedNode>,
    /// No ask is sent before this.
    resting_until: Option<Instant>,
}

#[derive(Debug)]
struct DoubtedNode {
    is_down: bool,
    since: Instant,
    /// The last asks, all without an answer: at most [`ASKS`], the oldest first. Each with the number
    /// of frames that had come in.
    asks: VecDeque<(Instant, u64)>,
    /// It was decided about the last ask.
    decided: bool,
    next_ask: Instant,
    silence: Option<Silence>,
}

#[derive(Clone, Copy, Debug)]
struct Silence {
    /// A later answer may be of a machine that was started anew.
    answer_counts_until: Instant,
}

impl DoubtedNode {
    fn new(doubt: Doubt, now: Instant) -> Self {
        let silence = doubt.was_silent.then_some(Silence { answer_counts_until: now });
        Self { is_down: doubt.is_down, since: now, asks: VecDeque::new(), decided: true, next_ask: now, silence }
    }

    /// A suspect was last asked some time ago. So it is asked once more before it is silent.
    fn set_down(&mut self, is_down: bool, now: Instant) {
        if is_down && !self.is_down && self.asks.back().is_some_and(|(asked, _)| *asked + ANSWER <= now) {
            (self.next_ask, self.decided) = (now, true);
        }
        self.is_down = is_down;
    }

    /// Returns when it can be decided whether it is silent.
    fn decision_at(&self) -> Option<Instant> {
        let is_open = self.is_down && !self.decided && self.asks.len() == ASKS && self.silence.is_none();
        self.asks.back().filter(|_| is_open).map(|(asked, _)| *asked + ANSWER)
    }

    /// Returns when to ask it again. `None`: an answer would change nothing.
    fn next_ask(&self) -> Option<Instant> {
        let counts = |silence: &Silence| self.next_ask < silence.answer_counts_until;
        self.silence.as_ref().is_none_or(counts).then_some(self.next_ask)
    }

    /// Returns whether frames came in between the first ask and the last one.
    fn saw_frames(&self) -> bool {
        self.asks.front().map(|(_, frames)| frames) < self.asks.back().map(|(_, frames)| frames)
    }

    fn ask(&mut self, frames: u64, now: Instant) {
        if self.asks.len() == ASKS {
            self.asks.pop_front();
        }
        self.asks.push_back((now, frames));
        self.decided = false;
        self.next_ask = now + if self.asks.len() < ASKS { ANSWER } else { self.pause(now) };
    }

    /// Forgets the asks, since one was answered or none can be sent.
    fn rest(&mut self, now: Instant) {
        self.asks.clear();
        self.next_ask = now + self.pause(now);
    }

    fn pause(&self, now: Instant) -> Duration {
        (now.duration_since(self.since) / 16).clamp(PAUSE, LONGEST_PAUSE)
    }
}

impl UnreachabilityDetection {
    /// Sets the nodes in doubt. All others are reached.
    pub(super) fn set_doubts(&mut self, doubts: &Doubts, now: Instant) {
        self.nodes.retain(|address, _| doubts.contains_key(address));
        for (address, doubt) in doubts {
            let node = self.nodes.entry(*address).or_insert_with(|| DoubtedNode::new(*doubt, now));
            node.set_down(doubt.is_down, now);
        }
    }

    /// Returns when to call [`Self::poll`].
    pub(super) fn next(&self) -> Option<Instant> {
        let ask = self.nodes.values().filter_map(DoubtedNode::next_ask).min();
        let ask = ask.map(|at| self.resting_until.map_or(at, |until| at.max(until)));
        self.nodes.values().filter_map(DoubtedNode::decision_at).chain(ask).min()
    }

    /// Returns whether [`Self::poll`] would find a node silent. Before it does, all answers must be
    /// [noted](Self::answered).
    pub(super) fn is_deciding(&self, now: Instant) -> bool {
        self.nodes.values().any(|node| node.saw_frames() && node.decision_at().is_some_and(|at| at <= now))
    }

    /// Notes that a node's kernel answered. Returns whether [`Self::silent`] changed.
    pub(super) fn answered(&mut self, address: IpAddr, now: Instant) -> bool {
        let Some(node) = self.nodes.get_mut(&address).filter(|node| !node.asks.is_empty()) else { return false };
        node.rest(now);
        node.silence.take_if(|silence| now < silence.answer_counts_until).is_some()
    }

    /// Decides which nodes are silent. Returns whether that changed, and the addresses to ask now.
    /// `frames`: the number of frames that have come in. `can_ask`: whether an address can be asked.
    pub(super) fn poll(&mut self, frames: u64, can_ask: impl Fn(IpAddr) -> bool, now: Instant) -> (bool, Vec<IpAddr>) {
        let mut changed = false;
        for node in self.nodes.values_mut().filter(|node| node.decision_at().is_some_and(|at| at <= now)) {
            node.decided = true;
            if node.saw_frames() {
                node.silence = Some(Silence { answer_counts_until: now + REBOOT });
                changed = true;
            }
        }
        (changed, self.ask(frames, can_ask, now))
    }

    fn ask(&mut self, frames: u64, can_ask: impl Fn(IpAddr) -> bool, now: Instant) -> Vec<IpAddr> {
        if self.resting_until.is_some_and(|until| now < until) {
            return Vec::new();
        }
        let at = |(address, node): (&IpAddr, &DoubtedNode)| Some((node.next_ask()?, *address));
        let mut due: Vec<_> = self.nodes.iter().filter_map(at).filter(|(at, _)| *at <= now).collect();
        due.sort_unstable();
        due.truncate(MOST_ASKS);
        self.resting_until = (due.len() == MOST_ASKS).then(|| now + BATCH_PAUSE);
        let mut asked = Vec::new();
        for (_, address) in due {
            let Some(node) = self.nodes.get_mut(&address) else { continue };
            if can_ask(address) {
                node.ask(frames, now);
                asked.push(address);
            } else {
                node.rest(now);
            }
        }
        asked
    }

    /// Returns the nodes of which neither the agent nor the kernel answers.
    pub(super) fn silent(&self) -> impl Iterator<Item = IpAddr> {
        self.nodes.iter().filter(|(_, node)| node.silence.is_some()).map(|(address, _)| *address)
    }
}

#[cfg(test)]
mod tests;
