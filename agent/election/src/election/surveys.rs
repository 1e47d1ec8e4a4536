//! Surveys of all Leases: what they tell of the leaders, and the Leases that are no longer wanted.

use std::{collections::BTreeMap, time::Duration};

use imbl::OrdMap;

use super::{Command, Election, timing::LEASE_RETENTION, vip_state::VipState};
use crate::{
    lease::Lease,
    membership::{MemberStatus, Peers},
    store_operation::StoreOperation,
};
use vipmux_model::Vip;

/// The progress of surveys, and the Leases that are no longer wanted.
#[derive(Debug, Default)]
pub(super) struct Surveys {
    /// The first survey came back, or failed.
    pub(super) ended: bool,
    pub(super) under_way: bool,
    /// Leases of VIPs that are not wanted, with the time at which this was noticed.
    pub(super) leftover: BTreeMap<Vip, (Lease, Duration)>,
}

impl Election {
    /// Reads all Leases.
    pub(super) fn survey(&mut self) {
        self.surveys.under_way = true;
        self.commands.push(Command::Store(StoreOperation::Survey));
    }

    /// Handles the result of a survey. `leases` is `None` if the store is unavailable.
    pub(super) fn surveyed(
        &mut self,
        asked: Duration,
        leases: Option<OrdMap<Vip, Lease>>,
        peers: &Peers,
        now: Duration,
    ) {
        self.surveys.under_way = false;
        self.schedule.dirty |= !std::mem::replace(&mut self.surveys.ended, true);
        let Some(leases) = leases else { return };
        for (vip, lease) in &leases {
            let Some(state) = self.states.get_mut(vip) else {
                if self.fence.informed {
                    self.surveys.leftover.entry(*vip).or_insert_with(|| (lease.clone(), now)).0 = lease.clone();
                }
                continue;
            };
            if state.learn(lease, now) {
                self.index.touched.insert(*vip);
            }
            if lease.holder == self.local && state.own().is_none() && self.availability.lossy.contains(vip) {
                let delete = StoreOperation::Delete { vip: *vip, version: lease.version.clone() };
                self.commands.push(Command::Store(delete));
            }
        }
        for vip in self.lost_leases(&leases, asked) {
            self.change_state(vip, now, |state, cx| state.lease_changed(leases.get(&vip), !peers.majority, cx));
        }
    }

    /// Returns the VIPs whose Leases this node wrote, and that are another's, of another epoch, or
    /// gone.
    fn lost_leases(&self, leases: &OrdMap<Vip, Lease>, asked: Duration) -> Vec<Vip> {
        let lost = |(vip, state): (&Vip, &VipState)| {
            let written = state.own()?.written.as_ref()?;
            // A Lease that was written after the survey is not lost.
            let epoch = state.own()?.epoch;
            let own = |lease: &Lease| lease.holder == self.local && lease.epoch == epoch;
            (written.at < asked && !leases.get(vip).is_some_and(own)).then_some(*vip)
        };
        self.states.iter().filter_map(lost).collect()
    }

    /// Deletes a Lease that was not wanted for long. Only the first living node by name does so.
    pub(super) fn delete_leftover(&mut self, peers: &Peers, now: Duration) {
        let alive = peers.members.iter().filter(|(_, peer)| peer.status == MemberStatus::Alive);
        if alive.map(|(name, _)| name).min().is_some_and(|first| *first < self.local) {
            return;
        }
        let old = |(_, since): &(Lease, Duration)| now.saturating_sub(*since) >= LEASE_RETENTION;
        let leftover = &mut self.surveys.leftover;
        if let Some(vip) = leftover.iter().find(|(_, leftover)| old(leftover)).map(|(vip, _)| *vip)
            && let Some((lease, _)) = leftover.remove(&vip)
        {
            self.commands.push(Command::Store(StoreOperation::Delete { vip, version: lease.version }));
        }
    }
}
