//! Measures the outage of a VIP when something happens to its leader: with vipmux and with
//! keepalived, with clients that send requests every 10 ms ([`crate::watch`]).

mod ours;
mod sample;
mod theirs;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

pub use self::sample::{Away, Sample};
use self::{ours::Agents, sample::Span, theirs::Others};
use super::statistics::median;
use crate::keepalived::{self, Advertisements};

/// The options of this part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Runs of each case.
    pub runs: usize,
    /// The case to measure; `None`: all.
    pub case: Option<Case>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { runs: 20, case: None }
    }
}

/// The results of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Failover {
    /// `vipmux`, or keepalived with its version and advertisement interval.
    pub system: String,
    /// The event.
    pub case: &'static str,
    /// True if it was planned, so nothing may be lost.
    pub planned: bool,
    /// Completed runs.
    pub runs: usize,
    /// Datagrams of a client that knows the VIP's MAC.
    pub warm: Away,
    /// Datagrams of a client that resolves the MAC each time.
    pub anew: Away,
    /// TCP connections of a client that knows the MAC.
    pub connections: Away,
    /// ARP requests.
    pub questions: Away,
    /// The longest outage of the four kinds in each run.
    pub longest: Away,
    /// ARP requests that more than one node answered, in all runs.
    pub double_answers: usize,
    /// The largest number of changes of the answering node in a run.
    pub moves: usize,
    /// Connections to servers on unaffected nodes; none if the servers are on the failed node.
    pub sessions: usize,
    /// Those of them that broke.
    pub broken: usize,
    /// The failures of the incomplete runs.
    pub failures: Vec<String>,
}

/// A cluster for repeated events.
trait Contender {
    fn system(&self) -> String;

    fn cases(&self) -> Vec<Case>;

    /// Triggers the event, and repairs its effects.
    fn measure(&mut self, case: Case) -> Result<Sample>;
}

/// An event at the leading node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// The process is killed.
    Kill,
    /// The first of the processes is killed; keepalived has several.
    KillMain,
    /// The process is stopped, and continues later.
    Pause,
    /// The link goes down.
    Unplug,
    /// The switch forwards nothing to or from the node.
    CutOff,
    /// The process gets SIGTERM.
    Terminate,
    /// One node after the other is stopped and started again.
    RollingRestart,
    /// The Leases cannot be reached.
    StoreAway,
    /// The process is killed while the Leases cannot be reached.
    KillWithoutStore,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::KillMain => "SIGKILL of the main process",
            Self::Pause => "SIGSTOP, then SIGCONT",
            Self::Unplug => "link down",
            Self::CutOff => "cut off by the switch",
            Self::Terminate => "SIGTERM (drain)",
            Self::RollingRestart => "rolling restart",
            Self::StoreAway => "store away",
            Self::KillWithoutStore => "SIGKILL, store away",
        }
    }

    fn is_planned(self) -> bool {
        matches!(self, Self::Terminate | Self::RollingRestart | Self::StoreAway)
    }
}

/// The time that clients continue after another node leads. If nothing should happen, the time that
/// is observed.
const AFTER: Duration = Duration::from_millis(1_500);
/// The delay before a stopped process continues, after another node leads.
const ASLEEP: Duration = Duration::from_secs(1);

/// Runs every case of every contender once, then again. `progress` gets the current activity,
/// `outcome` gets each run's result. All cases take more than an hour.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str), outcome: &mut dyn FnMut(&str)) -> Result<Vec<Failover>> {
    progress("failover: starting");
    let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(Agents::new()?)];
    let mut rows = Vec::new();
    match keepalived::version() {
        Ok(_) => {
            for advertisements in [Advertisements::Default, Advertisements::Fast] {
                contenders.push(Box::new(Others::new(advertisements)?));
            }
        }
        Err(error) => {
            let failures = vec![format!("{error:#}")];
            rows.push(Failover::new("keepalived".to_owned(), Case::Kill, &[], failures));
        }
    }
    let mut results: Vec<_> = contenders.iter().map(|contender| Results::of(&**contender, plan.case)).collect();
    let most = results.iter().map(|results| results.cases.len()).max().unwrap_or(0);
    // In turns, so that each cluster settles while others are measured.
    for run in 0..plan.runs {
        for turn in 0..most {
            for (contender, Results { system, cases }) in contenders.iter_mut().zip(&mut results) {
                let Some(result) = cases.get_mut(turn) else { continue };
                let which = format!("failover: run {} of {}: {system}, {}", run + 1, plan.runs, result.case.name());
                progress(&which);
                match contender.measure(result.case) {
                    Ok(sample) => {
                        outcome(&format!("{which}: {sample}"));
                        result.samples.push(sample);
                    }
                    Err(error) => {
                        let failure = format!("{error:#}");
                        outcome(&format!("{which}: failed: {failure}"));
                        result.failures.push(failure);
                    }
                }
            }
        }
    }
    for Results { system, cases } in results {
        rows.extend(
            cases
                .into_iter()
                .map(|CaseResults { case, samples, failures }| Failover::new(system.clone(), case, &samples, failures)),
        );
    }
    Ok(rows)
}

struct Results {
    system: String,
    cases: Vec<CaseResults>,
}

struct CaseResults {
    case: Case,
    samples: Vec<Sample>,
    failures: Vec<String>,
}

impl Results {
    fn of(contender: &dyn Contender, only: Option<Case>) -> Self {
        let wanted = |case: &Case| only.is_none_or(|only| only == *case);
        let empty = |case| CaseResults { case, samples: Vec::new(), failures: Vec::new() };
        Self { system: contender.system(), cases: contender.cases().into_iter().filter(wanted).map(empty).collect() }
    }
}

impl Failover {
    fn new(system: String, case: Case, samples: &[Sample], failures: Vec<String>) -> Self {
        let away = |of: fn(&Sample) -> Span| Away::of(&samples.iter().map(of).collect::<Vec<_>>());
        Self {
            system,
            case: case.name(),
            planned: case.is_planned(),
            runs: samples.len(),
            warm: away(|sample| sample.warm),
            anew: away(|sample| sample.anew),
            connections: away(|sample| sample.connections),
            questions: away(|sample| sample.questions),
            longest: away(Sample::longest),
            double_answers: samples.iter().map(|sample| sample.double_answers).sum(),
            moves: samples.iter().map(|sample| sample.moves).max().unwrap_or(0),
            sessions: samples.iter().map(|sample| sample.sessions).sum(),
            broken: samples.iter().map(|sample| sample.broken).sum(),
            failures,
        }
    }
}
