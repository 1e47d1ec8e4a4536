//! The programs of a node without their agent: they answer until the deadline, and yield to a peer.

use std::{collections::BTreeSet, time::Duration};

use super::{World, WorldEvent};
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

impl World {
    /// Sends announcements of a VIP from a node, unless its programs hold them back.
    pub(super) fn broadcast(&mut self, from: usize, vip: Vip) {
        if !self.cluster.answers(from, vip, self.schedule.now) {
            return;
        }
        for node in 0..self.cluster.nodes.len() {
            if node != from
                && self.cluster.network.hears(from, node)
                && !self.dice.chance(self.cluster.network.lan_loss)
            {
                let after = self.dice.micros(20, 500);
                self.schedule.after(after, WorldEvent::Heard { node, from, vip });
            }
        }
    }

    /// Handles a peer's announcement of a VIP: the peer leads it now.
    pub(super) fn hear(&mut self, node: usize, from: usize, vip: Vip) {
        if self.cluster.network.is_on(node) && self.set_flag(node, vip, false) {
            self.checker.heard(vip, self.schedule.now);
            self.log(Some(node), || format!("kernel: yields {vip}, which n{from} announced"));
        }
    }

    /// Sets or clears a leading flag. Returns whether it changed.
    pub(super) fn set_flag(&mut self, node: usize, vip: Vip, leads: bool) -> bool {
        let flags = &mut self.cluster.nodes[node].kernel.flags;
        let changed = if leads { flags.insert(vip) } else { flags.remove(&vip) };
        if changed {
            self.checker.touch(vip, node, leads);
        }
        changed
    }
}
