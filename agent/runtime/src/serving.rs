//! Brings the kernel to the desired state: interfaces, maps, the NAT chain and the multicast
//! groups.

pub(crate) mod attach_task;
pub(crate) mod desired;
pub(crate) mod interfaces;
pub(crate) mod kernel;
pub(crate) mod kernel_error;
pub(crate) mod link_kernel;
pub(crate) mod object_source;
pub(crate) mod pipeline;
pub(crate) mod program_places;
pub(crate) mod repair;
pub(crate) mod repair_budget;
pub(crate) mod self_check;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use vipmux_common::abi::{INTERFACE_FILTER, Mac};

use crate::{
    AgentError,
    election::handover_macs::HandoverMacs,
    problems::{
        bypass::Remedy,
        orphaned_flows,
        warnings::{Warnings, log_changes},
    },
    serving::{
        attach_task::{AttachResult, AttachTask, Extent},
        desired::{DesiredInputs, PeerAddresses, PeerMacs, solicited_groups, unreachable_warning},
        interfaces::{AttachedInterfaces, SegmentChanges},
        kernel::{Kernel, Synced},
        kernel_error::KernelError,
        link_kernel::LinkKernel,
        pipeline::ServingState,
        program_places::AttachedClassifier,
    },
};
use vipmux_datapath::{
    announce::groups::{self, SolicitedNodeGroup},
    bpf::direction::Direction,
    link::{Links, ResolvedNeighbors, interface_name},
    reconciler::Reconciler,
    snat::{self, DesiredTable, TableBuilder},
};
use vipmux_model::{
    NodeName, Vip,
    desired::{Desired, Reach, Unreachable},
    hashing::Hashing,
};
use vipmux_plan::{REST, ServiceBackends};
use vipmux_supervisor::Supervisor;

/// The most names of nodes in a log line.
const MOST_NAMES: usize = 10;

/// The interfaces and neighbors, as the kernel has them.
pub(crate) struct Network {
    pub(crate) links: Arc<Links>,
    pub(crate) neighbors: Arc<ResolvedNeighbors>,
}

/// The desired NAT table.
pub(crate) struct DesiredNat {
    table: DesiredTable,
    /// A backend of this node has direct server return.
    has_direct: bool,
}

/// One execution of a plan.
pub(crate) struct Applied {
    pub(crate) synced: Synced,
    pub(crate) duration: Duration,
}

/// The state of the kernel, and all that keeps it as desired.
pub(crate) struct Serving {
    node: NodeName,
    unreachable: Unreachable,
    handover_macs: HandoverMacs,
    pub(crate) kernel: Kernel,
    pub(crate) interfaces: AttachedInterfaces,
    pub(crate) attach: AttachTask,
    nat: Reconciler<DesiredTable>,
    groups: Reconciler<BTreeSet<SolicitedNodeGroup>>,
    orphaned_flows: Reconciler<ServiceBackends>,
    nat_table: TableBuilder,
    /// The maps came to the desired state once, with a program attached.
    ready: bool,
    /// The warnings of the last reconciliation.
    warnings: BTreeSet<String>,
    /// The nodes that do not answer.
    silent: BTreeSet<NodeName>,
    /// The time to retry entries that did not fit, and interfaces that refused a program.
    retry: Option<Instant>,
}

impl Serving {
    pub(crate) fn new(
        node: NodeName,
        unreachable: Unreachable,
        handover_macs: HandoverMacs,
        (kernel, links): (Kernel, LinkKernel),
        interfaces: AttachedInterfaces,
        supervisor: &Supervisor,
    ) -> Result<Self, AgentError> {
        Ok(Self {
            node,
            unreachable,
            handover_macs,
            orphaned_flows: orphaned_flows::start_reconciler(&kernel, supervisor)?,
            kernel,
            interfaces,
            attach: AttachTask::new(links),
            nat: snat::start_reconciler(supervisor)?,
            groups: groups::start_reconciler(supervisor),
            nat_table: TableBuilder::default(),
            ready: false,
            warnings: BTreeSet::new(),
            silent: BTreeSet::new(),
            retry: None,
        })
    }

    /// Returns whether the maps came to the desired state once, with a program attached.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Returns the warnings of the last reconciliation.
    pub(crate) fn warnings(&self) -> &BTreeSet<String> {
        &self.warnings
    }

    /// Returns when to reconcile again although nothing changes.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry
    }

    /// Returns the segments that a VIP is announced on by the maps, with the MACs to announce.
    pub(crate) fn segments_of(&self, vip: Vip) -> impl Iterator<Item = (u32, Mac)> {
        let value = self.kernel.observed().vips().get(&vip.address().into()).copied().unwrap_or_default();
        self.interfaces.announced_on(value.interfaces, value.vlan)
    }

    /// Begins to attach the programs to the interfaces as they are now, beside the event loop.
    pub(crate) fn begin_attach(&mut self, extent: Extent) {
        self.attach.begin(&self.interfaces, extent, self.ready);
    }

    /// Follows the interfaces as they are now.
    pub(crate) fn follow(&mut self, links: &Arc<Links>, state: &ServingState) -> SegmentChanges {
        let own = state.nodes.get(&self.node).map_or(&[][..], Vec::as_slice);
        let changes = self.interfaces.follow(links, own);
        self.attach.set_links(links);
        changes
    }

    /// Ends an attach. Returns whether to reconcile, since something changed, and the number of interfaces
    /// that others detached a program from.
    pub(crate) fn finish_attach(&mut self, attached: AttachResult) -> Result<(bool, usize), AgentError> {
        self.attach.finish(attached, &mut self.interfaces, self.ready)
    }

    /// Returns whether the ingress program is where this NAT table needs it. If not, attaches it, before the
    /// maps need it.
    pub(crate) fn has_inlets(&mut self, nat: &DesiredNat) -> bool {
        let has = !nat.has_direct || self.interfaces.direct == Some(true);
        if !has {
            self.set_direct(true);
        }
        has
    }

    fn set_direct(&mut self, direct: bool) {
        self.attach.set_direct(direct);
        self.begin_attach(Extent::All);
    }

    /// Returns the number of writes; `None` while an attach is under way.
    pub(crate) fn writes(&self) -> Option<u64> {
        Some(self.kernel.writes() + self.attach.kernel()?.writes())
    }

    /// Returns the desired state on the network as it is now.
    pub(crate) fn desired(
        &mut self,
        state: &ServingState,
        network: &Network,
        (peer_macs, peer_addresses): (&PeerMacs, &PeerAddresses),
        hashing: Hashing,
        warnings: &mut Warnings,
    ) -> Desired {
        let inputs = DesiredInputs {
            node: &self.node,
            unreachable: self.unreachable,
            hashing,
            state,
            links: &network.links,
            neighbors: &network.neighbors,
            interfaces: &self.interfaces,
            peer_macs,
            peer_addresses,
            handover_macs: &self.handover_macs.of(state.nodes.keys()),
            observed: self.kernel.observed(),
            led: self.kernel.led(),
        };
        inputs.desired(warnings)
    }

    /// Computes the NAT table.
    pub(crate) fn desired_nat(&mut self, desired: &Desired) -> DesiredNat {
        let uplinks = self.interfaces.segments.iter().map(|segment| segment.ifindex);
        let table = self.nat_table.update(desired, uplinks);
        DesiredNat { has_direct: snat::has_direct(&table.elements), table }
    }

    /// Brings the maps to the desired state. Calls `heartbeat` when one is due meanwhile.
    pub(crate) fn sync(
        &mut self,
        desired: &Desired,
        heartbeat: impl FnMut(&mut Kernel) -> Result<(), KernelError>,
    ) -> Result<Applied, KernelError> {
        let start = Instant::now();
        let synced = self.kernel.sync(desired, heartbeat)?;
        Ok(Applied { synced, duration: start.elapsed() })
    }

    /// Hands the NAT table and the groups to their tasks, once the maps are as desired. Detaches the
    /// ingress program if there is no direct server return.
    pub(crate) fn finish(&mut self, desired: &Desired, synced: &Synced, nat: DesiredNat, warnings: &mut Warnings) {
        if self.interfaces.direct != Some(nat.has_direct) {
            self.set_direct(nat.has_direct);
        }
        let Synced { refused, unreachable, leftovers, steps } = synced;
        if *steps > 0 {
            self.orphaned_flows.set_desired(self.kernel.observed().service_backends().clone());
        }
        let retry = *leftovers || !refused.is_empty() || self.interfaces.has_refused();
        self.retry = retry.then(|| Instant::now() + REST);
        for refusal in refused {
            warnings.add(refusal.to_string());
        }
        for claim in unreachable {
            warnings.add(unreachable_warning(claim, self.unreachable));
        }
        self.note_silent_nodes(desired);
        self.nat.set_desired(nat.table);
        self.groups.set_desired(solicited_groups(desired, &self.interfaces));
    }

    /// Logs which nodes became silent, and which answer again.
    fn note_silent_nodes(&mut self, desired: &Desired) {
        let silent = desired.nodes.iter().filter(|(_, node)| node.path.reach == Reach::Silent);
        let silent: BTreeSet<_> = silent.map(|(name, _)| name.clone()).collect();
        let listed = |nodes: &[&NodeName]| nodes.iter().map(|node| node.as_str()).collect::<Vec<_>>().join(",");
        let (new, gone): (Vec<_>, Vec<_>) =
            (silent.difference(&self.silent).collect(), self.silent.difference(&silent).collect());
        if !new.is_empty() {
            let (count, first) = (new.len(), listed(&new[..new.len().min(MOST_NAMES)]));
            tracing::warn!(count, first, "nodes do not answer, flows go to others");
        }
        if !gone.is_empty() {
            let (count, first) = (gone.len(), listed(&gone[..gone.len().min(MOST_NAMES)]));
            tracing::info!(count, first, "nodes are reached again");
        }
        self.silent = silent;
    }

    /// Logs the warnings that changed, and keeps them for queries.
    pub(crate) fn replace_warnings(&mut self, warnings: Warnings) {
        let warnings = warnings.into_texts();
        log_changes(&self.warnings, &warnings);
        self.warnings = warnings;
    }

    /// Returns the led VIPs that must be announced: all if an interface or MAC is new, else those
    /// that moved since `before`.
    pub(crate) fn take_unannounced(&mut self, before: &BTreeMap<Vip, (u32, u32)>) -> Vec<Vip> {
        let all = self.interfaces.take_changed();
        let announced = self.kernel.announced().into_iter();
        announced.filter(|(vip, place)| all || before.get(vip) != Some(place)).map(|(vip, _)| vip).collect()
    }

    /// Marks the agent as ready when a program is attached. Returns whether that is new.
    pub(crate) fn become_ready(&mut self) -> bool {
        let is_new = !self.ready && !self.interfaces.attached.is_empty();
        self.ready |= is_new;
        is_new
    }

    /// Returns the classifiers that are attached.
    pub(crate) fn classifiers(&self, kernel: &LinkKernel) -> Vec<AttachedClassifier> {
        let linked = self.interfaces.linked().into_iter();
        let classifier = |(kind, ifindex)| {
            let filter = kernel.interface(ifindex).flags & INTERFACE_FILTER != 0;
            Some(AttachedClassifier { direction: Direction::of(kind)?, ifindex, filter })
        };
        linked.filter_map(classifier).collect()
    }

    /// Lets the XDP program of a port whose frames bypass it be attached anew, or in generic mode. The
    /// next reconciliation attaches it. Returns whether it does.
    pub(crate) fn remedy_bypass(&mut self, ifindex: u32, remedy: Remedy) -> bool {
        let interface = interface_name(ifindex);
        match remedy {
            Remedy::Anew => {
                tracing::warn!(interface, "frames bypass the XDP program, attaching it anew");
                let attached = self.interfaces.attached.get(&ifindex);
                let places = attached.map(|attached| attached.places(ifindex)).unwrap_or_default();
                self.attach.attach_anew(ifindex, places);
            }
            Remedy::Generic if self.interfaces.leave_native(ifindex) => {
                tracing::warn!(interface, "frames bypass the native XDP program although it was attached anew");
                self.attach.forget_link(ifindex);
            }
            Remedy::Generic => {
                tracing::error!(interface, "frames bypass the XDP program, leading no VIP here");
                return false;
            }
        }
        true
    }
}
