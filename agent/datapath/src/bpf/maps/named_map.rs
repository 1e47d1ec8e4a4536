//! An open map with its name, which its errors have.

use std::{
    collections::BTreeMap,
    io,
    ops::{Deref, DerefMut},
};

use aya::{
    Pod,
    maps::{
        Array, HashMap, IterableMap as _, Map, MapData, MapError, PerCpuArray, PerCpuValues,
        lpm_trie::{Key, LpmTrie},
    },
    util::nr_cpus,
};
use vipmux_common::abi::Count;

use super::{MapsError, batch, open};
use crate::bpf::pins::Pins;

/// The `errno` of an operation that the map's type does not support (include/linux/errno.h; not in
/// libc).
const ENOTSUPP: i32 = 524;

/// An open map of type `M`.
#[derive(Debug)]
pub struct NamedMap<M> {
    name: &'static str,
    map: M,
}

impl<M> Deref for NamedMap<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.map
    }
}

impl<M> DerefMut for NamedMap<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.map
    }
}

impl<M> NamedMap<M> {
    pub(super) fn open(pins: &Pins, name: &'static str) -> Result<Self, MapsError>
    where
        M: TryFrom<Map, Error = MapError>,
    {
        let path = pins.map(name);
        let map = Map::from_map_data(open(&path)?).and_then(TryInto::try_into);
        Ok(Self { name, map: map.map_err(|source| MapsError::Open { path, source })? })
    }

    /// Returns the error of a read.
    pub(super) fn reading(&self, error: impl Into<MapError>) -> MapsError {
        MapsError::Read { map: self.name, source: error.into() }
    }

    /// Returns the error of a write.
    pub(in crate::bpf) fn writing(&self, error: impl Into<MapError>) -> MapsError {
        MapsError::Write { map: self.name, source: error.into() }
    }

    fn entry<V>(&self, found: Result<V, MapError>) -> Result<Option<V>, MapsError> {
        match found {
            Ok(value) => Ok(Some(value)),
            Err(MapError::KeyNotFound | MapError::OutOfBounds { .. }) => Ok(None),
            Err(error) => Err(self.reading(error)),
        }
    }

    /// Removing a missing entry is no error.
    fn written(&self, result: Result<(), MapError>) -> Result<(), MapsError> {
        match result {
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(|error| self.writing(error)),
        }
    }
}

impl<V: Pod> NamedMap<Array<MapData, V>> {
    /// Returns an element; `None`: the index is out of bounds.
    pub fn look_up(&self, index: u32) -> Result<Option<V>, MapsError> {
        self.entry(self.map.get(&index, 0))
    }

    /// Returns the first element.
    pub fn first(&self) -> Result<V, MapsError> {
        self.map.get(&0, 0).map_err(|error| self.reading(error))
    }

    /// Returns `count` elements from index `first` on; fewer at the end of the array.
    pub(super) fn elements(&self, first: u32, count: u32) -> Result<Vec<V>, MapsError> {
        batch::elements(&self.map, first, count).map_err(|error| self.reading(error))
    }

    /// Returns the elements with indices below `count` that are in use.
    pub(super) fn used_below(&self, count: u32, used: impl Fn(&V) -> bool) -> Result<BTreeMap<u32, V>, MapsError> {
        let values = self.elements(0, count.min(self.map.len()))?;
        Ok((0..).zip(values).filter(|(_, value)| used(value)).collect())
    }

    /// Returns the elements that are in use.
    pub(super) fn used(&self, used: impl Fn(&V) -> bool) -> Result<BTreeMap<u32, V>, MapsError> {
        self.used_below(self.map.len(), used)
    }

    /// Returns the elements that are not zero.
    pub fn read(&self) -> Result<BTreeMap<u32, V>, MapsError>
    where
        V: Default + PartialEq,
    {
        self.used(|value| *value != V::default())
    }

    /// Writes an element.
    pub fn write(&mut self, index: u32, value: V) -> Result<(), MapsError> {
        self.map.set(index, value, 0).map_err(|error| self.writing(error))
    }
}

impl<K: Pod, V: Pod> NamedMap<HashMap<MapData, K, V>> {
    /// Returns the value of a key.
    pub fn look_up(&self, key: &K) -> Result<Option<V>, MapsError> {
        self.entry(self.map.get(key, 0))
    }

    /// Returns all entries.
    pub fn read(&self) -> Result<BTreeMap<K, V>, MapsError>
    where
        K: Ord,
    {
        Ok(batch::entries(&self.map).map_err(|error| self.reading(error))?.into_iter().collect())
    }

    /// Writes an entry; `None` removes it.
    pub fn write(&mut self, key: &K, value: Option<&V>) -> Result<(), MapsError> {
        let result = match value {
            Some(value) => self.map.insert(key, value, 0),
            None => self.map.remove(key),
        };
        self.written(result)
    }
}

impl<K: Pod, V: Pod> NamedMap<LpmTrie<MapData, K, V>> {
    /// Returns the value of the longest prefix of a key.
    pub fn look_up(&self, key: &Key<K>) -> Result<Option<V>, MapsError> {
        self.entry(self.map.get(key, 0))
    }

    /// Writes an entry; `None` removes it.
    pub fn write(&mut self, key: &Key<K>, value: Option<&V>) -> Result<(), MapsError> {
        let result = match value {
            Some(value) => self.map.insert(key, value, 0),
            None => self.map.remove(key),
        };
        self.written(result)
    }
}

impl NamedMap<PerCpuArray<MapData, Count>> {
    /// Returns the first `count` elements, summed over all CPUs.
    pub fn sums(&self, count: u32) -> Result<Vec<Count>, MapsError> {
        let cpus = self.cpus()?;
        match batch::per_cpu::<Count>(self.map.map(), cpus, 0, count) {
            Ok(values) => Ok(values.chunks(cpus).map(sum).collect()),
            // Before Linux 5.13.
            Err(error) if error.raw_os_error() == Some(ENOTSUPP) => (0..count.min(self.map.len()))
                .map(|index| self.map.get(&index, 0).map(|values| sum(&values)))
                .collect::<Result<_, _>>()
                .map_err(|error| self.reading(error)),
            Err(error) => Err(self.reading(error)),
        }
    }

    /// Makes an element count from zero.
    pub(in crate::bpf) fn clear(&mut self, index: u32) -> Result<(), MapsError> {
        let zeros = PerCpuValues::try_from(vec![Count::default(); self.cpus()?]);
        let zeros = zeros.map_err(|error| self.writing(error))?;
        self.map.set(index, zeros, 0).map_err(|error| self.writing(error))
    }

    fn cpus(&self) -> Result<usize, MapsError> {
        nr_cpus().map_err(|(_, error)| self.reading(error))
    }
}

fn sum(counts: &[Count]) -> Count {
    counts.iter().fold(Count::default(), |sum, count| Count {
        packets: sum.packets.wrapping_add(count.packets),
        bytes: sum.bytes.wrapping_add(count.bytes),
        flows: sum.flows.wrapping_add(count.flows),
    })
}
