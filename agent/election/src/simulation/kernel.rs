//! The programs of a node without their agent: they answer until the deadline, and yield to a peer.

use std::{collections::BTreeSet, time::Duration};

use vipmux_model::Vip;

/// The maps of a node. They outlive its agent.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// The VIPs whose leading flag is set.
    pub(super) flags: BTreeSet<Vip>,
    /// The fence's deadline, `CLOCK_BOOTTIME`.
    pub(super) deadline: Duration,
}

impl Kernel {
    pub(super) fn answers(&self, vip: Vip, now: Duration) -> bool {
        now < self.deadline && self.flags.contains(&vip)
    }
}
