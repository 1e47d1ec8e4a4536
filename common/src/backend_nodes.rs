//! `BACKEND_NODES`: the other node that each backend is on. With many backends, `BACKENDS` is in no
//! cache of a CPU. This takes a sixteenth of its memory, so a new flow finds its node without a look
//! at `BACKENDS`.

use crate::abi::{BACKEND_GONE, BACKEND_LOCAL, Backend};

/// Backends of an element.
pub const BACKENDS: u32 = 4;

const BITS: u32 = u64::BITS / BACKENDS;
const MASK: u64 = (1 << BITS) - 1;

/// Returns the element of a backend.
#[inline(always)]
pub const fn element(backend: u32) -> u32 {
    backend / BACKENDS
}

/// Returns the index in `NODES` of the other node that a backend is on; `None`: `BACKENDS` tells.
#[inline(always)]
pub const fn get(element: u64, backend: u32) -> Option<u32> {
    match element >> shift(backend) & MASK {
        0 => None,
        #[expect(clippy::cast_possible_truncation, reason = "16 bits")]
        node => Some(node as u32 - 1),
    }
}

/// Returns the element with another entry for this backend.
#[inline(always)]
pub const fn with(element: u64, backend: u32, entry: &Backend) -> u64 {
    let is_elsewhere = entry.generation != 0 && entry.flags & (BACKEND_LOCAL | BACKEND_GONE) == 0;
    let node = entry.node as u64 + 1;
    let node = if is_elsewhere && node <= MASK { node } else { 0 };
    element & !(MASK << shift(backend)) | node << shift(backend)
}

#[inline(always)]
const fn shift(backend: u32) -> u32 {
    backend % BACKENDS * BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_of_one_element_do_not_touch_each_other() {
        let backend = |node, flags| Backend { node, flags, generation: 7, ..Backend::default() };
        let all = (8..12).fold(0, |packed, index| with(packed, index, &backend(index, 0)));
        assert_eq!(
            [8, 9, 10, 11].map(|index| (element(index), get(all, index))),
            [8, 9, 10, 11].map(|node| (2, Some(node)))
        );
        for other in [Backend::default(), backend(9, BACKEND_LOCAL), backend(9, BACKEND_GONE), backend(65_535, 0)] {
            let without = with(all, 9, &other);
            assert_eq!([8, 9, 10, 11].map(|index| get(without, index)), [Some(8), None, Some(10), Some(11)]);
        }
        assert_eq!(get(with(0, 3, &backend(0, 0)), 3), Some(0));
        assert_eq!(get(with(0, 3, &backend(65_534, 0)), 3), Some(65_534));
    }
}
