//! The machine of an API server, and its folder.

use std::{net::IpAddr, path::PathBuf};

use crate::{cleanup::Folder, lan::Machine};

/// The API server's port, on all addresses of its machine.
pub(super) const PORT: u16 = 6443;

/// The machine and the folder of data, keys and logs. Both processes are started with them, each
/// time.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) folder: Folder,
    pub(super) machine: Machine,
}

impl Launch {
    /// Returns the API server's address, which is in its certificate.
    pub(super) fn address(&self) -> IpAddr {
        self.machine.families.first(self.machine.address, self.machine.address_v6)
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }
}
