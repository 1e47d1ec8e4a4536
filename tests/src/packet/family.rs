//! Translates states and frames to the other family, so that cases written for IPv4 are checked for
//! both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    frames::{ETHERTYPE_IPV4, ETHERTYPE_VLAN, Ethernet, Extension, Ipv6, Payload},
    program::State,
};
use vipmux_common::{
    abi::{self, Address},
    hash,
};

/// The IP version of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

/// Maps an IPv4 address to an IPv6 address. Every word depends on it, and common prefixes stay
/// common.
pub fn v6(address: Ipv4Addr) -> Ipv6Addr {
    if address.is_unspecified() {
        return Ipv6Addr::UNSPECIFIED;
    }
    if address.is_multicast() {
        return Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    }
    let [a, b, c, d] = address.octets();
    Ipv6Addr::from([0x20, 0x01, a, b, 0x0d, 0xb8, c, 0x01, d, !a, !b, !c, !d, a ^ d, b ^ c, 0x10])
}

/// Maps an IPv4 prefix of whole bytes to the bits of an IPv6 prefix.
fn prefix(bits: u32) -> u32 {
    match bits {
        0 => 0,
        8 => 24,
        16 => 32,
        24 => 56,
        32 => 128,
        _ => panic!("/{bits} has no prefix in its place"),
    }
}

fn moved(address: Address) -> Address {
    match IpAddr::from(address) {
        IpAddr::V4(address) => IpAddr::from(v6(address)).into(),
        IpAddr::V6(_) => address,
    }
}

fn fragment(key: &abi::FragmentKey) -> abi::FragmentKey {
    abi::FragmentKey { source: moved(key.source), destination: moved(key.destination), id: key.id, protocol: 0 }
}

/// Returns the same state with IPv6 addresses. A wrong tag stays wrong.
pub fn state(state: State) -> State {
    let vips = state.vips.into_iter().map(|(address, value)| (moved(address), value)).collect();
    let backends = state.backends.into_iter().map(|it| match it.generation {
        0 => it,
        _ => abi::Backend { address: moved(it.address), ..it },
    });
    let flows = state.flows.into_iter().map(|(old, value)| {
        let client = moved(old.client);
        (abi::FlowKey { client, ..old }, abi::FlowRecord { client, ..value })
    });
    let states = state.service_states.into_iter().map(|it| match it.generation {
        0 => it,
        _ => abi::ServiceState { vip: moved(it.vip), ..it },
    });
    let fragments = state.fragments.into_iter().map(|(old, value)| {
        let key = fragment(&old);
        (key, abi::FragmentValue { tag: value.tag ^ hash::fragment(&old) ^ hash::fragment(&key), ..value })
    });
    let egress_fragments = state.egress_fragments.into_iter().map(|(old, value)| {
        let key = fragment(&old);
        let tag = value.tag ^ hash::fragment(&old) ^ hash::fragment(&key);
        (key, abi::EgressFragmentValue { tag, vip: moved(value.vip), ..value })
    });
    let affinity = state.affinity.into_iter().map(|(old, value)| {
        let key = abi::AffinityKey { client: moved(old.client), ..old };
        (key, abi::AffinityValue { tag: value.tag ^ hash::affinity(&old) ^ hash::affinity(&key), ..value })
    });
    let speakers =
        state.speakers.into_iter().map(|(old, value)| (abi::SpeakerKey { vip: moved(old.vip), ..old }, value));
    State {
        vips,
        backends: backends.collect(),
        flows: flows.collect(),
        service_states: states.collect(),
        fragments: fragments.collect(),
        egress_fragments: egress_fragments.collect(),
        affinity: affinity.collect(),
        speakers: speakers.collect(),
        source_ranges: state.source_ranges.into_iter().map(range).collect(),
        ..state
    }
}

/// Maps a prefix: a set's 32 bits and the address, which has 96 more bits if it is IPv4-mapped.
fn range((bits, range): (u32, abi::Range)) -> (u32, abi::Range) {
    let abi::Range { set, w0, w1, w2, w3 } = range;
    let address = Address { w0, w1, w2, w3 };
    let IpAddr::V4(_) = IpAddr::from(address) else { return (bits, range) };
    let bits = prefix(bits - 128);
    let Address { w0, w1, w2, w3 } = moved(address);
    let whole = u128::from_be_bytes(words([w0, w1, w2, w3]));
    let kept = if bits == 0 { 0 } else { whole & u128::MAX << (128 - bits) };
    let word = |at: usize| u32::from_ne_bytes(kept.to_be_bytes()[at..at + 4].try_into().unwrap());
    (32 + bits, abi::Range { set, w0: word(0), w1: word(4), w2: word(8), w3: word(12) })
}

fn words(words: [u32; 4]) -> [u8; 16] {
    words.map(u32::to_ne_bytes).concat().try_into().unwrap()
}

/// Returns the same frame with an IPv6 packet; `None` for other protocols, IPv4 options, ICMP and
/// inconsistent headers.
pub fn frame(frame: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| frame.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let mut ethernet = Ethernet::new(frame.get(6..12)?.try_into().ok()?, frame[..6].try_into().ok()?);
    let mut at = 12;
    while word(at)? == ETHERTYPE_VLAN {
        ethernet = ethernet.tagged(word(at + 2)?);
        at += 4;
    }
    let packet = &frame[at + 2..];
    if word(at)? != ETHERTYPE_IPV4 || packet.len() < 20 || packet[0] != 0x45 || packet[9] == 1 {
        return None;
    }
    let part = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let total = usize::from(part(2));
    if total < 20 || total > packet.len() {
        return None;
    }
    let mut moved = ethernet.ipv6(&ipv6(packet, &packet[20..total], part(4), part(6)));
    // A shorter frame is padded.
    if moved.len() < frame.len() {
        moved.resize(frame.len(), frame[frame.len() - 1]);
    }
    Some(moved)
}

fn ipv6(packet: &[u8], contents: &[u8], identification: u16, place: u16) -> Ipv6 {
    let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
    let (source, destination, protocol) = (address(12), address(16), packet[9]);
    let (offset, more) = (place & 0x1fff, place & 0x2000 != 0);
    let mut contents = contents.to_vec();
    let field = match protocol {
        6 => Some(16),
        17 => Some(6),
        _ => None,
    };
    if let Some(at) = field.filter(|at| offset == 0 && contents.len() >= at + 2) {
        let before = u16::from_be_bytes([contents[at], contents[at + 1]]);
        let after = resummed(before, protocol, [source, destination]);
        contents[at..at + 2].copy_from_slice(&after.to_be_bytes());
    }
    let mut packet_v6 = Ipv6::new(v6(source), v6(destination), Payload::Other(protocol, contents)).hop_limit(packet[8]);
    packet_v6.traffic_class = packet[1];
    packet_v6.flow_label = u32::from(identification);
    if offset != 0 || more {
        packet_v6 = packet_v6.extension(Extension::Fragment { offset, more, id: u32::from(identification) << 16 });
    }
    packet_v6
}

/// Converts a checksum over a pseudo-header with these IPv4 addresses to one with their IPv6
/// addresses ([`v6`]).
fn resummed(field: u16, protocol: u8, addresses: [Ipv4Addr; 2]) -> u16 {
    if protocol == 17 && field == 0 {
        return 0;
    }
    let words =
        |bytes: &[u8]| -> u64 { bytes.chunks(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum() };
    // An old word is subtracted by adding its complement.
    let gone: u64 = addresses.iter().map(|it| 2 * 0xffff - words(&it.octets())).sum();
    let come: u64 = addresses.iter().map(|it| words(&v6(*it).octets())).sum();
    let mut sum = u64::from(!field) + gone + come;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !u16::try_from(sum).unwrap() {
        0 if protocol == 17 => 0xffff,
        sum => sum,
    }
}

#[cfg(test)]
mod tests {
    use crate::frames::{ACK, Ipv4, Tcp, Udp};

    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 5);

    /// The same frames from the frames' builder, which sums from scratch.
    #[test]
    fn a_frame_in_the_other_family_has_the_right_checksums() {
        let ethernet = Ethernet::new([2; 6], [4; 6]).tagged(7);
        let labeled = |mut packet: Ipv6| {
            packet.flow_label = 0x1234;
            ethernet.ipv6(&packet)
        };
        for length in 0..64 {
            let tcp = Tcp::new(1, 2, ACK).data(&vec![length; usize::from(length)]);
            let udp = Udp::new(3, 4, &vec![!length; usize::from(length)]);
            assert_eq!(
                frame(&ethernet.ipv4(&Ipv4::tcp(A, B, tcp.clone()))),
                Some(labeled(Ipv6::tcp(v6(A), v6(B), tcp)))
            );
            assert_eq!(
                frame(&ethernet.ipv4(&Ipv4::udp(A, B, udp.clone()))),
                Some(labeled(Ipv6::udp(v6(A), v6(B), udp)))
            );
        }
    }
}
