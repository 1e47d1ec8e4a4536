//! Announcements of this node's VIPs with the MACs of peers: real ones, and forged ones.
//!
//! Any host on the LAN can announce a VIP with a node's MAC. The program yields to the first such
//! announcement, since a peer that took the VIP over announces it too. Only that peer knows whether
//! it did. It publishes its claim before it announces. So if its state is newer than the
//! announcement and has no claim, the announcement was not its own: it was forged.
//!
//! Then this node leads again, and is *assured*: for a minute after the last forged announcement,
//! the program does not yield. The peers are still asked about each announcement. If one claims the
//! VIP, is not alive, or does not answer in time, this node yields. Then the Lease decides.
//!
//! ```text
//!                        announced                  denied by all announcers
//!  Leading ───────────────────────────► Yielded ──────────────────────────────► Leading, assured
//!    ▲                                   │   ▲                                     │   │     ▲
//!    └─── the Lease is still ours ───────┘   └──── not denied, or of no known peer ┘   └─────┘
//!                                                                               announced, denied
//! ```

use std::{collections::BTreeMap, time::Duration};

use super::{
    Command, Election,
    timing::{LEASE_READ_INTERVAL, PEER_QUESTION_RETRY},
};
use vipmux_model::NodeName;

/// The peers that were asked about announcements, and the last look at the Leases.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    /// The peers that have not answered, and when each was asked.
    asked: BTreeMap<NodeName, Duration>,
    /// The Leases were looked at.
    looked: Option<Duration>,
}

impl Election {
    /// Asks the peers with whose MACs VIPs were announced, until each has answered.
    pub(super) fn ask_announcers(&mut self, now: Duration) {
        let mut open: BTreeMap<&NodeName, Duration> = BTreeMap::new();
        for state in self.index.own.iter().filter_map(|vip| self.states.get(vip)) {
            for (name, announcements) in state.own().into_iter().flat_map(|own| &own.announced_by) {
                let last = open.entry(name).or_default();
                *last = announcements.last.max(*last);
            }
        }
        self.inquiries.asked.retain(|name, _| open.contains_key(name));
        for (name, last) in open {
            let asked = self.inquiries.asked.get(name).copied();
            if asked.is_none_or(|asked| asked <= last || now >= asked + PEER_QUESTION_RETRY) {
                self.inquiries.asked.insert(name.clone(), now);
                self.commands.push(Command::Ask(name.clone()));
            }
            self.schedule.wake_at(now + PEER_QUESTION_RETRY);
        }
    }

    /// Looks at the Leases now and then, while a VIP is assured.
    pub(super) fn look_at_leases(&mut self, now: Duration) {
        let due = self.inquiries.looked.map_or(now, |looked| looked + LEASE_READ_INTERVAL);
        if now < due {
            self.schedule.wake_at(due);
        } else if !self.surveys.under_way {
            self.inquiries.looked = Some(now);
            self.survey();
        }
    }
}
