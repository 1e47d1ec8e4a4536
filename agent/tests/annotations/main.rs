//! Tests annotations: the rules for any of them, and the examples of docs/annotations.md.

mod page;

use proptest::prelude::*;

use vipmux_testing::annotations::{Asked, holds, seeds};

/// Chooses a key or a value of a known annotation.
fn part(of: fn((String, String)) -> String) -> impl Strategy<Value = String> {
    let known = seeds().into_iter().filter_map(|line| line.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())));
    prop::sample::select(known.map(of).collect::<Vec<_>>())
}

fn key() -> impl Strategy<Value = String> {
    let known = || part(|(key, _)| key);
    prop_oneof![6 => known(), 1 => (known(), ".").prop_map(|(key, more)| key + &more), 1 => ".*"]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![4 => part(|(_, value)| value), 1 => ".*"]
}

proptest! {
    #[test]
    fn any_annotations_have_a_bounded_result(
        understood in prop::sample::subsequence(seeds(), 0..3),
        others in prop::collection::btree_map(key(), value(), 0..6),
        field in prop::option::of(value()),
    ) {
        let mut asked = Asked::parse(&understood.join("\n"));
        asked.annotations.extend(others);
        asked.field = field;
        let outcome = holds(&asked);
        prop_assert!(outcome.is_ok(), "{asked:?}: {outcome:?}");
    }
}
