//! Builds Maglev tables, which map a packet's hash to a backend (Eisenbud et al., *Maglev: A Fast
//! and Reliable Software Network Load Balancer*, NSDI 2016, section 3.4).
//!
//! Every node and every version in a cluster must build the same table from the same endpoints.
//! Otherwise a new leader would break connections. So this is part of the protocol between the
//! nodes, and the test vectors below keep it unchanged.

use std::hash::Hasher as _;

use twox_hash::XxHash64;
use vipmux_common::abi;

/// The lengths of tables: primes, ascending. There are few, since a change of the length moves
/// nearly every flow.
pub const LENGTHS: [u32; 5] = [251, 1021, 4093, 16_381, 65_521];

/// The longest of [`LENGTHS`]. If there are more endpoints, the first ones in their order, as many
/// as this, get one slot each.
pub const LONGEST: u32 = LENGTHS[LENGTHS.len() - 1];

/// The minimum number of slots per backend in a table, as long as there is a longer table.
const SLOTS_PER_BACKEND: usize = 20;

/// Returns the length of the table of this number of backends: the first of [`LENGTHS`] that is at
/// least 20 times the number, or the last; 0 for no backends.
pub fn length(backends: usize) -> u32 {
    if backends == 0 {
        return 0;
    }
    let fits = |length: &u32| *length as usize >= backends.saturating_mul(SLOTS_PER_BACKEND);
    LENGTHS.into_iter().find(fits).unwrap_or(LONGEST)
}

/// A backend's identity in the whole cluster: its address (16 bytes, IPv4 mapped) and its port, in
/// network byte order. It is not its index in a map, which differs from node to node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint([u8; 18]);

impl Endpoint {
    /// Returns the endpoint with this address and this port. The port is as in a packet (*wire*).
    pub fn new(address: abi::Address, port: u16) -> Self {
        let mut bytes = [0; 18];
        for (part, word) in bytes.chunks_exact_mut(4).zip([address.w0, address.w1, address.w2, address.w3]) {
            part.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&port.to_ne_bytes());
        Self(bytes)
    }
}

/// The order in which one backend prefers the slots of a table.
struct SlotWalk {
    /// The slot that it wants next.
    slot: u32,
    /// The distance between two wanted slots. The length is prime, so every slot is reached.
    skip: u32,
}

impl SlotWalk {
    const OFFSET_SEED: u64 = 0;
    const SKIP_SEED: u64 = 1;

    fn new(endpoint: &Endpoint, length: u32) -> Self {
        let below = |seed, bound: u32| XxHash64::oneshot(seed, &endpoint.0) % u64::from(bound);
        let [slot, skip] = [below(Self::OFFSET_SEED, length), below(Self::SKIP_SEED, length - 1) + 1];
        #[expect(clippy::cast_possible_truncation, reason = "both are less than or equal to a bound of 32 bits")]
        Self { slot: slot as u32, skip: skip as u32 }
    }

    fn next(&mut self, length: u32) -> usize {
        let slot = self.slot;
        self.slot = (slot + self.skip) % length;
        slot as usize
    }
}

/// Returns a number that distinguishes tables; local to one node.
pub fn digest(table: &[u32]) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    for slot in table {
        hasher.write_u32(*slot);
    }
    hasher.finish()
}

/// Returns the table of these backends. Each slot holds the value of an endpoint. The order of the
/// input does not matter. An endpoint that comes twice counts once, with the lower value.
pub fn table(backends: impl IntoIterator<Item = (Endpoint, u32)>) -> Vec<u32> {
    let mut backends: Vec<_> = backends.into_iter().collect();
    backends.sort_unstable();
    backends.dedup_by_key(|(endpoint, _)| *endpoint);
    let length = length(backends.len());
    let mut preferences: Vec<_> = backends.iter().map(|(endpoint, _)| SlotWalk::new(endpoint, length)).collect();
    let mut slots = vec![None; length as usize];
    let mut turns = (0..backends.len()).cycle();
    for _ in 0..length {
        let Some(turn) = turns.next() else { break };
        let free = loop {
            let slot = preferences[turn].next(length);
            if slots[slot].is_none() {
                break slot;
            }
        };
        slots[free] = Some(backends[turn].1);
    }
    slots.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_length_is_a_function_of_the_number_of_backends() {
        let counts = [0, 1, 12, 13, 51, 52, 204, 205, 819, 820, 3276, 3277, 100_000, usize::MAX];
        let expected = [0, 251, 251, 1021, 1021, 4093, 4093, 16_381, 16_381, 65_521, 65_521, 65_521, 65_521, 65_521];
        assert_eq!(counts.map(length), expected);
    }

    #[test]
    fn no_backends_make_an_empty_table() {
        assert!(table([]).is_empty());
    }

    #[test]
    fn every_backend_has_its_share_to_within_one_slot() {
        for count in [1, 2, 3, 12, 13, 100, 820, 5_000] {
            let loads = loads(&table(endpoints(count)));
            let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
            assert_eq!(loads.len(), count as usize);
            assert!(most - least <= 1, "{count} backends: {least} to {most} slots");
        }
    }

    #[test]
    fn of_more_endpoints_than_slots_the_first_have_one_each() {
        let some = table(endpoints(LONGEST));
        assert_eq!(some, table(endpoints(LONGEST + 1000)));
        assert_eq!(loads(&some).len(), LONGEST as usize);
    }

    #[test]
    fn the_loss_of_one_backend_moves_few_slots_of_the_others() {
        for (count, bound) in [(10, 0.08), (40, 0.05), (200, 0.02)] {
            let before = table(endpoints(count));
            let after = table(endpoints(count).filter(|(_, value)| *value != count / 2));
            let kept = before.iter().zip(&after).filter(|(old, _)| **old != count / 2);
            let moved = kept.filter(|(old, new)| old != new).count();
            #[expect(clippy::cast_precision_loss, reason = "tables are short")]
            let share = moved as f64 / before.len() as f64;
            assert!(share < bound, "{count} backends: {share} of the slots moved");
        }
    }

    #[test]
    fn addresses_and_ports_alone_make_a_difference() {
        let other_port = Endpoint::new(IpAddr::from([10, 0, 0, 0]).into(), 8081u16.to_be());
        let mapped: IpAddr = "::ffff:10.0.0.0".parse().unwrap();
        assert_ne!(endpoint(0), other_port);
        assert_eq!(endpoint(0), Endpoint::new(mapped.into(), 8080u16.to_be()));
    }

    /// The vectors come from an independent implementation of the paper's pseudocode.
    #[test]
    fn tables_never_change() {
        let digest = |table: Vec<u32>| {
            let bytes: Vec<u8> = table.into_iter().flat_map(u32::to_be_bytes).collect();
            XxHash64::oneshot(0, &bytes)
        };
        let v6: IpAddr = "2001:db8::7".parse().unwrap();
        let three = [(endpoint(1), 0), (endpoint(2), 1), (Endpoint::new(v6.into(), 443u16.to_be()), 2)];
        let expected = [
            [0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1],
            [1, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2],
        ];
        assert_eq!(table(three)[..48], *expected.as_flattened());
        let digests = [
            5_879_100_207_270_045_470,
            3_425_482_585_078_778_209,
            1_175_090_003_344_928_187,
            12_487_384_783_308_769_441,
            14_135_935_270_356_231_021,
        ];
        assert_eq!([1, 12, 13, 100, 1000].map(|count| digest(table(endpoints(count)))), digests);
    }

    proptest! {
        #[test]
        fn the_order_of_the_input_never_matters(
            (sorted, shuffled) in proptest::collection::btree_set(0u32..5000, 0..60)
                .prop_map(|set| set.into_iter().collect::<Vec<_>>())
                .prop_flat_map(|v| (Just(v.clone()), Just(v).prop_shuffle()))
        ) {
            let build = |v: &[u32]| table(v.iter().map(|&n| (endpoint(n), n)));
            prop_assert_eq!(build(&sorted), build(&shuffled));
        }
    }
}
