//! Tests properties that hold for every cluster.

use proptest::{collection, option, prelude::*, sample::select};

use super::fixture::{Cluster, Wishes};
use std::collections::{BTreeMap, BTreeSet};

use crate::{Allocation, Allocator, Renewed, allocate, previous};
use vipmux_model::{
    Family, Model, PortNumber, ServiceName, Vip,
    pool::{OnConflict, PoolSharing},
    request::ByAddress,
    service::{Families, Service},
};
use vipmux_testing::names::service_name;

/// The properties in which Services can differ.
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
    wishes: Wishes,
    status: Option<&'static str>,
    unreadable: bool,
}

fn wishes() -> impl Strategy<Value = Wishes> {
    const ALIKE: [&[(&str, &str)]; 3] =
        [&[("setting", "a")], &[("setting", "b")], &[("setting", "a"), ("address", "x")]];
    const ADDITIONAL: [&[&str]; 4] =
        [&["192.0.2.13"], &["192.0.2.10", "192.0.2.20"], &["2001:db8::12"], &["192.0.2.11", "2001:db8::10"]];
    let by_address = select(vec![ByAddress::Never, ByAddress::Plain, ByAddress::Explicit]);
    let (likely, seldom) = (prop::bool::weighted(0.5), prop::bool::weighted(0.2));
    (
        option::weighted(0.3, select(vec!["red", "blue"])),
        option::weighted(0.2, select(ALIKE.to_vec())),
        option::weighted(0.2, select(ADDITIONAL.to_vec())),
        option::weighted(0.3, by_address),
        seldom,
        likely,
    )
        .prop_map(|(label, alike, additional, by_address, never_spills, fewest_claims)| Wishes {
            label,
            alike: alike.unwrap_or_default(),
            additional: additional.unwrap_or_default(),
            by_address,
            never_spills,
            fewest_claims,
        })
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
    let plain = (
        select(vec!["a", "b", "c"]),
        ports,
        option::of(select(keys)),
        any::<bool>(),
        option::weighted(0.3, select(addresses)),
        option::of(2001_u16..2004),
        option::weighted(0.2, select(vec!["lan", "manual", "team", "gone"])),
        select(families),
        prop::bool::weighted(0.1),
    );
    let statuses = select(vec!["192.0.2.10", "192.0.2.11", "2001:db8::10", "192.0.2.99"]);
    let particular = (
        option::weighted(0.5, wishes()).prop_map(Option::unwrap_or_default),
        option::weighted(0.1, statuses),
        prop::bool::weighted(0.05),
    );
    (plain, particular).prop_map(|(plain, (wishes, status, unreadable))| {
        let (namespace, ports, key, consent, address, created, pool, families, all_ports) = plain;
        Shape {
            namespace,
            ports,
            key,
            consent,
            address,
            created,
            pool,
            all_ports,
            families,
            wishes,
            status,
            unreadable,
        }
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
        spec.ports = spec.ports.take().filter(|_| !shape.unreadable);
    });
    let cluster = cluster.wishing(&service, shape.wishes.clone());
    let cluster = shape.status.into_iter().fold(cluster, |cluster, address| cluster.showing(&service, address));
    shape.created.into_iter().fold(cluster, |cluster, year| cluster.created(&service, year))
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

/// Returns settings of pools.
fn settings() -> impl Strategy<Value = BTreeMap<String, (PoolSharing, OnConflict)>> {
    use PoolSharing::{Any, ByAddress, KeyOnly, None, SameNamespace};
    let sharing = select(vec![Any, Any, Any, ByAddress, KeyOnly, SameNamespace, None]);
    let setting = (sharing, select(vec![OnConflict::Spill, OnConflict::Pending]));
    collection::btree_map(select(vec!["lan", "manual", "team", "v6"]).prop_map(str::to_owned), setting, 0..4)
}

/// Returns a cluster with a history: some Services were different when they got their addresses.
fn history() -> impl Strategy<Value = Cluster> {
    (shapes(), shapes(), settings()).prop_map(|(before, after, settings)| {
        let previous = Cluster { settings: settings.clone(), ..cluster(&before) }.restarted().allocate().as_previous();
        Cluster { previous, settings, ..cluster(&after) }.restarted()
    })
}

/// Checks rule 10. A Service with a fault keeps its addresses.
fn check_families(service: &Service, addresses: &BTreeSet<Vip>) -> Result<(), TestCaseError> {
    if service.fault.is_some() {
        return Ok(());
    }
    let own = || addresses.iter().filter(|vip| !service.request.additional.contains(vip));
    let of = |family| own().filter(|vip| vip.family() == family).count();
    let counts = Family::ALL.map(of);
    let fits = match (service.families, service.request.addresses.is_empty()) {
        (Families::Single(family), true) => of(family) == 1 && own().count() == 1,
        (Families::Single(family), false) => of(family) == own().count(),
        (Families::PreferDual(_), true) => counts.iter().all(|count| *count <= 1),
        (Families::PreferDual(_), false) => true,
        (Families::RequireDual, true) => counts == [1, 1],
        (Families::RequireDual, false) => {
            Family::ALL.iter().all(|family| addresses.iter().any(|vip| vip.family() == *family))
        }
    };
    prop_assert!(fits, "{:?} got {:?}", service.families, addresses);
    Ok(())
}

/// Checks that all Services but `other` have the addresses that they had, and perhaps an address of
/// the other family as well.
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

/// Checks that a Service that held nothing agrees with its group.
fn check_groups(cluster: &Cluster, model: &Model, allocation: &Allocation) -> Result<(), TestCaseError> {
    let services = || allocation.assignments.keys().map(|name| &model.services[name]);
    for newcomer in services().filter(|service| !cluster.previous.contains_key(&service.name)) {
        let group = services().filter(|other| newcomer.sharer().is_of_group_with(other.sharer()));
        for other in group.filter(|other| other.fault.is_none()) {
            prop_assert_eq!(&newcomer.request.alike, &other.request.alike, "{} {}", newcomer.name, other.name);
        }
    }
    Ok(())
}

/// Checks rules 1, 4, 10 and 14 without the allocator's own state.
fn check(cluster: &Cluster, allocation: &Allocation) -> Result<(), TestCaseError> {
    let model = cluster.model();
    let mut claims = BTreeMap::new();
    for (name, assignment) in &allocation.assignments {
        prop_assert!(!assignment.addresses.is_empty());
        prop_assert!(!allocation.refusals.contains_key(name));
        let request = &model.services[name].request;
        let (asked, all) = (&request.addresses, &request.addresses | &request.additional);
        prop_assert!(asked.is_empty() || all == assignment.addresses);
        prop_assert!(all.is_subset(&assignment.addresses));
        check_families(&model.services[name], &assignment.addresses)?;
        for vip in &assignment.addresses {
            prop_assert!(model.ban(*vip).is_none(), "{vip} is reserved");
            let held = cluster.previous.get(name).is_some_and(|held| held.addresses.contains(vip))
                || model.services[name].status.addresses.contains(vip);
            prop_assert!(held || model.claim(*vip).is_none(), "{vip} is claimed, and {name} did not hold it");
            for port in &assignment.ports {
                prop_assert_eq!(claims.insert((*vip, *port), name), None, "a second owner of {} on {}", port, vip);
            }
        }
    }
    for (vip, names) in allocation.vips() {
        let exclusive = names
            .iter()
            .any(|name| allocation.assignments[*name].ports.iter().any(|port| port.number == PortNumber::Every));
        prop_assert!(!exclusive || names.len() == 1, "{vip} is shared, and one has every port");
        // A Service with a fault shares by the request that it had.
        let names: Vec<_> = names.into_iter().filter(|name| model.services[*name].fault.is_none()).collect();
        for (a, b) in names.iter().flat_map(|a| names.iter().map(move |b| (*a, *b))).filter(|(a, b)| a != b) {
            let pool = model.pool_of(vip).map(|pool| model.pools[pool].sharing).unwrap_or_default();
            // Holders that did not change are never parted (rule 9).
            let stays = |name: &&ServiceName| {
                let held = cluster.previous.get(*name).filter(|held| held.addresses.contains(&vip));
                held.is_some_and(|held| {
                    held.snapshot.as_ref().is_none_or(|snapshot| !snapshot.is_exceeded_by(&model.services[*name]))
                })
            };
            let may = model.services[a].sharer().may_share(model.services[b].sharer(), pool);
            prop_assert!(may.is_ok() || stays(&a) && stays(&b), "{a} and {b} on {vip}: {may:?}");
        }
        let labels: BTreeSet<_> = names.iter().filter_map(|name| allocation.assignments[*name].label()).collect();
        prop_assert!(labels.len() <= 1, "{vip} has the labels {labels:?}");
    }
    check_groups(cluster, &model, allocation)?;
    prop_assert_eq!(
        allocation.assignments.len() + allocation.refusals.len(),
        model.services.len() + model.refused.len()
    );
    Ok(())
}

/// An event in a cluster: a Service of this number changes or goes, or a Node comes.
#[derive(Clone, Debug)]
enum Event {
    Changes(usize, Box<Shape>),
    Goes(usize),
    Node(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0_usize..20, shape()).prop_map(|(index, shape)| Event::Changes(index, Box::new(shape))),
        3 => (0_usize..20).prop_map(Event::Goes),
        1 => (10_u8..14).prop_map(Event::Node),
    ]
}

/// Returns the cluster after the event, and adds the affected Services to `changed`.
fn happen(mut cluster: Cluster, event: &Event, changed: &mut BTreeSet<ServiceName>) -> Cluster {
    let index = match event {
        Event::Node(last) => return cluster.node("n3", &format!("192.0.2.{last}")),
        Event::Changes(index, _) | Event::Goes(index) => index,
    };
    for namespace in ["a", "b", "c"] {
        let name = service_name(format!("{namespace}/s{index}"));
        if cluster.objects.services.remove(&name).is_some() {
            changed.insert(name);
        }
    }
    let Event::Changes(_, shape) = event else { return cluster };
    changed.insert(service_name(format!("{}/s{index}", shape.namespace)));
    add(cluster, *index, shape)
}

/// Returns the names for which two allocations differ.
fn differences(before: &Allocation, after: &Allocation) -> BTreeSet<ServiceName> {
    let names = |a: &Allocation| -> BTreeSet<ServiceName> {
        a.assignments.keys().chain(a.refusals.keys()).chain(a.withheld.keys()).cloned().collect()
    };
    let outcome = |a: &Allocation, name: &ServiceName| {
        (a.assignments.get(name).cloned(), a.refusals.get(name).cloned(), a.withheld.get(name).cloned())
    };
    (&names(before) | &names(after)).into_iter().filter(|name| outcome(before, name) != outcome(after, name)).collect()
}

proptest! {
    #[test]
    fn a_claim_never_has_two_owners_and_sharers_may_share(cluster in history()) {
        check(&cluster, &cluster.allocate())?;
    }

    #[test]
    fn replay_with_the_result_as_holders_is_identical(cluster in history()) {
        let first = cluster.allocate();
        prop_assert_eq!(&Cluster { previous: first.as_previous(), ..cluster }.allocate(), &first);
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
        let assigned = cluster.assigned();
        let before = assigned.allocate();
        let after = add(assigned, 99, &newcomer).allocate();
        check_nobody_moved(&before, &after, None)?;
    }

    #[test]
    fn removing_a_service_moves_nobody_else(cluster in history(), gone in any::<prop::sample::Index>()) {
        let assigned = cluster.assigned();
        let before = assigned.allocate();
        let names: Vec<String> = assigned.objects.services.keys().map(ToString::to_string).collect();
        let gone = gone.get(&names).clone();
        let after = assigned.without(&gone).allocate();
        check_nobody_moved(&before, &after, Some(&service_name(&gone)))?;
    }

    #[test]
    fn changing_a_service_moves_nobody_else(shapes in shapes(), index in any::<prop::sample::Index>(), other in shape()) {
        let assigned = cluster(&shapes).assigned();
        let before = assigned.allocate();
        let index = index.index(shapes.len());
        let namespace = shapes[index].namespace;
        let changed = service_name(format!("{namespace}/s{index}"));
        let after = add(assigned, index, &Shape { namespace, ..other }).allocate();
        check_nobody_moved(&before, &after, Some(&changed))?;
    }

    #[test]
    fn a_pool_that_shares_otherwise_moves_nobody(cluster in history(), settings in settings()) {
        let assigned = cluster.assigned();
        let before = assigned.allocate();
        check_nobody_moved(&before, &Cluster { settings, ..assigned }.allocate(), None)?;
    }

    /// Whatever happens while no allocator runs: the next one decides as one that ran all the time.
    #[test]
    fn an_allocator_that_starts_decides_as_one_that_goes_on(
        cluster in history(),
        episodes in collection::vec((collection::vec(event(), 0..4), settings()), 1..6),
    ) {
        let mut cluster = cluster;
        for (events, settings) in episodes {
            let decided = cluster.published().assigned();
            let going = Cluster { settings, ..decided.clone() };
            let mut going = events.iter().fold(going, |cluster, event| happen(cluster, event, &mut BTreeSet::new()));
            for (name, service) in &decided.objects.services {
                // An edit leaves the status as it is.
                if going.objects.services.contains_key(name) {
                    going.object(&name.to_string()).status.clone_from(&service.status);
                }
            }
            let starting = Cluster { previous: BTreeMap::new(), ..going.clone() }.restarted();
            let present = |cluster: &Cluster| {
                let mut previous = cluster.previous.clone();
                previous.retain(|name, _| cluster.objects.services.contains_key(name));
                previous
            };
            prop_assert_eq!(present(&starting), present(&going.clone().restarted()));
            prop_assert_eq!(starting.allocate(), going.clone().restarted().allocate());
            cluster = going;
        }
    }

    #[test]
    fn a_renewed_allocation_is_that_of_all(
        cluster in history(),
        episodes in collection::vec(collection::vec(event(), 0..4), 1..6),
    ) {
        let mut cluster = cluster;
        let mut allocator = Allocator::new(&cluster.model(), &cluster.previous);
        for events in episodes {
            let (mut changed, nodes) = (BTreeSet::new(), cluster.model().nodes);
            cluster = events.iter().fold(cluster, |cluster, event| happen(cluster, event, &mut changed));
            let (before, model) = (allocator.allocation().clone(), cluster.model());
            let all = allocate(&model, &previous::with_statuses(before.as_previous(), &model));
            if let Some(Renewed { changed: renewed, assignments_changed }) = allocator.renew(&model, &changed) {
                prop_assert_eq!(renewed, differences(&before, &all));
                prop_assert_eq!(assignments_changed, before.as_previous() != all.as_previous());
            } else {
                prop_assert_ne!(nodes, model.nodes.clone(), "it took all without need");
                allocator = Allocator::new(&model, &previous::with_statuses(before.as_previous(), &model));
            }
            prop_assert_eq!(allocator.allocation(), &all);
        }
    }
}
