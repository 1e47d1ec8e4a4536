//! Batched reads and writes (`BPF_MAP_LOOKUP_BATCH`, `BPF_MAP_UPDATE_BATCH`; Linux 5.6, per-CPU arrays 5.13).
//!
//! aya has none of them, and one system call for each of 262,144 elements takes five times as long (measured: 1.0 us
//! against 0.2 us for each element, Linux 6.18). For hash maps there is a second reason: a walk with `BPF_MAP_GET_NEXT_KEY` starts again whenever the entry that it stands on is deleted,
//! so on a busy LRU map it may never end; a batch walks by bucket.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use aya::{
    Pod,
    maps::{IterableMap, MapData},
};

use crate::datapath::syscall::{Command, bpf};

/// Elements of one system call.
const CHUNK: usize = 4096;

/// The `batch` member of `union bpf_attr` (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// A walk over a map: the keys and values so far, and where to go on.
struct Walk<'map, K, V> {
    fd: BorrowedFd<'map>,
    /// Values of one key: the number of possible CPUs for a per-CPU map, else 1.
    width: usize,
    /// What the kernel calls the batch: an array's last index read, a hash map's next bucket.
    position: Option<u32>,
    ended: bool,
    keys: Vec<K>,
    values: Vec<V>,
}

impl<'map, K: Pod, V: Pod> Walk<'map, K, V> {
    /// `K` and `V` must have the sizes of the map's keys and values, and `width` be as described.
    fn new(map: &'map MapData, width: usize, position: Option<u32>) -> Self {
        Self { fd: map.fd().as_fd(), width, position, ended: false, keys: Vec::new(), values: Vec::new() }
    }

    /// Reads up to `count` more elements.
    fn advance(&mut self, count: usize) -> io::Result<()> {
        self.keys.reserve(count);
        self.values.reserve(count * self.width);
        let mut next = 0u32;
        let mut attributes = Attributes {
            in_batch: self.position.as_ref().map_or(0, |position| std::ptr::from_ref(position) as u64),
            out_batch: std::ptr::from_mut(&mut next) as u64,
            keys: self.keys.spare_capacity_mut().as_mut_ptr() as u64,
            values: self.values.spare_capacity_mut().as_mut_ptr() as u64,
            count: u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?,
            map_fd: self.fd.as_raw_fd().cast_unsigned(),
            ..Attributes::default()
        };
        // SAFETY: the kernel writes at most `count` keys and `count * width` values, for which there is room, and
        // both batch positions are four bytes, for arrays (their key) and for hash maps (a bucket) alike.
        let result = unsafe { bpf(Command::MapLookupBatch, &mut attributes) };
        match result {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => self.ended = true,
            Err(error) => return Err(error),
        }
        let read = (attributes.count as usize).min(count);
        // SAFETY: there is room for `count` keys and `count * width` values, the kernel initialised the first `read`
        // (times `width`) of them, it reports them in `count` also with ENOENT, and any bytes make a `Pod`.
        unsafe {
            self.keys.set_len(self.keys.len() + read);
            self.values.set_len(self.values.len() + read * self.width);
        }
        self.position = Some(next);
        Ok(())
    }
}

/// `count` elements of an array from index `first` on, each of `width` values; fewer where the array ends.
fn array<V: Pod>(map: &MapData, width: usize, first: u32, count: u32) -> io::Result<Vec<V>> {
    let mut walk = Walk::<u32, V>::new(map, width, first.checked_sub(1));
    let count = count as usize;
    while !walk.ended && walk.keys.len() < count {
        walk.advance(CHUNK.min(count - walk.keys.len()))?;
    }
    Ok(walk.values)
}

/// `count` elements of an array from index `first` on; fewer where the array ends.
pub(super) fn elements<V: Pod>(map: &impl IterableMap<u32, V>, first: u32, count: u32) -> io::Result<Vec<V>> {
    array(map.map(), 1, first, count)
}

/// The bytes of the first element of an array whose values have `size` bytes.
pub(super) fn first_element(map: &MapData, size: usize) -> io::Result<Vec<u8>> {
    array(map, size, 0, 1)
}

/// As [`elements`], of a per-CPU array: `cpus` values for each index, `cpus` being the number of possible CPUs.
/// `V`'s size must be a multiple of eight.
pub(super) fn per_cpu<V: Pod>(map: &MapData, cpus: usize, first: u32, count: u32) -> io::Result<Vec<V>> {
    const { assert!(size_of::<V>().is_multiple_of(8), "the kernel pads per-CPU values to eight bytes") };
    array(map, cpus, first, count)
}

/// The entries of a hash map, at most `limit`, in no order. Entries that come or go meanwhile may be in or not.
pub(super) fn entries<K: Pod, V: Pod>(map: &impl IterableMap<K, V>, limit: usize) -> io::Result<Vec<(K, V)>> {
    let mut walk = Walk::<K, V>::new(map.map(), 1, None);
    let mut chunk = CHUNK;
    while !walk.ended && walk.keys.len() < limit {
        match walk.advance(chunk) {
            // A bucket with more entries than the batch holds.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => chunk *= 2,
            other => other?,
        }
    }
    walk.keys.truncate(limit);
    Ok(walk.keys.into_iter().zip(walk.values).collect())
}

/// Writes `values` to an array from index `first` on. Each element is written atomically, the range is not.
pub(super) fn write<V: Pod>(map: &mut impl IterableMap<u32, V>, first: u32, values: &[V]) -> io::Result<()> {
    let fd = map.map().fd().as_fd().as_raw_fd().cast_unsigned();
    let mut indices = first..=u32::MAX;
    for values in values.chunks(CHUNK) {
        let keys: Vec<u32> = indices.by_ref().take(values.len()).collect();
        let mut attributes = Attributes {
            keys: keys.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count: u32::try_from(keys.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            map_fd: fd,
            ..Attributes::default()
        };
        // SAFETY: the kernel reads `count` keys and values, and there are no fewer of either.
        unsafe { bpf(Command::MapUpdateBatch, &mut attributes) }?;
    }
    Ok(())
}
