use proptest::prelude::*;

use super::{challenge::REPLIES, *};

const NOW: Duration = Duration::from_secs(1_000);
const A: &str = "a";
const B: &str = "b";

fn name(text: &str) -> NodeName {
    NodeName(text.to_owned())
}

/// Node `a` is at 192.0.2.97, and so on; those with longer names are at 2001:db8::1.
fn address(node: &str) -> IpAddr {
    match node.as_bytes() {
        [letter] => IpAddr::from([192, 0, 2, *letter]),
        _ => "2001:db8::1".parse().unwrap(),
    }
}

fn origin(node: &NodeName, from: IpAddr) -> Origin {
    match node.0.as_str() {
        "mallory" => Origin::Stranger,
        known if address(known) == from => Origin::Expected,
        _ => Origin::WrongAddress,
    }
}

fn keys(text: &[u8]) -> Keys {
    let lines: String = text.iter().map(|byte| format!("{byte:02x}").repeat(32) + "\n").collect();
    Keys::parse(&lines).unwrap()
}

/// The agent on `node`, in its `run`th run.
fn agent(node: &str, run: u8) -> Sealer {
    agent_with(&keys(&[1]), node, run)
}

fn agent_with(keys: &Keys, node: &str, run: u8) -> Sealer {
    let mut session = [run; 16];
    session[0] = node.as_bytes()[0];
    Sealer::new(keys, name(node), session, [run ^ session[0]; 32])
}

fn open(to: &mut Sealer, from: &str, datagram: &[u8], now: Duration) -> Opened {
    to.open(datagram, address(from), origin, now)
}

fn reply(opened: Opened) -> Vec<u8> {
    let Opened::Reply(datagram) = opened else { panic!("{opened:?}") };
    datagram
}

fn reason(opened: &Opened) -> Unopened {
    let Opened::Nothing { reason, .. } = opened else { panic!("{opened:?}") };
    *reason
}

/// Sealed for the other one of the two that most tests have.
fn say(from: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
    let to = if from.local.0 == B { A } else { B };
    from.seal(&name(to), bytes).unwrap()
}

fn payload(node: &str, bytes: &[u8]) -> Opened {
    Opened::Payload { node: name(node), bytes: bytes.to_vec(), reply: None }
}

/// Has `b` admit the session of `a` by an exchange at `now`; gives all that `a` sealed for it.
fn admit(a: &mut Sealer, b: &mut Sealer, now: Duration) -> [Vec<u8>; 2] {
    let (from, to) = (a.local.0.clone(), b.local.0.clone());
    let first = say(a, b"lost");
    let challenge = reply(open(b, &from, &first, now));
    let response = reply(open(a, &to, &challenge, now));
    match open(b, &from, &response, now) {
        Opened::Reply(last) => assert_eq!(open(a, &to, &last, now), Opened::Admitted),
        opened => assert_eq!(opened, Opened::Admitted),
    }
    [first, response]
}

/// Two agents that have admitted each other's first run.
fn pair() -> (Sealer, Sealer) {
    let (mut a, mut b) = (agent(A, 1), agent(B, 1));
    admit(&mut a, &mut b, NOW);
    (a, b)
}

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
        assert_eq!(open(&mut b, A, &changed, NOW), Opened::Nothing { reason: expected, sender: None }, "{bit}");
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
    // The run that it names answers it, whenever it comes; and b, started again meanwhile, does not know the cookie.
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
    let subject = Subject { session: [1; 16], from: address(A), admissions: 3 };
    let cookie = challenger.cookie(&subject, NOW);
    let knows = |subject, now| challenger.recognises(cookie, &subject, now);
    let slot = challenge::SLOT;
    assert!(knows(subject, NOW) && knows(subject, NOW + slot));
    for (what, subject, now) in [
        ("too old", subject, NOW + 2 * slot),
        ("too new", subject, NOW.saturating_sub(slot)),
        ("another session", Subject { session: [2; 16], ..subject }, NOW),
        ("another address", Subject { from: address(B), ..subject }, NOW),
        ("another family", Subject { from: "::c000:261".parse().unwrap(), ..subject }, NOW),
        ("another admission since", Subject { admissions: 4, ..subject }, NOW),
    ] {
        assert!(!knows(subject, now), "{what}");
    }
    assert!(!Challenger::new([8; 32]).recognises(cookie, &subject, NOW), "another run");
    assert!(Challenger::new([7; 32]).recognises(challenger.cookie(&subject, Duration::ZERO), &subject, Duration::ZERO));
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
            let receiver = to.local.0.clone();
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
    b.retain(|node| node.0 != A);
    let [first, response] = recorded;
    assert_eq!(reason(&open(&mut b, A, &response, NOW)), Unopened::Unasked);
    assert!(matches!(open(&mut b, A, &first, NOW), Opened::Reply(_)));
    admit(&mut a, &mut b, NOW);
    b.retain(|node| node.0 == A);
    let said = say(&mut a, b"here");
    assert_eq!(open(&mut b, A, &said, NOW), payload(A, b"here"), "kept");
}

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
    let first = a.seal(&name(C), b"lost").unwrap();
    let challenge = reply(open(&mut c, A, &first, NOW));
    let response = reply(open(&mut a, C, &challenge, NOW));
    let last = reply(open(&mut c, A, &response, NOW));
    assert_eq!(open(&mut a, C, &last, NOW), Opened::Admitted);
    let to_b = say(&mut a, b"lead it");
    assert_eq!(reason(&open(&mut c, A, &to_b, NOW)), Unopened::Forged);
    assert_eq!(open(&mut b, A, &to_b, NOW), payload(A, b"lead it"));
    let to_c = a.seal(&name(C), b"here").unwrap();
    assert_eq!(open(&mut c, A, &to_c, NOW), payload(A, b"here"), "it listens to a");
}

#[test]
fn who_has_the_key_is_heard_only_as_itself_and_from_where_it_is() {
    let mut b = agent(B, 1);
    let said = |node, run| agent(node, run).seal(&name(B), b"x").unwrap();
    for (what, said, from, expected, sender) in [
        ("a stranger", said("mallory", 1), address("mallory"), Unopened::Stranger, Some("mallory")),
        ("another's address", said(A, 1), address(B), Unopened::WrongAddress, Some(A)),
        ("our name", said(B, 2), address(B), Unopened::Namesake, Some(B)),
        ("our session", b.seal(&name(A), b"x").unwrap(), address(B), Unopened::Echoed, None),
    ] {
        let opened = b.open(&said, from, origin, NOW);
        assert_eq!(opened, Opened::Nothing { reason: expected, sender: sender.map(name) }, "{what}");
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
    assert_eq!(a.seal(&name(B), &[1; LONGEST_PAYLOAD + 1]), Err(SealError::TooLong(LONGEST_PAYLOAD + 1)));
    assert_eq!(reason(&open(&mut b, A, &[1; LONGEST_DATAGRAM + 1], NOW)), Unopened::Malformed);
    let empty = say(&mut a, &[]);
    assert_eq!(open(&mut b, &longest_name, &empty, NOW), payload(&longest_name, &[]));
    let too_long = name(&format!("{longest_name}e"));
    let mut nobody = Sealer::new(&keys(&[1]), too_long, [1; 16], [1; 32]);
    assert_eq!(nobody.seal(&name(B), &[]), Err(SealError::TooLong(254)));
}

#[test]
fn a_counter_never_wraps() {
    let mut a = agent(A, 1);
    a.counter = u64::MAX - 1;
    assert!(a.seal(&name(B), b"last").is_ok());
    assert_eq!(a.seal(&name(B), b"more"), Err(SealError::Exhausted));
}

/// Seals a plaintext for `b` that no agent would.
fn seal_anything(session: SessionId, counter: u64, plaintext: &[u8]) -> Vec<u8> {
    let keys = keys(&[1]);
    let header = Header { key: keys.sealing().id(), session, counter };
    let sealed = keys.sealing().seal(&header.nonce(), plaintext, &header.bound_to(&name(B))).unwrap();
    [header.emit().as_slice(), &sealed].concat()
}

proptest! {
    #[test]
    fn no_bytes_are_understood_in_two_ways(bytes in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        // Near to what makes sense.
        (1..3_u8, 0..4_u8, prop::collection::vec(any::<u8>(), 0..50)).prop_map(|(length, kind, body)| {
            [&[length], &b"abc"[..usize::from(length)], &[kind], &body].concat()
        }),
    ]) {
        if let Some(plaintext) = Plaintext::parse(&bytes) {
            prop_assert_eq!(plaintext.emit().unwrap(), bytes);
        }
    }

    #[test]
    fn whatever_is_sealed_or_not_harms_nobody(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        version in prop::option::of(Just(1_u8)),
        counter in any::<u64>(),
    ) {
        let (mut a, mut b) = pair();
        open(&mut b, A, &seal_anything([9; 16], counter, &bytes), NOW);
        let unsealed: Vec<u8> = version.into_iter().chain(bytes).collect();
        let unheard = matches!(open(&mut b, A, &unsealed, NOW), Opened::Nothing { sender: None, .. });
        prop_assert!(unheard);
        let said = say(&mut a, b"here");
        prop_assert_eq!(open(&mut b, A, &said, NOW), payload(A, b"here"));
    }
}

/// Which one of those that were ever sent.
#[derive(Clone, Debug)]
enum Which {
    /// One of the last few: so that exchanges come to their end.
    Back(usize),
    Any(prop::sample::Index),
}

impl Which {
    fn of<'a>(&self, sent: &'a [Sent]) -> Option<&'a Sent> {
        match self {
            Self::Back(back) => sent.iter().rev().nth(*back),
            Self::Any(index) => (!sent.is_empty()).then(|| index.get(sent)),
        }
    }
}

/// What happens on a LAN where somebody records everything, delivers or drops what he likes, and repeats it.
#[derive(Clone, Debug)]
enum Event {
    Say { by: usize },
    Deliver { which: Which },
    Restart { which: usize },
    Wait { millis: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..2_usize).prop_map(|by| Event::Say { by }),
        14 => (0..4_usize).prop_map(|back| Event::Deliver { which: Which::Back(back) }),
        6 => any::<prop::sample::Index>().prop_map(|which| Event::Deliver { which: Which::Any(which) }),
        1 => (0..2_usize).prop_map(|which| Event::Restart { which }),
        2 => (1..2_000_u64).prop_map(|millis| Event::Wait { millis }),
    ]
}

/// One that was sent: by which agent, in which run, since when that is over.
struct Sent {
    by: usize,
    run: u8,
    datagram: Vec<u8>,
}

proptest! {
    #[test]
    fn each_payload_is_taken_once_at_most_and_none_of_a_run_that_was_over_before(
        events in prop::collection::vec(event(), 1..250),
    ) {
        const NODES: [&str; 2] = [A, B];
        let mut agents = [agent(A, 1), agent(B, 1)];
        let mut runs = [1_u8, 1];
        // When each node's runs began, in steps.
        let mut births = [vec![0], vec![0]];
        let mut now = NOW;
        let mut sent: Vec<Sent> = Vec::new();
        let mut taken = std::collections::BTreeSet::new();
        for (step, event) in events.into_iter().enumerate() {
            match event {
                Event::Say { by } => {
                    let datagram = say(&mut agents[by], &sent.len().to_be_bytes());
                    sent.push(Sent { by, run: runs[by], datagram });
                }
                Event::Deliver { which } => {
                    let Some(Sent { by, run, datagram }) = which.of(&sent) else { continue };
                    let (by, run, to) = (*by, *run, 1 - *by);
                    match open(&mut agents[to], NODES[by], datagram, now) {
                        Opened::Payload { bytes, reply, .. } => {
                            prop_assert!(taken.insert((to, runs[to], bytes)), "taken twice");
                            let over = births[by].get(usize::from(run)).copied().unwrap_or(usize::MAX);
                            let begun = births[to][usize::from(runs[to]) - 1];
                            prop_assert!(over >= begun, "of a run that was over before this one began");
                            sent.extend(reply.map(|datagram| Sent { by: to, run: runs[to], datagram }));
                        }
                        Opened::Reply(datagram) => sent.push(Sent { by: to, run: runs[to], datagram }),
                        Opened::Admitted | Opened::Nothing { .. } => {}
                    }
                }
                Event::Restart { which } => {
                    runs[which] += 1;
                    agents[which] = agent(NODES[which], runs[which]);
                    births[which].push(step);
                }
                Event::Wait { millis } => now += Duration::from_millis(millis),
            }
        }
        // Whatever was done, two datagrams later they understand each other.
        let [a, b] = &mut agents;
        now += Duration::from_secs(2);
        let said = say(a, b"one");
        if let Opened::Reply(challenge) = open(b, A, &said, now) {
            let response = reply(open(a, B, &challenge, now));
            let admitted = open(b, A, &response, now);
            prop_assert!(matches!(admitted, Opened::Reply(_) | Opened::Admitted), "{:?}", admitted);
        }
        let said = say(a, b"two");
        let opened = open(b, A, &said, now);
        prop_assert!(matches!(&opened, Opened::Payload { bytes, .. } if bytes == b"two"), "{:?}", opened);
    }
}
