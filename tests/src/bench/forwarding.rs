//! Packets per second through a node on one core: vipmux's data plane and nftables rules like
//! kube-proxy's.
//!
//! The generator, the node and the sink share one CPU, so a rate includes all work for a packet.
//! Both sides send and receive the same frames in the same way. Only the node differs.

mod lane;
mod rules;

use std::{fs, net::Ipv4Addr};

use anyhow::{Result, ensure};
use serde::Serialize;
use vipmux_common::abi::Stat;

use super::{
    Plan,
    statistics::median,
    workload::{self, CLIENT, LOCAL, OTHER_CLIENT, REMOTE},
    wrapper::Variation,
};
use lane::{Equipment, Generator, Lane, Run};

/// Services of each side, half of them with endpoints elsewhere.
const SERVICES: u32 = 5_000;
/// Known flows: few enough that memory is no limit on either side.
const FLOWS: u32 = 1_024;
/// New flows between two flushes of the connection table, which would only grow.
const NEW: u32 = 131_072;
/// Packets of each known flow before each round.
const WARM_UP: u32 = 8;
/// The share of the sent packets that must arrive.
const ARRIVING: f64 = 0.9;

/// Rates for one kind of packet, medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// The kind of packet.
    pub case: &'static str,
    /// Services of each side.
    pub services: u32,
    /// Packets per second with the data plane.
    pub data_plane: f64,
    /// Packets per second with the rules.
    pub nftables: f64,
    /// The first over the second: the median of the rounds' ratios.
    pub ratio: f64,
    /// The least share of a round's packets that arrived, on either side.
    pub arrived: f64,
}

/// A kind of packet.
struct Case {
    name: &'static str,
    to: Ipv4Addr,
    new: bool,
    /// Additional rules of the data plane's node.
    rules: bool,
}

/// Packets that the stack forwards for no Service. This bounds local delivery, which ends in the
/// stack.
const POD: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

const CASES: [Case; 7] = [
    Case { name: "not for a VIP, established", to: POD, new: false, rules: false },
    Case { name: "hand-over, established", to: REMOTE, new: false, rules: false },
    Case { name: "hand-over, new", to: REMOTE, new: true, rules: false },
    Case { name: "local, established", to: LOCAL, new: false, rules: false },
    Case { name: "local, new", to: LOCAL, new: true, rules: false },
    Case { name: "local, established, rules behind", to: LOCAL, new: false, rules: true },
    Case { name: "local, new, rules behind", to: LOCAL, new: true, rules: true },
];

/// One side of a case: a lane, by its index, and its packets.
struct Side {
    lane: usize,
    generator: Generator,
}

/// Measures all cases in turns, on the CPU that the calling thread is pinned to.
pub(super) fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<Rate>> {
    let room: u32 = fs::read_to_string(MOST)?.trim().parse()?;
    ensure!(room > NEW, "{NEW} new flows do not fit the connection table: raise {MOST} from {room}");
    let state = workload::state(SERVICES, workload::UDP)?;
    let mut lanes = Vec::new();
    for (data_plane, rules) in [(true, false), (false, true), (true, true)] {
        progress(&format!("forwarding: node {} of 3, {SERVICES} Services", lanes.len() + 1));
        lanes.push(Lane::new(&state, Equipment { data_plane, rules }, plan.capacity)?);
    }
    let mut sides = Vec::new();
    for case in &CASES {
        progress(&format!("forwarding: {}", case.name));
        let ours = side(&mut lanes, if case.rules { 2 } else { 0 }, case, plan)?;
        sides.push([ours, side(&mut lanes, 1, case, plan)?]);
    }
    let mut samples: Vec<Vec<[Sample; 2]>> = CASES.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.repetitions {
        progress(&format!("forwarding: round {} of {}", round + 1, plan.repetitions));
        for turn in 0..CASES.len() {
            let index = (turn + round) % CASES.len();
            let mut sample = [Sample::default(); 2];
            for half in 0..2 {
                let half = (half + round) % 2;
                sample[half] = measure(&mut lanes, &sides[index][half], &CASES[index], plan)?;
            }
            samples[index].push(sample);
        }
    }
    Ok(CASES.iter().zip(&samples).map(|(case, samples)| rate(case, samples)).collect())
}

const MOST: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    rate: f64,
    arrived: f64,
}

fn rate(case: &Case, samples: &[[Sample; 2]]) -> Rate {
    let of = |half: usize| median(samples.iter().map(|sample| sample[half].rate).collect());
    Rate {
        case: case.name,
        services: SERVICES,
        data_plane: of(0),
        nftables: of(1),
        ratio: median(samples.iter().map(|[ours, theirs]| ours.rate / theirs.rate).collect()),
        arrived: samples.iter().flatten().map(|sample| sample.arrived).fold(1.0, f64::min),
    }
}

/// Returns a case's generator for a lane, after filling the lane's tables and checking the packets'
/// path.
fn side(lanes: &mut [Lane], index: usize, case: &Case, plan: &Plan) -> Result<Side> {
    let lane = &mut lanes[index];
    let flows = if case.new { plan.capacity.saturating_mul(4).next_power_of_two() } else { FLOWS };
    let from = if case.new { OTHER_CLIENT } else { CLIENT };
    let generator = lane.generator(from, case.to, Variation { flows, services: SERVICES / 2 })?;
    if case.new && lane.program().is_some() {
        let mut left = plan.capacity + plan.capacity / 4;
        while left > 0 {
            lane.forget()?;
            lane.send(&generator, left.min(NEW), false)?;
            left = left.saturating_sub(NEW);
        }
    }
    let side = Side { lane: index, generator };
    let before = new_flows(&lanes[index])?;
    let run = round(lanes, &side, case, plan)?;
    let after = new_flows(&lanes[index])?;
    check(case, &run, before.zip(after).map(|(before, after)| after - before), lanes[index].connections()?, plan)?;
    Ok(side)
}

fn new_flows(lane: &Lane) -> Result<Option<u64>> {
    lane.program().map(|program| Ok(program.counters()?.stats[Stat::NewFlows as usize].packets)).transpose()
}

/// Checks that the packets of a round were of the case's kind.
fn check(case: &Case, run: &Run, made: Option<u64>, tracked: Option<u64>, plan: &Plan) -> Result<()> {
    let packets = u64::from(packets(case, plan));
    let name = case.name;
    let (arrived, odd) = if case.to == REMOTE && made.is_some() {
        (run.untouched, run.translated)
    } else {
        (run.translated, run.untouched)
    };
    ensure!(odd == 0, "{name}: {odd} of {packets} packets have the wrong address");
    // Includes the warm-up: flows of earlier cases may have evicted known ones.
    let known = u64::from(FLOWS);
    for (what, count) in [("records made", made), ("connections tracked", tracked)] {
        let Some(count) = count else { continue };
        let right = if case.new { count >= arrived && count <= packets } else { count <= known };
        ensure!(right, "{name}: {count} {what} for {packets} packets, of which {arrived} arrived");
    }
    Ok(())
}

fn packets(case: &Case, plan: &Plan) -> u32 {
    if case.new { plan.packets.min(NEW) } else { plan.packets }
}

/// Runs one round of a case, with flows that the node knows or with an empty connection table.
fn round(lanes: &mut [Lane], Side { lane, generator }: &Side, case: &Case, plan: &Plan) -> Result<Run> {
    let lane = &mut lanes[*lane];
    lane.forget()?;
    if !case.new {
        // To the kernel, a connection is new until it was answered.
        lane.send(generator, FLOWS * WARM_UP, true)?;
    }
    lane.send(generator, packets(case, plan), false)
}

fn measure(lanes: &mut [Lane], side: &Side, case: &Case, plan: &Plan) -> Result<Sample> {
    let run = round(lanes, side, case, plan)?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let arrived = (run.translated + run.untouched) as f64;
    let share = arrived / f64::from(packets(case, plan));
    let name = case.name;
    ensure!(share >= ARRIVING, "{name}: only {share:.2} of the packets arrived: other programs use the same CPU");
    Ok(Sample { rate: arrived / run.elapsed.as_secs_f64(), arrived: share })
}
