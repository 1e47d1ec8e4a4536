//! A node whose deadline passes again and again.

use super::{super::stability::*, *};

impl Bench {
    /// The deadline passes. Then this node leads again.
    fn lapse(&mut self) -> &mut Self {
        self.later(LEASE).give(Input::Tick { carrier: true });
        self.want(&["a", "b", "c"]);
        self.ticks(1).later(ms(10)).give(Input::Peers).give(read(Some(lease("a", 1, "v1"))));
        self.give(swapped("v1"))
    }

    /// So many lapses, the last one `within` after the first.
    fn lapses(&mut self, count: usize, within: Duration) -> &mut Self {
        let first = self.now;
        for _ in 1..count {
            self.lapse();
        }
        let rest = (first + within).saturating_sub(self.now);
        self.ticks(u32::try_from(rest.as_millis() / HEARTBEAT.as_millis()).unwrap()).lapse().ticks(1)
    }

    fn publishes(&mut self, name: &str, (ready, draining): (bool, bool)) -> &mut Self {
        let state = &mut self.peer(name).state;
        (state.ready, state.draining) = (ready, draining);
        self
    }
}

const READY: (bool, bool) = (true, false);
const HOLD_DOWN: (bool, bool) = (false, false);
const DRAINING: (bool, bool) = (true, true);
const UNSTABLE: (bool, bool) = (false, true);
const SOON: Duration = Duration::from_secs(10);

/// A pause, a machine that sleeps, gossip that is cut off.
#[test]
fn a_leader_that_lapses_once_or_twice_keeps_its_vips() {
    for count in 1..LAPSES {
        let mut bench = Bench::leading();
        bench.lapses(count, SOON);
        assert_eq!((bench.role(), bench.election.published_ability()), (Role::Leading, READY), "{count}");
    }
}

#[test]
fn a_leader_that_lapses_three_times_within_a_minute_hands_over() {
    for (within, hands_over) in [(SOON, true), (LAPSE_WINDOW, true), (LAPSE_WINDOW + ms(1_000), false)] {
        let mut bench = Bench::leading();
        bench.lapses(LAPSES, within).said();
        assert_eq!(bench.role() == Role::Handing, hands_over, "{within:?}");
        assert_eq!(bench.election.published_ability(), if hands_over { UNSTABLE } else { READY });
    }
    assert_says(FAILOVER, &format!("{} times within a minute", ["", "one", "two", "three"][LAPSES]));
}

/// As the other one of two nodes does whenever the first one stands still.
#[test]
fn a_node_that_leads_nothing_and_does_not_stand_still_may_lapse_again_and_again() {
    for leads in [false, true] {
        let mut bench = if leads { Bench::leading() } else { Bench::following() };
        for _ in 0..LAPSES {
            for _ in 0..LEASE.as_millis() / HEARTBEAT.as_millis() {
                bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
            }
            bench.want(&["a", "b", "c"]);
            bench.ticks(1);
        }
        assert_eq!(bench.election.published_ability(), if leads { UNSTABLE } else { READY });
    }
}

#[test]
fn an_unstable_leader_hands_over_only_to_a_node_that_is_ready() {
    for (others, hands_over) in [(READY, true), (HOLD_DOWN, false), (UNSTABLE, false), (DRAINING, false)] {
        let mut bench = Bench::leading();
        bench.publishes("b", others).publishes("c", others).lapses(LAPSES, SOON);
        assert_eq!(bench.role() == Role::Handing, hands_over, "{others:?}");
    }
}

#[test]
fn an_unstable_node_takes_no_vip_that_a_ready_one_can_take() {
    for (other, takes) in [(READY, false), (HOLD_DOWN, true), (UNSTABLE, true), (DRAINING, true)] {
        let mut bench = Bench::following();
        bench.lapses(LAPSES, SOON).publishes("c", other).falls("b", MemberStatus::Left);
        bench.said();
        // Of two equal nodes each has its turn.
        bench.ticks(1).knows_b().ticks(if takes { 10 } else { 2 });
        assert_eq!(bench.said().contains(&"read".to_owned()), takes, "{other:?}");
    }
}

#[test]
fn a_node_that_drains_hands_over_to_an_unstable_one_which_leads() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b", "c"]);
    bench.publishes("b", UNSTABLE).publishes("c", DRAINING).give(Input::Drain(true)).ticks(1);
    assert!(bench.said().contains(&"b: take 2".to_owned()));

    let mut bench = Bench::following();
    bench.lapses(LAPSES, SOON).publishes("b", DRAINING).publishes("c", DRAINING).said();
    bench.give(told("b", TransferStep::Take, 5)).ticks(1);
    assert_eq!((bench.role(), bench.election.published_ability()), (Role::Leading, UNSTABLE));
    bench.give(Input::Drain(true));
    assert_eq!(bench.election.published_ability(), DRAINING);
}

#[test]
fn a_node_is_stable_again_after_five_minutes_without_a_lapse() {
    let mut bench = Bench::following();
    let beats = u32::try_from(STABILITY_TIME.as_millis() / HEARTBEAT.as_millis()).unwrap();
    bench.lapses(LAPSES, SOON).ticks(beats - 10).lapse().ticks(beats - 10);
    assert_eq!(bench.election.published_ability(), UNSTABLE);
    bench.said();
    bench.ticks(20);
    assert_eq!((bench.election.published_ability(), bench.said()), (READY, vec!["publish Draining(false)".to_owned()]));
    assert_says(FAILOVER, "five minutes without a lapse");
}
