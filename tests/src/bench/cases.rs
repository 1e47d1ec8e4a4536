//! The cases, in two phases: first known flows, then new ones into full tables.

use std::{net::Ipv4Addr, rc::Rc};

use anyhow::Result;
use vipmux_common::abi::Stat;

use super::{
    Plan,
    case::{Case, Counted, Counter, PASS, Spec, TX, Target, add, filling, floor, new_flows, testing},
    katran_cases,
    workload::{
        self, CLIENT, FEW, FLOOD_CLIENT, LOCAL, LOCAL_CLIENT, OTHER, OTHER_CLIENT, OTHER_LOCAL_CLIENT, REMOTE, TCP, UDP,
    },
    wrapper::{Variation, Wrapper},
};
use crate::{
    frames::{ACK, SYN},
    program::Program,
};

/// A function that makes a phase's cases.
pub(super) type Phase = fn(&Plan) -> Result<Vec<Case>>;

const PASSED: Counted = &[(Counter::Ours(Stat::Passed), true)];
const HANDED_OVER: Counted = &[(Counter::Ours(Stat::HandedOver), true), (Counter::Ours(Stat::NewFlows), false)];
const DELIVERED: Counted = &[(Counter::Ours(Stat::Local), true), (Counter::Ours(Stat::NewFlows), false)];
const NEWLY_HANDED_OVER: Counted = &[(Counter::Ours(Stat::HandedOver), true), (Counter::Ours(Stat::NewFlows), true)];
const NEWLY_DELIVERED: Counted = &[(Counter::Ours(Stat::Local), true), (Counter::Ours(Stat::NewFlows), true)];

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
        katran_cases::known(&mut cases, plan, object)?;
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
        katran_cases::new(&mut cases, plan, object)?;
    }
    Ok(cases)
}
