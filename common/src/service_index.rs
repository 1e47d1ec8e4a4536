//! `SERVICE_INDEX`: copies of entries of `SERVICES`. A new flow finds its Service in half a cache line, where a
//! lookup in a hash map of the kernel reads a bucket and the entry.

use crate::abi::{SERVICE_HASHES_VIP, SERVICE_KERNEL, SERVICE_SPARE, ServiceKey, ServiceValue, capacity};

/// An element, in the host's byte order: three words of a Service port's value, and their check. It is of
/// one of the entries that have this index ([`ServiceKey::index`]), or all zero. Services with session affinity
/// have no copy, and neither have claims of every port.
///
/// Programs read an element while the agent writes it. So it only counts if it fits its check, which needs no
/// order of memory accesses. The check includes the key, so no copy of another key fits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexedService(pub [u64; 4]);

/// The bits of [`ServiceValue::slot`] in the first word, below those of [`ServiceValue::flags`].
const SLOT_BITS: u32 = 24;

impl IndexedService {
    /// Copies an entry. `None`: it has session affinity, or claims every port.
    #[must_use]
    pub const fn new(key: ServiceKey, value: &ServiceValue) -> Option<Self> {
        let ServiceValue { slot, generation, table, table_length, local_table, local_length, flags, affinity } = *value;
        if affinity != 0 || key.port == 0 {
            return None;
        }
        let first = pair(slot | flags << SLOT_BITS, generation);
        let (second, third) = (pair(table, table_length), pair(local_table, local_length));
        Some(Self([first, second, third, check(key, [first, second, third])]))
    }

    /// Returns the value, if this is a copy of the key's entry.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the halves of words")]
    pub const fn value(&self, key: ServiceKey) -> Option<ServiceValue> {
        let Self([first, second, third, found]) = *self;
        if found != check(key, [first, second, third]) {
            return None;
        }
        Some(ServiceValue {
            slot: first as u32 & ((1 << SLOT_BITS) - 1),
            generation: (first >> 32) as u32,
            table: second as u32,
            table_length: (second >> 32) as u32,
            local_table: third as u32,
            local_length: (third >> 32) as u32,
            flags: first as u32 >> SLOT_BITS,
            affinity: 0,
        })
    }
}

impl ServiceKey {
    /// Returns the key's element of `SERVICE_INDEX`.
    #[inline(always)]
    #[must_use]
    pub const fn index(&self) -> u32 {
        // Two products, since one of the whole key would be linear: if the distance of two ports were that of two
        // VIPs, the keys of all VIPs would collide.
        let hash = self.vip.wrapping_mul(0x9e37_79b1) ^ self.claim().wrapping_mul(0x27d4_eb2f);
        hash >> (u32::BITS - capacity::SERVICE_INDEX.trailing_zeros())
    }

    /// Returns the key without the VIP.
    #[inline(always)]
    const fn claim(self) -> u32 {
        self.port as u32 | (self.protocol as u32) << 16 | (self.padding as u32) << 24
    }
}

/// Returns the check of an element's first words. For the same words, two keys never have the same one, and a
/// mixture of two elements fits by chance alone.
#[inline(always)]
const fn check(key: ServiceKey, [first, second, third]: [u64; 3]) -> u64 {
    // Odd, and of 31 bits: BPF multiplies by such a constant with one instruction.
    word(key)
        .wrapping_mul(0x5851_f42d)
        .wrapping_add(first.wrapping_mul(0x4c95_7f2d))
        .wrapping_add(second.wrapping_mul(0x6c07_8965))
        .wrapping_add(third.wrapping_mul(0x2545_f491))
}

/// Returns the key as it is in memory. It is never zero.
#[inline(always)]
const fn word(key: ServiceKey) -> u64 {
    pair(key.vip, key.claim())
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const _: () = {
    assert!(capacity::SERVICES <= 1 << SLOT_BITS && capacity::SERVICE_INDEX.is_power_of_two());
    assert!((SERVICE_KERNEL | SERVICE_SPARE | SERVICE_HASHES_VIP) >> (u32::BITS - SLOT_BITS) == 0);
};

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ServiceKey = ServiceKey { vip: 3, port: 80u16.to_be(), protocol: 6, padding: 0 };
    const OTHER_KEY: ServiceKey = ServiceKey { vip: 4, ..KEY };
    const VALUE: ServiceValue = ServiceValue {
        slot: capacity::SERVICES - 1,
        generation: u32::MAX,
        table: capacity::TABLES - 251,
        table_length: 251,
        local_table: 1_000,
        local_length: 7,
        flags: SERVICE_KERNEL | SERVICE_SPARE | SERVICE_HASHES_VIP,
        affinity: 0,
    };
    /// The next revision.
    const NEXT: ServiceValue = ServiceValue { table: 2_000, table_length: 503, local_length: 0, flags: 0, ..VALUE };

    fn copy(key: ServiceKey, value: &ServiceValue) -> IndexedService {
        IndexedService::new(key, value).unwrap()
    }

    #[test]
    fn a_copy_is_of_its_own_key_alone() {
        assert_eq!(copy(KEY, &VALUE).value(KEY), Some(VALUE));
        assert_eq!(copy(KEY, &VALUE).value(OTHER_KEY), None);
        assert_eq!(copy(KEY, &ServiceValue::default()).value(KEY), Some(ServiceValue::default()));
        assert_eq!(IndexedService::default().value(KEY), None);
        assert_eq!(IndexedService::new(KEY, &ServiceValue { affinity: 1, ..VALUE }), None);
        assert_eq!(IndexedService::new(ServiceKey { port: 0, ..KEY }, &VALUE), None);
    }

    #[test]
    fn no_mixture_of_two_elements_is_taken_for_one() {
        let old = copy(KEY, &VALUE);
        let others = [
            copy(KEY, &NEXT),
            copy(KEY, &ServiceValue { generation: 9, ..VALUE }),
            copy(OTHER_KEY, &VALUE),
            copy(OTHER_KEY, &NEXT),
            IndexedService::default(),
        ];
        for new in others {
            // Each quarter of a word is from either one.
            for quarters in 0..1_u32 << 16 {
                let word = |index: usize| {
                    let is_old = |quarter: &usize| quarters >> (4 * index + quarter) & 1 == 0;
                    let mask: u64 = (0..4).filter(is_old).map(|quarter| 0xffff << (16 * quarter)).sum();
                    old.0[index] & mask | new.0[index] & !mask
                };
                let mixed = IndexedService([word(0), word(1), word(2), word(3)]);
                if mixed != old && mixed != new {
                    assert_eq!(mixed.value(KEY), None, "{mixed:x?} of {old:x?} and {new:x?}");
                }
            }
        }
    }

    #[test]
    fn regular_keys_share_few_elements() {
        let few = |vips: u32, ports: &[u16], protocols: &[u8]| {
            let keys = (0..vips).flat_map(|vip| ports.iter().map(move |port| (vip, port.to_be())));
            let keys = keys.flat_map(|(vip, port)| protocols.iter().map(move |&protocol| (vip, port, protocol)));
            let key = |(vip, port, protocol)| ServiceKey { vip, port, protocol, padding: 0 };
            let indices: Vec<_> = keys.map(|claim| key(claim).index()).collect();
            let distinct = indices.iter().collect::<std::collections::HashSet<_>>().len();
            // 10,000 random keys would leave 14 % without an element of their own.
            let lost = 100 * (indices.len() - distinct) / indices.len();
            assert!(lost <= 16, "{vips} VIPs, ports {ports:?}, protocols {protocols:?}: {lost} %");
        };
        few(10_000, &[443], &[6]);
        few(5_000, &[80, 443], &[6]);
        few(5_000, &[143, 8_080], &[6]);
        few(5_000, &[53], &[6, 17]);
        few(1_000, &[22, 25, 53, 80, 143, 443, 587, 993, 8_080, 8_443], &[6]);
        few(100, &(8_000..8_100).collect::<Vec<_>>(), &[6]);
        few(10, &(30_000..31_000).collect::<Vec<_>>(), &[6]);
        few(1, &(20_000..25_000).collect::<Vec<_>>(), &[6, 17]);
        few(1, &(20_000..30_000).collect::<Vec<_>>(), &[6]);
    }
}
