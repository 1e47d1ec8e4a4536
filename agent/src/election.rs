//! Who answers for a VIP, as a state machine without clock, socket or randomness: [`Election::handle`] takes an [`Input`],
//! what is known of the [`Peers`] and the time, and gives [`Command`]s.
//!
//! A VIP's roles on one node:
//!
//! ```text
//!                    nobody leads it, and it is this node's turn: the Lease is read, the LAN asked where the holder's
//!                    death was not witnessed, the Lease swapped; or a leader hands it over (Take)
//!             ┌──────────────────────────────────────────────────────────────────────────────────┐
//!             │                                              the first leader ever               ▼
//!         Following ──────────────────────────────────────► Detecting ── the address is free ─► Leading
//!          ▲ ▲ ▲ ▲                                            │    ▲                            │ │ │
//!          │ │ │ │                       a stranger has it    ▼    │ asked again                │ │ │
//!          │ │ │ └── the Lease is another's ────────────── Conflicted                           │ │ │
//!          │ │ │                                                                                │ │ │
//!          │ │ │      a peer has the Lease, or a higher epoch            a peer announced it    │ │ │
//!          │ │ └────────────────────────────────────────── Yielded ◄────────────────────────────┘ │ │
//!          │ │                                                └─ the Lease is still ours ─► Leading │
//!          │ │        the same                               the fence's deadline passed, or a peer │
//!          │ └──────────────────────────────────────────── Suspended ◄── held this node for down ─┘ │
//!          │                                                  └─ the Lease is still ours ─► Leading │
//!          │                                                                                        │
//!          │     Taken                                                        another should lead   │
//!          └──────────────────────────────────────────────── Handing ◄────────────────────────────┘
//!                                                              └─ Declined, or no answer ─► Leading
//! ```
//!
//! The Lease is written only when leadership changes, and when a node comes back to what it held: comparing and swapping
//! its version keeps two from doing either at once. Its number of transitions is the epoch. Without the store a takeover is
//! allowed to a node that sees a majority and witnessed the holder's death; it writes the Lease when the store is back, or
//! withdraws if that shows an epoch as high as its own.
//!
//! The fence: each [`Input::Tick`] extends the kernel's deadline to *the time the evidence was asked for* + [`Settings::lease`]. Evidence
//! is a majority of the known members that answered ([`Peers::evidence`]), or else a fresh look at the Leases that shows
//! those that this node holds to be still its own. A deadline that has passed is never simply extended: every VIP
//! is suspended, and [`Command::Gather`] asks for evidence anew.

mod errands;
mod fence;
mod handover;
mod io;
pub mod lease;
mod overview;
mod permission;
pub mod placement;
pub mod rendezvous;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod takeover;
mod tenure;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

pub use self::{
    handover::LEAVING,
    io::{Command, Found, Input, Outcome},
    tenure::{Leadership, Lost, Role},
};
use self::{
    overview::Overview,
    placement::{Contender, Contenders},
    tenure::Place,
};
use crate::{
    election::lease::Lease,
    membership::{Item, Key, Peers, Standing},
    model::{NodeName, Vip},
};

/// How long the kernel answers after the last evidence, unless the settings say otherwise.
pub const LEASE: Duration = Duration::from_millis(300);
/// How often evidence is gathered.
pub const HEARTBEAT: Duration = Duration::from_millis(100);

/// How long things take that are left to the user, or that tests shorten.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long the kernel answers after the last evidence.
    pub lease: Duration,
    /// How long a node that came waits before VIPs are moved to it; one that nobody leads it takes at once.
    pub hold_down: Duration,
    /// Whether the LAN is asked for another owner before an address is first put into service.
    pub detect: bool,
}

impl Default for Settings {
    /// [`LEASE`]; a minute; yes.
    fn default() -> Self {
        Self { lease: LEASE, hold_down: Duration::from_mins(1), detect: true }
    }
}

/// The state machine of one node.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Election {
    local: NodeName,
    settings: Settings,
    started: Duration,
    wanted: Arc<BTreeMap<Vip, Contenders>>,
    unable: BTreeSet<Vip>,
    places: BTreeMap<Vip, Place>,
    overview: Overview,
    /// Leases of VIPs that nobody wants, with when this was noticed.
    leftover: BTreeMap<Vip, (Lease, Duration)>,
    draining: bool,
    ready: bool,
    /// At least one announcing interface had a carrier at the last tick.
    carrier: bool,
    /// The fence's deadline, as last extended; `None` where it has passed, or was never extended by this agent.
    deadline: Option<Duration>,
    /// When a survey of the Leases was asked for that showed this node's to be its own.
    surveyed: Option<Duration>,
    /// When there was evidence again, after none.
    back: Duration,
    /// When the deadline passed last: what was asked for before is no evidence.
    lapsed: Duration,
    /// The first survey came back, or will not.
    begun: bool,
    surveying: bool,
    /// What is wanted was said since the start and since the deadline last passed.
    informed: bool,
    /// Something changed that leadership depends on.
    dirty: bool,
    /// When time alone may change something.
    wake: Option<Duration>,
    evaluated: Duration,
    /// When a VIP was last handed over for the sake of balance.
    rebalanced: Duration,
    commands: Vec<Command>,
    /// Broken on purpose.
    #[cfg(any(test, feature = "simulation"))]
    mutation: Option<simulation::Mutation>,
}

impl Election {
    /// A node that leads nothing yet.
    pub fn new(local: NodeName, settings: Settings, now: Duration) -> Self {
        Self {
            local,
            settings,
            started: now,
            wanted: Arc::default(),
            unable: BTreeSet::new(),
            places: BTreeMap::new(),
            overview: Overview::default(),
            leftover: BTreeMap::new(),
            draining: false,
            ready: false,
            carrier: false,
            deadline: None,
            surveyed: None,
            back: Duration::ZERO,
            lapsed: Duration::ZERO,
            begun: false,
            surveying: false,
            informed: false,
            dirty: false,
            wake: None,
            evaluated: Duration::ZERO,
            rebalanced: now,
            commands: Vec::new(),
            #[cfg(any(test, feature = "simulation"))]
            mutation: None,
        }
    }

    /// The VIPs that this node answers for.
    pub fn leading(&self) -> impl Iterator<Item = Vip> {
        self.held().filter(|(_, role)| *role == Role::Leading).map(|(vip, _)| vip)
    }

    /// Whether this node answers for the VIP.
    #[cfg(test)]
    fn leads(&self, vip: Vip) -> bool {
        self.places.get(&vip).is_some_and(|place| place.role == Role::Leading)
    }

    /// The VIPs that are wanted.
    pub fn vips(&self) -> impl Iterator<Item = Vip> {
        self.places.keys().copied()
    }

    /// Whether the hold-down is over.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether another node is to lead a VIP rather than this one, and can now: one that is not itself to lead nothing, say.
    pub fn has_other(&self, vip: Vip, peers: &Peers) -> bool {
        let standing = |contender: &Contender| {
            self.standing(contender, peers).filter(|_| self.is_able(&contender.node, vip, peers))
        };
        let Some(contenders) = self.wanted.get(&vip) else { return false };
        let own = contenders.iter().find(|contender| contender.node == self.local).and_then(standing);
        let mut others = contenders.iter().filter(|contender| contender.node != self.local).filter_map(standing);
        others.any(|other| own.is_none_or(|own| other.precedes(own)))
    }

    /// What is known of who leads a VIP.
    pub fn leadership(&self, vip: Vip) -> Option<Leadership> {
        self.places.get(&vip).map(|place| place.leadership(&self.local))
    }

    /// The VIPs that this node holds, whether or not it answers for them.
    pub fn held(&self) -> impl Iterator<Item = (Vip, Role)> {
        self.overview.held.iter().filter_map(|vip| Some((*vip, self.places.get(vip)?.role)))
    }

    /// When to give an [`Input::Peers`] if nothing else comes before. Never later than the next [`Input::Tick`] by much.
    pub fn next(&self) -> Option<Duration> {
        // Nothing is looked at until it is known what is wanted.
        self.wake.filter(|_| self.informed)
    }

    /// Takes an input at `now` (`CLOCK_BOOTTIME`) and says what to do.
    pub fn handle(&mut self, input: Input, peers: &Peers, now: Duration) -> Vec<Command> {
        match input {
            Input::Wanted(wanted) => self.want(wanted, now),
            Input::Unable(unable) => self.enable(unable),
            Input::Tick { carrier } => self.tick(carrier, peers, now),
            Input::Peers => self.dirty = true,
            Input::Disowned => self.suspend(&Lost::Disowned, now),
            Input::Told { from, message } => self.told(&from, &message, now),
            Input::Stored { vip, outcome } => self.stored(vip, outcome, peers, now),
            Input::Surveyed { asked, leases } => self.surveyed(asked, leases, peers, now),
            Input::PeerAnnounced(vip) => self.announced(vip, now),
            Input::Probed { vip, found } => self.probed(vip, &found, now),
            Input::Drain(draining) => self.drain(draining),
        }
        let due = self.wake.is_some_and(|wake| wake <= now);
        if (self.dirty || due) && self.informed {
            self.evaluate(peers, now);
        }
        std::mem::take(&mut self.commands)
    }

    fn want(&mut self, wanted: Arc<BTreeMap<Vip, Contenders>>, now: Duration) {
        if !self.informed && !self.begun && !self.surveying {
            self.survey();
        }
        (self.informed, self.dirty) = (true, true);
        if self.wanted == wanted {
            return;
        }
        let gone: Vec<_> = self.places.keys().filter(|vip| !wanted.contains_key(vip)).copied().collect();
        for vip in gone {
            let version = self.give_up(vip, Lost::Unwanted, now);
            self.places.remove(&vip);
            self.overview.forget(vip);
            if let Some(lease) = version {
                self.leftover.insert(vip, (lease, now));
            }
        }
        for vip in wanted.keys() {
            let floor = self.leftover.remove(vip).map_or(0, |(lease, _)| lease.epoch);
            self.places.entry(*vip).or_insert_with(|| Place { floor, ..Place::default() });
        }
        self.overview.touched.extend(wanted.keys());
        self.overview.standings = None;
        self.wanted = wanted;
    }

    fn enable(&mut self, unable: BTreeSet<Vip>) {
        for vip in unable.difference(&self.unable) {
            self.commands.push(Command::Publish(Item::Unable(*vip)));
        }
        for vip in self.unable.difference(&unable) {
            self.commands.push(Command::Withdraw(Key::Unable(*vip)));
        }
        self.dirty |= self.unable != unable;
        self.unable = unable;
    }

    fn drain(&mut self, draining: bool) {
        self.commands.push(Command::Publish(Item::Draining(draining)));
        if self.draining != draining {
            (self.dirty, self.overview.standings) = (true, None);
        }
        self.draining = draining;
    }

    #[cfg(any(test, feature = "simulation"))]
    fn is_broken(&self, mutation: simulation::Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Removes Leases of VIPs that nobody has wanted for long; the first of all nodes does.
    fn tidy(&mut self, peers: &Peers, now: Duration) {
        let alive = peers.members.iter().filter(|(_, peer)| peer.standing == Standing::Alive);
        if alive.map(|(name, _)| name).min().is_some_and(|first| *first < self.local) {
            return;
        }
        let old = |(_, since): &(Lease, Duration)| now.saturating_sub(*since) >= tenure::LEFTOVER;
        if let Some(vip) = self.leftover.iter().find(|(_, leftover)| old(leftover)).map(|(vip, _)| *vip)
            && let Some((lease, _)) = self.leftover.remove(&vip)
        {
            self.commands.push(Command::Delete { vip, version: lease.version });
        }
    }
}

#[cfg(test)]
mod tests;
