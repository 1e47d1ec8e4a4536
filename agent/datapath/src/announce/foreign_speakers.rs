//! Tracks foreign speakers for VIPs that this node leads (RFC 5227, 2.4): a state machine without
//! clock or I/O.
//!
//! ```text
//!             claims                    defended              silent for FORGET_AFTER
//!  (none)  ----------> defense due ------------------> known ---------------------------> (none)
//!                             ^                          |
//!                             +--------------------------+
//!                               claims again; at most every DEFEND_INTERVAL
//! ```
//!
//! The node keeps the address, as RFC 5227 allows for servers (2.4, (c)). Otherwise any machine on
//! the LAN could stop a Service by one frame. A machine with this node's own MAC looks like a
//! reflection: the programs count it (`reflected`) and do nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::Mac;

use super::speaker::VipSpeaker;
use vipmux_model::Vip;

/// The shortest time between two defenses of a VIP (RFC 5227, 1.1).
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// The time after which a silent foreign speaker is forgotten.
pub const FORGET_AFTER: Duration = Duration::from_mins(1);
/// The limit of known pairs of VIP and foreign speaker: a hostile machine can use any number of
/// MACs.
pub const MAX_CONFLICTS: usize = 64;

/// An address conflict: a foreign speaker claims a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The VIP.
    pub vip: Vip,
    /// The foreign speaker's MAC.
    pub mac: Mac,
    /// The interface that last received a frame from it.
    pub ifindex: u32,
}

/// The foreign speakers of all VIPs. Times are `CLOCK_BOOTTIME`.
#[derive(Debug, Default)]
pub struct ForeignSpeakers {
    /// The interface and time of the last claim, by VIP and MAC.
    claims: BTreeMap<(Vip, Mac), (u32, Duration)>,
    /// The time of the last defense of each VIP with a foreign speaker.
    defended: BTreeMap<Vip, Duration>,
}

impl ForeignSpeakers {
    /// Records claims. `own` are this node's MACs. VIPs that others lead count too: this node may
    /// lead them next.
    pub fn observe(&mut self, speakers: &[VipSpeaker], own: &BTreeSet<Mac>, now: Duration) {
        self.forget(now);
        for VipSpeaker { vip, mac, ifindex, claimed, peer, .. } in speakers {
            let Some(at) = claimed.filter(|at| is_recent(*at, now)) else { continue };
            let known = self.claims.contains_key(&(*vip, *mac));
            if !peer && !own.contains(mac) && (known || self.claims.len() < MAX_CONFLICTS) {
                self.claims.insert((*vip, *mac), (*ifindex, at));
            }
        }
    }

    /// Forgets speakers that are nodes: a node may announce a VIP before its MAC is known here.
    pub fn remove_peers(&mut self, is_peer: impl Fn(Mac) -> bool) {
        self.claims.retain(|(_, mac), _| !is_peer(*mac));
    }

    /// Returns the led VIPs to defend now, and marks them as defended.
    pub fn defend(&mut self, led: impl Fn(Vip) -> bool, now: Duration) -> BTreeSet<Vip> {
        self.forget(now);
        let defended = |vip| self.defended.get(&vip).copied();
        let is_due = |vip: &Vip, at: Duration| match defended(*vip) {
            None => true,
            Some(last) => at > last && now.saturating_sub(last) >= DEFEND_INTERVAL,
        };
        let due = self.claims.iter().filter(|((vip, _), (_, at))| is_due(vip, *at) && led(*vip));
        let due: BTreeSet<Vip> = due.map(|((vip, _), _)| *vip).collect();
        self.defended.extend(due.iter().map(|vip| (*vip, now)));
        due
    }

    /// Returns the current conflicts of led VIPs.
    pub fn conflicts(&self, led: impl Fn(Vip) -> bool) -> impl Iterator<Item = Conflict> {
        let led = self.claims.iter().filter(move |((vip, _), _)| led(*vip));
        led.map(|(&(vip, mac), &(ifindex, _))| Conflict { vip, mac, ifindex })
    }

    fn forget(&mut self, now: Duration) {
        self.claims.retain(|_, (_, at)| is_recent(*at, now));
        // This is longer than `DEFEND_INTERVAL`, so no VIP is defended too soon.
        self.defended.retain(|_, at| is_recent(*at, now));
    }
}

fn is_recent(at: Duration, now: Duration) -> bool {
    now.saturating_sub(at) < FORGET_AFTER
}

#[cfg(test)]
mod tests;
