use std::{net::Ipv4Addr, sync::Arc};

use vipmux_common::abi::Mac;

use super::{lease::Version, *};
use crate::membership::{self, Claimed, Message, Peer, State, Why};

const T: Duration = Duration::from_secs(100);
const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 9]);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn vip(last: u8) -> Vip {
    Vip(Ipv4Addr::new(192, 0, 2, last).into())
}

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

fn version(text: &str) -> Version {
    Version(text.to_owned())
}

fn lease(holder: &str, epoch: u64, text: &str) -> Lease {
    Lease { holder: node(holder), epoch, version: version(text) }
}

fn peer(standing: Standing, now: Duration) -> Peer {
    let state = State { ready: true, ..State::default() };
    Peer {
        standing,
        since: now,
        generation: 1,
        heard: Some(now),
        silent: None,
        answered: Some(now),
        current: Some(now),
        state,
    }
}

fn claimed(epoch: u64) -> Claimed {
    Claimed { epoch, why: Why::First, since: T }
}

/// The node `a` of three, with the state of its peers and a clock.
struct Bench {
    election: Election,
    peers: Peers,
    now: Duration,
    commands: Vec<Command>,
}

impl Bench {
    /// It contends for `.1`; `b` and `c` are alive and there is evidence.
    fn new(settings: Settings) -> Self {
        let mut members = BTreeMap::new();
        for name in ["b", "c"] {
            members.insert(node(name), peer(Standing::Alive, T));
        }
        let peers = Peers { members, evidence: Some(T), majority: true };
        let mut bench = Self { election: Election::new(node("a"), settings, T), peers, now: T, commands: Vec::new() };
        bench.want(&["a"]);
        bench
    }

    fn ready() -> Self {
        let mut bench = Self::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) });
        bench.tick().later(ms(20)).give(Input::Peers);
        bench
    }

    /// As [`Self::ready`], and it leads `.1` in epoch 1.
    fn leading() -> Self {
        let mut bench = Self::ready();
        bench.give(Input::Stored { vip: vip(1), outcome: Outcome::Read(None) });
        bench.give(Input::Stored { vip: vip(1), outcome: Outcome::Swapped(version("v1")) });
        assert_eq!(bench.role(), Role::Leading);
        bench.commands.clear();
        bench
    }

    /// As [`Self::ready`], and `b` leads `.1` in epoch 4.
    fn following() -> Self {
        let mut bench = Self::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
        bench.claim("b", 4);
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip(1), lease("b", 4, "v4"))])) });
        bench.tick();
        assert_eq!(bench.leader(), Some("b"));
        bench.commands.clear();
        bench
    }

    fn want(&mut self, contenders: &[&str]) {
        let contender = |name: &&str| Contender { node: node(name), weight: 1, excluded: false, cordoned: false };
        let contenders: Contenders = contenders.iter().map(contender).collect();
        self.give(Input::Wanted(Arc::new([(vip(1), contenders)].into())));
    }

    fn claim(&mut self, name: &str, epoch: u64) {
        self.peer(name).state.claims.insert(vip(1), claimed(epoch));
    }

    fn peer(&mut self, name: &str) -> &mut Peer {
        self.peers.members.get_mut(&node(name)).unwrap()
    }

    fn falls(&mut self, name: &str, standing: Standing) {
        let now = self.now;
        let peer = self.peer(name);
        (peer.standing, peer.since) = (standing, now);
        peer.silent = peer.heard.filter(|_| standing == Standing::Down);
    }

    fn give(&mut self, input: Input) -> &mut Self {
        self.commands.extend(self.election.handle(input, &self.peers, self.now));
        self
    }

    /// A heartbeat with fresh evidence.
    fn tick(&mut self) -> &mut Self {
        self.peers.evidence = Some(self.now);
        self.give(Input::Tick { carrier: true })
    }

    /// So many heartbeats.
    fn ticks(&mut self, count: u32) -> &mut Self {
        for _ in 0..count {
            self.now += HEARTBEAT;
            self.tick();
        }
        self
    }

    fn later(&mut self, by: Duration) -> &mut Self {
        self.now += by;
        self
    }

    fn role(&self) -> Role {
        self.election.leadership(vip(1)).unwrap().role
    }

    fn leader(&self) -> Option<&str> {
        let place = &self.election.places[&vip(1)];
        if place.tenure.is_some() { Some("a") } else { place.hold.as_ref().map(|hold| hold.node.0.as_str()) }
    }

    /// What was said about leading and to the store, the LAN and the peers since the last call.
    fn said(&mut self) -> Vec<String> {
        let said = std::mem::take(&mut self.commands);
        let line = |command: &Command| {
            Some(match command {
                Command::Ask | Command::Extend(_) | Command::Publish(Item::Ready(_)) => return None,
                Command::Follow { why, .. } => format!("follow: {why}"),
                Command::Lead { epoch, why, .. } => format!("lead {epoch}: {why}"),
                Command::Gather => "gather".into(),
                Command::Renounce => "renounce".into(),
                Command::Read(_) => "read".into(),
                Command::Swap { expected, epoch, .. } => match expected {
                    Some(version) => format!("swap {version} for {epoch}"),
                    None => format!("create {epoch}"),
                },
                Command::Survey => "survey".into(),
                Command::Delete { version, .. } => format!("delete {version}"),
                Command::Tell { to, message } => match message {
                    Message::Take { epoch, .. } => format!("{to}: take {epoch}"),
                    Message::Taken { epoch, .. } => format!("{to}: taken {epoch}"),
                    Message::Declined { epoch, .. } => format!("{to}: declined {epoch}"),
                },
                Command::Publish(Item::Claim { epoch, .. }) => format!("claim {epoch}"),
                Command::Publish(item) => format!("publish {item:?}"),
                Command::Withdraw(Key::Claim(_)) => "withdraw".into(),
                Command::Withdraw(key) => format!("withdraw {key:?}"),
                Command::Probe { detect, .. } => if *detect { "detect" } else { "ask the LAN" }.into(),
                Command::Conflict { .. } => "conflict".into(),
            })
        };
        said.iter().filter_map(line).collect()
    }
}

fn read(lease: Option<Lease>) -> Input {
    Input::Stored { vip: vip(1), outcome: Outcome::Read(lease) }
}

fn swapped(text: &str) -> Input {
    Input::Stored { vip: vip(1), outcome: Outcome::Swapped(version(text)) }
}

fn stored(outcome: Outcome) -> Input {
    Input::Stored { vip: vip(1), outcome }
}

fn told(from: &str, message: Message) -> Input {
    Input::Told { from: node(from), message }
}

fn probed(found: Found) -> Input {
    Input::Probed { vip: vip(1), found }
}

#[test]
fn the_first_leader_makes_the_lease_and_asks_the_lan_before_it_answers() {
    let mut bench = Bench::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
    assert_eq!(bench.said(), ["survey"]);
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) });
    assert_eq!(bench.said(), [""; 0], "there is no evidence yet that it may lead");
    bench.tick();
    bench.later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(None));
    assert_eq!(bench.said(), ["create 1"]);
    bench.give(swapped("v1"));
    assert_eq!(bench.said(), ["claim 1", "detect"]);
    assert_eq!(bench.role(), Role::Detecting);
    bench.give(probed(Found::Nobody));
    assert_eq!(bench.said(), ["lead 1: nobody led it before"]);
    assert_eq!(bench.role(), Role::Leading);
}

#[test]
fn an_address_that_a_stranger_has_is_not_answered_for_and_asked_about_again() {
    let mut bench = Bench::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) }).tick();
    bench.later(ms(20)).give(Input::Peers).give(read(None)).give(swapped("v1"));
    bench.said();
    bench.give(probed(Found::Stranger(MAC)));
    assert_eq!(bench.said(), ["conflict"]);
    assert_eq!(bench.role(), Role::Conflicted);
    bench.ticks(99);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(2);
    assert_eq!(bench.said(), ["detect"]);
    bench.give(probed(Found::Nobody));
    assert_eq!(bench.said(), ["lead 1: nobody led it before"]);
}

#[test]
fn a_takeover_is_never_held_up_by_detection() {
    let mut bench = Bench::following();
    bench.election.settings.detect = true;
    bench.falls("b", Standing::Down);
    bench.ticks(4);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["swap v4 for 5"]);
    bench.give(swapped("v5"));
    assert_eq!(bench.said(), ["claim 5", "lead 5: b was down"]);
}

#[test]
fn a_holder_must_have_been_silent_for_longer_than_its_fence_may_hold() {
    let mut bench = Bench::following();
    bench.later(ms(200));
    bench.peer("b").heard = Some(T + ms(200));
    bench.falls("b", Standing::Down);
    bench.tick();
    for _ in 0..32 {
        bench.later(ms(10)).tick().give(Input::Peers);
        assert_eq!(bench.said(), [""; 0], "{:?} after it was heard", bench.now.saturating_sub(T + ms(200)));
    }
    bench.later(ms(10)).tick().give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
}

#[test]
fn where_too_few_say_how_long_a_holder_was_silent_it_had_evidence_until_all_heard() {
    let mut bench = Bench::following();
    bench.later(ms(200)).falls("b", Standing::Down);
    bench.peer("b").silent = None;
    let down = bench.now;
    bench.tick().ticks(4).later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), [""; 0], "{:?} after it was found down", bench.now.saturating_sub(down));
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
}

#[test]
fn of_two_with_one_epoch_the_one_gives_way_that_did_not_write_the_lease() {
    for written in [true, false] {
        let mut bench = Bench::following();
        bench.falls("b", Standing::Down);
        bench.ticks(4).later(ms(30)).give(Input::Peers);
        bench.give(read(Some(lease("b", 4, "v4"))));
        let outcome = if written { Outcome::Swapped(version("v5")) } else { Outcome::Unavailable };
        bench.give(Input::Stored { vip: vip(1), outcome: outcome.clone() });
        if !written {
            // A write that did not end is tried again, from a look at the Lease on.
            bench.ticks(3).give(Input::Stored { vip: vip(1), outcome });
        }
        assert_eq!(bench.role(), Role::Leading);
        bench.said();
        bench.claim("c", 5);
        bench.later(ms(20)).give(Input::Peers);
        let expected: &[&str] = if written { &["read"] } else { &["follow: c took it", "withdraw"] };
        assert_eq!(bench.said(), expected, "written: {written}");
    }
}

#[test]
fn one_that_left_in_order_is_followed_once_the_deadline_of_what_it_still_led_has_passed() {
    let mut bench = Bench::following();
    bench.later(ms(10));
    bench.peer("b").heard = Some(bench.now);
    bench.falls("b", Standing::Left);
    bench.give(Input::Peers).ticks(3).later(ms(20)).give(Input::Peers);
    assert_eq!(bench.said(), [""; 0]);
    bench.later(ms(6)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
}

#[test]
fn who_is_not_first_waits_for_its_turn() {
    let mut bench = Bench::following();
    // Of two, the one that rendezvous prefers is first.
    let first = rendezvous::Bids::of(vip(1)).first([(&node("a"), 1), (&node("c"), 1)], 1);
    bench.want(&["a", "b", "c"]);
    bench.falls("b", Standing::Down);
    let mut waited = 0;
    while !bench.said().contains(&"read".to_owned()) {
        bench.ticks(1);
        waited += 1;
        assert!(waited < 20, "it never acted");
    }
    assert_eq!(waited > 6, first == [1], "{waited} heartbeats, and {first:?} is first");
}

#[test]
fn a_holder_whose_end_no_majority_saw_is_looked_for_on_the_lan() {
    for (found, expected) in [
        (Found::Nobody, vec!["swap v4 for 5"]),
        (Found::Stranger(MAC), vec!["swap v4 for 5"]),
        (Found::Nothing, vec![]),
        (Found::Peer, vec![]),
    ] {
        let mut bench = Bench::following();
        bench.peers.members.remove(&node("c"));
        bench.falls("b", Standing::Down);
        bench.peers.majority = false;
        bench.ticks(4).give(read(Some(lease("b", 4, "v4"))));
        assert_eq!(bench.said(), ["read", "ask the LAN"]);
        bench.give(probed(found.clone()));
        assert_eq!(bench.said(), expected, "{found:?}");
        if found == Found::Nothing {
            bench.ticks(3);
            assert_eq!(bench.said(), ["read"], "it may be cut off, and looks again soon");
        } else if found == Found::Peer {
            bench.ticks(98);
            assert_eq!(bench.said(), [""; 0], "it is left alone");
            bench.ticks(5);
            assert_eq!(bench.said(), ["read"], "but not for ever");
        }
    }
}

#[test]
fn a_minority_of_several_takes_nothing_over_for_long() {
    let mut bench = Bench::following();
    bench.falls("b", Standing::Down);
    bench.falls("c", Standing::Down);
    bench.peers.majority = false;
    bench.ticks(50);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(260);
    bench.give(read(Some(lease("b", 4, "v4"))));
    assert_eq!(bench.said(), ["read", "ask the LAN"], "most of them may be gone for good");
}

#[test]
fn a_holder_that_acted_after_it_was_declared_down_is_looked_for_on_the_lan() {
    let mut bench = Bench::following();
    bench.falls("c", Standing::Down);
    bench.falls("b", Standing::Down);
    bench.ticks(4);
    bench.give(read(Some(lease("c", 7, "v7"))));
    assert_eq!(bench.said(), ["read"]);
    bench.ticks(11);
    assert_eq!(bench.said(), ["read"], "it had time to be heard of");
    bench.give(read(Some(lease("c", 7, "v7"))));
    assert_eq!(bench.said(), ["ask the LAN"]);
}

#[test]
fn who_is_cut_off_from_all_others_takes_nothing_back_from_who_followed_it() {
    let mut bench = Bench::leading();
    bench.falls("b", Standing::Down);
    bench.falls("c", Standing::Down);
    bench.peers.majority = false;
    let leases = Some(OrdMap::from_iter([(vip(1), lease("c", 2, "v2"))]));
    bench.later(ms(10));
    bench.give(Input::Surveyed { asked: bench.now, leases });
    assert_eq!(bench.said(), ["follow: c took it", "withdraw"]);
    bench.ticks(290);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(20);
    assert_eq!(bench.said(), ["read"], "it is not waited for for ever");
}

#[test]
fn a_lease_whose_holder_is_there_is_left_to_it_for_a_while() {
    let mut bench = Bench::ready();
    bench.said();
    bench.give(read(Some(lease("b", 3, "v3"))));
    assert_eq!(bench.leader(), Some("b"));
    bench.ticks(8);
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(4);
    assert_eq!(bench.said(), ["read"], "it never claimed it");
    bench.give(read(Some(lease("b", 3, "v3"))));
    assert_eq!(bench.said(), ["ask the LAN"]);
}

#[test]
fn who_is_slower_than_another_reads_again() {
    let mut bench = Bench::following();
    bench.falls("b", Standing::Down);
    bench.ticks(4).give(read(Some(lease("b", 4, "v4")))).give(stored(Outcome::Conflict));
    bench.said();
    bench.ticks(1);
    assert_eq!(bench.said(), ["read"]);
    bench.claim("c", 5);
    bench.give(read(Some(lease("c", 5, "v5"))));
    bench.ticks(3);
    assert_eq!(bench.said(), [""; 0]);
    assert_eq!(bench.leader(), Some("c"));
}

#[test]
fn without_the_store_a_majority_that_saw_the_holder_go_is_enough() {
    for (majority, leads) in [(true, true), (false, false)] {
        let mut bench = Bench::following();
        bench.falls("b", Standing::Down);
        bench.peers.majority = majority;
        bench.ticks(4).give(stored(Outcome::Unavailable));
        let expected: &[&str] = if leads { &["read", "claim 5", "lead 5: b was down"] } else { &[] };
        assert_eq!(bench.said(), expected);
    }
}

#[test]
fn what_was_taken_without_the_store_is_written_down_or_given_up_when_it_is_back() {
    for (found, expected) in [
        (Some(lease("b", 4, "v4")), "swap v4 for 5"),
        (None, "create 5"),
        (Some(lease("c", 5, "v5")), "follow: c took it"),
        (Some(lease("c", 6, "v6")), "follow: c took it"),
    ] {
        let mut bench = Bench::following();
        bench.falls("b", Standing::Down);
        bench.ticks(4).give(stored(Outcome::Unavailable));
        bench.ticks(11);
        bench.said();
        bench.give(read(found.clone()));
        assert_eq!(bench.said().first().map(String::as_str), Some(expected), "{found:?}");
        assert_eq!(bench.election.leads(vip(1)), !expected.starts_with("follow"));
    }
}

#[test]
fn an_agent_that_came_back_in_time_goes_on_with_what_is_still_its_own() {
    let mut bench = Bench::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip(1), lease("a", 3, "v3"))])) });
    bench.tick().later(ms(20)).give(Input::Peers).give(read(Some(lease("a", 3, "v3"))));
    assert_eq!(bench.said(), ["survey", "read", "swap v3 for 3"]);
    bench.give(swapped("v4"));
    assert_eq!(bench.said(), ["claim 3", "lead 3: it led it before, and came back in time"]);
}

#[test]
fn who_comes_back_hears_first_whether_another_took_it_while_the_store_was_away() {
    for claims in [true, false] {
        let mut bench = Bench::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
        bench.want(&["a", "b", "c"]);
        bench.peer("b").current = None;
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip(1), lease("a", 3, "v3"))])) });
        bench.tick().ticks(4);
        assert_eq!(bench.said(), ["survey"], "b may claim it");
        if claims {
            bench.claim("b", 4);
            bench.peer("b").current = Some(bench.now);
        }
        bench.ticks(2);
        assert_eq!(bench.said(), if claims { &[][..] } else { &["read"][..] }, "b claims it: {claims}");
    }
}

#[test]
fn nothing_is_begun_before_the_others_were_heard_of_or_had_time_to_be() {
    let mut bench = Bench::new(Settings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
    bench.peers.members.remove(&node("c"));
    bench.want(&["a", "b", "c"]);
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip(1), lease("c", 3, "v3"))])) });
    bench.tick().ticks(28);
    assert_eq!(bench.said(), ["survey"]);
    bench.falls("b", Standing::Left);
    bench.ticks(4).give(read(Some(lease("c", 3, "v3"))));
    assert_eq!(bench.said(), ["read", "ask the LAN"]);
    bench.give(probed(Found::Nobody)).give(swapped("v4"));
    assert_eq!(bench.said(), ["swap v3 for 4", "claim 4", "lead 4: c held it and was not heard of"]);
}

#[test]
fn a_leader_gives_way_to_a_higher_epoch_and_not_to_a_lower_one() {
    let mut bench = Bench::leading();
    bench.claim("b", 1);
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"], "of equals the Lease decides");
    bench.give(read(Some(lease("a", 1, "v1"))));
    assert!(bench.election.leads(vip(1)));
    bench.claim("b", 2);
    bench.later(ms(10)).give(Input::Peers);
    assert_eq!(bench.said(), ["follow: b took it", "withdraw"]);
    assert_eq!(bench.leader(), Some("b"));
}

#[test]
fn a_leader_yields_to_an_announcement_until_the_lease_is_seen_to_be_its_own() {
    let mut bench = Bench::leading();
    bench.ticks(20);
    bench.said();
    bench.give(Input::PeerAnnounced(vip(1)));
    assert_eq!(bench.said(), ["follow: a peer announced it", "read"]);
    bench.give(read(Some(lease("a", 1, "v1"))));
    assert_eq!(bench.said(), ["swap v1 for 1"]);
    bench.give(swapped("v2"));
    assert_eq!(bench.said(), ["lead 1: nobody led it before"]);
    bench.later(ms(100)).give(Input::PeerAnnounced(vip(1)));
    assert_eq!(bench.said(), ["follow: a peer announced it"], "twice in a second: it waits");
    bench.ticks(11);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease("c", 2, "v9"))));
    assert_eq!(bench.said(), ["withdraw"]);
    assert_eq!((bench.role(), bench.leader()), (Role::Following, Some("c")));
}

#[test]
fn a_deadline_that_passed_is_not_extended_before_everything_is_known_anew() {
    let mut bench = Bench::leading();
    bench.later(LEASE).give(Input::Tick { carrier: true });
    let woken = bench.now;
    assert_eq!(
        bench.said(),
        ["follow: the fence's deadline passed: this node was stopped, or is cut off", "renounce", "gather"]
    );
    bench.peers.evidence = None;
    bench.later(HEARTBEAT).give(Input::Tick { carrier: true });
    assert_eq!((bench.said(), bench.election.deadline), (vec![], None), "nothing is known yet");
    bench.want(&["a"]);
    assert_eq!(bench.said(), [""; 0], "an announcement would not leave the node");
    bench.tick();
    assert_eq!(bench.election.deadline, Some(bench.now + LEASE));
    bench.later(ms(5)).give(Input::Peers);
    assert_eq!(bench.said(), ["read"]);
    bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.said(), ["swap v1 for 1", "lead 1: nobody led it before"]);
    assert!(bench.now > woken);
}

#[test]
fn who_was_away_and_finds_another_in_its_place_follows() {
    let mut bench = Bench::leading();
    bench.later(LEASE).give(Input::Tick { carrier: true });
    bench.want(&["a"]);
    bench.ticks(1).said();
    bench.give(read(Some(lease("b", 2, "v2"))));
    assert_eq!(bench.said(), ["withdraw"]);
    assert_eq!((bench.role(), bench.leader()), (Role::Following, Some("b")));
}

#[test]
fn who_was_away_without_the_store_waits_until_all_peers_have_spoken() {
    let mut bench = Bench::leading();
    bench.later(LEASE).give(Input::Tick { carrier: true });
    let woken = bench.now;
    bench.want(&["a"]);
    bench.tick();
    bench.give(stored(Outcome::Unavailable));
    assert_eq!(bench.role(), Role::Suspended);
    for name in ["b", "c"] {
        bench.peer(name).current = Some(woken + ms(1));
    }
    bench.ticks(2).give(stored(Outcome::Unavailable));
    assert_eq!(bench.role(), Role::Leading);
}

#[test]
fn who_was_held_for_down_makes_sure_of_its_leases() {
    let mut bench = Bench::leading();
    bench.later(ms(50)).give(Input::Disowned);
    assert_eq!(bench.said(), ["follow: a peer held this node for down", "read"]);
    bench.give(read(Some(lease("a", 1, "v1")))).give(swapped("v2"));
    assert_eq!(bench.role(), Role::Leading);
}

#[test]
fn the_deadline_counts_from_when_the_evidence_was_asked_for() {
    let mut bench = Bench::leading();
    bench.later(ms(250));
    bench.peers.evidence = Some(T + ms(60));
    bench.give(Input::Tick { carrier: true });
    assert_eq!(bench.election.deadline, Some(T + ms(60) + LEASE));
}

#[test]
fn without_a_carrier_the_deadline_stands_still() {
    let mut bench = Bench::leading();
    let before = bench.election.deadline;
    bench.later(ms(100));
    bench.peers.evidence = Some(bench.now);
    bench.give(Input::Tick { carrier: false });
    assert_eq!(bench.election.deadline, before);
}

#[test]
fn without_a_majority_the_leases_are_read_and_what_is_still_its_own_is_answered_for() {
    let mut bench = Bench::leading();
    bench.peers.evidence = None;
    bench.later(HEARTBEAT * 2).give(Input::Tick { carrier: true });
    assert_eq!(bench.said(), ["survey"]);
    let asked = bench.now;
    bench.later(ms(20));
    bench.give(Input::Surveyed { asked, leases: Some(OrdMap::from_iter([(vip(1), lease("a", 1, "v1"))])) });
    bench.give(Input::Tick { carrier: true });
    assert_eq!(bench.election.deadline, Some(asked + LEASE));
    let asked = bench.now;
    bench.give(Input::Surveyed { asked, leases: Some(OrdMap::from_iter([(vip(1), lease("b", 2, "v2"))])) });
    assert!(!bench.election.leads(vip(1)));
    assert_eq!(bench.leader(), Some("b"));
}

#[test]
fn a_survey_that_was_asked_for_before_the_deadline_passed_is_no_evidence() {
    let mut bench = Bench::leading();
    bench.peers.evidence = None;
    let asked = bench.now + LEASE.saturating_sub(ms(10));
    bench.later(LEASE).give(Input::Tick { carrier: true });
    bench.give(Input::Surveyed { asked, leases: Some(OrdMap::from_iter([(vip(1), lease("a", 1, "v1"))])) });
    bench.want(&["a"]);
    bench.give(Input::Tick { carrier: true });
    assert_eq!(bench.election.deadline, None);
}

#[test]
fn a_handover_ends_before_it_begins_elsewhere() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.said();
    bench.later(ms(10)).give(Input::Drain(true));
    assert_eq!(bench.said(), ["publish Draining(true)", "follow: handed over to b", "b: take 2"]);
    bench.later(ms(50)).give(Input::Peers);
    assert_eq!(bench.said(), ["b: take 2"], "it may have been lost");
    bench.give(told("c", Message::Taken { vip: vip(1), epoch: 2 }));
    assert_eq!(bench.role(), Role::Handing, "that is another's word");
    bench.give(told("b", Message::Taken { vip: vip(1), epoch: 2 }));
    assert_eq!(bench.said(), ["withdraw"]);
    assert_eq!(bench.leader(), Some("b"));
}

#[test]
fn what_is_declined_is_kept() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    bench.said();
    bench.give(told("b", Message::Declined { vip: vip(1), epoch: 2 }));
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
        bench.ticks(3);
        assert_eq!(bench.said().last().map(String::as_str), Some("lead 1: nobody led it before"));
        bench.ticks(kept - 1);
        assert_eq!(bench.said(), [""; 0], "not before {kept} heartbeats");
        bench.ticks(1);
    }
}

/// It has the Lease by a swap whose end it was not told, and the leader was not away, so that neither would look again.
#[test]
fn who_declines_because_it_has_the_lease_is_given_way_to() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    bench.give(told("b", Message::Declined { vip: vip(1), epoch: 2 }));
    bench.said();
    bench.give(read(Some(lease("b", 2, "v2"))));
    assert_eq!(bench.said(), ["follow: b took it", "withdraw"]);
    assert_eq!((bench.role(), bench.leader()), (Role::Following, Some("b")));
}

#[test]
fn an_heir_is_told_nothing_that_it_could_take_up_when_this_node_answers_again() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b"]);
    bench.later(ms(10)).give(Input::Drain(true));
    bench.said();
    let (stopped, fresh) = (bench.now, membership::Settings::default().fresh);
    loop {
        bench.later(ms(1)).give(Input::Peers);
        let said = bench.said();
        let since = bench.now.saturating_sub(stopped);
        if said.iter().any(|said| said.starts_with("lead")) {
            assert_eq!(since, ms(300));
            break;
        }
        assert!(said.is_empty() || since + fresh < ms(300), "{said:?} after {since:?}");
        if since.as_millis().is_multiple_of(100) {
            bench.tick().said();
        }
    }
}

#[test]
fn what_is_handed_over_is_taken_by_who_can() {
    let take = |epoch| told("b", Message::Take { vip: vip(1), epoch });
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
    assert!(bench.election.places[&vip(1)].is_written());

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
    unable.give(Input::Unable([vip(1)].into()));
    unable.said();
    assert_eq!(unable.give(take(5)).said(), ["b: declined 5"]);
    let mut fenced = Bench::following();
    fenced.later(LEASE * 2);
    assert_eq!(fenced.give(take(5)).said(), ["b: declined 5"]);
}

#[test]
fn what_was_declined_is_not_taken_up_when_it_is_heard_again_late() {
    let take = |epoch| told("b", Message::Take { vip: vip(1), epoch });
    let mut bench = Bench::following();
    bench.give(Input::Unable([vip(1)].into())).give(take(5)).give(Input::Unable([].into()));
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
    bench.give(told("b", Message::Declined { vip: vip(1), epoch: 2 }));
    bench.give(read(Some(lease("a", 1, "v1"))));
    assert_eq!(bench.role(), Role::Leading);
    bench.later(LEASE).give(Input::Tick { carrier: true });
    bench.want(&["a", "b"]);
    bench.said();
    bench.ticks(1).later(ms(10)).give(Input::Peers);
    assert!(bench.said().contains(&"read".to_owned()));
}

#[test]
fn a_look_at_the_leases_extends_the_deadline_when_it_comes() {
    let mut bench = Bench::leading();
    let before = bench.election.deadline;
    bench.peers.evidence = None;
    bench.later(ms(200)).give(Input::Tick { carrier: true });
    assert_eq!(bench.said(), ["survey"]);
    let (asked, leases) = (bench.now, OrdMap::from_iter([(vip(1), lease("a", 1, "v1"))]));
    bench.later(ms(30)).give(Input::Surveyed { asked, leases: Some(leases) });
    assert!(bench.election.deadline > before);
    assert_eq!(bench.election.deadline, Some(asked + LEASE));
}

#[test]
fn nothing_is_led_while_the_fence_is_closed() {
    let mut bench = Bench::ready();
    bench.give(read(None));
    bench.later(LEASE * 2).give(swapped("v1"));
    assert_eq!(bench.role(), Role::Suspended);
    assert!(!bench.said().iter().any(|said| said.starts_with("lead")));
}

#[test]
fn a_vip_that_cannot_be_announced_here_goes_to_a_node_where_it_can() {
    let mut bench = Bench::leading();
    bench.want(&["a", "b", "c"]);
    bench.peer("b").state.unable.insert(vip(1));
    bench.later(ms(10)).give(Input::Unable([vip(1)].into()));
    bench.later(ms(10)).give(Input::Peers);
    let said = bench.said();
    assert!(said.contains(&"c: take 2".to_owned()), "{said:?}");
}

#[test]
fn a_node_that_is_cordoned_or_excluded_hands_over_and_leads_where_no_other_may() {
    for (excluded, cordoned) in [(true, false), (false, true)] {
        let mut bench = Bench::leading();
        let mine = Contender { node: node("a"), weight: 1, excluded, cordoned };
        let alone: Contenders = [mine.clone()].into_iter().collect();
        bench.later(ms(10)).give(Input::Wanted(Arc::new([(vip(1), alone)].into())));
        bench.ticks(2);
        assert!(bench.election.leads(vip(1)), "there is no other");
        let other = Contender { node: node("b"), weight: 1, excluded: false, cordoned: false };
        bench.later(ms(10)).give(Input::Wanted(Arc::new([(vip(1), [mine, other].into_iter().collect())].into())));
        bench.ticks(1);
        assert_eq!(bench.role(), Role::Handing);
    }
}

#[test]
fn a_vip_that_nobody_may_announce_any_more_is_given_up() {
    for others in [&[][..], &["d"]] {
        let mut bench = Bench::leading();
        bench.later(ms(10)).want(others);
        // One that is not there might still come.
        bench.ticks(40);
        assert_eq!(bench.said(), ["follow: this node may not announce it any more", "withdraw"]);
        bench.ticks(10);
        assert_eq!(bench.role(), Role::Following);
        assert_eq!(bench.said(), [""; 0]);
    }
}

#[test]
fn a_vip_that_is_gone_is_given_up_and_its_lease_removed_in_an_hour() {
    let mut bench = Bench::leading();
    bench.give(Input::Wanted(Arc::default()));
    assert_eq!(bench.said(), ["follow: no Service has it any more", "withdraw"]);
    bench.later(tenure::LEFTOVER.saturating_sub(ms(200)));
    bench.election.deadline = None;
    bench.tick();
    assert_eq!(bench.said(), [""; 0]);
    bench.ticks(3);
    assert_eq!(bench.said(), ["delete v1"]);
}

#[test]
fn a_vip_beyond_the_bound_moves_for_balance_one_a_second() {
    let mut bench = Bench::ready();
    let mine: Contenders =
        [Contender { node: node("a"), weight: 1, excluded: false, cordoned: false }].into_iter().collect();
    let want = |contenders: &Contenders| {
        Input::Wanted(Arc::new((1..=8).map(|last| (vip(last), contenders.clone())).collect()))
    };
    bench.later(ms(10)).give(want(&mine));
    for last in 1..=8 {
        bench.give(Input::Stored { vip: vip(last), outcome: Outcome::Read(None) });
        bench.give(Input::Stored { vip: vip(last), outcome: Outcome::Swapped(version("v")) });
        bench.later(ms(10)).tick();
    }
    assert_eq!(bench.election.leading().count(), 8);
    bench.said();
    let both: Contenders = ["a", "b"]
        .map(|name| Contender { node: node(name), weight: 1, excluded: false, cordoned: false })
        .into_iter()
        .collect();
    bench.give(want(&both));
    let mut moved = Vec::new();
    for _ in 0..100 {
        bench.ticks(1);
        for command in std::mem::take(&mut bench.commands) {
            if let Command::Tell { message: Message::Take { vip, epoch }, .. } = command {
                moved.push((bench.now, vip));
                bench.peer("b").state.claims.insert(vip, claimed(epoch));
                bench.give(told("b", Message::Taken { vip, epoch }));
            }
        }
    }
    assert_eq!(moved.len(), 3, "half, and one more, may stay: {moved:?}");
    assert!(moved.windows(2).all(|pair| pair[1].0 >= pair[0].0 + ms(1000)), "{moved:?}");
}
