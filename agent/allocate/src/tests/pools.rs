//! Tests addresses whose pools change, and the settings of VipPools.

use serde_json::json;

use super::*;

/// Returns a VipPool `lan`, and Services that hold an address of it: `a` by itself, `b` by its
/// pool's name, `c` by the address's name.
fn served() -> Cluster {
    Cluster::default()
        .vip_pool("lan", &json!({"addresses": ["192.0.2.10-192.0.2.12"]}))
        .service("shop/a", &["80/TCP"], &[])
        .service("shop/b", &["80/TCP"], &[("vipmux.io/pool", "lan"), ("vipmux.io/sharing-key", "b")])
        .service("shop/c", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.12")])
        .assigned()
}

const SERVED: &str = "shop/a=10 shop/b=11 shop/c=12";

/// Returns the warnings of each Service. They are the same after restarts.
fn warnings(cluster: &Cluster) -> [Vec<String>; 3] {
    let found = ["shop/a", "shop/b", "shop/c"].map(|service| cluster.warnings(service));
    let again = cluster.clone().assigned().assigned();
    assert_eq!(again.previous, cluster.clone().assigned().previous);
    assert_eq!(["shop/a", "shop/b", "shop/c"].map(|service| again.warnings(service)), found);
    found
}

/// Returns the warning about an address that is kept.
fn kept(address: &str, what: &str, remedy: &str) -> String {
    let or = "or let the Service ask for another pool or address";
    format!("{what}; {address} is kept until the Service changes or goes: {remedy}, {or}")
}

fn in_no_pool(address: &str) -> String {
    kept(address, &format!("{address} is in no pool any more"), "put it into a pool again")
}

fn without_pools(address: &str) -> String {
    kept(address, &format!("{address} is in no pool, since there is none"), "create a pool that has it")
}

fn without_its_pool(pools: &str) -> String {
    kept("192.0.2.11", &format!("pool \"lan\" does not exist ({pools})"), "give a pool that name or alias")
}

#[test]
fn pools_that_stay_are_not_reported() {
    assert_eq!(served().outcome(), SERVED);
    assert_eq!(warnings(&served()), [(); 3].map(|()| Vec::<String>::new()));
}

#[test]
fn a_pool_that_shrinks_leaves_addresses_where_they_are_and_says_so() {
    let shrunk = served().vip_pool("lan", &json!({"addresses": ["192.0.2.13"]})).assigned();
    assert_eq!(shrunk.outcome(), SERVED);
    for (found, address) in warnings(&shrunk).iter().zip(["192.0.2.10", "192.0.2.11", "192.0.2.12"]) {
        assert_eq!(*found, [in_no_pool(address)]);
    }
    // No other Service gets it, not even one of the same group. A released address is not assigned
    // again.
    let group = [("vipmux.io/sharing-key", "b"), ("vipmux.io/pool", "lan")];
    let joined = shrunk.clone().service("shop/d", &["443/TCP"], &group);
    assert_eq!(joined.outcome(), format!("{SERVED} shop/d=13"));
    let given_up = shrunk.without("shop/a").assigned().service("shop/e", &["80/TCP"], &[]);
    assert_eq!(given_up.outcome(), "shop/b=11 shop/c=12 shop/e=13");
}

#[test]
fn a_pool_that_loses_addresses_to_another_pool_leaves_them_to_who_holds_them() {
    let split = served()
        .vip_pool("lan", &json!({"addresses": ["192.0.2.10"]}))
        .vip_pool("other", &json!({"addresses": ["192.0.2.11-192.0.2.13"]}))
        .assigned();
    assert_eq!(split.outcome(), SERVED);
    let found = kept("192.0.2.11", "192.0.2.11 is not in pool lan", "put it into that pool");
    assert_eq!(warnings(&split), [vec![], vec![found], vec![]]);
    let asks_for = |pool| {
        split.clone().service("shop/b", &["80/TCP"], &[("vipmux.io/pool", pool), ("vipmux.io/sharing-key", "b")])
    };
    assert_eq!(warnings(&asks_for("other")), [(); 3].map(|()| Vec::<String>::new()));
    assert_eq!(asks_for("other").outcome(), SERVED);
}

#[test]
fn a_pool_that_is_renamed_leaves_its_services_where_they_are_and_says_so() {
    let addresses = json!({"addresses": ["192.0.2.10-192.0.2.13"]});
    let renamed = served().without_pool("lan").vip_pool("wan", &addresses).assigned();
    assert_eq!(renamed.outcome(), SERVED);
    assert_eq!(warnings(&renamed), [vec![], vec![without_its_pool("pools: wan")], vec![]]);
    let newcomer = renamed.clone().service("shop/d", &["80/TCP"], &[("vipmux.io/pool", "lan")]);
    assert_eq!(newcomer.message("shop/d"), "pool \"lan\" does not exist (pools: wan)");
    // All Services find the pool by its former name.
    let spec = json!({"addresses": ["192.0.2.10-192.0.2.13"], "aliases": ["lan"]});
    let aliased = newcomer.vip_pool("wan", &spec).assigned();
    assert_eq!(aliased.outcome(), format!("{SERVED} shop/d=13"));
    assert_eq!(warnings(&aliased), [(); 3].map(|()| Vec::<String>::new()));
}

#[test]
fn a_pool_that_is_deleted_leaves_its_services_where_they_are_and_says_so() {
    let deleted = served().without_pool("lan").assigned();
    assert_eq!(deleted.outcome(), SERVED);
    let named = without_its_pool("there are no pools");
    let found = [vec![without_pools("192.0.2.10")], vec![named], vec![without_pools("192.0.2.12")]];
    assert_eq!(warnings(&deleted), found);
    let back = deleted.vip_pool("lan", &json!({"addresses": ["192.0.2.0/24"]}));
    assert_eq!(back.outcome(), SERVED);
    assert_eq!(warnings(&back), [(); 3].map(|()| Vec::<String>::new()));
}

#[test]
fn a_service_that_asks_for_another_pool_or_address_moves() {
    let shrunk = served().vip_pool("lan", &json!({"addresses": ["192.0.2.20/31"]})).assigned();
    let moved = shrunk.vip_pool("other", &json!({"addresses": ["192.0.2.30/31"], "autoAssign": false}));
    let moved = moved.service("shop/b", &["80/TCP"], &[("vipmux.io/pool", "other"), ("vipmux.io/sharing-key", "b")]);
    let moved = moved.service("shop/c", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.20")]);
    assert_eq!(moved.outcome(), "shop/a=10 shop/b=30 shop/c=20");
}

#[test]
fn a_vip_pool_takes_over_from_an_address_pool_of_its_name() {
    let before = Cluster::new(&["192.0.2.10-192.0.2.12"])
        .service("shop/a", &["80/TCP"], &[("vipmux.io/pool", "lan")])
        .assigned();
    let both = before.vip_pool("lan", &json!({"addresses": ["192.0.2.10-192.0.2.12"]})).assigned();
    assert_eq!((both.outcome().as_str(), both.warnings("shop/a")), ("shop/a=10", vec![]));
    let after = Cluster { objects: both.objects.clone(), ..both };
    assert_eq!(after.message("shop/a"), "192.0.2.10 from pool lan");
}

#[test]
fn an_address_in_two_pools_counts_as_the_better_ones() {
    let cluster = Cluster::default()
        .vip_pool("strict", &json!({"addresses": ["192.0.2.10"], "sharing": "none", "priority": 1}))
        .pool("wide", &json!({"addresses": ["192.0.2.10-192.0.2.11"]}));
    let key = [("vipmux.io/sharing-key", "x")];
    let cluster = cluster.service("shop/a", &["80/TCP"], &key).service("shop/b", &["443/TCP"], &key);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11", "the better pool lets nobody share");
    assert_eq!(cluster.message("shop/a"), "192.0.2.10 from pool strict");
}

#[test]
fn a_vip_pool_says_who_shares_and_what_becomes_of_a_clash() {
    let key = [("metallb.io/allow-shared-ip", "x")];
    for (spec, expected) in [
        (json!({}), "a/a=10 b/b=10 b/c=11"),
        (json!({"sharing": "same-namespace"}), "a/a=10 b/b=11 b/c=12"),
        (json!({"sharing": "none"}), "a/a=10 b/b=11 b/c=12"),
        (json!({"sharing": "key-only"}), "a/a=10 b/b=10 b/c=11"),
        (json!({"onConflict": "pending"}), "a/a=10 b/b=10 b/c:PortConflict"),
    ] {
        let mut spec = spec;
        spec["addresses"] = json!(["192.0.2.10-192.0.2.12"]);
        let cluster = Cluster::default()
            .vip_pool("lan", &spec)
            .service("a/a", &["80/TCP"], &key)
            .service("b/b", &["443/TCP"], &key)
            .service("b/c", &["443/TCP"], &key);
        assert_eq!(cluster.outcome(), expected, "{spec}");
    }
}

#[test]
fn a_vip_pool_that_serves_others_is_refused_with_its_fields() {
    let spec = json!({"addresses": ["192.0.2.10"], "namespaces": ["team"]});
    let cluster = Cluster::default().vip_pool("team", &spec).service("shop/a", &["80/TCP"], &[]);
    let fields = "spec.namespaces, spec.namespaceSelectors, spec.serviceSelectors";
    assert_eq!(cluster.message("shop/a"), format!("no pool serves this Service ({fields}): team"));
}

#[test]
fn the_services_on_an_address_that_nobody_announces_get_a_message() {
    let cluster = served().node("n1", "192.0.2.1").policy("other", &json!({"pools": ["none"]}));
    let why = "no L2Advertisement or VipPolicy covers pool lan; name lan in one of them";
    assert_eq!(cluster.warnings("shop/a"), [format!("192.0.2.10 is announced by nobody: {why}")]);
    assert_eq!(cluster.outcome(), SERVED, "announcements do not change assignments");
    let covered = cluster.policy("lan", &json!({"pools": ["lan"]}));
    assert_eq!(covered.warnings("shop/a"), [""; 0]);
}
