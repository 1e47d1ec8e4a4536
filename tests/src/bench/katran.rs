//! Katran's XDP program beside the data plane: the same packets in the same order, in the same kind
//! of wrapper. Its object file is the user's (`--katran`).

use std::{fs, net::Ipv4Addr, path::Path, rc::Rc};

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, ArrayOfMaps, HashMap, MapData, PerCpuArray},
    programs::Xdp,
};
use nix::sched::sched_getcpu;
use serde::Serialize;

use super::{
    Plan,
    cases::{self, Case, Counted, FEW, PASS, Spec, Target, floor},
    report::{median, net},
    workload::{self, CLIENT, FLOOD_CLIENT, OTHER, OTHER_CLIENT, PORT, REMOTE, TCP, UDP},
    wrapper::{Sample, Variation, Wrapper},
};
use crate::{
    frames::{ACK, SYN},
    program,
};

/// The number of Services of the data plane's cases that Katran is compared with: half of them are
/// on other nodes, as many as Katran has VIPs for TCP.
pub const SERVICES: u32 = 2 * FEW;

const PROGRAM: &str = "balancer_ingress";
/// Slots of a VIP's ring (`RING_SIZE`).
const RING: u32 = 65_537;
const BACKENDS: u32 = 10;
/// Entries of the flows' map.
const ENTRIES: u32 = 524_288;
/// The first counter in `stats` that is not of one VIP (`MAX_VIPS`).
const GLOBAL: u32 = 512;

const FOUND: Counted = &[count(Counter::ForVip, true), count(Counter::Missed, false), count(Counter::Fallback, false)];
const NEW: Counted = &[
    count(Counter::ForVip, true),
    count(Counter::Missed, true),
    count(Counter::MissedSyn, true),
    count(Counter::Fallback, false),
];
const NOT_FOR_A_VIP: Counted = &[count(Counter::ForVip, false)];

const fn count(counter: Counter, each: bool) -> (cases::Counter, bool) {
    (cases::Counter::Katran(counter), each)
}

/// The names of Katran's cases.
const TCP_ONE: &str = "Katran: TCP, one flow";
const UDP_ONE: &str = "Katran: UDP, one flow";
const TCP_MANY: &str = "Katran: TCP, many flows";
const TCP_FULL: &str = "Katran: TCP, many flows, full map";
const TCP_NEW: &str = "Katran: new flow into a full map";
const NO_VIP: &str = "Katran: not for a VIP";

/// A case of the data plane, with the highest ratio of its cost to Katran's that vipmux aims at.
type Against = (&'static str, Option<f64>);

/// Katran's cases, with the data plane's cases to another node and to a local backend.
const COMPARISONS: [(&str, Against, Option<Against>); 6] = [
    (TCP_ONE, ("established, remote, one flow", Some(0.45)), Some(("established, local, one flow", None))),
    (UDP_ONE, ("established, remote, UDP, one flow", Some(0.4)), Some(("established, local, UDP, one flow", None))),
    (TCP_MANY, ("established, remote, many, few", Some(0.6)), Some(("established, local, many, few", Some(1.0)))),
    (TCP_FULL, ("established, remote, full table", Some(0.6)), Some(("established, local, full table", Some(1.0)))),
    (TCP_NEW, ("new flow, remote", Some(0.4)), Some(("new flow, local", Some(0.8)))),
    (NO_VIP, ("not for a VIP", Some(0.35)), None),
];

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
    fn load(object: &Path) -> Result<Self> {
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
    fn check_full(&self) -> Result<()> {
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

/// Adds a base of Katran's cases: the empty program in a wrapper that takes headers away. Returns its
/// index.
fn base(cases: &mut Vec<Case>, name: &'static str, empty: &Rc<Ebpf>, variation: Option<Variation>) -> Result<usize> {
    let empty = Target::Testing(Rc::clone(empty), "empty_tx");
    cases::add(cases, Spec { grows: true, ..floor(name, empty, variation, None) })
}

/// Adds the cases of known flows, and of packets that are not for a VIP.
pub(super) fn known(cases: &mut Vec<Case>, plan: &Plan, object: &Path) -> Result<()> {
    let spread = Variation { flows: plan.flows, services: FEW };
    let empty = cases::testing(&["empty_tx"], 1, 1)?;
    let one = base(cases, "Katran's base, one flow", &empty, None)?;
    let many = base(cases, "Katran's base, many flows", &empty, Some(spread))?;
    let katran = Rc::new(Katran::load(object)?);
    let one = |name, frame| Spec {
        frame,
        grows: true,
        warm_up: 1,
        counted: FOUND,
        ..floor(name, Target::Katran(Rc::clone(&katran)), None, Some(one))
    };
    cases::add(cases, one(TCP_ONE, workload::segment(CLIENT, REMOTE, ACK)))?;
    cases::add(cases, one(UDP_ONE, workload::datagram(CLIENT, REMOTE)))?;
    let other = one(NO_VIP, workload::segment(CLIENT, OTHER, ACK));
    cases::add(cases, Spec { verdict: PASS, counted: NOT_FOR_A_VIP, ..other })?;
    let many = |name, from, katran: &Rc<Katran>| Spec {
        frame: workload::segment(from, REMOTE, ACK),
        grows: true,
        warm_up: plan.flows,
        counted: FOUND,
        ..floor(name, Target::Katran(Rc::clone(katran)), Some(spread), Some(many))
    };
    cases::add(cases, many(TCP_MANY, OTHER_CLIENT, &katran))?;

    // The known flows come as a part of the flood, so they are apart from each other in the map. What
    // comes with them is fewer than the older entries, which it evicts.
    let katran = Rc::new(Katran::load(object)?);
    let before = Variation { flows: (plan.capacity * 2).max(ENTRIES * 2), services: FEW };
    let with_known = Variation { flows: (ENTRIES / 2).max(plan.flows), services: FEW };
    for (from, flood) in [(FLOOD_CLIENT, before), (CLIENT, with_known)] {
        let frame = workload::segment(from, REMOTE, SYN);
        Wrapper::growing(katran.xdp()?.fd()?, &frame, Some(flood))?.run(flood.flows)?;
    }
    katran.check_full()?;
    cases::add(cases, many(TCP_FULL, CLIENT, &katran))?;
    Ok(())
}

/// Adds the case of flows without an entry, while the map is full.
pub(super) fn new(cases: &mut Vec<Case>, plan: &Plan, object: &Path) -> Result<()> {
    let flows = cases::new_flows(plan);
    let spread = Some(Variation { flows, services: FEW });
    let empty = base(cases, "Katran's base, new flows", &cases::testing(&["empty_tx"], 1, 1)?, spread)?;
    let katran = Rc::new(Katran::load(object)?);
    let case = floor(TCP_NEW, Target::Katran(Rc::clone(&katran)), spread, Some(empty));
    let prepare = cases::filling(plan).max(ENTRIES * 2);
    let frame = workload::segment(CLIENT, REMOTE, SYN);
    cases::add(cases, Spec { frame, grows: true, prepare, known: false, counted: NEW, ..case })?;
    katran.check_full()
}

/// Returns the comparisons whose cases are all there.
pub(super) fn compare(cases: &[Case], samples: &[Vec<Sample>]) -> Vec<Comparison> {
    let net = |name: &str| {
        let (index, case) = cases
            .iter()
            .enumerate()
            .find(|(_, case)| case.name == name && case.services.is_none_or(|services| services == SERVICES))?;
        Some(net(&samples[index], &samples[case.base?]))
    };
    let comparison = |(case, remote, local): (&'static str, Against, Option<Against>)| {
        let katran = net(case)?;
        let beside = |(name, aim): Against| {
            let ours = net(name)?;
            let ratio = median(ours.iter().zip(&katran).map(|(ours, katran)| ours / katran).collect());
            Some(Beside { net: median(ours), ratio, aim })
        };
        let (remote, local) = (beside(remote)?, local.and_then(beside));
        Some(Comparison { case, katran: median(katran), remote, local })
    };
    COMPARISONS.into_iter().filter_map(comparison).collect()
}
