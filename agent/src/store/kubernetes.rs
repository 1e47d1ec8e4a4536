//! The Leases' store in a cluster: `coordination.k8s.io/v1` Leases of vipmux's own namespace.
//!
//! `metadata.resourceVersion` is what is compared and swapped: the API server refuses a write that expects another one than
//! the object has (409). Reads name no version, so that they are as new as the last write
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list>): never a watch, which can be
//! half-open for minutes.

use std::{io, sync::Arc, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease as Object, jiff::Timestamp};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use tokio::time::timeout;

use super::{Deleted, Lease, Store, StoreError, Survey, Swapped, Version, object, operations::LIMIT};
use crate::{
    cluster::Cluster,
    model::{NodeName, Vip},
};

/// The Leases of a cluster.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    leases: Box<Api<Object>>,
    /// How long a request may take.
    limit: Duration,
}

impl Kubernetes {
    /// Those of vipmux's namespace.
    pub fn new(cluster: &Cluster) -> Self {
        Self { leases: Box::new(Api::namespaced(cluster.client.clone(), &cluster.namespace)), limit: LIMIT }
    }

    /// The same, where a request may take so long.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The answer, unless it takes too long: then the connection is closed, and the next request gets another one. An API
    /// server whose machine is gone would keep each of them for a minute and a half, and with them the turns of all that is
    /// asked of it after it is back.
    async fn answered<T>(&self, request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("it took more than {:?}", self.limit));
        timeout(self.limit, request).await.map_err(|elapsed| kube::Error::Service(late(elapsed).into()))?
    }
}

/// What the API server refuses for what is there by now, or is not any more.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

/// A namespace that is not there is 404 too, and no Lease that somebody else deleted.
fn is_there(error: &kube::Error) -> Result<(), StoreError> {
    match error {
        kube::Error::Api(status) if status.details.as_ref().is_some_and(|details| details.kind == "namespaces") => {
            let source = io::Error::new(io::ErrorKind::NotFound, status.message.clone());
            Err(StoreError::Unavailable { doing: "write Leases".to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn unavailable(doing: String, error: kube::Error) -> StoreError {
    StoreError::Unavailable { doing, source: io::Error::other(error) }
}

/// What the object says, or that it is no Lease.
fn lease(vip: Vip, found: Object) -> Result<Lease, StoreError> {
    object::lease(vip, found).map_err(|message| StoreError::Malformed { lease: object::name(vip), message })
}

impl Store for Kubernetes {
    async fn read(&self, vip: Vip) -> Result<Option<Lease>, StoreError> {
        let name = object::name(vip);
        let found = self
            .answered(self.leases.get_opt(&name))
            .await
            .map_err(|error| unavailable(format!("read {name}"), error))?;
        found.map(|found| lease(vip, found)).transpose()
    }

    async fn swap(
        &self,
        vip: Vip,
        expected: Option<&Version>,
        holder: &NodeName,
        epoch: u64,
    ) -> Result<Swapped, StoreError> {
        let wanted = object::object(vip, expected.cloned(), holder, epoch, Timestamp::now())?;
        let (name, parameters) = (object::name(vip), PostParams::default());
        let result = match expected {
            Some(_) => self.answered(self.leases.replace(&name, &parameters, &wanted)).await,
            None => self.answered(self.leases.create(&parameters, &wanted)).await,
        };
        match result {
            Ok(written) => lease(vip, written).map(|lease| Swapped::Done(lease.version)),
            Err(error) if is_conflict(&error) => is_there(&error).map(|()| Swapped::Conflict),
            Err(error) => Err(unavailable(format!("write {name}"), error)),
        }
    }

    async fn delete(&self, vip: Vip, version: &Version) -> Result<Deleted, StoreError> {
        let name = object::name(vip);
        let preconditions = Preconditions { resource_version: Some(version.0.clone()), uid: None };
        let parameters = DeleteParams::default().preconditions(preconditions);
        match self.answered(self.leases.delete(&name, &parameters)).await {
            Ok(_) => Ok(Deleted::Done),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Deleted::Done),
            Err(error) if is_conflict(&error) => Ok(Deleted::Conflict),
            Err(error) => Err(unavailable(format!("delete {name}"), error)),
        }
    }

    async fn survey(&self) -> Result<Survey, StoreError> {
        let all = ListParams::default();
        let listed = self.answered(self.leases.list(&all)).await;
        let listed = listed.map_err(|error| unavailable("list the Leases".to_owned(), error))?;
        let mut survey = Survey::default();
        for found in listed.items {
            // Others keep Leases in this namespace, the allocator among them.
            let Some(vip) = found.metadata.name.as_deref().and_then(object::vip) else { continue };
            match lease(vip, found) {
                Ok(lease) => drop(survey.leases.insert(vip, lease)),
                Err(error) => drop(survey.faults.insert(vip, Arc::new(error))),
            }
        }
        Ok(survey)
    }
}
