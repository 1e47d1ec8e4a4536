//! The faults of a small scenario, one after the other.

use std::{ops::Range, time::Duration};

use super::{BEGIN, STRICT, Scenario, TAIL};
use crate::simulation::{
    Build, Fault, StoreAccess,
    checker::{Promise, WINDOW},
    cluster::Interruption,
    random::Dice,
};

/// The longest rest of a deadline, and a hundredth for clocks that differ: a machine that stood still
/// answers for as long after it goes on.
const LEFT: Duration = Duration::from_millis(303);

/// A plan in the making. Times are milliseconds.
pub(super) struct Script<'a> {
    pub(super) dice: &'a mut Dice,
    pub(super) nodes: usize,
    pub(super) vips: usize,
    pub(super) faults: Vec<(Duration, Fault)>,
}

impl Script<'_> {
    pub(super) fn add(&mut self, at: u64, fault: Fault) {
        let at = Duration::from_millis(at) + self.dice.micros(0, 999);
        self.faults.push((at, fault));
    }

    pub(super) fn node(&mut self) -> usize {
        self.dice.index(self.nodes)
    }

    fn vip(&mut self) -> usize {
        self.dice.index(self.vips)
    }

    pub(super) fn write(&mut self, scenario: Scenario, during: Range<u64>) -> (Promise, u64) {
        let window = Promise { overlap: WINDOW, answer: Duration::from_secs(8), ..STRICT };
        let slow = Promise { answer: Duration::from_secs(3), ..STRICT };
        // By then a leader has given up what is beyond its bound: one VIP a second.
        let settled = BEGIN + 1_000 * self.vips as u64;
        let promise = match scenario {
            Scenario::Quiet => {
                self.add(settled, Fault::Mark);
                return (Promise { moves: 0, writes: 0, ..STRICT }, during.end);
            }
            Scenario::Loss => {
                self.add(5_000, Fault::Loss(300));
                self.add(settled, Fault::Mark);
                return (Promise { moves: 1, ..slow }, BEGIN + 60_000);
            }
            // An agent can take a VIP that is handed over, die before it has written the Lease, and start again
            // at once. It claims nothing then, and others wait a second for its claim.
            Scenario::Crash => Promise { answer: Duration::from_millis(1_300), ..STRICT },
            Scenario::Pause | Scenario::Link | Scenario::Delete => STRICT,
            // docs/failover.md says so.
            Scenario::Single => {
                let (answer, without_store) = (Duration::from_millis(400), Duration::from_millis(500));
                Promise { answer, without_store, interval: Duration::from_millis(10), ..STRICT }
            }
            Scenario::Hang => {
                let (answer, without_store) = (Duration::from_millis(500), Duration::from_secs(1));
                Promise { answer, without_store, interval: Duration::from_millis(10), ..STRICT }
            }
            Scenario::Stutter => {
                Promise { moves: 0, gaps: Duration::ZERO, interval: Duration::from_millis(10), ..STRICT }
            }
            // A second to read the objects, and a takeover.
            Scenario::SlowSource => Promise { answer: Duration::from_millis(1_600), ..STRICT },
            Scenario::SlowStore => Promise { without_store: STRICT.answer, ..STRICT },
            Scenario::Freeze => Promise { overlap: LEFT, answer: Duration::from_secs(3), ..STRICT },
            // The longest lease, and the time to find out that its node is down.
            Scenario::Versions => Promise { answer: Duration::from_secs(4), ..STRICT },
            Scenario::Solitude => Promise { overlap: WINDOW, ..slow },
            Scenario::Half => Promise { half: Duration::from_secs(2), answer: Duration::from_secs(3), ..STRICT },
            // The LAN is asked twice, ten seconds apart.
            Scenario::Proxy => {
                let longest = Duration::from_secs(14);
                Promise { answer: longest, half: longest, without_store: longest, ..STRICT }
            }
            Scenario::Forge => {
                Promise { answer: Duration::from_millis(120), interval: Duration::from_millis(10), ..STRICT }
            }
            // The last move for balance may be late, after one that was declined.
            Scenario::Scores => Promise { moves: 1, balance: false, scores: true, ..window },
            Scenario::Drain | Scenario::Cut | Scenario::Vips | Scenario::Spoof | Scenario::Flap => slow,
            // The LAN is asked again for an address after ten seconds.
            Scenario::Siege => Promise { answer: Duration::from_secs(11), ..window },
            _ => window,
        };
        let end = during.end;
        let kinds: &[Scenario] = match scenario {
            Scenario::Chaos => &Scenario::SMALL[2..14],
            Scenario::Siege => &[
                Scenario::Siege,
                Scenario::Siege,
                Scenario::Forge,
                Scenario::Forge,
                Scenario::Gossip,
                Scenario::Partition,
                Scenario::Crash,
                Scenario::Pause,
                Scenario::Drain,
                Scenario::Store,
            ],
            Scenario::Scores => &[Scenario::Crash, Scenario::Drain, Scenario::Link],
            Scenario::Store => &[Scenario::Store, Scenario::Store, Scenario::Crash, Scenario::Drain, Scenario::Pause],
            _ => &[scenario],
        };
        let mut at = during.start;
        while at < end {
            let kind = kinds[self.dice.index(kinds.len())];
            let pause = self.one(kind, at);
            at += pause;
        }
        if matches!(scenario, Scenario::Crash | Scenario::Single) && self.dice.chance(300) {
            let loss = 100 + self.dice.below(400);
            self.add(BEGIN - 500, Fault::LanLoss(loss));
        }
        // The last fault of this scenario takes long.
        let end = if matches!(scenario, Scenario::Half | Scenario::Proxy | Scenario::Stutter) { at } else { end };
        self.add(end, Fault::Recover);
        if scenario == Scenario::Scores {
            self.add(end + TAIL, Fault::Mark);
            return (promise, end + 2 * TAIL);
        }
        (promise, end + TAIL)
    }

    /// Adds a fault of a kind, and its end. Returns the time until the next fault.
    fn one(&mut self, kind: Scenario, at: u64) -> u64 {
        let node = self.node();
        let short = self.dice.chance(400);
        let lasts = if short { 20 + self.dice.below(400) } else { 400 + self.dice.below(6_000) };
        match kind {
            Scenario::Crash | Scenario::Flap => {
                let fault = match self.dice.below(4) {
                    0 => Fault::PowerOff(node),
                    1 => Fault::Interrupt(node, self.interruption(true, lasts)),
                    _ => Fault::Crash(node),
                };
                self.add(at, fault);
                self.add(at + lasts, Fault::Start(node));
            }
            Scenario::Pause => {
                let within = self.dice.chance(500).then(|| self.interruption(false, lasts));
                self.add(at, within.map_or(Fault::Pause(node), |within| Fault::Interrupt(node, within)));
                self.add(at + lasts, Fault::Resume(node));
            }
            Scenario::Hang => {
                self.add(at, Fault::Hang(node));
                self.add(at + lasts, Fault::Resume(node));
                return lasts + 4_000;
            }
            Scenario::Stutter => return self.stutter(node, at),
            Scenario::SlowSource => {
                let (takes, stopped) = (1_000 + self.dice.below(10_000), 250 + self.dice.below(400));
                self.add(at - 10, Fault::SlowSource(node, Duration::from_millis(takes)));
                self.add(at, Fault::Pause(node));
                self.add(at + stopped, Fault::Resume(node));
                return takes + 4_000;
            }
            Scenario::Freeze => {
                self.add(at, Fault::Freeze(node));
                self.add(at + lasts, Fault::Thaw(node));
                let after = self.dice.below(100);
                self.add(at + lasts + after, Fault::Resume(node));
            }
            Scenario::Link => {
                self.add(at, Fault::Unplug(node));
                self.add(at + lasts, Fault::Plug(node));
            }
            Scenario::Cut => {
                self.add(at, Fault::Cut(node));
                self.add(at + lasts, Fault::Mend(node));
            }
            Scenario::Drain => self.drain(node, at, lasts),
            Scenario::Delete => return self.delete(node, at, lasts),
            Scenario::Store => self.store(at, lasts),
            Scenario::Gossip => self.gossip(at, lasts),
            Scenario::SlowStore => return self.slow_store(node, at, lasts),
            Scenario::Solitude => {
                self.add(at, Fault::Crash(node));
                self.isolate(node, at);
                let after = self.dice.below(2_000);
                self.add(at + after, Fault::Start(node));
                self.add(at + 2 * lasts, Fault::Heal);
                return 2 * lasts + 500 + self.dice.below(8_000);
            }
            Scenario::Versions => self.upgrade(node, at, lasts),
            Scenario::Half => return self.lose_half(at),
            Scenario::Single => return self.single(node, at),
            Scenario::Proxy => return self.proxy(node, at),
            Scenario::Lan => self.lan(at, lasts),
            Scenario::Partition => self.partition(at, lasts),
            Scenario::Vips => {
                let vip = self.vip();
                self.add(at, Fault::Want(vip, false));
                self.add(at + lasts, Fault::Want(vip, true));
            }
            Scenario::Spoof => self.spoof(at, lasts),
            Scenario::Forge => self.forge(at, lasts),
            Scenario::Siege => self.besiege(at, lasts),
            _ => {}
        }
        if kind == Scenario::Flap {
            return 100 + self.dice.below(900);
        }
        if self.dice.chance(300) { self.dice.below(400) } else { 500 + self.dice.below(5_000) }
    }

    fn interruption(&mut self, dies: bool, lasts: u64) -> Interruption {
        let (extends, after) = (self.dice.chance(500), self.dice.below(8));
        Interruption { extends, after, dies, lasts: Duration::from_millis(lasts) }
    }

    /// Returns the time until the next fault. After five seconds the node leads nothing any more.
    fn stutter(&mut self, node: usize, at: u64) -> u64 {
        let (hangs, seconds, pause) = (self.dice.chance(500), 20 + self.dice.below(40), 320 + self.dice.below(130));
        for second in 0..seconds {
            let at = at + second * 1_000;
            self.add(at, if hangs { Fault::Hang(node) } else { Fault::Pause(node) });
            self.add(at + pause, Fault::Resume(node));
        }
        self.add(at + 5_000, Fault::Mark);
        1_000 * seconds
    }

    /// The node is away, or cut off, for longer than its VIPs take to move.
    fn proxy(&mut self, node: usize, at: u64) -> u64 {
        self.add(at, Fault::Proxy(true));
        let lasts = 16_000 + self.dice.below(4_000);
        let (begin, end) = match self.dice.below(4) {
            0 => (Fault::PowerOff(node), Fault::Start(node)),
            1 => (Fault::Crash(node), Fault::Start(node)),
            2 => (Fault::Pause(node), Fault::Resume(node)),
            // Both live, and one of them does not hear the other, or neither does.
            _ => (Fault::Deaf(node, 1 - node), Fault::Heal),
        };
        if matches!(begin, Fault::Deaf(..)) && self.dice.chance(500) {
            self.add(at, Fault::Deaf(1 - node, node));
        }
        self.add(at, begin);
        self.add(at + lasts, end);
        lasts + 2_000 + self.dice.below(4_000)
    }

    fn drain(&mut self, node: usize, at: u64, lasts: u64) {
        match self.dice.below(3) {
            0 => {
                self.add(at, Fault::Drain(node, true));
                self.add(at + lasts, Fault::Drain(node, false));
            }
            1 => {
                self.add(at, Fault::Cordon(node, true));
                self.add(at + lasts, Fault::Cordon(node, false));
            }
            _ => {
                self.add(at, Fault::Stop(node));
                self.add(at + 1_000 + lasts, Fault::Start(node));
            }
        }
    }

    /// Returns the time until the next fault. By then all nodes know each other again.
    fn delete(&mut self, node: usize, at: u64, lasts: u64) -> u64 {
        let (before, after) = (at - self.dice.below(2_000), at + self.dice.below(2_000));
        self.add(at, Fault::Delete(node, true));
        match self.dice.below(6) {
            0 => self.add(before, Fault::Crash(node)),
            1 => self.add(before, Fault::PowerOff(node)),
            2 => self.add(after, Fault::Crash(node)),
            3 => self.add(after, Fault::Stop(node)),
            _ => {}
        }
        self.add(at + 2_000 + lasts, Fault::Delete(node, false));
        self.add(at + 2_000 + lasts, Fault::Start(node));
        lasts + 8_000
    }

    fn store(&mut self, at: u64, lasts: u64) {
        let access = [StoreAccess::Refused, StoreAccess::Hangs, StoreAccess::Mute][self.dice.index(3)];
        let all = self.dice.chance(400);
        let node = self.node();
        for node in 0..self.nodes {
            if all || self.dice.chance(300) {
                self.add(at, Fault::Access(node, access));
                self.add(at + lasts, Fault::Access(node, StoreAccess::Open));
            }
        }
        if self.dice.chance(300) {
            let (after, vip) = (self.dice.below(lasts), self.vip());
            self.add(at + after, Fault::Erase(vip));
        }
        if self.dice.chance(700) {
            let after = self.dice.below(lasts);
            self.add(at + after, Fault::Crash(node));
            self.add(at + lasts + 1_000, Fault::Start(node));
        }
    }

    fn upgrade(&mut self, node: usize, at: u64, lasts: u64) {
        let lease = [300, 300, 600, 1_200][self.dice.index(4)];
        let build = Build { later: self.dice.chance(500), lease: Some(Duration::from_millis(lease)) };
        self.add(at, Fault::Install(node, build));
        let (end, more) = match self.dice.below(4) {
            0 | 1 => (Fault::Stop(node), 1_000),
            2 => (Fault::Crash(node), 0),
            _ => (Fault::Interrupt(node, self.interruption(true, lasts)), 0),
        };
        self.add(at + 1, end);
        self.add(at + 1 + more + lasts, Fault::Start(node));
    }

    /// Returns the time until the next fault. By then all nodes know each other again.
    fn single(&mut self, node: usize, at: u64) -> u64 {
        let access =
            [StoreAccess::Open, StoreAccess::Open, StoreAccess::Refused, StoreAccess::Hangs, StoreAccess::Mute];
        let access = access.get(self.dice.index(6)).copied().unwrap_or(StoreAccess::Slow(500));
        for node in 0..self.nodes {
            self.add(at - 100, Fault::Access(node, access));
            self.add(at + 3_000, Fault::Access(node, StoreAccess::Open));
        }
        let (begins, ends) = match self.dice.below(5) {
            0 => (Fault::Crash(node), Fault::Start(node)),
            1 => (Fault::PowerOff(node), Fault::Start(node)),
            2 => (Fault::Pause(node), Fault::Resume(node)),
            3 => (Fault::Unplug(node), Fault::Plug(node)),
            _ => (Fault::Cut(node), Fault::Mend(node)),
        };
        self.add(at, begins);
        self.add(at + 3_100, ends);
        10_000
    }

    /// Returns the time until the next fault.
    fn lose_half(&mut self, at: u64) -> u64 {
        let lasts = 5_000 + self.dice.below(60_000);
        let access = [StoreAccess::Open, StoreAccess::Slow(20), StoreAccess::Slow(150), StoreAccess::Slow(500)];
        let access = access[self.dice.index(access.len())];
        for node in 0..self.nodes {
            self.add(at, Fault::Access(node, access));
            self.add(at + lasts + 5_000, Fault::Access(node, StoreAccess::Open));
        }
        let (lost, how) = (self.nodes.div_ceil(2), self.dice.below(4));
        for node in self.dice.some(lost, self.nodes) {
            let (fault, end) = match how {
                0 => (Fault::Crash(node), Fault::Start(node)),
                1 => (Fault::PowerOff(node), Fault::Start(node)),
                2 => (Fault::Pause(node), Fault::Resume(node)),
                _ => (Fault::Unplug(node), Fault::Plug(node)),
            };
            self.add(at + 1_000, fault);
            let after = self.dice.below(3_000);
            self.add(at + 1_000 + lasts + after, end);
        }
        lasts + 15_000
    }

    /// Returns the time until the next fault.
    fn slow_store(&mut self, node: usize, at: u64, lasts: u64) -> u64 {
        let kind = self.dice.index(5);
        let access = [StoreAccess::Hangs, StoreAccess::Mute, StoreAccess::Slow(20), StoreAccess::Slow(150)];
        let access = access.get(kind).copied().unwrap_or(StoreAccess::Slow(500));
        for node in 0..self.nodes {
            self.add(at, Fault::Access(node, access));
            self.add(at + 2_000 + lasts, Fault::Access(node, StoreAccess::Open));
        }
        match self.dice.below(3) {
            0 => {
                self.add(at + 1_000, Fault::Pause(node));
                self.add(at + 1_000 + lasts.min(1_000), Fault::Resume(node));
            }
            1 => self.add(at + 1_000, Fault::Crash(node)),
            _ => self.add(at + 1_000, Fault::PowerOff(node)),
        }
        self.add(at + 3_000 + lasts, Fault::Start(node));
        lasts + 10_000
    }

    fn gossip(&mut self, at: u64, lasts: u64) {
        let node = self.node();
        match self.dice.below(5) {
            0 => {
                let loss = 200 + self.dice.below(700);
                self.add(at, Fault::Loss(loss));
            }
            1 => {
                let delay = 2_000 + self.dice.below(200_000);
                self.add(at, Fault::Delay(delay));
            }
            2 => {
                for other in 0..self.nodes {
                    self.add(at, Fault::Deaf(node, other));
                }
            }
            3 => self.isolate(node, at),
            _ => {
                for _ in 0..=self.dice.below(4) {
                    let (from, to) = (self.node(), self.node());
                    self.add(at, Fault::Deaf(from, to));
                }
            }
        }
        self.add(at + lasts, Fault::Heal);
    }

    /// Lets no gossip through to a node and from it.
    fn isolate(&mut self, node: usize, at: u64) {
        for other in 0..self.nodes {
            self.add(at, Fault::Deaf(node, other));
            self.add(at, Fault::Deaf(other, node));
        }
    }

    fn lan(&mut self, at: u64, lasts: u64) {
        match self.dice.below(3) {
            0 => {
                let loss = 300 + self.dice.below(700);
                self.add(at, Fault::LanLoss(loss));
            }
            1 => {
                for _ in 0..=self.dice.below(4) {
                    let (from, to) = (self.node(), self.node());
                    self.add(at, Fault::LanDeaf(from, to));
                }
            }
            _ => {
                for node in self.side() {
                    self.add(at, Fault::Aside(node));
                }
            }
        }
        if self.dice.chance(500) {
            let (node, after) = (self.node(), self.dice.below(lasts));
            self.add(at + after, Fault::Crash(node));
            self.add(at + after + lasts, Fault::Start(node));
        }
        self.add(at + lasts, Fault::Heal);
    }

    fn side(&mut self) -> Vec<usize> {
        let count = 1 + self.dice.index(self.nodes.saturating_sub(1).max(1));
        self.dice.some(count, self.nodes)
    }

    fn partition(&mut self, at: u64, lasts: u64) {
        let side = self.side();
        let (lan, store) = (self.dice.chance(700), self.dice.chance(500));
        for node in side.clone() {
            if lan {
                self.add(at, Fault::Aside(node));
            }
            if store {
                self.add(at, Fault::Access(node, StoreAccess::Hangs));
            }
            for other in (0..self.nodes).filter(|other| !side.contains(other)) {
                self.add(at, Fault::Deaf(node, other));
                self.add(at, Fault::Deaf(other, node));
            }
        }
        self.add(at + lasts, Fault::Heal);
    }

    fn spoof(&mut self, at: u64, lasts: u64) {
        let vip = self.vip();
        if self.dice.chance(600) {
            let by = self.node();
            self.add(at, Fault::Spoof { vip, by });
        } else {
            self.add(at, Fault::ForeignSpeaker(vip, true));
            self.add(at, Fault::Want(vip, false));
            self.add(at + 300, Fault::Want(vip, true));
            self.add(at + 300 + lasts, Fault::ForeignSpeaker(vip, false));
        }
    }

    fn forge(&mut self, at: u64, lasts: u64) {
        let (vip, by) = (self.vip(), self.node());
        let pause = if self.dice.chance(500) { 100 } else { 1_000 };
        for at in (at..=at + lasts).step_by(pause) {
            self.add(at, Fault::Spoof { vip, by });
        }
    }

    /// Gossip between a node and the others fails while announcements are forged, and so does the
    /// others' store. If they take over, nothing but their announcements tells the node.
    fn besiege(&mut self, at: u64, lasts: u64) {
        let node = self.node();
        self.forge(at, lasts + 500);
        for other in (0..self.nodes).filter(|other| *other != node) {
            self.add(at + 500, Fault::Deaf(node, other));
            self.add(at + 500, Fault::Deaf(other, node));
            self.add(at + 500, Fault::Access(other, StoreAccess::Refused));
        }
        self.add(at + 500 + lasts, Fault::Heal);
    }
}
