//! Strangers that have an address: asked for before it is led here for the first time, and told and defended against then.

pub(super) mod owners;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use vipmux_common::abi::Mac;

use super::{Agent, AgentError, kernel::boottime, settle};
use crate::{
    announce::{
        probe::{Outcome, Pace, Turn},
        watch::Conflict,
    },
    election::{Found, Input},
    link::{Links, interface_name},
    model::Vip,
};

impl Agent {
    /// Takes in who was heard since the last beat, and defends what is to be defended.
    pub(super) fn heed_strangers(&mut self, links: &Links) -> Result<(), AgentError> {
        let now = boottime()?;
        if let Some(heard) = self.kernel.strangers()? {
            self.watch.hear(&heard, &self.interfaces.macs(), now);
        }
        self.watch.acquit(|mac| self.kernel.observed().is_peer(mac));
        for vip in self.watch.defend(|vip| self.kernel.leads(vip), now) {
            self.announcer.defend(vip);
        }
        let conflicts = self.watch.conflicts(|vip| self.kernel.leads(vip));
        let conflicts: BTreeMap<_, _> = conflicts.map(|it| (self.told(links, it), it.vip)).collect();
        for (told, vip) in conflicts.iter().filter(|(told, _)| !self.conflicts.contains(*told)) {
            self.tell_owners(*vip, told.clone());
        }
        let conflicts: BTreeSet<_> = conflicts.into_keys().collect();
        if conflicts != self.conflicts {
            settle::tell(&self.conflicts, &conflicts);
            self.meters.contested(conflicts.len());
            self.conflicts = conflicts;
        }
        Ok(())
    }

    /// A stranger was found to have an address before it was put into service.
    pub(super) fn heed_owner(&mut self, vip: Vip, mac: Mac) {
        self.meters.conflict();
        if self.strangers.take(Instant::now()) {
            tracing::warn!(%vip, %mac, "a stranger has this address: it is not announced, and asked for again");
        }
        self.tell_owners(vip, format!("{mac} has the address {vip}: it is not announced, and asked for again"));
    }

    /// Of more than anybody looks at some is left out; the log and the metrics have it too.
    fn tell_owners(&self, vip: Vip, note: String) {
        self.owners.try_send((vip, note)).ok();
    }

    /// Asks the LAN who has these addresses, from the loop's next turn on. Where one is announced nowhere nobody can be asked,
    /// and nobody answered.
    pub(super) fn probe(&mut self, vips: &[(Vip, bool)]) -> Result<(), AgentError> {
        if vips.is_empty() {
            return Ok(());
        }
        let (frames, now) = (self.frames(), boottime()?);
        for &(vip, detect) in vips {
            let value = self.kernel.observed().vips().get(&vip.0.into()).copied().unwrap_or_default();
            let places = self.interfaces.announced_on(value.interfaces, value.vlan).collect();
            let pace = if detect { Pace::Detect } else { Pace::Ask };
            if !detect {
                self.received.insert(vip, frames);
            }
            self.prober.begin(vip, places, pace, now);
        }
        Ok(())
    }

    /// Goes on asking, and tells the election who answered.
    pub(super) fn hear_answers(&mut self) -> Result<(), AgentError> {
        let heard = self.kernel.heard()?;
        let Turn { frames, outcomes } = self.prober.turn(&heard, boottime()?);
        self.send(&frames);
        if outcomes.is_empty() {
            return Ok(());
        }
        let received = self.frames();
        for (vip, outcome) in outcomes {
            let before = self.received.remove(&vip);
            let found = match outcome {
                Outcome::Free if before == Some(received) => Found::Nothing,
                Outcome::Free => Found::Nobody,
                Outcome::Taken { mac, .. } if self.kernel.observed().is_peer(mac) => Found::Peer,
                Outcome::Taken { mac, .. } => Found::Stranger(mac),
            };
            let commands = self.elector.give(&mut self.kernel, Input::Probed { vip, found })?;
            self.react(&commands)?;
        }
        Ok(())
    }

    /// Frames that came in where VIPs are announced; none where the system does not tell.
    fn frames(&self) -> u64 {
        let names: BTreeSet<_> = self.interfaces.attached.keys().map(|port| interface_name(*port)).collect();
        let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        received(&table).filter(|(name, _)| names.contains(*name)).map(|(_, packets)| packets).sum()
    }

    fn told(&self, links: &Links, Conflict { vip, mac, ifindex }: Conflict) -> String {
        let on = links.get(ifindex).map_or_else(|| format!("interface {ifindex}"), |interface| interface.name.clone());
        let own = self.kernel.interface(ifindex).mac;
        format!(
            "the address {vip} is also used by {mac} on {on}: this node keeps it and defends it by announcing {own}, but \
             clients may reach either; take it from that machine or from the pool"
        )
    }
}

/// Interfaces, with the packets that they received: the third column of proc_net_dev(5).
fn received(table: &str) -> impl Iterator<Item = (&str, u64)> {
    table.lines().filter_map(|line| {
        let (name, counters) = line.split_once(':')?;
        Some((name.trim(), counters.split_whitespace().nth(1)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_packets_are_read_by_interface() {
        let table = "Inter-|   Receive                            |  Transmit\n \
             face |bytes    packets errs drop|bytes    packets errs\n    \
             lo:     100       2    0    0      100       2    0\n  \
             eth0: 54321     432    1    0     4321      43    0\n";
        assert_eq!(received(table).collect::<Vec<_>>(), [("lo", 2), ("eth0", 432)]);
    }
}
