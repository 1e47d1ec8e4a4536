//! The results, for people and for programs.

use std::{fmt, fs};

use anyhow::{Context, Result};
use serde::Serialize;

use super::{
    Plan,
    allocation::Cost,
    cores::CoreRate,
    failover::{Away, Failover},
    figures::{Figure, Measured},
    flood::Flood,
    forwarding::Rate,
    goals::{self, Goal},
    inspect::Elapsed,
    katran::{Beside, Comparison},
    node::ProgramTime,
    sync::Latency,
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
}
