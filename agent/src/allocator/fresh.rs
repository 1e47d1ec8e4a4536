//! All Services as they were when this allocator's turn began: what the one before wrote last is among that, which a watch may
//! show later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, Error, api::ListParams};
use tokio::time::timeout;

use super::{
    answer::owner,
    ledger::{Ledger, order},
};
use crate::{
    clock::boottime,
    model::{Options, ServiceName, ingest::is_ours},
    source::Objects,
    status::is_marked,
};

/// Services at once; with thousands of them an answer would be of many megabytes.
const PAGE: u32 = 500;
/// How long a page may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long what was listed and the watch does not show is taken to be so. A watch may be later than that, so it is not forgotten then:
/// all is listed anew.
const LATEST: Duration = Duration::from_mins(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Fresh {
    /// Those that the watch does not show as they are here, or newer.
    ahead: BTreeMap<ServiceName, Arc<Service>>,
    /// When that is to be listed anew.
    until: Duration,
}

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub(super) enum FreshError {
    /// The API server has none.
    #[error("cannot list the Services: {0}")]
    List(Error),
    /// It does not answer.
    #[error("cannot list the Services: no answer within {LIMIT:?}")]
    Late,
}

/// What a list of all Services says.
pub(super) struct Listed {
    /// Those that are ours.
    pub(super) fresh: Fresh,
    /// Those that are not, and have something of ours in their statuses.
    pub(super) departed: BTreeSet<ServiceName>,
    /// With what others wrote: found here, it need not be found by writing.
    pub(super) ledger: Ledger,
}

/// Lists all Services, as new as the last write. `turned` is told of each page, since there may be many.
pub(super) async fn list(client: &Client, options: &Options, turned: impl Fn()) -> Result<Listed, FreshError> {
    let api: Api<Service> = Api::all(client.clone());
    let (mut ahead, mut departed, mut ledger) = (BTreeMap::new(), BTreeSet::new(), Ledger::default());
    // No version is named, so it is read from a majority of etcd, and the following pages are of the same state.
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = timeout(LIMIT, api.list(&params)).await;
        let page = page.map_err(|_| FreshError::Late)?.map_err(FreshError::List)?;
        turned();
        for mut service in page.items {
            let (Some(namespace), Some(name)) = (service.metadata.namespace.clone(), service.metadata.name.clone())
            else {
                continue;
            };
            let name = ServiceName { namespace, name };
            if is_ours(&service, options) {
                if let Some(manager) = owner(&service) {
                    ledger.taken(&name, &service, manager);
                }
                service.metadata.managed_fields = None;
                ahead.insert(name, Arc::new(service));
            } else if is_marked(&service) {
                departed.insert(name);
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(Listed { fresh: Fresh { ahead, until: boottime() + LATEST }, departed, ledger }),
        }
    }
}

impl Fresh {
    /// The objects, with what is newer here. What the watch shows from now on is not told again.
    pub(super) fn over(&mut self, objects: &Objects) -> Objects {
        self.ahead.retain(|name, service| match objects.services.get(name) {
            Some(shown) => order(shown) < order(service),
            None => true,
        });
        if self.ahead.is_empty() {
            return objects.clone();
        }
        let mut objects = objects.clone();
        for (name, service) in &self.ahead {
            objects.services.insert(name.clone(), Arc::clone(service));
        }
        objects
    }

    /// When all is to be listed anew; `None`: the watch shows all that was listed.
    pub(super) fn until(&self) -> Option<Duration> {
        (!self.ahead.is_empty()).then_some(self.until)
    }

    /// It is to be listed anew at this time.
    pub(super) const fn put_off(&mut self, until: Duration) {
        self.until = until;
    }

    /// This one is gone.
    pub(super) fn remove(&mut self, name: &ServiceName) {
        self.ahead.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;
    use crate::{allocator::fixture::client, model::ingest::object};

    fn name(text: &str) -> ServiceName {
        ServiceName { namespace: "shop".to_owned(), name: text.to_owned() }
    }

    fn service(version: &str) -> Arc<Service> {
        object(json!({"metadata": {"resourceVersion": version}}))
    }

    #[test]
    fn what_the_watch_shows_later_is_there_until_it_does() {
        let ahead = [("a", "9"), ("b", "12"), ("c", "7")].map(|(it, version)| (name(it), service(version)));
        let mut fresh = Fresh { ahead: ahead.into(), until: LATEST };
        let mut objects = Objects::default();
        let shown = |objects: &Objects| {
            let one = |(name, it): (&ServiceName, &Arc<Service>)| format!("{}{}", name.name, order(it));
            objects.services.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        objects.services.insert(name("a"), service("10"));
        objects.services.insert(name("b"), service("9"));
        objects.services.insert(name("d"), service("3"));
        assert_eq!(shown(&fresh.over(&objects)), "a10 b12 c7 d3");
        objects.services.insert(name("b"), service("12"));
        objects.services.remove(&name("a"));
        assert_eq!(shown(&fresh.over(&objects)), "b12 c7 d3", "what was shown may go");
        assert_eq!(fresh.until(), Some(LATEST));
        objects.services.insert(name("c"), service("7"));
        assert_eq!(shown(&fresh.over(&objects)), "b12 c7 d3");
        assert_eq!(fresh.until(), None);
    }

    #[tokio::test]
    async fn each_page_of_a_list_is_told() {
        let item =
            |name: &str| json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"type": "LoadBalancer"}});
        let pages = client(move |request| {
            let at_end = request.uri().query().unwrap_or_default().contains("continue=more");
            let (items, token) = if at_end { ([item("b")], "") } else { ([item("a")], "more") };
            let list =
                json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {"continue": token}, "items": items});
            (200, list)
        });
        let turns = Cell::new(0);
        let listed = list(&pages, &Options::default(), || turns.set(turns.get() + 1)).await.unwrap();
        assert_eq!((turns.get(), listed.fresh.ahead.len()), (2, 2));
    }
}
