//! Telling the LAN where a VIP is now: gratuitous ARP, unsolicited neighbour advertisements.
//!
//! [`Announcer`] is pure: it is told which VIPs this node gained and lost, and says which frames to send and when to ask
//! again. [`Sender`] puts the frames on the wire. A frame whose VIP this node does not lead is dropped by the node's own
//! tc egress program, so a VIP's leading flag comes before its announcement.
//!
//! ```text
//!            gained, again           due: frames            due: frames
//!  (silent) ---------------> fresh ---------------> waiting ------------+
//!     ^                                             ^ ^ |  rounds left  |
//!     |  lost (from everywhere)             defend  | +-|---------------+
//!     |                                             |   | none left
//!     +---------------------------------------------+- settled
//! ```
//!
//! Whether somebody else has an address is asked by [`probe`], before it is put into service, and watched for by
//! [`watch`] as long as it is led; both pure too. What is on the wire is [`heard`] by the programs.
//!
//! [`groups`] has the frames delivered to this node by which neighbours ask for IPv6 VIPs.

mod arp;
pub mod groups;
pub mod heard;
mod ndp;
pub mod probe;
mod schedule;
mod sender;
pub mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use vipmux_common::abi::Mac;

pub use self::{
    schedule::{Pacing, Schedule, ScheduleError},
    sender::{SendError, Sender},
};
use crate::model::Vip;

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The interface to send it on.
    pub ifindex: u32,
    /// All of it, from the destination MAC on, without the frame check sequence.
    pub bytes: Vec<u8>,
}

/// Which announcements are due, and when. No clock and no socket: `now` comes with each call and never goes back.
///
/// A VIP's first round leaves at once, however many VIPs come together; every later one is paced per interface, because
/// access switches police ARP. What is late is sent in the order in which it was due, so with many VIPs all get their
/// second round before any gets its third. Memory and work are bounded by the number of held VIPs times interfaces.
#[derive(Debug, Default)]
pub struct Announcer {
    pacing: Pacing,
    outlets: BTreeMap<u32, Outlet>,
}

/// An interface that VIPs are announced on.
#[derive(Debug, Default)]
struct Outlet {
    held: BTreeMap<Vip, Burst>,
    /// VIPs whose first round is to be sent.
    fresh: BTreeSet<Vip>,
    /// Later rounds: when, and of which VIP. At most one per VIP.
    waiting: BTreeSet<(Instant, Vip)>,
    /// No paced frame leaves before; `None`: none left yet.
    free: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    mac: Mac,
    start: Instant,
    /// Rounds that were sent.
    sent: usize,
    /// Its place in [`Outlet::waiting`].
    due: Option<Instant>,
}

impl Announcer {
    /// An announcer of no VIPs.
    pub fn new(pacing: Pacing) -> Self {
        Self { pacing, outlets: BTreeMap::new() }
    }

    /// This node leads `vip` now, on the interface `ifindex` with the MAC `mac`: the burst starts, or starts over. Also
    /// for a MAC that changed.
    pub fn gained(&mut self, vip: Vip, ifindex: u32, mac: Mac, now: Instant) {
        let outlet = self.outlets.entry(ifindex).or_default();
        outlet.forget(vip);
        outlet.held.insert(vip, Burst { mac, start: now, sent: 0, due: None });
        outlet.fresh.insert(vip);
    }

    /// Another node leads `vip`: nothing is sent for it any more, on any interface.
    pub fn lost(&mut self, vip: Vip) {
        self.outlets.retain(|_, outlet| {
            outlet.forget(vip);
            !outlet.held.is_empty() || outlet.free.is_some()
        });
    }

    /// The carrier of the interface `ifindex` came back, so the switch may have learned otherwise meanwhile: every VIP
    /// held there is announced anew.
    pub fn again(&mut self, ifindex: u32, now: Instant) {
        let Some(outlet) = self.outlets.get_mut(&ifindex) else { return };
        outlet.waiting.clear();
        for (vip, burst) in &mut outlet.held {
            (burst.start, burst.sent, burst.due) = (now, 0, None);
            outlet.fresh.insert(*vip);
        }
    }

    /// Somebody else spoke for `vip`: one more round wherever it is held, before all others that wait. Paced like them,
    /// since whoever speaks for many VIPs decides how many rounds there are.
    pub fn defend(&mut self, vip: Vip) {
        for outlet in self.outlets.values_mut() {
            let Some(burst) = outlet.held.get_mut(&vip).filter(|_| !outlet.fresh.contains(&vip)) else { continue };
            if let Some(due) = burst.due {
                outlet.waiting.remove(&(due, vip));
            }
            // In the place of the last one: the schedule goes on as before.
            (burst.sent, burst.due) = (burst.sent.saturating_sub(1), Some(burst.start));
            outlet.waiting.insert((burst.start, vip));
        }
    }

    /// The interface `ifindex` is gone, with what was held on it.
    pub fn removed(&mut self, ifindex: u32) {
        self.outlets.remove(&ifindex);
    }

    /// What is to be sent now, in that order. Each frame is handed out once.
    pub fn due(&mut self, now: Instant) -> Vec<Frame> {
        let mut frames = Vec::new();
        for (&ifindex, outlet) in &mut self.outlets {
            outlet.first_rounds(ifindex, &self.pacing, now, &mut frames);
            outlet.paced_round(ifindex, &self.pacing, now, &mut frames);
        }
        frames
    }

    /// When [`Self::due`] has something next; `None`: not before another call of [`Self::gained`] or [`Self::again`].
    /// An instant that has passed means at once.
    pub fn next(&self) -> Option<Instant> {
        self.outlets.values().filter_map(Outlet::next).min()
    }
}

impl Outlet {
    fn forget(&mut self, vip: Vip) {
        self.fresh.remove(&vip);
        if let Some(due) = self.held.remove(&vip).and_then(|burst| burst.due) {
            self.waiting.remove(&(due, vip));
        }
    }

    fn first_rounds(&mut self, ifindex: u32, pacing: &Pacing, now: Instant, frames: &mut Vec<Frame>) {
        while let Some(vip) = self.fresh.pop_first() {
            self.round(vip, ifindex, pacing, now, frames);
        }
    }

    /// At most one announcement a call: after it the interface is not free before `now` plus what it cost.
    fn paced_round(&mut self, ifindex: u32, pacing: &Pacing, now: Instant, frames: &mut Vec<Frame>) {
        if self.free.is_some_and(|free| free > now) {
            return;
        }
        let Some(&(due, vip)) = self.waiting.first() else { return };
        if due > now {
            return;
        }
        self.waiting.pop_first();
        let before = frames.len();
        self.round(vip, ifindex, pacing, now, frames);
        self.free = Some(now + pacing.cost(frames.len() - before));
    }

    fn round(&mut self, vip: Vip, ifindex: u32, pacing: &Pacing, now: Instant, frames: &mut Vec<Frame>) {
        let Some(burst) = self.held.get_mut(&vip) else { return };
        let frame = |bytes| Frame { ifindex, bytes };
        match vip.0 {
            IpAddr::V4(address) => frames.extend(arp::announcement(address, burst.mac).map(frame)),
            IpAddr::V6(address) => frames.push(frame(ndp::announcement(address, burst.mac))),
        }
        burst.sent += 1;
        burst.due = pacing.repeat(burst.start, burst.sent, now);
        self.waiting.extend(burst.due.map(|due| (due, vip)));
    }

    fn next(&self) -> Option<Instant> {
        let first = self.fresh.iter().filter_map(|vip| self.held.get(vip)).map(|burst| burst.start).min();
        let paced = self.waiting.first().map(|&(due, _)| self.free.map_or(due, |free| free.max(due)));
        first.into_iter().chain(paced).min()
    }
}

#[cfg(test)]
mod tests;
