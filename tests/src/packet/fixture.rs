//! The initial state of cases: a node with one interface, its peers, VIPs of every kind and
//! Services of every kind.

use std::{collections::BTreeMap, net::Ipv4Addr};

use crate::{
    frames::{Ethernet, Mac},
    program::{FLOW_SECRET, IFINDEX, NOW_LOW, State, path},
};
use vipmux_common::abi::{self, Address, BACKEND_LOCAL, BACKEND_READY, NODE_ATTACHED, NODE_SELF, VIP_LEADING};

pub const TCP: u32 = 6;
pub const UDP: u32 = 17;
pub const SCTP: u32 = 132;

/// This node's interface.
pub const SELF_MAC: Mac = [0x02, 0, 0, 0, 0, 0x01];
/// The hand-over MAC of this node.
pub const SELF_HANDOVER: Mac = [0x0e, 0x11, 0x12, 0x13, 0x14, 0x15];
/// A node behind the same interface, and its hand-over MAC.
pub const PEER_MAC: Mac = [0x02, 0, 0, 0, 0, 0x02];
pub const PEER_HANDOVER: Mac = [0x0e, 0x21, 0x22, 0x23, 0x24, 0x25];
/// A node behind another interface.
pub const FAR_MAC: Mac = [0x02, 0, 0, 0, 0, 0x03];
/// That node on another segment, which has the number [`SEGMENT`].
pub const PEER_BESIDE: Mac = [0x02, 0, 0, 0, 1, 0x02];
pub const SEGMENT: u32 = 2;
/// The client, or the router in front of it.
pub const CLIENT_MAC: Mac = [0x02, 0, 0, 0, 0, 0xc1];
/// A machine that is neither node nor client.
pub const FOREIGN_MAC: Mac = [0x02, 0, 0, 0, 0, 0xee];

/// The interface towards [`FAR_MAC`].
pub const FAR_IFINDEX: u32 = 3;

pub const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
pub const CLIENT_PORT: u16 = 40_000;
/// An address on the segment that is no VIP.
pub const NEIGHBOR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);

/// Led by this node, untagged.
pub const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// Led by another node.
pub const FOLLOWED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 20);
/// Led by this node, but announced on another interface.
pub const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 30);
/// Led by this node, announced on [`VLAN`].
pub const TAGGED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 40);
pub const VLAN: u16 = 7;

/// A backend: index, address and port.
#[derive(Clone, Copy)]
pub struct Endpoint {
    pub index: u32,
    pub address: Ipv4Addr,
    pub port: u16,
    pub node: u32,
}

const fn endpoint(index: u32, node: u32, octets: [u8; 4], port: u16) -> Endpoint {
    Endpoint { index, address: Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]), port, node }
}

pub const LOCAL: Endpoint = endpoint(0, 0, [10, 0, 0, 5], 8080);
pub const LOCAL_TOO: Endpoint = endpoint(1, 0, [10, 0, 0, 6], 8080);
/// On the node behind the same interface.
pub const REMOTE: Endpoint = endpoint(2, 1, [10, 0, 1, 5], 8080);
/// On the node behind another interface.
pub const FAR: Endpoint = endpoint(3, 2, [10, 0, 2, 5], 8080);
/// On a node whose program is not attached.
pub const UNREACHABLE: Endpoint = endpoint(4, 3, [10, 0, 3, 5], 8080);
pub const DNS: Endpoint = endpoint(5, 0, [10, 0, 0, 53], 5353);
/// With the port of its Service, as SCTP requires.
pub const SIGNAL: Endpoint = endpoint(6, 0, [10, 0, 0, 7], 2905);
pub const SIGNAL_REMOTE: Endpoint = endpoint(7, 1, [10, 0, 1, 7], 2906);
const ENDPOINTS: [Endpoint; 8] = [LOCAL, LOCAL_TOO, REMOTE, FAR, UNREACHABLE, DNS, SIGNAL, SIGNAL_REMOTE];

/// A Service port: VIP, number and slot of its counters.
#[derive(Clone, Copy)]
pub struct Service {
    pub vip: Ipv4Addr,
    pub port: u16,
    pub protocol: u32,
    pub slot: u32,
}

const fn service(slot: u32, vip: Ipv4Addr, port: u16, protocol: u32) -> Service {
    Service { vip, port, protocol, slot }
}

/// With a local backend.
pub const HTTP: Service = service(0, VIP, 80, TCP);
/// With a backend behind the same interface.
pub const HTTPS: Service = service(1, VIP, 443, TCP);
/// With a local backend. [`DNS_TCP`] is another Service.
pub const DNS_UDP: Service = service(2, VIP, 53, UDP);
pub const DNS_TCP: Service = service(3, VIP, 53, TCP);
/// With a backend behind another interface.
pub const REDIRECTED: Service = service(4, VIP, 8443, TCP);
/// With a backend on an unreachable node.
pub const LOST: Service = service(5, VIP, 9000, TCP);
/// Without backends.
pub const EMPTY: Service = service(6, VIP, 9001, TCP);
/// With backends on both other nodes and none here.
pub const SPREAD: Service = service(7, VIP, 8080, TCP);
/// With a table that has [`REMOTE`] for every flow, and with [`LOCAL`] as another backend.
pub const MIXED: Service = service(8, VIP, 8081, TCP);
/// UDP to a backend behind the same interface.
pub const SYSLOG: Service = service(9, VIP, 514, UDP);
/// On the tagged VIP.
pub const TAGGED_HTTP: Service = service(10, TAGGED, 80, TCP);
/// On the VIP that another node leads.
pub const FOLLOWED_HTTP: Service = service(11, FOLLOWED, 80, TCP);
/// On the VIP that is announced elsewhere.
pub const ELSEWHERE_HTTP: Service = service(12, ELSEWHERE, 80, TCP);
/// Another port with [`HTTP`]'s backend.
pub const HTTP_TOO: Service = service(13, VIP, 8000, TCP);
/// SCTP to a local backend, and to one behind the same interface.
pub const PHONE: Service = service(14, VIP, 2905, SCTP);
pub const PHONE_REMOTE: Service = service(15, VIP, 2906, SCTP);

/// Entries of the LRU maps.
pub const FLOWS: u32 = 1024;

/// Slots of Services.
const SLOTS: usize = 18;
/// Arena slots of each Service: half for the table over all backends, half for the local one.
const RANGE: u32 = 32;

/// Idle timeouts of a TCP flow, a UDP flow, a closed flow and a first fragment, in jiffies.
const LIVES: [u32; 4] = [400_000, 100_000, 60_000, 30_000];
pub const TCP_IDLE: u64 = LIVES[0] as u64;
pub const UDP_IDLE: u64 = LIVES[1] as u64;
pub const LINGER: u64 = LIVES[2] as u64;
pub const FRAGMENT_LIFE: u64 = LIVES[3] as u64;
/// Jiffies per second.
const HZ: u32 = 4_000;
pub const LATE: u64 = (abi::LATE_SECONDS * HZ) as u64;
/// Far longer than a case takes.
pub const WHILE: u64 = 10_000;
/// The newest generation.
pub const NEWEST: u32 = 999;

pub fn address(address: Ipv4Addr) -> Address {
    Address::from(address)
}

/// Returns the Ethernet header of a frame from the client to this node.
pub fn from_client() -> Ethernet {
    Ethernet::new(CLIENT_MAC, SELF_MAC)
}

/// Returns the Ethernet header of a frame that the peer has balanced.
pub fn from_peer() -> Ethernet {
    Ethernet::new(PEER_HANDOVER, SELF_MAC)
}

fn vip_id(vip: Ipv4Addr) -> u32 {
    u32::from(vip.octets()[3]) / 10
}

impl Service {
    pub fn key(self) -> abi::ServiceKey {
        let protocol = self.protocol.to_le_bytes()[0];
        abi::ServiceKey { vip: vip_id(self.vip), port: self.port.to_be(), protocol, padding: 0 }
    }

    /// Returns the key of the client's flow to it.
    pub fn flow(self) -> abi::FlowKey {
        abi::FlowKey {
            client: address(CLIENT),
            vip: vip_id(self.vip),
            client_port: CLIENT_PORT.to_be(),
            vip_port: self.port.to_be(),
            protocol: self.protocol,
            reserved: 0,
        }
    }

    /// Adds it as a Service with these tables: backends by index, evenly over at most half a range.
    pub fn set(self, state: &mut State, table: &[Endpoint], local: &[Endpoint]) {
        let start = self.slot * RANGE;
        let mut place = |first: u32, endpoints: &[Endpoint]| {
            for (at, endpoint) in (first as usize..).zip(endpoints) {
                state.tables[at] = endpoint.index;
            }
            u32::try_from(endpoints.len()).unwrap()
        };
        let (table_length, local_length) = (place(start, table), place(start + RANGE / 2, local));
        let generation = 100 + self.slot;
        let value = abi::ServiceValue {
            slot: self.slot,
            generation,
            table: start,
            table_length,
            local_table: start + RANGE / 2,
            local_length,
            ..Default::default()
        };
        state.services.insert(self.key(), value);
        let vip = address(self.vip);
        state.service_states[self.slot as usize] = abi::ServiceState { generation, vip, ..Default::default() };
    }

    /// [`abi::ServiceValue::flags`].
    pub fn set_flags(self, state: &mut State, flags: u32) {
        state.services.get_mut(&self.key()).unwrap().flags = flags;
    }

    /// Records the client's flow to it, used `age` jiffies ago, without an epoch: as after its
    /// second packet.
    pub fn record(self, state: &mut State, backend: Endpoint, age: u64, flags: u32) {
        let key = self.flow();
        let value = abi::FlowRecord {
            vip: key.vip,
            client_port: key.client_port,
            vip_port: key.vip_port,
            client: key.client,
            backend: backend.index,
            backend_generation: state.backends[backend.index as usize].generation,
            slot: self.slot,
            slot_generation: 100 + self.slot,
            node: backend.node.try_into().unwrap(),
            protocol: self.protocol.try_into().unwrap(),
            flags: flags.try_into().unwrap(),
            seen: NOW_LOW - u32::try_from(age).unwrap(),
            ..abi::FlowRecord::default()
        };
        state.flows.insert(key, value);
    }

    /// Records the client's flow to it, with the epoch of the backend's node.
    pub fn record_vouched(self, state: &mut State, backend: Endpoint, age: u64, flags: u32) {
        self.record(state, backend, age, flags);
        let epoch = backend.node_of(state).epoch;
        assert_ne!(epoch, 0);
        self.record_of(state).epoch = epoch;
    }

    pub fn record_of(self, state: &mut State) -> &mut abi::FlowRecord {
        state.flows.get_mut(&self.flow()).unwrap()
    }

    /// Records the client's flow to a local backend, whose replies are translated, used `age`
    /// jiffies ago.
    pub fn remember(self, state: &mut State, backend: Endpoint, age: u64, isn: u32, flags: u32) {
        self.record(state, backend, age, flags | abi::FLOW_REPLIES);
        self.record_of(state).isn = isn;
    }
}

impl Endpoint {
    pub fn of(self, state: &mut State) -> &mut abi::Backend {
        &mut state.backends[self.index as usize]
    }

    pub fn node_of(self, state: &mut State) -> &mut abi::Node {
        &mut state.nodes[self.node as usize]
    }

    /// The path to its node for VIPs of [`SEGMENT`].
    pub fn path_of(self, state: &mut State) -> &mut abi::Node {
        state.paths.get_mut(&path(self.node, SEGMENT)).unwrap()
    }
}

pub fn vip_of(state: &mut State, vip: Ipv4Addr) -> &mut abi::VipValue {
    state.vips.get_mut(&address(vip)).unwrap()
}

/// Records that this MAC spoke for a VIP.
pub fn claimed(state: &mut State, vip: Ipv4Addr, mac: Mac) {
    speaker(state, vip, mac).claimed = 1;
}

/// Records that this MAC probed for a VIP, with this option in the probe.
pub fn probed(state: &mut State, vip: Ipv4Addr, mac: Mac, option: [u8; 8]) {
    let speaker = speaker(state, vip, mac);
    (speaker.probed, speaker.option) = (1, u64::from_ne_bytes(option));
}

fn speaker(state: &mut State, vip: Ipv4Addr, mac: Mac) -> &mut abi::Speaker {
    let key = abi::SpeakerKey { vip: address(vip), mac: abi::Mac::new(mac) };
    let ifindex = u32::try_from(IFINDEX).unwrap();
    state.speakers.entry(key).or_insert(abi::Speaker { ifindex, ..abi::Speaker::default() })
}

/// Returns the current time of the fence's clock, `CLOCK_BOOTTIME`, nanoseconds.
pub fn boot_time() -> u64 {
    vipmux_cluster::clock::try_boottime().unwrap().as_nanos().try_into().unwrap()
}

/// Returns the state without flows, with the fence deadline an hour away.
pub fn state() -> State {
    const HOUR: u64 = 3_600_000_000_000;
    let mut state = State {
        config: abi::Config {
            abi: abi::ABI_VERSION,
            next_vip: 5,
            next_generation: NEWEST + 1,
            hz: HZ,
            tcp_idle: LIVES[0],
            udp_idle: LIVES[1],
            closed_linger: LIVES[2],
            abandon_after: 600,
            fragment_life: LIVES[3],
            unclaimed: abi::UNCLAIMED_DROP,
            answers_per_second: 1_000,
            reserved: 0,
            flow_mask: 0,
            removed: 0,
            flow_secret: FLOW_SECRET,
            handover: abi::Mac::new(SELF_HANDOVER),
        },
        fence: abi::Fence { deadline: boot_time() + HOUR, ..abi::Fence::default() },
        interfaces: vec![abi::Interface::default(); 4],
        service_states: vec![abi::ServiceState::default(); SLOTS],
        tables: vec![u32::MAX; SLOTS * RANGE as usize],
        nodes: nodes(),
        ..State::default()
    };
    state.interfaces[IFINDEX] = abi::Interface { mac: abi::Mac::new(SELF_MAC), bit: 1, flags: 0 };
    for (vip, flags, interfaces, vlan) in
        [(VIP, VIP_LEADING, 1, 0), (FOLLOWED, 0, 1, 0), (ELSEWHERE, VIP_LEADING, 2, 0), (TAGGED, VIP_LEADING, 1, VLAN)]
    {
        let value = abi::VipValue { id: vip_id(vip), flags, interfaces, vlan: u32::from(vlan), epoch: 3 };
        state.vips.insert(address(vip), value);
    }
    state.backends = ENDPOINTS.iter().map(backend).collect();
    state.peers = [(1, PEER_MAC), (1 | abi::PEER_HANDOVER, PEER_HANDOVER), (2, FAR_MAC)]
        .into_iter()
        .map(|(index, mac)| (abi::Mac::new(mac), index))
        .collect();
    state.paths = paths(&state.nodes);
    services(&mut state);
    state
}

/// The paths for VIPs of [`SEGMENT`], which leads to one node.
fn paths(nodes: &[abi::Node]) -> BTreeMap<u32, abi::Node> {
    let mut paths: BTreeMap<u32, abi::Node> =
        (0..).zip(nodes).map(|(index, node)| (path(index, SEGMENT), *node)).collect();
    let beside = paths.get_mut(&path(REMOTE.node, SEGMENT)).unwrap();
    (beside.mac, beside.ifindex) = (abi::Mac::new(PEER_BESIDE), FAR_IFINDEX);
    paths.retain(|_, node| *node != abi::Node::default());
    paths
}

/// Announces a VIP on [`SEGMENT`].
pub fn on_segment(state: &mut State, vip: Ipv4Addr) {
    vip_of(state, vip).flags |= SEGMENT << abi::VIP_SEGMENT_SHIFT;
}

/// Makes the VLANs of all paths known.
pub fn know_vlans(state: &mut State) {
    for node in state.nodes.iter_mut().chain(state.paths.values_mut()) {
        node.flags |= abi::NODE_VLAN;
    }
}

/// Gives all live flows that were idle for [`WHILE`] a packet just now.
pub fn freshen(state: &mut State) {
    let then = NOW_LOW - u32::try_from(WHILE).unwrap();
    for flow in state.flows.values_mut().filter(|flow| flow.seen == then) {
        flow.seen = NOW_LOW;
    }
}

fn nodes() -> Vec<abi::Node> {
    let node = |mac, ifindex, flags, epoch| {
        let mac = abi::Mac::new(mac);
        abi::Node { mac, handover: abi::Mac::default(), ifindex, mtu: 0, flags, epoch }
    };
    let here = u32::try_from(IFINDEX).unwrap();
    vec![
        node(SELF_MAC, here, NODE_SELF, 200),
        node(PEER_MAC, here, NODE_ATTACHED, 201),
        node(FAR_MAC, FAR_IFINDEX, NODE_ATTACHED, 202),
        abi::Node::default(),
    ]
}

fn backend(endpoint: &Endpoint) -> abi::Backend {
    let local = if endpoint.node == 0 { BACKEND_LOCAL } else { 0 };
    abi::Backend {
        address: address(endpoint.address),
        port: endpoint.port.to_be(),
        flags: BACKEND_READY | local,
        node: endpoint.node,
        generation: 50 + endpoint.index,
        reserved: 0,
    }
}

fn services(state: &mut State) {
    HTTP.set(state, &[LOCAL], &[LOCAL]);
    HTTPS.set(state, &[REMOTE], &[]);
    DNS_UDP.set(state, &[DNS], &[DNS]);
    DNS_TCP.set(state, &[REMOTE], &[]);
    REDIRECTED.set(state, &[FAR], &[]);
    LOST.set(state, &[UNREACHABLE], &[]);
    EMPTY.set(state, &[], &[]);
    SPREAD.set(state, &[REMOTE, FAR, REMOTE, FAR], &[]);
    MIXED.set(state, &[REMOTE], &[LOCAL]);
    SYSLOG.set(state, &[REMOTE], &[]);
    TAGGED_HTTP.set(state, &[REMOTE], &[]);
    FOLLOWED_HTTP.set(state, &[REMOTE], &[]);
    ELSEWHERE_HTTP.set(state, &[REMOTE], &[]);
    HTTP_TOO.set(state, &[LOCAL], &[LOCAL]);
    PHONE.set(state, &[SIGNAL], &[SIGNAL]);
    PHONE_REMOTE.set(state, &[SIGNAL_REMOTE], &[]);
}
