//! Reads and shows the flow records: `inspect flows`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;
use vipmux_common::abi::{
    BACKEND_LOCAL, Backend, Config, FLOW_CLIENT_FIN, FLOW_RESET, FlowKey, FlowValue, Node, NodeLabel, ReverseKey,
    SERVICE_DIRECT, ServiceState,
};

use super::{
    clock::Clock,
    freshness::{self, Stale},
    lookup::LookupMaps,
    names::{self, Names},
};
use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_datapath::bpf::maps::{Maps, MapsError};

/// The backend of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowBackend {
    /// The endpoint's address.
    pub address: IpAddr,
    /// The endpoint's port.
    pub port: u16,
    /// Its node; `None`: the node is gone.
    pub node: Option<String>,
    /// It is on this node.
    pub local: bool,
}

/// The state of a flow's connection, as far as the client's packets and resets show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Neither of the following; always for UDP.
    Open,
    /// The client sent FIN.
    ClientFin,
    /// Either side sent RST.
    Reset,
}

/// A flow record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowView {
    /// The client's address.
    pub client: IpAddr,
    /// The client's port.
    pub client_port: u16,
    /// The VIP; `None`: it is gone.
    pub vip: Option<IpAddr>,
    /// The Service's port.
    pub vip_port: u16,
    /// `TCP`, `UDP`, or a number.
    pub protocol: String,
    /// The backend; `None`: its index was reused or freed.
    pub backend: Option<FlowBackend>,
    /// Milliseconds since the client's last packet, accurate to half a second.
    pub age_ms: u64,
    /// The state of the connection.
    pub phase: Phase,
    /// Why the record is no longer valid; `None`: it is valid.
    pub stale: Option<Stale>,
    /// True if replies are translated here; `None`: the backend is on another node, or answers from
    /// the VIP itself (direct server return).
    pub replies: Option<bool>,
}

/// Flow records, the newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Flows {
    /// The greatest number of records.
    pub limit: usize,
    /// There are more records; the ones shown are arbitrary.
    pub truncated: bool,
    /// The records.
    pub flows: Vec<FlowView>,
}

struct Reader<'maps> {
    maps: &'maps Maps,
    clock: &'maps Clock,
    config: Config,
    names: Names,
    backends: BTreeMap<u32, Backend>,
    nodes: BTreeMap<u32, (NodeLabel, Node)>,
    states: BTreeMap<u32, ServiceState>,
}

impl Reader<'_> {
    fn replies(&self, key: &FlowKey, backend: &Backend) -> Result<bool, MapsError> {
        let key = ReverseKey {
            backend: backend.address,
            client: key.client,
            backend_port: names::port(backend, key.vip_port),
            client_port: key.client_port,
            protocol: key.protocol,
        };
        let reverse = LookupMaps(self.maps).reverse(&key)?;
        Ok(reverse.is_some_and(|reverse| freshness::translates((&key, &reverse), &self.config, self.clock)))
    }

    fn view(&self, key: &FlowKey, flow: &FlowValue) -> Result<FlowView, MapsError> {
        let backend = self.backends.get(&flow.backend);
        let vouched = freshness::is_vouched(flow, self.nodes.get(&flow.node.into()).map(|(_, node)| node));
        let slot = self.states.get(&flow.slot);
        let stale = freshness::stale((key, flow), vouched, backend, slot, &self.config, self.clock);
        let backend = backend.filter(|backend| backend.generation == flow.backend_generation);
        let direct = slot.is_some_and(|state| state.flags & SERVICE_DIRECT != 0);
        let is_local = |backend: &Backend| backend.flags & BACKEND_LOCAL != 0;
        let local = backend.filter(|backend| is_local(backend));
        let flag = |flag| u32::from(flow.flags) & flag != 0;
        Ok(FlowView {
            client: key.client.into(),
            client_port: u16::from_be(key.client_port),
            vip: self.names.vips.get(&key.vip).copied(),
            vip_port: u16::from_be(key.vip_port),
            protocol: names::protocol(key.protocol),
            backend: backend.map(|backend| FlowBackend {
                address: backend.address.into(),
                port: u16::from_be(names::port(backend, key.vip_port)),
                node: self.names.nodes.get(&backend.node).cloned(),
                local: is_local(backend),
            }),
            age_ms: u64::try_from(self.clock.since(self.clock.full(flow.seen)).as_millis()).unwrap_or(u64::MAX),
            phase: match (flag(FLOW_RESET), flag(FLOW_CLIENT_FIN)) {
                (true, _) => Phase::Reset,
                (false, true) => Phase::ClientFin,
                (false, false) => Phase::Open,
            },
            stale,
            replies: local.filter(|_| !direct).map(|backend| self.replies(key, backend)).transpose()?,
        })
    }
}

impl Flows {
    /// Reads at most `limit` records.
    pub fn read(maps: &Maps, clock: &Clock, limit: usize) -> Result<Self, MapsError> {
        // Read first, so that the entries they refer to are at least as new.
        let mut records = maps.read_flows(limit.saturating_add(1))?;
        let truncated = records.len() > limit;
        records.truncate(limit);
        let reader = Reader {
            maps,
            clock,
            config: maps.read_config()?,
            names: Names::read(maps)?,
            backends: maps.read_backends()?,
            nodes: maps.read_nodes()?,
            states: maps.read_service_states()?,
        };
        records.sort_by_key(|(key, flow)| (std::cmp::Reverse(clock.full(flow.seen)), *key));
        let flows: Result<_, _> = records.iter().map(|(key, flow)| reader.view(key, flow)).collect();
        Ok(Self { limit, truncated, flows: flows? })
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

fn row(flow: &FlowView) -> [Cell; 9] {
    let backend = flow.backend.as_ref();
    let vip =
        flow.vip.map_or_else(|| format!("?:{}", flow.vip_port), |vip| SocketAddr::new(vip, flow.vip_port).to_string());
    let phase = match flow.phase {
        Phase::Open => "open",
        Phase::ClientFin => "client fin",
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
        flow.protocol.as_str().into(),
        backend.map_or_else(String::new, |b| SocketAddr::new(b.address, b.port).to_string()).into(),
        backend.map_or("", |backend| backend.node.as_deref().unwrap_or("?")).into(),
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
        for flow in &self.flows {
            table.row(row(flow));
        }
        table.print(out, color)?;
        if self.truncated {
            writeln!(out, "(only {} flows shown; use --limit for more)", self.limit)?;
        }
        Ok(())
    }
}
