//! Fuzzes a Service's annotations: arbitrary lines such as `vipmux.io/pool=lan`.
//!
//! The crate under test is not instrumented, which would need a separate build. Instead, libFuzzer
//! gets as coverage which annotations of the dialects' tables were understood or refused, and why.
//! It also has a dictionary.

#![no_main]
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::sync::atomic::{AtomicU8, Ordering};

use libfuzzer_sys::{Corpus, fuzz_target};
use vipmux_model::dialects;
use vipmux_testing::annotations::{self, Asked};

/// The counters that libFuzzer takes as coverage. It clears them before each run.
#[used]
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static COVERAGE: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];

/// Possible outcomes: none, and each [`vipmux_model::reason::Reason`].
const OUTCOMES: usize = 32;

fuzz_target!(|text: &[u8]| -> Corpus {
    let Ok(text) = str::from_utf8(text) else { return Corpus::Reject };
    let asked = Asked::parse(text);
    let outcome = annotations::holds(&asked).unwrap().map_or(0, |reason| 1 + reason as usize);
    let rows = dialects::ALL.iter().flat_map(|dialect| dialect.annotations);
    for (row, (spellings, _)) in rows.enumerate() {
        if spellings.iter().any(|one| asked.annotations.contains_key(*one))
            && let Some(place) = COVERAGE.get(row * OUTCOMES + outcome)
        {
            place.store(1, Ordering::Relaxed);
        }
    }
    Corpus::Keep
});
