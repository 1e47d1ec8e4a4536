//! Handing over what another should lead, giving up what no node should, and taking what is handed
//! over.

use super::*;

#[test]
fn a_handover_ends_before_it_begins_elsewhere() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.said();
    bench.later(ms(10)).give(Input::Drain(true));
    assert_eq!(bench.said(), ["publish Draining(true)", "follow: handed over to b", "b: take 2"]);
    bench.later(ms(50)).give(Input::Peers);
    assert_eq!(bench.said(), ["b: take 2"], "it may have been lost");
    bench.give(told("c", TransferStep::Taken, 2));
    assert_eq!(bench.role(), Role::Handing, "that is another's word");
    bench.give(told("b", TransferStep::Taken, 1));
    assert_eq!(bench.role(), Role::Handing, "that is of another epoch");
    bench.give(told("b", TransferStep::Taken, 2));
    assert_eq!(bench.said(), ["withdraw"]);
    assert_eq!(bench.leader(), Some("b"));
}

/// Another node may lead it by then.
#[test]
fn a_node_that_may_not_answer_hands_nothing_over() {
    for beats in [0, 1] {
        let mut bench = Bench::leading();
        bench.want(&["a", "b"]);
        bench.said();
        if beats > 0 {
            // The deadline passes meanwhile.
            bench.later(LEASE.saturating_sub(ms(40))).give(Input::Drain(true));
            assert_eq!(bench.said(), ["publish Draining(true)", "follow: handed over to b", "b: take 2"]);
            bench.later(ms(30)).give(Input::Peers);
        } else {
            bench.later(LEASE).give(Input::Drain(true));
            assert_eq!(bench.said(), ["publish Draining(true)"]);
            bench.later(ms(30)).give(Input::Peers);
        }
        assert_eq!(bench.said(), [""; 0]);
    }
}

#[test]
fn what_is_declined_is_kept() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    bench.said();
    bench.give(told("b", TransferStep::Declined, 2));
    assert_eq!(bench.said(), ["lead 1: nobody led it before", "read"]);
    bench.give(read(Some(lease("a", 1, "v1"))));
    bench.ticks(50);
    assert_eq!(bench.said(), [""; 0], "and it is not tried again at once");
}

#[test]
fn what_is_not_answered_is_kept_for_longer_each_time() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    for kept in [10, 20, 40, 80, 100, 100] {
        assert_eq!(bench.role(), Role::Handing);
        bench.said();
        bench.ticks(4);
        assert_eq!(bench.said().last().map(String::as_str), Some("lead 1: nobody led it before"));
        bench.ticks(kept - 1);
        assert_eq!(bench.said(), [""; 0], "not before {kept} heartbeats");
        bench.ticks(1);
    }
}

/// It has the Lease by a swap whose result it did not get, and the leader was not away, so that
/// neither would look again.
#[test]
fn who_declines_because_it_has_the_lease_is_given_way_to() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    bench.give(told("b", TransferStep::Declined, 2));
    bench.said();
    bench.give(read(Some(lease("b", 2, "v2"))));
    assert_eq!(bench.said(), ["follow: b took it", "withdraw"]);
    assert_eq!((bench.role(), bench.leader()), (Role::Following, Some("b")));
}

#[test]
fn an_heir_is_told_nothing_that_it_could_take_up_when_this_node_answers_again() {
    let lasts = unanswered([LEASE, LEASE], |said, since| {
        assert!(said.is_empty() || since + membership::MembershipSettings::default().fresh < LEASE, "{said:?}");
    });
    assert!(lasts > LEASE);
}

/// It may have died before it could say that it leads. It was asked for 60 ms.
#[test]
fn a_successor_that_does_not_answer_has_the_time_of_its_deadline() {
    for lease in [LEASE, LEASE * 4] {
        let lasts = unanswered([lease, lease], |_, _| {});
        assert!(lasts > ms(60) + lease && lasts < ms(100) + lease * 51 / 50, "{lasts:?} with a lease of {lease:?}");
    }
}

#[test]
fn a_successor_whose_record_promised_more_has_that_time() {
    let mut bench = Bench::leading();
    let content = RecordContent { state: RecordState::Confirmed, promise: ms(2_000) };
    let long = NodeRecord { content, version: version("r1") };
    bench.give(recorded("b", bench.now, RecordOutcome::Read(Some(long))));
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    let stopped = bench.now;
    while !bench.said().iter().any(|said| said.starts_with("lead")) {
        bench.ticks(1);
    }
    assert!(bench.now > stopped + ms(2_000), "{:?}", bench.now.saturating_sub(stopped));
}

/// Its kernel answers as long as the agent has said that took the VIP, until the next agent says otherwise: for the
/// lease of that one.
#[test]
fn a_successor_that_comes_back_with_another_lease_has_the_time_of_the_longer_one() {
    for leases in [[LEASE * 4, LEASE], [LEASE, LEASE * 4]] {
        let lasts = unanswered(leases, |_, _| {});
        assert!(lasts > ms(60) + LEASE * 4, "{lasts:?} with leases of {leases:?}");
    }
}

/// Transfers a VIP to `b`, which gives no answer. It has the first lease, and after 100 ms the second one. Returns the
/// time until this node leads again.
fn unanswered(leases: [Duration; 2], check: impl Fn(Vec<String>, Duration)) -> Duration {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    let wire = membership::WireVersions::OWN;
    let agent = |lease| Some(membership::AgentInfo { version: "0".to_owned(), wire, lease });
    bench.peer("b").state.agent = agent(leases[0]);
    bench.later(ms(10)).give(Input::Drain(true));
    bench.said();
    let stopped = bench.now;
    loop {
        bench.later(ms(1)).give(Input::Peers);
        let (said, since) = (bench.said(), bench.now.saturating_sub(stopped));
        if said.iter().any(|said| said.starts_with("lead")) {
            return since;
        }
        check(said, since);
        if since.as_millis().is_multiple_of(100) {
            bench.peer("b").state.agent = agent(leases[1]);
            bench.tick().said();
        }
    }
}

#[test]
fn what_is_handed_over_is_taken_by_who_can() {
    let take = |epoch| told("b", TransferStep::Take, epoch);
    let mut bench = Bench::following();
    bench.give(take(5));
    assert_eq!(bench.said(), ["claim 5", "lead 5: b handed it over", "b: taken 5"]);
    bench.give(take(5));
    assert_eq!(bench.said(), ["b: taken 5"], "told twice");
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"], "it is to be written down");
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["swap v4 for 5"]);
    bench.give(swapped("v5"));
    assert!(bench.election.states[&vip4(1)].own().is_some_and(|own| own.written.is_some()));

    let mut stale = Bench::following();
    assert_eq!(
        stale.give(take(4)).said(),
        ["b: taken 4"],
        "an old word: it was taken since, and b must not lead it again"
    );
    let mut handing = Bench::following();
    handing.give(take(5));
    handing.want(&["a", "c"]);
    handing.later(ms(10)).give(Input::Drain(true));
    assert_eq!(handing.role(), Role::Handing);
    handing.said();
    assert_eq!(handing.give(take(5)).said(), ["b: taken 5"], "heard twice, and on its way to c by now");
    let mut unable = Bench::following();
    unable.give(Input::Unable([vip4(1)].into()));
    unable.said();
    assert_eq!(unable.give(take(5)).said(), ["b: declined 5"]);
    let mut barred = Bench::following();
    barred.want(&["b", "c"]);
    barred.said();
    assert_eq!(barred.give(take(5)).said(), ["b: declined 5"], "b has not read yet that it is no candidate");
    let mut fenced = Bench::following();
    fenced.later(LEASE * 2);
    assert_eq!(fenced.give(take(5)).said(), ["b: declined 5"]);
    let mut draining = Bench::following();
    draining.give(Input::Drain(true)).said();
    assert_eq!(draining.give(take(5)).said(), ["b: declined 5"]);
    let past_all = Lease::MAX_EPOCH + 1;
    assert_eq!(Bench::following().give(take(past_all)).said(), [format!("b: declined {past_all}")]);
}

/// The old leader went on, since it heard nothing, and transfers the VIP again.
#[test]
fn an_epoch_of_this_nodes_own_that_it_gave_up_unwritten_is_taken_again() {
    let mut bench = Bench::following();
    bench.give(told("b", TransferStep::Take, 5));
    assert_eq!(bench.role(), Role::Leading);
    let now = bench.now;
    bench.election.give_up(vip4(1), Lost::Taken(node_name("b")), now);
    bench.later(ms(10)).give(Input::Peers).said();
    assert_eq!(
        bench.give(told("b", TransferStep::Take, 5)).said(),
        ["claim 5", "lead 5: b handed it over", "b: taken 5"]
    );
}

#[test]
fn a_transfer_is_written_down_at_once_whatever_this_node_waited_for() {
    let mut bench = Bench::following();
    bench.peers.members.remove(&node_name("c"));
    bench.falls("b", MemberStatus::Down);
    bench.peers.majority = false;
    bench.ticks(1).fence("b").give(read(Some(lease("b", 4, "v4")))).give(probed(AddressOwner::Peer));
    bench.falls("b", MemberStatus::Alive);
    bench.peers.majority = true;
    bench.said();
    bench.give(told("b", TransferStep::Take, 5));
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["claim 5", "lead 5: b handed it over", "b: taken 5", "read"]);
}

/// The node was cut off before it had written the Lease. The leader heard no answer.
#[test]
fn a_transfer_is_not_resumed_before_the_old_leader_is_known_to_have_given_way() {
    let mut bench = Bench::following();
    bench.give(told("b", TransferStep::Take, 5));
    bench.later(LEASE).give(Input::Tick { carrier: true });
    bench.want(&["a", "b", "c"]);
    bench.ticks(5);
    assert!(bench.said().ends_with(&["read".to_owned()]));
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.role(), Role::Suspended);
    bench.ticks(2);
    assert_eq!(bench.said(), ["read"], "b may lead it again");
    bench.peer("b").state.claims.clear();
    let now = bench.now;
    bench.peer("b").current = Some(now);
    bench.give(read(Some(lease("b", 4, "v4")))).give(swapped("v5"));
    assert_eq!(bench.said(), ["swap v4 for 5", "lead 5: b handed it over"]);
}

#[test]
fn a_transfer_is_not_resumed_from_a_leader_that_is_down_before_its_kernel_is_silent() {
    let mut bench = Bench::following();
    bench.give(told("b", TransferStep::Take, 5));
    bench.later(LEASE).give(Input::Tick { carrier: true });
    bench.want(&["a", "b"]);
    let now = bench.ticks(5).now;
    assert!(bench.said().ends_with(&["read".to_owned()]));
    bench.peer("b").heard = Some(now);
    bench.falls("b", MemberStatus::Down);
    bench.give(read(Some(lease("b", 4, "v4")))).ticks(2);
    assert_eq!(bench.said(), ["withdraw"]);
    bench.knows_b().ticks(2).give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["read", "swap v4 for 6"]);
}

#[test]
fn the_answer_to_another_transfer_changes_nothing() {
    for (from, epoch, lapses) in [("c", 2, false), ("b", 1, false), ("b", 3, false), ("b", 2, true)] {
        for step in [TransferStep::Taken, TransferStep::Declined] {
            let mut bench = Bench::leading();
            bench.want(&["a", "b"]);
            bench.later(ms(10)).give(Input::Drain(true));
            if lapses {
                bench.later(LEASE).give(Input::Tick { carrier: true });
                bench.want(&["a", "b"]);
                bench.ticks(1);
            }
            let role = if lapses { Role::Suspended } else { Role::Handing };
            assert_eq!(bench.role(), role);
            assert_eq!(bench.give(told(from, step, epoch)).role(), role, "{step:?} of {from}");
        }
    }
}

#[test]
fn what_was_declined_is_not_taken_up_when_it_is_heard_again_late() {
    let take = |epoch| told("b", TransferStep::Take, epoch);
    let mut bench = Bench::following();
    bench.give(Input::Unable([vip4(1)].into())).give(take(5)).give(Input::Unable([].into()));
    bench.said();
    assert_eq!(bench.later(ms(60)).give(take(5)).said(), ["b: declined 5"], "b leads again by now");
    bench.ticks(100).said();
    assert_eq!(bench.give(take(5)).said()[2], "b: taken 5", "b asks again");
}

#[test]
fn what_was_declined_is_made_sure_of_after_a_lapse_all_the_same() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    bench.give(told("b", TransferStep::Declined, 2));
    bench.give(read(Some(lease("a", 1, "v1"))));
    assert_eq!(bench.role(), Role::Leading);
    bench.later(LEASE).give(Input::Tick { carrier: true });
    bench.want(&["a", "b"]);
    bench.said();
    bench.ticks(1).later(ms(10)).give(Input::Peers);
    assert!(bench.said().contains(&"read".to_owned()));
}

#[test]
fn a_vip_that_cannot_be_announced_here_goes_to_a_node_where_it_can() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b", "c"]);
    bench.peer("b").state.unable.insert(vip4(1));
    bench.later(ms(10)).give(Input::Unable([vip4(1)].into()));
    bench.later(ms(10)).give(Input::Peers);
    let said = bench.said();
    assert!(said.contains(&"c: take 2".to_owned()), "{said:?}");
}

/// The interfaces of both VIP segments lost their carriers. Gossip goes on elsewhere.
#[test]
fn who_cannot_answer_any_more_gives_a_vip_up_as_soon_as_another_node_can_announce_it() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.peer("b").state.unable.insert(vip4(1));
    bench.later(ms(10)).give(Input::Unable([vip4(1)].into()));
    let tick = |bench: &mut Bench| {
        bench.later(ms(100)).give(Input::Tick { carrier: false });
        bench.peers.evidence_since = Some(bench.now);
        bench.give(Input::Peers);
    };
    (0..15).for_each(|_| tick(&mut bench));
    assert!(bench.election.leads(vip4(1)), "nobody else can");
    bench.said();
    bench.peer("b").state.unable.clear();
    tick(&mut bench);
    assert_eq!(bench.said(), ["follow: this node cannot announce it, and another one can", "withdraw"]);
    tick(&mut bench);
    assert_eq!(bench.said(), [""; 0], "it does not come back");
}

#[test]
fn who_cannot_answer_any_more_keeps_a_vip_that_no_other_node_would_take_or_for_a_moment() {
    let alive = MemberStatus::Alive;
    for (beats, is_heard, unable, other, goes) in [
        (15, true, true, alive, true),
        (10, true, true, alive, false),
        (15, false, true, alive, false),
        (15, true, false, alive, false),
        (15, true, true, MemberStatus::Down, false),
    ] {
        let mut bench = Bench::leading();
        bench.want(&["a", "b"]);
        bench.peer("b").state.unable.insert(vip4(1));
        bench.later(ms(10)).give(Input::Unable(unable.then(|| vip4(1)).into_iter().collect()));
        for _ in 0..beats {
            bench.later(HEARTBEAT).give(Input::Tick { carrier: false });
        }
        bench.peer("b").state.unable.clear();
        bench.falls("b", other);
        bench.peers.evidence_since = bench.now.checked_sub(if is_heard { ms(10) } else { LEASE });
        bench.give(Input::Peers);
        let case = format!("{beats} beats, heard: {is_heard}, unable: {unable}, the other one is {other:?}");
        assert_eq!(bench.role() == Role::Following, goes, "{case}");
    }
}

#[test]
fn a_node_that_is_drained_hands_over_to_a_lower_score() {
    let mut bench = Bench::leading();
    let candidates: Candidates = [Candidate { score: 100, ..candidate("a") }, candidate("b")].into_iter().collect();
    bench.later(ms(10)).give(Input::Wanted(Arc::new([(vip4(1), candidates)].into())));
    bench.ticks(1).give(Input::Drain(true)).ticks(1);
    assert_eq!(bench.role(), Role::Handing);
}

#[test]
fn a_node_that_is_cordoned_or_excluded_hands_over_and_leads_where_no_other_may() {
    for (excluded, cordoned) in [(true, false), (false, true)] {
        let mut bench = Bench::leading();
        let mine = Candidate { excluded, cordoned, ..candidate("a") };
        let alone: Candidates = [mine.clone()].into_iter().collect();
        bench.later(ms(10)).give(Input::Wanted(Arc::new([(vip4(1), alone)].into())));
        bench.ticks(2);
        assert!(bench.election.leads(vip4(1)), "there is no other");
        let both = [mine, candidate("b")];
        bench.later(ms(10)).give(Input::Wanted(Arc::new([(vip4(1), both.into_iter().collect())].into())));
        bench.ticks(1);
        assert_eq!(bench.role(), Role::Handing);
    }
}

#[test]
fn a_vip_that_nobody_may_announce_any_more_is_given_up() {
    for others in [&[][..], &["d"]] {
        let mut bench = Bench::leading();
        bench.later(ms(10)).want(others);
        bench.ticks(25);
        assert_eq!(bench.role() == Role::Leading, !others.is_empty(), "one that is not there might still come");
        bench.ticks(15);
        assert_eq!(bench.said(), ["follow: this node may not announce it any more", "withdraw"]);
        bench.ticks(10);
        assert_eq!(bench.role(), Role::Following);
        assert_eq!(bench.said(), [""; 0]);
    }
}

#[test]
fn a_vip_that_is_gone_is_given_up_and_its_lease_removed_in_an_hour_by_the_first_living_node() {
    for (first, expected) in
        [(None, &["delete v1"][..]), (Some(MemberStatus::Alive), &[]), (Some(MemberStatus::Down), &["delete v1"])]
    {
        let mut bench = Bench::leading();
        if let Some(status) = first {
            bench.peers.members.insert(node_name("0"), peer(status, T));
        }
        bench.give(Input::Wanted(Arc::default()));
        assert_eq!(bench.said(), ["follow: no Service has it any more", "withdraw"]);
        bench.later(LEASE_RETENTION.saturating_sub(ms(200)));
        bench.election.fence.deadline = None;
        bench.tick();
        assert_eq!(bench.said(), [""; 0]);
        bench.ticks(3);
        assert_eq!(bench.said(), expected, "{first:?}");
    }
}

/// The earlier agent took the VIP and died before it could say so. The kernel answers.
#[test]
fn a_vip_that_the_kernel_may_still_answer_for_is_not_declined() {
    let take = || told("b", TransferStep::Take, 3);
    for (informed, wait, declines) in [(false, ms(10), false), (true, ms(10), true), (false, LEASE, true)] {
        let mut bench = Bench::new(ElectionSettings::default());
        let settings = bench.election.settings;
        bench.election = Election::new(node_name("a"), settings, bench.now).resuming([vip4(1)].into());
        if informed {
            bench.want(&["a", "b"]);
        }
        bench.said();
        assert_eq!(bench.later(wait).give(take()).said() == ["b: declined 3"], declines, "{informed}, {wait:?}");
    }
}

/// An agent that has just started hears of a VIP before it has read the Services.
#[test]
fn a_vip_that_was_declined_before_it_was_wanted_is_not_taken_by_a_copy_of_the_message() {
    let take = |epoch| told("b", TransferStep::Take, epoch);
    let declines = |bench: &mut Bench| bench.said().contains(&"b: declined 3".to_owned());
    let mut bench = Bench::ready();
    bench.give(Input::Wanted(Arc::default())).give(take(3));
    assert!(declines(&mut bench));
    bench.want(&["a", "b"]);
    bench.give(take(3));
    assert!(declines(&mut bench), "the leader leads again since it was declined");
    assert_ne!(bench.role(), Role::Leading);
    bench.give(take(4));
    assert_eq!(bench.role(), Role::Leading, "a later attempt has another epoch, or comes later");
}

#[test]
fn vips_that_are_declined_before_they_are_wanted_are_noted_up_to_a_bound_and_for_a_while() {
    let mut bench = Bench::ready();
    bench.give(Input::Wanted(Arc::default())).said();
    let declines = |bench: &mut Bench, number: u32| {
        let vip = Vip::new(std::net::Ipv4Addr::from(number).into());
        let message = ElectionMessage { step: TransferStep::Take, vip, epoch: 3 };
        let take = Input::Message { from: node_name("b"), message };
        usize::from(!bench.give(take).said().is_empty())
    };
    let answers: usize = (0..20_000).map(|number| declines(&mut bench, number)).sum();
    assert_eq!(answers, bench.election.declined_unknown.len(), "what is not noted is not answered");
    assert!(answers < 20_000);
    bench.later(Duration::from_secs(5));
    assert_eq!(declines(&mut bench, 20_001), 1);
    assert_eq!(bench.election.declined_unknown.len(), 1);
}

#[test]
fn an_agent_that_is_asked_to_stop_waits_for_others_to_take_its_vips_but_not_in_vain() {
    let mut bench = Bench::leading();
    let leaves_after = |bench: &Bench| {
        let times = [0, 999, 1_000, 4_999, 5_000];
        times.into_iter().find(|waited| bench.election.has_left(ms(*waited), &bench.peers)).unwrap()
    };
    assert_eq!(leaves_after(&bench), 1_000, "no other node may take it");
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    bench.peer("b").state.unable.insert(vip4(1));
    assert_eq!((bench.role(), leaves_after(&bench)), (Role::Handing, 5_000), "b may have taken it");
    bench.give(told("b", TransferStep::Declined, 2));
    assert_eq!((bench.role(), leaves_after(&bench)), (Role::Leading, 1_000), "b cannot take it");
    bench.peer("b").state.unable.clear();
    assert_eq!(leaves_after(&bench), 5_000, "b can take it again");
    for name in ["b", "c"] {
        bench.falls(name, MemberStatus::Down);
    }
    assert_eq!(leaves_after(&bench), 0, "nobody is there");
    bench.falls("b", MemberStatus::Alive);
    bench.give(Input::Wanted(Arc::default()));
    assert_eq!(leaves_after(&bench), 0, "it leads nothing");
}

/// Returns a node that leads so many VIPs, which another one may lead, too.
fn leading_too_many(count: u8) -> Bench {
    let want = |names: &[&str]| {
        let candidates: Candidates = names.iter().map(|name| candidate(name)).collect();
        Input::Wanted(Arc::new((1..=count).map(|last| (vip4(last), candidates.clone())).collect()))
    };
    let mut bench = Bench::ready();
    bench.later(ms(10)).give(want(&["a"]));
    for last in 1..=count {
        bench.give(Input::Stored { vip: vip4(last), outcome: LeaseOutcome::Read(None) });
        bench.give(Input::Stored { vip: vip4(last), outcome: LeaseOutcome::Swapped(version("v")) });
        bench.later(ms(10)).tick();
    }
    assert_eq!(bench.election.leading().count(), usize::from(count));
    bench.said();
    bench.give(want(&["a", "b"]));
    bench
}

/// Returns the VIPs that the other node was told to take, with the times. It takes or declines them.
fn moves(bench: &mut Bench, ticks: u32, takes: bool) -> Vec<(Duration, Vip)> {
    let mut moved = Vec::new();
    for _ in 0..ticks {
        bench.ticks(1);
        for command in std::mem::take(&mut bench.commands) {
            let Command::Send { message, .. } = command else { continue };
            let ElectionMessage { step: TransferStep::Take, vip, epoch } = message else { continue };
            moved.push((bench.now, vip));
            let answer = |step| Input::Message { from: node_name("b"), message: ElectionMessage { step, ..message } };
            if takes {
                bench.peer("b").state.claims.insert(vip, claimed(epoch));
                bench.give(answer(TransferStep::Taken));
            } else {
                bench.give(answer(TransferStep::Declined));
                bench.give(Input::Stored { vip, outcome: LeaseOutcome::Read(Some(lease("a", 1, "v"))) });
            }
        }
    }
    moved
}

#[test]
fn a_vip_beyond_the_bound_moves_for_balance_one_a_second() {
    let moved = moves(&mut leading_too_many(8), 100, true);
    assert_eq!(moved.len(), 3, "half, and one more, may stay: {moved:?}");
    assert!(moved.windows(2).all(|pair| pair[1].0 >= pair[0].0 + ms(1000)), "{moved:?}");
}

/// Scores belong to a pool, and the bound is for all VIPs of a node.
#[test]
fn balance_moves_no_vip_to_a_lower_score() {
    let mut bench = leading_too_many(20);
    let preferred = [Candidate { score: 100, ..candidate("a") }, candidate("b")];
    let (preferred, ordinary): (Candidates, Candidates) =
        (preferred.into_iter().collect(), [candidate("a"), candidate("b")].into_iter().collect());
    let wanted = (1..=20).map(|last| (vip4(last), if last <= 10 { &preferred } else { &ordinary }.clone()));
    bench.give(Input::Wanted(Arc::new(wanted.collect())));
    let moved = moves(&mut bench, 400, true);
    assert!(moved.iter().all(|(_, vip)| *vip > vip4(10)), "{moved:?}");
    assert_eq!(moved.len(), 4, "its share is 10 and 5, and one more may stay: {moved:?}");
}

/// Else the node would lead too few once these have gone, and get others back.
#[test]
fn vips_that_will_go_to_a_higher_score_count_no_more_for_balance() {
    let mut bench = leading_too_many(20);
    let preferred = [candidate("a"), Candidate { score: 100, ..candidate("b") }];
    let (preferred, ordinary): (Candidates, Candidates) =
        (preferred.into_iter().collect(), [candidate("a"), candidate("b")].into_iter().collect());
    let wanted = (1..=20).map(|last| (vip4(last), if last <= 10 { &preferred } else { &ordinary }.clone()));
    bench.give(Input::Wanted(Arc::new(wanted.collect())));
    let declined = moves(&mut bench, 1, false);
    assert_eq!(declined.iter().filter(|(_, vip)| *vip <= vip4(10)).count(), 10, "{declined:?}");
    let moved = moves(&mut bench, 90, true);
    assert!(moved.iter().all(|(_, vip)| *vip > vip4(10)) && (1..=4).contains(&moved.len()), "{moved:?}");
}

#[test]
fn many_vips_beyond_the_bound_move_several_at_once_until_one_is_declined() {
    let mut bench = leading_too_many(200);
    let moved = moves(&mut bench, 20, true);
    assert!(moved.len() > 4, "{moved:?}");
    let declined = moves(&mut bench, 40, false);
    let at_once = declined.iter().take_while(|(at, _)| *at == declined[0].0).count();
    let later = &declined[at_once..];
    assert!(at_once > 1 && later.len() > 1, "{declined:?}");
    assert!(later.windows(2).all(|pair| pair[1].0 >= pair[0].0 + ms(1000)), "{declined:?}");
}

#[test]
fn a_vip_whose_answers_are_lost_is_given_up_with_its_lease_if_no_other_node_can_take_it() {
    let mut bench = Bench::leading();
    bench.give(Input::Unable([vip4(1)].into())).ticks(2);
    bench.said();
    assert_eq!(bench.role(), Role::Leading, "without a carrier it may come back at any time");
    bench.give(Input::Lossy([vip4(1)].into())).ticks(1);
    assert_eq!(bench.said(), ["survey", "follow: the answers of this node are lost", "withdraw", "delete v1"]);
    bench.give(Input::Surveyed { asked: bench.now, leases: Some(OrdMap::default()) }).ticks(100);
    assert_eq!((bench.role(), bench.said()), (Role::Following, Vec::new()), "nor is it taken again");
    bench.give(Input::Lossy([].into())).give(Input::Unable([].into())).ticks(1);
    assert_eq!(bench.said(), ["withdraw Unable(Vip(192.0.2.1))", "read"]);
    bench.give(read(None));
    assert_eq!(bench.said(), ["create 2"], "in a later epoch");
}

#[test]
fn a_vip_whose_answers_are_lost_goes_to_a_node_that_can_take_it() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.give(Input::Unable([vip4(1)].into())).give(Input::Lossy([vip4(1)].into())).ticks(1);
    let said = bench.said();
    assert!(said.contains(&"follow: handed over to b".to_owned()), "{said:?}");
    assert!(!said.iter().any(|said| said.starts_with("delete")), "{said:?}");
}

#[test]
fn a_lease_of_an_earlier_agent_is_deleted_where_answers_are_lost() {
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
    bench.give(Input::Unable([vip4(1)].into())).give(Input::Lossy([vip4(1)].into()));
    bench.said();
    let leases = |holder| Some(OrdMap::from_iter([(vip4(1), lease(holder, 4, "v4"))]));
    bench.give(Input::Surveyed { asked: T, leases: leases("a") });
    assert_eq!(bench.said(), ["delete v4"]);
    bench.give(Input::Surveyed { asked: T, leases: leases("b") }).ticks(10);
    assert_eq!(bench.said(), [""; 0], "that one is b's");
}
