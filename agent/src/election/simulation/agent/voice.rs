//! The task that speaks for an agent's membership, and wakes its event loop.

use std::{sync::Arc, time::Duration};

use crate::{
    election::simulation::{Happening, Turn, World},
    model::NodeName,
};

/// As in `runtime/elector.rs`: without a turn of the event loop for so long, gossip falls silent.
const HUNG: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn wake(&mut self, node: usize) {
        let (world, now) = (self.now, self.local(node));
        let Some(agent) = &mut self.nodes[node].agent else { return };
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
        let due = self.nodes[node].agent.as_ref().and_then(|agent| agent.election.next());
        if due.is_some_and(|due| due <= now) { self.elect(node) } else { self.listen(node) }
    }

    pub(super) fn receive(&mut self, node: usize, from: usize, bytes: &[u8]) {
        let now = self.local(node);
        let name = self.nodes[from].name.clone();
        let Some(agent) = &mut self.nodes[node].agent else { return };
        if now.saturating_sub(agent.turned) > HUNG {
            return;
        }
        if let Err(error) = agent.membership.receive(&name, bytes, now) {
            self.checker.violate(|| format!("{name}'s payload makes no sense: {error}"));
        }
        self.listen(node);
    }

    /// The event loop hears of what gossip brought, most often at once.
    pub(super) fn listen(&mut self, node: usize) {
        let Some(agent) = &self.nodes[node].agent else { return };
        if !agent.membership.has_events() || agent.parting {
            return self.flush(node);
        }
        if self.dice.chance(900) {
            return self.elect(node);
        }
        let after = self.dice.micros(100, 5_000);
        self.turn_after(node, after, Turn::Elect);
        self.flush(node);
    }

    /// Sends what is to be sent, and sees to it that the agent is woken in time.
    pub(super) fn flush(&mut self, node: usize) {
        let (world, now, clock) = (self.now, self.local(node), self.nodes[node].clock);
        let Some(agent) = &mut self.nodes[node].agent else { return };
        let outbox = agent.membership.take_outbox();
        let hung = now.saturating_sub(agent.turned) > HUNG;
        let next = agent.membership.next().into_iter().chain(agent.election.next()).min();
        if let Some(next) = next {
            let at = clock.world(next).max(world) + self.dice.micros(100, 1_000);
            if agent.wake.is_none_or(|wake| at + Duration::from_millis(1) < wake) {
                agent.wake = Some(at);
                let run = self.nodes[node].run;
                self.at(at, Happening::Turn { node, run, turn: Turn::Wake });
            }
        }
        if !hung {
            for (to, bytes) in outbox {
                self.transmit(node, &to, bytes);
            }
        }
    }

    fn transmit(&mut self, from: usize, to: &NodeName, bytes: Vec<u8>) {
        let Some(&to) = self.names.get(to) else { return };
        if !self.network.gossips(from, to) || self.dice.chance(self.network.loss) {
            return;
        }
        let copies = 1 + usize::from(self.dice.chance(self.network.twice));
        let bytes: Arc<[u8]> = bytes.into();
        for _ in 0..copies {
            let after = self.dice.micros(100, self.network.delay);
            let turn = Turn::Payload { from, bytes: Arc::clone(&bytes) };
            self.turn_after(to, after, turn);
        }
    }
}
