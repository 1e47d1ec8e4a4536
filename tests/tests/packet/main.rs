//! Tests the real BPF object with single frames: one frame in; verdict, exact bytes and every
//! change in the maps out.
//!
//! The modules have the tables of cases. A case is a [`case::Case`] with the state of [`fixture`].

// `allow-unwrap-in-tests` covers test functions, but not modules of an integration test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is test code")]

mod abandoned;
mod activity;
mod affinity;
mod arp;
mod case;
mod conversation;
mod demux;
mod flood;
mod flows;
mod fragments;
mod fuzz;
mod hammer;
mod handover;
mod icmp;
mod icmpv6;
mod ipv6;
mod limits;
mod ndp;
mod partial;
mod plain;
mod pool;
mod records;
mod refusals;
mod reject;
mod replies;
mod reserve;
mod sctp;
mod segments;
mod services;
mod spreading;
mod truncation;
mod unanswered;
mod verified;

use std::{collections::BTreeSet, sync::LazyLock};

use vipmux_common::abi::{DropReason, Stat};
use vipmux_tests::{
    packet::{family, fixture, property},
    requirement,
};

use crate::{
    case::{Case, Verdict},
    family::Family,
};

/// Runs a test if this process may load BPF programs.
fn as_root(test: impl FnOnce()) {
    if requirement::root().unwrap() {
        test();
    }
}

/// Makes a test of this name for each table of cases, and [`TABLES`] of all.
macro_rules! tables {
    ($($test:ident: $table:ident,)*) => {
        $(
            #[test]
            fn $test() {
                as_root(|| case::check($table::cases()));
            }
        )*

        /// All tables, by module.
        const TABLES: &[(&str, fn() -> Vec<Case>)] = &[$((stringify!($table), $table::cases)),*];
    };
}

tables! {
    arp_is_answered_dropped_or_passed: arp,
    neighbor_discovery_is_answered_dropped_or_passed: ndp,
    ipv6_packets_are_walked_to_their_transport: ipv6,
    icmpv6_follows_the_flow_or_is_answered: icmpv6,
    a_partial_checksum_stays_partial_or_is_completed: partial,
    services_are_held_to_what_they_are_configured_for: services,
    a_flood_of_new_flows_washes_out_no_live_ones: records,
    a_client_with_affinity_goes_where_it_went: affinity,
    what_an_agent_abandoned_passes: abandoned,
    sctp_is_balanced_without_a_change_to_its_checksum: sctp,
    packets_to_a_vip_reach_a_backend_and_others_pass: demux,
    fragments_follow_the_first_one: fragments,
    icmp_errors_follow_the_flow: icmp,
    what_goes_nowhere_is_answered: reject,
    flows_keep_their_backend_or_choose_anew: flows,
    plain_packets_change_no_record_and_special_ones_do: plain,
    handed_over_frames_end_here: handover,
    nodes_are_reached_on_the_segment_of_the_vip: segments,
    replies_come_from_the_vip: replies,
}

#[test]
fn records_make_room_in_the_order_of_their_worth() {
    as_root(records::evicted_in_order);
}

#[test]
fn records_of_services_and_backends_that_are_gone_make_room_first() {
    as_root(records::of_what_is_gone_make_room_first);
}

#[test]
fn a_new_flow_waits_in_the_reserve_until_its_second_packet() {
    as_root(reserve::a_new_flow_waits_in_the_reserve);
}

#[test]
fn a_half_closed_flow_leaves_the_reserve() {
    as_root(reserve::a_half_closed_flow_leaves_the_reserve);
}

#[test]
fn a_connection_lives_in_the_reserve_among_established_ones() {
    as_root(reserve::a_connection_may_live_in_the_reserve);
}

#[test]
fn a_record_leaves_the_reserve_when_there_is_room() {
    as_root(reserve::a_record_leaves_the_reserve_when_there_is_room);
}

#[test]
fn a_use_of_the_reserve_is_remembered() {
    as_root(reserve::a_use_of_the_reserve_is_remembered);
}

#[test]
fn a_record_in_the_reserve_is_mended() {
    as_root(reserve::a_record_in_the_reserve_is_mended);
}

#[test]
fn a_flow_that_has_proven_nothing_evicts_no_live_one() {
    as_root(reserve::what_has_proven_nothing_evicts_no_live_flow);
}

#[test]
fn a_second_packet_proves_a_flow() {
    as_root(plain::second_packets_prove_flows);
}

#[test]
fn many_cpus_write_one_set_and_every_record_stays_whole() {
    as_root(hammer::one_set_on_all_cpus);
}

#[test]
fn many_cpus_write_one_set_with_the_locks_of_arm64() {
    as_root(hammer::one_set_with_locks_of_arm64);
}

#[test]
fn a_set_that_another_cpu_writes_is_left_alone() {
    as_root(records::locked_sets_are_left_alone);
}

#[test]
fn a_record_is_of_the_backend_that_was_there() {
    as_root(records::a_record_is_of_the_backend_that_was_there);
}

#[test]
fn a_new_record_gets_the_way_that_is_looked_at_first() {
    as_root(records::a_new_record_gets_the_way_that_is_looked_at_first);
}

#[test]
fn a_second_set_is_only_used_if_it_must_be() {
    as_root(records::a_second_set_is_only_used_if_it_must_be);
}

#[test]
fn a_flow_in_its_second_set_is_found() {
    as_root(records::an_overflow_is_remembered);
}

#[test]
fn half_a_million_forged_packets_per_second_evict_no_live_connection_and_keep_no_new_one_out() {
    as_root(flood::of_half_a_million_per_second);
}

#[test]
fn floods_leave_others_their_share() {
    as_root(limits::leave_others_their_share);
}

#[test]
fn made_up_speakers_do_not_evict_known_ones() {
    as_root(limits::keep_known_speakers);
}

#[test]
fn a_flood_evicts_its_own_flows() {
    as_root(records::a_flood_evicts_its_own_flows);
}

#[test]
fn a_connection_is_established_once_both_sides_have_spoken() {
    as_root(unanswered::both_sides_establish_a_connection);
}

#[test]
fn another_syn_establishes_no_connection() {
    as_root(unanswered::a_second_syn_establishes_nothing);
}

#[test]
fn an_answer_and_a_second_datagram_establish_a_flow_of_datagrams() {
    as_root(unanswered::a_second_datagram_establishes_a_flow);
}

#[test]
fn connections_without_an_answer_keep_no_flow_out() {
    as_root(unanswered::connections_without_an_answer_keep_no_flow_out);
}

#[test]
fn forged_segments_move_no_connection_after_a_change_of_backends() {
    as_root(conversation::forged_segments_move_no_connection);
}

#[test]
fn a_syn_of_a_flow_in_its_second_set_finds_its_record() {
    as_root(records::a_syn_finds_its_record_in_the_second_set);
}

#[test]
fn a_flood_of_acks_evicts_its_own_flows() {
    as_root(unanswered::a_flood_of_acks_evicts_its_own_flows);
}

#[test]
fn conversation_with_a_local_backend() {
    as_root(conversation::with_a_local_backend);
}

#[test]
fn conversation_across_two_nodes() {
    as_root(conversation::across_two_nodes);
}

#[test]
fn no_frame_goes_in_circles() {
    as_root(conversation::that_would_go_in_circles);
}

#[test]
fn flows_of_an_unreachable_node_are_spread_over_all_others() {
    as_root(spreading::over_all_reachable_nodes);
}

#[test]
fn no_new_flow_is_lost_while_a_tenth_of_the_backends_is_reachable() {
    as_root(spreading::where_one_backend_of_ten_is_reachable);
}

#[test]
fn the_vips_address_chooses_the_backend_where_the_service_says_so() {
    as_root(spreading::by_the_vips_address_where_the_service_says_so);
}

#[test]
fn cut_frames_pass_untouched_or_are_dropped() {
    as_root(truncation::cut_frames_pass_untouched_or_are_dropped);
}

#[test]
fn short_packets_are_dropped_until_their_headers_are_whole() {
    as_root(truncation::short_packets_are_dropped_until_their_headers_are_whole);
}

#[test]
fn short_ipv6_packets_are_dropped_until_their_headers_are_whole() {
    as_root(truncation::short_ipv6_packets_are_dropped_until_their_headers_are_whole);
}

#[test]
fn cut_replies_leave_untouched() {
    as_root(truncation::cut_replies_leave_untouched);
}

#[test]
fn any_frame_gets_a_verdict_and_what_is_not_for_a_vip_passes() {
    as_root(fuzz::any_frame_gets_a_verdict_and_what_is_not_for_a_vip_passes);
}

#[test]
fn any_frame_may_leave_unless_it_speaks_for_a_vip() {
    as_root(fuzz::any_frame_may_leave_unless_it_speaks_for_a_vip);
}

/// The cases of all tables.
static ALL_CASES: LazyLock<Vec<Case>> =
    LazyLock::new(|| case::with_twins(TABLES.iter().flat_map(|(_, cases)| cases()).collect()));

/// Drop reasons that a frame alone cannot cause. The kernel refuses an insertion into an LRU map
/// only if it finds no element to recycle, and the rewriting of a packet only if it finds no
/// memory.
const WITHOUT_A_CASE: [DropReason; 2] = [DropReason::RecordFailed, DropReason::ReplyFailed];

#[test]
fn every_drop_reason_has_a_case() {
    let has_case = |reason: DropReason| ALL_CASES.iter().any(|case| case.verdict == Verdict::Dropped(reason));
    for &reason in DropReason::ALL {
        let problem = if WITHOUT_A_CASE.contains(&reason) { "has a case after all" } else { "has no case" };
        assert_ne!(has_case(reason), WITHOUT_A_CASE.contains(&reason), "{} {problem}", reason.name());
    }
}

#[test]
fn everything_that_is_counted_has_a_case() {
    // Several packets cause evictions: `records` tests them.
    let is_eviction = |stat: &Stat| stat.name().starts_with("evicted_");
    for stat in Stat::ALL.iter().copied().filter(|stat| !is_eviction(stat)) {
        assert!(ALL_CASES.iter().any(|case| case.counts(stat)), "{} has no case", stat.name());
    }
}

#[test]
fn each_table_of_ipv4_cases_is_checked_for_ipv6() {
    /// Tables with cases of only one family. Those of full sets have addresses that fill them.
    const APART: [&str; 6] = ["arp", "icmp", "icmpv6", "ipv6", "ndp", "records"];
    for (name, cases) in TABLES.iter().filter(|(name, _)| !APART.contains(name)) {
        let cases = case::with_twins(cases());
        let of_ipv6 = cases.iter().filter(|case| case.family == Family::V6).count();
        assert!(of_ipv6 * 10 > cases.len() * 3, "{name}: {of_ipv6} of {} cases are of IPv6", cases.len());
    }
}

#[test]
fn names_of_cases_are_unique() {
    let mut names = BTreeSet::new();
    let mut new = |case: &Case| names.insert((case.hook as u8, case.family, case.name));
    let twice: Vec<&str> = ALL_CASES.iter().filter(|case| !new(case)).map(|case| case.name).collect();
    assert!(twice.is_empty(), "names of two cases: {twice:#?}");
}
