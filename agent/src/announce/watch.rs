//! Strangers that speak for VIPs which this node leads (RFC 5227, 2.4), as a state machine without clock or I/O.
//!
//! ```text
//!             claimed                     defended              not heard for FORGOTTEN
//!  (nobody) ----------> to be defended -------------> known ---------------------------> (nobody)
//!                             ^                          |
//!                             +--------------------------+
//!                               claimed again; at most every DEFEND_INTERVAL
//! ```
//!
//! The address is kept, as RFC 5227 has it for servers (2.4, (c)): to give it up would let any machine on the LAN take a
//! Service down by one frame. A machine with this node's own MAC cannot be told from a reflection: it is counted
//! (`reflected`), and nothing is done about it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::Mac;

use super::heard::Heard;
use crate::model::Vip;

/// How long after it was defended a VIP may be defended again (RFC 5227, 1.1).
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// How long a stranger is remembered that is not heard any more.
pub const FORGOTTEN: Duration = Duration::from_mins(1);
/// Most pairs of a VIP and a stranger that are known at the same time: a hostile machine has as many MACs as it likes.
pub const MOST_CONFLICTS: usize = 64;

/// A stranger has a VIP too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The VIP.
    pub vip: Vip,
    /// The stranger.
    pub mac: Mac,
    /// The interface where it was heard last.
    pub ifindex: u32,
}

/// See the module. Times are `CLOCK_BOOTTIME`.
#[derive(Debug, Default)]
pub struct Watch {
    /// Strangers, with where and when each of them last spoke for a VIP.
    claims: BTreeMap<(Vip, Mac), (u32, Duration)>,
    /// When VIPs were defended, of those that strangers speak for.
    defended: BTreeMap<Vip, Duration>,
}

impl Watch {
    /// Takes in who was heard; `ours` are this node's own MACs. Also of VIPs that others lead: this node may lead them next.
    pub fn hear(&mut self, heard: &[Heard], ours: &BTreeSet<Mac>, now: Duration) {
        self.forget(now);
        for Heard { vip, mac, ifindex, claimed, peer, .. } in heard {
            let Some(at) = claimed.filter(|at| is_recent(*at, now)) else { continue };
            let known = self.claims.contains_key(&(*vip, *mac));
            if !peer && !ours.contains(mac) && (known || self.claims.len() < MOST_CONFLICTS) {
                self.claims.insert((*vip, *mac), (*ifindex, at));
            }
        }
    }

    /// Forgets those who turn out to be nodes: one that announces a VIP may be heard before its MAC is known.
    pub fn acquit(&mut self, is_peer: impl Fn(Mac) -> bool) {
        self.claims.retain(|(_, mac), _| !is_peer(*mac));
    }

    /// The VIPs that are to be defended now, of those that are `led`. Each is told once.
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

    /// The strangers that were heard lately, of VIPs that are `led`.
    pub fn conflicts(&self, led: impl Fn(Vip) -> bool) -> impl Iterator<Item = Conflict> {
        let led = self.claims.iter().filter(move |((vip, _), _)| led(*vip));
        led.map(|(&(vip, mac), &(ifindex, _))| Conflict { vip, mac, ifindex })
    }

    fn forget(&mut self, now: Duration) {
        self.claims.retain(|_, (_, at)| is_recent(*at, now));
        // Longer than the interval: who is no longer spoken for may be spoken for again.
        self.defended.retain(|_, at| is_recent(*at, now));
    }
}

fn is_recent(at: Duration, now: Duration) -> bool {
    now.saturating_sub(at) < FORGOTTEN
}

#[cfg(test)]
mod tests;
