//! Real maps for tests: the embedded object, loaded with small maps, pinned in a bpffs of the test's own.

use std::{fs, path::Path};

use aya::{Ebpf, EbpfLoader};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::Uid,
};
use vipmux_common::abi::{ABI_VERSION, Config};

use super::Maps;
use crate::datapath::{OBJECT, pins::Pins};

const BPFFS: &str = "/sys/fs/bpf";

/// The loaded object and its pins. The bpffs is in a mount namespace of the test's thread, so nothing outlives it,
/// however the test ends.
pub(crate) struct Fixture {
    pub(crate) pins: Pins,
    pub(crate) maps: Maps,
    pub(crate) ebpf: Ebpf,
}

impl Fixture {
    /// `None`, with a message, where the test has no right to make one; there is no such excuse with `CI=true`.
    pub(crate) fn new() -> Option<Self> {
        let pins = mounted()?;
        let ebpf = load(&pins);
        let mut maps = Maps::open(pins.root()).unwrap();
        maps.config.set(0, Config { abi: ABI_VERSION, next_vip: 1, hz: 250, ..Config::default() }, 0).unwrap();
        Some(Self { pins, maps, ebpf })
    }
}

/// Pins below a fresh bpffs, with empty folders.
pub(crate) fn mounted() -> Option<Pins> {
    if !Uid::effective().is_root() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "these tests need root");
        eprintln!("skipped: maps need root (sudo -E cargo test)");
        return None;
    }
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    // In a chroot, the root need not be a mount point.
    let private = |at| mount(None::<&str>, at, None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>);
    private("/").or_else(|_| private("/sys")).unwrap();
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
    Some(Pins::new(Path::new(BPFFS).join("vipmux")))
}

/// Loads the object and pins its maps.
pub(crate) fn load(pins: &Pins) -> Ebpf {
    for folder in [pins.maps(), pins.programs(), pins.links()] {
        fs::create_dir_all(folder).unwrap();
    }
    let mut loader = EbpfLoader::new();
    for name in Maps::NAMES.iter().chain(Maps::CALLING) {
        loader.map_pin_path(name, pins.map(name));
    }
    for (name, entries) in [("INTERFACES", 16), ("TABLES", 8_192), ("BACKENDS", 10_000), ("NODES", 64)] {
        loader.map_max_entries(name, entries);
    }
    for name in ["VIPS", "SERVICES", "SERVICE_STATES", "SERVICE_NAMES", "SERVICE_STATS", "NODE_NAMES", "PEERS"] {
        loader.map_max_entries(name, 64);
    }
    loader.load(OBJECT).unwrap()
}
