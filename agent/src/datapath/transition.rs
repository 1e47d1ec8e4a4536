//! From the maps of an earlier agent to those of this one, where they are made otherwise: another layout, or another
//! size. Nothing that the programs know is lost, and no packet meets a program without its maps.
//!
//! ```text
//! maps/       programs of the earlier agent, attached
//! maps-next/  what is alike is pinned here too; the rest is made anew and filled from what it was
//! rename      maps -> maps-old, maps-next -> maps: from here on a restart goes on where this ended
//! links       each gets the new program, in place; the classifiers' old links stay beside the new ones
//! maps-old/   what its programs wrote meanwhile is carried over; then it goes, and so do those links
//! ```
//!
//! Layouts of one family ([`abi::COMPATIBLE`]) only add to each other, so carrying over needs to know none of them:
//! values are cut or filled up at their ends. Ids, indices and generations stay what they are, and so do flows.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use vipmux_common::abi::{self, ABI_VERSION};

use super::{
    OBJECT,
    apply::new_config,
    load::LoadError,
    maps::{
        Maps, MapsError,
        raw::{Layout, RawEntries, RawMap, Write},
        version,
    },
    pins::{self, PinError, Pins},
};

const CONFIG: &str = "CONFIG";

/// What is to be done about the maps that are pinned.
#[derive(Debug, Default)]
pub(super) struct Transition {
    /// Maps that are made anew, of those that were there.
    changed: Vec<&'static str>,
    /// New maps are made in a folder of their own.
    anew: bool,
    /// Maps that an earlier agent was leaving are still there.
    unfinished: bool,
    /// What was carried over first.
    carried: BTreeMap<&'static str, RawEntries>,
}

impl Transition {
    /// Compares the pinned maps with those of the BPF object, whose flow tables are to have `flows` entries.
    pub(super) fn begin(pins: &Pins, flows: u32) -> Result<Self, LoadError> {
        let mut transition = Self { unfinished: recover(pins)?, ..Self::default() };
        let found = match version(pins) {
            Ok(found) => found,
            Err(error @ MapsError::NoPermission { .. }) => return Err(error.into()),
            // The first start, or one that ended in the middle of it.
            Err(_) => return Ok(transition),
        };
        transition.changed = changed(pins, flows)?;
        if found == ABI_VERSION && transition.changed.is_empty() {
            return Ok(transition);
        }
        if transition.unfinished {
            // Its agent changed in the middle, too. Carried over as far as it goes; then there is room for the next.
            transition.carry_again(pins)?;
            pins::remove_folder(&pins.old_maps())?;
            transition.unfinished = false;
        }
        if found != 0 && !abi::COMPATIBLE.contains(&found) {
            tracing::warn!(
                found,
                expected = ABI_VERSION,
                "the pinned maps are of another family: starting with new ones"
            );
        }
        if !abi::COMPATIBLE.contains(&found) {
            pins::remove_folder(&pins.maps())?;
            return Ok(Self::default());
        }
        tracing::info!(found, expected = ABI_VERSION, maps = ?transition.changed, "carrying the maps over to new ones");
        transition.anew = true;
        transition.share(pins)?;
        Ok(transition)
    }

    /// Where the maps are, or are to be made.
    pub(super) fn folder(&self, pins: &Pins) -> PathBuf {
        if self.anew { pins.next_maps() } else { pins.maps() }
    }

    /// Pins what is alike in the new folder too; but for [`Maps::CALLING`], which go with their programs.
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

    /// Fills the new maps, and puts them in the place of the old ones.
    pub(super) fn fill(&mut self, pins: &Pins) -> Result<(), LoadError> {
        if !self.anew {
            return Ok(());
        }
        let (maps, next) = (pins.maps(), pins.next_maps());
        for name in &self.changed {
            let (old, new) = (RawMap::open(&maps, name)?, RawMap::open(&next, name)?);
            if let Some(rest) = rest(&old, &new) {
                let entries = old.entries()?;
                // A slot had an element of its own in version 3.
                let single = *name == "TABLES" && old.layout().value_size as usize == size_of::<u32>();
                let entries = if single { entries.paired() } else { entries.resized(&rest) };
                let refused = new.write(&entries)?;
                if refused > 0 {
                    tracing::warn!(map = name, refused, "entries found no room");
                }
                if old.layout().is_hash() {
                    self.carried.insert(name, entries);
                }
            }
        }
        carry_config(&maps, &next)?;
        rename(&maps, &pins.old_maps())?;
        rename(&next, &maps)?;
        self.unfinished = true;
        Ok(())
    }

    /// Carries over what the old programs wrote until `swap` took them off, and removes their maps. What `swap` gives back
    /// is needed until then.
    pub(super) fn finish<T>(mut self, pins: &Pins, swap: impl FnOnce() -> T) -> Result<(), LoadError> {
        if self.unfinished {
            let relieved = swap();
            wait_for_packets_in_flight();
            self.carry_again(pins)?;
            drop(relieved);
            pins::remove_folder(&pins.old_maps())?;
            tracing::info!("the maps were carried over");
        }
        Ok(())
    }

    /// Writes what the old programs changed since it was carried over first, unless the new ones have changed it since.
    fn carry_again(&mut self, pins: &Pins) -> Result<(), LoadError> {
        let (maps, old) = (pins.maps(), pins.old_maps());
        for name in Maps::NAMES {
            let (from, to) = match (RawMap::open(&old, name), RawMap::open(&maps, name)) {
                (Ok(from), Ok(to)) => (from, to),
                (Err(error @ MapsError::NoPermission { .. }), _) => return Err(error.into()),
                // A map that came with this layout, or went.
                _ => continue,
            };
            if !from.layout().is_hash() || from.id() == to.id() {
                continue;
            }
            let Some(rest) = rest(&from, &to) else { continue };
            let first = self.carried.remove(name).unwrap_or_default();
            carry_changes(&first, &from.entries()?.resized(&rest), &to)?;
        }
        Ok(())
    }
}

/// `first` was written to the map, `now` is what should be there of the old programs' doing.
fn carry_changes(first: &RawEntries, now: &RawEntries, map: &RawMap) -> Result<(), MapsError> {
    let mut before: HashMap<&[u8], &[u8]> = first.iter().collect();
    for (key, value) in now.iter() {
        match before.remove(key) {
            None => drop(map.put(key, value, Write::New)?),
            Some(written) if written == value => {}
            Some(written) => {
                if map.get(key)?.as_deref() == Some(written) {
                    map.put(key, value, Write::Existing)?;
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

/// What values that come from the old map end with; `None` if its entries mean nothing in the new one.
fn rest(old: &RawMap, new: &RawMap) -> Option<Vec<u8>> {
    let (from, to) = (old.layout(), new.layout());
    (from.kind == to.kind && from.key_size == to.key_size).then(|| vec![0; to.value_size as usize])
}

/// `CONFIG` ends with defaults rather than with zeros, and begins with the version.
fn carry_config(maps: &Path, next: &Path) -> Result<(), LoadError> {
    let (old, new) = (RawMap::open(maps, CONFIG)?, RawMap::open(next, CONFIG)?);
    Maps::write_config(next, &new_config())?;
    let mut entries = old.entries()?;
    if let Some((_, defaults)) = new.entries()?.iter().next() {
        entries = entries.resized(defaults);
    }
    entries.edit(|value| value[..4].copy_from_slice(&ABI_VERSION.to_ne_bytes()));
    new.write(&entries)?;
    Ok(())
}

/// The maps that are pinned and made otherwise than the object wants them; `CONFIG` is none of them.
fn changed(pins: &Pins, flows: u32) -> Result<Vec<&'static str>, LoadError> {
    let object = aya_obj::Object::parse(OBJECT).map_err(LoadError::Parse)?;
    let mut changed = Vec::new();
    for name in Maps::NAMES.iter().copied().filter(|name| *name != CONFIG) {
        let Some(wanted) = object.maps.get(name) else { continue };
        let mut wanted = Layout::from(wanted);
        if super::load::FLOW_TABLES.contains(&name) {
            wanted.max_entries = flows;
        }
        if exists(&pins.map(name))? && Layout::of_pin(&pins.map(name))? != wanted {
            changed.push(name);
        }
    }
    Ok(changed)
}

/// Puts the folders right after an agent that ended in the middle of a transition; whether it had got to the swapping of
/// links.
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
    Ok(path.try_exists().map_err(PinError::new("look at", path))?)
}

fn rename(from: &Path, to: &Path) -> Result<(), PinError> {
    fs::rename(from, to).map_err(PinError::new("rename", from))
}

/// Programs run inside RCU's read side, whose end membarrier(2) waits for. Where the kernel refuses (`nohz_full`), the
/// reading of the maps has to take longer than a packet.
fn wait_for_packets_in_flight() {
    const GLOBAL: libc::c_int = 1;
    // SAFETY: plain integers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
}

#[cfg(test)]
mod tests;
