//! The owner's side of a state: its items, numbered by their last change, and what went.

use std::collections::{BTreeMap, BTreeSet};

use crate::membership::{
    state::{Change, Item, Key, MOST_ITEMS},
    wire::{DELTA_OVERHEAD, Delta, MOST_PAYLOAD, Pull, Version},
};

/// Most keys whose going is remembered. A peer that has not heard of a change since one that was forgotten starts over.
const MOST_GONE: usize = 1024;

/// The node has too many items; this one was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {MOST_ITEMS} items to publish")]
pub struct Full;

/// What this node publishes.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    version: Version,
    /// The last change of each key, by its version.
    changes: BTreeMap<u64, Change>,
    versions: BTreeMap<Key, u64>,
    /// The versions of those that are [`Change::Gone`].
    gone: BTreeSet<u64>,
    /// The version of the last one that was forgotten.
    forgotten: u64,
}

impl Publication {
    pub(super) fn new(run: u64) -> Self {
        let (changes, versions, gone) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { version: Version { run, number: 0 }, changes, versions, gone, forgotten: 0 }
    }

    /// How far it has come.
    pub(super) const fn version(&self) -> Version {
        self.version
    }

    /// Whether that changed anything.
    pub(super) fn publish(&mut self, item: Item) -> Result<bool, Full> {
        let key = item.key();
        let change = Change::Set(item);
        match self.last(key) {
            Some(last) if *last == change => return Ok(false),
            Some(Change::Set(_)) => {}
            _ if self.changes.len() - self.gone.len() >= MOST_ITEMS => return Err(Full),
            _ => {}
        }
        self.record(key, change);
        Ok(true)
    }

    /// Whether that changed anything.
    pub(super) fn withdraw(&mut self, key: Key) -> bool {
        if !matches!(self.last(key), Some(Change::Set(_))) {
            return false;
        }
        self.record(key, Change::Gone(key));
        self.gone.insert(self.version.number);
        if self.gone.len() > MOST_GONE
            && let Some(oldest) = self.gone.pop_first()
            && let Some(Change::Gone(key)) = self.changes.remove(&oldest)
        {
            self.versions.remove(&key);
            self.forgotten = oldest;
        }
        true
    }

    fn last(&self, key: Key) -> Option<&Change> {
        self.changes.get(self.versions.get(&key)?)
    }

    fn record(&mut self, key: Key, change: Change) {
        self.version.number += 1;
        if let Some(before) = self.versions.insert(key, self.version.number) {
            self.changes.remove(&before);
            self.gone.remove(&before);
        }
        self.changes.insert(self.version.number, change);
    }

    /// What answers a pull: as many changes as fit into one payload, in the order they were made.
    pub(super) fn page(&self, pull: &Pull) -> Delta {
        let known = pull.since.run == self.version.run && pull.begun >= self.forgotten;
        let (since, reset) = if known { (pull.since.number, None) } else { (0, Some(self.version.number)) };
        let mut room = MOST_PAYLOAD - DELTA_OVERHEAD;
        let (mut changes, mut upto, mut more) = (Vec::new(), self.version, false);
        for (number, change) in self.changes.range(since.saturating_add(1)..) {
            let size = change.size();
            if size > room {
                more = true;
                break;
            }
            room -= size;
            upto.number = *number;
            changes.push(change.clone());
        }
        if !more {
            upto = self.version;
        }
        Delta { asked: pull.asked, upto, since, reset, more, changes }
    }
}
