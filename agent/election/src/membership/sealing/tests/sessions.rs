//! Tests how sessions are admitted, and which datagrams are taken: once, in time, and never of a
//! session that is over.

use super::*;

#[test]
fn one_exchange_admits_both_sessions() {
    let (mut a, mut b) = pair();
    let (said, answered) = (say(&mut a, b"ask"), say(&mut b, b"answer"));
    assert_eq!(open(&mut b, A, &said, NOW), payload(A, b"ask"));
    assert_eq!(open(&mut a, B, &answered, NOW), payload(B, b"answer"));
}

#[test]
fn both_may_begin_at_once() {
    let (mut a, mut b) = (agent(A, 1), agent(B, 1));
    let (mut to_b, mut to_a) = (vec![say(&mut a, b"x")], vec![say(&mut b, b"y")]);
    for _ in 0..10 {
        let replies = |opened: Vec<Opened>| -> Vec<Vec<u8>> {
            opened
                .into_iter()
                .filter_map(|one| if let Opened::Reply(reply) = one { Some(reply) } else { None })
                .collect()
        };
        let from_b = replies(to_b.iter().map(|datagram| open(&mut b, A, datagram, NOW)).collect());
        let from_a = replies(to_a.iter().map(|datagram| open(&mut a, B, datagram, NOW)).collect());
        (to_a, to_b) = (from_b, from_a);
    }
    assert!(to_a.is_empty() && to_b.is_empty(), "they come to an end");
    let (said, answered) = (say(&mut a, b"ask"), say(&mut b, b"answer"));
    assert_eq!(open(&mut b, A, &said, NOW), payload(A, b"ask"));
    assert_eq!(open(&mut a, B, &answered, NOW), payload(B, b"answer"));
}

#[test]
fn nothing_that_was_cut_off_or_changed_opens() {
    let (mut a, mut b) = pair();
    let good = say(&mut a, b"take it");
    for length in 0..good.len() {
        let opened = open(&mut b, A, &good[..length], NOW);
        assert!(matches!(reason(&opened), Unopened::Malformed | Unopened::Forged), "{length}: {opened:?}");
    }
    for bit in 0..good.len() * 8 {
        let mut changed = good.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let expected = match bit / 8 {
            0 => Unopened::OtherVersion,
            1..5 => Unopened::OtherKey,
            _ => Unopened::Forged,
        };
        let key = (expected == Unopened::OtherKey).then(|| changed[1..5].try_into().unwrap());
        assert_eq!(open(&mut b, A, &changed, NOW), Opened::Nothing { reason: expected, key, sender: None }, "{bit}");
    }
    let longer = [good.as_slice(), &[0]].concat();
    assert_eq!(reason(&open(&mut b, A, &longer, NOW)), Unopened::Forged);
    assert_eq!(open(&mut b, A, &good, NOW), payload(A, b"take it"), "none of them did any harm");
}

#[test]
fn each_datagram_is_taken_once_in_any_order_within_the_window() {
    let (mut a, mut b) = pair();
    let sealed: Vec<_> = (0..=WINDOW).map(|i| say(&mut a, &i.to_be_bytes())).collect();
    let (oldest, others) = sealed.split_first().unwrap();
    for datagram in others.iter().rev() {
        assert!(matches!(open(&mut b, A, datagram, NOW), Opened::Payload { .. }));
    }
    for datagram in others {
        assert_eq!(reason(&open(&mut b, A, datagram, NOW)), Unopened::Replayed);
    }
    assert_eq!(reason(&open(&mut b, A, oldest, NOW)), Unopened::Replayed, "older than what is remembered");
}

#[test]
fn what_was_sealed_before_the_exchange_is_not_taken_after_it() {
    let (mut a, mut b) = (agent(A, 1), agent(B, 1));
    let before = say(&mut a, b"before");
    let [first, response] = admit(&mut a, &mut b, NOW);
    for old in [before, first, response] {
        assert_eq!(reason(&open(&mut b, A, &old, NOW)), Unopened::Replayed);
    }
}

#[test]
fn a_node_has_two_sessions_and_only_an_exchange_pushes_the_older_out() {
    let (mut first, mut b) = pair();
    let (mut second, mut third) = (agent(A, 2), agent(A, 3));
    admit(&mut second, &mut b, NOW);
    let late = say(&mut first, b"late");
    assert_eq!(open(&mut b, A, &late, NOW), payload(A, b"late"), "still under way at the restart");
    let datagram = say(&mut third, b"x");
    reply(open(&mut b, A, &datagram, NOW));
    let late = say(&mut first, b"later");
    assert_eq!(open(&mut b, A, &late, NOW), payload(A, b"later"), "a challenge pushes nothing out");
    admit(&mut third, &mut b, NOW);
    for (agent, taken) in [(&mut first, false), (&mut second, true), (&mut third, true)] {
        let said = say(agent, b"here");
        assert_eq!(open(&mut b, A, &said, NOW) == payload(A, b"here"), taken, "{:?}", agent.session);
    }
}

#[test]
fn what_was_recorded_of_a_run_that_ended_is_never_taken_and_pushes_nothing_out() {
    let mut b = agent(B, 1);
    let mut recorded = Vec::new();
    let mut run = agent(A, 1);
    recorded.extend(admit(&mut run, &mut b, NOW));
    // Never delivered.
    recorded.extend((0..5).map(|_| say(&mut run, b"kept back")));
    let (mut second, mut third) = (agent(A, 2), agent(A, 3));
    admit(&mut second, &mut b, NOW);
    admit(&mut third, &mut b, NOW);
    for millis in (0..20_000).step_by(500) {
        for datagram in &recorded {
            let opened = open(&mut b, A, datagram, NOW + Duration::from_millis(millis));
            assert!(!matches!(opened, Opened::Payload { .. } | Opened::Admitted), "{millis}: {opened:?}");
        }
    }
    for agent in [&mut second, &mut third] {
        let said = say(agent, b"here");
        let opened = open(&mut b, A, &said, NOW + Duration::from_secs(20));
        assert!(matches!(opened, Opened::Payload { bytes, .. } if bytes == b"here"));
    }
}

#[test]
fn a_recorded_challenge_gets_nobody_admitted() {
    let (mut a, mut b) = (agent(A, 1), agent(B, 1));
    let said = say(&mut a, b"x");
    let challenge = reply(open(&mut b, A, &said, NOW));
    let mut later = agent(A, 2);
    assert_eq!(reason(&open(&mut later, B, &challenge, NOW)), Unopened::Unasked, "it names another session");
    // The run that it names answers it, whenever it comes; and b, started again meanwhile, does not
    // know the cookie.
    let response = reply(open(&mut a, B, &challenge, NOW));
    assert_eq!(reason(&open(&mut agent(B, 2), A, &response, NOW)), Unopened::Unasked);
    // Nor b itself, once it has become old.
    assert_eq!(reason(&open(&mut b, A, &response, NOW + Duration::from_secs(2))), Unopened::Unasked);
    let admitted = reply(open(&mut b, A, &response, NOW + Duration::from_millis(1_999)));
    assert_eq!(open(&mut a, B, &admitted, NOW), Opened::Admitted);
}

#[test]
fn a_cookie_is_good_for_one_session_at_one_address_until_the_next_admission() {
    let challenger = Challenger::new([7; 32]);
    let subject = ChallengeSubject { session: [1; 16], from: address(A), admissions: 3 };
    let cookie = challenger.cookie(&subject, NOW);
    let knows = |subject, now| challenger.recognizes(cookie, &subject, now);
    let slot = challenge::SLOT;
    assert!(knows(subject, NOW) && knows(subject, NOW + slot));
    for (what, subject, now) in [
        ("too old", subject, NOW + 2 * slot),
        ("too new", subject, NOW.saturating_sub(slot)),
        ("another session", ChallengeSubject { session: [2; 16], ..subject }, NOW),
        ("another address", ChallengeSubject { from: address(B), ..subject }, NOW),
        ("another family", ChallengeSubject { from: "::c000:261".parse().unwrap(), ..subject }, NOW),
        ("another admission since", ChallengeSubject { admissions: 4, ..subject }, NOW),
    ] {
        assert!(!knows(subject, now), "{what}");
    }
    assert!(!Challenger::new([8; 32]).recognizes(cookie, &subject, NOW), "another run");
    assert!(Challenger::new([7; 32]).recognizes(challenger.cookie(&subject, Duration::ZERO), &subject, Duration::ZERO));
}

#[test]
fn a_session_that_was_silent_for_long_must_answer_anew() {
    let (mut a, mut b) = pair();
    let (kept_back, in_time) = (say(&mut a, b"kept back"), say(&mut a, b"in time"));
    assert!(matches!(open(&mut b, A, &in_time, NOW + PROOF), Opened::Payload { .. }));
    let later = NOW + PROOF + Duration::from_nanos(1);
    let first = say(&mut a, b"lost");
    let challenge = reply(open(&mut b, A, &first, later));
    let response = reply(open(&mut a, B, &challenge, later));
    assert!(matches!(open(&mut b, A, &response, later), Opened::Admitted | Opened::Reply(_)));
    assert_eq!(reason(&open(&mut b, A, &kept_back, later)), Unopened::Replayed);
    let said = say(&mut a, b"here");
    assert_eq!(open(&mut b, A, &said, later), payload(A, b"here"));
}

#[test]
fn what_was_kept_back_is_worth_nothing_once_its_sender_is_gone_however_it_is_doled_out() {
    let (mut a, mut b) = pair();
    let kept_back: Vec<_> = (0..100).map(|_| say(&mut a, b"kept back")).collect();
    drop(a);
    for (datagram, second) in kept_back.iter().zip((0..).step_by(10)) {
        let opened = open(&mut b, A, datagram, NOW + Duration::from_secs(second));
        let taken = matches!(opened, Opened::Payload { .. });
        assert_eq!(taken, Duration::from_secs(second) <= PROOF, "after {second} s: {opened:?}");
    }
}

#[test]
fn a_session_that_goes_on_is_challenged_in_time_and_nothing_of_it_is_lost_even_in_a_flood() {
    let (mut a, mut b) = pair();
    let old = say(&mut agent(A, 9), b"recorded");
    let mut challenges = 0;
    for second in (0..105).step_by(7) {
        let now = NOW + Duration::from_secs(second);
        while matches!(open(&mut b, A, &old, now), Opened::Reply(_)) {}
        for by_a in [true, false] {
            let (from, to, sender) = if by_a { (&mut a, &mut b, A) } else { (&mut b, &mut a, B) };
            let said = say(from, b"on");
            let opened = open(to, sender, &said, now);
            let Opened::Payload { reply: challenge, .. } = opened else { panic!("{second}: {opened:?}") };
            let Some(challenge) = challenge else { continue };
            challenges += 1;
            let receiver = to.local.as_str().to_owned();
            let response = reply(open(from, &receiver, &challenge, now));
            match open(to, sender, &response, now) {
                Opened::Reply(last) => assert_eq!(open(from, &receiver, &last, now), Opened::Admitted),
                opened => assert_eq!(opened, Opened::Admitted),
            }
        }
    }
    assert!((3..=6).contains(&challenges), "{challenges} in 105 s");
}

#[test]
fn a_node_that_was_forgotten_and_comes_back_must_answer_anew() {
    let (mut a, mut b) = (agent(A, 1), agent(B, 1));
    let recorded = admit(&mut a, &mut b, NOW);
    b.retain(|node| node.as_str() != A);
    let [first, response] = recorded;
    assert_eq!(reason(&open(&mut b, A, &response, NOW)), Unopened::Unasked);
    assert!(matches!(open(&mut b, A, &first, NOW), Opened::Reply(_)));
    admit(&mut a, &mut b, NOW);
    b.retain(|node| node.as_str() == A);
    let said = say(&mut a, b"here");
    assert_eq!(open(&mut b, A, &said, NOW), payload(A, b"here"), "kept");
}
