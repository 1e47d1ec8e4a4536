//! Announcements and probes on the LAN, and the programs that answer and yield there.

use std::time::Duration;

use vipmux_common::abi::Mac;

use super::{Agent, NodeHandle};
use crate::{
    AddressOwner, Input, PeerAnnouncement,
    mutation::Mutation,
    simulation::{AgentEvent, World, WorldEvent},
};
use vipmux_model::Vip;

/// The seconds from one announcement to the next, as in `announce/schedule.rs`.
const BURST: [u64; 4] = [1, 2, 4, 8];
/// The number of repeated probes for an address, as in `announce/probe.rs`.
const ROUNDS: u32 = 3;

impl NodeHandle<'_> {
    /// Begins the announcements of a leadership.
    pub(super) fn burst(&mut self, vip: Vip) {
        let lead = self.world.schedule.unique();
        let Some(agent) = self.agent() else { return };
        agent.led.insert(vip, lead);
        let after = self.world.dice.micros(0, 300);
        self.schedule(after, AgentEvent::Announce { vip, lead, round: 0 });
    }

    pub(super) fn announce(&mut self, vip: Vip, lead: u64, round: usize) {
        if self.get().agent.as_ref().is_none_or(|agent| agent.led.get(&vip) != Some(&lead)) {
            return;
        }
        self.broadcast(vip, round);
        let repeats = self.world.mutation != Some(Mutation::RepeatsNoAnnouncement);
        if let Some(wait) = BURST.get(round).filter(|_| repeats) {
            self.schedule(Duration::from_secs(*wait), AgentEvent::Announce { vip, lead, round: round + 1 });
        }
    }

    pub(super) fn probe(&mut self, vip: Vip, detect: bool, round: u32) {
        let (cluster, now) = (&self.world.cluster, self.world.schedule.now);
        let stranger = AddressOwner::ForeignSpeaker(Mac::new([2, 0, 0, 0, 0, 9]));
        let owner = if cluster.foreign_speakers.contains(&vip) && cluster.network.is_on(self.node) {
            stranger
        } else if let Some(other) = cluster.answerer(self.node, vip, now).or_else(|| cluster.proxied(self.node, vip)) {
            // Nodes publish their MACs by gossip.
            let other = &cluster.nodes[other].name;
            let has_heard = |agent: &Agent| agent.membership.peers().members.contains_key(other);
            let is_known = self.get().agent.as_deref().is_some_and(has_heard);
            if is_known { AddressOwner::Peer } else { stranger }
        } else if round < ROUNDS {
            let after = Duration::from_millis(if detect { 40 } else { 20 });
            return self.schedule(after, AgentEvent::Probe { vip, detect, round: round + 1 });
        } else if cluster.network.is_on(self.node) {
            AddressOwner::Nobody
        } else {
            AddressOwner::Unknown
        };
        self.give([Input::Probed { vip, owner }]);
    }

    /// Sends announcements of a VIP, unless the node's programs hold them back.
    fn broadcast(&mut self, vip: Vip, round: usize) {
        let World { cluster, dice, schedule, checker, .. } = &mut *self.world;
        let from = self.node;
        if !cluster.answers(from, vip, schedule.now) {
            return;
        }
        if cluster.network.lan_loss > 0 && dice.chance(cluster.network.lan_loss) {
            cluster.lost.insert(vip, round + 1);
        } else {
            cluster.lost.remove(&vip);
            if cluster.announced.insert(vip, from) != Some(from) {
                checker.touch_these([&vip]);
            }
        }
        for node in 0..cluster.nodes.len() {
            if node != from && cluster.network.hears(from, node) && !dice.chance(cluster.network.lan_loss) {
                schedule.after(dice.micros(20, 500), WorldEvent::Heard { node, from, vip });
            }
        }
    }

    /// Handles a peer's announcement of a VIP, or a forged one.
    pub(in crate::simulation) fn hear(&mut self, from: usize, vip: Vip, forged: bool) {
        let now = self.now();
        if !self.world.cluster.network.is_on(self.node) || !self.get().kernel.flags.contains(&vip) {
            return;
        }
        if !forged {
            self.world.checker.heard(vip, self.world.schedule.now);
        }
        if self.get_mut().kernel.hear(vip, from, now) {
            self.set_flag(vip, false);
            self.log(|| format!("kernel: yields {vip}, which n{from} announced"));
        }
    }

    /// Takes the announcements of led VIPs since the last heartbeat.
    pub(super) fn take_heard(&mut self) -> Vec<PeerAnnouncement> {
        let heard = std::mem::take(&mut self.get_mut().kernel.heard);
        let at = self.get();
        let led = at.agent.iter().flat_map(|agent| agent.led.keys());
        led.filter_map(|vip| {
            let by = heard.range((*vip, 0)..=(*vip, usize::MAX));
            let at_last = by.clone().map(|(_, at)| *at).max();
            let by = by.map(|((_, node), _)| self.world.cluster.nodes[*node].name.clone()).collect();
            let yielded = !at.kernel.flags.contains(vip);
            let at = at_last.or(yielded.then_some(Duration::ZERO))?;
            Some(PeerAnnouncement { vip: *vip, by, at, yielded })
        })
        .collect()
    }

    /// Sets or clears a leading flag. Returns whether it changed.
    pub(in crate::simulation) fn set_flag(&mut self, vip: Vip, leads: bool) -> bool {
        let flags = &mut self.get_mut().kernel.flags;
        let changed = if leads { flags.insert(vip) } else { flags.remove(&vip) };
        if changed {
            self.world.checker.touch(vip, self.node, leads);
        }
        changed
    }
}
