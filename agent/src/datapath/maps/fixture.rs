//! Real maps for tests: the embedded object, loaded with small maps, pinned in a bpffs of the test's own.

use std::{
    env, fs,
    io::{self, Write as _},
    path::Path,
    thread,
};

use aya::{Ebpf, EbpfLoader};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::Uid,
};
use vipmux_common::abi::{ABI_VERSION, Config};

use super::Maps;
use crate::datapath::{OBJECT, pins::Pins, rehearsal::SMALL};

const BPFFS: &str = "/sys/fs/bpf";

/// The loaded object and its pins. The bpffs is in a mount namespace of the test's thread, so nothing outlives it,
/// however the test ends.
pub(crate) struct Fixture {
    pub(crate) pins: Pins,
    pub(crate) maps: Maps,
    pub(crate) ebpf: Ebpf,
}

impl Fixture {
    /// `None` where the test is to be skipped ([`is_root`]).
    pub(crate) fn new() -> Option<Self> {
        let pins = mounted()?;
        let ebpf = load(&pins);
        let mut maps = Maps::open(pins.root()).unwrap();
        maps.config.set(0, Config { abi: ABI_VERSION, next_vip: 1, hz: 250, ..Config::default() }, 0).unwrap();
        Some(Self { pins, maps, ebpf })
    }
}

/// Whether the running test may make maps and namespaces. Where not, it is reported as skipped, by its name; there is no such
/// excuse with `CI=true`.
pub(crate) fn is_root() -> bool {
    let root = Uid::effective().is_root();
    if !root {
        // The test harness names its threads after the tests, and keeps what `eprintln` writes to itself.
        let thread = thread::current();
        let test = thread.name().unwrap_or("a test");
        assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "{test} needs root");
        let _ = writeln!(io::stderr(), "skipped: {test}: it makes maps or namespaces, run it as root");
    }
    root
}

/// Pins below a fresh bpffs, with empty folders.
pub(crate) fn mounted() -> Option<Pins> {
    if !is_root() {
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
    for (name, entries) in SMALL {
        loader.map_max_entries(name, entries);
    }
    loader.load(OBJECT).unwrap()
}
