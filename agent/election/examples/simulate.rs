//! Runs the deterministic simulation of clusters with many seeds: `cargo xtask sim`.

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use vipmux_election::simulation::{Figures, Mutation, Report, Scenario, Setup};

/// Simulates clusters with faults, and checks the promises of the election.
#[derive(Parser)]
#[command(name = "cargo xtask sim", disable_version_flag = true)]
struct Arguments {
    /// Number of seeds per scenario
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,
    /// Run only this seed
    #[arg(long, value_name = "S", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Print each event
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Number of nodes [default: by the seed]
    #[arg(long, value_name = "N", value_parser = 1..=5_000)]
    nodes: Option<i64>,
    /// Number of VIPs [default: one run by the seed, and one with 20; with --seed only the first]
    #[arg(long, value_name = "N", value_parser = 1..=65_536)]
    vips: Option<i64>,
    /// The scenario to run [default: all but `cold` and `large`]
    #[arg(long, value_name = "NAME", value_parser = Scenario::named)]
    scenario: Option<Scenario>,
    /// Build this fault (by number) into the state machine, to see that it is found
    #[arg(long, value_name = "N", value_parser = |at: &str| at.parse().ok().and_then(|at: usize| Mutation::ALL.get(at).copied()).ok_or("unknown mutation"))]
    mutation: Option<Mutation>,
    /// Give each node a store of its own, as without a cluster [default: also for some scenarios]
    #[arg(long)]
    own_stores: bool,
    /// Continue after a failure
    #[arg(long)]
    keep_going: bool,
}

/// Most faults of the election need several VIPs that move at once.
const MANY_VIPS: usize = 20;

/// The results of the seeds of one scenario.
#[derive(Default)]
struct Sum {
    seeds: u64,
    figures: Figures,
    failed: Vec<(u64, String)>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let scenarios = arguments.scenario.map_or_else(|| Scenario::SMALL.to_vec(), |scenario| vec![scenario]);
    let mut status = ExitCode::SUCCESS;
    let sizes = match (size(arguments.vips), arguments.seed) {
        (None, None) => vec![None, Some(MANY_VIPS)],
        (vips, _) => vec![vips],
    };
    let own_stores = arguments.own_stores;
    let runs = scenarios.iter().flat_map(|scenario| sizes.iter().map(move |vips| (*scenario, *vips, own_stores)));
    let is_default = arguments.scenario.is_none() && !own_stores;
    let with_own_stores = Scenario::OWN_STORES.iter().map(|scenario| (*scenario, Some(MANY_VIPS), true));
    for (scenario, vips, own_stores) in runs.chain(with_own_stores.filter(|_| is_default)) {
        if !run(&arguments, scenario, vips, own_stores) {
            status = ExitCode::FAILURE;
            if !arguments.keep_going {
                break;
            }
        }
    }
    status
}

fn size(number: Option<i64>) -> Option<usize> {
    number.and_then(|number| usize::try_from(number).ok())
}

/// Runs the seeds of one scenario. Returns whether all kept their promises.
fn run(arguments: &Arguments, scenario: Scenario, vips: Option<usize>, own_stores: bool) -> bool {
    let setup = |seed| Setup {
        nodes: size(arguments.nodes),
        vips,
        mutation: arguments.mutation,
        own_stores,
        trace: arguments.trace,
        ..Setup::new(scenario, seed)
    };
    let range = arguments.seed.map_or(arguments.from..arguments.from + arguments.seeds, |seed| seed..seed + 1);
    let (next, sum) = (AtomicU64::new(range.start), Mutex::new(Sum::default()));
    let start = Instant::now();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let enough = !arguments.keep_going && !lock(&sum).failed.is_empty();
            if seed >= range.end || enough {
                return;
            }
            let report = setup(seed).run();
            lock(&sum).add(seed, report);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    sum.print(scenario, vips, own_stores, start.elapsed());
    if let Some((seed, _)) = sum.failed.first() {
        let setup = Setup { trace: true, ..setup(*seed) };
        let report = setup.run();
        for line in report.trace {
            println!("{line}");
        }
        println!("{}", report.violation.unwrap_or_default());
        println!("again: {}", setup.command());
    }
    sum.failed.is_empty()
}

fn lock(sum: &Mutex<Sum>) -> std::sync::MutexGuard<'_, Sum> {
    sum.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sum {
    fn add(&mut self, seed: u64, report: Report) {
        let Report { violation, trace, figures } = report;
        for line in trace {
            println!("{line}");
        }
        self.seeds += 1;
        self.figures.events += figures.events;
        self.figures.simulated += figures.simulated;
        self.figures.overlap = self.figures.overlap.max(figures.overlap);
        self.figures.dark = self.figures.dark.max(figures.dark);
        self.figures.gaps = self.figures.gaps.max(figures.gaps);
        self.figures.moves = self.figures.moves.max(figures.moves);
        self.figures.writes = self.figures.writes.max(figures.writes);
        self.failed.extend(violation.map(|violation| (seed, violation)));
    }

    fn print(&self, scenario: Scenario, vips: Option<usize>, own_stores: bool, took: Duration) {
        let Figures { events, simulated, overlap, dark, gaps, moves, writes } = self.figures;
        println!(
            "{:<10} {:>2} VIPs{}, {:>6} seeds, {} failed; {:.0} s simulated, {:.1} M events in {:.1} s; longest overlap {overlap:.1?}, \
             longest without answer {dark:.0?}, once settled {gaps:.0?} in all, most moves {moves} and writes {writes}",
            scenario.name(),
            vips.map_or_else(|| "1+".to_owned(), |vips| vips.to_string()),
            if own_stores { ", own stores" } else { "" },
            self.seeds,
            self.failed.len(),
            simulated.as_secs_f64(),
            f64::from(u32::try_from(events / 1000).unwrap_or(u32::MAX)) / 1000.0,
            took.as_secs_f64(),
        );
        for (seed, violation) in self.failed.iter().take(20) {
            println!("  seed {seed}: {violation}");
        }
    }
}
