//! The data plane as the event loop sees it: the maps, their mirror, and the state machine that owns the leading flags.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nix::{
    errno::Errno,
    time::{ClockId, clock_gettime},
};
use vipmux_common::abi::{self, Address, Config, INTERFACE_TAGS, Stat, VIP_LEADING, VIP_YIELDED};

use crate::{
    announce::heard::Heard,
    datapath::{
        apply::{Unclaimed, new_config},
        load::{self, LoadError, Programs},
        maps::{Maps, MapsError},
        pinned::Pinned,
        pins::{LinkKind, PinError, Pins},
        vip_index::VipIndex,
    },
    election::HEARTBEAT,
    model::{NodeName, PortClaim, ServiceName, Vip},
    plan::{self, Capacities, Desired, Difference, Entries, Observed, PlanError, Step},
};

/// The kernel could not be brought to the desired state.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Programs could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map could not be read or written.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// There is no plan.
    #[error("no plan leads to the desired state")]
    Plan(#[from] PlanError),
    /// What is pinned could not be read or put back.
    #[error(transparent)]
    Pinned(#[from] PinError),
    /// The clock could not be read.
    #[error("cannot read the clock")]
    Clock(#[source] Errno),
}

/// The time since boot, sleep included: what the fence counts in.
pub(super) fn boottime() -> Result<Duration, KernelError> {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).map_err(KernelError::Clock)
}

/// As the maps have it, which is enough for 584 years.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How the maps were brought to what is desired.
pub(super) struct Synced {
    /// What found no room.
    pub(super) refused: Vec<plan::Refusal>,
    /// Claims none of whose endpoints can be reached.
    pub(super) unreachable: Vec<PortClaim>,
    /// Something is left to be removed after [`REST`](plan::REST).
    pub(super) leftovers: bool,
    /// How much was written.
    pub(super) steps: usize,
}

/// See the module.
pub(super) struct Kernel {
    /// The maps.
    pub(super) maps: Maps,
    /// The programs.
    pub(super) programs: Programs,
    observed: Observed,
    /// The VIPs that this node answers for, with the epochs.
    led: BTreeMap<Vip, u64>,
    beaten: Duration,
    yields: u64,
    /// How often strangers spoke for a VIP, as last read.
    foreign: u64,
    /// They did since that was last asked.
    strangers: bool,
    /// `INTERFACES`, as last written.
    interfaces: BTreeMap<u32, abi::Interface>,
    vip_index: VipIndex,
    /// What was pinned at the start; the links, as they were attached last.
    pinned: Pinned,
    pins: Pins,
    /// Changes with everything that was written to the maps.
    writes: u64,
    /// The fence's deadline, as it was pushed last; zero: never.
    deadline: Duration,
    /// It passed, and was not pushed since.
    lapsed: bool,
    /// Times that it did.
    lapses: u64,
}

impl Kernel {
    /// Loads the programs, and reads what an earlier agent left in the maps.
    pub(super) fn open(pins: Pins, flows: u32, unclaimed: Unclaimed) -> Result<Self, KernelError> {
        let (programs, mut maps) = load::load(&pins, flows)?;
        let found = maps.read_config()?;
        // All but the ids is this agent's to say, whatever the one before it said.
        let ids = if found.abi == 0 { new_config() } else { found };
        let Config { next_vip, next_generation, .. } = ids;
        let records_per_second = maps.records_per_second()?;
        let config =
            Config { next_vip, next_generation, records_per_second, unclaimed: unclaimed.into(), ..new_config() };
        if config != found {
            maps.apply(&Step::Config(config))?;
        }
        let observed = Observed::from_entries(Capacities::default(), entries(&maps)?);
        let [yields, foreign] = spoken(&maps)?;
        let (interfaces, vip_index) = (maps.read_interfaces()?, VipIndex::read(&maps)?);
        let pinned = Pinned::read(&pins)?;
        let (led, beaten, writes) = (BTreeMap::new(), Duration::ZERO, 0);
        Ok(Self {
            maps,
            programs,
            observed,
            led,
            beaten,
            yields,
            foreign,
            // Who spoke before this agent was there is noted too.
            strangers: true,
            interfaces,
            vip_index,
            pinned,
            pins,
            writes,
            deadline: Duration::ZERO,
            lapsed: false,
            lapses: 0,
        })
    }

    /// Tells the programs about an interface; all zero: it is not ours any more.
    pub(super) fn write_interface(&mut self, ifindex: u32, value: abi::Interface) -> Result<(), MapsError> {
        self.writes += 1;
        self.maps.set_interface(ifindex, value)?;
        if value == abi::Interface::default() {
            self.interfaces.remove(&ifindex);
        } else {
            self.interfaces.insert(ifindex, value);
        }
        Ok(())
    }

    /// Writes an element of `VIP_INDEX` again.
    pub(super) fn repair_vip_index(&mut self, index: u32) -> Result<(), MapsError> {
        self.writes += 1;
        self.vip_index.repair(&mut self.maps, index)
    }

    /// `VIP_INDEX`, as last written.
    pub(super) fn vip_index(&self) -> &BTreeMap<u32, abi::VipSlot> {
        self.vip_index.slots()
    }

    /// `INTERFACES`, as last written.
    pub(super) fn interfaces(&self) -> &BTreeMap<u32, abi::Interface> {
        &self.interfaces
    }

    /// One of them; all zero if it is none.
    pub(super) fn interface(&self, ifindex: u32) -> abi::Interface {
        self.interfaces.get(&ifindex).copied().unwrap_or_default()
    }

    /// The interfaces that something was done to, by this agent or by one before it.
    pub(super) fn touched(&self) -> BTreeSet<u32> {
        let linked = self.pinned.links.keys().map(|(_, ifindex)| ifindex);
        self.interfaces.keys().chain(linked).copied().collect()
    }

    /// Whether nothing was done to an interface but for replies that leave by it.
    pub(super) fn is_outlet_alone(&self, ifindex: u32) -> bool {
        let abi::Interface { bit, flags, .. } = self.interface(ifindex);
        let has = |kind| self.pinned.links.contains_key(&(kind, ifindex));
        bit == 0 && flags & INTERFACE_TAGS == 0 && !has(LinkKind::Xdp) && !has(LinkKind::Ingress)
    }

    /// Where and what is pinned.
    pub(super) fn pinned(&self) -> (Pins, Pinned) {
        (self.pins.clone(), self.pinned.clone())
    }

    /// A number that changes with everything that is written to the maps.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// Takes over what the kernel holds, so that the next plan puts it right.
    pub(super) fn correct(&mut self, difference: &Difference) -> Result<(), KernelError> {
        self.writes += 1;
        let again = self.observed.correct(difference, boottime()?);
        again.map_or(Ok(()), |step| self.execute(&step))
    }

    /// Pins a map again.
    pub(super) fn restore_map(&self, name: &str, id: u32) -> Result<(), KernelError> {
        Ok(Pinned::restore_map(&self.pins, name, id)?)
    }

    /// The links are now as they are to be.
    pub(super) fn note_links(&mut self) -> Result<(), KernelError> {
        self.writes += 1;
        self.pinned.links = Pinned::read_links(&self.pins)?;
        Ok(())
    }

    /// The mirror.
    pub(super) fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Whether this node leads the VIP.
    pub(super) fn leads(&self, vip: Vip) -> bool {
        self.led.contains_key(&vip)
    }

    /// The epoch in which this node leads the VIP; 0: it does not.
    pub(super) fn epoch(&self, vip: Vip) -> u64 {
        self.led.get(&vip).copied().unwrap_or_default()
    }

    /// The VIPs that this node answers for, with the bits of the interfaces that it does so on, and the VLAN.
    pub(super) fn announced(&self) -> BTreeMap<Vip, (u32, u32)> {
        let led = self.observed.vips().iter().filter(|(_, value)| value.flags & VIP_LEADING != 0);
        led.map(|(address, value)| (Vip((*address).into()), (value.interfaces, value.vlan))).collect()
    }

    /// Brings the maps to `desired`, without touching who leads: that is for the state machine to say, also while a plan
    /// that was made before is executed. The heart goes on beating meanwhile.
    pub(super) fn sync(
        &mut self,
        desired: &Desired,
        mut beat: impl FnMut(&mut Self) -> Result<(), KernelError>,
    ) -> Result<Synced, KernelError> {
        let now = boottime()?;
        self.observed.forget_rested(now);
        let plan = plan::plan(desired, &self.observed, now)?;
        for step in &plan.steps {
            match *step {
                Step::Vip(address, Some(value)) => self.rewrite_vip(address, value)?,
                _ => self.execute(step)?,
            }
            if boottime()?.saturating_sub(self.beaten) >= HEARTBEAT {
                beat(self)?;
            }
        }
        if plan.steps.iter().any(|step| matches!(step, Step::Vip(_, None))) {
            self.writes += 1;
            self.vip_index.renew(&mut self.maps, self.observed.vips())?;
        }
        if plan.refused.is_empty() {
            self.observed.settle(desired, &plan);
        }
        let leftovers = self.observed.has_leftovers();
        let steps = plan.steps.len();
        Ok(Synced { refused: plan.refused, unreachable: plan.unreachable, leftovers, steps })
    }

    fn execute(&mut self, step: &Step) -> Result<(), KernelError> {
        self.writes += 1;
        self.maps.apply(step)?;
        if let Step::Vip(address, value) = step {
            self.vip_index.follow(&mut self.maps, *address, value.as_ref())?;
        }
        self.observed.record(step, boottime()?);
        Ok(())
    }

    /// Who else speaks for VIPs, if a stranger did since the last call; nodes of the cluster among them.
    pub(super) fn strangers(&mut self) -> Result<Option<Vec<Heard>>, MapsError> {
        let heard = if self.strangers { Some(self.heard()?) } else { None };
        self.strangers = false;
        Ok(heard)
    }

    /// Who else spoke for VIPs or asked for them lately.
    pub(super) fn heard(&self) -> Result<Vec<Heard>, MapsError> {
        let is_peer = |mac| self.observed.is_peer(mac);
        Ok(self.maps.read_speakers()?.iter().map(|(key, speaker)| Heard::new(*key, speaker, is_peer)).collect())
    }

    /// Begins a turn of the heart: the VIPs that the program gave up since the last one.
    pub(super) fn beat(&mut self) -> Result<Vec<Vip>, KernelError> {
        self.beaten = boottime()?;
        if !self.lapsed && !self.deadline.is_zero() && self.beaten >= self.deadline {
            self.lapsed = true;
            self.lapses += 1;
        }
        let [yields, foreign] = spoken(&self.maps)?;
        self.strangers |= foreign != self.foreign;
        self.foreign = foreign;
        let mut yielded = Vec::new();
        if yields == self.yields {
            return Ok(yielded);
        }
        self.yields = yields;
        for vip in self.led.keys() {
            let address = Address::from(vip.0);
            if let Some(value) = self.maps.read_vip(&address)?
                && value.flags & VIP_LEADING == 0
            {
                self.writes += 1;
                self.observed.refresh_vip(address, value);
                yielded.push(*vip);
            }
        }
        Ok(yielded)
    }

    /// This node answers for the VIP from now on.
    pub(super) fn lead(&mut self, vip: Vip, epoch: u64) -> Result<(), KernelError> {
        self.led.insert(vip, epoch);
        self.flag(vip)
    }

    /// It does not any more.
    pub(super) fn follow(&mut self, vip: Vip) -> Result<(), KernelError> {
        self.led.remove(&vip);
        self.flag(vip)
    }

    /// The fence's deadline, `CLOCK_BOOTTIME`; zero: it was never pushed.
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// How often it passed, as the loop's turns saw it.
    pub(super) fn lapses(&self) -> u64 {
        self.lapses
    }

    /// Pushes the fence's deadline.
    pub(super) fn extend(&mut self, deadline: Duration) -> Result<(), KernelError> {
        (self.deadline, self.lapsed) = (deadline, false);
        Ok(self.maps.write_deadline(nanoseconds(deadline), nanoseconds(boottime()?))?)
    }

    /// Sets the leading flag by who leads; a VIP that is not in the maps has none.
    fn flag(&mut self, vip: Vip) -> Result<(), KernelError> {
        let address = Address::from(vip.0);
        let known = self.observed.vips().get(&address).copied();
        known.map_or(Ok(()), |known| self.write_vip(address, known))
    }

    /// Writes a VIP for a plan. What the program gave up since the last beat stays so until that tells of it.
    fn rewrite_vip(&mut self, address: Address, value: abi::VipValue) -> Result<(), KernelError> {
        let epoch = self.led.get(&Vip(address.into())).copied();
        let found = if epoch.is_some() { self.maps.read_vip(&address)? } else { None };
        match (epoch, found) {
            (Some(epoch), Some(found)) if found.flags & VIP_YIELDED != 0 => {
                let flags = value.flags & !VIP_LEADING | VIP_YIELDED;
                self.execute(&Step::Vip(address, Some(abi::VipValue { flags, epoch, ..value })))
            }
            _ => self.write_vip(address, value),
        }
    }

    /// Writes a VIP, with the leading flag by who leads now: a plan may have been made before that changed.
    fn write_vip(&mut self, address: Address, value: abi::VipValue) -> Result<(), KernelError> {
        let others = value.flags & !VIP_LEADING;
        let epoch = self.led.get(&Vip(address.into()));
        let flags = if epoch.is_some() { others & !VIP_YIELDED | VIP_LEADING } else { others };
        let value = abi::VipValue { flags, epoch: epoch.copied().unwrap_or(value.epoch), ..value };
        let known = self.observed.vips().get(&address);
        if known == Some(&value) { Ok(()) } else { self.execute(&Step::Vip(address, Some(value))) }
    }
}

/// How often a peer took a VIP, and a stranger spoke for one.
fn spoken(maps: &Maps) -> Result<[u64; 2], MapsError> {
    let stats = maps.read_stats()?;
    let packets = |wanted| stats.iter().find(|(stat, _)| *stat == wanted).map_or(0, |(_, count)| count.packets);
    Ok([Stat::Yielded, Stat::Foreign].map(packets))
}

/// Everything that a plan starts from.
pub(super) fn entries(maps: &Maps) -> Result<Entries, MapsError> {
    let names = maps.read_node_names()?;
    let mut entries = Entries {
        config: maps.read_config()?,
        vips: maps.read_vips()?,
        services: maps.read_services()?,
        service_states: maps.read_service_states()?,
        backends: maps.read_backends()?,
        nodes: maps.read_node_entries()?,
        node_names: names.into_iter().map(|(index, label)| (index, NodeName(label.to_string()))).collect(),
        peers: maps.read_peers()?,
        source_ranges: maps.read_source_ranges()?,
        ..Entries::default()
    };
    for (slot, owner) in maps.read_service_names()? {
        let (namespace, name) = owner.parts();
        entries.service_names.insert(slot, ServiceName { namespace, name });
    }
    for (offset, length) in entries.table_ranges() {
        entries.tables.insert((offset, length), maps.read_table(offset, length)?);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
