//! Processes, the CNI's files, and VIPs.

use std::{
    collections::BTreeSet,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use crate::{
    datapath::{maps::Maps, pins::Pins},
    inspect::{
        clock::Clock,
        vips::{Standing, Vips},
    },
    link::Links,
    preflight::others::{Others, Process},
};

/// What is pinned already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    /// An agent works on it.
    pub(super) agent: bool,
    /// The VIPs there.
    pub(super) vips: BTreeSet<IpAddr>,
}

impl Loaded {
    /// Nothing, where nothing is loaded or it may not be read: then the capabilities say so.
    pub(super) fn read(pins: &Pins) -> Self {
        let read = || {
            let maps = Maps::open(pins.root()).ok()?;
            let clock = Clock::now(maps.read_config().ok()?.hz).ok()?;
            Vips::read(&maps, &clock).ok()
        };
        let found: Option<Vips> = read();
        found.map_or_else(Self::default, |Vips { fence, vips }| Self {
            agent: fence.standing == Standing::Open,
            vips: vips.into_iter().map(|vip| vip.address).collect(),
        })
    }
}

/// Which of the VIPs are addresses of this node's real interfaces.
pub(super) fn held(vips: &BTreeSet<IpAddr>, links: &Links) -> Vec<(IpAddr, Option<String>)> {
    let owners = links.owners();
    vips.iter().map(|vip| (*vip, owners.get(vip).map(|interface| interface.name.clone()))).collect()
}

/// What is not of the network.
pub(super) fn observe() -> Others {
    let names = |folder: &str| entries(folder.as_ref()).filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    Others {
        processes: processes().collect(),
        cni_files: names("/etc/cni/net.d").collect(),
        k3s_config: k3s_config(),
        ..Others::nothing()
    }
}

/// What says how k3s is started; nothing in a container.
fn k3s_config() -> String {
    let more = entries("/etc/rancher/k3s/config.yaml.d".as_ref());
    let files = ["/etc/rancher/k3s/config.yaml", "/etc/systemd/system/k3s.service"].map(PathBuf::from).into_iter();
    files.chain(more).filter_map(|file| fs::read_to_string(file).ok()).collect()
}

/// The process that has one of these sockets, if it can be seen.
pub(super) fn owner(inodes: &[u64]) -> Option<Process> {
    let wanted: Vec<_> = inodes.iter().map(|inode| PathBuf::from(format!("socket:[{inode}]"))).collect();
    let has = |process: &Process| {
        let mut files = entries(format!("/proc/{}/fd", process.pid).as_ref());
        files.any(|file| fs::read_link(file).is_ok_and(|target| wanted.contains(&target)))
    };
    processes().find(has)
}

fn processes() -> impl Iterator<Item = Process> {
    entries("/proc".as_ref()).filter_map(|folder| {
        let pid = folder.file_name()?.to_str()?.parse().ok()?;
        let name = fs::read_to_string(folder.join("comm")).ok()?.trim_end().to_owned();
        let line = fs::read(folder.join("cmdline")).ok()?;
        let arguments = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        Some(Process {
            pid,
            name,
            arguments: arguments.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
        })
    })
}

/// What is in a folder; nothing where that cannot be told.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}
