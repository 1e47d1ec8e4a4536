//! Which neighbours are wanted, what the kernel has of them, and what it is to be asked. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use super::{
    Links, Neighbor, Neighbors,
    neighbors::{Command, Entry},
};

/// Which addresses are to be resolved, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) interfaces: BTreeSet<u32>,
    pub(super) addresses: BTreeSet<IpAddr>,
}

/// The wanted addresses and the kernel's entries for them.
#[derive(Debug, Default)]
pub(super) struct Book {
    places: BTreeMap<IpAddr, Place>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Local {
        ifindex: u32,
    },
    /// `silent`: the kernel gave up on it, and has heard nothing of it since.
    OnLink {
        ifindex: u32,
        entry: Option<Entry>,
        asked: bool,
        silent: bool,
    },
    OffLink,
}

impl Place {
    fn of(address: IpAddr, links: &Links, interfaces: &BTreeSet<u32>) -> Self {
        let own = links.iter().find(|link| link.addresses.iter().any(|&(own, _)| own == address));
        match (own, links.on_link(address, interfaces)) {
            (Some(link), _) => Self::Local { ifindex: link.ifindex },
            (None, Some(ifindex)) => Self::OnLink { ifindex, entry: None, asked: false, silent: false },
            (None, None) => Self::OffLink,
        }
    }

    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local { ifindex: a }, Self::Local { ifindex: b })
            | (Self::OnLink { ifindex: a, .. }, Self::OnLink { ifindex: b, .. }) => a == b,
            (Self::OffLink, Self::OffLink) => true,
            _ => false,
        }
    }

    fn leave(self, address: IpAddr) -> Option<Command> {
        match self {
            Self::OnLink { ifindex, entry: Some(entry), .. } if entry.ours => {
                Some(Command::Delete { ifindex, address })
            }
            _ => None,
        }
    }

    fn neighbor(&self) -> Neighbor {
        match *self {
            Self::Local { ifindex } => Neighbor::Local { ifindex },
            Self::OnLink { ifindex, entry, silent, .. } => match entry.as_ref().and_then(Entry::valid) {
                Some(mac) => Neighbor::Resolved { ifindex, mac, port: None },
                None if silent => Neighbor::Unresolved { ifindex },
                None => Neighbor::Pending { ifindex },
            },
            Self::OffLink => Neighbor::OffLink,
        }
    }
}

impl Book {
    /// Takes in what is wanted and where the interfaces are; gives back what to do about addresses that moved or are
    /// no longer wanted. New ones have no entry until one is [observed](Self::observe).
    pub(super) fn place(&mut self, wanted: &Wanted, links: &Links) -> Vec<Command> {
        let mut before = mem::take(&mut self.places);
        let mut commands = Vec::new();
        for &address in &wanted.addresses {
            let place = Place::of(address, links, &wanted.interfaces);
            let place = match before.remove(&address) {
                Some(known) if known.same(&place) => known,
                Some(known) => {
                    commands.extend(known.leave(address));
                    place
                }
                None => place,
            };
            self.places.insert(address, place);
        }
        commands.extend(before.into_iter().filter_map(|(address, place)| place.leave(address)));
        commands
    }

    /// Takes in an entry, or that it is gone; whether how the address is reached changed.
    pub(super) fn observe(&mut self, ifindex: u32, address: IpAddr, seen: Option<Entry>) -> bool {
        let Some(place) = self.places.get_mut(&address) else { return false };
        let before = place.neighbor();
        if let Place::OnLink { ifindex: own, entry, asked, silent } = place
            && *own == ifindex
        {
            *silent = seen.is_some_and(|seen| seen.has_failed() || *silent && seen.valid().is_none());
            *entry = seen;
            *asked &= seen.is_some();
        }
        place.neighbor() != before
    }

    /// Whether an address has no entry yet that was read or asked for.
    pub(super) fn is_incomplete(&self) -> bool {
        self.places.values().any(|place| matches!(place, Place::OnLink { entry: None, asked: false, .. }))
    }

    /// Forgets all entries, before they are read anew.
    pub(super) fn forget(&mut self) {
        for place in self.places.values_mut() {
            if let Place::OnLink { entry, asked, .. } = place {
                (*entry, *asked) = (None, false);
            }
        }
    }

    /// What the kernel is to be asked now, so that every address gets resolved and stays so.
    pub(super) fn care(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        for (&address, place) in &mut self.places {
            if let Some(command) = place.neglected(address)
                && let Place::OnLink { asked, .. } = place
            {
                *asked = true;
                commands.push(command);
            }
        }
        commands
    }

    /// What the kernel is to be asked when a cable may have been plugged in: to try again now all that did not answer.
    pub(super) fn hurry(&self) -> Vec<Command> {
        let silent = |(&address, place): (&IpAddr, &Place)| match *place {
            Place::OnLink { ifindex, entry: Some(entry), .. } if entry.valid().is_none() => {
                Some(Command::Keep { ifindex, address })
            }
            _ => None,
        };
        self.places.iter().filter_map(silent).collect()
    }

    /// Whether [`Self::care`] has something.
    pub(super) fn needs_care(&self) -> bool {
        self.places.iter().any(|(&address, place)| place.neglected(address).is_some())
    }

    /// What to do about all, at the end.
    pub(super) fn leave(&mut self) -> Vec<Command> {
        mem::take(&mut self.places).into_iter().filter_map(|(address, place)| place.leave(address)).collect()
    }

    pub(super) fn neighbors(&self) -> Neighbors {
        self.places.iter().map(|(&address, place)| (address, place.neighbor())).collect()
    }
}

impl Place {
    fn neglected(&self, address: IpAddr) -> Option<Command> {
        let Self::OnLink { ifindex, entry, asked, .. } = *self else { return None };
        let careless = |entry: Entry| entry.managed || entry.is_static() || (asked && entry.is_fresh());
        let command = Command::Keep { ifindex, address };
        (!entry.is_some_and(careless)).then_some(command)
    }
}

#[cfg(test)]
mod tests;
