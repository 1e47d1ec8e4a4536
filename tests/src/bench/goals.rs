//! The goals for the figures, and whether they are met.

use serde::Serialize;

use super::{
    allocation::Cost,
    cores::{BESIDE_FLOOD, CoreRate},
    failover::Failover,
    figures::{Figure, Measured, Ratio},
    flood::Flood,
    forwarding::Rate,
    inspect::Elapsed,
    katran::Comparison,
    node::OwnTraffic,
    sync::Latency,
};

/// A figure with its bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// The figure's name and unit.
    pub goal: String,
    /// Its value.
    pub value: f64,
    /// The upper bound; none if larger is better.
    pub most: Option<f64>,
    /// The lower bound; none if smaller is better.
    pub least: Option<f64>,
    /// True if it is met.
    pub met: bool,
}

impl Goal {
    fn at_most(goal: String, value: f64, most: f64) -> Self {
        Self { goal, value, most: Some(most), least: None, met: value <= most }
    }

    fn at_least(goal: String, value: f64, least: f64) -> Self {
        Self { goal, value, most: None, least: Some(least), met: value >= least }
    }
}

/// Cases, with their highest cost as a multiple of the sum of these lower bounds from the same run.
const PACKETS: [(&str, f64, &[&str]); 10] = [
    ("not for a VIP", 1.0, &["hash lookup, miss"]),
    ("established, remote, one flow", 1.0, &["hash lookup, one flow", "LRU lookup, one flow"]),
    ("established, remote, UDP, one flow", 1.0, &["hash lookup, one flow", "LRU lookup, one flow"]),
    ("established, local, one flow", 1.0, &["hash lookup, one flow", "LRU lookup, one flow"]),
    // A record of many is one line of the table away.
    ("established, remote, many, few", 1.0, &["established, remote, one flow", "own table, many flows"]),
    ("established, remote, many, all", 1.0, &["established, remote, one flow", "own table, many flows"]),
    ("established, local, many, few", 1.25, &["established, local, one flow", "own table, many flows"]),
    ("established, remote, full table", 1.25, &["established, remote, one flow", "own table, many flows"]),
    ("new flow, remote", 1.0, &["LRU insertion"]),
    ("new flow, local", 1.0, &["LRU insertion"]),
];
/// The least share of linear growth with cores.
const LINEAR: f64 = 0.9;
/// The least share of new connections that succeed beside a flood, in tables of at least this many
/// records: an agent's smallest default.
const BESIDE_SYNS: (u32, f64) = (16_384, 0.95);
/// Cases, with their lowest rate as a multiple of nftables rules' rate.
const FORWARDING: [(&str, f64); 4] =
    [("hand-over, established", 2.5), ("hand-over, new", 4.0), ("local, established", 1.3), ("local, new", 2.0)];
/// The least rate of a node's own traffic over that without vipmux.
const OWN_TRAFFIC: f64 = 0.99;
/// The highest ratio of the cost with the most Services to that with the fewest.
const GROWTH: f64 = 1.15;
/// The bounds for a change of an endpoint and for a start, milliseconds.
const CHANGE: f64 = 5.0;
const START: f64 = 2_000.0;
/// The bound for a view, milliseconds.
const INSPECT: f64 = 1_000.0;
/// The bounds for the outage after a crash: the median and the worst run, milliseconds.
const AWAY: (f64, f64) = (400.0, 1_000.0);
/// The system with goals. The others are for comparison.
const OURS: &str = "vipmux";

/// Returns all goals that these figures cover. Packet costs are with the most Services.
pub(super) fn all(measured: &Measured) -> Vec<Goal> {
    let Measured { figures, ratios, katran, cores, flood, forwarding, own_traffic, .. } = measured;
    let Measured { sync, allocation, inspect, failover, .. } = measured;
    let mut goals: Vec<_> =
        PACKETS.iter().filter_map(|(case, most, floors)| packets(figures, case, *most, floors)).collect();
    for Ratio { case, services: (most, fewest), ratio } in ratios {
        goals.push(Goal::at_most(format!("{case}: {most} to {fewest} Services"), *ratio, GROWTH));
    }
    for Comparison { case, remote, local, .. } in katran {
        for (to, beside) in [("remote", Some(remote)), ("local", local.as_ref())] {
            let aim = beside.and_then(|beside| Some((beside.ratio, beside.aim?)));
            goals.extend(aim.map(|(ratio, aim)| Goal::at_most(format!("{case}: {to}, over Katran"), ratio, aim)));
        }
    }
    for CoreRate { case, cores, linear, .. } in cores.iter().filter(|rate| rate.cores > 1 || rate.case == BESIDE_FLOOD)
    {
        let goal = format!("{case}: {cores} cores, share of linear");
        goals.extend(linear.map(|linear| Goal::at_least(goal, linear, LINEAR)));
    }
    for Flood { kind, records, lost, evicted, succeeded, .. } in flood {
        let of = |what: &str| format!("flood of {}, {records} records: {what}", kind.name());
        goals.push(Goal::at_most(of("live connections lost"), count(*lost), 0.0));
        if !kind.fills_tables() {
            goals.push(Goal::at_most(of("live records evicted"), count(*evicted), 0.0));
        }
        let (least, share) = BESIDE_SYNS;
        if *records >= least {
            goals.push(Goal::at_least(of("share of new connections that succeed"), *succeeded, share));
        }
    }
    for (case, least) in FORWARDING {
        let Some(Rate { ratio, .. }) = forwarding.iter().find(|rate| rate.case == case) else { continue };
        goals.push(Goal::at_least(format!("{case}: packets per second over nftables'"), *ratio, least));
    }
    for OwnTraffic { mode, case, ratio, ratio_to_passing, .. } in own_traffic {
        let goal = |base| format!("a node's own traffic, {mode}, {case}: over that {base}");
        goals.push(Goal::at_least(goal("without vipmux"), *ratio, OWN_TRAFFIC));
        goals.push(Goal::at_least(goal("with a passing program"), *ratio_to_passing, OWN_TRAFFIC));
    }
    for Latency { services, change_99, start, .. } in sync {
        goals.push(Goal::at_most(
            format!("a change among {services} Services, 99th percentile, ms"),
            *change_99,
            CHANGE,
        ));
        goals.push(Goal::at_most(format!("a start with {services} Services, ms"), *start, START));
    }
    let by_services = |latency: &&Latency| latency.services;
    if let (Some(few), Some(many)) = (sync.iter().min_by_key(by_services), sync.iter().max_by_key(by_services))
        && few.services < many.services
    {
        let goal = format!("a change's median: {} to {} Services", many.services, few.services);
        goals.push(Goal::at_most(goal, many.change / few.change, GROWTH));
    }
    for Cost { case, milliseconds, goal, .. } in allocation {
        goals.extend(goal.map(|most| Goal::at_most(format!("allocation, {case}: ms"), *milliseconds, most)));
    }
    for Elapsed { case, milliseconds, .. } in inspect {
        goals.push(Goal::at_most(format!("{case}: ms with a million flows"), *milliseconds, INSPECT));
    }
    goals.extend(failover.iter().filter(|row| row.system == OURS).flat_map(failovers));
    goals
}

/// A planned change loses nothing. An unplanned one has a short outage. No request is answered by
/// two nodes, and no connection to an unaffected node breaks.
fn failovers(row: &Failover) -> Vec<Goal> {
    let Failover { case, planned, runs, longest, double_answers, broken, failures, .. } = row;
    let (median, worst) = AWAY;
    let none = |what: &str, number: usize| {
        let number = if *runs > 0 { count(number) } else { f64::NAN };
        Goal::at_most(format!("{case}: {what}"), number, 0.0)
    };
    let mut goals = if *planned {
        vec![none("requests lost", longest.lost)]
    } else {
        vec![
            Goal::at_most(format!("{case}: ms without an answer, median"), longest.median, median),
            Goal::at_most(format!("{case}: ms without an answer, worst"), longest.worst, worst),
        ]
    };
    goals.push(none("requests that two nodes answered", *double_answers));
    goals.push(none("connections broken", *broken));
    goals.push(none("runs that failed", failures.len()));
    goals
}

#[expect(clippy::cast_precision_loss, reason = "few values")]
fn count(number: usize) -> f64 {
    number as f64
}

fn packets(figures: &[Figure], case: &str, most: f64, floors: &[&str]) -> Option<Goal> {
    let figure = figures.iter().filter(|figure| figure.case == case).max_by_key(|figure| figure.services)?;
    let floor = |name: &&str| figures.iter().find(|figure| figure.case == *name)?.net;
    let floor: f64 = floors.iter().map(floor).sum::<Option<f64>>()?;
    Some(Goal::at_most(format!("{case}: over {}", floors.join(" and ")), figure.net? / floor, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{flood::Kind, katran::Beside};

    fn figure(case: &'static str, services: Option<u32>, net: f64) -> Figure {
        Figure { case, services, median: 0.0, least: 0.0, most: 0.0, net: Some(net), elapsed: 0.0 }
    }

    fn latency(services: u32, change: f64) -> Latency {
        Latency {
            services,
            endpoints: services,
            start: 1_000.0,
            change,
            change_99: 4.0,
            change_most: 9.0,
            change_cpu: 1.0,
            changes: 10,
        }
    }

    #[test]
    fn a_figure_is_held_against_the_floors_of_its_run() {
        let figures = [
            figure("hash lookup, one flow", None, 30.0),
            figure("LRU lookup, one flow", None, 50.0),
            figure("established, remote, one flow", Some(10), 80.0),
            figure("established, remote, one flow", Some(10_000), 120.0),
        ];
        let goals = all(&Measured { figures: figures.to_vec(), ..Measured::default() });
        assert_eq!(goals.len(), 1, "{goals:?}");
        assert!((goals[0].value - 1.5).abs() < 1e-9 && !goals[0].met, "{goals:?}");
    }

    #[test]
    fn a_change_must_not_grow_with_the_services() {
        let met = |many| {
            let sync = vec![latency(100, 1.0), latency(10_000, many)];
            all(&Measured { sync, ..Measured::default() }).last().unwrap().met
        };
        assert!(met(1.1));
        assert!(!met(1.2));
    }

    #[test]
    fn many_flows_are_held_against_a_line_of_the_table() {
        const MANY: &str = "established, remote, many, few";
        let figures = |many| {
            [("established, remote, one flow", 40.0), ("own table, many flows", 80.0), (MANY, many)]
                .map(|(case, net)| figure(case, Some(10), net))
        };
        let met = |many| all(&Measured { figures: figures(many).to_vec(), ..Measured::default() })[0].met;
        assert_eq!([met(119.0), met(121.0)], [true, false]);
    }

    #[test]
    fn a_flood_must_break_no_connection_and_keep_few_out() {
        let met = |lost, succeeded| {
            let flood = vec![Flood { kind: Kind::Syns, records: 16_384, lost, evicted: lost, forgotten: 1, succeeded }];
            all(&Measured { flood, ..Measured::default() }).iter().map(|goal| goal.met).collect::<Vec<_>>()
        };
        assert_eq!(met(0, 0.96), [true, true, true]);
        assert_eq!(met(1, 0.94), [false, false, false]);
    }

    #[test]
    fn a_rate_is_held_against_that_of_the_rules() {
        let rate = |case, ratio| Rate { case, services: 2, data_plane: ratio, nftables: 1.0, ratio, arrived: 1.0 };
        let forwarding =
            vec![rate("hand-over, new", 3.9), rate("local, new", 2.0), rate("local, new, rules behind", 0.1)];
        let goals = all(&Measured { forwarding, ..Measured::default() });
        assert_eq!(goals.iter().map(|goal| goal.met).collect::<Vec<_>>(), [false, true], "{goals:?}");
    }

    #[test]
    fn a_ratio_to_katran_is_a_goal_if_it_has_an_aim() {
        let beside = |ratio, aim| Beside { net: 50.0, ratio, aim };
        let (remote, local) = (beside(0.5, Some(0.45)), Some(beside(0.55, None)));
        let katran = vec![Comparison { case: "Katran: TCP, one flow", katran: 100.0, remote, local }];
        let goals = all(&Measured { katran, ..Measured::default() });
        assert_eq!(goals.iter().map(|goal| goal.met).collect::<Vec<_>>(), [false], "{goals:?}");
    }

    #[test]
    fn a_value_that_is_no_number_meets_no_goal() {
        assert!(!Goal::at_most("nothing was measured".to_owned(), f64::NAN, 1.0).met);
        assert!(!Goal::at_least("nothing was measured".to_owned(), f64::NAN, 1.0).met);
    }
}
