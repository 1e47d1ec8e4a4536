//! Tests Services that own every port of their address.

use super::*;

const ALL: (&str, &str) = ("vipmux.io/all-ports", "true");

#[test]
fn one_with_every_port_has_its_address_to_itself() {
    let azure = "service.beta.kubernetes.io/azure-load-balancer-enable-high-availability-ports";
    for all in [ALL, (azure, "true")] {
        let cluster = lan().service("shop/a", &["80/TCP"], &[WEB, all]).service("shop/b", &["443/UDP"], &[WEB]);
        assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11");
        let ports: Vec<_> = cluster.allocate().claims().into_keys().map(|claim| claim.to_string()).collect();
        let every = ["TCP", "UDP", "SCTP"].map(|protocol| format!("every {protocol} port on 192.0.2.10"));
        assert_eq!(ports[..3], every);
    }
}

#[test]
fn the_second_service_gets_a_message_that_names_the_holder() {
    let first = lan().service("shop/a", &["80/TCP"], &[WEB, TEN, ALL]).assigned();
    let cluster = first.service("shop/b", &["443/UDP"], &[WEB, TEN]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b:PortConflict");
    assert_eq!(cluster.message("shop/b"), "every TCP port on 192.0.2.10 is held by shop/a");
    let first = lan().service("shop/a", &["443/UDP"], &[WEB, TEN]).assigned();
    let cluster = first.service("shop/b", &["80/TCP"], &[WEB, TEN, ALL]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b:PortConflict");
    assert_eq!(cluster.message("shop/b"), "port 443/UDP on 192.0.2.10 is held by shop/a");
}

#[test]
fn one_that_comes_to_want_every_port_leaves_the_others_theirs() {
    let assigned = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["443/TCP"], &[WEB]).assigned();
    assert_eq!(assigned.outcome(), "shop/a=10 shop/b=10");
    let cluster = assigned.service("shop/a", &["80/TCP"], &[WEB, ALL]).assigned();
    assert_eq!(cluster.outcome(), "shop/a=11 shop/b=10");
    let cluster = cluster.service("shop/a", &["80/TCP"], &[WEB]).assigned();
    assert_eq!(cluster.outcome(), "shop/a=11 shop/b=10", "and keeps its address when it does no more");
}

#[test]
fn one_whose_source_ranges_cannot_be_read_keeps_its_address_and_is_served_to_nobody() {
    let assigned = lan().service("shop/a", &["80/TCP"], &[WEB, ALL]).assigned();
    let slip = ("service.beta.kubernetes.io/load-balancer-source-ranges", "10.0.0.0/33");
    let cluster =
        assigned.service("shop/a", &["80/TCP"], &[WEB, ALL, slip]).service("shop/b", &["81/TCP"], &[WEB, TEN]);
    let cluster = cluster.created("shop/b", 2001).assigned();
    assert_eq!(cluster.outcome(), "shop/a:InvalidAnnotation shop/b:PortConflict");
    assert_eq!(cluster.allocate().claims(), BTreeMap::new());
    assert_eq!(cluster.allocate().withheld.len(), 1);
}
