//! Translates address and port towards a local backend.

use vipmux_common::{
    abi::{Backend, Stat},
    checksum,
};

use crate::{
    count,
    frame::Frame,
    packet::{Packet, SCTP, TCP},
    partial,
    segment::SegmentContext,
    verdict::{Outcome, Verdict},
    wire::{read, write},
};

/// Returns the port that a backend listens on: its own, or the one that the client requested.
#[inline(always)]
pub(crate) fn port(backend: &Backend, asked: u16) -> u16 {
    if backend.port == 0 { asked } else { backend.port }
}

/// Makes the backend the destination. The stack delivers the packet, and sees an ordinary
/// connection from the client.
#[inline(always)]
pub(crate) fn deliver<const V6: bool>(context: &SegmentContext<'_, V6>, backend: &Backend) -> Outcome {
    let SegmentContext { frame, packet, segment, .. } = context;
    let port = port(backend, segment.destination_port);
    let is_partial = partial::is_partial(context);
    let of_address = packet.set_destination(&backend.address);
    let change = of_address + checksum::change(u32::from(segment.destination_port), u32::from(port));
    let at = segment.transport;
    // SAFETY: `Transport::segment` compared these headers with the end.
    unsafe {
        write::<2, _>(at, port);
        if segment.protocol == TCP {
            let field: u16 = read::<16, _>(at);
            write::<16, _>(at, update(field, change, of_address, is_partial));
        } else if segment.protocol != SCTP {
            let field: u16 = read::<6, _>(at);
            // RFC 768: zero means no checksum, so a computed zero is sent as all ones.
            if field != 0 {
                let updated = update(field, change, of_address, is_partial);
                write::<6, _>(at, if updated == 0 { 0xffff } else { updated });
            }
        }
    }
    count::stat(Stat::Local, frame.length);
    Ok(Verdict::DELIVER)
}

/// Returns the checksum field after the change of address and port. A partial one is the sum of the
/// pseudo-header, not complemented, and does not cover the port.
#[inline(always)]
fn update(field: u16, change: u64, of_address: u64, is_partial: bool) -> u16 {
    if is_partial { checksum::fold(u64::from(field) + of_address) } else { checksum::update(field, change) }
}

/// Delivers a later fragment of a datagram whose first one was delivered here.
#[inline(always)]
pub(crate) fn deliver_later<const V6: bool>(frame: &Frame, packet: &Packet<V6>, backend: &Backend) -> Verdict {
    packet.set_destination(&backend.address);
    count::stat(Stat::Local, frame.length);
    Verdict::DELIVER
}
