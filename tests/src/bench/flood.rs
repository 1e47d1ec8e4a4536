//! What floods of forged packets do to other connections. A packet is a step of 2 us, so this is half a
//! million per second on any machine. Only the order of records that came within one jiffy depends on
//! its speed.

use std::{collections::VecDeque, net::Ipv4Addr};

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use vipmux_common::abi::Stat;

use super::workload::{self, CLIENT_MAC, LOCAL, PORT, REMOTE, SELF_MAC, TCP, UDP};
use crate::{
    frames::{ACK, Ethernet, Ipv4, PSH, RST, SYN, Tcp, Udp},
    program::{Hook, Program},
};

/// Numbers of records, and the packets that meet them. Of SYNs: a small table, the smallest default, and one that
/// the flood fills three times.
const FLOODS: [(Kind, u32, u32); 9] = [
    (Kind::Syns, 4_096, 100_000),
    (Kind::Syns, SMALLEST, 200_000),
    (Kind::Syns, 65_536, 200_000),
    (Kind::Acks, SMALLEST, 150_000),
    (Kind::Resets, SMALLEST, 150_000),
    (Kind::Datagrams, SMALLEST, 150_000),
    (Kind::Handshakes, SMALLEST, 150_000),
    (Kind::DatagramPairs, SMALLEST, 150_000),
    (Kind::HandshakesElsewhere, SMALLEST, 150_000),
];
/// An agent's smallest default.
const SMALLEST: u32 = 16_384;
/// Established and idle connections before the flood: half to a backend here, half to another node.
const CONNECTIONS: u32 = 1_000;
const SERVICES: u32 = 10;
/// Packets between two honest connections.
const BETWEEN: u32 = 200;
/// Packets until a backend answers: a millisecond.
const UNTIL_REPLY: u32 = 500;
/// Packets until a client answers: 100 milliseconds.
const UNTIL_ACK: u32 = 50_000;

const PASS: u32 = 2;
const TX: u32 = 3;
const NEXT: u32 = u32::MAX;
/// Where a frame has its destination's MAC, address and port.
const MAC: std::ops::Range<usize> = 0..6;
const DESTINATION: std::ops::Range<usize> = 30..34;
const DESTINATION_PORT: std::ops::Range<usize> = 36..38;
const CLIENTS_ISN: u32 = 1_000;
const BACKENDS_ISN: u32 = 77;

/// The packets of a flood. No backend answers them, as behind a NetworkPolicy that drops them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// SYNs, each of another client.
    Syns,
    /// ACKs.
    Acks,
    /// RSTs.
    Resets,
    /// Datagrams.
    Datagrams,
    /// A SYN and an ACK of each client.
    Handshakes,
    /// Two datagrams of each client.
    DatagramPairs,
    /// A SYN and an ACK of each client, to backends on other nodes.
    HandshakesElsewhere,
}

impl Kind {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syns => "SYNs",
            Self::Acks => "ACKs",
            Self::Resets => "RSTs",
            Self::Datagrams => "datagrams",
            Self::Handshakes => "SYNs and ACKs",
            Self::DatagramPairs => "pairs of datagrams",
            Self::HandshakesElsewhere => "SYNs and ACKs to other nodes",
        }
    }

    /// Returns whether its packets prove a flow to a backend on another node, as far as a node can tell that never
    /// sees the answers. New records of flows to other nodes then find no room.
    pub const fn fills_tables(self) -> bool {
        matches!(self, Self::HandshakesElsewhere)
    }

    /// Sends its next packet. Returns whether it was forwarded.
    fn send(self, program: &Program, number: u32) -> Result<bool> {
        let to = if self == Self::HandshakesElsewhere { REMOTE } else { LOCAL };
        let first = number.is_multiple_of(2);
        let (flow, flags) = match self {
            Self::Syns => (number, SYN),
            Self::Acks => (number, ACK),
            Self::Resets => (number, RST),
            Self::Handshakes | Self::HandshakesElsewhere => (number / 2, if first { SYN } else { ACK }),
            Self::Datagrams => return Connection::of(to, 10, number)?.send_datagram(program),
            Self::DatagramPairs => return Connection::of(to, 10, number / 2)?.send_datagram(program),
        };
        Ok(Connection::of(to, 10, flow)?.send(program, flags)?.is_some())
    }
}

/// A flood of half a million packets per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flood {
    /// Its packets.
    pub kind: Kind,
    /// Records of the flow table.
    pub records: u32,
    /// Of 1,000 established and idle connections, those whose next data went astray, to or from the
    /// backend.
    pub lost: usize,
    /// Live records that were given to other flows.
    pub evicted: usize,
    /// Connections without a record after the flood.
    pub forgotten: usize,
    /// The share of new connections that exchanged data, each within 101 ms.
    pub succeeded: f64,
}

/// A client's connection.
#[derive(Clone, Copy)]
struct Connection {
    client: Ipv4Addr,
    port: u16,
    to: Ipv4Addr,
    /// The backend here, or the MAC of its node.
    end: [u8; 6],
}

impl Connection {
    /// Returns a connection of a network of its own, by number.
    fn of(to: Ipv4Addr, network: u8, number: u32) -> Result<Self> {
        let host = number.wrapping_mul(0x9e37_79b1) >> 8;
        let client = Ipv4Addr::from(u32::from(network) << 24 | host);
        Ok(Self { client, port: 1024 + u16::try_from(number % 60_000)?, to, end: [0; 6] })
    }

    /// Opens it. `None`: the SYN was not forwarded.
    fn open(program: &Program, to: Ipv4Addr, network: u8, number: u32) -> Result<Option<Self>> {
        let connection = Self::of(to, network, number)?;
        Ok(connection.send(program, SYN)?.map(|end| Self { end, ..connection }))
    }

    /// Sends a client's datagram. Returns whether it was forwarded.
    fn send_datagram(self, program: &Program) -> Result<bool> {
        let packet = Ipv4::udp(self.client, self.to, Udp::new(self.port, PORT, &[0; 18]));
        let outcome = program.run(Hook::Ingress, &Ethernet::new(CLIENT_MAC, SELF_MAC).ipv4(&packet))?;
        Ok([PASS, TX].contains(&outcome.verdict))
    }

    /// Sends a client's segment. Returns where it went.
    fn send(self, program: &Program, flags: u8) -> Result<Option<[u8; 6]>> {
        let tcp = Tcp::new(self.port, PORT, flags).numbers(CLIENTS_ISN, BACKENDS_ISN + 1);
        let frame = Ethernet::new(CLIENT_MAC, SELF_MAC).ipv4(&Ipv4::tcp(self.client, self.to, tcp));
        let outcome = program.run(Hook::Ingress, &frame)?;
        let mut end = [0; 6];
        match outcome.verdict {
            PASS if outcome.frame[DESTINATION] != self.to.octets() => {
                end[..4].copy_from_slice(&outcome.frame[DESTINATION]);
                end[4..].copy_from_slice(&outcome.frame[DESTINATION_PORT]);
            }
            TX => end.copy_from_slice(&outcome.frame[MAC]),
            _ => return Ok(None),
        }
        Ok(Some(end))
    }

    /// Whether the client's segment goes where the SYN went.
    fn asks(self, program: &Program, flags: u8) -> Result<bool> {
        Ok(self.send(program, flags)? == Some(self.end))
    }

    /// Whether the backend's segment leaves with the VIP's address.
    fn is_answered(self, program: &Program, flags: u8) -> Result<bool> {
        let frame = |address, port| {
            let tcp = Tcp::new(port, self.port, flags).numbers(BACKENDS_ISN, CLIENTS_ISN + 1);
            Ethernet::new(SELF_MAC, CLIENT_MAC).ipv4(&Ipv4::tcp(address, self.client, tcp))
        };
        let [a, b, c, d, high, low] = self.end;
        let sent = frame(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]));
        let outcome = program.run(Hook::Egress, &sent)?;
        Ok(outcome.verdict == NEXT && outcome.frame == frame(LOCAL, PORT))
    }
}

/// Measures all kinds, and SYNs with tables of several sizes.
pub fn run(progress: &mut dyn FnMut(&str)) -> Result<Vec<Flood>> {
    let one = |(kind, records, packets): (Kind, _, _)| {
        progress(&format!("flood: {packets} {} with {records} records", kind.name()));
        flood(kind, records, packets)
    };
    FLOODS.map(one).into_iter().collect()
}

fn flood(kind: Kind, records: u32, packets: u32) -> Result<Flood> {
    let program = Program::load(&workload::state_of(SERVICES, &[TCP, UDP])?, records)?;
    let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
    // One after the other: many half-open connections would be a flood.
    for number in 0..CONNECTIONS / 2 {
        here.extend(Connection::open(&program, LOCAL, 200, number)?);
        elsewhere.extend(Connection::open(&program, REMOTE, 201, number)?);
        let ([.., here], [.., elsewhere]) = (&here[..], &elsewhere[..]) else {
            bail!("a SYN before the flood was not forwarded")
        };
        let is_open = here.is_answered(&program, SYN | ACK)? && here.asks(&program, ACK)?;
        ensure!(is_open && elsewhere.asks(&program, ACK)?, "a connection before the flood did not succeed");
    }
    let before = program.counters()?;
    let succeeded = beside(&program, kind, packets)?;
    let counted = program.counters()?;
    let evicted = usize::try_from(counted.since(&before).stats[Stat::EvictedLive as usize].packets)?;
    let mut lost = 0;
    for connection in &here {
        // First the backend: it has no other way than the record.
        let goes_on = connection.is_answered(&program, ACK | PSH)? && connection.asks(&program, ACK)?;
        lost += usize::from(!goes_on);
    }
    for connection in &elsewhere {
        lost += usize::from(!connection.asks(&program, ACK)?);
    }
    let forgotten = program.counters()?.since(&counted).stats[Stat::NewFlows as usize].packets;
    Ok(Flood { kind, records, lost, evicted, forgotten: usize::try_from(forgotten)?, succeeded })
}

/// Sends the packets. Returns the share of the honest connections beside them that succeeded.
fn beside(program: &Program, kind: Kind, packets: u32) -> Result<f64> {
    let (mut begun, mut answered) = (VecDeque::new(), VecDeque::new());
    let (mut succeeded, mut all) = (0_u32, 0_u32);
    for number in 0..packets {
        ensure!(kind.send(program, number)?, "packet {number} was dropped");
        if number % BETWEEN == 0 && number + UNTIL_ACK < packets {
            all += 1;
            let connection = Connection::open(program, LOCAL, 100, number)?;
            begun.extend(connection.map(|connection| (number + UNTIL_REPLY, connection)));
        }
        if let Some((_, connection)) = begun.pop_front_if(|(time, _)| *time <= number)
            && connection.is_answered(program, SYN | ACK)?
        {
            answered.push_back((number + UNTIL_ACK - UNTIL_REPLY, connection));
        }
        if let Some((_, connection)) = answered.pop_front_if(|(time, _)| *time <= number)
            && connection.asks(program, ACK)?
            && connection.asks(program, ACK | PSH)?
            && connection.is_answered(program, ACK | PSH)?
        {
            succeeded += 1;
        }
    }
    Ok(f64::from(succeeded) / f64::from(all))
}
