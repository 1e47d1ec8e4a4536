//! Reads and shows the flow records: `inspect flows`.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{self, Write},
    net::{IpAddr, SocketAddr},
};

use serde::{Serialize, Serializer};
use vipmux_common::abi::{
    BACKEND_LOCAL, Backend, Config, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_HALF_OPEN, FLOW_NEW, FLOW_RESET,
    FlowRecord, Node, NodeLabel, SERVICE_DIRECT, ServiceState,
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
    /// The client has sent one packet.
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
        if has(FLOW_RESET) {
            Self::Reset
        } else if has(FLOW_CLIENT_FIN | FLOW_BACKEND_FIN) {
            Self::Closed
        } else if has(FLOW_CLIENT_FIN) {
            Self::ClientFin
        } else if has(FLOW_HALF_OPEN) {
            Self::HalfOpen
        } else if has(FLOW_NEW) {
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
        records.sort_unstable_by_key(|flow| (std::cmp::Reverse(clock.full(flow.seen)), flow.key()));
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

fn age(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        _ => format!("{}h", seconds / 3600),
    }
}

fn row<'flow>(flow: &'flow FlowView<'_>) -> [Cell<'flow>; 9] {
    let backend = flow.backend.as_ref();
    let vip =
        flow.vip.map_or_else(|| format!("?:{}", flow.vip_port), |vip| SocketAddr::new(vip, flow.vip_port).to_string());
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
    [
        SocketAddr::new(flow.client, flow.client_port).to_string().into(),
        vip.into(),
        flow.protocol.as_ref().into(),
        backend.map_or_else(String::new, |b| SocketAddr::new(b.address, b.port).to_string()).into(),
        backend.map_or("", |backend| backend.node.unwrap_or("?")).into(),
        age(flow.age_ms).into(),
        phase.into(),
        flow.stale.map_or(Cell::toned("valid", Tone::Good), |stale| Cell::toned(format!("stale: {stale}"), Tone::Warn)),
        replies,
    ]
}

impl Report for Flows {
    const KIND: &'static str = "flows";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let header = ["CLIENT", "SERVICE", "PROTO", "BACKEND", "NODE", "AGE", "STATE", "RECORD", "REPLIES"];
        let mut table = Table::new(&header).right_aligned(&["AGE"]);
        for flow in self.shown.views() {
            table.row(row(&flow));
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
