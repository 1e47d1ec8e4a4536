//! Writes one status: a request or two, with a time limit. Within that limit an allocator that lost
//! its leadership can do no harm.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    work_queue::WorkResult,
    write_cache::{CustomResource, CustomResourceStatus},
    write_result::{FIELD_MANAGER, WriteResult, is_owner},
};
use vipmux_allocate::status::{DesiredStatus, body, ingress, is_marked, withdrawal};
use vipmux_cluster::clock::wall;
use vipmux_model::{
    IngestOptions, ServiceName,
    api::{API_VERSION, VipPolicy, VipPool},
    is_ours,
};

/// The time limit of a write, from start to end. Together with
/// [`RENEW_DEADLINE`](super::leader_election::RENEW_DEADLINE) it is less than the Lease's duration.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(4);

/// Writes statuses with server-side apply.
#[derive(Clone)]
pub(super) struct StatusWriter {
    pub(super) client: Client,
    pub(super) options: IngestOptions,
    /// Overwrite what other controllers wrote.
    pub(super) adopt: bool,
}

impl StatusWriter {
    /// Writes a Service's status if the Service is still the one that was decided on.
    async fn service(&self, name: &ServiceName, base: &Service, statement: &DesiredStatus) -> WriteResult<Service> {
        let mut body = body(name, base, statement, wall());
        let clears = statement.ingress.as_ref().is_some_and(BTreeSet::is_empty) && !ingress(base).is_empty();
        limited(async {
            if clears && self.owns_addresses(name, base).await {
                // Addresses that another controller wrote too would stay.
                body["status"]["loadBalancer"] = json!({"ingress": []});
            }
            match self.apply(name, &body, self.adopt).await {
                // A person edited our own conditions. The addresses are not contested. If they are by
                // now, the version differs.
                WriteResult::Contested => self.apply(name, &body, true).await,
                // The other controller wrote the addresses that vipmux gave too, and has not changed
                // them since. Mostly it is gone.
                WriteResult::Taken(_) if self.owns_addresses(name, base).await => self.apply(name, &body, true).await,
                result => result,
            }
        })
        .await
    }

    /// Returns whether vipmux owns the addresses in the status of this version of the Service.
    async fn owns_addresses(&self, name: &ServiceName, base: &Service) -> bool {
        let version = &base.metadata.resource_version;
        let is_same = |found: &Service| found.metadata.resource_version == *version;
        self.find(name).await.is_ok_and(|found| found.is_some_and(|found| is_same(&found) && is_owner(&found)))
    }

    /// Reads a Service; `None`: it is gone.
    async fn find(&self, name: &ServiceName) -> kube::Result<Option<Service>> {
        // A list of one: the right to list all Services exists anyway, so no further right is needed.
        let one = ListParams::default().fields(&format!("metadata.name={}", name.name()));
        Ok(self.services(name.namespace()).list(&one).await?.items.into_iter().next())
    }

    /// Withdraws our part of the status of a Service that is not ours any more. The flag tells
    /// whether a write was needed. If not, the result is `Written`, too.
    async fn withdraw(&self, name: &ServiceName) -> (WriteResult<Service>, bool) {
        let mut wrote = false;
        let result = limited(async {
            match self.find(name).await {
                Ok(Some(service)) if is_marked(&service) && !is_ours(&service, &self.options) => {
                    wrote = true;
                    self.apply(name, &withdrawal(name, &service), false).await
                }
                Ok(Some(service)) => WriteResult::Written(Box::new(service)),
                Ok(None) => WriteResult::Gone,
                Err(error) => WriteResult::from_response(Err(error)),
            }
        })
        .await;
        (result, wrote)
    }

    /// Writes the status of a pool or policy. Nobody else writes it.
    async fn custom_resource(&self, object: &CustomResource, status: &CustomResourceStatus) -> WriteResult<ObjectMeta> {
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let body = |kind: &str, name: &str, status: Value| {
            Patch::Apply(json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "status": status}))
        };
        let client = self.client.clone();
        limited(async {
            match (object, status) {
                (CustomResource::Pool(name), CustomResourceStatus::Pool(status)) => {
                    let body = body("VipPool", name, json!(status));
                    let made = Api::<VipPool>::all(client).patch_status(name, &params, &body).await;
                    WriteResult::from_response(made.map(|made| made.metadata))
                }
                (CustomResource::Policy(name), CustomResourceStatus::Policy(status)) => {
                    let body = body("VipPolicy", name, json!(status));
                    let made = Api::<VipPolicy>::all(client).patch_status(name, &params, &body).await;
                    WriteResult::from_response(made.map(|made| made.metadata))
                }
                (CustomResource::Pool(_), CustomResourceStatus::Policy(_))
                | (CustomResource::Policy(_), CustomResourceStatus::Pool(_)) => WriteResult::Gone,
            }
        })
        .await
    }

    async fn apply(&self, name: &ServiceName, body: &Value, force: bool) -> WriteResult<Service> {
        let params = PatchParams::apply(FIELD_MANAGER);
        let params = if force { params.force() } else { params };
        WriteResult::from_response(
            self.services(name.namespace()).patch_status(name.name(), &params, &Patch::Apply(body)).await,
        )
    }

    fn services(&self, namespace: &str) -> Api<Service> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// A write to make.
pub(super) enum WriteTask {
    /// The status of a Service, by the object that was decided on.
    Service { name: ServiceName, base: Arc<Service>, statement: DesiredStatus },
    /// The withdrawal of our part from the status of a Service that is not ours any more.
    Withdrawal { name: ServiceName },
    /// The status of a pool or policy.
    CustomResource { object: CustomResource, base: Box<ObjectMeta>, status: CustomResourceStatus },
}

impl WriteTask {
    /// Makes the write and ends within [`WRITE_TIMEOUT`]. If this is dropped earlier, the write may
    /// have been made or not.
    pub(super) async fn run(self, writer: StatusWriter) -> WriteReport {
        match self {
            Self::Service { name, base, statement } => {
                let result = writer.service(&name, &base, &statement).await;
                WriteReport::Service { name, base, statement, result }
            }
            Self::Withdrawal { name } => {
                let (result, wrote) = writer.withdraw(&name).await;
                WriteReport::Withdrawal { name, result, wrote }
            }
            Self::CustomResource { object, base, status } => {
                let result = writer.custom_resource(&object, &status).await;
                WriteReport::CustomResource { object, base, status, result }
            }
        }
    }
}

/// A write with its result.
#[derive(Debug)]
pub(super) enum WriteReport {
    /// The status of a Service.
    Service { name: ServiceName, base: Arc<Service>, statement: DesiredStatus, result: WriteResult<Service> },
    /// A withdrawal. `wrote`: there was something to withdraw.
    Withdrawal { name: ServiceName, result: WriteResult<Service>, wrote: bool },
    /// The status of a pool or policy.
    CustomResource {
        object: CustomResource,
        base: Box<ObjectMeta>,
        status: CustomResourceStatus,
        result: WriteResult<ObjectMeta>,
    },
}

impl WriteReport {
    /// Returns the result for the work queue.
    pub(super) fn work_result(&self) -> WorkResult {
        match self {
            // There is nothing to withdraw any more.
            Self::Withdrawal { result: WriteResult::Gone, .. } => WorkResult::Succeeded,
            // The next attempt reads the Service again.
            Self::Withdrawal { result: WriteResult::Taken(_), .. } => WorkResult::Failed,
            Self::Service { result, .. } | Self::Withdrawal { result, .. } => result.work_result(),
            Self::CustomResource { result, .. } => result.work_result(),
        }
    }

    /// Returns whether a status was written.
    pub(super) fn is_written(&self) -> bool {
        match self {
            Self::Service { result, .. } => matches!(result, WriteResult::Written(_)),
            Self::Withdrawal { result, wrote, .. } => *wrote && matches!(result, WriteResult::Written(_)),
            Self::CustomResource { result, .. } => matches!(result, WriteResult::Written(_)),
        }
    }

    /// Returns whether the write failed or was refused. An object that changed or is gone is no
    /// failure.
    pub(super) fn has_failed(&self) -> bool {
        let is_taken = matches!(self, Self::Service { result: WriteResult::Taken(_), .. });
        is_taken || self.work_result() == WorkResult::Failed
    }
}

async fn limited<T>(write: impl Future<Output = WriteResult<T>>) -> WriteResult<T> {
    let late = |_| WriteResult::Unavailable(format!("no answer within {WRITE_TIMEOUT:?}"));
    timeout(WRITE_TIMEOUT, write).await.unwrap_or_else(late)
}
