//! One write: a request or two, with a time limit within which a mandate that has ended can do no harm.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    answer::{Answer, MANAGER},
    ledger::{Custom, CustomStatus},
};
use crate::{
    api::{API_VERSION, VipPolicy, VipPool},
    clock::wall,
    model::{Options, ServiceName, ingest::is_ours},
    status::{Statement, body, is_marked, withdrawal},
};

/// How long a write may take, from beginning to end: with [`TERM`](super::mandate::TERM) less than the Lease's duration.
pub(super) const LIMIT: Duration = Duration::from_secs(4);

/// What writes.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) client: Client,
    pub(super) options: Options,
    /// What others wrote is overwritten.
    pub(super) adopt: bool,
}

impl Writer {
    /// Lets a Service's status say this, if the Service is still what that was decided on.
    async fn service(&self, name: &ServiceName, base: &Service, statement: &Statement) -> Answer<Service> {
        let body = body(name, base, statement, wall());
        limited(async {
            let answer = self.apply(name, &body, self.adopt).await;
            // A person's hand in our own conditions; the addresses are not contested, and the version tells if they are now.
            if answer == Answer::Contested { self.apply(name, &body, true).await } else { answer }
        })
        .await
    }

    /// Takes back what was written into the status of a Service that is not ours any more; `Made` also where nothing had to
    /// be done. And whether something had.
    async fn depart(&self, name: &ServiceName) -> (Answer<Service>, bool) {
        let mut wrote = false;
        let answer = limited(async {
            // A list of one: who lists all Services anyway needs no further right.
            let one = ListParams::default().fields(&format!("metadata.name={}", name.name));
            match self.services(&name.namespace).list(&one).await.map(|list| list.items.into_iter().next()) {
                Ok(Some(service)) if is_marked(&service) && !is_ours(&service, &self.options) => {
                    wrote = true;
                    self.apply(name, &withdrawal(name, &service), false).await
                }
                Ok(Some(service)) => Answer::Made(Box::new(service)),
                Ok(None) => Answer::Gone,
                Err(error) => Answer::of(Err(error)),
            }
        })
        .await;
        (answer, wrote)
    }

    /// Lets the status of a pool or policy say this. It is nobody else's.
    async fn custom(&self, object: &Custom, status: &CustomStatus) -> Answer<ObjectMeta> {
        let params = PatchParams::apply(MANAGER).force();
        let body = |kind: &str, name: &str, status: Value| {
            Patch::Apply(json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "status": status}))
        };
        let client = self.client.clone();
        limited(async {
            match (object, status) {
                (Custom::Pool(name), CustomStatus::Pool(status)) => {
                    let body = body("VipPool", name, json!(status));
                    let made = Api::<VipPool>::all(client).patch_status(name, &params, &body).await;
                    Answer::of(made.map(|made| made.metadata))
                }
                (Custom::Policy(name), CustomStatus::Policy(status)) => {
                    let body = body("VipPolicy", name, json!(status));
                    let made = Api::<VipPolicy>::all(client).patch_status(name, &params, &body).await;
                    Answer::of(made.map(|made| made.metadata))
                }
                (Custom::Pool(_), CustomStatus::Policy(_)) | (Custom::Policy(_), CustomStatus::Pool(_)) => Answer::Gone,
            }
        })
        .await
    }

    async fn apply(&self, name: &ServiceName, body: &Value, force: bool) -> Answer<Service> {
        let params = PatchParams::apply(MANAGER);
        let params = if force { params.force() } else { params };
        Answer::of(self.services(&name.namespace).patch_status(&name.name, &params, &Patch::Apply(body)).await)
    }

    fn services(&self, namespace: &str) -> Api<Service> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// A write.
pub(super) enum Work {
    /// Of a Service's status, by the Service that was decided on.
    Service { name: ServiceName, base: Arc<Service>, statement: Statement },
    /// Of nothing, into the status of a Service that is not ours any more.
    Departed { name: ServiceName },
    /// Of the status of a pool or policy.
    Custom { object: Custom, base: Box<ObjectMeta>, status: CustomStatus },
}

impl Work {
    /// Ends within [`LIMIT`]; what is dropped before may have been done or not.
    pub(super) async fn done_by(self, writer: Writer) -> Report {
        match self {
            Self::Service { name, base, statement } => {
                let answer = writer.service(&name, &base, &statement).await;
                Report::Service { name, base, statement, answer }
            }
            Self::Departed { name } => {
                let (answer, wrote) = writer.depart(&name).await;
                Report::Departed { name, answer, wrote }
            }
            Self::Custom { object, base, status } => {
                let answer = writer.custom(&object, &status).await;
                Report::Custom { object, base, status, answer }
            }
        }
    }
}

/// What came of a write.
#[derive(Debug)]
pub(super) enum Report {
    /// Of a Service's status.
    Service { name: ServiceName, base: Arc<Service>, statement: Statement, answer: Answer<Service> },
    /// Of what was taken back, if there was something.
    Departed { name: ServiceName, answer: Answer<Service>, wrote: bool },
    /// Of the status of a pool or policy.
    Custom { object: Custom, base: Box<ObjectMeta>, status: CustomStatus, answer: Answer<ObjectMeta> },
}

async fn limited<T>(write: impl Future<Output = Answer<T>>) -> Answer<T> {
    let late = |_| Answer::Unavailable(format!("no answer within {LIMIT:?}"));
    timeout(LIMIT, write).await.unwrap_or_else(late)
}
