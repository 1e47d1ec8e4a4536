//! Tests the detection of foreign speakers.

use super::*;
use vipmux_testing::names::vip4;
use vipmux_testing::pages::{FAILOVER, assert_says};

const T: Duration = Duration::from_secs(1000);
const FOREIGN: Mac = Mac::new([2, 0, 0, 0, 0, 0xee]);
const OTHER_FOREIGN: Mac = Mac::new([2, 0, 0, 0, 0, 0xef]);
const OWN: Mac = Mac::new([2, 0, 0, 0, 0, 1]);

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn claim(n: u8, at: Duration) -> VipSpeaker {
    VipSpeaker { vip: vip4(n), mac: FOREIGN, ifindex: 7, claimed: Some(at), probed: None, option: None, peer: false }
}

fn all(_: Vip) -> bool {
    true
}

fn hear(speakers: &mut ForeignSpeakers, heard: &[VipSpeaker], now: Duration) {
    speakers.observe(heard, &BTreeSet::from([OWN]), now);
}

fn conflicts(speakers: &ForeignSpeakers) -> Vec<(Vip, Mac)> {
    speakers.conflicts(all).map(|conflict| (conflict.vip, conflict.mac)).collect()
}

#[test]
fn the_page_has_the_figures_of_the_code() {
    assert_says(FAILOVER, &format!("at most every {} seconds (`DEFEND_INTERVAL`)", DEFEND_INTERVAL.as_secs()));
    assert_eq!(FORGET_AFTER, Duration::from_mins(1));
    assert_says(FAILOVER, "When the foreign speaker was not heard for a minute");
    assert_says(FAILOVER, &format!("tracks at most {MAX_CONFLICTS} pairs of VIP and foreign speaker"));
}

#[test]
fn only_a_foreign_speakers_recent_claim_is_a_conflict() {
    for (name, heard, conflict) in [
        ("a foreign speaker", claim(1, T), true),
        ("one that was heard before this agent began to look", claim(1, T.saturating_sub(s(59))), true),
        ("one that was heard too long ago", claim(1, T.saturating_sub(FORGET_AFTER)), false),
        ("a peer", VipSpeaker { peer: true, ..claim(1, T) }, false),
        ("an own MAC of another interface", VipSpeaker { mac: OWN, ..claim(1, T) }, false),
        ("a foreign host that only probed", VipSpeaker { claimed: None, probed: Some(T), ..claim(1, T) }, false),
    ] {
        let mut speakers = ForeignSpeakers::default();
        hear(&mut speakers, &[heard], T);
        assert_eq!(!speakers.defend(all, T).is_empty(), conflict, "{name}");
        assert_eq!(!conflicts(&speakers).is_empty(), conflict, "{name}");
    }
}

#[test]
fn a_speaker_that_turns_out_to_be_a_node_is_not_foreign() {
    let mut speakers = ForeignSpeakers::default();
    hear(&mut speakers, &[claim(1, T), VipSpeaker { mac: OTHER_FOREIGN, ..claim(1, T) }], T);
    speakers.remove_peers(|mac| mac == FOREIGN);
    assert_eq!(conflicts(&speakers), [(vip4(1), OTHER_FOREIGN)]);
    speakers.remove_peers(|mac| mac == OTHER_FOREIGN);
    assert_eq!((conflicts(&speakers), speakers.defend(all, T)), (vec![], BTreeSet::new()));
}

#[test]
fn each_claim_is_defended_against_once_and_at_most_every_ten_seconds() {
    let mut speakers = ForeignSpeakers::default();
    let mut defended = Vec::new();
    // Seconds of claims. The speakers are read every half second, each time all entries.
    let claims = [0, 1, 2, 15, 16, 40, 50, 60];
    for half in 0..300 {
        let now = T + Duration::from_millis(500 * half);
        let last = claims.iter().map(|at| T + s(*at)).rfind(|at| *at <= now);
        hear(&mut speakers, &[claim(1, last.unwrap())], now);
        if !speakers.defend(all, now).is_empty() {
            defended.push(now.saturating_sub(T).as_secs());
        }
    }
    // A claim within the interval is defended at its end.
    assert_eq!(defended, [0, 10, 20, 40, 50, 60]);
}

#[test]
fn two_foreign_speakers_are_two_conflicts_and_one_defense() {
    let mut speakers = ForeignSpeakers::default();
    let other = VipSpeaker { mac: OTHER_FOREIGN, ..claim(1, T) };
    hear(&mut speakers, &[claim(1, T), other, claim(2, T)], T);
    assert_eq!(speakers.defend(all, T), BTreeSet::from([vip4(1), vip4(2)]));
    assert_eq!(speakers.defend(all, T), BTreeSet::new());
    assert_eq!(conflicts(&speakers), [(vip4(1), FOREIGN), (vip4(1), OTHER_FOREIGN), (vip4(2), FOREIGN)]);
}

#[test]
fn only_led_addresses_are_defended_and_reported() {
    let mut speakers = ForeignSpeakers::default();
    let led = |led: u8| move |of: Vip| of == vip4(led);
    hear(&mut speakers, &[claim(1, T), claim(2, T)], T);
    assert_eq!(speakers.defend(led(1), T), BTreeSet::from([vip4(1)]));
    let conflict = Conflict { vip: vip4(1), mac: FOREIGN, ifindex: 7 };
    assert_eq!(speakers.conflicts(led(1)).collect::<Vec<_>>(), [conflict]);
    assert_eq!(speakers.defend(led(2), T + s(1)), BTreeSet::from([vip4(2)]), "led since, and not defended yet");
}

#[test]
fn a_foreign_speaker_that_is_silent_for_a_minute_is_over() {
    let mut speakers = ForeignSpeakers::default();
    hear(&mut speakers, &[claim(1, T)], T);
    speakers.defend(all, T);
    let almost = T + FORGET_AFTER.saturating_sub(s(1));
    speakers.defend(all, almost);
    assert_eq!(conflicts(&speakers), [(vip4(1), FOREIGN)]);
    let over = T + FORGET_AFTER;
    // The programs' note of it stays.
    hear(&mut speakers, &[claim(1, T)], over);
    assert_eq!(speakers.defend(all, over), BTreeSet::new());
    assert_eq!(conflicts(&speakers), []);
    assert!(speakers.defended.is_empty());
}

#[test]
fn thousands_of_macs_are_not_remembered() {
    let mut speakers = ForeignSpeakers::default();
    let flood = |second: u8| {
        let mac = move |n: u8| Mac::new([2, 0, 0, 1, second, n]);
        (0..=255).map(|n| VipSpeaker { mac: mac(n), ..claim(1, T + s(second.into())) }).collect::<Vec<_>>()
    };
    hear(&mut speakers, &[claim(1, T)], T);
    for second in 0..50 {
        hear(&mut speakers, &flood(second), T + s(second.into()));
        assert_eq!(speakers.claims.len(), MAX_CONFLICTS);
    }
    hear(&mut speakers, &[claim(1, T + s(59))], T + s(59));
    speakers.defend(all, T + s(61));
    assert!(conflicts(&speakers).contains(&(vip4(1), FOREIGN)), "one that is known is kept up to date");
}
