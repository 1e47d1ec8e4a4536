//! BPF programs for tests and the bench. The bench's programs are for frames in several buffers,
//! since the kernel only lets programs call their own kind.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[allow(dead_code, reason = "one file for two programs, of which this one uses a part")]
mod wire;

use core::ptr;

use aya_ebpf::{
    bindings::{
        BPF_F_MMAPABLE, TC_ACT_OK, TC_ACT_UNSPEC,
        xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX},
    },
    helpers::{bpf_jiffies64, bpf_redirect, bpf_redirect_peer, bpf_xdp_adjust_head},
    macros::{classifier, map, xdp},
    maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray},
    programs::{TcContext, XdpContext},
};
use vipmux_common::{
    abi::{Address, FlowKey, FlowRecord, FlowSecret, FlowSet},
    checksum,
    flow_table::Place,
    wrapper::{BACKENDS, FIRST_PORT, LENGTH, PORT_BITS, Template, WORDS},
};

use crate::wire::{Wire, pin, read, write};

#[map]
static TEMPLATE: Array<Template> = Array::with_max_entries(1, 0);
/// Iterations so far.
#[map]
static ITERATION: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);
/// The program under test.
#[map]
static TARGET: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// A plain map, to measure a lookup; sized by the bench.
#[map]
static FLOOR_HASH: HashMap<FlowKey, [u64; 4]> = HashMap::with_max_entries(64, 0);
/// The bench makes it as large as a flow table of 1,048,576 records.
#[map]
static FLOOR_TABLE: Array<FlowSet> = Array::with_max_entries(16, BPF_F_MMAPABLE);
const FLOOR_SETS: u32 = 1 << 18;
#[map]
static FLOOR_LRU: LruHashMap<FlowKey, [u64; 4]> = LruHashMap::with_max_entries(64, 0);
/// Packets that reached `sink`: for a backend, with an address that begins with [`BACKENDS`], and
/// for others.
#[map]
static ARRIVED: PerCpuArray<u64> = PerCpuArray::with_max_entries(2, 0);
/// Of `note_linear`: packets, and the longest linear part, bytes.
#[map]
static LINEAR: Array<u64> = Array::with_max_entries(2, 0);
/// Not zero if `sink` answers.
#[map]
static ANSWER: Array<u32> = Array::with_max_entries(1, 0);

/// For the peers of veths: XDP_TX and XDP_REDIRECT into a veth need a program at the other end.
#[xdp]
pub fn pass(_context: XdpContext) -> u32 {
    XDP_PASS
}

/// The same for frames longer than a page.
#[xdp(frags)]
pub fn pass_jumbo(_context: XdpContext) -> u32 {
    XDP_PASS
}

/// A program of another component: it passes every packet, which ends the chain (`TCX_PASS`).
#[classifier]
pub fn end_chain(_context: TcContext) -> i32 {
    TC_ACT_OK
}

/// A program of another component that leaves every packet to the next one (`TCX_NEXT`).
#[classifier]
pub fn go_on(_context: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// Notes the linear part of packets that have more bytes: how many there were, and the longest part.
#[classifier]
pub fn note_linear(context: TcContext) -> i32 {
    let linear = (context.data_end() - context.data()) as u64;
    if linear < u64::from(context.len())
        && let (Some(packets), Some(longest)) = (LINEAR.get_ptr_mut(0), LINEAR.get_ptr_mut(1))
    {
        // SAFETY: map values. Packets on several CPUs may be lost, which the test does not mind.
        unsafe {
            *packets += 1;
            *longest = (*longest).max(linear);
        }
    }
    TC_ACT_UNSPEC
}

/// The interface of [`to_peer`] and [`to_outlet`], which the loader sets.
#[unsafe(no_mangle)]
static OUTLET: u32 = 0;

#[inline(always)]
fn outlet() -> u32 {
    // SAFETY: the loader replaces the value, so the compiler must not know it.
    unsafe { ptr::read_volatile(&raw const OUTLET) }
}

/// Delivers every frame at the other end of a veth, past the native XDP program there.
#[classifier]
pub fn to_peer(_context: TcContext) -> i32 {
    // SAFETY: a helper without pointers.
    unsafe { bpf_redirect_peer(outlet(), 0) as i32 }
}

/// Sends every frame by an interface.
#[classifier]
pub fn to_outlet(_context: TcContext) -> i32 {
    // SAFETY: a helper without pointers.
    unsafe { bpf_redirect(outlet(), 0) as i32 }
}

/// Writes the time of flow records, `jiffies_64`, to the frame's first eight bytes.
#[xdp]
pub fn clock(context: XdpContext) -> u32 {
    let Some(at) = bytes(&context, 8) else { return XDP_ABORTED };
    // SAFETY: eight bytes were compared with the end; a helper without arguments.
    unsafe { write::<0, _>(at, bpf_jiffies64()) };
    XDP_TX
}

/// A test run gives each iteration the last one's result. This restores the packet and calls the
/// program under test.
#[xdp(frags)]
pub fn restore(context: XdpContext) -> u32 {
    if put_back(&context).is_some() {
        // SAFETY: the context is valid; the call does not return but for an empty slot.
        unsafe { TARGET.tail_call(&context, 0) };
    }
    XDP_ABORTED
}

/// The same with another flow each time: another client address or port, and the Service that it
/// selects.
#[xdp(frags)]
pub fn restore_flow(context: XdpContext) -> u32 {
    if put_back(&context).and_then(|(at, template)| next_flow(at, template)).is_some() {
        // SAFETY: as above.
        unsafe { TARGET.tail_call(&context, 0) };
    }
    XDP_ABORTED
}

/// [`restore`] for a program that adds a header, which this takes away first.
#[xdp(frags)]
pub fn restore_grown(context: XdpContext) -> u32 {
    if take_away(&context).and_then(|()| put_back(&context)).is_some() {
        // SAFETY: as above.
        unsafe { TARGET.tail_call(&context, 0) };
    }
    XDP_ABORTED
}

/// [`restore_flow`] for such a program.
#[xdp(frags)]
pub fn restore_grown_flow(context: XdpContext) -> u32 {
    let packet = take_away(&context).and_then(|()| put_back(&context));
    if packet.and_then(|(at, template)| next_flow(at, template)).is_some() {
        // SAFETY: as above.
        unsafe { TARGET.tail_call(&context, 0) };
    }
    XDP_ABORTED
}

/// For live frames: sends the template's next flow, with checksums, out of its interface.
#[xdp]
pub fn generate(context: XdpContext) -> u32 {
    let Some((at, template)) = put_back(&context) else { return XDP_ABORTED };
    let before = endpoints(at);
    if next_flow(at, template).is_none() {
        return XDP_ABORTED;
    }
    sum_up(at, before);
    // SAFETY: a helper with plain arguments.
    let action = unsafe { bpf_redirect(template.ifindex, 0) };
    if action == i64::from(XDP_REDIRECT) { XDP_REDIRECT } else { XDP_ABORTED }
}

/// The end of generated frames: counts them, and drops or answers them.
#[xdp]
pub fn sink(context: XdpContext) -> u32 {
    let Some(at) = bytes(&context, WORDS * 8) else { return XDP_DROP };
    // SAFETY: compared with the end, here and below.
    let (protocol, first) = unsafe { (read::<12, u16>(at), read::<30, u8>(at)) };
    if protocol != ETHERTYPE_IPV4.to_be() {
        return XDP_DROP;
    }
    if let Some(count) = ARRIVED.get_ptr_mut(u32::from(first != BACKENDS)) {
        // SAFETY: a per-CPU value.
        unsafe { *count += 1 };
    }
    if ANSWER.get(0).is_none_or(|answer| *answer == 0) {
        return XDP_DROP;
    }
    swap::<[u8; 6]>(at, 0, 6);
    swap::<[u8; 4]>(at, 26, 30);
    swap::<[u8; 2]>(at, 34, 36);
    XDP_TX
}

/// Exchanges two fields. Checksums stay valid.
#[inline(always)]
fn swap<T: Copy>(at: usize, one: usize, other: usize) {
    let (one, other) = ((at + one) as *mut T, (at + other) as *mut T);
    // SAFETY: fields within the words that the caller compared with the end, of byte arrays.
    unsafe {
        let first = one.read_unaligned();
        one.write_unaligned(other.read_unaligned());
        other.write_unaligned(first);
    }
}

/// Returns the client's address and both ports, of a packet that `put_back` has compared with the
/// end.
#[inline(always)]
fn endpoints(at: usize) -> [u32; 2] {
    // SAFETY: compared with the end.
    unsafe { [read::<26, _>(at), read::<34, _>(at)] }
}

/// Updates the checksums of IPv4 and UDP, of a packet that had these endpoints.
#[inline(always)]
fn sum_up(at: usize, before: [u32; 2]) {
    let after = endpoints(at);
    let client = checksum::change(before[0], after[0]);
    let ports = checksum::change(before[1], after[1]);
    // SAFETY: compared with the end.
    unsafe {
        write::<24, _>(at, checksum::update(read::<24, _>(at), client));
        let sum = checksum::update(read::<40, _>(at), client + ports);
        // Zero means no checksum.
        write::<40, _>(at, if sum == 0 { u16::MAX } else { sum });
    }
}

/// The empty program, the base of all figures.
#[xdp(frags)]
pub fn empty_tx(_context: XdpContext) -> u32 {
    XDP_TX
}

/// One lookup in a hash map.
#[xdp(frags)]
pub fn hash_lookup(context: XdpContext) -> u32 {
    let Some(key) = key(&context) else { return XDP_ABORTED };
    if FLOOR_HASH.get_ptr(key).is_some() { XDP_TX } else { XDP_PASS }
}

/// One lookup in an LRU hash map.
#[xdp(frags)]
pub fn lru_lookup(context: XdpContext) -> u32 {
    let Some(key) = key(&context) else { return XDP_ABORTED };
    if FLOOR_LRU.get_ptr(key).is_some() { XDP_TX } else { XDP_PASS }
}

/// One lookup in a set-associative table: a hash, and one cache line. All flows are taken for known.
#[xdp(frags)]
pub fn table_lookup(context: XdpContext) -> u32 {
    let Some(key) = key(&context) else { return XDP_ABORTED };
    let Some(record) = place(&key) else { return XDP_ABORTED };
    // SAFETY: a map value.
    let seen = unsafe { ptr::read_volatile(&raw const (*record).seen) };
    if seen == u32::MAX { XDP_PASS } else { XDP_TX }
}

#[inline(always)]
fn place(key: &FlowKey) -> Option<*mut FlowRecord> {
    const SECRET: FlowSecret = FlowSecret { sum: 1, client: [3 << 40, 5 << 40, 7 << 40, 11 << 40], port: 13 << 40 };
    let place = Place::new(&SECRET, &key.client, key.client_port, key.protocol);
    let set = FLOOR_TABLE.get_ptr_mut(place.set(FLOOR_SETS - 1))?;
    // SAFETY: one of the set's records.
    Some(unsafe { set.cast::<FlowRecord>().add(place.way() as usize) })
}

/// One insertion into a hash map.
#[xdp(frags)]
pub fn hash_insert(context: XdpContext) -> u32 {
    let Some(key) = key(&context) else { return XDP_ABORTED };
    if FLOOR_HASH.insert(key, VALUE, 0).is_ok() { XDP_TX } else { XDP_PASS }
}

/// One insertion into an LRU hash map.
#[xdp(frags)]
pub fn lru_insert(context: XdpContext) -> u32 {
    let Some(key) = key(&context) else { return XDP_ABORTED };
    if FLOOR_LRU.insert(key, VALUE, 0).is_ok() { XDP_TX } else { XDP_PASS }
}

const ETHERTYPE_IPV4: u16 = 0x0800;

const VALUE: [u64; 4] = [0; 4];

/// Returns the frame's start, if it has at least this many bytes.
#[inline(always)]
fn bytes(context: &XdpContext, length: usize) -> Option<usize> {
    let (at, end) = (pin(context.data()), pin(context.data_end()));
    (at + length <= end).then_some(at)
}

/// Takes the header away that the last iteration added. If it added none, this costs the same: so it
/// does in the empty program's iterations, from which the figures are subtracted.
#[inline(always)]
fn take_away(context: &XdpContext) -> Option<()> {
    let header = (context.data_end() - context.data()).checked_sub(LENGTH)?;
    // SAFETY: the context is valid, and nobody has a pointer into the packet yet.
    (unsafe { bpf_xdp_adjust_head(context.ctx, header as i32) } == 0).then_some(())
}

/// Copies a field.
///
/// # Safety
/// Both places were compared with their ends.
#[inline(always)]
unsafe fn copy<const OFFSET: usize, T: Wire>(from: usize, to: usize) {
    // SAFETY: the caller's.
    unsafe { write::<OFFSET, T>(to, read::<OFFSET, T>(from)) }
}

/// Restores the packet. A CPU delays a load whose bytes come from several stores until they have left its
/// store buffer. A frame from a NIC is in memory long before. So here, one store has all bytes of each
/// load from a header. (Only of two loads in a row that overlap, the second one waits.)
#[inline(always)]
fn put_back(context: &XdpContext) -> Option<(usize, &'static Template)> {
    let template = TEMPLATE.get(0)?;
    let at = bytes(context, WORDS * 8)?;
    let words = template.words.as_ptr() as usize;
    // SAFETY: all words were compared with the end.
    unsafe {
        copy::<6, u64>(words, at);
        copy::<0, u64>(words, at);
        copy::<14, u64>(words, at);
        copy::<22, u32>(words, at);
        copy::<26, u64>(words, at);
        copy::<34, u64>(words, at);
        copy::<48, u64>(words, at);
        copy::<42, u64>(words, at);
    }
    Some((at, template))
}

#[inline(always)]
fn next_flow(at: usize, template: &Template) -> Option<()> {
    let iteration = ITERATION.get_ptr_mut(0)?;
    // SAFETY: a per-CPU value, and test runs on one CPU follow each other.
    let count = unsafe {
        *iteration += 1;
        *iteration as u32
    };
    let flow = count.wrapping_mul(template.stride) & template.flow_mask;
    let service = (u64::from(flow.wrapping_mul(0x9e37_79b1)) * u64::from(template.services)) >> 32;
    let client = template.client + (flow >> PORT_BITS);
    let client_port = FIRST_PORT + (flow & ((1 << PORT_BITS) - 1)) as u16;
    // SAFETY: `put_back` compared these bytes, of a packet without IPv4 options, with the end.
    unsafe {
        write::<26, _>(at, client.to_be());
        write::<34, _>(at, client_port.to_be());
        write::<36, _>(at, (template.port as u16 + service as u16).to_be());
    }
    Some(())
}

/// Returns the key of the flow's record.
#[inline(always)]
fn key(context: &XdpContext) -> Option<FlowKey> {
    let at = bytes(context, WORDS * 8)?;
    // SAFETY: compared with the end above.
    unsafe {
        Some(FlowKey {
            client: Address::v4(read::<26, _>(at)),
            vip: 1,
            client_port: read::<34, _>(at),
            vip_port: read::<36, _>(at),
            protocol: 6,
            reserved: 0,
        })
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
