//! Tests the limit on records: a flood of new flows does not evict live ones.

use std::time::{Duration, Instant};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use vipmux_common::abi::{DropReason, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_ISN, SERVICE_DIRECT, Stat};
use vipmux_tests::{
    frames::{Ipv4, SYN, Tcp},
    program::{Hook, Program, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, datagram, handed, known_flow, new_flow, segment, syn},
    fixture::{
        self, CLIENT, HTTP, HTTP_TOO, HTTPS, LOCAL, PEER_MAC, REMOTE, SYSLOG, Service, WHILE, from_client, from_peer,
    },
    services::local,
};

pub(crate) fn cases() -> Vec<Case> {
    [limited(), limited_here()].into_iter().flatten().collect()
}

/// The time limit for what takes a second or two.
const PATIENCE: Duration = Duration::from_secs(30);

fn no_records(state: &mut State) {
    state.config.records_per_second = 0;
}

fn limited() -> Vec<Case> {
    let unrecorded = |service: Service| {
        [Counter::Stat(Stat::HandedOver), Counter::Stat(Stat::Unrecorded), Counter::Service(service.slot)]
    };
    vec![
        Case::ingress("beyond the limit a new flow is handed over unrecorded", from_client().ipv4(&syn(HTTPS)))
            .given(no_records)
            .becomes(Verdict::Transmitted(handed(&syn(HTTPS), PEER_MAC)), &unrecorded(HTTPS)),
        Case::ingress("beyond the limit a datagram is handed over unrecorded", from_client().ipv4(&datagram(SYSLOG)))
            .given(no_records)
            .becomes(Verdict::Transmitted(handed(&datagram(SYSLOG), PEER_MAC)), &unrecorded(SYSLOG)),
        Case::ingress("a known flow is handed over as ever", from_client().ipv4(&segment(HTTPS)))
            .given(|state| {
                no_records(state);
                HTTPS.record_vouched(state, REMOTE, WHILE, 0);
            })
            .becomes(Verdict::Transmitted(handed(&segment(HTTPS), PEER_MAC)), &known_flow(HTTPS, Stat::HandedOver))
            .then(|state| HTTPS.record_vouched(state, REMOTE, 0, 0)),
        Case::ingress("a limit of one has room for one", from_client().ipv4(&syn(HTTPS)))
            .given(|state| state.config.records_per_second = 1)
            .becomes(Verdict::Transmitted(handed(&syn(HTTPS), PEER_MAC)), &new_flow(HTTPS, Stat::HandedOver))
            .then(|state| HTTPS.record(state, REMOTE, 0, 0)),
    ]
}

/// On the backend's node, an unrecorded flow's replies would have the backend's address.
fn limited_here() -> Vec<Case> {
    let dropped = |name, packet: &Ipv4| {
        Case::ingress(name, from_client().ipv4(packet))
            .given(no_records)
            .becomes(Verdict::Dropped(DropReason::RecordLimited), &[Counter::Service(HTTP.slot)])
    };
    vec![
        dropped("beyond the limit a new flow to a backend here is dropped", &syn(HTTP)),
        Case::ingress("so is a peer's", from_peer().ipv4(&syn(HTTP))).given(no_records).becomes(
            Verdict::Dropped(DropReason::RecordLimited),
            &[Counter::Stat(Stat::FromPeer), Counter::Service(HTTP.slot)],
        ),
        Case::ingress("nor is one left direct", from_client().ipv4(&syn(HTTP)))
            .given(|state| {
                no_records(state);
                state.service_states[HTTP.slot as usize].flags = SERVICE_DIRECT;
            })
            .becomes(Verdict::Dropped(DropReason::RecordLimited), &[Counter::Service(HTTP.slot)]),
        local("beyond the limit a flow goes on whose replies have a record", HTTP, &segment(HTTP), LOCAL, true)
            .given(|state| {
                no_records(state);
                HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
            })
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        local("beyond the limit a SYN renews that record", HTTP, &syn(HTTP), LOCAL, true)
            .given(|state| {
                no_records(state);
                HTTP.remember(state, LOCAL, WHILE, 1, FLOW_ISN);
            })
            .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        dropped("beyond the limit no record is taken from a closed flow", &syn(HTTP)).given(|state| {
            no_records(state);
            HTTP_TOO.remember(state, LOCAL, WHILE, 1, FLOW_ISN | FLOW_CLIENT_FIN | FLOW_BACKEND_FIN);
        }),
        dropped("nor an element that was given to another", &syn(HTTP)).given(|state| {
            no_records(state);
            HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
            state.reverse.values_mut().for_each(|value| value.tag ^= 1);
        }),
    ]
}

/// So many per second, with a burst of one second's worth; later more.
pub(crate) fn a_limit_has_room_again_after_a_while() {
    const PER_SECOND: u32 = 20;
    let mut state = fixture::state();
    state.config.records_per_second = PER_SECOND;
    // Each CPU has its own budgets.
    stay_on_one_cpu();
    let program = Program::load(&state, fixture::FLOWS).unwrap();
    let mut ports = 40_000..;
    let mut new_flow = || {
        let tcp = Tcp::new(ports.next().unwrap(), HTTPS.port, SYN).numbers(ISN, 0);
        let frame = from_client().ipv4(&Ipv4::tcp(CLIENT, HTTPS.vip, tcp));
        assert_eq!(program.run(Hook::Ingress, &frame).unwrap().verdict, 3, "handed over, recorded or not");
    };
    let recorded = || program.state().unwrap().flows.len();
    let begun = Instant::now();
    (0..5 * PER_SECOND).for_each(|_| new_flow());
    // The machine may be slow.
    let seconds = u32::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    let first = u32::try_from(recorded()).unwrap();
    assert!((PER_SECOND..=PER_SECOND * (1 + seconds)).contains(&first), "{first} flows were recorded in {seconds} s");
    while u32::try_from(recorded()).unwrap() < 2 * PER_SECOND {
        assert!(begun.elapsed() < PATIENCE, "only {} flows were recorded", recorded());
        new_flow();
    }
    assert!(begun.elapsed() > Duration::from_millis(500), "that many were recorded after {:?}", begun.elapsed());
}

/// The calling thread, which runs this test.
fn stay_on_one_cpu() {
    let here = Pid::from_raw(0);
    let allowed = sched_getaffinity(here).unwrap();
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap()).unwrap();
    let mut one = CpuSet::new();
    one.set(first).unwrap();
    sched_setaffinity(here, &one).unwrap();
}
