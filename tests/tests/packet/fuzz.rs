//! Property tests with arbitrary bytes.

use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{Config, TestRunner},
};

use crate::property::{self, Programs, SHORTEST};

const CASES: u32 = 3_000;

/// Returns a valid frame with some bytes changed and perhaps cut short, or noise.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<Index>(), any::<u8>()), 0..6);
    let mutated = (prop::sample::select(property::seeds()), edits, prop::option::weighted(0.3, any::<Index>()))
        .prop_map(|(mut frame, edits, cut)| {
            for (at, byte) in edits {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            if let Some(cut) = cut {
                frame.truncate(SHORTEST + cut.index(frame.len() - SHORTEST + 1));
            }
            frame
        });
    prop_oneof![4 => mutated, 1 => prop::collection::vec(any::<u8>(), SHORTEST..400)]
}

fn check(property: impl Fn(&[u8]) -> anyhow::Result<()>) {
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let property = |frame: Vec<u8>| property(&frame).map_err(|error| TestCaseError::fail(format!("{error:#}")));
    runner.run(&frames(), property).unwrap();
}

pub(crate) fn any_frame_gets_a_verdict_and_what_is_not_for_a_vip_passes() {
    let programs = Programs::load().unwrap();
    check(|frame| property::holds_on_the_way_in(programs.of(frame), frame).map(drop));
}

pub(crate) fn any_frame_may_leave_unless_it_speaks_for_a_vip() {
    let programs = Programs::load().unwrap();
    check(|frame| property::holds_on_the_way_out(programs.of(frame), frame).map(drop));
}
