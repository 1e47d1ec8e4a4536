//! Reads and shows the flow records: `inspect flows`.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    io::{self, Write},
    net::{IpAddr, SocketAddr},
};

use serde::{Serialize, Serializer};
use vipmux_common::abi::{
    BACKEND_LOCAL, Backend, Config, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_HALF_OPEN, FLOW_RESET, FLOW_UNPROVEN,
    FlowRecord, Node, NodeLabel, SERVICE_DIRECT, ServiceState, UDP,
};

use super::{
    clock::Clock,
    freshness::{self, Stale},
    names::{self, Names},
};
use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_datapath::bpf::{
    flow_table::FlowState,
    maps::{Maps, MapsError},
};

/// The backend of a flow.
#[derive(Serialize)]
struct FlowBackend<'names> {
    /// The endpoint's address.
    address: IpAddr,
    /// The endpoint's port.
    port: u16,
    /// Its node; `None`: the node is gone.
    node: Option<&'names str>,
    /// It is on this node.
    local: bool,
}

/// The state of a flow's connection, as far as the client's packets and resets show it.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    /// The client has sent nothing but SYNs.
    HalfOpen,
    /// Not both sides have spoken in another way: the backend here has sent nothing, or the client one packet.
    Unconfirmed,
    /// None of the others.
    Open,
    /// The client sent FIN.
    ClientFin,
    /// Both sides sent FIN.
    Closed,
    /// Either side sent RST.
    Reset,
}

impl Phase {
    fn of(flow: &FlowRecord) -> Self {
        let has = |flags| u32::from(flow.flags) & flags == flags;
        let is_datagrams = flow.protocol == UDP;
        if has(FLOW_RESET) && !is_datagrams {
            Self::Reset
        } else if has(FLOW_CLIENT_FIN | FLOW_BACKEND_FIN) {
            Self::Closed
        } else if has(FLOW_CLIENT_FIN) {
            Self::ClientFin
        } else if has(FLOW_HALF_OPEN) && !is_datagrams {
            Self::HalfOpen
        } else if u32::from(flow.flags) & FLOW_UNPROVEN != 0 {
            Self::Unconfirmed
        } else {
            Self::Open
        }
    }
}

/// A flow record.
#[derive(Serialize)]
struct FlowView<'names> {
    /// The client's address.
    client: IpAddr,
    /// The client's port.
    client_port: u16,
    /// The VIP; `None`: it is gone.
    vip: Option<IpAddr>,
    /// The Service's port.
    vip_port: u16,
    /// `TCP`, `UDP`, or a number.
    protocol: Cow<'static, str>,
    /// The backend; `None`: its index was reused or freed.
    backend: Option<FlowBackend<'names>>,
    /// Milliseconds since the last packet, or up to a second more. With translated replies, a
    /// packet of either side; else of the client.
    age_ms: u64,
    /// The state of the connection.
    phase: Phase,
    /// Why the record is no longer valid; `None`: it is valid.
    stale: Option<Stale>,
    /// True if replies are translated here; `None`: the backend is on another node, or answers from
    /// the VIP itself (direct server return).
    replies: Option<bool>,
}

/// Flow records, the newest first.
#[derive(Debug, Serialize)]
pub struct Flows {
    /// The greatest number of records.
    pub limit: usize,
    /// There are more records; the ones shown are arbitrary.
    pub truncated: bool,
    /// The number of records that the table has room for.
    pub capacity: usize,
    /// The number of records in each state.
    pub occupancy: BTreeMap<FlowState, usize>,
    /// The records.
    #[serde(rename = "flows")]
    shown: Shown,
}

/// Records, and what they refer to. A view of each is made when it is shown: there can be millions.
#[derive(Debug)]
struct Shown {
    records: Vec<FlowRecord>,
    clock: Clock,
    config: Config,
    names: Names,
    backends: BTreeMap<u32, Backend>,
    nodes: BTreeMap<u32, (NodeLabel, Node)>,
    states: BTreeMap<u32, ServiceState>,
}

impl Shown {
    fn views(&self) -> impl Iterator<Item = FlowView<'_>> {
        self.records.iter().map(|flow| self.view(flow))
    }

    fn view(&self, flow: &FlowRecord) -> FlowView<'_> {
        let backend = self.backends.get(&flow.backend);
        let vouched = freshness::is_vouched(flow, self.nodes.get(&flow.node.into()).map(|(_, node)| node));
        let slot = self.states.get(&flow.slot);
        let stale = freshness::stale(flow, vouched, backend, slot, &self.config, &self.clock);
        let backend = backend.filter(|backend| backend.is_of(flow.backend_generation));
        let direct = slot.is_some_and(|state| state.flags & SERVICE_DIRECT != 0);
        let is_local = |backend: &Backend| backend.flags & BACKEND_LOCAL != 0;
        let local = backend.filter(|backend| is_local(backend));
        FlowView {
            client: flow.client.into(),
            client_port: u16::from_be(flow.client_port),
            vip: self.names.vips.get(&flow.vip).copied(),
            vip_port: u16::from_be(flow.vip_port),
            protocol: names::protocol(flow.protocol.into()),
            backend: backend.map(|backend| FlowBackend {
                address: backend.address.into(),
                port: u16::from_be(names::port(backend, flow.vip_port)),
                node: self.names.nodes.get(&backend.node).map(String::as_str),
                local: is_local(backend),
            }),
            age_ms: u64::try_from(self.clock.since(self.clock.full(flow.seen)).as_millis()).unwrap_or(u64::MAX),
            phase: Phase::of(flow),
            stale,
            replies: local.filter(|_| !direct).map(|_| freshness::translates(flow, slot, &self.config, &self.clock)),
        }
    }
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.views())
    }
}

impl Flows {
    /// Reads at most `limit` records.
    pub fn read(maps: &Maps, clock: &Clock, limit: usize) -> Result<Self, MapsError> {
        // Read first, so that the entries they refer to are at least as new.
        let table = maps.flow_table()?;
        let mut occupancy: BTreeMap<_, _> = FlowState::ALL.into_iter().map(|state| (state, 0)).collect();
        let mut records = Vec::new();
        for record in table.records() {
            *occupancy.entry(FlowState::of(&record)).or_default() += 1;
            if records.len() < limit {
                records.push(record);
            }
        }
        let truncated = occupancy.values().sum::<usize>() > records.len();
        let newest_first = |one: &FlowRecord, other: &FlowRecord| clock.full(other.seen).cmp(&clock.full(one.seen));
        records.sort_unstable_by(|one, other| newest_first(one, other).then_with(|| one.key().cmp(&other.key())));
        let shown = Shown {
            records,
            clock: *clock,
            config: maps.read_config()?,
            names: Names::read(maps)?,
            backends: maps.read_backends()?,
            nodes: maps.read_nodes()?,
            states: maps.read_service_states()?,
        };
        Ok(Self { limit, truncated, capacity: table.capacity(), occupancy, shown })
    }
}

/// An age in milliseconds, shown in the greatest unit of which it has two.
struct Age(u64);

impl Display for Age {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (number, unit) = match seconds {
            0..120 => (seconds, "s"),
            120..7200 => (seconds / 60, "m"),
            _ => (seconds / 3600, "h"),
        };
        f.write_str(itoa::Buffer::new().format(number))?;
        f.write_str(unit)
    }
}

/// An address and a port, shown as by [`SocketAddr`]; `?` stands for an address that is gone.
struct Endpoint(Option<IpAddr>, u16);

impl Display for Endpoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(address, port) = *self;
        match address {
            // Most addresses. `SocketAddr` takes more than twice the time.
            Some(IpAddr::V4(address)) => {
                let (mut text, mut length) = ([0; "255.255.255.255:65535".len()], 0);
                let mut add = |part: &str| {
                    text[length..][..part.len()].copy_from_slice(part.as_bytes());
                    length += part.len();
                };
                let mut number = itoa::Buffer::new();
                for (octet, end) in address.octets().into_iter().zip([".", ".", ".", ":"]) {
                    add(number.format(octet));
                    add(end);
                }
                add(number.format(port));
                f.write_str(str::from_utf8(&text[..length]).map_err(|_| fmt::Error)?)
            }
            Some(IpAddr::V6(address)) => SocketAddr::new(address.into(), port).fmt(f),
            None => write!(f, "?:{port}"),
        }
    }
}

fn add_row(table: &mut Table, flow: &FlowView<'_>) {
    let phase = match flow.phase {
        Phase::HalfOpen => "half open",
        Phase::Unconfirmed => "unconfirmed",
        Phase::Open => "open",
        Phase::ClientFin => "client fin",
        Phase::Closed => "closed",
        Phase::Reset => "reset",
    };
    let replies = match flow.replies {
        None => Cell::from(""),
        Some(true) => "translated".into(),
        Some(false) => Cell::toned("not translated", Tone::Warn),
    };
    let client = Endpoint(Some(flow.client), flow.client_port);
    let service = Endpoint(flow.vip, flow.vip_port);
    let backend = flow.backend.as_ref().map(|backend| Endpoint(Some(backend.address), backend.port));
    table.row([
        Cell::display(&client),
        Cell::display(&service),
        flow.protocol.as_ref().into(),
        backend.as_ref().map_or("".into(), |backend| Cell::display(backend)),
        flow.backend.as_ref().map_or("", |backend| backend.node.unwrap_or("?")).into(),
        Cell::display(&Age(flow.age_ms)),
        phase.into(),
        flow.stale.map_or(Cell::toned("valid", Tone::Good), |stale| Cell::toned(format!("stale: {stale}"), Tone::Warn)),
        replies,
    ]);
}

impl Report for Flows {
    const KIND: &'static str = "flows";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let header = ["CLIENT", "SERVICE", "PROTO", "BACKEND", "NODE", "AGE", "STATE", "RECORD", "REPLIES"];
        let mut table = Table::new(&header).right_aligned(&["AGE"]);
        for flow in self.shown.views() {
            add_row(&mut table, &flow);
        }
        table.print(out, color)?;
        if self.truncated {
            writeln!(out, "(only {} flows shown; use --limit for more)", self.limit)?;
        }
        let states: Vec<_> =
            self.occupancy.iter().map(|(state, count)| format!("{count} {}", state.name().replace('_', " "))).collect();
        let used: usize = self.occupancy.values().sum();
        writeln!(out, "\n{used} of {} records are used: {}", self.capacity, states.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_shown_like_a_socket_address() {
        for text in ["0.0.0.0:0", "10.0.0.1:80", "192.0.2.199:8080", "255.255.255.255:65535", "[2001:db8::1]:443"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Endpoint(Some(address.ip()), address.port()).to_string(), text);
        }
        assert_eq!(Endpoint(None, 80).to_string(), "?:80");
    }

    #[test]
    fn an_age_is_shown_in_the_greatest_unit_of_which_it_has_two() {
        let shown = [999, 119_999, 120_000, 7_199_999, 7_200_000].map(|age| Age(age).to_string());
        assert_eq!(shown, ["0s", "119s", "2m", "119m", "2h"]);
    }
}
