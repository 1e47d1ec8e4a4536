//! Tests the order of pools, and the owners of shared names and addresses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::{
    Family,
    address_names::AddressNames,
    api::{OnConflict, PoolSharing},
    fixture::{service_name, vip},
    pool::PoolKind,
    reason::Reason,
    request::Request,
    selector::Labels,
};
use vipmux_testing::object;

/// Returns VipPools and IPAddressPools by name, with their `spec`.
fn objects(vip_pools: &[(&str, Value)], address_pools: &[(&str, Value)]) -> Objects {
    let mut objects = Objects::default();
    for (name, spec) in vip_pools {
        let pool = object(json!({"metadata": {"name": name}, "spec": spec}));
        objects.vip_pools.insert((*name).to_owned(), pool);
    }
    for (name, spec) in address_pools {
        objects.address_pools.insert((*name).to_owned(), object(json!({ "spec": spec })));
    }
    objects
}

fn read(objects: &Objects) -> (Vec<Pool>, Vec<String>) {
    let mut notes = Vec::new();
    let pools = ingest(objects, &mut notes);
    (pools, notes.iter().map(|note| format!("{}: {}", note.object, note.message)).collect())
}

fn addresses(list: &[&str]) -> Value {
    json!({ "addresses": list })
}

#[test]
fn a_vip_pool_is_read_in_full() {
    let spec = json!({
        "addresses": ["192.0.2.0/30", "192.0.2.9", "2001:db8::1-2001:db8::4"], "autoAssign": false, "avoidBuggyIPs": true,
        "priority": 0, "sharing": "key-only", "onConflict": "pending", "namespaces": ["shop"],
        "namespaceSelectors": [{"matchLabels": {"team": "a"}}], "serviceSelectors": [{"matchLabels": {"tier": "front"}}],
        "aliases": ["internal"], "addressNames": {"web": "192.0.2.9"},
    });
    let (pools, notes) = read(&objects(&[("lan", spec)], &[]));
    let [pool] = pools.as_slice() else { panic!("{pools:?}") };
    assert_eq!(notes, [""; 0]);
    assert_eq!((pool.kind, pool.priority, pool.auto_assign), (PoolKind::VipPool, Some(0), false));
    assert_eq!((pool.sharing, pool.on_conflict), (PoolSharing::KeyOnly, OnConflict::Pending));
    assert_eq!((pool.capacity(Family::V4), pool.capacity(Family::V6)), (4, 4));
    let labels = |key: &str, value: &str| -> Labels { [(key.to_owned(), value.to_owned())].into() };
    let (none, front) = (Labels::new(), labels("tier", "front"));
    assert!(pool.serves("shop", &none, &front) && pool.serves("other", &labels("team", "a"), &front));
    assert!(!pool.serves("other", &none, &front) && !pool.serves("shop", &none, &none));
    assert!(pool.is_called("lan") && pool.is_called("internal") && !pool.is_called("web"));
}

#[test]
fn pools_of_both_kinds_go_in_one_order() {
    let first = |priority: u8| json!({"addresses": ["192.0.2.1"], "priority": priority});
    let (pools, _) = read(&objects(
        &[("d", first(0)), ("b", addresses(&["192.0.2.2"]))],
        &[
            ("c", json!({"addresses": ["192.0.2.3/32"], "serviceAllocation": {"priority": 1}})),
            ("a", addresses(&["192.0.2.4/32"])),
        ],
    ));
    assert_eq!(pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["d", "c", "a", "b"]);
}

#[test]
fn a_vip_pool_takes_the_place_of_an_address_pool_of_its_name() {
    let (pools, notes) =
        read(&objects(&[("lan", addresses(&["192.0.2.1"]))], &[("lan", addresses(&["192.0.2.8/29"]))]));
    assert_eq!(pools.iter().map(Pool::object).collect::<Vec<_>>(), ["VipPool lan"]);
    assert_eq!(notes, ["IPAddressPool lan: VipPool lan takes its place: rename one of them, or delete this one"]);
}

#[test]
fn an_alias_gives_way_to_a_name_and_to_a_better_pools_alias() {
    let with = |priority: u8, aliases: &[&str], address: &str| json!({"addresses": [address], "priority": priority, "aliases": aliases});
    let (pools, notes) = read(&objects(
        &[("a", with(2, &["old", "lan"], "192.0.2.1")), ("b", with(1, &["old", "older"], "192.0.2.2"))],
        &[("lan", addresses(&["192.0.2.3/32"]))],
    ));
    let called = |name: &str| -> Vec<&str> {
        pools.iter().filter(|pool| pool.is_called(name)).map(|pool| pool.name.as_str()).collect()
    };
    for (name, owner) in [("old", "b"), ("older", "b"), ("lan", "lan"), ("a", "a")] {
        assert_eq!(called(name), [owner], "{name}");
    }
    let expected = [
        "VipPool a: spec.aliases: IPAddressPool lan already has the name lan; left out",
        "VipPool a: spec.aliases: VipPool b already has the name old; left out",
    ];
    assert_eq!(notes, expected);
}

#[test]
fn overlaps_name_both_pools_and_the_one_that_wins() {
    let (_, notes) = read(&objects(
        &[("b", json!({"addresses": ["192.0.2.8-192.0.2.20"], "priority": 7}))],
        &[("a", addresses(&["192.0.2.0/28"])), ("c", addresses(&["192.0.2.32/28"]))],
    ));
    let expected = "IPAddressPool a: 192.0.2.0-192.0.2.15 overlaps 192.0.2.8-192.0.2.20 of VipPool b: addresses in both \
                belong to VipPool b, the first by priority; remove them from one of the two";
    assert_eq!(notes, [expected]);
    let (_, notes) = read(&objects(&[("z", addresses(&["2001:db8::/64"]))], &[("y", addresses(&["2001:db8::7/128"]))]));
    let expected = "VipPool z: 2001:db8::-2001:db8::ffff:ffff:ffff:ffff overlaps 2001:db8::7-2001:db8::7 of IPAddressPool \
                y: addresses in both belong to IPAddressPool y, the first by name; remove them from one of the two";
    assert_eq!(notes, [expected]);
}

#[test]
fn a_wide_range_overlaps_many() {
    let pools = [
        ("wide", addresses(&["192.0.2.0/27"])),
        ("first", addresses(&["192.0.2.9-192.0.2.10"])),
        ("second", addresses(&["192.0.2.18-192.0.2.19"])),
        ("beside", addresses(&["192.0.2.32/27"])),
    ];
    let (_, notes) = read(&objects(&[], &pools));
    let about = |name: &str| notes.iter().filter(|note| note.contains(name)).count();
    assert_eq!((notes.len(), about("IPAddressPool first"), about("IPAddressPool second")), (2, 1, 1), "{notes:?}");
}

#[test]
fn names_of_addresses_are_resolved_and_unknown_ones_are_reported_with_the_known_ones() {
    let with = |names: Value| json!({"addresses": ["192.0.2.0/28"], "addressNames": names});
    let (pools, notes) = read(&objects(
        &[("a", with(json!({"web": "192.0.2.1", "far": "192.0.3.1"}))), ("b", with(json!({"web": "192.0.2.2"})))],
        &[],
    ));
    assert!(
        notes.iter().any(|note| note == "VipPool a: spec.addressNames.far: 192.0.3.1 is not in the pool; left out")
    );
    let mut notes = Vec::new();
    let names = AddressNames::of(&pools, &mut notes);
    assert_eq!(notes.len(), 1);
    assert!(notes[0].message.starts_with("spec.addressNames.web: a better pool gives that name to 192.0.2.1"));
    let ask = |names: &[&str]| Request {
        address_names: names.iter().map(|name| (*name).to_owned()).collect(),
        addresses: [vip("192.0.2.9")].into(),
        ..Request::default()
    };
    let addresses: BTreeSet<String> =
        names.resolve(ask(&["web"])).unwrap().addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.1", "192.0.2.9"].map(str::to_owned).into());
    let shouted = names.resolve(ask(&["WEB"])).unwrap();
    assert_eq!(shouted.addresses.len(), 2, "as Azure, it ignores case");
    let refusal = names.resolve(ask(&["web", "mail"])).unwrap_err();
    assert_eq!(refusal.reason, Reason::AddressNotInPool);
    let expected = "no address is called \"mail\" (known: web); spec.addressNames of a VipPool names them";
    assert_eq!(refusal.message, expected);
    let none = AddressNames::default().resolve(ask(&["web"])).unwrap_err();
    assert!(none.message.contains("(no pool names any)"), "{}", none.message);
}

#[test]
fn two_names_of_addresses_that_differ_in_case_are_one() {
    let names = json!({"addresses": ["192.0.2.0/28"], "addressNames": {"Web": "192.0.2.1", "web": "192.0.2.2"}});
    let (pools, _) = read(&objects(&[("a", names)], &[]));
    let mut notes = Vec::new();
    let names = AddressNames::of(&pools, &mut notes);
    let messages: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
    assert_eq!(messages, ["spec.addressNames.web: the pool also gives that name to 192.0.2.1; left out"]);
    let unknown = Request { address_names: ["x".to_owned()].into(), ..Request::default() };
    assert!(names.resolve(unknown).unwrap_err().message.contains("(known: Web)"));
}

#[test]
fn a_service_that_prefers_both_families_is_told_that_no_pool_has_both() {
    let notices = |pools: &[(&str, Value)], spec: Value| {
        let mut objects = objects(&[], pools);
        let service = object(json!({"metadata": {"annotations": spec["annotations"]}, "spec": {
            "type": "LoadBalancer", "ports": [{"port": 80}], "ipFamilyPolicy": "PreferDualStack",
            "clusterIPs": spec["clusterIPs"],
        }}));
        objects.services.insert(service_name("shop/a"), service);
        let model = crate::Model::ingest(&objects, &crate::IngestOptions::default());
        model.services[&service_name("shop/a")].notices.clone()
    };
    let v4 = || ("a", json!({"addresses": ["192.0.2.0/28"]}));
    let v6 = || ("b", json!({"addresses": ["2001:db8::10-2001:db8::19"]}));
    let both = || ("c", json!({"addresses": ["192.0.2.16/28", "2001:db8::20-2001:db8::29"]}));
    let [notice] = &notices(&[v4(), v6()], json!({}))[..] else { panic!("not one notice") };
    assert!(notice.contains("pool a has only IPv4 addresses, pool b only IPv6 ones"), "{notice}");
    let manual = ("b", json!({"addresses": ["2001:db8::10-2001:db8::19"], "autoAssign": false}));
    for (pools, spec) in [
        (&[v4()][..], json!({})),
        (&[v4(), v6(), both()], json!({})),
        (&[v4(), manual], json!({})),
        (&[v4(), v6()], json!({"annotations": {"vipmux.io/pool": "a"}})),
        (&[v4(), v6()], json!({"clusterIPs": ["10.0.0.1"]})),
    ] {
        assert_eq!(notices(pools, spec.clone()), [""; 0], "{pools:?} {spec}");
    }
}
