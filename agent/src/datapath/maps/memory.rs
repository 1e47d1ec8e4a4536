//! The elements of an array in the process' own memory (`BPF_F_MMAPABLE`, Linux 5.5).
//!
//! A system call for a batch copies element by element (measured: 0.2 us for each, Linux 6.18), and a start with 10,000
//! Services writes 2.5 million of them.

use std::{
    io,
    os::fd::AsFd as _,
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use aya::maps::{Array, IterableMap as _, MapData};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The elements of an array, of eight bytes each.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<AtomicU64>,
    elements: usize,
}

// SAFETY: the mapping is this one's own until it is dropped, and is accessed atomically only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Of a map that was made with `BPF_F_MMAPABLE`.
    pub(super) fn map(array: &Array<MapData, u64>) -> io::Result<Self> {
        let elements = array.len() as usize;
        let length = (elements * size_of::<u64>()).try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice. It holds the elements, eight bytes each, one after
        // the other (kernel/bpf/arraymap.c, `array_map_mmap`).
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, array.map().fd().as_fd(), 0) }?;
        Ok(Self { start: start.cast(), elements })
    }

    /// All elements. A program that is led to them by what is written elsewhere after [`publish`] sees what was written
    /// to them before.
    pub(super) fn elements(&self) -> &[AtomicU64] {
        // SAFETY: so many are mapped as long as this lives, from the start of a page on, and any bytes make a number.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.elements) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference outlives this.
        let unmapped = unsafe { munmap(self.start.cast(), self.elements * size_of::<u64>()) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Keeps what is written from here on from being seen before what was written until here.
pub(super) fn publish() {
    fence(Ordering::Release);
}
