//! Manages the arena of tables: ranges that packets read, ranges that rest, and free ranges.

use std::{
    collections::{BTreeMap, VecDeque, btree_map},
    sync::Arc,
    time::Duration,
};

use crate::{
    capacity::{CapacityMap, Shortage},
    rest::REST,
};
use vipmux_common::abi;

/// Slots `offset..offset + length` of `TABLES`. A length of 0 is no table at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TableRange {
    pub(super) offset: u32,
    pub(super) length: u32,
}

impl TableRange {
    fn end(self) -> u32 {
        self.offset.saturating_add(self.length)
    }
}

/// The ranges of the tables of a set of endpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableRanges {
    pub(super) all: TableRange,
    pub(super) local: TableRange,
    /// The flag [`abi::SERVICE_SPARE`].
    pub(super) spare: bool,
}

/// Returns the tables of a service revision: over all backends, and over this node's own.
pub(super) fn tables_of(value: &abi::ServiceValue) -> impl Iterator<Item = TableRange> + use<> {
    let all = TableRange { offset: value.table, length: value.table_length };
    let local = TableRange { offset: value.local_table, length: value.local_length };
    [all, local].into_iter()
}

/// The backend indices in a table, ascending, each once.
pub(super) type TableMembers = Arc<[u32]>;

/// Returns the distinct values in a table.
pub(super) fn members(table: &[u32]) -> TableMembers {
    let mut members = table.to_vec();
    members.sort_unstable();
    members.dedup();
    members.into()
}

#[derive(Clone, Debug)]
struct MirroredTable {
    members: TableMembers,
    /// The table is the one that a hashing builds from these members, so that others with the same
    /// members may share it. Its length tells which hashing.
    sound: bool,
    /// The digest of the table as read or written
    /// ([`hashing::digest`](vipmux_model::hashing::digest)).
    digest: u64,
    /// The number of service revisions that refer to it. A revision counts twice if both of its
    /// tables do.
    users: u32,
    /// The time when it was written or its last user left.
    idle_since: Duration,
}

/// The mirror of `TABLES`.
#[derive(Clone, Debug)]
pub(super) struct Arena {
    capacity: u32,
    ranges: BTreeMap<TableRange, MirroredTable>,
    /// The hashings differ in the lengths of their tables.
    by_members: BTreeMap<(TableMembers, u32), TableRange>,
    /// Ranges that started to rest, in the order of time.
    resting: VecDeque<(Duration, TableRange)>,
    /// The gaps between the ranges: starts to ends. `None` after ranges overlapped or went beyond
    /// the end, as only those of a damaged map do.
    gaps: Option<BTreeMap<u32, u32>>,
    /// Slots of the ranges that have users. Ranges of a damaged map may overlap and count twice.
    used: u32,
}

impl Arena {
    pub(super) fn new(capacity: u32) -> Self {
        let gaps = Some(BTreeMap::from([(0, capacity)]));
        Self { capacity, ranges: BTreeMap::new(), by_members: BTreeMap::new(), resting: VecDeque::new(), gaps, used: 0 }
    }

    /// Records that a table was written. `sound`: it is the one that a hashing builds from its
    /// members.
    pub(super) fn insert(&mut self, range: TableRange, members: TableMembers, sound: bool, now: Duration) {
        match self.ranges.insert(range, MirroredTable { members, sound, digest: 0, users: 0, idle_since: now }) {
            None => self.cover(range),
            Some(former) if former.users > 0 => self.used = self.used.saturating_sub(range.length),
            Some(_) => {}
        }
        self.resting.push_back((now, range));
    }

    /// Records the digest of an inserted table.
    pub(super) fn seal(&mut self, range: TableRange, digest: u64) {
        if let Some(table) = self.ranges.get_mut(&range) {
            table.digest = digest;
        }
    }

    /// Returns the ranges in use with their digests, without those that will be replaced anyway.
    pub(super) fn digests(&self) -> impl Iterator<Item = (TableRange, u64)> {
        let used = self.ranges.iter().filter(|(_, table)| table.users > 0 && table.sound);
        used.map(|(range, table)| (*range, table.digest))
    }

    /// Records that the range does not hold what was written there. No new revision refers to it.
    pub(super) fn damage(&mut self, range: TableRange) {
        if let Some(table) = self.ranges.get_mut(&range) {
            table.sound = false;
            let key = (Arc::clone(&table.members), range.length);
            if self.by_members.get(&key) == Some(&range) {
                self.by_members.remove(&key);
            }
        }
    }

    /// Records that a service revision refers to the range from now on.
    pub(super) fn acquire(&mut self, range: TableRange) {
        if range.length == 0 {
            return;
        }
        if !self.ranges.contains_key(&range) {
            self.cover(range);
        }
        let unknown =
            || MirroredTable { members: Arc::new([]), sound: false, digest: 0, users: 0, idle_since: Duration::ZERO };
        let table = self.ranges.entry(range).or_insert_with(unknown);
        if table.users == 0 {
            self.used = self.used.saturating_add(range.length);
        }
        table.users += 1;
        if table.sound {
            self.by_members.entry((Arc::clone(&table.members), range.length)).or_insert(range);
        }
    }

    /// Records that a service revision that referred to the range is gone.
    pub(super) fn release(&mut self, range: TableRange, now: Duration) {
        let Some(table) = self.ranges.get_mut(&range) else { return };
        if table.users == 1 {
            self.used = self.used.saturating_sub(range.length);
        }
        table.users = table.users.saturating_sub(1);
        if table.users == 0 {
            table.idle_since = now;
            self.resting.push_back((now, range));
            if let btree_map::Entry::Occupied(entry) = self.by_members.entry((Arc::clone(&table.members), range.length))
                && *entry.get() == range
            {
                entry.remove();
            }
        }
    }

    /// Forgets ranges that have rested. Do not call it while a plan is executed. Thousands of
    /// steps, and so more time than a rest, can lie between a table's write, or the departure of
    /// its last user, and the next revision that refers to it.
    pub(super) fn forget_rested(&mut self, now: Duration) {
        while let Some((since, range)) = self.resting.pop_front_if(|(since, _)| now >= *since + REST) {
            if self.ranges.get(&range).is_some_and(|table| table.users == 0 && table.idle_since == since) {
                self.ranges.remove(&range);
                self.uncover(range);
            }
        }
    }

    /// Returns the number of slots in tables that a service revision refers to, at most all slots.
    pub(super) fn used(&self) -> u32 {
        self.used.min(self.capacity)
    }

    fn cover(&mut self, range: TableRange) {
        let Some(gaps) = &mut self.gaps else { return };
        let gap = gaps.range(..=range.offset).next_back().map(|(start, end)| (*start, *end));
        let Some((start, end)) = gap.filter(|(_, end)| range.end() <= *end) else {
            self.gaps = None;
            return;
        };
        gaps.remove(&start);
        gaps.extend([(start, range.offset), (range.end(), end)].into_iter().filter(|(start, end)| start < end));
    }

    fn uncover(&mut self, range: TableRange) {
        let Some(gaps) = &mut self.gaps else { return };
        let end = gaps.remove(&range.end()).unwrap_or(range.end());
        match gaps.range_mut(..range.offset).next_back().filter(|(_, end)| **end == range.offset) {
            Some((_, before)) => *before = end,
            None => drop(gaps.insert(range.offset, end)),
        }
    }

    /// Returns the range in use that holds the table of exactly these members, of this length; the empty
    /// range for no members.
    pub(super) fn find(&self, members: &TableMembers, length: u32) -> Option<TableRange> {
        if members.is_empty() {
            return Some(TableRange::default());
        }
        self.by_members.get(&(Arc::clone(members), length)).copied()
    }

    /// Whether this range is in use and holds the table of exactly these members.
    pub(super) fn holds(&self, range: TableRange, members: &TableMembers) -> bool {
        let table = self.ranges.get(&range).filter(|table| table.users > 0 && table.sound);
        table.map_or(range.length == 0 && members.is_empty(), |table| table.members == *members)
    }

    /// Returns the backends in a table, as far as they are known.
    pub(super) fn members(&self, range: TableRange) -> &[u32] {
        self.ranges.get(&range).map_or(&[], |table| &table.members)
    }

    /// Returns the ranges that are neither referred to nor resting at `now`.
    pub(super) fn free_ranges(&self, now: Duration) -> FreeRanges {
        let forgotten = self.resting.front().is_none_or(|(since, _)| now < *since + REST);
        let gaps = match self.gaps.as_ref().filter(|_| forgotten) {
            Some(gaps) => gaps.iter().map(|(start, end)| *start..*end).collect(),
            None => self.walk(now),
        };
        FreeRanges { capacity: self.capacity, gaps, first: BTreeMap::new() }
    }

    /// Returns the same gaps, found by a look at all ranges.
    fn walk(&self, now: Duration) -> Vec<std::ops::Range<u32>> {
        let mut gaps = Vec::new();
        let mut end = 0;
        let held = self.ranges.iter().filter(|(_, table)| table.users > 0 || now < table.idle_since + REST);
        for (range, _) in held {
            gaps.push(end..range.offset.min(self.capacity));
            end = end.max(range.end());
        }
        gaps.push(end..self.capacity);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }
}

/// The free ranges of an arena, handed out first fit.
pub(super) struct FreeRanges {
    capacity: u32,
    gaps: Vec<std::ops::Range<u32>>,
    /// For each length, the first gap that may still hold one. Gaps only shrink, so it never moves
    /// back.
    first: BTreeMap<u32, usize>,
}

impl FreeRanges {
    /// Takes a range for each length, or nothing.
    pub(super) fn take_all(&mut self, lengths: &[u32]) -> Result<Vec<TableRange>, Shortage> {
        let mut taken: Vec<(usize, TableRange)> = Vec::new();
        for &length in lengths {
            if let Some(range) = self.take(length) {
                taken.push(range);
                continue;
            }
            for (gap, range) in taken.into_iter().rev() {
                self.gaps[gap].start = range.offset;
            }
            // Look again at the gaps that were too small because of the ranges that are given back.
            self.first.clear();
            let free = self.gaps.iter().map(std::ops::Range::len).sum::<usize>();
            return Err(Shortage {
                map: CapacityMap::Tables,
                capacity: self.capacity,
                free: u32::try_from(free).unwrap_or(u32::MAX),
                needed: lengths.iter().sum(),
            });
        }
        Ok(taken.into_iter().map(|(_, range)| range).collect())
    }

    fn take(&mut self, length: u32) -> Option<(usize, TableRange)> {
        let first = self.first.entry(length).or_default();
        while let Some(gap) = self.gaps.get_mut(*first) {
            if gap.len() >= length as usize {
                let range = TableRange { offset: gap.start, length };
                gap.start = range.end();
                return Some((*first, range));
            }
            *first += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn range(offset: u32, length: u32) -> TableRange {
        TableRange { offset, length }
    }

    fn used(arena: &mut Arena, range: TableRange) {
        arena.insert(range, [range.offset].into(), true, NOW);
        arena.acquire(range);
    }

    fn taken(arena: &Arena, lengths: &[u32], now: Duration) -> Option<Vec<TableRange>> {
        arena.free_ranges(now).take_all(lengths).ok()
    }

    #[test]
    fn the_first_gap_that_fits_is_taken() {
        let mut arena = Arena::new(100);
        for range in [range(10, 10), range(25, 5)] {
            used(&mut arena, range);
        }
        assert_eq!(taken(&arena, &[6, 5, 4, 7], NOW), Some(vec![range(0, 6), range(20, 5), range(6, 4), range(30, 7)]));
    }

    #[test]
    fn neighboring_ranges_that_have_rested_become_one_gap() {
        let mut arena = Arena::new(30);
        for range in [range(0, 10), range(10, 10), range(20, 10)] {
            used(&mut arena, range);
        }
        arena.release(range(0, 10), NOW);
        arena.release(range(10, 10), NOW);
        assert_eq!(taken(&arena, &[1], NOW + REST / 2), None);
        assert_eq!(taken(&arena, &[20], NOW + REST), Some(vec![range(0, 20)]));
    }

    #[test]
    fn a_range_that_nobody_came_to_use_is_free_after_a_rest() {
        let mut arena = Arena::new(10);
        arena.insert(range(0, 10), [1].into(), true, NOW);
        assert_eq!(taken(&arena, &[10], NOW), None);
        assert_eq!(taken(&arena, &[10], NOW + REST), Some(vec![range(0, 10)]));
    }

    #[test]
    fn a_shortage_takes_nothing_and_says_how_much_there_is() {
        let mut arena = Arena::new(20);
        used(&mut arena, range(5, 10));
        let mut room = arena.free_ranges(NOW);
        let shortage = Shortage { map: CapacityMap::Tables, capacity: 20, free: 10, needed: 11 };
        assert_eq!(room.take_all(&[5, 6]), Err(shortage));
        assert_eq!(room.take_all(&[5, 5]), Ok(vec![range(0, 5), range(15, 5)]));
    }

    #[test]
    fn a_table_is_known_however_long_after_its_writing_it_comes_to_be_used() {
        let mut arena = Arena::new(30);
        let members: TableMembers = [5].into();
        arena.insert(range(0, 10), Arc::clone(&members), true, NOW);
        arena.insert(range(10, 10), [6].into(), true, NOW + 2 * REST);
        arena.acquire(range(0, 10));
        arena.release(range(0, 10), NOW + 2 * REST);
        arena.release(range(10, 10), NOW + 4 * REST);
        arena.acquire(range(0, 10));
        arena.forget_rested(NOW + 6 * REST);
        assert_eq!(arena.find(&members, 10), Some(range(0, 10)));
        assert_eq!(arena.members(range(0, 10)), [5]);
    }

    #[test]
    fn ranges_are_shared_as_long_as_they_are_used() {
        let mut arena = Arena::new(20);
        let members: TableMembers = [5].into();
        arena.insert(range(5, 10), Arc::clone(&members), true, NOW);
        assert_eq!(arena.find(&members, 10), None);
        arena.acquire(range(5, 10));
        arena.acquire(range(5, 10));
        arena.release(range(5, 10), NOW);
        assert_eq!(arena.find(&members, 10), Some(range(5, 10)));
        arena.release(range(5, 10), NOW);
        assert_eq!(arena.find(&members, 10), None);
    }

    proptest! {
        #[test]
        fn the_gaps_and_the_used_slots_are_those_that_a_walk_finds(steps in collection::vec((0..4u8, 1..9u32, any::<prop::sample::Index>()), 1..60)) {
            let mut arena = Arena::new(60);
            let mut now = NOW;
            for (what, length, which) in steps {
                now += REST / 4;
                arena.forget_rested(now);
                let known: Vec<TableRange> = arena.ranges.keys().copied().collect();
                let some = known.get(which.index(known.len().max(1))).copied();
                match (what, some) {
                    (0, _) => if let Ok(ranges) = arena.free_ranges(now).take_all(&[length]) {
                        arena.insert(ranges[0], [ranges[0].offset].into(), true, now);
                    },
                    (1, Some(range)) => arena.acquire(range),
                    (2, Some(range)) => arena.release(range, now),
                    _ => {}
                }
                prop_assert!(arena.gaps.is_some());
                prop_assert_eq!(arena.free_ranges(now).gaps, arena.walk(now));
                let used = arena.ranges.iter().filter(|(_, table)| table.users > 0);
                prop_assert_eq!(arena.used(), used.map(|(range, _)| range.length).sum::<u32>());
            }
        }
    }

    #[test]
    fn overlapping_ranges_of_a_damaged_map_are_never_handed_out() {
        let mut arena = Arena::new(40);
        for range in [range(0, 20), range(5, 5), range(15, 10)] {
            used(&mut arena, range);
        }
        assert_eq!(taken(&arena, &[15], NOW), Some(vec![range(25, 15)]));
    }
}
