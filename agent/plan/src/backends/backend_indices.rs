//! Gives new backends their indices in `BACKENDS`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi;

use crate::{
    capacity::{CapacityMap, Shortage},
    endpoints::BackendKey,
    index_pool::Vacancies,
    mirror::MapMirror,
};
use vipmux_model::hashing::Endpoint;

/// The indices of existing backends, and of those that are new in this plan.
pub(super) struct BackendIndices<'a> {
    maps: &'a MapMirror,
    generation: u32,
    vacancies: Vacancies<'a, abi::Backend>,
    new_indices: BTreeMap<BackendKey, u32>,
    new_backends: BTreeMap<u32, abi::Backend>,
}

impl<'a> BackendIndices<'a> {
    /// `generation` is that of all new backends.
    pub(super) fn new(maps: &'a MapMirror, generation: u32, now: Duration) -> Self {
        Self {
            maps,
            generation,
            vacancies: maps.backends.vacancies(now),
            new_indices: BTreeMap::new(),
            new_backends: BTreeMap::new(),
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn get(&self, key: &BackendKey) -> Option<u32> {
        self.maps.backend_indices.get(key).or_else(|| self.new_indices.get(key)).copied()
    }

    /// Takes free indices for those of the backends that have none: for all of them or for none.
    pub(super) fn take(
        &mut self,
        wanted: impl Iterator<Item = BackendKey>,
    ) -> Result<BTreeMap<BackendKey, u32>, Shortage> {
        let new: BTreeSet<_> = wanted.filter(|key| self.get(key).is_none()).collect();
        let shortage = |free| {
            let needed = u32::try_from(new.len()).unwrap_or(u32::MAX);
            Shortage { map: CapacityMap::Backends, capacity: self.maps.backends.capacity(), free, needed }
        };
        let indices = self.vacancies.take_all(new.len()).map_err(shortage)?;
        Ok(new.into_iter().zip(indices).collect())
    }

    /// Returns a mark, to [`Self::reset`] to.
    pub(super) fn mark(&self) -> u32 {
        self.vacancies.mark()
    }

    /// Gives back all indices that were taken since the mark.
    pub(super) fn reset(&mut self, mark: u32) {
        self.vacancies.reset(mark);
    }

    /// Adds a new backend at an index that was taken for it.
    pub(super) fn add(&mut self, key: BackendKey, index: u32) {
        let (address, port, node) = key;
        // [`super::BackendPlanner::finish`] sets the flags. Only then all uses are known.
        let backend = abi::Backend { address, port, flags: 0, node, generation: self.generation, reserved: 0 };
        self.new_indices.insert(key, index);
        self.new_backends.insert(index, backend);
    }

    /// Returns the new backends. Their flags are not set.
    pub(super) fn new_backends(&self) -> &BTreeMap<u32, abi::Backend> {
        &self.new_backends
    }

    pub(super) fn endpoint(&self, index: u32) -> Option<Endpoint> {
        let backend = self.maps.backends.get(index).or_else(|| self.new_backends.get(&index))?;
        Some(Endpoint::new(backend.address, backend.port))
    }
}
