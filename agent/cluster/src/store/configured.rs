//! Chooses between the stores of Leases.

use super::{Deleted, DirectoryStore, KubernetesStore, Lease, LeaseStore, StoreError, Survey, Swapped, Version};
use vipmux_model::{NodeName, Vip};

/// The store that this agent uses.
#[derive(Clone, Debug)]
pub enum ConfiguredStore {
    /// Files in the state directory.
    Directory(DirectoryStore),
    /// A cluster's API server.
    Kubernetes(KubernetesStore),
}

impl LeaseStore for ConfiguredStore {
    async fn read(&self, vip: Vip) -> Result<Option<Lease>, StoreError> {
        match self {
            Self::Directory(store) => store.read(vip).await,
            Self::Kubernetes(store) => store.read(vip).await,
        }
    }

    async fn swap(
        &self,
        vip: Vip,
        expected: Option<&Version>,
        holder: &NodeName,
        epoch: u64,
    ) -> Result<Swapped, StoreError> {
        match self {
            Self::Directory(store) => store.swap(vip, expected, holder, epoch).await,
            Self::Kubernetes(store) => store.swap(vip, expected, holder, epoch).await,
        }
    }

    async fn delete(&self, vip: Vip, version: &Version) -> Result<Deleted, StoreError> {
        match self {
            Self::Directory(store) => store.delete(vip, version).await,
            Self::Kubernetes(store) => store.delete(vip, version).await,
        }
    }

    async fn survey(&self) -> Result<Survey, StoreError> {
        match self {
            Self::Directory(store) => store.survey().await,
            Self::Kubernetes(store) => store.survey().await,
        }
    }
}
