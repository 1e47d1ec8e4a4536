//! Replaces the maps of an earlier agent by maps of another layout or size, without losing state.
//!
//! All flows stay known, and every packet meets a program that has its maps.
//!
//! ```text
//! maps/       the earlier agent's programs, attached
//! maps-next/  equal maps are pinned here too; other maps are made and filled from the old ones
//! rename      maps -> maps-old, maps-next -> maps; after a restart, the agent continues from here
//! links       each gets the new program; old links of classifiers stay beside the new ones
//! maps-old/   later writes of the old programs are copied; then it goes, with the old links
//! ```
//!
//! Layouts of one family ([`abi::COMPATIBLE`]) only add fields to each other. So the copy needs no
//! knowledge of them: it cuts or extends values at their ends. Ids, indices and generations stay the
//! same. Flows get their places in the new table.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    mem::offset_of,
    path::{Path, PathBuf},
};

use aya::{
    EbpfError,
    maps::{Array, Map},
};
use vipmux_common::abi::{self, ABI_VERSION, Config, FlowSecret, FlowSet};

use super::{
    OBJECT,
    apply::{new_config, new_secret},
    flow_table::{self, FLOWS, FlowTableHandle},
    maps::{
        Maps, MapsError, element, name_in_object, open,
        raw::{Layout, RawEntries, RawMap, UpdateFlag},
        version,
    },
    object::sizes,
    pins::{self, PinError, Pins},
    programs::LoadError,
};

const CONFIG: &str = "CONFIG";

/// The changes that the pinned maps need.
#[derive(Debug, Default)]
pub(super) struct Transition {
    /// Pinned maps that get another layout or size.
    changed: Vec<&'static str>,
    /// New maps are made in their own folder.
    needed: bool,
    /// An earlier transition did not end: its old maps still exist.
    unfinished: bool,
    /// The entries of the first copy.
    copied: BTreeMap<&'static str, RawEntries>,
}

impl Transition {
    /// Compares the pinned maps with those of the BPF object. `flows`: the desired number of flows
    /// that the flow table has room for.
    pub(super) fn begin(pins: &Pins, flows: u32) -> Result<Self, LoadError> {
        let mut transition = Self { unfinished: recover(pins)?, ..Self::default() };
        let found = match version(pins) {
            Ok(found) => found,
            Err(error @ MapsError::NoPermission { .. }) => return Err(error.into()),
            // The first start, or one after an interrupted first start.
            Err(_) => return Ok(transition),
        };
        transition.changed = changed(pins, flows)?;
        if found == ABI_VERSION && transition.changed.is_empty() {
            return Ok(transition);
        }
        if transition.unfinished {
            // The layout changed again before the earlier transition ended. Finish its copy first.
            transition.copy_again(pins)?;
            pins::remove_folder(&pins.old_maps())?;
            transition.unfinished = false;
        }
        if found != 0 && !abi::COMPATIBLE.contains(&found) {
            tracing::warn!(found, expected = ABI_VERSION, "pinned maps are incompatible, starting with new ones");
        }
        if !abi::COMPATIBLE.contains(&found) {
            pins::remove_folder(&pins.maps())?;
            return Ok(Self::default());
        }
        tracing::info!(found, expected = ABI_VERSION, maps = ?transition.changed, "carrying maps over to new ones");
        transition.needed = true;
        transition.share(pins)?;
        Ok(transition)
    }

    /// Returns the folder of the maps, or the one in which to make them.
    pub(super) fn folder(&self, pins: &Pins) -> PathBuf {
        if self.needed { pins.next_maps() } else { pins.maps() }
    }

    /// Pins unchanged maps in the new folder too, except [`Maps::CALLING`], which belong to their
    /// programs.
    fn share(&self, pins: &Pins) -> Result<(), LoadError> {
        let next = pins.next_maps();
        fs::create_dir_all(&next).map_err(PinError::new("make", &next))?;
        for name in Maps::NAMES.iter().filter(|name| **name != CONFIG && !self.changed.contains(name)) {
            if exists(&pins.map(name))? {
                RawMap::open(&pins.maps(), name)?.pin(&next.join(name))?;
            }
        }
        Ok(())
    }

    /// Fills the new maps, and makes them the current ones.
    pub(super) fn fill(&mut self, pins: &Pins) -> Result<(), LoadError> {
        if !self.needed {
            return Ok(());
        }
        let (maps, next) = (pins.maps(), pins.next_maps());
        copy_config(&maps, &next)?;
        for name in &self.changed {
            if *name == FLOWS {
                carry_flows(&maps, &next)?;
                continue;
            }
            let (old, new) = (RawMap::open(&maps, name)?, RawMap::open(&next, name)?);
            if let Some(rest) = rest(&old, &new) {
                let entries = old.entries()?.resized(&rest);
                let refused = new.write(&entries)?;
                if refused > 0 {
                    tracing::warn!(map = name, refused, "map has no room for some entries");
                }
                if old.layout().is_hash() {
                    self.copied.insert(name, entries);
                }
            }
        }
        rename(&maps, &pins.old_maps())?;
        rename(&next, &maps)?;
        self.unfinished = true;
        Ok(())
    }

    /// Calls `swap`, which replaces the old programs. Then copies what these wrote meanwhile, and
    /// removes their maps. The result of `swap` is kept until then.
    pub(super) fn finish<T>(mut self, pins: &Pins, swap: impl FnOnce() -> T) -> Result<(), LoadError> {
        if self.unfinished {
            let old_links = swap();
            wait_for_packets_in_flight();
            self.copy_again(pins)?;
            drop(old_links);
            pins::remove_folder(&pins.old_maps())?;
            tracing::info!("maps were carried over");
        }
        Ok(())
    }

    /// Copies what the old programs changed since the first copy, unless the new programs have
    /// changed it since.
    fn copy_again(&mut self, pins: &Pins) -> Result<(), LoadError> {
        let (maps, old) = (pins.maps(), pins.old_maps());
        for name in Maps::NAMES {
            let (from, to) = match (RawMap::open(&old, name), RawMap::open(&maps, name)) {
                (Ok(from), Ok(to)) => (from, to),
                (Err(error @ MapsError::NoPermission { .. }), _) => return Err(error.into()),
                // A map that only one of the layouts has.
                _ => continue,
            };
            if from.id() == to.id() {
                continue;
            }
            if *name == FLOWS {
                carry_flows(&old, &maps)?;
                continue;
            }
            if !from.layout().is_hash() {
                continue;
            }
            let Some(rest) = rest(&from, &to) else { continue };
            let first = self.copied.remove(name).unwrap_or_default();
            copy_changes(&first, &from.entries()?.resized(&rest), &to)?;
        }
        Ok(())
    }
}

/// Adds the flows of the maps in one folder to the table in another one. A flow that the table has
/// already gets the newer record.
fn carry_flows(from: &Path, to: &Path) -> Result<(), LoadError> {
    let layout = Layout::of_pin(&from.join(FLOWS))?;
    if layout.value_size as usize != size_of::<FlowSet>() || flow_table::mask(layout.max_entries).is_none() {
        // A table of a later agent.
        return Ok(());
    }
    let old = flow_table_handle(from)?.map().map_err(read_error)?;
    let new = flow_table_handle(to)?.map_writable().map_err(read_error)?;
    let refused = old.records().filter(|record| !new.add(*record)).count();
    if refused > 0 {
        tracing::warn!(map = FLOWS, refused, "map has no room for some entries");
    }
    Ok(())
}

/// Opens the flow table in a folder.
fn flow_table_handle(folder: &Path) -> Result<FlowTableHandle, MapsError> {
    let path = folder.join(FLOWS);
    let map = Map::from_map_data(open(&path)?).and_then(Array::<_, FlowSet>::try_from);
    let map = map.map_err(|source| MapsError::Open { path, source })?;
    let config = element(folder, CONFIG)?;
    let (words, _) = config.get(offset_of!(Config, flow_secret)..).unwrap_or_default().as_chunks();
    let word = |index: usize| words.get(index).map_or(0, |word| u64::from_ne_bytes(*word));
    let secret = FlowSecret { sum: word(0), client: [1, 2, 3, 4].map(word), port: word(5) };
    FlowTableHandle::new(&map, secret).map_err(read_error)
}

fn read_error(error: io::Error) -> MapsError {
    MapsError::Read { map: FLOWS, source: error.into() }
}

/// Writes the differences between `first`, the first copy, and `now`, the current entries of the
/// old programs.
fn copy_changes(first: &RawEntries, now: &RawEntries, map: &RawMap) -> Result<(), MapsError> {
    let mut before: HashMap<&[u8], &[u8]> = first.iter().collect();
    for (key, value) in now.iter() {
        match before.remove(key) {
            None => drop(map.put(key, value, UpdateFlag::New)?),
            Some(written) if written == value => {}
            Some(written) => {
                if map.get(key)?.as_deref() == Some(written) {
                    map.put(key, value, UpdateFlag::Existing)?;
                }
            }
        }
    }
    for (key, written) in before {
        if map.get(key)?.as_deref() == Some(written) {
            map.remove(key)?;
        }
    }
    Ok(())
}

/// Returns the value with which shorter old values are extended. `None`: the new map cannot hold
/// the old entries.
fn rest(old: &RawMap, new: &RawMap) -> Option<Vec<u8>> {
    let (from, to) = (old.layout(), new.layout());
    (from.kind == to.kind && from.key_size == to.key_size).then(|| vec![0; to.value_size as usize])
}

/// Copies `CONFIG`. It begins with the version, and its new fields get defaults rather than zeros.
fn copy_config(maps: &Path, next: &Path) -> Result<(), LoadError> {
    let (old, new) = (RawMap::open(maps, CONFIG)?, RawMap::open(next, CONFIG)?);
    Maps::write_config(next, &Config { flow_secret: new_secret()?, ..new_config() })?;
    let mut entries = old.entries()?;
    if let Some((_, defaults)) = new.entries()?.iter().next() {
        entries = entries.resized(defaults);
    }
    let mask = flow_table::mask(Layout::of_pin(&next.join(FLOWS))?.max_entries).unwrap_or(0);
    entries.edit(|value| {
        value[..4].copy_from_slice(&ABI_VERSION.to_ne_bytes());
        let at = offset_of!(Config, flow_mask);
        value[at..at + 4].copy_from_slice(&mask.to_ne_bytes());
    });
    new.write(&entries)?;
    Ok(())
}

/// Returns the pinned maps whose layout or size differs from the object's, except `CONFIG`.
fn changed(pins: &Pins, flows: u32) -> Result<Vec<&'static str>, LoadError> {
    let object = aya_obj::Object::parse(OBJECT).map_err(EbpfError::from)?;
    let mut changed = Vec::new();
    for name in Maps::NAMES.iter().copied().filter(|name| *name != CONFIG) {
        let Some(wanted) = object.maps.get(name_in_object(name)) else { continue };
        let mut wanted = Layout::from(wanted);
        if let Some((_, entries)) = sizes(flows).find(|(sized, _)| *sized == name) {
            wanted.max_entries = entries;
        }
        if exists(&pins.map(name))? && Layout::of_pin(&pins.map(name))? != wanted {
            changed.push(name);
        }
    }
    Ok(changed)
}

/// Repairs the folders after an interrupted transition. Returns whether it had reached the
/// replacement of links.
fn recover(pins: &Pins) -> Result<bool, LoadError> {
    let (maps, next, old) = (pins.maps(), pins.next_maps(), pins.old_maps());
    let renamed = exists(&old)?;
    if renamed && !exists(&maps)? {
        let from = if exists(&next)? { &next } else { &old };
        rename(from, &maps)?;
    }
    pins::remove_folder(&next)?;
    exists(&old)
}

fn exists(path: &Path) -> Result<bool, LoadError> {
    Ok(path.try_exists().map_err(PinError::new("read", path))?)
}

fn rename(from: &Path, to: &Path) -> Result<(), PinError> {
    fs::rename(from, to).map_err(PinError::new("rename", from))
}

/// Waits until running programs have ended: they run in RCU read-side sections, and membarrier(2)
/// waits for these. Some kernels refuse it (`nohz_full`). There, the reading of the maps takes
/// longer than the handling of a packet.
fn wait_for_packets_in_flight() {
    const GLOBAL: libc::c_int = 1;
    // SAFETY: plain integers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
}

#[cfg(test)]
mod tests;
