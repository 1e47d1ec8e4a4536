//! Decides on which segments this node's path is cut. Pure.
//!
//! ```text
//!            worse than another node for SETTLE              worse than no other for the hold, or all
//! (connected) ─────────────────────────────────► (cut)       others are worse
//!      ▲                                           │
//!      └───────────────────────────────────────────┘
//! ```
//!
//! This node's path is cut if it reaches others on the segment in a worse way than another node does. If
//! no node is answered there, the whole segment is down, and nothing may move.

#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_model::reach::SegmentReach;

/// The interval at which the segments are looked at.
const EVERY: Duration = Duration::from_millis(500);
/// The time for which another node must have a better reach. When a whole segment goes down, all nodes
/// find out in this time, and tell each other.
const SETTLE: Duration = Duration::from_secs(2);
/// The time for which no other node's reach must be better before a node may lead again. It doubles with
/// each cut that follows within [`FORGOTTEN`] of the last one, up to [`LONGEST_HOLD`].
const HOLD: Duration = Duration::from_secs(5);
const LONGEST_HOLD: Duration = Duration::from_mins(5);
const FORGOTTEN: Duration = Duration::from_mins(10);

/// How nodes reach each other on a segment, as this node knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentView {
    /// This node's reach; `None`: unknown.
    pub(crate) own: Option<SegmentReach>,
    /// The best reach of another living node; `None`: none is known.
    pub(crate) best: Option<SegmentReach>,
}

impl SegmentView {
    fn is_worse(self) -> bool {
        self.own.is_some_and(|own| self.best.is_some_and(|best| own < best))
    }

    /// Returns whether nobody else has at least this node's reach.
    fn is_first(self) -> bool {
        self.own.is_none_or(|own| self.best.is_none_or(|best| own > best))
    }
}

/// The state of each segment, by the interface with this node's addresses.
#[derive(Debug, Default)]
pub(crate) struct CutSegments {
    segments: BTreeMap<u32, Path>,
    /// The time of the last look.
    looked: Option<Duration>,
}

#[derive(Debug)]
struct Path {
    cut: bool,
    /// Since when the state should be the other one.
    since: Option<Duration>,
    hold: Duration,
    /// The end of the last cut.
    ended: Option<Duration>,
}

impl Path {
    fn new() -> Self {
        Self { cut: false, since: None, hold: HOLD, ended: None }
    }

    fn update(&mut self, view: SegmentView, now: Duration) {
        let (is_other, wait) = if self.cut { (!view.is_worse(), self.hold) } else { (view.is_worse(), SETTLE) };
        if !is_other {
            self.since = None;
            return;
        }
        let since = *self.since.get_or_insert(now);
        // If all others are worse, nobody else can lead.
        if now < since + wait && !(self.cut && view.is_first()) {
            return;
        }
        self.since = None;
        self.cut = !self.cut;
        if !self.cut {
            self.ended = Some(now);
            return;
        }
        let again = self.ended.is_some_and(|ended| now < ended + FORGOTTEN);
        self.hold = if again { (self.hold * 2).min(LONGEST_HOLD) } else { HOLD };
    }
}

impl CutSegments {
    /// Returns whether it is time to look at the segments, and notes it.
    pub(crate) fn take_due(&mut self, now: Duration) -> bool {
        let due = self.looked.is_none_or(|at| now >= at + EVERY);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Updates all segments. Those that are missing are forgotten.
    pub(crate) fn update(&mut self, views: &BTreeMap<u32, SegmentView>, now: Duration) {
        self.segments.retain(|ifindex, _| views.contains_key(ifindex));
        for (ifindex, view) in views {
            self.segments.entry(*ifindex).or_insert_with(Path::new).update(*view, now);
        }
    }

    /// Returns the interfaces whose path is cut.
    pub(crate) fn cut(&self) -> BTreeSet<u32> {
        self.segments.iter().filter(|(_, path)| path.cut).map(|(ifindex, _)| *ifindex).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use SegmentReach::{Answered, Deaf, Heard};

    const IFINDEX: u32 = 7;
    /// Looks within the longest hold.
    const LONG: u32 = 700;
    const REACHES: [Option<SegmentReach>; 4] = [None, Some(Deaf), Some(Heard), Some(Answered)];

    fn view(own: impl Into<Option<SegmentReach>>, best: impl Into<Option<SegmentReach>>) -> SegmentView {
        SegmentView { own: own.into(), best: best.into() }
    }

    /// One segment, and a clock.
    #[derive(Default)]
    struct Bench {
        segments: CutSegments,
        now: Duration,
    }

    impl Bench {
        /// Keeps a view for this time. Returns whether the path is cut then.
        fn keep(&mut self, view: SegmentView, time: Duration) -> bool {
            let end = self.now + time;
            while self.now < end {
                self.segments.update(&BTreeMap::from([(IFINDEX, view)]), self.now);
                self.now += EVERY;
            }
            self.segments.update(&BTreeMap::from([(IFINDEX, view)]), self.now);
            !self.segments.cut().is_empty()
        }
    }

    #[test]
    fn a_path_is_cut_where_another_node_has_a_better_reach_for_a_while() {
        for own in REACHES {
            for best in REACHES {
                let view = view(own, best);
                let expected = matches!((own, best), (Some(own), Some(best)) if own < best);
                assert!(!Bench::default().keep(view, SETTLE.saturating_sub(EVERY)), "{view:?}");
                assert_eq!(Bench::default().keep(view, SETTLE), expected, "{view:?}");
            }
        }
    }

    #[test]
    fn a_segment_that_goes_down_as_a_whole_cuts_no_path() {
        let mut bench = Bench::default();
        assert!(!bench.keep(view(Heard, Answered), SETTLE.saturating_sub(EVERY)), "the others have not found out");
        assert!(!bench.keep(view(Heard, Heard), SETTLE * 10));
        assert!(!bench.keep(view(Deaf, Heard), SETTLE.saturating_sub(EVERY)));
        assert!(!bench.keep(view(Deaf, Deaf), SETTLE * 10));
    }

    #[test]
    fn a_cut_ends_when_no_other_node_has_a_better_reach_for_a_while() {
        let mut bench = Bench::default();
        assert!(bench.keep(view(Deaf, Answered), SETTLE));
        assert!(bench.keep(view(Answered, Answered), HOLD.saturating_sub(EVERY)));
        assert!(bench.keep(view(Heard, Answered), EVERY));
        assert!(bench.keep(view(Answered, Answered), HOLD.saturating_sub(EVERY)), "it begins anew");
        assert!(!bench.keep(view(Answered, Answered), EVERY * 2));
        assert!(bench.keep(view(Deaf, Heard), SETTLE));
        assert!(!bench.keep(view(Heard, Heard), HOLD * 2 + EVERY), "if all are cut, nobody leads");
    }

    #[test]
    fn a_cut_ends_at_once_where_nobody_else_has_a_path() {
        for better in [view(Answered, Heard), view(Heard, Deaf), view(Answered, None), view(None, Answered)] {
            let mut bench = Bench::default();
            assert!(bench.keep(view(Deaf, Answered), SETTLE));
            assert!(!bench.keep(better, Duration::ZERO), "{better:?}");
        }
    }

    #[test]
    fn a_path_that_is_cut_again_and_again_waits_longer_each_time() {
        let mut bench = Bench::default();
        for hold in [HOLD, HOLD * 2, HOLD * 4, HOLD * 8] {
            assert!(bench.keep(view(Deaf, Answered), SETTLE));
            assert!(bench.keep(view(Answered, Answered), hold.saturating_sub(EVERY)), "{hold:?}");
            assert!(!bench.keep(view(Answered, Answered), EVERY * 2), "{hold:?}");
        }
        assert!(!bench.keep(view(Answered, Answered), FORGOTTEN));
        assert!(bench.keep(view(Deaf, Answered), SETTLE));
        assert!(!bench.keep(view(Answered, Answered), HOLD + EVERY), "the earlier ones are forgotten");
    }

    #[test]
    fn a_segment_that_is_gone_is_forgotten() {
        let mut bench = Bench::default();
        assert!(bench.keep(view(Deaf, Answered), SETTLE));
        bench.segments.update(&BTreeMap::new(), bench.now);
        assert!(bench.segments.cut().is_empty());
    }

    proptest! {
        /// Nodes that all know each other's reach at once.
        #[test]
        fn one_of_the_nodes_with_the_best_reach_is_never_cut(
            rounds in proptest::collection::vec((proptest::collection::vec(1..REACHES.len(), 3), 1..40_u32), 1..20),
        ) {
            let mut nodes = [const { None }; 3].map(|_: Option<()>| Bench::default());
            let last = rounds.last().map(|(reaches, _)| (reaches.clone(), LONG));
            for (reaches, halves) in rounds.into_iter().chain(last) {
                for (node, own) in reaches.iter().enumerate() {
                    let others = reaches.iter().enumerate().filter(|(other, _)| *other != node);
                    let best = others.map(|(_, reach)| REACHES[*reach]).max().flatten();
                    nodes[node].keep(view(REACHES[*own], best), EVERY * halves);
                }
                let best = reaches.iter().max();
                let alone = reaches.iter().filter(|reach| Some(*reach) == best).count() == 1;
                for (node, reach) in nodes.iter().zip(&reaches).filter(|_| alone || halves == LONG) {
                    prop_assert!(Some(reach) != best || node.segments.cut().is_empty());
                }
            }
        }
    }
}
