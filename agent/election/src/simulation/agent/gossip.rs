//! The gossip task of an agent: runs its membership, and wakes its event loop.

use std::{sync::Arc, time::Duration};

use super::NodeHandle;
use crate::{
    membership::{Malformed, as_of_a_later_version},
    simulation::{AgentEvent, World, WorldEvent},
};
use vipmux_model::NodeName;

impl NodeHandle<'_> {
    pub(super) fn wake(&mut self) {
        let (world, now) = (self.world.schedule.now, self.now());
        let Some(agent) = self.agent() else { return };
        if agent.wake.is_none_or(|wake| wake > world) {
            return;
        }
        agent.wake = None;
        if agent.parting || !agent.membership.is_hung(now) {
            agent.membership.turn(now);
        }
        if agent.parting && agent.membership.next().is_none() {
            self.flush();
            return self.kill();
        }
        let due =
            self.get().agent.as_ref().and_then(|agent| agent.executor.election().next()).filter(|_| !self.get().hangs);
        if due.is_some_and(|due| due <= now) { self.elect() } else { self.listen() }
    }

    pub(super) fn receive(&mut self, from: usize, bytes: &[u8]) {
        let now = self.now();
        let name = self.world.cluster.nodes[from].name.clone();
        let Some(agent) = self.agent() else { return };
        if agent.membership.is_hung(now) {
            return;
        }
        // Agents do not learn of a new Node at the same time, and drop what a deleted one sends.
        if let Err(error) = agent.membership.receive(&name, bytes, now)
            && !matches!(error, Malformed::Stranger)
        {
            self.world.checker.violate(|| format!("{name}'s payload makes no sense: {error}"));
        }
        self.listen();
    }

    /// Lets the event loop handle gossip's events, most often at once.
    pub(super) fn listen(&mut self) {
        let Some(agent) = &self.get().agent else { return };
        if !agent.membership.has_events() || agent.parting || self.get().hangs {
            return self.flush();
        }
        if self.world.dice.chance(900) {
            return self.elect();
        }
        let after = self.world.dice.micros(100, 5_000);
        self.schedule(after, AgentEvent::Elect);
        self.flush();
    }

    /// Sends the payloads, and schedules the agent's next wake-up.
    pub(super) fn flush(&mut self) {
        let (world, now, clock) = (self.world.schedule.now, self.now(), self.get().clock);
        let Some(agent) = self.world.cluster.nodes[self.node].agent.as_deref_mut() else { return };
        let outbox = agent.membership.take_outbox();
        let (hung, is_later) = (agent.membership.is_hung(now), agent.later);
        let next = agent.membership.next().into_iter().chain(agent.executor.election().next()).min();
        if let Some(next) = next {
            let at = clock.world(next).max(world) + self.world.dice.micros(100, 1_000);
            if agent.wake.is_none_or(|wake| at + Duration::from_millis(1) < wake) {
                agent.wake = Some(at);
                let run = self.get().run;
                self.world.schedule.at(at, WorldEvent::Agent { node: self.node, run, event: AgentEvent::Wake });
            }
        }
        if !hung {
            for (to, bytes) in outbox {
                self.transmit(&to, bytes, is_later);
            }
        }
    }

    fn transmit(&mut self, to: &NodeName, bytes: Vec<u8>, is_later: bool) {
        let World { cluster, dice, .. } = &mut *self.world;
        let Some(to) = cluster.number(to) else { return };
        if !cluster.network.gossips(self.node, to) || dice.chance(cluster.network.loss) {
            return;
        }
        let copies = 1 + usize::from(dice.chance(cluster.network.twice));
        let bytes: Arc<[u8]> = if is_later { as_of_a_later_version(&bytes).into() } else { bytes.into() };
        for _ in 0..copies {
            let after = self.world.dice.micros(100, self.world.cluster.network.delay);
            let event = AgentEvent::Payload { from: self.node, bytes: Arc::clone(&bytes) };
            self.world.schedule_agent(to, after, event);
        }
    }
}
