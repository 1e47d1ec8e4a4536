//! What the processes, the kernel and the store hold at one moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use aya::{maps::MapInfo, programs::loaded_programs};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use serde_json::Value;

use super::{Churn, KEPT};
use crate::{agent::Agent, api_server::SYSTEM, cluster::PATIENCE, lan::Node, process, scrape::Metrics};

/// The state between two cycles.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The time since the begin of the run.
    pub time: Duration,
    /// Private memory of the processes that run all the time, in KiB.
    pub memory: BTreeMap<String, u64>,
    /// What is the same between all cycles, by its name.
    pub counts: BTreeMap<String, u64>,
    /// What depends on the last minutes, and is bounded: connections that wait for the next request,
    /// threads that wait for work, records of flows.
    pub fluctuating: BTreeMap<String, u64>,
    /// The client's answered requests so far.
    pub answered: u64,
}

impl Sample {
    /// Returns the sum of all counts whose name has this part.
    pub fn sum(&self, part: &str) -> u64 {
        self.counts.iter().filter(|(name, _)| name.contains(part)).map(|(_, count)| count).sum()
    }
}

impl Churn {
    /// Takes a sample.
    pub(super) fn sample(&self, began: Instant) -> Result<Sample> {
        let mut sample = Sample { answered: self.client.answered(), ..Sample::default() };
        for (node, agent) in self.nodes() {
            sample.process(&node.name, agent.process().id(), node.name == KEPT)?;
            sample.kernel(node, agent)?;
        }
        sample.process("allocator", self.allocator.process().id(), true)?;
        sample.counts.insert("Leases".to_owned(), self.leases()?);
        let state = self.cluster.agent_options().state;
        sample.counts.insert("files in the state folder".to_owned(), files(&state)?);
        let maps = self.nodes().map(|(_, agent)| pinned_maps(agent.pins())).collect::<Result<Vec<_>>>()?;
        let maps = maps.into_iter().flatten().collect();
        sample.counts.insert("programs that use the maps".to_owned(), programs_with(&maps)?);
        sample.time = began.elapsed();
        Ok(sample)
    }

    /// Returns the number of the agents' Leases.
    pub(super) fn leases(&self) -> Result<u64> {
        let api = self.cluster.api()?;
        let leases = Api::<Lease>::namespaced(api.client()?, SYSTEM);
        let listed = api.block_on(async { Ok(leases.list(&ListParams::default()).await?) })?;
        Ok(listed.items.len() as u64)
    }
}

impl Sample {
    fn count(&mut self, of: &str, what: &str, count: u64) {
        self.counts.insert(format!("{of}: {what}"), count);
    }

    fn process(&mut self, name: &str, pid: u32, kept: bool) -> Result<()> {
        let proc = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(proc.join("status"))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        if kept {
            self.memory.insert(name.to_owned(), field("RssAnon:")?);
        }
        let connections = connections(&proc)?;
        for (kind, count) in descriptors(&proc, &connections)? {
            self.count(name, &format!("descriptors of {kind}"), count);
        }
        self.fluctuating.insert(format!("{name}: connections"), connections.len() as u64);
        self.fluctuating.insert(format!("{name}: threads"), field("Threads:")?);
        Ok(())
    }

    fn kernel(&mut self, node: &Node, agent: &Agent) -> Result<()> {
        let metrics = Metrics::scrape(node.namespace(), node.address, PATIENCE)?;
        for (map, entries) in metrics.by_label("vipmux_map_entries", "map") {
            self.count(&node.name, &format!("entries of {map}"), entries);
        }
        for (state, records) in metrics.by_label("vipmux_flow_records", "state") {
            self.fluctuating.insert(format!("{}: flow records, {state}", node.name), records);
        }
        self.count(&node.name, "pinned files", files(agent.pins())?);
        self.count(&node.name, "nftables objects", nftables_objects(node)?);
        Ok(())
    }
}

/// Returns the sockets of a process's TCP connections, as its descriptors name them. An HTTP client
/// keeps connections for later requests.
fn connections(proc: &Path) -> Result<BTreeSet<String>> {
    let mut of_namespace = BTreeSet::new();
    for table in ["net/tcp", "net/tcp6"] {
        let text = fs::read_to_string(proc.join(table))?;
        // Fields of `/proc/net/tcp`: the fourth is the state, 0A is listening; the tenth is the inode.
        let rows = text.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
        let inode = |row: Vec<&str>| row.get(9).filter(|_| row[3] != "0A").map(|inode| format!("socket:[{inode}]"));
        of_namespace.extend(rows.filter_map(inode));
    }
    Ok(open_files(proc)?.into_iter().filter(|file| of_namespace.contains(file)).collect())
}

/// Returns the numbers of a process's other descriptors by kind: `socket`, `anon_inode:bpf-map` and
/// the like, or `file`.
fn descriptors(proc: &Path, connections: &BTreeSet<String>) -> Result<BTreeMap<String, u64>> {
    let mut kinds = BTreeMap::new();
    for file in open_files(proc)?.iter().filter(|file| !connections.contains(*file)) {
        let kind = if file.starts_with('/') { "file" } else { file.split(":[").next().unwrap_or(file) };
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    Ok(kinds)
}

fn open_files(proc: &Path) -> Result<Vec<String>> {
    // A descriptor may be closed meanwhile.
    let targets = fs::read_dir(proc.join("fd"))?.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(targets.map(|target| target.to_string_lossy().into_owned()).collect())
}

/// Returns the number of files below a folder.
fn files(folder: &Path) -> Result<u64> {
    let mut count = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { files(&entry.path())? } else { 1 };
    }
    Ok(count)
}

/// Returns the ids of the maps that are pinned below a folder.
fn pinned_maps(folder: &Path) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            ids.extend(pinned_maps(&entry.path())?);
        } else if let Ok(map) = MapInfo::from_pin(entry.path()) {
            ids.insert(map.id());
        }
    }
    Ok(ids)
}

/// Returns the number of loaded programs that use one of these maps. Programs that nobody needs any
/// more are among them as long as something holds them.
fn programs_with(maps: &BTreeSet<u32>) -> Result<u64> {
    let mut count = 0;
    // A program may go while they are listed.
    for program in loaded_programs().filter_map(Result::ok) {
        let used = program.map_ids()?.unwrap_or_default();
        count += u64::from(used.iter().any(|id| maps.contains(id)));
    }
    Ok(count)
}

/// Returns the number of a node's nftables objects, with the elements of sets.
fn nftables_objects(node: &Node) -> Result<u64> {
    let mut command = node.namespace().command("nft")?;
    command.args(["-j", "list", "ruleset"]);
    let listed: Value = serde_json::from_str(&process::run(command)?)?;
    let objects = listed["nftables"].as_array().context("no nftables")?;
    let elements = |object: &Value| object["set"]["elem"].as_array().map_or(0, Vec::len);
    Ok(objects.iter().map(|object| 1 + elements(object) as u64).sum())
}
