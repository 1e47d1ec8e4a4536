//! Follows the objects, from the API server ([`kubernetes`]) or from a directory of manifests
//! ([`manifests`]).

pub mod kubernetes;
pub mod manifests;

use tokio::sync::watch;

/// Follows the objects until it is dropped.
#[derive(Debug)]
#[must_use = "the source is followed until this is dropped"]
pub enum SourceGuard {
    /// A directory.
    Manifests(manifests::WatchGuard),
    /// An API server.
    Kubernetes(kubernetes::KubernetesGuard),
}

impl SourceGuard {
    /// Requests that the source be read again, without waiting for it. Returns the request's
    /// number.
    pub fn request_refresh(&self) -> u64 {
        match self {
            Self::Manifests(guard) => guard.request_refresh(),
            Self::Kubernetes(guard) => guard.request_refresh(),
        }
    }

    /// Returns the number of the last [request](Self::request_refresh) that is done. 0 before the
    /// first.
    pub fn refreshed(&self) -> watch::Receiver<u64> {
        match self {
            Self::Manifests(guard) => guard.refreshed(),
            Self::Kubernetes(guard) => guard.refreshed(),
        }
    }
}
