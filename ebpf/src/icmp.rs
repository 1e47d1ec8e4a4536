//! ICMP errors (RFC 792) about packets of a flow: they follow the flow, in both directions, and what they embed is
//! translated as the flow is. Path MTU discovery (RFC 1191) depends on it.
//!
//! The embedded TCP or UDP checksum is left as it is: nobody verifies it, and TCP's is not even among the eight bytes.

use aya_ebpf::programs::TcContext;
use vipmux_common::{
    abi::{Address, Backend, DropReason, FlowKey, ReverseKey, ReverseValue, Stat},
    checksum,
};

use crate::{
    Action, count, flow, nat,
    packet::{Frame, Ipv4, TCP, UDP, read, write},
};

const DESTINATION_UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
/// The ICMP header, and of the packet it is about the IPv4 header (without options) and eight bytes.
const LENGTH: usize = 8 + 20 + 8;
/// From the ICMP header on: the embedded packet's checksum, source, destination and ports.
const CHECKSUM: usize = 8 + 10;
const SOURCE: usize = 8 + 12;
const DESTINATION: usize = 8 + 16;
const SOURCE_PORT: usize = 8 + 20;
const DESTINATION_PORT: usize = 8 + 22;
/// The fragment offset (RFC 791, 3.1).
const FRAGMENT_OFFSET: u16 = 0x1fff_u16.to_be();

/// What an ICMP error is about.
pub(crate) struct Embedded {
    protocol: u32,
    checksum: u16,
    source: u32,
    destination: u32,
    source_port: u16,
    destination_port: u16,
}

impl Embedded {
    /// Of the ICMP message at `at`; `None` where it is no error about TCP or UDP, or not understood.
    #[inline(always)]
    pub(crate) fn parse(at: usize, end: usize) -> Option<Self> {
        if at + LENGTH > end {
            return None;
        }
        // SAFETY: compared with the end above.
        let (kind, header, fragment, protocol) =
            unsafe { (read::<0, u8>(at), read::<8, u8>(at), read::<14, u16>(at), u32::from(read::<17, u8>(at))) };
        let is_error = matches!(kind, DESTINATION_UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM);
        let is_known = header == 0x45 && fragment & FRAGMENT_OFFSET == 0 && (protocol == TCP || protocol == UDP);
        if !is_error || !is_known {
            return None;
        }
        // SAFETY: compared with the end above.
        unsafe {
            Some(Self {
                protocol,
                checksum: read::<CHECKSUM, _>(at),
                source: read::<SOURCE, _>(at),
                destination: read::<DESTINATION, _>(at),
                source_port: read::<SOURCE_PORT, _>(at),
                destination_port: read::<DESTINATION_PORT, _>(at),
            })
        }
    }

    /// The client's flow to the VIP of this id whose reply this is about; `None`: it is not from that VIP.
    #[inline(always)]
    pub(crate) fn flow(&self, vip: u32, address: u32) -> Option<FlowKey> {
        (self.source == address).then_some(FlowKey {
            client: Address::v4(self.destination),
            vip,
            client_port: self.destination_port,
            vip_port: self.source_port,
            protocol: self.protocol,
            reserved: 0,
        })
    }

    /// The replies of the flow that this is about a packet of, on its way to the backend.
    #[inline(always)]
    fn reverse(&self) -> ReverseKey {
        ReverseKey {
            backend: Address::v4(self.destination),
            client: Address::v4(self.source),
            backend_port: self.destination_port,
            client_port: self.source_port,
            protocol: self.protocol,
        }
    }
}

/// Delivers an error about a reply: the backend sees it about what it sent itself.
#[inline(always)]
pub(crate) fn deliver(frame: &Frame, packet: &Ipv4, at: usize, embedded: &Embedded, backend: &Backend) -> Action {
    let (address, port) = (backend.address.w3, backend.port);
    let of_address = checksum::change(embedded.source, address);
    let header = checksum::update(embedded.checksum, of_address);
    let change = of_address
        + checksum::change(u32::from(embedded.checksum), u32::from(header))
        + checksum::change(u32::from(embedded.source_port), u32::from(port));
    // SAFETY: `Embedded::parse` compared all of this with the end.
    unsafe {
        write::<CHECKSUM, _>(at, header);
        write::<SOURCE, _>(at, address);
        write::<SOURCE_PORT, _>(at, port);
        write::<2, u16>(at, checksum::update(read::<2, _>(at), change));
    }
    nat::set_destination(packet, address);
    count::stat(Stat::Local, frame.length());
    Action::Deliver
}

/// Turns an error of a local backend or of this node, about a packet of a client, into one about the packet that the
/// client sent. `Ok(false)`: not about a flow of ours, left alone.
#[inline(always)]
pub(crate) fn restore(
    context: &TcContext,
    network: usize,
    icmp: usize,
    source: u32,
    embedded: &Embedded,
) -> Result<bool, DropReason> {
    let key = embedded.reverse();
    let Some(reply) = flow::find_reply(&key, flow::now()) else { return Ok(false) };
    rewrite(context, icmp, embedded, &reply).map_err(|_| DropReason::ReplyFailed)?;
    if source == embedded.destination {
        nat::set_source(context, network, source, reply.vip.w3).map_err(|_| DropReason::ReplyFailed)?;
    }
    count::stat(Stat::Replies, u64::from(context.len()));
    Ok(true)
}

#[inline(always)]
fn rewrite(context: &TcContext, icmp: usize, embedded: &Embedded, reply: &ReverseValue) -> Result<(), i64> {
    let (backend, vip) = (embedded.destination, reply.vip.w3);
    let (port, vip_port) = (embedded.destination_port, reply.vip_port);
    let header = checksum::update(embedded.checksum, checksum::change(backend, vip));
    context.l4_csum_replace(icmp + 2, u64::from(backend), u64::from(vip), 4)?;
    context.l4_csum_replace(icmp + 2, u64::from(embedded.checksum), u64::from(header), 2)?;
    context.l4_csum_replace(icmp + 2, u64::from(port), u64::from(vip_port), 2)?;
    context.store(icmp + CHECKSUM, &header, 0)?;
    context.store(icmp + DESTINATION, &vip, 0)?;
    context.store(icmp + DESTINATION_PORT, &vip_port, 0)
}
