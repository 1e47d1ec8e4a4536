//! The gossip task of an agent: runs its membership, and wakes its event loop.

use std::{sync::Arc, time::Duration};

use crate::simulation::{AgentEvent, World, WorldEvent};
use vipmux_model::NodeName;

/// The time without a heartbeat of the event loop after which gossip stops, as in
/// `runtime/elector.rs`.
const HUNG: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn wake(&mut self, node: usize) {
        let (world, now) = (self.schedule.now, self.local(node));
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        if agent.wake.is_none_or(|wake| wake > world) {
            return;
        }
        agent.wake = None;
        if agent.parting || now.saturating_sub(agent.turned) <= HUNG {
            agent.membership.turn(now);
        }
        if agent.parting && agent.membership.next().is_none() {
            self.flush(node);
            return self.kill(node);
        }
        let due = self.cluster.nodes[node].agent.as_ref().and_then(|agent| agent.election.next());
        if due.is_some_and(|due| due <= now) { self.elect(node) } else { self.listen(node) }
    }

    pub(super) fn receive(&mut self, node: usize, from: usize, bytes: &[u8]) {
        let now = self.local(node);
        let name = self.cluster.nodes[from].name.clone();
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        if now.saturating_sub(agent.turned) > HUNG {
            return;
        }
        if let Err(error) = agent.membership.receive(&name, bytes, now) {
            self.checker.violate(|| format!("{name}'s payload makes no sense: {error}"));
        }
        self.listen(node);
    }

    /// Lets the event loop handle gossip's events, most often at once.
    pub(super) fn listen(&mut self, node: usize) {
        let Some(agent) = &self.cluster.nodes[node].agent else { return };
        if !agent.membership.has_events() || agent.parting {
            return self.flush(node);
        }
        if self.dice.chance(900) {
            return self.elect(node);
        }
        let after = self.dice.micros(100, 5_000);
        self.schedule_agent(node, after, AgentEvent::Elect);
        self.flush(node);
    }

    /// Sends the payloads, and schedules the agent's next wake-up.
    pub(super) fn flush(&mut self, node: usize) {
        let (world, now, clock) = (self.schedule.now, self.local(node), self.cluster.nodes[node].clock);
        let Some(agent) = &mut self.cluster.nodes[node].agent else { return };
        let outbox = agent.membership.take_outbox();
        let hung = now.saturating_sub(agent.turned) > HUNG;
        let next = agent.membership.next().into_iter().chain(agent.election.next()).min();
        if let Some(next) = next {
            let at = clock.world(next).max(world) + self.dice.micros(100, 1_000);
            if agent.wake.is_none_or(|wake| at + Duration::from_millis(1) < wake) {
                agent.wake = Some(at);
                let run = self.cluster.nodes[node].run;
                self.schedule.at(at, WorldEvent::Agent { node, run, event: AgentEvent::Wake });
            }
        }
        if !hung {
            for (to, bytes) in outbox {
                self.transmit(node, &to, bytes);
            }
        }
    }

    fn transmit(&mut self, from: usize, to: &NodeName, bytes: Vec<u8>) {
        let Some(to) = self.cluster.number(to) else { return };
        if !self.cluster.network.gossips(from, to) || self.dice.chance(self.cluster.network.loss) {
            return;
        }
        let copies = 1 + usize::from(self.dice.chance(self.cluster.network.twice));
        let bytes: Arc<[u8]> = bytes.into();
        for _ in 0..copies {
            let after = self.dice.micros(100, self.cluster.network.delay);
            let event = AgentEvent::Payload { from, bytes: Arc::clone(&bytes) };
            self.schedule_agent(to, after, event);
        }
    }
}
