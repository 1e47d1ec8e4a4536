//! Bringing something in the kernel to what is wanted, beside the event loop: what takes the kernel a while, or waits for
//! others.

use std::{collections::BTreeSet, time::Duration};

use tokio::{
    select,
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Keeps something as it was last wanted, on a task of its own.
#[derive(Debug)]
pub struct Keeper<W> {
    wanted: watch::Sender<W>,
    task: JoinHandle<()>,
}

impl<W: Clone + Default + Send + Sync + 'static> Keeper<W> {
    /// Starts the task, which ends when the keeper is dropped or with the runtime. `sync` brings it about, where blocking
    /// is allowed, and says what went wrong.
    pub fn start(sync: impl FnMut(&W) -> BTreeSet<String> + Send + 'static) -> Self {
        let (wanted, receiver) = watch::channel(W::default());
        Self { wanted, task: tokio::spawn(keep(sync, receiver)) }
    }

    /// Has it be so from some time soon on. Also where nothing changed: what somebody undid is done again.
    pub fn want(&self, wanted: W) {
        self.wanted.send_replace(wanted);
    }
}

impl<W> Drop for Keeper<W> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep<W: Clone + Send + Sync + 'static>(
    mut sync: impl FnMut(&W) -> BTreeSet<String> + Send + 'static,
    mut wanted: watch::Receiver<W>,
) {
    let mut trouble = BTreeSet::new();
    loop {
        select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep(RETRY), if !trouble.is_empty() => {}
        }
        let current = wanted.borrow_and_update().clone();
        let attempt = spawn_blocking(move || {
            let errors = sync(&current);
            (sync, errors)
        });
        let Ok((again, now)) = attempt.await else { return };
        sync = again;
        for error in now.difference(&trouble) {
            tracing::warn!("{error}");
        }
        for was in trouble.difference(&now) {
            tracing::info!(was, "mended");
        }
        trouble = now;
    }
}
