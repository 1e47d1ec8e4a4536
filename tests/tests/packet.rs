//! One frame in, verdict, exact bytes and every change in the maps out, through the real object.
//!
//! The tables of cases are in the modules; a case is a row in [`case::Case`]'s terms, on the state of [`fixture`].

// `allow-unwrap-in-tests` knows functions that are tests, not the modules of a test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is test code")]

#[path = "packet/abandoned.rs"]
mod abandoned;
#[path = "packet/affinity.rs"]
mod affinity;
#[path = "packet/arp.rs"]
mod arp;
#[path = "packet/case.rs"]
mod case;
#[path = "packet/conversation.rs"]
mod conversation;
#[path = "packet/demux.rs"]
mod demux;
#[path = "packet/family.rs"]
mod family;
#[path = "packet/fixture.rs"]
mod fixture;
#[path = "packet/flows.rs"]
mod flows;
#[path = "packet/fragments.rs"]
mod fragments;
#[path = "packet/fuzz.rs"]
mod fuzz;
#[path = "packet/handover.rs"]
mod handover;
#[path = "packet/icmp.rs"]
mod icmp;
#[path = "packet/icmpv6.rs"]
mod icmpv6;
#[path = "packet/ipv6.rs"]
mod ipv6;
#[path = "packet/ndp.rs"]
mod ndp;
#[path = "packet/partial.rs"]
mod partial;
#[path = "packet/property.rs"]
mod property;
#[path = "packet/records.rs"]
mod records;
#[path = "packet/reject.rs"]
mod reject;
#[path = "packet/replies.rs"]
mod replies;
#[path = "packet/requirement.rs"]
mod requirement;
#[path = "packet/sctp.rs"]
mod sctp;
#[path = "packet/services.rs"]
mod services;
#[path = "packet/truncation.rs"]
mod truncation;

use vipmux_common::abi::{DropReason, Stat};

use crate::{
    case::{Case, Verdict},
    family::Family,
};

/// Runs a test where the kernel lets us.
fn as_root(test: fn()) {
    if requirement::root() {
        test();
    }
}

/// Checks a table of cases, where the kernel lets us.
fn check(cases: fn() -> Vec<Case>) {
    if requirement::root() {
        case::check(cases());
    }
}

#[test]
fn arp_is_answered_dropped_or_passed() {
    check(arp::cases);
}

#[test]
fn neighbor_discovery_is_answered_dropped_or_passed() {
    check(ndp::cases);
}

#[test]
fn ipv6_packets_are_walked_to_their_transport() {
    check(ipv6::cases);
}

#[test]
fn icmpv6_follows_the_flow_or_is_answered() {
    check(icmpv6::cases);
}

#[test]
fn a_partial_checksum_stays_partial_or_is_completed() {
    check(partial::cases);
}

#[test]
fn services_are_held_to_what_they_are_configured_for() {
    check(services::cases);
}

#[test]
fn a_flood_of_new_flows_washes_out_no_live_ones() {
    check(records::cases);
}

#[test]
fn a_limit_has_room_again_after_a_while() {
    as_root(records::a_limit_has_room_again_after_a_while);
}

#[test]
fn a_client_with_affinity_goes_where_it_went() {
    check(affinity::cases);
}

#[test]
fn what_an_agent_abandoned_passes() {
    check(abandoned::cases);
}

#[test]
fn sctp_is_balanced_without_a_change_to_its_checksum() {
    check(sctp::cases);
}

#[test]
fn packets_to_a_vip_reach_a_backend_and_others_pass() {
    check(demux::cases);
}

#[test]
fn fragments_follow_the_first_one() {
    check(fragments::cases);
}

#[test]
fn icmp_errors_follow_the_flow() {
    check(icmp::cases);
}

#[test]
fn what_goes_nowhere_is_answered() {
    check(reject::cases);
}

#[test]
fn flows_keep_their_backend_or_choose_anew() {
    check(flows::cases);
}

#[test]
fn handed_over_frames_end_here() {
    check(handover::cases);
}

#[test]
fn replies_come_from_the_vip() {
    check(replies::cases);
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

/// Every table.
fn all_cases() -> Vec<Case> {
    let tables = [
        abandoned::cases,
        affinity::cases,
        arp::cases,
        demux::cases,
        flows::cases,
        fragments::cases,
        handover::cases,
        icmp::cases,
        icmpv6::cases,
        ipv6::cases,
        ndp::cases,
        partial::cases,
        records::cases,
        reject::cases,
        replies::cases,
        sctp::cases,
        services::cases,
    ];
    case::with_twins(tables.into_iter().flat_map(|cases: fn() -> Vec<Case>| cases()).collect())
}

/// Reasons that no frame can bring about by itself: the kernel refuses an insertion into an LRU map only when it finds no
/// element to recycle, and the rewriting of a packet only when it finds no memory.
const WITHOUT_A_CASE: [DropReason; 2] = [DropReason::RecordFailed, DropReason::ReplyFailed];

#[test]
fn every_drop_reason_has_a_case() {
    let cases = all_cases();
    let has_case = |reason: DropReason| cases.iter().any(|case| case.verdict == Verdict::Dropped(reason));
    for &reason in DropReason::ALL {
        let told = if WITHOUT_A_CASE.contains(&reason) { "has a case after all" } else { "has no case" };
        assert_ne!(has_case(reason), WITHOUT_A_CASE.contains(&reason), "{} {told}", reason.name());
    }
}

#[test]
fn everything_that_is_counted_has_a_case() {
    let cases = all_cases();
    for &stat in Stat::ALL {
        assert!(cases.iter().any(|case| case.counts(stat)), "{} has no case", stat.name());
    }
}

#[test]
fn what_holds_for_ipv4_is_checked_for_ipv6() {
    for (name, cases) in [
        ("demux", demux::cases as fn() -> Vec<Case>),
        ("flows", flows::cases),
        ("fragments", fragments::cases),
        ("handover", handover::cases),
        ("partial", partial::cases),
        ("records", records::cases),
        ("reject", reject::cases),
        ("replies", replies::cases),
        ("sctp", sctp::cases),
        ("services", services::cases),
    ] {
        let cases = case::with_twins(cases());
        let of_ipv6 = cases.iter().filter(|case| case.family == Family::V6).count();
        assert!(of_ipv6 * 10 > cases.len() * 3, "{name}: {of_ipv6} of {} cases are of IPv6", cases.len());
    }
}

#[test]
fn cases_are_told_apart_by_name() {
    let mut names = std::collections::BTreeSet::new();
    let mut new = |case: &Case| names.insert((case.hook as u8, case.family, case.name));
    let twice: Vec<&str> = all_cases().iter().filter(|case| !new(case)).map(|case| case.name).collect();
    assert!(twice.is_empty(), "names of two cases: {twice:#?}");
}
