//! Tests rule 9: Services that a change moves, and those that it does not move.

use super::*;

const TWELVE: (&str, &str) = ("vipmux.io/addresses", "192.0.2.12");

#[test]
fn one_that_asks_for_its_address_in_another_way_is_the_one_that_goes() {
    let by_address = |by_address| Wishes { by_address: Some(by_address), ..Wishes::default() };
    let assigned = lan()
        .service("shop/a", &["80/TCP"], &[TEN])
        .wishing("shop/a", by_address(ByAddress::Explicit))
        .service("shop/b", &["81/TCP"], &[TEN])
        .wishing("shop/b", by_address(ByAddress::Plain))
        .assigned();
    assert_eq!(assigned.outcome(), "shop/a=10 shop/b=10");
    let changed = assigned.wishing("shop/a", by_address(ByAddress::Plain)).created("shop/a", 2001);
    assert_eq!(changed.outcome(), "shop/a:SharingMismatch shop/b=10", "though it is the older one");
}

#[test]
fn a_clash_that_ends_moves_nobody_back() {
    let assigned = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["80/TCP"], &[WEB]).assigned();
    assert_eq!(assigned.outcome(), "shop/a=10 shop/b=11");
    let ended = assigned.service("shop/a", &["81/TCP"], &[WEB]).assigned();
    assert_eq!(ended.outcome(), "shop/a=10 shop/b=11");
    assert_eq!(ended.warnings("shop/b"), Vec::<String>::new());
}

#[test]
fn those_who_wait_are_tried_again_when_anything_could_have_changed_for_them() {
    let waiting = Cluster::new(&["192.0.2.10/32"])
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["81/TCP"], &[])
        .service("shop/c", &["80/TCP"], &[WEB])
        .assigned();
    assert_eq!(waiting.outcome(), "shop/a=10 shop/b:PoolExhausted shop/c:PoolExhausted");
    for (what, changed, outcome) in [
        (
            "the pool grew",
            waiting.clone().pool("lan", &serde_json::json!({"addresses": ["192.0.2.10/31"]})),
            "shop/a=10 shop/b=11 shop/c:PoolExhausted",
        ),
        ("the holder went", waiting.clone().without("shop/a"), "shop/b=10 shop/c:PoolExhausted"),
        (
            "its key is the group's",
            waiting.clone().service("shop/b", &["81/TCP"], &[WEB]),
            "shop/a=10 shop/b=10 shop/c:PoolExhausted",
        ),
        (
            "the port came free",
            waiting.clone().service("shop/a", &["82/TCP"], &[WEB]),
            "shop/a=10 shop/b:PoolExhausted shop/c=10",
        ),
    ] {
        assert_eq!(changed.outcome(), outcome, "{what}");
    }
}

#[test]
fn one_that_changes_its_key_into_a_clash_waits_where_the_pool_says_so() {
    let assigned = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["80/TCP"], &[API]).assigned();
    let changed = assigned.service("shop/b", &["80/TCP"], &[WEB]).created("shop/b", 2001);
    assert_eq!(changed.outcome(), "shop/a=10 shop/b=11", "by default its own address joins the group");
    let pending = changed.sharing("lan", PoolSharing::Any, OnConflict::Pending);
    assert_eq!(pending.outcome(), "shop/a=10 shop/b:PortConflict");
}

#[test]
fn after_a_restart_a_full_pool_is_as_it_was_even_if_another_is_older() {
    let full = ["shop/x", "shop/y", "shop/z"]
        .iter()
        .fold(lan(), |cluster, service| cluster.service(service, &["80/TCP"], &[]));
    let full = full.assigned();
    let before = full.allocate();
    let restarted =
        full.service("shop/a", &["80/TCP"], &[]).created("shop/a", 2001).service("shop/b", &["80/TCP"], &[TEN]);
    let restarted = restarted.created("shop/b", 2001).assigned();
    assert_eq!(restarted.outcome(), "shop/a:PoolExhausted shop/b:PortConflict shop/x=10 shop/y=11 shop/z=12");
    assert!(before.assignments.iter().all(|(name, given)| restarted.allocate().assignments[name] == *given));
}

#[test]
fn a_status_takes_nothing_from_one_that_is_remembered() {
    let assigned = lan().service("shop/z", &["80/TCP"], &[]).assigned();
    let cluster = assigned.service("shop/a", &["80/TCP"], &[]).showing("shop/a", "192.0.2.10").created("shop/a", 2001);
    assert_eq!(cluster.clone().restarted().outcome(), "shop/a=11 shop/z=10");
    let free = cluster.showing("shop/a", "192.0.2.12").restarted();
    assert_eq!(free.outcome(), "shop/a=12 shop/z=10");
}

#[test]
fn a_pool_that_lets_fewer_share_parts_nobody_and_lets_nobody_else_in() {
    let assigned = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["81/TCP"], &[WEB]).assigned();
    let cluster =
        assigned.sharing("lan", PoolSharing::None, OnConflict::Spill).service("shop/c", &["82/TCP"], &[WEB]).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=10 shop/c=11");
    let message = "192.0.2.10 is shared with shop/a, although the two may not share it any more: the pool does not \
                   allow sharing; it is kept until one of them changes or goes";
    assert_eq!(cluster.warnings("shop/b"), [message]);
    let changed = cluster.service("shop/b", &["81/TCP", "83/TCP"], &[WEB]);
    assert_eq!(changed.outcome(), "shop/a=10 shop/b=12 shop/c=11");
    let plain = |service: &str, cluster: Cluster| {
        cluster
            .service(service, &[if service < "shop/b" { "80/TCP" } else { "81/TCP" }], &[])
            .spec(service, |spec| spec.load_balancer_ip = Some("192.0.2.12".to_owned()))
    };
    let assigned =
        plain("shop/b", plain("shop/a", lan())).sharing("lan", PoolSharing::ByAddress, OnConflict::Spill).assigned();
    assert_eq!(assigned.outcome(), "shop/a=12 shop/b=12");
    assert_eq!(assigned.sharing("lan", PoolSharing::Any, OnConflict::Spill).outcome(), "shop/a=12 shop/b=12");
}

#[test]
fn a_named_pool_that_shrinks_or_goes_moves_nobody_and_one_that_names_another_moves() {
    let dmz = |range: &str| serde_json::json!({"addresses": [range], "autoAssign": false});
    let named = |pool| [("vipmux.io/pool", pool)];
    let assigned = lan().pool("dmz", &dmz("192.0.2.200/31")).service("shop/a", &["80/TCP"], &named("dmz")).assigned();
    let shrunk = assigned.clone().pool("dmz", &dmz("192.0.2.202/31"));
    assert_eq!(shrunk.outcome(), "shop/a=200");
    assert_eq!(
        shrunk.warnings("shop/a"),
        [
            "192.0.2.200 is in no pool any more; 192.0.2.200 is kept until the Service changes or goes: put it into a pool \
          again, or let the Service ask for another pool or address"
        ]
    );
    let mut gone = assigned.clone();
    gone.objects.address_pools.remove("dmz");
    assert_eq!(gone.assigned().outcome(), "shop/a=200");
    assert_eq!(assigned.service("shop/a", &["80/TCP"], &named("lan")).outcome(), "shop/a=10");
}

#[test]
fn one_that_names_a_pool_beside_its_address_is_placed_by_both() {
    let dmz = serde_json::json!({"addresses": ["192.0.2.200/31"], "autoAssign": false});
    let pool = |name| ("vipmux.io/pool", name);
    let assigned = lan().pool("dmz", &dmz).service("shop/a", &["80/TCP"], &[TEN]).assigned();
    assert_eq!(assigned.clone().service("shop/a", &["80/TCP"], &[TEN, pool("lan")]).outcome(), "shop/a=10");
    let other = assigned.clone().service("shop/a", &["80/TCP"], &[TEN, pool("dmz")]);
    assert_eq!(other.outcome(), "shop/a:AddressNotInPool");
    assert_eq!(other.message("shop/a"), "192.0.2.10 is not in pool dmz");
    let missing = assigned.service("shop/a", &["80/TCP"], &[TEN, pool("dmx")]).assigned();
    assert_eq!(missing.outcome(), "shop/a=10", "as long as there is no such pool");
    let created = missing.vip_pool("dmx", &serde_json::json!({"addresses": ["192.0.2.210/31"]}));
    assert_eq!(created.outcome(), "shop/a=10", "a pool that comes later moves nobody");
    assert!(created.warnings("shop/a")[0].starts_with("192.0.2.10 is not in pool dmx; 192.0.2.10 is kept until"));
}

#[test]
fn one_that_asks_for_the_address_it_has_stays_and_one_that_asks_for_none_any_more_too() {
    let assigned = lan().service("shop/0", &["80/TCP"], &[]).service("shop/a", &["80/TCP"], &[]).assigned();
    let named = assigned.service("shop/a", &["80/TCP"], &[ELEVEN]).without("shop/0").assigned();
    assert_eq!(named.outcome(), "shop/a=11");
    assert_eq!(named.service("shop/a", &["80/TCP"], &[]).outcome(), "shop/a=11");
}

#[test]
fn one_that_asks_for_an_address_that_another_holds_loses_its_own_and_gets_none() {
    let assigned = lan().service("shop/a", &["80/TCP"], &[]).service("shop/b", &["80/TCP"], &[TWELVE]).assigned();
    let cluster = assigned.service("shop/a", &["80/TCP"], &[TWELVE]).created("shop/a", 2001);
    assert_eq!(cluster.outcome(), "shop/a:PortConflict shop/b=12");
}

#[test]
fn rule_6_of_the_pools_that_serve_it_the_one_with_the_fewest_claims_and_only_at_first() {
    let fewest = Wishes { fewest_claims: true, ..Wishes::default() };
    let cluster = Cluster::default()
        .pool("a", &serde_json::json!({"addresses": ["192.0.2.10/31"]}))
        .pool("b", &serde_json::json!({"addresses": ["192.0.2.20/31"]}))
        .pool("c", &serde_json::json!({"addresses": ["192.0.2.30/31"], "autoAssign": false}))
        .service("shop/a", &["80/TCP", "81/TCP"], &[])
        .wishing("shop/a", fewest.clone())
        .service("shop/b", &["80/TCP"], &[])
        .wishing("shop/b", fewest.clone())
        .service("shop/c", &["80/TCP"], &[])
        .wishing("shop/c", fewest.clone());
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=20 shop/c=21", "equal ones go by rank, the others by claims");
    let more = cluster.clone().service("shop/d", &["80/TCP"], &[]).wishing("shop/d", fewest.clone());
    assert_eq!(more.outcome(), "shop/a=10 shop/b=20 shop/c=21 shop/d=11");
    let full = more.service("shop/e", &["80/TCP"], &[]).wishing("shop/e", fewest);
    assert_eq!(full.outcome(), "shop/a=10 shop/b=20 shop/c=21 shop/d=11 shop/e:PoolExhausted");
    let fewer = cluster.assigned().without("shop/a");
    assert_eq!(fewer.outcome(), "shop/b=20 shop/c=21", "held addresses stay");
}
