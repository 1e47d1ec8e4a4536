//! The arena of tables. An element of `TABLES` has two slots, since the kernel gives each
//! array element at least eight bytes. A write of one slot writes the other one's bytes unchanged,
//! so readers never see them change.

/// Slots of an element.
pub const SLOTS: u32 = 2;

/// Returns the element of a slot.
#[inline(always)]
pub const fn element(slot: u32) -> u32 {
    slot / SLOTS
}

/// Returns a slot of its element: the index of a backend.
#[inline(always)]
pub const fn get(element: u64, slot: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the slot is the low half by then")]
    let backend = (element >> shift(slot)) as u32;
    backend
}

/// Returns the element with another backend in this slot.
#[inline(always)]
pub const fn with(element: u64, slot: u32, backend: u32) -> u64 {
    element & !((u32::MAX as u64) << shift(slot)) | (backend as u64) << shift(slot)
}

#[inline(always)]
const fn shift(slot: u32) -> u32 {
    slot % SLOTS * u32::BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_one_element_do_not_touch_each_other() {
        let element = with(with(u64::MAX, 6, 0), 7, 0x1234_5678);
        assert_eq!((get(element, 6), get(element, 7)), (0, 0x1234_5678));
        assert_eq!(with(element, 7, 9), with(with(0, 6, 0), 7, 9));
        assert_eq!((super::element(6), super::element(7), super::element(8)), (3, 3, 4));
    }
}
