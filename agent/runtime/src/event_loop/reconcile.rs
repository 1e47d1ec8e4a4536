//! Reconciles the kernel, the peers and the election with the serving state.

use std::collections::BTreeSet;

use super::Agent;
use crate::{
    AgentError,
    problems::warnings::Warnings,
    serving::{Applied, Network, attach_task::Extent, kernel::boottime, pipeline::ServingState},
};
use vipmux_datapath::link::{Links, Monitor};
use vipmux_model::{NodeName, Vip, desired::Desired};

impl Agent {
    /// Brings the kernel to the desired state, and then tells the election which VIPs are wanted. `attach`:
    /// brings the interfaces to it, too, beside the event loop. If that changes something, another
    /// reconciliation follows.
    pub(crate) fn reconcile(
        &mut self,
        monitor: &Monitor,
        state: &ServingState,
        network: &Network,
        attach: bool,
    ) -> Result<(), AgentError> {
        let links = &network.links;
        let mut warnings = Warnings::new(self.serving.is_ready());
        let changes = self.serving.follow(links, state);
        if attach {
            self.serving.begin_attach(Extent::All);
        }
        if !self.serving.attach.has_begun() {
            // An earlier agent's maps stay as they are until it is known what is attached.
            return Ok(());
        }
        self.serving.attach.warnings().iter().for_each(|warning| warnings.add(warning.clone()));
        self.serving.interfaces.warn(links, &mut warnings);
        self.announcements.update_segments(&changes);
        // First, or a node that was silent before this agent started would be reached for a moment.
        self.doubt_nodes(&state.nodes, monitor);
        let own = state.nodes.values().filter_map(|addresses| addresses.first());
        // Of Nodes only, or other holders of the gossip key could fill the neighbor table.
        let is_node = |(name, _): &(&NodeName, _)| state.nodes.contains_key(*name);
        let others = self.election.peer_addresses().iter().filter(is_node).flat_map(|(_, addresses)| addresses);
        let addresses = own.chain(others).copied().collect();
        monitor.follow_veths(self.serving.interfaces.native_veths(links));
        monitor.follow_tags(self.serving.interfaces.cards());
        monitor.resolve(self.serving.interfaces.segments.iter().map(|segment| segment.ifindex).collect(), addresses);
        let desired = self.serving.desired(state, network, self.election.peers(), self.hashing.used(), &mut warnings);
        let nat = self.serving.desired_nat(&desired);
        if !self.serving.has_inlets(&nat) {
            return Ok(());
        }
        let before = self.serving.kernel.announced();
        let Applied { synced, .. } = self.sync(state, &desired)?;
        let lossy = self.report_losses(links, &desired);
        let Self { serving, election, .. } = self;
        let network = (&serving.interfaces, &**links);
        let unserved = serving.kernel.observed().unserved(&desired, &synced.refused);
        let commands = election.update_node(&mut serving.kernel, network, state, &desired, (unserved, lossy))?;
        self.execute(&commands)?;
        self.serving.finish(&desired, &synced, nat, &mut warnings);
        if self.election.is_current(state) {
            self.set_wanted(state, &desired)?;
        }
        self.serving.replace_warnings(warnings);
        for vip in self.serving.take_unannounced(&before) {
            self.announcements.begin(vip, &self.serving);
        }
        if self.serving.become_ready() {
            self.extend_fence()?;
            let (vips, services) = (desired.vips.len(), desired.services.len());
            tracing::info!(node = %self.node, vips, services, "ready");
        }
        Ok(())
    }

    /// Reports where and for which VIPs this node gives no answers. Returns these VIPs.
    fn report_losses(&mut self, links: &Links, desired: &Desired) -> BTreeSet<Vip> {
        let (interfaces, node) = (&self.serving.interfaces, &self.node);
        let why = interfaces.loss(links);
        let lossy = interfaces.lossy().count() + interfaces.lost_tags().count();
        self.telemetry.answers_lost((lossy, interfaces.bypassed()), why.clone());
        let lost = desired
            .vips
            .iter()
            .filter(|(_, vip)| interfaces.loses(vip.interfaces, vip.vlan.map_or(0, |vlan| vlan.get().into())));
        let lossy: BTreeSet<_> = lost.map(|(vip, _)| *vip).collect();
        self.announcements.report_losses(&lossy, &format!("{node}: {}", why.unwrap_or_default()));
        lossy
    }

    /// Brings the maps to the desired state, with heartbeats meanwhile.
    fn sync(&mut self, state: &ServingState, desired: &Desired) -> Result<Applied, AgentError> {
        let mut commands = Vec::new();
        let (elector, telemetry) = (&mut self.election.elector, &self.telemetry);
        let carrier = self.serving.interfaces.has_carrier();
        let applied = self.serving.sync(desired, |kernel| {
            commands.extend(elector.heartbeat(kernel, carrier)?);
            telemetry.alive(boottime()?, kernel.deadline());
            Ok(())
        })?;
        self.telemetry.applied(state, &applied);
        self.execute(&commands)?;
        Ok(applied)
    }

    /// Tells the election which VIPs are wanted. If it has commands, extends the fence at once,
    /// which lets announcements out.
    fn set_wanted(&mut self, state: &ServingState, desired: &Desired) -> Result<(), AgentError> {
        let commands = self.election.set_wanted(&mut self.serving.kernel, state, desired)?;
        self.execute(&commands)?;
        if commands.is_empty() { Ok(()) } else { self.extend_fence() }
    }
}
