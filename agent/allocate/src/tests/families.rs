//! Tests rule 10, and the other rules for IPv6.

use k8s_openapi::api::core::v1::ServiceSpec;

use super::*;

/// Returns a cluster with three addresses of each family.
fn dual() -> Cluster {
    Cluster::new(&["192.0.2.10-192.0.2.12", "2001:db8::10-2001:db8::12"])
}

fn policy(families: &'static [&'static str], policy: &'static str) -> impl FnOnce(&mut ServiceSpec) {
    move |spec| {
        spec.ip_families = (!families.is_empty()).then(|| families.iter().map(|&family| family.to_owned()).collect());
        spec.ip_family_policy = Some(policy.to_owned());
    }
}

fn v6() -> impl FnOnce(&mut ServiceSpec) {
    policy(&["IPv6"], "SingleStack")
}

fn prefer() -> impl FnOnce(&mut ServiceSpec) {
    policy(&[], "PreferDualStack")
}

fn require() -> impl FnOnce(&mut ServiceSpec) {
    policy(&[], "RequireDualStack")
}

/// Adds a Service with the key `web` on these ports.
fn member(cluster: Cluster, service: &str, ports: &[&str], families: impl FnOnce(&mut ServiceSpec)) -> Cluster {
    cluster.service(service, ports, &[WEB]).spec(service, families)
}

#[test]
fn the_policy_decides_how_many_addresses_a_service_gets() {
    let cluster = dual()
        .service("shop/a", &["80/TCP"], &[])
        .service("shop/b", &["80/TCP"], &[])
        .spec("shop/b", v6())
        .service("shop/c", &["80/TCP"], &[])
        .spec("shop/c", prefer())
        .service("shop/d", &["80/TCP"], &[])
        .spec("shop/d", require());
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=::10 shop/c=11,::11 shop/d=12,::12");
    assert_eq!(cluster.message("shop/c"), "192.0.2.11 from pool lan; 2001:db8::11 from pool lan");
    assert_eq!(cluster.allocate().claims().len(), 6);
}

#[test]
fn where_one_family_is_missing_only_those_that_can_do_without_it_are_served() {
    let services = |cluster: Cluster| {
        cluster
            .service("shop/a", &["80/TCP"], &[])
            .spec("shop/a", policy(&["IPv6", "IPv4"], "PreferDualStack"))
            .service("shop/b", &["80/TCP"], &[])
            .spec("shop/b", require())
            .service("shop/c", &["80/TCP"], &[])
            .spec("shop/c", v6())
    };
    let v4 = services(lan());
    assert_eq!(v4.outcome(), "shop/a=10 shop/b:PoolExhausted shop/c:PoolExhausted");
    assert_eq!(
        v4.message("shop/b"),
        "an address of each family is needed, from one pool: pool lan has no IPv6 addresses; \
         no sharing key would let it fit"
    );
    let v6 = services(Cluster::new(&["2001:db8::/124"]));
    assert_eq!(v6.outcome(), "shop/a=::1 shop/b:PoolExhausted shop/c=::2");
}

#[test]
fn both_addresses_are_from_one_pool() {
    let cluster = Cluster::default()
        .pool("a-v4", &serde_json::json!({"addresses": ["192.0.2.1-192.0.2.9"]}))
        .pool("b-v6", &serde_json::json!({"addresses": ["2001:db8::1-2001:db8::9"]}))
        .pool("c-both", &serde_json::json!({"addresses": ["192.0.2.20/32", "2001:db8::20/128"]}))
        .service("shop/a", &["80/TCP"], &[])
        .spec("shop/a", prefer())
        .service("shop/b", &["80/TCP"], &[])
        .spec("shop/b", require())
        .service("shop/c", &["80/TCP"], &[])
        .spec("shop/c", policy(&["IPv6"], "PreferDualStack"));
    assert_eq!(cluster.outcome(), "shop/a=20,::20 shop/b:PoolExhausted shop/c=::1");
    assert_eq!(
        cluster.message("shop/b"),
        "an address of each family is needed, from one pool: pool a-v4 has no IPv6 addresses; \
         pool b-v6 has no IPv4 addresses; pool c-both is full: its one IPv4 address is in use; \
         pool c-both is full: its one IPv6 address is in use; no sharing key would let it fit"
    );
}

#[test]
fn a_group_shares_in_each_family() {
    let cluster = member(dual(), "shop/a", &["80/TCP"], prefer());
    let cluster = member(cluster, "shop/b", &["443/TCP"], require());
    let cluster = member(cluster, "shop/c", &["22/TCP"], v6());
    let cluster = cluster.service("shop/d", &["25/TCP"], &[WEB]);
    assert_eq!(cluster.outcome(), "shop/a=10,::10 shop/b=10,::10 shop/c=::10 shop/d=10");
    assert_eq!(
        cluster.message("shop/b"),
        "192.0.2.10 from pool lan, shared with shop/a, shop/d; 2001:db8::10 from pool lan, shared with shop/a, shop/c"
    );
    let apart = member(
        member(dual(), "shop/a", &["80/TCP"], v6()).service("shop/b", &["80/TCP"], &[WEB]),
        "shop/c",
        &["1/TCP"],
        require(),
    );
    assert_eq!(apart.outcome(), "shop/a=::10 shop/b=10 shop/c=10,::10", "members of one family each make a pair");
}

#[test]
fn a_clash_in_one_family_spills_both() {
    // `b` has port 80 in IPv6 only.
    let cluster = member(dual(), "shop/a", &["443/TCP"], prefer()).service("shop/0", &["1/TCP"], &[]);
    let cluster = member(cluster, "shop/b", &["80/TCP"], v6()).assigned();
    assert_eq!(cluster.outcome(), "shop/0=10 shop/a=11,::10 shop/b=::10");
    let cluster = member(cluster, "shop/c", &["80/TCP"], require());
    assert_eq!(cluster.outcome(), "shop/0=10 shop/a=11,::10 shop/b=::10 shop/c=12,::11");
    assert_eq!(
        cluster.warnings("shop/c"),
        ["port 80/TCP on 2001:db8::10 is held by shop/b, so the group has another address"]
    );
    let pending = with_pool(&cluster, PoolSharing::Any, OnConflict::Pending);
    let refusal = Refusal::new(Reason::PortConflict, "port 80/TCP on 2001:db8::10 is held by shop/b");
    assert_eq!(pending.refusals, [(service_name("shop/c"), refusal)].into());
}

#[test]
fn one_that_changes_into_a_clash_in_one_family_moves_in_both() {
    let cluster = member(member(dual(), "shop/a", &["443/TCP"], require()), "shop/b", &["80/TCP"], v6());
    let cluster = cluster.service("shop/c", &["22/TCP"], &[WEB]).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10,::10 shop/b=::10 shop/c=10");
    let cluster = member(cluster, "shop/a", &["443/TCP", "80/TCP"], require());
    assert_eq!(cluster.outcome(), "shop/a=11,::11 shop/b=::10 shop/c=10");
}

#[test]
fn prefer_dual_stack_upgrades_in_place() {
    let cluster =
        ["shop/a", "shop/b"].iter().fold(lan(), |cluster, service| member(cluster, service, &["80/TCP"], prefer()));
    let cluster = member(cluster, "shop/c", &["443/TCP"], prefer()).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11 shop/c=10");
    let wider = serde_json::json!({"addresses": ["192.0.2.10-192.0.2.12", "2001:db8::10-2001:db8::12"]});
    let cluster = cluster.pool("lan", &wider).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10,::10 shop/b=11,::11 shop/c=10,::10");
    let narrower = cluster.pool("lan", &serde_json::json!({"addresses": ["192.0.2.10-192.0.2.12"]}));
    assert_eq!(narrower.outcome(), "shop/a=10,::10 shop/b=11,::11 shop/c=10,::10", "a smaller pool moves nobody");
}

#[test]
fn a_service_keeps_the_address_of_each_family_that_it_still_wants() {
    let cluster = dual().service("shop/a", &["80/TCP"], &[]).service("shop/b", &["80/TCP"], &[]).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=11");
    let cluster = cluster.spec("shop/b", require()).service("shop/0", &["80/TCP"], &[TEN]).assigned();
    assert_eq!(cluster.outcome(), "shop/0:PortConflict shop/a=10 shop/b=11,::10");
    let cluster = cluster.spec("shop/b", v6()).assigned();
    assert_eq!(cluster.outcome(), "shop/0:PortConflict shop/a=10 shop/b=::10");
    let cluster = cluster.spec("shop/b", policy(&["IPv4"], "SingleStack"));
    assert_eq!(cluster.outcome(), "shop/0:PortConflict shop/a=10 shop/b=11");
}

#[test]
fn one_that_comes_to_require_both_gets_its_own_address_before_others_do() {
    let cluster = dual().service("shop/z", &["80/TCP"], &[]).assigned();
    let cluster = cluster.spec("shop/z", require()).service("shop/a", &["80/TCP"], &[TEN]);
    assert_eq!(cluster.outcome(), "shop/a:PortConflict shop/z=10,::10");
    let v4 = lan().service("shop/z", &["80/TCP"], &[]).assigned().spec("shop/z", require());
    assert_eq!(v4.outcome(), "shop/z:PoolExhausted", "a request that cannot be met is refused as a whole");
}

#[test]
fn an_address_that_becomes_reserved_costs_the_other_one_nothing() {
    let cluster = dual().service("shop/a", &["80/TCP"], &[]).spec("shop/a", require());
    let cluster = cluster.service("shop/b", &["80/TCP"], &[]).spec("shop/b", prefer()).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10,::10 shop/b=11,::11");
    let cluster = cluster.reserving("2001:db8::10").reserving("2001:db8::11");
    assert_eq!(cluster.outcome(), "shop/a=10,::12 shop/b=11");
}

#[test]
fn explicit_addresses_must_be_of_the_families_that_are_wanted() {
    let ask = |addresses: &'static str, families: &'static [&'static str], of: &'static str| {
        let cluster = dual().service("shop/a", &["80/TCP"], &[("vipmux.io/addresses", addresses)]);
        let cluster = if of.is_empty() { cluster } else { cluster.spec("shop/a", policy(families, of)) };
        format!("{} {}", cluster.outcome(), cluster.message("shop/a"))
    };
    for (addresses, families, of, outcome) in [
        ("2001:db8::11", &[][..], "", "shop/a=::11 "),
        ("192.0.2.11,2001:db8::11", &[], "", "shop/a=11,::11 "),
        ("192.0.2.11,2001:db8::11", &["IPv4", "IPv6"], "RequireDualStack", "shop/a=11,::11 "),
        ("2001:db8::11", &["IPv4"], "PreferDualStack", "shop/a=::11 "),
        (
            "2001:db8::11",
            &["IPv4"],
            "SingleStack",
            "shop/a:UnsupportedFamily it asks for 2001:db8::11, and spec.ipFamilies and spec.ipFamilyPolicy allow \
             only IPv4",
        ),
        (
            "192.0.2.11",
            &["IPv4", "IPv6"],
            "RequireDualStack",
            "shop/a:UnsupportedFamily RequireDualStack cannot be met: no IPv6 address is among those that it asks for",
        ),
        ("2001:db8::11,192.0.2.99", &[], "", "shop/a:AddressNotInPool "),
    ] {
        let found = ask(addresses, families, of);
        assert!(found.starts_with(outcome), "{addresses}: {found}");
    }
    let assigned = dual().service("shop/a", &["80/TCP"], &[TEN]).assigned();
    let both = ("vipmux.io/addresses", "192.0.2.10,2001:db8::10");
    let slip = assigned.service("shop/a", &["80/TCP"], &[both]).spec("shop/a", policy(&["IPv4"], "SingleStack"));
    assert_eq!(slip.outcome(), "shop/a=10", "it keeps its address");
    assert_eq!(slip.allocate().assignments[&service_name("shop/a")].reason, Reason::UnsupportedFamily);
    let field = dual().service("shop/a", &["80/TCP"], &[]).spec("shop/a", |spec| {
        spec.load_balancer_ip = Some("2001:db8::12".to_owned());
    });
    assert_eq!(field.outcome(), "shop/a=::12");
}

#[test]
fn rule_11_a_full_pool_says_which_key_would_open_a_pair() {
    let cluster = Cluster::new(&["192.0.2.10/32", "2001:db8::10/128"]);
    let cluster = member(cluster, "shop/a", &["80/TCP"], require()).service("shop/b", &["443/TCP"], &[]);
    let cluster = cluster.spec("shop/b", require());
    assert_eq!(
        cluster.message("shop/b"),
        "an address of each family is needed, from one pool: pool lan is full: its one IPv4 address is in use; \
         pool lan is full: its one IPv6 address is in use; \
         with the sharing key \"web\" of vipmux it would fit on 192.0.2.10, beside shop/a"
    );
}

#[test]
fn rule_14_addresses_of_nodes_and_anycast_addresses_are_never_assigned() {
    let cluster = Cluster::new(&["2001:db8::/124", "2001:db8:0:1::/126"])
        .node("n1", "2001:db8::1")
        .service("shop/a", &["80/TCP"], &[])
        .spec("shop/a", v6())
        .service("shop/b", &["80/TCP"], &[("vipmux.io/addresses", "2001:db8::1")])
        .service("shop/c", &["80/TCP"], &[("vipmux.io/addresses", "2001:db8:0:1::")]);
    assert_eq!(cluster.outcome(), "shop/a=::2 shop/b:AddressReserved shop/c:AddressReserved");
    assert_eq!(
        cluster.message("shop/c"),
        "2001:db8:0:1:: is a subnet's router anycast address (RFC 4291) and is never assigned"
    );
}

#[test]
fn a_status_with_both_addresses_counts() {
    let mut cluster = dual().service("shop/a", &["80/TCP"], &[]).spec("shop/a", prefer());
    let status = serde_json::json!({"loadBalancer": {"ingress": [{"ip": "2001:db8::12"}, {"ip": "192.0.2.11"}]}});
    cluster.object("shop/a").status = serde_json::from_value(status).unwrap();
    cluster.previous = previous::with_statuses(PreviousAssignments::new(), &cluster.model());
    assert_eq!(cluster.outcome(), "shop/a=11,::12");
}
