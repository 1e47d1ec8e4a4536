//! The figures of a run.

use serde::Serialize;

use super::{
    allocation::Cost,
    case::Case,
    cores::CoreRate,
    failover::Failover,
    flood::Flood,
    forwarding::Rate,
    inspect::Elapsed,
    katran::Comparison,
    node::{OwnTraffic, ProgramTime},
    statistics::{median, net},
    sync::Latency,
    wrapper::Sample,
};

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
