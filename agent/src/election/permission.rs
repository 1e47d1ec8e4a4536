//! Whether a VIP that nobody leads may be taken from who is known to have held it last: not before its kernel answers no more,
//! and only with somebody who saw it go, unless the LAN is asked.

use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use super::simulation::Mutation;
use super::{Election, takeover::SETTLE, tenure::Hold};
use crate::{
    membership::{Peer, Peers, SAMPLE, Standing, Why},
    model::Vip,
};

/// Added to that after which a silent peer's kernel answers no more.
const MARGIN: Duration = Duration::from_millis(15);
/// How long it takes until all have heard that one is down. Where members ask samples of each other nothing else tells.
const DISTANT: Duration = Duration::from_millis(100);
/// How long a minority leaves to a majority, which may be elsewhere, what it cannot see any holder of.
const DETACHED: Duration = Duration::from_secs(30);
/// How long a living holder may not know of it yet.
pub(super) const CLAIMLESS: Duration = Duration::from_secs(1);

/// Whether a VIP that nobody leads may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// Now.
    Granted {
        why: Why,
        /// The holder's end was seen, by a majority. Otherwise the LAN is asked first.
        witnessed: bool,
    },
    /// Not before this time.
    Later(Duration),
}

impl Permission {
    /// Granted from `at` on.
    fn from(at: Duration, now: Duration, why: Why, witnessed: bool) -> Self {
        if now < at { Self::Later(at) } else { Self::Granted { why, witnessed } }
    }
}

impl Election {
    /// Whether a VIP may be taken from who is known to have held it last.
    pub(super) fn permission(&self, vip: Vip, peers: &Peers, now: Duration) -> Permission {
        let place = self.places.get(&vip);
        let hold = place.and_then(|place| place.hold.as_ref());
        let Some(hold) = hold else { return Permission::Granted { why: Why::First, witnessed: true } };
        if self.is_own(vip) {
            return Permission::Granted { why: Why::Resumed, witnessed: true };
        }
        let silent = |at| Permission::from(at, now, Why::Silent(hold.node.clone()), false);
        let Some(peer) = peers.members.get(&hold.node) else { return silent(self.started + SETTLE) };
        match peer.standing {
            Standing::Left => Permission::from(self.silent_from(peer, peers), now, Why::Down(hold.node.clone()), true),
            Standing::Down => self.succession(vip, hold, peer, peers, now),
            Standing::Alive | Standing::Suspected => {
                // While it was down nobody could know what it claims.
                silent(place.and_then(|place| place.unclaimed).unwrap_or(now).max(peer.since) + CLAIMLESS)
            }
        }
    }

    /// Whether a VIP may be taken from a peer that is down.
    fn succession(&self, vip: Vip, hold: &Hold, peer: &Peer, peers: &Peers, now: Duration) -> Permission {
        let at = self.silent_from(peer, peers);
        if now < at {
            return Permission::Later(at);
        }
        // One that took it after this node lost touch with it is there, whatever gossip says.
        let same = peer.state.claims.get(&vip).is_some_and(|claim| claim.epoch >= hold.epoch);
        let witnessed = peers.majority && (hold.why.is_some() || same);
        // A minority leaves it to a majority that may be elsewhere. And perhaps this node was cut off and reached no
        // more than the store, and has yet to hear what happened. Of two nodes neither is a majority.
        let detached = if peers.majority { hold.since + CLAIMLESS } else { peer.since + DETACHED };
        let at = if witnessed || peers.members.len() == 1 { now } else { detached };
        Permission::from(at, now, Why::Down(hold.node.clone()), witnessed)
    }

    /// When the kernel of a peer that is down, or has left, answers no more.
    fn silent_from(&self, peer: &Peer, peers: &Peers) -> Duration {
        #[cfg(any(test, feature = "simulation"))]
        if self.is_broken(Mutation::WaitsForNoSilence) {
            return Duration::ZERO;
        }
        if peer.standing == Standing::Left {
            // What it could not hand over it answers for until its deadline. It has asked nobody since it said so.
            return self.past(peer.since);
        }
        // Who was cut off itself knows nothing of what happened until it was back.
        if peers.members.len() >= SAMPLE {
            // What it heard of us last may have extended its deadline once more.
            let heard = peer.heard.map_or(Duration::ZERO, |heard| self.past(heard.max(self.back)));
            return heard.max(peer.since + DISTANT);
        }
        // Where too few say so, all have heard by then that it is down.
        self.past(peer.silent.unwrap_or_else(|| peer.since.max(self.back) + DISTANT))
    }

    /// When a deadline has passed that rests on what was asked for then, on whatever node; clocks differ.
    fn past(&self, asked: Duration) -> Duration {
        let lease = self.settings.lease;
        asked + lease + lease / 50 + MARGIN
    }

    /// Whether this node is known to have led it last.
    pub(super) fn is_own(&self, vip: Vip) -> bool {
        let hold = self.places.get(&vip).and_then(|place| place.hold.as_ref());
        hold.is_some_and(|hold| hold.node == self.local)
    }
}
