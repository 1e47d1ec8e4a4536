//! Tests that `lookup` predicts what the XDP program does: both get the same packets on the same
//! maps.

use std::net::{IpAddr, Ipv6Addr};

use aya::{
    Ebpf,
    programs::{TestRun as _, TestRunOptions, Xdp},
};
use nix::{
    sched::{CpuSet, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};
use vipmux_common::abi::{
    BACKEND_READY, Backend, Config, DropReason, Fence, INTERFACE_OWN_MAC, Interface, Mac, Node, ServiceState,
    ServiceValue, UNCLAIMED_PASS,
};
use vipmux_common::service_index::IndexedService;

use super::cluster::{Cluster, HZ, IDLE, handover_mac, mac, request};
use crate::{
    clock::Clock,
    lookup::{FrameSource, LookupOutcome, LookupPacket, walk},
};
use vipmux_datapath::{
    bpf::{
        maps::Maps,
        xdp::{Buffers, load_xdp},
    },
    fixture,
};
use vipmux_model::Protocol;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

fn frame(request: &LookupPacket) -> Vec<u8> {
    let source = match request.source {
        FrameSource::Client => mac(99),
        FrameSource::Peer => handover_mac(1),
        FrameSource::Mac(mac) => mac,
    };
    let transport = transport(request);
    let length = u8::try_from(transport.len()).unwrap();
    let mut frame = [mac(10).bytes(), source.bytes()].concat();
    match (request.client.ip(), request.vip.ip()) {
        (IpAddr::V4(client), IpAddr::V4(vip)) => {
            frame.extend([8, 0, 0x45, 0, 0, 20 + length, 0, 0, 0, 0, 64, request.protocol.number(), 0, 0]);
            frame.extend([client.octets(), vip.octets()].concat());
        }
        (IpAddr::V6(client), IpAddr::V6(vip)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, length, request.protocol.number(), 64]);
            frame.extend([client.octets(), vip.octets()].concat());
        }
        _ => panic!("{request:?} is of two families"),
    }
    frame.extend(transport);
    frame
}

fn transport(request: &LookupPacket) -> Vec<u8> {
    let ports = [request.client.port().to_be_bytes(), request.vip.port().to_be_bytes()].concat();
    let rest = match request.protocol {
        Protocol::Tcp => vec![0, 0, 0, 1, 0, 0, 0, 0, 0x50, if request.syn { 0x02 } else { 0x10 }, 0, 1, 0, 0, 0, 0],
        Protocol::Udp => vec![0, 8, 0, 0],
        // A chunk of INIT, or of DATA.
        Protocol::Sctp => [&[0; 8][..], &[u8::from(request.syn), 0, 0, 20], &[0; 16]].concat(),
    };
    [ports, rest].concat()
}

fn drops(maps: &Maps) -> Vec<u64> {
    maps.read_drops().unwrap().iter().map(|(_, count)| count.packets).collect()
}

/// The destination of a packet, and its port.
fn destination(frame: &[u8]) -> String {
    let bytes = |at: usize| frame[at..at + 2].try_into().unwrap();
    if frame[12] == 8 {
        let address: [u8; 4] = frame[30..34].try_into().unwrap();
        format!("{}:{}", IpAddr::from(address), u16::from_be_bytes(bytes(36)))
    } else {
        let address: [u8; 16] = frame[38..54].try_into().unwrap();
        format!("{}:{}", IpAddr::from(address), u16::from_be_bytes(bytes(56)))
    }
}

/// Returns what the program did, in the words of [`predicted`].
fn done(program: &Xdp, maps: &Maps, request: &LookupPacket) -> String {
    let frame = frame(request);
    // An answer can be longer than what it answers.
    let (mut out, before) = (vec![0; frame.len() + 64], drops(maps));
    let options =
        TestRunOptions { data_in: Some(&frame), data_out: Some(&mut out), repeat: 1, ..TestRunOptions::default() };
    let result = program.test_run(options).unwrap();
    let action = result.return_value;
    out.truncate(result.data_size_out as usize);
    let after = drops(maps);
    let counted: Vec<_> =
        DropReason::ALL.iter().filter(|reason| after[**reason as usize] != before[**reason as usize]).collect();
    match action {
        XDP_PASS if out == frame => "passed".to_owned(),
        XDP_PASS => format!("delivered to {}", destination(&out)),
        XDP_TX if !counted.is_empty() => {
            format!("rejected: {}", counted.iter().map(|reason| reason.name()).collect::<String>())
        }
        XDP_TX => {
            let mac = |at: usize| Mac::new(out[at..at + 6].try_into().unwrap());
            format!("handed over from {} to {}", mac(6), mac(0))
        }
        XDP_DROP => format!("dropped: {}", counted.iter().map(|reason| reason.name()).collect::<String>()),
        other => format!("action {other}"),
    }
}

fn predicted(outcome: &LookupOutcome) -> String {
    match outcome {
        LookupOutcome::Passed | LookupOutcome::LeftToKernel => "passed".to_owned(),
        LookupOutcome::Delivered { backend, .. } => format!("delivered to {}:{}", backend.address, backend.port),
        LookupOutcome::HandedOver { mac, source_mac, .. } => format!("handed over from {source_mac} to {mac}"),
        LookupOutcome::Rejected { reason } => format!("rejected: {reason}"),
        LookupOutcome::Dropped { reason } => format!("dropped: {reason}"),
    }
}

fn request_ipv6(client_port: u16, port: u16, protocol: Protocol) -> LookupPacket {
    LookupPacket {
        client: (Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 7), client_port).into(),
        vip: (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10), port).into(),
        ..request(client_port, port, protocol)
    }
}

fn requests() -> Vec<LookupPacket> {
    let mut requests = Vec::new();
    for source in [FrameSource::Client, FrameSource::Peer, FrameSource::Mac(mac(11))] {
        for syn in [true, false] {
            for (port, protocol) in
                [(80, Protocol::Tcp), (81, Protocol::Tcp), (90, Protocol::Tcp), (443, Protocol::Tcp)]
                    .into_iter()
                    .chain([(8080, Protocol::Tcp), (9999, Protocol::Tcp), (53, Protocol::Udp), (80, Protocol::Udp)])
            {
                let packets = (0..8).map(|i| LookupPacket { syn, source, ..request(5000 + i, port, protocol) });
                requests.extend(packets);
            }
            for (port, protocol) in [(80, Protocol::Tcp), (81, Protocol::Tcp), (8080, Protocol::Sctp)] {
                let packets = (0..8).map(|i| LookupPacket { syn, source, ..request_ipv6(5000 + i, port, protocol) });
                requests.extend(packets);
            }
            for port in [8080, 8081] {
                let packets = (0..8).map(|i| LookupPacket { syn, source, ..request(5000 + i, port, Protocol::Sctp) });
                requests.extend(packets);
            }
        }
    }
    // From the VIP, on another VLAN, and to no VIP.
    requests.push(LookupPacket { client: (requests[0].vip.ip(), 5000).into(), ..requests[0] });
    requests.push(LookupPacket { vip: ([192, 0, 2, 11], 80).into(), vlan: Some(0), ..requests[0] });
    requests.push(LookupPacket { vip: ([192, 0, 2, 12], 80).into(), ..requests[0] });
    requests
}

/// Compares both for all packets. Returns the verdicts.
fn compare(program: &Xdp, maps: &Maps, when: &str) -> Vec<String> {
    let mut seen = Vec::new();
    for request in requests() {
        // The program reads its own.
        let clock = Clock::now(HZ).unwrap();
        let lookup = walk(maps, &clock, &request).unwrap();
        let predicted = predicted(&lookup.outcome);
        assert_eq!(done(program, maps, &request), predicted, "{when}: {request:?}: {:#?}", lookup.steps);
        seen.push(predicted);
    }
    seen
}

/// Makes all records idle.
fn age(maps: &mut Maps) {
    let long_ago = 2 * IDLE;
    for index in 0..maps.flows.len() {
        let mut set = maps.flows.get(&index, 0).unwrap();
        set.records.iter_mut().for_each(|flow| flow.seen = flow.seen.wrapping_sub(long_ago));
        maps.flows.set(index, set, 0).unwrap();
    }
}

/// Loads the program for interfaces, with those that it calls.
fn entry(ebpf: &mut Ebpf) -> &Xdp {
    let buffers = Buffers::here();
    load_xdp(ebpf, buffers).unwrap();
    ebpf.program(buffers.entry()).unwrap().try_into().unwrap()
}

#[test]
fn a_lookup_says_what_the_program_does() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.add_ipv6();
    cluster.add_sctp();
    // The program uses this machine's clock.
    cluster.fixture.maps.fence.set(0, Fence { deadline: u64::MAX, ..Fence::default() }, 0).unwrap();
    cluster.fixture.maps.rebuild_vip_index().unwrap();
    cluster.fixture.maps.rebuild_backend_indices().unwrap();
    // More than this test needs: a lookup does not know the rate limit.
    let config = cluster.fixture.maps.read_config().unwrap();
    cluster.fixture.maps.config.set(0, Config { answers_per_second: 1_000_000, ..config }, 0).unwrap();
    let maps = cluster.maps();
    let program = entry(&mut cluster.fixture.ebpf);

    let mut seen = compare(program, &maps, "first packets");
    seen.extend(compare(program, &maps, "with flow records"));
    let written = &mut cluster.fixture.maps;
    let change = |maps: &mut Maps, index, change: fn(&mut Backend)| {
        let mut backend = maps.backends.get(&index, 0).unwrap();
        change(&mut backend);
        maps.backends.set(index, backend, 0).unwrap();
    };
    written.rebuild_service_index().unwrap();
    seen.extend(compare(program, &maps, "with copies of Services"));
    let services = written.read_services().unwrap();
    let (key, value) = services.iter().find(|(key, _)| key.port == 81_u16.to_be()).unwrap();
    let stale = ServiceValue { table_length: 0, local_length: 0, ..*value };
    written.service_index.set(key.index(), IndexedService::new(*key, &stale).unwrap(), 0).unwrap();
    age(written);
    seen.extend(compare(program, &maps, "with a copy that differs from its entry"));
    let found = walk(&maps, &Clock::now(HZ).unwrap(), &request(6000, 81, Protocol::Tcp)).unwrap();
    assert!(found.steps.iter().any(|step| step.finding.contains("differs from SERVICES")), "{:#?}", found.steps);
    written.rebuild_service_index().unwrap();
    change(written, 0, |backend| backend.flags &= !BACKEND_READY);
    seen.extend(compare(program, &maps, "with a draining backend"));
    change(written, 1, |backend| backend.generation += 50);
    seen.extend(compare(program, &maps, "with another backend in an index that an epoch vouches for"));
    let node = written.nodes.get(&1, 0).unwrap();
    written.nodes.set(1, Node { epoch: 90, ..node }, 0).unwrap();
    seen.extend(compare(program, &maps, "with another backend in an index"));
    written.nodes.set(1, Node { epoch: 90, flags: 0, ..node }, 0).unwrap();
    seen.extend(compare(program, &maps, "with a node that cannot be reached"));
    written.nodes.set(1, Node { epoch: 90, ..node }, 0).unwrap();
    let reused = ServiceState { generation: 900, ..written.service_states.get(&5, 0).unwrap() };
    written.service_states.set(5, reused, 0).unwrap();
    seen.extend(compare(program, &maps, "with another owner in a slot"));
    age(written);
    written.nodes.set(3, Node::default(), 0).unwrap();
    seen.extend(compare(program, &maps, "with idle records and a node gone"));
    for (ifindex, interface) in written.read_interfaces().unwrap() {
        let flags = interface.flags | INTERFACE_OWN_MAC;
        written.set_interface(ifindex, Interface { flags, ..interface }).unwrap();
    }
    seen.extend(compare(program, &maps, "handing over with the interface's own MAC"));
    let config = written.config.get(&0, 0).unwrap();
    written.config.set(0, Config { unclaimed: UNCLAIMED_PASS, ..config }, 0).unwrap();
    seen.extend(compare(program, &maps, "with the stack for what is unclaimed"));
    written.config.set(0, Config { abandon_after: 0, ..config }, 0).unwrap();
    written.write_deadline(1).unwrap();
    let abandoned = compare(program, &maps, "long after the agent went");
    let served = |request: &LookupPacket, seen: &str| {
        request.source != FrameSource::Client || seen == "passed" || seen.starts_with("delivered to")
    };
    assert!(requests().iter().zip(&abandoned).all(|(request, seen)| served(request, seen)), "{abandoned:?}");
    for verdict in ["passed", "delivered to 10.0.0.1:8080"] {
        assert!(abandoned.iter().any(|seen| seen == verdict), "{verdict} is not among {abandoned:?}");
    }

    for verdict in [
        "passed",
        "delivered to 10.0.0.1:8080",
        "delivered to fd00::1:8080",
        "handed over from 0e:76:6d:00:00:0a to 02:00:00:00:00:0b",
        "handed over from 02:00:00:00:00:0a to 02:00:00:00:00:0b",
    ]
    .into_iter()
    .chain([
        "handed over from 0e:76:6d:00:00:0a to 02:00:00:00:00:0d",
        "rejected: no_service",
        "rejected: no_backend",
        "dropped: no_service",
        "dropped: no_backend",
    ])
    .chain(["dropped: not_local", "dropped: hairpin", "dropped: node_unreachable", "dropped: tuple_collision"])
    {
        assert!(seen.iter().any(|seen| seen == verdict), "no packet was {verdict}");
    }
}

/// A starting agent replaces the programs of the last agent interface by interface. Until the last
/// interface, both call the new ones.
#[test]
fn programs_of_two_agents_tell_each_other_which_vip_a_packet_is_for() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.add_ipv6();
    cluster.fixture.maps.fence.set(0, Fence { deadline: u64::MAX, ..Fence::default() }, 0).unwrap();
    cluster.fixture.maps.rebuild_vip_index().unwrap();
    cluster.fixture.maps.rebuild_backend_indices().unwrap();
    let maps = cluster.maps();
    let mut later = fixture::load(&cluster.fixture.pins);
    let programs = [entry(&mut cluster.fixture.ebpf), entry(&mut later)];
    // The programs pass the VIP to each other on one CPU.
    let mut here = CpuSet::new();
    here.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &here).unwrap();
    let clock = Clock::now(HZ).unwrap();
    for (i, by) in (0..).zip([1, 0, 0, 1]) {
        for request in [request(6000 + i, 80, Protocol::Tcp), request_ipv6(7000 + i, 80, Protocol::Tcp)] {
            let expected = predicted(&walk(&maps, &clock, &request).unwrap().outcome);
            assert_eq!(done(programs[by], &maps, &request), expected, "{request:?}");
        }
    }
}
