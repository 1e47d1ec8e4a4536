//! Maps of any layout, as bytes.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
};

use aya::maps::{MapData, MapError, MapInfo};
use vipmux_common::table;

use super::{MapsError, batch, open};
use crate::datapath::syscall::{Command, bpf};

/// `enum bpf_map_type` of include/uapi/linux/bpf.h, as far as entries are carried over.
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const LRU_HASH: u32 = 9;
const LPM_TRIE: u32 = 11;

/// `BPF_ANY`, `BPF_NOEXIST` and `BPF_EXIST` of include/uapi/linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datapath) enum Write {
    Any = 0,
    New = 1,
    Existing = 2,
}

/// What a map is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datapath) struct Layout {
    pub(in crate::datapath) kind: u32,
    pub(in crate::datapath) key_size: u32,
    pub(in crate::datapath) value_size: u32,
    pub(in crate::datapath) max_entries: u32,
    pub(in crate::datapath) flags: u32,
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
    /// Of a pinned map.
    pub(in crate::datapath) fn of_pin(path: &Path) -> Result<Self, MapsError> {
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

    /// Whether the programs write to it while no agent runs, and entries come and go.
    pub(in crate::datapath) fn is_hash(&self) -> bool {
        matches!(self.kind, HASH | LRU_HASH)
    }
}

/// Keys and values, one after the other.
#[derive(Clone, Debug, Default)]
pub(in crate::datapath) struct RawEntries {
    key_size: usize,
    value_size: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl RawEntries {
    /// All entries.
    pub(in crate::datapath) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        // Chunks of no bytes are refused; there are none of them where there is no entry.
        let chunks = |bytes, size: usize| <[u8]>::chunks_exact(bytes, size.max(1));
        chunks(&self.keys, self.key_size).zip(chunks(&self.values, self.value_size))
    }

    /// The same entries with values of another size: each begins as it was, and ends as `rest` does.
    pub(in crate::datapath) fn resized(&self, rest: &[u8]) -> Self {
        let kept = self.value_size.min(rest.len());
        let values = self.iter().flat_map(|(_, value)| value[..kept].iter().chain(&rest[kept..]).copied());
        Self { key_size: self.key_size, value_size: rest.len(), keys: self.keys.clone(), values: values.collect() }
    }

    /// An array's values of four bytes each, two to an element ([`table`]).
    pub(in crate::datapath) fn paired(&self) -> Self {
        let mut paired = Self { key_size: size_of::<u32>(), value_size: size_of::<u64>(), ..Self::default() };
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let mut entries = self.iter().map(|(key, value)| (number(key), number(value))).peekable();
        while let Some((slot, value)) = entries.next() {
            let mut element = table::with(0, slot, value);
            while let Some((slot, value)) = entries.next_if(|(next, _)| table::element(*next) == table::element(slot)) {
                element = table::with(element, slot, value);
            }
            paired.push(&table::element(slot).to_ne_bytes(), &element.to_ne_bytes());
        }
        paired
    }

    /// Changes each value in place.
    pub(in crate::datapath) fn edit(&mut self, change: impl Fn(&mut [u8])) {
        self.values.chunks_exact_mut(self.value_size.max(1)).for_each(change);
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
    }
}

/// A pinned map.
#[derive(Debug)]
pub(in crate::datapath) struct RawMap {
    name: &'static str,
    data: MapData,
    layout: Layout,
}

/// The part of `union bpf_attr` for single elements.
#[repr(C)]
struct Element {
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
    pub(in crate::datapath) fn open(folder: &Path, name: &'static str) -> Result<Self, MapsError> {
        let data = open(&folder.join(name))?;
        let read = |source| MapsError::Read { map: name, source };
        let layout = Layout::of(&data.info().map_err(read)?).map_err(read)?;
        Ok(Self { name, data, layout })
    }

    /// Its id in the kernel; 0 if the kernel does not say.
    pub(in crate::datapath) fn id(&self) -> u32 {
        self.data.info().map_or(0, |info| info.id())
    }

    /// What it was made with.
    pub(in crate::datapath) fn layout(&self) -> Layout {
        self.layout
    }

    /// Pins it once more.
    pub(in crate::datapath) fn pin(&self, path: &Path) -> Result<(), MapsError> {
        self.data.pin(path).map_err(|error| MapsError::Open {
            path: path.into(),
            source: MapError::PinError { name: Some(self.name.to_owned()), error },
        })
    }

    /// All entries; of an array those of its elements that are not zero. None of a per-CPU map: those are counters.
    pub(in crate::datapath) fn entries(&self) -> Result<RawEntries, MapsError> {
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

    /// Writes entries of this map's own layout; of an array's, those that lie in it. How many an LRU map found no room for.
    pub(in crate::datapath) fn write(&self, entries: &RawEntries) -> Result<usize, MapsError> {
        let (keys, values) = ((&*entries.keys, entries.key_size), (&*entries.values, entries.value_size));
        let written = match self.layout.kind {
            ARRAY => {
                let last = self.layout.max_entries.to_ne_bytes();
                let inside =
                    |key: &[u8]| u32::from_ne_bytes(*key.first_chunk().unwrap_or(&last)) < self.layout.max_entries;
                // Ascending, so those that lie in it come first.
                let count = entries.iter().take_while(|(key, _)| inside(key)).count();
                let (keys, values) = (&keys.0[..count * keys.1], &values.0[..count * values.1]);
                batch::write_bytes(&self.data, (keys, entries.key_size), (values, entries.value_size))
            }
            LPM_TRIE => entries.iter().try_for_each(|(key, value)| self.set(key, value, Write::Any)).map(|()| 0),
            _ => batch::write_bytes(&self.data, keys, values),
        };
        written.map_err(|error| self.writing(error))
    }

    /// The value of a key.
    pub(in crate::datapath) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapsError> {
        self.look_up(key).map_err(|error| MapsError::Read { map: self.name, source: error.into() })
    }

    /// Writes one entry; whether it was there, or was not, as `how` wants it, and there was room.
    pub(in crate::datapath) fn put(&self, key: &[u8], value: &[u8], how: Write) -> Result<bool, MapsError> {
        match self.set(key, value, how) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EEXIST | libc::ENOENT | libc::ENOMEM) => Ok(false),
                _ => Err(self.writing(error)),
            },
        }
    }

    /// Removes one entry, if it is there.
    pub(in crate::datapath) fn remove(&self, key: &[u8]) -> Result<(), MapsError> {
        let mut element = self.element(key, 0, 0);
        // SAFETY: the key has the map's size.
        let removed = unsafe { bpf(Command::MapDelete, &mut element) };
        absent(removed).map(drop).map_err(|error| self.writing(error))
    }

    fn writing(&self, error: io::Error) -> MapsError {
        MapsError::Write { map: self.name, source: error.into() }
    }

    fn element(&self, key: &[u8], value: u64, flags: u64) -> Element {
        debug_assert_eq!(key.len(), self.layout.key_size as usize);
        let map_fd = self.data.fd().as_fd().as_raw_fd().cast_unsigned();
        Element { map_fd, padding: 0, key: key.as_ptr() as u64, value, flags }
    }

    fn set(&self, key: &[u8], value: &[u8], how: Write) -> io::Result<()> {
        let mut element = self.element(key, value.as_ptr() as u64, how as u64);
        // SAFETY: the key and the value have the map's sizes.
        unsafe { bpf(Command::MapUpdate, &mut element) }.map(drop)
    }

    fn look_up(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.layout.value_size as usize];
        let mut element = self.element(key, value.as_mut_ptr() as u64, 0);
        // SAFETY: the key and the value have the map's sizes, and it is no per-CPU map.
        let found = absent(unsafe { bpf(Command::MapLookup, &mut element) })?;
        Ok(found.map(|_| value))
    }

    /// Key by key: a trie's batches are told by keys, not by numbers.
    fn walk(&self, entries: &mut RawEntries) -> io::Result<()> {
        let mut next = vec![0; self.layout.key_size as usize];
        let mut key: Option<Vec<u8>> = None;
        loop {
            let at = key.as_ref().map_or(0, |key| key.as_ptr() as u64);
            let room = next.as_mut_ptr() as u64;
            let mut element = Element { key: at, ..self.element(&next, room, 0) };
            // SAFETY: there is no key, or one of the map's size, and room for the next one.
            if absent(unsafe { bpf(Command::MapNextKey, &mut element) })?.is_none() {
                return Ok(());
            }
            if let Some(value) = self.look_up(&next)? {
                entries.push(&next, &value);
            }
            key = Some(next.clone());
        }
    }
}
