//! What the programs of a node do with nobody there to tell them: answer until the deadline, and yield to a peer.

use std::{collections::BTreeSet, time::Duration};

use super::{Happening, World};
use crate::model::Vip;

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
    /// Frames that announce a VIP leave a node, unless its programs hold them back.
    pub(super) fn broadcast(&mut self, from: usize, vip: Vip) {
        if !self.answers(from, vip) {
            return;
        }
        for node in 0..self.nodes.len() {
            if node != from && self.network.hears(from, node) && !self.dice.chance(self.network.lan_loss) {
                let after = self.dice.micros(20, 500);
                self.after(after, Happening::Heard { node, from, vip });
            }
        }
    }

    /// A peer speaks for a VIP: it leads it now, and not this node.
    pub(super) fn hear(&mut self, node: usize, from: usize, vip: Vip) {
        if self.network.is_on(node) && self.set_flag(node, vip, false) {
            self.checker.heard(vip, self.now);
            self.tell(Some(node), || format!("kernel: yields {vip}, which n{from} announced"));
        }
    }

    /// Sets or clears a leading flag; whether it was another before.
    pub(super) fn set_flag(&mut self, node: usize, vip: Vip, leads: bool) -> bool {
        let flags = &mut self.nodes[node].kernel.flags;
        let changed = if leads { flags.insert(vip) } else { flags.remove(&vip) };
        if changed {
            self.checker.touch(vip, node, leads);
        }
        changed
    }

    /// Who else answers a node that asks the LAN for an address.
    pub(super) fn is_answered(&self, node: usize, vip: Vip) -> bool {
        (0..self.nodes.len()).any(|other| {
            other != node
                && self.answers(other, vip)
                && self.network.hears(node, other)
                && self.network.hears(other, node)
        })
    }
}
