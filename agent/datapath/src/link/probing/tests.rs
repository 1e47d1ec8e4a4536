//! Tests whom a node asks on a segment, and what it concludes from the answers.

use std::net::Ipv4Addr;

use super::*;

const IFINDEX: u32 = 7;

fn node(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + number).into()
}

fn nodes(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<IpAddr> {
    numbers.into_iter().map(node).collect()
}

/// A segment with other nodes, and a clock.
struct World {
    probes: SegmentProbes,
    now: Instant,
    answering: BTreeSet<IpAddr>,
    /// Frames come in between the asks.
    hears: bool,
    frames: u64,
    asked: BTreeSet<IpAddr>,
}

impl World {
    fn new(own: u32, peers: &BTreeSet<IpAddr>) -> Self {
        let (mut probes, now) = (SegmentProbes::default(), Instant::now());
        probes.set_segments(&segment(own, peers), now);
        Self { probes, now, answering: peers.clone(), hears: false, frames: 0, asked: BTreeSet::new() }
    }

    /// Lets this time pass. Returns the reach then.
    fn pass(&mut self, time: Duration) -> Option<SegmentReach> {
        let end = self.now + time;
        self.asked.clear();
        while let Some(at) = self.probes.next(self.now).filter(|at| *at <= end) {
            self.now = at;
            self.frames += u64::from(self.hears);
            let frames = BTreeMap::from([(IFINDEX, self.frames)]);
            let asked = self.probes.poll(&frames, |_| true, self.now);
            for address in asked.iter().filter(|address| self.answering.contains(address)) {
                self.probes.answered(*address, self.now);
            }
            self.asked.extend(asked);
        }
        self.now = end;
        self.probes.reaches().get(&IFINDEX).copied()
    }
}

fn segment(own: u32, peers: &BTreeSet<IpAddr>) -> PeersBySegment {
    BTreeMap::from([(IFINDEX, SegmentPeers { own: node(own), peers: peers.clone() })])
}

#[test]
fn nothing_is_known_before_the_first_answer_could_come() {
    let mut world = World::new(1, &nodes([2, 3]));
    world.answering.clear();
    assert_eq!(world.pass(UNANSWERED.saturating_sub(INTERVAL)), None);
    assert_eq!(world.pass(INTERVAL), Some(SegmentReach::Heard));
}

#[test]
fn a_node_is_answered_heard_and_then_deaf() {
    let mut world = World::new(1, &nodes([2, 3]));
    assert_eq!(world.pass(UNANSWERED), Some(SegmentReach::Answered));
    (world.answering, world.hears) = (BTreeSet::new(), true);
    assert_eq!(
        world.pass(UNANSWERED.saturating_sub(INTERVAL * 2)),
        Some(SegmentReach::Answered),
        "some answers may be lost"
    );
    assert_eq!(world.pass(DEAF * 3), Some(SegmentReach::Heard));
    world.hears = false;
    assert_eq!(world.pass(DEAF.saturating_sub(INTERVAL)), Some(SegmentReach::Heard), "a segment may be quiet");
    assert_eq!(world.pass(INTERVAL), Some(SegmentReach::Deaf));
    world.answering = nodes([3]);
    assert_eq!(world.pass(INTERVAL * 2), Some(SegmentReach::Answered));
}

#[test]
fn each_node_is_asked_by_four_others() {
    let all = nodes(1..=1_000);
    let mut askers = BTreeMap::<IpAddr, usize>::new();
    for own in 1..=1_000 {
        let mut peers = all.clone();
        peers.remove(&node(own));
        let mut world = World::new(own, &peers);
        assert_eq!(world.pass(UNANSWERED * 2), Some(SegmentReach::Answered));
        assert_eq!(world.asked.len(), SAMPLE);
        world.asked.iter().for_each(|asked| *askers.entry(*asked).or_default() += 1);
    }
    assert!(askers.len() == 1_000 && askers.values().all(|askers| *askers == SAMPLE), "{askers:?}");
}

#[test]
fn as_long_as_nobody_answers_others_are_asked() {
    let mut world = World::new(1, &nodes(2..=10));
    world.answering = nodes([9]);
    assert_eq!(world.pass(INTERVAL * 3), Some(SegmentReach::Answered));
    assert_eq!(world.pass(UNANSWERED * 4), Some(SegmentReach::Answered));
    assert!(world.asked.len() <= SAMPLE && world.asked.contains(&node(9)), "the one that answered is asked again");
}

#[test]
fn answers_of_nodes_that_were_not_asked_do_not_count() {
    let mut world = World::new(1, &nodes(2..=10));
    world.answering.clear();
    assert_eq!(world.pass(INTERVAL), None);
    world.probes.answered(node(99), world.now);
    assert_eq!(world.pass(UNANSWERED), Some(SegmentReach::Heard));
}

#[test]
fn a_segment_without_other_nodes_or_with_static_entries_says_nothing() {
    let mut world = World::new(1, &BTreeSet::new());
    assert_eq!((world.pass(DEAF), world.probes.next(world.now)), (None, None));
    let mut probes = SegmentProbes::default();
    probes.set_segments(&segment(1, &nodes([2])), world.now);
    for second in 0..60 {
        let asked = probes.poll(&BTreeMap::new(), |_| false, world.now + Duration::from_secs(second));
        assert!(asked.is_empty() && probes.reaches().is_empty());
    }
    probes.set_segments(&BTreeMap::new(), world.now);
    assert_eq!(probes.next(world.now), None);
}
