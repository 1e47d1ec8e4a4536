//! The signals that ask a process to stop.

use std::io;

use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
};

/// SIGTERM and SIGINT. The first process of a container is ended by none that it does not listen for, so it is listened for before
/// anything is begun: what comes meanwhile is told later.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Within a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one. Cancel-safe.
    pub(crate) async fn told(&mut self) {
        select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
