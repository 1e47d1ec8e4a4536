//! Tests every input in every state: the role afterwards, and the commands.

use std::collections::BTreeSet;

use super::*;

/// The expected transitions, by state: the input, the role afterwards, and the messages. An input
/// that is not listed does nothing.
const EXPECTED: &str = include_str!("transitions.txt");

/// The name of a state, and how it is reached.
type State = (&'static str, fn() -> Bench);
/// The name of an input, and how it is made for an epoch.
type Made = (&'static str, fn(&mut Bench, u64) -> Input);

/// The roles, with what is under way. All of them contend for `.1`.
const STATES: [State; 15] = [
    ("following b", Bench::following),
    ("following b, which is down: reading the Lease", || {
        let mut bench = Bench::following();
        bench.falls("b", MemberStatus::Down);
        bench.ticks(4).knows_b();
        bench
    }),
    ("following b, whose end nobody saw: asking the LAN", || {
        let mut bench = Bench::following();
        bench.peers.members.remove(&node_name("c"));
        bench.falls("b", MemberStatus::Down);
        bench.peers.majority = false;
        bench.ticks(1).fence("b").give(read(Some(lease("b", 4, "v4"))));
        bench
    }),
    ("following b, which is down: swapping the Lease", || {
        let mut bench = Bench::following();
        bench.falls("b", MemberStatus::Down);
        bench.ticks(4).knows_b().give(read(Some(lease("b", 4, "v4"))));
        bench
    }),
    ("detecting", detecting),
    ("conflicted", || {
        let mut bench = detecting();
        bench.give(probed(AddressOwner::ForeignSpeaker(MAC)));
        bench
    }),
    ("leading", Bench::leading),
    ("leading what a peer claims too: reading the Lease", || {
        let mut bench = Bench::leading();
        bench.claim("b", 1);
        bench.later(ms(10)).give(Input::Peers);
        bench
    }),
    ("leading, and the Lease is not written", || {
        let mut bench = Bench::following();
        bench.falls("b", MemberStatus::Down);
        bench.ticks(4).knows_b().give(stored(LeaseOutcome::Unavailable)).answer().answer();
        bench
    }),
    ("leading, assured since announcements with c's MAC were forged", || {
        let mut bench = Bench::leading();
        bench.ticks(20).later(ms(10));
        bench.give(Input::PeerAnnounced(announced(&bench, &["c"])));
        bench.later(ms(10));
        bench.peer("c").current = Some(bench.now);
        bench.give(Input::Peers);
        bench
    }),
    ("yielded: reading the Lease", yielded),
    ("yielded: swapping the Lease", || {
        let mut bench = yielded();
        bench.give(read(Some(lease("a", 1, "v1"))));
        bench
    }),
    ("suspended: reading the Lease", suspended),
    ("suspended: swapping the Lease", || {
        let mut bench = suspended();
        bench.give(read(Some(lease("a", 1, "v1"))));
        bench
    }),
    ("handing over to b", || {
        let mut bench = Bench::leading();
        bench.want(&["a", "b"]);
        bench.later(ms(10)).give(Input::Drain(true));
        bench
    }),
];

fn detecting() -> Bench {
    let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: true });
    bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) }).tick();
    bench.later(ms(20)).give(Input::Peers).give(read(None)).give(swapped("v1"));
    bench
}

fn yielded() -> Bench {
    let mut bench = Bench::leading();
    bench.ticks(20).later(ms(10));
    bench.give(Input::PeerAnnounced(announced(&bench, &["c"])));
    bench
}

fn suspended() -> Bench {
    let mut bench = Bench::leading();
    bench.later(ms(50)).give(Input::Disowned);
    bench
}

/// The inputs, each made for the highest epoch that the node knows of.
const INPUTS: [Made; 46] = [
    ("wanted as before", |bench, _| Input::Wanted(Arc::clone(&bench.election.wanted))),
    ("wanted no longer", |_, _| Input::Wanted(Arc::default())),
    ("wanted of b alone", |_, _| Input::Wanted(Arc::new([(vip4(1), [candidate("b")].into_iter().collect())].into()))),
    ("no interface with a carrier for it", |_, _| Input::Unable([vip4(1)].into())),
    ("its answers are lost", |bench, _| {
        bench.give(Input::Unable([vip4(1)].into()));
        Input::Lossy([vip4(1)].into())
    }),
    ("a turn of the loop", |bench, _| {
        bench.peers.evidence_since = Some(bench.now);
        Input::Tick { carrier: true }
    }),
    ("a turn of the loop without a carrier", |_, _| Input::Tick { carrier: false }),
    ("a turn of the loop after the deadline", |bench, _| {
        bench.later(LEASE);
        Input::Tick { carrier: true }
    }),
    ("peers changed", |_, _| Input::Peers),
    ("c claims it in this epoch", |bench, epoch| {
        claims(bench, epoch);
        Input::Peers
    }),
    ("c claims it in the next epoch", |bench, epoch| {
        claims(bench, epoch + 1);
        Input::Peers
    }),
    ("held for down", |_, _| Input::Disowned),
    ("b says: take this epoch", |_, epoch| told("b", TransferStep::Take, epoch)),
    ("b says: take the next epoch", |_, epoch| told("b", TransferStep::Take, epoch + 1)),
    ("b says: taken", |_, epoch| told("b", TransferStep::Taken, epoch + 1)),
    ("b says: declined", |_, epoch| told("b", TransferStep::Declined, epoch + 1)),
    ("read: no Lease", |_, _| read(None)),
    ("read: its own Lease", |_, epoch| read(Some(lease("a", epoch, "v9")))),
    ("read: c's Lease of the next epoch", |_, epoch| read(Some(lease("c", epoch + 1, "v9")))),
    ("swapped", |_, _| swapped("v9")),
    ("a conflict", |_, _| stored(LeaseOutcome::Conflict)),
    ("the store is unavailable", |_, _| stored(LeaseOutcome::Unavailable)),
    ("all Leases: its own", |bench, epoch| surveyed(bench, Some(lease("a", epoch, "v9")))),
    ("all Leases: c's of the next epoch", |bench, epoch| surveyed(bench, Some(lease("c", epoch + 1, "v9")))),
    ("all Leases: none", |bench, _| surveyed(bench, None)),
    ("all Leases: the store is unavailable", |bench, _| Input::Surveyed { asked: bench.now, leases: None }),
    ("watched: its own Lease, older", |_, epoch| changed(Some(lease("a", epoch.saturating_sub(1), "v9")))),
    ("watched: c's Lease of this epoch", |_, epoch| changed(Some(lease("c", epoch, "v9")))),
    ("watched: c's Lease of the next epoch", |_, epoch| changed(Some(lease("c", epoch + 1, "v9")))),
    ("watched: no Lease", |_, _| changed(None)),
    ("watched: its record, challenged by b", |_, _| Input::RecordChanged {
        node: node_name("a"),
        record: Some(record(RecordState::Challenged(node_name("b")), "r2")),
    }),
    ("no majority", |bench, _| {
        bench.peers.majority = false;
        Input::Peers
    }),
    ("no majority, and its record was read: challenged by b", |bench, _| {
        read_own_record(bench, RecordState::Challenged(node_name("b")))
    }),
    ("no majority, and its record was read: fenced by b", |bench, _| {
        read_own_record(bench, RecordState::Fenced(node_name("b")))
    }),
    ("some peer announced it", |bench, _| Input::PeerAnnounced(announced(bench, &[]))),
    ("c announced it", |bench, _| Input::PeerAnnounced(announced(bench, &["c"]))),
    ("c announced it, and the kernel goes on", |bench, _| {
        Input::PeerAnnounced(PeerAnnouncement { yielded: false, ..announced(bench, &["c"]) })
    }),
    ("some peer announced it, and the kernel goes on", |bench, _| {
        Input::PeerAnnounced(PeerAnnouncement { yielded: false, ..announced(bench, &[]) })
    }),
    ("c says now that it does not claim it", |bench, _| {
        if let Some(c) = bench.peers.members.get_mut(&node_name("c")) {
            c.current = Some(bench.now);
        }
        Input::Peers
    }),
    ("on the LAN: nobody", |_, _| probed(AddressOwner::Nobody)),
    ("on the LAN: nothing at all", |_, _| probed(AddressOwner::Unknown)),
    ("on the LAN: a peer", |_, _| probed(AddressOwner::Peer)),
    ("on the LAN: a foreign speaker", |_, _| probed(AddressOwner::ForeignSpeaker(MAC))),
    ("nodes with another key may lead rather than it", |_, _| Input::Outranked(true)),
    ("its Leases are in a directory", |_, _| Input::Store(StoreId(1))),
    ("drain begins or ends", |bench, _| Input::Drain(!bench.election.availability.draining)),
];

fn read_own_record(bench: &mut Bench, state: RecordState) -> Input {
    bench.peers.majority = false;
    bench.give(Input::RecordChanged { node: node_name("a"), record: Some(record(state.clone(), "r2")) });
    recorded("a", bench.now, RecordOutcome::Read(Some(record(state, "r2"))))
}

fn claims(bench: &mut Bench, epoch: u64) {
    let now = bench.now;
    bench.peers.members.entry(node_name("c")).or_insert_with(|| peer(MemberStatus::Alive, now));
    bench.claim("c", epoch);
}

fn changed(lease: Option<Lease>) -> Input {
    Input::LeaseChanged { vip: vip4(1), lease }
}

fn surveyed(bench: &Bench, lease: Option<Lease>) -> Input {
    Input::Surveyed { asked: bench.now, leases: Some(lease.into_iter().map(|lease| (vip4(1), lease)).collect()) }
}

/// The kind of an input. A new kind does not compile until it is listed here.
const fn kind(input: &Input) -> usize {
    match input {
        Input::Wanted(_) => 0,
        Input::Unable(_) => 1,
        Input::Tick { .. } => 2,
        Input::Peers => 3,
        Input::Disowned => 4,
        Input::Message { .. } => 5,
        Input::Stored { .. } => 6,
        Input::Surveyed { .. } => 7,
        Input::PeerAnnounced(_) => 8,
        Input::Probed { .. } => 9,
        Input::Drain(_) => 10,
        Input::Lossy(_) => 11,
        Input::Outranked(_) => 12,
        Input::LeaseChanged { .. } => 13,
        Input::Recorded { .. } => 14,
        Input::RecordChanged { .. } => 15,
        Input::Store(_) => 16,
    }
}

/// The role, and the leader that it follows.
fn shown(bench: &Bench) -> String {
    match bench.election.leadership(vip4(1)) {
        None => "gone".to_owned(),
        Some(Leadership { role: Role::Following, leader, .. }) => {
            format!("following {}", leader.map_or("nobody".to_owned(), |leader| leader.to_string()))
        }
        Some(Leadership { role, .. }) => format!("{role:?}").to_lowercase(),
    }
}

#[test]
fn each_input_does_in_each_state_what_the_table_says() {
    let (mut roles, mut kinds, mut lines) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for (state, reach) in STATES {
        roles.insert(reach().role());
        lines.push(state.to_owned());
        for (what, make) in INPUTS {
            let mut bench = reach();
            bench.said();
            bench.recorded();
            bench.later(ms(10));
            let (before, epoch) = (shown(&bench), bench.election.states[&vip4(1)].epoch());
            let input = make(&mut bench, epoch);
            kinds.insert(kind(&input));
            bench.give(input);
            let records = bench.recorded();
            let said = bench.said().into_iter().chain(records).collect::<Vec<_>>().join(", ");
            let after = shown(&bench);
            if !said.is_empty() || after != before {
                let said = if said.is_empty() { said } else { format!("; {said}") };
                lines.push(format!("    {what}: {after}{said}"));
            }
        }
    }
    assert_eq!((roles.len(), kinds.len()), (7, 17), "each role and each kind of input is in the table");
    let differs = lines.iter().zip(EXPECTED.lines()).position(|(found, expected)| found != expected);
    let table = lines.join("\n") + "\n";
    assert!(table == EXPECTED, "it is another from line {:?} on:\n{table}", differs.map(|at| at + 1));
}
