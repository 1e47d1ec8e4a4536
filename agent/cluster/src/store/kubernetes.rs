//! Keeps the Leases and nodes' records in a cluster: as `coordination.k8s.io/v1` Leases in vipmux's own namespace.
//!
//! `metadata.resourceVersion` is compared and swapped: the API server refuses a write that expects
//! another version than the object has (409). Reads name no version, so they are as new as the last
//! write
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list>). They
//! never use a watch, since it can be half-open for minutes.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use k8s_openapi::{
    api::coordination::v1::Lease as Object, apimachinery::pkg::apis::meta::v1::OwnerReference, jiff::Timestamp,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use tokio::time::timeout;

use super::{
    Deleted, Lease, LeaseStore, NodeRecord, RecordContent, StoreError, StoreOperation, StoreOutcome, Survey, Swapped,
    Version, lease_object, operations::OPERATION_TIMEOUT, retry_after::PacedClients,
};
use crate::access::ClusterClient;
use vipmux_common::abi::Mac;
use vipmux_model::{NodeName, Vip};

/// The Leases of a cluster.
#[derive(Clone, Debug)]
pub struct KubernetesStore {
    leases: Box<Api<Object>>,
    /// Ignores `Retry-After`.
    urgent: Box<Api<Object>>,
    /// The time limit of a request.
    request_timeout: Duration,
}

impl KubernetesStore {
    /// Returns the store for vipmux's namespace.
    pub fn new(cluster: &ClusterClient) -> Self {
        let PacedClients { obeying, urgent } = PacedClients::new(&cluster.client);
        let leases = |client| Box::new(Api::namespaced(client, &cluster.namespace));
        Self { leases: leases(obeying), urgent: leases(urgent), request_timeout: OPERATION_TIMEOUT }
    }

    /// Returns the store for an operation of this urgency.
    fn with_urgency(&self, urgent: bool) -> Self {
        Self { leases: if urgent { self.urgent.clone() } else { self.leases.clone() }, ..self.clone() }
    }

    /// Returns the store with another time limit for requests.
    #[must_use]
    pub fn with_timeout(self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self }
    }

    /// Returns the API of the Leases.
    pub(super) fn leases(&self) -> &Api<Object> {
        &self.leases
    }

    /// Returns the VIP's Lease; `None`: it has none.
    pub async fn read(&self, vip: Vip) -> Result<Option<Lease>, StoreError> {
        let name = lease_object::lease_name(vip);
        let found = self
            .limited(self.leases.get_opt(&name))
            .await
            .map_err(|error| unavailable(format!("read {name}"), error))?;
        found.map(|found| lease(vip, found)).transpose()
    }

    /// Makes `holder` the VIP's leader, if its Lease has the version `expected`; `None`: if it has
    /// no Lease.
    pub async fn swap(
        &self,
        vip: Vip,
        expected: Option<&Version>,
        holder: &NodeName,
        epoch: u64,
    ) -> Result<Swapped, StoreError> {
        let wanted = lease_object::to_object(vip, expected.cloned(), holder, epoch, Timestamp::now())?;
        let (name, parameters) = (lease_object::lease_name(vip), PostParams::default());
        let written = match expected {
            Some(_) => self.write(&name, self.leases.replace(&name, &parameters, &wanted)).await?,
            None => self.write(&name, self.leases.create(&parameters, &wanted)).await?,
        };
        written.map_or(Ok(Swapped::Conflict), |written| lease(vip, written).map(|lease| Swapped::Done(lease.version)))
    }

    /// Returns a node's record; `None`: it has none.
    pub async fn read_record(&self, node: &NodeName) -> Result<Option<NodeRecord>, StoreError> {
        let name = lease_object::record_name(node);
        let found = self
            .limited(self.leases.get_opt(&name))
            .await
            .map_err(|error| unavailable(format!("read {name}"), error))?;
        found.map(|found| record(node, found)).transpose()
    }

    /// Writes a node's record, if it has the version `expected`; `None`: if it has none. What others
    /// keep in the object stays.
    pub async fn swap_record(
        &self,
        node: &NodeName,
        expected: Option<&Version>,
        content: &RecordContent,
    ) -> Result<Swapped, StoreError> {
        let (name, now) = (lease_object::record_name(node), Timestamp::now());
        let written = if let Some(version) = expected {
            // The API server compares the version in a patch, too.
            let patch = Patch::Merge(lease_object::record_patch(version, content, now));
            self.write(&name, self.leases.patch(&name, &PatchParams::default(), &patch)).await?
        } else {
            let wanted = lease_object::record_to_object(node, None, content, now);
            self.write(&name, self.leases.create(&PostParams::default(), &wanted)).await?
        };
        written
            .map_or(Ok(Swapped::Conflict), |written| record(node, written).map(|record| Swapped::Done(record.version)))
    }

    /// Writes a node's MACs and its owner into its record. Does nothing if there is none.
    pub(super) async fn write_macs(
        &self,
        node: &NodeName,
        macs: &BTreeSet<Mac>,
        owner: Option<&OwnerReference>,
    ) -> Result<(), StoreError> {
        let name = lease_object::record_name(node);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(lease_object::macs_patch(macs, owner)));
        match self.limited(self.leases.patch(&name, &parameters, &patch)).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(&error, kube::Error::Api(status) if status.code == 404) => {
                refuse_missing_namespace(&error)
            }
            // Also a conflict, which names no version here: it is written again.
            Err(error) => Err(unavailable(format!("write {name}"), error)),
        }
    }

    /// Writes an object. Returns it as it is now; `None`: a conflict.
    async fn write(
        &self,
        name: &str,
        request: impl Future<Output = kube::Result<Object>>,
    ) -> Result<Option<Object>, StoreError> {
        match self.limited(request).await {
            Ok(written) => Ok(Some(written)),
            Err(error) if is_conflict(&error) => refuse_missing_namespace(&error).map(|()| None),
            Err(error) => Err(unavailable(format!("write {name}"), error)),
        }
    }

    /// Deletes the VIP's Lease, if it has this version.
    pub async fn delete(&self, vip: Vip, version: &Version) -> Result<Deleted, StoreError> {
        let name = lease_object::lease_name(vip);
        let preconditions = Preconditions { resource_version: Some(version.as_str().to_owned()), uid: None };
        let parameters = DeleteParams::default().preconditions(preconditions);
        match self.limited(self.leases.delete(&name, &parameters)).await {
            Ok(_) => Ok(Deleted::Done),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Deleted::Done),
            Err(error) if is_conflict(&error) => Ok(Deleted::Conflict),
            Err(error) => Err(unavailable(format!("delete {name}"), error)),
        }
    }

    /// Returns all Leases.
    pub async fn survey(&self) -> Result<Survey, StoreError> {
        let all = ListParams::default();
        let listed = self.limited(self.leases.list(&all)).await;
        let listed = listed.map_err(|error| unavailable("list the Leases".to_owned(), error))?;
        let mut survey = Survey::default();
        for found in listed.items {
            // Others keep Leases in this namespace, the allocator among them.
            let Some(vip) = found.metadata.name.as_deref().and_then(lease_object::vip_of) else { continue };
            match lease(vip, found) {
                Ok(lease) => drop(survey.leases.insert(vip, lease)),
                Err(error) => drop(survey.faults.insert(vip, Arc::new(error))),
            }
        }
        Ok(survey)
    }

    /// Sends a request with the time limit. A request that is too late closes its connection, and
    /// the next one gets another.
    ///
    /// Otherwise, an API server whose machine is gone would keep each request for a minute and a
    /// half, and with it a slot of the operations that follow after its return.
    pub(super) async fn limited<T>(&self, request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("it took more than {:?}", self.request_timeout));
        timeout(self.request_timeout, request).await.map_err(|elapsed| kube::Error::Service(late(elapsed).into()))?
    }
}

impl LeaseStore for KubernetesStore {
    async fn run(&self, operation: StoreOperation) -> Result<StoreOutcome, StoreError> {
        match operation {
            StoreOperation::Read(vip) => self.read(vip).await.map(StoreOutcome::Read),
            StoreOperation::Swap { vip, expected, holder, epoch } => {
                self.swap(vip, expected.as_ref(), &holder, epoch).await.map(StoreOutcome::Swapped)
            }
            StoreOperation::Delete { vip, version } => self.delete(vip, &version).await.map(StoreOutcome::Deleted),
            StoreOperation::ReadRecord { node, urgent } => {
                self.with_urgency(urgent).read_record(&node).await.map(StoreOutcome::Record)
            }
            StoreOperation::SwapRecord { node, urgent, expected, content } => {
                let store = self.with_urgency(urgent);
                store.swap_record(&node, expected.as_ref(), &content).await.map(StoreOutcome::Swapped)
            }
            StoreOperation::Survey => self.survey().await.map(StoreOutcome::Surveyed),
        }
    }
}

/// Returns whether the API server refused because the object exists, changed, or is gone.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

/// Returns an error if the namespace is missing. That is 404 too, but no Lease that somebody
/// deleted.
fn refuse_missing_namespace(error: &kube::Error) -> Result<(), StoreError> {
    match error {
        kube::Error::Api(status) if status.details.as_ref().is_some_and(|details| details.kind == "namespaces") => {
            let source = io::Error::new(io::ErrorKind::NotFound, status.message.clone());
            Err(StoreError::Unavailable { operation: "write Leases".to_owned(), source })
        }
        _ => Ok(()),
    }
}

pub(super) fn unavailable(operation: String, error: kube::Error) -> StoreError {
    StoreError::Unavailable { operation, source: io::Error::other(error) }
}

/// Returns the Lease of an object, or the error that it is none.
fn lease(vip: Vip, found: Object) -> Result<Lease, StoreError> {
    lease_object::from_object(vip, found)
        .map_err(|message| StoreError::Malformed { lease: lease_object::lease_name(vip), message })
}

/// Returns the record of a node's object, or the error that it is none.
fn record(node: &NodeName, found: Object) -> Result<NodeRecord, StoreError> {
    lease_object::record_from_object(node, found)
        .map_err(|message| StoreError::Malformed { lease: lease_object::record_name(node), message })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use vipmux_testing::names::node_name;

    #[tokio::test]
    async fn a_conflict_while_the_macs_are_written_is_a_failure_and_a_missing_record_is_none() {
        for (code, reason, written) in
            [(404, "NotFound", true), (409, "Conflict", false), (429, "TooManyRequests", false)]
        {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no",
                "reason": reason, "details": {"name": "node-n1", "group": "coordination.k8s.io", "kind": "leases"},
                "code": code,
            });
            let answer = move |_: Request<Body>| {
                let mut response = Response::new(Body::from(status.to_string().into_bytes()));
                *response.status_mut() = code.try_into().unwrap();
                async { Ok::<_, Infallible>(response) }
            };
            let client = Client::new(service_fn(answer), "default");
            let store = KubernetesStore::new(&ClusterClient { client, namespace: "vipmux-system".to_owned() });
            let macs = [Mac::new([2, 0, 0, 0, 0, 1])].into();
            assert_eq!(store.write_macs(&node_name("n1"), &macs, None).await.is_ok(), written, "{code}");
        }
    }
}
