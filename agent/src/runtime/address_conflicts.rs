//! Reports address conflicts: foreign speakers, other hosts on the LAN, that use the address of a
//! VIP.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use vipmux_common::abi::Mac;

use super::{
    conflict_events::{ADDRESS_IN_USE, VipProblem},
    log_limit::LogLimit,
    warnings::log_changes,
};
use crate::metrics::Meters;
use vipmux_datapath::announce::{
    foreign_speakers::{Conflict, ForeignSpeakers},
    speaker::VipSpeaker,
};
use vipmux_model::Vip;

/// The foreign speakers, with the conflicts that were logged.
pub(super) struct AddressConflicts {
    speakers: ForeignSpeakers,
    /// The conflicts about led VIPs, as last logged.
    conflicts: BTreeSet<String>,
    /// To the task that sends Events to the Services' owners.
    events: mpsc::Sender<VipProblem>,
    meters: Meters,
    log_limit: LogLimit,
}

impl AddressConflicts {
    pub(super) fn new(events: mpsc::Sender<VipProblem>, meters: Meters) -> Self {
        Self {
            speakers: ForeignSpeakers::default(),
            conflicts: BTreeSet::new(),
            events,
            meters,
            log_limit: LogLimit::default(),
        }
    }

    /// Returns the conflicts about led VIPs.
    pub(super) fn texts(&self) -> &BTreeSet<String> {
        &self.conflicts
    }

    /// Adds these speakers for VIPs. `ours`: the MACs of this node.
    pub(super) fn observe(&mut self, speakers: &[VipSpeaker], ours: &BTreeSet<Mac>, now: Duration) {
        self.speakers.observe(speakers, ours, now);
    }

    /// Forgets speakers that are peers. Returns the led VIPs that must be defended now.
    pub(super) fn defend(
        &mut self,
        is_peer: impl Fn(Mac) -> bool,
        leads: impl Fn(Vip) -> bool,
        now: Duration,
    ) -> BTreeSet<Vip> {
        self.speakers.remove_peers(is_peer);
        self.speakers.defend(leads, now)
    }

    /// Logs, counts and reports the conflicts about led VIPs that changed.
    pub(super) fn report(&mut self, leads: impl Fn(Vip) -> bool, describe: impl Fn(&Conflict) -> String) {
        let conflicts = self.speakers.conflicts(leads);
        let conflicts: BTreeMap<_, _> = conflicts.map(|conflict| (describe(&conflict), conflict.vip)).collect();
        for (text, vip) in conflicts.iter().filter(|(text, _)| !self.conflicts.contains(*text)) {
            self.send_event(*vip, text.clone());
        }
        let conflicts: BTreeSet<_> = conflicts.into_keys().collect();
        if conflicts != self.conflicts {
            log_changes(&self.conflicts, &conflicts);
            self.meters.contested(conflicts.len());
            self.conflicts = conflicts;
        }
    }

    /// Reports a foreign speaker that had an address before this node led it.
    pub(super) fn report_taken(&mut self, vip: Vip, mac: Mac) {
        self.meters.address_conflict();
        if self.log_limit.take(Instant::now()) {
            tracing::warn!(%vip, %mac, "foreign speaker has the address, probing again");
        }
        self.send_event(vip, format!("{mac} has the address {vip}: vipmux does not announce it, and probes again"));
    }

    /// Logs how many lines were left out.
    pub(super) fn log_omitted(&mut self, now: Instant) {
        if let Some(omitted) = self.log_limit.end(now) {
            tracing::warn!(untold = omitted, "foreign speakers have more addresses");
        }
    }

    /// Sends an Event. If too many wait, it is left out: the log and the metrics have it too.
    fn send_event(&self, vip: Vip, note: String) {
        self.events.try_send(VipProblem { vip, reason: ADDRESS_IN_USE, note }).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::names::vip4;

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
}
