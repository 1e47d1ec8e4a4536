//! Internet checksums (RFC 1071) and their incremental update (RFC 1624, equation 3), on wire words
//! as loaded: the sum is the same in both byte orders.

/// Folds a sum of 16-bit words into 16 bits.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "after three foldings, a carry at most is left")]
pub const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

/// Returns the change from word `old` to `new`, for [`update`]. Changes can be added.
#[inline(always)]
pub const fn change(old: u32, new: u32) -> u64 {
    !old as u64 + new as u64
}

/// Returns the checksum field after a change: HC' = ~(~HC + ~m + m').
#[inline(always)]
pub const fn update(field: u16, change: u64) -> u16 {
    !fold((!field) as u64 + change)
}

/// Returns an IPv4 header's checksum field after its TTL was decremented, as [`update`] would for the
/// word with the TTL in its upper byte. The kernel does the same (`ip_decrease_ttl` in
/// include/net/ip.h).
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the carry is added to the low half")]
pub const fn decremented(field: u16) -> u16 {
    let sum = field as u32 + 0x0100_u16.to_be() as u32;
    // All ones becomes zero, as by the kernel.
    (sum + ((sum + 1) >> 16)) as u16
}

/// Returns the sum of `bytes`, padded with a zero byte to whole words.
pub fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let mut total: u64 = words.by_ref().map(|word| u64::from(u16::from_ne_bytes([word[0], word[1]]))).sum();
    if let [last] = words.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)).to_ne_bytes(), [0xdd, 0xf2]);
    }

    #[test]
    fn a_decremented_ttl_has_the_same_effect_as_an_update() {
        let word = |ttl: u8| u32::from(u16::from_be_bytes([ttl, 6]).to_be());
        for field in 0..=u16::MAX {
            for ttl in [1, 2, 64, 255] {
                let updated = update(field, change(word(ttl), word(ttl - 1)));
                let is_same = |a: u16, b: u16| a == b || a.wrapping_add(1) <= 1 && b.wrapping_add(1) <= 1;
                assert!(
                    is_same(decremented(field), updated),
                    "{field:#06x}: {:#06x}, {updated:#06x}",
                    decremented(field)
                );
            }
        }
    }

    #[test]
    fn update_equals_summing_again() {
        let mut bytes: Vec<u8> = (0..40u8).map(|i| i.wrapping_mul(37)).collect();
        let before = !fold(sum(&bytes));
        for seed in 0..2_000u32 {
            let new = seed.wrapping_mul(0x9e37_79b9).to_ne_bytes();
            let old = u32::from_ne_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
            let delta = change(old, u32::from_ne_bytes(new));
            let updated = update(before, delta);
            let saved = bytes.clone();
            bytes[8..12].copy_from_slice(&new);
            assert_eq!(updated, !fold(sum(&bytes)), "seed {seed}");
            bytes = saved;
        }
    }
}
