//! The programs of a node without their agent: they answer until the deadline, and yield to a peer
//! unless the VIP is assured.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_model::Vip;

/// The maps of a node. They outlive its agent.
#[derive(Debug, Default)]
pub(super) struct SimulatedKernel {
    /// The VIPs whose leading flag is set.
    pub(super) flags: BTreeSet<Vip>,
    /// The VIPs that it does not yield.
    pub(super) assured: BTreeSet<Vip>,
    /// The last announcement of each led VIP by each node since the agent's last heartbeat.
    pub(super) heard: BTreeMap<(Vip, usize), Duration>,
    /// The fence's deadline, `CLOCK_BOOTTIME`.
    pub(super) deadline: Duration,
}

impl SimulatedKernel {
    pub(super) fn answers(&self, vip: Vip, now: Duration) -> bool {
        now < self.deadline && self.flags.contains(&vip)
    }

    pub(super) fn assure(&mut self, vip: Vip, assured: bool) {
        if assured {
            self.assured.insert(vip)
        } else {
            self.assured.remove(&vip)
        };
    }

    /// Handles a node's announcement. Returns whether it yields.
    pub(super) fn hear(&mut self, vip: Vip, from: usize, now: Duration) -> bool {
        if !self.flags.contains(&vip) {
            return false;
        }
        self.heard.insert((vip, from), now);
        now >= self.deadline || !self.assured.contains(&vip)
    }
}
