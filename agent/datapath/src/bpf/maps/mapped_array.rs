//! Maps an array into the process's memory (`BPF_F_MMAPABLE`, Linux 5.5).
//!
//! A system call for a batch copies element by element (measured: 0.2 us each, Linux 6.18). A start
//! with 10,000 Services writes 2.5 million of them.

use std::{
    io,
    ops::Range,
    os::fd::{AsFd as _, BorrowedFd},
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use super::{MapsError, NamedMap};
use aya::maps::{Array, IterableMap as _, MapData};
use nix::{
    sys::mman::{MapFlags, ProtFlags, mmap, munmap},
    unistd::{SysconfVar, sysconf},
};

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bpf) enum Access {
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

/// Some elements of an array in memory, as numbers of eight bytes.
#[derive(Debug)]
pub(in crate::bpf) struct MappedArray {
    /// The start of a page.
    start: NonNull<AtomicU64>,
    /// The numbers from the start to the last element.
    numbers: usize,
    /// The numbers before the first element.
    offset: usize,
}

// SAFETY: this value owns the mapping until it is dropped, and all accesses are atomic.
unsafe impl Send for MappedArray {}
// SAFETY: as above.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps these elements, of `size` bytes each, a multiple of eight. The array was made with `BPF_F_MMAPABLE`.
    pub(in crate::bpf) fn map(
        array: BorrowedFd<'_>,
        elements: Range<u32>,
        size: usize,
        access: Access,
    ) -> io::Result<Self> {
        let [first, end] = [elements.start, elements.end].map(|element| element as usize * size);
        let page = page_size()?;
        let start = first / page * page;
        let length = (end - start).try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        let position = start.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping, at an address of the kernel's choice. It contains the elements one
        // after the other, without a gap (kernel/bpf/arraymap.c, `array_map_mmap`).
        let mapping = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, array, position) }?;
        let [numbers, offset] = [end, first].map(|bytes| (bytes - start) / size_of::<u64>());
        Ok(Self { start: mapping.cast(), numbers, offset })
    }

    /// Returns the elements. A program sees their new values if it finds them by a value that was
    /// written elsewhere after [`publish`].
    pub(in crate::bpf) fn elements(&self) -> &[AtomicU64] {
        // SAFETY: this many numbers are mapped while `self` lives, from the start of a page on.
        // Any bytes are a valid number.
        let numbers = unsafe { slice::from_raw_parts(self.start.as_ptr(), self.numbers) };
        &numbers[self.offset..]
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference outlives `self`.
        let unmapped = unsafe { munmap(self.start.cast(), self.numbers * size_of::<u64>()) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

fn page_size() -> io::Result<usize> {
    let size = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|size| size.try_into().ok());
    size.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Returns the elements of an array, which is mapped the first time.
pub(super) fn mapped<'mapping>(
    mapping: &'mapping mut Option<MappedArray>,
    array: &NamedMap<Array<MapData, u64>>,
) -> Result<&'mapping [AtomicU64], MapsError> {
    let mapping = match mapping {
        Some(mapping) => mapping,
        none => {
            let new = MappedArray::map(array.map().fd().as_fd(), 0..array.len(), size_of::<u64>(), Access::Write);
            none.insert(new.map_err(|error| array.writing(error))?)
        }
    };
    Ok(mapping.elements())
}

/// Orders writes: no program sees a write after this call without the writes before it.
pub(super) fn publish() {
    fence(Ordering::Release);
}
