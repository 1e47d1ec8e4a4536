//! Follows the objects of the API server.
//!
//! ```text
//! one watch per kind (kind_watch) -> decode, prune -> table -> Objects
//! ```
//!
//! Objects are read and checked like those of [manifests](super::manifests). A malformed object is
//! a [`Problem`](vipmux_model::objects::Problem), and its last good version stays in force.
//!
//! While the API server is away everything stays as it was. A watch that comes back continues where
//! it was, or lists all objects again. The objects of before stay in force until the list is complete. Then
//! all that changed meanwhile counts at once.

mod discovery;
mod kind_watch;
mod outage;
mod prune;
mod retry_delay;
mod table;

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

use self::{discovery::Discovery, kind_watch::KindWatch, outage::Outage, table::ObjectTable};
use crate::rollback::{self, Rollbacks};
use vipmux_model::objects::{Objects, object::Kind};
use vipmux_supervisor::Supervisor;

/// Updates on their way from the watches, at most.
const UPDATE_CAPACITY: usize = 256;
/// Updates that are applied before a snapshot is published.
const MAX_BATCH: usize = 64;

/// The process that the objects are read for. Fields that it does not need are dropped on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// The agent. Fields that others write often are dropped, so that such a write is no change.
    Agent,
    /// The allocator, which writes statuses. `metadata.resourceVersion`, generations and the
    /// statuses of vipmux's own kinds are kept.
    Allocator,
}

/// Ends the watches when it is dropped.
#[derive(Debug)]
#[must_use = "the API server is followed until this is dropped"]
pub struct KubernetesGuard {
    refreshed: watch::Sender<u64>,
    rollbacks: Rollbacks,
    /// Aborted when dropped.
    _tasks: JoinSet<()>,
}

impl KubernetesGuard {
    /// Returns how often the API server's state went back, for other watches of it.
    pub fn rollbacks(&self) -> Rollbacks {
        self.rollbacks.clone()
    }

    /// Requests a refresh, like
    /// [`WatchGuard::request_refresh`](super::manifests::WatchGuard::request_refresh). It is done
    /// at once: the watches report changes as they are made, and an API server that is away must
    /// keep nobody waiting.
    pub fn request_refresh(&self) -> u64 {
        self.refreshed.send_modify(|refreshed| *refreshed += 1);
        *self.refreshed.borrow()
    }

    /// Returns the number of the last refresh that is done.
    pub fn refreshed(&self) -> watch::Receiver<u64> {
        self.refreshed.subscribe()
    }
}

/// Objects of an API server that are not listed yet.
#[derive(Debug)]
pub struct UnlistedObjects(oneshot::Receiver<watch::Receiver<Arc<Objects>>>);

impl UnlistedObjects {
    /// Waits until all kinds were listed once. Before that, a missing object is not known to be
    /// gone.
    ///
    /// The receiver holds the latest snapshot. Objects that did not change are the same [`Arc`]s in
    /// the next one. `None`: the [`KubernetesGuard`] was dropped.
    ///
    /// Cancel-safe.
    pub async fn listed(self) -> Option<watch::Receiver<Arc<Objects>>> {
        self.0.await.ok()
    }
}

/// Starts to watch all kinds. Must be called within a tokio runtime.
pub fn follow(client: &Client, consumer: Consumer, supervisor: &Supervisor) -> (UnlistedObjects, KubernetesGuard) {
    follow_within(client, consumer, rollback::LOOK, supervisor)
}

/// Like [`follow`]. It notices within `interval` that the API server's state went back.
pub fn follow_within(
    client: &Client,
    consumer: Consumer,
    interval: Duration,
    supervisor: &Supervisor,
) -> (UnlistedObjects, KubernetesGuard) {
    let rollbacks = rollback::follow(client.clone(), interval, supervisor);
    let (events, incoming) = mpsc::channel(UPDATE_CAPACITY);
    let (listed, listing) = oneshot::channel();
    let (discovery, outage) = (Discovery::new(client.clone()), Outage::new());
    let mut tasks = JoinSet::new();
    for kind in Kind::ALL {
        // Each lives as long as the guard, which aborts it. A watch that is cut off holds nothing
        // that needs care.
        let (client, discovery, events) = (client.clone(), discovery.clone(), events.clone());
        let watch =
            KindWatch::new(client, discovery, kind, consumer, events, rollbacks.clone(), Arc::clone(&outage)).run();
        tasks.spawn(supervisor.supervise(format!("watch of {}", kind.name()), watch));
    }
    tasks.spawn(supervisor.supervise("objects", collect(incoming, listed)));
    (UnlistedObjects(listing), KubernetesGuard { refreshed: watch::Sender::new(0), rollbacks, _tasks: tasks })
}

/// Combines the updates of all watches. Updates that arrived together are published together, from the time on
/// when all kinds are listed.
async fn collect(
    mut incoming: mpsc::Receiver<kind_watch::WatchUpdate>,
    listed: oneshot::Sender<watch::Receiver<Arc<Objects>>>,
) {
    let mut table = ObjectTable::default();
    let (mut listed, snapshots) = (Some(listed), watch::Sender::new(Arc::default()));
    let mut batch = Vec::with_capacity(MAX_BATCH);
    while incoming.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let mut changed = false;
        for event in batch.drain(..) {
            changed |= table.apply(event);
        }
        if changed && table.is_complete() {
            snapshots.send_replace(Arc::new(table.snapshot()));
            if let Some(listed) = listed.take() {
                // An error: nobody waits for the objects.
                let _ = listed.send(snapshots.subscribe());
            }
        }
    }
}
