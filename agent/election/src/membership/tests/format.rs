//! The bytes of payloads, as agents of released versions send and read them.

use std::time::Duration;

use vipmux_common::abi::Mac;
use vipmux_model::reach::SegmentReach;
use vipmux_testing::names::{node_name, vip};

use crate::{
    lease::StoreId,
    membership::{
        AgentInfo, ElectionMessage, HashingInfo, Item, ItemKey, ProbedPort, TransferStep, Why, WireVersions,
        items::ItemChange,
        member_id::MemberId,
        wire::{Ack, Delta, DeltaChange, Gone, Heartbeat, Pull, StateVersion, Wire},
    },
};

/// Other bytes would need another version of gossip: agents of both versions live together in an upgrade.
#[test]
fn payloads_have_the_bytes_that_released_versions_read() {
    let at = StateVersion { run: 300, number: 2 };
    let (vip, address) = (vip("192.0.2.1"), "10.0.0.1".parse().unwrap());
    let wires: &[(Wire<'_>, &[u8])] = &[
        (Wire::Swim { majority: true, packet: &[7, 8] }, &[0, 1, 2, 7, 8]),
        (Wire::Heartbeat(Heartbeat { asked: 17, generation: 1, known: 3, at }), &[1, 17, 1, 3, 172, 2, 2]),
        (
            Wire::Ack(Ack { asked: 17, at, disowned: Some(4), gone: vec![Gone { node: 5, generation: 6, silent: 7 }] }),
            &[2, 17, 172, 2, 2, 1, 4, 1, 5, 6, 7],
        ),
        (Wire::Pull(Pull { asked: 17, since: at, begun: 1 }), &[3, 17, 172, 2, 2, 1]),
        (
            Wire::Delta(Delta { asked: 17, upto: at, since: 1, reset: Some(2), more: true, changes: Vec::new() }),
            &[4, 17, 172, 2, 2, 1, 1, 2, 1, 0],
        ),
        (
            Wire::Message { asked: 17, message: Some(ElectionMessage { step: TransferStep::Take, vip, epoch: 200 }) },
            &[5, 17, 8, 0, 0, 192, 0, 2, 1, 200, 1],
        ),
        (
            Wire::Message { asked: 17, message: Some(ElectionMessage { step: TransferStep::Taken, vip, epoch: 200 }) },
            &[5, 17, 8, 1, 0, 192, 0, 2, 1, 200, 1],
        ),
        (
            Wire::Message {
                asked: 17,
                message: Some(ElectionMessage { step: TransferStep::Declined, vip, epoch: 200 }),
            },
            &[5, 17, 8, 2, 0, 192, 0, 2, 1, 200, 1],
        ),
        (Wire::Left(vec![MemberId { node: 300, generation: 2 }]), &[6, 1, 172, 2, 2]),
    ];
    for (wire, bytes) in wires {
        assert_eq!(wire.encode().unwrap(), *bytes, "{wire:?}");
    }
    let probed = ProbedPort { address, port: 80, check: 1 };
    let wire = WireVersions { oldest: 1, newest: 2 };
    let changes: &[(ItemChange, &[u8])] = &[
        (ItemChange::Set(Item::Ready(true)), &[3, 0, 0, 1]),
        (ItemChange::Set(Item::Draining(true)), &[3, 0, 1, 1]),
        (
            ItemChange::Set(Item::Claim { vip, epoch: 1, why: Some(Why::Down(node_name("b"))) }),
            &[12, 0, 2, 0, 192, 0, 2, 1, 1, 3, 2, 1, 98],
        ),
        (ItemChange::Set(Item::Unable(vip)), &[7, 0, 3, 0, 192, 0, 2, 1]),
        (ItemChange::Set(Item::Mac { segment: 3, mac: Mac::new([1, 2, 3, 4, 5, 6]) }), &[9, 0, 4, 3, 1, 2, 3, 4, 5, 6]),
        (ItemChange::Set(Item::Health { probed, up: true }), &[10, 0, 5, 0, 10, 0, 0, 1, 80, 1, 1]),
        (ItemChange::Set(Item::Address(address)), &[7, 0, 6, 0, 10, 0, 0, 1]),
        (
            ItemChange::Set(Item::Agent(AgentInfo {
                version: "1".to_owned(),
                wire,
                lease: Duration::from_millis(300),
            })),
            &[12, 0, 7, 1, 49, 1, 2, 0, 128, 198, 134, 143, 1],
        ),
        (ItemChange::Set(Item::Reach { address, reach: SegmentReach::Heard }), &[8, 0, 8, 0, 10, 0, 0, 1, 1]),
        (ItemChange::Set(Item::Hashing(HashingInfo { newest: 1, used: 0 })), &[4, 0, 9, 1, 0]),
        (ItemChange::Set(Item::Lapsed), &[2, 0, 10]),
        (ItemChange::Set(Item::Store(StoreId(1))), &[3, 0, 11, 1]),
        (ItemChange::Gone(ItemKey::Store), &[2, 1, 11]),
    ];
    for (change, bytes) in changes {
        let change = DeltaChange(Some(change.clone()));
        let mut buffer = [0; 64];
        assert_eq!(postcard::to_slice(&change, &mut buffer).unwrap(), *bytes, "{change:?}");
    }
}
