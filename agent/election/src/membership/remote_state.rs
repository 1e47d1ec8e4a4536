//! The copy of the state that a peer publishes.

use std::time::Duration;

use crate::membership::{
    item_kind::ItemKind,
    items::State,
    wire::{Delta, Pull, StateVersion},
};

/// The progress of the copy of a peer's state, without the state itself.
#[derive(Clone, Debug, Default)]
pub(super) struct RemoteState {
    /// The version of the copy.
    version: StateVersion,
    /// A copy that begins from nothing, and replaces the other once it is complete.
    fresh: Option<Fresh>,
}

#[derive(Clone, Debug)]
struct Fresh {
    version: StateVersion,
    begun: u64,
    state: State,
}

/// The result of applying a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) progress: Progress,
    /// The peer's state changed.
    pub(super) changed: bool,
    /// The kind of an item for which there was no room.
    pub(super) refused: Option<ItemKind>,
}

/// The progress of the copy after a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It does not continue the copy.
    Stale,
    /// There is more to pull.
    More,
    /// The copy is complete.
    Whole,
}

impl RemoteState {
    /// Returns whether the copy is at least as new as `version`.
    pub(super) const fn covers(&self, version: StateVersion) -> bool {
        self.version.run == version.run && self.version.number >= version.number
    }

    /// Returns the next pull; `asked` in nanoseconds of this node's clock.
    pub(super) fn pull(&self, asked: u64) -> Pull {
        match &self.fresh {
            Some(fresh) => Pull { asked, since: fresh.version, begun: fresh.begun },
            None => Pull { asked, since: self.version, begun: self.version.number },
        }
    }

    /// Applies the answer to the last pull to `state`.
    pub(super) fn apply(&mut self, delta: Delta, state: &mut State, now: Duration) -> Applied {
        if let Some(begun) = delta.reset {
            let version = StateVersion { run: delta.upto.run, number: 0 };
            self.fresh = Some(Fresh { version, begun, state: State::default() });
        }
        let (version, target) = match &mut self.fresh {
            Some(fresh) => (&mut fresh.version, &mut fresh.state),
            None => (&mut self.version, &mut *state),
        };
        let readable: Vec<_> = delta.changes.into_iter().filter_map(|change| change.0).collect();
        // Each change has a number of its own. A delta without changes leads nowhere.
        let least = if delta.more { readable.len().max(1) } else { readable.len() };
        let gained = delta.upto.number.checked_sub(delta.since).and_then(|gained| usize::try_from(gained).ok());
        let continues = (version.run, version.number) == (delta.upto.run, delta.since);
        if !continues || gained.is_none_or(|gained| gained < least) {
            return Applied { progress: Progress::Stale, changed: false, refused: None };
        }
        let (mut changed, mut refused) = (!readable.is_empty(), None);
        for change in readable {
            refused = target.apply(change, now).err().or(refused);
        }
        *version = delta.upto;
        if delta.more {
            return Applied { progress: Progress::More, changed: changed && self.fresh.is_none(), refused };
        }
        if let Some(mut fresh) = self.fresh.take() {
            fresh.state.recall(state);
            changed = fresh.state != *state;
            *state = fresh.state;
            self.version = fresh.version;
        }
        Applied { progress: Progress::Whole, changed, refused }
    }
}
