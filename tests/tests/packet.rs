//! One frame in, verdict, exact bytes and every change in the maps out, through the real object.
//!
//! The tables of cases are in the modules; a case is a row in [`case::Case`]'s terms, on the state of [`fixture`].

// `allow-unwrap-in-tests` knows functions that are tests, not the modules of a test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is test code")]

#[path = "packet/arp.rs"]
mod arp;
#[path = "packet/case.rs"]
mod case;
#[path = "packet/demux.rs"]
mod demux;
#[path = "packet/fixture.rs"]
mod fixture;
#[path = "packet/flows.rs"]
mod flows;
#[path = "packet/handover.rs"]
mod handover;
#[path = "packet/replies.rs"]
mod replies;

use vipmux_tests::privilege;

/// Whether the kernel lets this process load programs; says so where not.
fn may_run(test: &str) -> bool {
    privilege::root(test).unwrap()
}

#[test]
fn arp_is_answered_dropped_or_passed() {
    if may_run("packet: ARP") {
        case::check(&arp::cases());
    }
}

#[test]
fn packets_to_a_vip_reach_a_backend_and_others_pass() {
    if may_run("packet: demultiplexing") {
        case::check(&demux::cases());
    }
}

#[test]
fn flows_keep_their_backend_or_choose_anew() {
    if may_run("packet: flows") {
        case::check(&flows::cases());
    }
}

#[test]
fn handed_over_frames_end_here() {
    if may_run("packet: hand-over") {
        case::check(&handover::cases());
    }
}

#[test]
fn replies_come_from_the_vip() {
    if may_run("packet: replies") {
        case::check(&replies::cases());
    }
}
