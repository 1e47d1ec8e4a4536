//! The label of an address, which is one at most.

use super::*;

fn labelled(label: &'static str) -> Wishes {
    Wishes { label: Some(label), by_address: Some(ByAddress::Explicit), ..Wishes::default() }
}

/// A Service that names the address, which is to carry this label.
fn named(cluster: Cluster, service: &str, port: &str, label: &'static str) -> Cluster {
    cluster.service(service, &[port], &[TEN]).wishing(service, labelled(label))
}

/// A Service of the group `web` that takes what it gets, which is to carry this label.
fn member(cluster: Cluster, service: &str, port: &str, label: &'static str) -> Cluster {
    let wishes = Wishes { label: Some(label), ..Wishes::default() };
    cluster.service(service, &[port], &[WEB]).wishing(service, wishes)
}

#[test]
fn an_address_has_one_label_and_whoever_wants_another_is_refused_there() {
    let cluster =
        named(named(named(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "blue"), "shop/c", "82/TCP", "red");
    let cluster = cluster
        .service("shop/d", &["83/TCP"], &[TEN])
        .wishing("shop/d", Wishes { by_address: Some(ByAddress::Explicit), ..Wishes::default() });
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b:LabelConflict shop/c=10 shop/d=10");
    assert_eq!(
        cluster.message("shop/b"),
        "the label of 192.0.2.10 is \"red\", by shop/a, and \"blue\" cannot be a second one"
    );
    let allocation = cluster.allocate();
    assert_eq!(allocation.labels(), [(vip("192.0.2.10"), "red")].into());
    assert_eq!(allocation.assignments[&name("shop/d")].label(), None);
}

#[test]
fn rule_8_a_second_label_spills_or_waits_like_a_port() {
    let cluster = member(member(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "blue");
    let cluster = cluster.service("shop/c", &["82/TCP"], &[WEB]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11 shop/c=10");
    let told = "the label of 192.0.2.10 is \"red\", by shop/a, and \"blue\" cannot be a second one";
    assert_eq!(cluster.warnings("shop/b"), [format!("{told}, so the group has another address")]);
    let pending = cluster.clone().sharing("lan", PoolSharing::Any, OnConflict::Pending);
    assert_eq!(pending.outcome(), "shop/a=10 shop/b:LabelConflict shop/c=10");
    let never = Wishes { label: Some("blue"), never_spills: true, ..Wishes::default() };
    assert_eq!(cluster.wishing("shop/b", never).outcome(), "shop/a=10 shop/b:LabelConflict shop/c=10");
}

#[test]
fn rule_7_the_label_is_of_whoever_holds_the_address_then_of_the_older() {
    let settled = named(lan(), "shop/z", "80/TCP", "red").settled();
    let cluster = named(settled, "shop/a", "81/TCP", "blue").created("shop/a", 2001);
    assert_eq!(cluster.outcome(), "shop/a:LabelConflict shop/z=10");
    let anew = Cluster { holders: Holders::new(), ..cluster };
    assert_eq!(anew.outcome(), "shop/a=10 shop/z:LabelConflict");
}

#[test]
fn the_label_stays_while_anyone_who_carries_it_is_there() {
    let settled = named(named(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "red").settled();
    let waits = named(settled, "shop/c", "82/TCP", "blue").without("shop/a").settled();
    assert_eq!(waits.outcome(), "shop/b=10 shop/c:LabelConflict");
    assert_eq!(waits.without("shop/b").outcome(), "shop/c=10");
}

#[test]
fn rule_9_one_that_changes_its_label_into_a_clash_goes_and_the_others_stay() {
    let settled = named(named(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "red").settled();
    let cluster = named(settled, "shop/a", "80/TCP", "blue").created("shop/a", 2001).settled();
    assert_eq!(cluster.outcome(), "shop/a:LabelConflict shop/b=10");
    let both = named(cluster, "shop/b", "81/TCP", "blue");
    assert_eq!(both.outcome(), "shop/a=10 shop/b=10", "the label follows its only owner");
    let group = member(member(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "red").settled();
    assert_eq!(member(group, "shop/a", "80/TCP", "blue").outcome(), "shop/a=11 shop/b=10");
}

#[test]
fn in_both_families_a_label_moves_a_service_in_both() {
    let both = |spec: &mut k8s_openapi::api::core::v1::ServiceSpec| {
        spec.ip_family_policy = Some("RequireDualStack".to_owned());
    };
    let v6 = |spec: &mut k8s_openapi::api::core::v1::ServiceSpec| spec.ip_families = Some(vec!["IPv6".to_owned()]);
    let pools = Cluster::new(&["192.0.2.10-192.0.2.12", "2001:db8::10-2001:db8::12"]);
    let cluster = member(pools, "shop/a", "80/TCP", "red").spec("shop/a", both);
    let cluster = member(cluster, "shop/b", "81/TCP", "red").spec("shop/b", v6);
    let cluster = member(cluster, "shop/c", "82/TCP", "blue").spec("shop/c", both).settled();
    assert_eq!(cluster.outcome(), "shop/a=10,::10 shop/b=::10 shop/c=11,::11");
    let changed = member(cluster, "shop/a", "80/TCP", "blue").spec("shop/a", both);
    assert_eq!(changed.outcome(), "shop/a=11,::11 shop/b=::10 shop/c=11,::11");
}
