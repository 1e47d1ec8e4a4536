//! The API server.
//!
//! ```text
//! a watch for each kind (feed) -> decode, trim -> table -> Objects
//! ```
//!
//! Objects are read and checked as those of [manifests](super::manifests) are. What is malformed is a
//! [`Problem`](super::Problem), and its last good version stays in force. While the API server is away everything stays as it
//! was; a watch that comes back goes on from where it was, or lists anew, and what went meanwhile goes then.

mod feed;
mod table;
mod trim;

use std::sync::Arc;

use kube::Client;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use self::{feed::Feed, table::Table};
use super::{Objects, object::Kind};

/// Events on their way from the watches, at most.
const EVENTS: usize = 256;
/// Events that are taken in before what they came to is passed on.
const BATCH: usize = 64;

/// For whom objects are read: what the other does not need is dropped on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Serves. Nothing that others write often is kept, so that such a write is no change.
    Agent,
    /// Writes statuses: `metadata.resourceVersion`, generations and the statuses of vipmux's own kinds are kept.
    Allocator,
}

/// Ends the following when dropped.
#[derive(Debug)]
#[must_use = "the API server is followed until this is dropped"]
pub struct Guard {
    looked: watch::Sender<u64>,
    /// Aborted when dropped.
    _tasks: JoinSet<()>,
}

impl Guard {
    /// Asks for a look, as [`WatchGuard::look`](super::manifests::WatchGuard::look) does. The watches tell changes as they are
    /// made, and an API server that is away must keep nobody waiting: it is done at once.
    pub fn look(&self) -> u64 {
        self.looked.send_modify(|looked| *looked += 1);
        *self.looked.borrow()
    }

    /// The number of the last look that is done.
    pub fn looked(&self) -> watch::Receiver<u64> {
        self.looked.subscribe()
    }
}

/// Objects of an API server that have yet to be listed.
#[derive(Debug)]
pub struct Listing(watch::Receiver<Option<Arc<Objects>>>);

impl Listing {
    /// Waits until all kinds were listed once: until then, what is not there is not known to be gone. The receiver holds the
    /// latest snapshot; objects that did not change are the very same [`Arc`]s in the next one. `None`: the [`Guard`] was
    /// dropped.
    ///
    /// Cancel-safe.
    pub async fn listed(mut self) -> Option<watch::Receiver<Arc<Objects>>> {
        let first = self.0.wait_for(Option::is_some).await.ok()?.clone()?;
        let (sender, receiver) = watch::channel(first);
        // Ends with either end.
        tokio::spawn(async move {
            while self.0.changed().await.is_ok() {
                let Some(objects) = self.0.borrow_and_update().clone() else { return };
                if sender.send(objects).is_err() {
                    return;
                }
            }
        });
        Some(receiver)
    }
}

/// Follows all kinds. Within a tokio runtime.
pub fn follow(client: &Client, audience: Audience) -> (Listing, Guard) {
    let (events, incoming) = mpsc::channel(EVENTS);
    let (objects, listing) = watch::channel(None);
    let mut tasks = JoinSet::new();
    for kind in Kind::ALL {
        // Each lives as long as the guard, which aborts it; a watch that is cut off holds nothing that needs care.
        tasks.spawn(Feed::new(client.clone(), kind, audience, events.clone()).run());
    }
    tasks.spawn(collect(incoming, objects));
    (Listing(listing), Guard { looked: watch::Sender::new(0), _tasks: tasks })
}

/// Puts together what the watches tell. What came in at once is passed on at once.
async fn collect(mut incoming: mpsc::Receiver<feed::Event>, objects: watch::Sender<Option<Arc<Objects>>>) {
    let mut table = Table::default();
    let mut batch = Vec::with_capacity(BATCH);
    while incoming.recv_many(&mut batch, BATCH).await > 0 {
        let mut changed = false;
        for event in batch.drain(..) {
            changed |= table.take(event);
        }
        if changed && table.is_complete() {
            objects.send_replace(Some(Arc::new(table.snapshot())));
        }
    }
}
