//! Loads programs in spite of signals.

use std::io;

use aya::programs::ProgramError;

/// Each attempt may be interrupted again. libbpf makes five (`PROG_LOAD_ATTEMPTS` in tools/lib/bpf/bpf.c).
const ATTEMPTS: u32 = 50;

/// Loads a program. The verifier gives up with `EAGAIN` when its thread gets a signal, is stopped or frozen
/// (`do_check` in kernel/bpf/verifier.c), so this tries again.
pub fn uninterrupted<T>(mut load: impl FnMut() -> Result<T, ProgramError>) -> Result<T, ProgramError> {
    for _ in 1..ATTEMPTS {
        match load() {
            Err(ProgramError::LoadError { io_error, .. }) if io_error.kind() == io::ErrorKind::WouldBlock => {
                tracing::debug!("a signal interrupted the verifier, trying again");
            }
            result => return result,
        }
    }
    load()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::Duration,
    };

    use nix::sys::{
        pthread::{pthread_kill, pthread_self},
        signal::Signal,
    };
    use tokio::{
        runtime::Runtime,
        signal::unix::{SignalKind, signal},
    };
    use vipmux_testing::is_root;

    use crate::bpf::dry_run::ProgramDryRun;

    #[test]
    fn programs_are_loaded_although_signals_come() {
        const SIGNALS: u32 = 30;
        if !is_root() {
            return;
        }
        let runtime = Runtime::new().unwrap();
        // Otherwise the signal would end the process.
        let _handler = runtime.block_on(async { signal(SignalKind::user_defined1()).unwrap() });
        let (loading, is_loaded) = (pthread_self(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..SIGNALS {
                    if is_loaded.load(Ordering::Relaxed) {
                        break;
                    }
                    pthread_kill(loading, Signal::SIGUSR1).unwrap();
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let loaded = ProgramDryRun::load();
            is_loaded.store(true, Ordering::Relaxed);
            loaded.map(drop).unwrap();
        });
    }
}
