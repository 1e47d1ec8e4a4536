//! From what is settled, on the interfaces of now, to the kernel, the peers and the election.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use super::{
    Agent, AgentError,
    kernel::{Synced, boottime},
    settle::{self, Settled},
};
use crate::{
    election::Input,
    link::{Links, Monitor, Neighbors},
    plan::{Desired, REST},
    snat,
};

impl Agent {
    /// Brings the interfaces, and then the kernel, to what is settled.
    pub(super) fn follow(
        &mut self,
        monitor: &Monitor,
        settled: &Settled,
        links: &Links,
        neighbors: &Neighbors,
    ) -> Result<(), AgentError> {
        let mut complaints = BTreeSet::new();
        self.attach(links, settled, &mut complaints)?;
        let wanted = settled.nodes.values().filter_map(|addresses| addresses.first()).copied().collect();
        monitor.resolve(self.interfaces.segments.iter().map(|segment| segment.ifindex).collect(), wanted);
        self.update(links, settled, neighbors, complaints)?;
        let linked = self.interfaces.linked();
        if linked != self.linked {
            self.linked = linked;
            self.kernel.note_links()?;
        }
        Ok(())
    }

    /// Brings the kernel to what is settled, then tells the election who was chosen.
    fn update(
        &mut self,
        links: &Links,
        settled: &Settled,
        neighbors: &Neighbors,
        mut complaints: BTreeSet<String>,
    ) -> Result<(), AgentError> {
        let desired = self.desired(links, settled, neighbors, &mut complaints);
        let uplinks = self.interfaces.segments.iter().map(|segment| segment.ifindex);
        let wanted = self.wanted.follow(&desired, uplinks);
        let direct = snat::has_direct(&wanted);
        if direct {
            self.look_in(links, true, &mut complaints)?;
        }
        let before = self.kernel.announced();
        let mut commands = Vec::new();
        let (elector, carrier, vitals) = (&mut self.elector, self.carrier, &self.vitals);
        let begun = Instant::now();
        let synced = self.kernel.sync(&desired, |kernel| {
            commands.extend(elector.beat(kernel, carrier)?);
            vitals.turn(boottime()?, kernel.deadline());
            Ok(())
        });
        let Synced { refused, unreachable, leftovers, steps } = synced?;
        self.meters.applied(steps, refused.len(), begun.elapsed());
        self.measure(settled);
        self.react(&commands)?;
        self.tell_peers(links, settled, &desired)?;
        if !direct {
            self.look_in(links, false, &mut complaints)?;
        }
        self.retry = (leftovers || !refused.is_empty()).then(|| Instant::now() + REST);
        complaints.extend(refused.iter().map(ToString::to_string));
        complaints.extend(unreachable.iter().map(|claim| self.lost(claim)));
        self.snat.want(wanted);
        self.groups.want(self.solicited(&desired));
        if settled.look >= self.awaited {
            self.choose(settled, &desired)?;
        }
        settle::tell(&self.refused, &complaints);
        self.refused = complaints;
        let anew = std::mem::take(&mut self.changed);
        for (vip, place) in self.kernel.announced() {
            if anew || before.get(&vip) != Some(&place) {
                self.lead(vip);
            }
        }
        if !self.ready && !self.interfaces.attached.is_empty() {
            self.ready = true;
            self.beat()?;
            tracing::info!(
                node = %self.options.node,
                vips = desired.vips.len(),
                services = desired.services.len(),
                "ready"
            );
        }
        Ok(())
    }

    /// Counts what was settled and is now in the maps, once.
    fn measure(&mut self, settled: &Settled) {
        let course = settled.course;
        if course == self.course {
            return;
        }
        self.course = course;
        self.meters.settled(course.took);
        self.meters.tally(&settled.tally);
        if let Some(since) = course.since {
            self.meters.arrived(since.elapsed());
        }
    }

    /// Tells the election what is wanted. The beat after it opens the fence, which lets announcements out.
    fn choose(&mut self, settled: &Settled, desired: &Desired) -> Result<(), AgentError> {
        let wanted = settled.contenders.iter().filter(|(vip, _)| desired.vips.contains_key(vip));
        let wanted = wanted.map(|(vip, contenders)| (*vip, contenders.clone())).collect();
        let commands = self.elector.give(&mut self.kernel, Input::Wanted(Arc::new(wanted)))?;
        self.react(&commands)?;
        if !commands.is_empty() {
            self.beat()?;
        }
        Ok(())
    }
}
