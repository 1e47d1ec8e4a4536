//! Keeps VLAN tags in frames: a driver must not take them out (`rx-vlan-offload`).
//!
//! Without its tag, a frame of any VLAN looks untagged. Network managers and `ethtool -K` may turn the
//! offload on at any time, so the agent turns it off again, within a budget. To change it takes some
//! cards down for a moment, and another component may insist.

use std::{collections::BTreeSet, time::Instant};

use vipmux_common::abi::INTERFACE_TAGS;

use super::AttachedInterfaces;
use crate::{
    AgentError,
    problems::warnings::Warnings,
    serving::{link_kernel::LinkKernel, repair_budget::RepairBudget},
};
use vipmux_datapath::link::{EthtoolError, Interface, Links};

/// Where others turn `rx-vlan-offload` on.
#[derive(Clone, Debug, Default)]
pub(super) struct TagContests {
    budget: RepairBudget<u32>,
    /// The interfaces whose tags are lost, since others keep turning the offload on.
    lost: BTreeSet<u32>,
    /// The interfaces where the self-check has found it on.
    drifted: BTreeSet<u32>,
}

impl TagContests {
    /// Returns whether the same interfaces lose tags as in `other`.
    pub(super) fn loses_the_same(&self, other: &Self) -> bool {
        self.lost == other.lost
    }
}

impl AttachedInterfaces {
    /// Turns `rx-vlan-offload` off on an interface that gets the program. `needed`: VIPs are announced
    /// in a VLAN.
    pub(super) fn keep_tags(
        &self,
        kernel: &mut LinkKernel,
        receiver: &Interface,
        needed: bool,
    ) -> Result<(), AgentError> {
        if !self.ethtool.strips_tags(&receiver.name)? {
            return Ok(());
        }
        if !needed && !self.ethtool.can_change_tags(&receiver.name)? {
            tracing::warn!(interface = receiver.name, "rx-vlan-offload stays on, frames of all VLANs look untagged");
            return Ok(());
        }
        self.turn_off(kernel, receiver)?;
        tracing::info!(interface = receiver.name, "turned off rx-vlan-offload, programs need VLAN tags");
        Ok(())
    }

    /// Marks the interface first, so that the change is undone for certain.
    fn turn_off(&self, kernel: &mut LinkKernel, receiver: &Interface) -> Result<(), AgentError> {
        let mut entry = kernel.interface(receiver.ifindex);
        entry.flags |= INTERFACE_TAGS;
        kernel.write_interface(receiver.ifindex, entry)?;
        Ok(self.ethtool.strip_tags(&receiver.name, false)?)
    }

    /// Turns `rx-vlan-offload` off again where others have turned it on.
    pub(super) fn defend_tags(
        &mut self,
        kernel: &mut LinkKernel,
        links: &Links,
        warnings: &mut Warnings,
    ) -> Result<(), AgentError> {
        let drifted = std::mem::take(&mut self.tags.drifted);
        let before = std::mem::take(&mut self.tags.lost);
        for receiver in self.cards().iter().filter_map(|receiver| links.get(*receiver)) {
            let ifindex = receiver.ifindex;
            if !links.strips_tags(ifindex) && !drifted.contains(&ifindex) {
                continue;
            }
            match self.defend(kernel, receiver) {
                Ok(true) => {}
                Ok(false) => drop(self.tags.lost.insert(ifindex)),
                Err(error) => warnings.add_error(error)?,
            }
        }
        for (interfaces, message) in [
            (&self.tags.lost - &before, "others keep turning rx-vlan-offload on, giving way for now"),
            (&before - &self.tags.lost, "VLAN tags stay in frames again"),
        ] {
            for interface in interfaces.iter().filter_map(|ifindex| links.get(*ifindex)) {
                tracing::warn!(interface = interface.name, "{message}");
            }
        }
        Ok(())
    }

    /// Returns whether tags stay in the interface's frames, or nothing can be done about it.
    fn defend(&mut self, kernel: &mut LinkKernel, receiver: &Interface) -> Result<bool, AgentError> {
        let name = &receiver.name;
        // The notification may be older than the last repair.
        if !self.ethtool.strips_tags(name)? || !self.ethtool.can_change_tags(name)? {
            return Ok(true);
        }
        if !self.tags.budget.take(receiver.ifindex, Instant::now()) {
            return Ok(false);
        }
        match self.turn_off(kernel, receiver) {
            Err(AgentError::Ethtool(EthtoolError::TagsStripped { .. })) => Ok(false),
            result => {
                tracing::warn!(interface = name, "rx-vlan-offload was turned on, turned it off again");
                result.map(|()| true)
            }
        }
    }

    /// Lets the next reconciliation look at an interface that the self-check found with
    /// `rx-vlan-offload` on.
    pub(crate) fn note_drifted_tags(&mut self, receiver: u32) {
        self.tags.drifted.insert(receiver);
    }

    /// Returns whether the next reconciliation changes anything on an interface with `rx-vlan-offload` on:
    /// a repair is left, or the tags do not count as lost yet.
    pub(crate) fn may_defend_tags(&self, receiver: u32) -> bool {
        self.tags.budget.has(&receiver, Instant::now()) || !self.tags.lost.contains(&receiver)
    }

    /// Returns the interfaces by which frames come in: the ports, or bonds' cards.
    pub(crate) fn cards(&self) -> BTreeSet<u32> {
        self.attached.iter().flat_map(|(port, attached)| attached.port.cards(*port)).collect()
    }

    /// Returns the ports for VIPs in VLANs that get no frames with tags.
    pub(crate) fn lost_tags(&self) -> impl Iterator<Item = u32> {
        let tagged = self.attached.iter().filter(|(_, attached)| attached.port.tagged);
        tagged.map(|(port, _)| *port).filter(|port| self.loses_tags(*port))
    }

    /// Returns whether VLAN tags are taken out of frames at a port, since others insist.
    pub(super) fn loses_tags(&self, port: u32) -> bool {
        let attached = self.attached.get(&port);
        attached.is_some_and(|attached| !attached.port.receivers.is_disjoint(&self.tags.lost))
    }
}
