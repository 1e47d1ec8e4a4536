//! Runs operations on a store beside the event loop, a few at a time, each with a time limit.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};

use super::{Deleted, Lease, Store, StoreError, Survey, Swapped, Version};
use crate::model::{NodeName, Vip};

/// How long an operation may take, once it is its turn.
pub(super) const LIMIT: Duration = Duration::from_secs(2);
/// How long it waits for its turn. Behind thousands of others on a slow disk that is seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Operations on single Leases at a time.
const AT_ONCE: usize = 8;
/// Operations that run, wait, or have a report that nobody took yet: one for each VIP that there can be.
const OUTSTANDING: usize = vipmux_common::abi::capacity::VIPS as usize;
/// Reports that nobody took yet.
const REPORTS: usize = 64;

/// What is asked of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`Store::read`].
    Read(Vip),
    /// [`Store::swap`].
    Swap {
        /// The VIP.
        vip: Vip,
        /// The version that its Lease has to have; `None`: it has to have none.
        expected: Option<Version>,
        /// Who is to lead it.
        holder: NodeName,
        /// In which epoch.
        epoch: u64,
    },
    /// [`Store::delete`].
    Delete {
        /// The VIP.
        vip: Vip,
        /// The version that its Lease has to have.
        version: Version,
    },
    /// [`Store::survey`].
    Survey,
}

/// The answer to an [`Operation`] of the same name.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The Lease, if there is one.
    Read(Option<Lease>),
    /// Whether it was swapped.
    Swapped(Swapped),
    /// Whether it was deleted.
    Deleted(Deleted),
    /// All Leases.
    Surveyed(Survey),
}

/// An operation that is done, or was given up.
#[derive(Debug)]
pub struct Report {
    /// What was asked for.
    pub operation: Operation,
    /// When, as it was told: what was read is at least as new.
    pub asked: Duration,
    /// The answer.
    pub result: Result<Outcome, StoreError>,
}

/// Runs operations. What has begun when it is dropped is carried out nevertheless.
#[derive(Debug)]
pub struct Operations<S> {
    store: Arc<S>,
    reports: mpsc::Sender<Report>,
    outstanding: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    /// Surveys do not wait behind others: the fence is waiting for them.
    survey: Arc<Semaphore>,
    limit: Duration,
    patience: Duration,
}

impl<S: Store> Operations<S> {
    /// Operations on this store, and where their reports come.
    pub fn new(store: S) -> (Self, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS);
        let permits = |count| Arc::new(Semaphore::new(count));
        let operations = Self {
            store: Arc::new(store),
            reports,
            outstanding: permits(OUTSTANDING),
            turns: permits(AT_ONCE),
            survey: permits(1),
            limit: LIMIT,
            patience: PATIENCE,
        };
        (operations, receiver)
    }

    /// Has this done; `now` (`CLOCK_BOOTTIME`) comes back with the report. Says whether it will be reported: not where
    /// a survey is still under way, also one that was given up, or where thousands of others are outstanding. Within a
    /// tokio runtime.
    pub fn begin(&self, operation: Operation, now: Duration) -> bool {
        let permits = if operation == Operation::Survey { &self.survey } else { &self.outstanding };
        let Ok(permit) = Arc::clone(permits).try_acquire_owned() else { return false };
        let (store, turns, reports) = (Arc::clone(&self.store), Arc::clone(&self.turns), self.reports.clone());
        let (limit, patience) = (self.limit, self.patience);
        // Ends within both limits after its report was taken; nobody has to wait for it.
        tokio::spawn(async move {
            let (place, turn) = if operation == Operation::Survey {
                (None, Ok(permit))
            } else {
                (Some(permit), wait(turns, patience).await)
            };
            let result = match turn {
                Ok(turn) => perform(store, operation.clone(), turn, limit).await,
                Err(error) => Err(error),
            };
            // An error: the event loop is gone.
            let _ = reports.send(Report { operation, asked: now, result }).await;
            drop(place);
        });
        true
    }
}

fn late(doing: &str, limit: Duration) -> StoreError {
    let source = io::Error::new(io::ErrorKind::TimedOut, format!("it took more than {limit:?}"));
    StoreError::Unavailable { doing: doing.to_owned(), source }
}

async fn wait(turns: Arc<Semaphore>, patience: Duration) -> Result<OwnedSemaphorePermit, StoreError> {
    match timeout(patience, turns.acquire_owned()).await {
        Ok(Ok(turn)) => Ok(turn),
        _ => Err(late("begin an operation", patience)),
    }
}

/// Carries it out on a task of its own, which has the turn until it is through: what was given up may still
/// occupy a thread.
async fn perform<S: Store>(
    store: Arc<S>,
    operation: Operation,
    turn: OwnedSemaphorePermit,
    limit: Duration,
) -> Result<Outcome, StoreError> {
    let work = tokio::spawn(async move {
        let result = answer(&*store, &operation).await;
        drop(turn);
        result
    });
    match timeout(limit, work).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => {
            Err(StoreError::Unavailable { doing: "finish an operation".to_owned(), source: error.into() })
        }
        Err(_) => Err(late("finish an operation", limit)),
    }
}

async fn answer(store: &impl Store, operation: &Operation) -> Result<Outcome, StoreError> {
    match operation {
        Operation::Read(vip) => store.read(*vip).await.map(Outcome::Read),
        Operation::Swap { vip, expected, holder, epoch } => {
            store.swap(*vip, expected.as_ref(), holder, *epoch).await.map(Outcome::Swapped)
        }
        Operation::Delete { vip, version } => store.delete(*vip, version).await.map(Outcome::Deleted),
        Operation::Survey => store.survey().await.map(Outcome::Surveyed),
    }
}

#[cfg(test)]
mod tests;
