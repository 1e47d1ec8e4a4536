//! Tracks the indices of an array map: taken, free or resting.

use std::{collections::BTreeSet, time::Duration};

use crate::rest::REST;

#[derive(Clone, Debug)]
enum IndexState<T> {
    Free,
    /// It was given up at this time.
    Resting(Duration),
    Taken(T),
}

/// The mirror of an array map. A free index holds `T::default()`.
#[derive(Clone, Debug)]
pub(super) struct IndexPool<T> {
    capacity: u32,
    /// The states of all indices up to the highest one that was ever taken.
    states: Vec<IndexState<T>>,
    /// The indices among them that are not taken.
    open: BTreeSet<u32>,
}

impl<T: Clone + Default + PartialEq> IndexPool<T> {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, states: Vec::new(), open: BTreeSet::new() }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of indices up to the highest one that was ever taken.
    pub(super) fn reached(&self) -> u32 {
        u32::try_from(self.states.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of taken indices.
    pub(super) fn taken(&self) -> usize {
        self.states.len() - self.open.len()
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match self.states.get(index as usize) {
            Some(IndexState::Taken(entry)) => Some(entry),
            _ => None,
        }
    }

    /// Returns the taken indices and their entries, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.states).filter_map(|(index, state)| match state {
            IndexState::Taken(entry) => Some((index, entry)),
            _ => None,
        })
    }

    /// Changes the entry at an index. An index whose entry becomes the default is given up, and
    /// rests from `now` on. An index beyond the capacity is ignored.
    pub(super) fn edit(&mut self, index: u32, now: Duration, change: impl FnOnce(&mut T)) {
        if index >= self.capacity {
            return;
        }
        let mut entry = self.get(index).cloned().unwrap_or_default();
        change(&mut entry);
        let state = if entry != T::default() {
            IndexState::Taken(entry)
        } else if self.get(index).is_some() {
            IndexState::Resting(now)
        } else {
            return;
        };
        if self.states.len() <= index as usize {
            self.open.extend((0..=index).skip(self.states.len()));
            self.states.resize(index as usize + 1, IndexState::Free);
        }
        match state {
            IndexState::Taken(_) => self.open.remove(&index),
            IndexState::Free | IndexState::Resting(_) => self.open.insert(index),
        };
        self.states[index as usize] = state;
    }

    fn is_vacant(&self, index: u32, now: Duration) -> bool {
        match self.states.get(index as usize) {
            None | Some(IndexState::Free) => true,
            Some(IndexState::Resting(since)) => now >= *since + REST,
            Some(IndexState::Taken(_)) => false,
        }
    }

    pub(super) fn vacancies(&self, now: Duration) -> Vacancies<'_, T> {
        Vacancies { pool: self, now, next: 0 }
    }
}

/// Hands out the free indices of a pool that have rested, ascending.
pub(super) struct Vacancies<'a, T> {
    pool: &'a IndexPool<T>,
    now: Duration,
    next: u32,
}

impl<T: Clone + Default + PartialEq> Vacancies<'_, T> {
    /// Returns the next free index without taking it.
    pub(super) fn peek(&mut self) -> Option<u32> {
        let mut open = self.pool.open.range(self.next..);
        let never_taken = self.pool.reached().max(self.next);
        let vacant = open.find(|index| self.pool.is_vacant(**index, self.now)).copied().unwrap_or(never_taken);
        self.next = vacant;
        (vacant < self.pool.capacity).then_some(vacant)
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        let index = self.peek()?;
        self.next = index + 1;
        Some(index)
    }

    /// Takes `count` indices, or returns how many there are.
    pub(super) fn take_all(&mut self, count: usize) -> Result<Vec<u32>, u32> {
        let mark = self.mark();
        let indices: Vec<_> = std::iter::from_fn(|| self.take()).take(count).collect();
        if indices.len() < count {
            self.reset(mark);
            return Err(u32::try_from(indices.len()).unwrap_or(u32::MAX));
        }
        Ok(indices)
    }

    /// Returns a mark, to [`Self::reset`] to.
    pub(super) fn mark(&self) -> u32 {
        self.next
    }

    /// Gives back all indices that were taken since the mark.
    pub(super) fn reset(&mut self, mark: u32) {
        self.next = mark;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn vacancies(pool: &IndexPool<u32>, now: Duration) -> Vec<u32> {
        let mut vacancies = pool.vacancies(now);
        std::iter::from_fn(|| vacancies.take()).collect()
    }

    #[test]
    fn an_index_that_was_given_up_rests() {
        let mut pool = IndexPool::new(4);
        pool.edit(1, NOW, |entry| *entry = 7);
        assert_eq!(vacancies(&pool, NOW), [0, 2, 3]);
        pool.edit(1, NOW, |entry| *entry = 0);
        assert_eq!(vacancies(&pool, NOW + REST / 2), [0, 2, 3]);
        assert_eq!(vacancies(&pool, NOW + REST), [0, 1, 2, 3]);
    }

    #[test]
    fn clearing_a_free_index_does_not_make_it_rest() {
        let mut pool = IndexPool::new(2);
        pool.edit(0, NOW, |entry| *entry = 0);
        assert_eq!(vacancies(&pool, NOW), [0, 1]);
    }

    #[test]
    fn indices_beyond_the_capacity_are_not_there() {
        let mut pool = IndexPool::new(2);
        pool.edit(2, NOW, |entry| *entry = 7);
        assert_eq!(pool.get(2), None);
    }

    #[test]
    fn all_or_none_are_taken() {
        let pool = IndexPool::<u32>::new(3);
        let mut vacancies = pool.vacancies(NOW);
        assert_eq!(vacancies.take_all(4), Err(3));
        assert_eq!(vacancies.take_all(3), Ok(vec![0, 1, 2]));
        assert_eq!(vacancies.take(), None);
    }
}
