//! Tests which records make room for new flows.

use std::collections::{BTreeMap, BTreeSet};

use vipmux_common::{
    abi::{
        Address, DropReason, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_HALF_OPEN, FLOW_ISN, FLOW_NEW, FLOW_REPLIES,
        FlowKey, FlowRecord, SERVICE_DIRECT, Stat, WAYS,
    },
    flow_table::{self, LOCK_WAY, OVERFLOW_WAY, RESERVE_EPOCH},
};
use vipmux_datapath::bpf::flow_table::sets;
use vipmux_tests::{
    frames::{ACK, Ethernet, Ipv4, SYN, Tcp},
    program::{Hook, NOW_LOW, Program, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, datagram, handed, new_flow, syn, syn_to_http, to},
    fixture::{
        self, Endpoint, HTTP, HTTP_TOO, HTTPS, LATE, LOCAL, LOCAL_TOO, NEWEST, PEER_MAC, REMOTE, SYSLOG, Service,
        TCP_IDLE, WHILE, from_client, from_peer,
    },
    pool,
    unanswered::answer,
};

pub(crate) fn cases() -> Vec<Case> {
    [crowded(), crowded_here()].into_iter().flatten().collect()
}

/// Returns the keys of other flows of the service that have both sets of this flow, `count` of
/// which have the first one first.
pub(crate) fn neighbors(state: &State, flow: &FlowKey, count: u32) -> Vec<FlowKey> {
    let mask = sets(fixture::FLOWS) - 1;
    let homes = |key: &FlowKey| {
        let place = flow_table::Place::new(&state.config.flow_secret, &key.client, key.client_port, key.protocol);
        [place.set(mask), place.other_set(mask)]
    };
    let wanted = homes(flow);
    let client = |host: u32| Address::v4((0x0a64_0000 + host).to_be());
    let keys = (0..).map(|number: u32| FlowKey {
        client: client(number >> 14),
        client_port: (1024 + u16::try_from(number & 0x3fff).unwrap()).to_be(),
        ..*flow
    });
    keys.filter(|key| homes(key) == wanted).take(count as usize).collect()
}

/// Returns a record of an established connection to a local backend.
pub(crate) fn established(key: FlowKey) -> FlowRecord {
    let mut state = fixture::state();
    HTTP.remember(&mut state, LOCAL, WHILE, ISN, FLOW_ISN);
    let FlowKey { client, vip, client_port, vip_port, protocol, .. } = key;
    let protocol = u8::try_from(protocol).unwrap();
    FlowRecord { client, vip, client_port, vip_port, protocol, ..*HTTP.record_of(&mut state) }
}

/// Fills both sets that a flow to this Service can be in with live flows to [`HTTP`]'s backend.
pub(crate) fn crowd(state: &mut State, service: Service) {
    let flow = FlowKey { vip_port: HTTP.port.to_be(), ..service.flow() };
    for key in neighbors(state, &flow, 2 * WAYS) {
        state.flows.insert(key, established(key));
    }
}

fn crowded() -> Vec<Case> {
    let unrecorded = |service: Service| {
        [Counter::Stat(Stat::HandedOver), Counter::Stat(Stat::Unrecorded), Counter::Service(service.slot)]
    };
    vec![
        Case::ingress("without room a new flow is handed over unrecorded", from_client().ipv4(&syn(HTTPS)))
            .given(|state| crowd(state, HTTPS))
            .becomes(Verdict::Transmitted(handed(&syn(HTTPS), PEER_MAC)), &unrecorded(HTTPS))
            .in_this_family(),
        Case::ingress("without room a datagram is handed over unrecorded", from_client().ipv4(&datagram(SYSLOG)))
            .given(|state| crowd(state, SYSLOG))
            .becomes(Verdict::Transmitted(handed(&datagram(SYSLOG), PEER_MAC)), &unrecorded(SYSLOG))
            .in_this_family(),
    ]
}

/// On the backend's node, an unrecorded flow's replies would have the backend's address. So such a record
/// waits in the reserve.
fn crowded_here() -> Vec<Case> {
    let waits = |name, ethernet: Ethernet, counters: &[Counter]| {
        let delivered = Verdict::Passed(ethernet.clone().ipv4(&to(&syn(HTTP), LOCAL)));
        Case::ingress(name, ethernet.ipv4(&syn(HTTP)))
            .given(|state| crowd(state, HTTP))
            .becomes(delivered, counters)
            .then(|state| {
                syn_to_http(state);
                HTTP.record_of(state).epoch = RESERVE_EPOCH;
            })
            .in_this_family()
    };
    let mut by_peer = new_flow(HTTP, Stat::Local);
    by_peer.push(Counter::Stat(Stat::FromPeer));
    vec![
        waits("without room a new flow to a backend here waits", from_client(), &new_flow(HTTP, Stat::Local)),
        waits("so does a peer's", from_peer(), &by_peer),
        Case::ingress("so does one without translation", from_client().ipv4(&syn(HTTP)))
            .given(|state| {
                crowd(state, HTTP);
                state.service_states[HTTP.slot as usize].flags = SERVICE_DIRECT;
            })
            .becomes(Verdict::Untouched, &new_flow(HTTP, Stat::Direct))
            .then(|state| {
                HTTP.record(state, LOCAL, 0, 0);
                HTTP.record_of(state).epoch = RESERVE_EPOCH;
            })
            .in_this_family(),
        Case::ingress("while another CPU has its set's lock, a new flow is dropped", from_client().ipv4(&syn(HTTP)))
            .given(|state| {
                crowd(state, HTTP);
                state.flows.values_mut().for_each(|flow| flow.of_set = HELD);
            })
            .becomes(Verdict::Dropped(DropReason::RecordLimited), &[Counter::Service(HTTP.slot)])
            .then(|state| state.flows.values_mut().for_each(|flow| flow.of_set = 0))
            .in_this_family(),
    ]
}

pub(crate) fn from_port(service: Service, key: &FlowKey, flags: u8) -> Vec<u8> {
    let std::net::IpAddr::V4(client) = key.client.into() else { panic!("an IPv4 client") };
    let tcp = Tcp::new(u16::from_be(key.client_port), service.port, flags).numbers(ISN, 1);
    from_client().ipv4(&Ipv4::tcp(client, service.vip, tcp))
}

/// Returns the verdict on a frame, and the reasons for which a record made room.
pub(crate) fn run(program: &Program, frame: &[u8]) -> (u32, Vec<Stat>) {
    let before = program.counters().unwrap();
    let verdict = program.run(Hook::Ingress, frame).unwrap().verdict;
    let counted = program.counters().unwrap().since(&before);
    let counts = Stat::ALL.iter().zip(&counted.stats);
    let reasons = counts.filter(|(stat, count)| stat.name().starts_with("evicted") && count.packets > 0);
    (verdict, reasons.map(|(stat, _)| *stat).collect())
}

/// Records of two full sets make room in the order of their worth, and of equal ones the oldest.
/// Newcomers become established as soon as they are there. A live record only makes room for one of them
/// whose two sides have spoken.
pub(crate) fn evicted_in_order() {
    let mut state = fixture::state();
    let keys = neighbors(&state, &HTTP.flow(), 16);
    let [given @ .., established_too] = [
        (Stat::EvictedIdle, LOCAL, FLOW_REPLIES | FLOW_ISN, TCP_IDLE + WHILE),
        (Stat::EvictedUnconfirmed, LOCAL, FLOW_REPLIES | FLOW_NEW, WHILE),
        (Stat::EvictedLive, REMOTE, 0, WHILE),
        (Stat::EvictedHalfOpen, LOCAL, FLOW_REPLIES | FLOW_ISN | FLOW_NEW | FLOW_HALF_OPEN, 2 * WHILE),
        (Stat::EvictedClosed, REMOTE, FLOW_CLIENT_FIN, LATE + WHILE),
        (Stat::EvictedInvalid, LOCAL, FLOW_REPLIES, 0),
        (Stat::EvictedClosed, LOCAL, FLOW_REPLIES | FLOW_CLIENT_FIN | FLOW_BACKEND_FIN, WHILE),
        (Stat::EvictedLive, LOCAL, FLOW_REPLIES | FLOW_ISN, TCP_IDLE - WHILE),
    ];
    for (key, (stat, backend, flags, age)) in keys.iter().zip(given.into_iter().chain([established_too])) {
        let record = FlowRecord {
            backend: backend.index,
            backend_generation: state.backends[backend.index as usize].generation,
            slot_generation: established(*key).slot_generation - u32::from(stat == Stat::EvictedInvalid),
            node: backend.node.try_into().unwrap(),
            flags: flags.try_into().unwrap(),
            seen: NOW_LOW - u32::try_from(age).unwrap(),
            ..established(*key)
        };
        state.flows.insert(*key, record);
    }
    let program = pool::load(&state, fixture::FLOWS).unwrap();
    let mut evicted = Vec::new();
    for key in &keys[8..] {
        let opened = run(&program, &from_port(HTTP, key, SYN));
        assert!(answer(&program, LOCAL, key, SYN | ACK));
        evicted.push([opened, run(&program, &from_port(HTTP, key, ACK))]);
    }
    let [nothing, invalid, closed, half_open, unconfirmed, idle, live] = [
        vec![],
        vec![Stat::EvictedInvalid],
        vec![Stat::EvictedClosed],
        vec![Stat::EvictedHalfOpen],
        vec![Stat::EvictedUnconfirmed],
        vec![Stat::EvictedIdle],
        vec![Stat::EvictedLive],
    ];
    let at_once = |reason: &Vec<Stat>| [(PASS, reason.clone()), (PASS, nothing.clone())];
    let order = [
        at_once(&invalid),
        at_once(&closed),
        at_once(&closed),
        at_once(&half_open),
        at_once(&unconfirmed),
        at_once(&idle),
        [(PASS, nothing.clone()), (PASS, live)],
        at_once(&nothing),
    ];
    assert_eq!(evicted, order);
    let left = program.state().unwrap().flows;
    assert!(left.contains_key(&keys[7]), "an established connection to a local backend stays");
    assert!(keys[8..].iter().all(|key| left.contains_key(key)) && left.len() == 9, "{left:?}");
    let waits = |key: &FlowKey| left[key].epoch == RESERVE_EPOCH;
    assert!(keys[8..15].iter().all(|key| !waits(key)) && waits(&keys[15]), "{left:?}");
    assert_eq!(u32::from(left[&keys[15]].flags), FLOW_REPLIES | FLOW_ISN, "established in the reserve");
}

/// A record whose Service or backend is gone makes room before all others. The programs only ask where one of
/// them may be gone: it was removed after the last packet, or packets of a backend here keep the record young.
pub(crate) fn of_what_is_gone_make_room_first() {
    let start = fixture::state();
    let (hz, removed) = (start.config.hz, 10 * start.config.hz);
    let keys = neighbors(&start, &HTTP.flow(), 9);
    let mut program = pool::load(&start, fixture::FLOWS).unwrap();
    let mut reason = |(backend, flags): (Endpoint, u32), age, gone: fn(&mut State, &FlowKey)| {
        let mut state = start.clone();
        state.config.removed = NOW_LOW - removed;
        let closed = u8::try_from(FLOW_REPLIES | FLOW_CLIENT_FIN | FLOW_BACKEND_FIN).unwrap();
        for key in &keys[..7] {
            // Older than the other record. So if both had one rank, one of these would make room.
            let seen = NOW_LOW - 60 * hz;
            state.flows.insert(*key, FlowRecord { flags: closed, seen, ..established(*key) });
        }
        let record = FlowRecord {
            backend: backend.index,
            backend_generation: state.backends[backend.index as usize].generation,
            node: backend.node.try_into().unwrap(),
            flags: flags.try_into().unwrap(),
            seen: NOW_LOW - age,
            ..established(keys[7])
        };
        state.flows.insert(keys[7], record);
        gone(&mut state, &keys[7]);
        program.install(&state).unwrap();
        let (verdict, reasons) = run(&program, &from_port(HTTP, &keys[8], SYN));
        assert_eq!((verdict, reasons.len()), (PASS, 1));
        let is_left = program.state().unwrap().flows.contains_key(&keys[7]);
        assert_eq!(reasons[0] == Stat::EvictedInvalid, !is_left, "{reasons:?}");
        reasons[0]
    };
    let service: fn(&mut State, &FlowKey) = |state, key| state.flows.get_mut(key).unwrap().slot_generation -= 1;
    let backend: fn(&mut State, &FlowKey) = |state, key| state.flows.get_mut(key).unwrap().backend_generation -= 1;
    let young = removed - hz - 1;
    let states = [
        (LOCAL, FLOW_REPLIES | FLOW_NEW | FLOW_HALF_OPEN),
        (REMOTE, FLOW_NEW | FLOW_HALF_OPEN),
        (LOCAL, FLOW_REPLIES | FLOW_NEW),
        (REMOTE, FLOW_NEW),
        (LOCAL, FLOW_REPLIES | FLOW_CLIENT_FIN | FLOW_BACKEND_FIN),
        (REMOTE, 0),
    ];
    for (number, of) in states.into_iter().enumerate() {
        for gone in [service, backend] {
            assert_eq!(reason(of, young + 1, gone), Stat::EvictedInvalid, "state {number}");
            assert_eq!(reason(of, young, gone), Stat::EvictedClosed, "a packet came since: state {number}");
        }
        assert_eq!(reason(of, young + 1, |_, _| ()), Stat::EvictedClosed, "nothing is gone: state {number}");
    }
    for gone in [service, backend] {
        assert_eq!(reason((LOCAL, FLOW_REPLIES), 0, gone), Stat::EvictedInvalid, "the backend's packets came since");
    }
}

pub(crate) const DROP: u32 = 1;
pub(crate) const PASS: u32 = 2;

/// Of flows that have proven nothing, the oldest makes room. An answer and a second packet prove enough.
pub(crate) fn a_flood_evicts_its_own_flows() {
    let state = fixture::state();
    let keys = neighbors(&state, &HTTP.flow(), 60);
    let program = pool::load(&state, fixture::FLOWS).unwrap();
    let run = |key: &FlowKey, flags| {
        let verdict = program.run(Hook::Ingress, &from_port(HTTP, key, flags)).unwrap().verdict;
        assert_eq!(verdict, PASS);
    };
    let flags = |key: &FlowKey| program.state().unwrap().flows.get(key).map(|flow| u32::from(flow.flags));
    let (honest, flood) = keys.split_at(3);
    for key in honest {
        run(key, SYN);
        assert_eq!(flags(key), Some(FLOW_REPLIES | FLOW_ISN | FLOW_NEW | FLOW_HALF_OPEN));
        run(key, SYN);
        assert_eq!(flags(key), Some(FLOW_REPLIES | FLOW_ISN | FLOW_NEW | FLOW_HALF_OPEN), "the same SYN again");
        assert!(answer(&program, LOCAL, key, SYN | ACK));
        run(key, ACK);
        assert_eq!(flags(key), Some(FLOW_REPLIES | FLOW_ISN));
    }
    for key in flood {
        run(key, SYN);
    }
    let left: BTreeMap<_, _> = program.state().unwrap().flows;
    assert!(honest.iter().all(|key| left.contains_key(key)), "{left:?}");
    assert_eq!(left.len(), 2 * WAYS as usize);
}

/// A set's lock, in its first record, that another CPU has: holders below, and a version above.
const HELD: u32 = 0x7001;

pub(crate) fn locked_sets_are_left_alone() {
    let mut state = fixture::state();
    let keys = neighbors(&state, &HTTP.flow(), 9);
    let flags = u8::try_from(FLOW_REPLIES | FLOW_ISN | FLOW_NEW | FLOW_HALF_OPEN).unwrap();
    let mut run = |lock| {
        for key in &keys[..8] {
            state.flows.insert(*key, FlowRecord { of_set: lock, flags, ..established(*key) });
        }
        let program = pool::load(&state, fixture::FLOWS).unwrap();
        let verdict = program.run(Hook::Ingress, &from_port(HTTP, &keys[8], SYN)).unwrap().verdict;
        let sets = program.flow_sets().unwrap();
        let locks: BTreeSet<_> = sets.iter().map(|set| set.records[0].of_set).filter(|lock| *lock > 0).collect();
        let locks = locks.into_iter().collect::<Vec<_>>();
        (verdict, program.state().unwrap().flows.contains_key(&keys[8]), locks)
    };
    assert_eq!(run(HELD), (DROP, false, vec![HELD]), "another CPU has the lock");
    assert_eq!(run(0xffff_f000), (PASS, true, vec![0x1000]), "the version starts again");
    assert_eq!(run(0x7000), (PASS, true, vec![0x8000, 0x9000]), "each holder has a version of its own");
}

/// A record outlives changes of other backends, but not a change of its own. With the newest
/// generation, a program need not look for the backend's own one.
pub(crate) fn a_record_is_of_the_backend_that_was_there() {
    let mut state = fixture::state();
    HTTP.set(&mut state, &[REMOTE], &[]);
    let new_flows = |state: &State| {
        let program = pool::load(state, fixture::FLOWS).unwrap();
        program.run(Hook::Ingress, &from_port(HTTP, &HTTP.flow(), ACK)).unwrap();
        let new_flows = program.counters().unwrap().stats[Stat::NewFlows as usize].packets;
        (new_flows, program.state().unwrap().flows[&HTTP.flow()])
    };
    let (number, record) = new_flows(&state);
    assert_eq!((number, record.backend_generation), (1, NEWEST));
    state.flows.insert(HTTP.flow(), FlowRecord { seen: NOW_LOW, ..record });

    // Only the backend's own entry vouches for the record.
    state.nodes[REMOTE.node as usize].epoch = 0;
    state.config.next_generation = NEWEST + 3;
    let own = |state: &mut State, generation| state.backends[REMOTE.index as usize].generation = generation;
    for (generation, expected) in [(1, 0), (NEWEST, 0), (NEWEST + 1, 1), (NEWEST + 2, 1)] {
        own(&mut state, generation);
        assert_eq!(new_flows(&state).0, expected, "generation {generation}");
    }
}

/// Returns how many sets were locked, and the times of overflows.
fn traces(program: &Program) -> (usize, Vec<u32>) {
    let sets = program.flow_sets().unwrap();
    let of_set = |way: u32| {
        let words = sets.iter().map(move |set| set.records[way as usize].of_set);
        words.filter(|word| *word != 0).collect::<Vec<_>>()
    };
    (of_set(LOCK_WAY).len(), of_set(OVERFLOW_WAY))
}

const HALF_OPEN: u32 = FLOW_NEW | FLOW_HALF_OPEN;

/// A flow's second set costs time, so it is only used if the first one has no room.
pub(crate) fn a_second_set_is_only_used_if_it_must_be() {
    let of_state = |kinds: &[u32]| {
        let mut state = fixture::state();
        let keys = neighbors(&state, &HTTP.flow(), 9);
        for (key, kind) in keys.iter().zip(kinds) {
            let flags = u8::try_from(FLOW_REPLIES | FLOW_ISN | kind).unwrap();
            state.flows.insert(*key, FlowRecord { flags, ..established(*key) });
        }
        (pool::load(&state, fixture::FLOWS).unwrap(), keys)
    };
    let run = |program: &Program, key: &FlowKey| {
        let before = program.counters().unwrap();
        assert_eq!(program.run(Hook::Ingress, &from_port(HTTP, key, SYN)).unwrap().verdict, PASS);
        program.counters().unwrap().since(&before).stats[Stat::EvictedHalfOpen as usize].packets
    };
    let (program, keys) = of_state(&[0, 0]);
    assert_eq!((run(&program, &keys[2]), traces(&program)), (0, (1, vec![])), "the first set has room");
    assert_eq!(run(&program, &keys[3]), 0);
    let (locked, overflows) = traces(&program);
    assert_eq!((locked, overflows.len()), (2, 1), "the first set has one free record, the second four");

    let (program, keys) = of_state(&[HALF_OPEN, 0, HALF_OPEN, HALF_OPEN]);
    assert_eq!((run(&program, &keys[4]), traces(&program)), (1, (1, vec![])), "a flood pays with its own");
    let (program, keys) = of_state(&[HALF_OPEN, 0, 0, HALF_OPEN]);
    assert_eq!((run(&program, &keys[4]), traces(&program).0), (0, 2), "two half-open flows are no flood");
}

/// A flow in its second set is found, and keeps it so.
pub(crate) fn an_overflow_is_remembered() {
    let mut state = fixture::state();
    let keys = neighbors(&state, &HTTP.flow(), 5);
    for key in &keys {
        let seen = NOW_LOW - 10 * state.config.hz;
        state.flows.insert(*key, FlowRecord { seen, ..established(*key) });
    }
    let program = pool::load(&state, fixture::FLOWS).unwrap();
    let overflow = || traces(&program).1[0];
    let before = overflow();
    for key in &keys {
        let counted = program.counters().unwrap();
        assert_eq!(program.run(Hook::Ingress, &from_port(HTTP, key, ACK)).unwrap().verdict, PASS);
        assert_eq!(program.counters().unwrap().since(&counted).stats[Stat::NewFlows as usize].packets, 0);
    }
    let after = overflow();
    assert!(after.wrapping_sub(before) >= 10 * state.config.hz, "{before} became {after}");
}

/// The SYN is taken for a new flow's first, and the backend of that one would be taken: another flow of the client
/// has it, in the first set.
pub(crate) fn a_syn_finds_its_record_in_the_second_set() {
    let mut state = fixture::state();
    for key in neighbors(&state, &HTTP.flow(), 3) {
        state.flows.insert(key, established(key));
    }
    HTTP_TOO.remember(&mut state, LOCAL, 0, 1, FLOW_ISN);
    HTTP.remember(&mut state, LOCAL_TOO, 0, ISN, FLOW_ISN);
    for table in [&[LOCAL, LOCAL_TOO][..], &[LOCAL]] {
        HTTP.set(&mut state, table, table);
        let program = pool::load(&state, fixture::FLOWS).unwrap();
        let before = program.state().unwrap().flows;
        let outcome = program.run(Hook::Ingress, &from_client().ipv4(&syn(HTTP))).unwrap();
        assert_eq!(outcome.frame, from_client().ipv4(&to(&syn(HTTP), LOCAL_TOO)), "{} backends", table.len());
        assert_eq!(program.state().unwrap().flows, before);
    }
}

/// Programs look at one way of a set first, and most of their time goes into each further one.
pub(crate) fn a_new_record_gets_the_way_that_is_looked_at_first() {
    let state = fixture::state();
    let (mask, secret) = (sets(fixture::FLOWS) - 1, &state.config.flow_secret);
    let home = |key: &FlowKey| flow_table::Place::new(secret, &key.client, key.client_port, key.protocol);
    let mut ways = BTreeSet::new();
    for client_port in 1024..1040 {
        let key = FlowKey { client_port: u16::to_be(client_port), ..HTTP.flow() };
        let program = pool::load(&state, fixture::FLOWS).unwrap();
        assert_eq!(program.run(Hook::Ingress, &from_port(HTTP, &key, SYN)).unwrap().verdict, PASS);
        let set = &program.flow_sets().unwrap()[home(&key).set(mask) as usize];
        let used: Vec<_> = (0..WAYS).filter(|way| set.records[*way as usize].vip != 0).collect();
        assert_eq!(used, [home(&key).way()], "port {client_port}");
        ways.extend(used);
    }
    assert_eq!(ways.len(), WAYS as usize);
}
