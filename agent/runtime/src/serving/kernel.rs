//! The data plane as the event loop sees it: the maps, their mirror, and the leading flags.

mod led_vips;
mod map_writer;
mod speaker_counts;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{self, Address, Config, Mac, VIP_ASSURED, VIP_LEADING, VIP_YIELDED};

pub(crate) use self::map_writer::entries;
use self::{
    led_vips::LedVips,
    map_writer::MapWriter,
    speaker_counts::{NewAnnouncements, SpeakerCounts},
};
use super::{kernel_error::KernelError, link_kernel::LinkKernel};
use vipmux_datapath::{
    announce::speaker::VipSpeaker,
    bpf::{
        apply::{Unclaimed, new_config},
        jiffies, load,
        maps::{Maps, MapsError},
        pins::Pins,
    },
};
use vipmux_election::HEARTBEAT;
use vipmux_model::{PortClaim, Vip, desired::Desired};
use vipmux_plan as plan;
use vipmux_plan::{EntryDifference, Observed, Step};

/// Returns the time since boot, sleep included. The fence deadline is in this clock.
pub(crate) fn boottime() -> Result<Duration, KernelError> {
    vipmux_cluster::clock::try_boottime().map_err(KernelError::Clock)
}

/// Converts a time to the maps' unit, which is enough for 584 years.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The result of a sync.
pub(crate) struct Synced {
    /// The objects that found no room.
    pub(crate) refused: Vec<plan::CapacityRefusal>,
    /// The claims none of whose endpoints can be reached.
    pub(crate) unreachable: Vec<PortClaim>,
    /// Entries are left to be removed after [`REST`](plan::REST).
    pub(crate) leftovers: bool,
    /// The number of writes.
    pub(crate) steps: usize,
}

/// Announcements of a led VIP with the MACs of peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeardAnnouncement {
    /// The MACs; empty: they are not known.
    pub(crate) macs: BTreeSet<Mac>,
    /// The time of the last one, `CLOCK_BOOTTIME`.
    pub(crate) at: Duration,
    /// The programs yielded the VIP.
    pub(crate) yielded: bool,
}

/// The maps of this node.
pub(crate) struct Kernel {
    /// The maps.
    pub(crate) maps: Maps,
    /// The maps, as last written.
    mirror: MapWriter,
    leadership: LedVips,
    speaker_counts: SpeakerCounts,
    /// The speakers for VIPs, if a foreign one spoke since they were taken last.
    new_speakers: Option<Vec<VipSpeaker>>,
    /// When the last heartbeat began, `CLOCK_BOOTTIME`.
    last_heartbeat: Duration,
    pins: Pins,
}

impl Kernel {
    /// Loads the programs, and reads the maps, which an earlier agent may have filled.
    pub(crate) fn open(pins: Pins, flows: u32, unclaimed: Unclaimed) -> Result<(Self, LinkKernel), KernelError> {
        let (programs, mut maps) = load::load(&pins, flows)?;
        let found = maps.read_config()?;
        // The ids stay. This agent sets all else, whatever an earlier agent set.
        let ids = if found.abi == 0 { new_config() } else { found };
        let Config { next_vip, next_generation, .. } = ids;
        let (unclaimed, Config { flow_secret, flow_mask, handover, .. }) = (unclaimed.into(), found);
        let new = new_config();
        // What an earlier agent has removed counts as removed now.
        let removed = jiffies::now_low(new.hz).map_err(KernelError::Clock)?;
        let config = Config { next_vip, next_generation, flow_secret, flow_mask, handover, unclaimed, removed, ..new };
        maps.apply(&Step::Config(config))?;
        let (mirror, speaker_counts) = (MapWriter::read(&maps)?, SpeakerCounts::read(&maps)?);
        let links = LinkKernel::read(programs, pins.clone())?;
        let (leadership, new_speakers, last_heartbeat) = (LedVips::default(), None, Duration::ZERO);
        Ok((Self { maps, mirror, leadership, speaker_counts, new_speakers, last_heartbeat, pins }, links))
    }

    /// Returns the VIPs that the kernel answers for.
    pub(crate) fn answering(&self, now: Duration) -> Result<BTreeSet<Vip>, MapsError> {
        if self.maps.read_fence()?.deadline <= nanoseconds(now) {
            return Ok(BTreeSet::new());
        }
        let led = self.maps.read_vips()?.into_iter().filter(|(_, vip)| vip.flags & VIP_LEADING != 0);
        Ok(led.map(|(address, _)| Vip::new(address.into())).collect())
    }

    /// Returns the bits of the ports where the XDP program ran since the last call.
    pub(crate) fn take_activity(&mut self) -> Result<u32, MapsError> {
        self.maps.take_activity()
    }

    /// Returns the pins.
    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Returns the number of writes to the maps.
    pub(crate) fn writes(&self) -> u64 {
        self.mirror.writes()
    }

    /// Puts a difference into the mirror, so that the next plan repairs it.
    pub(crate) fn correct(&mut self, difference: &EntryDifference) -> Result<(), KernelError> {
        self.mirror.correct(&mut self.maps, difference)
    }

    /// Returns the mirror of the maps.
    pub(crate) fn observed(&self) -> &Observed {
        self.mirror.observed()
    }

    /// Returns the VIPs that this node leads, with their epochs.
    pub(crate) fn led(&self) -> &BTreeMap<Vip, u64> {
        self.leadership.led()
    }

    /// Returns whether this node leads the VIP.
    pub(crate) fn leads(&self, vip: Vip) -> bool {
        self.led().contains_key(&vip)
    }

    /// Returns the VIPs that this node answers for, with the bits of their interfaces and the VLAN.
    pub(crate) fn announced(&self) -> BTreeMap<Vip, (u32, u32)> {
        let led = self.observed().vips().iter().filter(|(_, value)| value.flags & VIP_LEADING != 0);
        led.map(|(address, value)| (Vip::new((*address).into()), (value.interfaces, value.vlan))).collect()
    }

    /// Brings the maps to `desired`. It does not change the leading flags: the election does, also
    /// while a plan that was made before is executed. Calls `heartbeat` when one is due meanwhile.
    pub(crate) fn sync(
        &mut self,
        desired: &Desired,
        mut heartbeat: impl FnMut(&mut Self) -> Result<(), KernelError>,
    ) -> Result<Synced, KernelError> {
        let plan = self.mirror.plan(desired)?;
        for step in &plan.steps {
            match *step {
                Step::Vip(address, Some(value)) => self.rewrite_vip(address, value)?,
                _ => self.execute(step)?,
            }
            if boottime()?.saturating_sub(self.last_heartbeat) >= HEARTBEAT {
                heartbeat(self)?;
            }
        }
        self.mirror.finish(&mut self.maps, desired, &plan)?;
        let leftovers = self.observed().has_leftovers();
        let steps = plan.steps.len();
        Ok(Synced { refused: plan.refused, unreachable: plan.unreachable, leftovers, steps })
    }

    fn execute(&mut self, step: &Step) -> Result<(), KernelError> {
        self.mirror.execute(&mut self.maps, step)
    }

    /// Returns the speakers for VIPs, nodes of the cluster among them, if a foreign one spoke between
    /// the last call and the last heartbeat.
    pub(crate) fn take_new_speakers(&mut self) -> Option<Vec<VipSpeaker>> {
        self.new_speakers.take()
    }

    /// Returns the other hosts that spoke for VIPs or asked for them lately.
    pub(crate) fn speakers(&self) -> Result<Vec<VipSpeaker>, MapsError> {
        let is_peer = |mac| self.observed().is_peer(mac);
        Ok(self.maps.speakers.read()?.iter().map(|(key, speaker)| VipSpeaker::new(*key, speaker, is_peer)).collect())
    }

    /// Begins a heartbeat. Returns the announcements of led VIPs with peers' MACs since the last one.
    pub(crate) fn heartbeat(&mut self) -> Result<BTreeMap<Vip, HeardAnnouncement>, KernelError> {
        let since = std::mem::replace(&mut self.last_heartbeat, boottime()?);
        self.leadership.check_deadline(self.last_heartbeat);
        let new = self.speaker_counts.update(&self.maps)?;
        if new == NewAnnouncements::default() {
            return Ok(BTreeMap::new());
        }
        let speakers = self.speakers()?;
        let yielded = if new.yielded { self.read_yielded()? } else { BTreeSet::new() };
        let led = |vip: &Vip| self.leadership.led().contains_key(vip);
        let heard = heard_announcements(&speakers, since, yielded, led);
        if new.foreign {
            self.new_speakers = Some(speakers);
        }
        Ok(heard)
    }

    /// Reads which led VIPs the programs have yielded.
    fn read_yielded(&mut self) -> Result<BTreeSet<Vip>, KernelError> {
        let mut yielded = BTreeSet::new();
        for vip in self.leadership.led().keys() {
            let address = Address::from(vip.address());
            if let Some(value) = self.maps.read_vip(&address)?
                && value.flags & VIP_LEADING == 0
            {
                self.mirror.refresh_vip(address, value);
                yielded.insert(*vip);
            }
        }
        Ok(yielded)
    }

    /// Sets the leading flag of a VIP.
    pub(crate) fn lead(&mut self, vip: Vip, epoch: u64) -> Result<(), KernelError> {
        self.leadership.lead(vip, epoch);
        self.flag(vip)
    }

    /// Clears the leading flag of a VIP.
    pub(crate) fn follow(&mut self, vip: Vip) -> Result<(), KernelError> {
        self.leadership.follow(vip);
        self.flag(vip)
    }

    /// Sets whether the programs go on answering for a VIP when a peer announces it.
    pub(crate) fn assure(&mut self, vip: Vip, assured: bool) -> Result<(), KernelError> {
        self.leadership.assure(vip, assured);
        if self.leads(vip) { self.flag(vip) } else { Ok(()) }
    }

    /// Returns the fence deadline, `CLOCK_BOOTTIME`; zero: it was never extended.
    pub(crate) fn deadline(&self) -> Duration {
        self.leadership.deadline()
    }

    /// Returns how often the deadline passed, as heartbeats saw it.
    pub(crate) fn lapses(&self) -> u64 {
        self.leadership.lapses()
    }

    /// Moves a deadline back that an earlier agent set with a longer `--lease`. Peers wait no longer than
    /// this agent publishes.
    pub(crate) fn limit_deadline(&mut self, lease: Duration) -> Result<(), KernelError> {
        let latest = nanoseconds(boottime()? + lease);
        if self.maps.read_fence()?.deadline > latest {
            self.maps.write_deadline(latest)?;
        }
        Ok(())
    }

    /// Extends the fence deadline.
    pub(crate) fn extend(&mut self, deadline: Duration) -> Result<(), KernelError> {
        self.leadership.extend(deadline);
        Ok(self.maps.write_deadline(nanoseconds(deadline))?)
    }

    /// Writes the leading flag of a VIP, if it is in the maps.
    fn flag(&mut self, vip: Vip) -> Result<(), KernelError> {
        let address = Address::from(vip.address());
        let known = self.observed().vips().get(&address).copied();
        known.map_or(Ok(()), |known| self.write_vip(address, known))
    }

    /// Writes a VIP for a plan. A VIP that the programs gave up since the last heartbeat stays so
    /// until the next one.
    fn rewrite_vip(&mut self, address: Address, value: abi::VipValue) -> Result<(), KernelError> {
        let epoch = self.leadership.epoch(address);
        let found = if epoch.is_some() { self.maps.read_vip(&address)? } else { None };
        match (epoch, found) {
            (Some(epoch), Some(found)) if found.flags & VIP_YIELDED != 0 => {
                let flags = value.flags & !(VIP_LEADING | VIP_ASSURED) | VIP_YIELDED;
                self.execute(&Step::Vip(address, Some(abi::VipValue { flags, epoch, ..value })))
            }
            _ => self.write_vip(address, value),
        }
    }

    /// Writes a VIP with the leading flag as it is now: a plan may be older than the last change of
    /// leader.
    fn write_vip(&mut self, address: Address, value: abi::VipValue) -> Result<(), KernelError> {
        let value = self.leadership.with_leading_flag(address, value);
        let is_known = self.observed().vips().get(&address) == Some(&value);
        if is_known { Ok(()) } else { self.execute(&Step::Vip(address, Some(value))) }
    }
}

/// Returns the announcements since `since` with peers' MACs, of VIPs that are `led` or were `yielded`.
fn heard_announcements(
    speakers: &[VipSpeaker],
    since: Duration,
    yielded: BTreeSet<Vip>,
    led: impl Fn(&Vip) -> bool,
) -> BTreeMap<Vip, HeardAnnouncement> {
    let unknown = HeardAnnouncement { yielded: true, ..HeardAnnouncement::default() };
    let mut heard: BTreeMap<_, _> = yielded.into_iter().map(|vip| (vip, unknown.clone())).collect();
    for VipSpeaker { vip, mac, claimed, peer, .. } in speakers {
        if let Some(at) = claimed.filter(|at| *at >= since && *peer && led(vip)) {
            let announcement: &mut HeardAnnouncement = heard.entry(*vip).or_default();
            announcement.macs.insert(*mac);
            announcement.at = announcement.at.max(at);
        }
    }
    heard
}

#[cfg(test)]
mod tests;
