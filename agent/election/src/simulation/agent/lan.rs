//! Announcements and probes of an agent on the LAN.

use std::time::Duration;

use vipmux_common::abi::Mac;

use crate::{
    AddressOwner, Input,
    simulation::{AgentEvent, World},
};
use vipmux_model::Vip;

/// The seconds from one announcement to the next, as in `announce/schedule.rs`.
const BURST: [u64; 4] = [1, 2, 4, 8];
/// The number of repeated probes for an address, as in `announce/probe.rs`.
const ROUNDS: u32 = 3;

impl World {
    /// Begins the announcements of a leadership.
    pub(super) fn burst(&mut self, node: usize, vip: Vip) {
        let lead = self.schedule.unique();
        if let Some(agent) = &mut self.cluster.nodes[node].agent {
            agent.led.insert(vip, lead);
            let after = self.dice.micros(0, 300);
            self.schedule_agent(node, after, AgentEvent::Announce { vip, lead, round: 0 });
        }
    }

    pub(super) fn announce(&mut self, node: usize, vip: Vip, lead: u64, round: usize) {
        if self.cluster.nodes[node].agent.as_ref().is_none_or(|agent| agent.led.get(&vip) != Some(&lead)) {
            return;
        }
        self.broadcast(node, vip);
        if let Some(wait) = BURST.get(round) {
            self.schedule_agent(node, Duration::from_secs(*wait), AgentEvent::Announce { vip, lead, round: round + 1 });
        }
    }

    pub(super) fn probe(&mut self, node: usize, vip: Vip, detect: bool, round: u32) {
        let owner = if self.cluster.foreign_speakers.contains(&vip) && self.cluster.network.is_on(node) {
            AddressOwner::ForeignSpeaker(Mac::new([2, 0, 0, 0, 0, 9]))
        } else if self.cluster.is_answered(node, vip, self.schedule.now) {
            AddressOwner::Peer
        } else if round < ROUNDS {
            let after = Duration::from_millis(if detect { 100 } else { 20 });
            return self.schedule_agent(node, after, AgentEvent::Probe { vip, detect, round: round + 1 });
        } else {
            AddressOwner::Nobody
        };
        self.work(node, vec![Input::Probed { vip, owner }]);
    }
}
