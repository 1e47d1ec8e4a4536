//! Tests which nodes are found silent, and how often they are asked.

use std::{collections::BTreeSet, net::Ipv4Addr};

use super::*;
use vipmux_testing::pages::{FAILOVER, assert_says};

const DOWN: Doubt = Doubt { is_down: true, was_silent: false };
const SUSPECTED: Doubt = Doubt { is_down: false, was_silent: false };
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

const NONE: [IpAddr; 0] = [];

fn node(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + number).into()
}

/// Nodes, and a clock that goes from event to event.
struct World {
    detection: UnreachabilityDetection,
    start: Instant,
    now: Instant,
    /// The nodes whose kernels answer.
    answering: BTreeSet<IpAddr>,
    /// The last of so many asks is answered.
    answers_every: usize,
    /// Whether frames come in, one per millisecond.
    hears: bool,
    /// Each ask, with its time.
    asks: Vec<(Duration, IpAddr)>,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            detection: UnreachabilityDetection::default(),
            start: now,
            now,
            answering: BTreeSet::new(),
            answers_every: 1,
            hears: true,
            asks: Vec::new(),
        }
    }

    fn doubting(doubts: impl IntoIterator<Item = (IpAddr, Doubt)>) -> Self {
        let mut world = Self::new();
        world.set_doubts(doubts);
        world
    }

    fn set_doubts(&mut self, doubts: impl IntoIterator<Item = (IpAddr, Doubt)>) {
        self.detection.set_doubts(&doubts.into_iter().collect(), self.now);
    }

    /// Passes this time. Asks are answered at once.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.detection.next().filter(|at| *at < until) {
            self.now = self.now.max(at);
            let time = self.now.duration_since(self.start);
            let frames = if self.hears { time.as_millis().try_into().unwrap() } else { 7 };
            let (_, asked) = self.detection.poll(frames, |_| true, self.now);
            for address in asked {
                self.asks.push((time, address));
                if self.answering.contains(&address) && self.asks.len().is_multiple_of(self.answers_every) {
                    self.detection.answered(address, self.now);
                }
            }
        }
        self.now = until;
    }

    fn silent(&self) -> Vec<IpAddr> {
        self.detection.silent().collect()
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn a_dead_node_is_silent_after_four_asks() {
    let mut world = World::doubting([(NODE, DOWN)]);
    world.pass(ms(160));
    assert_eq!(world.asks.iter().map(|(at, _)| at.as_millis()).collect::<Vec<_>>(), [0, 40, 80, 120]);
    assert_eq!(world.silent(), NONE);
    world.pass(ms(2));
    assert_eq!(world.silent(), [NODE]);
}

#[test]
fn a_suspect_is_asked_and_is_silent_as_soon_as_it_is_down() {
    for (suspected, silent_after) in [(150, 10), (500, 41)] {
        let mut world = World::doubting([(NODE, SUSPECTED)]);
        world.pass(ms(suspected));
        assert_eq!((world.silent(), world.asks.len()), (vec![], 4));
        world.set_doubts([(NODE, DOWN)]);
        world.pass(ms(silent_after - 1));
        assert_eq!(world.silent(), NONE);
        world.pass(ms(2));
        assert_eq!(world.silent(), [NODE], "suspected for {suspected} ms");
    }
}

#[test]
fn a_suspect_that_answers_the_last_ask_is_not_silent() {
    let mut world = World::doubting([(NODE, SUSPECTED)]);
    world.pass(ms(500));
    world.answering.insert(NODE);
    world.set_doubts([(NODE, DOWN)]);
    world.pass(Duration::from_mins(1));
    assert_eq!(world.silent(), NONE);
}

#[test]
fn a_node_whose_kernel_answers_is_never_silent_and_is_asked_less_and_less() {
    let mut world = World::doubting([(NODE, DOWN)]);
    world.answering.insert(NODE);
    world.pass(Duration::from_hours(1));
    assert_eq!(world.silent(), NONE);
    let first_minute = world.asks.iter().filter(|(at, _)| *at < Duration::from_mins(1)).count();
    assert!((30..=60).contains(&first_minute) && world.asks.len() < 250, "{first_minute} of {}", world.asks.len());
}

#[test]
fn a_node_that_dies_after_its_agent_left_is_silent_soon() {
    let mut world = World::doubting([(NODE, DOWN)]);
    world.answering.insert(NODE);
    world.pass(ms(10_000));
    world.answering.clear();
    world.pass(ms(1_200));
    assert_eq!(world.silent(), [NODE]);
}

#[test]
fn one_answer_to_four_asks_is_enough() {
    let mut world = World::doubting([(NODE, DOWN)]);
    (world.answering, world.answers_every) = ([NODE].into(), 4);
    world.pass(Duration::from_mins(10));
    assert_eq!(world.silent(), NONE);
    world.answers_every = 5;
    world.pass(Duration::from_mins(10));
    assert_eq!(world.silent(), [NODE]);
}

#[test]
fn while_no_frames_come_in_nobody_is_silent() {
    let mut world = World::doubting((0..5).map(|number| (node(number), DOWN)));
    world.hears = false;
    world.pass(Duration::from_mins(1));
    assert_eq!(world.silent(), NONE);
}

/// Frames come in before the first answer.
#[test]
fn nobody_is_silent_when_the_own_link_comes_back() {
    for outage in (1_000..4_000).step_by(37) {
        let nodes: Vec<_> = (0..5).map(node).collect();
        let mut world = World::doubting(nodes.iter().map(|node| (*node, DOWN)));
        world.hears = false;
        world.pass(ms(outage));
        world.hears = true;
        world.answering.extend(nodes);
        world.pass(ms(5_000));
        assert_eq!(world.silent(), NONE, "after {outage} ms");
    }
}

#[test]
fn a_dead_node_is_silent_soon_after_frames_come_in() {
    let mut world = World::doubting([(NODE, DOWN)]);
    world.hears = false;
    world.pass(ms(3_000));
    world.hears = true;
    world.pass(ms(1_200));
    assert_eq!(world.silent(), [NODE]);
}

#[test]
fn a_silent_node_is_reached_as_soon_as_its_agent_is_heard() {
    let mut world = World::doubting([(NODE, DOWN)]);
    world.pass(ms(60_000));
    assert_eq!(world.silent(), [NODE]);
    world.set_doubts([]);
    assert_eq!((world.silent(), world.detection.next()), (vec![], None));
}

#[test]
fn a_kernel_that_answers_again_soon_did_not_start_anew() {
    for (outage, silent) in [(1_000, vec![]), (4_000, vec![]), (8_000, vec![NODE]), (60_000, vec![NODE])] {
        let mut world = World::doubting([(NODE, DOWN)]);
        world.pass(ms(outage));
        assert_eq!(world.silent(), [NODE]);
        world.answering.insert(NODE);
        world.pass(ms(10_000));
        assert_eq!(world.silent(), silent, "after {outage} ms");
    }
}

#[test]
fn a_node_that_was_silent_before_stays_so_until_its_agent_is_heard() {
    let mut world = World::doubting([(NODE, Doubt { is_down: false, was_silent: true })]);
    assert_eq!(world.silent(), [NODE]);
    world.answering.insert(NODE);
    world.set_doubts([(NODE, DOWN)]);
    world.pass(ms(10_000));
    assert_eq!(world.silent(), [NODE]);
    world.set_doubts([]);
    assert_eq!(world.silent(), NONE);
}

#[test]
fn the_page_has_the_figures_of_the_code() {
    let (pause, batch) = (ANSWER.as_millis(), BATCH_PAUSE.as_millis());
    assert_says(FAILOVER, &format!("Four are sent, {pause} ms apart"));
    assert_eq!((ASKS, REBOOT), (4, ms(5_000)));
    assert_says(FAILOVER, "when its kernel answers within five seconds");
    assert_says(FAILOVER, &format!("down to every {} seconds", LONGEST_PAUSE.as_secs()));
    assert_says(FAILOVER, &format!("at most {MOST_ASKS} are asked every {batch} ms: 1,000 are found in two seconds"));
}

#[test]
fn a_thousand_nodes_are_found_dead_within_two_seconds_and_asks_are_few() {
    let mut world = World::doubting((0..1_000).map(|number| (node(number), DOWN)));
    world.answering.extend((0..100).map(node));
    world.pass(ms(2_000));
    assert_eq!(world.silent(), (100..1_000).map(node).collect::<Vec<_>>());
    for window in 0..20 {
        let (from, until) = (ms(window * 100), ms(window * 100 + 100));
        let asks = world.asks.iter().filter(|(at, _)| (from..until).contains(at)).count();
        assert!(asks <= 5 * MOST_ASKS, "{asks} asks from {from:?} on");
    }
    world.pass(ms(60_000));
    let late = world.asks.iter().filter(|(at, _)| *at > ms(30_000)).count();
    assert!(late <= 100 * 40, "{late} asks later");
}

#[test]
fn a_node_that_cannot_be_asked_is_not_silent() {
    let mut detection = UnreachabilityDetection::default();
    let start = Instant::now();
    detection.set_doubts(&Doubts::from([(NODE, DOWN)]), start);
    for second in 0..100 {
        let (changed, asks) = detection.poll(second, |_| false, start + Duration::from_secs(second));
        assert_eq!((changed, asks, detection.silent().count()), (false, vec![], 0));
    }
}

#[test]
fn an_answer_to_nothing_changes_nothing() {
    let mut detection = UnreachabilityDetection::default();
    let now = Instant::now();
    assert!(!detection.answered(NODE, now));
    detection.set_doubts(&Doubts::from([(NODE, DOWN)]), now);
    assert!(!detection.answered(NODE, now));
    assert_eq!(detection.next(), Some(now));
}
