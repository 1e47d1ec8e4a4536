//! What is kept of an object. Nodes are written by kubelets all the time, and Services' annotations hold what `kubectl apply`
//! last sent: memory, and the number of changes, follow what is served.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, NodeSpec, NodeStatus, Service, ServiceStatus},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::Audience;
use crate::{api::ALLOCATED, model::endpoints::SERVICE_LABEL, source::object::Object};

/// What `kubectl apply` sent last: the whole object once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The object without what this audience does not read.
pub(super) fn trimmed(mut object: Object, audience: Audience) -> Object {
    match &mut object {
        Object::Service(service) => service_of(Arc::make_mut(service), audience),
        Object::EndpointSlice(slice) => endpoint_slice(Arc::make_mut(slice)),
        Object::Node(node) => node_of(Arc::make_mut(node), audience),
        Object::Namespace(namespace) => namespace_of(Arc::make_mut(namespace)),
        Object::IpAddressPool(pool) => {
            let pool = Arc::make_mut(pool);
            pool.metadata = metadata(&pool.metadata, audience);
        }
        Object::L2Advertisement(advertisement) => {
            let advertisement = Arc::make_mut(advertisement);
            advertisement.metadata = metadata(&advertisement.metadata, audience);
        }
        Object::VipPool(pool) => {
            let pool = Arc::make_mut(pool);
            pool.metadata = metadata(&pool.metadata, audience);
            pool.status.take_if(|_| audience == Audience::Agent);
        }
        Object::VipPolicy(policy) => {
            let policy = Arc::make_mut(policy);
            policy.metadata = metadata(&policy.metadata, audience);
            policy.status.take_if(|_| audience == Audience::Agent);
        }
    }
    object
}

/// Who it is, since when, and what it is labelled and annotated with.
fn metadata(all: &ObjectMeta, audience: Audience) -> ObjectMeta {
    let mut annotations = all.annotations.clone();
    if let Some(annotations) = &mut annotations {
        annotations.remove(LAST_APPLIED);
    }
    let kept = ObjectMeta {
        name: all.name.clone(),
        namespace: all.namespace.clone(),
        uid: all.uid.clone(),
        creation_timestamp: all.creation_timestamp.clone(),
        labels: all.labels.clone(),
        annotations: annotations.filter(|annotations| !annotations.is_empty()),
        ..ObjectMeta::default()
    };
    match audience {
        Audience::Agent => kept,
        Audience::Allocator => ObjectMeta {
            resource_version: all.resource_version.clone(),
            generation: all.generation,
            deletion_timestamp: all.deletion_timestamp.clone(),
            ..kept
        },
    }
}

fn service_of(service: &mut Service, audience: Audience) {
    let generation = service.metadata.generation;
    service.metadata = ObjectMeta { generation, ..metadata(&service.metadata, audience) };
    if audience == Audience::Agent
        && let Some(ServiceStatus { conditions, .. }) = &mut service.status
    {
        let allocated =
            conditions.take().unwrap_or_default().into_iter().filter(|condition| condition.type_ == ALLOCATED);
        *conditions = Some(allocated.collect());
    }
}

fn endpoint_slice(slice: &mut EndpointSlice) {
    let all = std::mem::take(&mut slice.metadata);
    let labels = all.labels.and_then(|mut labels| labels.remove_entry(SERVICE_LABEL));
    slice.metadata = ObjectMeta {
        name: all.name,
        namespace: all.namespace,
        labels: labels.map(|label| [label].into()),
        ..ObjectMeta::default()
    };
    for endpoint in slice.endpoints.iter_mut().flatten() {
        (endpoint.target_ref, endpoint.hints, endpoint.zone, endpoint.hostname) = Default::default();
        endpoint.deprecated_topology = None;
    }
}

fn node_of(node: &mut Node, audience: Audience) {
    let all = std::mem::take(&mut node.metadata);
    node.metadata = ObjectMeta { name: all.name, labels: all.labels, ..ObjectMeta::default() };
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    node.spec = Some(NodeSpec { unschedulable, ..NodeSpec::default() });
    let NodeStatus { addresses, conditions, .. } = node.status.take().unwrap_or_default();
    let mut conditions = conditions.unwrap_or_default();
    let wanted = |kind: &str| kind == "NetworkUnavailable" || kind == "Ready" && audience == Audience::Allocator;
    conditions.retain(|condition| wanted(&condition.type_));
    for condition in &mut conditions {
        (condition.last_heartbeat_time, condition.last_transition_time) = (None, None);
        (condition.message, condition.reason) = (None, None);
    }
    node.status = Some(NodeStatus { addresses, conditions: Some(conditions), ..NodeStatus::default() });
}

fn namespace_of(namespace: &mut Namespace) {
    let all = std::mem::take(&mut namespace.metadata);
    namespace.metadata = ObjectMeta { name: all.name, labels: all.labels, ..ObjectMeta::default() };
    (namespace.spec, namespace.status) = (None, None);
}
