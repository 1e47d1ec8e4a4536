//! The layout of the flow table: where a record may be, and how to tell a whole record from a torn
//! one. `docs/decisions/2026-11-23-flow-table.md` has the reasons.
//!
//! A record may be in any way of two sets. Which two depends on the client's address, its port and
//! the protocol alone: a reply has them too, so one record serves both directions. Two records of
//! one client port to different Services have the same sets.
//!
//! Most records are in their first set. A set remembers when a flow last had to use its second one:
//! without that, nobody looks there.
//!
//! After all sets comes the reserve: one set for every [`RESERVE_SHARE`] others. If both sets of a flow
//! have nothing but live records, and the flow goes to a backend here, its first packet's record waits
//! there, and its second packet moves it to one of its sets. A set remembers that, too.

use crate::abi::{Address, FlowRecord, FlowSecret, RESERVE_SHARE, WAYS};

/// The record whose [`FlowRecord::of_set`] is the set's lock.
pub const LOCK_WAY: u32 = 0;
/// The record whose [`FlowRecord::of_set`] is the time of the set's last overflow.
pub const OVERFLOW_WAY: u32 = 1;
/// The record whose [`FlowRecord::of_set`] is the time of the set's last use of the reserve.
pub const RESERVE_WAY: u32 = 2;
/// [`FlowRecord::epoch`] of records in the reserve. No node has this epoch.
pub const RESERVE_EPOCH: u32 = u32::MAX;
/// The longest idle timeout that a Service may have, seconds. A set's overflow that is as long ago
/// concerns no live flow.
pub const LONGEST_IDLE_SECONDS: u32 = 86_400;

/// The hash of a flow in this node's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// Multilinear hashing: the upper half of the sum is strongly universal (D. Lemire, O. Kaser,
    /// "Strongly universal string hashing is fast", 2014). Without the secret, nobody can choose
    /// flows of one set.
    #[inline(always)]
    pub const fn new(secret: &FlowSecret, client: &Address, client_port: u16, protocol: u32) -> Self {
        let FlowSecret { sum, client: factors, port } = *secret;
        let ports = client_port as u64 | (protocol as u64) << 16;
        let sum = sum
            .wrapping_add(factors[0].wrapping_mul(client.w0 as u64))
            .wrapping_add(factors[1].wrapping_mul(client.w1 as u64))
            .wrapping_add(factors[2].wrapping_mul(client.w2 as u64))
            .wrapping_add(factors[3].wrapping_mul(client.w3 as u64))
            .wrapping_add(port.wrapping_mul(ports));
        // A permutation: ports in a row would fill sets less evenly than random ones.
        let hash = (sum >> 32) as u32;
        let hash = (hash ^ hash >> 16).wrapping_mul(0x9e37_79b1);
        Self(hash ^ hash >> 15)
    }

    /// Returns the first set. `mask`: the number of sets, a power of two, less one.
    #[inline(always)]
    pub const fn set(self, mask: u32) -> u32 {
        self.0 & mask
    }

    /// Returns the second set, which is never the first one if there are two.
    #[inline(always)]
    pub const fn other_set(self, mask: u32) -> u32 {
        (self.0 ^ (self.0.wrapping_mul(0x85eb_ca6b) >> 8 | 1)) & mask
    }

    /// Returns the way that a record gets if it is free: programs look there first.
    #[inline(always)]
    pub const fn way(self) -> u32 {
        self.0 >> 30
    }

    /// Returns the way that comes after that as the `number`th. The next one is beside it in
    /// memory: CPUs fetch cache lines in pairs.
    #[inline(always)]
    pub const fn next_way(way: u32, number: u32) -> u32 {
        (way ^ number) % WAYS
    }

    /// Returns [`FlowRecord::check`] of a record. `words`: [`FlowRecord::words`].
    #[inline(always)]
    pub const fn check(self, words: [u64; 4]) -> u32 {
        let sum = words[0]
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(words[1].wrapping_mul(0xbf58_476d_1ce4_e5b9))
            .wrapping_add(words[2].wrapping_mul(0x94d0_49bb_1331_11eb))
            .wrapping_add(words[3].wrapping_mul(0xd6e8_feb8_6659_fd93));
        (sum >> 32) as u32 ^ self.0
    }
}

/// Returns whether a new record goes to the first set, whatever is in the second one, if this is
/// the number of records in the first one. Most records go there, which makes them cheap to find.
/// And few flows find both sets full: at three quarters of all records 1.4 %, at half of them
/// 0.02 %.
#[inline(always)]
pub const fn has_ample_room(first: u32) -> bool {
    first < WAYS - 1
}

/// Returns whether a new record goes to the first set, if these are the numbers of records in both
/// and one of them has room.
#[inline(always)]
pub const fn is_first_set(first: u32, second: u32) -> bool {
    has_ample_room(first) || first <= second
}

/// Returns the set of the reserve for flows that have this set as their first one.
#[inline(always)]
pub const fn reserve_set(set: u32, mask: u32) -> u32 {
    mask + 1 + set / RESERVE_SHARE
}

/// Returns [`FlowRecord::of_set`] for an overflow, or a use of the reserve, at this time.
#[inline(always)]
pub const fn overflow(time: u32) -> u32 {
    time | 1
}

impl FlowRecord {
    /// Returns what never changes while the record is one flow's, besides the client's address.
    #[inline(always)]
    pub const fn words(&self) -> [u64; 4] {
        const fn pair(low: u32, high: u32) -> u64 {
            low as u64 | (high as u64) << 32
        }
        let ports = self.client_port as u32 | (self.vip_port as u32) << 16;
        [
            pair(self.vip, ports),
            pair(self.backend, self.backend_generation),
            pair(self.slot, self.slot_generation),
            self.node as u64 | (self.protocol as u64) << 16,
        ]
    }

    /// Returns the record's place.
    pub const fn place(&self, secret: &FlowSecret) -> Place {
        Place::new(secret, &self.client, self.client_port, self.protocol as u32)
    }

    /// Returns whether the record is one flow's, and whole: not torn by two writers, or by a writer
    /// and this reader.
    pub const fn is_whole(&self, secret: &FlowSecret) -> bool {
        self.vip != 0 && self.check == self.place(secret).check(self.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: FlowSecret = FlowSecret {
        sum: 0x0123_4567_89ab_cdef,
        client: [0xa5a5_1234_9876_5431, 0x1337_8642_9753_fdb1, 0x9999_8888_7777_6661, 0x2bd4_1f7c_55aa_c3e1],
        port: 0x7f3a_91c4_d20b_8e65,
    };

    fn places() -> impl Iterator<Item = Place> {
        (0..40_000u32).map(|flow| {
            let client = Address::v4(0x0a00_0000_u32.wrapping_add(flow >> 8).to_be());
            Place::new(&SECRET, &client, (1024 + (flow & 0xff) as u16).to_be(), 6)
        })
    }

    #[test]
    fn flows_spread_over_sets_and_ways() {
        const SETS: u32 = 64;
        let (mut first, mut second, mut ways) = ([0u32; SETS as usize], [0u32; SETS as usize], [0u32; WAYS as usize]);
        for place in places() {
            let (set, other) = (place.set(SETS - 1), place.other_set(SETS - 1));
            assert_ne!(set, other);
            first[set as usize] += 1;
            second[other as usize] += 1;
            ways[place.way() as usize] += 1;
        }
        for (counts, expected) in [(&first[..], 625), (&second[..], 625), (&ways[..], 10_000)] {
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*least > expected * 3 / 4 && *most < expected * 5 / 4, "{least} to {most}, expected {expected}");
        }
    }

    #[test]
    fn three_quarters_of_a_table_find_room() {
        const SETS: u32 = 4_096;
        let mut used = [0u32; SETS as usize];
        let flows = SETS * WAYS * 3 / 4;
        let homeless = places().take(flows as usize).filter(|place| {
            let [set, other] = [place.set(SETS - 1), place.other_set(SETS - 1)];
            let is_first = is_first_set(used[set as usize], used[other as usize]);
            let set = if is_first { set } else { other };
            used[set as usize] += 1;
            used[set as usize] > WAYS
        });
        let homeless = homeless.count();
        assert!(homeless < flows as usize / 60, "{homeless} of {flows} flows find no room");
    }

    #[test]
    fn every_word_of_a_record_is_checked() {
        let mut record = FlowRecord {
            vip: 3,
            client_port: 1,
            vip_port: 2,
            client: Address::v4(7),
            backend: 4,
            backend_generation: 5,
            slot: 6,
            slot_generation: 7,
            node: 8,
            protocol: 6,
            ..FlowRecord::default()
        };
        assert!(!record.is_whole(&SECRET));
        record.check = record.place(&SECRET).check(record.words());
        assert!(record.is_whole(&SECRET));
        let changes: [fn(&mut FlowRecord); 11] = [
            |record| record.vip += 1,
            |record| record.client_port += 1,
            |record| record.vip_port += 1,
            |record| record.client.w3 += 1,
            |record| record.backend += 1,
            |record| record.backend_generation += 1,
            |record| record.slot += 1,
            |record| record.slot_generation += 1,
            |record| record.node += 1,
            |record| record.protocol += 11,
            |record| record.check ^= 1,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut torn = record;
            change(&mut torn);
            assert!(!torn.is_whole(&SECRET), "change {number}");
        }
        record.flags = 1;
        record.epoch = 2;
        record.isn = 3;
        record.seen = 4;
        record.of_set = 5;
        assert!(record.is_whole(&SECRET), "programs change these in place");
    }
}
