//! Tests each rule with a table. Addresses are 192.0.2.x and 2001:db8::x, written as `x` and `::x`
//! in outcomes.

mod additional;
mod all_ports;
mod azure;
mod changes;
mod dialects;
mod families;
mod faults;
mod groups;
mod labels;
mod pools;
mod postponed;
mod scale;
mod statuses;
mod tenants;

use super::fixture::{Cluster, Wishes};
use std::collections::BTreeMap;

use crate::{
    Allocation, allocate,
    previous::{self, PreviousAssignment, PreviousAssignments},
};
use vipmux_model::{
    pool::{OnConflict, PoolSharing},
    reason::{Reason, Refusal},
    request::ByAddress,
};
use vipmux_testing::names::{service_name, vip};

const WEB: (&str, &str) = ("vipmux.io/sharing-key", "web");
const API: (&str, &str) = ("vipmux.io/sharing-key", "api");
const METALLB_WEB: (&str, &str) = ("metallb.io/allow-shared-ip", "web");
const TEN: (&str, &str) = ("vipmux.io/addresses", "192.0.2.10");
const ELEVEN: (&str, &str) = ("vipmux.io/addresses", "192.0.2.11");

fn lan() -> Cluster {
    Cluster::new(&["192.0.2.10-192.0.2.12"])
}

/// Returns the outcome with other settings of the pool. They are changed in the model, since
/// MetalLB's pools cannot have them.
fn with_pool(cluster: &Cluster, sharing: PoolSharing, on_conflict: OnConflict) -> Allocation {
    let mut model = cluster.model();
    model.pools[0].sharing = sharing;
    model.pools[0].on_conflict = on_conflict;
    allocate(&model, &cluster.previous)
}

#[test]
fn rule_1_protocols_are_distinct_claims() {
    let cluster = lan().service("shop/a", &["53/TCP"], &[WEB]).service("shop/b", &["53/UDP"], &[WEB]).service(
        "shop/c",
        &["53/SCTP"],
        &[WEB],
    );
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=10 shop/c=10");
    assert_eq!(cluster.allocate().claims().len(), 3);
}

#[test]
fn rule_2_equal_keys_share_and_services_without_a_key_do_not() {
    let cluster = lan()
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["443/TCP"], &[WEB])
        .service("shop/c", &["53/UDP"], &[])
        .service("shop/d", &["54/UDP"], &[API]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=10 shop/c=11 shop/d=12");
    assert_eq!(cluster.message("shop/a"), "192.0.2.10 from pool lan, shared with shop/b");
    assert_eq!(cluster.message("shop/c"), "192.0.2.11 from pool lan");
    let reasons = cluster.allocate().assignments;
    assert_eq!(reasons[&service_name("shop/a")].reason, Reason::Shared);
    assert_eq!(reasons[&service_name("shop/c")].reason, Reason::Allocated);
}

#[test]
fn rule_3_two_plain_services_share_by_address_only_where_the_pool_says_so() {
    let asks = |spec: &mut k8s_openapi::api::core::v1::ServiceSpec| {
        spec.load_balancer_ip = Some("192.0.2.10".to_owned());
    };
    let cluster = lan().service("shop/a", &["80/TCP"], &[]).spec("shop/a", asks);
    let cluster = cluster.service("shop/b", &["443/TCP"], &[]).spec("shop/b", asks);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b:SharingMismatch");
    assert_eq!(with_pool(&cluster, PoolSharing::ByAddress, OnConflict::Spill).refusals, BTreeMap::new());
}

#[test]
fn rule_3_services_that_ask_by_address_share_with_each_other_and_with_plain_ones_where_the_pool_allows() {
    use ByAddress::{Explicit, Never, Plain};
    let cluster = |mine, theirs| {
        let wishes = |by_address| Wishes { by_address: Some(by_address), ..Wishes::default() };
        let cluster = lan().service("shop/a", &["80/TCP"], &[TEN]).wishing("shop/a", wishes(theirs));
        cluster.service("team/b", &["443/TCP"], &[TEN]).wishing("team/b", wishes(mine))
    };
    let (shared, refused) = ("shop/a=10 team/b=10", "shop/a=10 team/b:SharingMismatch");
    for (mine, theirs, pool, outcome) in [
        (Explicit, Explicit, PoolSharing::Any, shared),
        (Explicit, Plain, PoolSharing::Any, refused),
        (Plain, Explicit, PoolSharing::Any, refused),
        (Explicit, Plain, PoolSharing::ByAddress, shared),
        (Plain, Plain, PoolSharing::Any, refused),
        (Plain, Plain, PoolSharing::ByAddress, shared),
        (Explicit, Never, PoolSharing::ByAddress, refused),
        (Explicit, Explicit, PoolSharing::KeyOnly, refused),
        (Explicit, Explicit, PoolSharing::SameNamespace, refused),
        (Explicit, Explicit, PoolSharing::None, refused),
    ] {
        let cluster = cluster(mine, theirs).sharing("lan", pool, OnConflict::Spill);
        assert_eq!(cluster.outcome(), outcome, "{mine:?} {theirs:?} {pool:?}");
    }
    let other = cluster(Explicit, Plain);
    assert_eq!(
        other.message("team/b"),
        "192.0.2.10 is held by shop/a, and the two may not share it: \
         namespaces shop and team differ, and only one of the two asks to share its address"
    );
    let keyed = lan().service("shop/a", &["80/TCP"], &[TEN]).service("shop/b", &["443/TCP"], &[WEB]);
    let keyed = keyed.wishing("shop/a", Wishes { by_address: Some(Explicit), ..Wishes::default() });
    assert_eq!(keyed.outcome(), "shop/a=10 shop/b=11", "one with a key shares with its group alone");
}

#[test]
fn rule_4_a_key_of_another_dialect_never_matches() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["443/TCP"], &[METALLB_WEB]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11");
}

#[test]
fn rule_4_scope_is_the_dialects() {
    let cluster = lan()
        .service("a/vipmux", &["80/TCP"], &[WEB])
        .service("b/vipmux", &["443/TCP"], &[WEB])
        .service("a/metallb", &["80/TCP"], &[METALLB_WEB])
        .service("b/metallb", &["443/TCP"], &[METALLB_WEB]);
    assert_eq!(cluster.outcome(), "a/metallb=10 a/vipmux=11 b/metallb=10 b/vipmux=12");
    let to = |namespaces| [WEB, ("vipmux.io/sharing-namespaces", namespaces)];
    let cluster = lan().service("a/web", &["80/TCP"], &to("b")).service("b/web", &["443/TCP"], &to("*"));
    assert_eq!(cluster.outcome(), "a/web=10 b/web=10");
}

#[test]
fn rule_4_every_holder_of_the_address_is_asked() {
    // `b` may share with `a` and with `c`. `a` and `c` may not share with each other.
    let to = |namespaces| [WEB, ("vipmux.io/sharing-namespaces", namespaces)];
    let cluster = lan().service("a/web", &["80/TCP"], &to("b")).service("b/web", &["81/TCP"], &to("*")).service(
        "c/web",
        &["82/TCP"],
        &to("b"),
    );
    assert_eq!(cluster.outcome(), "a/web=10 b/web=10 c/web=11");
}

#[test]
fn rule_4_a_pool_narrows_sharing() {
    let cluster = lan().service("a/web", &["80/TCP"], &[METALLB_WEB]).service("b/web", &["443/TCP"], &[METALLB_WEB]);
    for (sharing, addresses) in [(PoolSharing::Any, 1), (PoolSharing::SameNamespace, 2), (PoolSharing::None, 2)] {
        assert_eq!(with_pool(&cluster, sharing, OnConflict::Spill).vips().len(), addresses, "{sharing:?}");
    }
}

#[test]
fn rule_5_traffic_policies_and_selectors_never_forbid_sharing() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["443/TCP"], &[WEB]);
    let cluster = cluster.spec("shop/a", |spec| {
        spec.external_traffic_policy = Some("Local".to_owned());
        spec.selector = Some([("app".to_owned(), "a".to_owned())].into());
    });
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=10");
}

#[test]
fn rule_6_an_explicit_address_is_that_one_or_none() {
    let cluster = lan()
        .service("shop/a", &["80/TCP"], &[ELEVEN])
        .service("shop/b", &["80/TCP"], &[ELEVEN])
        .service("shop/c", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.99")])
        .service("shop/d", &["80/TCP"], &[TEN, ("vipmux.io/pool", "dmz")])
        .pool("dmz", &serde_json::json!({"addresses": ["192.0.2.200/32"]}));
    assert_eq!(cluster.outcome(), "shop/a=11 shop/b:PortConflict shop/c:AddressNotInPool shop/d:AddressNotInPool");
    assert_eq!(cluster.message("shop/b"), "port 80/TCP on 192.0.2.11 is held by shop/a");
    assert_eq!(cluster.message("shop/c"), "192.0.2.99 is in no pool (pools: dmz, lan)");
    assert_eq!(cluster.message("shop/d"), "192.0.2.10 is not in pool dmz");
}

#[test]
fn rule_6_several_explicit_addresses_are_all_or_none() {
    let both = ("vipmux.io/addresses", "192.0.2.11, 192.0.2.12");
    let cluster = lan().service("shop/a", &["80/TCP"], &[both]);
    assert_eq!(cluster.outcome(), "shop/a=11,12");
    let cluster = cluster.service("shop/0", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.12")]);
    assert_eq!(cluster.outcome(), "shop/0=12 shop/a:PortConflict");
}

#[test]
fn rule_6_a_service_that_adds_an_address_keeps_the_one_it_has_before_others_get_it() {
    let cluster = lan().service("shop/z", &["80/TCP"], &[TEN]).assigned();
    let cluster = cluster.service("shop/z", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.10,192.0.2.11")]).service(
        "shop/a",
        &["80/TCP"],
        &[TEN],
    );
    assert_eq!(cluster.outcome(), "shop/a:PortConflict shop/z=10,11");
}

#[test]
fn rule_6_pools_go_by_name_or_priority_and_a_full_one_gives_way() {
    let cluster = Cluster::default()
        .pool("a-last", &serde_json::json!({"addresses": ["192.0.2.1/32"]}))
        .pool("c-first", &serde_json::json!({"addresses": ["192.0.2.2/32"], "serviceAllocation": {"priority": 1}}))
        .pool("b-second", &serde_json::json!({"addresses": ["192.0.2.3/32"], "serviceAllocation": {"priority": 2}}))
        .pool("manual", &serde_json::json!({"addresses": ["192.0.2.4/32"], "autoAssign": false}));
    let cluster = ["shop/a", "shop/b", "shop/c", "shop/d"]
        .iter()
        .fold(cluster, |cluster, service| cluster.service(service, &["80/TCP"], &[]))
        .service("shop/e", &["80/TCP"], &[("metallb.universe.tf/address-pool", "manual")])
        .service("shop/f", &["80/TCP"], &[("vipmux.io/pool", "gone")]);
    assert_eq!(cluster.outcome(), "shop/a=2 shop/b=3 shop/c=1 shop/d:PoolExhausted shop/e=4 shop/f:NoPool");
    assert_eq!(cluster.message("shop/f"), "pool \"gone\" does not exist (pools: c-first, b-second, a-last, manual)");
}

#[test]
fn rule_6_pools_serve_whom_they_say() {
    let team = serde_json::json!({"addresses": ["192.0.2.1/32"], "serviceAllocation": {"namespaces": ["team"], "priority": 1}});
    let cluster = lan()
        .pool("team", &team)
        .service("team/a", &["80/TCP"], &[])
        .service("shop/a", &["80/TCP"], &[])
        .service("shop/b", &["80/TCP"], &[("vipmux.io/pool", "team")])
        .service("shop/c", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.1")]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b:PoolNotAllowed shop/c:PoolNotAllowed team/a=1");
    let nobody = Cluster::default().pool("team", &team).service("shop/a", &["80/TCP"], &[]);
    assert_eq!(nobody.message("shop/a"), "no pool serves this Service (spec.serviceAllocation): team");
    let none = Cluster::default().service("shop/a", &["80/TCP"], &[]);
    assert_eq!((none.outcome().as_str(), none.message("shop/a").as_str()), ("shop/a:NoPool", "there are no pools"));
}

#[test]
fn rule_7_the_holder_wins_then_the_older_then_the_first_by_name() {
    let cluster = lan().service("shop/z", &["80/TCP"], &[TEN]).assigned();
    let cluster = cluster.service("shop/a", &["80/TCP"], &[TEN]).created("shop/a", 2001);
    assert_eq!(cluster.outcome(), "shop/a:PortConflict shop/z=10");
    let cluster = lan().service("shop/a", &["80/TCP"], &[TEN]).service("shop/b", &["80/TCP"], &[TEN]).service(
        "shop/c",
        &["80/TCP"],
        &[TEN],
    );
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b:PortConflict shop/c:PortConflict");
    let cluster = cluster.created("shop/c", 2001).created("shop/b", 2002);
    assert_eq!(cluster.outcome(), "shop/a:PortConflict shop/b:PortConflict shop/c=10");
}

#[test]
fn rule_7_explicit_requests_go_first_among_those_who_hold_nothing() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[]).service("shop/z", &["80/TCP"], &[TEN]);
    assert_eq!(cluster.outcome(), "shop/a=11 shop/z=10");
}

#[test]
fn rule_8_a_clash_spills_within_the_group_and_is_reported() {
    let cluster = lan()
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["80/TCP"], &[WEB])
        .service("shop/c", &["80/TCP", "443/TCP"], &[WEB])
        .service("shop/d", &["443/TCP"], &[WEB]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11 shop/c=12 shop/d=10");
    assert_eq!(
        cluster.warnings("shop/b"),
        ["port 80/TCP on 192.0.2.10 is held by shop/a, so the group has another address"]
    );
    assert_eq!(cluster.warnings("shop/a"), Vec::<String>::new());
    assert_eq!(cluster.warnings("shop/d"), Vec::<String>::new());
}

/// The address that it gets may be lower than the group's.
#[test]
fn rule_8_the_warning_of_a_clash_is_for_the_service_that_came_to_it() {
    let twelve = ("vipmux.io/addresses", "192.0.2.12");
    let held = lan().service("shop/gate", &["70/TCP"], &[WEB, twelve]).service("shop/m", &["80/TCP"], &[WEB]);
    let held = held.assigned();
    let warning = |holder| [format!("port 80/TCP on {holder}, so the group has another address")];
    // By name, `a` is older.
    let late = held.clone().service("shop/a", &["80/TCP"], &[WEB]).assigned();
    assert_eq!(late.outcome(), "shop/a=10 shop/gate=12 shop/m=12");
    let restarted = Cluster { previous: PreviousAssignments::new(), ..late.clone().published() }.restarted();
    for cluster in [&late, &restarted] {
        assert_eq!(cluster.warnings("shop/m"), [""; 0]);
        assert_eq!(cluster.warnings("shop/a"), warning("192.0.2.12 is held by shop/m"));
    }
    let edited = held.service("shop/a", &["81/TCP"], &[WEB]).assigned();
    assert_eq!(edited.outcome(), "shop/a=12 shop/gate=12 shop/m=12");
    let edited = edited.service("shop/m", &["81/TCP"], &[WEB]).assigned().service("shop/m", &["80/TCP"], &[WEB]);
    assert_eq!(edited.outcome(), "shop/a=12 shop/gate=12 shop/m=10");
    assert_eq!(edited.warnings("shop/m"), [""; 0], "it does not clash any more");
    let keyed = lan().service("shop/m", &["80/TCP"], &[]).service("shop/z", &["80/TCP"], &[WEB]).assigned();
    let keyed = keyed.service("shop/m", &["80/TCP"], &[WEB]).assigned();
    assert_eq!(keyed.outcome(), "shop/m=10 shop/z=11");
    assert_eq!(keyed.warnings("shop/z"), [""; 0]);
    assert_eq!(keyed.warnings("shop/m"), warning("192.0.2.11 is held by shop/z"));
}

#[test]
fn rule_8_an_address_of_another_pool_than_the_named_one_is_no_clash() {
    const ANNEX: (&str, &str) = ("vipmux.io/pool", "annex");
    let annex = serde_json::json!({"addresses": ["192.0.2.50-192.0.2.59"], "autoAssign": false});
    let cluster = lan().pool("annex", &annex).service("shop/a", &["80/TCP"], &[WEB]);
    let cluster = cluster.service("shop/b", &["81/TCP"], &[WEB, ANNEX]).service("shop/c", &["80/TCP"], &[WEB, ANNEX]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=50 shop/c=50");
    assert_eq!(cluster.warnings("shop/c"), [""; 0]);
}

#[test]
fn rule_8_a_pool_can_let_the_loser_wait() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["80/TCP"], &[WEB]);
    let allocation = with_pool(&cluster, PoolSharing::Any, OnConflict::Pending);
    let refusal = Refusal::new(Reason::PortConflict, "port 80/TCP on 192.0.2.10 is held by shop/a");
    assert_eq!(allocation.refusals, [(service_name("shop/b"), refusal)].into());
}

#[test]
fn rule_8_an_explicit_request_adds_its_address_to_the_group() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[WEB, ("vipmux.io/addresses", "192.0.2.12")]).service(
        "shop/b",
        &["443/TCP"],
        &[WEB],
    );
    assert_eq!(cluster.outcome(), "shop/a=12 shop/b=12");
}

#[test]
fn rule_9_the_group_keeps_its_address_until_its_last_member_leaves() {
    let cluster = lan()
        .service("shop/0", &["80/TCP"], &[])
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["443/TCP"], &[WEB])
        .assigned();
    assert_eq!(cluster.outcome(), "shop/0=10 shop/a=11 shop/b=11");
    let cluster = cluster.without("shop/0").without("shop/a").assigned();
    assert_eq!(cluster.outcome(), "shop/b=11");
    assert_eq!(cluster.service("shop/a", &["80/TCP"], &[WEB]).outcome(), "shop/a=11 shop/b=11");
}

#[test]
fn rule_9_the_one_that_changes_into_a_clash_moves_even_if_it_is_older() {
    let cluster = lan()
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["443/TCP"], &[WEB])
        .assigned()
        .service("shop/a", &["80/TCP", "443/TCP"], &[WEB])
        .created("shop/a", 2001);
    assert_eq!(cluster.outcome(), "shop/a=11 shop/b=10");
}

#[test]
fn rule_9_the_one_that_changes_its_key_moves_even_if_it_is_older() {
    let cluster = lan()
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["443/TCP"], &[WEB])
        .service("shop/c", &["22/TCP"], &[API])
        .assigned();
    assert_eq!(cluster.clone().service("shop/a", &["80/TCP"], &[API]).outcome(), "shop/a=11 shop/b=10 shop/c=11");
    let alone = cluster.clone().service("shop/a", &["80/TCP"], &[]).created("shop/a", 2001);
    assert_eq!(alone.outcome(), "shop/a=12 shop/b=10 shop/c=11");
    let renamed = cluster.service("shop/c", &["22/TCP"], &[("vipmux.io/sharing-key", "new")]);
    assert_eq!(renamed.outcome(), "shop/a=10 shop/b=10 shop/c=11");
}

#[test]
fn rule_9_the_one_that_changes_its_address_moves_and_frees_the_old_one() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[]).service("shop/b", &["80/TCP"], &[]).assigned();
    let cluster = cluster.service("shop/a", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.12")]).assigned();
    assert_eq!(cluster.outcome(), "shop/a=12 shop/b=11");
    let cluster = cluster.service("shop/a", &["80/TCP"], &[]);
    assert_eq!(cluster.outcome(), "shop/a=12 shop/b=11", "asking for less moves nobody");
}

#[test]
fn rule_9_a_shrinking_pool_moves_nobody_and_is_reported() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[]).service("shop/b", &["80/TCP"], &[]).assigned();
    let cluster = cluster.pool("lan", &serde_json::json!({"addresses": ["192.0.2.11-192.0.2.12"]}));
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11");
    assert_eq!(cluster.warnings("shop/a").len(), 1);
    assert_eq!(cluster.message("shop/a"), "192.0.2.10");
}

#[test]
fn rule_9_of_two_holders_of_one_claim_the_older_keeps_it() {
    let mut cluster = lan().service("shop/a", &["80/TCP"], &[]).service("shop/b", &["80/TCP"], &[]);
    let held = PreviousAssignment { addresses: [vip("192.0.2.12")].into(), snapshot: None };
    cluster.previous = [(service_name("shop/a"), held.clone()), (service_name("shop/b"), held)].into();
    assert_eq!(cluster.outcome(), "shop/a=12 shop/b=10");
    assert_eq!(cluster.created("shop/b", 2001).outcome(), "shop/a=10 shop/b=12");
}

#[test]
fn rule_11_a_full_pool_says_how_full_and_whether_a_key_would_help() {
    let full = |key: &[(&str, &str)]| {
        Cluster::new(&["192.0.2.10/31"]).node("n1", "192.0.2.11").service("shop/a", &["80/TCP"], key).service(
            "shop/b",
            &["443/TCP"],
            &[],
        )
    };
    let count = "pool lan is full: all 2 IPv4 addresses are in use (1 of them reserved for nodes and the like)";
    assert_eq!(
        full(&[WEB]).message("shop/b"),
        format!("{count}; with the sharing key \"web\" of vipmux it would fit on 192.0.2.10, beside shop/a")
    );
    assert_eq!(
        full(&[]).message("shop/b"),
        format!("{count}; with a sharing key in common with shop/a it would fit on 192.0.2.10")
    );
    let clash = full(&[WEB]).service("shop/b", &["80/TCP"], &[]);
    assert_eq!(clash.message("shop/b"), format!("{count}; no sharing key would let it fit"));
    let many = (0..129).fold(Cluster::new(&["192.0.2.0/25"]), |cluster, i| {
        cluster.service(&format!("shop/s{i:03}"), &["80/TCP"], &[])
    });
    assert_eq!(
        many.message("shop/s128"),
        "pool lan is full: all 128 IPv4 addresses are in use; no sharing key would let it fit on the first 64 of them"
    );
}

#[test]
fn rule_11_a_mismatch_names_the_holder_and_why() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[TEN, WEB]).service("shop/b", &["443/TCP"], &[TEN, API]);
    assert_eq!(
        cluster.message("shop/b"),
        "192.0.2.10 is held by shop/a, and the two may not share it: \
         their sharing keys differ (\"api\" of vipmux and \"web\" of vipmux)"
    );
}

#[test]
fn rule_14_addresses_of_nodes_are_never_assigned() {
    let cluster =
        lan().node("n1", "192.0.2.10").service("shop/a", &["80/TCP"], &[]).service("shop/b", &["80/TCP"], &[TEN]);
    assert_eq!(cluster.outcome(), "shop/a=11 shop/b:AddressReserved");
    assert_eq!(cluster.message("shop/b"), "192.0.2.10 is an address of node n1 and is never assigned");
}

#[test]
fn a_member_that_waited_joins_an_address_its_group_gets_later() {
    // `a` finds its pool full. Then `b` brings the group to an address that `a` may join.
    let cluster = Cluster::default()
        .pool("full", &serde_json::json!({"addresses": ["192.0.2.1/32"]}))
        .pool("manual", &serde_json::json!({"addresses": ["192.0.2.2/32"], "autoAssign": false}))
        .service("shop/0", &["80/TCP"], &[])
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["443/TCP"], &[WEB, ("vipmux.io/pool", "manual")]);
    assert_eq!(cluster.outcome(), "shop/0=1 shop/a=2 shop/b=2");
}

#[test]
fn a_refusal_names_what_holds_in_the_end() {
    // When `u` is tried again, `a` is not on 192.0.2.2 yet. Later `a` has `u`'s port there.
    let cluster = Cluster::default()
        .pool("full", &serde_json::json!({"addresses": ["192.0.2.1/32"]}))
        .pool("manual", &serde_json::json!({"addresses": ["192.0.2.2/31"], "autoAssign": false}))
        .service("shop/0", &["80/TCP"], &[])
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["443/TCP"], &[WEB, ("vipmux.io/pool", "manual")])
        .service("shop/h", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.3")])
        .service("shop/u", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.2,192.0.2.3")]);
    assert_eq!(cluster.outcome(), "shop/0=1 shop/a=2 shop/b=2 shop/h=3 shop/u:PortConflict");
    assert_eq!(cluster.message("shop/u"), "port 80/TCP on 192.0.2.2 is held by shop/a");
}

#[test]
fn rule_9_a_key_that_reaches_further_is_the_same_key() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["80/TCP"], &[WEB]).assigned();
    let cluster = cluster.without("shop/a").service("shop/a", &["443/TCP"], &[WEB]).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11");
    let further = [WEB, ("vipmux.io/sharing-namespaces", "team")];
    assert_eq!(cluster.service("shop/b", &["80/TCP"], &further).outcome(), "shop/a=10 shop/b=11");
}

#[test]
fn keys_of_namespaces_that_let_nobody_in_are_groups_of_their_own() {
    let cluster =
        ["a/0", "b/0", "c/0"].iter().fold(lan(), |cluster, service| cluster.service(service, &["80/TCP"], &[WEB]));
    let cluster = cluster.service("b/1", &["443/TCP"], &[WEB]).service("c/1", &["80/TCP"], &[WEB]);
    assert_eq!(cluster.outcome(), "a/0=10 b/0=11 b/1=11 c/0=12 c/1:PoolExhausted");
    assert!(cluster.message("c/1").starts_with("port 80/TCP on 192.0.2.12 is held by c/0; pool lan is full"));
}
