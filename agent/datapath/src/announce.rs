//! Announces VIPs to the LAN: gratuitous ARP, unsolicited neighbor advertisements, address probes.
//!
//! [`Announcer`] is pure. Its inputs are the VIPs that this node gained and lost. Its outputs are
//! the frames to send and the time of the next call. [`Sender`] sends the frames. The node's own tc
//! egress program drops frames of VIPs that this node does not lead. So a VIP's leading flag must
//! be set before its announcement.
//!
//! ```text
//!         gained, reannounced        due: frames            due: frames
//!  (silent) ---------------> fresh ---------------> waiting ------------+
//!     ^                                             ^ ^ |  rounds left  |
//!     |  lost (from everywhere)             defend  | +-|---------------+
//!     |                                             |   | none left
//!     +---------------------------------------------+- done
//! ```
//!
//! [`address_probe`] asks whether another host has an address, before a VIP is put into service.
//! [`foreign_speakers`] watches for such hosts while the VIP is led. Both are pure. Their input is
//! [`speaker`]: what the XDP programs saw.
//!
//! [`query`] asks who answers for an address, for commands that run without an agent.
//!
//! [`groups`] has the network deliver neighbor solicitations for IPv6 VIPs to this node.

pub mod address_probe;
mod arp;
pub mod foreign_speakers;
pub mod groups;
mod ndp;
pub mod query;
mod schedule;
mod sender;
pub mod speaker;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use vipmux_common::abi::Mac;

pub use self::{
    schedule::{AnnouncementSchedule, Pacing, ScheduleError},
    sender::{SendError, Sender},
};
use vipmux_model::Vip;

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The interface to send it on.
    pub ifindex: u32,
    /// The whole frame, from the destination MAC on, without the frame check sequence.
    pub bytes: Vec<u8>,
}

/// Decides which announcements are due, and when. It has no clock and no socket: `now` comes with
/// each call and never goes back.
///
/// All rounds are paced per interface, because access switches limit the rate of ARP: first rounds
/// at a high rate, since clients wait for them, and later ones at a low rate. Late rounds leave in
/// the order in which they were due: with many VIPs, all get their second round before any gets its
/// third. Memory and work are bounded by held VIPs times interfaces.
#[derive(Debug, Default)]
pub struct Announcer {
    pacing: Pacing,
    queues: BTreeMap<u32, InterfaceQueue>,
}

/// The announcements on one interface.
#[derive(Debug, Default)]
struct InterfaceQueue {
    held: BTreeMap<Vip, Burst>,
    /// VIPs whose first round is to be sent.
    fresh: BTreeSet<Vip>,
    /// The limit of all rounds is used up until then. `None`: none was sent yet.
    busy: Option<Instant>,
    /// Later rounds: the time and the VIP. At most one per VIP.
    waiting: BTreeSet<(Instant, Vip)>,
    /// The earliest time for the next paced frame. `None`: none was sent yet.
    free: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    mac: Mac,
    start: Instant,
    /// Rounds that were sent.
    sent: usize,
    /// Its time in [`InterfaceQueue::waiting`].
    due: Option<Instant>,
}

impl Announcer {
    /// Creates an announcer without VIPs.
    pub fn new(pacing: Pacing) -> Self {
        Self { pacing, queues: BTreeMap::new() }
    }

    /// Starts the burst of `vip`, or starts it over: this node leads it now, on the interface
    /// `ifindex` with the MAC `mac`. Also call it when the MAC changed.
    pub fn gained(&mut self, vip: Vip, ifindex: u32, mac: Mac, now: Instant) {
        let queue = self.queues.entry(ifindex).or_default();
        queue.forget(vip);
        queue.held.insert(vip, Burst { mac, start: now, sent: 0, due: None });
        queue.fresh.insert(vip);
    }

    /// Stops the announcements of `vip` on all interfaces but these: it is no longer announced there.
    pub fn retain(&mut self, vip: Vip, interfaces: &BTreeSet<u32>) {
        let others = self.queues.iter_mut().filter(|(ifindex, _)| !interfaces.contains(ifindex));
        others.for_each(|(_, queue)| queue.forget(vip));
    }

    /// Stops all announcements of `vip`: another node leads it now.
    pub fn lost(&mut self, vip: Vip) {
        self.queues.retain(|_, queue| {
            queue.forget(vip);
            !queue.held.is_empty() || queue.busy.is_some()
        });
    }

    /// Starts over the bursts of all VIPs on `ifindex`. Its carrier came back, and the switch may
    /// have learned another port meanwhile.
    pub fn reannounce(&mut self, ifindex: u32, now: Instant) {
        let Some(queue) = self.queues.get_mut(&ifindex) else { return };
        queue.waiting.clear();
        for (vip, burst) in &mut queue.held {
            (burst.start, burst.sent, burst.due) = (now, 0, None);
            queue.fresh.insert(*vip);
        }
    }

    /// Adds one round for `vip` on every interface, before all waiting rounds: a foreign speaker
    /// spoke for it. The round is paced like the others, since the foreign speaker decides how many
    /// such rounds there are.
    pub fn defend(&mut self, vip: Vip) {
        for queue in self.queues.values_mut() {
            let Some(burst) = queue.held.get_mut(&vip).filter(|_| !queue.fresh.contains(&vip)) else { continue };
            if let Some(due) = burst.due {
                queue.waiting.remove(&(due, vip));
            }
            // It takes the place of the last round, so the schedule continues unchanged.
            (burst.sent, burst.due) = (burst.sent.saturating_sub(1), Some(burst.start));
            queue.waiting.insert((burst.start, vip));
        }
    }

    /// Removes the interface `ifindex` and all VIPs on it.
    pub fn remove_interface(&mut self, ifindex: u32) {
        self.queues.remove(&ifindex);
    }

    /// Returns the frames to send now, in order. Each frame is returned once.
    pub fn due(&mut self, now: Instant) -> Vec<Frame> {
        let mut frames = Vec::new();
        for (&ifindex, queue) in &mut self.queues {
            queue.first_rounds(ifindex, &self.pacing, now, &mut frames);
            queue.paced_round(ifindex, &self.pacing, now, &mut frames);
        }
        frames
    }

    /// Returns the next time to call [`Self::due`]; a time in the past means now. `None`: nothing
    /// is due until [`Self::gained`], [`Self::reannounce`] or [`Self::defend`] is called.
    pub fn next(&self) -> Option<Instant> {
        self.queues.values().filter_map(InterfaceQueue::next).min()
    }
}

impl InterfaceQueue {
    fn forget(&mut self, vip: Vip) {
        self.fresh.remove(&vip);
        if let Some(due) = self.held.remove(&vip).and_then(|burst| burst.due) {
            self.waiting.remove(&(due, vip));
        }
    }

    fn first_rounds(&mut self, ifindex: u32, pacing: &Pacing, now: Instant, frames: &mut Vec<Frame>) {
        while self.has_room(now)
            && let Some(vip) = self.fresh.pop_first()
        {
            self.round(vip, ifindex, pacing, now, frames);
        }
    }

    /// Returns whether the limit of all rounds allows another one.
    fn has_room(&self, now: Instant) -> bool {
        self.busy.is_none_or(|busy| Pacing::room(busy) <= now)
    }

    /// Sends at most one announcement per call. Then the interface is busy for its cost.
    fn paced_round(&mut self, ifindex: u32, pacing: &Pacing, now: Instant, frames: &mut Vec<Frame>) {
        if self.free.is_some_and(|free| free > now) || !self.has_room(now) {
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
        let (frame, before) = (|bytes| Frame { ifindex, bytes }, frames.len());
        match vip.address() {
            IpAddr::V4(address) => frames.extend(arp::announcement(address, burst.mac).map(frame)),
            IpAddr::V6(address) => frames.push(frame(ndp::announcement(address, burst.mac))),
        }
        self.busy = Some(pacing.busy(self.busy, frames.len() - before, now));
        burst.sent += 1;
        burst.due = pacing.repeat(burst.start, burst.sent, now);
        self.waiting.extend(burst.due.map(|due| (due, vip)));
    }

    fn next(&self) -> Option<Instant> {
        let first = self.fresh.iter().filter_map(|vip| self.held.get(vip)).map(|burst| burst.start).min();
        let paced = self.waiting.first().map(|&(due, _)| self.free.map_or(due, |free| free.max(due)));
        let next = first.into_iter().chain(paced).min()?;
        Some(self.busy.map_or(next, |busy| next.max(Pacing::room(busy))))
    }
}

#[cfg(test)]
mod tests;
