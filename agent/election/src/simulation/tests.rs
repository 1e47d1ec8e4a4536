//! Runs each scenario with a few seeds, and tests the checker.
//!
//! `VIPMUX_SIM_SEEDS` sets the number of seeds. `cargo xtask sim` runs thousands.

use std::{
    env,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use super::*;
use vipmux_testing::pages::FAILOVER;

/// The default number of seeds of each scenario: some seconds without optimizations.
const SEEDS: u64 = 6;

fn seeds() -> u64 {
    env::var("VIPMUX_SIM_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number of seeds"))
}

/// Describes a run that failed.
fn report(setup: Setup) -> String {
    let Report { violation, trace, .. } = Setup { trace: true, ..setup }.run();
    let lines = trace[trace.len().saturating_sub(200)..].join("\n");
    format!("{lines}\n{}\nagain: {}", violation.unwrap_or_default(), setup.command())
}

fn all_is_well(scenario: Scenario, seeds: Range<u64>) {
    all_are_well(Setup::new(scenario, 0), seeds);
}

fn all_are_well(setup: Setup, seeds: Range<u64>) {
    let next = AtomicU64::new(seeds.start);
    let run = || {
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end) {
            let setup = Setup { seed, ..setup };
            assert!(setup.run().violation.is_none(), "{}", report(setup));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
}

#[test]
fn the_page_names_scenarios_that_there_are() {
    let rows = FAILOVER.lines().skip_while(|line| !line.starts_with("| event |")).skip(2);
    let cells =
        rows.take_while(|line| line.starts_with('|')).filter_map(|row| row.trim_matches('|').rsplit('|').next());
    let names: Vec<_> = cells.map(|cell| cell.trim().trim_matches('`')).filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 10, "{names:?}");
    let unnamed = names.iter().find_map(|name| Scenario::named(name).err().map(|error| (name, error)));
    assert_eq!(unnamed, None);
}

#[test]
fn nothing_moves_and_nothing_is_written_while_nothing_happens() {
    all_is_well(Scenario::Quiet, 0..seeds());
}

#[test]
fn leadership_does_not_move_while_three_of_ten_messages_are_lost() {
    all_is_well(Scenario::Loss, 0..seeds().div_ceil(3));
}

#[test]
fn never_do_two_answer_after_crashes_restarts_and_power_failures() {
    all_is_well(Scenario::Crash, 0..seeds());
    all_is_well(Scenario::Flap, 0..seeds());
}

#[test]
fn one_of_two_nodes_takes_over_although_switches_answer_in_the_name_of_the_other() {
    all_is_well(Scenario::Proxy, 0..seeds());
}

#[test]
fn one_of_two_nodes_takes_a_thousand_vips_within_3_seconds_by_a_slow_store() {
    all_is_well(Scenario::Pair, 0..1);
}

#[test]
fn a_vip_of_a_node_that_is_gone_is_answered_for_within_400_milliseconds_where_a_majority_lives() {
    all_is_well(Scenario::Single, 0..seeds());
}

#[test]
fn never_do_two_answer_after_pauses() {
    all_is_well(Scenario::Pause, 0..seeds());
}

#[test]
fn the_vips_of_an_event_loop_that_hangs_are_answered_for_within_500_milliseconds() {
    all_is_well(Scenario::Hang, 0..seeds());
}

#[test]
fn a_node_that_stands_still_each_second_keeps_no_vip_dark_after_five_seconds() {
    all_is_well(Scenario::Stutter, 0..seeds());
}

#[test]
fn a_node_that_reads_its_objects_for_long_keeps_no_vip_dark() {
    all_is_well(Scenario::SlowSource, 0..seeds());
}

#[test]
fn never_do_two_answer_after_lost_links() {
    all_is_well(Scenario::Link, 0..seeds());
    all_is_well(Scenario::Cut, 0..seeds());
}

#[test]
fn where_each_node_has_a_store_of_its_own_never_do_two_answer_unless_one_is_cut_off() {
    for scenario in Scenario::OWN_STORES {
        all_are_well(Setup { own_stores: true, vips: Some(20), ..Setup::new(scenario, 0) }, 0..seeds().div_ceil(3));
    }
}

#[test]
fn never_do_two_answer_while_nodes_are_deleted() {
    all_is_well(Scenario::Delete, 0..seeds());
}

#[test]
fn never_do_two_answer_while_nodes_are_drained_and_stopped() {
    all_is_well(Scenario::Drain, 0..seeds());
}

#[test]
fn each_vip_is_answered_for_while_others_come_and_go_or_are_spoofed() {
    all_is_well(Scenario::Vips, 0..seeds());
    all_is_well(Scenario::Spoof, 0..seeds());
}

#[test]
fn forged_announcements_silence_no_vip_for_longer_than_120_milliseconds() {
    all_is_well(Scenario::Forge, 0..seeds());
}

#[test]
fn two_answer_no_longer_than_a_deadline_though_announcements_are_forged_meanwhile() {
    all_is_well(Scenario::Siege, 0..seeds());
}

#[test]
fn two_answer_no_longer_than_a_deadline_after_faults_of_the_networks_and_the_store() {
    for scenario in [Scenario::Store, Scenario::Gossip, Scenario::Lan, Scenario::Partition] {
        all_is_well(scenario, 0..seeds());
    }
}

#[test]
fn a_majority_does_without_a_store_that_is_slow_or_silent() {
    all_is_well(Scenario::SlowStore, 0..seeds());
}

#[test]
fn half_of_the_nodes_follow_the_others_within_two_seconds_if_the_store_answers() {
    all_is_well(Scenario::Half, 0..seeds());
}

#[test]
fn two_answer_no_longer_than_a_deadline_after_faults_of_every_kind() {
    all_is_well(Scenario::Chaos, 0..seeds());
}

#[test]
fn a_machine_that_stood_still_answers_no_longer_than_a_deadline() {
    all_is_well(Scenario::Freeze, 0..seeds());
}

#[test]
fn nodes_that_come_late_soon_have_their_share() {
    all_is_well(Scenario::Cold, 0..1);
}

#[test]
fn the_command_that_repeats_a_run_names_all_that_it_depends_on() {
    let mutation = Some(Mutation::WaitsForNoSilence);
    let setup = Setup { vips: Some(20), mutation, own_stores: true, ..Setup::new(Scenario::Cut, 7) };
    assert_eq!(setup.command(), "cargo xtask sim --scenario cut --seed 7 --vips 20 --mutation 1 --own-stores --trace");
}

#[test]
fn a_run_comes_out_the_same_again() {
    let setup = Setup { trace: true, ..Setup::new(Scenario::Chaos, 1) };
    let (first, second) = (setup.run(), setup.run());
    assert!(!first.trace.is_empty());
    assert_eq!(first.trace, second.trace);
    assert_eq!(first.figures.events, second.figures.events);
}

/// Asserts that one of these seeds finds the fault, and passes without it.
fn is_found(mutation: Mutation, scenario: Scenario, seeds: Range<u64>, what: &str) {
    let found = seeds.clone().find_map(|seed| {
        let broken = Setup { mutation: Some(mutation), ..Setup::new(scenario, seed) };
        broken.run().violation.filter(|violation| violation.contains(what)).map(|_| seed)
    });
    let Some(seed) = found else { panic!("{mutation:?} is not found by {seeds:?} of {}", scenario.name()) };
    assert_eq!(Setup::new(scenario, seed).run().violation, None);
}

// Each range begins shortly before a seed that finds it.

#[test]
fn a_machine_that_extends_what_has_passed_is_found() {
    is_found(Mutation::ExtendsWhatHasPassed, Scenario::Cut, 380..580, "both answer");
}

#[test]
fn a_machine_that_waits_for_no_silence_is_found() {
    is_found(Mutation::WaitsForNoSilence, Scenario::Drain, 14..114, "both answer");
}

#[test]
fn a_machine_that_leads_in_spite_of_a_conflict_is_found() {
    is_found(Mutation::LeadsInSpiteOfConflict, Scenario::Flap, 30..230, "both answer");
}

#[test]
fn a_machine_that_answers_while_it_hands_over_is_found() {
    is_found(Mutation::AnswersWhileHanding, Scenario::Crash, 0..20, "both answer");
}

#[test]
fn a_machine_that_counts_evidence_from_the_answer_is_found() {
    is_found(Mutation::CountsFromTheAnswer, Scenario::Cut, 20..220, "both answer");
}

#[test]
fn a_machine_that_ignores_claims_is_found() {
    is_found(Mutation::IgnoresClaims, Scenario::SlowStore, 3..103, "both answer");
}

#[test]
fn a_machine_that_ignores_announcements_is_found() {
    is_found(Mutation::IgnoresAnnouncements, Scenario::Siege, 5..105, "both answer");
}

#[test]
fn a_machine_that_assumes_its_own_lease_is_found() {
    is_found(Mutation::AssumesOwnLease, Scenario::Versions, 1_100..1_200, "both answer");
}

#[test]
fn a_machine_that_announces_no_takeover_is_found() {
    is_found(Mutation::AnnouncesNoTakeover, Scenario::Single, 0..20, "which is gone");
}

#[test]
fn a_machine_that_repeats_no_announcement_is_found() {
    is_found(Mutation::RepeatsNoAnnouncement, Scenario::Single, 0..60, "which is gone");
}

#[test]
fn a_machine_that_leaves_no_time_to_answer_is_found() {
    is_found(Mutation::FencesAtOnce, Scenario::Link, 10..110, "both answer");
}
