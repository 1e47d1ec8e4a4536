//! Cases of Services' configuration: source ranges, idle timeouts, all ports, forwarding by the
//! kernel, direct server return.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vipmux_common::{
    abi::{
        Address, DropReason, FLOW_ISN, FRAGMENT_KERNEL, FragmentKey, FragmentValue, Range, SERVICE_DIRECT,
        SERVICE_KERNEL, Stat, UNCLAIMED_PASS, VIP_ALL_PORTS,
    },
    hash,
    service_index::IndexedService,
};
use vipmux_tests::{
    frames::{ACK, Ethernet, Ipv4, PSH, Payload, Tcp, Udp},
    program::{NOW, State},
};

use crate::{
    case::{Case, Counter, Verdict},
    demux::{ISN, datagram, handed, known_flow, new_flow, segment, syn, to},
    fixture::{
        CLIENT, CLIENT_MAC, CLIENT_PORT, DNS, DNS_UDP, Endpoint, FOLLOWED, HTTP, HTTP_TOO, HTTPS, LOCAL, LOCAL_TOO,
        PEER_MAC, PHONE, REMOTE, SELF_MAC, SIGNAL, SYSLOG, Service, TCP, UDP, UDP_IDLE, VIP, WHILE, address,
        from_client, from_peer, vip_of,
    },
    reject::sealed,
    replies,
};

pub(crate) fn cases() -> Vec<Case> {
    [ranges(), other_family(), idle(), every_port(), left_to_the_kernel(), direct(), indexed()]
        .into_iter()
        .flatten()
        .collect()
}

pub(crate) fn local(name: &'static str, service: Service, packet: &Ipv4, backend: Endpoint, known: bool) -> Case {
    let count = if known { known_flow } else { new_flow };
    Case::ingress(name, from_client().ipv4(packet))
        .becomes(Verdict::Passed(from_client().ipv4(&to(packet, backend))), &count(service, Stat::Local))
}

fn state_of(state: &mut State, service: Service) -> &mut vipmux_common::abi::ServiceState {
    &mut state.service_states[service.slot as usize]
}

fn opened(state: &mut State) {
    HTTP.record(state, LOCAL, 0, 0);
    HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
}

fn connection(state: &mut State) {
    HTTP.record(state, LOCAL, WHILE, 0);
    HTTP.remember(state, LOCAL, WHILE, ISN, FLOW_ISN);
}

/// What `SERVICE_INDEX` has where [`HTTP`] may have its copy.
fn indexed() -> Vec<Case> {
    fn put(state: &mut State, change: fn(&mut IndexedService)) {
        let mut copy = IndexedService::new(HTTP.key(), &state.services[&HTTP.key()]).unwrap();
        change(&mut copy);
        state.service_index.insert(HTTP.key().index(), copy);
    }
    let case = |name, given: fn(&mut State)| local(name, HTTP, &syn(HTTP), LOCAL, false).given(given).then(opened);
    vec![
        case("a Service whose element has the copy of another one", |state| {
            let other = IndexedService::new(HTTPS.key(), &state.services[&HTTPS.key()]).unwrap();
            state.service_index.insert(HTTP.key().index(), other);
        }),
        case("a Service whose copy is written at this moment", |state| put(state, |copy| copy.0[1] = 0)),
        case("a Service whose copy's check is written at this moment", |state| {
            let other = IndexedService::new(HTTP.key(), &state.services[&HTTPS.key()]).unwrap();
            let [first, second, third, check] = other.0;
            state.service_index.insert(HTTP.key().index(), IndexedService([first, second, third, check + 1]));
        }),
        case("a copy is enough", |state| {
            put(state, |_| {});
            state.services.remove(&HTTP.key());
        }),
    ]
}

/// A set of source ranges.
const SET: u32 = 70;

/// Adds a prefix of so many bits of a 16-byte address to a set.
fn allow(state: &mut State, set: u32, address: IpAddr, bits: u32) {
    let Address { w0, w1, w2, w3 } = address.into();
    state.source_ranges.insert((32 + bits, Range { set, w0, w1, w2, w3 }));
}

/// Admits only clients with this address prefix to [`HTTP`].
fn only(state: &mut State, prefix: [u8; 4], bits: u32) {
    state_of(state, HTTP).ranges = SET;
    allow(state, SET, Ipv4Addr::from(prefix).into(), 96 + bits);
}

fn ranges() -> Vec<Case> {
    let dropped = |name, packet: &Ipv4, given: fn(&mut State)| {
        Case::ingress(name, from_client().ipv4(packet)).given(given).dropped(DropReason::SourceRange)
    };
    let allowed = |name, given: fn(&mut State)| local(name, HTTP, &syn(HTTP), LOCAL, false).given(given).then(opened);
    let elsewhere: fn(&mut State) = |state| only(state, [203, 0, 113, 0], 24);
    vec![
        allowed("a client in a source range", |state| only(state, [198, 51, 100, 0], 24)),
        allowed("a client that is a source range", |state| only(state, [198, 51, 100, 7], 32)),
        allowed("a client in one of several source ranges", |state| {
            only(state, [203, 0, 113, 0], 24);
            only(state, [198, 0, 0, 0], 8);
        }),
        allowed("a source range of all", |state| only(state, [0; 4], 0)),
        dropped("a client in no source range", &syn(HTTP), elsewhere),
        dropped("a client beside a source range", &syn(HTTP), |state| only(state, [198, 51, 100, 8], 32)),
        dropped("no client is in an empty set", &syn(HTTP), |state| state_of(state, HTTP).ranges = SET),
        dropped("another set's prefixes do not count", &syn(HTTP), |state| {
            state_of(state, HTTP).ranges = SET;
            allow(state, SET + 1, Ipv4Addr::from([198, 51, 100, 0]).into(), 96 + 24);
        }),
        dropped("an established flow is held to the source ranges", &segment(HTTP), |state| {
            connection(state);
            only(state, [203, 0, 113, 0], 24);
        })
        .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        dropped("so is one to another node", &segment(HTTPS), |state| {
            HTTPS.record_vouched(state, REMOTE, WHILE, 0);
            state_of(state, HTTPS).ranges = SET;
        })
        .then(|state| HTTPS.record_vouched(state, REMOTE, 0, 0)),
        dropped("and a first fragment of a known flow", &segment(HTTP).fragment(0x2000), |state| {
            connection(state);
            only(state, [203, 0, 113, 0], 24);
        })
        .then(|state| HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN)),
        Case::ingress("what a peer hands over is held to them too", from_peer().ipv4(&syn(HTTP)))
            .given(elsewhere)
            .becomes(Verdict::Dropped(DropReason::SourceRange), &[Counter::Stat(Stat::FromPeer)]),
        dropped("what is left to the kernel is held to them too", &syn(HTTP), |state| {
            only(state, [203, 0, 113, 0], 24);
            kernel(state, HTTP);
        }),
        local("another Service of the VIP is not held to them", HTTP_TOO, &syn(HTTP_TOO), LOCAL, false)
            .given(elsewhere)
            .then(|state| {
                HTTP_TOO.record(state, LOCAL, 0, 0);
                HTTP_TOO.remember(state, LOCAL, 0, ISN, FLOW_ISN);
            }),
    ]
}

/// A prefix of one family admits no client of the other.
fn other_family() -> Vec<Case> {
    let case = || Case::ingress("a source range of the other family", from_client().ipv4(&syn(HTTP)));
    let ipv6: fn(&mut State) = |state| {
        state_of(state, HTTP).ranges = SET;
        allow(state, SET, Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0).into(), 3);
    };
    // Excluded from the other family: it is more than a prefix of whole bytes.
    let ipv4: fn(&mut State) = |state| {
        state_of(state, HTTP).ranges = SET;
        let mapped = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().segments();
        assert_eq!(mapped[5], 0xffff);
        state.source_ranges.insert((32 + 96, Range { set: SET, w2: Address::MAPPED, ..Range::default() }));
    };
    vec![
        case().given(ipv6).dropped(DropReason::SourceRange).in_this_family(),
        local("a source range of all of its family", HTTP, &syn(HTTP), LOCAL, false)
            .given(ipv4)
            .then(opened)
            .in_this_family(),
    ]
}

/// A Service's own idle timeout, shorter and longer than the default.
const SHORT: u64 = 40_000;
const LONG: u64 = 300_000;

fn idle() -> Vec<Case> {
    fn set(state: &mut State, service: Service, idle: u64) {
        state_of(state, service).idle = u32::try_from(idle).unwrap();
    }
    let out = Ethernet::new(SELF_MAC, CLIENT_MAC);
    let reply = replies::segment(LOCAL, ACK | PSH, 77);
    let asked = |name, known| {
        let count = if known { known_flow } else { new_flow };
        Case::ingress(name, from_client().ipv4(&datagram(SYSLOG)))
            .becomes(Verdict::Transmitted(handed(&datagram(SYSLOG), PEER_MAC)), &count(SYSLOG, Stat::HandedOver))
    };
    vec![
        local("a flow that is idle by its Service's time chooses anew", HTTP, &segment(HTTP), LOCAL, false)
            .given(|state| {
                HTTP.record(state, LOCAL_TOO, SHORT + WHILE, 0);
                set(state, HTTP, SHORT);
            })
            .then(|state| {
                HTTP.record(state, LOCAL, 0, 0);
                HTTP.remember(state, LOCAL, 0, ISN.wrapping_add(1), 0);
                set(state, HTTP, SHORT);
            }),
        local("a flow that is not idle yet by its Service's time", HTTP, &segment(HTTP), LOCAL, true)
            .given(|state| {
                HTTP.record(state, LOCAL, SHORT - WHILE, 0);
                HTTP.remember(state, LOCAL, SHORT - WHILE, ISN, FLOW_ISN);
                set(state, HTTP, SHORT);
            })
            .then(|state| {
                opened(state);
                set(state, HTTP, SHORT);
            }),
        local("a changed idle time reaches the record of replies", HTTP, &segment(HTTP), LOCAL, true)
            .given(|state| {
                connection(state);
                state_of(state, HTTP).idle = u32::try_from(SHORT).unwrap();
            })
            .then(|state| {
                opened(state);
                set(state, HTTP, SHORT);
            }),
        asked("datagrams are not idle where their Service has patience", true)
            .given(|state| {
                SYSLOG.record(state, REMOTE, UDP_IDLE + WHILE, 0);
                set(state, SYSLOG, LONG);
            })
            .then(|state| SYSLOG.record_vouched(state, REMOTE, 0, 0)),
        asked("datagrams are idle at last", false)
            .given(|state| {
                SYSLOG.record(state, REMOTE, LONG + WHILE, 0);
                set(state, SYSLOG, LONG);
            })
            .then(|state| SYSLOG.record(state, REMOTE, 0, 0)),
        Case::egress("a reply after its Service's idle time is not translated", out.ipv4(&reply)).given(|state| {
            HTTP.remember(state, LOCAL, SHORT + WHILE, ISN, FLOW_ISN);
            set(state, HTTP, SHORT);
        }),
        Case::egress("a reply before it is", out.ipv4(&reply))
            .given(|state| {
                HTTP.remember(state, LOCAL, SHORT - WHILE, ISN, FLOW_ISN);
                set(state, HTTP, SHORT);
            })
            .becomes(Verdict::Passed(out.ipv4(&replies::from(HTTP, &reply))), &[Counter::Stat(Stat::Replies)])
            .then(|state| {
                HTTP.remember(state, LOCAL, 0, ISN, FLOW_ISN);
                set(state, HTTP, SHORT);
            }),
    ]
}

/// A port of a Service that has all ports.
const ANY: Service = Service { vip: VIP, port: 7_777, protocol: TCP, slot: 16 };
/// Its backend, which takes the ports unchanged.
const OPEN: Endpoint = Endpoint { port: 7_777, ..LOCAL_TOO };

fn all_ports(state: &mut State) {
    Service { port: 0, ..ANY }.set(state, &[OPEN], &[OPEN]);
    OPEN.of(state).port = 0;
    vip_of(state, VIP).flags |= VIP_ALL_PORTS;
}

fn every_port() -> Vec<Case> {
    let sctp: Service = Service { protocol: 132, ..PHONE };
    let of_udp = Service { protocol: UDP, ..ANY };
    let on_another = Service { vip: FOLLOWED, ..ANY };
    let out = Ethernet::new(SELF_MAC, CLIENT_MAC);
    let reply = replies::segment(OPEN, ACK | PSH, 77);
    let init = Ipv4::new(
        CLIENT,
        VIP,
        Payload::Other(132, [&CLIENT_PORT.to_be_bytes()[..], &sctp.port.to_be_bytes(), &[0; 24]].concat()),
    );
    let error = |packet: Ipv4, destination| {
        let message = [&[3, 4, 0, 0, 0, 0, 5, 0x14][..], &packet.bytes()[..28]].concat();
        from_client().ipv4(&Ipv4::new([203, 0, 113, 1].into(), destination, sealed(message)))
    };
    let answer = |source, port| Ipv4::tcp(source, CLIENT, Tcp::new(port, CLIENT_PORT, ACK));
    let embedded = {
        let mut before = answer(VIP, ANY.port).bytes();
        let after = answer(OPEN.address, OPEN.port).bytes();
        before[..20].copy_from_slice(&after[..20]);
        before
    };
    let translated = [&[3, 4, 0, 0, 0, 0, 5, 0x14][..], &embedded[..28]].concat();
    vec![
        local("a port that no claim names goes to the Service of every port", ANY, &syn(ANY), OPEN, false)
            .given(all_ports)
            .then(|state| {
                ANY.record(state, OPEN, 0, 0);
                ANY.remember(state, OPEN, 0, ISN, FLOW_ISN);
            }),
        local("a flow to it goes on", ANY, &segment(ANY), OPEN, true)
            .given(|state| {
                all_ports(state);
                ANY.record(state, OPEN, WHILE, 0);
                ANY.remember(state, OPEN, WHILE, ISN, FLOW_ISN);
            })
            .then(|state| {
                ANY.record(state, OPEN, 0, 0);
                ANY.remember(state, OPEN, 0, ISN, FLOW_ISN);
            }),
        local("a claim that names the port goes first", HTTP, &syn(HTTP), LOCAL, false).given(all_ports).then(opened),
        Case::ingress("every port is of one protocol", from_client().ipv4(&datagram(of_udp)))
            .given(all_ports)
            .dropped(DropReason::NoService),
        Case::ingress("every port is of one VIP", from_client().ipv4(&syn(on_another)))
            .given(|state| {
                all_ports(state);
                vip_of(state, FOLLOWED).flags |= VIP_ALL_PORTS;
            })
            .dropped(DropReason::NoService),
        Case::ingress("without the VIP's flag port 0 is but a port", from_client().ipv4(&syn(ANY)))
            .given(|state| {
                all_ports(state);
                vip_of(state, VIP).flags &= !VIP_ALL_PORTS;
            })
            .dropped(DropReason::NoService),
        Case::egress("a reply keeps the port that was asked for", out.ipv4(&reply))
            .given(|state| {
                all_ports(state);
                ANY.remember(state, OPEN, WHILE, ISN, FLOW_ISN);
            })
            .becomes(Verdict::Passed(out.ipv4(&replies::from(ANY, &reply))), &[Counter::Stat(Stat::Replies)])
            .then(|state| ANY.remember(state, OPEN, 0, ISN, FLOW_ISN)),
        Case::ingress("an error about its reply keeps the port", error(answer(VIP, ANY.port), VIP))
            .given(all_ports)
            .becomes(
                Verdict::Passed(from_client().ipv4(&Ipv4::new(
                    [203, 0, 113, 1].into(),
                    OPEN.address,
                    sealed(translated),
                ))),
                &[Counter::Stat(Stat::Local)],
            ),
        Case::ingress("an SCTP claim goes first too", from_client().ipv4(&init))
            .given(|state| {
                all_ports(state);
                Service { port: 0, protocol: 132, ..ANY }.set(state, &[OPEN], &[OPEN]);
            })
            .becomes(
                Verdict::Passed(from_client().ipv4(&Ipv4 { destination: SIGNAL.address, ..init.clone() })),
                &new_flow(PHONE, Stat::Local),
            )
            .then(|state| {
                PHONE.record(state, SIGNAL, 0, 0);
                PHONE.remember(state, SIGNAL, 0, 0, 0);
            }),
    ]
}

pub(crate) fn kernel(state: &mut State, service: Service) {
    state.services.get_mut(&service.key()).unwrap().flags = SERVICE_KERNEL;
}

/// Records the client's first fragment to [`DNS_UDP`].
fn fragment(state: &mut State, age: u64, value: FragmentValue) {
    let packet = datagram(DNS_UDP);
    let (source, destination) = (address(packet.source), address(packet.destination));
    let key = FragmentKey { source, destination, id: u32::from(packet.identification.to_be()), protocol: UDP };
    state.fragments.insert(key, FragmentValue { tag: hash::fragment(&key), seen: NOW - age, ..value });
}

/// Returns the fragments of the client's datagram to [`DNS_UDP`].
fn cut() -> [Ipv4; 2] {
    let contents = &datagram(DNS_UDP).bytes()[20..];
    let part =
        |bytes: &[u8], word| Ipv4 { payload: Payload::Other(17, bytes.to_vec()), ..datagram(DNS_UDP) }.fragment(word);
    [part(&contents[..8], 0x2000), part(&contents[8..], 1)]
}

/// Returns an error about a reply of [`DNS_UDP`].
fn error() -> Ipv4 {
    let answer = Ipv4::udp(VIP, CLIENT, Udp::new(DNS_UDP.port, CLIENT_PORT, b"answer")).bytes();
    Ipv4::new([203, 0, 113, 1].into(), VIP, sealed([&[3, 3, 0, 0, 0, 0, 0, 0][..], &answer[..28]].concat()))
}

/// The record of a first fragment that was left to the kernel.
const TO_KERNEL: FragmentValue =
    FragmentValue { backend: FRAGMENT_KERNEL, tag: 0, backend_generation: 0, slot: 0, direct: 0, reserved: 0, seen: 0 };

fn left_to_the_kernel() -> Vec<Case> {
    let [first, later] = cut();
    let case = |name, frame| {
        Case::ingress(name, frame)
            .given(|state| kernel(state, DNS_UDP))
            .becomes(Verdict::Untouched, &[Counter::Stat(Stat::Kernel)])
    };
    vec![
        case("a datagram that is left to the kernel", from_client().ipv4(&datagram(DNS_UDP))),
        case("its first fragment is left to the kernel and recorded", from_client().ipv4(&first))
            .then(|state| fragment(state, 0, TO_KERNEL)),
        case("later fragments are left to the kernel", from_client().ipv4(&later)).given(|state| {
            kernel(state, DNS_UDP);
            fragment(state, WHILE, TO_KERNEL);
        }),
        Case::ingress("a first fragment that no Service takes passes and is recorded", from_client().ipv4(&first))
            .given(|state| {
                state.services.remove(&DNS_UDP.key());
                state.config.unclaimed = UNCLAIMED_PASS;
            })
            .then(|state| fragment(state, 0, TO_KERNEL)),
        case("errors about its answers are left to the kernel", from_client().ipv4(&error())),
        Case::ingress("what a peer hands over is left to the kernel", from_peer().ipv4(&datagram(DNS_UDP)))
            .given(|state| kernel(state, DNS_UDP))
            .becomes(Verdict::Untouched, &[Counter::Stat(Stat::Kernel), Counter::Stat(Stat::FromPeer)]),
        local("a flow that was balanced before goes on", DNS_UDP, &datagram(DNS_UDP), DNS, true)
            .given(|state| {
                kernel(state, DNS_UDP);
                DNS_UDP.record(state, DNS, WHILE, 0);
                DNS_UDP.remember(state, DNS, WHILE, 0, 0);
            })
            .then(|state| {
                DNS_UDP.record(state, DNS, 0, 0);
                DNS_UDP.remember(state, DNS, 0, 0, 0);
            }),
    ]
}

/// Records that the first fragment took direct server return.
fn direct_before(state: &mut State, age: u64) {
    let value = FragmentValue {
        backend: DNS.index,
        backend_generation: DNS.of(state).generation,
        slot: DNS_UDP.slot,
        direct: 1,
        ..FragmentValue::default()
    };
    fragment(state, age, value);
}

fn direct() -> Vec<Case> {
    fn set(state: &mut State) {
        state_of(state, DNS_UDP).flags = SERVICE_DIRECT;
        state_of(state, SYSLOG).flags = SERVICE_DIRECT;
    }
    let [first, later] = cut();
    let case = |name, frame, counters: Vec<Counter>| {
        Case::ingress(name, frame).given(set).becomes(Verdict::Untouched, &counters)
    };
    let mut by_peer = new_flow(DNS_UDP, Stat::Direct);
    by_peer.push(Counter::Stat(Stat::FromPeer));
    vec![
        case(
            "a backend here gets the packet as it is",
            from_client().ipv4(&datagram(DNS_UDP)),
            new_flow(DNS_UDP, Stat::Direct),
        )
        .then(|state| DNS_UDP.record(state, DNS, 0, 0)),
        case("so does a handed-over one", from_peer().ipv4(&datagram(DNS_UDP)), by_peer)
            .then(|state| DNS_UDP.record(state, DNS, 0, 0)),
        case("a known flow stays direct", from_client().ipv4(&datagram(DNS_UDP)), known_flow(DNS_UDP, Stat::Direct))
            .given(|state| {
                set(state);
                DNS_UDP.record(state, DNS, WHILE, 0);
            })
            .then(|state| DNS_UDP.record(state, DNS, 0, 0)),
        case(
            "a direct first fragment is recorded as such",
            from_client().ipv4(&first),
            new_flow(DNS_UDP, Stat::Direct),
        )
        .then(|state| {
            DNS_UDP.record(state, DNS, 0, 0);
            direct_before(state, 0);
        }),
        case("a later fragment is direct as the first", from_client().ipv4(&later), known_flow(DNS_UDP, Stat::Direct))
            .given(|state| {
                set(state);
                direct_before(state, WHILE);
            }),
        case("an error about a direct answer", from_client().ipv4(&error()), vec![Counter::Stat(Stat::Direct)]),
        case(
            "an error about a known flow's direct answer",
            from_client().ipv4(&error()),
            vec![Counter::Stat(Stat::Direct)],
        )
        .given(|state| {
            set(state);
            DNS_UDP.record(state, DNS, WHILE, 0);
        }),
        Case::ingress("a direct Service's backend elsewhere is handed over to", from_client().ipv4(&datagram(SYSLOG)))
            .given(set)
            .becomes(Verdict::Transmitted(handed(&datagram(SYSLOG), PEER_MAC)), &new_flow(SYSLOG, Stat::HandedOver))
            .then(|state| SYSLOG.record(state, REMOTE, 0, 0)),
    ]
}
