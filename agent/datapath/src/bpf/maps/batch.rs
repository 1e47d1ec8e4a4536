//! Reads and writes maps in batches (`BPF_MAP_LOOKUP_BATCH`, `BPF_MAP_UPDATE_BATCH`; Linux 5.6,
//! per-CPU arrays 5.13).
//!
//! aya does not have them. One system call for each of 262,144 elements takes five times as long
//! (measured: 1.0 us against 0.2 us per element, Linux 6.18). For hash maps there is a second
//! reason. A walk with `BPF_MAP_GET_NEXT_KEY` starts again if its current entry is deleted, so on a
//! busy LRU map it may never end. A batch walks by bucket.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use aya::{
    Pod,
    maps::{IterableMap, MapData},
};

use crate::bpf::syscall::{BpfCommand, bpf};

/// Elements of one system call.
const CHUNK: usize = 4096;

/// The `batch` member of `union bpf_attr` (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// A batched read of a map: the keys and values so far, and the position.
struct BatchReader<'map, K, V> {
    fd: BorrowedFd<'map>,
    /// `K`s of one key: 1, or its bytes.
    key_width: usize,
    /// `V`s of one value: the number of possible CPUs for a per-CPU map, its bytes, or 1.
    width: usize,
    /// The kernel's batch position: the last read index of an array, or the next bucket of a hash
    /// map.
    position: Option<u32>,
    ended: bool,
    keys: Vec<K>,
    values: Vec<V>,
}

impl<'map, K: Pod, V: Pod> BatchReader<'map, K, V> {
    /// Creates a reader. `key_width` `K`s and `width` `V`s must have the sizes of the map's keys
    /// and values.
    fn new(map: &'map MapData, key_width: usize, width: usize, position: Option<u32>) -> Self {
        Self { fd: map.fd().as_fd(), key_width, width, position, ended: false, keys: Vec::new(), values: Vec::new() }
    }

    /// Returns the number of read keys.
    fn read(&self) -> usize {
        self.keys.len() / self.key_width
    }

    /// Reads up to `count` more elements.
    fn advance(&mut self, count: usize) -> io::Result<()> {
        self.keys.reserve(count * self.key_width);
        self.values.reserve(count * self.width);
        let mut next = 0u32;
        let mut attributes = BatchAttr {
            in_batch: self.position.as_ref().map_or(0, |position| std::ptr::from_ref(position) as u64),
            out_batch: std::ptr::from_mut(&mut next) as u64,
            keys: self.keys.spare_capacity_mut().as_mut_ptr() as u64,
            values: self.values.spare_capacity_mut().as_mut_ptr() as u64,
            count: u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?,
            map_fd: self.fd.as_raw_fd().cast_unsigned(),
            ..BatchAttr::default()
        };
        // SAFETY: the kernel writes at most `count` keys and their values, for which there is room,
        // and both batch positions are four bytes, for arrays (their key) and for hash maps (a
        // bucket) alike.
        let result = unsafe { bpf(BpfCommand::MapLookupBatch, &mut attributes) };
        match result {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => self.ended = true,
            Err(error) => return Err(error),
        }
        let read = (attributes.count as usize).min(count);
        // SAFETY: there is room for `count` keys and their values. The kernel has initialized the
        // first `read` of them; it reports their number in `count`, with ENOENT too. Any bytes are
        // a valid `Pod`.
        unsafe {
            self.keys.set_len(self.keys.len() + read * self.key_width);
            self.values.set_len(self.values.len() + read * self.width);
        }
        self.position = Some(next);
        Ok(())
    }
}

/// Returns `count` elements of an array from index `first` on, each of `width` values; fewer at the
/// end of the array.
fn array<V: Pod>(map: &MapData, width: usize, first: u32, count: u32) -> io::Result<Vec<V>> {
    let mut walk = BatchReader::<u32, V>::new(map, 1, width, first.checked_sub(1));
    let count = count as usize;
    while !walk.ended && walk.read() < count {
        walk.advance(CHUNK.min(count - walk.read()))?;
    }
    Ok(walk.values)
}

/// Returns `count` elements of an array from index `first` on; fewer at the end of the array.
pub(super) fn elements<V: Pod>(map: &impl IterableMap<u32, V>, first: u32, count: u32) -> io::Result<Vec<V>> {
    array(map.map(), 1, first, count)
}

/// Returns the bytes of the first `count` elements of an array whose values have `size` bytes.
pub(super) fn element_bytes(map: &MapData, size: usize, count: u32) -> io::Result<Vec<u8>> {
    array(map, size, 0, count)
}

/// Returns the bytes of all keys and of all values of a hash map with these sizes of keys and
/// values. See [`entries`].
pub(super) fn entry_bytes(map: &MapData, key_size: usize, size: usize) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let walk = hash(BatchReader::<u8, u8>::new(map, key_size, size, None))?;
    Ok((walk.keys, walk.values))
}

/// Returns elements of a per-CPU array, as [`elements`] does. Each index has `cpus` values, where
/// `cpus` is the number of possible CPUs. The size of `V` must be a multiple of eight.
pub(super) fn per_cpu<V: Pod>(map: &MapData, cpus: usize, first: u32, count: u32) -> io::Result<Vec<V>> {
    const { assert!(size_of::<V>().is_multiple_of(8), "the kernel pads per-CPU values to eight bytes") };
    array(map, cpus, first, count)
}

/// Returns all entries of a hash map, in no order. Entries that come or go meanwhile may be
/// missing.
pub(super) fn entries<K: Pod, V: Pod>(map: &impl IterableMap<K, V>) -> io::Result<Vec<(K, V)>> {
    let walk = hash(BatchReader::<K, V>::new(map.map(), 1, 1, None))?;
    Ok(walk.keys.into_iter().zip(walk.values).collect())
}

/// Reads a hash map to its end.
fn hash<K: Pod, V: Pod>(mut walk: BatchReader<'_, K, V>) -> io::Result<BatchReader<'_, K, V>> {
    let mut chunk = CHUNK;
    while !walk.ended {
        match walk.advance(chunk) {
            // A bucket has more entries than the batch can hold.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => chunk *= 2,
            other => other?,
        }
    }
    Ok(walk)
}

/// Writes entries with these sizes of keys and values. Returns how many the map refused. Only an
/// LRU map refuses some, if it cannot evict others.
pub(super) fn write_bytes(
    map: &MapData,
    (keys, key_size): (&[u8], usize),
    (values, size): (&[u8], usize),
) -> io::Result<usize> {
    let mut refused = 0;
    for (keys, values) in keys.chunks(key_size * CHUNK).zip(values.chunks(size * CHUNK)) {
        let count = (keys.len() / key_size).min(values.len() / size);
        let mut done = 0;
        while done < count {
            let (keys, values) = (&keys[done * key_size..], &values[done * size..]);
            // SAFETY: the chunks contain this many more keys and values, of the map's sizes.
            match unsafe { update(map, keys.as_ptr(), values.as_ptr(), count - done) } {
                Ok(()) => done = count,
                Err((written, error)) if error.raw_os_error() == Some(libc::ENOMEM) => {
                    refused += 1;
                    done += written + 1;
                }
                Err((_, error)) => return Err(error),
            }
        }
    }
    Ok(refused)
}

/// Writes `count` entries. An error contains the number of entries written before it.
///
/// # Safety
/// `keys` and `values` point to `count` keys and values of the map's sizes.
unsafe fn update(map: &MapData, keys: *const u8, values: *const u8, count: usize) -> Result<(), (usize, io::Error)> {
    let mut attributes = BatchAttr {
        keys: keys as u64,
        values: values as u64,
        count: u32::try_from(count).map_err(|_| (0, io::ErrorKind::InvalidInput.into()))?,
        map_fd: map.fd().as_fd().as_raw_fd().cast_unsigned(),
        ..BatchAttr::default()
    };
    // SAFETY: the kernel reads `count` keys and values, which the caller provides.
    match unsafe { bpf(BpfCommand::MapUpdateBatch, &mut attributes) } {
        Ok(_) => Ok(()),
        Err(error) => Err(((attributes.count as usize).min(count), error)),
    }
}
