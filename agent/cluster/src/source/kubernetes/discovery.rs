//! Asks the API server which kinds it has, for all watches of a process together.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList};
use kube::{Client, api::ApiResource};
use tokio::sync::Mutex;

/// The time for which an answer is used. Watches of missing kinds ask at about the same time.
const FRESH: Duration = Duration::from_secs(5);

/// Whether the API server has a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// In the version that is read, as far as the API server says.
    Served,
    /// In another version only, this `apiVersion`. Its objects are there, and cannot be read.
    OtherVersion(String),
    /// In no version, so it has no objects.
    Absent,
}

/// The API server's discovery. A clone shares the answers.
#[derive(Clone)]
pub(super) struct Discovery {
    client: Client,
    answer: Arc<Mutex<Option<Answer>>>,
}

struct Answer {
    at: Instant,
    groups: APIGroupList,
    /// By group and version, as far as somebody asked.
    resources: BTreeMap<String, APIResourceList>,
}

impl Discovery {
    pub(super) fn new(client: Client) -> Self {
        Self { client, answer: Arc::default() }
    }

    /// Returns whether the API server says that it has the kind. A 404 alone may come from a proxy.
    /// Cancel-safe.
    pub(super) async fn presence(&self, kind: &ApiResource) -> Presence {
        let mut answer = self.answer.lock().await;
        let fresh = answer.take().filter(|answer| answer.at.elapsed() < FRESH);
        let fresh = match fresh {
            Some(fresh) => fresh,
            None => match self.client.list_api_groups().await {
                Ok(groups) => Answer { at: Instant::now(), groups, resources: BTreeMap::new() },
                Err(_) => return Presence::Served,
            },
        };
        let Answer { groups, resources, .. } = answer.insert(fresh);
        let Some(group) = groups.groups.iter().find(|group| group.name == kind.group) else { return Presence::Absent };
        let mut presence = Presence::Absent;
        for version in group.versions.iter().map(|served| &served.group_version) {
            if !resources.contains_key(version) {
                let Ok(list) = self.client.list_api_group_resources(version).await else { return Presence::Served };
                resources.insert(version.clone(), list);
            }
            if resources[version].resources.iter().any(|resource| resource.name == kind.plural) {
                if *version == kind.api_version {
                    return Presence::Served;
                }
                presence = Presence::OtherVersion(version.clone());
            }
        }
        presence
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    /// The versions of `metallb.io`, each with its resources.
    type Versions = &'static [(&'static str, &'static [&'static str])];

    fn client(versions: Versions) -> Client {
        let answer = move |request: Request<Body>| {
            let version = |version: &str| json!({"groupVersion": format!("metallb.io/{version}"), "version": version});
            let all: Vec<_> = versions.iter().map(|(name, _)| version(name)).collect();
            let group = json!({"name": "metallb.io", "versions": all, "preferredVersion": all.last()});
            let groups = if all.is_empty() { Vec::new() } else { vec![group] };
            let resource =
                |name: &&str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "", "verbs": []});
            let body = match request.uri().path() {
                "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
                path => {
                    let found = versions.iter().find(|(name, _)| path == format!("/apis/metallb.io/{name}"));
                    let resources: Vec<_> = found.unwrap().1.iter().map(resource).collect();
                    json!({"groupVersion": path.trim_start_matches("/apis/"), "resources": resources})
                }
            };
            async move { Ok::<_, std::convert::Infallible>(Response::new(Body::from(body.to_string().into_bytes()))) }
        };
        Client::new(service_fn(answer), "default")
    }

    /// Its objects still exist, so they must not count as gone.
    #[tokio::test]
    async fn a_kind_in_another_version_is_not_absent() {
        const POOLS: &[&str] = &["ipaddresspools"];
        let pools = ApiResource {
            group: "metallb.io".to_owned(),
            version: "v1beta1".to_owned(),
            api_version: "metallb.io/v1beta1".to_owned(),
            kind: "IPAddressPool".to_owned(),
            plural: "ipaddresspools".to_owned(),
        };
        let other = || Presence::OtherVersion("metallb.io/v1".to_owned());
        let table: [(Versions, _); 6] = [
            (&[("v1beta1", POOLS)], Presence::Served),
            (&[("v1", POOLS), ("v1beta1", POOLS)], Presence::Served),
            (&[("v1", POOLS)], other()),
            (&[("v1", POOLS), ("v1beta1", &["bgppeers"])], other()),
            (&[("v1", &["bgppeers"])], Presence::Absent),
            (&[], Presence::Absent),
        ];
        for (versions, presence) in table {
            assert_eq!(Discovery::new(client(versions)).presence(&pools).await, presence, "{versions:?}");
        }
    }
}
