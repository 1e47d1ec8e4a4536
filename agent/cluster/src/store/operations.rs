//! Runs operations on a store beside the event loop, a few at a time, each with a time limit.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};

use super::{Deleted, Lease, LeaseStore, NodeRecord, StoreError, StoreOperation, Survey, Swapped};
use vipmux_election::MAX_LEASE_OPERATIONS;

/// The time limit of an operation that has its slot.
pub(super) const OPERATION_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of the wait for a slot. Behind thousands of others on a slow disk that is
/// seconds.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// Operations on nodes' records that run at a time, and urgent ones.
const MAX_RECORD_OPERATIONS: usize = 8;
/// Operations that run, wait, or have a report that nobody took yet: one for each VIP that there
/// can be.
const MAX_OUTSTANDING: usize = vipmux_common::abi::capacity::VIPS as usize;
/// Reports that nobody took yet.
const REPORT_CAPACITY: usize = 64;

/// The result of a [`StoreOperation`] of the same name.
#[derive(Clone, Debug)]
pub enum StoreOutcome {
    /// The Lease, if there is one.
    Read(Option<Lease>),
    /// The record of the node, if there is one.
    Record(Option<NodeRecord>),
    /// The result of the swap.
    Swapped(Swapped),
    /// The result of the deletion.
    Deleted(Deleted),
    /// All Leases.
    Surveyed(Survey),
}

/// An operation that is done or was given up.
#[derive(Debug)]
pub struct StoreReport {
    /// The operation.
    pub operation: StoreOperation,
    /// The time that was passed with the operation. What was read is at least as new.
    pub asked: Duration,
    /// The result.
    pub result: Result<StoreOutcome, StoreError>,
}

/// Runs operations. Those that have started when it is dropped are still carried out.
#[derive(Debug)]
pub struct StoreOperations<S> {
    store: Arc<S>,
    reports: mpsc::Sender<StoreReport>,
    outstanding: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    /// Surveys do not wait behind others.
    survey: Arc<Semaphore>,
    /// Operations on nodes' records do not wait behind those on Leases: takeovers wait for them.
    records: Arc<Semaphore>,
    /// Urgent operations wait for no other one. There is one at a time, beside operations that were given up.
    urgent: Arc<Semaphore>,
    operation_timeout: Duration,
    queue_timeout: Duration,
}

impl<S: LeaseStore> StoreOperations<S> {
    /// Returns a runner for this store, and the receiver of its reports.
    pub fn new(store: S) -> (Self, mpsc::Receiver<StoreReport>) {
        let (reports, receiver) = mpsc::channel(REPORT_CAPACITY);
        let permits = |count| Arc::new(Semaphore::new(count));
        let operations = Self {
            store: Arc::new(store),
            reports,
            outstanding: permits(MAX_OUTSTANDING),
            slots: permits(MAX_LEASE_OPERATIONS),
            survey: permits(1),
            records: permits(MAX_RECORD_OPERATIONS),
            urgent: permits(MAX_RECORD_OPERATIONS),
            operation_timeout: OPERATION_TIMEOUT,
            queue_timeout: QUEUE_TIMEOUT,
        };
        (operations, receiver)
    }

    /// Starts an operation. Its report has the time `now` (`CLOCK_BOOTTIME`).
    ///
    /// Returns whether there will be a report. There is none if a survey is requested while another
    /// is in progress, also one that was given up, if thousands of operations are outstanding, or if several
    /// urgent ones are. Must be called within a tokio runtime.
    pub fn begin(&self, operation: StoreOperation, now: Duration) -> bool {
        let (permits, slots) = match operation {
            StoreOperation::Survey => (&self.survey, None),
            _ if operation.is_urgent() => (&self.urgent, None),
            StoreOperation::ReadRecord { .. } | StoreOperation::SwapRecord { .. } => {
                (&self.outstanding, Some(&self.records))
            }
            _ => (&self.outstanding, Some(&self.slots)),
        };
        let Ok(permit) = Arc::clone(permits).try_acquire_owned() else { return false };
        let (store, slots, reports) = (Arc::clone(&self.store), slots.cloned(), self.reports.clone());
        let (operation_timeout, queue_timeout) = (self.operation_timeout, self.queue_timeout);
        // Ends within both time limits after its report was taken. Nobody has to wait for it. It is not
        // supervised: only the store can panic, which is the operation's error.
        tokio::spawn(async move {
            let (outstanding, slot) = match slots {
                Some(slots) => (Some(permit), wait_for_slot(slots, queue_timeout).await),
                None => (None, Ok(permit)),
            };
            let result = match slot {
                Ok(slot) => perform(store, operation.clone(), slot, operation_timeout).await,
                Err(error) => Err(error),
            };
            // An error: the event loop is gone.
            let _ = reports.send(StoreReport { operation, asked: now, result }).await;
            drop(outstanding);
        });
        true
    }
}

fn timed_out(operation: &str, operation_timeout: Duration) -> StoreError {
    let source = io::Error::new(io::ErrorKind::TimedOut, format!("it took more than {operation_timeout:?}"));
    StoreError::Unavailable { operation: operation.to_owned(), source }
}

async fn wait_for_slot(slots: Arc<Semaphore>, queue_timeout: Duration) -> Result<OwnedSemaphorePermit, StoreError> {
    match timeout(queue_timeout, slots.acquire_owned()).await {
        Ok(Ok(slot)) => Ok(slot),
        _ => Err(timed_out("begin an operation", queue_timeout)),
    }
}

/// Runs the operation on a task of its own, which keeps the slot until it is through: an operation
/// that was given up may still occupy a thread. It is not supervised: a panic is the operation's error.
async fn perform<S: LeaseStore>(
    store: Arc<S>,
    operation: StoreOperation,
    slot: OwnedSemaphorePermit,
    operation_timeout: Duration,
) -> Result<StoreOutcome, StoreError> {
    let work = tokio::spawn(async move {
        let result = store.run(operation).await;
        drop(slot);
        result
    });
    match timeout(operation_timeout, work).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => {
            Err(StoreError::Unavailable { operation: "finish an operation".to_owned(), source: error.into() })
        }
        Err(_) => Err(timed_out("finish an operation", operation_timeout)),
    }
}

#[cfg(test)]
mod tests;
