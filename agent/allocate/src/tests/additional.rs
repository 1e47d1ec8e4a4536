//! Tests addresses that a Service asks for in addition to its own.

use super::*;

fn beside(additional: &'static [&'static str]) -> Wishes {
    Wishes { additional, ..Wishes::default() }
}

const TWELVE: &[&str] = &["192.0.2.12"];

#[test]
fn they_are_given_beside_its_own_and_all_is_claimed_on_each() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[]).wishing("shop/a", beside(TWELVE));
    assert_eq!(cluster.outcome(), "shop/a=10,12");
    assert_eq!(cluster.allocate().claims().len(), 2);
    let named = lan().service("shop/a", &["80/TCP"], &[ELEVEN]).wishing("shop/a", beside(TWELVE));
    assert_eq!(named.outcome(), "shop/a=11,12");
    let lowest = lan().service("shop/a", &["80/TCP"], &[]).wishing("shop/a", beside(&["192.0.2.10"]));
    assert_eq!(lowest.outcome(), "shop/a=10,11", "its own is another");
    assert_eq!(lowest.assigned().outcome(), "shop/a=10,11");
}

#[test]
fn it_gets_all_of_them_or_nothing() {
    let assigned = lan().service("shop/b", &["80/TCP"], &[("vipmux.io/addresses", "192.0.2.12")]).assigned();
    let cluster = assigned.service("shop/a", &["80/TCP"], &[]);
    for (additional, reason, message) in [
        (TWELVE, "PortConflict", "port 80/TCP on 192.0.2.12 is held by shop/b"),
        (&["192.0.2.11", "192.0.2.99"], "AddressNotInPool", "192.0.2.99 is in no pool (pools: lan)"),
        (&["192.0.2.11", "192.0.2.7"], "AddressReserved", "192.0.2.7 is an address of node n1 and is never assigned"),
    ] {
        let cluster = cluster.clone().node("n1", "192.0.2.7").wishing("shop/a", beside(additional));
        assert_eq!(cluster.outcome(), format!("shop/a:{reason} shop/b=12"));
        assert_eq!(cluster.message("shop/a"), message);
    }
}

#[test]
fn they_need_not_come_from_the_pool_that_it_names() {
    let dmz = serde_json::json!({"addresses": ["192.0.2.200/32"]});
    let cluster = lan().pool("dmz", &dmz).service("shop/a", &["80/TCP"], &[("vipmux.io/pool", "dmz")]);
    assert_eq!(cluster.wishing("shop/a", beside(TWELVE)).outcome(), "shop/a=12,200");
}

#[test]
fn they_are_shared_as_others_are() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[WEB]).wishing("shop/a", beside(TWELVE));
    let cluster = cluster.service("shop/b", &["80/TCP"], &[WEB]).service("shop/c", &["81/TCP"], &[]);
    assert_eq!(cluster.outcome(), "shop/a=10,12 shop/b=11 shop/c:PoolExhausted");
    let key = cluster.clone().service("shop/c", &["81/TCP"], &[WEB]).wishing("shop/c", beside(TWELVE));
    assert_eq!(key.outcome(), "shop/a=10,12 shop/b=11 shop/c=10,12");
    let plain = cluster.wishing("shop/c", beside(TWELVE));
    assert_eq!(plain.outcome(), "shop/a=10,12 shop/b=11 shop/c:SharingMismatch");
}

#[test]
fn rule_9_its_own_address_stays_when_others_come_or_go_beside_it() {
    let assigned = lan().service("shop/z", &["80/TCP"], &[]).assigned();
    let more = assigned.wishing("shop/z", beside(TWELVE)).service("shop/a", &["80/TCP"], &[TEN]).assigned();
    assert_eq!(more.outcome(), "shop/a:PortConflict shop/z=10,12");
    let lower = lan().service("shop/0", &["80/TCP"], &[]).service("shop/z", &["80/TCP"], &[]).assigned();
    let lower = lower.without("shop/0").wishing("shop/z", beside(&["192.0.2.10"])).assigned();
    assert_eq!(lower.outcome(), "shop/z=10,11");
    assert_eq!(lower.wishing("shop/z", Wishes::default()).outcome(), "shop/z=11", "not the one that it asked for");
}

#[test]
fn rule_10_its_own_are_of_the_families_that_it_wants() {
    let both = |policy: &'static str| {
        move |spec: &mut k8s_openapi::api::core::v1::ServiceSpec| spec.ip_family_policy = Some(policy.to_owned())
    };
    let six = serde_json::json!({"addresses": ["2001:db8::10-2001:db8::12"]});
    let more: &[&str] = &["192.0.2.10", "2001:db8::10"];
    for (policy, v4, dual) in [
        ("PreferDualStack", "shop/a=11,12", "shop/a=11,12,::10"),
        ("RequireDualStack", "shop/a:PoolExhausted", "shop/a=11,12,::10"),
    ] {
        let cluster = lan().service("shop/a", &["80/TCP"], &[]).spec("shop/a", both(policy));
        let cluster = cluster.wishing("shop/a", beside(&["192.0.2.11"])).service("shop/b", &["80/TCP"], &[TEN]);
        assert_eq!(cluster.outcome(), format!("{v4} shop/b=10"));
        let wider = serde_json::json!({"addresses": ["192.0.2.10-192.0.2.12", "2001:db8::10-2001:db8::12"]});
        assert_eq!(cluster.assigned().pool("lan", &wider).outcome(), format!("{dual} shop/b=10"));
    }
    let cluster = lan().pool("six", &six).service("shop/a", &["80/TCP"], &[]).spec("shop/a", both("RequireDualStack"));
    assert_eq!(cluster.wishing("shop/a", beside(more)).outcome(), "shop/a:PoolExhausted", "its own are from one pool");
}
