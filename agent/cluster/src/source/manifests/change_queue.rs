//! Passes changes from the thread that receives file system events to the one that reads files.

use std::{
    path::Path,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::pending::{DueChanges, PendingChanges, ScanScope};

/// The queue between both threads.
#[derive(Debug)]
pub(super) struct ChangeQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
}

#[derive(Debug)]
struct QueueState {
    pending: PendingChanges,
    /// The number of scans that were requested so far.
    requested: u64,
    stop: bool,
}

impl ChangeQueue {
    /// Returns an empty queue for the directory `root`, an absolute path.
    pub(super) fn new(root: &Path) -> Self {
        Self {
            state: Mutex::new(QueueState { pending: PendingChanges::new(root), requested: 0, stop: false }),
            wake: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an event or an error of the watcher.
    pub(super) fn note(&self, event: notify::Result<notify::Event>) {
        let now = Instant::now();
        let mut state = self.lock();
        let due = match event {
            Ok(event) => state.pending.note(&event, now),
            Err(error) => {
                tracing::warn!(%error, "events of the manifests directory lost, scanning all files");
                state.pending.scan(now, ScanScope::All);
                true
            }
        };
        if due {
            self.wake.notify_one();
        }
    }

    /// Requests a scan of the whole directory. Returns its number, from 1 on.
    pub(super) fn request_scan(&self) -> u64 {
        let mut state = self.lock();
        state.pending.scan(Instant::now(), ScanScope::Changed);
        state.requested += 1;
        self.wake.notify_one();
        state.requested
    }

    /// Schedules a scan of the whole directory after this time.
    pub(super) fn scan_after(&self, delay: Duration) {
        self.lock().pending.scan(Instant::now() + delay, ScanScope::Changed);
    }

    /// Makes a file due at this time, unless it changes before.
    pub(super) fn read_at(&self, path: &Path, due: Instant) {
        self.lock().pending.read(path, due);
    }

    /// Returns whether a file is being written.
    pub(super) fn is_writing(&self, path: &Path) -> bool {
        self.lock().pending.is_writing(path)
    }

    /// Makes [`Self::wait`] return `None` from now on.
    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.wake.notify_all();
    }

    /// Waits until something is due. After `patience` it asks for a scan anyway. It also returns
    /// the number of the last [requested](Self::request_scan) scan that this includes. `None`:
    /// stop.
    pub(super) fn wait(&self, patience: Duration) -> Option<(DueChanges, u64)> {
        let mut end = Instant::now() + patience;
        let mut state = self.lock();
        while !state.stop {
            let now = Instant::now();
            if now >= end {
                state.pending.scan(now, ScanScope::Changed);
                end = now + patience;
            }
            let due = state.pending.take(now);
            if !due.is_empty() {
                return Some((due, state.requested));
            }
            let until = state.pending.next().map_or(end, |next| next.min(end));
            (state, _) = self.wake.wait_timeout(state, until - now).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}
