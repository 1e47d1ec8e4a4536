//! When the kernel of a leader that is gone is silent, by what is known of it.

use super::*;
use crate::{
    election::{role::LatestLeader, takeover_guard::Takeover},
    membership::{AgentInfo, SAMPLE, WireVersions},
};

/// Returns when the deadline has passed of a node that had evidence from then.
fn after(lease: Duration, asked: Duration) -> Duration {
    asked + lease * 102 / 100 + LEASE_MARGIN
}

/// Returns when the VIP of `b` may be taken in a cluster of so many members, by a node that has evidence without a
/// gap since `back`.
fn taken_at(b: Peer, members: usize, back: Duration, fencings: &Fencings) -> Duration {
    let mut peers = Peers { evidence_since: Some(T), majority: true, ..Peers::default() };
    for number in 2..members {
        peers.members.insert(node_name(format!("n{number}")), peer(MemberStatus::Alive, T));
    }
    peers.members.insert(node_name("b"), b);
    let known = LatestLeader { node: node_name("b"), epoch: 4, since: Duration::ZERO, why: Some(Why::First) };
    let mut state = VipState::default();
    state.latest = Some(known);
    let (local, led_at_start, mutated) = (node_name("a"), BTreeSet::new(), Mutated::default());
    let guard = TakeoverGuard {
        local: &local,
        started: Duration::ZERO,
        led_at_start: &led_at_start,
        back,
        steady: back,
        lease: LEASE,
        stores_differ: false,
        fencings,
        mutated,
    };
    match state.takeover(&guard, vip4(1), &peers, Duration::ZERO) {
        Takeover::Later(at) => at,
        other => panic!("{other:?}"),
    }
}

fn at(milliseconds: u64) -> Duration {
    T + ms(milliseconds)
}

/// A peer that was found down 400 ms after [`T`], and of which nothing else is known.
fn down() -> Peer {
    Peer { heard: None, answered: None, ..peer(MemberStatus::Down, at(400)) }
}

#[test]
fn of_few_members_a_majority_says_when_the_leader_had_evidence_last() {
    for (peer, back, evidence) in [
        (Peer { silent: Some(at(420)), heard: Some(at(490)), ..down() }, 470, 420),
        (down(), 0, 500),
        (down(), 470, 570),
        (Peer { silent: Some(at(420)), answered: Some(at(460)), ..down() }, 0, 460),
        // What it answered before it was down says nothing of its own evidence.
        (Peer { silent: Some(at(320)), answered: Some(at(390)), ..down() }, 0, 320),
    ] {
        let taken = taken_at(peer.clone(), SAMPLE, at(back), &Fencings::default());
        assert_eq!(taken, after(LEASE, at(evidence)), "{peer:?}");
    }
}

#[test]
fn of_many_members_the_last_word_of_the_leader_counts() {
    for (peer, back, expected) in [
        (Peer { heard: Some(at(400)), ..down() }, 0, after(LEASE, at(400))),
        (Peer { heard: Some(at(400)), ..down() }, 470, after(LEASE, at(470))),
        (Peer { heard: Some(T), ..down() }, 0, at(500)),
        (Peer { heard: Some(at(400)), answered: Some(at(460)), ..down() }, 0, after(LEASE, at(460))),
    ] {
        assert_eq!(taken_at(peer.clone(), SAMPLE + 1, at(back), &Fencings::default()), expected, "{peer:?}");
    }
}

#[test]
fn a_node_that_was_cut_off_assumes_the_longest_promise_or_a_longer_lease() {
    let mut fencings = Fencings::default();
    fencings.note_cut_off(at(400));
    for lease in [LEASE, Duration::from_secs(5)] {
        let mut peer = Peer { silent: Some(at(420)), ..down() };
        peer.state.agent = Some(AgentInfo { version: "0.1.0".to_owned(), wire: WireVersions::OWN, lease });
        let expected = after(lease, at(420)).max(after(ms(2_000), at(450)));
        assert_eq!(taken_at(peer, 3, at(450), &fencings), expected, "{lease:?}");
    }
}
