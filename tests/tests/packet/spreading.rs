//! Tests where new flows go if nodes of their backends cannot be reached.

use std::{collections::BTreeMap, net::IpAddr};

use vipmux_common::{
    abi::{FlowKey, NODE_ATTACHED, SERVICE_HASHES_VIP},
    hash,
};
use vipmux_tests::{
    frames::{Ipv4, SYN, Tcp},
    program::{Hook, State},
};

use crate::{
    family,
    fixture::{
        self, CLIENT, Endpoint, FAR, FAR_MAC, LOCAL, PEER_MAC, REMOTE, SELF_MAC, SPREAD, UNREACHABLE, from_client,
    },
    pool,
};

/// New flows of a test.
const FLOWS: u16 = 3_000;
/// Room for all of them.
const RECORDS: u32 = 65_536;
const DROP: u32 = 1;

/// Sets the table of [`SPREAD`] to these backends in turn.
fn set_table(state: &mut State, backends: &[Endpoint]) {
    let first = state.tables.len();
    state.tables.extend(backends.iter().cycle().take(1_000).map(|endpoint| endpoint.index));
    let service = state.services.get_mut(&SPREAD.key()).unwrap();
    (service.table, service.table_length) = (u32::try_from(first).unwrap(), 1_000);
}

/// Returns how many new flows went to each node, by MAC; `None`: were dropped. In both families.
fn destinations(state: &State) -> [BTreeMap<Option<[u8; 6]>, u32>; 2] {
    [(state.clone(), false), (family::state(state.clone()), true)].map(|(state, is_ipv6)| {
        let program = pool::load(&state, RECORDS).unwrap();
        let mut counts = BTreeMap::new();
        for port in 1_024..1_024 + FLOWS {
            let frame = from_client().ipv4(&Ipv4::tcp(CLIENT, SPREAD.vip, Tcp::new(port, SPREAD.port, SYN)));
            let frame = if is_ipv6 { family::frame(&frame).unwrap() } else { frame };
            let outcome = program.run(Hook::Ingress, &frame).unwrap();
            let mac = (outcome.verdict != DROP).then(|| outcome.frame[..6].try_into().unwrap());
            *counts.entry(mac).or_default() += 1;
        }
        counts
    })
}

pub(crate) fn over_all_reachable_nodes() {
    let mut state = fixture::state();
    SPREAD.set(&mut state, &[], &[LOCAL]);
    set_table(&mut state, &[LOCAL, REMOTE, FAR]);
    state.nodes[1].flags &= !NODE_ATTACHED;
    for counts in destinations(&state) {
        let [here, far] = [SELF_MAC, FAR_MAC].map(|mac| counts.get(&Some(mac)).copied().unwrap_or_default());
        assert_eq!(here + far, u32::from(FLOWS), "{counts:?}");
        assert!(here.abs_diff(far) < u32::from(FLOWS) / 10, "this node {here}, the other {far}");
        assert!(!counts.contains_key(&Some(PEER_MAC)));
    }
}

pub(crate) fn where_one_backend_of_ten_is_reachable() {
    let mut state = fixture::state();
    SPREAD.set(&mut state, &[], &[]);
    set_table(&mut state, &[&[FAR][..], &[UNREACHABLE; 9]].concat());
    for counts in destinations(&state) {
        assert_eq!(counts, BTreeMap::from([(Some(FAR_MAC), u32::from(FLOWS))]));
    }
}

pub(crate) fn by_the_vips_address_where_the_service_says_so() {
    for flags in [0, SERVICE_HASHES_VIP] {
        let mut state = fixture::state();
        SPREAD.set(&mut state, &[REMOTE, FAR], &[]);
        state.services.get_mut(&SPREAD.key()).unwrap().flags = flags;
        for (state, is_ipv6) in [(state.clone(), false), (family::state(state.clone()), true)] {
            let (service, program) = (state.services[&SPREAD.key()], pool::load(&state, RECORDS).unwrap());
            let salt = hash::salt(&service, &state.service_states[SPREAD.slot as usize].vip);
            assert_eq!(salt != 0, flags != 0);
            for port in 1_024..1_124u16 {
                let frame = from_client().ipv4(&Ipv4::tcp(CLIENT, SPREAD.vip, Tcp::new(port, SPREAD.port, SYN)));
                let frame = if is_ipv6 { family::frame(&frame).unwrap() } else { frame };
                let outcome = program.run(Hook::Ingress, &frame).unwrap();
                let client = if is_ipv6 { IpAddr::from(family::v6(CLIENT)).into() } else { fixture::address(CLIENT) };
                let key = FlowKey { client, client_port: port.to_be(), ..SPREAD.flow() };
                let mac = [PEER_MAC, FAR_MAC][hash::slot(hash::flow(&key, salt), 2) as usize];
                assert_eq!(outcome.frame[..6], mac, "port {port}, flags {flags}, IPv6 {is_ipv6}");
            }
        }
    }
}
