//! Observes the API server. It writes nothing but access reviews, which the server does not store.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use futures_util::future::join_all;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    authentication::v1::SelfSubjectReview,
    authorization::v1::{SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    coordination::v1::Lease,
    core::v1::{Node as Object, Service},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, PostParams},
};
use tokio::time::timeout;

use super::{CheckOptions, kernel::error_chain, source};
use crate::findings::{
    Seen, Unseen,
    cluster::{Cluster, NodeObservation, ObjectSourceObservation},
};
use vipmux_cluster::access::{self as cluster, AccessError};
use vipmux_datapath::link::Links;
use vipmux_model::{
    IngestOptions, NodeName,
    node::Node as Ingested,
    permissions::{AGENT, Right},
};

/// How long to wait for the API server's version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// The API groups with their versions.
const OWN: &str = "vipmux.io/v1alpha1";
const METALLB: &str = "metallb.io/v1beta1";

pub(super) async fn observe(options: &CheckOptions, links: &Links) -> (ObjectSourceObservation, source::Read) {
    match cluster::ClusterClient::connect(&options.access).await {
        Ok(connected) => observe_connected(options, links, connected).await,
        // No cluster was named.
        Err(AccessError::ServiceAccount(_)) => {
            let why = "no kubeconfig and no manifests are named, and this is not a Pod".to_owned();
            (ObjectSourceObservation::Nowhere(why), source::Read::default())
        }
        Err(error) => {
            let namespace = options.access.namespace.clone().unwrap_or_default();
            (unreachable(namespace, options, &error_chain(&error)), source::Read::default())
        }
    }
}

/// Returns the observations of a server that does not answer.
fn unreachable(namespace: String, options: &CheckOptions, why: &str) -> ObjectSourceObservation {
    let unseen = || Unseen { why: why.to_owned(), remedy: "see `api`".to_owned() };
    ObjectSourceObservation::Cluster(Box::new(Cluster {
        version: Err(why.to_owned()),
        user: None,
        denied: Err(unseen()),
        namespace,
        leases: Err(unseen()),
        own: Err(unseen()),
        metallb: Err(unseen()),
        node: options.node.as_ref().map_or(NodeObservation::Unnamed, |node| {
            NodeObservation::Unread(node.as_str().to_owned(), "see `api`".to_owned())
        }),
    }))
}

async fn observe_connected(
    options: &CheckOptions,
    links: &Links,
    connected: cluster::ClusterClient,
) -> (ObjectSourceObservation, source::Read) {
    let cluster::ClusterClient { client, namespace } = connected;
    let version = match timeout(VERSION_TIMEOUT, client.apiserver_version()).await {
        Ok(Ok(version)) => version.git_version,
        Ok(Err(error)) => return (unreachable(namespace, options, &error_chain(&error)), source::Read::default()),
        Err(_) => {
            let why = format!("no answer within {} s", VERSION_TIMEOUT.as_secs());
            return (unreachable(namespace, options, &why), source::Read::default());
        }
    };
    let node = match &options.node {
        Some(name) => node(&client, name, links).await,
        None => NodeObservation::Unnamed,
    };
    let read = source::Read {
        addresses: source::addresses(&node),
        vips: vips(&client, &options.allocation).await,
        daemon_sets: daemon_sets(&client).await,
    };
    let cluster = Cluster {
        version: Ok(version),
        user: user(&client).await,
        denied: denied(&client, &namespace).await,
        leases: leases(&client, &namespace).await,
        own: kinds(&client, OWN).await,
        metallb: kinds(&client, METALLB).await,
        namespace,
        node,
    };
    (ObjectSourceObservation::Cluster(Box::new(cluster)), read)
}

async fn node(client: &Client, name: &NodeName, links: &Links) -> NodeObservation {
    let nodes: Api<Object> = Api::all(client.clone());
    // By a list: the agent's account may list Nodes, but not necessarily get one.
    let parameters = ListParams::default();
    match nodes.list(&parameters).await {
        Ok(listed) => match listed.items.iter().find(|node| node.name_any() == name.as_str()) {
            Some(node) => source::here(&Ingested::ingest(name, node), links),
            None => NodeObservation::Absent(
                name.as_str().to_owned(),
                listed.items.iter().map(kube::ResourceExt::name_any).collect(),
            ),
        },
        Err(error) => NodeObservation::Unread(name.as_str().to_owned(), error_chain(&error)),
    }
}

/// Returns the addresses in the statuses of vipmux's Services; empty if they may not be listed.
async fn vips(client: &Client, options: &IngestOptions) -> BTreeSet<IpAddr> {
    let services: Api<Service> = Api::all(client.clone());
    let listed = services.list(&ListParams::default()).await.map(|listed| listed.items).unwrap_or_default();
    let is_ours = |service: &&Service| {
        let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_ref());
        class.map_or(options.unset_class_is_ours, |class| *class == options.load_balancer_class)
    };
    let ingress = |service: &Service| {
        let balancer = service.status.as_ref().and_then(|status| status.load_balancer.clone());
        balancer.and_then(|balancer| balancer.ingress).unwrap_or_default()
    };
    let addresses = listed.iter().filter(is_ours).flat_map(ingress).filter_map(|ingress| ingress.ip?.parse().ok());
    addresses.collect()
}

/// Returns the DaemonSets; `None`: they may not be listed, as with the agent's account.
async fn daemon_sets(client: &Client) -> Option<BTreeSet<String>> {
    let sets: Api<DaemonSet> = Api::all(client.clone());
    let listed = sets.list_metadata(&ListParams::default()).await.ok()?;
    Some(listed.iter().map(|set| format!("{}/{}", set.namespace().unwrap_or_default(), set.name_any())).collect())
}

/// Returns this account's user name; `None`: the API server is older than 1.28, or does not say.
async fn user(client: &Client) -> Option<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok()?;
    review.status?.user_info?.username
}

async fn denied(client: &Client, namespace: &str) -> Seen<Vec<Right>> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let ask = async |right: &Right| {
        let review = reviews.create(&PostParams::default(), &review(right, namespace)).await;
        let review = review.map_err(|error| unseen(&error))?;
        Ok((!review.status.is_some_and(|status| status.allowed)).then_some(*right))
    };
    let answers = join_all(AGENT.iter().map(ask)).await;
    answers.into_iter().filter_map(Result::transpose).collect()
}

fn review(right: &Right, namespace: &str) -> SelfSubjectAccessReview {
    SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(right.attributes(namespace)),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    }
}

async fn leases(client: &Client, namespace: &str) -> Seen<usize> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    leases.list(&ListParams::default()).await.map(|listed| listed.items.len()).map_err(|error| unseen(&error))
}

/// Returns the kinds that are served in a version of a group.
async fn kinds(client: &Client, version: &str) -> Seen<BTreeSet<String>> {
    match client.list_api_group_resources(version).await {
        Ok(listed) => Ok(listed.resources.into_iter().map(|resource| resource.kind).collect()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        Err(error) => Err(unseen(&error)),
    }
}

fn unseen(error: &kube::Error) -> Unseen {
    Unseen { why: error_chain(error), remedy: "see `permissions`, and check that the API server is healthy".to_owned() }
}
