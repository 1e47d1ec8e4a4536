//! `vipmux allocator`: the one writer of Services' statuses in a cluster.
//!
//! ```text
//! watches ─► Objects ─┐                                              ┌─► answers: stale, taken, denied, ...
//! VIPs' Leases ───────┴► decide: who gets what, which statuses ─► queue ─► server-side apply ─► Events
//!                        are to say something else        ▲          ▲
//!                                                    ledger: what    └ only under the mandate: the Lease vipmux-allocator
//!                                                    came of writes
//! ```
//!
//! Its memory is the statuses. Between a write and its echo in the watch it remembers itself, and so it does where nothing can be
//! written: an address that was given away in mind is given to nobody else.

pub mod answer;
pub mod decision;
mod desk;
#[cfg(test)]
mod fixture;
mod fresh;
pub mod gossip_key;
pub mod keeper;
mod leaders;
pub mod ledger;
pub mod mandate;
mod observing;
pub mod queue;
mod write;

use std::{io, sync::Arc};

use tokio::{
    select,
    sync::{oneshot, watch},
};

use self::{
    answer::MANAGER,
    desk::Desk,
    keeper::{Keeper, Stop},
    write::Writer,
};
use crate::{
    cluster::{AccessError, Cluster},
    events::{Author, Teller},
    http::{Listen, ListenError},
    model,
    source::kubernetes::{Audience, follow},
    stop,
};

/// How an allocator is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name: the Pod's.
    pub name: String,
    /// What is ours.
    pub ours: model::Options,
    /// Whether statuses that another controller wrote are overwritten.
    pub adopt: bool,
    /// Where it tells how it fares.
    pub http: Listen,
}

/// Why an allocator stops.
#[derive(Debug, thiserror::Error)]
pub enum AllocatorError {
    /// There is no cluster.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Nobody can ask it how it fares.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    /// There is no runtime.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// There is no randomness to tell this process from the one before.
    #[error("cannot make an identity")]
    Identity(#[source] getrandom::Error),
}

/// How an allocator fares, for whoever asks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Everything was listed once.
    pub synced: bool,
    /// When its loop turned last, `CLOCK_BOOTTIME`.
    pub turned: std::time::Duration,
    /// It is the one that writes.
    pub writes: bool,
    /// Statuses that are to be written.
    pub waiting: usize,
    /// What was written since it started.
    pub written: u64,
    /// Writes that failed, or were refused.
    pub failed: u64,
    /// Services with addresses, and those that wait for some; where it writes.
    pub services: (usize, usize),
}

/// Runs an allocator until SIGTERM or SIGINT. `pulse`: where it tells how it fares.
pub async fn run(cluster: Cluster, options: Options, pulse: Arc<watch::Sender<Pulse>>) -> Result<(), AllocatorError> {
    let mut stop = stop::Stop::listen().map_err(AllocatorError::Signals)?;
    let identity = identity(&options.name)?;
    if let Some(listener) = options.http.open()? {
        observing::serve(listener, &pulse);
    }
    let Cluster { client, namespace } = &cluster;
    // Ends with itself, or with the process: it makes one object or none.
    let _key = tokio::spawn({
        let (client, namespace) = (client.clone(), namespace.clone());
        async move { gossip_key::ensure(client, &namespace).await }
    });
    let (listing, _guard) = follow(client, Audience::Allocator);
    let leaders = leaders::follow(client.clone(), namespace);
    let objects = select! {
        listed = listing.listed() => match listed {
            Some(objects) => objects,
            None => return Ok(()),
        },
        () = stop.told() => return Ok(()),
    };
    let (keeper, tenure) = Keeper::new(client.clone(), namespace, &identity);
    let (stop_keeping, stopped) = oneshot::channel();
    // Waited for below, so that the Lease is given back.
    let keeping = tokio::spawn(keeper.run(stopped));
    let writer = Writer { client: client.clone(), options: options.ours.clone(), adopt: options.adopt };
    let author = Author { controller: MANAGER, action: "Allocating", instance: options.name.clone() };
    let teller = Teller::start(client.clone(), author);
    let mut desk = Desk::new(writer, teller, tenure, leaders, objects, pulse);
    select! {
        () = desk.run() => {}
        () = stop.told() => {}
    }
    let how = if desk.finish().await { Stop::GivingBack } else { Stop::Abruptly };
    // It is gone already where this fails.
    let _ = stop_keeping.send(how);
    let _ = keeping.await;
    Ok(())
}

/// The Pod's name and a random suffix: one that was restarted in place is another, and has to wait for the Lease.
fn identity(name: &str) -> Result<String, AllocatorError> {
    let suffix = getrandom::u64().map_err(AllocatorError::Identity)?;
    Ok(format!("{name}_{suffix:016x}"))
}
