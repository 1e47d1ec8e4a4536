//! Tests allocations that follow the Services' statuses.

use super::*;
use crate::fixture::Cluster;
use vipmux_model::ServiceName;
use vipmux_testing::names::service_name;

fn lan() -> Cluster {
    Cluster::new(&["192.0.2.10-192.0.2.12"])
}

fn outcome(cluster: &Cluster, author: StatusAuthor) -> String {
    shown(&allocation_from_statuses(&cluster.model(), author, |_| None))
}

/// Returns `service=address,...` or `service:Reason`, in order of names.
fn shown(allocation: &Allocation) -> String {
    let given = allocation.assignments.iter().map(|(name, given)| {
        let addresses: Vec<_> = given.addresses.iter().map(ToString::to_string).collect();
        (name.clone(), format!("={}", addresses.join(",")))
    });
    let refused = allocation.refusals.iter().map(|(name, refusal)| (name.clone(), format!(":{}", refusal.reason)));
    let mut all: Vec<(ServiceName, String)> = given.chain(refused).collect();
    all.sort();
    all.iter().map(|(name, what)| format!("{name}{what}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_status_is_all_that_counts() {
    // No key lets these two share, and the pool's first address is free.
    let cluster = lan()
        .service("shop/a", &["80/TCP"], &[])
        .showing("shop/a", "192.0.2.11")
        .service("shop/b", &["443/TCP"], &[])
        .showing("shop/b", "192.0.2.11")
        .service("shop/c", &["80/TCP"], &[]);
    assert_eq!(outcome(&cluster, StatusAuthor::Allocator), "shop/a=192.0.2.11 shop/b=192.0.2.11 shop/c:Unallocated");
}

#[test]
fn of_two_with_one_claim_the_earlier_one_is_served() {
    let claim =
        |cluster: Cluster, service: &str| cluster.service(service, &["80/TCP"], &[]).showing(service, "192.0.2.10");
    let two = claim(claim(lan(), "shop/a"), "shop/b");
    let first = two.clone().created("shop/a", 2001).created("shop/b", 2002);
    assert_eq!(outcome(&first, StatusAuthor::Allocator), "shop/a=192.0.2.10 shop/b:PortConflict");
    let second = two.created("shop/a", 2002).created("shop/b", 2001);
    assert_eq!(outcome(&second, StatusAuthor::Allocator), "shop/a:PortConflict shop/b=192.0.2.10");
    let allocation = allocation_from_statuses(&second.model(), StatusAuthor::Allocator, |_| None);
    let refusal = &allocation.refusals[&service_name("shop/a")];
    assert_eq!(refusal.message, "port 80/TCP on 192.0.2.10 is held by shop/b");
}

#[test]
fn an_edit_takes_nothing_from_anybody_before_the_allocator_has_judged_it() {
    let claim = |cluster: Cluster, service: &str, year| {
        cluster
            .service(service, &["80/TCP"], &[])
            .showing(service, "192.0.2.10")
            .given(service, "True")
            .created(service, year)
    };
    let both = claim(claim(lan(), "shop/a", 2001), "shop/b", 2002);
    assert_eq!(outcome(&both, StatusAuthor::Allocator), "shop/a=192.0.2.10 shop/b:PortConflict");
    let edited = both.edited("shop/a");
    assert_eq!(outcome(&edited, StatusAuthor::Allocator), "shop/a:PortConflict shop/b=192.0.2.10");
    assert_eq!(outcome(&edited.edited("shop/b"), StatusAuthor::Allocator), "shop/a=192.0.2.10 shop/b:PortConflict");
}

/// A port goes to it from another Service, whose edit comes next.
#[test]
fn an_edited_service_is_served_on_the_ports_that_nobody_else_holds() {
    let cluster = lan().service("shop/a", &["80/TCP", "443/TCP"], &[]).showing("shop/a", "192.0.2.10");
    let cluster = cluster.given("shop/a", "True").judged("shop/a", "1 ports=80/TCP,443/TCP");
    let cluster = cluster.service("shop/b", &["53/UDP", "443/TCP"], &[]).showing("shop/b", "192.0.2.10");
    let cluster = cluster.given("shop/b", "True").judged("shop/b", "1 ports=53/UDP");
    let allocation = allocation_from_statuses(&cluster.model(), StatusAuthor::Allocator, |_| None);
    let claims: Vec<_> = allocation.claims().iter().map(|(claim, owner)| format!("{} {claim}", owner.name())).collect();
    let on = "on 192.0.2.10";
    assert_eq!(claims, [format!("a port 80/TCP {on}"), format!("a port 443/TCP {on}"), format!("b port 53/UDP {on}")]);
    let warnings = &allocation.assignments[&service_name("shop/b")].warnings;
    assert!(warnings.contains(&format!("port 443/TCP {on} is held by shop/a")), "{warnings:?}");
}

#[test]
fn an_address_in_no_pool_is_trusted_where_anybody_gives_addresses() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[]).showing("shop/a", "198.51.100.7");
    assert_eq!(outcome(&cluster, StatusAuthor::Allocator), "shop/a:Unallocated");
    assert_eq!(outcome(&cluster, StatusAuthor::Anyone), "shop/a=198.51.100.7");
    let allocation = allocation_from_statuses(&cluster.model(), StatusAuthor::Allocator, |_| None);
    assert_eq!(
        allocation.refusals[&service_name("shop/a")].message,
        "its status shows 198.51.100.7, which is in no pool"
    );
}

#[test]
fn an_address_that_a_node_claims_stays_with_its_holder() {
    let cluster = lan().node("n1", "192.0.2.10").service("shop/a", &["80/TCP"], &[]).showing("shop/a", "192.0.2.10");
    for author in [StatusAuthor::Allocator, StatusAuthor::Anyone] {
        assert_eq!(outcome(&cluster, author), "shop/a=192.0.2.10");
    }
}

#[test]
fn the_reason_of_a_waiting_service_is_the_allocators() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[]);
    let refusal = Refusal::new(Reason::PoolExhausted, "pool lan is full");
    let allocation = allocation_from_statuses(&cluster.model(), StatusAuthor::Allocator, |_| Some(refusal.clone()));
    assert_eq!(allocation.refusals[&service_name("shop/a")], refusal);
}
