//! Tests that many CPUs can write the flow table at once: they run the programs on flows that share
//! two sets, and every packet, every record and the locks are held against a model.
//!
//! Such a test is worth what it finds. It fails within a second if a lock has two holders, or if a new
//! record is made without a look at the second set.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use vipmux_common::{
    abi::{FlowKey, FlowRecord, WAYS},
    flow_table::RESERVE_EPOCH,
    hash,
};
use vipmux_datapath::bpf::{OBJECT, object::with_results, xdp::Buffers};
use vipmux_tests::{
    frames::{ACK, Ethernet, FIN, Ipv4, PSH, SYN, Tcp},
    program::{FLOW_SECRET, Hook, Program},
    requirement,
};

use crate::{
    demux::{ISN, handed, to},
    fixture::{
        self, CLIENT, CLIENT_MAC, Endpoint, FAR, FAR_MAC, HTTP, LOCAL, LOCAL_TOO, NEWEST, PEER_MAC, REMOTE, SELF_MAC,
        from_client,
    },
};

/// Flows that compete for eight records.
const FLOWS: u16 = 12;
const FIRST_PORT: u16 = 20_000;
/// Packets that each thread sends before the table is checked, and how often.
const PACKETS: u32 = 200;
const ROUNDS: u32 = 200;
const TABLE: [Endpoint; 4] = [LOCAL, REMOTE, LOCAL_TOO, FAR];

fn key(port: u16) -> FlowKey {
    FlowKey { client_port: port.to_be(), ..HTTP.flow() }
}

/// Returns the backend of a flow, which only depends on the table.
fn backend(key: &FlowKey) -> Endpoint {
    TABLE[hash::slot(hash::flow(key, 0), 4) as usize]
}

fn packet(port: u16, flags: u8) -> Ipv4 {
    Ipv4::tcp(CLIENT, HTTP.vip, Tcp::new(port, HTTP.port, flags).numbers(ISN, 77))
}

/// Returns the frame that must come out.
fn expected(port: u16, flags: u8) -> Vec<u8> {
    let packet = packet(port, flags);
    match backend(&key(port)) {
        endpoint @ Endpoint { node: 0, .. } => from_client().ipv4(&to(&packet, endpoint)),
        Endpoint { node: 1, .. } => handed(&packet, PEER_MAC),
        _ => handed(&packet, FAR_MAC),
    }
}

/// Returns the frame of a reply, before or after its translation.
fn reply(from: (Ipv4Addr, u16), port: u16, flags: u8) -> Vec<u8> {
    let tcp = Tcp::new(from.1, port, flags).numbers(77, ISN.wrapping_add(1));
    Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(&Ipv4::tcp(from.0, CLIENT, tcp))
}

/// Checks that a record is one that the program makes for its flow.
fn check(record: &FlowRecord) {
    let key = record.key();
    let backend = backend(&key);
    let generation = if backend.node == 0 { 50 + backend.index } else { NEWEST };
    let wanted = (backend.index, generation, HTTP.slot, 100 + HTTP.slot, backend.node);
    let found = (record.backend, record.backend_generation, record.slot, record.slot_generation, record.node.into());
    assert_eq!(found, wanted, "{record:?}");
    assert_eq!((record.client, record.vip_port), (key.client, HTTP.flow().vip_port), "{record:?}");
}

fn whole(program: &Program) -> Vec<FlowRecord> {
    let sets = program.flow_sets().unwrap();
    sets.into_iter().flat_map(|set| set.records).filter(|record| record.is_whole(&FLOW_SECRET)).collect()
}

/// Checks all records, while no program runs. A second record of a flow is soon evicted, since nobody
/// finds it. So this must be done often. Returns the number of records in the reserve.
fn check_all(program: &Program) -> usize {
    let records = whole(program);
    records.iter().for_each(check);
    let mut keys: Vec<_> = records.iter().map(FlowRecord::key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), records.len(), "a flow has two records: {records:?}");
    let waiting = records.iter().filter(|record| record.epoch == RESERVE_EPOCH).count();
    assert_eq!(records.len() - waiting, 2 * WAYS as usize, "a record is torn");
    assert!(waiting <= WAYS as usize, "{records:?}");
    let [one, other, reserve] = program.flow_sets().unwrap().try_into().unwrap();
    for set in [one, other] {
        let [first, second, _, fourth] = &set.records;
        assert_eq!(first.of_set & 0xfff, 0, "the lock is still held: {first:?}");
        assert!(first.of_set > 0 && second.of_set > 0, "twelve flows overflow either set: {set:?}");
        assert_eq!(fourth.of_set, 0, "{set:?}");
    }
    assert_eq!(reserve.records.map(|record| record.of_set & 0xfff), [0; 4], "{reserve:?}");
    waiting
}

/// Packets by what became of them.
#[derive(Debug, Default)]
struct Counts {
    dropped: AtomicUsize,
    translated: AtomicUsize,
    /// Replies of flows without a record.
    untranslated: AtomicUsize,
}

/// Sends packets and replies of all flows in a random order.
fn hammer(program: &Program, seed: u32, counts: &Counts) {
    const DROP: u32 = 1;
    let mut random = seed | 1;
    let count = |number: &AtomicUsize| number.fetch_add(1, Relaxed);
    for _ in 0..PACKETS {
        // xorshift32
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let port = FIRST_PORT + u16::try_from(random >> 16).unwrap() % FLOWS;
        let from = backend(&key(port));
        if random % 8 < 3 && from.node == 0 {
            let flags = [ACK, ACK | PSH, FIN | ACK][random as usize % 8];
            let sent = reply((from.address, from.port), port, flags);
            let outcome = program.run(Hook::Egress, &sent).unwrap();
            if outcome.frame == sent {
                count(&counts.untranslated);
            } else {
                assert_eq!(outcome.frame, reply((HTTP.vip, HTTP.port), port, flags), "port {port}, flags {flags:#x}");
                count(&counts.translated);
            }
            continue;
        }
        let flags = [SYN, ACK, ACK, FIN | ACK][random as usize % 4];
        let outcome = program.run(Hook::Ingress, &from_client().ipv4(&packet(port, flags))).unwrap();
        if outcome.verdict == DROP {
            count(&counts.dropped);
        } else {
            assert_eq!(outcome.frame, expected(port, flags), "port {port}, flags {flags:#x}");
        }
    }
}

fn stay_on(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu).unwrap();
    // With fewer CPUs, threads still interrupt each other.
    let _ = sched_setaffinity(Pid::from_raw(0), &one);
}

/// Twelve flows compete for the eight records of two sets, on all CPUs.
pub(crate) fn one_set_on_all_cpus() {
    one_set(OBJECT);
}

/// The same with locks as arm64 has them.
pub(crate) fn one_set_with_locks_of_arm64() {
    if requirement::atomic_results().unwrap() {
        one_set(&with_results(OBJECT));
    }
}

fn one_set(object: &[u8]) {
    let mut state = fixture::state();
    HTTP.set(&mut state, &TABLE, &[LOCAL, LOCAL_TOO]);
    let program = Program::load_object(object, &state, 2 * WAYS, Buffers::here()).unwrap();
    let cpus = thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2));
    let (read, counts, mut waiting) = (AtomicUsize::new(0), Counts::default(), 0);
    for round in 0..ROUNDS {
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..PACKETS {
                    let records = whole(&program);
                    records.iter().for_each(check);
                    read.fetch_add(records.len(), Relaxed);
                }
            });
            for cpu in 0..cpus {
                let (program, counts) = (&program, &counts);
                scope.spawn(move || {
                    stay_on(cpu);
                    let seed = round << 8 | u32::try_from(cpu).unwrap();
                    hammer(program, seed.wrapping_mul(0x9e37_79b9), counts);
                });
            }
        });
        waiting += check_all(&program);
    }
    let sent = cpus * (PACKETS * ROUNDS) as usize;
    let read = read.into_inner();
    let Counts { dropped, translated, untranslated } = counts;
    let [dropped, translated, untranslated] = [dropped, translated, untranslated].map(AtomicUsize::into_inner);
    assert!(waiting > 0, "no record ever waited in the reserve");
    assert!(read > 0 && dropped < sent / 2, "{read} records were read, {dropped} of {sent} packets were dropped");
    assert!(translated > untranslated, "of {sent} packets {translated} were translated, {untranslated} were not");
}
