//! Which other agents are alive, what they say of themselves, and the evidence that they still know us: a state machine
//! without clock or I/O. Payloads and the time come in; what is to be sent and what happened is taken out.
//!
//! Four things go on beside each other:
//!
//! - *SWIM* ([`foca`]) finds out who is down: each node probes another every [`Settings::probe_period`], directly and through
//!   others, and what one finds all learn by gossip. The verdict is the majority's: when a partition is over, a node that
//!   saw none forgets whom it held for down, and is told itself that it was.
//! - *Asks* ([`Membership::ask`]) are the evidence for the fence: who answers holds us for alive. Whoever SWIM suspects is
//!   asked too, and what answers is not down: asks go both ways, and there are more of them than of SWIM's probes.
//! - *Farewells*: who leaves says so to all. An ask tells how many members the asker knows: one that knows more than who is
//!   asked may have missed a farewell, and is told of those that were heard.
//! - *State*: each node numbers the changes of its items. Asks and answers tell the latest number; who is behind pulls what
//!   came since.
//!
//! ```text
//!             SWIM hears of it          a probe failed             nothing answered
//! (unknown) ──────────────────► Alive ────────────────► Suspected ──────────────────► Down
//!                               ▲ ▲ ▲     answered          │                          │
//!                               │ │ └───────────────────────┘                          │
//!                               │ └────────────────────────────────────────────────────┤
//!                               │           it joins, with a higher generation         │
//!                               └────────────────────────── Left ◄─────────────────────┘
//!                                                       it said so, whatever it was; some
//!                                                       hear it of those who heard it
//! ```
//!
//! *Generations*: who is held for down in one generation can only be alive in a later one, which it takes when it is told.
//! Then its peers no longer know it for what it was, and it must not answer for a VIP: [`Event::Disowned`]. A restarted agent
//! begins with the first generation again, is told the same, and is known by the number of its run as another than before.

mod asks;
mod contact;
mod members;
mod publication;
mod replica;
mod rounds;
pub mod sealing;
mod settings;
mod state;
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

use self::{
    contact::Contact,
    publication::Publication,
    rounds::Rounds,
    swim::{Identity, Swim, admitted},
    wire::Wire,
};
pub use self::{
    publication::Full,
    settings::{SAMPLE, Settings},
    state::{Claimed, Item, Key, MOST_ITEMS, MOST_SEGMENTS, Probed, State, Why},
    wire::{MOST_PAYLOAD, Malformed, Message},
};
use crate::model::NodeName;

/// Most payloads and events that wait to be taken; the rest is lost, as it may be on the network.
const MOST_WAITING: usize = 65_536;
/// Of nodes that become known, so many are spoken to at once.
const FIRST_ANNOUNCED: usize = 64;
/// At the start those who are not there yet are spoken to so many times in a hurry: the first words only open a session.
const HURRY: u32 = 20;
/// How often a node says that it leaves.
const FAREWELLS: u32 = 3;

/// The other nodes, as this one sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// Those of the manifests that were ever alive here, without ourselves.
    pub members: BTreeMap<NodeName, Peer>,
    /// A majority of the known members, ourselves included, answered what was asked then or later; of two, the other one.
    /// Known are those who are in `members` and have not left. In a large cluster it is a majority of a sample, while SWIM
    /// has a majority of all for alive. `None`: never so far.
    pub evidence: Option<Duration>,
    /// More than half of the known members are alive, ourselves included.
    pub majority: bool,
}

/// Another node. Times are `CLOCK_BOOTTIME` of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// How it stands.
    pub standing: Standing,
    /// Since when it stands so.
    pub since: Duration,
    /// Its generation.
    pub generation: u64,
    /// When a message of it came last.
    pub heard: Option<Duration>,
    /// Of one that is down: nobody can hold evidence of it that was asked for later than this. `None`: not enough others
    /// were heard of it, or there are more than are all asked.
    pub silent: Option<Duration>,
    /// When that was asked which it answered last.
    pub answered: Option<Duration>,
    /// Our copy of its state is as new as this, or newer.
    pub current: Option<Duration>,
    /// Our copy of its state.
    pub state: State,
}

/// How a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is alive.
    Alive,
    /// A probe of ours failed, and it has not answered since. It still counts as alive.
    Suspected,
    /// It is down, as one node has found and all have heard.
    Down,
    /// It went orderly.
    Left,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Some peer's standing or state.
    Changed,
    /// Somebody held us for down, or knew us for what we no longer are.
    Disowned,
    /// An election's message came.
    Told {
        /// Whose.
        from: NodeName,
        /// What it says.
        message: Message,
    },
}

/// What is due later.
#[derive(Debug)]
enum Timer {
    Swim(foca::Timer<Identity>),
    /// Asks those again who have not answered what was asked then.
    Again(Duration),
    /// Asks a suspect.
    Press(NodeName),
    /// Asks the others about those who are down; so many times.
    Inquire(u32),
    /// Pulls a state again.
    Pull(NodeName),
    Join,
    /// Tells that our state changed.
    News,
    /// Spreads that somebody is down.
    Alarm,
    /// Says again that we leave; so many times more.
    Farewell(u32),
}

/// The membership of one node.
pub struct Membership {
    settings: Settings,
    started: Duration,
    local: NodeName,
    rng: XorShiftRng,
    /// Those of the manifests, and ourselves, by [`Identity::key`].
    nodes: BTreeMap<u64, NodeName>,
    swim: Swim,
    peers: Peers,
    /// What we know of each of the members beside what others may see.
    contacts: BTreeMap<NodeName, Contact>,
    /// Members that have not left; without ourselves.
    known: usize,
    /// Standings changed since the members were last counted.
    uncounted: bool,
    /// Somebody was found down while no majority answered.
    doubtful: bool,
    /// When whom we held for down was forgotten last.
    forgiven: Option<Duration>,
    publication: Publication,
    rounds: Rounds,
    /// As [`Peers::evidence`]; but of a sample it takes two thirds, since a majority of it can be chance.
    assent: Option<Duration>,
    /// What was asked before is no evidence.
    renounced: Duration,
    /// By when they are due, and in the order they were set.
    timers: BTreeMap<(Duration, u64), Timer>,
    timers_set: u64,
    /// From when on news may be told again, and somebody's being down spread; `None` while a timer for it is set.
    news_from: Option<Duration>,
    alarm_from: Option<Duration>,
    left: bool,
    outbox: Vec<(NodeName, Vec<u8>)>,
    happened: Happened,
    /// So many times more others are spoken to ten times as often.
    hurry: u32,
}

/// Events that were not taken yet.
#[derive(Debug, Default)]
struct Happened {
    changed: bool,
    disowned: bool,
    told: Vec<(NodeName, Message)>,
}

impl Membership {
    /// A node that knows nobody. `seed` must be another one at each start: peers tell by what is drawn from it that the
    /// agent was started anew.
    pub fn new(local: NodeName, seed: u64, settings: Settings, now: Duration) -> Self {
        let mut rng = XorShiftRng::seed_from_u64(seed);
        let key = Identity::key(&local);
        let swim = Swim::new(Identity { node: key, generation: 1 }, rng.next_u64(), &settings);
        let publication = Publication::new(rng.next_u64().max(1));
        let mut membership = Self {
            settings,
            started: now,
            rng,
            nodes: BTreeMap::from([(key, local.clone())]),
            local,
            swim,
            peers: Peers { majority: true, ..Peers::default() },
            contacts: BTreeMap::new(),
            known: 0,
            uncounted: false,
            doubtful: false,
            forgiven: None,
            publication,
            rounds: Rounds::default(),
            assent: None,
            renounced: Duration::ZERO,
            timers: BTreeMap::new(),
            timers_set: 0,
            news_from: Some(Duration::ZERO),
            alarm_from: Some(Duration::ZERO),
            left: false,
            outbox: Vec::new(),
            happened: Happened::default(),
            hurry: HURRY,
        };
        membership.set(now + membership.settings.join / 10, Timer::Join);
        membership
    }

    /// The Nodes of the manifests, with or without ourselves: whom to join and to count. One that is gone is forgotten.
    pub fn know(&mut self, mut nodes: BTreeSet<NodeName>, now: Duration) {
        nodes.insert(self.local.clone());
        let nodes: BTreeMap<_, _> = nodes.into_iter().map(|name| (Identity::key(&name), name)).collect();
        let before = std::mem::replace(&mut self.nodes, nodes);
        self.swim.expect(self.nodes.len());
        for (key, name) in before.iter().filter(|(key, _)| !self.nodes.contains_key(key)) {
            self.contacts.remove(name);
            if let Some(peer) = self.peers.members.remove(name) {
                let _ = self.swim.forget(Identity { node: *key, generation: peer.generation });
                (self.uncounted, self.happened.changed) = (true, true);
            }
        }
        let added = self.nodes.keys().filter(|key| !before.contains_key(key)).copied().collect();
        self.announce(added, FIRST_ANNOUNCED);
        self.settle(now);
    }

    /// Takes a payload that `from` was proven to have sent.
    pub fn receive(&mut self, from: &NodeName, payload: &[u8], now: Duration) -> Result<(), Malformed> {
        let key = Identity::key(from);
        if *from == self.local || self.nodes.get(&key) != Some(from) {
            return Err(Malformed::Stranger);
        }
        let wire = Wire::decode(payload)?;
        if self.left {
            return Ok(());
        }
        self.forgive(from, now);
        match wire {
            Wire::Swim { majority, packet } => {
                let judges = self.judges(now);
                // Who has just come back hears of those without a majority too, and will soon know better.
                let back = self.forgiven.is_some_and(|at| now < at + self.settings.suspicion);
                let packet = admitted(packet, key, &self.nodes, majority || !judges && !back)?;
                self.swim.notify(judges);
                let received = self.swim.receive(&packet);
                self.settle(now);
                received.map_err(Malformed::Swim)?;
            }
            Wire::Ask(ask) => self.asked(from, ask, now),
            Wire::Answer(answer) => self.answered(from, &answer, now),
            Wire::Pull(pull) => self.send(from, &Wire::Delta(self.publication.page(&pull))),
            Wire::Delta(delta) => self.advance(from, delta, now)?,
            Wire::Told { asked, message } => self.told(from, asked, message, now),
            Wire::Left(departed) => departed.into_iter().for_each(|departed| self.parted(departed, now)),
        }
        if let Some(peer) = self.peers.members.get_mut(from) {
            peer.heard = Some(now);
        }
        Ok(())
    }

    /// Does what is due.
    pub fn turn(&mut self, now: Duration) {
        while let Some(first) = self.timers.first_entry()
            && first.key().0 <= now
        {
            let ((due, _), timer) = first.remove_entry();
            self.fire(timer, due, now);
        }
    }

    /// When [`Membership::turn`] has something to do: at once, where that has passed. After [`Membership::leave`], `None`
    /// once everything is said.
    pub fn next(&self) -> Option<Duration> {
        self.timers.first_key_value().map(|((due, _), _)| *due)
    }

    /// Asks all known members, or a sample of them, whether they hold us for alive.
    pub fn ask(&mut self, now: Duration) {
        if self.left {
            return;
        }
        let known = members::known(&self.peers).collect();
        let whom = members::draw(&mut self.rng, known, self.settings.sample).into_iter().cloned().collect();
        self.begin(whom, now);
    }

    /// Publishes an item, in place of one of the same key.
    pub fn publish(&mut self, item: Item, now: Duration) -> Result<(), Full> {
        if self.publication.publish(item)? {
            self.news(now);
        }
        Ok(())
    }

    /// Takes back what was published.
    pub fn withdraw(&mut self, key: &Key, now: Duration) {
        if self.publication.withdraw(*key) {
            self.news(now);
        }
    }

    /// Sends a message of the election, once.
    pub fn tell(&mut self, to: &NodeName, message: Message) {
        let asked = self.contacts.get(to).map_or(0, |contact| contact.asked);
        self.send(to, &Wire::Told { asked, message });
    }

    fn told(&mut self, from: &NodeName, asked: u64, message: Message, now: Duration) {
        let age = now.checked_sub(Duration::from_nanos(asked));
        if matches!(message, Message::Take { .. }) && age.is_none_or(|age| age > self.settings.fresh) {
            // The next one will tell that it is younger than this.
            let ask = self.question(now);
            self.send(from, &Wire::Ask(ask));
        } else if self.happened.told.len() < MOST_WAITING {
            self.happened.told.push((from.clone(), message));
        }
    }

    /// Leaves: from now on nothing is taken in, and nothing is said but that. To be turned until there is nothing
    /// [`Membership::next`].
    pub fn leave(&mut self, now: Duration) {
        if self.left {
            return;
        }
        self.left = true;
        let _ = self.swim.leave();
        self.settle(now);
        self.timers.clear();
        self.fire(Timer::Farewell(FAREWELLS), now, now);
    }

    /// What was asked before now is no evidence any more.
    pub fn renounce(&mut self, now: Duration) {
        self.renounced = now;
        self.rounds.clear();
        (self.peers.evidence, self.assent) = (None, None);
        for peer in self.peers.members.values_mut() {
            peer.answered = None;
        }
    }

    /// The other nodes.
    pub const fn peers(&self) -> &Peers {
        &self.peers
    }

    /// What is to be sent, and to whom.
    pub fn take_outbox(&mut self) -> Vec<(NodeName, Vec<u8>)> {
        std::mem::take(&mut self.outbox)
    }

    /// This node's own generation.
    pub fn generation(&self) -> u64 {
        self.swim.identity().generation
    }

    /// Whether [`Self::take_events`] has something.
    pub const fn has_events(&self) -> bool {
        self.happened.disowned || self.happened.changed || !self.happened.told.is_empty()
    }

    /// What happened since this was last called.
    pub fn take_events(&mut self) -> Vec<Event> {
        let Happened { changed, disowned, told } = std::mem::take(&mut self.happened);
        let disowned = disowned.then_some(Event::Disowned);
        let changed = changed.then_some(Event::Changed);
        let told = told.into_iter().map(|(from, message)| Event::Told { from, message });
        disowned.into_iter().chain(changed).chain(told).collect()
    }

    fn send(&mut self, to: &NodeName, wire: &Wire<'_>) {
        // Nothing that is sent is longer than a payload may be.
        if let Ok(payload) = wire.encode() {
            self.post(to, payload);
        }
    }

    fn post(&mut self, to: &NodeName, payload: Vec<u8>) {
        if self.outbox.len() < MOST_WAITING {
            self.outbox.push((to.clone(), payload));
        }
    }

    fn set(&mut self, due: Duration, timer: Timer) {
        self.timers_set += 1;
        self.timers.insert((due, self.timers_set), timer);
    }
}
