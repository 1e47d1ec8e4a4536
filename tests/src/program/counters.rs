//! The counters of a run.

use anyhow::{Context, Result};
use aya::{
    Ebpf,
    maps::{PerCpuArray, PerCpuValues},
    util::nr_cpus,
};
use vipmux_common::abi::Count;

/// `STATS`, `DROPS` and `SERVICE_STATS`, each summed over the CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// By [`vipmux_common::abi::Stat`].
    pub stats: Vec<Count>,
    /// By [`vipmux_common::abi::DropReason`].
    pub drops: Vec<Count>,
    /// By service slot.
    pub services: Vec<Count>,
}

impl Counters {
    pub(super) fn read(ebpf: &Ebpf) -> Result<Self> {
        Ok(Self { stats: sums(ebpf, "STATS")?, drops: sums(ebpf, "DROPS")?, services: sums(ebpf, "SERVICE_STATS")? })
    }

    pub(super) fn clear(ebpf: &mut Ebpf) -> Result<()> {
        let zero = PerCpuValues::try_from(vec![Count::default(); nr_cpus().map_err(|(_, error)| error)?])?;
        for name in ["STATS", "DROPS", "SERVICE_STATS"] {
            let map = ebpf.map_mut(name).with_context(|| format!("no map {name}"))?;
            let mut array: PerCpuArray<_, Count> = map.try_into()?;
            for index in 0..array.len() {
                array.set(index, PerCpuValues::try_from(zero.to_vec())?, 0)?;
            }
        }
        Ok(())
    }

    /// Returns the increase since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            stats: difference(&self.stats, &earlier.stats),
            drops: difference(&self.drops, &earlier.drops),
            services: difference(&self.services, &earlier.services),
        }
    }

    /// Returns the same number of counters, all zero.
    pub fn zeroed(&self) -> Self {
        self.since(self)
    }
}

fn sums(ebpf: &Ebpf, name: &str) -> Result<Vec<Count>> {
    let map = ebpf.map(name).with_context(|| format!("no map {name}"))?;
    let array: PerCpuArray<_, Count> = map.try_into()?;
    array.iter().map(|values| Ok(values?.iter().fold(Count::default(), |sum, count| add(sum, *count)))).collect()
}

fn add(a: Count, b: Count) -> Count {
    Count { packets: a.packets + b.packets, bytes: a.bytes + b.bytes, flows: a.flows + b.flows }
}

fn difference(later: &[Count], earlier: &[Count]) -> Vec<Count> {
    let minus = |a: &Count, b: &Count| Count {
        packets: a.packets - b.packets,
        bytes: a.bytes - b.bytes,
        flows: a.flows - b.flows,
    };
    later.iter().zip(earlier).map(|(a, b)| minus(a, b)).collect()
}
