//! Chooses between the stores of Leases.

use super::{DirectoryStore, KubernetesStore, LeaseStore, StoreError, StoreId, StoreOperation, StoreOutcome};

/// The store that this agent uses.
#[derive(Clone, Debug)]
pub enum ConfiguredStore {
    /// Files in the state directory.
    Directory(DirectoryStore),
    /// A cluster's API server.
    Kubernetes(KubernetesStore),
}

impl ConfiguredStore {
    /// Returns the id of a directory, once an operation has succeeded. An API server has none.
    pub fn id(&self) -> Option<StoreId> {
        match self {
            Self::Directory(store) => store.id(),
            Self::Kubernetes(_) => None,
        }
    }
}

impl LeaseStore for ConfiguredStore {
    async fn run(&self, operation: StoreOperation) -> Result<StoreOutcome, StoreError> {
        match self {
            Self::Directory(store) => store.run(operation).await,
            Self::Kubernetes(store) => store.run(operation).await,
        }
    }
}
