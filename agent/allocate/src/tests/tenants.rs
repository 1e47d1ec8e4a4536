//! Tests what one tenant, or a node, can take from others.

use super::*;

#[test]
fn rule_3_of_services_in_one_namespace_one_that_asks_by_address_is_enough() {
    let asking = Wishes { by_address: Some(ByAddress::Explicit), ..Wishes::default() };
    let plain = Wishes { by_address: Some(ByAddress::Plain), ..Wishes::default() };
    let cluster = lan().service("shop/a", &["443/TCP"], &[]).wishing("shop/a", plain);
    let cluster =
        cluster.service("shop/b", &["80/TCP"], &[TEN]).wishing("shop/b", asking.clone()).created("shop/a", 2001);
    assert_eq!(cluster.assigned().outcome(), "shop/a=11 shop/b=10", "one that names an address goes first");
    let held = lan().service("shop/a", &["443/TCP"], &[]).assigned();
    let joined = held.clone().service("shop/b", &["80/TCP"], &[TEN]).wishing("shop/b", asking.clone());
    assert_eq!(joined.outcome(), "shop/a=10 shop/b=10");
    let foreign = held.service("team/b", &["80/TCP"], &[TEN]).wishing("team/b", asking);
    assert_eq!(foreign.outcome(), "shop/a=10 team/b:SharingMismatch");
}

#[test]
fn rule_9_services_of_two_namespaces_that_share_already_are_not_parted() {
    let asking = Wishes { by_address: Some(ByAddress::Explicit), ..Wishes::default() };
    let both = lan().service("shop/a", &["443/TCP"], &[]).service("team/b", &["80/TCP"], &[TEN]);
    let both = both.wishing("team/b", asking).created("shop/a", 2001).created("team/b", 2002);
    // The allocator starts anew, and so knows statuses only.
    let shown = ["shop/a", "team/b"]
        .iter()
        .fold(both, |cluster, service| cluster.showing(service, "192.0.2.10").given(service, "True"));
    let upgraded = shown.restarted();
    assert_eq!(upgraded.outcome(), "shop/a=10 team/b=10");
    assert_eq!(
        upgraded.warnings("shop/a"),
        ["192.0.2.10 is shared with team/b, although the two may not share it any more: namespaces shop and team \
          differ, and only one of the two asks to share its address; it is kept until one of them changes or goes"]
    );
    assert_eq!(upgraded.assigned().outcome(), "shop/a=10 team/b=10");
}

#[test]
fn rule_14_a_node_that_claims_an_address_takes_it_from_no_holder() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[WEB]).assigned().node("n1", "192.0.2.10");
    assert_eq!(cluster.outcome(), "shop/a=10");
    assert_eq!(
        cluster.warnings("shop/a"),
        ["192.0.2.10 is an address of node n1, too; its holders keep it and nobody else gets it: \
          give one of the two another"]
    );
    let reserved = cluster.clone().reserving("192.0.2.10");
    assert_eq!(reserved.outcome(), "shop/a=11", "the configuration takes it");
    let edited = cluster.clone().service("shop/a", &["80/TCP", "443/TCP"], &[WEB]);
    assert_eq!(edited.outcome(), "shop/a=10", "an edit is no reason to lose it");
    let group = cluster.clone().service("shop/b", &["81/TCP"], &[WEB]);
    assert_eq!(group.outcome(), "shop/a=10 shop/b=11", "nobody new gets it, by its group");
    let named = cluster.service("shop/b", &["81/TCP"], &[WEB, TEN]);
    assert_eq!(named.outcome(), "shop/a=10 shop/b:AddressReserved", "nor by its name");
}

#[test]
fn rule_15_a_namespace_gets_no_more_addresses_than_allowed_and_leaves_the_others() {
    let cluster = lan()
        .service("shop/a", &["80/TCP"], &[WEB])
        .service("shop/b", &["80/TCP"], &[])
        .service("team/a", &["80/TCP"], &[])
        .limited(16, 1);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b:TooManyAddresses team/a=11");
    assert_eq!(
        cluster.message("shop/b"),
        "namespace shop holds 1 of at most 1 addresses (--namespace-addresses), and this Service needs 1 more"
    );
    let shared = cluster.clone().service("shop/c", &["443/TCP"], &[WEB]);
    assert_eq!(shared.outcome(), "shop/a=10 shop/b:TooManyAddresses shop/c=10 team/a=11", "a shared one counts once");
    let left = cluster.clone().assigned().without("shop/a");
    assert_eq!(left.outcome(), "shop/b=10 team/a=11");
    let held = lan().service("shop/a", &["80/TCP"], &[]).service("shop/b", &["80/TCP"], &[]).assigned();
    let lowered = held.limited(16, 1).service("shop/b", &["80/TCP", "443/TCP"], &[]);
    assert_eq!(lowered.outcome(), "shop/a=10 shop/b=11", "nobody loses what it holds");
}

#[test]
fn rule_15_a_service_gets_no_more_addresses_than_allowed() {
    let three = [("vipmux.io/addresses", "192.0.2.10,192.0.2.11,192.0.2.12")];
    let cluster = lan().service("shop/a", &["80/TCP"], &three).limited(2, 256);
    assert_eq!(
        cluster.message("shop/a"),
        "it asks for 3 addresses, and a Service gets at most 2 (--service-addresses)"
    );
    assert_eq!(cluster.limited(3, 256).outcome(), "shop/a=10,11,12");
}
