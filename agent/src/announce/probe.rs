//! Asking the LAN whether anybody has a VIP: duplicate address detection (RFC 5227, 2.1; RFC 4862, 5.4), as a state machine
//! without clock, I/O or randomness.
//!
//! ```text
//!        begin              room                     three rounds sent, no answer
//!  (none) ---> queued ---------------> asking ----------------------------------> Free
//!                                        |   answered
//!                                        +--------------------------------------> Taken
//! ```
//!
//! An answer is whoever speaks for the VIP from when it was first asked on, by ARP, by a neighbour advertisement or by
//! a solicitation from it; and at [`Pace::Detect`] a stranger who asks the same at the same time. Never one of the MACs
//! that it is asked with: that is a reflection. Of several the answer is a stranger's, if there is one.
//!
//! What is sent speaks for nobody, so the node's own egress program lets it pass whoever leads.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use rand_core::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;
use vipmux_common::abi::Mac;

use super::{Frame, arp, groups::Group, heard::Heard, ndp};
use crate::model::Vip;

/// How often is asked.
const ROUNDS: u32 = 3;
/// Most VIPs that are asked for at the same time; the others wait for their turn. All at [`Pace::Detect`], that is some
/// 2,500 frames a second on an interface.
pub const MOST_AT_ONCE: usize = 256;

/// How long an answer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Before an address is put into service for the first time: asked at 0, 100 and 200 ms, free at 300 ms. RFC 5227 would
    /// take 5 to 9 s, for hosts that come up all at once on networks that lose frames; on a wired LAN an answer takes
    /// milliseconds, and a Service waits for it. `NetworkManager` gives it 200 ms. Who answers later is found by
    /// [`super::watch`].
    Detect,
    /// Whether anybody answers for it at present: asked at 0, 20 and 40 ms, free at 60 ms.
    Ask,
}

impl Pace {
    /// From one round to the next, and from the last one to the end.
    const fn interval(self) -> Duration {
        match self {
            Self::Detect => Duration::from_millis(100),
            Self::Ask => Duration::from_millis(20),
        }
    }
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nobody answered.
    Free,
    /// Somebody has it, or is about to take it.
    Taken {
        /// Who. It may be a peer.
        mac: Mac,
        /// The interface where it was heard.
        ifindex: u32,
    },
}

/// What [`Prober::turn`] says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// To be sent now.
    pub frames: Vec<Frame>,
    /// What is known now of VIPs that were asked for. Each is told once.
    pub outcomes: Vec<(Vip, Outcome)>,
}

/// Asks for VIPs. Times are `CLOCK_BOOTTIME`.
#[derive(Debug)]
pub struct Prober {
    nonces: XorShiftRng,
    queued: BTreeMap<Vip, Question>,
    /// The queued ones in turn.
    turns: BTreeSet<(Duration, Vip)>,
    asking: BTreeMap<Vip, Run>,
}

#[derive(Debug)]
struct Question {
    places: Vec<(u32, Mac)>,
    pace: Pace,
    since: Duration,
}

#[derive(Debug)]
struct Run {
    question: Question,
    nonce: [u8; 6],
    begun: Duration,
    /// Rounds that were sent.
    sent: u32,
    /// When the next one is to be, or the end.
    due: Duration,
}

impl Prober {
    /// Asks for nothing yet. `seed` is random, so that the nonces of two nodes differ.
    pub fn new(seed: u64) -> Self {
        let nonces = XorShiftRng::seed_from_u64(seed);
        Self { nonces, queued: BTreeMap::new(), turns: BTreeSet::new(), asking: BTreeMap::new() }
    }

    /// Asks for `vip` on these interfaces, each with the MAC that it would be announced with there; starts over if it was
    /// asked for already.
    pub fn begin(&mut self, vip: Vip, places: Vec<(u32, Mac)>, pace: Pace, now: Duration) {
        self.cancel(vip);
        self.turns.insert((now, vip));
        self.queued.insert(vip, Question { places, pace, since: now });
    }

    /// Asks no more for `vip`: nothing comes of it.
    pub fn cancel(&mut self, vip: Vip) {
        self.asking.remove(&vip);
        if let Some(question) = self.queued.remove(&vip) {
            self.turns.remove(&(question.since, vip));
        }
    }

    /// When [`Self::turn`] is to be called next; `None`: nothing is asked for. A time that has passed means at once.
    pub fn next(&self) -> Option<Duration> {
        let due = self.asking.values().map(|run| run.due).min();
        let turn = self.turns.first().filter(|_| self.asking.len() < MOST_AT_ONCE).map(|(since, _)| *since);
        due.into_iter().chain(turn).min()
    }

    /// Goes on, with all that was `heard` until `now`. May be called at any time.
    pub fn turn(&mut self, heard: &[Heard], now: Duration) -> Turn {
        let mut turn = Turn { frames: Vec::new(), outcomes: self.answered(heard) };
        for (vip, _) in &turn.outcomes {
            self.asking.remove(vip);
        }
        self.asking.retain(|vip, run| {
            let over = run.due <= now && run.sent == ROUNDS;
            if over {
                turn.outcomes.push((*vip, Outcome::Free));
            } else if run.due <= now {
                run.ask(*vip, now, &mut turn.frames);
            }
            !over
        });
        while self.asking.len() < MOST_AT_ONCE
            && let Some((_, vip)) = self.turns.pop_first()
            && let Some(question) = self.queued.remove(&vip)
        {
            let mut run = Run { question, nonce: self.nonce(), begun: now, sent: 0, due: now };
            run.ask(vip, now, &mut turn.frames);
            self.asking.insert(vip, run);
        }
        turn
    }

    fn answered(&self, heard: &[Heard]) -> Vec<(Vip, Outcome)> {
        // Strangers first.
        let mut answers: BTreeMap<Vip, (bool, Mac, u32)> = BTreeMap::new();
        for heard in heard {
            if self.asking.get(&heard.vip).is_some_and(|run| run.is_answered_by(heard)) {
                let answer = (heard.peer, heard.mac, heard.ifindex);
                answers.entry(heard.vip).and_modify(|first| *first = answer.min(*first)).or_insert(answer);
            }
        }
        answers.into_iter().map(|(vip, (_, mac, ifindex))| (vip, Outcome::Taken { mac, ifindex })).collect()
    }

    /// One that was hardly used before.
    fn nonce(&mut self) -> [u8; 6] {
        let [_, _, nonce @ ..] = self.nonces.next_u64().to_be_bytes();
        nonce
    }
}

impl Run {
    fn ask(&mut self, vip: Vip, now: Duration, frames: &mut Vec<Frame>) {
        for &(ifindex, mac) in &self.question.places {
            let bytes = match vip.0 {
                IpAddr::V4(address) => arp::probe(address, mac),
                IpAddr::V6(address) => Some(ndp::probe(address, Group::of(address, ifindex), mac, self.nonce)),
            };
            frames.extend(bytes.map(|bytes| Frame { ifindex, bytes }));
        }
        self.sent += 1;
        // From now, not from when it was due: who is late must not wait less for an answer.
        self.due = now + self.question.pace.interval();
    }

    fn is_answered_by(&self, heard: &Heard) -> bool {
        let is_new = |at: Option<Duration>| at.is_some_and(|at| at >= self.begun);
        let competes = || {
            let reflected = heard.option == ndp::nonce_option(self.nonce);
            self.question.pace == Pace::Detect && !heard.peer && !reflected && is_new(heard.probed)
        };
        let own = self.question.places.iter().any(|(_, mac)| *mac == heard.mac);
        !own && (is_new(heard.claimed) || competes())
    }
}

#[cfg(test)]
mod tests;
