//! Reconciles one part of the kernel's state on a task of its own.
//!
//! It is for changes that take the kernel long, or that wait for other users of the kernel. The
//! event loop must not wait for them.

use std::{collections::BTreeSet, error::Error, time::Duration};

use tokio::{select, sync::watch, task::JoinHandle, time::sleep};

use crate::error_chain::error_chain;
use vipmux_supervisor::{Supervisor, run_blocking};

/// The pause after a failed attempt.
const RETRY: Duration = Duration::from_secs(10);

/// Keeps a part of the kernel's state as last desired.
#[derive(Debug)]
pub struct Reconciler<D> {
    desired: watch::Sender<D>,
    task: JoinHandle<()>,
}

impl<D: Clone + Default + Send + Sync + 'static> Reconciler<D> {
    /// Starts the task. It ends when the reconciler is dropped, or with the runtime.
    ///
    /// `sync` brings the kernel to the desired state and returns what failed. It may block. `state`
    /// names that part of the state in log lines, and the task.
    pub fn start<E: Error + Send + 'static>(
        state: &'static str,
        sync: impl FnMut(&D) -> Vec<E> + Send + 'static,
        supervisor: &Supervisor,
    ) -> Self {
        let (desired, receiver) = watch::channel(D::default());
        Self { desired, task: supervisor.spawn(state, run(state, sync, receiver)) }
    }

    /// Sets the desired state and reconciles soon. An equal state is reconciled too: this repairs
    /// what somebody else changed.
    pub fn set_desired(&self, desired: D) {
        self.desired.send_replace(desired);
    }
}

impl<D> Drop for Reconciler<D> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run<D: Clone + Send + Sync + 'static, E: Error + Send + 'static>(
    state: &'static str,
    mut sync: impl FnMut(&D) -> Vec<E> + Send + 'static,
    mut desired: watch::Receiver<D>,
) {
    let mut failures = BTreeSet::new();
    loop {
        select! {
            changed = desired.changed() => if changed.is_err() { return },
            () = sleep(RETRY), if !failures.is_empty() => {}
        }
        let current = desired.borrow_and_update().clone();
        let attempt = run_blocking(move || {
            let errors = sync(&current);
            (sync, errors)
        });
        let errors;
        (sync, errors) = attempt.await;
        let now: BTreeSet<String> = errors.iter().map(|error| error_chain(error)).collect();
        for error in now.difference(&failures) {
            tracing::warn!(state, error, "cannot reconcile kernel state");
        }
        for error in failures.difference(&now) {
            tracing::info!(state, error, "kernel state reconciled");
        }
        failures = now;
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::time::timeout;
    use vipmux_testing::PATIENCE;

    use super::*;

    #[tokio::test]
    async fn a_panic_while_the_kernel_is_changed_is_reported() {
        let supervisor = Supervisor::default();
        let sync = |desired: &u8| {
            assert_eq!(*desired, 0, "no entry");
            Vec::<io::Error>::new()
        };
        let reconciler = Reconciler::start("table", sync, &supervisor);
        reconciler.set_desired(1);
        let failure = timeout(PATIENCE, supervisor.failure()).await.unwrap().to_string();
        assert!(failure.starts_with("the task \"table\" panicked: ") && failure.contains("no entry"), "{failure}");
    }
}
