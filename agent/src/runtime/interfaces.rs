//! The interfaces that VIPs are announced on: attaching the programs, and following carriers and MACs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use vipmux_common::abi::{self, INTERFACE_GENERIC, Mac};

use super::{Agent, AgentError, KernelError, MOST_INTERFACES, settle::Settled};
use crate::{
    link::{Interface, Links},
    model::Vip,
};

/// An interface with the programs attached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attached {
    pub(super) bit: u32,
    pub(super) mac: Mac,
    carrier: bool,
}

impl Agent {
    /// Attaches the programs where they are not yet, and follows carriers and MACs. Once the agent is ready, an interface
    /// that cannot be used is told and stops nothing.
    pub(super) fn attach(
        &mut self,
        links: &Links,
        settled: &Settled,
        complaints: &mut BTreeSet<String>,
    ) -> Result<(), AgentError> {
        self.forget_gone(links)?;
        let wanted = match self.wanted(links, settled) {
            Err(error) if self.ready => {
                complaints.insert(format!("{:#}", anyhow::Error::from(error)));
                Vec::new()
            }
            wanted => wanted?,
        };
        for interface in wanted {
            match self.attach_to(interface) {
                Err(error) if self.ready => {
                    complaints.insert(format!("{:#}", anyhow::Error::from(error)));
                }
                result => result?,
            }
        }
        self.kernel.carrier = self.attached.keys().filter_map(|ifindex| links.get(*ifindex)).any(|link| link.carrier);
        if self.attached.is_empty() {
            let node = &self.options.node;
            complaints.insert(format!("there is no interface to announce on yet: Node {node} shows no InternalIP"));
        }
        Ok(())
    }

    /// Gives up interfaces that are gone, and with them their bits. At the start also those that went while no agent ran.
    fn forget_gone(&mut self, links: &Links) -> Result<(), AgentError> {
        let mut known: BTreeSet<u32> = self.attached.keys().copied().collect();
        if !self.ready {
            known.extend(self.kernel.maps.read_interfaces()?.into_keys());
        }
        for ifindex in known.into_iter().filter(|ifindex| links.get(*ifindex).is_none()) {
            self.attached.remove(&ifindex);
            self.announcer.removed(ifindex);
            self.kernel.maps.write_interface(ifindex, abi::Interface::default())?;
            self.kernel.programs.forget(ifindex).map_err(KernelError::from)?;
            tracing::warn!(ifindex, "an interface that VIPs are announced on is gone");
        }
        Ok(())
    }

    fn attach_to(&mut self, interface: &Interface) -> Result<(), AgentError> {
        let Some(mac) = interface.mac else { return Ok(()) };
        let (name, ifindex, carrier) = (&interface.name, interface.ifindex, interface.carrier);
        let before = self.attached.get(&ifindex).copied();
        if before.is_some_and(|before| before.mac == mac) {
            if let Some(attached) = self.attached.get_mut(&ifindex) {
                attached.carrier = carrier;
            }
            if carrier && before.is_some_and(|before| !before.carrier) {
                self.announcer.again(ifindex, Instant::now());
            }
            return Ok(());
        }
        let known = self.kernel.maps.read_interfaces()?;
        let pinned = known.get(&ifindex);
        let Some(bit) = pinned.map(|known| known.bit).or_else(|| self.free_bit(&known)) else {
            return Err(AgentError::TooManyInterfaces(known.len() + 1));
        };
        let generic = pinned.map(|known| known.flags & INTERFACE_GENERIC != 0);
        let generic =
            self.kernel.programs.attach(name, ifindex, self.options.mode, generic).map_err(KernelError::from)?;
        let flags = if generic { INTERFACE_GENERIC } else { 0 };
        self.kernel.maps.write_interface(ifindex, abi::Interface { mac, bit, flags })?;
        self.attached.insert(ifindex, Attached { bit, mac, carrier });
        self.changed = true;
        tracing::info!(interface = name, %mac, mode = if generic { "generic" } else { "native" }, "attached");
        Ok(())
    }

    /// The interfaces to announce on. One that was named must be there at the start, and may come back later.
    fn wanted<'a>(&self, links: &'a Links, settled: &Settled) -> Result<Vec<&'a Interface>, AgentError> {
        let wanted = if self.options.interfaces.is_empty() {
            let addresses = settled.nodes.get(&self.options.node).map(Vec::as_slice).unwrap_or_default();
            if addresses.is_empty() {
                return Ok(Vec::new());
            }
            match links.holding(addresses) {
                Ok(found) => found,
                Err(_) if self.ready => Vec::new(),
                Err(error) => return Err(error.into()),
            }
        } else {
            self.options.interfaces.iter().filter_map(|name| links.named(name).ok()).collect()
        };
        if wanted.len() > MOST_INTERFACES { Err(AgentError::TooManyInterfaces(wanted.len())) } else { Ok(wanted) }
    }

    fn free_bit(&self, known: &BTreeMap<u32, abi::Interface>) -> Option<u32> {
        let mut used = known.values().fold(0, |bits, interface| bits | interface.bit);
        used |= self.attached.values().fold(0, |bits, attached| bits | attached.bit);
        (0..u32::BITS).map(|place| 1 << place).find(|bit| used & bit == 0)
    }

    /// The interfaces whose subnet holds the VIP; all of them where none does.
    pub(super) fn interfaces(&self, links: &Links, vip: Vip) -> u32 {
        let holds = |ifindex: u32| links.get(ifindex).is_some_and(|interface| interface.subnet(vip.0).is_some());
        let bits = |(_, attached): (&u32, &Attached)| attached.bit;
        let holding = self.attached.iter().filter(|(ifindex, _)| holds(**ifindex)).map(bits).fold(0, |a, b| a | b);
        if holding == 0 { self.attached.iter().map(bits).fold(0, |a, b| a | b) } else { holding }
    }
}
