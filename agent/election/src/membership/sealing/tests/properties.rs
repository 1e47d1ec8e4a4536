//! Properties of sealed datagrams that are recorded, repeated or made up.

use proptest::prelude::*;

use super::*;

/// Seals a plaintext for `b` that no agent would.
fn seal_anything(session: SessionId, counter: u64, plaintext: &[u8]) -> Vec<u8> {
    let keys = keys(&[1]);
    let header = Header { key: keys.sealing().id(), session, counter };
    let sealed = keys.sealing().seal(&header.nonce(), plaintext, &header.bound_to(&node_name(B))).unwrap();
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

/// An event on a LAN where an attacker records everything, delivers or drops any datagram, and
/// repeats it.
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
