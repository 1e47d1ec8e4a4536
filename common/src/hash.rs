//! Hashes of packet tuples.
//!
//! [`flow`] selects the backend, so every node and every version in a cluster must compute the
//! same. Its result is part of the protocol between the nodes. The test vectors below fix it.

use crate::abi::{Address, AffinityKey, FlowKey, FragmentKey, SERVICE_HASHES_VIP, ServiceValue, capacity};

/// Two odd 64-bit constants with about as many ones as zeros (from splitmix64).
const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xbf58_476d_1ce4_e5b9;

#[inline(always)]
const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

#[inline(always)]
const fn mix(state: u64, word: u64) -> u64 {
    let x = (state ^ word).wrapping_mul(K1);
    x ^ (x >> 29)
}

/// Returns the hash of a flow: the client's address and port, the Service's port and the protocol,
/// as wire bytes. The VIP's id is excluded, since it differs between nodes.
///
/// `salt`: [`salt`]'s.
#[inline(always)]
pub const fn flow(key: &FlowKey, salt: u64) -> u32 {
    let ports = pair(u32::from_le(key.client_port as u32) | u32::from_le(key.vip_port as u32) << 16, key.protocol);
    let state = mix(K0 ^ salt, pair(u32::from_le(key.client.w0), u32::from_le(key.client.w1)));
    let state = mix(state, pair(u32::from_le(key.client.w2), u32::from_le(key.client.w3)));
    (mix(mix(state, ports), K0) >> 32) as u32
}

/// Returns what the VIP's address adds to the hashes of a Service port's flows; 0 without
/// [`SERVICE_HASHES_VIP`]. Without it, a client port meets one backend by all VIPs of the same Pods.
#[inline(always)]
pub const fn salt(service: &ServiceValue, vip: &Address) -> u64 {
    let prefix = pair(u32::from_le(vip.w0), u32::from_le(vip.w1));
    let salt = prefix ^ pair(u32::from_le(vip.w2), u32::from_le(vip.w3));
    // All bits or none, without a branch.
    salt & (((service.flags / SERVICE_HASHES_VIP) & 1) as u64).wrapping_neg()
}

/// Returns the index of an address in `VIP_INDEX`.
#[inline(always)]
pub const fn vip(address: &Address) -> u32 {
    let word = address.w0 ^ address.w1.rotate_left(7) ^ address.w2.rotate_left(13) ^ address.w3;
    word.wrapping_mul(0x9e37_79b1) >> (32 - capacity::VIP_INDEX.trailing_zeros())
}

/// Returns the bit of a local backend's address and port, wire, in `LOCAL_PORTS`.
#[inline(always)]
pub const fn local_port(address: &Address, port: u16) -> u32 {
    let word = address.w0 ^ address.w1.rotate_left(7) ^ address.w2.rotate_left(13) ^ address.w3;
    (word ^ (port as u32).rotate_left(11)).wrapping_mul(0x9e37_79b1) >> (32 - capacity::LOCAL_PORTS.trailing_zeros())
}

/// Returns the hash that selects the backend of a Service with session affinity, only by the
/// client's address. Part of the protocol between the nodes, like [`flow`].
#[inline(always)]
pub const fn client(address: &Address) -> u32 {
    let state = mix(K0, pair(u32::from_le(address.w0), u32::from_le(address.w1)));
    (mix(mix(state, pair(u32::from_le(address.w2), u32::from_le(address.w3))), K0) >> 32) as u32
}

/// Returns the hash of an affinity record: only a tag, local to one node.
#[inline(always)]
pub const fn affinity(key: &AffinityKey) -> u32 {
    client(&key.client) ^ key.slot ^ key.generation.rotate_left(16)
}

/// Returns the hash of a fragmented datagram: only a tag, local to one node.
#[inline(always)]
pub const fn fragment(key: &FragmentKey) -> u32 {
    let state = mix(K0, pair(key.source.w0 ^ key.destination.w0, key.source.w1 ^ key.destination.w1));
    let state = mix(state, pair(key.source.w2 ^ key.destination.w2, key.source.w3));
    (mix(mix(state, pair(key.destination.w3, key.id)), pair(key.protocol, 0)) >> 32) as u32
}

/// Returns the slot of a hash in a table of `length` slots: evenly distributed, without a division.
#[inline(always)]
pub const fn slot(hash: u32, length: u32) -> u32 {
    ((hash as u64 * length as u64) >> 32) as u32
}

/// Further slots to probe if a flow's own slot has an unusable backend ([`next`]). With nine of ten
/// backends unusable, one such flow in 700,000 finds no other; with 19 of 20, one in 700.
pub const PROBES: u32 = 128;

/// Returns the hash of the next probe.
#[inline(always)]
pub const fn next(hash: u32) -> u32 {
    hash.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15)
}

/// The number of further choices for a new flow whose replies would be those of another live flow.
pub const MOST_ATTEMPTS: u32 = 8;

/// Returns the hash of the choice after this many that cannot be used. Such choices are spread evenly
/// over a table, and are far from those of [`next`].
#[inline(always)]
pub const fn after(hash: u32, attempts: u32) -> u32 {
    hash.wrapping_add(attempts.wrapping_mul(0x9e37_79b9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Address;

    #[test]
    fn flow_hash_never_changes() {
        let key = |client: [u8; 4], port: u16, vip_port: u16, protocol| FlowKey {
            client: Address::v4(u32::from_ne_bytes(client)),
            vip: 7,
            client_port: port.to_be(),
            vip_port: vip_port.to_be(),
            protocol,
            reserved: 0,
        };
        let hashes = [
            flow(&key([192, 0, 2, 1], 40_000, 80, 6), 0),
            flow(&key([192, 0, 2, 1], 40_001, 80, 6), 0),
            flow(&key([192, 0, 2, 1], 40_000, 80, 17), 0),
            flow(&FlowKey::default(), 0),
        ];
        let address = Address::v4(u32::from_ne_bytes([192, 0, 2, 1]));
        assert_eq!([client(&address), client(&Address::default())], [25_399_806, 2_500_015_005]);
        assert_eq!(hashes, [4_157_142_029, 3_178_966_719, 1_533_810_797, 2_043_408_497]);
    }

    const HASHES_VIP: ServiceValue = ServiceValue {
        flags: SERVICE_HASHES_VIP,
        slot: 0,
        generation: 0,
        table: 0,
        table_length: 0,
        local_table: 0,
        local_length: 0,
        affinity: 0,
    };

    fn v4(address: [u8; 4]) -> Address {
        Address::v4(u32::from_ne_bytes(address))
    }

    #[test]
    fn flow_hash_with_the_vip_never_changes() {
        let key =
            FlowKey { client_port: 40_000u16.to_be(), vip_port: 80u16.to_be(), protocol: 6, ..FlowKey::default() };
        let v6 = Address {
            w0: u32::from_ne_bytes([0x20, 1, 0x0d, 0xb8]),
            w3: u32::from_ne_bytes([0, 0, 0, 1]),
            w1: 0,
            w2: 0,
        };
        let hashes = [v4([192, 0, 2, 10]), v6].map(|vip| flow(&key, salt(&HASHES_VIP, &vip)));
        assert_eq!(hashes, [1_461_431_791, 2_535_560_888]);
        assert_eq!(salt(&ServiceValue { flags: !SERVICE_HASHES_VIP, ..HASHES_VIP }, &v6), 0);
    }

    #[test]
    fn a_client_port_meets_another_backend_by_most_other_vips() {
        let vips = (0..=255).map(|last| v4([192, 0, 2, last])).chain((0..=255).map(|last| v4([last, 0, 0, 1])));
        let v6 = (0..=255).map(|last| Address { w3: u32::from_ne_bytes([0, 0, 0, last]), w0: 0x20, w1: 0, w2: 0 });
        let vips: Vec<_> = vips.chain(v6).collect();
        for pair in vips.windows(2) {
            let is_same = |number: &u16| {
                let client = v4([198, 51, 100, number.to_be_bytes()[1]]);
                let client_port = 30_000 + number / 256;
                let key = FlowKey {
                    client,
                    client_port: client_port.to_be(),
                    vip_port: 80,
                    protocol: 6,
                    ..FlowKey::default()
                };
                let [one, other] = [0, 1].map(|i| slot(flow(&key, salt(&HASHES_VIP, &pair[i])), 10));
                one == other
            };
            let same = (0..5_000).filter(is_same).count();
            assert!((400..600).contains(&same), "{pair:?}: {same} of 5,000, expected 500 with ten backends");
        }
    }

    /// The first usable slot of a flow, one in ten being usable; `None`: no probe finds one.
    fn probed(port: u16, length: u32) -> Option<u32> {
        let key = FlowKey { client: Address::v4(0x0102_0304), client_port: port, protocol: 6, ..Default::default() };
        let probes = core::iter::successors(Some(flow(&key, 0)), |hash| Some(next(*hash)));
        probes.take(1 + PROBES as usize).map(|hash| slot(hash, length)).find(|slot| slot % 10 == 3)
    }

    #[test]
    fn practically_every_flow_finds_a_usable_slot_among_nine_times_as_many_unusable_ones() {
        for length in [251, 1_021, 4_093, 16_381] {
            let lost = (0..u16::MAX).filter(|port| probed(*port, length).is_none()).count();
            assert!(lost <= 1, "{lost} of 65535 flows in a table of {length}");
        }
    }

    #[test]
    fn probes_spread_evenly_over_the_usable_slots() {
        let mut counts = [0u32; 251];
        for slot in (0..50_000).filter_map(|port| probed(port, 251)) {
            counts[slot as usize] += 1;
        }
        let (least, most) = (counts.iter().filter(|count| **count > 0).min().unwrap(), counts.iter().max().unwrap());
        assert!(*least > 1_500 && *most < 2_500, "{least} to {most}, expected about 2,000 each");
    }

    #[test]
    fn slots_are_in_range_and_even() {
        let mut counts = [0u32; 251];
        for port in 0..50_200u16 {
            let key =
                FlowKey { client: Address::v4(0x0102_0304), client_port: port, protocol: 6, ..Default::default() };
            counts[slot(flow(&key, 0), 251) as usize] += 1;
        }
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*least > 120 && *most < 290, "{least} to {most}, expected about 200 each");
        assert_eq!(slot(u32::MAX, 251), 250);
    }
}
