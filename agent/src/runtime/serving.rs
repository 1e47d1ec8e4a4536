//! Brings the kernel to the desired state: interfaces, maps, the NAT chain and the multicast
//! groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use vipmux_common::abi::{INTERFACE_FILTER, Mac};

use super::{
    AgentError,
    bypass::Remedy,
    desired::{DesiredInputs, PeerAddresses, PeerMacs, solicited_groups, unreachable_warning},
    handover_macs::HandoverMacs,
    interfaces::{AttachedInterfaces, SegmentChanges},
    kernel::{Kernel, KernelError, Synced},
    orphaned_flows,
    pipeline::ServingState,
    program_places::AttachedClassifier,
    warnings::{Warnings, log_changes},
};
use vipmux_datapath::{
    announce::groups::{self, SolicitedNodeGroup},
    bpf::{attach::Direction, pins::LinkKind},
    error_chain::error_chain,
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
pub(super) struct Network {
    pub(super) links: Arc<Links>,
    pub(super) neighbors: Arc<ResolvedNeighbors>,
}

/// The desired NAT table.
pub(super) struct DesiredNat {
    table: DesiredTable,
    /// A backend of this node has direct server return.
    has_direct: bool,
}

/// One execution of a plan.
pub(super) struct Applied {
    pub(super) synced: Synced,
    pub(super) duration: Duration,
}

/// The state of the kernel, and all that keeps it as desired.
pub(super) struct Serving {
    node: NodeName,
    unreachable: Unreachable,
    handover_macs: HandoverMacs,
    pub(super) kernel: Kernel,
    pub(super) interfaces: AttachedInterfaces,
    nat: Reconciler<DesiredTable>,
    groups: Reconciler<BTreeSet<SolicitedNodeGroup>>,
    orphaned_flows: Reconciler<ServiceBackends>,
    nat_table: TableBuilder,
    /// The interfaces with programs attached, from the last read of the links.
    linked: BTreeSet<(LinkKind, u32)>,
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
    pub(super) fn new(
        node: NodeName,
        unreachable: Unreachable,
        handover_macs: HandoverMacs,
        kernel: Kernel,
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
            nat: snat::start_reconciler(supervisor)?,
            groups: groups::start_reconciler(supervisor),
            nat_table: TableBuilder::default(),
            linked: BTreeSet::new(),
            ready: false,
            warnings: BTreeSet::new(),
            silent: BTreeSet::new(),
            retry: None,
        })
    }

    /// Returns whether the maps came to the desired state once, with a program attached.
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Returns the warnings of the last reconciliation.
    pub(super) fn warnings(&self) -> &BTreeSet<String> {
        &self.warnings
    }

    /// Returns when to reconcile again although nothing changes.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry
    }

    /// Returns the segments that a VIP is announced on by the maps, with the MACs to announce.
    pub(super) fn segments_of(&self, vip: Vip) -> impl Iterator<Item = (u32, Mac)> {
        let value = self.kernel.observed().vips().get(&vip.address().into()).copied().unwrap_or_default();
        self.interfaces.announced_on(value.interfaces, value.vlan)
    }

    /// Attaches the programs to the interfaces that VIPs are to be announced on.
    pub(super) fn attach(
        &mut self,
        links: &Links,
        state: &ServingState,
        warnings: &mut Warnings,
    ) -> Result<SegmentChanges, AgentError> {
        let own = state.nodes.get(&self.node).map_or(&[][..], Vec::as_slice);
        self.interfaces.attach(&mut self.kernel, links, own, warnings)
    }

    /// Returns the desired state on the network as it is now.
    pub(super) fn desired(
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

    /// Computes the NAT table. If there is direct server return, attaches the ingress program
    /// before the maps need it.
    pub(super) fn prepare_nat(
        &mut self,
        desired: &Desired,
        links: &Links,
        warnings: &mut Warnings,
    ) -> Result<DesiredNat, AgentError> {
        let uplinks = self.interfaces.segments.iter().map(|segment| segment.ifindex);
        let table = self.nat_table.update(desired, uplinks);
        let has_direct = snat::has_direct(&table.elements);
        if has_direct {
            self.interfaces.set_direct(&mut self.kernel, links, true, warnings)?;
        }
        Ok(DesiredNat { table, has_direct })
    }

    /// Brings the maps to the desired state. Calls `heartbeat` when one is due meanwhile.
    pub(super) fn sync(
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
    pub(super) fn finish(
        &mut self,
        desired: &Desired,
        synced: &Synced,
        nat: DesiredNat,
        links: &Links,
        warnings: &mut Warnings,
    ) -> Result<(), AgentError> {
        if !nat.has_direct {
            self.interfaces.set_direct(&mut self.kernel, links, false, warnings)?;
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
        Ok(())
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
    pub(super) fn replace_warnings(&mut self, warnings: Warnings) {
        let warnings = warnings.into_texts();
        log_changes(&self.warnings, &warnings);
        self.warnings = warnings;
    }

    /// Returns the led VIPs that must be announced: all if an interface or MAC is new, else those
    /// that moved since `before`.
    pub(super) fn take_unannounced(&mut self, before: &BTreeMap<Vip, (u32, u32)>) -> Vec<Vip> {
        let all = self.interfaces.take_changed();
        let announced = self.kernel.announced().into_iter();
        announced.filter(|(vip, place)| all || before.get(vip) != Some(place)).map(|(vip, _)| vip).collect()
    }

    /// Marks the agent as ready when a program is attached. Returns whether that is new.
    pub(super) fn become_ready(&mut self) -> bool {
        let is_new = !self.ready && !self.interfaces.attached.is_empty();
        self.ready |= is_new;
        is_new
    }

    /// Reads the pinned links, if the programs are attached elsewhere than at the last call.
    pub(super) fn note_links(&mut self) -> Result<(), KernelError> {
        let linked = self.interfaces.linked();
        if linked != self.linked {
            self.linked = linked;
            self.kernel.note_links()?;
        }
        Ok(())
    }

    /// Returns the classifiers that are attached.
    pub(super) fn classifiers(&self) -> Vec<AttachedClassifier> {
        let linked = self.interfaces.linked().into_iter();
        let classifier = |(kind, ifindex)| {
            let filter = self.kernel.interface(ifindex).flags & INTERFACE_FILTER != 0;
            Some(AttachedClassifier { direction: Direction::of(kind)?, ifindex, filter })
        };
        linked.filter_map(classifier).collect()
    }

    /// Puts a classifier before all others on its interface. If that fails, lets it be attached
    /// again.
    pub(super) fn put_first(&mut self, direction: Direction, ifindex: u32) {
        let filter = self.kernel.interface(ifindex).flags & INTERFACE_FILTER != 0;
        let name = interface_name(ifindex);
        match self.kernel.programs.put_first(direction, &name, ifindex, filter) {
            // The link is another one.
            Ok(()) => self.linked.clear(),
            Err(error) => {
                let (program, error) = (direction.kind().program(), error_chain(&error));
                tracing::warn!(program, interface = name, error, "cannot put the program first");
                self.forget_link(ifindex);
            }
        }
    }

    /// Lets the XDP program of a port whose frames bypass it be attached anew, or in generic mode. The
    /// next reconciliation attaches it. Returns whether it does.
    pub(super) fn remedy_bypass(&mut self, ifindex: u32, remedy: Remedy) -> Result<bool, AgentError> {
        let interface = interface_name(ifindex);
        match remedy {
            Remedy::Anew => {
                tracing::warn!(interface, "frames bypass the XDP program, attaching it anew");
                let attached = self.interfaces.attached.get(&ifindex);
                for place in attached.into_iter().flat_map(|attached| attached.places(ifindex)) {
                    self.kernel.programs.detach_xdp(place)?;
                }
                self.forget_link(ifindex);
            }
            Remedy::Generic if self.interfaces.leave_native(ifindex) => {
                tracing::warn!(interface, "frames bypass the native XDP program although it was attached anew");
                self.forget_link(ifindex);
            }
            Remedy::Generic => {
                tracing::error!(interface, "frames bypass the XDP program, leading no VIP here");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets an interface's programs be attached again, since its pinned link is not as desired.
    pub(super) fn forget_link(&mut self, ifindex: u32) {
        self.interfaces.unlink(ifindex);
        self.linked.clear();
    }
}
