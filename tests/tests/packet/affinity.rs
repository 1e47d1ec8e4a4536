//! Cases of session affinity: all flows of a client go to one backend.

use vipmux_common::{
    abi::{self, Address, AffinityKey, AffinityValue, BACKEND_READY, FLOW_ISN, NODE_ATTACHED, Stat},
    hash,
};
use vipmux_tests::{
    frames::{Ipv4, SYN, Tcp},
    program::{NOW, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, handed, known_flow, new_flow, segment, syn, to},
    family::v6,
    fixture::{
        CLIENT, CLIENT_PORT, Endpoint, FAR, FAR_MAC, HTTP, HTTPS, LOCAL, LOCAL_TOO, PEER_MAC, REMOTE, SPREAD, Service,
        WHILE, address, from_client, from_peer,
    },
    records,
};

pub(crate) fn cases() -> Vec<Case> {
    [first(), remembered(), forgotten(), handed_over(), limited()].into_iter().flatten().collect()
}

/// The affinity timeout, jiffies.
const LIFE: u64 = 50_000;

fn sticky(state: &mut State, service: Service) {
    state.services.get_mut(&service.key()).unwrap().affinity = u32::try_from(LIFE).unwrap();
}

/// Records the client's backend, last used `age` jiffies ago.
fn seen(state: &mut State, service: Service, backend: Endpoint, age: u64) {
    let generation = state.service_states[service.slot as usize].generation;
    let key = AffinityKey { client: address(CLIENT), slot: service.slot, generation };
    let value = AffinityValue {
        tag: hash::affinity(&key),
        backend: backend.index,
        backend_generation: backend.of(state).generation,
        reserved: 0,
        seen: NOW - age,
    };
    state.affinity.insert(key, value);
}

fn opened(state: &mut State, backend: Endpoint) {
    HTTP.record(state, backend, 0, 0);
    HTTP.remember(state, backend, 0, ISN, FLOW_ISN);
    seen(state, HTTP, backend, 0);
}

/// [`HTTP`]'s table has [`LOCAL`]. This packet goes there, or to [`LOCAL_TOO`].
fn local(name: &'static str, packet: &Ipv4, backend: Endpoint) -> Case {
    Case::ingress(name, from_client().ipv4(packet))
        .becomes(Verdict::Passed(from_client().ipv4(&to(packet, backend))), &new_flow(HTTP, Stat::Local))
}

/// Puts [`LOCAL_TOO`] into the slot of only this client, whatever its port.
fn by_client(state: &mut State, client: Address) {
    let mut table = [LOCAL; 16];
    table[hash::slot(hash::client(&client), 16) as usize] = LOCAL_TOO;
    HTTP.set(state, &table, &[]);
    sticky(state, HTTP);
}

fn first() -> Vec<Case> {
    let table_of_v6: fn(&mut State) = |state| by_client(state, std::net::IpAddr::V6(v6(CLIENT)).into());
    let by_table = local("a client's first flow goes by its address", &syn(HTTP), LOCAL_TOO)
        .then(|state| opened(state, LOCAL_TOO));
    vec![
        by_table.given(table_of_v6).twin().unwrap(),
        local("a client's first flow goes by its address", &syn(HTTP), LOCAL_TOO)
            .given(|state| by_client(state, address(CLIENT)))
            .then(|state| opened(state, LOCAL_TOO))
            .in_this_family(),
        local("so does one from another port", &from_another_port(), LOCAL_TOO)
            .given(|state| by_client(state, address(CLIENT)))
            .then(|state| {
                opened(state, LOCAL_TOO);
                moved_to_another_port(state);
            })
            .in_this_family(),
    ]
}

const ANOTHER_PORT: u16 = 40_404;

fn from_another_port() -> Ipv4 {
    Ipv4::tcp(CLIENT, HTTP.vip, Tcp::new(ANOTHER_PORT, HTTP.port, SYN).numbers(ISN, 0))
}

/// Moves the records of the fixture's client to [`ANOTHER_PORT`].
fn moved_to_another_port(state: &mut State) {
    let client_port = ANOTHER_PORT.to_be();
    assert_ne!(client_port, CLIENT_PORT.to_be());
    let (key, value) = state.flows.pop_first().unwrap();
    state.flows.insert(abi::FlowKey { client_port, ..key }, abi::FlowRecord { client_port, ..value });
}

fn remembered() -> Vec<Case> {
    let here = |name, packet: &Ipv4, known: bool| {
        let count = if known { known_flow } else { new_flow };
        Case::ingress(name, from_client().ipv4(packet))
            .becomes(Verdict::Passed(from_client().ipv4(&to(packet, LOCAL_TOO))), &count(HTTP, Stat::Local))
    };
    vec![
        here("a client's second flow follows the first", &syn(HTTP), false)
            .given(|state| {
                sticky(state, HTTP);
                seen(state, HTTP, LOCAL_TOO, WHILE);
            })
            .then(|state| opened(state, LOCAL_TOO)),
        here("a client is remembered until its time is up", &syn(HTTP), false)
            .given(|state| {
                sticky(state, HTTP);
                seen(state, HTTP, LOCAL_TOO, LIFE - WHILE);
            })
            .then(|state| opened(state, LOCAL_TOO)),
        here("a flow's record goes before its client's", &segment(HTTP), true)
            .given(|state| {
                sticky(state, HTTP);
                seen(state, HTTP, LOCAL, WHILE);
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
                HTTP.remember(state, LOCAL_TOO, WHILE, ISN, FLOW_ISN);
            })
            .then(|state| {
                HTTP.record(state, LOCAL_TOO, 0, 0);
                HTTP.remember(state, LOCAL_TOO, 0, ISN, FLOW_ISN);
            }),
        local("without affinity nobody is remembered", &syn(HTTP), LOCAL)
            .given(|state| seen(state, HTTP, LOCAL_TOO, WHILE))
            .then(|state| {
                HTTP.record(state, LOCAL, 0, 0);
                HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            }),
    ]
}

fn at_another(state: &mut State) {
    sticky(state, HTTP);
    seen(state, HTTP, LOCAL_TOO, WHILE);
}

/// The table decides again, and that is recorded.
fn forgotten() -> Vec<Case> {
    let case =
        |name, given: fn(&mut State)| local(name, &syn(HTTP), LOCAL).given(given).then(|state| opened(state, LOCAL));
    vec![
        case("a client that was away for too long", |state| {
            sticky(state, HTTP);
            seen(state, HTTP, LOCAL_TOO, LIFE + WHILE);
        }),
        case("a client of a draining backend", |state| {
            at_another(state);
            LOCAL_TOO.of(state).flags &= !BACKEND_READY;
        }),
        case("a client of a backend that went", |state| {
            at_another(state);
            LOCAL_TOO.of(state).generation += 1;
        }),
        case("a client's element that was given to another", |state| {
            at_another(state);
            state.affinity.values_mut().for_each(|value| value.tag ^= 1);
        }),
        local("a client of the slot's Service before", &syn(HTTP), LOCAL)
            .given(|state| {
                at_another(state);
                let (key, value) = state.affinity.pop_first().unwrap();
                let key = AffinityKey { generation: key.generation - 1, ..key };
                state.affinity.insert(key, AffinityValue { tag: hash::affinity(&key), ..value });
            })
            .then(|state| opened(state, LOCAL)),
    ]
}

/// Where no record has room, a flood of clients does not evict those that are remembered.
fn limited() -> Vec<Case> {
    let unrecorded = [Counter::Stat(Stat::HandedOver), Counter::Stat(Stat::Unrecorded), Counter::Service(HTTPS.slot)];
    let case = |name| {
        Case::ingress(name, from_client().ipv4(&syn(HTTPS)))
            .becomes(Verdict::Transmitted(handed(&syn(HTTPS), PEER_MAC)), &unrecorded)
            .in_this_family()
    };
    vec![
        case("without room for its flow no client is remembered").given(|state| {
            sticky(state, HTTPS);
            records::crowd(state, HTTPS);
        }),
        case("without room for its flow a client is remembered on")
            .given(|state| {
                HTTPS.set(state, &[FAR], &[]);
                records::crowd(state, HTTPS);
                sticky(state, HTTPS);
                seen(state, HTTPS, REMOTE, WHILE);
            })
            .then(|state| seen(state, HTTPS, REMOTE, 0)),
    ]
}

fn handed_over() -> Vec<Case> {
    fn at_peer(state: &mut State) {
        SPREAD.set(state, &[FAR], &[]);
        sticky(state, SPREAD);
        seen(state, SPREAD, REMOTE, WHILE);
    }
    let from_a_peer = |backend| Verdict::Passed(from_peer().ipv4(&to(&syn(HTTP), backend)));
    let mut counted = new_flow(HTTP, Stat::Local);
    counted.push(Counter::Stat(Stat::FromPeer));
    vec![
        Case::ingress("a client's second flow is handed over as the first", from_client().ipv4(&syn(SPREAD)))
            .given(at_peer)
            .becomes(Verdict::Transmitted(handed(&syn(SPREAD), PEER_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| {
                SPREAD.record(state, REMOTE, 0, 0);
                seen(state, SPREAD, REMOTE, 0);
            }),
        Case::ingress("a client of a node that went", from_client().ipv4(&syn(SPREAD)))
            .given(|state| {
                at_peer(state);
                state.nodes[1].flags &= !NODE_ATTACHED;
            })
            .becomes(Verdict::Redirected(handed(&syn(SPREAD), FAR_MAC)), &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| {
                SPREAD.record(state, FAR, 0, 0);
                seen(state, SPREAD, FAR, 0);
            }),
        Case::ingress("the backend's node remembers the client too", from_peer().ipv4(&syn(HTTP)))
            .given(|state| {
                sticky(state, HTTP);
                seen(state, HTTP, LOCAL_TOO, WHILE);
            })
            .becomes(from_a_peer(LOCAL_TOO), &counted)
            .then(|state| opened(state, LOCAL_TOO)),
        Case::ingress("but hands no frame on", from_peer().ipv4(&syn(HTTP)))
            .given(|state| {
                sticky(state, HTTP);
                seen(state, HTTP, REMOTE, WHILE);
            })
            .becomes(from_a_peer(LOCAL), &counted)
            .then(|state| opened(state, LOCAL)),
    ]
}
