//! Health probes: this node asks its own backends, as the Services that they serve want it, and finds which of them are up.
//!
//! [`run`] is the task that does it; the schedule decides who is asked when, and what the answers come to. Connections
//! are made from the agent's own network namespace, the node's, so that a backend sees its node, as with the kubelet's
//! probes.

mod attempt;
mod schedule;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{select, sync::watch, task::JoinSet, time::sleep};

pub use self::attempt::{Asker, AttemptError, TlsError};
use self::schedule::{Attempt, Schedule, Turn};
use crate::model::health::{Checkups, Findings};

/// Runs the checkups that are wanted, and tells what is found when it changes. `clock`: `CLOCK_BOOTTIME`. `seed`: spreads the
/// attempts; another on each node.
///
/// Ends when nobody can want anything any more. Cancel-safe: dropping it ends the attempts that are under way.
pub async fn run(
    mut wanted: watch::Receiver<Arc<Checkups>>,
    findings: watch::Sender<Findings>,
    asker: Asker,
    clock: impl Fn() -> Duration,
    seed: u64,
) {
    let mut schedule = Schedule::new(seed);
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
                let untold = checkups.left_out.iter().filter(|(name, count)| left_out.get(*name) != Some(*count));
                for (namespace, count) in untold {
                    tracing::warn!(%namespace, count, "too many health probes on this node: some backends are not probed");
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
                let turn = serials.remove(&id).and_then(|serial| schedule.finish(serial, outcome, clock()));
                turn.iter().for_each(log);
            }
            () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
        while let Some(Attempt { serial, checkup }) = schedule.start(clock()) {
            let asker = asker.clone();
            let attempt = attempts.spawn(async move { asker.ask(&checkup).await });
            serials.insert(attempt.id(), serial);
        }
        findings.send_if_modified(|told| {
            let changed = told != schedule.findings();
            told.clone_from(schedule.findings());
            changed
        });
    }
}

fn log(turn: &Turn) {
    let Turn { key, error } = turn;
    let (address, port) = (key.address, key.port);
    if let Some(error) = error {
        tracing::warn!(%address, port, error, "a backend fails its health probe");
    } else {
        tracing::info!(%address, port, "a backend passes its health probe again");
    }
}

#[cfg(test)]
mod tests;
