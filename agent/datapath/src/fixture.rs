//! Loads real maps for tests: the embedded object with small maps, pinned in a bpffs of the test.

#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "only tests load them")]

use std::fs;

use crate::bpf::{
    OBJECT,
    dry_run::SMALL_MAPS,
    flow_table,
    maps::{Maps, use_pins},
    pins::Pins,
};
use aya::{Ebpf, EbpfLoader};
use vipmux_common::abi::{ABI_VERSION, Config, FlowSecret};
use vipmux_testing::bpffs::pin_path;

/// The loaded object and its pins.
pub struct Fixture {
    /// The pins of the test.
    pub pins: Pins,
    /// The pinned maps.
    pub maps: Maps,
    /// The loaded object.
    pub ebpf: Ebpf,
}

impl Fixture {
    /// Loads the object. `None`: the test must be skipped ([`is_root`](vipmux_testing::is_root)).
    pub fn new() -> Option<Self> {
        let pins = mounted()?;
        let ebpf = load(&pins);
        let mut maps = Maps::open(pins.root()).unwrap();
        let flow_secret = FlowSecret { sum: 1, client: [3 << 40, 5 << 40, 7 << 40, 11 << 40], port: 13 << 40 };
        let flow_mask = flow_table::mask(maps.flows.len()).unwrap();
        let config = Config { abi: ABI_VERSION, next_vip: 1, hz: 250, flow_secret, flow_mask, ..Config::default() };
        maps.config.set(0, config, 0).unwrap();
        Some(Self { pins, maps, ebpf })
    }
}

/// Returns pins below a new bpffs.
pub fn mounted() -> Option<Pins> {
    pin_path().map(Pins::new)
}

/// Loads the object and pins its maps.
pub fn load(pins: &Pins) -> Ebpf {
    for folder in [pins.maps(), pins.programs(), pins.links()] {
        fs::create_dir_all(folder).unwrap();
    }
    let mut loader = EbpfLoader::new();
    use_pins(&mut loader, &pins.maps(), &[]);
    for (name, entries) in SMALL_MAPS {
        loader.map_max_entries(name, entries);
    }
    loader.load(OBJECT).unwrap()
}
