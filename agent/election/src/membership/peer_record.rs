//! The record of a peer: what this node keeps of it beside the public view.

use std::{collections::BTreeMap, time::Duration};

use super::{remote_state::RemoteState, wire::StateVersion};

/// The record of a peer.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerRecord {
    /// SWIM considers this generation of it down.
    pub(super) down: Option<u64>,
    /// The time of the last heartbeat that it answered. Unlike
    /// [`crate::membership::Peer::answered`], it is never discarded.
    pub(super) answered: Option<Duration>,
    /// The time of its last heartbeat, by its clock.
    pub(super) asked: u64,
    /// The time at which this node last answered it as alive.
    pub(super) assented: Option<Duration>,
    /// The nodes that it considers down, as of `answered`: their generation, and when it can have
    /// answered them last, by [`MemberId::key`](super::MemberId::key).
    pub(super) gone: BTreeMap<u64, (u64, Duration)>,
    /// The time from which it may get the list of departed nodes again.
    pub(super) tell_departed: Duration,
    pub(super) remote: RemoteState,
    /// A newer version that was heard of during a pull.
    pub(super) newest: Option<StateVersion>,
    pub(super) pulling: Option<Pulling>,
    /// The election waits for a copy of its state that is as new as this.
    pub(super) awaited: Option<Duration>,
}

/// A pull without an answer yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulling {
    pub(super) asked: Duration,
    pub(super) tries: u32,
}

impl PeerRecord {
    /// Returns whether the election waits for a copy of the state that is this new, and no longer
    /// does.
    pub(super) fn take_awaited(&mut self, current: Option<Duration>) -> bool {
        self.awaited.take_if(|awaited| current >= Some(*awaited)).is_some()
    }

    /// Forgets how new the copy of its state is.
    pub(super) fn restart(&mut self) {
        (self.remote, self.newest, self.pulling) = (RemoteState::default(), None, None);
        self.gone.clear();
    }
}

impl Pulling {
    /// Returns when to pull again.
    pub(super) fn retry_at(self, wait: Duration) -> Duration {
        self.asked + wait * (1 << self.tries.min(5))
    }
}
