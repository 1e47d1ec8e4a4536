//! Waits for the event loop's next event.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{
    select,
    sync::{mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until},
};

use crate::{
    control::Query,
    election::{elector::Elector, peer_health::PeerHealth},
    serving::{
        Network,
        attach_task::{AttachResult, AttachTask},
        pipeline::ServingState,
        self_check::{KernelReading, SelfCheck},
    },
};
use vipmux_cluster::store::{LeaseSnapshot, LeaseSnapshots, StoreReport};
use vipmux_datapath::link::{Links, Monitor, ResolvedNeighbors};
use vipmux_election::{HEARTBEAT, membership::sealing::SealingKeys};
use vipmux_supervisor::signals::StopSignals;

/// The interval at which answers are read while the LAN is asked for an address. Also the pause
/// before the next heartbeat, if one takes longer than [`HEARTBEAT`].
const LISTEN: Duration = Duration::from_millis(10);

/// An event, by falling priority.
#[expect(clippy::large_enum_variant, reason = "one exists at a time, and it moves once")]
pub(crate) enum Event {
    /// [`HEARTBEAT`] has passed.
    Heartbeat,
    /// There are new results of this node's health probes.
    ProbeResults,
    /// The membership has events.
    PeersChanged,
    /// An operation on a Lease ended.
    StoreReport(StoreReport),
    /// Leases changed.
    LeasesChanged,
    /// It is time to send address probes, or to read the answers.
    AddressProbeDue,
    /// The election waits for this time.
    ElectionDue,
    /// An announcement is due.
    AnnouncementDue,
    /// A signal asks the agent to stop.
    Stop,
    /// The serving state, the interfaces, the neighbors or the gossip keys changed, or it is time to
    /// try again.
    Changed,
    /// The programs are attached to the interfaces, or an interface refused them.
    Attached(AttachResult),
    /// A reading of the kernel ended.
    KernelRead(KernelReading),
    /// A request came by the socket.
    Query(Query),
    /// A self-check is due.
    SelfCheckDue,
}

/// The times at which the components want an event.
pub(crate) struct Timers {
    pub(crate) address_probe: Option<Instant>,
    pub(crate) election: Option<Instant>,
    pub(crate) announcement: Option<Instant>,
    pub(crate) retry: Option<Instant>,
    pub(crate) self_check: Option<Instant>,
}

/// The components that wait for something themselves.
pub(crate) struct Sources<'a> {
    pub(crate) elector: &'a mut Elector,
    pub(crate) health: &'a mut PeerHealth,
    pub(crate) self_check: &'a mut SelfCheck,
    pub(crate) attach: &'a mut AttachTask,
}

/// The channels, signals and timers of the event loop.
pub(crate) struct Inputs {
    heartbeat: Interval,
    stop: StopSignals,
    state: watch::Receiver<Arc<ServingState>>,
    links: watch::Receiver<Arc<Links>>,
    neighbors: watch::Receiver<Arc<ResolvedNeighbors>>,
    keys: watch::Receiver<SealingKeys>,
    queries: mpsc::Receiver<Query>,
    reports: mpsc::Receiver<StoreReport>,
    leases: LeaseSnapshots,
    /// A serving state came. Before the first one nothing is known to be wanted, and the maps may
    /// be full of what is in use.
    begun: bool,
}

impl Inputs {
    pub(crate) fn new(
        stop: StopSignals,
        monitor: &Monitor,
        state: watch::Receiver<Arc<ServingState>>,
        keys: watch::Receiver<SealingKeys>,
        queries: mpsc::Receiver<Query>,
        (reports, leases): (mpsc::Receiver<StoreReport>, LeaseSnapshots),
    ) -> Self {
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (links, neighbors) = (monitor.links(), monitor.neighbors());
        Self { heartbeat, stop, state, links, neighbors, keys, queries, reports, leases, begun: false }
    }

    /// Returns whether a serving state came.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Waits for the next event; of several that are ready, returns the first in the order of
    /// [`Event`]. The supervisor ends the agent if the task on the other side of a channel ends.
    ///
    /// Cancel-safe, and each branch is: watches keep their mark, channels their items, the interval
    /// its tick, and the attach and the reading of the kernel go on in their tasks. So no event is lost when
    /// another one comes first.
    pub(crate) async fn next(&mut self, sources: Sources<'_>, timers: &Timers) -> Event {
        let Sources { elector, health, self_check, attach } = sources;
        select! {
            biased;
            _ = self.heartbeat.tick() => Event::Heartbeat,
            Ok(()) = health.changed() => Event::ProbeResults,
            Ok(()) = elector.peers_changed() => Event::PeersChanged,
            Some(report) = self.reports.recv() => Event::StoreReport(report),
            Ok(()) = self.leases.changed(), if self.begun => Event::LeasesChanged,
            () = until(timers.address_probe) => Event::AddressProbeDue,
            () = until(timers.election) => Event::ElectionDue,
            () = until(timers.announcement) => Event::AnnouncementDue,
            () = self.stop.received() => Event::Stop,
            Ok(()) = self.state.changed() => {
                self.begun = true;
                Event::Changed
            }
            Ok(()) = self.links.changed(), if self.begun => Event::Changed,
            Ok(()) = self.neighbors.changed(), if self.begun => Event::Changed,
            Ok(()) = self.keys.changed(), if self.begun => Event::Changed,
            () = until(timers.retry) => Event::Changed,
            attached = attach.ended() => Event::Attached(attached),
            reading = self_check.read() => Event::KernelRead(reading),
            Some(query) = self.queries.recv() => Event::Query(query),
            () = until(timers.self_check) => Event::SelfCheckDue,
        }
    }

    /// Ends a heartbeat. If it took longer than [`HEARTBEAT`], other events come before the next.
    pub(crate) fn end_heartbeat(&mut self, took: Duration) {
        if took >= HEARTBEAT {
            self.heartbeat.reset_after(LISTEN);
        }
    }

    /// Returns the interfaces as they are now.
    pub(crate) fn links(&self) -> Arc<Links> {
        Arc::clone(&self.links.borrow())
    }

    /// Returns the Leases as last seen.
    pub(crate) fn leases(&self) -> LeaseSnapshot {
        self.leases.borrow().clone().unwrap_or_default()
    }

    /// Returns the newest serving state and network, and marks both as seen.
    pub(crate) fn take(&mut self) -> (Arc<ServingState>, Network) {
        let state = Arc::clone(&self.state.borrow_and_update());
        let links = Arc::clone(&self.links.borrow_and_update());
        let neighbors = Arc::clone(&self.neighbors.borrow_and_update());
        (state, Network { links, neighbors })
    }
}

impl Timers {
    /// `now`: `CLOCK_BOOTTIME`, in which `address_probe` and `election` are. Answers to address
    /// probes are read every [`LISTEN`].
    pub(crate) fn new(now: Duration, address_probe: Option<Duration>, election: Option<Duration>) -> Self {
        let start = Instant::now();
        let left = |at: Duration| at.saturating_sub(now);
        Self {
            address_probe: address_probe.map(|at| start + left(at).min(LISTEN)),
            election: election.map(|at| start + left(at)),
            announcement: None,
            retry: None,
            self_check: None,
        }
    }
}

/// Waits until this time; `None`: forever. Cancel-safe.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
