//! Plans sets of source ranges.
//!
//! A set is written completely under an id that was never used, before a Service's state refers to
//! it. It is never changed. A set that nothing refers to any more rests, so that no packet in
//! flight misses its prefix. Then it is removed.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    net::IpAddr,
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use vipmux_common::abi;

use crate::{
    capacity::{CapacityMap, Shortage},
    error::PlanError,
    rest::REST,
    step::Step,
};
use vipmux_model::prefix::Prefix;

/// The id of a set. A Service's state without a set has 0.
pub(super) type SetId = NonZeroU32;

/// The prefixes of a set.
pub(super) type SourcePrefixes = BTreeSet<Prefix>;

/// A key of `SOURCE_RANGES`: the number of its bits that count, and the bits.
pub(super) type SourceKey = (u32, abi::Range);

/// The bits of a key before those of the address, and the bits before an IPv4 address in its mapped
/// form.
const SET_BITS: u32 = 32;
const MAPPED_BITS: u32 = 96;

fn key(set: SetId, prefix: Prefix) -> SourceKey {
    let abi::Address { w0, w1, w2, w3 } = prefix.address().into();
    let mapped = if prefix.is_ipv4() { MAPPED_BITS } else { 0 };
    (SET_BITS + mapped + u32::from(prefix.length()), abi::Range { set: set.get(), w0, w1, w2, w3 })
}

/// Returns the set and the prefix of a key; `None` if no agent wrote it.
fn set_and_prefix((bits, range): &SourceKey) -> Option<(SetId, Prefix)> {
    let set = SetId::new(range.set)?;
    let address: IpAddr = abi::Address { w0: range.w0, w1: range.w1, w2: range.w2, w3: range.w3 }.into();
    let mapped = if address.is_ipv4() { MAPPED_BITS } else { 0 };
    let length = u8::try_from(bits.checked_sub(SET_BITS + mapped)?).ok()?;
    let prefix = Prefix::new(address, length)?;
    (key(set, prefix) == (*bits, *range)).then_some((set, prefix))
}

#[derive(Clone, Debug, Default)]
struct SourceSet {
    prefixes: Arc<SourcePrefixes>,
    /// The number of slots whose state refers to it.
    users: u32,
}

/// The mirror of `SOURCE_RANGES`.
#[derive(Clone, Debug, Default)]
pub(super) struct SourceSets {
    by_id: BTreeMap<SetId, SourceSet>,
    /// The sets that have users.
    by_prefixes: BTreeMap<Arc<SourcePrefixes>, SetId>,
    /// The sets that have no users, and the time since when.
    idle: BTreeMap<SetId, Duration>,
    /// Entries that belong to no set.
    strays: BTreeSet<SourceKey>,
    /// The number of entries in the map.
    entries: usize,
}

impl SourceSets {
    /// Returns the number of entries in the map.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// Records that an entry was written (`present`) or removed.
    pub(super) fn record(&mut self, key: &SourceKey, present: bool, now: Duration) {
        let Some((set, prefix)) = set_and_prefix(key) else {
            let changed = if present { self.strays.insert(*key) } else { self.strays.remove(key) };
            return self.count(changed, present);
        };
        let entry = self.by_id.entry(set).or_insert_with(|| {
            self.idle.insert(set, now);
            SourceSet::default()
        });
        let prefixes = Arc::make_mut(&mut entry.prefixes);
        let changed = if present { prefixes.insert(prefix) } else { prefixes.remove(&prefix) };
        if prefixes.is_empty() && entry.users == 0 {
            self.by_id.remove(&set);
            self.idle.remove(&set);
        }
        self.count(changed, present);
    }

    fn count(&mut self, changed: bool, present: bool) {
        let change = usize::from(changed);
        self.entries = if present { self.entries + change } else { self.entries.saturating_sub(change) };
    }

    /// Records that a slot's state refers to the set from now on.
    pub(super) fn acquire(&mut self, set: SetId) {
        let entry = self.by_id.entry(set).or_default();
        entry.users += 1;
        self.idle.remove(&set);
        self.by_prefixes.entry(Arc::clone(&entry.prefixes)).or_insert(set);
    }

    /// Records that a slot's state that referred to the set is gone.
    pub(super) fn release(&mut self, set: SetId, now: Duration) {
        let Some(entry) = self.by_id.get_mut(&set) else { return };
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return;
        }
        if let btree_map::Entry::Occupied(known) = self.by_prefixes.entry(Arc::clone(&entry.prefixes))
            && *known.get() == set
        {
            known.remove();
        }
        if entry.prefixes.is_empty() {
            self.by_id.remove(&set);
        } else {
            self.idle.insert(set, now);
        }
    }

    /// Returns all entries of the map.
    pub(super) fn keys(&self) -> BTreeSet<SourceKey> {
        let of =
            |(&id, set): (&SetId, &SourceSet)| set.prefixes.iter().map(|prefix| key(id, *prefix)).collect::<Vec<_>>();
        self.by_id.iter().flat_map(of).chain(self.strays.iter().copied()).collect()
    }

    /// Whether there is something to remove, now or later.
    pub(super) fn has_leftovers(&self) -> bool {
        !self.idle.is_empty() || !self.strays.is_empty()
    }

    /// Returns the removal of sets that nothing refers to any more and that have rested.
    fn leftovers(&self, now: Duration) -> Vec<Step> {
        let rested = self.idle.iter().filter(|(_, since)| now >= **since + REST);
        let sets = rested.filter_map(|(id, _)| Some((*id, self.by_id.get(id)?)));
        let keys = sets.flat_map(|(id, set)| set.prefixes.iter().map(move |prefix| key(id, *prefix)));
        keys.chain(self.strays.iter().copied()).map(|key| Step::SourceRange(key, false)).collect()
    }

    fn holds(&self, set: SetId, wanted: &SourcePrefixes) -> bool {
        self.by_id.get(&set).map_or(wanted.is_empty(), |set| *set.prefixes == *wanted)
    }
}

/// The set of an optional list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetChoice {
    /// There is no list.
    None,
    /// The set with this id.
    Known(SetId),
    /// A set that has to be written.
    New,
}

/// Chooses or makes the sets of lists, within one plan.
pub(super) struct SourceRangePlanner<'a> {
    observed: &'a SourceSets,
    capacity: u32,
    free: usize,
    next: SetId,
    new: BTreeMap<Arc<SourcePrefixes>, SetId>,
    /// Removals. They come first, since they make room.
    pub(super) removals: Vec<Step>,
    pub(super) writes: Vec<Step>,
}

impl<'a> SourceRangePlanner<'a> {
    /// `after` is the generation of all other new entries of the plan.
    pub(super) fn new(observed: &'a SourceSets, capacity: u32, after: u32, now: Duration) -> Self {
        let removals = observed.leftovers(now);
        Self {
            observed,
            capacity,
            free: (capacity as usize + removals.len()).saturating_sub(observed.entries),
            next: SetId::MIN.saturating_add(after),
            new: BTreeMap::new(),
            removals,
            writes: Vec::new(),
        }
    }

    /// Returns the set of a list, without taking it. `current` is the set that its Service refers
    /// to now.
    pub(super) fn find(
        &self,
        current: Option<SetId>,
        wanted: Option<&Arc<SourcePrefixes>>,
    ) -> Result<SetChoice, Shortage> {
        let Some(wanted) = wanted else { return Ok(SetChoice::None) };
        if let Some(current) = current.filter(|current| self.observed.holds(*current, wanted)) {
            return Ok(SetChoice::Known(current));
        }
        if let Some(known) = self.observed.by_prefixes.get(wanted).or_else(|| self.new.get(wanted)) {
            return Ok(SetChoice::Known(*known));
        }
        if wanted.len() <= self.free {
            return Ok(SetChoice::New);
        }
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let (free, needed) = (number(self.free), number(wanted.len()));
        Err(Shortage { map: CapacityMap::SourceRanges, capacity: self.capacity, free, needed })
    }

    /// Takes the set and returns its id. A new one is written. The choice is that of [`Self::find`]
    /// for the same list.
    pub(super) fn take(&mut self, choice: SetChoice, wanted: Option<&Arc<SourcePrefixes>>) -> Option<SetId> {
        match choice {
            SetChoice::None => None,
            SetChoice::Known(known) => Some(known),
            SetChoice::New => wanted.map(|wanted| self.write(wanted)),
        }
    }

    fn write(&mut self, wanted: &Arc<SourcePrefixes>) -> SetId {
        let id = self.next;
        self.next = id.saturating_add(1);
        self.free -= wanted.len();
        self.writes.extend(wanted.iter().map(|prefix| Step::SourceRange(key(id, *prefix), true)));
        self.new.insert(Arc::clone(wanted), id);
        id
    }

    /// Returns the first generation that no set has; `None` if there are no new sets.
    pub(super) fn after(&self) -> Result<Option<u32>, PlanError> {
        if self.new.is_empty() {
            return Ok(None);
        }
        if self.next == SetId::MAX { Err(PlanError::GenerationsExhausted) } else { Ok(Some(self.next.get())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: SetId = SetId::new(7).unwrap();

    #[test]
    fn a_key_is_its_prefix_again() {
        for (text, bits) in [
            ("0.0.0.0/0", 128),
            ("192.0.2.0/24", 152),
            ("192.0.2.1/32", 160),
            ("::/0", 32),
            ("2001:db8::/32", 64),
            ("2001:db8::1/128", 160),
        ] {
            let parsed: Prefix = text.parse().unwrap();
            let key = key(SET, parsed);
            assert_eq!((key.0, key.1.set), (bits, 7), "{text}");
            assert_eq!(set_and_prefix(&key), Some((SET, parsed)), "{text}");
        }
    }

    #[test]
    fn a_key_that_no_agent_wrote_has_no_prefix_and_is_removed() {
        let (bits, range) = key(SET, "192.0.2.0/24".parse().unwrap());
        let of_no_set = abi::Range { set: 0, ..range };
        for stray in [(31, range), (161, range), (120, range), (bits - 20, range), (bits, of_no_set)] {
            assert_eq!(set_and_prefix(&stray), None, "{stray:?}");
            let mut sets = SourceSets::default();
            sets.record(&stray, true, Duration::ZERO);
            assert_eq!(sets.leftovers(Duration::ZERO), [Step::SourceRange(stray, false)]);
            sets.record(&stray, false, Duration::ZERO);
            assert!(!sets.has_leftovers() && sets.entries == 0);
        }
    }
}
