//! The results, for people and for programs.

use std::{fmt, fs};

use anyhow::{Context, Result};
use serde::Serialize;

use super::{
    Plan,
    allocation::Cost,
    cases::Case,
    cores::CoreRate,
    failover::{Away, Failover},
    flood::Flood,
    forwarding::Rate,
    goals::{self, Goal},
    inspect::Elapsed,
    katran::{Beside, Comparison},
    node::{OwnTraffic, ProgramTime},
    sync::Latency,
    wrapper::Sample,
};

/// Changes whenever a field is removed or its meaning changes.
const VERSION: u32 = 2;

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this structure.
    pub version: u32,
    /// The CPU's model name.
    pub cpu: String,
    /// The kernel's release.
    pub kernel: String,
    /// Repetitions of each case.
    pub repetitions: usize,
    /// Packets of a repetition.
    pub packets: u32,
    /// Flows of the cases with many flows.
    pub flows: u32,
    /// Records of the flow table.
    pub capacity: u32,
    /// The figures.
    #[serde(flatten)]
    pub measured: Measured,
    /// The goals.
    pub goals: Vec<Goal>,
    /// The parts that could not be measured.
    pub failures: Vec<Failure>,
}

/// A failed part.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The part.
    pub part: &'static str,
    /// The error.
    pub error: String,
}

/// A run's figures; empty for parts that were not run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    /// The cost of each case.
    pub figures: Vec<Figure>,
    /// The ratio of the most Services to the fewest.
    pub ratios: Vec<Ratio>,
    /// The cost of packets beside Katran's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub katran: Vec<Comparison>,
    /// Packets per second of several cores.
    pub cores: Vec<CoreRate>,
    /// What floods do to other connections, by the size of the flow table.
    pub flood: Vec<Flood>,
    /// Packets per core.
    pub forwarding: Vec<Rate>,
    /// Rates of a node's own traffic.
    pub own_traffic: Vec<OwnTraffic>,
    /// What each program needs for a packet of it.
    pub program_times: Vec<ProgramTime>,
    /// The duration of changes, by the number of Services.
    pub sync: Vec<Latency>,
    /// The cost of allocations.
    pub allocation: Vec<Cost>,
    /// The duration of views.
    pub inspect: Vec<Elapsed>,
    /// The outages of a VIP.
    pub failover: Vec<Failover>,
}

/// CPU time of a packet in nanoseconds: medians over the repetitions.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The case.
    pub case: &'static str,
    /// The number of Services; none for cases without Services.
    pub services: Option<u32>,
    /// The total, including the wrapper.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
    /// The cost above the empty program in the same repetition; none for the empty program.
    pub net: Option<f64>,
    /// The kernel's own measure of elapsed time, whole nanoseconds.
    pub elapsed: f64,
}

/// A case's net cost with the most Services over that with the fewest: the median of the
/// repetitions' ratios.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// The case.
    pub case: &'static str,
    /// The highest and the lowest number of Services.
    pub services: (u32, u32),
    /// Their ratio.
    pub ratio: f64,
}

impl Report {
    pub(super) fn new(plan: &Plan, measured: Measured, failures: Vec<Failure>) -> Result<Self> {
        let cpus = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("reading the kernel's release")?;
        Ok(Self {
            version: VERSION,
            cpu: model.trim_start_matches(['\t', ' ', ':']).to_owned(),
            kernel: kernel.trim().to_owned(),
            repetitions: plan.repetitions,
            packets: plan.packets,
            flows: plan.flows,
            capacity: plan.capacity,
            goals: goals::all(&measured),
            measured,
            failures,
        })
    }
}

pub(super) fn figures(cases: &[Case], samples: &[Vec<Sample>]) -> Vec<Figure> {
    let figure = |(index, case): (usize, &Case)| {
        let total: Vec<f64> = samples[index].iter().map(|sample| sample.cpu).collect();
        let elapsed = samples[index].iter().map(|sample| f64::from(sample.kernel)).collect();
        Figure {
            case: case.name,
            services: case.services,
            least: total.iter().copied().fold(f64::INFINITY, f64::min),
            most: total.iter().copied().fold(0.0, f64::max),
            median: median(total),
            net: case.base.map(|base| median(net(&samples[index], &samples[base]))),
            elapsed: median(elapsed),
        }
    };
    cases.iter().enumerate().map(figure).collect()
}

pub(super) fn ratios(cases: &[Case], samples: &[Vec<Sample>]) -> Vec<Ratio> {
    let numbers = || cases.iter().filter_map(|case| case.services);
    let (Some(fewest), Some(most)) = (numbers().min(), numbers().max()) else { return Vec::new() };
    let with = |services: u32| cases.iter().enumerate().filter(move |(_, case)| case.services == Some(services));
    let mut ratios = Vec::new();
    for (few, case) in with(fewest).filter(|_| fewest < most) {
        let Some((many, _)) = with(most).find(|(_, other)| other.name == case.name) else { continue };
        let Some(base) = case.base else { continue };
        let pairs = net(&samples[many], &samples[base]).into_iter().zip(net(&samples[few], &samples[base]));
        let ratio = median(pairs.map(|(many, few)| many / few).collect());
        ratios.push(Ratio { case: case.name, services: (most, fewest), ratio });
    }
    ratios
}

pub(super) fn net(samples: &[Sample], base: &[Sample]) -> Vec<f64> {
    samples.iter().zip(base).map(|(sample, base)| sample.cpu - base.cpu).collect()
}

/// Returns the quantile `share`, up to 1. NaN for no values.
pub(super) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "few values"
    )]
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Returns the median. NaN for no values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, Linux {}", self.cpu, self.kernel)?;
        if !self.measured.figures.is_empty() {
            self.packets(f)?;
        }
        if !self.measured.katran.is_empty() {
            self.beside_katran(f)?;
        }
        if !self.measured.cores.is_empty() {
            self.cores(f)?;
        }
        if !self.measured.flood.is_empty() {
            self.floods(f)?;
        }
        if !self.measured.forwarding.is_empty() {
            self.rates(f)?;
        }
        if !self.measured.own_traffic.is_empty() {
            self.own_traffic(f)?;
        }
        if !self.measured.sync.is_empty() {
            self.latencies(f)?;
        }
        if !self.measured.allocation.is_empty() {
            self.allocations(f)?;
        }
        if !self.measured.inspect.is_empty() {
            self.views(f)?;
        }
        if !self.measured.failover.is_empty() {
            self.failovers(f)?;
        }
        if !self.goals.is_empty() {
            writeln!(f, "\n{:<90}{:>9}{:>9}{:>9}", "goals", "is", "at most", "at least")?;
        }
        for Goal { goal, value, most, least, met } in &self.goals {
            let bound = |bound: &Option<f64>| bound.map_or_else(String::new, |bound| format!("{bound:.2}"));
            let (most, least) = (bound(most), bound(least));
            writeln!(f, "{goal:<90}{value:>9.2}{most:>9}{least:>9}{}", if *met { "" } else { "  missed" })?;
        }
        for Failure { part, error } in &self.failures {
            writeln!(f, "\n{part} could not be measured: {error}")?;
        }
        Ok(())
    }
}

impl Report {
    fn packets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { repetitions, packets, flows, capacity, .. } = self;
        writeln!(f, "{repetitions} interleaved repetitions of {packets} packets, CPU time;")?;
        writeln!(
            f,
            "many: {flows} flows in random order, to a few Services or to all; a flow table of {capacity} records, full for new flows\n"
        )?;
        writeln!(
            f,
            "{:<34}{:>9}{:>9}{:>9}{:>9}{:>9}",
            "ns per packet (medians)", "services", "over", "in all", "least", "most"
        )?;
        for figure in &self.measured.figures {
            let services = figure.services.map_or_else(String::new, |services| services.to_string());
            let net = figure.net.map_or_else(String::new, |net| format!("{net:.1}"));
            let Figure { case, median, least, most, .. } = figure;
            writeln!(f, "{case:<34}{services:>9}{net:>9}{median:>9.1}{least:>9.1}{most:>9.1}")?;
        }
        Ok(())
    }

    fn beside_katran(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{:<34}{:>9}", "ns per packet over an empty one", "Katran")?;
        writeln!(f, "{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}", "remote", "ratio", "aim", "local", "ratio", "aim")?;
        for Comparison { case, katran, remote, local } in &self.measured.katran {
            write!(f, "{case:<34}{katran:>9.1}")?;
            for Beside { net, ratio, aim } in [Some(remote), local.as_ref()].into_iter().flatten() {
                let aim = aim.map_or_else(String::new, |aim| aim.to_string());
                write!(f, "{net:>9.1}{ratio:>9.2}{aim:>9}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn cores(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = "1,000 packets per second of all cores";
        writeln!(f, "\n{header:<40}{:>9}{:>12}{:>9}", "cores", "rate", "linear")?;
        for CoreRate { case, cores, rate, linear } in &self.measured.cores {
            let (Some(rate), Some(linear)) = (rate, linear) else {
                writeln!(f, "{case:<40}{cores:>9}{:>21}", "too few CPUs")?;
                continue;
            };
            writeln!(f, "{case:<40}{cores:>9}{:>12.0}{linear:>9.2}", rate / 1e3)?;
        }
        Ok(())
    }

    fn floods(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<44}{:>9}{:>9}{:>12}", "half a million per second", "lost", "evicted", "new succeed")?;
        for Flood { kind, records, lost, evicted, succeeded, .. } in &self.measured.flood {
            let what = format!("{}, {records} records", kind.name());
            writeln!(f, "{what:<44}{lost:>9}{evicted:>9}{succeeded:>12.3}")?;
        }
        Ok(())
    }

    fn rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<34}{:>9}{:>12}{:>9}{:>9}{:>9}",
            "1,000 packets per second and core", "services", "data plane", "nftables", "ratio", "arrived"
        )?;
        for Rate { case, services, data_plane, nftables, ratio, arrived } in &self.measured.forwarding {
            let (data_plane, nftables) = (data_plane / 1e3, nftables / 1e3);
            writeln!(f, "{case:<34}{services:>9}{data_plane:>12.0}{nftables:>9.0}{ratio:>9.2}{arrived:>9.3}")?;
        }
        Ok(())
    }

    fn own_traffic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = "a node's own traffic, MB or 1,000 per second";
        let columns = ["without", "passing", "vipmux", "ratio", "passing"];
        writeln!(f, "\n{header:<46}{}", columns.map(|column| format!("{column:>9}")).concat())?;
        for it in &self.measured.own_traffic {
            let rates = [it.without, it.passing, it.with].map(|rate| format!("{rate:>9.1}")).concat();
            let ratios = [it.ratio, it.ratio_to_passing].map(|ratio| format!("{ratio:>9.3}")).concat();
            writeln!(f, "{:<46}{rates}{ratios}", format!("{}: {}", it.mode, it.case))?;
        }
        writeln!(f, "\n{:<46}{:>9}{:>9}", "the same: ns per packet, as the kernel measures", "packets", "ns")?;
        for ProgramTime { mode, case, program, nanoseconds, packets } in &self.measured.program_times {
            writeln!(f, "{:<46}{packets:>9}{nanoseconds:>9.0}", format!("{mode}: {case}, {program}"))?;
        }
        Ok(())
    }

    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<34}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
            "ms from file to kernel", "services", "median", "99 %", "most", "CPU", "start"
        )?;
        for Latency { services, change, change_99, change_most, change_cpu, changes, start, .. } in &self.measured.sync
        {
            let what = format!("one endpoint of one Service, {changes} x");
            writeln!(
                f,
                "{what:<34}{services:>9}{change:>9.2}{change_99:>9.2}{change_most:>9.2}{change_cpu:>9.2}{start:>9.0}"
            )?;
        }
        Ok(())
    }

    fn allocations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<34}{:>9}{:>9}", "ms of CPU time to allocate", "median", "most")?;
        for Cost { case, milliseconds, most, .. } in &self.measured.allocation {
            writeln!(f, "{case:<34}{milliseconds:>9.2}{most:>9.2}")?;
        }
        Ok(())
    }

    fn views(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<34}{:>9}{:>9}", "ms with a million flows", "median", "most")?;
        for Elapsed { case, milliseconds, most } in &self.measured.inspect {
            writeln!(f, "{case:<34}{milliseconds:>9.0}{most:>9.0}")?;
        }
        Ok(())
    }

    fn failovers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut system = "";
        for row in &self.measured.failover {
            if row.system != system {
                system = &row.system;
                writeln!(f, "\n{system}: ms without an answer, median and worst, and requests lost")?;
                writeln!(
                    f,
                    "{:<28}{:>5}{:>22}{:>22}{:>22}{:>22}{:>8}{:>6}{:>10}",
                    "", "runs", "UDP", "UDP, asking anew", "TCP", "ARP", "double", "moves", "broken"
                )?;
            }
            let Failover { case, runs, warm, anew, connections, questions, double_answers, moves, .. } = row;
            write!(f, "{case:<28}{runs:>5}")?;
            for Away { median, worst, lost } in [warm, anew, connections, questions] {
                write!(f, "{median:>8.0}{worst:>8.0}{lost:>6}")?;
            }
            let broken = if row.sessions > 0 { format!("{}/{}", row.broken, row.sessions) } else { String::new() };
            writeln!(f, "{double_answers:>8}{moves:>6}{broken:>10}")?;
            for failure in &row.failures {
                writeln!(f, "  a run failed: {failure}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_small_machine_cannot_measure_is_said() {
        let rate = |cores, rate| CoreRate { case: "new flow, local", cores, rate, linear: rate.map(|_| 1.0) };
        let measured = Measured { cores: vec![rate(2, Some(2e6)), rate(16, None)], ..Measured::default() };
        let report = Report::new(&Plan::default(), measured, Vec::new()).unwrap();
        let text = report.to_string();
        let row = |cores: &str| text.lines().find(|line| line.contains("local  ") && line.contains(cores)).unwrap();
        assert!(row("  2 ").ends_with("2000     1.00"), "{text}");
        assert!(row("  16 ").ends_with("too few CPUs"), "{text}");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        assert!(median(Vec::new()).is_nan());
    }
}
