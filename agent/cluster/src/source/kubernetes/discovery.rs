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

    /// Returns whether the API server says that it does not have the kind. A 404 alone may come from
    /// a proxy. Cancel-safe.
    pub(super) async fn lacks(&self, kind: &ApiResource) -> bool {
        let mut answer = self.answer.lock().await;
        let fresh = answer.take().filter(|answer| answer.at.elapsed() < FRESH);
        let fresh = match fresh {
            Some(fresh) => fresh,
            None => match self.client.list_api_groups().await {
                Ok(groups) => Answer { at: Instant::now(), groups, resources: BTreeMap::new() },
                Err(_) => return false,
            },
        };
        let Answer { groups, resources, .. } = answer.insert(fresh);
        let Some(group) = groups.groups.iter().find(|group| group.name == kind.group) else { return true };
        if group.versions.iter().all(|served| served.version != kind.version) {
            return true;
        }
        if !resources.contains_key(&kind.api_version) {
            let Ok(list) = self.client.list_api_group_resources(&kind.api_version).await else { return false };
            resources.insert(kind.api_version.clone(), list);
        }
        resources[&kind.api_version].resources.iter().all(|resource| resource.name != kind.plural)
    }
}
