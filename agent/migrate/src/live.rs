//! Reads a live cluster: its objects, and the programs, pools and webhooks of other load balancers.
//! It writes nothing.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    core::v1::{ConfigMap, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::{
    convert::ForeignPools,
    programs::{Program, ProgramPod, Workload},
    webhooks::{Backend, Webhook},
};
use vipmux_cluster::access::{AccessError, ClusterAccess, ClusterClient};
use vipmux_model::{
    endpoints::SERVICE_LABEL,
    objects::{
        Objects, Problem,
        object::{Identity, Kind, Object},
    },
};

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The ConfigMap of kube-vip's cloud provider, unless its environment names another one.
const KUBE_VIP_CONFIG: (&str, &str) = ("kube-system", "kubevip");
/// The kinds that say what is announced by BGP.
const BGP_KINDS: [(&str, &str, &str); 2] = [
    ("metallb.io/v1beta1", "BGPAdvertisement", "bgpadvertisements"),
    ("cilium.io/v2alpha1", "CiliumBGPAdvertisement", "ciliumbgpadvertisements"),
];

/// A live cluster.
#[derive(Clone, Debug, Default)]
pub struct LiveCluster {
    /// The objects that vipmux reads, without EndpointSlices.
    pub objects: Objects,
    /// All Services, with the managers of their fields.
    pub services: Vec<Service>,
    /// The workloads of other load balancers.
    pub workloads: Vec<Workload>,
    /// Their Pods.
    pub pods: Vec<ProgramPod>,
    /// Their pools.
    pub foreign: ForeignPools,
    /// The admission webhooks that refuse writes if they do not answer.
    pub webhooks: Vec<Webhook>,
}

/// The cluster could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// There is no access to the API server.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The API server refused a request, or the connection failed.
    #[error("cannot list {kind} objects")]
    List {
        /// The kind.
        kind: String,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("cannot list {kind} objects: no answer within {REQUEST_TIMEOUT:?}")]
    Late {
        /// The kind.
        kind: String,
    },
}

impl LiveError {
    /// Whether the same request may succeed a little later: after kinds were added, the API server refuses
    /// lists of them for a moment (429).
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Late { .. } => true,
            Self::Access(_) => false,
            Self::List { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => matches!(status.code, 429 | 500..),
                kube::Error::HyperError(_) | kube::Error::Service(_) => true,
                _ => false,
            },
        }
    }
}

impl LiveCluster {
    /// Reads the cluster.
    pub async fn read(access: &ClusterAccess) -> Result<Self, LiveError> {
        let ClusterClient { client, .. } = ClusterClient::connect(access).await?;
        let mut objects = Objects::default();
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::EndpointSlice) {
            for value in custom(&client, kind.api_version(), kind.name(), kind.plural()).await? {
                put(kind, value, &mut objects);
            }
        }
        let workloads = workloads(&client).await?;
        Ok(Self {
            objects,
            services: all(&client).await?,
            pods: all::<Pod>(&client).await?.iter().filter_map(ProgramPod::of).collect(),
            foreign: foreign(&client, &workloads).await?,
            workloads,
            webhooks: webhooks(&client).await?,
        })
    }
}

fn put(kind: Kind, value: Value, objects: &mut Objects) {
    let Some(identity) = Identity::of(kind, &value) else { return };
    match Object::decode(kind, value) {
        Ok((identity, object)) => object.put(&identity, objects),
        Err(flaws) => {
            objects.problems.extend(flaws.into_iter().map(|flaw| Problem::of_object(&identity, flaw)));
        }
    }
}

async fn workloads(client: &Client) -> Result<Vec<Workload>, LiveError> {
    let sets = all::<DaemonSet>(client).await?;
    let deployments = all::<Deployment>(client).await?;
    let stateful = all::<StatefulSet>(client).await?;
    let sets = sets.iter().filter_map(Workload::of_daemon_set);
    let deployments = deployments.iter().filter_map(Workload::of_deployment);
    Ok(sets.chain(deployments).chain(stateful.iter().filter_map(Workload::of_stateful_set)).collect())
}

async fn foreign(client: &Client, workloads: &[Workload]) -> Result<ForeignPools, LiveError> {
    // Newer versions of Cilium serve the pools in both versions.
    let mut cilium_pools =
        custom(client, "cilium.io/v2", "CiliumLoadBalancerIPPool", "ciliumloadbalancerippools").await?;
    if cilium_pools.is_empty() {
        let version = "cilium.io/v2alpha1";
        cilium_pools = custom(client, version, "CiliumLoadBalancerIPPool", "ciliumloadbalancerippools").await?;
    }
    let policies = ("CiliumL2AnnouncementPolicy", "ciliuml2announcementpolicies");
    let mut bgp = Vec::new();
    for (version, kind, plural) in BGP_KINDS {
        let found = custom(client, version, kind, plural).await?;
        bgp.extend(found.iter().filter_map(|value| Some(format!("{kind} {}", value["metadata"]["name"].as_str()?))));
    }
    Ok(ForeignPools {
        kube_vip: kube_vip(client, workloads).await?,
        cilium_pools,
        cilium_policies: custom(client, "cilium.io/v2alpha1", policies.0, policies.1).await?,
        bgp,
    })
}

/// Returns the data of the ConfigMap of kube-vip's cloud provider; empty if there is none.
async fn kube_vip(client: &Client, workloads: &[Workload]) -> Result<BTreeMap<String, String>, LiveError> {
    let provider = workloads.iter().find(|workload| workload.program == Program::KubeVipCloudProvider);
    let of = |variable, default| provider.and_then(|it| it.variable(variable)).unwrap_or(default);
    let (namespace, name) = (of("KUBEVIP_NAMESPACE", KUBE_VIP_CONFIG.0), of("KUBEVIP_CONFIG_MAP", KUBE_VIP_CONFIG.1));
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = answered("ConfigMap", maps.get_opt(name)).await?;
    Ok(found.and_then(|map| map.data).unwrap_or_default())
}

async fn webhooks(client: &Client) -> Result<Vec<Webhook>, LiveError> {
    let mut found = Vec::new();
    for configuration in all::<ValidatingWebhookConfiguration>(client).await? {
        found.extend(Webhook::of_validating(&configuration));
    }
    for configuration in all::<MutatingWebhookConfiguration>(client).await? {
        found.extend(Webhook::of_mutating(&configuration));
    }
    found.retain(Webhook::concerns_vipmux);
    for webhook in &mut found {
        webhook.backend = backend(client, &webhook.service).await?;
    }
    Ok(found)
}

/// Returns whether a webhook's Service, `namespace/name`, has somebody who answers.
async fn backend(client: &Client, service: &str) -> Result<Backend, LiveError> {
    let Some((namespace, name)) = service.split_once('/') else { return Ok(Backend::Unknown) };
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let parameters = ListParams::default().labels(&format!("{SERVICE_LABEL}={name}"));
    let listed = answered("EndpointSlice", slices.list(&parameters)).await?;
    let mut endpoints = listed.items.into_iter().flat_map(|slice| slice.endpoints.unwrap_or_default());
    let is_ready = |conditions: Option<bool>| conditions.unwrap_or(true);
    let answers = endpoints.any(|endpoint| is_ready(endpoint.conditions.and_then(|conditions| conditions.ready)));
    Ok(if answers { Backend::Ready } else { Backend::Gone })
}

/// Lists all objects of a kind.
async fn all<K>(client: &Client) -> Result<Vec<K>, LiveError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    Ok(answered(&K::kind(&()), api.list(&ListParams::default())).await?.items)
}

/// Lists the objects of a kind that may not be installed.
async fn custom(client: &Client, version: &str, kind: &str, plural: &str) -> Result<Vec<Value>, LiveError> {
    let (group, short) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource {
        group: group.to_owned(),
        version: short.to_owned(),
        api_version: version.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let listed = match answered(kind, api.list(&ListParams::default())).await {
        Err(LiveError::List { source, .. }) if is_absent(&source) => return Ok(Vec::new()),
        listed => listed?.items,
    };
    // An object is made of JSON, so it can be made into JSON.
    let value = |object| {
        let mut value = serde_json::to_value::<DynamicObject>(object).unwrap_or_default();
        (value["apiVersion"], value["kind"]) = (version.into(), kind.into());
        value
    };
    Ok(listed.into_iter().map(value).collect())
}

fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

async fn answered<T>(kind: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T, LiveError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|source| LiveError::List { kind: kind.to_owned(), source: Box::new(source) }),
        Err(_) => Err(LiveError::Late { kind: kind.to_owned() }),
    }
}
