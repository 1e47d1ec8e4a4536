//! Tests the reserve of the flow table, for flows whose sets are full of live ones.

use vipmux_common::{
    abi::{
        FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_HALF_OPEN, FLOW_ISN, FLOW_NEW, FLOW_REPLIES, FlowRecord, Stat, WAYS,
    },
    flow_table::{OVERFLOW_WAY, RESERVE_EPOCH, RESERVE_WAY},
};
use vipmux_tests::{
    frames::{ACK, Ethernet, FIN, Ipv4, PSH, RST, SYN, Tcp},
    program::{Hook, NOW_LOW, Program, State},
};

use crate::{
    demux::{ISN, syn},
    fixture::{self, CLIENT, CLIENT_MAC, CLIENT_PORT, HTTP, LOCAL, REMOTE, SELF_MAC, from_client},
    flows::with_flags,
    pool::{self, Pooled},
    records::{DROP, PASS, crowd, established, from_port, neighbors, run},
    replies::{from, segment},
    unanswered::answer,
};

/// Fills both sets of [`HTTP`]'s flow with live flows to another node, and loads the programs.
fn full_of_others() -> Pooled {
    let mut state = fixture::state();
    for (number, key) in (0..).zip(neighbors(&state, &HTTP.flow(), 2 * WAYS)) {
        let record = FlowRecord {
            backend: REMOTE.index,
            backend_generation: state.backends[REMOTE.index as usize].generation,
            node: REMOTE.node.try_into().unwrap(),
            flags: 0,
            seen: NOW_LOW - number,
            ..established(key)
        };
        state.flows.insert(key, record);
    }
    pool::load(&state, fixture::FLOWS).unwrap()
}

/// Returns the record of [`HTTP`]'s flow, and the number of all.
fn record_and_count(program: &Program) -> (Option<FlowRecord>, usize) {
    let flows = program.state().unwrap().flows;
    (flows.get(&HTTP.flow()).copied(), flows.len())
}

/// The client's first packet evicts no live flow, and is answered. The second one moves the record.
pub(crate) fn a_new_flow_waits_in_the_reserve() {
    let program = full_of_others();
    let ingress = |packet: &Ipv4| run(&program, &from_client().ipv4(packet));
    let answered = || {
        let back = Ethernet::new(SELF_MAC, CLIENT_MAC);
        let answer = segment(LOCAL, SYN | ACK, ISN.wrapping_add(1));
        assert_eq!(program.run(Hook::Egress, &back.ipv4(&answer)).unwrap().frame, back.ipv4(&from(HTTP, &answer)));
    };
    let full = 2 * WAYS as usize;
    for number in 1..=3 {
        assert_eq!(ingress(&syn(HTTP)), (PASS, vec![]), "SYN {number}");
        let (record, count) = record_and_count(&program);
        let record = record.unwrap();
        let unanswered = if number == 1 { FLOW_NEW } else { 0 };
        let flags = FLOW_REPLIES | FLOW_ISN | unanswered | FLOW_HALF_OPEN;
        assert_eq!((record.epoch, u32::from(record.flags), count), (RESERVE_EPOCH, flags, full + 1));
        answered();
    }
    assert_eq!(program.counters().unwrap().stats[Stat::NewFlows as usize].packets, 1, "the same flow again");
    assert_eq!(ingress(&with_flags(HTTP, ACK)), (PASS, vec![Stat::EvictedLive]));
    let (record, count) = record_and_count(&program);
    let FlowRecord { epoch, flags, isn, .. } = record.unwrap();
    assert_eq!((epoch, u32::from(flags), isn, count), (0, FLOW_REPLIES | FLOW_ISN, ISN, full), "out of the reserve");
    let oldest = neighbors(&fixture::state(), &HTTP.flow(), 2 * WAYS)[7];
    assert!(!program.state().unwrap().flows.contains_key(&oldest));
    answered();
    assert_eq!(ingress(&with_flags(HTTP, ACK | PSH)), (PASS, vec![]));
    assert_eq!(program.counters().unwrap().stats[Stat::NewFlows as usize].packets, 1);
}

/// A FIN moves nothing, but it is not forgotten.
pub(crate) fn a_half_closed_flow_leaves_the_reserve() {
    let program = full_of_others();
    let ingress = |packet: &Ipv4| run(&program, &from_client().ipv4(packet));
    assert_eq!(ingress(&syn(HTTP)), (PASS, vec![]));
    assert!(answer(&program, LOCAL, &HTTP.flow(), SYN | ACK));
    assert_eq!(ingress(&with_flags(HTTP, FIN | ACK)), (PASS, vec![]));
    let waiting = program.state().unwrap();
    assert_eq!(waiting.flows[&HTTP.flow()].epoch, RESERVE_EPOCH);

    let mut later = waiting;
    let hz = later.config.hz;
    HTTP.record_of(&mut later).seen -= 2 * hz;
    let program = pool::load(&later, fixture::FLOWS).unwrap();
    let moved = run(&program, &from_client().ipv4(&with_flags(HTTP, ACK)));
    assert_eq!(moved, (PASS, vec![Stat::EvictedLive]));
    let FlowRecord { epoch, flags, isn, .. } = record_and_count(&program).0.unwrap();
    assert_eq!((epoch, u32::from(flags), isn), (0, FLOW_REPLIES | FLOW_ISN | FLOW_CLIENT_FIN, ISN));
}

/// Returns a state with a record in the reserve, of this age, whose sets are full of established connections.
fn in_the_reserve(flags: u32, age: u64) -> State {
    let mut state = fixture::state();
    crowd(&mut state, HTTP);
    HTTP.remember(&mut state, LOCAL, age, ISN, FLOW_ISN | flags);
    let record = HTTP.record_of(&mut state);
    record.epoch = RESERVE_EPOCH;
    // [`Service::remember`] always adds this one.
    record.flags &= !u8::try_from(FLOW_REPLIES).unwrap() | u8::try_from(flags).unwrap();
    state
}

/// If all others are established connections to backends here, a record stays in the reserve. There it is as
/// safe as they are.
pub(crate) fn a_connection_may_live_in_the_reserve() {
    let state = in_the_reserve(FLOW_REPLIES | FLOW_HALF_OPEN, 0);
    let program = pool::load(&state, fixture::FLOWS).unwrap();
    assert_eq!(run(&program, &from_client().ipv4(&with_flags(HTTP, ACK))), (PASS, vec![]));
    let record = || record_and_count(&program).0.map(|record| (record.epoch, u32::from(record.flags), record.isn));
    let established = Some((RESERVE_EPOCH, FLOW_REPLIES | FLOW_ISN, ISN));
    assert_eq!(record(), established);
    let mut newcomers = neighbors(&state, &HTTP.flow(), 60).into_iter().skip(8);
    for key in newcomers.by_ref().take(40) {
        let (verdict, reasons) = run(&program, &from_port(HTTP, &key, SYN));
        assert!(verdict == PASS && reasons.iter().all(|reason| *reason == Stat::EvictedHalfOpen), "{reasons:?}");
    }
    assert_eq!(record(), established, "a flood went by");
    for (number, key) in newcomers.enumerate() {
        let first = run(&program, &from_port(HTTP, &key, SYN)).0;
        let is_answered = answer(&program, LOCAL, &key, SYN | ACK);
        let second = run(&program, &from_port(HTTP, &key, ACK)).0;
        let wanted = if number < 3 { (PASS, true, PASS) } else { (DROP, false, DROP) };
        assert_eq!((first, is_answered, second), wanted, "flow {number}");
    }
    assert_eq!(record(), established, "with three others it fills its set");
}

/// As soon as one of its sets has room, it moves, at most once a second.
pub(crate) fn a_record_leaves_the_reserve_when_there_is_room() {
    let moved = |age| {
        let mut state = in_the_reserve(FLOW_REPLIES, age);
        let (_, other) = state.flows.iter_mut().find(|(key, _)| **key != HTTP.flow()).unwrap();
        other.flags |= u8::try_from(FLOW_CLIENT_FIN | FLOW_BACKEND_FIN).unwrap();
        let program = pool::load(&state, fixture::FLOWS).unwrap();
        let outcome = run(&program, &from_client().ipv4(&with_flags(HTTP, ACK)));
        let (record, count) = record_and_count(&program);
        (outcome, record.unwrap().epoch, count)
    };
    let hz = u64::from(fixture::state().config.hz);
    assert_eq!(moved(hz / 2), ((PASS, vec![]), RESERVE_EPOCH, 9));
    assert_eq!(moved(2 * hz), ((PASS, vec![Stat::EvictedClosed]), 0, 8));
}

/// A set does not forget that one of its flows is in the reserve.
pub(crate) fn a_use_of_the_reserve_is_remembered() {
    let hz = fixture::state().config.hz;
    let state = in_the_reserve(FLOW_REPLIES, 10 * u64::from(hz));
    let program = pool::load(&state, fixture::FLOWS).unwrap();
    let notes = || {
        let sets = program.flow_sets().unwrap();
        let set = sets.iter().find(|set| set.records[RESERVE_WAY as usize].of_set != 0).unwrap();
        [OVERFLOW_WAY, RESERVE_WAY].map(|way| set.records[way as usize].of_set)
    };
    let [_, before] = notes();
    let answer = Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(&segment(LOCAL, ACK, 77));
    assert_ne!(program.run(Hook::Egress, &answer).unwrap().frame, answer);
    let [overflow, after] = notes();
    assert!(overflow == after && after.wrapping_sub(before) >= 10 * hz, "{before} became {overflow}, {after}");
}

/// A record in the reserve that does not translate replies, or not those to this SYN, is written again.
pub(crate) fn a_record_in_the_reserve_is_mended() {
    for (flags, tcp) in [(0, ACK), (FLOW_REPLIES, SYN), (FLOW_REPLIES | FLOW_NEW | FLOW_HALF_OPEN, SYN)] {
        let program = pool::load(&in_the_reserve(flags, 0), fixture::FLOWS).unwrap();
        let packet = Ipv4::tcp(CLIENT, HTTP.vip, Tcp::new(CLIENT_PORT, HTTP.port, tcp).numbers(ISN + 7, 77));
        assert_eq!(run(&program, &from_client().ipv4(&packet)), (PASS, vec![]), "{flags:#x}, {tcp:#x}");
        let (record, count) = record_and_count(&program);
        let record = record.unwrap();
        assert_eq!((record.epoch, u32::from(record.flags) & FLOW_REPLIES, count), (RESERVE_EPOCH, FLOW_REPLIES, 9));
        assert_eq!(record.isn, if tcp == SYN { ISN + 7 } else { ISN });
    }
}

/// A flood evicts no live flow, whatever its packets are. Its own records make room for each other.
pub(crate) fn what_has_proven_nothing_evicts_no_live_flow() {
    let program = full_of_others();
    let others = program.state().unwrap().flows;
    for (number, key) in (0..).zip(neighbors(&fixture::state(), &HTTP.flow(), 100).iter().skip(8)) {
        let first = [SYN, ACK, RST, FIN | ACK][number % 4];
        let last = [RST, FIN | ACK][number % 2];
        for flags in [first, last] {
            let (verdict, reasons) = run(&program, &from_port(HTTP, key, flags));
            assert_eq!((verdict, reasons.contains(&Stat::EvictedLive)), (PASS, false), "{first:#x}, {flags:#x}");
        }
    }
    let left = program.state().unwrap().flows;
    assert!(others.keys().all(|key| left.contains_key(key)), "{left:?}");
    assert!(left.len() <= 3 * WAYS as usize, "{left:?}");
}
