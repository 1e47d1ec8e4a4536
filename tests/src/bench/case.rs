//! A case: a program under test, a packet, and what must come of it.

use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use aya::{Ebpf, EbpfLoader, programs::Xdp};
use vipmux_common::abi::Stat;

use super::{
    Plan,
    katran::{self, Katran},
    workload::{self, CLIENT, REMOTE},
    wrapper::{Variation, Wrapper},
};
use crate::{
    frames::ACK,
    program::{self, Program, TESTING_OBJECT},
};

pub(super) const PASS: u32 = 2;
pub(super) const TX: u32 = 3;
/// The constant of the same name in `ebpf/src/testing.rs`.
const FLOOR_SETS: u32 = 1 << 18;

/// Counters, and for each: true if it counts all packets, false if none.
pub(super) type Counted = &'static [(Counter, bool)];

/// A counter of a program under test.
#[derive(Clone, Copy)]
pub(super) enum Counter {
    Ours(Stat),
    Katran(katran::Counter),
}

/// A case.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The number of Services, for the data plane's cases.
    pub(super) services: Option<u32>,
    pub(super) wrapper: Wrapper,
    /// The empty program in the same kind of wrapper; `None` for that one itself.
    pub(super) base: Option<usize>,
    /// Packets before each repetition, which are not measured.
    pub(super) warm_up: u32,
    /// Keeps the program under test and its maps loaded.
    _target: Target,
}

/// The origin of the program under test.
#[derive(Clone)]
pub(super) enum Target {
    Testing(Rc<Ebpf>, &'static str),
    DataPlane(Rc<Program>),
    Katran(Rc<Katran>),
}

/// The description of a case.
pub(super) struct Spec {
    pub(super) name: &'static str,
    pub(super) services: Option<u32>,
    pub(super) target: Target,
    pub(super) frame: Vec<u8>,
    /// Whether the program may add a header, or is the base of such programs.
    pub(super) grows: bool,
    pub(super) variation: Option<Variation>,
    pub(super) base: Option<usize>,
    /// Packets that fill the maps once.
    pub(super) prepare: u32,
    /// Whether its flows are known after that. Then they are visited in another order.
    pub(super) known: bool,
    pub(super) warm_up: u32,
    pub(super) verdict: u32,
    pub(super) counted: Counted,
}

impl Counter {
    fn name(self) -> &'static str {
        match self {
            Self::Ours(stat) => stat.name(),
            Self::Katran(counter) => counter.name(),
        }
    }
}

impl Target {
    pub(super) fn xdp(&self) -> Result<&Xdp> {
        match self {
            Self::Testing(ebpf, program) => program::xdp(ebpf, program),
            Self::DataPlane(program) => program.xdp(),
            Self::Katran(katran) => katran.xdp(),
        }
    }

    /// Makes its flows established, as they are after the backends' answers. The bench sends none.
    pub(super) fn establish_flows(&self) -> Result<()> {
        match self {
            Self::DataPlane(program) => program.establish_flows(),
            Self::Testing(..) | Self::Katran(_) => Ok(()),
        }
    }

    fn packets(&self, counter: Counter) -> Result<u64> {
        match (self, counter) {
            (Self::DataPlane(program), Counter::Ours(stat)) => Ok(program.counters()?.stats[stat as usize].packets),
            (Self::Katran(katran), Counter::Katran(counter)) => katran.packets(counter),
            _ => bail!("the program has no counter of packets that are {}", counter.name()),
        }
    }

    fn all_packets(&self, counted: Counted) -> Result<Vec<u64>> {
        counted.iter().map(|&(counter, _)| self.packets(counter)).collect()
    }
}

/// Fills the maps, checks that the case does what it should, and adds it. Returns its index.
pub(super) fn add(cases: &mut Vec<Case>, spec: Spec) -> Result<usize> {
    const CHECKED: u32 = 10_000;
    let Spec { name, services, target, frame, grows, variation, base, prepare, known, warm_up, verdict, counted } =
        spec;
    let wrapper = if grows { Wrapper::growing } else { Wrapper::new };
    let mut wrapper = wrapper(target.xdp()?.fd()?, &frame, variation)?;
    wrapper.run(prepare.max(warm_up).max(1))?;
    if known {
        target.establish_flows()?;
        wrapper.visit_in_another_order()?;
        wrapper.run(warm_up.max(1))?;
    }
    let before = target.all_packets(counted)?;
    let sample = wrapper.run(CHECKED)?;
    ensure!(sample.verdict == verdict, "{name}: verdict {}, not {verdict}", sample.verdict);
    for (((counter, each), before), after) in counted.iter().zip(before).zip(target.all_packets(counted)?) {
        let wanted = if *each { u64::from(CHECKED) } else { 0 };
        ensure!(after - before == wanted, "{name}: {} of {CHECKED} packets are {}", after - before, counter.name());
    }
    cases.push(Case { name, services, wrapper, base, warm_up, _target: target });
    Ok(cases.len() - 1)
}

/// The testing object with these of its programs, and maps of these sizes.
pub(super) fn testing(programs: &[&str], hash: u32, lru: u32) -> Result<Rc<Ebpf>> {
    let mut ebpf = EbpfLoader::new()
        .map_max_entries("FLOOR_HASH", hash)
        .map_max_entries("FLOOR_LRU", lru)
        .map_max_entries("FLOOR_TABLE", FLOOR_SETS)
        .load(TESTING_OBJECT)
        .context("loading the testing object")?;
    for program in programs {
        program::xdp_mut(&mut ebpf, program)?.load()?;
    }
    Ok(Rc::new(ebpf))
}

/// A case of the testing object, without Services.
pub(super) fn floor(name: &'static str, target: Target, variation: Option<Variation>, base: Option<usize>) -> Spec {
    Spec {
        name,
        services: None,
        target,
        frame: workload::segment(CLIENT, REMOTE, ACK),
        grows: false,
        variation,
        base,
        prepare: 0,
        known: variation.is_some(),
        warm_up: 0,
        verdict: TX,
        counted: &[],
    }
}

/// The flows that cases of new flows go through, far more than the tables hold.
pub(super) fn new_flows(plan: &Plan) -> u32 {
    plan.capacity.saturating_mul(4).next_power_of_two()
}

/// The packets of new flows that fill a flow table.
pub(super) fn filling(plan: &Plan) -> u32 {
    plan.capacity + plan.capacity / 4
}
