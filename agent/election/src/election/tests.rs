//! Tests of one node's state machine: inputs by hand, commands as text.

mod announced;
mod answering;
mod fencing;
mod handing_over;
mod node_records;
mod properties;
mod silence;
mod silent_store;
mod stability;
mod taking_over;
mod transitions;

use std::sync::Arc;

use imbl::OrdMap;
use vipmux_common::abi::Mac;

use super::{timing::*, *};
use crate::{
    lease::{NodeRecord, RecordContent, RecordState, StoreId, Version},
    membership::{self, Claimed, ElectionMessage, ItemKey, State, TransferStep, Why},
    store_operation::StoreOperation,
};
use vipmux_testing::{
    names::{node_name, vip4},
    pages::{FAILOVER, assert_says},
};

const T: Duration = Duration::from_secs(100);
const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 9]);

/// Returns an ordinary candidate.
fn candidate(name: &str) -> Candidate {
    Candidate { node: node_name(name), weight: 1, score: 0, excluded: false, cordoned: false }
}

/// Figures that are constants, as docs/failover.md has them.
#[test]
fn the_page_has_the_times_of_the_code() {
    let (lease, heartbeat) = (LEASE.as_millis(), HEARTBEAT.as_millis());
    for words in [
        format!("its kernel stops answering {lease} ms after the last evidence"),
        format!("{lease} ms after the last evidence (`--lease`). The agent extends it every {heartbeat} ms"),
        format!("and after {} ms at most. In that time the old leader asks", lease + heartbeat),
        format!("otherwise within `--lease` ({lease} ms)"),
        format!("answers {} ms later if no other node has claimed it", CLAIM_PROPAGATION.as_millis()),
        format!("If Leases name other leaders after {} seconds", DISCOVERY_TIME.as_secs()),
    ] {
        assert_says(FAILOVER, &words);
    }
    assert_eq!(ElectionSettings::default().hold_down, Duration::from_mins(1));
    assert_says(FAILOVER, "a hold-down of one minute (`--hold-down`)");
    assert_eq!(LEASE_RETENTION, Duration::from_hours(1));
    assert_says(FAILOVER, "a VIP that nobody has wanted for an hour");
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn version(text: &str) -> Version {
    Version::new(text)
}

fn lease(holder: &str, epoch: u64, text: &str) -> Lease {
    Lease { holder: node_name(holder), epoch, version: version(text) }
}

fn peer(status: MemberStatus, now: Duration) -> Peer {
    let state = State { ready: true, ..State::default() };
    Peer {
        status,
        since: now,
        generation: 1,
        heard: Some(now),
        silent: None,
        confirmed: None,
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
    fn new(settings: ElectionSettings) -> Self {
        let mut members = BTreeMap::new();
        for name in ["b", "c"] {
            members.insert(node_name(name), peer(MemberStatus::Alive, T));
        }
        let peers = Peers { members, evidence_since: Some(T), majority: true, pair: false };
        let mut bench =
            Self { election: Election::new(node_name("a"), settings, T), peers, now: T, commands: Vec::new() };
        bench.want(&["a"]);
        bench.give(recorded("a", T, RecordOutcome::Read(Some(record(RecordState::Confirmed, "r0")))));
        bench
    }

    fn ready() -> Self {
        let mut bench = Self::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::default()) });
        bench.tick().later(ms(20)).give(Input::Peers);
        bench
    }

    /// As [`Self::ready`], and it leads `.1` in epoch 1.
    fn leading() -> Self {
        let mut bench = Self::ready();
        bench.give(Input::Stored { vip: vip4(1), outcome: LeaseOutcome::Read(None) });
        bench.give(Input::Stored { vip: vip4(1), outcome: LeaseOutcome::Swapped(version("v1")) });
        assert_eq!(bench.role(), Role::Leading);
        bench.commands.clear();
        bench
    }

    /// As [`Self::ready`], and `b` leads `.1` in epoch 4.
    fn following() -> Self {
        let mut bench = Self::new(ElectionSettings { lease: LEASE, hold_down: Duration::ZERO, detect: false });
        bench.claim("b", 4);
        bench.give(Input::Surveyed { asked: T, leases: Some(OrdMap::from_iter([(vip4(1), lease("b", 4, "v4"))])) });
        bench.tick();
        assert_eq!(bench.leader(), Some("b"));
        bench.commands.clear();
        bench
    }

    fn want(&mut self, candidates: &[&str]) {
        let candidates: Candidates = candidates.iter().map(|name| candidate(name)).collect();
        self.give(Input::Wanted(Arc::new([(vip4(1), candidates)].into())));
    }

    fn claim(&mut self, name: &str, epoch: u64) {
        self.peer(name).state.claims.insert(vip4(1), claimed(epoch));
    }

    /// A peer has another store than this node.
    fn differs(&mut self, name: &str) -> &mut Self {
        self.peer(name).state.store = Some(StoreId(2));
        self.give(Input::Store(StoreId(1)));
        self.commands.retain(|command| !matches!(command, Command::Publish(Item::Store(_))));
        self
    }

    fn peer(&mut self, name: &str) -> &mut Peer {
        self.peers.members.get_mut(&node_name(name)).unwrap()
    }

    fn falls(&mut self, name: &str, status: MemberStatus) {
        let now = self.now;
        let peer = self.peer(name);
        (peer.status, peer.since) = (status, now);
        peer.silent = peer.heard.filter(|_| status == MemberStatus::Down);
        peer.confirmed = (!status.is_alive()).then_some(now);
    }

    fn give(&mut self, input: Input) -> &mut Self {
        self.commands.extend(self.election.handle(input, &self.peers, self.now));
        self
    }

    /// A heartbeat with fresh evidence.
    fn tick(&mut self) -> &mut Self {
        self.peers.evidence_since = Some(self.now);
        for peer in self.peers.members.values_mut() {
            peer.confirmed = peer.confirmed.map(|_| self.now);
        }
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

    /// All peers answer what this node asks them, beside the heartbeats.
    fn answer(&mut self) -> &mut Self {
        self.now += ms(10);
        self.peers.evidence_since = Some(self.now);
        for peer in self.peers.members.values_mut() {
            peer.confirmed = peer.confirmed.map(|_| self.now);
            peer.current = peer.status.is_alive().then_some(self.now);
        }
        self.give(Input::Peers)
    }

    fn later(&mut self, by: Duration) -> &mut Self {
        self.now += by;
        self
    }

    fn role(&self) -> Role {
        self.election.leadership(vip4(1)).unwrap().role
    }

    fn leader(&self) -> Option<&str> {
        let state = &self.election.states[&vip4(1)];
        if state.own().is_some() { Some("a") } else { state.latest.as_ref().map(|known| known.node.as_str()) }
    }

    /// Returns the commands about nodes' records since the last call, as text.
    fn recorded(&mut self) -> Vec<String> {
        let line = |command: &Command| {
            if let Command::Store(operation) = command {
                let is_own = record_node(operation) == Some(&self.election.local);
                assert!(is_own || !operation.is_urgent(), "the election waits for no other record: {operation:?}");
            }
            Some(match command {
                Command::Store(StoreOperation::ReadRecord { node, .. }) => format!("read {node}"),
                Command::Store(StoreOperation::SwapRecord { node, expected, content, .. }) => {
                    let RecordContent { state, promise } = content;
                    let expected = expected.as_ref().map_or("none", Version::as_str);
                    match state {
                        RecordState::Confirmed => {
                            format!("confirm {node} ({expected}) for {} ms", promise.as_millis())
                        }
                        RecordState::Challenged(_) => format!("challenge {node} ({expected})"),
                        RecordState::Fenced(_) => format!("fence {node} ({expected})"),
                    }
                }
                _ => return None,
            })
        };
        let recorded = self.commands.iter().filter_map(line).collect();
        self.commands.retain(|command| !is_about_record(command));
        recorded
    }

    /// Answers what was asked last about a node's record.
    fn record(&mut self, node: &str, outcome: RecordOutcome) -> &mut Self {
        let asked = self.now;
        self.give(recorded(node, asked, outcome))
    }

    /// The record of `b` is read. It promises nothing long.
    fn knows_b(&mut self) -> &mut Self {
        self.record("b", RecordOutcome::Read(Some(record(RecordState::Confirmed, "r1"))))
    }

    /// Fences a node whose record does not exist.
    fn fence(&mut self, node: &str) -> &mut Self {
        self.record(node, RecordOutcome::Read(None)).record(node, RecordOutcome::Swapped(version("r1")));
        self.ticks(25).record(node, RecordOutcome::Swapped(version("r2")))
    }

    /// Returns whether the peers are asked beside the heartbeats, and nothing else is done.
    fn only_asks(&mut self) -> bool {
        let asks = self.commands.contains(&Command::AskPeers);
        asks && self.said().is_empty()
    }

    /// Returns the other commands since the last call, as text.
    fn said(&mut self) -> Vec<String> {
        let (kept, said) = std::mem::take(&mut self.commands).into_iter().partition::<Vec<_>, _>(is_about_record);
        self.commands = kept;
        let line = |command: &Command| {
            Some(match command {
                Command::Heartbeat
                | Command::AskPeers
                | Command::Extend(_)
                | Command::Publish(Item::Ready(_))
                | Command::Store(StoreOperation::ReadRecord { .. } | StoreOperation::SwapRecord { .. }) => return None,
                Command::Follow { why, .. } => format!("follow: {why}"),
                Command::Lead { epoch, why, .. } => format!("lead {epoch}: {why}"),
                Command::Reload => "gather".into(),
                Command::DiscardEvidence => "renounce".into(),
                Command::Store(StoreOperation::Read(_)) => "read".into(),
                Command::Store(StoreOperation::Swap { expected, epoch, .. }) => match expected {
                    Some(version) => format!("swap {version} for {epoch}"),
                    None => format!("create {epoch}"),
                },
                Command::Store(StoreOperation::Survey) => "survey".into(),
                Command::Store(StoreOperation::Delete { version, .. }) => format!("delete {version}"),
                Command::Send { to, message: ElectionMessage { step, epoch, .. } } => {
                    format!("{to}: {} {epoch}", format!("{step:?}").to_lowercase())
                }
                Command::Publish(Item::Claim { epoch, .. }) => format!("claim {epoch}"),
                Command::Publish(item) => format!("publish {item:?}"),
                Command::Withdraw(ItemKey::Claim(_)) => "withdraw".into(),
                Command::Withdraw(key) => format!("withdraw {key:?}"),
                Command::Probe { detect, .. } => if *detect { "detect" } else { "ask the LAN" }.into(),
                Command::Conflict { .. } => "conflict".into(),
                Command::Assure { assured, .. } => if *assured { "assure" } else { "assure no longer" }.into(),
                Command::Forged { by, .. } => format!("forged with {by}'s MAC"),
                Command::Ask(name) => format!("ask {name}"),
            })
        };
        said.iter().filter_map(line).collect()
    }
}

/// Returns the node whose record the operation reads or writes.
fn record_node(operation: &StoreOperation) -> Option<&NodeName> {
    match operation {
        StoreOperation::ReadRecord { node, .. } | StoreOperation::SwapRecord { node, .. } => Some(node),
        _ => None,
    }
}

fn is_about_record(command: &Command) -> bool {
    matches!(command, Command::Store(operation) if record_node(operation).is_some())
}

fn read(lease: Option<Lease>) -> Input {
    Input::Stored { vip: vip4(1), outcome: LeaseOutcome::Read(lease) }
}

fn swapped(text: &str) -> Input {
    Input::Stored { vip: vip4(1), outcome: LeaseOutcome::Swapped(version(text)) }
}

fn stored(outcome: LeaseOutcome) -> Input {
    Input::Stored { vip: vip4(1), outcome }
}

fn recorded(node: &str, asked: Duration, outcome: RecordOutcome) -> Input {
    Input::Recorded { node: node_name(node), asked, outcome }
}

fn record(state: RecordState, text: &str) -> NodeRecord {
    NodeRecord { content: RecordContent { state, promise: LEASE }, version: version(text) }
}

/// A message about `.1`.
fn told(from: &str, step: TransferStep, epoch: u64) -> Input {
    Input::Message { from: node_name(from), message: ElectionMessage { step, vip: vip4(1), epoch } }
}

/// An announcement of a millisecond ago with these peers' MACs, to which the kernel yielded.
fn announced(bench: &Bench, by: &[&str]) -> PeerAnnouncement {
    let by = by.iter().copied().map(node_name).collect();
    PeerAnnouncement { vip: vip4(1), by, at: bench.now.saturating_sub(ms(1)), yielded: true }
}

fn probed(owner: AddressOwner) -> Input {
    Input::Probed { vip: vip4(1), owner }
}
