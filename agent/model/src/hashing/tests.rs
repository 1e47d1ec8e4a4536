use std::{collections::BTreeMap, net::IpAddr};

use proptest::prelude::*;

use super::*;

fn endpoint(n: u32) -> Endpoint {
    let [_, a, b, c] = n.to_be_bytes();
    Endpoint::new(IpAddr::from([10, a, b, c]).into(), 8080u16.to_be())
}

fn endpoints(count: u32) -> impl Iterator<Item = (Endpoint, u32)> {
    (0..count).map(|n| (endpoint(n), n))
}

fn loads(table: &[u32]) -> BTreeMap<u32, u32> {
    let mut loads = BTreeMap::new();
    for &value in table {
        *loads.entry(value).or_default() += 1;
    }
    loads
}

/// Returns the share of all hashes that two tables give to different backends.
fn disturbance(one: &[u32], other: &[u32]) -> f64 {
    // The ends of the slots of both, as products of the lengths. Between two of them, nothing changes.
    let (first, second) = (one.len() as u64, other.len() as u64);
    let (mut at, mut differ) = (0, 0);
    while at < first * second {
        let (slot, other_slot) = (at / second, at / first);
        let end = ((slot + 1) * second).min((other_slot + 1) * first);
        let slots = [slot, other_slot].map(|slot| usize::try_from(slot).unwrap());
        differ += if one[slots[0]] == other[slots[1]] { 0 } else { end - at };
        at = end;
    }
    #[expect(clippy::cast_precision_loss, reason = "tables are short")]
    let share = differ as f64 / (first * second) as f64;
    share
}

#[test]
fn disturbance_counts_hashes_in_tables_of_any_length() {
    assert_eq!(disturbance(&[1, 2], &[1, 1, 2, 2]).to_bits(), 0f64.to_bits());
    assert!((disturbance(&[1, 2], &[1, 2, 2]) - 1.0 / 6.0).abs() < 1e-9);
}

#[test]
fn one_endpoint_more_or_less_disturbs_three_times_its_share_at_most() {
    let mut before = Hashing::Second.table(endpoints(1));
    for count in 2..=1001 {
        let table = Hashing::Second.table(endpoints(count));
        let disturbed = disturbance(&before, &table) * f64::from(count);
        assert!(disturbed <= 3.0, "{} and {count} endpoints: {disturbed:.2} times a share", count - 1);
        before = table;
    }
}

#[test]
fn the_loss_of_any_endpoint_disturbs_as_little() {
    let lengths = [12, 13, 25, 26, 51, 52, 102, 103, 204, 205, 409, 410, 819, 820];
    for count in (3..=11).chain(lengths).chain([1000]) {
        let all = Hashing::Second.table(endpoints(count));
        for lost in [0, count / 2, count - 1] {
            let others = Hashing::Second.table(endpoints(count).filter(|(_, value)| *value != lost));
            let disturbed = disturbance(&all, &others) * f64::from(count);
            assert!(disturbed <= 3.0, "{count} endpoints without {lost}: {disturbed:.2} times a share");
        }
    }
}

#[test]
fn the_lengths_are_functions_of_the_number_of_backends() {
    let counts = [0, 1, 12, 13, 51, 52, 204, 205, 819, 820, 3276, 3277, 100_000, usize::MAX];
    let first = [0, 251, 251, 1021, 1021, 4093, 4093, 16_381, 16_381, 65_521, 65_521, 65_521, 65_521, 65_521];
    assert_eq!(counts.map(|count| Hashing::First.length(count)), first);
    let second = [0, 250, 250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 64_000, 64_000, 64_000];
    assert_eq!(counts.map(|count| Hashing::Second.length(count)), second);
}

#[test]
fn the_second_tables_take_less_memory_and_no_length_of_the_first() {
    for count in 1..5_000 {
        let [first, second] = Hashing::ALL.map(|hashing| hashing.length(count));
        assert!(second < first, "{count} backends: {second} slots instead of {first}");
        assert!((1..5_000).all(|other| Hashing::First.length(other) != second), "{second} is a length of both");
    }
}

#[test]
fn no_backends_make_an_empty_table() {
    assert!(Hashing::ALL.iter().all(|hashing| hashing.table([]).is_empty()));
}

#[test]
fn every_backend_has_its_share_to_within_one_slot_in_the_first_tables() {
    for count in [1, 2, 3, 12, 13, 100, 820, 5_000] {
        let loads = loads(&Hashing::First.table(endpoints(count)));
        let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
        assert_eq!(loads.len(), count as usize);
        assert!(most - least <= 1, "{count} backends: {least} to {most} slots");
    }
}

#[test]
fn the_second_tables_are_as_even_as_their_page_says() {
    for count in (1..=60).chain([100, 204, 205, 409, 819, 820, 1000, 3000]) {
        let table = Hashing::Second.table(endpoints(count));
        let loads = loads(&table);
        assert_eq!((loads.len(), table.len()), (count as usize, Hashing::Second.length(count as usize) as usize));
        let mean = f64::from(u32::try_from(table.len()).unwrap()) / f64::from(count);
        let room = f64::from(count) / f64::from(count + 20);
        let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
        // Two slots at most by rounding.
        let bounds = (mean * (1.0 - 0.7 * room) - 2.0)..=(mean * (1.0 + 0.4 * room) + 2.0);
        assert!(
            bounds.contains(&f64::from(*least)) && bounds.contains(&f64::from(*most)),
            "{count}: {least} to {most}"
        );
    }
}

#[test]
fn of_more_endpoints_than_slots_the_first_have_one_each() {
    for hashing in Hashing::ALL {
        let most = u32::try_from(hashing.most_endpoints()).unwrap();
        let some = hashing.table(endpoints(most));
        assert_eq!(some, hashing.table(endpoints(most + 1000)));
        assert_eq!(loads(&some).len(), hashing.most_endpoints());
    }
}

#[test]
fn numbers_of_later_hashings_stand_for_the_newest_one() {
    assert_eq!(Hashing::ALL.map(|hashing| Hashing::from_number(hashing.number())), Hashing::ALL);
    assert_eq!(Hashing::from_number(u32::MAX), Hashing::Second);
}

#[test]
fn addresses_and_ports_alone_make_a_difference() {
    let other_port = Endpoint::new(IpAddr::from([10, 0, 0, 0]).into(), 8081u16.to_be());
    let mapped: IpAddr = "::ffff:10.0.0.0".parse().unwrap();
    assert_ne!(endpoint(0), other_port);
    assert_eq!(endpoint(0), Endpoint::new(mapped.into(), 8080u16.to_be()));
}

/// Returns a digest that is the same on every machine.
fn portable_digest(hashing: Hashing, count: u32) -> u64 {
    let bytes: Vec<u8> = hashing.table(endpoints(count)).into_iter().flat_map(u32::to_be_bytes).collect();
    XxHash64::oneshot(0, &bytes)
}

/// The vectors come from an independent implementation of the paper's pseudocode.
#[test]
fn the_first_tables_never_change() {
    let v6: IpAddr = "2001:db8::7".parse().unwrap();
    let three = [(endpoint(1), 0), (endpoint(2), 1), (Endpoint::new(v6.into(), 443u16.to_be()), 2)];
    let expected = [
        [0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1],
        [1, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2],
    ];
    assert_eq!(Hashing::First.table(three)[..48], *expected.as_flattened());
    let digests = [
        5_879_100_207_270_045_470,
        3_425_482_585_078_778_209,
        1_175_090_003_344_928_187,
        12_487_384_783_308_769_441,
        14_135_935_270_356_231_021,
    ];
    assert_eq!([1, 12, 13, 100, 1000].map(|count| portable_digest(Hashing::First, count)), digests);
}

/// The vectors come from another implementation of the comments in `second.rs`, in Python.
#[test]
fn the_second_tables_never_change() {
    let expected = [
        1_020_943_767_294_969_690,
        17_720_931_470_476_327_386,
        7_305_259_710_706_048_602,
        16_392_292_431_581_182_292,
        1_251_722_950_780_013_940,
    ];
    let counts = [1, 12, 13, 100, 1000];
    assert_eq!(counts.map(|count| portable_digest(Hashing::Second, count)), expected);
}

proptest! {
    #[test]
    fn the_order_of_the_input_never_matters(
        (sorted, shuffled) in proptest::collection::btree_set(0u32..5000, 0..60)
            .prop_map(|set| set.into_iter().collect::<Vec<_>>())
            .prop_flat_map(|v| (Just(v.clone()), Just(v).prop_shuffle()))
    ) {
        for hashing in Hashing::ALL {
            let build = |v: &[u32]| hashing.table(v.iter().map(|&n| (endpoint(n), n)));
            prop_assert_eq!(build(&sorted), build(&shuffled));
        }
    }
}
