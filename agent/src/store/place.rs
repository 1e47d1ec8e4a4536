//! Wherever the Leases are.

use super::{Deleted, Directory, Kubernetes, Lease, Store, StoreError, Survey, Swapped, Version};
use crate::model::{NodeName, Vip};

/// The store that this agent uses.
#[derive(Clone, Debug)]
pub enum Place {
    /// Files.
    Directory(Directory),
    /// A cluster's API server.
    Kubernetes(Kubernetes),
}

impl Store for Place {
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
