//! Tests the table of watched objects.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::source::kubernetes::{Consumer, prune::prune};
use vipmux_model::objects::validate::Flaw;
use vipmux_testing::names::service_name;

fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "resourceVersion": port.to_string(),
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "vipmux.io/pool": "lan"},
        },
        "spec": {"type": "LoadBalancer", "ports": [{"port": port}]},
        "status": {"conditions": [
            {"type": "vipmux.io/Allocated", "status": "True", "reason": "Allocated", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "vipmux.io/Announced", "status": "True", "reason": "Announced", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]},
    })
}

/// Returns the update of a watch about the object.
fn there(kind: Kind, value: Value) -> WatchUpdate {
    let identity = Identity::of(kind, &value).unwrap();
    let problems = |flaws: Vec<Flaw>| flaws.into_iter().map(|flaw| Problem::of_object(&identity, flaw)).collect();
    let object = Object::decode(kind, value).map(|(_, object)| prune(object, Consumer::Agent)).map_err(problems);
    WatchUpdate { kind, change: ObjectChange::Exists(identity, object) }
}

fn is(change: ObjectChange) -> WatchUpdate {
    WatchUpdate { kind: Kind::Service, change }
}

fn gone(name: &str) -> WatchUpdate {
    is(ObjectChange::Gone(Identity::of(Kind::Service, &service(name, 1)).unwrap()))
}

/// Returns a table with all kinds listed, and Services `a` and `b`.
fn listed() -> ObjectTable {
    let mut table = ObjectTable::default();
    for kind in Kind::ALL {
        assert!(!table.is_complete());
        table.apply(WatchUpdate { kind, change: ObjectChange::ListBegan });
        if kind == Kind::Service {
            table.apply(there(kind, service("a", 80)));
            table.apply(there(kind, service("b", 80)));
        }
        assert!(
            table.apply(WatchUpdate { kind, change: ObjectChange::ListEnded }),
            "there is something new: {kind:?} is known"
        );
    }
    assert!(table.is_complete());
    table
}

fn names(table: &ObjectTable) -> Vec<String> {
    table.snapshot().services.keys().map(|name| name.name().to_owned()).collect()
}

#[test]
fn listed_objects_and_later_changes_are_in_the_snapshot() {
    let mut table = listed();
    assert_eq!(names(&table), ["a", "b"]);
    assert!(table.apply(there(Kind::Service, service("c", 80))));
    assert!(table.apply(gone("a")));
    assert!(!table.apply(gone("a")), "twice is once");
    assert_eq!(names(&table), ["b", "c"]);
}

#[test]
fn an_object_that_went_unnoticed_is_removed_by_the_next_list_and_not_before() {
    let mut table = listed();
    assert!(!table.apply(is(ObjectChange::ListBegan)));
    assert_eq!(names(&table), ["a", "b"], "nothing is known yet");
    assert!(!table.apply(there(Kind::Service, service("b", 80))), "it is as it was");
    assert_eq!(names(&table), ["a", "b"]);
    assert!(table.apply(is(ObjectChange::ListEnded)));
    assert_eq!(names(&table), ["b"]);
}

#[test]
fn a_list_that_starts_again_forgets_the_first_half() {
    let mut table = listed();
    table.apply(is(ObjectChange::ListBegan));
    table.apply(there(Kind::Service, service("a", 81)));
    table.apply(there(Kind::Service, service("c", 80)));
    table.apply(is(ObjectChange::ListBegan));
    table.apply(there(Kind::Service, service("b", 80)));
    assert!(table.apply(is(ObjectChange::ListEnded)));
    assert_eq!(names(&table), ["b"]);
}

/// A pool of each kind that has pools.
fn pool(kind: Kind, name: &str, range: &str) -> WatchUpdate {
    there(kind, json!({"metadata": {"name": name, "namespace": "x"}, "spec": {"addresses": [range]}}))
}

/// Each object of a list that was applied at once showed old and new objects together for a moment: a pool
/// that another one replaces overlaps it, and the first copy of a MetalLB pool in a list need not be the one
/// that counts.
#[test]
fn no_object_of_a_list_counts_before_the_list_is_complete() {
    let mut table = listed();
    for kind in [Kind::VipPool, Kind::IpAddressPool] {
        table.apply(pool(kind, "old", "192.0.2.0/28"));
        table.apply(pool(kind, "lan", "198.51.100.0/28"));
    }
    let node = |ready: &str| {
        let conditions = json!([{"type": "NetworkUnavailable", "status": ready}]);
        json!({"metadata": {"name": "n1"}, "status": {"conditions": conditions}})
    };
    table.apply(there(Kind::Node, node("False")));
    let before = table.snapshot();
    let list = |kind: Kind| match kind {
        Kind::Service => vec![there(kind, service("a", 81)), there(kind, service("c", 80))],
        Kind::Node => vec![there(kind, node("True"))],
        // The first one is a newer copy of `lan`, which the older one then replaces. One is malformed.
        Kind::VipPool | Kind::IpAddressPool => vec![
            pool(kind, "lan", "203.0.113.0/28"),
            pool(kind, "new", "192.0.2.0/27"),
            pool(kind, "lan", "198.51.100.0/28"),
            pool(kind, "bad", "nonsense"),
        ],
        _ => Vec::new(),
    };
    for kind in Kind::ALL {
        let ended = WatchUpdate { kind, change: ObjectChange::ListEnded };
        assert!(!table.apply(WatchUpdate { kind, change: ObjectChange::ListBegan }));
        let before_list = table.snapshot();
        for update in list(kind) {
            assert!(!table.apply(update), "{kind:?}");
            assert_eq!(table.snapshot(), before_list, "{kind:?}");
        }
        let changes = !list(kind).is_empty();
        assert_eq!(table.apply(ended), changes, "{kind:?}");
        assert_eq!(table.snapshot() != before_list, changes, "{kind:?}");
    }
    let after = table.snapshot();
    assert_eq!(names(&table), ["a", "c"]);
    assert_eq!(after.vip_pools.keys().collect::<Vec<_>>(), ["lan", "new"]);
    assert!(Arc::ptr_eq(&before.address_pools["lan"], &after.address_pools["lan"]), "what did not change is shared");
    assert!(Arc::ptr_eq(&before.vip_pools["lan"], &after.vip_pools["lan"]));
    assert_eq!(after.problems.len(), 1);
}

#[test]
fn an_object_that_is_deleted_during_a_list_is_not_in_it() {
    let mut table = listed();
    table.apply(is(ObjectChange::ListBegan));
    table.apply(there(Kind::Service, service("a", 80)));
    table.apply(there(Kind::Service, service("c", 80)));
    assert!(!table.apply(gone("c")));
    assert!(!table.apply(gone("a")));
    assert_eq!(names(&table), ["a", "b"]);
    assert!(table.apply(is(ObjectChange::ListEnded)));
    assert_eq!(names(&table), [""; 0]);
}

#[test]
fn a_write_of_other_fields_is_no_change() {
    let mut table = listed();
    let mut written = service("a", 80);
    written["metadata"]["resourceVersion"] = "9".into();
    written["metadata"]["managedFields"] = json!([{"manager": "allocator"}]);
    written["status"]["conditions"][1]["status"] = "False".into();
    assert!(!table.apply(there(Kind::Service, written)));
    let before = table.snapshot();
    assert!(table.apply(there(Kind::Service, service("b", 81))));
    let after = table.snapshot();
    let same = |name: &str| {
        let name = service_name(name);
        Arc::ptr_eq(&before.services[&name], &after.services[&name])
    };
    assert_eq!((same("a"), same("b")), (true, false));
}

#[test]
fn only_the_fields_of_a_service_that_are_read_are_kept() {
    let table = listed();
    let snapshot = table.snapshot();
    let (_, kept) = snapshot.services.get_min().unwrap();
    assert_eq!(kept.metadata.resource_version, None);
    let annotations = kept.metadata.annotations.clone().unwrap();
    assert_eq!(annotations.into_keys().collect::<Vec<_>>(), ["vipmux.io/pool"]);
    let conditions = kept.status.clone().unwrap().conditions.unwrap();
    assert_eq!(conditions.into_iter().map(|it| it.type_).collect::<Vec<_>>(), ["vipmux.io/Allocated"]);
}

#[test]
fn an_object_that_becomes_malformed_stays_as_it_was_and_is_a_problem() {
    let pool = |address: &str| {
        let pool = json!({"metadata": {"name": "lan"}, "spec": {"addresses": [address]}});
        there(Kind::VipPool, pool)
    };
    let mut table = listed();
    assert!(table.apply(pool("192.0.2.0/28")));
    assert!(table.apply(pool("192.0.2.0/33")));
    assert!(!table.apply(pool("192.0.2.0/33")), "it was reported before");
    let snapshot = table.snapshot();
    assert_eq!(snapshot.vip_pools["lan"].spec.addresses, ["192.0.2.0/28"]);
    let problem = snapshot.problems.first().unwrap().to_string();
    assert!(problem.starts_with("VipPool lan: spec.addresses[0]: "), "{problem}");
    assert!(problem.ends_with("; the last good version stays in force"), "{problem}");
    assert!(table.apply(pool("192.0.2.0/29")));
    assert_eq!(table.snapshot().problems, []);
    assert!(table.apply(pool("nonsense")));
    let lost = Identity::of(Kind::VipPool, &json!({"metadata": {"name": "lan"}})).unwrap();
    assert!(table.apply(WatchUpdate { kind: Kind::VipPool, change: ObjectChange::Gone(lost) }));
    assert!(table.snapshot().vip_pools.is_empty() && table.snapshot().problems.is_empty());
}
