//! Tests the label of an address. An address has at most one.

use super::*;

fn labeled(label: &'static str) -> Wishes {
    Wishes { label: Some(label), by_address: Some(ByAddress::Explicit), ..Wishes::default() }
}

/// Adds a Service that names the address and wants this label on it.
fn named(cluster: Cluster, service: &str, port: &str, label: &'static str) -> Cluster {
    cluster.service(service, &[port], &[TEN]).wishing(service, labeled(label))
}

/// Adds a Service of the group `web` that names no address and wants this label.
fn member(cluster: Cluster, service: &str, port: &str, label: &'static str) -> Cluster {
    let wishes = Wishes { label: Some(label), ..Wishes::default() };
    cluster.service(service, &[port], &[WEB]).wishing(service, wishes)
}

#[test]
fn an_address_has_one_label_and_a_service_with_another_is_refused_there() {
    let cluster =
        named(named(named(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "blue"), "shop/c", "82/TCP", "red");
    let cluster = cluster
        .service("shop/d", &["83/TCP"], &[TEN])
        .wishing("shop/d", Wishes { by_address: Some(ByAddress::Explicit), ..Wishes::default() });
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b:LabelConflict shop/c=10 shop/d=10");
    assert_eq!(
        cluster.message("shop/b"),
        "the label of 192.0.2.10 is \"red\", set by shop/a, so it cannot also be \"blue\""
    );
    let allocation = cluster.allocate();
    assert_eq!(allocation.labels(), [(vip("192.0.2.10"), "red")].into());
    assert_eq!(allocation.assignments[&service_name("shop/d")].label(), None);
}

#[test]
fn rule_8_a_second_label_spills_or_waits_like_a_port() {
    let cluster = member(member(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "blue");
    let cluster = cluster.service("shop/c", &["82/TCP"], &[WEB]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11 shop/c=10");
    let message = "the label of 192.0.2.10 is \"red\", set by shop/a, so it cannot also be \"blue\"";
    assert_eq!(cluster.warnings("shop/b"), [format!("{message}, so the group has another address")]);
    let pending = cluster.clone().sharing("lan", PoolSharing::Any, OnConflict::Pending);
    assert_eq!(pending.outcome(), "shop/a=10 shop/b:LabelConflict shop/c=10");
    let never = Wishes { label: Some("blue"), never_spills: true, ..Wishes::default() };
    assert_eq!(cluster.wishing("shop/b", never).outcome(), "shop/a=10 shop/b:LabelConflict shop/c=10");
}

#[test]
fn rule_7_the_label_is_the_holders_then_the_older_services() {
    let assigned = named(lan(), "shop/z", "80/TCP", "red").assigned();
    let cluster = named(assigned, "shop/a", "81/TCP", "blue").created("shop/a", 2001);
    assert_eq!(cluster.outcome(), "shop/a:LabelConflict shop/z=10");
    let anew = Cluster { previous: PreviousAssignments::new(), ..cluster };
    assert_eq!(anew.outcome(), "shop/a=10 shop/z:LabelConflict");
}

#[test]
fn the_label_stays_while_anyone_who_carries_it_is_there() {
    let assigned = named(named(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "red").assigned();
    let waits = named(assigned, "shop/c", "82/TCP", "blue").without("shop/a").assigned();
    assert_eq!(waits.outcome(), "shop/b=10 shop/c:LabelConflict");
    assert_eq!(waits.without("shop/b").outcome(), "shop/c=10");
}

#[test]
fn rule_9_one_that_changes_its_label_into_a_clash_goes_and_the_others_stay() {
    let assigned = named(named(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "red").assigned();
    let cluster = named(assigned, "shop/a", "80/TCP", "blue").created("shop/a", 2001).assigned();
    assert_eq!(cluster.outcome(), "shop/a:LabelConflict shop/b=10");
    let both = named(cluster, "shop/b", "81/TCP", "blue");
    assert_eq!(both.outcome(), "shop/a=10 shop/b=10", "the label follows its only owner");
    let group = member(member(lan(), "shop/a", "80/TCP", "red"), "shop/b", "81/TCP", "red").assigned();
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
    let cluster = member(cluster, "shop/c", "82/TCP", "blue").spec("shop/c", both).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10,::10 shop/b=::10 shop/c=11,::11");
    let changed = member(cluster, "shop/a", "80/TCP", "blue").spec("shop/a", both);
    assert_eq!(changed.outcome(), "shop/a=11,::11 shop/b=::10 shop/c=11,::11");
}
