//! The cases of Katran's program, and their comparison with the data plane's.

use std::{path::Path, rc::Rc};

use anyhow::Result;
use aya::Ebpf;

use super::{
    Plan,
    case::{self, Case, Counted, PASS, Spec, Target, floor},
    katran::{Beside, Comparison, Counter, ENTRIES, Katran, SERVICES},
    statistics::{median, net},
    workload::{self, CLIENT, FEW, FLOOD_CLIENT, OTHER, OTHER_CLIENT, REMOTE},
    wrapper::{Sample, Variation, Wrapper},
};
use crate::frames::{ACK, SYN};

const FOUND: Counted = &[count(Counter::ForVip, true), count(Counter::Missed, false), count(Counter::Fallback, false)];
const NEW: Counted = &[
    count(Counter::ForVip, true),
    count(Counter::Missed, true),
    count(Counter::MissedSyn, true),
    count(Counter::Fallback, false),
];
const NOT_FOR_A_VIP: Counted = &[count(Counter::ForVip, false)];

const fn count(counter: Counter, each: bool) -> (case::Counter, bool) {
    (case::Counter::Katran(counter), each)
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

/// Adds a base of Katran's cases: the empty program in a wrapper that takes headers away. Returns its
/// index.
fn base(cases: &mut Vec<Case>, name: &'static str, empty: &Rc<Ebpf>, variation: Option<Variation>) -> Result<usize> {
    let empty = Target::Testing(Rc::clone(empty), "empty_tx");
    case::add(cases, Spec { grows: true, ..floor(name, empty, variation, None) })
}

/// Adds the cases of known flows, and of packets that are not for a VIP.
pub(super) fn known(cases: &mut Vec<Case>, plan: &Plan, object: &Path) -> Result<()> {
    let spread = Variation { flows: plan.flows, services: FEW };
    let empty = case::testing(&["empty_tx"], 1, 1)?;
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
    case::add(cases, one(TCP_ONE, workload::segment(CLIENT, REMOTE, ACK)))?;
    case::add(cases, one(UDP_ONE, workload::datagram(CLIENT, REMOTE)))?;
    let other = one(NO_VIP, workload::segment(CLIENT, OTHER, ACK));
    case::add(cases, Spec { verdict: PASS, counted: NOT_FOR_A_VIP, ..other })?;
    let many = |name, from, katran: &Rc<Katran>| Spec {
        frame: workload::segment(from, REMOTE, ACK),
        grows: true,
        warm_up: plan.flows,
        counted: FOUND,
        ..floor(name, Target::Katran(Rc::clone(katran)), Some(spread), Some(many))
    };
    case::add(cases, many(TCP_MANY, OTHER_CLIENT, &katran))?;

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
    case::add(cases, many(TCP_FULL, CLIENT, &katran))?;
    Ok(())
}

/// Adds the case of flows without an entry, while the map is full.
pub(super) fn new(cases: &mut Vec<Case>, plan: &Plan, object: &Path) -> Result<()> {
    let flows = case::new_flows(plan);
    let spread = Some(Variation { flows, services: FEW });
    let empty = base(cases, "Katran's base, new flows", &case::testing(&["empty_tx"], 1, 1)?, spread)?;
    let katran = Rc::new(Katran::load(object)?);
    let case = floor(TCP_NEW, Target::Katran(Rc::clone(&katran)), spread, Some(empty));
    let prepare = case::filling(plan).max(ENTRIES * 2);
    let frame = workload::segment(CLIENT, REMOTE, SYN);
    case::add(cases, Spec { frame, grows: true, prepare, known: false, counted: NEW, ..case })?;
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
