//! Tests the watch of one kind, event by event.

use http::Response;
use kube::client::Body;
use serde_json::json;
use tower::service_fn;

use super::{super::table::ObjectTable, *};
use vipmux_model::objects::Objects;

/// A watch of MetalLB's pools, and the table of what it sends. Its API server answers nothing.
struct PoolWatch {
    watch: KindWatch,
    updates: mpsc::Receiver<WatchUpdate>,
    table: ObjectTable,
}

impl PoolWatch {
    fn new() -> Self {
        let answer = |_| async { Ok::<_, io::Error>(Response::builder().status(503).body(Body::empty()).unwrap()) };
        let client = Client::new(service_fn(answer), "default");
        let (sender, updates) = mpsc::channel(16);
        let (discovery, kind) = (Discovery::new(client.clone()), Kind::IpAddressPool);
        let watch = KindWatch::new(client, discovery, kind, Consumer::Agent, sender, rollback::never(), Outage::new());
        Self { watch, updates, table: ObjectTable::default() }
    }

    /// Returns the updates that wait.
    fn sent(&mut self) -> Vec<WatchUpdate> {
        std::iter::from_fn(|| self.updates.try_recv().ok()).collect()
    }

    /// Passes an event of the API server on, to the table.
    async fn handle(&mut self, event: watcher::Event<DynamicObject>) -> Objects {
        assert!(self.watch.handle(event).await);
        for update in self.sent() {
            self.table.apply(update);
        }
        self.table.snapshot()
    }
}

/// Returns the pool `lan` in this namespace, created at this second.
fn pool(namespace: &str, second: u8, range: &str) -> DynamicObject {
    let created = format!("2026-11-20T10:00:{second:02}Z");
    let metadata = json!({"name": "lan", "namespace": namespace, "creationTimestamp": created});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"addresses": [range]}})).unwrap()
}

/// A list has the namespaces in their order, and the oldest copy counts.
#[tokio::test]
async fn a_newer_copy_of_a_pool_does_not_count_while_the_pools_are_listed_again() {
    use watcher::Event::{Init, InitApply, InitDone};
    let mut pools = PoolWatch::new();
    let newer = || InitApply(pool("default", 2, "203.0.113.0/28"));
    let older = || InitApply(pool("metallb-system", 1, "198.51.100.0/28"));
    for event in [Init, newer(), older()] {
        assert!(pools.handle(event).await.address_pools.is_empty(), "nothing counts before the first list");
    }
    for event in [InitDone, Init, newer(), older(), InitDone, Init, newer(), Init, newer(), older(), InitDone] {
        let step = format!("{event:?}");
        let objects = pools.handle(event).await;
        assert_eq!(objects.address_pools["lan"].spec.addresses, ["198.51.100.0/28"], "{step}");
    }
}

#[tokio::test]
async fn objects_stay_in_force_if_their_kind_is_served_in_another_version_only() {
    let mut pools = PoolWatch::new();
    assert!(pools.watch.report_other_version("metallb.io/v1").await);
    let sent = pools.sent();
    let changes: Vec<_> = sent.iter().map(|update| &update.change).collect();
    assert!(matches!(changes[..], [ObjectChange::ListBegan, ObjectChange::ListEnded]), "an agent starts: {changes:?}");
    for event in [
        watcher::Event::Init,
        watcher::Event::InitApply(pool("default", 1, "198.51.100.0/28")),
        watcher::Event::InitDone,
    ] {
        pools.handle(event).await;
    }
    assert!(pools.watch.report_other_version("metallb.io/v1").await);
    assert!(pools.sent().is_empty() && pools.table.snapshot().address_pools.contains_key("lan"));
    assert!(pools.watch.report_absent().await);
    assert_eq!(pools.sent().len(), 2, "a kind in no version has no objects");
}
