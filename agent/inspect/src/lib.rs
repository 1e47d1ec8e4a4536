//! Reads the kernel's state from the pinned maps alone, so it works while the agent is down.
//!
//! Each submodule reads one view into a [`Report`](crate::output::Report). A view is no snapshot:
//! the maps change while they are read. So an entry can refer to another one that is gone; it is
//! shown so, and is no error.

pub mod backends;
pub mod clock;
pub mod explain;
pub mod flows;
pub mod freshness;
pub mod leadership;
pub mod lookup;
pub mod members;
pub mod names;
pub mod neighbors;
pub mod objects;
pub mod output;
pub mod services;
pub mod stats;
pub mod vips;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::output::OutputError;
use vipmux_datapath::bpf::{maps::MapsError, pins::PinError};

/// A view could not be read or printed.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The maps could not be opened or read.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The pinned programs or links could not be read.
    #[error(transparent)]
    Pinned(#[from] PinError),
    /// The system's clocks could not be read.
    #[error("cannot read the clock")]
    Clock(#[from] nix::Error),
    /// The view could not be printed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The addresses of a packet are of different families.
    #[error("{client} and {vip} are of different address families")]
    Families {
        /// The client.
        client: IpAddr,
        /// The VIP.
        vip: IpAddr,
    },
}
