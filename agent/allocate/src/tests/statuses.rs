//! Tests addresses that only the statuses of Services show, as after a change of the allocator.

use super::*;
use vipmux_model::api::FOREIGN_STATUS;

/// A new allocator leader knows only the statuses.
#[test]
fn rule_9_of_two_holders_of_one_claim_the_one_that_was_edited_since_goes() {
    let claim = |cluster: Cluster, service: &str| {
        cluster.service(service, &["80/TCP"], &[]).showing(service, "192.0.2.12").given(service, "True")
    };
    let mut cluster = claim(claim(lan(), "shop/a"), "shop/b").edited("shop/a");
    cluster.previous = previous::with_statuses(PreviousAssignments::new(), &cluster.model());
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=12");
}

/// An older Service is edited while no allocator runs. An API server sets no generation of Services.
#[test]
fn rule_7_an_edit_that_no_allocator_saw_takes_no_port_from_anybody() {
    let key = ("metallb.io/allow-shared-ip", "dock");
    let cluster = lan().service("shop/old", &["443/TCP"], &[key]).created("shop/old", 2001);
    let cluster = cluster.service("shop/new", &["80/TCP"], &[key]).created("shop/new", 2002).published();
    let edited = cluster.spec("shop/old", |spec| {
        spec.ports
            .get_or_insert_default()
            .push(serde_json::from_value(serde_json::json!({"name": "http", "port": 80})).unwrap());
    });
    assert_eq!(edited.restarted().outcome(), "shop/new=10 shop/old=11");
}

#[test]
fn rule_9_a_pool_that_shrinks_moves_nobody_who_named_it_not_even_after_a_restart() {
    let wide = lan().service("shop/a", &["80/TCP"], &[("vipmux.io/pool", "lan")]).service("shop/b", &["80/TCP"], &[]);
    // As an allocator of today writes it, and as one that recorded no request did.
    let recorded = wide.clone().published();
    let plain = [("shop/a", "192.0.2.10"), ("shop/b", "192.0.2.11")];
    let plain =
        plain.iter().fold(wide, |cluster, (service, address)| cluster.showing(service, address).given(service, "True"));
    for (cluster, kept) in [(recorded, "shop/a=10 shop/b=11"), (plain, "shop/a=10 shop/b=11")] {
        let shrunk = cluster.without_pool("lan").pool("lan", &serde_json::json!({"addresses": ["192.0.2.12/32"]}));
        assert_eq!(shrunk.clone().restarted().outcome(), kept);
        let handed_over = shrunk.pool("annex", &serde_json::json!({"addresses": ["192.0.2.10/31"]}));
        assert_eq!(handed_over.restarted().outcome(), kept);
    }
}

/// As kube-vip leaves them, which knows no keys.
#[test]
fn rule_9_services_that_share_already_stay_whatever_their_keys_say() {
    let shown = |cluster: Cluster, service: &str, port, key: Option<&'static str>| {
        let key: Vec<_> = key.map(|key| ("metallb.io/allow-shared-ip", key)).into_iter().collect();
        cluster.service(service, &[port], &key).showing(service, "192.0.2.12")
    };
    let cluster =
        shown(shown(shown(lan(), "a/a", "80/TCP", None), "b/b", "81/TCP", Some("x")), "c/c", "82/TCP", Some("y"));
    let migrated = cluster.restarted();
    assert_eq!(migrated.outcome(), "a/a=12 b/b=12 c/c=12");
    assert!(
        migrated.warnings("b/b")[0].contains("although the two may not share it any more"),
        "{:?}",
        migrated.warnings("b/b")
    );
    let later = Cluster { previous: PreviousAssignments::new(), ..migrated.published() };
    assert_eq!(later.clone().restarted().outcome(), "a/a=12 b/b=12 c/c=12");
    let mut rekeyed = later;
    let annotations = [("metallb.io/allow-shared-ip".to_owned(), "z".to_owned())].into();
    rekeyed.object("c/c").metadata.annotations = Some(annotations);
    assert_eq!(rekeyed.restarted().outcome(), "a/a=12 b/b=12 c/c=10", "it changed");
}

#[test]
fn a_status_counts_where_the_assignments_say_nothing_and_only_within_a_pool() {
    let mut cluster = lan().service("shop/a", &["80/TCP"], &[]).service("shop/b", &["80/TCP"], &[]);
    for (service, address) in [("shop/a", "::ffff:192.0.2.12"), ("shop/b", "198.51.100.1")] {
        let status = serde_json::json!({"loadBalancer": {"ingress": [{"ip": address}, {"hostname": "x"}]}});
        cluster.object(service).status = serde_json::from_value(status).unwrap();
    }
    cluster.previous = previous::with_statuses(PreviousAssignments::new(), &cluster.model());
    assert_eq!(cluster.outcome(), "shop/a=12 shop/b=10");
    let held = PreviousAssignment { addresses: [vip("192.0.2.11")].into(), snapshot: None };
    cluster.previous = previous::with_statuses([(service_name("shop/a"), held)].into(), &cluster.model());
    assert_eq!(cluster.outcome(), "shop/a=11 shop/b=10");
}

#[test]
fn an_allocators_address_is_kept_by_its_status_even_if_the_pools_changed() {
    // A pool that is gone, or never existed.
    let (elsewhere, pooled) = ("198.51.100.1", "192.0.2.12");
    let shown = |address, given: Option<&str>| {
        let cluster = lan().service("shop/a", &["80/TCP"], &[]).service("shop/b", &["443/TCP"], &[]);
        let cluster = cluster.showing("shop/a", address);
        let cluster = if let Some(given) = given { cluster.given("shop/a", given) } else { cluster };
        cluster.restarted()
    };
    for (address, given, expected) in [
        (elsewhere, None, "shop/a=10 shop/b=11"),
        (elsewhere, Some("True"), "shop/a=198.51.100.1 shop/b=10"),
        (elsewhere, Some("False"), "shop/a=10 shop/b=11"),
        (pooled, None, "shop/a=12 shop/b=10"),
        (pooled, Some("True"), "shop/a=12 shop/b=10"),
        (pooled, Some("False"), "shop/a=10 shop/b=11"),
    ] {
        assert_eq!(shown(address, given).outcome(), expected, "{address} {given:?}");
    }
    let given = shown(elsewhere, Some("True"));
    assert!(given.allocate().assignments[&service_name("shop/a")].warnings[0].contains("is in no pool any more"));
    let taken = given.reserving(elsewhere);
    assert_eq!(taken.outcome(), "shop/a=10 shop/b=11", "an address that is never assigned is not kept either");
}

/// An allocator without the right to overwrite another controller's status, then one that has it.
#[test]
fn addresses_of_another_controller_stay_with_their_service() {
    let foreign = |address| {
        let cluster = lan().service("shop/a", &["80/TCP"], &[]).showing("shop/a", address).given("shop/a", "False");
        cluster.reason("shop/a", FOREIGN_STATUS)
    };
    assert_eq!(foreign("192.0.2.12").restarted().outcome(), "shop/a=12");
    assert_eq!(foreign("198.51.100.1").restarted().outcome(), "shop/a=10", "it is in no pool");
    let taken = foreign("192.0.2.12").service("shop/b", &["443/TCP"], &[]).showing("shop/b", "192.0.2.12");
    assert_eq!(taken.given("shop/b", "True").restarted().outcome(), "shop/a=10 shop/b=12");
}

#[test]
fn a_service_that_cannot_be_read_keeps_what_its_status_shows() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[]).showing("shop/a", "192.0.2.10").given("shop/a", "True");
    let cluster = cluster.spec("shop/a", |spec| spec.ports = None).restarted();
    let cluster = cluster.service("shop/b", &["80/TCP"], &[TEN]).service("shop/c", &["80/TCP"], &[]);
    assert_eq!(cluster.outcome(), "shop/a:InvalidService shop/b:SharingMismatch shop/c=11");
    let held = &cluster.allocate().withheld[&service_name("shop/a")];
    assert_eq!(held.addresses, [vip("192.0.2.10")].into());
    let fixed = cluster.assigned().spec("shop/a", |spec| {
        spec.ports = Some(vec![serde_json::from_value(serde_json::json!({"port": 80})).unwrap()]);
    });
    assert_eq!(fixed.outcome(), "shop/a=10 shop/b:PortConflict shop/c=11");
}
