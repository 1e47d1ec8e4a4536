//! An array that the agent derives from other maps, as last written.

use std::collections::BTreeMap;

use super::{Maps, MapsError};

/// Writes an element of an array, from its former value; `None`: whatever the map has.
type Write<V> = fn(&mut Maps, u32, Option<V>, V) -> Result<(), MapsError>;

/// The elements of an array that are not zero.
#[derive(Debug)]
pub(in crate::bpf) struct WrittenArray<V> {
    elements: BTreeMap<u32, V>,
    write: Write<V>,
}

impl<V: Copy + Default + PartialEq> WrittenArray<V> {
    /// `elements`: those that the map has.
    pub(in crate::bpf) fn new(elements: BTreeMap<u32, V>, write: Write<V>) -> Self {
        Self { elements, write }
    }

    pub(in crate::bpf) fn elements(&self) -> &BTreeMap<u32, V> {
        &self.elements
    }

    pub(in crate::bpf) fn get(&self, index: u32) -> V {
        self.elements.get(&index).copied().unwrap_or_default()
    }

    /// Writes an element if it changes.
    pub(in crate::bpf) fn set(&mut self, maps: &mut Maps, index: u32, value: V) -> Result<(), MapsError> {
        let before = self.get(index);
        if value != before {
            (self.write)(maps, index, Some(before), value)?;
            self.elements.insert(index, value);
        }
        if value == V::default() {
            self.elements.remove(&index);
        }
        Ok(())
    }

    /// Writes the elements that differ from these.
    pub(in crate::bpf) fn renew(&mut self, maps: &mut Maps, wanted: &BTreeMap<u32, V>) -> Result<(), MapsError> {
        let gone: Vec<_> = self.elements.keys().filter(|index| !wanted.contains_key(index)).copied().collect();
        gone.into_iter().try_for_each(|index| self.set(maps, index, V::default()))?;
        wanted.iter().try_for_each(|(index, value)| self.set(maps, *index, *value))
    }

    /// Writes an element again, whatever value the map has.
    pub(in crate::bpf) fn repair(&self, maps: &mut Maps, index: u32) -> Result<(), MapsError> {
        (self.write)(maps, index, None, self.get(index))
    }
}
