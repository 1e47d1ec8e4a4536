//! Runs the membership's state machine on the gossip, beside the event loop.
//!
//! A task of its own answers the peers, so that a long read of the manifests does not look like a
//! failure of the node. It falls silent if the event loop hangs
//! ([`Membership::is_hung`]), since an agent that is stuck must not seem alive.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    select,
    sync::{Notify, mpsc, watch},
    time::sleep,
};

#[cfg(debug_assertions)]
use crate::problems::peer_versions;
use crate::serving::kernel::boottime;
use vipmux_election::membership::{Malformed, Membership};
use vipmux_gossip::{DatagramWarnings, Gossip, GossipCount, Incoming};
use vipmux_model::NodeName;

/// The longest time between two looks, also while nothing is due.
const REST: Duration = Duration::from_secs(1);

/// The state that the event loop and the gossip task share.
pub(crate) struct Shared {
    membership: Mutex<Membership>,
    /// Notified when there is something in the outbox.
    pub(crate) outgoing: Notify,
}

impl Shared {
    pub(crate) fn new(membership: Membership) -> Self {
        Self { membership: Mutex::new(membership), outgoing: Notify::new() }
    }

    /// A task that panicked while it held the lock left a state machine that may be inconsistent,
    /// but the event loop ends with it, and the fence closes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the membership has something to do next. It gives the lock back, which the
    /// gossip task needs.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.lock().next()
    }
}

/// Passes payloads between the membership and the gossip's sockets.
pub(crate) struct GossipTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) gossip: Gossip,
    pub(crate) payloads: mpsc::Receiver<Incoming>,
    /// Marked when the membership has events.
    pub(crate) events: watch::Sender<()>,
    pub(crate) warnings: DatagramWarnings,
}

/// Payloads that are received before other tasks run.
const BATCH: usize = 64;

impl GossipTask {
    /// Runs until the task of the sockets ends, or until it is aborted.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let due = self.until_due();
            select! {
                taken = self.payloads.recv_many(&mut batch, BATCH) => if taken == 0 { return },
                () = sleep(due) => {}
                () = self.shared.outgoing.notified() => {}
            }
            let Ok(now) = boottime() else { return };
            let (outbox, has_events, hung) = {
                let mut membership = self.shared.lock();
                let hung = membership.is_hung(now);
                if hung {
                    batch.clear();
                } else {
                    for Incoming { node, bytes } in batch.drain(..) {
                        if let Err(error) = membership.receive(&node, &bytes, now) {
                            note_undecoded(&mut self.warnings, &self.gossip, &node, &error, now);
                        }
                    }
                    membership.turn(now);
                }
                (membership.take_outbox(), membership.has_events(), hung)
            };
            if !outbox.is_empty() && !hung {
                #[cfg(debug_assertions)]
                let outbox = peer_versions::as_published(outbox);
                self.gossip.send(outbox);
            }
            if has_events {
                self.events.send_replace(());
            }
        }
    }

    fn until_due(&self) -> Duration {
        let next = self.shared.next();
        let wait = next.and_then(|next| Some(next.saturating_sub(boottime().ok()?)));
        // While the event loop hangs nothing is done, also if it is due.
        wait.unwrap_or(REST).clamp(Duration::from_millis(1), REST)
    }
}

/// Notes a payload that cannot be used. If it is no message of this version, counts it, and warns if there
/// are many.
fn note_undecoded(warnings: &mut DatagramWarnings, gossip: &Gossip, node: &NodeName, error: &Malformed, now: Duration) {
    let unknown = matches!(error, Malformed::Undecodable(_) | Malformed::TooLong(_) | Malformed::TooMany(_));
    if !unknown {
        tracing::debug!(%node, error = error as &dyn std::error::Error, "message of a node refused");
        return;
    }
    gossip.counters().add(GossipCount::Undecoded, 1);
    if let Some(payloads) = warnings.take(GossipCount::Undecoded, now) {
        let cause = error as &dyn std::error::Error;
        if matches!(error, Malformed::TooMany(_)) {
            tracing::warn!(payloads, %node, error = cause, "node publishes too many items, some are ignored");
        } else {
            tracing::warn!(
                payloads,
                %node,
                error = cause,
                "gossip of a node cannot be decoded, its version may be too new or too old"
            );
        }
    }
}
