//! Holds all Services as they were when this allocator became leader. They include the last writes
//! of the leader before. A watch may show those later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, Error, api::ListParams};
use tokio::time::timeout;

use super::{
    write_cache::{WriteCache, version_number},
    write_result::other_owner,
};
use vipmux_allocate::status::is_marked;
use vipmux_cluster::clock::boottime;
use vipmux_model::{IngestOptions, ServiceName, is_ours, objects::Objects};

/// Services per page. With thousands of Services one answer would have many megabytes.
const PAGE_SIZE: u32 = 500;
/// How long the request for a page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a listed Service counts although the watch does not show it. A watch may be later than
/// that. So the list is not dropped then: all Services are listed again.
const MAX_WATCH_DELAY: Duration = Duration::from_mins(1);

/// Listed Services that the watch does not show yet.
#[derive(Debug)]
pub(super) struct InitialList {
    /// Services that the watch shows older or not at all.
    newer: BTreeMap<ServiceName, Arc<Service>>,
    /// The time to list them again.
    relist_at: Duration,
}

/// The Services could not be listed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    /// The API server refused the request, or the connection failed.
    #[error("cannot list the Services: {0}")]
    List(Error),
    /// The API server did not answer in time.
    #[error("cannot list the Services: no answer within {PAGE_TIMEOUT:?}")]
    Late,
}

/// The result of listing all Services.
pub(super) struct ListResult {
    /// Services that are ours.
    pub(super) initial_list: InitialList,
    /// Services that are not ours, with something of ours in their statuses.
    pub(super) departed: BTreeSet<ServiceName>,
    /// Holds the addresses that other controllers wrote. Found here, they need not be found by
    /// writing.
    pub(super) write_cache: WriteCache,
}

/// Lists all Services, as new as the last write. Calls `on_page` after each page, since there may
/// be many.
pub(super) async fn list(
    client: &Client,
    options: &IngestOptions,
    on_page: impl Fn(),
) -> Result<ListResult, ListError> {
    let api: Api<Service> = Api::all(client.clone());
    let (mut newer, mut departed, mut write_cache) = (BTreeMap::new(), BTreeSet::new(), WriteCache::default());
    // Without a version the API server reads from a majority of etcd. The following pages are of
    // the same state.
    let mut params = ListParams::default().limit(PAGE_SIZE);
    loop {
        let page = timeout(PAGE_TIMEOUT, api.list(&params)).await;
        let page = page.map_err(|_| ListError::Late)?.map_err(ListError::List)?;
        on_page();
        for mut service in page.items {
            let (Some(namespace), Some(name)) = (service.metadata.namespace.clone(), service.metadata.name.clone())
            else {
                continue;
            };
            let name = ServiceName::new(namespace, name);
            if is_ours(&service, options) {
                if let Some(manager) = other_owner(&service) {
                    write_cache.record_foreign(&name, &service, manager);
                }
                service.metadata.managed_fields = None;
                newer.insert(name, Arc::new(service));
            } else if is_marked(&service) {
                departed.insert(name);
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => {
                return Ok(ListResult {
                    initial_list: InitialList { newer, relist_at: boottime() + MAX_WATCH_DELAY },
                    departed,
                    write_cache,
                });
            }
        }
    }
}

impl InitialList {
    /// Returns the objects with the Services that are newer here. Forgets those that the watch
    /// shows by now.
    pub(super) fn merge_into(&mut self, objects: &Objects) -> Objects {
        self.newer.retain(|name, service| match objects.services.get(name) {
            Some(shown) => version_number(shown) < version_number(service),
            None => true,
        });
        if self.newer.is_empty() {
            return objects.clone();
        }
        let mut objects = objects.clone();
        for (name, service) in &self.newer {
            objects.services.insert(name.clone(), Arc::clone(service));
        }
        objects
    }

    /// Returns when to list all again; `None`: the watch shows all that was listed.
    pub(super) fn relist_at(&self) -> Option<Duration> {
        (!self.newer.is_empty()).then_some(self.relist_at)
    }

    /// Sets the time of the next list.
    pub(super) const fn postpone(&mut self, relist_at: Duration) {
        self.relist_at = relist_at;
    }

    /// Forgets a Service that is gone.
    pub(super) fn remove(&mut self, name: &ServiceName) {
        self.newer.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;
    use crate::test_client::client;
    use vipmux_testing::{names::service_name, object};

    fn service(version: &str) -> Arc<Service> {
        object(json!({"metadata": {"resourceVersion": version}}))
    }

    #[test]
    fn a_listed_service_counts_until_the_watch_shows_it() {
        let newer = [("a", "9"), ("b", "12"), ("c", "7")].map(|(it, version)| (service_name(it), service(version)));
        let mut initial_list = InitialList { newer: newer.into(), relist_at: MAX_WATCH_DELAY };
        let mut objects = Objects::default();
        let shown = |objects: &Objects| {
            let one = |(name, it): (&ServiceName, &Arc<Service>)| format!("{}{}", name.name(), version_number(it));
            objects.services.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        objects.services.insert(service_name("a"), service("10"));
        objects.services.insert(service_name("b"), service("9"));
        objects.services.insert(service_name("d"), service("3"));
        assert_eq!(shown(&initial_list.merge_into(&objects)), "a10 b12 c7 d3");
        objects.services.insert(service_name("b"), service("12"));
        objects.services.remove(&service_name("a"));
        assert_eq!(shown(&initial_list.merge_into(&objects)), "b12 c7 d3", "what was shown may go");
        assert_eq!(initial_list.relist_at(), Some(MAX_WATCH_DELAY));
        objects.services.insert(service_name("c"), service("7"));
        assert_eq!(shown(&initial_list.merge_into(&objects)), "b12 c7 d3");
        assert_eq!(initial_list.relist_at(), None);
    }

    #[tokio::test]
    async fn each_page_of_a_list_is_reported() {
        let item =
            |name: &str| json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"type": "LoadBalancer"}});
        let pages = client(move |request| {
            let at_end = request.uri().query().unwrap_or_default().contains("continue=more");
            let (items, token) = if at_end { ([item("b")], "") } else { ([item("a")], "more") };
            let list =
                json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {"continue": token}, "items": items});
            (200, list)
        });
        let pages_seen = Cell::new(0);
        let listed = list(&pages, &IngestOptions::default(), || pages_seen.set(pages_seen.get() + 1)).await.unwrap();
        assert_eq!((pages_seen.get(), listed.initial_list.newer.len()), (2, 2));
    }
}
