//! The task of a monitor.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::StreamExt;
use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::RouteNetlinkMessage;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tracing::warn;

use super::{
    super::{LinkError, Links, Neighbor, ResolvedNeighbors, probing::SegmentReaches},
    Targets,
    session::{NetlinkSession, concerns_routes},
};
use crate::error_chain::error_chain;

/// The interval at which the other ends of veths are read: the kernel does not report their changes.
const VETHS: Duration = Duration::from_secs(1);

/// The interval at which the frames of ports are read.
const FRAMES: Duration = Duration::from_secs(1);

/// The pause before a removed or ignored neighbor entry is requested again, and before a failed
/// socket is replaced.
const RETRY: Duration = Duration::from_secs(1);

/// The task of a [`Monitor`].
pub(super) struct MonitorTask {
    pub(super) targets: watch::Receiver<Targets>,
    pub(super) links: watch::Sender<Arc<Links>>,
    pub(super) neighbors: watch::Sender<Arc<ResolvedNeighbors>>,
    pub(super) reaches: watch::Sender<Arc<SegmentReaches>>,
    pub(super) frames: watch::Sender<Arc<BTreeMap<u32, u64>>>,
}

impl MonitorTask {
    /// Follows changes until the monitor is dropped. A new session replaces a broken one, and reads
    /// everything again.
    pub(super) async fn run(mut self, mut session: NetlinkSession) {
        loop {
            match self.follow(&mut session).await {
                Ok(()) => {
                    let requests = session.neighbor_table.clear();
                    return session.execute(requests).await;
                }
                Err(error) => {
                    warn!(error = error_chain(&error), "lost track of network interfaces, starting over");
                }
            }
            loop {
                sleep(RETRY).await;
                match session.reopen().await {
                    Ok(()) => break,
                    Err(_) if self.targets.has_changed().is_err() => return,
                    Err(error) => {
                        warn!(error = error_chain(&error), "cannot follow network interfaces");
                    }
                }
            }
        }
    }

    /// Returns `Ok` when the monitor is dropped. Every branch of the `select!` is cancel-safe: a
    /// chunk of notifications is either returned or still in the channel, `changed` keeps its mark,
    /// a carrier's end leads to another session, and the timers are instants.
    async fn follow(&mut self, session: &mut NetlinkSession) -> Result<(), LinkError> {
        self.set_targets(session).await?;
        let mut timers = Timers::new();
        loop {
            let (at, due) = timers.next(session);
            tokio::select! {
                messages = session.notifications.next() => {
                    let messages = messages.ok_or(LinkError::Closed)?;
                    self.process(session, messages).await?;
                }
                messages = session.route_notifications.next() => {
                    if messages.ok_or(LinkError::Closed)?.iter().any(concerns_routes) {
                        session.route_timer.routes_changed(Instant::now());
                    }
                }
                Some(_) = session.carriers.join_next() => return Err(LinkError::Closed),
                changed = self.targets.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.set_targets(session).await?;
                }
                () = sleep_until(at) => {
                    timers.restart(due);
                    self.poll(session, due).await?;
                }
            }
        }
    }

    /// Does what is due.
    async fn poll(&mut self, session: &mut NetlinkSession, due: Due) -> Result<(), LinkError> {
        match due {
            // Other cards may lead to addresses now.
            Due::Routes if session.read_routes().await? => self.set_targets(session).await?,
            Due::Expiry if session.links.expire(Instant::now()) => self.set_targets(session).await?,
            Due::Routes | Due::Expiry => {}
            Due::Doubts => {
                let ports = self.targets.borrow().ports.clone();
                if session.detect_unreachability(&ports).await? {
                    self.publish(session);
                }
            }
            Due::Probes => {
                session.probe_segments().await;
                replace(&self.reaches, &session.probes.reaches());
            }
            Due::Refresh => session.refresh().await,
            Due::Frames => {
                let entrances = self.targets.borrow().entrances.clone();
                replace(&self.frames, &session.read_frames(&entrances).await);
            }
            Due::Veths => {
                let veths = self.targets.borrow().veths.clone();
                session.read_other_ends(&veths).await;
                self.publish(session);
            }
        }
        Ok(())
    }

    async fn process(
        &mut self,
        session: &mut NetlinkSession,
        messages: Vec<NetlinkMessage<RouteNetlinkMessage>>,
    ) -> Result<(), LinkError> {
        let changed = session.observe(messages);
        session.count_tag_notifications(&changed);
        if changed.overrun {
            session.reopen().await?;
            self.set_targets(session).await?;
        } else if changed.links {
            // Addresses may have moved to another interface or gone, and routes with them.
            session.route_timer.routes_changed(Instant::now());
            self.set_targets(session).await?;
            let requests = session.neighbor_table.retry_unresolved();
            session.execute(requests).await;
        } else if !changed.interfaces.is_disjoint(&self.targets.borrow().tags) {
            session.read_tags(&self.targets.borrow().tags);
            self.publish(session);
        } else if changed.neighbors {
            self.publish(session);
        }
        Ok(())
    }

    async fn set_targets(&mut self, session: &mut NetlinkSession) -> Result<(), LinkError> {
        let targets = self.targets.borrow_and_update().clone();
        session.unreachability.set_doubts(&targets.doubts, Instant::now());
        session.probes.set_segments(&targets.peers, Instant::now());
        session.set_targets(&targets).await?;
        replace(&self.reaches, &session.probes.reaches());
        self.publish(session);
        Ok(())
    }

    /// Publishes the state. Readers wake up only if it differs.
    fn publish(&self, session: &NetlinkSession) {
        replace(&self.links, &session.links);
        let mut neighbors = session.neighbor_table.neighbors();
        session.fdb.set_ports(&session.links, &mut neighbors);
        for address in session.unreachability.silent() {
            neighbors.entry(address).and_modify(Neighbor::set_silent);
        }
        replace(&self.neighbors, &neighbors);
    }
}

/// What a [`MonitorTask`] does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Reads routes.
    Routes,
    /// Asks nodes in doubt.
    Doubts,
    /// Asks other nodes on each segment.
    Probes,
    /// Drops what was removed some time ago.
    Expiry,
    /// Requests neighbor entries again.
    Refresh,
    /// Counts the frames of ports.
    Frames,
    /// Reads the other ends of veths.
    Veths,
}

/// The times that are not the session's own.
struct Timers {
    refresh: Option<Instant>,
    frames: Instant,
    veths: Instant,
}

impl Timers {
    fn new() -> Self {
        let now = Instant::now();
        Self { refresh: None, frames: now, veths: now + VETHS }
    }

    /// Returns what is due next, and when.
    fn next(&mut self, session: &NetlinkSession) -> (Instant, Due) {
        let now = Instant::now();
        let refresh = session.neighbor_table.needs_refresh();
        self.refresh = refresh.then(|| self.refresh.unwrap_or(now + RETRY));
        let veths = (!session.links.other_ends.is_empty()).then_some(self.veths);
        let timers = [
            (session.route_timer.due(), Due::Routes),
            (session.unreachability.next(), Due::Doubts),
            (session.probes.next(now), Due::Probes),
            (session.links.next_expiry(), Due::Expiry),
            (self.refresh, Due::Refresh),
            (veths, Due::Veths),
        ];
        let timers = timers.into_iter().filter_map(|(at, due)| Some((at?, due)));
        timers.fold((self.frames, Due::Frames), |first, next| if next.0 < first.0 { next } else { first })
    }

    /// Sets the next time of what is due now.
    fn restart(&mut self, due: Due) {
        let now = Instant::now();
        match due {
            Due::Refresh => self.refresh = None,
            Due::Frames => self.frames = now + FRAMES,
            Due::Veths => self.veths = now + VETHS,
            Due::Routes | Due::Doubts | Due::Probes | Due::Expiry => {}
        }
    }
}

fn replace<T: Clone + PartialEq>(sender: &watch::Sender<Arc<T>>, value: &T) {
    sender.send_if_modified(|current| {
        let changed = **current != *value;
        if changed {
            *current = Arc::new(value.clone());
        }
        changed
    });
}
