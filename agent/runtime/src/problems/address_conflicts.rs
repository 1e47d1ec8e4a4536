//! Reports address conflicts: foreign speakers, other hosts on the LAN, that use the address of a
//! VIP, or announce it with a peer's MAC.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use vipmux_common::abi::Mac;

use super::{
    conflict_events::{ADDRESS_IN_USE, ANNOUNCEMENT_FORGED, VipProblem},
    log_limit::LogLimit,
    warnings::log_changes,
};
use crate::metrics::Meters;
use vipmux_datapath::announce::{
    foreign_speakers::{Conflict, ForeignSpeakers},
    speaker::VipSpeaker,
};
use vipmux_model::{NodeName, Vip};

/// The foreign speakers, with the conflicts that were logged.
pub(crate) struct AddressConflicts {
    speakers: ForeignSpeakers,
    /// The hosts that announce VIPs with peers' MACs.
    forgers: ForeignSpeakers,
    /// The VIPs that were announced with peers' MACs since [`Self::observe`] was called last, though
    /// the peers deny it.
    denied: BTreeSet<(Vip, Mac)>,
    /// The peers that have these MACs.
    owners: BTreeMap<Mac, NodeName>,
    /// The conflicts about led VIPs, as last logged.
    conflicts: BTreeSet<String>,
    /// To the task that sends Events to the Services' owners.
    events: mpsc::Sender<VipProblem>,
    meters: Meters,
    log_limit: LogLimit,
}

impl AddressConflicts {
    pub(crate) fn new(events: mpsc::Sender<VipProblem>, meters: Meters) -> Self {
        Self {
            speakers: ForeignSpeakers::default(),
            forgers: ForeignSpeakers::default(),
            denied: BTreeSet::new(),
            owners: BTreeMap::new(),
            conflicts: BTreeSet::new(),
            events,
            meters,
            log_limit: LogLimit::default(),
        }
    }

    /// Returns the conflicts about led VIPs.
    pub(crate) fn texts(&self) -> &BTreeSet<String> {
        &self.conflicts
    }

    /// Notes that somebody announced a VIP with one of these MACs of a peer, and that the peer denies
    /// it.
    pub(crate) fn note_forged(&mut self, vip: Vip, by: &NodeName, macs: &BTreeSet<Mac>) {
        self.meters.announcement_forged();
        self.denied.extend(macs.iter().map(|mac| (vip, *mac)));
        self.owners.extend(macs.iter().map(|mac| (*mac, by.clone())));
    }

    /// Returns whether there were forged announcements since [`Self::observe`] was called last.
    pub(crate) fn has_denied(&self) -> bool {
        !self.denied.is_empty()
    }

    /// Adds these speakers for VIPs. `ours`: the MACs of this node.
    pub(crate) fn observe(&mut self, speakers: &[VipSpeaker], ours: &BTreeSet<Mac>, now: Duration) {
        self.speakers.observe(speakers, ours, now);
        let denied = std::mem::take(&mut self.denied);
        let forged = speakers.iter().filter(|speaker| denied.contains(&(speaker.vip, speaker.mac)));
        let forged: Vec<_> = forged.map(|speaker| VipSpeaker { peer: false, ..*speaker }).collect();
        self.forgers.observe(&forged, ours, now);
    }

    /// Forgets foreign speakers that are peers. Returns the led VIPs that must be defended now.
    pub(crate) fn defend(
        &mut self,
        is_peer: impl Fn(Mac) -> bool,
        leads: impl Fn(Vip) -> bool,
        now: Duration,
    ) -> BTreeSet<Vip> {
        self.speakers.remove_peers(is_peer);
        let mut due = self.speakers.defend(&leads, now);
        due.extend(self.forgers.defend(&leads, now));
        due
    }

    /// Logs, counts and reports the conflicts about led VIPs that changed. `describe` gets the peer
    /// whose MAC a forged announcement has.
    pub(crate) fn report(
        &mut self,
        leads: impl Fn(Vip) -> bool,
        describe: impl Fn(&Conflict, Option<&NodeName>) -> String,
    ) {
        let foreign = self.speakers.conflicts(&leads).map(|conflict| (describe(&conflict, None), conflict.vip));
        let mut conflicts: BTreeMap<_, _> = foreign.map(|(text, vip)| (text, (vip, ADDRESS_IN_USE))).collect();
        for conflict in self.forgers.conflicts(&leads) {
            let text = describe(&conflict, self.owners.get(&conflict.mac));
            conflicts.insert(text, (conflict.vip, ANNOUNCEMENT_FORGED));
        }
        for (text, (vip, reason)) in conflicts.iter().filter(|(text, _)| !self.conflicts.contains(*text)) {
            self.send_event(*vip, reason, text.clone());
        }
        let conflicts: BTreeSet<_> = conflicts.into_keys().collect();
        if conflicts != self.conflicts {
            log_changes(&self.conflicts, &conflicts);
            self.meters.contested(conflicts.len());
            self.conflicts = conflicts;
        }
    }

    /// Reports a foreign speaker that had an address before this node led it.
    pub(crate) fn report_taken(&mut self, vip: Vip, mac: Mac) {
        self.meters.address_conflict();
        if self.log_limit.take(Instant::now()) {
            tracing::warn!(%vip, %mac, "foreign speaker has the address, probing again");
        }
        let note = format!("{mac} has the address {vip}: vipmux does not announce it, and probes again");
        self.send_event(vip, ADDRESS_IN_USE, note);
    }

    /// Logs how many lines were left out.
    pub(crate) fn log_omitted(&mut self, now: Instant) {
        if let Some(omitted) = self.log_limit.end(now) {
            tracing::warn!(untold = omitted, "foreign speakers have more addresses");
        }
    }

    /// Sends an Event. If too many wait, it is left out: the log and the metrics have it too.
    fn send_event(&self, vip: Vip, reason: &'static str, note: String) {
        self.events.try_send(VipProblem { vip, reason, note }).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::names::{node_name, vip4};

    #[test]
    fn an_event_is_sent_for_each_taken_address_as_long_as_there_is_room() {
        let (events, mut sent) = mpsc::channel(1);
        let mut conflicts = AddressConflicts::new(events, Meters::default());
        let (vip, mac) = (vip4(1), Mac::new([2, 0, 0, 0, 0, 9]));
        conflicts.report_taken(vip, mac);
        conflicts.report_taken(vip, mac);
        let text = "02:00:00:00:00:09 has the address 192.0.2.1: vipmux does not announce it, and probes again";
        assert_eq!(sent.try_recv(), Ok(VipProblem { vip, reason: ADDRESS_IN_USE, note: text.to_owned() }));
        assert!(sent.try_recv().is_err(), "there was room for one");
    }

    #[test]
    fn a_forged_announcement_is_reported_once_with_the_peer_whose_mac_it_has_and_defended_against() {
        let (events, mut sent) = mpsc::channel(9);
        let mut conflicts = AddressConflicts::new(events, Meters::default());
        let (vip, mac, now) = (vip4(1), Mac::new([2, 0, 0, 0, 0, 2]), Duration::from_secs(100));
        let speaker = VipSpeaker { vip, mac, ifindex: 3, claimed: Some(now), probed: None, option: None, peer: true };
        let describe = |conflict: &Conflict, owner: Option<&NodeName>| format!("{} {}", conflict.mac, owner.unwrap());
        let mut heartbeat = |conflicts: &mut AddressConflicts| {
            conflicts.observe(&[speaker], &BTreeSet::new(), now);
            let defended = conflicts.defend(|_| true, |_| true, now);
            conflicts.report(|_| true, describe);
            (defended, sent.try_recv().ok())
        };
        assert_eq!(heartbeat(&mut conflicts), (BTreeSet::new(), None), "nobody denied it");
        conflicts.note_forged(vip, &node_name("node-2"), &[mac].into());
        assert!(conflicts.has_denied());
        let event = VipProblem { vip, reason: ANNOUNCEMENT_FORGED, note: "02:00:00:00:00:02 node-2".to_owned() };
        assert_eq!(heartbeat(&mut conflicts), ([vip].into(), Some(event)));
        conflicts.note_forged(vip, &node_name("node-2"), &[mac].into());
        assert_eq!(heartbeat(&mut conflicts), (BTreeSet::new(), None), "once");
        assert!(!conflicts.has_denied());
    }
}
