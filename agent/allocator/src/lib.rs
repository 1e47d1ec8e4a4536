//! Runs `vipmux allocator`: the one writer of Services' statuses in a cluster.
//!
//! ```text
//! watches ──────► Objects ──┐
//! VIPs' Leases ─► leaders ──┴► decision: statuses that differ ─► work_queue ─► status_writer ─► Events
//!                                  ▲                                ▲              │
//!                                  │                   only while this allocator   │
//!                                  │                   holds the Lease             ▼
//!                             write_cache ◄──────────────────────────────── write_result
//! ```
//!
//! - `decision`, `write_cache`, `work_queue` and `leader_election` decide without clock or I/O.
//! - `status_controller` runs the loop, `status_writer` makes one write, `lease_elector` keeps the
//!   Lease `vipmux-allocator`. `initial_list` lists all Services when this allocator becomes the
//!   leader.
//!
//! The statuses are the allocator's memory. Between a write and its echo in the watch, the write
//! cache remembers. The allocator also remembers addresses that it assigned and could not write
//! yet: nobody else gets them.

pub mod decision;
pub mod gossip_key;
pub mod health;
mod initial_list;
pub mod leader_election;
mod leaders;
pub mod lease_elector;
mod metrics_server;
mod status_controller;
mod status_writer;
#[cfg(test)]
mod test_client;
pub mod work_queue;
pub mod write_cache;
pub mod write_result;

use std::{future::pending, io, sync::Arc};

use tokio::{
    select,
    sync::{oneshot, watch},
};

use self::{
    health::AllocatorHealth,
    lease_elector::{ElectorStop, LeaseElector},
    status_controller::StatusController,
    status_writer::StatusWriter,
    write_result::FIELD_MANAGER,
};
use vipmux_cluster::{
    access::{AccessError, ClusterClient},
    events::{EventRecorder, EventSource},
    source::kubernetes::{Consumer, follow},
};
use vipmux_model as model;
use vipmux_supervisor::signals::StopSignals;
use vipmux_supervisor::{Supervisor, TaskFailure};
use vipmux_telemetry::http::{HttpListenError, Listen};

/// Settings of the allocator.
#[derive(Clone, Debug)]
pub struct AllocatorOptions {
    /// Its name, which is the Pod's.
    pub name: String,
    /// The Services that are ours, and the reserved addresses.
    pub ours: model::IngestOptions,
    /// Overwrite statuses that another controller wrote.
    pub adopt: bool,
    /// The agents are removed: nobody announces any address.
    pub uninstalling: bool,
    /// The address of `/metrics`, `/healthz` and `/readyz`.
    pub http: Listen,
}

/// An error that ends the allocator.
#[derive(Debug, thiserror::Error)]
pub enum AllocatorError {
    /// The API server's address or credentials are missing.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The HTTP port cannot be used.
    #[error(transparent)]
    Listen(#[from] HttpListenError),
    /// Signal handlers cannot be installed.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    /// There is no randomness for a new identity.
    #[error("cannot make an identity")]
    Identity(#[source] getrandom::Error),
    /// A task ended.
    #[error(transparent)]
    Task(#[from] TaskFailure),
}

/// Runs an allocator until SIGTERM or SIGINT, or until a supervised task ends. It publishes its state to
/// `health`.
pub async fn run(
    cluster: ClusterClient,
    options: AllocatorOptions,
    health: Arc<watch::Sender<AllocatorHealth>>,
    supervisor: &Supervisor,
) -> Result<(), AllocatorError> {
    let mut stop = StopSignals::listen().map_err(AllocatorError::Signals)?;
    let identity = identity(&options.name)?;
    if let Some(listener) = options.http.open()? {
        metrics_server::serve(listener, &health, options.uninstalling, supervisor);
    }
    let ClusterClient { client, namespace } = &cluster;
    // Ends with the process. It creates one object or none, so nothing waits for it.
    supervisor.spawn("gossip key", {
        let (client, namespace) = (client.clone(), namespace.clone());
        async move {
            gossip_key::ensure(client, &namespace).await;
            pending::<()>().await;
        }
    });
    let (listing, guard) = follow(client, Consumer::Allocator, supervisor);
    let leaders = if options.uninstalling {
        leaders::nobody()
    } else {
        leaders::follow(client.clone(), namespace, guard.rollbacks(), supervisor)
    };
    let objects = select! {
        Some(objects) = listing.listed() => objects,
        failure = supervisor.failure() => return Err(failure.into()),
        () = stop.received() => return Ok(()),
    };
    let (elector, leader_state) = LeaseElector::new(client.clone(), namespace, &identity, guard.rollbacks());
    let (stop_election, stopped) = oneshot::channel();
    // Waited for below, so that the Lease is released.
    let election = supervisor.spawn("leader election", elector.run(stopped));
    let writer = StatusWriter { client: client.clone(), options: options.ours.clone(), adopt: options.adopt };
    let event_source = EventSource { controller: FIELD_MANAGER, action: "Allocating", instance: options.name.clone() };
    let recorder = EventRecorder::start(client.clone(), event_source, supervisor);
    let mut controller = StatusController::new(writer, recorder, leader_state, leaders, objects, health);
    let end = select! {
        never = controller.run() => match never {},
        () = stop.received() => Ok(()),
        failure = supervisor.failure() => Err(failure.into()),
    };
    // Also after a failure: another allocator need not wait for the end of the Lease.
    let how = if controller.finish().await { ElectorStop::ReleaseLease } else { ElectorStop::KeepLease };
    // An error: the elector has ended already.
    let _ = stop_election.send(how);
    let _ = election.await;
    end
}

/// Returns the Pod's name with a random suffix.
///
/// A process that was restarted in place gets another identity, so it has to wait for the Lease.
fn identity(name: &str) -> Result<String, AllocatorError> {
    let suffix = getrandom::u64().map_err(AllocatorError::Identity)?;
    Ok(format!("{name}_{suffix:016x}"))
}
