//! Tests received payloads and messages.

use std::{collections::BTreeSet, time::Duration};

use foca::State;
use proptest::{prelude::*, sample::Index};
use vipmux_common::abi::Mac;

use super::{
    Network,
    network::{ms, name},
    together,
};
use crate::lease::StoreId;
use crate::membership::{
    AgentInfo, ElectionMessage, HashingInfo, Item, ItemKey, MOST_LEASE, MOST_PAYLOAD, Malformed, MemberStatus,
    Membership, MembershipEvent, MembershipSettings, ProbedPort, TransferStep, Why, WireVersions,
    as_of_a_later_version,
    items::ItemChange,
    local_state::LocalState,
    member_id::MemberId,
    swim::admitted,
    wire::{Ack, Delta, DeltaChange, Gone, Heartbeat, MOST_DEPARTED, Pull, StateVersion, Wire},
};
use vipmux_model::{NodeName, Vip};
use vipmux_testing::names::{node_name, vip};

fn fresh() -> Membership {
    let mut membership = Membership::new(name(0), 1, MembershipSettings::default(), ms(1));
    membership.set_nodes((0..4).map(name).collect(), ms(1));
    membership.take_outbox();
    membership
}

fn longest_name() -> NodeName {
    NodeName::new(["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".")).unwrap()
}

/// One that is long in each part.
fn longest(number: u16) -> Item {
    let [high, low] = number.to_be_bytes();
    let mut address = [255; 16];
    (address[14], address[15]) = (high, low);
    Item::Claim { vip: Vip::new(address.into()), epoch: u64::MAX, why: Some(Why::Silent(longest_name())) }
}

fn some_wires() -> Vec<Wire<'static>> {
    let at = StateVersion { run: u64::MAX, number: 300 };
    let vip = vip("2001:db8::1");
    let probed = ProbedPort { address: "10.0.0.1".parse().unwrap(), port: 80, check: u64::MAX };
    let changes = [
        ItemChange::Set(longest(1)),
        ItemChange::Set(Item::Mac { segment: 3, mac: Mac::new([1, 2, 3, 4, 5, 6]) }),
        ItemChange::Set(Item::Health { probed, up: true }),
        ItemChange::Set(Item::Address(probed.address)),
        ItemChange::Set(Item::Agent(AgentInfo {
            version: "1".repeat(64),
            wire: WireVersions { oldest: 1, newest: u8::MAX },
            lease: MOST_LEASE,
        })),
        ItemChange::Set(Item::Hashing(HashingInfo { newest: 1, used: u32::MAX })),
        ItemChange::Set(Item::Lapsed),
        ItemChange::Set(Item::Store(StoreId(u64::MAX))),
        ItemChange::Gone(ItemKey::Unable(vip)),
    ];
    let changes = changes.map(|change| DeltaChange(Some(change))).to_vec();
    vec![
        Wire::Heartbeat(Heartbeat { asked: 17, generation: 2, known: 3, at }),
        Wire::Ack(Ack { asked: 17, at, disowned: Some(u64::MAX), gone: Vec::new() }),
        Wire::Ack(Ack { asked: 17, at, disowned: None, gone: vec![Gone { node: 1, generation: 2, silent: 3 }; 31] }),
        Wire::Pull(Pull { asked: 17, since: at, begun: 3 }),
        Wire::Delta(Delta { asked: 17, upto: at, since: 296, reset: Some(300), more: false, changes }),
        Wire::Message { asked: 17, message: Some(ElectionMessage { step: TransferStep::Declined, vip, epoch: 3 }) },
        Wire::Left(vec![MemberId { node: u64::MAX, generation: 1 }; MOST_DEPARTED]),
    ]
}

/// Payloads as members send them.
fn real_payloads() -> Vec<Vec<u8>> {
    let mut sender = Membership::new(name(1), 2, MembershipSettings::default(), ms(1));
    sender.set_nodes((0..4).map(name).collect(), ms(1));
    let mut payloads: Vec<_> = some_wires().iter().map(|wire| wire.encode().unwrap()).collect();
    let mut receiver = fresh();
    for (_, payload) in sender.take_outbox() {
        receiver.receive(&name(1), &payload, ms(2)).unwrap();
        payloads.push(payload);
    }
    for (_, payload) in receiver.take_outbox() {
        sender.receive(&name(0), &payload, ms(3)).unwrap();
    }
    for at in (3..1000).step_by(7) {
        sender.turn(ms(at));
        payloads.extend(sender.take_outbox().into_iter().map(|(_, payload)| payload));
    }
    payloads
}

#[test]
fn what_is_sent_is_read_again() {
    for wire in some_wires() {
        let payload = wire.encode().unwrap();
        assert_eq!(Wire::decode(&payload).unwrap(), wire);
    }
}

#[test]
fn a_delta_of_the_longest_items_fits_a_payload_and_moves_on() {
    let mut local_state = LocalState::new(u64::MAX);
    (0..100).for_each(|number| assert!(local_state.publish(longest(number)).unwrap()));
    let mut since = StateVersion { run: u64::MAX, number: 0 };
    let mut seen = BTreeSet::new();
    loop {
        let delta = local_state.page(&Pull { asked: u64::MAX, since, begun: u64::MAX });
        assert!(delta.upto.number > since.number);
        since = delta.upto;
        seen.extend(delta.changes.iter().map(|change| format!("{change:?}")));
        let more = delta.more;
        assert!(Wire::Delta(delta).encode().unwrap().len() <= MOST_PAYLOAD);
        if !more {
            break;
        }
    }
    assert_eq!(seen.len(), 100);
}

#[test]
fn who_is_no_node_or_speaks_for_another_is_refused() {
    let mut membership = fresh();
    let ask = some_wires()[0].encode().unwrap();
    for stranger in [name(4), name(0), node_name("stranger")] {
        assert!(matches!(membership.receive(&stranger, &ask, ms(2)), Err(Malformed::Stranger)));
    }
    let swim =
        real_payloads().into_iter().find(|payload| matches!(Wire::decode(payload), Ok(Wire::Swim { .. }))).unwrap();
    assert!(matches!(membership.receive(&name(2), &swim, ms(2)), Err(Malformed::Misnamed)));
    assert!(membership.receive(&name(1), &swim, ms(2)).is_ok());
}

#[test]
fn of_strangers_and_of_whom_a_minority_holds_for_down_swim_does_not_hear() {
    let identity = |node: usize| MemberId { node: MemberId::key(&name(node)), generation: 1 };
    let header =
        foca::Header { src: identity(1), src_incarnation: 0, dst: identity(0), message: foca::Message::Gossip };
    let members = [(2, State::Alive), (7, State::Alive), (3, State::Down), (8, State::Down)];
    let packet = |members: &[(usize, State)]| {
        let mut buffer = [0; MOST_PAYLOAD];
        let mut packet = postcard::to_slice(&header, &mut buffer).unwrap().to_vec();
        packet.extend_from_slice(&u16::try_from(members.len()).unwrap().to_be_bytes());
        for (node, state) in members {
            let member = foca::Member::new(identity(*node), 3, *state);
            packet.extend_from_slice(postcard::to_slice(&member, &mut buffer).unwrap());
        }
        packet
    };
    let nodes = (0..4).map(|node| (MemberId::key(&name(node)), name(node))).collect();
    let heard = |downs| admitted(&packet(&members), MemberId::key(&name(1)), &nodes, downs).unwrap();
    assert_eq!(heard(true), packet(&[members[0], members[2]]));
    assert_eq!(heard(false), packet(&members[..1]));
}

#[test]
fn what_is_too_long_is_refused() {
    let mut membership = fresh();
    let long = vec![0; MOST_PAYLOAD + 1];
    assert!(matches!(membership.receive(&name(1), &long, ms(2)), Err(Malformed::TooLong(_))));
}

/// Returns the payload of a delta with these changes, each as bytes.
fn delta_of(changes: &[&[u8]]) -> Vec<u8> {
    let at = StateVersion { run: 1, number: 1 };
    let empty = Delta { asked: 1, upto: at, since: 0, reset: None, more: false, changes: Vec::new() };
    let mut payload = Wire::Delta(empty).encode().unwrap();
    // The number of changes is the last byte, and each change begins with its length.
    assert_eq!(payload.pop(), Some(0));
    payload.push(u8::try_from(changes.len()).unwrap());
    for change in changes {
        payload.push(u8::try_from(change.len()).unwrap());
        payload.extend_from_slice(change);
    }
    payload
}

fn changes_in(payload: &[u8]) -> Vec<Option<ItemChange>> {
    match Wire::decode(payload) {
        Ok(Wire::Delta(delta)) => delta.changes.into_iter().map(|change| change.0).collect(),
        other => panic!("{other:?}"),
    }
}

fn bytes_of(item: Item) -> Vec<u8> {
    let mut buffer = [0; MOST_PAYLOAD];
    postcard::to_slice(&ItemChange::Set(item), &mut buffer).unwrap().to_vec()
}

#[test]
fn what_a_later_version_adds_is_skipped_and_the_rest_is_read() {
    let unable = bytes_of(Item::Unable(vip("192.0.2.1")));
    let longer = [&unable[..], b"more"].concat();
    // An item, a key and a kind of change that no build has yet.
    let payload = delta_of(&[&unable, &[0, 99, 1, 2], &[1, 99], &[2], &[], &longer]);
    let read = Some(ItemChange::Set(Item::Unable(vip("192.0.2.1"))));
    let read = [read.clone(), None, None, None, None, read];
    assert_eq!(changes_in(&payload), read);
    assert_eq!(changes_in(&[&payload[..], b"a field"].concat()), read);
    for wire in some_wires() {
        let payload = wire.encode().unwrap();
        assert_eq!(Wire::decode(&[&payload[..], b"a field"].concat()).unwrap(), wire);
        let later = as_of_a_later_version(&payload);
        assert_ne!(later, payload);
        let read = match Wire::decode(&later).unwrap() {
            Wire::Delta(mut delta) => {
                assert_eq!(delta.changes.remove(0), DeltaChange(None));
                Wire::Delta(delta)
            }
            read => read,
        };
        assert_eq!(read, wire);
    }
}

#[test]
fn a_claim_counts_whatever_its_reason() {
    let vip = vip("192.0.2.1");
    let mut claim = bytes_of(Item::Claim { vip, epoch: 7, why: Some(Why::First) });
    assert_eq!(claim.pop(), Some(0));
    claim.push(99);
    let read = ItemChange::Set(Item::Claim { vip, epoch: 7, why: None });
    assert_eq!(changes_in(&delta_of(&[&claim])), [Some(read.clone())]);
    let mut state = crate::membership::State::default();
    assert_eq!(state.apply(read, ms(1)), Ok(()));
    assert_eq!(state.claims[&vip].why, Why::Other);
}

#[test]
fn a_message_of_a_later_version_changes_nothing() {
    let mut membership = together(2, 40).take(0);
    let message = Wire::Message { asked: 17, message: None }.encode().unwrap();
    let later = [&message[..message.len() - 1], &[2, 99, 1]].concat();
    let before = membership.peers().clone();
    let now = before.members[&name(1)].heard.unwrap();
    membership.take_events(now);
    for payload in [message, later] {
        membership.receive(&name(1), &payload, now).unwrap();
        assert_eq!((membership.take_events(now), membership.peers()), (Vec::new(), &before));
    }
}

#[test]
fn nodes_of_two_versions_are_one_cluster() {
    let mut network = Network::new(4, 42);
    network.later = BTreeSet::from([1, 3]);
    for node in 0..4 {
        let info = AgentInfo { version: format!("0.{node}.0"), wire: WireVersions::OWN, lease: ms(300) };
        network.act(node, |membership, now| membership.publish(Item::Agent(info), now)).unwrap().unwrap();
    }
    network.run(ms(2_000));
    for node in 0..4 {
        let peers = network.of(node).peers();
        assert_eq!(peers.members.len(), 3);
        for peer in peers.members.values() {
            assert_eq!(peer.status, MemberStatus::Alive);
            assert_eq!(peer.state.agent.as_ref().unwrap().lease, ms(300));
        }
        assert!(peers.evidence_since.is_some());
    }
}

#[test]
fn items_out_of_bounds_are_skipped() {
    let delta = |item| delta_of(&[&bytes_of(item)]);
    let vip = vip("192.0.2.1");
    // No such name can be made here, so it takes the place of a good one in the payload: a string
    // after its length.
    let good = delta(Item::Claim { vip, epoch: 1, why: Some(Why::Down(node_name("good"))) });
    let at = good.windows(5).position(|window| window == b"\x04good").unwrap();
    for bad in ["", "A", "../x", &"a".repeat(254)] {
        let mut buffer = [0; 10];
        let length = postcard::to_slice(&bad.len(), &mut buffer).unwrap();
        let payload = [&good[..at], length, bad.as_bytes(), &good[at + 5..]].concat();
        let read = matches!(Wire::decode(&payload), Ok(Wire::Delta(delta))
            if matches!(delta.changes[..], [DeltaChange(Some(ItemChange::Set(Item::Claim { why: Some(Why::Down(_)), .. })))]));
        assert!(!read, "{bad}");
    }
    assert_eq!(changes_in(&delta(Item::Mac { segment: 32, mac: Mac::default() })), [None]);
    for version in ["a".repeat(65), "a b".to_owned(), "\u{1b}[0m".to_owned()] {
        let info = AgentInfo { version, wire: WireVersions::OWN, lease: ms(300) };
        assert_eq!(changes_in(&delta(Item::Agent(info))), [None]);
    }
    let info = AgentInfo { version: "1".to_owned(), wire: WireVersions::OWN, lease: MOST_LEASE + ms(1) };
    assert_eq!(changes_in(&delta(Item::Agent(info))), [None]);
}

#[test]
fn answers_to_what_was_never_asked_are_no_evidence() {
    let mut network = together(2, 40);
    let mut membership = network.take(0);
    let now = network.now;
    membership.discard_evidence(now);
    let at = StateVersion::default();
    for asked in [now + ms(1), now.saturating_sub(ms(1)), ms(0), Duration::from_nanos(u64::MAX)] {
        let asked = u64::try_from(asked.as_nanos()).unwrap();
        let answer = Wire::Ack(Ack { asked, at, disowned: None, gone: Vec::new() }).encode().unwrap();
        membership.receive(&name(1), &answer, now).unwrap();
        assert_eq!(membership.peers().evidence_since, None);
    }
}

#[test]
fn who_asks_is_alive() {
    let mut membership = fresh();
    membership.receive(&name(1), &some_wires()[0].encode().unwrap(), ms(2)).unwrap();
    let peer = &membership.peers().members[&name(1)];
    assert_eq!((peer.status, peer.generation, peer.heard), (MemberStatus::Alive, 2, Some(ms(2))));
    let answered = membership.take_outbox().into_iter().any(|(to, payload)| {
        let answer = matches!(Wire::decode(&payload), Ok(Wire::Ack(Ack { asked: 17, disowned: None, .. })));
        answer && to == name(1)
    });
    assert!(answered);
}

/// Returns the departed nodes that node 1 learns of, after a heartbeat with this number of members.
fn told_departed(membership: &mut Membership, known: u64, now: Duration) -> Vec<MemberId> {
    membership.take_outbox();
    let ask = Wire::Heartbeat(Heartbeat { asked: 17, generation: 1, known, at: StateVersion::default() });
    membership.receive(&name(1), &ask.encode().unwrap(), now).unwrap();
    let departed = |(to, payload): (NodeName, Vec<u8>)| match Wire::decode(&payload) {
        Ok(Wire::Left(departed)) if to == name(1) => departed,
        _ => Vec::new(),
    };
    membership.take_outbox().into_iter().flat_map(departed).collect()
}

fn departed(node: usize, generation: u64) -> MemberId {
    MemberId { node: MemberId::key(&name(node)), generation }
}

#[test]
fn who_left_is_passed_on_to_who_knows_more_members_and_not_to_others_nor_often() {
    let mut membership = fresh();
    for node in 1..4 {
        let ask = some_wires()[0].encode().unwrap();
        membership.receive(&name(node), &ask, ms(2)).unwrap();
    }
    let farewell = Wire::Left(vec![departed(2, 2)]).encode().unwrap();
    membership.receive(&name(2), &farewell, ms(3)).unwrap();
    assert_eq!(membership.peers().members[&name(2)].status, MemberStatus::Left);
    assert_eq!(told_departed(&mut membership, 2, ms(4)), [], "it knows no more");
    assert_eq!(told_departed(&mut membership, 3, ms(5)), [departed(2, 2)]);
    assert_eq!(told_departed(&mut membership, 3, ms(500)), [], "it was just told");
    assert_eq!(told_departed(&mut membership, 3, ms(1005)), [departed(2, 2)]);
    // It is there again, with the next generation, of which nobody said anything.
    let ask = Wire::Heartbeat(Heartbeat { asked: 17, generation: 3, known: 3, at: StateVersion::default() });
    membership.receive(&name(2), &ask.encode().unwrap(), ms(1500)).unwrap();
    assert_eq!(told_departed(&mut membership, 9, ms(2500)), []);
    membership.receive(&name(1), &farewell, ms(2501)).unwrap();
    assert_eq!(membership.peers().members[&name(2)].status, MemberStatus::Alive);
}

#[test]
fn an_answer_is_given_also_where_more_have_left_than_fit_it() {
    let mut membership = Membership::new(name(0), 1, MembershipSettings::default(), ms(1));
    membership.set_nodes((0..200).map(name).collect(), ms(1));
    let ask = some_wires()[0].encode().unwrap();
    for node in 1..200 {
        membership.receive(&name(node), &ask, ms(2)).unwrap();
    }
    for node in 2..200 {
        let farewell = Wire::Left(vec![departed(node, 2)]).encode().unwrap();
        membership.receive(&name(node), &farewell, ms(3000)).unwrap();
    }
    membership.take_outbox();
    membership.receive(&name(1), &ask, ms(3001)).unwrap();
    let answer = |(_, payload): &(NodeName, Vec<u8>)| matches!(Wire::decode(payload), Ok(Wire::Ack(_)));
    assert!(membership.take_outbox().iter().any(answer));
}

#[test]
fn who_was_never_there_and_is_down_is_not_passed_on_as_gone() {
    let mut membership = fresh();
    let ask = some_wires()[0].encode().unwrap();
    membership.receive(&name(1), &ask, ms(2)).unwrap();
    let header = foca::Header {
        src: MemberId { node: MemberId::key(&name(1)), generation: 2 },
        src_incarnation: 0,
        dst: MemberId { node: MemberId::key(&name(0)), generation: 1 },
        message: foca::Message::Gossip,
    };
    let mut buffer = [0; MOST_PAYLOAD];
    let mut packet = postcard::to_slice(&header, &mut buffer).unwrap().to_vec();
    packet.extend_from_slice(&1_u16.to_be_bytes());
    for state in [State::Alive, State::Down] {
        let mut packet = packet.clone();
        let member = foca::Member::new(MemberId { node: MemberId::key(&name(2)), generation: 1 }, 0, state);
        packet.extend_from_slice(postcard::to_slice(&member, &mut buffer).unwrap());
        let wire = Wire::Swim { majority: true, packet: &packet };
        membership.receive(&name(1), &wire.encode().unwrap(), ms(3)).unwrap();
    }
    assert_eq!(membership.peers().members[&name(2)].status, MemberStatus::Down);
    assert_eq!(told_departed(&mut membership, 9, ms(4)), []);
}

#[test]
fn only_who_is_held_for_down_as_it_is_now_takes_another_generation() {
    for (held, generation) in [(0, 1), (1, 2), (5, 6)] {
        let mut membership = fresh();
        membership.receive(&name(1), &some_wires()[0].encode().unwrap(), ms(2)).unwrap();
        membership.take_events(ms(2));
        let at = StateVersion::default();
        let answer = Wire::Ack(Ack { asked: 2_000_000, at, disowned: Some(held), gone: Vec::new() }).encode().unwrap();
        membership.receive(&name(1), &answer, ms(2)).unwrap();
        assert_eq!(membership.take_events(ms(2)).contains(&MembershipEvent::Disowned), generation > 1);
        assert_eq!(membership.peers().evidence_since, None, "it is no evidence in any case");
        membership.take_outbox();
        membership.send_heartbeats(ms(3));
        let (_, ask) = &membership.take_outbox()[0];
        assert!(matches!(Wire::decode(ask), Ok(Wire::Heartbeat(ask)) if ask.generation == generation));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_harmless(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
        let mut membership = fresh();
        for payload in payloads {
            let _ = membership.receive(&name(1), &payload, ms(2));
            membership.turn(ms(3));
        }
        prop_assert!(membership.peers().members.len() <= 3);
    }

    #[test]
    fn good_payloads_gone_bad_are_harmless(
        picks in prop::collection::vec((any::<Index>(), any::<Index>(), any::<u8>(), 0..4_u8), 1..60),
    ) {
        let payloads = real_payloads();
        let mut network = Network::new(4, 41);
        network.run(ms(300));
        let mut membership = network.take(0);
        let mut now = network.now;
        for (payload, at, byte, how) in picks {
            let mut payload = payload.get(&payloads).clone();
            let at = at.index(payload.len());
            match how {
                0 => payload[at] = byte,
                1 => payload.truncate(at),
                2 => payload.insert(at, byte),
                _ => payload[at] ^= 1 << (byte % 8),
            }
            let _ = membership.receive(&name(usize::from(byte % 3) + 1), &payload, now);
            now += ms(u64::from(byte));
            membership.turn(now);
            membership.send_heartbeats(now);
            for (_, payload) in membership.take_outbox() {
                prop_assert!(payload.len() <= MOST_PAYLOAD);
                prop_assert!(Wire::decode(&payload).is_ok());
            }
            membership.take_events(now);
        }
        prop_assert!(membership.peers().members.len() <= 3);
        prop_assert!(membership.peers().evidence_since.is_none_or(|evidence| evidence <= now));
    }
}
