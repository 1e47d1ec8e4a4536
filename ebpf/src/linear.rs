//! The linear part of a packet in the stack: what a program reads directly. Its headers are there in
//! almost all packets, and its data mostly is not. To pull more of it costs an allocation, so that is
//! only done if a header is missing.

use core::mem::MaybeUninit;

use aya_ebpf::{helpers::bpf_skb_load_bytes, programs::TcContext};

use crate::{
    extensions::is_extension,
    packet::{Packet, Transport},
    segment::Segment,
    wire::{pin, read},
};

/// Bytes from the IP header on that hold an ICMP error with its embedded headers, and extension headers.
const HEADERS: usize = 256;
/// The longest header of [`Transport::segment`].
const TRANSPORT: usize = 20;

/// Makes the IP header at `network` directly readable, and what is read behind it but for
/// [`segment`]. What stays out of reach, for lack of memory, looks cut off.
#[inline(always)]
pub(crate) fn pull_headers<const V6: bool>(context: &TcContext, network: usize) {
    let at = pin(pin(context.data()) + network);
    if at + Packet::<V6>::LENGTH > pin(context.data_end()) {
        return pull(context, network + HEADERS);
    }
    // SAFETY: compared with the end above.
    let protocol = u32::from(unsafe { if V6 { read::<6, u8>(at) } else { read::<9, u8>(at) } });
    if protocol == Packet::<V6>::ICMP || V6 && is_extension(protocol) {
        pull(context, network + HEADERS);
    }
}

/// Makes the first bytes directly readable, as far as the packet has them.
#[inline(always)]
pub(crate) fn pull(context: &TcContext, wanted: usize) {
    let wanted = (wanted as u32).min(context.len());
    if context.data() + wanted as usize > context.data_end() {
        let _ = context.pull_data(wanted);
    }
}

/// Parses the needed fields of TCP, UDP or SCTP, even if they are out of reach. `start`, `end`: the
/// linear part.
#[inline(always)]
pub(crate) fn segment(context: &TcContext, transport: &Transport, start: usize, end: usize) -> Option<Segment> {
    match transport.segment(end) {
        Ok(segment) => Some(segment),
        Err(_) if end - start >= context.len() as usize => None,
        Err(_) => copied_segment(context, transport, transport.at - start),
    }
}

/// [`segment`] from a copy of the header. Of an SCTP INIT, it leaves out the initiate tag.
#[inline(always)]
fn copied_segment(context: &TcContext, transport: &Transport, offset: usize) -> Option<Segment> {
    let mut header = MaybeUninit::<[u64; TRANSPORT.div_ceil(8)]>::uninit();
    let words = header.as_mut_ptr().cast::<u64>();
    for index in 0..TRANSPORT.div_ceil(8) {
        // SAFETY: within the header. Volatile, or the compiler would call a function that is a loop over bytes.
        unsafe { words.add(index).write_volatile(0) };
    }
    let at = pin(words as usize);
    let length = transport.header_length()?;
    // SAFETY: the header has room for that many bytes; the context is valid for the whole run.
    if unsafe { bpf_skb_load_bytes(context.skb.skb.cast(), offset as u32, words.cast(), length as u32) } != 0 {
        return None;
    }
    Transport { at, ..*transport }.segment(at + TRANSPORT).ok()
}
