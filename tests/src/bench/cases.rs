//! The cases, in two phases: first known flows, then new ones into full tables.

use std::{net::Ipv4Addr, rc::Rc};

use anyhow::{Context, Result, bail, ensure};
use aya::{Ebpf, EbpfLoader, programs::Xdp};
use vipmux_common::abi::Stat;

use super::{
    Plan,
    katran::{self, Katran},
    workload::{
        self, CLIENT, FLOOD_CLIENT, LOCAL, LOCAL_CLIENT, OTHER, OTHER_CLIENT, OTHER_LOCAL_CLIENT, REMOTE, TCP, UDP,
    },
    wrapper::{Variation, Wrapper},
};
use crate::{
    frames::{ACK, SYN},
    program::{self, Program, TESTING_OBJECT},
};

/// A function that makes a phase's cases.
pub(super) type Phase = fn(&Plan) -> Result<Vec<Case>>;

pub(super) const PASS: u32 = 2;
const TX: u32 = 3;
/// The constant of the same name in `ebpf/src/testing.rs`.
const FLOOR_SETS: u32 = 1 << 18;

/// Counters, and for each: true if it counts all packets, false if none.
pub(super) type Counted = &'static [(Counter, bool)];
const PASSED: Counted = &[(Counter::Ours(Stat::Passed), true)];
const HANDED_OVER: Counted = &[(Counter::Ours(Stat::HandedOver), true), (Counter::Ours(Stat::NewFlows), false)];
const DELIVERED: Counted = &[(Counter::Ours(Stat::Local), true), (Counter::Ours(Stat::NewFlows), false)];
const NEWLY_HANDED_OVER: Counted = &[(Counter::Ours(Stat::HandedOver), true), (Counter::Ours(Stat::NewFlows), true)];
const NEWLY_DELIVERED: Counted = &[(Counter::Ours(Stat::Local), true), (Counter::Ours(Stat::NewFlows), true)];

/// The Services that flows of cases named "few" go to, however many Services there are.
pub(super) const FEW: u32 = 5;

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
    fn establish_flows(&self) -> Result<()> {
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

/// A case of known flows to an address.
fn sent_to(to: Ipv4Addr, spec: Spec) -> Spec {
    let (verdict, counted) = if to == LOCAL { (PASS, DELIVERED) } else { (TX, HANDED_OVER) };
    Spec { verdict, counted, ..spec }
}

/// The lower bound of the data plane's cases: the indices of the empty programs for one flow and
/// for many.
fn floors(cases: &mut Vec<Case>, plan: &Plan) -> Result<(usize, usize)> {
    let programs = ["empty_tx", "hash_insert", "hash_lookup", "lru_insert", "lru_lookup", "table_lookup"];
    let object = testing(&programs, plan.flows * 2, plan.capacity)?;
    let testing = |program| Target::Testing(Rc::clone(&object), program);
    let spread = Variation { flows: plan.flows, services: 1 };
    for insertion in ["hash_insert", "lru_insert"] {
        let packet = workload::segment(CLIENT, REMOTE, ACK);
        Wrapper::new(testing(insertion).xdp()?.fd()?, &packet, Some(spread))?.run(plan.flows)?;
    }
    let one = add(cases, floor("empty program, one flow", testing("empty_tx"), None, None))?;
    let many = add(cases, floor("empty program, many flows", testing("empty_tx"), Some(spread), None))?;
    let miss = floor("hash lookup, miss", testing("hash_lookup"), None, Some(one));
    add(cases, Spec { frame: workload::segment(OTHER_CLIENT, REMOTE, ACK), verdict: PASS, ..miss })?;
    add(cases, floor("hash lookup, one flow", testing("hash_lookup"), None, Some(one)))?;
    add(cases, floor("hash lookup, many flows", testing("hash_lookup"), Some(spread), Some(many)))?;
    add(cases, floor("LRU lookup, one flow", testing("lru_lookup"), None, Some(one)))?;
    add(cases, floor("LRU lookup, many flows", testing("lru_lookup"), Some(spread), Some(many)))?;
    add(cases, floor("own table, one flow", testing("table_lookup"), None, Some(one)))?;
    add(cases, floor("own table, many flows", testing("table_lookup"), Some(spread), Some(many)))?;
    Ok((one, many))
}

/// Known flows, and packets that are not for a VIP.
pub(super) fn known(plan: &Plan) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let (one, many) = floors(&mut cases, plan)?;
    for &services in &plan.services {
        let data_plane = |protocol| -> Result<_> {
            let state = workload::state(services, protocol)?;
            Ok(Target::DataPlane(Rc::new(Program::load(&state, plan.capacity)?)))
        };
        let target = data_plane(TCP)?;
        let data = |name, frame, variation: Option<Variation>, base| Spec {
            services: Some(services),
            frame,
            warm_up: variation.map_or(1, |variation| variation.flows),
            ..floor(name, target.clone(), variation, Some(base))
        };
        add(
            &mut cases,
            Spec {
                verdict: PASS,
                counted: PASSED,
                ..data("not for a VIP", workload::segment(CLIENT, OTHER, ACK), None, one)
            },
        )?;
        let few = Some(Variation { flows: plan.flows, services: FEW.min(services / 2) });
        let all = Some(Variation { flows: plan.flows, services: services / 2 });
        // One flow first: in a table of many, another flow may have the place of its record.
        for (name, variation, from, to) in [
            ("established, remote, one flow", None, CLIENT, REMOTE),
            ("established, local, one flow", None, LOCAL_CLIENT, LOCAL),
            ("established, remote, many, few", few, OTHER_CLIENT, REMOTE),
            ("established, remote, many, all", all, CLIENT, REMOTE),
            ("established, local, many, few", few, OTHER_LOCAL_CLIENT, LOCAL),
            ("established, local, many, all", all, LOCAL_CLIENT, LOCAL),
        ] {
            let base = if variation.is_some() { many } else { one };
            let case = data(name, workload::segment(from, to, ACK), variation, base);
            add(&mut cases, sent_to(to, case))?;
        }
        let datagrams = data_plane(UDP)?;
        for (name, from, to) in [
            ("established, remote, UDP, one flow", CLIENT, REMOTE),
            ("established, local, UDP, one flow", LOCAL_CLIENT, LOCAL),
        ] {
            let case = data(name, workload::datagram(from, to), None, one);
            add(&mut cases, sent_to(to, Spec { target: datagrams.clone(), ..case }))?;
        }
    }
    for &services in &plan.services {
        full(&mut cases, plan, services, many)?;
    }
    if let Some(object) = &plan.katran {
        katran::known(&mut cases, plan, object)?;
    }
    Ok(cases)
}

/// Known flows in a table that a flood has filled. They are still known: each case checks that no
/// flow is new.
fn full(cases: &mut Vec<Case>, plan: &Plan, services: u32, base: usize) -> Result<()> {
    let target = Target::DataPlane(Rc::new(Program::load(&workload::state(services, TCP)?, plan.capacity)?));
    let spread = Variation { flows: plan.flows, services: services / 2 };
    let flood = Variation { flows: plan.capacity * 2, services: services / 2 };
    for (name, from, to) in
        [("established, remote, full table", CLIENT, REMOTE), ("established, local, full table", LOCAL_CLIENT, LOCAL)]
    {
        // Twice, so that they are more than one packet each.
        let frame = workload::segment(from, to, ACK);
        let known = Wrapper::new(target.xdp()?.fd()?, &frame, Some(spread))?;
        known.run(2 * plan.flows)?;
        target.establish_flows()?;
        let new = Wrapper::new(target.xdp()?.fd()?, &workload::segment(FLOOD_CLIENT, to, SYN), Some(flood))?;
        new.run(flood.flows)?;
        let case = floor(name, target.clone(), Some(spread), Some(base));
        add(cases, sent_to(to, Spec { services: Some(services), frame, warm_up: plan.flows, ..case }))?;
    }
    Ok(())
}

/// The flows that cases of new flows go through, far more than the tables hold.
pub(super) fn new_flows(plan: &Plan) -> u32 {
    plan.capacity.saturating_mul(4).next_power_of_two()
}

/// The packets of new flows that fill a flow table.
pub(super) fn filling(plan: &Plan) -> u32 {
    plan.capacity + plan.capacity / 4
}

/// Flows without a record, while the tables are full.
pub(super) fn new(plan: &Plan) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let (flows, full) = (new_flows(plan), filling(plan));
    let object = testing(&["empty_tx", "lru_insert"], 1, plan.capacity)?;
    let testing = |program| Target::Testing(Rc::clone(&object), program);
    let spread = Some(Variation { flows, services: 1 });
    let empty = add(&mut cases, floor("empty program, new flows", testing("empty_tx"), spread, None))?;
    add(
        &mut cases,
        Spec { prepare: full, known: false, ..floor("LRU insertion", testing("lru_insert"), spread, Some(empty)) },
    )?;
    for &services in &plan.services {
        let target = Target::DataPlane(Rc::new(Program::load(&workload::state(services, TCP)?, plan.capacity)?));
        let data = |name, from, to| Spec {
            services: Some(services),
            frame: workload::segment(from, to, SYN),
            prepare: full,
            known: false,
            ..floor(name, target.clone(), Some(Variation { flows, services: services / 2 }), Some(empty))
        };
        add(&mut cases, Spec { counted: NEWLY_HANDED_OVER, ..data("new flow, remote", CLIENT, REMOTE) })?;
        add(
            &mut cases,
            Spec { verdict: PASS, counted: NEWLY_DELIVERED, ..data("new flow, local", LOCAL_CLIENT, LOCAL) },
        )?;
    }
    if let Some(object) = &plan.katran {
        katran::new(&mut cases, plan, object)?;
    }
    Ok(cases)
}
