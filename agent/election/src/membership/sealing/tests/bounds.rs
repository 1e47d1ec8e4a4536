//! Tests which keys open a datagram, its sender and receiver, and the limits.

use super::*;

#[test]
fn while_a_key_is_replaced_all_understand_each_other() {
    let stages: [&[u8]; 4] = [&[1], &[1, 2], &[2, 1], &[2]];
    for (i, ours) in stages.iter().enumerate() {
        for (j, theirs) in stages.iter().enumerate() {
            let (mut a, mut b) = (agent_with(&keys(ours), A, 1), agent_with(&keys(theirs), B, 1));
            if i.abs_diff(j) <= 1 {
                admit(&mut a, &mut b, NOW);
                let said = say(&mut a, b"here");
                assert_eq!(open(&mut b, A, &said, NOW), payload(A, b"here"), "{ours:?} and {theirs:?}");
            } else if !theirs.contains(&ours[0]) {
                let said = say(&mut a, b"here");
                assert_eq!(reason(&open(&mut b, A, &said, NOW)), Unopened::OtherKey, "{ours:?} and {theirs:?}");
            }
        }
    }
}

#[test]
fn another_key_takes_its_place_and_sessions_go_on() {
    let (mut a, mut b) = pair();
    let under_way = say(&mut a, b"under way");
    for (ours, theirs) in [([1].as_slice(), [1, 2].as_slice()), (&[2, 1], &[1, 2]), (&[2, 1], &[2]), (&[2], &[2])] {
        a.rekey(keys(ours));
        b.rekey(keys(theirs));
        let (said, answered) = (say(&mut a, b"ask"), say(&mut b, b"answer"));
        assert_eq!(open(&mut b, A, &said, NOW), payload(A, b"ask"), "{ours:?} and {theirs:?}");
        assert_eq!(open(&mut a, B, &answered, NOW), payload(B, b"answer"), "{ours:?} and {theirs:?}");
    }
    assert_eq!(reason(&open(&mut b, A, &under_way, NOW)), Unopened::OtherKey, "the old one opens nothing any more");
}

#[test]
fn what_was_sealed_for_one_node_opens_at_no_other() {
    const C: &str = "c";
    let (mut a, mut b) = pair();
    let mut c = agent(C, 1);
    let first = a.seal(&node_name(C), b"lost").unwrap();
    let challenge = reply(open(&mut c, A, &first, NOW));
    let response = reply(open(&mut a, C, &challenge, NOW));
    let last = reply(open(&mut c, A, &response, NOW));
    assert_eq!(open(&mut a, C, &last, NOW), Opened::Admitted);
    let to_b = say(&mut a, b"lead it");
    assert_eq!(reason(&open(&mut c, A, &to_b, NOW)), Unopened::Forged);
    assert_eq!(open(&mut b, A, &to_b, NOW), payload(A, b"lead it"));
    let to_c = a.seal(&node_name(C), b"here").unwrap();
    assert_eq!(open(&mut c, A, &to_c, NOW), payload(A, b"here"), "it listens to a");
}

#[test]
fn who_has_the_key_is_heard_only_as_itself_and_from_where_it_is() {
    let mut b = agent(B, 1);
    let said = |node, run| agent(node, run).seal(&node_name(B), b"x").unwrap();
    for (what, said, from, expected, sender) in [
        ("a stranger", said("mallory", 1), address("mallory"), Unopened::Stranger, Some("mallory")),
        ("another's address", said(A, 1), address(B), Unopened::WrongAddress, Some(A)),
        ("our name", said(B, 2), address(B), Unopened::Namesake, Some(B)),
        ("our session", b.seal(&node_name(A), b"x").unwrap(), address(B), Unopened::Echoed, None),
    ] {
        let opened = b.open(&said, from, origin, NOW);
        assert_eq!(opened, Opened::Nothing { reason: expected, key: None, sender: sender.map(node_name) }, "{what}");
    }
    let names: std::collections::BTreeSet<_> = Unopened::ALL.map(Unopened::name).into();
    assert_eq!(names.len(), Unopened::ALL.len());
}

#[test]
fn replies_are_limited_and_come_again() {
    let mut b = agent(B, 1);
    let said = say(&mut agent(A, 1), b"x");
    let mut replies = |now| {
        let opened = (0..3 * REPLIES).map(|_| open(&mut b, A, &said, now));
        let (replies, refused): (Vec<_>, Vec<_>) = opened.partition(|opened| matches!(opened, Opened::Reply(_)));
        assert!(refused.iter().all(|opened| reason(opened) == Unopened::TooMany));
        u32::try_from(replies.len()).unwrap()
    };
    assert_eq!(replies(NOW), REPLIES);
    assert_eq!(replies(NOW + Duration::from_millis(100)), REPLIES / 10);
    assert_eq!(replies(NOW + Duration::from_mins(1)), REPLIES, "they do not add up");
}

#[test]
fn a_payload_has_a_longest_length() {
    let longest_name = ["a".repeat(63).as_str(), &"b".repeat(63), &"c".repeat(63), &"d".repeat(61)].join(".");
    let (mut a, mut b) = (agent(&longest_name, 1), agent(B, 1));
    admit(&mut a, &mut b, NOW);
    let longest = say(&mut a, &[1; LONGEST_PAYLOAD]);
    assert_eq!(longest.len(), LONGEST_DATAGRAM);
    assert_eq!(open(&mut b, &longest_name, &longest, NOW), payload(&longest_name, &[1; LONGEST_PAYLOAD]));
    assert_eq!(a.seal(&node_name(B), &[1; LONGEST_PAYLOAD + 1]), Err(SealError::TooLong(LONGEST_PAYLOAD + 1)));
    assert_eq!(reason(&open(&mut b, A, &[VERSION; LONGEST_DATAGRAM + 1], NOW)), Unopened::Malformed);
    let empty = say(&mut a, &[]);
    assert_eq!(open(&mut b, &longest_name, &empty, NOW), payload(&longest_name, &[]));
    assert!(NodeName::new(format!("{longest_name}e")).is_err(), "no name is longer than a datagram has room for");
}

#[test]
fn a_counter_never_wraps() {
    let mut a = agent(A, 1);
    a.counter = u64::MAX - 1;
    assert!(a.seal(&node_name(B), b"last").is_ok());
    assert_eq!(a.seal(&node_name(B), b"more"), Err(SealError::Exhausted));
}
