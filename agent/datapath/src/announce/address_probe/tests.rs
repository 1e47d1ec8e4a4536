//! Tests address probes.

use std::collections::BTreeSet;

use super::*;
use vipmux_testing::pages::{FAILOVER, assert_says};

const T: Duration = Duration::from_secs(100);
const OWN: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac::new([2, 0, 0, 0, 0, 0xee]);
const ANOTHER: Mac = Mac::new([2, 0, 0, 0, 0, 0xdd]);
const PLACES: [(u32, Mac); 2] = [(7, OWN), (8, Mac::new([2, 0, 0, 0, 0, 2]))];

fn vip(n: u32) -> Vip {
    Vip::new(IpAddr::V4((0xc000_0200 + n).into()))
}

fn vip_v6() -> Vip {
    Vip::new("2001:db8::1".parse().unwrap())
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn prober(vip: Vip, mode: AddressProbeMode) -> AddressProber {
    let mut prober = AddressProber::new(1);
    prober.begin(vip, PLACES.to_vec(), mode, T);
    prober
}

/// A foreign host, of which only the MAC is known.
fn silent(vip: Vip) -> VipSpeaker {
    VipSpeaker { vip, mac: OTHER, ifindex: 7, claimed: None, probed: None, option: None, peer: false }
}

fn claims(vip: Vip, at: Duration) -> VipSpeaker {
    VipSpeaker { claimed: Some(at), ..silent(vip) }
}

fn probes(vip: Vip, at: Duration) -> VipSpeaker {
    VipSpeaker { probed: Some(at), ..silent(vip) }
}

fn taken(mac: Mac) -> AddressAvailability {
    AddressAvailability::Taken { mac, ifindex: 7 }
}

/// Milliseconds since `T`, number of frames, results.
type Happened = (u128, usize, Vec<(Vip, AddressAvailability)>);

/// Runs until there are no probes.
fn run(prober: &mut AddressProber) -> Vec<Happened> {
    let mut turns = Vec::new();
    while let Some(next) = prober.next() {
        let AddressProbeActions { frames, outcomes } = prober.poll(&[], next);
        assert!(!frames.is_empty() || !outcomes.is_empty(), "woken for nothing");
        turns.push((next.saturating_sub(T).as_millis(), frames.len(), outcomes));
    }
    turns
}

#[test]
fn the_page_has_the_times_of_the_code() {
    for mode in [AddressProbeMode::Detect, AddressProbeMode::Query] {
        let interval = mode.interval().as_millis();
        assert_eq!(ROUNDS, 3);
        let row = format!("| 0, {interval}, {} ms | {} ms |", 2 * interval, 3 * interval);
        assert_says(FAILOVER, &row);
    }
    assert_says(FAILOVER, &format!("The agent probes for at most {MAX_CONCURRENT} VIPs at a time"));
}

#[test]
fn an_address_that_nobody_answers_for_is_free_after_three_rounds() {
    for (mode, step) in [(AddressProbeMode::Detect, 40), (AddressProbeMode::Query, 20)] {
        let turns = run(&mut prober(vip(1), mode));
        let round = |n: u128| (n * step, PLACES.len(), vec![]);
        assert_eq!(
            turns,
            [round(0), round(1), round(2), (3 * step, 0, vec![(vip(1), AddressAvailability::Free)])],
            "{mode:?}"
        );
    }
}

#[test]
fn each_interface_is_asked_by_its_own_mac() {
    let frames = prober(vip(1), AddressProbeMode::Detect).poll(&[], T).frames;
    let expected = PLACES.map(|(ifindex, mac)| {
        let IpAddr::V4(address) = vip(1).address() else { unreachable!() };
        (vip(1), Frame { ifindex, bytes: arp::probe(address, mac).unwrap() })
    });
    assert_eq!(frames, expected);
    let frames = prober(vip_v6(), AddressProbeMode::Detect).poll(&[], T).frames;
    let of = |(_, frame): &(Vip, Frame)| (frame.ifindex, Mac::new(frame.bytes[6..12].try_into().unwrap()));
    assert_eq!(frames.iter().map(of).collect::<Vec<_>>(), PLACES);
}

#[test]
fn a_packet_counts_as_an_answer_by_its_sender_content_and_time() {
    let at = T + ms(5);
    let early = T.saturating_sub(ms(1));
    for (name, heard, detect, ask) in [
        ("somebody else's address", claims(vip(2), at), false, false),
        ("a claim", claims(vip(1), at), true, true),
        ("a claim at the very time", claims(vip(1), T), true, true),
        ("a claim before it was asked", claims(vip(1), early), false, false),
        ("a peer's claim", VipSpeaker { peer: true, ..claims(vip(1), at) }, true, true),
        ("a claim by an own MAC", VipSpeaker { mac: OWN, ..claims(vip(1), at) }, false, false),
        (
            "a claim by an own MAC of another interface",
            VipSpeaker { mac: PLACES[1].1, ..claims(vip(1), at) },
            false,
            false,
        ),
        ("a foreign host that probes too", probes(vip(1), at), true, false),
        ("a foreign host that probed before", probes(vip(1), early), false, false),
        ("a peer that asks too", VipSpeaker { peer: true, ..probes(vip(1), at) }, false, false),
        ("an own MAC that asks", VipSpeaker { mac: OWN, ..probes(vip(1), at) }, false, false),
        ("a claim after a question", VipSpeaker { probed: Some(early), ..claims(vip(1), at) }, true, true),
    ] {
        for (mode, answers) in [(AddressProbeMode::Detect, detect), (AddressProbeMode::Query, ask)] {
            let mut prober = prober(vip(1), mode);
            prober.poll(&[], T);
            let outcomes = prober.poll(&[heard], T + ms(10)).outcomes;
            let expected = if answers { vec![(vip(1), taken(heard.mac))] } else { vec![] };
            assert_eq!(outcomes, expected, "{name}, {mode:?}");
            assert_eq!(prober.next().is_none(), answers, "{name}, {mode:?}: an answer ends it");
        }
    }
}

#[test]
fn a_question_that_comes_back_by_another_mac_is_recognized_by_its_nonce() {
    for own in [true, false] {
        let mut prober = prober(vip_v6(), AddressProbeMode::Detect);
        let sent = prober.poll(&[], T).frames.swap_remove(0).1.bytes;
        let mut option: [u8; 8] = *sent.last_chunk().unwrap();
        option[7] ^= u8::from(!own);
        let heard = VipSpeaker { option: Some(option), ..probes(vip_v6(), T + ms(1)) };
        let outcomes = prober.poll(&[heard], T + ms(2)).outcomes;
        assert_eq!(outcomes.is_empty(), own, "{outcomes:?}");
    }
}

#[test]
fn no_two_nonces_are_alike() {
    let mut nonces = BTreeSet::new();
    for seed in 0..10 {
        let mut prober = AddressProber::new(seed);
        assert!((0..100).all(|_| nonces.insert(prober.nonce())));
    }
}

#[test]
fn a_foreign_host_is_reported_before_a_peer() {
    let mut prober = prober(vip(1), AddressProbeMode::Query);
    prober.poll(&[], T);
    let peer = VipSpeaker { mac: ANOTHER, peer: true, ..claims(vip(1), T + ms(1)) };
    let outcomes = prober.poll(&[peer, claims(vip(1), T + ms(2))], T + ms(20)).outcomes;
    assert_eq!(outcomes, [(vip(1), taken(OTHER))]);
}

#[test]
fn an_answer_to_the_last_round_counts_at_the_end() {
    let mut prober = prober(vip(1), AddressProbeMode::Query);
    (0..3).for_each(|round| drop(prober.poll(&[], T + ms(20) * round)));
    let turn = prober.poll(&[claims(vip(1), T + ms(59))], T + ms(60));
    assert_eq!(turn, AddressProbeActions { frames: vec![], outcomes: vec![(vip(1), taken(OTHER))] });
    assert_eq!(prober.next(), None);
}

#[test]
fn a_late_probe_sends_no_extra_rounds_and_waits_as_long_for_an_answer() {
    let mut prober = prober(vip(1), AddressProbeMode::Detect);
    let mut now = T + ms(1000);
    for _ in 0..3 {
        assert_eq!(prober.poll(&[], now).frames.len(), PLACES.len());
        assert_eq!(prober.poll(&[], now), AddressProbeActions::default());
        assert_eq!(prober.next(), Some(now + AddressProbeMode::Detect.interval()));
        now += ms(250);
    }
    assert_eq!(prober.poll(&[], now).outcomes, [(vip(1), AddressAvailability::Free)]);
}

#[test]
fn a_second_start_begins_anew_and_a_canceled_probe_has_no_result() {
    let mut prober = prober(vip(1), AddressProbeMode::Detect);
    prober.poll(&[], T);
    prober.poll(&[], T + AddressProbeMode::Detect.interval());
    prober.begin(vip(1), PLACES[..1].to_vec(), AddressProbeMode::Query, T + ms(150));
    // A frame from before the probe is no answer.
    prober.poll(&[claims(vip(1), T + ms(149))], T + ms(150));
    let turns = run(&mut prober);
    assert_eq!(turns, [(170, 1, vec![]), (190, 1, vec![]), (210, 0, vec![(vip(1), AddressAvailability::Free)])]);

    for turns in [0, 1] {
        prober.begin(vip(1), PLACES.to_vec(), AddressProbeMode::Query, T);
        (0..turns).for_each(|_| drop(prober.poll(&[], T)));
        prober.cancel(vip(1));
        assert_eq!((prober.next(), prober.poll(&[], T + ms(60))), (None, AddressProbeActions::default()));
    }
}

#[test]
fn thousands_are_asked_for_in_turns() {
    let mut prober = AddressProber::new(1);
    let count = u32::try_from(MAX_CONCURRENT).unwrap() * 2 + 1;
    (0..count).for_each(|n| prober.begin(vip(n), PLACES[..1].to_vec(), AddressProbeMode::Query, T + ms(n.into())));
    let mut free = Vec::new();
    let mut now = T + ms(1000);
    while let Some(next) = prober.next() {
        now = now.max(next);
        let turn = prober.poll(&[], now);
        assert!(turn.frames.len() <= MAX_CONCURRENT, "{}", turn.frames.len());
        free.extend(turn.outcomes.into_iter().map(|(vip, outcome)| {
            assert_eq!(outcome, AddressAvailability::Free);
            vip
        }));
    }
    assert_eq!(free, (0..count).map(vip).collect::<Vec<_>>(), "in the order in which they were begun");
    assert_eq!(now, T + ms(1000 + 3 * 60));
}
