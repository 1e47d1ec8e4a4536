//! The errors of the kernel's state.

use nix::errno::Errno;
use vipmux_datapath::bpf::{maps::MapsError, pins::PinError, programs::LoadError};
use vipmux_plan::PlanError;

/// The kernel could not be brought to the desired state.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Programs could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map could not be read or written.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// No plan exists.
    #[error("no plan leads to the desired state")]
    Plan(#[from] PlanError),
    /// A pin could not be read or restored.
    #[error(transparent)]
    Pinned(#[from] PinError),
    /// The clock could not be read.
    #[error("cannot read the clock")]
    Clock(#[source] Errno),
}
