//! Fuzzes frames: arbitrary bytes, through both programs in the kernel.
//!
//! libFuzzer cannot see what the kernel runs. So the programs' own counters, which distinguish most
//! of their branches, are its coverage. It keeps frames that cause a new verdict, event or drop.

#![no_main]
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::sync::atomic::{AtomicU8, Ordering};

use libfuzzer_sys::{Corpus, fuzz_target};
use vipmux_tests::{
    packet::property::{self, Programs},
    program::Counters,
};

/// The counters that libFuzzer takes as coverage, in addition to instrumented code. It clears them
/// before each run.
#[used]
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static COVERAGE: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];

/// Places in [`COVERAGE`] for one program's verdicts, with a changed and with an unchanged frame.
const VERDICTS: usize = 16;

thread_local! {
    static PROGRAMS: Programs = Programs::load().unwrap();
}

fuzz_target!(|frame: &[u8]| -> Corpus {
    if frame.len() < property::SHORTEST {
        return Corpus::Reject;
    }
    PROGRAMS.with(|programs| {
        let program = programs.of(frame);
        let before = program.counters().unwrap();
        let after_in = property::holds_on_the_way_in(program, frame).unwrap();
        cover(0, after_in.verdict, after_in.frame != frame);
        if let Some(out) = property::holds_on_the_way_out(program, frame).unwrap() {
            cover(VERDICTS, out.verdict, out.frame != frame);
        }
        cover_counters(&program.counters().unwrap().since(&before));
    });
    Corpus::Keep
});

fn cover(first: usize, verdict: u32, changed: bool) {
    // `TC_ACT_UNSPEC` is all ones.
    let place = first + 2 * (verdict as usize & 7) + usize::from(changed);
    COVERAGE[place].store(1, Ordering::Relaxed);
}

fn cover_counters(counters: &Counters) {
    let events = counters.stats.iter().chain(&counters.drops);
    for (place, event) in COVERAGE[2 * VERDICTS..].iter().zip(events) {
        place.store(u8::from(event.packets > 0), Ordering::Relaxed);
    }
}
