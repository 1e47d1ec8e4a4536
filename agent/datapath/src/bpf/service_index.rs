//! Writes `SERVICE_INDEX`: copies of the entries of `SERVICES`, which new flows find faster.

use std::collections::BTreeMap;

use vipmux_common::{
    abi::{ServiceKey, ServiceValue},
    service_index::IndexedService,
};

use super::maps::{Maps, MapsError};

/// Returns the elements for these entries. All others are zero. Of entries that have the same index, one has
/// a copy.
pub fn elements<'a>(
    services: impl IntoIterator<Item = (&'a ServiceKey, &'a ServiceValue)>,
) -> BTreeMap<u32, IndexedService> {
    services.into_iter().filter_map(|(key, value)| Some((key.index(), IndexedService::new(*key, value)?))).collect()
}

/// The last written state of `SERVICE_INDEX`.
#[derive(Debug)]
pub struct ServiceIndex(BTreeMap<u32, IndexedService>);

impl ServiceIndex {
    /// Reads the index from the maps.
    pub fn read(maps: &Maps) -> Result<Self, MapsError> {
        maps.service_index.read().map(Self)
    }

    /// Writes the index of the entries that the maps hold.
    pub fn rebuild(maps: &mut Maps) -> Result<(), MapsError> {
        let services = maps.read_services()?;
        Self::read(maps)?.renew(maps, &services)
    }

    /// Returns the elements in use.
    pub fn elements(&self) -> &BTreeMap<u32, IndexedService> {
        &self.0
    }

    /// Copies an entry of `SERVICES`, or removes its copy. Call it after each write to `SERVICES`: a copy
    /// counts before the entry itself.
    pub fn follow(&mut self, maps: &mut Maps, key: ServiceKey, value: Option<&ServiceValue>) -> Result<(), MapsError> {
        let index = key.index();
        if let Some(element) = value.and_then(|value| IndexedService::new(key, value)) {
            write(maps, index, Some(element))?;
            self.0.insert(index, element);
        } else if self.0.get(&index).is_some_and(|element| element.value(key).is_some()) {
            write(maps, index, None)?;
            self.0.remove(&index);
        }
        Ok(())
    }

    /// Makes the index hold copies of these entries alone. `services` are all entries.
    pub fn renew(&mut self, maps: &mut Maps, services: &BTreeMap<ServiceKey, ServiceValue>) -> Result<(), MapsError> {
        let wanted = elements(services);
        let gone = self.0.keys().filter(|index| !wanted.contains_key(index));
        for index in wanted.keys().chain(gone) {
            let element = wanted.get(index);
            if self.0.get(index) != element {
                write(maps, *index, element.copied())?;
            }
        }
        self.0 = wanted;
        Ok(())
    }

    /// Writes an element again, whatever value the map holds.
    pub fn repair(&self, maps: &mut Maps, index: u32) -> Result<(), MapsError> {
        write(maps, index, self.0.get(&index).copied())
    }
}

fn write(maps: &mut Maps, index: u32, element: Option<IndexedService>) -> Result<(), MapsError> {
    maps.service_index.write(index, element.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    fn key(port: u16) -> ServiceKey {
        ServiceKey { vip: 1, port: port.to_be(), protocol: 6, padding: 0 }
    }

    fn value(slot: u32) -> ServiceValue {
        ServiceValue { slot, generation: 7, table: 251 * slot, table_length: 251, ..ServiceValue::default() }
    }

    /// Two keys that have the same index, and one that has another.
    fn keys() -> [ServiceKey; 3] {
        let mut seen: BTreeMap<u32, ServiceKey> = BTreeMap::new();
        let pair = (1..=u16::MAX).map(key).find_map(|key| Some((seen.insert(key.index(), key)?, key)));
        let (a, b) = pair.unwrap();
        let alone = seen.values().find(|key| key.index() != a.index()).unwrap();
        [a, b, *alone]
    }

    #[test]
    fn the_index_follows_each_write_to_the_services() {
        let Some(mut fixture) = Fixture::new() else { return };
        let maps = &mut fixture.maps;
        let [a, b, alone] = keys();
        let mut index = ServiceIndex::read(maps).unwrap();
        for (key, value, wanted) in [
            (a, Some(value(1)), vec![(a, value(1))]),
            (alone, Some(value(2)), vec![(a, value(1)), (alone, value(2))]),
            (b, Some(value(3)), vec![(b, value(3)), (alone, value(2))]),
            // Its copy is no longer there.
            (a, None, vec![(b, value(3)), (alone, value(2))]),
            (alone, Some(value(4)), vec![(b, value(3)), (alone, value(4))]),
            (b, None, vec![(alone, value(4))]),
            (b, None, vec![(alone, value(4))]),
            (a, Some(value(5)), vec![(a, value(5)), (alone, value(4))]),
            (alone, Some(ServiceValue { affinity: 1, ..value(4) }), vec![(a, value(5))]),
            (b, Some(ServiceValue { affinity: 1, ..value(3) }), vec![(a, value(5))]),
            (a, None, vec![]),
        ] {
            index.follow(maps, key, value.as_ref()).unwrap();
            let wanted = elements(wanted.iter().map(|(key, value)| (key, value)));
            assert_eq!((&maps.service_index.read().unwrap(), index.elements()), (&wanted, &wanted));
        }
    }

    #[test]
    fn the_index_is_made_anew_and_repaired() {
        let Some(mut fixture) = Fixture::new() else { return };
        let maps = &mut fixture.maps;
        let [a, b, alone] = keys();
        let all = BTreeMap::from([(a, value(1)), (b, value(2)), (alone, value(3))]);
        for (key, value) in &all {
            maps.services.insert(key, value, 0).unwrap();
        }
        // Of a Service that is gone.
        let gone = (0..3).find(|index| ![a.index(), alone.index()].contains(index)).unwrap();
        maps.service_index.set(gone, IndexedService::new(a, &value(9)).unwrap(), 0).unwrap();
        maps.service_index.set(alone.index(), IndexedService::new(alone, &value(9)).unwrap(), 0).unwrap();
        ServiceIndex::rebuild(maps).unwrap();
        assert_eq!(maps.service_index.read().unwrap(), elements(&all));
        let index = ServiceIndex::read(maps).unwrap();
        for damaged in [gone, alone.index()] {
            maps.service_index.set(damaged, IndexedService::new(b, &value(9)).unwrap(), 0).unwrap();
            index.repair(maps, damaged).unwrap();
        }
        assert_eq!(maps.service_index.read().unwrap(), elements(&all));
    }
}
