//! Reads the kernel's ids of pinned objects, to check that the pins are still those of the agent.

use std::{
    collections::BTreeMap,
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use aya::maps::MapData;

use super::{
    maps::Maps,
    pins::{self, LinkKind, PinError, Pins},
    syscall::{BpfCommand, bpf},
};

/// A pinned link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedLinkInfo {
    /// Its id.
    pub id: u32,
    /// The program's id.
    pub program: u32,
    /// The interface's index; 0: detached.
    pub ifindex: u32,
}

/// The objects that are pinned below one pin path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedObjects {
    /// Maps' ids.
    pub maps: BTreeMap<String, u32>,
    /// Programs' ids.
    pub programs: BTreeMap<String, u32>,
    /// Links.
    pub links: BTreeMap<(LinkKind, u32), PinnedLinkInfo>,
}

/// The part of `union bpf_attr` for `BPF_OBJ_GET`.
#[repr(C)]
struct ObjectGetAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// The part of `union bpf_attr` for `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct ObjectInfoAttr {
    fd: u32,
    length: u32,
    to: u64,
}

/// `struct bpf_map_info`, `struct bpf_prog_info` and `struct bpf_link_info` begin with type and id.
const OBJECT_WORDS: usize = 2;
/// `struct bpf_link_info`: type, id, program id, padding and, for XDP and tcx links, the ifindex.
const LINK_WORDS: usize = 5;

/// Opens the pinned object.
pub(super) fn get(path: &Path) -> io::Result<OwnedFd> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = ObjectGetAttr { path: name.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the path is a zero-terminated string that lives during the call.
    let fd = unsafe { bpf(BpfCommand::ObjectGet, &mut attributes) }?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the first words of the kernel's information about an object.
fn info<const WORDS: usize>(path: &Path) -> io::Result<[u32; WORDS]> {
    let object = get(path)?;
    let mut words = [0; WORDS];
    let mut attributes = ObjectInfoAttr {
        fd: object.as_raw_fd().cast_unsigned(),
        length: u32::try_from(size_of_val(&words)).map_err(io::Error::other)?,
        to: words.as_mut_ptr() as u64,
    };
    // SAFETY: the kernel writes no more than `length` bytes.
    unsafe { bpf(BpfCommand::ObjectInfo, &mut attributes) }?;
    Ok(words)
}

/// Returns the ids of the objects that are pinned in a folder, by name.
fn ids(folder: &Path) -> Result<BTreeMap<String, u32>, PinError> {
    let id = |path: &PathBuf| {
        let [_, id] = info::<OBJECT_WORDS>(path).map_err(PinError::new("read", path))?;
        Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), id))
    };
    pins::list(folder)?.iter().map(id).collect()
}

impl PinnedObjects {
    /// Reads all pins.
    pub fn read(pins: &Pins) -> Result<Self, PinError> {
        Ok(Self { maps: ids(&pins.maps())?, programs: ids(&pins.programs())?, links: Self::read_links(pins)? })
    }

    /// Reads the links. Pins that go meanwhile are left out.
    pub fn read_links(pins: &Pins) -> Result<BTreeMap<(LinkKind, u32), PinnedLinkInfo>, PinError> {
        let link = |(kind, at)| {
            let path = pins.link(kind, at);
            match info::<LINK_WORDS>(&path) {
                Ok([_, id, program, _, ifindex]) => Some(Ok(((kind, at), PinnedLinkInfo { id, program, ifindex }))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => Some(Err(PinError::new("read", &path)(error))),
            }
        };
        pins.pinned_links()?.into_iter().filter_map(link).collect()
    }

    /// Reads the id of a pinned link.
    pub fn link_id(pins: &Pins, kind: LinkKind, ifindex: u32) -> io::Result<u32> {
        let [_, id] = info::<OBJECT_WORDS>(&pins.link(kind, ifindex))?;
        Ok(id)
    }

    /// Pins a map again, and replaces whatever has its place. Programs or an agent must still hold
    /// the map.
    pub fn restore_map(pins: &Pins, name: &str, id: u32) -> Result<(), PinError> {
        let path = pins.map(name);
        pins::remove(&path)?;
        let map = MapData::from_id(id).map_err(io::Error::other);
        let pinned = map.and_then(|map| map.pin(&path).map_err(io::Error::other));
        pinned.map_err(PinError::new("pin again", &path))
    }

    /// Returns whether all maps are pinned, with the same ids as in `other`.
    pub fn has_maps_of(&self, other: &Self) -> bool {
        Maps::NAMES.iter().all(|name| self.maps.get(*name).is_some_and(|id| other.maps.get(*name) == Some(id)))
    }
}
