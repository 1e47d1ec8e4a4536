//! Probes the health of this node's backends, as their Services want it.
//!
//! [`run`] is the task. The schedule decides when each backend is probed, and whether it is up.
//! Connections are made from the agent's own network namespace, the node's. So a backend sees its
//! node, as with the kubelet's probes.

mod attempt;
mod schedule;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{select, sync::watch, task::JoinSet, time::sleep};

pub use self::attempt::{AttemptError, ProbeClient, TlsError};
use self::schedule::{Attempt, HealthChange, ProbeSchedule};
use vipmux_model::health::{Checkups, Findings};

/// Runs the wanted checkups, and sends the results when they change. `clock`: `CLOCK_BOOTTIME`.
/// `seed`: spreads the attempts; another one on each node.
///
/// Ends when the sender of `wanted` is dropped. Cancel-safe: dropping it ends the attempts that are
/// under way.
pub async fn run(
    mut wanted: watch::Receiver<Arc<Checkups>>,
    findings: watch::Sender<Findings>,
    client: ProbeClient,
    clock: impl Fn() -> Duration,
    seed: u64,
) {
    let mut schedule = ProbeSchedule::new(seed);
    let (mut attempts, mut serials, mut left_out) = (JoinSet::new(), BTreeMap::new(), BTreeMap::new());
    loop {
        let next = schedule.next();
        let pause = next.map(|next| next.saturating_sub(clock()));
        select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                let checkups = Arc::clone(&wanted.borrow_and_update());
                let new = checkups.left_out.iter().filter(|(name, count)| left_out.get(*name) != Some(*count));
                for (namespace, count) in new {
                    tracing::warn!(%namespace, count, "too many health probes on this node");
                }
                left_out.clone_from(&checkups.left_out);
                schedule.want(&checkups, clock());
            }
            Some(done) = attempts.join_next_with_id() => {
                let (id, outcome): (_, Result<(), AttemptError>) = match done {
                    Ok(done) => done,
                    Err(error) => (error.id(), Err(AttemptError::Broken(error))),
                };
                let outcome = outcome.map_err(|error| format!("{:#}", anyhow::Error::from(error)));
                let change = serials.remove(&id).and_then(|serial| schedule.finish(serial, outcome, clock()));
                change.iter().for_each(log);
            }
            () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
        while let Some(Attempt { serial, checkup }) = schedule.start(clock()) {
            let client = client.clone();
            // Makes one attempt, within its time limit. Dropping the set aborts it, which closes
            // its connection. A panic fails the attempt, so it is not supervised.
            let attempt = attempts.spawn(async move { client.attempt(&checkup).await });
            serials.insert(attempt.id(), serial);
        }
        findings.send_if_modified(|last| {
            let changed = last != schedule.findings();
            last.clone_from(schedule.findings());
            changed
        });
    }
}

fn log(change: &HealthChange) {
    let HealthChange { key, error } = change;
    let (address, port) = (key.address, key.port);
    if let Some(error) = error {
        tracing::warn!(%address, port, error, "backend fails its health probe");
    } else {
        tracing::info!(%address, port, "backend passes its health probe again");
    }
}

#[cfg(test)]
mod tests;
