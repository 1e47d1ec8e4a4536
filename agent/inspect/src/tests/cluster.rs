//! A small cluster in real maps: this node (node-a), two that are attached (node-b, node-d) and one
//! that is not (node-c).

use std::time::Duration;

use aya::{maps::PerCpuValues, util::nr_cpus};
use vipmux_common::abi::{
    ABI_VERSION, Address, BACKEND_FAILING, BACKEND_LOCAL, BACKEND_READY, Backend, Config, Count, DropReason,
    FLOW_CLIENT_FIN, FLOW_DIRECT, FLOW_HALF_OPEN, FLOW_NEW, FLOW_REPLIES, FLOW_RESET, Fence, FlowKey, FlowRecord,
    HANDOVER_PREFIX, INTERFACE_GENERIC, INTERFACE_MTU_SHIFT, Interface, Mac, NODE_ATTACHED, NODE_SELF, Node, NodeLabel,
    PEER_HANDOVER, SERVICE_HASHES_VIP, SERVICE_SPARE, ServiceKey, ServiceOwner, ServiceState, ServiceValue, Stat,
    UNCLAIMED_REJECT, VIP_LEADING, VIP_YIELDED, VipValue,
};

use crate::{
    clock::Clock,
    lookup::{FrameSource, LookupPacket},
};
use vipmux_datapath::bpf::maps::Maps;

use vipmux_datapath::fixture::Fixture;
use vipmux_model::Protocol;

pub(super) const HZ: u32 = 250;
/// Five minutes.
pub(super) const IDLE: u32 = 300 * HZ;
/// The first jiffy, and those of a thousand seconds.
pub(super) const NOW: u64 = (1 << 32) - 300 * HZ as u64 + 1000 * HZ as u64;
const LENGTH: u32 = 250;
/// The backend that drains on this node.
const DRAINING: u32 = 3;

/// A thousand seconds after boot.
pub(super) fn clock() -> Clock {
    Clock::at(Duration::from_secs(1000), Duration::from_secs(1000), HZ)
}

pub(super) fn mac(node: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 0, node])
}

pub(super) fn handover_mac(node: u32) -> Mac {
    Mac::new([HANDOVER_PREFIX, 0x76, 0x6d, 0, 0, 10 + u8::try_from(node).unwrap()])
}

fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

/// A packet of the usual client to the first VIP.
pub(super) fn request(client_port: u16, port: u16, protocol: Protocol) -> LookupPacket {
    LookupPacket {
        client: ([198, 51, 100, 7], client_port).into(),
        vip: ([192, 0, 2, 10], port).into(),
        protocol,
        syn: false,
        source: FrameSource::Client,
        ifindex: None,
        vlan: None,
    }
}

pub(super) struct Cluster {
    pub(super) fixture: Fixture,
    tables: u32,
}

impl Cluster {
    pub(super) fn new() -> Option<Self> {
        let mut cluster = Self { fixture: Fixture::new()?, tables: 0 };
        cluster.place();
        cluster.nodes();
        cluster.backends();
        for (slot, (claim, owner, backends, local)) in (0..).zip([
            ((1, 80, Protocol::Tcp), ("shop", "web"), &[0, 1][..], &[0][..]),
            ((1, 53, Protocol::Udp), ("dns", "dns"), &[1], &[DRAINING]),
            ((1, 443, Protocol::Tcp), ("shop", "tls"), &[], &[]),
            ((1, 8080, Protocol::Tcp), ("shop", "far"), &[2], &[]),
            ((1, 81, Protocol::Tcp), ("shop", "admin"), &[0], &[0]),
            ((1, 90, Protocol::Tcp), ("shop", "many"), &[1, 4, 1, 4, 5], &[]),
            ((2, 80, Protocol::Tcp), ("shop", "vlan"), &[0], &[0]),
        ]) {
            cluster.service(slot, claim, owner, backends, local);
        }
        cluster.counts();
        Some(cluster)
    }

    /// Opens the maps like a command does.
    pub(super) fn maps(&self) -> Maps {
        Maps::open(self.fixture.pins.root()).unwrap()
    }

    fn place(&mut self) {
        let maps = &mut self.fixture.maps;
        let config = Config {
            abi: ABI_VERSION,
            hz: HZ,
            tcp_idle: IDLE,
            udp_idle: IDLE,
            closed_linger: 10 * HZ,
            abandon_after: 600,
            fragment_life: 30 * HZ,
            unclaimed: UNCLAIMED_REJECT,
            answers_per_second: 1_000,
            handover: handover_mac(0),
            ..maps.read_config().unwrap()
        };
        maps.config.set(0, config, 0).unwrap();
        maps.fence.set(0, Fence { deadline: 1_000_250_000_000, ..Fence::default() }, 0).unwrap();
        // The loopback: what BPF_PROG_TEST_RUN lets frames come in by.
        maps.interfaces
            .set(1, Interface { mac: mac(10), bit: 1, flags: INTERFACE_GENERIC | 1500 << INTERFACE_MTU_SHIFT }, 0)
            .unwrap();
        let leading = VipValue { id: 1, flags: VIP_LEADING, interfaces: 1, vlan: 0, epoch: 3 };
        maps.vips.insert(address("192.0.2.10"), leading, 0).unwrap();
        let yielded = VipValue { id: 2, flags: VIP_YIELDED, interfaces: 1, vlan: 7, epoch: 5 };
        maps.vips.insert(address("192.0.2.11"), yielded, 0).unwrap();
    }

    fn nodes(&mut self) {
        let maps = &mut self.fixture.maps;
        for (index, name) in (0..).zip(["node-a", "node-b", "node-c", "node-d"]) {
            maps.node_names.set(index, NodeLabel::new(name), 0).unwrap();
            if name == "node-c" {
                continue;
            }
            let mac = mac(10 + u8::try_from(index).unwrap());
            let flags = if index == 0 { NODE_ATTACHED | NODE_SELF } else { NODE_ATTACHED };
            let node = Node { mac, handover: handover_mac(index), ifindex: 1, mtu: 1500, flags, epoch: 70 + index };
            maps.nodes.set(index, node, 0).unwrap();
            maps.peers.insert(mac, index, 0).unwrap();
            maps.peers.insert(handover_mac(index), index | PEER_HANDOVER, 0).unwrap();
        }
    }

    fn backends(&mut self) {
        let ready = BACKEND_READY;
        for (index, (ip, node, flags)) in (0..).zip([
            ("10.0.0.1", 0, ready | BACKEND_LOCAL),
            ("10.0.1.1", 1, ready),
            ("10.0.2.1", 2, ready),
            ("10.0.0.2", 0, BACKEND_LOCAL),
            ("10.0.1.2", 1, ready | BACKEND_FAILING),
            ("10.0.3.1", 3, ready),
        ]) {
            let (address, port) = (address(ip), 8080_u16.to_be());
            let backend = Backend { address, port, flags, node, generation: 10 + index, reserved: 0 };
            self.fixture.maps.backends.set(index, backend, 0).unwrap();
        }
    }

    fn table(&mut self, backends: &[u32]) -> (u32, u32) {
        if backends.is_empty() {
            return (0, 0);
        }
        let first = self.tables;
        self.tables += LENGTH;
        let slots: Vec<u32> = backends.iter().copied().cycle().take(LENGTH as usize).collect();
        self.fixture.maps.write_table(first, &slots).unwrap();
        (first, LENGTH)
    }

    fn service(
        &mut self,
        slot: u32,
        (vip, port, protocol): (u32, u16, Protocol),
        (namespace, name): (&str, &str),
        backends: &[u32],
        local: &[u32],
    ) {
        let ((table, table_length), (local_table, local_length)) = (self.table(backends), self.table(local));
        let generation = 100 + slot;
        let flags = if local.contains(&DRAINING) { SERVICE_SPARE } else { 0 } | SERVICE_HASHES_VIP;
        let value = ServiceValue {
            slot,
            generation,
            table,
            table_length,
            local_table,
            local_length,
            flags,
            ..Default::default()
        };
        let maps = &mut self.fixture.maps;
        maps.service_names.set(slot, ServiceOwner::new(namespace, name), 0).unwrap();
        let vips = maps.read_vips().unwrap();
        let address = vips.iter().find_map(|(address, value)| (value.id == vip).then_some(*address)).unwrap();
        let state = ServiceState { generation, vip: address, ..Default::default() };
        maps.service_states.set(slot, state, 0).unwrap();
        let key = ServiceKey { vip, port: port.to_be(), protocol: protocol.number(), padding: 0 };
        maps.services.insert(key, value, 0).unwrap();
    }

    /// Adds an IPv6 VIP with a backend on this node and one on node-b, and a record of a flow to
    /// that one.
    pub(super) fn add_ipv6(&mut self) {
        let maps = &mut self.fixture.maps;
        let leading = VipValue { id: 3, flags: VIP_LEADING, interfaces: 1, vlan: 0, epoch: 4 };
        maps.vips.insert(address("2001:db8::10"), leading, 0).unwrap();
        for (index, ip, node, flags) in [(6, "fd00::1", 0, BACKEND_LOCAL), (7, "fd00:0:0:1::1", 1, 0)] {
            let (address, port, flags) = (address(ip), 8080_u16.to_be(), flags | BACKEND_READY);
            let backend = Backend { address, port, flags, node, generation: 10 + index, reserved: 0 };
            maps.backends.set(index, backend, 0).unwrap();
        }
        let key = FlowKey {
            client: address("2001:db8:f::7"),
            vip: 3,
            client_port: 1000_u16.to_be(),
            vip_port: 80_u16.to_be(),
            protocol: 6,
            ..FlowKey::default()
        };
        let seen = u32::try_from(NOW % (1 << 32)).unwrap();
        let (backend, slot, slot_generation) = (7, 7, 107);
        let flow = FlowRecord { backend, backend_generation: 17, slot, slot_generation, seen, ..FlowRecord::default() };
        self.record(key, flow);
        self.service(7, (3, 80, Protocol::Tcp), ("shop", "six"), &[6, 7], &[6]);
    }

    fn record(&mut self, key: FlowKey, flow: FlowRecord) {
        let FlowKey { client, vip, client_port, vip_port, protocol, .. } = key;
        let protocol = u8::try_from(protocol).unwrap();
        let flow = FlowRecord { client, vip, client_port, vip_port, protocol, ..flow };
        assert!(self.fixture.maps.writable_flow_table().unwrap().add(flow));
    }

    /// Adds an SCTP port to the first VIP and to the IPv6 VIP.
    pub(super) fn add_sctp(&mut self) {
        self.service(8, (1, 8080, Protocol::Sctp), ("phone", "four"), &[0, 1, 5], &[0]);
        self.service(9, (3, 8080, Protocol::Sctp), ("phone", "six"), &[6, 7], &[6]);
    }

    fn counts(&mut self) {
        let on_the_first_cpu = |packets, bytes, flows| {
            let mut counts = vec![Count::default(); nr_cpus().unwrap()];
            counts[0] = Count { packets, bytes, flows };
            PerCpuValues::try_from(counts).unwrap()
        };
        let maps = &mut self.fixture.maps;
        maps.service_stats.set(0, on_the_first_cpu(10, 1000, 3), 0).unwrap();
        maps.stats.set(Stat::Local as u32, on_the_first_cpu(4, 400, 0), 0).unwrap();
        maps.drops.set(DropReason::NoService as u32, on_the_first_cpu(2, 120, 0), 0).unwrap();
    }

    /// Adds a flow record in each state; client ports from 1000, one second between them.
    pub(super) fn record_flows(&mut self) {
        let valid = |backend: u32| FlowRecord {
            backend,
            backend_generation: 10 + backend,
            slot_generation: 100,
            ..FlowRecord::default()
        };
        let flags = |flags: u32| u8::try_from(flags).unwrap();
        for (i, mut flow) in (0_u16..).zip([
            FlowRecord { flags: flags(FLOW_REPLIES), ..valid(0) },
            // The client has contacted the backend directly.
            FlowRecord { flags: flags(FLOW_REPLIES | FLOW_DIRECT | FLOW_RESET | FLOW_CLIENT_FIN), ..valid(0) },
            FlowRecord { flags: flags(FLOW_CLIENT_FIN), ..valid(1) },
            FlowRecord { backend_generation: 9, ..valid(1) },
            FlowRecord { slot_generation: 99, ..valid(1) },
            FlowRecord { flags: flags(FLOW_NEW | FLOW_HALF_OPEN), ..valid(1) },
            valid(1),
        ]) {
            let key = FlowKey {
                client: address("198.51.100.7"),
                vip: if i == 6 { 9 } else { 1 },
                client_port: (1000 + i).to_be(),
                vip_port: 80_u16.to_be(),
                protocol: 6,
                ..FlowKey::default()
            };
            let age = u32::from(i) * HZ + if i == 6 { IDLE + 60 * HZ } else { 0 };
            flow.seen = u32::try_from(NOW % (1 << 32)).unwrap().wrapping_sub(age);
            self.record(key, flow);
        }
    }
}
