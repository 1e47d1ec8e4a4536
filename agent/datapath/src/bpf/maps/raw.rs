//! Reads and writes maps of any layout as bytes.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
};

use aya::maps::{MapData, MapError, MapInfo};

use super::{MapsError, batch, open};
use crate::bpf::syscall::{BpfCommand, bpf};

/// Values of `enum bpf_map_type` (include/uapi/linux/bpf.h): the types whose entries are carried
/// over.
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const LRU_HASH: u32 = 9;
const LPM_TRIE: u32 = 11;

/// `BPF_ANY`, `BPF_NOEXIST` and `BPF_EXIST` of include/uapi/linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bpf) enum UpdateFlag {
    Any = 0,
    New = 1,
    Existing = 2,
}

/// The parameters with which a map is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bpf) struct Layout {
    pub(in crate::bpf) kind: u32,
    pub(in crate::bpf) key_size: u32,
    pub(in crate::bpf) value_size: u32,
    pub(in crate::bpf) max_entries: u32,
    pub(in crate::bpf) flags: u32,
}

impl From<&aya_obj::Map> for Layout {
    fn from(map: &aya_obj::Map) -> Self {
        Self {
            kind: map.map_type(),
            key_size: map.key_size(),
            value_size: map.value_size(),
            max_entries: map.max_entries(),
            flags: map.map_flags(),
        }
    }
}

impl Layout {
    /// Returns the layout of a pinned map.
    pub(in crate::bpf) fn of_pin(path: &Path) -> Result<Self, MapsError> {
        let opened = |source| MapsError::Open { path: path.into(), source };
        let info = MapInfo::from_pin(path).map_err(opened)?;
        Self::of(&info).map_err(opened)
    }

    fn of(info: &MapInfo) -> Result<Self, MapError> {
        Ok(Self {
            kind: info.map_type()? as u32,
            key_size: info.key_size(),
            value_size: info.value_size(),
            max_entries: info.max_entries(),
            flags: info.map_flags(),
        })
    }

    /// Returns whether programs add and remove entries even while no agent runs.
    pub(in crate::bpf) fn is_hash(&self) -> bool {
        matches!(self.kind, HASH | LRU_HASH)
    }
}

/// Entries: all keys and all values, concatenated.
#[derive(Clone, Debug, Default)]
pub(in crate::bpf) struct RawEntries {
    key_size: usize,
    value_size: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl RawEntries {
    /// Returns all entries.
    pub(in crate::bpf) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        // Chunks of size zero would panic. The size is zero only if there are no entries.
        let chunks = |bytes, size: usize| <[u8]>::chunks_exact(bytes, size.max(1));
        chunks(&self.keys, self.key_size).zip(chunks(&self.values, self.value_size))
    }

    /// Returns the entries with values of the size of `rest`. Longer values are cut, shorter ones
    /// end with the bytes of `rest`.
    pub(in crate::bpf) fn resized(&self, rest: &[u8]) -> Self {
        let kept = self.value_size.min(rest.len());
        let values = self.iter().flat_map(|(_, value)| value[..kept].iter().chain(&rest[kept..]).copied());
        Self { key_size: self.key_size, value_size: rest.len(), keys: self.keys.clone(), values: values.collect() }
    }

    /// Changes each value in place.
    pub(in crate::bpf) fn edit(&mut self, change: impl Fn(&mut [u8])) {
        self.values.chunks_exact_mut(self.value_size.max(1)).for_each(change);
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
    }
}

/// A pinned map.
#[derive(Debug)]
pub(in crate::bpf) struct RawMap {
    name: &'static str,
    data: MapData,
    layout: Layout,
}

/// The part of `union bpf_attr` for single elements.
#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn absent<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

impl RawMap {
    /// Opens the map `name` that is pinned in a folder.
    pub(in crate::bpf) fn open(folder: &Path, name: &'static str) -> Result<Self, MapsError> {
        let data = open(&folder.join(name))?;
        let read = |source| MapsError::Read { map: name, source };
        let layout = Layout::of(&data.info().map_err(read)?).map_err(read)?;
        Ok(Self { name, data, layout })
    }

    /// Returns its id in the kernel, if the kernel tells it.
    pub(in crate::bpf) fn id(&self) -> Option<u32> {
        self.data.info().ok().map(|info| info.id())
    }

    /// Returns its layout.
    pub(in crate::bpf) fn layout(&self) -> Layout {
        self.layout
    }

    /// Pins it at another path too.
    pub(in crate::bpf) fn pin(&self, path: &Path) -> Result<(), MapsError> {
        self.data.pin(path).map_err(|error| MapsError::Open {
            path: path.into(),
            source: MapError::PinError { name: Some(self.name.to_owned()), error },
        })
    }

    /// Returns all entries: of an array the elements that are not zero, of a per-CPU map none,
    /// since those are counters.
    pub(in crate::bpf) fn entries(&self) -> Result<RawEntries, MapsError> {
        let (key_size, value_size) = (self.layout.key_size as usize, self.layout.value_size as usize);
        let mut entries = RawEntries { key_size, value_size, ..RawEntries::default() };
        let read = match self.layout.kind {
            HASH | LRU_HASH => batch::entry_bytes(&self.data, key_size, value_size)
                .map(|(keys, values)| (entries.keys, entries.values) = (keys, values)),
            ARRAY => batch::element_bytes(&self.data, value_size, self.layout.max_entries).map(|values| {
                for (index, value) in (0u32..).zip(values.chunks_exact(value_size)) {
                    if value.iter().any(|byte| *byte != 0) {
                        entries.push(&index.to_ne_bytes(), value);
                    }
                }
            }),
            LPM_TRIE => self.walk(&mut entries),
            _ => Ok(()),
        };
        read.map(|()| entries).map_err(|error| MapsError::Read { map: self.name, source: error.into() })
    }

    /// Writes entries of this map's layout. An array ignores indices beyond its end. Returns how
    /// many entries an LRU map could not hold.
    pub(in crate::bpf) fn write(&self, entries: &RawEntries) -> Result<usize, MapsError> {
        let (keys, values) = ((&*entries.keys, entries.key_size), (&*entries.values, entries.value_size));
        let written = match self.layout.kind {
            ARRAY => {
                let last = self.layout.max_entries.to_ne_bytes();
                let inside =
                    |key: &[u8]| u32::from_ne_bytes(*key.first_chunk().unwrap_or(&last)) < self.layout.max_entries;
                // Indices ascend, so those within the array come first.
                let count = entries.iter().take_while(|(key, _)| inside(key)).count();
                let (keys, values) = (&keys.0[..count * keys.1], &values.0[..count * values.1]);
                batch::write_bytes(&self.data, (keys, entries.key_size), (values, entries.value_size))
            }
            LPM_TRIE => entries.iter().try_for_each(|(key, value)| self.set(key, value, UpdateFlag::Any)).map(|()| 0),
            _ => batch::write_bytes(&self.data, keys, values),
        };
        written.map_err(|error| self.writing(error))
    }

    /// Returns the value of a key.
    pub(in crate::bpf) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapsError> {
        self.look_up(key).map_err(|error| MapsError::Read { map: self.name, source: error.into() })
    }

    /// Writes one entry. Returns false if `how` forbids it, or the map is full.
    pub(in crate::bpf) fn put(&self, key: &[u8], value: &[u8], how: UpdateFlag) -> Result<bool, MapsError> {
        match self.set(key, value, how) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EEXIST | libc::ENOENT | libc::ENOMEM) => Ok(false),
                _ => Err(self.writing(error)),
            },
        }
    }

    /// Removes one entry, if it exists.
    pub(in crate::bpf) fn remove(&self, key: &[u8]) -> Result<(), MapsError> {
        let mut element = self.element(key, 0, 0);
        // SAFETY: the key has the map's size.
        let removed = unsafe { bpf(BpfCommand::MapDelete, &mut element) };
        absent(removed).map(drop).map_err(|error| self.writing(error))
    }

    fn writing(&self, error: io::Error) -> MapsError {
        MapsError::Write { map: self.name, source: error.into() }
    }

    fn element(&self, key: &[u8], value: u64, flags: u64) -> ElementAttr {
        debug_assert_eq!(key.len(), self.layout.key_size as usize);
        let map_fd = self.data.fd().as_fd().as_raw_fd().cast_unsigned();
        ElementAttr { map_fd, padding: 0, key: key.as_ptr() as u64, value, flags }
    }

    fn set(&self, key: &[u8], value: &[u8], how: UpdateFlag) -> io::Result<()> {
        let mut element = self.element(key, value.as_ptr() as u64, how as u64);
        // SAFETY: the key and the value have the map's sizes.
        unsafe { bpf(BpfCommand::MapUpdate, &mut element) }.map(drop)
    }

    fn look_up(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.layout.value_size as usize];
        let mut element = self.element(key, value.as_mut_ptr() as u64, 0);
        // SAFETY: the key and the value have the map's sizes, and it is no per-CPU map.
        let found = absent(unsafe { bpf(BpfCommand::MapLookup, &mut element) })?;
        Ok(found.map(|_| value))
    }

    /// Reads a trie key by key: its batch position is a key, not a number.
    fn walk(&self, entries: &mut RawEntries) -> io::Result<()> {
        let mut next = vec![0; self.layout.key_size as usize];
        let mut key: Option<Vec<u8>> = None;
        loop {
            let at = key.as_ref().map_or(0, |key| key.as_ptr() as u64);
            let room = next.as_mut_ptr() as u64;
            let mut element = ElementAttr { key: at, ..self.element(&next, room, 0) };
            // SAFETY: the key is null or has the map's size, and there is room for the next one.
            if absent(unsafe { bpf(BpfCommand::MapNextKey, &mut element) })?.is_none() {
                return Ok(());
            }
            if let Some(value) = self.look_up(&next)? {
                entries.push(&next, &value);
            }
            key = Some(next.clone());
        }
    }
}
