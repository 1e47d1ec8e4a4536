//! A node with many Services of ten endpoints each. Half of them have all endpoints elsewhere, half
//! have all here.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use vipmux_common::abi::{
    Address, BACKEND_LOCAL, BACKEND_READY, Backend, Config, Interface, Mac as AbiMac, NODE_SELF, Node, ServiceKey,
    ServiceState, ServiceValue, VIP_LEADING, VipValue,
};

use crate::{
    frames::{Ethernet, Ipv4, Mac, Tcp, Udp},
    program::{FLOW_SECRET, IFINDEX, State},
};

/// The address of the Services whose backends are on other nodes.
pub(super) const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The address of the Services whose backends are on this node.
pub(super) const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// An address that is no VIP.
pub(super) const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
/// The first client of each case. No client has flows to both addresses: records of one client port
/// are in one set, and the second one takes longer to find.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
pub(super) const OTHER_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 192, 0, 0);
/// The same for Services whose backends are on this node.
pub(super) const LOCAL_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 160, 0, 0);
pub(super) const OTHER_LOCAL_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 224, 0, 0);
pub(super) const FLOOD_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// The Services that flows of cases named "few" go to, however many Services there are.
pub(super) const FEW: u32 = 5;
/// The first Service's port on either address. The others follow.
pub(super) const PORT: u16 = 20_000;
const ENDPOINTS: u32 = 10;
/// A Maglev table's length for ten endpoints. Its content hardly matters if it is balanced.
const TABLE: u32 = 251;
const NODES: u32 = 10;
pub(super) const SELF_MAC: Mac = [2, 0, 0, 0, 0, 1];
/// As an agent makes one by default.
const HANDOVER_MAC: Mac = [0x0e, 0, 0, 0, 0, 1];
pub(super) const CLIENT_MAC: Mac = [2, 0, 0, 0, 0, 0xc1];

/// Returns a client's segment with these flags to the first Service on an address.
pub(super) fn segment(from: Ipv4Addr, to: Ipv4Addr, flags: u8) -> Vec<u8> {
    Ethernet::new(CLIENT_MAC, SELF_MAC).ipv4(&Ipv4::tcp(from, to, Tcp::new(1024, PORT, flags)))
}

/// Returns a client's datagram to the first Service on an address.
pub(super) fn datagram(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    Ethernet::new(CLIENT_MAC, SELF_MAC).ipv4(&Ipv4::udp(from, to, Udp::new(1024, PORT, &[0; 18])))
}

/// Returns the maps' contents for this number of Services of that protocol: an even number, as far
/// as ports allow.
pub(super) fn state(services: u32, protocol: u8) -> Result<State> {
    state_of(services, &[protocol])
}

/// The same with as many Services of each protocol.
pub(super) fn state_of(services: u32, protocols: &[u8]) -> Result<State> {
    ensure!(services > 0 && services.is_multiple_of(2), "{services} is no even number of Services");
    ensure!(services / 2 <= u32::from(u16::MAX - PORT), "{services} Services are more than two addresses have ports");
    let mut state = State {
        config: Config {
            next_generation: 2,
            hz: 250,
            tcp_idle: u32::MAX,
            udp_idle: u32::MAX,
            closed_linger: u32::MAX,
            abandon_after: u32::MAX,
            fragment_life: u32::MAX,
            unclaimed: vipmux_common::abi::UNCLAIMED_DROP,
            answers_per_second: 0,
            flow_secret: FLOW_SECRET,
            handover: AbiMac::new(HANDOVER_MAC),
            ..Config::default()
        },
        interfaces: vec![Interface::default(); IFINDEX + 1],
        nodes: (0..=NODES).map(node).collect::<Result<_>>()?,
        ..State::default()
    };
    state.interfaces[IFINDEX] = Interface { mac: AbiMac::new(SELF_MAC), bit: 1, flags: 0 };
    for (id, vip) in [(1, REMOTE), (2, LOCAL)] {
        let value = VipValue { id, flags: VIP_LEADING, interfaces: 1, vlan: 0, epoch: 1 };
        state.vips.insert(Address::from(vip), value);
        for protocol in protocols {
            for number in 0..services / 2 {
                add(&mut state, id, number, *protocol)?;
            }
        }
    }
    Ok(state.indexed())
}

/// Node 0 is this one.
fn node(index: u32) -> Result<Node> {
    let mac = AbiMac::new([2, 0, 0, 0, 0, u8::try_from(index + 1)?]);
    let flags = if index == 0 { NODE_SELF } else { Node::attached(0) };
    let ifindex = u32::try_from(IFINDEX)?;
    Ok(Node { mac, handover: AbiMac::default(), ifindex, mtu: 1500, flags, epoch: 1 + index })
}

/// Adds a Service with its own backends and table.
fn add(state: &mut State, vip: u32, number: u32, protocol: u8) -> Result<()> {
    let local = vip == 2;
    let (slot, first) = (u32::try_from(state.service_states.len())?, u32::try_from(state.backends.len())?);
    let table = u32::try_from(state.tables.len())?;
    for endpoint in 0..ENDPOINTS {
        let address = Ipv4Addr::from(0x0a00_0000 + first + endpoint);
        state.backends.push(Backend {
            address: address.into(),
            port: 8080_u16.to_be(),
            flags: BACKEND_READY | if local { BACKEND_LOCAL } else { 0 },
            node: if local { 0 } else { 1 + endpoint % NODES },
            generation: 1,
            reserved: 0,
        });
    }
    state.tables.extend((0..TABLE).map(|slot| first + slot % ENDPOINTS));
    let address = if local { LOCAL } else { REMOTE };
    state.service_states.push(ServiceState { generation: 1, vip: address.into(), ..Default::default() });
    let key = ServiceKey { vip, port: (PORT + u16::try_from(number)?).to_be(), protocol, padding: 0 };
    let value = ServiceValue {
        slot,
        generation: 1,
        table,
        table_length: TABLE,
        local_table: table,
        local_length: if local { TABLE } else { 0 },
        ..ServiceValue::default()
    };
    state.services.insert(key, value);
    Ok(())
}
