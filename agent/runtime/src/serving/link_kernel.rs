//! The programs, and the interfaces that they are attached to.
//!
//! Whoever attaches a program, asks for its link or changes a card's settings waits for the kernel's lock of
//! all interfaces (RTNL). A driver that resets its card holds that for seconds. So all of this is in the
//! hands of an [`AttachTask`](super::attach_task::AttachTask), and not of the event loop.

use std::collections::{BTreeMap, BTreeSet};

use vipmux_common::abi::{self, INTERFACE_TAGS};

use super::kernel_error::KernelError;
use vipmux_datapath::bpf::{
    maps::{Maps, MapsError},
    pinned::PinnedObjects,
    pins::{LinkKind, Pins},
    programs::Programs,
};

/// The programs of this node, their links, and `INTERFACES`.
pub(crate) struct LinkKernel {
    pub(crate) programs: Programs,
    /// Opened once more, for another thread than the event loop's. It writes `INTERFACES` alone.
    maps: Maps,
    /// `INTERFACES`, as last written.
    interfaces: BTreeMap<u32, abi::Interface>,
    /// The pinned objects at the start; the links, as they were attached last.
    pinned: PinnedObjects,
    /// The interfaces with programs attached, from the last read of the links.
    linked: BTreeSet<(LinkKind, u32)>,
    pins: Pins,
    writes: u64,
}

impl LinkKernel {
    /// Reads what an earlier agent may have attached.
    pub(crate) fn read(programs: Programs, pins: Pins) -> Result<Self, KernelError> {
        let (maps, pinned) = (Maps::open(pins.root())?, PinnedObjects::read(&pins)?);
        let interfaces = maps.read_interfaces()?;
        Ok(Self { programs, maps, interfaces, pinned, linked: BTreeSet::new(), pins, writes: 0 })
    }

    /// Writes an entry of `INTERFACES`; all zero: the interface is not ours any more.
    pub(crate) fn write_interface(&mut self, ifindex: u32, value: abi::Interface) -> Result<(), MapsError> {
        self.writes += 1;
        self.maps.set_interface(ifindex, value)?;
        if value == abi::Interface::default() {
            self.interfaces.remove(&ifindex);
        } else {
            self.interfaces.insert(ifindex, value);
        }
        Ok(())
    }

    /// Returns `INTERFACES`, as last written.
    pub(crate) fn interfaces(&self) -> &BTreeMap<u32, abi::Interface> {
        &self.interfaces
    }

    /// Returns an entry of `INTERFACES`; all zero if there is none.
    pub(crate) fn interface(&self, ifindex: u32) -> abi::Interface {
        self.interfaces().get(&ifindex).copied().unwrap_or_default()
    }

    /// Returns the interfaces that this agent or an earlier one changed.
    pub(crate) fn touched(&self) -> BTreeSet<u32> {
        let linked = self.pinned.links.keys().map(|(_, ifindex)| ifindex);
        self.interfaces().keys().chain(linked).copied().collect()
    }

    /// Returns whether an interface has nothing but the egress program.
    pub(crate) fn is_outlet_alone(&self, ifindex: u32) -> bool {
        let abi::Interface { bit, flags, .. } = self.interface(ifindex);
        let has = |kind| self.pinned.links.contains_key(&(kind, ifindex));
        bit == 0 && flags & INTERFACE_TAGS == 0 && !has(LinkKind::Xdp) && !has(LinkKind::Ingress)
    }

    /// Returns the number of writes to `INTERFACES`, and of changes of the links.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    /// Returns the pinned objects.
    pub(crate) fn pinned(&self) -> &PinnedObjects {
        &self.pinned
    }

    /// Pins a map again.
    pub(crate) fn restore_map(&self, name: &str, id: u32) -> Result<(), KernelError> {
        Ok(PinnedObjects::restore_map(&self.pins, name, id)?)
    }

    /// Reads the pinned links, which are now as desired.
    pub(crate) fn note_links(&mut self) -> Result<(), KernelError> {
        self.writes += 1;
        self.pinned.links = PinnedObjects::read_links(&self.pins)?;
        Ok(())
    }

    /// Reads the pinned links, if the programs are attached elsewhere than at the last call.
    pub(crate) fn note_linked(&mut self, linked: BTreeSet<(LinkKind, u32)>) -> Result<(), KernelError> {
        if linked == self.linked {
            return Ok(());
        }
        self.linked = linked;
        self.note_links()
    }

    /// Lets the next [`Self::note_linked`] read the links: one of them is another one now.
    pub(crate) fn forget_links(&mut self) {
        self.linked.clear();
    }

    /// Returns whether the pins' folders are still there. If not, another process removes vipmux from the
    /// kernel.
    pub(crate) fn has_pins(&self) -> bool {
        self.programs.has_pins()
    }

    /// Returns the interfaces that programs were detached from, by others than this agent.
    pub(crate) fn detached(&self) -> Result<BTreeSet<u32>, KernelError> {
        let found = PinnedObjects::read_links(&self.pins)?;
        let lost = self.pinned.links.iter().filter(|(place, link)| found.get(place) != Some(link));
        Ok(lost.map(|((_, ifindex), _)| *ifindex).collect())
    }
}
