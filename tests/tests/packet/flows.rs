//! Cases of flow records: which packets keep their backend, and which choose again.

use vipmux_common::abi::{
    BACKEND_FAILING, BACKEND_GONE, BACKEND_LOCAL, BACKEND_READY, BACKEND_STOPPING, Backend, DropReason,
    FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_ISN, FLOW_REPLIES, FLOW_RESET, NODE_ATTACHED, SERVICE_GONE,
    Stat,
};
use vipmux_tests::{
    frames::{ACK, FIN, Ipv4, RST, SYN, Tcp},
    program::{NOW_LOW, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, datagram, handed, known_flow, new_flow, segment, syn, to},
    fixture::{
        CLIENT, CLIENT_PORT, DNS, DNS_UDP, Endpoint, FAR, FAR_MAC, HTTP, HTTP_TOO, HTTPS, LATE, LINGER, LOCAL,
        LOCAL_TOO, PEER_MAC, REMOTE, SPREAD, SYSLOG, Service, TCP_IDLE, UDP_IDLE, WHILE, from_client,
    },
    services::kernel,
};

pub(crate) fn cases() -> Vec<Case> {
    [kept(), vouched(), of_closing_connections(), aged(), stale(), syns(), without_replies(), renewed(), collisions()]
        .into_iter()
        .flatten()
        .collect()
}

/// URG, ECE and CWR: flags without meaning here.
const OTHERS: u8 = 0xe0;

/// Returns the client's segment with these flags.
pub(crate) fn with_flags(service: Service, flags: u8) -> Ipv4 {
    Ipv4::tcp(CLIENT, service.vip, Tcp::new(CLIENT_PORT, service.port, flags).numbers(ISN.wrapping_add(1), 77))
}

/// Sent to [`HTTP`]'s recorded backend `LOCAL_TOO`, which its table does not have.
fn stays(name: &'static str, packet: &Ipv4) -> Case {
    local(name, packet, LOCAL_TOO, true)
}

/// Sent to the backend in [`HTTP`]'s table, `LOCAL`.
fn moves(name: &'static str, packet: &Ipv4) -> Case {
    local(name, packet, LOCAL, false)
}

fn local(name: &'static str, packet: &Ipv4, backend: Endpoint, known: bool) -> Case {
    let count = if known { known_flow } else { new_flow };
    Case::ingress(name, from_client().ipv4(packet))
        .becomes(Verdict::Passed(from_client().ipv4(&to(packet, backend))), &count(HTTP, Stat::Local))
}

/// Records a connection to [`HTTP`] through `LOCAL_TOO` that was idle for a while.
fn connection(state: &mut State, flags: u32) {
    HTTP.record(state, LOCAL_TOO, WHILE, flags & !FLOW_BACKEND_FIN);
    HTTP.remember(state, LOCAL_TOO, WHILE, ISN, FLOW_ISN | flags);
}

/// The records of the same connection after a packet.
fn refreshed(state: &mut State, flags: u32) {
    HTTP.record(state, LOCAL_TOO, 0, flags & !FLOW_BACKEND_FIN);
    HTTP.remember(state, LOCAL_TOO, 0, ISN, FLOW_ISN | flags);
}

/// The records after a segment without a SYN before it.
fn picked_up(state: &mut State) {
    HTTP.record(state, LOCAL, 0, 0);
    HTTP.remember(state, LOCAL, 0, ISN.wrapping_add(1), 0);
}

/// The records after a SYN to the backend in the table.
fn opened(state: &mut State) {
    HTTP.record(state, LOCAL, 0, 0);
    HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
}

fn kept() -> Vec<Case> {
    let remote = |name, service, packet: &Ipv4| {
        Case::ingress(name, from_client().ipv4(packet))
            .becomes(Verdict::Transmitted(handed(packet, PEER_MAC)), &known_flow(service, Stat::HandedOver))
    };
    vec![
        remote("an established flow to another node", HTTPS, &segment(HTTPS))
            .given(|state| HTTPS.record_vouched(state, REMOTE, WHILE, 0))
            .then(|state| HTTPS.record_vouched(state, REMOTE, 0, 0)),
        remote("an established flow of datagrams to another node", SYSLOG, &datagram(SYSLOG))
            .given(|state| SYSLOG.record_vouched(state, REMOTE, WHILE, 0))
            .then(|state| SYSLOG.record_vouched(state, REMOTE, 0, 0)),
        remote("a flow to another node outlives its Service's tables", HTTPS, &segment(HTTPS))
            .given(|state| {
                HTTPS.record(state, REMOTE, WHILE, 0);
                HTTPS.set(state, &[], &[]);
            })
            .then(|state| HTTPS.record_vouched(state, REMOTE, 0, 0)),
        stays("an established flow to a local backend", &segment(HTTP))
            .given(|state| connection(state, 0))
            .then(|state| refreshed(state, 0)),
        stays("a draining backend keeps its flows", &segment(HTTP))
            .given(|state| {
                connection(state, 0);
                LOCAL_TOO.of(state).flags &= !BACKEND_READY;
            })
            .then(|state| refreshed(state, 0)),
        Case::ingress("a draining backend keeps its flows of datagrams", from_client().ipv4(&datagram(DNS_UDP)))
            .given(|state| {
                DNS_UDP.record(state, DNS, WHILE, 0);
                DNS_UDP.remember(state, DNS, WHILE, 0, 0);
                DNS.of(state).flags &= !BACKEND_READY;
                DNS_UDP.set(state, &[], &[]);
            })
            .becomes(
                Verdict::Passed(from_client().ipv4(&to(&datagram(DNS_UDP), DNS))),
                &known_flow(DNS_UDP, Stat::Local),
            )
            .then(|state| {
                DNS_UDP.record(state, DNS, 0, 0);
                DNS_UDP.remember(state, DNS, 0, 0, 0);
            }),
    ]
}

/// A flow of datagrams leaves its backend on another node, for the backend of the table.
fn leaves(name: &'static str, given: fn(&mut State)) -> Case {
    Case::ingress(name, from_client().ipv4(&datagram(DNS_UDP)))
        .given(given)
        .becomes(Verdict::Passed(from_client().ipv4(&to(&datagram(DNS_UDP), DNS))), &new_flow(DNS_UDP, Stat::Local))
        .then(|state| {
            DNS_UDP.record(state, DNS, 0, 0);
            DNS_UDP.remember(state, DNS, 0, 0, 0);
        })
}

/// Records a flow of datagrams to a backend with this flag instead of [`BACKEND_READY`].
fn to_unready(state: &mut State, flag: u16) {
    DNS_UDP.record(state, REMOTE, WHILE, 0);
    let backend = REMOTE.of(state);
    backend.flags = backend.flags & !BACKEND_READY | flag;
}

/// Records whose backend is, or was, valid by its node's epoch.
fn vouched() -> Vec<Case> {
    let to_peer = |name, packet: &Ipv4| {
        Case::ingress(name, from_client().ipv4(packet))
            .becomes(Verdict::Transmitted(handed(packet, PEER_MAC)), &known_flow(SPREAD, Stat::HandedOver))
    };
    let to_far = |name, packet: &Ipv4, count: fn(Service, Stat) -> Vec<Counter>| {
        Case::ingress(name, from_client().ipv4(packet))
            .becomes(Verdict::Redirected(handed(packet, FAR_MAC)), &count(SPREAD, Stat::HandedOver))
    };
    vec![
        to_peer("an epoch vouches for a backend whose entry is another's", &segment(SPREAD))
            .given(|state| {
                SPREAD.record_vouched(state, REMOTE, WHILE, 0);
                *REMOTE.of(state) = *LOCAL.of(state);
            })
            .then(|state| SPREAD.record_of(state).seen = NOW_LOW),
        to_peer("an epoch vouches for a SYN's backend too", &syn(SPREAD))
            .given(|state| {
                SPREAD.record_vouched(state, REMOTE, WHILE, 0);
                REMOTE.of(state).flags = 0;
            })
            .then(|state| SPREAD.record_vouched(state, REMOTE, 0, 0)),
        to_peer("so it does if the Service's table has no backend", &syn(SPREAD))
            .given(|state| {
                SPREAD.set(state, &[], &[]);
                SPREAD.record_vouched(state, REMOTE, WHILE, 0);
            })
            .then(|state| SPREAD.record_vouched(state, REMOTE, 0, 0)),
        to_peer("so it does if the Service is left to the kernel now", &syn(SPREAD))
            .given(|state| {
                kernel(state, SPREAD);
                SPREAD.record_vouched(state, REMOTE, WHILE, 0);
            })
            .then(|state| SPREAD.record_vouched(state, REMOTE, 0, 0)),
        to_peer("a record of an ended epoch gets the new one, if its backend is still there", &segment(SPREAD))
            .given(|state| {
                SPREAD.record_vouched(state, REMOTE, WHILE, 0);
                REMOTE.node_of(state).epoch = 300;
            })
            .then(|state| SPREAD.record_vouched(state, REMOTE, 0, 0)),
        to_peer("a record gets no epoch while backends change", &segment(SPREAD))
            .given(|state| {
                SPREAD.record(state, REMOTE, WHILE, 0);
                REMOTE.node_of(state).epoch = 0;
            })
            .then(|state| SPREAD.record(state, REMOTE, 0, 0)),
        to_peer("a draining backend's record gets no epoch", &segment(SPREAD))
            .given(|state| {
                SPREAD.record(state, REMOTE, WHILE, 0);
                REMOTE.of(state).flags = 0;
            })
            .then(|state| SPREAD.record(state, REMOTE, 0, 0)),
        to_far("a record of an ended epoch whose backend went chooses anew", &segment(SPREAD), new_flow)
            .given(|state| {
                SPREAD.set(state, &[FAR], &[]);
                SPREAD.record_vouched(state, REMOTE, WHILE, 0);
                REMOTE.node_of(state).epoch = 300;
                REMOTE.of(state).generation += 1;
            })
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        to_far("no epoch vouches for a backend while backends change", &segment(SPREAD), new_flow)
            .given(|state| {
                SPREAD.set(state, &[FAR], &[]);
                SPREAD.record(state, REMOTE, WHILE, 0);
                REMOTE.node_of(state).epoch = 0;
                REMOTE.of(state).generation += 1;
            })
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        to_far("no epoch vouches for a Service that lost its slot", &segment(SPREAD), new_flow)
            .given(|state| {
                SPREAD.set(state, &[FAR], &[]);
                SPREAD.record_vouched(state, REMOTE, WHILE, 0);
                SPREAD.record_of(state).slot_generation -= 1;
            })
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        to_far("an epoch does not vouch for another flow's element", &segment(SPREAD), new_flow)
            .given(|state| {
                SPREAD.set(state, &[FAR], &[]);
                SPREAD.record_vouched(state, REMOTE, WHILE, 0);
                SPREAD.record_of(state).check ^= 1;
            })
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
    ]
}

fn of_closing_connections() -> Vec<Case> {
    const BOTH_FINS: u32 = FLOW_CLIENT_FIN | FLOW_BACKEND_FIN;
    vec![
        stays("a segment without any flag", &with_flags(HTTP, 0))
            .given(|state| connection(state, 0))
            .then(|state| refreshed(state, 0)),
        stays("a segment with flags that are not ours", &with_flags(HTTP, OTHERS))
            .given(|state| connection(state, 0))
            .then(|state| refreshed(state, 0)),
        stays("a segment with every flag closes and opens nothing", &with_flags(HTTP, 0xff))
            .given(|state| connection(state, 0))
            .then(|state| refreshed(state, FLOW_CLIENT_FIN | FLOW_RESET)),
        stays("a client's FIN is noted", &with_flags(HTTP, FIN | ACK))
            .given(|state| connection(state, 0))
            .then(|state| refreshed(state, FLOW_CLIENT_FIN)),
        stays("a client's RST is noted", &with_flags(HTTP, RST))
            .given(|state| connection(state, 0))
            .then(|state| refreshed(state, FLOW_RESET)),
        stays("a client's next packet disproves an RST", &segment(HTTP))
            .given(|state| connection(state, FLOW_RESET))
            .then(|state| refreshed(state, 0)),
        stays("packets after the client's FIN keep the backend", &with_flags(HTTP, ACK))
            .given(|state| connection(state, FLOW_CLIENT_FIN))
            .then(|state| refreshed(state, FLOW_CLIENT_FIN)),
        stays("what comes again after both FINs has an answer that is translated", &with_flags(HTTP, FIN | ACK))
            .given(|state| HTTP.remember(state, LOCAL_TOO, LINGER + WHILE, ISN, FLOW_ISN | BOTH_FINS))
            .then(|state| HTTP.remember(state, LOCAL_TOO, 0, ISN, FLOW_ISN | BOTH_FINS)),
        stays("what comes again after an RST prolongs nothing", &with_flags(HTTP, RST))
            .given(|state| connection(state, FLOW_RESET)),
        moves("a flow that begins with an RST is closed from the start", &with_flags(HTTP, RST)).then(|state| {
            HTTP.remember(state, LOCAL, 0, ISN.wrapping_add(1), FLOW_RESET);
        }),
    ]
}

/// Another CPU handled a packet of the same flow after this one had read the clock.
pub(crate) fn seen_later(state: &mut State) {
    state.flows.values_mut().for_each(|flow| flow.seen = NOW_LOW + u32::try_from(WHILE).unwrap());
}

fn aged() -> Vec<Case> {
    let udp = |name, count: Vec<Counter>| {
        Case::ingress(name, from_client().ipv4(&datagram(SYSLOG)))
            .becomes(Verdict::Transmitted(handed(&datagram(SYSLOG), PEER_MAC)), &count)
    };
    vec![
        stays("a connection that another CPU has seen later is not idle", &segment(HTTP))
            .given(|state| {
                connection(state, 0);
                seen_later(state);
            })
            .then(|state| refreshed(state, 0)),
        stays("a quiet connection that is not idle yet", &segment(HTTP))
            .given(|state| HTTP.record(state, LOCAL_TOO, TCP_IDLE - WHILE, 0))
            .then(|state| {
                HTTP.record(state, LOCAL_TOO, 0, 0);
                HTTP.remember(state, LOCAL_TOO, 0, ISN.wrapping_add(1), 0);
            }),
        moves("an idle connection chooses anew", &segment(HTTP))
            .given(|state| HTTP.record(state, LOCAL_TOO, TCP_IDLE + WHILE, 0))
            .then(picked_up),
        udp("a quiet flow of datagrams that is not idle yet", known_flow(SYSLOG, Stat::HandedOver))
            .given(|state| SYSLOG.record(state, REMOTE, UDP_IDLE - WHILE, 0))
            .then(|state| SYSLOG.record_vouched(state, REMOTE, 0, 0)),
        udp("an idle flow of datagrams chooses anew", new_flow(SYSLOG, Stat::HandedOver))
            .given(|state| SYSLOG.record_vouched(state, FAR, UDP_IDLE + WHILE, 0))
            .then(|state| SYSLOG.record(state, REMOTE, 0, 0)),
    ]
}

/// Records with times of another clock.
fn stale() -> Vec<Case> {
    let redirected = Verdict::Redirected(handed(&segment(SPREAD), FAR_MAC));
    vec![
        moves("the backend's index was given to another", &segment(HTTP))
            .given(|state| {
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
                LOCAL_TOO.of(state).generation += 1;
            })
            .then(picked_up),
        moves("the backend went while the flow was recorded", &segment(HTTP))
            .given(|state| {
                *LOCAL_TOO.of(state) = Backend::default();
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
            })
            .then(picked_up),
        moves("the backend is gone, and only its replies are translated", &segment(HTTP))
            .given(|state| {
                HTTP.remember(state, LOCAL_TOO, WHILE, ISN, FLOW_ISN);
                LOCAL_TOO.of(state).flags = BACKEND_LOCAL | BACKEND_GONE;
            })
            .then(picked_up),
        moves("the backend's index is beyond all", &segment(HTTP))
            .given(|state| {
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
                state.flows.values_mut().for_each(|flow| flow.backend = 99);
            })
            .then(picked_up),
        moves("the port was given to another Service", &segment(HTTP))
            .given(|state| {
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
                state.flows.values_mut().for_each(|flow| flow.slot_generation -= 1);
            })
            .then(picked_up),
        moves("the slot was given to another Service", &segment(HTTP))
            .given(|state| {
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
                state.flows.values_mut().for_each(|flow| flow.slot = HTTPS.slot);
            })
            .then(picked_up),
        Case::ingress("the Service went", from_client().ipv4(&segment(HTTP)))
            .given(|state| {
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
                state.services.remove(&HTTP.key());
                state.service_states[HTTP.slot as usize].generation = 0;
            })
            .dropped(DropReason::NoService),
        Case::ingress("the Service went, and only its replies are translated", from_client().ipv4(&segment(HTTP)))
            .given(|state| {
                HTTP.remember(state, LOCAL_TOO, WHILE, ISN, FLOW_ISN);
                state.services.remove(&HTTP.key());
                state.service_states[HTTP.slot as usize].flags = SERVICE_GONE;
            })
            .dropped(DropReason::NoService),
        moves("the record is torn", &segment(HTTP))
            .given(|state| {
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
                state.flows.values_mut().for_each(|flow| flow.check ^= 1);
            })
            .then(picked_up),
        Case::ingress("a flow to a node that went chooses anew", from_client().ipv4(&segment(SPREAD)))
            .given(|state| {
                SPREAD.record(state, REMOTE, WHILE, 0);
                state.nodes[1].flags &= !NODE_ATTACHED;
            })
            .becomes(redirected, &new_flow(SPREAD, Stat::HandedOver))
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
    ]
}

fn syns() -> Vec<Case> {
    let syn_ack = with_flags(HTTP, SYN | ACK);
    let to_spread = |name, backend: Endpoint| {
        let (count, sent): (fn(Service, Stat) -> Vec<Counter>, _) = if backend.index == REMOTE.index {
            (known_flow, Verdict::Transmitted(handed(&syn(SPREAD), PEER_MAC)))
        } else {
            (new_flow, Verdict::Redirected(handed(&syn(SPREAD), FAR_MAC)))
        };
        Case::ingress(name, from_client().ipv4(&syn(SPREAD))).becomes(sent, &count(SPREAD, Stat::HandedOver))
    };
    // As a client requests ECN (RFC 3168, 6.1.1).
    let with_ecn = Ipv4::tcp(CLIENT, HTTP.vip, Tcp::new(CLIENT_PORT, HTTP.port, SYN | OTHERS).numbers(ISN, 0));
    vec![
        moves("a SYN with other flags is a SYN", &with_ecn)
            .given(|state| HTTP.record(state, LOCAL_TOO, LINGER + WHILE, FLOW_CLIENT_FIN))
            .then(opened),
        stays("a SYN does not move a live connection", &syn(HTTP))
            .given(|state| connection(state, 0))
            .then(|state| refreshed(state, 0)),
        stays("a SYN after the client's FIN may be forged, and moves nothing", &syn(HTTP))
            .given(|state| connection(state, FLOW_CLIENT_FIN))
            .then(|state| refreshed(state, FLOW_CLIENT_FIN)),
        stays("nor does one after an RST", &syn(HTTP))
            .given(|state| connection(state, FLOW_RESET))
            .then(|state| refreshed(state, 0)),
        to_spread("a SYN after the FIN of a flow to another node moves nothing", REMOTE)
            .given(|state| SPREAD.record_vouched(state, REMOTE, WHILE, FLOW_CLIENT_FIN))
            .then(|state| SPREAD.record_vouched(state, REMOTE, 0, 0)),
        to_spread("nor does one after an RST of such a flow", REMOTE)
            .given(|state| SPREAD.record_vouched(state, REMOTE, WHILE, FLOW_RESET))
            .then(|state| SPREAD.record_vouched(state, REMOTE, 0, 0)),
        to_spread("long after the FIN of a flow to another node a SYN chooses anew", FAR)
            .given(|state| {
                SPREAD.set(state, &[FAR], &[]);
                SPREAD.record_vouched(state, REMOTE, LINGER + WHILE, FLOW_CLIENT_FIN);
            })
            .then(|state| SPREAD.record(state, FAR, 0, 0)),
        moves("a SYN after both FINs chooses anew", &syn(HTTP))
            .given(|state| connection(state, FLOW_CLIENT_FIN | FLOW_BACKEND_FIN))
            .then(opened),
        moves("a SYN long after the client's FIN chooses anew", &syn(HTTP))
            .given(|state| HTTP.record(state, LOCAL_TOO, LINGER + WHILE, FLOW_CLIENT_FIN))
            .then(opened),
        moves("a SYN long after an RST chooses anew", &syn(HTTP))
            .given(|state| HTTP.record(state, LOCAL_TOO, LINGER + WHILE, FLOW_RESET))
            .then(opened),
        moves("a SYN after an RST does not go to a draining backend", &syn(HTTP))
            .given(|state| {
                connection(state, FLOW_RESET);
                LOCAL_TOO.of(state).flags &= !BACKEND_READY;
            })
            .then(opened),
        moves("a SYN after an idle time chooses anew", &syn(HTTP))
            .given(|state| HTTP.record(state, LOCAL_TOO, TCP_IDLE + WHILE, 0))
            .then(opened),
        moves("a SYN does not go to a draining backend", &syn(HTTP))
            .given(|state| {
                HTTP.record(state, LOCAL_TOO, WHILE, 0);
                LOCAL_TOO.of(state).flags &= !BACKEND_READY;
            })
            .then(opened),
        leaves("a datagram does not go to a backend that is not ready", |state| to_unready(state, BACKEND_STOPPING)),
        leaves("nor to one that fails its health probe", |state| to_unready(state, BACKEND_FAILING)),
        stays("but a segment does", &segment(HTTP))
            .given(|state| {
                connection(state, 0);
                let backend = LOCAL_TOO.of(state);
                backend.flags = backend.flags & !BACKEND_READY | BACKEND_STOPPING;
            })
            .then(|state| refreshed(state, 0)),
        stays("a SYN with an ACK opens nothing", &syn_ack)
            .given(|state| connection(state, FLOW_CLIENT_FIN))
            .then(|state| refreshed(state, FLOW_CLIENT_FIN)),
    ]
}

/// Records that do not translate replies.
fn without_replies() -> Vec<Case> {
    vec![
        stays("a record without replies translates them from now on", &segment(HTTP))
            .given(|state| HTTP.record(state, LOCAL_TOO, WHILE, 0))
            .then(|state| HTTP.remember(state, LOCAL_TOO, 0, ISN.wrapping_add(1), 0)),
        stays("what was under way when its client turned to the backend itself changes nothing", &segment(HTTP))
            .given(|state| HTTP.remember(state, LOCAL_TOO, LATE - WHILE, ISN, FLOW_DIRECT | FLOW_RESET)),
        stays("what comes later than that does", &segment(HTTP))
            .given(|state| HTTP.remember(state, LOCAL_TOO, LATE + WHILE, ISN, FLOW_DIRECT | FLOW_RESET))
            .then(|state| HTTP.remember(state, LOCAL_TOO, 0, ISN.wrapping_add(1), 0)),
    ]
}

/// A SYN begins a connection anew, with its own sequence number.
fn renewed() -> Vec<Case> {
    fn renews(flags: u32) -> fn(&mut State) {
        match flags {
            FLOW_RESET => |state| HTTP.remember(state, LOCAL, LINGER + WHILE, 1, FLOW_ISN | FLOW_RESET),
            FLOW_ISN => |state| HTTP.remember(state, LOCAL, TCP_IDLE + WHILE, 1, FLOW_ISN),
            FLOW_DIRECT => |state| HTTP.remember(state, LOCAL, LINGER + WHILE, 1, FLOW_DIRECT | FLOW_RESET),
            _ => |state| {
                HTTP.remember(state, LOCAL, 0, 1, FLOW_ISN | FLOW_CLIENT_FIN | FLOW_BACKEND_FIN);
            },
        }
    }
    let open = [
        stays("a SYN renews a record without a sequence number", &syn(HTTP))
            .given(|state| HTTP.remember(state, LOCAL_TOO, WHILE, 1, 0)),
        stays("a SYN renews a record with another sequence number", &syn(HTTP))
            .given(|state| HTTP.remember(state, LOCAL_TOO, WHILE, 1, FLOW_ISN)),
        stays("a SYN renews a record that was reset, with the same sequence number", &syn(HTTP))
            .given(|state| HTTP.remember(state, LOCAL_TOO, WHILE, ISN, FLOW_ISN | FLOW_RESET)),
        stays("a SYN renews a record whose client had turned to the backend itself", &syn(HTTP))
            .given(|state| HTTP.remember(state, LOCAL_TOO, WHILE, ISN, FLOW_DIRECT | FLOW_RESET)),
    ];
    let over = [
        ("a SYN renews a closed record at once", FLOW_CLIENT_FIN),
        ("a SYN renews a reset record", FLOW_RESET),
        ("a SYN renews an idle record", FLOW_ISN),
        ("a SYN renews the record of a client that had turned to the backend itself", FLOW_DIRECT),
    ];
    let over = over.into_iter().map(|(name, flags)| moves(name, &syn(HTTP)).given(renews(flags)).then(opened));
    open.into_iter().map(|case| case.then(|state| refreshed(state, 0))).chain(over).collect()
}

/// Two flows of one client, to two ports of the VIP, end at one port of one backend.
fn collisions() -> Vec<Case> {
    let frame = || from_client().ipv4(&syn(HTTP_TOO));
    let refused = |name| {
        Case::ingress(name, frame())
            .becomes(Verdict::Dropped(DropReason::TupleCollision), &[Counter::Service(HTTP_TOO.slot)])
    };
    let wins = |name| {
        Case::ingress(name, frame())
            .becomes(Verdict::Passed(from_client().ipv4(&to(&syn(HTTP_TOO), LOCAL))), &new_flow(HTTP_TOO, Stat::Local))
            .then(|state| {
                HTTP.record_of(state).flags &= !u8::try_from(FLOW_REPLIES).unwrap();
                HTTP_TOO.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            })
    };
    vec![
        Case::ingress("a flow goes to another backend than one with such a flow", frame())
            .given(|state| {
                HTTP.remember(state, LOCAL, WHILE, 1, FLOW_ISN);
                HTTP_TOO.set(state, &[LOCAL, LOCAL_TOO], &[LOCAL, LOCAL_TOO]);
            })
            .becomes(
                Verdict::Passed(from_client().ipv4(&to(&syn(HTTP_TOO), LOCAL_TOO))),
                &new_flow(HTTP_TOO, Stat::Local),
            )
            .then(|state| HTTP_TOO.remember(state, LOCAL_TOO, 0, ISN, FLOW_ISN)),
        refused("a flow does not take over another live one's replies")
            .given(|state| HTTP.remember(state, LOCAL, WHILE, 1, FLOW_ISN)),
        refused("a flow does not take over a half-closed one's replies")
            .given(|state| HTTP.remember(state, LOCAL, WHILE, 1, FLOW_ISN | FLOW_CLIENT_FIN)),
        wins("a flow takes over a closed one's replies")
            .given(|state| HTTP.remember(state, LOCAL, 0, 1, FLOW_ISN | FLOW_CLIENT_FIN | FLOW_BACKEND_FIN)),
        wins("a flow takes over a reset one's replies")
            .given(|state| HTTP.remember(state, LOCAL, 0, 1, FLOW_ISN | FLOW_RESET)),
        wins("a flow takes over from a direct connection")
            .given(|state| HTTP.remember(state, LOCAL, 0, 1, FLOW_DIRECT | FLOW_RESET)),
        wins("a flow takes over an idle one's replies")
            .given(|state| HTTP.remember(state, LOCAL, TCP_IDLE + WHILE, 1, FLOW_ISN)),
    ]
}
