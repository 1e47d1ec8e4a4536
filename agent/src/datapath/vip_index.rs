//! `VIP_INDEX`: what the walk of a packet needs of a VIP, where a plain array has it.

use std::collections::BTreeMap;

use vipmux_common::{
    abi::{Address, VIP_ALL_PORTS, VIP_CROWDED, VipSlot, VipValue},
    hash,
};

use super::maps::{Maps, MapsError, batch};

/// The slots that these VIPs have; the others are zero. Where several VIPs have one, all of them are looked up in `VIPS`.
pub fn slots<'a>(vips: impl IntoIterator<Item = (&'a Address, &'a VipValue)>) -> BTreeMap<u32, VipSlot> {
    let mut slots = BTreeMap::new();
    for (&address, vip) in vips {
        let VipValue { id, flags, interfaces, vlan, .. } = *vip;
        let alone = VipSlot { address, id, flags: flags & VIP_ALL_PORTS, interfaces, vlan };
        let crowded = VipSlot { flags: VIP_CROWDED, ..VipSlot::default() };
        slots.entry(hash::vip(&address)).and_modify(|slot| *slot = crowded).or_insert(alone);
    }
    slots
}

/// What a slot holds one after the other on the way to another value, so that no packet meets the address of one VIP with
/// the id of another, nor misses a VIP: a write is not atomic.
fn steps(from: VipSlot, to: VipSlot) -> [VipSlot; 4] {
    let crowded = |slot: VipSlot| VipSlot { flags: slot.flags | VIP_CROWDED, ..slot };
    [crowded(from), crowded(VipSlot::default()), crowded(to), to]
}

impl Maps {
    /// The slots in use.
    pub fn read_vip_index(&self) -> Result<BTreeMap<u32, VipSlot>, MapsError> {
        let all = batch::elements(&self.vip_index, 0, self.vip_index.len());
        let all = all.map_err(|error| MapsError::Read { map: "VIP_INDEX", source: error.into() })?;
        Ok((0..).zip(all).filter(|(_, slot)| *slot != VipSlot::default()).collect())
    }

    /// Makes the index `wanted`, where it is `known`; how many slots were written.
    pub fn write_vip_index(
        &mut self,
        known: &BTreeMap<u32, VipSlot>,
        wanted: &BTreeMap<u32, VipSlot>,
    ) -> Result<usize, MapsError> {
        let mut written = 0;
        let gone = known.keys().filter(|index| !wanted.contains_key(index));
        for &index in wanted.keys().chain(gone) {
            let slot = |slots: &BTreeMap<u32, VipSlot>| slots.get(&index).copied().unwrap_or_default();
            let (from, to) = (slot(known), slot(wanted));
            if from != to {
                written += 1;
                for step in steps(from, to) {
                    let set = self.vip_index.set(index, step, 0);
                    set.map_err(|source| MapsError::Write { map: "VIP_INDEX", source })?;
                }
            }
        }
        Ok(written)
    }

    /// Makes the index that of the VIPs that the maps hold, and gives it back.
    pub fn index_vips(&mut self) -> Result<BTreeMap<u32, VipSlot>, MapsError> {
        let wanted = slots(&self.read_vips()?);
        self.write_vip_index(&self.read_vip_index()?, &wanted)?;
        Ok(wanted)
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
        let crowded = VipSlot { flags: VIP_CROWDED, ..VipSlot::default() };
        let own = VipSlot { address: alone, id: 3, flags: VIP_ALL_PORTS, interfaces: 5, vlan: 7 };
        assert_eq!(slots, BTreeMap::from([(hash::vip(&a), crowded), (hash::vip(&alone), own)]));
    }

    #[test]
    fn a_slot_that_changes_hands_never_shows_one_vip_with_the_id_of_another() {
        let [a, b, _] = addresses();
        let slot = |address, id| VipSlot { address, id, flags: 0, interfaces: 1, vlan: 0 };
        for (from, to) in [
            (slot(a, 1), slot(b, 2)),
            (VipSlot::default(), slot(a, 1)),
            (slot(a, 1), VipSlot::default()),
            (slot(a, 1), VipSlot { flags: VIP_CROWDED, ..VipSlot::default() }),
            (VipSlot { flags: VIP_CROWDED, ..VipSlot::default() }, slot(b, 2)),
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
    fn the_index_follows_the_vips() {
        let Some(mut fixture) = Fixture::new() else { return };
        let maps = &mut fixture.maps;
        let [a, b, alone] = addresses();
        for (address, id) in [(a, 1), (alone, 3)] {
            maps.vips.insert(address, vip(id), 0).unwrap();
        }
        assert_eq!(maps.index_vips().unwrap().len(), 2);
        maps.vips.insert(b, vip(2), 0).unwrap();
        maps.vips.remove(&alone).unwrap();
        let wanted = maps.index_vips().unwrap();
        assert_eq!(wanted.len(), 1);
        assert_eq!(maps.read_vip_index().unwrap(), wanted);
        assert_eq!(maps.write_vip_index(&wanted, &wanted).unwrap(), 0);
    }
}
