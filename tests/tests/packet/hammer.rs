//! Tests that many CPUs can write the flow table at once: they run the program on flows that share
//! two sets, and every packet, every record and the locks are held against a model.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use vipmux_common::{
    abi::{FlowKey, FlowRecord},
    flow_table::WAYS,
    hash,
};
use vipmux_tests::{
    frames::{ACK, FIN, Ipv4, SYN, Tcp},
    program::{FLOW_SECRET, Hook, Program},
};

use crate::{
    demux::{ISN, handed, to},
    fixture::{self, CLIENT, Endpoint, FAR, FAR_MAC, HTTP, LOCAL, LOCAL_TOO, NEWEST, PEER_MAC, REMOTE, from_client},
};

/// Flows that compete for eight records.
const FLOWS: u16 = 12;
const FIRST_PORT: u16 = 20_000;
/// Packets that each thread sends.
const PACKETS: u32 = 40_000;
const TABLE: [Endpoint; 4] = [LOCAL, REMOTE, LOCAL_TOO, FAR];

fn key(port: u16) -> FlowKey {
    FlowKey { client_port: port.to_be(), ..HTTP.flow() }
}

/// Returns the backend of a flow, which only depends on the table.
fn backend(key: &FlowKey) -> Endpoint {
    TABLE[hash::slot(hash::flow(key), 4) as usize]
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

/// Checks all records, while no program runs.
fn check_all(program: &Program) {
    let records = whole(program);
    records.iter().for_each(check);
    let mut keys: Vec<_> = records.iter().map(FlowRecord::key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), records.len(), "a flow has two records: {records:?}");
    assert_eq!(records.len(), 2 * WAYS as usize, "a record is torn");
    for set in program.flow_sets().unwrap() {
        let [first, second, rest @ ..] = &set.records;
        assert_eq!(first.of_set & 0xfff, 0, "the lock is still held: {first:?}");
        assert!(first.of_set > 0 && second.of_set > 0, "twelve flows overflow either set: {set:?}");
        assert!(rest.iter().all(|record| record.of_set == 0), "{set:?}");
    }
}

/// Sends packets of all flows in a random order. Returns the number of those that were dropped.
fn hammer(program: &Program, seed: u32) -> usize {
    const DROP: u32 = 1;
    let mut random = seed | 1;
    let mut dropped = 0;
    for _ in 0..PACKETS {
        // xorshift32
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let port = FIRST_PORT + u16::try_from(random >> 16).unwrap() % FLOWS;
        let flags = [SYN, ACK, ACK, FIN | ACK][random as usize % 4];
        let outcome = program.run(Hook::Ingress, &from_client().ipv4(&packet(port, flags))).unwrap();
        if outcome.verdict == DROP {
            dropped += 1;
        } else {
            assert_eq!(outcome.frame, expected(port, flags), "port {port}, flags {flags:#x}");
        }
    }
    dropped
}

fn stay_on(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu).unwrap();
    // With fewer CPUs, threads still interrupt each other.
    let _ = sched_setaffinity(Pid::from_raw(0), &one);
}

/// Twelve flows compete for the eight records of two sets, on all CPUs.
pub(crate) fn one_set_on_all_cpus() {
    let mut state = fixture::state();
    HTTP.set(&mut state, &TABLE, &[LOCAL, LOCAL_TOO]);
    let program = Program::load(&state, 2 * WAYS).unwrap();
    let cpus = thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2));
    let (ended, read, dropped) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !ended.load(Relaxed) {
                let records = whole(&program);
                records.iter().for_each(check);
                read.fetch_add(records.len(), Relaxed);
            }
        });
        let writers: Vec<_> = (0..cpus)
            .map(|cpu| {
                let (program, dropped) = (&program, &dropped);
                scope.spawn(move || {
                    stay_on(cpu);
                    dropped
                        .fetch_add(hammer(program, 0x9e37_79b9_u32.rotate_left(u32::try_from(cpu).unwrap())), Relaxed);
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        ended.store(true, Relaxed);
        reader.join().unwrap();
    });
    check_all(&program);
    let sent = cpus * PACKETS as usize;
    let (read, dropped) = (read.into_inner(), dropped.into_inner());
    assert!(read > 0 && dropped < sent / 2, "{read} records were read, {dropped} of {sent} packets were dropped");
}
