use std::net::Ipv4Addr;

use super::*;

const T: Duration = Duration::from_secs(1000);
const STRANGER: Mac = Mac::new([2, 0, 0, 0, 0, 0xee]);
const OTHER_STRANGER: Mac = Mac::new([2, 0, 0, 0, 0, 0xef]);
const OWN: Mac = Mac::new([2, 0, 0, 0, 0, 1]);

fn vip(n: u8) -> Vip {
    Vip(Ipv4Addr::new(192, 0, 2, n).into())
}

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn claim(n: u8, at: Duration) -> Heard {
    Heard { vip: vip(n), mac: STRANGER, ifindex: 7, claimed: Some(at), probed: None, option: [0; 8], peer: false }
}

fn all(_: Vip) -> bool {
    true
}

fn hear(watch: &mut Watch, heard: &[Heard], now: Duration) {
    watch.hear(heard, &BTreeSet::from([OWN]), now);
}

fn conflicts(watch: &Watch) -> Vec<(Vip, Mac)> {
    watch.conflicts(all).map(|conflict| (conflict.vip, conflict.mac)).collect()
}

#[test]
fn only_a_strangers_recent_claim_is_a_conflict() {
    for (name, heard, conflict) in [
        ("a stranger", claim(1, T), true),
        ("one that was heard before this agent began to look", claim(1, T.saturating_sub(s(59))), true),
        ("one that was heard too long ago", claim(1, T.saturating_sub(FORGOTTEN)), false),
        ("a peer", Heard { peer: true, ..claim(1, T) }, false),
        ("an own MAC of another interface", Heard { mac: OWN, ..claim(1, T) }, false),
        ("a stranger that only asked", Heard { claimed: None, probed: Some(T), ..claim(1, T) }, false),
    ] {
        let mut watch = Watch::default();
        hear(&mut watch, &[heard], T);
        assert_eq!(!watch.defend(all, T).is_empty(), conflict, "{name}");
        assert_eq!(!conflicts(&watch).is_empty(), conflict, "{name}");
    }
}

#[test]
fn who_turns_out_to_be_a_node_is_no_stranger() {
    let mut watch = Watch::default();
    hear(&mut watch, &[claim(1, T), Heard { mac: OTHER_STRANGER, ..claim(1, T) }], T);
    watch.acquit(|mac| mac == STRANGER);
    assert_eq!(conflicts(&watch), [(vip(1), OTHER_STRANGER)]);
    watch.acquit(|mac| mac == OTHER_STRANGER);
    assert_eq!((conflicts(&watch), watch.defend(all, T)), (vec![], BTreeSet::new()));
}

#[test]
fn each_claim_is_defended_against_once_and_at_most_every_ten_seconds() {
    let mut watch = Watch::default();
    let mut defended = Vec::new();
    // Claims after so many seconds; the watch looks every half second, and reads all that is noted each time.
    let claims = [0, 1, 2, 15, 16, 40, 50, 60];
    for half in 0..300 {
        let now = T + Duration::from_millis(500 * half);
        let last = claims.iter().map(|at| T + s(*at)).rfind(|at| *at <= now);
        hear(&mut watch, &[claim(1, last.unwrap())], now);
        if !watch.defend(all, now).is_empty() {
            defended.push(now.saturating_sub(T).as_secs());
        }
    }
    // What came within the interval is answered at its end.
    assert_eq!(defended, [0, 10, 20, 40, 50, 60]);
}

#[test]
fn two_strangers_are_two_conflicts_and_one_defence() {
    let mut watch = Watch::default();
    let other = Heard { mac: OTHER_STRANGER, ..claim(1, T) };
    hear(&mut watch, &[claim(1, T), other, claim(2, T)], T);
    assert_eq!(watch.defend(all, T), BTreeSet::from([vip(1), vip(2)]));
    assert_eq!(watch.defend(all, T), BTreeSet::new());
    assert_eq!(conflicts(&watch), [(vip(1), STRANGER), (vip(1), OTHER_STRANGER), (vip(2), STRANGER)]);
}

#[test]
fn only_what_is_led_is_defended_and_told() {
    let mut watch = Watch::default();
    let led = |led: u8| move |of: Vip| of == vip(led);
    hear(&mut watch, &[claim(1, T), claim(2, T)], T);
    assert_eq!(watch.defend(led(1), T), BTreeSet::from([vip(1)]));
    let told = Conflict { vip: vip(1), mac: STRANGER, ifindex: 7 };
    assert_eq!(watch.conflicts(led(1)).collect::<Vec<_>>(), [told]);
    assert_eq!(watch.defend(led(2), T + s(1)), BTreeSet::from([vip(2)]), "led since, and not defended yet");
}

#[test]
fn a_stranger_that_is_silent_for_a_minute_is_over() {
    let mut watch = Watch::default();
    hear(&mut watch, &[claim(1, T)], T);
    watch.defend(all, T);
    let almost = T + FORGOTTEN.saturating_sub(s(1));
    watch.defend(all, almost);
    assert_eq!(conflicts(&watch), [(vip(1), STRANGER)]);
    let over = T + FORGOTTEN;
    // The programs' note of it stays.
    hear(&mut watch, &[claim(1, T)], over);
    assert_eq!(watch.defend(all, over), BTreeSet::new());
    assert_eq!(conflicts(&watch), []);
    assert!(watch.defended.is_empty());
}

#[test]
fn thousands_of_macs_are_not_remembered() {
    let mut watch = Watch::default();
    let flood = |second: u8| {
        let mac = move |n: u8| Mac::new([2, 0, 0, 1, second, n]);
        (0..=255).map(|n| Heard { mac: mac(n), ..claim(1, T + s(second.into())) }).collect::<Vec<_>>()
    };
    hear(&mut watch, &[claim(1, T)], T);
    for second in 0..50 {
        hear(&mut watch, &flood(second), T + s(second.into()));
        assert_eq!(watch.claims.len(), MOST_CONFLICTS);
    }
    hear(&mut watch, &[claim(1, T + s(59))], T + s(59));
    watch.defend(all, T + s(61));
    assert!(conflicts(&watch).contains(&(vip(1), STRANGER)), "one that is known is kept up to date");
}
