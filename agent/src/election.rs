//! Who answers for a VIP, as a state machine without clock or I/O: [`Election::handle`] takes an [`Input`] and the time,
//! and gives [`Command`]s.
//!
//! This is the static form: the leader of a VIP is the Node that rendezvous hashing picks among those in the manifests.
//! Every agent reads the same Nodes, so every agent picks the same leader. A VIP's states on one node:
//!
//! ```text
//!               chosen                      a peer announced it
//! Following ─────────────────► Leading ───────────────────────► Yielded
//!     ▲                         │  ▲                              │ │
//!     │      another chosen     │  │  still chosen after RETAKE   │ │
//!     ├─────────────────────────┘  └──────────────────────────────┘ │
//!     └─────────────────────────────────────────────────────────────┘
//!                            another chosen
//! ```
//!
//! The fence: each [`Input::Tick`] extends the kernel's deadline to *the time its evidence was asked for* + [`LEASE`].
//! A deadline that has passed is never simply extended: every VIP is given up, and [`Command::Gather`] asks for a choice
//! made on what is read from then on. Until it comes the deadline stands still, so that a woken agent cannot answer on
//! stale beliefs; nor can one that has just started, on what the agent before it believed.

pub mod rendezvous;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::model::{NodeName, Vip};

/// How long the kernel answers after the last evidence.
pub const LEASE: Duration = Duration::from_millis(300);
/// How often evidence is gathered.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// How long a VIP that a peer announced is left to it, while the choice still falls on this node.
pub const RETAKE: Duration = Duration::from_secs(5);

/// What happened. Times are `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The VIPs and their chosen leaders, and the maps are in sync with them. After a [`Command::Gather`], only a choice
    /// made on evidence that is newer than it.
    Chosen(BTreeMap<Vip, Option<NodeName>>),
    /// The agent's loop turned.
    Tick {
        /// When the evidence (that the loop turns, and the carrier is up) was asked for.
        asked: Duration,
        /// At least one announcing interface has a carrier.
        carrier: bool,
    },
    /// The kernel saw a peer announce a VIP that this node led, and stopped answering for it.
    PeerAnnounced(Vip),
}

/// What to do about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Clear the VIP's flag: this node no longer answers for it.
    Follow(Vip),
    /// Set the VIP's flag and announce it.
    Lead(Vip),
    /// Push the fence's deadline to this time, `CLOCK_BOOTTIME`.
    Extend(Duration),
    /// Read anew what the choice depends on, and choose again.
    Gather,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Following,
    Leading,
    Yielded { since: Duration },
}

/// The state machine of one node.
#[derive(Clone, Debug)]
pub struct Election {
    local: NodeName,
    vips: BTreeMap<Vip, (Option<NodeName>, State)>,
    /// The fence's, as last extended; `None` where it has passed, or was never extended by this agent.
    deadline: Option<Duration>,
    /// A choice was made since the start and since the deadline last passed.
    chosen: bool,
}

impl Election {
    /// A node that leads nothing yet.
    pub fn new(local: NodeName) -> Self {
        Self { local, vips: BTreeMap::new(), deadline: None, chosen: false }
    }

    /// The VIPs that this node leads.
    pub fn leading(&self) -> BTreeSet<Vip> {
        let leading = self.vips.iter().filter(|(_, (_, state))| *state == State::Leading);
        leading.map(|(vip, _)| *vip).collect()
    }

    /// Whether this node leads the VIP.
    pub fn leads(&self, vip: Vip) -> bool {
        self.vips.get(&vip).is_some_and(|(_, state)| *state == State::Leading)
    }

    /// Takes an input at `now` (`CLOCK_BOOTTIME`) and says what to do.
    pub fn handle(&mut self, input: Input, now: Duration) -> Vec<Command> {
        match input {
            Input::Chosen(chosen) => self.choose(chosen),
            Input::Tick { asked, carrier } => self.tick(asked, carrier, now),
            Input::PeerAnnounced(vip) => self.announced(vip, now),
        }
    }

    fn choose(&mut self, chosen: BTreeMap<Vip, Option<NodeName>>) -> Vec<Command> {
        self.chosen = true;
        let gone = self.vips.iter().filter(|(vip, (_, state))| *state == State::Leading && !chosen.contains_key(vip));
        let mut commands: Vec<_> = gone.map(|(vip, _)| Command::Follow(*vip)).collect();
        let mut next = BTreeMap::new();
        for (vip, leader) in chosen {
            let before = self.vips.get(&vip).map_or(State::Following, |(_, state)| *state);
            let state = match (leader.as_ref() == Some(&self.local), before) {
                (true, State::Following) => {
                    commands.push(Command::Lead(vip));
                    State::Leading
                }
                (true, before) => before,
                (false, before) => {
                    if before == State::Leading {
                        commands.push(Command::Follow(vip));
                    }
                    State::Following
                }
            };
            next.insert(vip, (leader, state));
        }
        self.vips = next;
        commands
    }

    fn tick(&mut self, asked: Duration, carrier: bool, now: Duration) -> Vec<Command> {
        let mut commands = Vec::new();
        if !carrier {
            return commands;
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return self.lapse();
        }
        if !self.chosen {
            return commands;
        }
        let deadline = asked + LEASE;
        self.deadline = Some(deadline);
        commands.push(Command::Extend(deadline));
        for (vip, (_, state)) in &mut self.vips {
            if matches!(state, State::Yielded { since } if now.saturating_sub(*since) >= RETAKE) {
                *state = State::Leading;
                commands.push(Command::Lead(*vip));
            }
        }
        commands
    }

    fn lapse(&mut self) -> Vec<Command> {
        (self.deadline, self.chosen) = (None, false);
        let mut commands = Vec::new();
        for (vip, (_, state)) in &mut self.vips {
            if *state == State::Leading {
                *state = State::Following;
                commands.push(Command::Follow(*vip));
            }
        }
        commands.push(Command::Gather);
        commands
    }

    fn announced(&mut self, vip: Vip, now: Duration) -> Vec<Command> {
        match self.vips.get_mut(&vip) {
            Some((_, state @ State::Leading)) => {
                *state = State::Yielded { since: now };
                vec![Command::Follow(vip)]
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const T: Duration = Duration::from_secs(100);

    fn vip(last: u8) -> Vip {
        Vip(Ipv4Addr::new(192, 0, 2, last).into())
    }

    fn node(name: &str) -> NodeName {
        NodeName(name.into())
    }

    fn chosen<const N: usize>(leaders: [(u8, Option<&str>); N]) -> Input {
        Input::Chosen(leaders.into_iter().map(|(last, leader)| (vip(last), leader.map(node))).collect())
    }

    fn tick(at: Duration) -> Input {
        Input::Tick { asked: at, carrier: true }
    }

    /// One in each state: .1 is followed, .2 led, .3 yielded at `T`.
    fn one_of_each() -> Election {
        let mut election = Election::new(node("a"));
        election.handle(chosen([(1, Some("b")), (2, Some("a")), (3, Some("a"))]), T);
        election.handle(Input::PeerAnnounced(vip(3)), T);
        election
    }

    #[test]
    fn every_state_and_choice_has_its_transition() {
        use Command::{Follow, Lead};
        for (last, leader, commands, leads) in [
            (1, Some("a"), vec![Lead(vip(1))], true),
            (1, Some("b"), vec![], false),
            (2, Some("a"), vec![], true),
            (2, Some("b"), vec![Follow(vip(2))], false),
            (2, None, vec![Follow(vip(2))], false),
            (3, Some("a"), vec![], false),
            (3, Some("b"), vec![], false),
        ] {
            let mut election = one_of_each();
            election.vips.retain(|of, _| *of == vip(last));
            assert_eq!(election.handle(chosen([(last, leader)]), T), commands, ".{last} {leader:?}");
            assert_eq!(election.leading().contains(&vip(last)), leads, ".{last} {leader:?}");
        }
    }

    #[test]
    fn a_vip_that_is_gone_is_given_up() {
        let mut election = one_of_each();
        assert_eq!(election.handle(chosen([]), T), [Command::Follow(vip(2))]);
        assert!(election.leading().is_empty());
    }

    #[test]
    fn only_a_led_vip_can_be_announced_away() {
        for (last, commands) in [(1, vec![]), (2, vec![Command::Follow(vip(2))]), (3, vec![]), (9, vec![])] {
            assert_eq!(one_of_each().handle(Input::PeerAnnounced(vip(last)), T), commands);
        }
    }

    #[test]
    fn a_yielded_vip_is_taken_again_only_after_a_while() {
        let mut election = one_of_each();
        let early = T + RETAKE.saturating_sub(HEARTBEAT);
        assert_eq!(election.handle(tick(early), early), [Command::Extend(early + LEASE)]);
        let late = T + RETAKE;
        assert_eq!(election.handle(tick(late), late), [Command::Extend(late + LEASE), Command::Lead(vip(3))]);
    }

    #[test]
    fn a_deadline_that_passed_is_not_extended_before_a_new_choice() {
        let mut election = one_of_each();
        election.handle(tick(T), T);
        let woken = T + LEASE;
        assert_eq!(election.handle(tick(woken), woken), [Command::Follow(vip(2)), Command::Gather]);
        assert!(election.leading().is_empty());
        assert_eq!(election.handle(tick(woken + HEARTBEAT), woken + HEARTBEAT), [], "nothing is known yet");
        let chosen = chosen([(1, Some("a")), (2, Some("b")), (3, Some("a"))]);
        assert_eq!(election.handle(chosen, woken + HEARTBEAT), [Command::Lead(vip(1))], "the yielded one stays so");
        let next = woken + 2 * HEARTBEAT;
        assert_eq!(election.handle(tick(next), next), [Command::Extend(next + LEASE)]);
    }

    #[test]
    fn before_the_first_choice_the_deadline_is_not_touched() {
        let mut election = Election::new(node("a"));
        assert_eq!(election.handle(tick(T), T), []);
        election.handle(chosen([]), T);
        assert_eq!(election.handle(tick(T), T), [Command::Extend(T + LEASE)]);
    }

    #[test]
    fn the_deadline_counts_from_when_the_evidence_was_asked_for() {
        let mut election = one_of_each();
        let asked = T;
        let now = T + Duration::from_millis(250);
        assert_eq!(election.handle(tick(asked), now), [Command::Extend(asked + LEASE)]);
    }

    #[test]
    fn without_a_carrier_the_deadline_stands_still() {
        let mut election = one_of_each();
        assert_eq!(election.handle(Input::Tick { asked: T, carrier: false }, T), []);
    }
}
