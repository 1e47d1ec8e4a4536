//! The state that this node publishes: its items, numbered by their last change, and the keys of
//! withdrawn items.

use std::collections::{BTreeMap, BTreeSet};

use crate::membership::{
    item_kind::ItemKind,
    items::{Item, ItemChange, ItemKey},
    payload::MOST_PAYLOAD,
    wire::{DELTA_OVERHEAD, Delta, DeltaChange, Pull, StateVersion},
};

/// The most withdrawn keys that are remembered. A peer that has missed a forgotten one starts over.
const MOST_GONE: usize = 1024;

/// The node has too many items of a kind; this one was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot publish more than {most} {kind}", most = .0.most(), kind = .0)]
pub struct Full(pub ItemKind);

/// The state that this node publishes.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalState {
    version: StateVersion,
    /// The last change of each key, by its version.
    changes: BTreeMap<u64, ItemChange>,
    versions: BTreeMap<ItemKey, u64>,
    /// The versions of the changes that are [`ItemChange::Gone`].
    gone: BTreeSet<u64>,
    /// The number of items of each kind.
    counts: BTreeMap<ItemKind, usize>,
    /// The version of the last change that was forgotten.
    forgotten: u64,
}

impl LocalState {
    pub(super) fn new(run: u64) -> Self {
        Self { version: StateVersion { run, number: 0 }, ..Self::default() }
    }

    /// Returns the latest version.
    pub(super) const fn version(&self) -> StateVersion {
        self.version
    }

    /// Publishes an item. Returns whether that changed anything.
    pub(super) fn publish(&mut self, item: Item) -> Result<bool, Full> {
        let key = item.key();
        let change = ItemChange::Set(item);
        match self.last(key) {
            Some(last) if *last == change => return Ok(false),
            Some(ItemChange::Set(_)) => {}
            _ => {
                let kind = key.kind();
                let count = self.counts.entry(kind).or_default();
                if *count >= kind.most() {
                    return Err(Full(kind));
                }
                *count += 1;
            }
        }
        self.record(key, change);
        Ok(true)
    }

    /// Withdraws an item. Returns whether that changed anything.
    pub(super) fn withdraw(&mut self, key: ItemKey) -> bool {
        if !matches!(self.last(key), Some(ItemChange::Set(_))) {
            return false;
        }
        self.record(key, ItemChange::Gone(key));
        self.counts.entry(key.kind()).and_modify(|count| *count -= 1);
        self.gone.insert(self.version.number);
        if self.gone.len() > MOST_GONE
            && let Some(oldest) = self.gone.pop_first()
            && let Some(ItemChange::Gone(key)) = self.changes.remove(&oldest)
        {
            self.versions.remove(&key);
            self.forgotten = oldest;
        }
        true
    }

    fn last(&self, key: ItemKey) -> Option<&ItemChange> {
        self.changes.get(self.versions.get(&key)?)
    }

    fn record(&mut self, key: ItemKey, change: ItemChange) {
        self.version.number += 1;
        if let Some(before) = self.versions.insert(key, self.version.number) {
            self.changes.remove(&before);
            self.gone.remove(&before);
        }
        self.changes.insert(self.version.number, change);
    }

    /// Returns the answer to a pull: as many changes as fit into one payload, in the order in which
    /// they were made.
    pub(super) fn page(&self, pull: &Pull) -> Delta {
        let known = pull.since.run == self.version.run && pull.begun >= self.forgotten;
        let (since, reset) = if known { (pull.since.number, None) } else { (0, Some(self.version.number)) };
        let mut room = MOST_PAYLOAD - DELTA_OVERHEAD;
        let (mut changes, mut upto, mut more) = (Vec::new(), self.version, false);
        for (number, change) in self.changes.range(since.saturating_add(1)..) {
            let change = DeltaChange(Some(change.clone()));
            let size = change.size();
            if size > room {
                more = true;
                break;
            }
            room -= size;
            upto.number = *number;
            changes.push(change);
        }
        if !more {
            upto = self.version;
        }
        Delta { asked: pull.asked, upto, since, reset, more, changes }
    }
}
