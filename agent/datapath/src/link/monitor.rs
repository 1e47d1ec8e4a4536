//! Follows interfaces, addresses, neighbors and routes in the kernel as they change.
//!
//! [`Monitor`] is the handle. Its task (`task.rs`) follows a netlink session (`session.rs`).

mod session;
mod task;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use tokio::{sync::watch, task::JoinHandle};
use tracing::warn;

use self::{session::NetlinkSession, task::MonitorTask};
use super::{
    LinkError, Links, ResolvedNeighbors,
    neighbor_table::ResolveTargets,
    probing::{PeersBySegment, SegmentReaches},
    unreachability::Doubts,
};
use vipmux_supervisor::Supervisor;

/// What is followed beside the interfaces themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Targets {
    resolve: ResolveTargets,
    /// The veths whose other ends are read.
    veths: BTreeSet<u32>,
    /// The interfaces whose handling of VLAN tags is read.
    tags: BTreeSet<u32>,
    /// The nodes in doubt.
    doubts: Doubts,
    /// The interfaces whose incoming frames show that this node's own link works.
    ports: BTreeSet<u32>,
    /// The other nodes on each segment.
    peers: PeersBySegment,
    /// The ports whose frames are counted, each with the interfaces by which they come in.
    entrances: BTreeMap<u32, BTreeSet<u32>>,
}

/// Keeps [`Links`] and [`ResolvedNeighbors`] up to date, in the network namespace of the thread
/// that started it.
///
/// Both are watched values: a late reader sees the newest state, never a backlog. When the kernel
/// drops notifications, everything is read again.
#[derive(Debug)]
pub struct Monitor {
    links: watch::Receiver<Arc<Links>>,
    neighbors: watch::Receiver<Arc<ResolvedNeighbors>>,
    reaches: watch::Receiver<Arc<SegmentReaches>>,
    frames: watch::Receiver<Arc<BTreeMap<u32, u64>>>,
    targets: watch::Sender<Targets>,
    task: JoinHandle<()>,
}

impl Monitor {
    /// Subscribes, reads everything once, and starts the task that follows changes.
    ///
    /// The task ends after [`Self::stop`] or when the monitor is dropped. Both remove its neighbor
    /// entries. If the task is aborted with the runtime, the entries stay in the kernel, and the
    /// next monitor recognizes them.
    pub async fn start(supervisor: &Supervisor) -> Result<Self, LinkError> {
        let session = NetlinkSession::open().await?;
        let (links_sender, links) = watch::channel(Arc::new(session.links.clone()));
        let (neighbors_sender, neighbors) = watch::channel(Arc::default());
        let (reaches_sender, reaches) = watch::channel(Arc::default());
        let (frames_sender, frames) = watch::channel(Arc::default());
        let (targets, targets_receiver) = watch::channel(Targets::default());
        let follower = MonitorTask {
            targets: targets_receiver,
            links: links_sender,
            neighbors: neighbors_sender,
            reaches: reaches_sender,
            frames: frames_sender,
        };
        let task = supervisor.spawn("interface monitor", follower.run(session));
        Ok(Self { links, neighbors, reaches, frames, targets, task })
    }

    /// Returns a receiver of the interfaces, now and as they change.
    pub fn links(&self) -> watch::Receiver<Arc<Links>> {
        self.links.clone()
    }

    /// Returns a receiver of the [resolved](Self::resolve) addresses, now and as they change. A new
    /// address is missing until it has been looked up.
    pub fn neighbors(&self) -> watch::Receiver<Arc<ResolvedNeighbors>> {
        self.neighbors.clone()
    }

    /// Sets the addresses to resolve (the Nodes') and the interfaces to use (the announcing ones).
    pub fn resolve(&self, interfaces: BTreeSet<u32>, addresses: BTreeSet<IpAddr>) {
        self.change_targets(|targets| targets.resolve = ResolveTargets { interfaces, addresses });
    }

    /// Sets the veths whose other ends [`Links::delivery`] needs.
    pub fn follow_veths(&self, veths: BTreeSet<u32>) {
        self.change_targets(|targets| targets.veths = veths);
    }

    /// Sets the interfaces of which [`Links::strips_tags`] tells.
    pub fn follow_tags(&self, interfaces: BTreeSet<u32>) {
        self.change_targets(|targets| targets.tags = interfaces);
    }

    /// Sets the nodes in doubt, by the address to resolve. Their kernels are asked, and those that do
    /// not answer become [`Neighbor::Silent`](super::Neighbor::Silent). `ports`: the interfaces whose
    /// incoming frames show that this node's own link works.
    pub fn doubt(&self, doubts: Doubts, ports: BTreeSet<u32>) {
        self.change_targets(|targets| (targets.doubts, targets.ports) = (doubts, ports));
    }

    /// Sets the other nodes on each segment, of which some are asked. Each address must be one to
    /// [resolve](Self::resolve).
    pub fn probe(&self, peers: PeersBySegment) {
        self.change_targets(|targets| targets.peers = peers);
    }

    /// Returns how this node reaches others on each [probed](Self::probe) segment.
    pub fn reaches(&self) -> Arc<SegmentReaches> {
        Arc::clone(&self.reaches.borrow())
    }

    /// Sets the ports whose frames are counted, each with the interfaces by which they come in: itself,
    /// or a bond's cards.
    pub fn count_frames(&self, entrances: BTreeMap<u32, BTreeSet<u32>>) {
        self.change_targets(|targets| targets.entrances = entrances);
    }

    /// Returns the number of frames that came in by each [counted](Self::count_frames) port, as it was
    /// up to a second ago.
    pub fn frames(&self) -> Arc<BTreeMap<u32, u64>> {
        Arc::clone(&self.frames.borrow())
    }

    fn change_targets(&self, change: impl FnOnce(&mut Targets)) {
        self.targets.send_if_modified(|targets| {
            let before = targets.clone();
            change(targets);
            *targets != before
        });
    }

    /// Removes the neighbor entries and ends the task.
    pub async fn stop(self) {
        drop(self.targets);
        if let Err(error) = self.task.await {
            warn!(%error, "interface monitor failed");
        }
    }
}
