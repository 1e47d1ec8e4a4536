//! Knows which other agents are alive, and what they publish: a state machine without clock or I/O.
//!
//! Payloads and the time come in. Payloads to send and events are taken out. It has four parts:
//!
//! - *SWIM* ([`foca`]) finds out which nodes are down. Each node probes another one every
//!   [`MembershipSettings::probe_period`], directly and through others, unless all members answer its
//!   heartbeats. Gossip distributes the results. The majority decides: after a partition, a node that
//!   was not with a majority forgets the nodes that it considered down. Its peers notify it that it
//!   was down itself.
//! - *Heartbeats* ([`Membership::schedule_heartbeats`]) are the evidence for the fence: a node that
//!   answers considers us alive. They leave shortly before the event loop's heartbeat that uses the
//!   answers. Nodes that SWIM suspects get heartbeats too, and a node that answers is not down.
//!   Where all nodes are asked, one that does not answer a round is suspected, too.
//! - *Farewells*: a node that leaves says so to all. A heartbeat has the number of members that its
//!   sender knows. A sender that knows more than the receiver may have missed a farewell, and gets
//!   the list of departed nodes.
//! - *State*: each node numbers the changes of its items. Heartbeats and acks have the latest
//!   number. A peer that is behind pulls the changes since.
//!
//! ```text
//!             SWIM hears of it          a probe failed             nothing answered
//! (unknown) ──────────────────► Alive ────────────────► Suspected ──────────────────► Down
//!                               ▲ ▲ ▲     answered          │                          │
//!                               │ │ └───────────────────────┘                          │
//!                               │ └────────────────────────────────────────────────────┤
//!                               │           it joins, with a higher generation         │
//!                               └────────────────────────── Left ◄─────────────────────┘
//!                                                       it said so, in any status; some
//!                                                       hear it from those who heard it
//! ```
//!
//! *Generations*: a node that peers consider down in one generation can only be alive in a later
//! one. It takes the next generation when a peer notifies it. Then its peers no longer know it as
//! the earlier one, and it must not answer for a VIP: [`MembershipEvent::Disowned`]. A restarted
//! agent begins with the first generation again, and peers notify it in the same way. The number of
//! its run shows its peers that it is another agent than before.

mod heartbeat_rounds;
mod heartbeats;
mod item_kind;
mod items;
mod local_state;
mod member_id;
mod members;
mod other_keys;
mod payload;
mod peer_record;
mod peers;
mod remote_state;
pub mod sealing;
mod settings;
mod swim;
mod wire;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand_core::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;

#[cfg(any(test, feature = "simulation", debug_assertions))]
pub use self::wire::as_of_a_later_version;
use self::{
    heartbeat_rounds::HeartbeatRounds,
    heartbeats::nanoseconds,
    local_state::LocalState,
    member_id::MemberId,
    peer_record::{PeerRecord, Pulling},
    remote_state::{Applied, Progress},
    swim::{Swim, admitted},
    wire::{Delta, StateVersion, Wire},
};
pub use self::{
    item_kind::{ItemKind, MOST_ADDRESSES, MOST_SEGMENTS},
    items::{AgentInfo, Claimed, HashingInfo, Item, ItemKey, MOST_LEASE, ProbedPort, State, Why, WireVersions},
    local_state::Full,
    other_keys::OtherKeys,
    payload::MOST_PAYLOAD,
    peers::{MemberStatus, Peer, Peers},
    settings::{MembershipSettings, SAMPLE},
    wire::{ElectionMessage, Malformed, TransferStep},
};
use vipmux_model::NodeName;

/// The most payloads and events that wait to be taken. The rest is lost, as it may be on the
/// network.
const MOST_WAITING: usize = 65_536;
/// The number of new nodes that are contacted at once.
const FIRST_ANNOUNCED: usize = 64;
/// The number of contacts in a hurry at the start, to nodes that are not alive yet. The first
/// message only opens a session.
const HURRY: u32 = 20;
/// The time after its deadline in which a node may get its objects and answer again, before others take its VIPs.
const UNINFORMED: Duration = Duration::from_secs(1);
/// The time for which a member without a Node object counts after it was found down, or left. By then its
/// VIPs have another leader.
const DELETED: Duration = Duration::from_secs(10);
/// The number of times that a node says that it leaves.
const FAREWELLS: u32 = 3;

/// An event for the event loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEvent {
    /// The status or state of a peer changed.
    Changed,
    /// A peer considered this node down, or knew it in a generation that it no longer has.
    Disowned,
    /// A message of a peer's election came.
    Message {
        /// The sender.
        from: NodeName,
        /// The message.
        message: ElectionMessage,
    },
}

/// Work that is due later.
#[derive(Debug)]
enum Timer {
    Swim(foca::Timer<MemberId>),
    /// Sends the heartbeats of [`Pace::next_beat`].
    Heartbeats,
    /// Repeats the heartbeats of that time that were not answered.
    Again(Duration),
    /// Sends a heartbeat to a suspect.
    AskSuspect(NodeName),
    /// Asks the others about nodes that are down, this many times.
    ConfirmDown(u32),
    /// Pulls a state again.
    Pull(NodeName),
    Join,
    /// Announces that the state of this node changed.
    AnnounceState,
    /// Spreads the news that a node is down.
    SpreadDown,
    /// Says that this node leaves, this many times.
    Farewell(u32),
}

/// The membership of one node.
pub struct Membership {
    settings: MembershipSettings,
    local: NodeName,
    rng: XorShiftRng,
    /// The Nodes of the cluster and this one, by [`MemberId::key`], also those in [`Self::deleted`].
    nodes: BTreeMap<u64, NodeName>,
    /// Members whose Node object is gone.
    deleted: BTreeSet<u64>,
    swim: Swim,
    peers: Peers,
    /// The record of each member, beside the public view.
    records: BTreeMap<NodeName, PeerRecord>,
    view: MembershipView,
    local_state: LocalState,
    evidence: Evidence,
    timers: MembershipTimers,
    pace: Pace,
    lapse: Lapse,
    left: bool,
    output: PendingOutput,
}

/// What tells that this node answers for nothing that it claims: [`Item::Lapsed`].
#[derive(Debug, Default)]
struct Lapse {
    /// The kernel's deadline; `None`: it was never extended.
    deadline: Option<Duration>,
    /// The last heartbeat of the event loop.
    beat: Duration,
    /// The time from which the event loop counts as hanging.
    hangs_at: Duration,
    /// It was published.
    published: bool,
}

impl Lapse {
    /// Returns when the node lapses: its deadline has passed, and the event loop hangs, or has not brought the node
    /// back for a second.
    fn at(&self) -> Option<Duration> {
        let deadline = self.deadline.filter(|_| !self.published)?;
        Some(self.hangs_at.clamp(deadline, deadline + UNINFORMED))
    }
}

/// The counts of members, and doubts about who is down.
#[derive(Debug, Default)]
struct MembershipView {
    /// The number of members that have not left, without this node.
    known: usize,
    /// Statuses changed since the members were last counted.
    uncounted: bool,
    /// A node was found down while no majority answered.
    doubtful: bool,
    /// The time at which this node last forgot the nodes that it considered down.
    forgotten: Option<Duration>,
}

/// The evidence that others consider this node alive.
#[derive(Debug, Default)]
struct Evidence {
    /// The start. A member that has not answered yet is silent since then.
    since: Duration,
    rounds: HeartbeatRounds,
    /// As [`Peers::evidence`]. But of a sample it takes two thirds, since a majority of it can be
    /// chance.
    assent: Option<Duration>,
    /// Answers to heartbeats from before are no evidence.
    discarded: Duration,
}

/// Timers by the time at which they are due, and in the order in which they were set.
#[derive(Debug, Default)]
struct MembershipTimers {
    due: BTreeMap<(Duration, u64), Timer>,
    count: u64,
}

/// Limits on how often this node speaks.
#[derive(Debug, Default)]
struct Pace {
    /// The time from which changes of the state may be announced again; `None`: a timer for it is
    /// set.
    state_from: Option<Duration>,
    /// The number of peers, at most, to which the state must still be announced,
    unannounced: usize,
    /// and the last one to which it was. They take turns by name.
    announced: Option<NodeName>,
    /// The time from which news of nodes that are down may be spread again; `None`: a timer for it
    /// is set.
    down_from: Option<Duration>,
    /// The number of times that others are still contacted ten times as often.
    hurry: u32,
    /// The time of the last heartbeats to all known members, or a sample of them,
    beat: Duration,
    /// of the next ones,
    next_beat: Duration,
    /// and of the last questions to all of them, whatever the reason.
    asked: Duration,
}

/// Payloads and events that were not taken yet.
#[derive(Debug, Default)]
struct PendingOutput {
    payloads: Vec<(NodeName, Vec<u8>)>,
    changed: bool,
    disowned: bool,
    /// With the time of a heartbeat that the sender knew of.
    messages: Vec<(NodeName, ElectionMessage, Duration)>,
}

impl Membership {
    /// Creates a node that knows no other. `seed` must differ at each start: peers tell by numbers
    /// drawn from it that the agent was restarted.
    pub fn new(local: NodeName, seed: u64, settings: MembershipSettings, now: Duration) -> Self {
        let mut rng = XorShiftRng::seed_from_u64(seed);
        let key = MemberId::key(&local);
        let swim = Swim::new(MemberId { node: key, generation: 1 }, rng.next_u64(), &settings);
        let local_state = LocalState::new(rng.next_u64().max(1));
        let mut membership = Self {
            settings,
            rng,
            nodes: BTreeMap::from([(key, local.clone())]),
            deleted: BTreeSet::new(),
            local,
            swim,
            peers: Peers { majority: true, ..Peers::default() },
            records: BTreeMap::new(),
            view: MembershipView::default(),
            local_state,
            evidence: Evidence { since: now, ..Evidence::default() },
            timers: MembershipTimers::default(),
            pace: Pace {
                state_from: Some(Duration::ZERO),
                down_from: Some(Duration::ZERO),
                hurry: HURRY,
                ..Pace::default()
            },
            lapse: Lapse { beat: now, ..Lapse::default() },
            left: false,
            output: PendingOutput::default(),
        };
        membership.set(now + membership.settings.join / 10, Timer::Join);
        membership
    }

    /// Sets the Nodes of the cluster, with or without this one: the nodes to join and to count. A
    /// Node that is gone stays a member until its agent has left or was down for ten seconds: it leads, and
    /// transfers its VIPs.
    pub fn set_nodes(&mut self, mut nodes: BTreeSet<NodeName>, now: Duration) {
        nodes.insert(self.local.clone());
        let nodes: BTreeMap<_, _> = nodes.into_iter().map(|name| (MemberId::key(&name), name)).collect();
        let missing = |from: &BTreeMap<u64, NodeName>, of: &BTreeMap<u64, NodeName>| {
            from.keys().filter(|key| !of.contains_key(key)).copied().collect::<BTreeSet<_>>()
        };
        self.deleted = missing(&self.nodes, &nodes);
        let added = missing(&nodes, &self.nodes).into_iter().collect();
        self.nodes.extend(nodes);
        self.forget_deleted(now);
        self.view.uncounted = true;
        self.announce(added, FIRST_ANNOUNCED);
        self.process_swim(now);
    }

    /// Returns the other nodes that this one exchanges payloads with, although they have no Node object.
    pub fn deleted(&self) -> impl Iterator<Item = &NodeName> {
        self.deleted.iter().filter_map(|key| self.nodes.get(key))
    }

    /// Handles a payload that `from` was proven to have sent.
    pub fn receive(&mut self, from: &NodeName, payload: &[u8], now: Duration) -> Result<(), Malformed> {
        let key = MemberId::key(from);
        if *from == self.local || self.nodes.get(&key) != Some(from) {
            return Err(Malformed::Stranger);
        }
        let wire = Wire::decode(payload)?;
        if self.left {
            return Ok(());
        }
        self.forget_downs(from, now);
        let mut refused = Ok(());
        match wire {
            Wire::Swim { majority, packet } => {
                let may_declare_down = self.may_declare_down(now);
                // A node that has just come back also listens to nodes without a majority. It will
                // soon know better.
                let back = self.view.forgotten.is_some_and(|at| now < at + self.settings.suspicion);
                let packet = admitted(packet, key, &self.nodes, majority || !may_declare_down && !back)?;
                self.swim.notify(may_declare_down);
                let received = self.swim.receive(&packet);
                self.process_swim(now);
                received.map_err(Malformed::Swim)?;
            }
            Wire::Heartbeat(ask) => self.receive_heartbeat(from, ask, now),
            Wire::Ack(answer) => self.receive_ack(from, &answer, now),
            Wire::Pull(pull) => self.send(from, &Wire::Delta(self.local_state.page(&pull))),
            Wire::Delta(delta) => refused = self.receive_delta(from, delta, now),
            Wire::Message { asked, message: Some(message) } => self.receive_message(from, asked, message, now),
            // The sender repeats it, and then does without an answer.
            Wire::Message { message: None, .. } => {}
            Wire::Left(departed) => departed.into_iter().for_each(|departed| self.receive_left(departed, now)),
        }
        if let Some(peer) = self.peers.members.get_mut(from) {
            peer.heard = Some(now);
        }
        refused
    }

    /// Fires the timers that are due.
    pub fn turn(&mut self, now: Duration) {
        while let Some(first) = self.timers.due.first_entry()
            && first.key().0 <= now
        {
            let ((due, _), timer) = first.remove_entry();
            self.handle_timer(timer, due, now);
        }
        if !self.left && self.lapse.at().is_some_and(|at| now >= at) {
            // It is one of the items that always have room.
            self.lapse.published = self.publish(Item::Lapsed, now).is_ok();
        }
    }

    /// Notes a heartbeat of the event loop. Without another one within `lease`, it hangs.
    pub fn note_event_loop(&mut self, lease: Duration, now: Duration) {
        (self.lapse.beat, self.lapse.hangs_at) = (now, now + lease);
    }

    /// Returns whether the event loop has had no heartbeat for so long that this node must seem dead.
    pub fn is_hung(&self, now: Duration) -> bool {
        now.saturating_sub(self.lapse.beat) > self.settings.hung
    }

    /// Notes that the kernel answers until `deadline`.
    pub fn note_deadline(&mut self, deadline: Duration, now: Duration) {
        self.lapse.deadline = Some(deadline);
        if std::mem::take(&mut self.lapse.published) {
            self.withdraw(&ItemKey::Lapsed, now);
        }
    }

    /// Returns when to call [`Membership::turn`]; at once, if that time has passed. After
    /// [`Membership::leave`], `None` means that everything is said.
    pub fn next(&self) -> Option<Duration> {
        let timer = self.timers.due.first_key_value().map(|((due, _), _)| *due);
        let lapse = self.lapse.at().filter(|_| !self.left);
        timer.into_iter().chain(lapse).min()
    }

    /// Handles a heartbeat of the event loop: asks the others shortly before the next one, which uses their
    /// answers. Asks at once if they were not asked in time for this one.
    pub fn schedule_heartbeats(&mut self, now: Duration) {
        if self.left {
            return;
        }
        if now >= self.pace.beat + self.settings.round {
            self.send_heartbeats(now);
        }
        self.pace.next_beat = now + self.settings.round;
        self.set(self.pace.next_beat, Timer::Heartbeats);
    }

    /// Asks all known members, or a sample of them, whether they consider this node alive.
    fn send_heartbeats(&mut self, now: Duration) {
        let suffice = self.heartbeats_suffice(now);
        self.suspect_silent(now);
        self.ask_sample(now);
        self.pace.beat = now;
        let probe = self.swim.probe.take_if(|_| !suffice);
        for timer in self.swim.gossip.take().into_iter().chain(probe) {
            self.swim_timer(timer, now, now);
        }
    }

    /// Asks all known members, or a sample of them, between two rounds of heartbeats, at most as often as changes of
    /// the state are announced.
    pub fn ask_peers(&mut self, now: Duration) {
        if !self.left && now >= self.pace.asked + self.settings.news {
            self.ask_sample(now);
        }
    }

    fn ask_sample(&mut self, now: Duration) {
        let known = peers::known(&self.peers).collect();
        let whom = members::sample(&mut self.rng, known, self.settings.sample).into_iter().cloned().collect();
        self.begin_round(whom, now);
        self.pace.asked = now;
    }

    /// Asks one peer for its state. There is an event once the copy of its state is as new as `now`
    /// ([`Peer::current`]). If the question is lost, there is none.
    pub fn ask(&mut self, name: &NodeName, now: Duration) {
        let Some(record) = self.records.get_mut(name).filter(|_| !self.left) else { return };
        record.awaited = Some(now);
        let ask = self.heartbeat(now);
        self.send(name, &Wire::Heartbeat(ask));
    }

    /// Publishes an item. It replaces an item with the same key.
    pub fn publish(&mut self, item: Item, now: Duration) -> Result<(), Full> {
        if self.local_state.publish(item)? {
            self.state_changed(now);
        }
        Ok(())
    }

    /// Withdraws a published item.
    pub fn withdraw(&mut self, key: &ItemKey, now: Duration) {
        if self.local_state.withdraw(*key) {
            self.state_changed(now);
        }
    }

    /// Sends a message of the election once.
    pub fn send_message(&mut self, to: &NodeName, message: ElectionMessage) {
        let asked = self.records.get(to).map_or(0, |record| record.asked);
        self.send(to, &Wire::Message { asked, message: Some(message) });
    }

    fn receive_message(&mut self, from: &NodeName, asked: u64, message: ElectionMessage, now: Duration) {
        let asked = Duration::from_nanos(asked);
        if !self.is_fresh(&message, asked, now) {
            // The sender's next message will prove that it is younger than this heartbeat.
            let ask = self.heartbeat(now);
            self.send(from, &Wire::Heartbeat(ask));
        } else if self.output.messages.len() < MOST_WAITING {
            self.output.messages.push((from.clone(), message, asked));
        }
    }

    /// Returns whether a message counts that is not older than a heartbeat of this time.
    fn is_fresh(&self, message: &ElectionMessage, asked: Duration, now: Duration) -> bool {
        let age = now.checked_sub(asked);
        message.step != TransferStep::Take || age.is_some_and(|age| age <= self.settings.fresh)
    }

    /// Leaves. From now on this node handles no payload, and only says that it leaves. Call
    /// [`Membership::turn`] until [`Membership::next`] is `None`.
    pub fn leave(&mut self, now: Duration) {
        if self.left {
            return;
        }
        self.left = true;
        let _ = self.swim.leave();
        self.process_swim(now);
        self.timers.due.clear();
        self.handle_timer(Timer::Farewell(FAREWELLS), now, now);
    }

    /// Discards the evidence so far: answers to earlier heartbeats no longer count.
    pub fn discard_evidence(&mut self, now: Duration) {
        self.evidence.discarded = now;
        self.evidence.rounds.clear();
        (self.peers.evidence_since, self.evidence.assent) = (None, None);
        for peer in self.peers.members.values_mut() {
            peer.answered = None;
        }
    }

    /// Takes note of how new a peer's state is. `asked`: the time of the heartbeat that this
    /// answers.
    fn learn_version(&mut self, from: &NodeName, at: StateVersion, asked: Option<Duration>, now: Duration) {
        let (Some(peer), Some(record)) = (self.peers.members.get_mut(from), self.records.get_mut(from)) else {
            return;
        };
        if record.remote.covers(at) {
            peer.current = peer.current.max(asked);
            self.output.changed |= record.take_awaited(peer.current);
            return;
        }
        record.newest = Some(at);
        // The peer answers, so the pull before was lost.
        match record.pulling {
            None => self.pull(from, 0, now),
            Some(pulling) if pulling.asked + self.settings.pull <= now => self.pull(from, pulling.tries, now),
            Some(_) => {}
        }
    }

    /// Asks for the changes of a peer's state, after this many tries.
    fn pull(&mut self, from: &NodeName, tries: u32, now: Duration) {
        let Some(record) = self.records.get_mut(from) else { return };
        let pulling = Pulling { asked: now, tries };
        record.pulling = Some(pulling);
        let pull = record.remote.pull(nanoseconds(now));
        self.send(from, &Wire::Pull(pull));
        self.set(pulling.retry_at(self.settings.pull), Timer::Pull(from.clone()));
    }

    fn pull_again(&mut self, from: &NodeName, now: Duration) {
        let alive = self.peers.is_alive(from);
        let Some(record) = self.records.get_mut(from) else { return };
        match record.pulling {
            // The peer has not answered, or it has, and this timer belongs to an earlier pull.
            Some(pulling) if alive && pulling.retry_at(self.settings.pull) <= now => {
                self.pull(from, pulling.tries + 1, now);
            }
            Some(_) if !alive => record.pulling = None,
            _ => {}
        }
    }

    /// Handles the answer to a pull.
    fn receive_delta(&mut self, from: &NodeName, delta: Delta, now: Duration) -> Result<(), Malformed> {
        let (Some(peer), Some(record)) = (self.peers.members.get_mut(from), self.records.get_mut(from)) else {
            return Ok(());
        };
        let Some(pulling) = record.pulling.filter(|pulling| nanoseconds(pulling.asked) == delta.asked) else {
            return Ok(());
        };
        let Applied { progress, changed, refused } = record.remote.apply(delta, &mut peer.state, now);
        self.output.changed |= changed;
        match progress {
            Progress::Stale => {}
            Progress::More => self.pull(from, 0, now),
            Progress::Whole => {
                peer.current = peer.current.max(Some(pulling.asked));
                self.output.changed |= record.take_awaited(peer.current);
                record.pulling = None;
                // A newer version was heard of meanwhile. It is not pulled at once, since it need
                // not be true.
                if record.newest.take().is_some_and(|newest| !record.remote.covers(newest)) {
                    let pulling = Pulling { asked: now, tries: 0 };
                    record.pulling = Some(pulling);
                    self.set(pulling.retry_at(self.settings.pull), Timer::Pull(from.clone()));
                }
            }
        }
        refused.map_or(Ok(()), |kind| Err(Malformed::TooMany(kind)))
    }

    /// Returns the view of the other nodes.
    pub const fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Takes the payloads to send, with their receivers.
    pub fn take_outbox(&mut self) -> Vec<(NodeName, Vec<u8>)> {
        std::mem::take(&mut self.output.payloads)
    }

    /// Returns this node's generation.
    pub fn generation(&self) -> u64 {
        self.swim.identity().generation
    }

    /// Returns whether [`Self::take_events`] has an event.
    pub const fn has_events(&self) -> bool {
        self.output.disowned || self.output.changed || !self.output.messages.is_empty()
    }

    /// Takes the events since the last call, without messages that have become too old since.
    pub fn take_events(&mut self, now: Duration) -> Vec<MembershipEvent> {
        let disowned = std::mem::take(&mut self.output.disowned).then_some(MembershipEvent::Disowned);
        let changed = std::mem::take(&mut self.output.changed).then_some(MembershipEvent::Changed);
        let mut told = std::mem::take(&mut self.output.messages);
        told.retain(|(_, message, asked)| self.is_fresh(message, *asked, now));
        let told = told.into_iter().map(|(from, message, _)| MembershipEvent::Message { from, message });
        disowned.into_iter().chain(changed).chain(told).collect()
    }

    fn send(&mut self, to: &NodeName, wire: &Wire<'_>) {
        // No payload that is sent is too long.
        if let Ok(payload) = wire.encode() {
            self.post(to, payload);
        }
    }

    fn post(&mut self, to: &NodeName, payload: Vec<u8>) {
        if self.output.payloads.len() < MOST_WAITING {
            self.output.payloads.push((to.clone(), payload));
        }
    }

    fn set(&mut self, due: Duration, timer: Timer) {
        self.timers.count += 1;
        self.timers.due.insert((due, self.timers.count), timer);
    }
}
