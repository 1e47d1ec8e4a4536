//! `VIP_INDEX`: what the walk of a packet needs of a VIP, where a plain array has it.

use std::collections::BTreeMap;

use vipmux_common::{
    abi::{Address, VIP_ALL_PORTS, VIP_CROWDED, VipSlot, VipValue},
    hash,
};

use super::maps::{Maps, MapsError, batch};

/// A slot that several VIPs have: all of them are looked up in `VIPS`.
const CROWDED: VipSlot =
    VipSlot { address: Address { w0: 0, w1: 0, w2: 0, w3: 0 }, id: 0, flags: VIP_CROWDED, interfaces: 0, vlan: 0 };

/// A slot that no other VIP has.
fn alone(address: Address, vip: &VipValue) -> VipSlot {
    let VipValue { id, flags, interfaces, vlan, .. } = *vip;
    VipSlot { address, id, flags: flags & VIP_ALL_PORTS, interfaces, vlan }
}

/// The slots that these VIPs have; the others are zero.
pub fn slots<'a>(vips: impl IntoIterator<Item = (&'a Address, &'a VipValue)>) -> BTreeMap<u32, VipSlot> {
    let mut slots = BTreeMap::new();
    for (&address, vip) in vips {
        slots.entry(hash::vip(&address)).and_modify(|slot| *slot = CROWDED).or_insert_with(|| alone(address, vip));
    }
    slots
}

/// What a slot holds after one of its VIPs was written to `VIPS`, or removed. One that others had too stays crowded, with
/// which no packet goes astray.
fn after(slot: VipSlot, address: Address, vip: Option<&VipValue>) -> VipSlot {
    if slot != VipSlot::default() && (slot.address != address || slot == CROWDED) {
        return CROWDED;
    }
    vip.map_or_else(VipSlot::default, |vip| alone(address, vip))
}

/// What a slot holds one after the other on the way to another value, so that no packet meets the address of one VIP with
/// the id of another, nor misses a VIP: a write is not atomic.
fn steps(from: VipSlot, to: VipSlot) -> [VipSlot; 4] {
    let crowded = |slot: VipSlot| VipSlot { flags: slot.flags | VIP_CROWDED, ..slot };
    [crowded(from), crowded(VipSlot::default()), crowded(to), to]
}

/// `VIP_INDEX`, as last written.
#[derive(Debug)]
pub struct VipIndex(BTreeMap<u32, VipSlot>);

impl VipIndex {
    /// As the maps have it.
    pub fn read(maps: &Maps) -> Result<Self, MapsError> {
        maps.read_vip_index().map(Self)
    }

    /// The slots in use.
    pub fn slots(&self) -> &BTreeMap<u32, VipSlot> {
        &self.0
    }

    /// To be called after each write to `VIPS`, so that packets see both at the same step.
    pub fn follow(&mut self, maps: &mut Maps, address: Address, vip: Option<&VipValue>) -> Result<(), MapsError> {
        let index = hash::vip(&address);
        let known = self.0.get(&index).copied().unwrap_or_default();
        let wanted = after(known, address, vip);
        maps.write_vip_slot(index, known, wanted)?;
        if wanted == VipSlot::default() {
            self.0.remove(&index);
        } else {
            self.0.insert(index, wanted);
        }
        Ok(())
    }

    /// Gives slots that are crowded no more to the one VIP that has them; `vips` are all that there are.
    pub fn renew(&mut self, maps: &mut Maps, vips: &BTreeMap<Address, VipValue>) -> Result<(), MapsError> {
        let wanted = slots(vips);
        maps.write_vip_index(&self.0, &wanted)?;
        self.0 = wanted;
        Ok(())
    }

    /// Writes a slot again, whatever the map holds there.
    pub fn repair(&self, maps: &mut Maps, index: u32) -> Result<(), MapsError> {
        // No slot that is ever wanted.
        let damaged = VipSlot { id: u32::MAX, ..VipSlot::default() };
        maps.write_vip_slot(index, damaged, self.0.get(&index).copied().unwrap_or_default())
    }
}

impl Maps {
    /// The slots in use.
    pub fn read_vip_index(&self) -> Result<BTreeMap<u32, VipSlot>, MapsError> {
        let all = batch::elements(&self.vip_index, 0, self.vip_index.len());
        let all = all.map_err(|error| MapsError::Read { map: "VIP_INDEX", source: error.into() })?;
        Ok((0..).zip(all).filter(|(_, slot)| *slot != VipSlot::default()).collect())
    }

    fn write_vip_index(
        &mut self,
        known: &BTreeMap<u32, VipSlot>,
        wanted: &BTreeMap<u32, VipSlot>,
    ) -> Result<(), MapsError> {
        let gone = known.keys().filter(|index| !wanted.contains_key(index));
        for &index in wanted.keys().chain(gone) {
            let slot = |slots: &BTreeMap<u32, VipSlot>| slots.get(&index).copied().unwrap_or_default();
            self.write_vip_slot(index, slot(known), slot(wanted))?;
        }
        Ok(())
    }

    fn write_vip_slot(&mut self, index: u32, from: VipSlot, to: VipSlot) -> Result<(), MapsError> {
        if from == to {
            return Ok(());
        }
        let mut written = steps(from, to).into_iter().map(|step| self.vip_index.set(index, step, 0));
        written.try_for_each(|result| result.map_err(|source| MapsError::Write { map: "VIP_INDEX", source }))
    }

    /// Makes the index that of the VIPs that the maps hold.
    pub fn index_vips(&mut self) -> Result<(), MapsError> {
        VipIndex::read(self)?.renew(self, &self.read_vips()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::maps::fixture::Fixture;

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
                // While only the flag changes, nothing can be torn; all else is under the flag, and from or to nothing.
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
        let (mut vips, mut index) = (BTreeMap::new(), VipIndex::read(maps).unwrap());
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
            index.follow(maps, address, value.as_ref()).unwrap();
            let wanted = slots(&vips);
            assert_eq!(wanted.get(&hash::vip(&address)) == Some(&CROWDED), is_crowded);
            let found = maps.read_vip_index().unwrap();
            assert_eq!(found, *index.slots());
            let right = |(i, slot): (&u32, &VipSlot)| *slot == CROWDED || wanted.get(i) == Some(slot);
            assert!(found.iter().all(right) && wanted.keys().all(|i| found.contains_key(i)), "{found:?} {wanted:?}");
        }
        assert_eq!(index.slots().values().copied().collect::<Vec<_>>(), [CROWDED]);
        index.renew(maps, &vips).unwrap();
        assert_eq!(maps.read_vip_index().unwrap(), BTreeMap::new());
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
        maps.index_vips().unwrap();
        assert_eq!(maps.read_vip_index().unwrap(), slots(&all));
        let index = VipIndex::read(maps).unwrap();
        maps.vip_index.set(hash::vip(&a), VipSlot { id: 9, ..CROWDED }, 0).unwrap();
        maps.vip_index.set(7, CROWDED, 0).unwrap();
        for slot in [hash::vip(&a), 7] {
            index.repair(maps, slot).unwrap();
        }
        assert_eq!(maps.read_vip_index().unwrap(), slots(&all));
    }
}
