//! Reads and shows the backends: `inspect backends`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::IpAddr,
};

use serde::Serialize;
use vipmux_common::abi::{BACKEND_FAILING, BACKEND_LOCAL, BACKEND_READY};

use super::{
    names::{self, Claim, Names},
    services::Tables,
};
use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_datapath::bpf::maps::{Maps, MapsError};

/// The most claims of a backend that its row names.
const MOST_CLAIMS: usize = 3;

/// A backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackendView {
    /// Its index in `BACKENDS`.
    pub index: u32,
    /// The endpoint's address.
    pub address: IpAddr,
    /// The endpoint's port; 0: the port that the client asked for.
    pub port: u16,
    /// Its node; `None`: the node is gone.
    pub node: Option<String>,
    /// It is on this node.
    pub local: bool,
    /// It takes new flows; otherwise it drains or fails.
    pub ready: bool,
    /// It fails a health probe. If it is ready all the same, all backends of its Service port fail,
    /// or another Service does not probe it.
    pub failing: bool,
    /// The index's generation.
    pub generation: u32,
    /// The port claims whose tables contain it, so that new flows can reach it.
    pub used_by: Vec<Claim>,
}

/// All backends, by index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backends {
    /// The backends.
    pub backends: Vec<BackendView>,
}

fn users(maps: &Maps, names: &Names) -> Result<BTreeMap<u32, Vec<Claim>>, MapsError> {
    let mut tables = Tables::new(maps);
    let mut users: BTreeMap<u32, Vec<Claim>> = BTreeMap::new();
    for (key, value) in maps.read_services()? {
        for backend in tables.all(&value)?.iter() {
            users.entry(*backend).or_default().push(names.claim(&key, &value));
        }
    }
    for claims in users.values_mut() {
        claims.sort();
    }
    Ok(users)
}

impl Backends {
    /// Reads the backends.
    pub fn read(maps: &Maps) -> Result<Self, MapsError> {
        let names = Names::read(maps)?;
        let mut users = users(maps, &names)?;
        let backends = maps.read_backends()?.into_iter().map(|(index, backend)| BackendView {
            index,
            address: backend.address.into(),
            port: u16::from_be(backend.port),
            node: names.nodes.get(&backend.node).cloned(),
            local: backend.flags & BACKEND_LOCAL != 0,
            ready: backend.flags & BACKEND_READY != 0,
            failing: backend.flags & BACKEND_FAILING != 0,
            generation: backend.generation,
            used_by: users.remove(&index).unwrap_or_default(),
        });
        Ok(Self { backends: backends.collect() })
    }
}

fn used_by(claims: &[Claim]) -> String {
    let mut labels: Vec<String> = claims.iter().take(MOST_CLAIMS).map(Claim::label).collect();
    if claims.len() > MOST_CLAIMS {
        labels.push(format!("+{}", claims.len() - MOST_CLAIMS));
    }
    labels.join(",")
}

impl Report for Backends {
    const KIND: &'static str = "backends";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let mut table =
            Table::new(&["INDEX", "ADDRESS", "NODE", "LOCAL", "STATE", "USED BY"]).right_aligned(&["INDEX"]);
        for backend in &self.backends {
            let state = match (backend.ready, backend.failing) {
                (true, false) => Cell::toned("ready", Tone::Good),
                (true, true) => Cell::toned("ready, failing", Tone::Warn),
                (false, false) => Cell::toned("draining", Tone::Warn),
                (false, true) => Cell::toned("failing", Tone::Bad),
            };
            table.row([
                backend.index.to_string().into(),
                names::endpoint(backend.address, backend.port).into(),
                backend.node.as_deref().unwrap_or("?").into(),
                if backend.local { "yes" } else { "no" }.into(),
                state,
                used_by(&backend.used_by).into(),
            ]);
        }
        table.print(out, color)
    }
}
