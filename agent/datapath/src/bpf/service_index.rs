//! Writes `SERVICE_INDEX`: copies of the entries of `SERVICES`, which new flows find faster.

use std::collections::BTreeMap;

use vipmux_common::{
    abi::{ServiceKey, ServiceValue},
    service_index::IndexedService,
};

use super::maps::{Maps, MapsError, written_array::WrittenArray};

/// Returns the elements for these entries. All others are zero. Of entries that have the same index, one has
/// a copy.
pub fn elements<'a>(
    services: impl IntoIterator<Item = (&'a ServiceKey, &'a ServiceValue)>,
) -> BTreeMap<u32, IndexedService> {
    services.into_iter().filter_map(|(key, value)| Some((key.index(), IndexedService::new(*key, value)?))).collect()
}

fn write(maps: &mut Maps, index: u32, _: Option<IndexedService>, element: IndexedService) -> Result<(), MapsError> {
    maps.service_index.write(index, element)
}

impl Maps {
    fn change_service_index(
        &mut self,
        change: impl FnOnce(&mut WrittenArray<IndexedService>, &mut Self) -> Result<(), MapsError>,
    ) -> Result<(), MapsError> {
        let read = |maps: &mut Self| Ok(WrittenArray::new(maps.service_index.read()?, write));
        self.change_index(|indices| &mut indices.services, read, change)
    }

    /// Copies an entry of `SERVICES` after a write to it, or removes its copy: a copy counts before the
    /// entry itself.
    pub(super) fn index_service(&mut self, key: ServiceKey, value: Option<&ServiceValue>) -> Result<(), MapsError> {
        let index = key.index();
        self.change_service_index(|elements, maps| match value.and_then(|value| IndexedService::new(key, value)) {
            Some(element) => elements.set(maps, index, element),
            None if elements.get(index).value(key).is_some() => elements.set(maps, index, IndexedService::default()),
            None => Ok(()),
        })
    }

    /// Makes `SERVICE_INDEX` hold copies of these entries alone. `services` are all entries.
    pub fn renew_service_index(&mut self, services: &BTreeMap<ServiceKey, ServiceValue>) -> Result<(), MapsError> {
        self.change_service_index(|written, maps| written.renew(maps, &elements(services)))
    }

    /// Writes `SERVICE_INDEX` for the entries that the maps hold, whatever it has.
    pub fn rebuild_service_index(&mut self) -> Result<(), MapsError> {
        self.indices.services = None;
        let services = self.read_services()?;
        self.renew_service_index(&services)
    }

    /// Writes an element of `SERVICE_INDEX` again.
    pub fn repair_service_index(&mut self, index: u32) -> Result<(), MapsError> {
        self.change_service_index(|elements, maps| elements.repair(maps, index))
    }

    /// Returns the used elements of `SERVICE_INDEX`, as last written.
    pub fn written_service_index(&self) -> &BTreeMap<u32, IndexedService> {
        self.indices.services.as_ref().map_or(const { &BTreeMap::new() }, WrittenArray::elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use vipmux_plan::Step;

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
            maps.apply(&Step::Service(key, value)).unwrap();
            let wanted = elements(wanted.iter().map(|(key, value)| (key, value)));
            assert_eq!((&maps.service_index.read().unwrap(), maps.written_service_index()), (&wanted, &wanted));
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
        maps.rebuild_service_index().unwrap();
        assert_eq!(maps.service_index.read().unwrap(), elements(&all));
        for damaged in [gone, alone.index()] {
            maps.service_index.set(damaged, IndexedService::new(b, &value(9)).unwrap(), 0).unwrap();
            maps.repair_service_index(damaged).unwrap();
        }
        assert_eq!(maps.service_index.read().unwrap(), elements(&all));
    }
}
