//! Builds ARP frames: gratuitous ARP and address probes.

use std::net::Ipv4Addr;

use pnet::{
    packet::{
        arp::{ArpHardwareTypes, ArpOperation, ArpOperations, MutableArpPacket},
        ethernet::{EtherTypes, MutableEthernetPacket},
    },
    util::MacAddr,
};
use vipmux_common::abi::Mac;

const ETHERNET: usize = 14;
const ARP: usize = 28;

/// Returns the frames that announce `vip` at `mac`: a request and a reply, since hosts differ in
/// which one they accept. Both are broadcast, with `vip` as sender and target (RFC 5227, 3; RFC
/// 5944, 4.6).
pub(super) fn announcement(vip: Ipv4Addr, mac: Mac) -> impl Iterator<Item = Vec<u8>> {
    let mac = MacAddr::from(mac.bytes());
    // The target MAC has no meaning in a request, so it is zero (RFC 5227, 1.1). In a reply it is
    // the sender's.
    [(ArpOperations::Request, MacAddr::zero()), (ArpOperations::Reply, mac)]
        .into_iter()
        .filter_map(move |(operation, target)| frame(vip, vip, mac, operation, target))
}

/// Returns an ARP probe for `vip`. It is broadcast without a sender address, so that no cache
/// learns from it (RFC 5227, 2.1.1).
pub(super) fn probe(vip: Ipv4Addr, mac: Mac) -> Option<Vec<u8>> {
    frame(Ipv4Addr::UNSPECIFIED, vip, mac.bytes().into(), ArpOperations::Request, MacAddr::zero())
}

/// Returns an ARP request for `vip` from a host that has the address `source` (RFC 826).
pub(super) fn request(source: Ipv4Addr, vip: Ipv4Addr, mac: Mac) -> Option<Vec<u8>> {
    frame(source, vip, mac.bytes().into(), ArpOperations::Request, MacAddr::zero())
}

/// Never returns `None`: the buffer has the size that the packet views require.
fn frame(sender: Ipv4Addr, vip: Ipv4Addr, mac: MacAddr, operation: ArpOperation, target: MacAddr) -> Option<Vec<u8>> {
    let mut bytes = vec![0; ETHERNET + ARP];
    let (head, body) = bytes.split_at_mut(ETHERNET);
    let mut ethernet = MutableEthernetPacket::new(head)?;
    ethernet.set_destination(MacAddr::broadcast());
    ethernet.set_source(mac);
    ethernet.set_ethertype(EtherTypes::Arp);
    let mut arp = MutableArpPacket::new(body)?;
    arp.set_hardware_type(ArpHardwareTypes::Ethernet);
    arp.set_protocol_type(EtherTypes::Ipv4);
    arp.set_hw_addr_len(6);
    arp.set_proto_addr_len(4);
    arp.set_operation(operation);
    arp.set_sender_hw_addr(mac);
    arp.set_sender_proto_addr(sender);
    arp.set_target_hw_addr(target);
    arp.set_target_proto_addr(vip);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_and_reply_are_laid_out_as_rfc_826_says() {
        let frames: Vec<_> =
            announcement(Ipv4Addr::new(192, 0, 2, 1), Mac::new([2, 0, 0x5e, 0x10, 0x20, 0x30])).collect();
        #[rustfmt::skip]
        let request = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0x5e, 0x10, 0x20, 0x30, 0x08, 0x06,
            0, 1, 0x08, 0, 6, 4, 0, 1,
            2, 0, 0x5e, 0x10, 0x20, 0x30, 192, 0, 2, 1,
            0, 0, 0, 0, 0, 0, 192, 0, 2, 1,
        ];
        #[rustfmt::skip]
        let reply = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0x5e, 0x10, 0x20, 0x30, 0x08, 0x06,
            0, 1, 0x08, 0, 6, 4, 0, 2,
            2, 0, 0x5e, 0x10, 0x20, 0x30, 192, 0, 2, 1,
            2, 0, 0x5e, 0x10, 0x20, 0x30, 192, 0, 2, 1,
        ];
        assert_eq!(frames, [request.to_vec(), reply.to_vec()]);
    }

    #[test]
    fn a_probe_names_no_sender_address() {
        #[rustfmt::skip]
        let expected = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0x5e, 0x10, 0x20, 0x30, 0x08, 0x06,
            0, 1, 0x08, 0, 6, 4, 0, 1,
            2, 0, 0x5e, 0x10, 0x20, 0x30, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 192, 0, 2, 1,
        ];
        let frame = probe(Ipv4Addr::new(192, 0, 2, 1), Mac::new([2, 0, 0x5e, 0x10, 0x20, 0x30]));
        assert_eq!(frame.unwrap(), expected);
    }
}
