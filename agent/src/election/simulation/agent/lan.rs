//! What an agent says and asks on the LAN.

use std::time::Duration;

use vipmux_common::abi::Mac;

use crate::{
    election::{
        Found, Input,
        simulation::{Turn, World},
    },
    model::Vip,
};

/// As in `announce/schedule.rs`: seconds from one announcement to the next.
const BURST: [u64; 4] = [1, 2, 4, 8];
/// As in `announce/probe.rs`: how often the LAN is asked for an address.
const ROUNDS: u32 = 3;

impl World {
    /// The announcements of a leadership begin.
    pub(super) fn burst(&mut self, node: usize, vip: Vip) {
        self.sequence += 1;
        let lead = self.sequence;
        if let Some(agent) = &mut self.nodes[node].agent {
            agent.led.insert(vip, lead);
            let after = self.dice.micros(0, 300);
            self.turn_after(node, after, Turn::Announce { vip, lead, round: 0 });
        }
    }

    pub(super) fn announce(&mut self, node: usize, vip: Vip, lead: u64, round: usize) {
        if self.nodes[node].agent.as_ref().is_none_or(|agent| agent.led.get(&vip) != Some(&lead)) {
            return;
        }
        self.broadcast(node, vip);
        if let Some(wait) = BURST.get(round) {
            self.turn_after(node, Duration::from_secs(*wait), Turn::Announce { vip, lead, round: round + 1 });
        }
    }

    pub(super) fn probe(&mut self, node: usize, vip: Vip, detect: bool, round: u32) {
        let found = if self.strangers.contains(&vip) && self.network.is_on(node) {
            Found::Stranger(Mac::new([2, 0, 0, 0, 0, 9]))
        } else if self.is_answered(node, vip) {
            Found::Peer
        } else if round < ROUNDS {
            let after = Duration::from_millis(if detect { 100 } else { 20 });
            return self.turn_after(node, after, Turn::Probe { vip, detect, round: round + 1 });
        } else {
            Found::Nobody
        };
        self.work(node, vec![Input::Probed { vip, found }]);
    }
}
