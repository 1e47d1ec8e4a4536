//! Katran's XDP program beside the data plane: the same packets in the same order, in the same kind
//! of wrapper. Its object file is the user's (`--katran`).

use std::{fs, net::Ipv4Addr, path::Path};

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, ArrayOfMaps, HashMap, MapData, PerCpuArray},
    programs::Xdp,
};
use nix::sched::sched_getcpu;
use serde::Serialize;

use super::workload::{FEW, PORT, REMOTE, TCP, UDP};
use crate::program;

/// The number of Services of the data plane's cases that Katran is compared with: half of them are
/// on other nodes, as many as Katran has VIPs for TCP.
pub const SERVICES: u32 = 2 * FEW;

const PROGRAM: &str = "balancer_ingress";
/// Slots of a VIP's ring (`RING_SIZE`).
const RING: u32 = 65_537;
const BACKENDS: u32 = 10;
/// Entries of the flows' map.
pub(super) const ENTRIES: u32 = 524_288;
/// The first counter in `stats` that is not of one VIP (`MAX_VIPS`).
const GLOBAL: u32 = 512;

/// Katran's cost beside the data plane's, nanoseconds of CPU time of a packet over an empty program:
/// medians over the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Katran's case.
    pub case: &'static str,
    /// Katran's cost.
    pub katran: f64,
    /// The data plane's cost to another node; if no VIP is concerned, its only one.
    pub remote: Beside,
    /// The data plane's cost to a local backend.
    pub local: Option<Beside>,
}

/// The data plane's cost in one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// The cost.
    pub net: f64,
    /// Over Katran's: the median of the repetitions' ratios.
    pub ratio: f64,
    /// The highest ratio that is aimed at.
    pub aim: Option<f64>,
}

/// Katran's program with maps of its own.
pub(super) struct Katran {
    ebpf: Ebpf,
    /// The flows of this thread's CPU.
    flows: HashMap<MapData, [u8; 40], [u8; 16]>,
}

/// One of Katran's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    /// Packets for a VIP.
    ForVip,
    /// Those of them whose flow was not found.
    Missed,
    /// Those of these which are SYNs.
    MissedSyn,
    /// Packets of a CPU without a map of its own.
    Fallback,
}

impl Counter {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ForVip => "for a VIP of Katran",
            Self::Missed => "of a flow that Katran did not find",
            Self::MissedSyn => "a SYN of a flow that Katran did not find",
            Self::Fallback => "of a CPU without a map of Katran",
        }
    }

    /// Returns its index in `stats` after [`GLOBAL`], and which of the two values it is.
    const fn place(self) -> (u32, usize) {
        match self {
            Self::ForVip => (0, 0),
            Self::Missed => (0, 1),
            Self::MissedSyn => (1, 0),
            Self::Fallback => (3, 0),
        }
    }
}

impl Katran {
    /// Loads the program and configures it. This thread must stay on its CPU.
    pub(super) fn load(object: &Path) -> Result<Self> {
        // The map for CPUs without one becomes the one of this CPU.
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("fallback_cache", ENTRIES)
            .load(&fs::read(object).with_context(|| format!("reading {}", object.display()))?)
            .with_context(|| format!("loading {}", object.display()))?;
        program::xdp_mut(&mut ebpf, PROGRAM)
            .with_context(|| format!("{} is not Katran's balancer", object.display()))?
            .load()
            .context("loading Katran's program")?;
        let flows = HashMap::try_from(ebpf.take_map("fallback_cache").context("no map fallback_cache")?)?;
        let mut mapping: ArrayOfMaps<_, _> = map(&mut ebpf, "lru_mapping")?.try_into()?;
        mapping.set(u32::try_from(sched_getcpu()?)?, &flows, 0)?;
        configure(&mut ebpf).context("configuring Katran")?;
        Ok(Self { ebpf, flows })
    }

    pub(super) fn xdp(&self) -> Result<&Xdp> {
        program::xdp(&self.ebpf, PROGRAM)
    }

    /// Returns a counter's value, summed over the CPUs.
    pub(super) fn packets(&self, counter: Counter) -> Result<u64> {
        let stats: PerCpuArray<_, [u64; 2]> = self.ebpf.map("stats").context("no map stats")?.try_into()?;
        let (index, value) = counter.place();
        Ok(stats.get(&(GLOBAL + index), 0)?.iter().map(|values| values[value]).sum())
    }

    /// Fails if the flows' map has room left after a flood: above its limit of new flows per second,
    /// Katran gives them no entry.
    pub(super) fn check_full(&self) -> Result<()> {
        let count = self.flows.keys().try_fold(0, |count: u32, key| key.map(|_| count + 1))?;
        ensure!(
            count >= ENTRIES - ENTRIES / 100,
            "after a flood, Katran's map has {count} of {ENTRIES} entries: was it built with a higher MAX_CONN_RATE?"
        );
        Ok(())
    }
}

fn map<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut aya::maps::Map> {
    ebpf.map_mut(name).with_context(|| format!("no map {name}"))
}

/// Adds the first Services with backends elsewhere as VIPs for TCP, and the first one for UDP. Each
/// has backends and a ring of its own.
fn configure(ebpf: &mut Ebpf) -> Result<()> {
    let services = (0..FEW).map(|number| (number, TCP)).chain([(0, UDP)]);
    for (vip, (number, protocol)) in (0..).zip(services) {
        let mut key = [0; 20];
        key[..4].copy_from_slice(&REMOTE.octets());
        key[16..18].copy_from_slice(&(PORT + u16::try_from(number)?).to_be_bytes());
        key[18] = protocol;
        let mut vips: HashMap<_, [u8; 20], [u32; 2]> = map(ebpf, "vip_map")?.try_into()?;
        vips.insert(key, [0, vip], 0)?;
        // Backend 0 means none.
        let first = 1 + vip * BACKENDS;
        let mut backends: Array<_, [u8; 20]> = map(ebpf, "reals")?.try_into()?;
        for backend in first..first + BACKENDS {
            let mut value = [0; 20];
            value[..4].copy_from_slice(&Ipv4Addr::from(0x0a00_0000 + backend).octets());
            backends.set(backend, value, 0)?;
        }
        let mut rings: Array<_, u32> = map(ebpf, "ch_rings")?.try_into()?;
        for slot in 0..RING {
            rings.set(vip * RING + slot, first + slot % BACKENDS, 0)?;
        }
    }
    // The MAC of the router, which is the first index.
    let mut router: Array<_, [u8; 8]> = map(ebpf, "ctl_array")?.try_into()?;
    Ok(router.set(0, [2, 0, 0, 0, 0, 2, 0, 0], 0)?)
}
