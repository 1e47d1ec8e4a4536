//! Tests the goal for floods: of 500,000 forged packets per second, none breaks a live connection, and
//! new ones succeed.

use vipmux_tests::bench::flood;

pub(crate) fn of_half_a_million_per_second() {
    for outcome in flood::run(&mut |_| ()).unwrap() {
        assert_eq!(outcome.lost, 0, "{outcome:?}");
        if !outcome.kind.fills_tables() {
            assert_eq!((outcome.evicted, outcome.forgotten), (0, 0), "{outcome:?}");
        }
        assert!(outcome.succeeded >= if outcome.records == 4_096 { 0.9 } else { 0.95 }, "{outcome:?}");
    }
}
