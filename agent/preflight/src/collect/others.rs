//! Observes processes, the CNI's files, and VIPs.

use std::{
    collections::BTreeSet,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use crate::findings::others::{Others, ProcessObservation};
use vipmux_datapath::{
    bpf::{maps::Maps, pins::Pins},
    link::Links,
};
use vipmux_inspect::{
    clock::Clock,
    vips::{FenceState, Vips},
};

/// The state of a loaded vipmux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadedAgent {
    /// An agent runs: the fence is open.
    pub(super) agent: bool,
    /// The VIPs in the maps.
    pub(super) vips: BTreeSet<IpAddr>,
}

impl LoadedAgent {
    /// Reads the pinned maps; empty if nothing is loaded or the maps may not be read. The check
    /// `capabilities` reports missing rights.
    pub(super) fn read(pins: &Pins) -> Self {
        let read = || {
            let maps = Maps::open(pins.root()).ok()?;
            let clock = Clock::now(maps.read_config().ok()?.hz).ok()?;
            Vips::read(&maps, &clock).ok()
        };
        let found: Option<Vips> = read();
        found.map_or_else(Self::default, |Vips { fence, vips }| Self {
            agent: fence.state == FenceState::Open,
            vips: vips.into_iter().map(|vip| vip.address).collect(),
        })
    }
}

/// Returns the VIPs, with the real interface of this node that has the address.
pub(super) fn held(vips: &BTreeSet<IpAddr>, links: &Links) -> Vec<(IpAddr, Option<String>)> {
    let owners = links.owners();
    vips.iter().map(|vip| (*vip, owners.get(vip).map(|interface| interface.name.clone()))).collect()
}

/// Observes processes and files.
pub(super) fn observe() -> Others {
    let names = |folder: &str| entries(folder.as_ref()).filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    Others {
        processes: processes().collect(),
        cni_files: names("/etc/cni/net.d").collect(),
        k3s_config: k3s_config(),
        ..Others::nothing()
    }
}

/// Returns the text of k3s' configuration; in a container it is empty.
fn k3s_config() -> String {
    let more = entries("/etc/rancher/k3s/config.yaml.d".as_ref());
    let files = ["/etc/rancher/k3s/config.yaml", "/etc/systemd/system/k3s.service"].map(PathBuf::from).into_iter();
    files.chain(more).filter_map(|file| fs::read_to_string(file).ok()).collect()
}

/// Returns the process that has one of these sockets, if it is visible.
pub(super) fn owner(inodes: &[u64]) -> Option<ProcessObservation> {
    let wanted: Vec<_> = inodes.iter().map(|inode| PathBuf::from(format!("socket:[{inode}]"))).collect();
    let has = |process: &ProcessObservation| {
        let mut files = entries(format!("/proc/{}/fd", process.pid).as_ref());
        files.any(|file| fs::read_link(file).is_ok_and(|target| wanted.contains(&target)))
    };
    processes().find(has)
}

fn processes() -> impl Iterator<Item = ProcessObservation> {
    entries("/proc".as_ref()).filter_map(|folder| {
        let pid = folder.file_name()?.to_str()?.parse().ok()?;
        let name = fs::read_to_string(folder.join("comm")).ok()?.trim_end().to_owned();
        let line = fs::read(folder.join("cmdline")).ok()?;
        let arguments = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        Some(ProcessObservation {
            pid,
            name,
            arguments: arguments.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
        })
    })
}

/// Lists a folder; empty if that fails.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}
