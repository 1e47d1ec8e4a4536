//! The metrics of a process, by the names that dashboards of Prometheus know.

use std::{fmt, fs};

use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{amount, counters_of_seconds, gauge};

/// This process, by proc(5).
#[derive(Debug)]
pub(super) struct Process;

/// The usage of a process, from /proc.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessUsage {
    /// Seconds on a CPU.
    cpu: f64,
    /// Bytes in memory.
    resident: f64,
    /// The start time, seconds since 1970-01-01 UTC.
    started: f64,
}

impl ProcessUsage {
    /// Parses /proc/self/stat and /proc/stat; `ticks` a second, `page` bytes.
    fn parse(own: &str, system: &str, ticks: f64, page: f64) -> Option<Self> {
        // The name, in parentheses, may hold anything; the third field follows.
        let fields: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(Self {
            cpu: (field(14)? + field(15)?) / ticks,
            resident: field(24)? * page,
            started: boot + field(22)? / ticks,
        })
    }

    fn now() -> Option<Self> {
        let (own, system) = (fs::read_to_string("/proc/self/stat").ok()?, fs::read_to_string("/proc/stat").ok()?);
        let number = |name| i32::try_from(sysconf(name).ok()??).ok().map(f64::from);
        Self::parse(&own, &system, number(SysconfVar::CLK_TCK)?, number(SysconfVar::PAGE_SIZE)?)
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        if let Some(ProcessUsage { cpu, resident, started }) = ProcessUsage::now() {
            counters_of_seconds(&mut encoder, "process_cpu_seconds", "Time on a CPU, in seconds", cpu)?;
            gauge(&mut encoder, "process_resident_memory_bytes", "Memory, in bytes", resident)?;
            let help = "When the process was started, in seconds since 1970-01-01 UTC";
            gauge(&mut encoder, "process_start_time_seconds", help, started)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One is that of the directory.
            let open = amount(open.count().saturating_sub(1));
            gauge(&mut encoder, "process_open_fds", "Open file descriptors", open)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let own = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0 12345 1000000 256 18446744073709551615";
        let usage = ProcessUsage::parse(own, "cpu 1 2\nbtime 1700000000\n", 100.0, 4096.0).unwrap();
        assert_eq!(usage, ProcessUsage { cpu: 2.0, resident: 1_048_576.0, started: 1_700_000_123.45 });
        assert_eq!(ProcessUsage::parse("7 (a) S 1", "btime 1\n", 100.0, 4096.0), None);
    }

    #[test]
    fn this_process_has_memory() {
        let usage = ProcessUsage::now().unwrap();
        assert!(usage.resident > 100_000.0 && usage.started > 1_000_000_000.0 && usage.cpu >= 0.0, "{usage:?}");
    }
}
