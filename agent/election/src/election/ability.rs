//! This node's ability to lead: what it publishes of itself, and the VIPs that it cannot announce.

use std::{collections::BTreeSet, time::Duration};

use super::{Command, Election};
use crate::membership::{Item, ItemKey};
use vipmux_model::Vip;

/// This node's ability to lead.
#[derive(Debug, Default)]
pub(super) struct AbilityToLead {
    /// The hold-down is over.
    pub(super) ready: bool,
    pub(super) draining: bool,
    /// The deadline passes again and again.
    pub(super) unstable: bool,
    /// VIPs that this node cannot announce now.
    pub(super) unable: BTreeSet<Vip>,
    /// VIPs whose answers are known to be lost. This node holds no Lease of them.
    pub(super) lossy: BTreeSet<Vip>,
}

impl AbilityToLead {
    /// Returns what peers get as [`Item::Ready`] and [`Item::Draining`].
    pub(super) const fn published(&self) -> (bool, bool) {
        if self.draining { (true, true) } else { (self.ready && !self.unstable, self.unstable) }
    }
}

impl Election {
    pub(super) fn set_unable(&mut self, unable: BTreeSet<Vip>, now: Duration) {
        // Meanwhile it is the turn of another node, which may not have been heard of yet.
        for vip in unable.symmetric_difference(&self.availability.unable) {
            self.states.entry(*vip).and_modify(|state| state.operating_since = now);
        }
        for vip in unable.difference(&self.availability.unable) {
            self.commands.push(Command::Publish(Item::Unable(*vip)));
        }
        for vip in self.availability.unable.difference(&unable) {
            self.commands.push(Command::Withdraw(ItemKey::Unable(*vip)));
        }
        self.schedule.dirty |= self.availability.unable != unable;
        self.availability.unable = unable;
    }

    /// Notes whose answers are lost. A survey finds the Leases of an earlier agent on this node.
    pub(super) fn set_lossy(&mut self, lossy: BTreeSet<Vip>) {
        let is_new = !lossy.is_subset(&self.availability.lossy);
        self.schedule.dirty |= self.availability.lossy != lossy;
        self.availability.lossy = lossy;
        if is_new && !self.surveys.under_way {
            self.survey();
        }
    }

    pub(super) fn set_ability(&mut self, set: impl FnOnce(&mut AbilityToLead)) {
        let before = self.availability.published();
        set(&mut self.availability);
        let (ready, draining) = self.availability.published();
        if ready != before.0 {
            self.commands.push(Command::Publish(Item::Ready(ready)));
        }
        if draining != before.1 {
            self.commands.push(Command::Publish(Item::Draining(draining)));
        }
        if (ready, draining) != before {
            self.index.preferences = None;
            // The end of a hold-down moves no VIP at once.
            self.schedule.dirty |= draining || before.1;
        }
    }
}
