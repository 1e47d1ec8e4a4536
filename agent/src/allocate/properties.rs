//! What holds for every cluster.

use proptest::{collection, option, prelude::*, sample::select};

use super::fixture::{Cluster, name};
use super::*;
use crate::model::{Family, service::Families};

/// What can differ between Services.
#[derive(Clone, Debug)]
struct Shape {
    namespace: &'static str,
    ports: BTreeSet<&'static str>,
    key: Option<(&'static str, &'static str)>,
    consent: bool,
    address: Option<&'static str>,
    created: Option<u16>,
    pool: Option<&'static str>,
    all_ports: bool,
    families: (&'static [&'static str], Option<&'static str>),
}

fn shape() -> impl Strategy<Value = Shape> {
    let ports = collection::btree_set(select(vec!["80/TCP", "443/TCP", "53/TCP", "53/UDP", "53/SCTP"]), 1..3);
    let keys = vec![
        ("vipmux.io/sharing-key", "x"),
        ("vipmux.io/sharing-key", "y"),
        ("metallb.io/allow-shared-ip", "x"),
        ("metallb.universe.tf/allow-shared-ip", "y"),
    ];
    let addresses = vec![
        "192.0.2.10",
        "192.0.2.11",
        "192.0.2.20",
        "192.0.2.10,192.0.2.12",
        "192.0.2.99",
        "slip",
        "2001:db8::10",
        "2001:db8::11",
        "192.0.2.11,2001:db8::10",
        "192.0.2.10,2001:db8::10,2001:db8::11",
        "192.0.2.20,2001:db8::20",
    ];
    let families: Vec<(&[&str], _)> = vec![
        (&[], None),
        (&["IPv6"], None),
        (&[], Some("PreferDualStack")),
        (&["IPv6"], Some("PreferDualStack")),
        (&[], Some("RequireDualStack")),
    ];
    (
        select(vec!["a", "b", "c"]),
        ports,
        option::of(select(keys)),
        any::<bool>(),
        option::weighted(0.3, select(addresses)),
        option::of(2001_u16..2004),
        option::weighted(0.2, select(vec!["lan", "manual", "team", "gone"])),
        select(families),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(namespace, ports, key, consent, address, created, pool, families, all_ports)| Shape {
            namespace,
            ports,
            key,
            consent,
            address,
            created,
            pool,
            all_ports,
            families,
        })
}

fn add(cluster: Cluster, index: usize, shape: &Shape) -> Cluster {
    let service = format!("{}/s{index}", shape.namespace);
    let consent = shape.consent.then_some(("vipmux.io/sharing-namespaces", "a,b"));
    let address = shape.address.map(|address| ("vipmux.io/addresses", address));
    let pool = shape.pool.map(|pool| ("vipmux.io/pool", pool));
    let all_ports = shape.all_ports.then_some(("vipmux.io/all-ports", "true"));
    let annotations: Vec<_> =
        shape.key.into_iter().chain(consent).chain(address).chain(pool).chain(all_ports).collect();
    let ports: Vec<_> = shape.ports.iter().copied().collect();
    let (families, policy) = shape.families;
    let cluster = cluster.service(&service, &ports, &annotations).spec(&service, |spec| {
        spec.ip_families = (!families.is_empty()).then(|| families.iter().map(|&family| family.to_owned()).collect());
        spec.ip_family_policy = policy.map(str::to_owned);
    });
    match shape.created {
        Some(year) => cluster.created(&service, year),
        None => cluster,
    }
}

fn empty() -> Cluster {
    Cluster::new(&["192.0.2.10-192.0.2.13", "2001:db8::10-2001:db8::13"])
        .pool("manual", &serde_json::json!({"addresses": ["192.0.2.20/31", "2001:db8::20/128"], "autoAssign": false}))
        .pool(
            "team",
            &serde_json::json!({
                "addresses": ["192.0.2.30/31"], "serviceAllocation": {"priority": 1, "namespaces": ["a"]},
            }),
        )
        .pool("v6", &serde_json::json!({"addresses": ["2001:db8:0:1::/127"]}))
        .node("n1", "192.0.2.12")
        .node("n2", "2001:db8::11")
}

fn cluster(shapes: &[Shape]) -> Cluster {
    shapes.iter().enumerate().fold(empty(), |cluster, (index, shape)| add(cluster, index, shape))
}

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    collection::vec(shape(), 1..16)
}

/// A cluster that has a past: some Services were other Services when they got their addresses.
fn history() -> impl Strategy<Value = Cluster> {
    (shapes(), shapes()).prop_map(|(before, after)| {
        let holders = cluster(&before).allocate().holders();
        Cluster { holders, ..cluster(&after) }
    })
}

/// Rule 10. One with a fault keeps what it has.
fn check_families(service: &Service, addresses: &BTreeSet<Vip>) -> Result<(), TestCaseError> {
    if service.fault.is_some() {
        return Ok(());
    }
    let of = |family| addresses.iter().filter(|vip| vip.family() == family).count();
    let counts = Family::ALL.map(of);
    let fits = match (service.families, service.request.addresses.is_empty()) {
        (Families::Single(family), true) => of(family) == 1 && addresses.len() == 1,
        (Families::Single(family), false) => of(family) == addresses.len(),
        (Families::PreferDual(_), true) => counts.iter().all(|count| *count <= 1),
        (Families::PreferDual(_), false) => true,
        (Families::RequireDual, true) => counts == [1, 1],
        (Families::RequireDual, false) => counts.iter().all(|count| *count >= 1),
    };
    prop_assert!(fits, "{:?} got {:?}", service.families, addresses);
    Ok(())
}

/// Whether everyone but `other` has what it had, and perhaps an address of the other family beside it.
fn check_nobody_moved(
    before: &Allocation,
    after: &Allocation,
    other: Option<&ServiceName>,
) -> Result<(), TestCaseError> {
    for (name, assignment) in before.assignments.iter().filter(|(name, _)| Some(*name) != other) {
        let now = after.assignments.get(name).map(|assignment| &assignment.addresses);
        let stays = now.is_some_and(|now| assignment.addresses.is_subset(now));
        prop_assert!(stays, "{name} had {:?} and has {now:?}", assignment.addresses);
    }
    Ok(())
}

/// Rules 1, 4, 10 and 14, checked without the allocator's own books.
fn check(cluster: &Cluster, allocation: &Allocation) -> Result<(), TestCaseError> {
    let model = cluster.model();
    let mut claims = BTreeMap::new();
    for (name, assignment) in &allocation.assignments {
        prop_assert!(!assignment.addresses.is_empty());
        prop_assert!(!allocation.refusals.contains_key(name));
        let asked = &model.services[name].request.addresses;
        prop_assert!(asked.is_empty() || *asked == assignment.addresses);
        check_families(&model.services[name], &assignment.addresses)?;
        for vip in &assignment.addresses {
            prop_assert!(model.reservation(*vip).is_none(), "{vip} is reserved");
            for port in &assignment.ports {
                prop_assert_eq!(claims.insert((*vip, *port), name), None, "a second owner of {} on {}", port, vip);
            }
        }
    }
    for (vip, names) in allocation.vips() {
        let exclusive =
            names.iter().any(|name| allocation.assignments[*name].ports.iter().any(|port| port.number == 0));
        prop_assert!(!exclusive || names.len() == 1, "{vip} is shared, and one has every port");
        // One with a fault shares on the terms that it had.
        let names: Vec<_> = names.into_iter().filter(|name| model.services[*name].fault.is_none()).collect();
        for (a, b) in names.iter().flat_map(|a| names.iter().map(move |b| (*a, *b))).filter(|(a, b)| a != b) {
            let may =
                model.services[a].party().may_share(model.services[b].party(), crate::model::pool::PoolSharing::Any);
            prop_assert_eq!(may, Ok(()), "{} and {} on {}", a, b, vip);
        }
    }
    prop_assert_eq!(
        allocation.assignments.len() + allocation.refusals.len(),
        model.services.len() + model.refused.len()
    );
    Ok(())
}

proptest! {
    #[test]
    fn a_claim_never_has_two_owners_and_sharers_may_share(cluster in history()) {
        check(&cluster, &cluster.allocate())?;
    }

    #[test]
    fn replay_with_the_result_as_holders_is_identical(cluster in history()) {
        let first = cluster.allocate();
        prop_assert_eq!(&Cluster { holders: first.holders(), ..cluster }.allocate(), &first);
    }

    #[test]
    fn the_order_of_the_input_is_irrelevant(
        (shapes, order) in shapes().prop_flat_map(|shapes| {
            let order: Vec<usize> = (0..shapes.len()).collect();
            (Just(shapes), Just(order).prop_shuffle())
        })
    ) {
        let shuffled = order.iter().fold(empty(), |cluster, &index| add(cluster, index, &shapes[index]));
        prop_assert_eq!(shuffled.allocate(), cluster(&shapes).allocate());
    }

    #[test]
    fn adding_a_service_moves_nobody(cluster in history(), newcomer in shape()) {
        let settled = cluster.settled();
        let before = settled.allocate();
        let after = add(settled, 99, &newcomer).allocate();
        check_nobody_moved(&before, &after, None)?;
    }

    #[test]
    fn removing_a_service_moves_nobody_else(cluster in history(), gone in any::<prop::sample::Index>()) {
        let settled = cluster.settled();
        let before = settled.allocate();
        let names: Vec<String> = settled.objects.services.keys().map(ToString::to_string).collect();
        let gone = gone.get(&names).clone();
        let after = settled.without(&gone).allocate();
        check_nobody_moved(&before, &after, Some(&name(&gone)))?;
    }

    #[test]
    fn changing_a_service_moves_nobody_else(shapes in shapes(), index in any::<prop::sample::Index>(), other in shape()) {
        let settled = cluster(&shapes).settled();
        let before = settled.allocate();
        let index = index.index(shapes.len());
        let namespace = shapes[index].namespace;
        let changed = name(&format!("{namespace}/s{index}"));
        let after = add(settled, index, &Shape { namespace, ..other }).allocate();
        check_nobody_moved(&before, &after, Some(&changed))?;
    }
}
