//! Runs the commands that run for months.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    time::Duration,
};

use anyhow::Context as _;
use futures_util::FutureExt as _;
use tokio::runtime::Builder;

/// How long a stopping process waits for its threads to finish.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a command on a runtime of its own. Call it before other threads start.
pub(super) fn run<T>(command: impl Future<Output = T>) -> anyhow::Result<T> {
    limit_heaps();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the asynchronous runtime")?;
    let result = runtime.block_on(AssertUnwindSafe(command).catch_unwind());
    // A thread that waits for another agent's lock, or for nftables, leaves nothing half done: do
    // not wait for it, not even after a panic.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result.map_or_else(|panic| resume_unwind(panic), Ok)
}

/// Lets all threads share one heap. By default glibc gives each thread its own, up to eight for each CPU, and
/// each keeps the memory of the largest operation that ran there.
fn limit_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the parameter is one of mallopt(3), and no other thread allocates yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::catch_unwind,
        sync::mpsc::{RecvTimeoutError, channel},
        thread,
    };

    use tokio::task::spawn_blocking;

    use super::*;
    use vipmux_testing::PATIENCE;

    #[test]
    fn a_panic_of_a_command_does_not_wait_for_a_thread_that_hangs() {
        let (release, waits) = channel::<()>();
        let (done, panicked) = channel();
        thread::spawn(move || {
            let command = async {
                let (begun, begins) = tokio::sync::oneshot::channel();
                spawn_blocking(move || (begun.send(()), waits.recv()));
                begins.await.unwrap();
                panic!("no entry")
            };
            let ended = catch_unwind(AssertUnwindSafe(|| run::<()>(command)));
            done.send(ended.unwrap_err().downcast_ref::<&str>().copied() == Some("no entry")).unwrap();
        });
        let ended = panicked.recv_timeout(PATIENCE);
        assert_ne!(ended, Err(RecvTimeoutError::Timeout), "it waits for the thread");
        assert_eq!(ended, Ok(true));
        drop(release);
    }
}
