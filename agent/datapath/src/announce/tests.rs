//! Tests announcements.

use std::{net::Ipv4Addr, num::NonZeroU32, time::Duration};

use super::*;
use vipmux_testing::{
    names::vip4,
    pages::{FAILOVER, assert_says},
};

const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 1]);

/// The last byte of the VIP that each frame is about.
fn about(frames: &[Frame]) -> Vec<u8> {
    frames.iter().map(|frame| frame.bytes[41]).collect()
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Runs the announcer until nothing is due: (milliseconds since `start`, announced VIPs).
fn run(announcer: &mut Announcer, start: Instant) -> Vec<(u128, Vec<u8>)> {
    let mut rounds = Vec::new();
    while let Some(next) = announcer.next() {
        let frames = announcer.due(next);
        assert!(!frames.is_empty(), "woken for nothing at {:?}", next - start);
        rounds.push(((next - start).as_millis(), about(&frames)));
    }
    rounds
}

#[test]
fn a_gained_vip_is_announced_at_once_and_at_growing_intervals() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    announcer.gained(vip4(1), 7, MAC, start);
    let rounds = run(&mut announcer, start);
    assert_eq!(rounds, [0, 1000, 3000, 7000, 15_000].map(|at| (at, vec![1, 1])));
}

#[test]
fn each_frame_is_handed_out_once() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    announcer.gained(vip4(1), 7, MAC, start);
    assert_eq!(announcer.due(start).len(), 2);
    assert_eq!(announcer.due(start), []);
    assert_eq!(announcer.due(start + ms(999)), []);
}

#[test]
fn a_few_first_rounds_leave_together_and_repeats_are_in_turns() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    (1..=6).for_each(|n| announcer.gained(vip4(n), 7, MAC, start));
    let rounds = run(&mut announcer, start);
    assert_eq!(rounds[0], (0, vec![1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]));
    let second: Vec<_> = (1..=6).map(|n| (800 + 200 * u128::from(n), vec![n, n])).collect();
    assert_eq!(rounds[1..7], second);
    for pair in rounds[1..].windows(2) {
        assert!(pair[1].0 - pair[0].0 >= 200, "two frames cost 200 ms at 10 frames/s: {pair:?}");
    }
    assert_eq!(rounds.len(), 1 + 6 * 4);
}

#[test]
fn many_first_rounds_stay_within_their_rate() {
    for (rate, burst) in [(100, 10), (1_000, 100), (15, 2)] {
        let pacing = Pacing::default().limited(NonZeroU32::new(rate).unwrap());
        let (mut announcer, start) = (Announcer::new(pacing), Instant::now());
        (1..=250).for_each(|n| announcer.gained(vip4(n), 7, MAC, start));
        let mut sent = Vec::new();
        while sent.len() < 500 {
            let next = announcer.next().unwrap();
            let frames = announcer.due(next);
            assert!(!frames.is_empty(), "woken for nothing");
            sent.extend(frames.iter().map(|_| next));
            // Repeats begin after a second.
            announcer.queues.values_mut().for_each(|queue| queue.waiting.clear());
        }
        let at_once = sent.iter().filter(|at| **at == start).count();
        assert!((burst..=burst + 2).contains(&at_once), "{at_once} at once");
        let most = usize::try_from(rate).unwrap() + burst + 2;
        for (index, at) in sent.iter().enumerate() {
            let within = sent[index..].iter().take_while(|later| **later < *at + ms(1_000)).count();
            assert!(within <= most, "{within} of {most} frames within a second");
        }
        let last = sent.last().unwrap().duration_since(start).as_millis();
        let expected = 500_000 / u128::from(rate);
        assert!((expected * 7 / 10..=expected).contains(&last), "{rate}: the last left after {last} ms");
    }
}

#[test]
fn the_last_of_five_hundred_vips_is_announced_after_900_milliseconds() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    (1..=500).for_each(|n| announcer.gained(Vip::new(Ipv4Addr::from_bits(n).into()), 7, MAC, start));
    let (mut frames, mut last) = (0, start);
    while frames < 1_000 {
        last = announcer.next().unwrap();
        frames += announcer.due(last).len();
    }
    let took = last.duration_since(start);
    assert!(took >= ms(895) && took <= ms(900), "{took:?}");
    assert_says(FAILOVER, "a node that takes 500 VIPs announces the last one after 0.9 seconds");
}

#[test]
fn repeats_and_first_rounds_share_one_limit() {
    let pacing = Pacing::default().limited(NonZeroU32::MIN);
    let (mut announcer, start) = (Announcer::new(pacing), Instant::now());
    (1..=3).for_each(|n| announcer.gained(vip4(n), 7, MAC, start));
    let rounds = run(&mut announcer, start);
    let order: Vec<_> = rounds.iter().take(6).map(|(_, vips)| vips[0]).collect();
    assert_eq!(order, [1, 2, 3, 1, 2, 3], "first rounds leave first");
    let times: Vec<_> = rounds.iter().map(|(at, _)| *at).collect();
    assert!(times[1..].windows(2).all(|pair| pair[1] - pair[0] >= 2_000), "{times:?}");
}

#[test]
fn a_late_call_does_not_catch_up_in_a_burst() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    (1..=6).for_each(|n| announcer.gained(vip4(n), 7, MAC, start));
    announcer.due(start);
    let late = start + ms(60_000);
    assert_eq!(about(&announcer.due(late)), [1, 1]);
    assert_eq!(announcer.next(), Some(late + ms(200)));
}

#[test]
fn interfaces_are_paced_apart() {
    let pacing = Pacing::new(AnnouncementSchedule::default(), NonZeroU32::MIN);
    let (mut announcer, start) = (Announcer::new(pacing), Instant::now());
    announcer.gained(vip4(1), 7, MAC, start);
    announcer.gained(vip4(1), 8, MAC, start);
    announcer.due(start);
    let frames = announcer.due(start + ms(1000));
    assert_eq!(frames.iter().map(|frame| frame.ifindex).collect::<Vec<_>>(), [7, 7, 8, 8]);
    assert_eq!(announcer.next(), Some(start + ms(3000)));
}

#[test]
fn a_lost_vip_falls_silent() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    announcer.gained(vip4(1), 7, MAC, start);
    announcer.gained(vip4(2), 7, MAC, start);
    announcer.lost(vip4(2));
    assert_eq!(about(&announcer.due(start)), [1, 1]);
    announcer.lost(vip4(1));
    assert_eq!(announcer.next(), None);
    assert_eq!(announcer.due(start + ms(60_000)), []);
}

#[test]
fn a_vip_that_moves_to_another_interface_falls_silent_where_it_was() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    (1..=2).for_each(|n| announcer.gained(vip4(n), 7, MAC, start));
    assert_eq!(about(&announcer.due(start)), [1, 1, 2, 2]);
    announcer.retain(vip4(1), &BTreeSet::from([8]));
    announcer.gained(vip4(1), 8, MAC, start + ms(10));
    announcer.reannounce(7, start + ms(20));
    let frames = announcer.due(start + ms(20));
    let sent: Vec<_> = frames.iter().map(|frame| frame.ifindex).zip(about(&frames)).collect();
    assert_eq!(sent, [(7, 2), (7, 2), (8, 1), (8, 1)]);
}

#[test]
fn a_vip_that_comes_back_starts_over() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    announcer.gained(vip4(1), 7, MAC, start);
    announcer.due(start);
    let back = start + ms(500);
    announcer.gained(vip4(1), 7, MAC, back);
    let rounds = run(&mut announcer, back);
    assert_eq!(rounds.iter().map(|round| round.0).collect::<Vec<_>>(), [0, 1000, 3000, 7000, 15_000]);
}

#[test]
fn carrier_up_announces_what_is_held_there() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    announcer.gained(vip4(1), 7, MAC, start);
    announcer.gained(vip4(2), 8, MAC, start);
    run(&mut announcer, start);
    let up = start + ms(100_000);
    announcer.reannounce(7, up);
    assert_eq!(announcer.next(), Some(up));
    assert_eq!(about(&announcer.due(up)), [1, 1]);
    announcer.remove_interface(7);
    assert_eq!(announcer.next(), None);
}

#[test]
fn an_ipv6_vip_has_the_same_burst_at_one_frame_a_round() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    let vip = "2001:db8::1".parse().unwrap();
    announcer.gained(Vip::new(IpAddr::V6(vip)), 7, MAC, start);
    let mut rounds = Vec::new();
    while let Some(next) = announcer.next() {
        assert_eq!(announcer.due(next), [Frame { ifindex: 7, bytes: ndp::announcement(vip, MAC) }]);
        rounds.push((next - start).as_secs());
    }
    assert_eq!(rounds, [0, 1, 3, 7, 15]);
}

fn repeating(every: Duration) -> Announcer {
    Announcer::new(Pacing::default().repeating(every))
}

#[test]
fn after_the_burst_a_vip_is_announced_every_so_often_until_it_is_lost() {
    let (mut announcer, start) = (repeating(ms(60_000)), Instant::now());
    announcer.gained(vip4(1), 7, MAC, start);
    let mut rounds = Vec::new();
    for _ in 0..8 {
        let next = announcer.next().unwrap();
        assert_eq!(about(&announcer.due(next)), [1, 1]);
        rounds.push((next - start).as_secs());
    }
    assert_eq!(rounds, [0, 1, 3, 7, 15, 75, 135, 195]);
    announcer.reannounce(7, start + ms(200_000));
    let again = announcer.next().unwrap();
    announcer.due(again);
    assert_eq!(announcer.next(), Some(again + ms(1000)), "a burst comes first");
    announcer.lost(vip4(1));
    assert_eq!(announcer.next(), None);
    assert_eq!(Pacing::default().repeating(Duration::ZERO), Pacing::default(), "zero is never");
}

#[test]
fn slow_rounds_of_many_vips_are_spread_and_paced() {
    let (mut announcer, start) = (repeating(ms(30_000)), Instant::now());
    (1..=50).for_each(|n| announcer.gained(vip4(n), 7, MAC, start));
    let mut rounds = Vec::new();
    while let Some(next) = announcer.next().filter(|next| *next < start + ms(200_000)) {
        rounds.push((next - start, about(&announcer.due(next))));
    }
    for pair in rounds[1..].windows(2) {
        assert!(pair[1].0 >= pair[0].0 + ms(200), "two frames cost 200 ms: {pair:?}");
    }
    let slow: Vec<_> = rounds.iter().filter(|(at, _)| *at >= ms(100_000)).collect();
    assert!(slow.iter().all(|(_, vips)| vips.len() == 2 && vips[0] == vips[1]), "one at a time");
    let of_last = |n| slow.iter().filter(|(_, vips)| vips[0] == n).map(|(at, _)| *at).collect::<Vec<_>>();
    for n in [1, 25, 50] {
        let at = of_last(n);
        assert!(
            at.windows(2).all(|pair| (30_000..40_000).contains(&pair[1].saturating_sub(pair[0]).as_millis())),
            "{n}: {at:?}"
        );
        assert!(at.len() >= 3, "{n}: {at:?}");
    }
}

#[test]
fn a_defense_is_one_more_round_and_the_schedule_goes_on() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    announcer.gained(vip4(1), 7, MAC, start);
    announcer.gained(vip4(2), 7, MAC, start);
    announcer.gained(vip4(1), 8, MAC, start);
    announcer.due(start);
    let now = start + ms(100);
    announcer.defend(vip4(1));
    assert!(announcer.next().unwrap() <= now);
    let frames = announcer.due(now);
    assert_eq!(frames.iter().map(|frame| frame.ifindex).collect::<Vec<_>>(), [7, 7, 8, 8]);
    assert_eq!(about(&frames), [1; 4]);
    announcer.remove_interface(8);
    let rounds = run(&mut announcer, start);
    let repeats = rounds.iter().filter(|(_, vips)| vips[0] == 1).count();
    assert_eq!((rounds[0].clone(), repeats, rounds.len()), ((1000, vec![1, 1]), 4, 8));
    announcer.defend(vip4(1));
    assert_eq!(run(&mut announcer, start).len(), 1, "also when the burst is over");
    announcer.defend(vip4(3));
    assert_eq!(announcer.next(), None, "nobody holds it");
}

#[test]
fn a_defense_comes_before_waiting_announcements_and_is_paced() {
    let (mut announcer, start) = (Announcer::default(), Instant::now());
    (1..=20).for_each(|n| announcer.gained(vip4(n), 7, MAC, start));
    announcer.due(start);
    announcer.due(start + ms(1000));
    announcer.defend(vip4(20));
    announcer.defend(vip4(19));
    assert_eq!(announcer.next(), Some(start + ms(1200)));
    assert_eq!(about(&announcer.due(start + ms(1200))), [19, 19]);
    assert_eq!(about(&announcer.due(start + ms(1400))), [20, 20]);
    assert_eq!(about(&announcer.due(start + ms(1600))), [2, 2]);
    announcer.gained(vip4(30), 7, MAC, start);
    announcer.defend(vip4(30));
    assert_eq!(about(&announcer.due(start + ms(1700))), [30, 30], "it is announced anyway");
}
