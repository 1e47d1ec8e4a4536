//! Measures `vipmux inspect flows` where the flow table of a real agent holds a million records.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use vipmux_common::abi::{Address, FlowRecord};
use vipmux_datapath::bpf::maps::Maps;

use super::statistics::{median, quantile};
use crate::{
    agent::{self, Agent},
    cleanup::Folder,
    lan::{self, Lan},
    manifests::{Endpoint, Manifests, Service},
};

/// The options of this part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Records in the flow table.
    pub records: u32,
    /// Repetitions of each case.
    pub repetitions: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { records: 1_000_000, repetitions: 5 }
    }
}

/// Elapsed time in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Elapsed {
    /// The command, and what it shows.
    pub case: &'static str,
    /// The median.
    pub milliseconds: f64,
    /// The longest.
    pub most: f64,
}

/// The time limit of a start.
const PATIENCE: Duration = Duration::from_mins(1);

/// Measures all of this part.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<Elapsed>> {
    progress(&format!("inspect: recording {} flows", plan.records));
    let lan = Lan::new(lan::Options { nodes: 1, clients: 0, ..lan::Options::default() })?;
    let node = &lan.nodes[0];
    let manifests = Manifests::for_lan(&lan)?;
    let endpoint = Endpoint::new(Ipv4Addr::new(10, 0, 0, 1), &node.name);
    manifests.write_service(&Service::sharing("bench/s", 80, "TCP", 8080).with([endpoint]))?;
    let state = Folder::temporary("state")?;
    let mut options = agent::Options::new(manifests.path(), state.path());
    options.flows = plan.records.next_power_of_two();
    let agent = Agent::start(node, &options)?;
    agent.wait_ready(PATIENCE)?;
    let maps = Maps::open(agent.pins())?;
    fill(&maps, plan.records)?;

    let all = plan.records.to_string();
    let cases: [(_, &[&str], _); 3] = [
        ("inspect flows", &["flows"], 1_000.min(plan.records)),
        ("inspect flows, all of them", &["flows", "--limit", &all], plan.records),
        ("inspect flows -j, all of them", &["flows", "--limit", &all, "-j"], plan.records),
    ];
    let mut times = cases.map(|_| Vec::new());
    for repetition in 0..plan.repetitions {
        progress(&format!("inspect: repetition {repetition} of {}", plan.repetitions));
        for ((case, arguments, shown), times) in cases.iter().zip(&mut times) {
            let begin = Instant::now();
            let output = agent.inspect(node, arguments)?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
            let found = output.matches("10.0.0.1").count();
            ensure!(found == *shown as usize, "{case}: {found} flows are shown, not {shown}");
        }
    }
    let row = |(case, times): (&'static str, Vec<f64>)| Elapsed {
        case,
        milliseconds: median(times.clone()),
        most: quantile(times, 1.0),
    };
    Ok(cases.map(|(case, ..)| case).into_iter().zip(times).map(row).collect())
}

/// Adds this many flows of the only Service to its only backend. Each has its own client.
fn fill(maps: &Maps, records: u32) -> Result<()> {
    let (key, value) = maps.read_services()?.into_iter().next().context("no Service in the kernel")?;
    let state = maps.read_service_states()?.remove(&value.slot).context("the Service has no state")?;
    let (index, backend) =
        maps.read_backends()?.into_iter().find(|(_, backend)| backend.generation != 0).context("no backend")?;
    let record = FlowRecord {
        vip: key.vip,
        vip_port: key.port,
        protocol: key.protocol,
        client_port: 40_000_u16.to_be(),
        backend: index,
        backend_generation: backend.generation,
        slot: value.slot,
        slot_generation: state.generation,
        node: u16::try_from(backend.node)?,
        ..FlowRecord::default()
    };
    let table = maps.writable_flow_table()?;
    // Where a flow's sets are full, it is refused. So there are more clients than records.
    let add = |number: &u32| {
        let client = Address::from(Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + number));
        // In any order of time.
        let seen = number.wrapping_mul(0x9e37_79b9);
        table.add(FlowRecord { client, seen, ..record })
    };
    let added = (0..records.saturating_mul(2)).filter(add).take(records as usize).count();
    ensure!(added == records as usize, "the table holds {added} flows, not {records}");
    Ok(())
}
