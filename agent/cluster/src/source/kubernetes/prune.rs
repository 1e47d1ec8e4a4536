//! Drops the fields of objects that nobody reads.
//!
//! Kubelets write Nodes all the time, and Services' annotations hold what `kubectl apply` last
//! sent. Without these, memory and the number of changes depend on what is served.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Node, NodeSpec, NodeStatus, Service, ServiceStatus},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::Consumer;
use vipmux_model::{api::ALLOCATED, endpoints::SERVICE_LABEL, objects::object::Object};

/// The last input of `kubectl apply`: the whole object once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns the object without the fields that this consumer does not read.
pub(super) fn prune(mut object: Object, consumer: Consumer) -> Object {
    match &mut object {
        Object::Service(service) => prune_service(Arc::make_mut(service), consumer),
        Object::EndpointSlice(slice) => prune_endpoint_slice(Arc::make_mut(slice)),
        Object::Node(node) => prune_node(Arc::make_mut(node), consumer),
        Object::Namespace(namespace) => prune_namespace(Arc::make_mut(namespace)),
        Object::IpAddressPool(pool) => {
            let pool = Arc::make_mut(pool);
            pool.metadata = prune_metadata(&pool.metadata, consumer);
        }
        Object::L2Advertisement(advertisement) => {
            let advertisement = Arc::make_mut(advertisement);
            advertisement.metadata = prune_metadata(&advertisement.metadata, consumer);
        }
        Object::VipPool(pool) => {
            let pool = Arc::make_mut(pool);
            pool.metadata = prune_metadata(&pool.metadata, consumer);
            pool.status.take_if(|_| consumer == Consumer::Agent);
        }
        Object::VipPolicy(policy) => {
            let policy = Arc::make_mut(policy);
            policy.metadata = prune_metadata(&policy.metadata, consumer);
            policy.status.take_if(|_| consumer == Consumer::Agent);
        }
    }
    object
}

/// Returns name, age, labels and annotations, and what the allocator needs for writes.
fn prune_metadata(all: &ObjectMeta, consumer: Consumer) -> ObjectMeta {
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
    match consumer {
        Consumer::Agent => kept,
        Consumer::Allocator => ObjectMeta {
            resource_version: all.resource_version.clone(),
            generation: all.generation,
            deletion_timestamp: all.deletion_timestamp.clone(),
            ..kept
        },
    }
}

fn prune_service(service: &mut Service, consumer: Consumer) {
    let generation = service.metadata.generation;
    service.metadata = ObjectMeta { generation, ..prune_metadata(&service.metadata, consumer) };
    if consumer == Consumer::Agent
        && let Some(ServiceStatus { conditions, .. }) = &mut service.status
    {
        let allocated =
            conditions.take().unwrap_or_default().into_iter().filter(|condition| condition.type_ == ALLOCATED);
        *conditions = Some(allocated.collect());
    }
}

fn prune_endpoint_slice(slice: &mut EndpointSlice) {
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

fn prune_node(node: &mut Node, consumer: Consumer) {
    let all = std::mem::take(&mut node.metadata);
    node.metadata = ObjectMeta { name: all.name, labels: all.labels, ..ObjectMeta::default() };
    let NodeSpec { unschedulable, pod_cidr, pod_cidrs, .. } = node.spec.take().unwrap_or_default();
    let kept = NodeSpec { unschedulable, ..NodeSpec::default() };
    node.spec = Some(match consumer {
        Consumer::Agent => NodeSpec { pod_cidr, pod_cidrs, ..kept },
        Consumer::Allocator => kept,
    });
    let NodeStatus { addresses, conditions, .. } = node.status.take().unwrap_or_default();
    let mut conditions = conditions.unwrap_or_default();
    let wanted = |kind: &str| kind == "NetworkUnavailable" || kind == "Ready" && consumer == Consumer::Allocator;
    conditions.retain(|condition| wanted(&condition.type_));
    for condition in &mut conditions {
        (condition.last_heartbeat_time, condition.last_transition_time) = (None, None);
        (condition.message, condition.reason) = (None, None);
    }
    node.status = Some(NodeStatus { addresses, conditions: Some(conditions), ..NodeStatus::default() });
}

fn prune_namespace(namespace: &mut Namespace) {
    let all = std::mem::take(&mut namespace.metadata);
    namespace.metadata = ObjectMeta { name: all.name, labels: all.labels, ..ObjectMeta::default() };
    (namespace.spec, namespace.status) = (None, None);
}
