//! How long an address is away when something happens to the node that leads it: agents, and for comparison keepalived, with
//! clients that ask every 10 ms ([`crate::watch`]).

mod ours;
mod sample;
mod theirs;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

pub use self::sample::{Away, Sample};
use self::{ours::Agents, sample::Span, theirs::Others};
use super::report::median;
use crate::keepalived::{self, Advertisements};

/// What is measured how often.
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

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Failover {
    /// Whose: `vipmux`, or keepalived with its version and how often it advertises itself.
    pub system: String,
    /// What happened.
    pub case: &'static str,
    /// Whether it was planned, and so nothing may be lost.
    pub planned: bool,
    /// Runs that came to an end.
    pub runs: usize,
    /// Datagrams of a client that knows the address's MAC.
    pub warm: Away,
    /// Datagrams of a client that asks for it each time.
    pub anew: Away,
    /// TCP connections of a client that knows it.
    pub connections: Away,
    /// ARP requests.
    pub questions: Away,
    /// The longest of the four in each run.
    pub longest: Away,
    /// ARP requests that more than one node answered, in all runs.
    pub double_answers: usize,
    /// How often another node began to answer, at most in one run.
    pub moves: usize,
    /// Connections to servers on nodes that nothing happened to; none where the servers are on the node that failed.
    pub sessions: usize,
    /// Of these, those that were broken.
    pub broken: usize,
    /// Why the other runs did not come to an end.
    pub failures: Vec<String>,
}

/// One cluster that things happen to, again and again.
trait Site {
    fn system(&self) -> String;

    fn cases(&self) -> Vec<Case>;

    /// Lets it happen, and puts right what it left.
    fn measure(&mut self, case: Case) -> Result<Sample>;
}

/// What can happen to the node that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// Its process is killed.
    Kill,
    /// Of its processes the first one is killed; keepalived has several.
    KillMain,
    /// Its process is stopped, and goes on later.
    Pause,
    /// Its link goes down.
    Unplug,
    /// The switch cuts it off.
    CutOff,
    /// It is told to stop.
    Terminate,
    /// One node after the other is told to stop, and started again.
    RollingRestart,
    /// The Leases cannot be reached.
    StoreAway,
    /// Its process is killed while the Leases cannot be reached.
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

/// How long clients go on after the address is with another node, and how long nothing at all is to happen where that is the
/// case.
const AFTER: Duration = Duration::from_millis(1_500);
/// When a stopped process is woken, after another node has taken its place.
const ASLEEP: Duration = Duration::from_secs(1);

/// Runs every case of every site once, and then again. `progress` is told what is going on, and `outcome` what came of each
/// run: all of them take more than an hour.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str), outcome: &mut dyn FnMut(&str)) -> Result<Vec<Failover>> {
    progress("failover: starting");
    let mut sites: Vec<Box<dyn Site>> = vec![Box::new(Agents::new()?)];
    let mut rows = Vec::new();
    match keepalived::version() {
        Ok(_) => {
            for advertisements in [Advertisements::Default, Advertisements::Fast] {
                sites.push(Box::new(Others::new(advertisements)?));
            }
        }
        Err(error) => {
            let failures = vec![format!("{error:#}")];
            rows.push(Failover::new("keepalived".to_owned(), Case::Kill, &[], failures));
        }
    }
    let mut results: Vec<_> = sites.iter().map(|site| Results::of(&**site, plan.case)).collect();
    let most = results.iter().map(|results| results.cases.len()).max().unwrap_or(0);
    // In turns, so that each cluster comes to rest while others are measured.
    for run in 0..plan.runs {
        for turn in 0..most {
            for (site, Results { system, cases }) in sites.iter_mut().zip(&mut results) {
                let Some(result) = cases.get_mut(turn) else { continue };
                let which = format!("failover: run {} of {}: {system}, {}", run + 1, plan.runs, result.case.name());
                progress(&which);
                match site.measure(result.case) {
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
    fn of(site: &dyn Site, only: Option<Case>) -> Self {
        let wanted = |case: &Case| only.is_none_or(|only| only == *case);
        let empty = |case| CaseResults { case, samples: Vec::new(), failures: Vec::new() };
        Self { system: site.system(), cases: site.cases().into_iter().filter(wanted).map(empty).collect() }
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
