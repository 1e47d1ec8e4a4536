//! Makes the runtime of the commands that run for months.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Returns the runtime. Call it before other threads start.
pub(super) fn build() -> io::Result<Runtime> {
    limit_heaps();
    Builder::new_multi_thread().worker_threads(2).enable_all().build()
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
