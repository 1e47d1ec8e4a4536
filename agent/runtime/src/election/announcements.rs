//! Announces led VIPs, asks the LAN for addresses before they are led, and defends them.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use vipmux_common::abi::Mac;

use crate::{
    AgentError,
    metrics::Meters,
    problems::{
        address_conflicts::AddressConflicts,
        announcement_failures::AnnouncementFailures,
        conflict_events::{ANSWERS_LOST, VipProblem},
    },
    serving::{
        Serving,
        interfaces::{AttachedInterfaces, SegmentChanges},
        kernel::boottime,
        kernel_error::KernelError,
    },
};
use vipmux_datapath::{
    announce::{
        Announcer, Frame, Pacing, Sender,
        address_probe::{AddressAvailability, AddressProbeActions, AddressProbeMode, AddressProber},
        foreign_speakers::Conflict,
    },
    link::{Links, interface_name},
};
use vipmux_election::AddressOwner;
use vipmux_model::{NodeName, Vip};

/// The announcements and address probes that are due, and the foreign speakers.
pub(crate) struct Announcements {
    announcer: Announcer,
    sender: Sender,
    prober: AddressProber,
    /// The number of frames that had come in when the LAN was asked for an address.
    received: BTreeMap<Vip, u64>,
    /// Whether a question was sent for an address that the LAN is asked for. Without a frame to send, it is missing.
    asked: BTreeMap<Vip, bool>,
    /// The system does not say how many frames came in.
    uncounted: bool,
    pub(crate) conflicts: AddressConflicts,
    /// The VIPs whose answers are lost on this node.
    lossy: BTreeSet<Vip>,
    /// To the task that sends Events to the Services' owners.
    problems: mpsc::Sender<VipProblem>,
    meters: Meters,
    failures: AnnouncementFailures,
}

/// The answers to address probes.
pub(crate) struct ProbeAnswers {
    pub(crate) outcomes: Vec<(Vip, AddressAvailability)>,
    /// The number of frames that have come in by now.
    pub(crate) received: u64,
}

impl Announcements {
    /// `every`: the interval at which each VIP is announced after the burst; zero: never. `rate`: the
    /// most frames per second on one interface when VIPs are taken. `seed`: spreads the probes.
    pub(crate) fn new(
        (every, rate): (Duration, NonZeroU32),
        seed: u64,
        (conflicts, problems): (AddressConflicts, mpsc::Sender<VipProblem>),
        meters: Meters,
    ) -> Result<Self, AgentError> {
        Ok(Self {
            announcer: Announcer::new(Pacing::default().limited(rate).repeating(every)),
            sender: Sender::open()?,
            prober: AddressProber::new(seed),
            received: BTreeMap::new(),
            asked: BTreeMap::new(),
            uncounted: false,
            conflicts,
            lossy: BTreeSet::new(),
            problems,
            meters,
            failures: AnnouncementFailures::default(),
        })
    }

    /// Returns when the next announcement is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.announcer.next()
    }

    /// Returns when to call [`Self::poll_probes`], `CLOCK_BOOTTIME`.
    pub(crate) fn next_probe(&self) -> Option<Duration> {
        self.prober.next()
    }

    /// Announces a led VIP where it is announced now, from the next event on.
    pub(crate) fn begin(&mut self, vip: Vip, serving: &Serving) {
        let segments: Vec<_> = serving.segments_of(vip).collect();
        self.announcer.retain(vip, &segments.iter().map(|(ifindex, _)| *ifindex).collect());
        for (ifindex, mac) in segments {
            self.announcer.gained(vip, ifindex, mac, Instant::now());
        }
    }

    /// Ends the announcements of a VIP.
    pub(crate) fn end(&mut self, vip: Vip) {
        self.announcer.lost(vip);
    }

    /// Ends the announcements on segments that are gone, and repeats them where the carrier came
    /// back.
    pub(crate) fn update_segments(&mut self, changes: &SegmentChanges) {
        changes.removed.iter().for_each(|ifindex| self.announcer.remove_interface(*ifindex));
        changes.returned.iter().for_each(|ifindex| self.announcer.reannounce(*ifindex, Instant::now()));
    }

    /// Reports to the Services' owners for which VIPs answers are lost on this node, once each. If
    /// too many Events wait, some are left out.
    pub(crate) fn report_losses(&mut self, lossy: &BTreeSet<Vip>, why: &str) {
        for &vip in lossy.difference(&self.lossy) {
            let note = format!("{vip} is not announced by {why}");
            self.problems.try_send(VipProblem { vip, reason: ANSWERS_LOST, note }).ok();
        }
        self.lossy.clone_from(lossy);
    }

    /// Sends the announcements that are due. A frame that cannot be sent now is one of a burst.
    pub(crate) fn send_due(&mut self) {
        for frame in self.announcer.due(Instant::now()) {
            self.send(&frame);
        }
    }

    /// Sends a frame. Returns whether it was sent.
    fn send(&mut self, frame: &Frame) -> bool {
        let (sent, now) = (self.sender.send(frame), Instant::now());
        self.meters.announced(&sent);
        let interface = || interface_name(frame.ifindex);
        match &sent {
            Ok(()) => {
                if let Some(failed) = self.failures.sent(frame.ifindex, now) {
                    tracing::info!(interface = interface(), failed, "announcements are sent again");
                }
            }
            Err(error) if self.failures.failed(frame.ifindex, now) => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(interface = interface(), error, "announcements are not sent");
            }
            Err(_) => {}
        }
        sent.is_ok()
    }

    /// Asks the LAN for these addresses, from the next event on; `true`: by duplicate address
    /// detection. For a VIP that is announced nowhere, nobody is asked and nobody answers.
    pub(crate) fn begin_probes(&mut self, vips: &[(Vip, bool)], serving: &Serving) -> Result<(), KernelError> {
        if vips.is_empty() {
            return Ok(());
        }
        let (received, now) = (self.received_frames(&serving.interfaces), boottime()?);
        for &(vip, detect) in vips {
            self.asked.remove(&vip);
            let segments = serving.segments_of(vip).collect();
            let mode = if detect { AddressProbeMode::Detect } else { AddressProbeMode::Query };
            if !detect {
                self.received.insert(vip, received);
            }
            self.prober.begin(vip, segments, mode, now);
        }
        Ok(())
    }

    /// Sends the address probes that are due, and returns the answers to earlier ones.
    pub(crate) fn poll_probes(&mut self, serving: &Serving) -> Result<Option<ProbeAnswers>, KernelError> {
        let speakers = serving.kernel.speakers()?;
        let AddressProbeActions { frames, outcomes } = self.prober.poll(&speakers, boottime()?);
        for (vip, frame) in &frames {
            let sent = self.send(frame);
            *self.asked.entry(*vip).or_default() |= sent;
        }
        if outcomes.is_empty() {
            return Ok(None);
        }
        Ok(Some(ProbeAnswers { outcomes, received: self.received_frames(&serving.interfaces) }))
    }

    /// Returns the number of frames that came in where VIPs are announced; 0 if the system does not say.
    fn received_frames(&mut self, interfaces: &AttachedInterfaces) -> u64 {
        let names: BTreeSet<_> = interfaces.attached.keys().map(|port| interface_name(*port)).collect();
        match std::fs::read_to_string("/proc/thread-self/net/dev") {
            Ok(table) => {
                self.uncounted = false;
                received(&table).filter(|(name, _)| names.contains(*name)).map(|(_, packets)| packets).sum()
            }
            Err(error) => {
                if !std::mem::replace(&mut self.uncounted, true) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "received frames cannot be counted, answers of the LAN prove nothing");
                }
                0
            }
        }
    }

    /// Converts an answer, and counts it.
    pub(crate) fn owner(
        &mut self,
        vip: Vip,
        outcome: &AddressAvailability,
        received: u64,
        serving: &Serving,
    ) -> AddressOwner {
        let (before, asked) = (self.received.remove(&vip), self.asked.remove(&vip));
        let is_peer = |mac| serving.kernel.observed().is_peer(mac);
        let owner = owner(outcome, asked, before == Some(received), is_peer);
        self.meters.address_probed(&owner);
        owner
    }

    /// Reads who spoke for VIPs since the last heartbeat, defends led VIPs, and reports conflicts.
    pub(crate) fn check_foreign_speakers(&mut self, serving: &mut Serving, links: &Links) -> Result<(), KernelError> {
        let now = boottime()?;
        let mut speakers = serving.kernel.take_new_speakers();
        if speakers.is_none() && self.conflicts.has_denied() {
            speakers = Some(serving.kernel.speakers()?);
        }
        if let Some(speakers) = speakers {
            self.conflicts.observe(&speakers, &serving.interfaces.macs(), now);
        }
        let (kernel, interfaces) = (&serving.kernel, &serving.interfaces);
        let leads = |vip| kernel.leads(vip);
        for vip in self.conflicts.defend(|mac| kernel.observed().is_peer(mac), leads, now) {
            self.announcer.defend(vip);
        }
        self.conflicts.report(leads, |conflict, owner| match owner {
            None => describe(conflict, links, interfaces.mac(conflict.ifindex)),
            Some(owner) => describe_forged(conflict, links, owner),
        });
        Ok(())
    }

    /// Logs how many lines were left out.
    pub(crate) fn log_omitted(&mut self, now: Instant) {
        self.conflicts.log_omitted(now);
    }
}

/// Converts an answer. Silence proves nothing if no question was sent, or no frame came in since (`is_quiet`).
/// `asked`: whether a question was sent; `None`: there was nothing to send.
fn owner(
    outcome: &AddressAvailability,
    asked: Option<bool>,
    is_quiet: bool,
    is_peer: impl Fn(Mac) -> bool,
) -> AddressOwner {
    match outcome {
        AddressAvailability::Free if is_quiet || asked == Some(false) => AddressOwner::Unknown,
        AddressAvailability::Free => AddressOwner::Nobody,
        AddressAvailability::Taken { mac, .. } if is_peer(*mac) => AddressOwner::Peer,
        AddressAvailability::Taken { mac, .. } => AddressOwner::ForeignSpeaker(*mac),
    }
}

/// Describes a conflict. `own`: the MAC that this node announces there.
fn describe(Conflict { vip, mac, ifindex }: &Conflict, links: &Links, own: Mac) -> String {
    let on = name_of(*ifindex, links);
    format!(
        "the address {vip} is also used by {mac} on {on}: this node keeps it and defends it by announcing {own}, but \
         clients may reach either; take it from that machine or from the pool"
    )
}

/// Describes announcements with a MAC of `owner`, which denies them.
fn describe_forged(Conflict { vip, mac, ifindex }: &Conflict, links: &Links, owner: &NodeName) -> String {
    let on = name_of(*ifindex, links);
    format!(
        "a machine on {on} announces the address {vip} with {mac}, the MAC of {owner}, which does not lead it: this \
         node goes on answering; `tcpdump -e -i {on} arp or icmp6` shows the frames"
    )
}

fn name_of(ifindex: u32, links: &Links) -> String {
    links.get(ifindex).map_or_else(|| format!("interface {ifindex}"), |interface| interface.name.clone())
}

/// Returns the interfaces with the number of packets that they received: the third column of
/// proc_net_dev(5).
fn received(table: &str) -> impl Iterator<Item = (&str, u64)> {
    table.lines().filter_map(|line| {
        let (name, counters) = line.split_once(':')?;
        Some((name.trim(), counters.split_whitespace().nth(1)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_after_questions_that_were_not_sent_proves_nothing() {
        let (node, foreign) = (Mac::new([2, 0, 0, 0, 0, 1]), Mac::new([2, 0, 0, 0, 0, 2]));
        let free = AddressAvailability::Free;
        for (asked, is_quiet, expected) in [
            (Some(true), false, AddressOwner::Nobody),
            (None, false, AddressOwner::Nobody),
            (Some(false), false, AddressOwner::Unknown),
            (Some(true), true, AddressOwner::Unknown),
        ] {
            assert_eq!(owner(&free, asked, is_quiet, |_| false), expected, "{asked:?} {is_quiet}");
        }
        for (mac, expected) in [(node, AddressOwner::Peer), (foreign, AddressOwner::ForeignSpeaker(foreign))] {
            let taken = AddressAvailability::Taken { mac, ifindex: 2 };
            assert_eq!(owner(&taken, Some(false), true, |mac| mac == node), expected);
        }
    }

    #[test]
    fn received_packets_are_read_by_interface() {
        let table = "Inter-|   Receive                            |  Transmit\n \
             face |bytes    packets errs drop|bytes    packets errs\n    \
             lo:     100       2    0    0      100       2    0\n  \
             eth0: 54321     432    1    0     4321      43    0\n";
        assert_eq!(received(table).collect::<Vec<_>>(), [("lo", 2), ("eth0", 432)]);
    }
}
