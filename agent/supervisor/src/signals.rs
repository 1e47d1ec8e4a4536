//! Listens for the signals that ask the process to stop.

use std::io;

use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
};

/// SIGTERM and SIGINT. The kernel ignores a signal to a container's first process unless the
/// process listens for it. So the process listens before it starts anything. A signal that comes
/// earlier than [`received`](Self::received) is reported then.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Starts to listen. Must be called within a tokio runtime.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn received(&mut self) {
        select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
