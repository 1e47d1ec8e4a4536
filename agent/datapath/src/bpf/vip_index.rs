//! Writes `VIP_INDEX`: an array with the data that programs need of a VIP, which is faster than the
//! hash map `VIPS`.

use std::collections::BTreeMap;

use vipmux_common::{
    abi::{Address, VIP_ALL_PORTS, VIP_CROWDED, VIP_SEGMENT, VipSlot, VipValue},
    hash,
};

use super::maps::{Maps, MapsError, written_array::WrittenArray};

/// A slot that several VIPs share. The programs look these VIPs up in `VIPS`.
const CROWDED: VipSlot =
    VipSlot { address: Address { w0: 0, w1: 0, w2: 0, w3: 0 }, id: 0, flags: VIP_CROWDED, interfaces: 0, vlan: 0 };

/// Returns the slot of a VIP that shares it with no other.
fn alone(address: Address, vip: &VipValue) -> VipSlot {
    let VipValue { id, flags, interfaces, vlan, .. } = *vip;
    VipSlot { address, id, flags: flags & (VIP_ALL_PORTS | VIP_SEGMENT), interfaces, vlan }
}

/// Returns the slots of these VIPs. All others are zero.
pub fn slots<'a>(vips: impl IntoIterator<Item = (&'a Address, &'a VipValue)>) -> BTreeMap<u32, VipSlot> {
    let mut slots = BTreeMap::new();
    for (&address, vip) in vips {
        slots.entry(hash::vip(&address)).and_modify(|slot| *slot = CROWDED).or_insert_with(|| alone(address, vip));
    }
    slots
}

/// Returns the value of a slot after one of its VIPs was written to `VIPS`, or removed. A shared
/// slot stays crowded, which is always correct: the programs then use `VIPS`.
fn after(slot: VipSlot, address: Address, vip: Option<&VipValue>) -> VipSlot {
    if slot != VipSlot::default() && (slot.address != address || slot == CROWDED) {
        return CROWDED;
    }
    vip.map_or_else(VipSlot::default, |vip| alone(address, vip))
}

/// Returns the values to write one after the other to change a slot. A write is not atomic, but
/// with these steps no packet sees the address of one VIP with the id of another, and none misses a
/// VIP.
fn steps(from: VipSlot, to: VipSlot) -> [VipSlot; 4] {
    let crowded = |slot: VipSlot| VipSlot { flags: slot.flags | VIP_CROWDED, ..slot };
    [crowded(from), crowded(VipSlot::default()), crowded(to), to]
}

fn write(maps: &mut Maps, index: u32, from: Option<VipSlot>, to: VipSlot) -> Result<(), MapsError> {
    // A value that is never desired.
    let damaged = VipSlot { id: u32::MAX, ..VipSlot::default() };
    steps(from.unwrap_or(damaged), to).into_iter().try_for_each(|step| maps.vip_index.write(index, step))
}

impl Maps {
    fn change_vip_index(
        &mut self,
        change: impl FnOnce(&mut WrittenArray<VipSlot>, &mut Self) -> Result<(), MapsError>,
    ) -> Result<(), MapsError> {
        let read = |maps: &mut Self| Ok(WrittenArray::new(maps.vip_index.read()?, write));
        self.change_index(|indices| &mut indices.vips, read, change)
    }

    /// Updates the slot of a VIP after a write to `VIPS`.
    pub(super) fn index_vip(&mut self, address: Address, vip: Option<&VipValue>) -> Result<(), MapsError> {
        let index = hash::vip(&address);
        self.change_vip_index(|slots, maps| slots.set(maps, index, after(slots.get(index), address, vip)))
    }

    /// Gives each slot that is no longer shared to its one VIP. `vips` are all VIPs.
    pub fn renew_vip_index(&mut self, vips: &BTreeMap<Address, VipValue>) -> Result<(), MapsError> {
        self.change_vip_index(|written, maps| written.renew(maps, &slots(vips)))
    }

    /// Writes `VIP_INDEX` for the VIPs that the maps hold, whatever it has.
    pub fn rebuild_vip_index(&mut self) -> Result<(), MapsError> {
        self.indices.vips = None;
        let vips = self.read_vips()?;
        self.renew_vip_index(&vips)
    }

    /// Writes an element of `VIP_INDEX` again.
    pub fn repair_vip_index(&mut self, index: u32) -> Result<(), MapsError> {
        self.change_vip_index(|slots, maps| slots.repair(maps, index))
    }

    /// Returns the used elements of `VIP_INDEX`, as last written.
    pub fn written_vip_index(&self) -> &BTreeMap<u32, VipSlot> {
        self.indices.vips.as_ref().map_or(const { &BTreeMap::new() }, WrittenArray::elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use vipmux_plan::Step;

    fn vip(id: u32) -> VipValue {
        VipValue { id, flags: VIP_ALL_PORTS | 1, interfaces: 5, vlan: 7, epoch: 9 }
    }

    /// Two addresses that share a slot, and one that shares none.
    fn addresses() -> [Address; 3] {
        let mut seen: BTreeMap<u32, Address> = BTreeMap::new();
        let mut found = None;
        for number in 1.. {
            let address = Address::v4(u32::to_be(0x0a00_0000 + number));
            if let Some(&other) = seen.get(&hash::vip(&address)) {
                found = Some((address, other));
                break;
            }
            seen.insert(hash::vip(&address), address);
        }
        let (a, b) = found.unwrap();
        let alone = seen.values().find(|other| hash::vip(other) != hash::vip(&a)).unwrap();
        [a, b, *alone]
    }

    #[test]
    fn a_slot_has_its_only_vip_or_sends_to_the_table_of_all() {
        let [a, b, alone] = addresses();
        let vips = BTreeMap::from([(a, vip(1)), (b, vip(2)), (alone, vip(3))]);
        let slots = slots(&vips);
        let own = VipSlot { address: alone, id: 3, flags: VIP_ALL_PORTS, interfaces: 5, vlan: 7 };
        assert_eq!(slots, BTreeMap::from([(hash::vip(&a), CROWDED), (hash::vip(&alone), own)]));
    }

    #[test]
    fn a_slot_that_changes_hands_never_shows_one_vip_with_the_id_of_another() {
        let [a, b, _] = addresses();
        let slot = |address, id| VipSlot { address, id, flags: 0, interfaces: 1, vlan: 0 };
        for (from, to) in [
            (slot(a, 1), slot(b, 2)),
            (VipSlot::default(), slot(a, 1)),
            (slot(a, 1), VipSlot::default()),
            (slot(a, 1), CROWDED),
            (CROWDED, slot(b, 2)),
        ] {
            let mut before = from;
            for after in steps(from, to) {
                // While only the flag changes, nothing can be torn; all else is under the flag, and
                // from or to nothing.
                let only_flag = VipSlot { flags: after.flags, ..before } == after;
                let is_free = |slot: VipSlot| slot.id == 0;
                let crowded = before.flags & after.flags & VIP_CROWDED != 0;
                assert!(only_flag || crowded && (is_free(before) || is_free(after)), "{before:?} {after:?}");
                before = after;
            }
            assert_eq!(before, to);
        }
    }

    #[test]
    fn the_index_follows_each_write_to_the_vips() {
        let Some(mut fixture) = Fixture::new() else { return };
        let maps = &mut fixture.maps;
        let [a, b, alone] = addresses();
        let single_ports = |id| VipValue { flags: 0, ..vip(id) };
        let mut vips = BTreeMap::new();
        for (address, value, is_crowded) in [
            (a, Some(vip(1)), false),
            (alone, Some(vip(3)), false),
            (alone, Some(single_ports(3)), false),
            (b, Some(vip(2)), true),
            (b, Some(single_ports(2)), true),
            (alone, None, false),
            // The slot stays crowded until all are made anew.
            (b, None, false),
            (a, None, false),
        ] {
            match value {
                Some(value) => drop(vips.insert(address, value)),
                None => drop(vips.remove(&address)),
            }
            maps.apply(&Step::Vip(address, value)).unwrap();
            let wanted = slots(&vips);
            assert_eq!(wanted.get(&hash::vip(&address)) == Some(&CROWDED), is_crowded);
            let found = maps.vip_index.read().unwrap();
            assert_eq!(found, *maps.written_vip_index());
            let right = |(i, slot): (&u32, &VipSlot)| *slot == CROWDED || wanted.get(i) == Some(slot);
            assert!(found.iter().all(right) && wanted.keys().all(|i| found.contains_key(i)), "{found:?} {wanted:?}");
        }
        assert_eq!(maps.written_vip_index().values().copied().collect::<Vec<_>>(), [CROWDED]);
        maps.renew_vip_index(&vips).unwrap();
        assert_eq!(maps.vip_index.read().unwrap(), BTreeMap::new());
    }

    #[test]
    fn the_index_is_made_anew_and_repaired() {
        let Some(mut fixture) = Fixture::new() else { return };
        let maps = &mut fixture.maps;
        let [a, b, alone] = addresses();
        let all = BTreeMap::from([(a, vip(1)), (b, vip(2)), (alone, vip(3))]);
        for (address, value) in &all {
            maps.vips.insert(address, value, 0).unwrap();
        }
        maps.rebuild_vip_index().unwrap();
        assert_eq!(maps.vip_index.read().unwrap(), slots(&all));
        maps.vip_index.set(hash::vip(&a), VipSlot { id: 9, ..CROWDED }, 0).unwrap();
        maps.vip_index.set(7, CROWDED, 0).unwrap();
        for slot in [hash::vip(&a), 7] {
            maps.repair_vip_index(slot).unwrap();
        }
        assert_eq!(maps.vip_index.read().unwrap(), slots(&all));
    }
}
