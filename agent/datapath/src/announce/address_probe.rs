//! Probes the LAN for another owner of a VIP: a state machine without clock, I/O or randomness.
//!
//! This is the address probe of RFC 5227, 2.1, and the duplicate address detection (DAD) of RFC
//! 4862, 5.4.
//!
//! ```text
//!        begin        below MAX_CONCURRENT           three rounds sent, no answer
//!  (none) ---> queued ---------------> running ---------------------------------> Free
//!                                        |   answered
//!                                        +--------------------------------------> Taken
//! ```
//!
//! An answer is any frame that claims the VIP after the first probe: ARP, a neighbor advertisement,
//! or a solicitation from the VIP. In [`AddressProbeMode::Detect`], a probe of a foreign host for
//! the same VIP is an answer too. A frame from a MAC that sends the probes is a reflection and no
//! answer. Of several answers, one from a foreign host wins.
//!
//! Probes claim no address, so the node's own egress program passes them on every node.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use rand_core::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;
use vipmux_common::abi::Mac;

use super::{Frame, arp, groups::SolicitedNodeGroup, ndp, speaker::VipSpeaker};
use vipmux_model::Vip;

/// Probes per interface.
const ROUNDS: u32 = 3;
/// The limit of VIPs that are probed at the same time; the others wait. With all in
/// [`AddressProbeMode::Detect`], that is some 6,400 frames per second on an interface.
pub const MAX_CONCURRENT: usize = 256;

/// The purpose of a probe, which sets its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressProbeMode {
    /// Before an address is put into service for the first time. Probes at 0, 40 and 80 ms; free
    /// at 120 ms. RFC 5227 takes 5 to 9 s, for hosts that start all at once on networks that lose
    /// frames. On a wired LAN an answer takes milliseconds, and a Service waits for it.
    /// [`super::foreign_speakers`] finds hosts that answer later.
    Detect,
    /// To learn whether any host answers at present. Probes at 0, 20 and 40 ms; free at 60 ms.
    Query,
}

impl AddressProbeMode {
    /// Returns the time from one round to the next, and from the last one to the end.
    const fn interval(self) -> Duration {
        match self {
            Self::Detect => Duration::from_millis(40),
            Self::Query => Duration::from_millis(20),
        }
    }
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressAvailability {
    /// No host answered.
    Free,
    /// A host has the address, or is about to take it.
    Taken {
        /// Its MAC. It may be a peer's.
        mac: Mac,
        /// The interface that received the answer.
        ifindex: u32,
    },
}

/// The outputs of [`AddressProber::poll`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AddressProbeActions {
    /// The frames to send now, each with the VIP that it asks for.
    pub frames: Vec<(Vip, Frame)>,
    /// The results of probes that ended. Each is returned once.
    pub outcomes: Vec<(Vip, AddressAvailability)>,
}

/// Probes for VIPs. Times are `CLOCK_BOOTTIME`.
#[derive(Debug)]
pub struct AddressProber {
    nonces: XorShiftRng,
    waiting: BTreeMap<Vip, AddressProbe>,
    /// The queued VIPs by age.
    queue: BTreeSet<(Duration, Vip)>,
    running: BTreeMap<Vip, RunningProbe>,
}

#[derive(Debug)]
struct AddressProbe {
    interfaces: Vec<(u32, Mac)>,
    mode: AddressProbeMode,
    since: Duration,
}

#[derive(Debug)]
struct RunningProbe {
    probe: AddressProbe,
    nonce: [u8; 6],
    begun: Duration,
    /// Sent rounds.
    sent: u32,
    /// The time of the next round, or of the end.
    due: Duration,
}

impl AddressProber {
    /// Creates an idle prober. `seed` must be random, so that the nonces of two nodes differ.
    pub fn new(seed: u64) -> Self {
        let nonces = XorShiftRng::seed_from_u64(seed);
        Self { nonces, waiting: BTreeMap::new(), queue: BTreeSet::new(), running: BTreeMap::new() }
    }

    /// Queues a probe for `vip` on these interfaces, each with the MAC that announces it there. A
    /// probe that exists starts over.
    pub fn begin(&mut self, vip: Vip, interfaces: Vec<(u32, Mac)>, mode: AddressProbeMode, now: Duration) {
        self.cancel(vip);
        self.queue.insert((now, vip));
        self.waiting.insert(vip, AddressProbe { interfaces, mode, since: now });
    }

    /// Ends the probe for `vip` without a result.
    pub fn cancel(&mut self, vip: Vip) {
        self.running.remove(&vip);
        if let Some(probe) = self.waiting.remove(&vip) {
            self.queue.remove(&(probe.since, vip));
        }
    }

    /// Returns the next time to call [`Self::poll`]; a time in the past means now. `None`: there
    /// are no probes.
    pub fn next(&self) -> Option<Duration> {
        let due = self.running.values().map(|run| run.due).min();
        let queued = self.queue.first().filter(|_| self.running.len() < MAX_CONCURRENT).map(|(since, _)| *since);
        due.into_iter().chain(queued).min()
    }

    /// Advances all probes to `now`, with the speakers seen until then. It may be called at any
    /// time.
    pub fn poll(&mut self, speakers: &[VipSpeaker], now: Duration) -> AddressProbeActions {
        let mut actions = AddressProbeActions { frames: Vec::new(), outcomes: self.answered(speakers) };
        for (vip, _) in &actions.outcomes {
            self.running.remove(vip);
        }
        self.running.retain(|vip, run| {
            let over = run.due <= now && run.sent == ROUNDS;
            if over {
                actions.outcomes.push((*vip, AddressAvailability::Free));
            } else if run.due <= now {
                run.send_round(*vip, now, &mut actions.frames);
            }
            !over
        });
        while self.running.len() < MAX_CONCURRENT
            && let Some((_, vip)) = self.queue.pop_first()
            && let Some(probe) = self.waiting.remove(&vip)
        {
            let mut run = RunningProbe { probe, nonce: self.nonce(), begun: now, sent: 0, due: now };
            run.send_round(vip, now, &mut actions.frames);
            self.running.insert(vip, run);
        }
        actions
    }

    fn answered(&self, speakers: &[VipSpeaker]) -> Vec<(Vip, AddressAvailability)> {
        // `false` is less than `true`, so hosts that are no peers come first.
        let mut answers: BTreeMap<Vip, (bool, Mac, u32)> = BTreeMap::new();
        for speaker in speakers {
            if self.running.get(&speaker.vip).is_some_and(|run| run.is_answered_by(speaker)) {
                let answer = (speaker.peer, speaker.mac, speaker.ifindex);
                answers.entry(speaker.vip).and_modify(|first| *first = answer.min(*first)).or_insert(answer);
            }
        }
        answers.into_iter().map(|(vip, (_, mac, ifindex))| (vip, AddressAvailability::Taken { mac, ifindex })).collect()
    }

    /// Returns a nonce that was most likely not used before.
    fn nonce(&mut self) -> [u8; 6] {
        let [_, _, nonce @ ..] = self.nonces.next_u64().to_be_bytes();
        nonce
    }
}

impl RunningProbe {
    fn send_round(&mut self, vip: Vip, now: Duration, frames: &mut Vec<(Vip, Frame)>) {
        for &(ifindex, mac) in &self.probe.interfaces {
            let bytes = match vip.address() {
                IpAddr::V4(address) => arp::probe(address, mac),
                IpAddr::V6(address) => {
                    Some(ndp::probe(address, SolicitedNodeGroup::of(address, ifindex), mac, self.nonce))
                }
            };
            frames.extend(bytes.map(|bytes| (vip, Frame { ifindex, bytes })));
        }
        self.sent += 1;
        // Counts from now, not from the due time: after a delay the wait for an answer must not be
        // shorter.
        self.due = now + self.probe.mode.interval();
    }

    fn is_answered_by(&self, speaker: &VipSpeaker) -> bool {
        let is_new = |at: Option<Duration>| at.is_some_and(|at| at >= self.begun);
        let competes = || {
            let reflected = speaker.option == Some(ndp::nonce_option(self.nonce));
            self.probe.mode == AddressProbeMode::Detect && !speaker.peer && !reflected && is_new(speaker.probed)
        };
        let own = self.probe.interfaces.iter().any(|(_, mac)| *mac == speaker.mac);
        !own && (is_new(speaker.claimed) || competes())
    }
}

#[cfg(test)]
mod tests;
