//! Changes on their way from the thread that hears the file system to the one that follows.

use std::{
    path::Path,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::pending::{Due, Pending, Scope};

/// Between the thread that hears the file system and the one that follows.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    pending: Pending,
    /// Looks at the whole directory that were asked for, ever.
    asked: u64,
    stop: bool,
}

impl Queue {
    /// Nothing, for the directory `root`: an absolute path.
    pub(super) fn new(root: &Path) -> Self {
        Self { state: Mutex::new(State { pending: Pending::new(root), asked: 0, stop: false }), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what was heard.
    pub(super) fn note(&self, event: notify::Result<notify::Event>) {
        let now = Instant::now();
        let mut state = self.lock();
        let due = match event {
            Ok(event) => state.pending.note(&event, now),
            Err(error) => {
                tracing::warn!(%error, "lost events of the manifests' directory");
                state.pending.scan(now, Scope::All);
                true
            }
        };
        if due {
            self.wake.notify_one();
        }
    }

    /// Asks for a look at the whole directory; its number, from 1 on.
    pub(super) fn ask(&self) -> u64 {
        let mut state = self.lock();
        state.pending.scan(Instant::now(), Scope::Changed);
        state.asked += 1;
        self.wake.notify_one();
        state.asked
    }

    /// Whether a file is being written.
    pub(super) fn is_writing(&self, path: &Path) -> bool {
        self.lock().pending.is_writing(path)
    }

    /// Makes [`Self::wait`] return `None` from now on.
    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.wake.notify_all();
    }

    /// Waits until something is due, or for `patience`, and then asks for a scan. With it comes the number of the last
    /// look that was [asked](Self::ask) for and is in it. `None`: stop.
    pub(super) fn wait(&self, patience: Duration) -> Option<(Due, u64)> {
        let end = Instant::now() + patience;
        let mut state = self.lock();
        while !state.stop {
            let now = Instant::now();
            let due = state.pending.take(now);
            if !due.is_empty() {
                return Some((due, state.asked));
            }
            if now >= end {
                return Some((Due { paths: Vec::new(), scan: Some(Scope::Changed) }, state.asked));
            }
            let until = state.pending.next().map_or(end, |next| next.min(end));
            (state, _) = self.wake.wait_timeout(state, until - now).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}
