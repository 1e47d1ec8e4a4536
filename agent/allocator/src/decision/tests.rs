//! Tests the allocator's decisions, one snapshot after the other.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use proptest::{collection, prelude::*, sample::select};
use serde_json::json;

use super::{super::write_cache::WriteVerdict, *};
use vipmux_allocate::{
    POSTPONED,
    status::{body, withdrawal},
};
use vipmux_model::Vip;
use vipmux_testing::{
    api_server::{Applied, Server},
    names::{service_name, vip},
};

const KEY: (&str, &str) = ("vipmux.io/sharing-key", "web");

/// An allocator, its API server, and a watch that may be late.
struct World {
    server: Server,
    /// The objects that the watch shows.
    shown: Objects,
    decider: StatusDecider,
    write_cache: WriteCache,
    writes: usize,
    /// Requests, also those that failed.
    requests: usize,
    adopt: bool,
    now: Duration,
}

impl World {
    fn new(addresses: &[&str]) -> Self {
        let server = Server::new(addresses);
        let (shown, decider) = (server.objects.clone(), StatusDecider::new(IngestOptions::default(), false));
        Self {
            server,
            shown,
            decider,
            write_cache: WriteCache::default(),
            writes: 0,
            requests: 0,
            adopt: false,
            now: Duration::ZERO,
        }
    }

    /// The watch shows all that there is.
    fn watch(&mut self) {
        self.shown = self.server.objects.clone();
    }

    /// Decides by what the watch shows, and writes all that is to be written.
    fn write(&mut self) -> usize {
        let decision = self.decider.decide(&self.shown, &self.server.leaders, &mut self.write_cache, self.now);
        let before = self.requests;
        for (service, (base, statement, _)) in decision.services {
            if self.write_cache.verdict(&service, &base, &statement) == WriteVerdict::Retry {
                // The pause is longer than the watch is late.
                continue;
            }
            self.requests += 1;
            match self.server.apply(&service, &body(&service, &base, &statement, Timestamp::UNIX_EPOCH)) {
                Applied::Made(made) => {
                    self.writes += usize::from(made != base);
                    let manager = self.server.manager(&service).to_owned();
                    self.write_cache.record_write(&service, &base, statement, &made, Some(&manager));
                }
                Applied::Stale => self.write_cache.record_conflict(&service, &base),
                Applied::Taken(manager) => self.write_cache.record_foreign(&service, &base, &manager),
                Applied::Gone => {}
            }
        }
        for service in decision.departed {
            let Some(there) = self.server.objects.services.get(&service).cloned() else { continue };
            self.requests += 1;
            if let Applied::Made(made) = self.server.apply(&service, &withdrawal(&service, &there)) {
                self.write_cache.record_withdrawal(&service, &made);
            }
        }
        for (object, (base, status)) in decision.custom_resources {
            self.requests += 1;
            let version = self.server.next_version();
            let made = ObjectMeta { resource_version: Some(version), ..base.clone() };
            match (&object, status.clone()) {
                (CustomResource::Pool(name), CustomResourceStatus::Pool(status)) => {
                    let pool = Arc::make_mut(self.server.objects.vip_pools.get_mut(name).unwrap());
                    (pool.status, pool.metadata) = (Some(status), made.clone());
                }
                (CustomResource::Policy(name), CustomResourceStatus::Policy(status)) => {
                    let policy = Arc::make_mut(self.server.objects.vip_policies.get_mut(name).unwrap());
                    (policy.status, policy.metadata) = (Some(status), made.clone());
                }
                other => panic!("{other:?}"),
            }
            self.write_cache.record_custom_write(object, &base, status, &made);
        }
        self.requests - before
    }

    /// Repeats this until nothing is written any more.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.watch();
            if self.write() == 0 {
                return;
            }
        }
        panic!("it never ends");
    }

    /// Replaces the allocator by another one, which knows the statuses alone.
    fn restart(&mut self) {
        self.decider = StatusDecider::new(IngestOptions::default(), self.adopt);
        self.write_cache = WriteCache::default();
        for (name, service) in &self.server.objects.services {
            if let Some(manager) = self.server.intruder(name) {
                self.write_cache.record_foreign(name, service, manager);
            }
        }
    }

    /// Returns the addresses that each Service shows.
    fn all(&self) -> BTreeMap<String, BTreeSet<Vip>> {
        let names = self.server.objects.services.keys().map(|name| name.name().to_owned());
        names.map(|name| (name.clone(), self.server.shown(&name))).collect()
    }
}

#[test]
fn a_service_gets_its_address_in_one_write() {
    let mut world = World::new(&["192.0.2.10-192.0.2.11"]);
    world.server.put("a", 80, &[]);
    world.settle();
    assert_eq!((world.server.shown("a"), world.writes), ([vip("192.0.2.10")].into(), 1));
    assert_eq!(world.server.objects.vip_pools.get("lan").unwrap().status.as_ref().unwrap().ipv4.unwrap().used, 1);
}

/// A commit of two Services, as `kubectl apply` makes it: first the one that gets the port.
#[test]
fn a_port_that_goes_to_another_service_moves_nobody_and_is_written_once() {
    let mut world = World::new(&["192.0.2.10-192.0.2.11"]);
    world.server.put("a", 80, &[KEY]);
    world.server.put("b", 81, &[KEY]);
    world.settle();
    let (before, writes) = (world.all(), world.writes);
    world.server.put("b", 80, &[KEY]);
    world.settle();
    assert_eq!((world.all(), world.writes - writes), (before.clone(), 0));
    world.now += Duration::from_millis(100);
    world.server.put("a", 82, &[KEY]);
    world.settle();
    assert_eq!((world.all(), world.writes - writes), (before, 2));
    // Without the rest of the change, the edit counts.
    world.server.put("b", 82, &[KEY]);
    world.settle();
    world.now += Duration::from_secs(3);
    world.settle();
    assert_eq!(world.server.shown("b"), [vip("192.0.2.11")].into());
}

/// The Services of a backup were edited after their statuses were written.
#[test]
fn from_a_restored_backup_an_allocator_decides_as_one_that_goes_on() {
    let edited = || {
        let mut world = World::new(&["192.0.2.10-192.0.2.12"]);
        world.server.put("a", 80, &[KEY]);
        world.server.put("b", 81, &[KEY]);
        world.server.put("c", 90, &[]);
        world.settle();
        world.server.put("b", 80, &[KEY]);
        world.server.put("c", 91, &[]);
        world
    };
    let settle = |world: &mut World| {
        world.settle();
        world.now += POSTPONED;
        world.settle();
        world.all()
    };
    let mut world = edited();
    let backup = world.server.objects.clone();
    world.server.remove("a");
    world.server.remove("c");
    world.server.put("d", 82, &[]);
    settle(&mut world);
    world.server.objects = backup;
    world.restart();
    let expected = [("a", "192.0.2.10"), ("b", "192.0.2.12"), ("c", "192.0.2.11")];
    let expected = expected.map(|(name, address)| (name.to_owned(), [vip(address)].into()));
    assert_eq!(settle(&mut world), BTreeMap::from(expected));
    assert_eq!(settle(&mut edited()), world.all());
}

#[test]
fn between_a_write_and_its_echo_nothing_is_written_and_nothing_given_twice() {
    let mut world = World::new(&["192.0.2.10-192.0.2.11"]);
    world.server.put("a", 80, &[]);
    world.watch();
    world.write();
    assert_eq!(world.write(), 0);
    // The watch shows `b`, and not yet what was written of `a`.
    world.server.put("b", 80, &[]);
    let late = world.shown.services.get(&service_name("a")).cloned().unwrap();
    world.watch();
    world.shown.services.insert(service_name("a"), late);
    world.write();
    assert_eq!(world.server.shown("b"), [vip("192.0.2.11")].into());
    world.settle();
    assert_eq!(world.server.shown("a"), [vip("192.0.2.10")].into());
}

#[test]
fn an_address_that_could_not_be_written_is_kept() {
    let mut world = World::new(&["192.0.2.10-192.0.2.11"]);
    world.server.put("a", 80, &[]);
    world.watch();
    // The Service changes before the write, which therefore fails.
    world.server.write("a", |object| object["metadata"]["labels"] = json!({"x": "y"}));
    world.write();
    assert_eq!((world.server.shown("a"), world.write()), ([].into(), 0));
    world
        .shown
        .services
        .insert(service_name("b"), world.server.objects.services.get(&service_name("a")).cloned().unwrap());
    world.server.put("b", 80, &[]);
    world.settle();
    assert_eq!(world.server.shown("a"), [vip("192.0.2.10")].into());
    assert_eq!(world.server.shown("b"), [vip("192.0.2.11")].into());
}

#[test]
fn a_status_of_another_controller_is_tried_once_and_reported_once() {
    let mut world = World::new(&["192.0.2.10-192.0.2.11"]);
    world.server.put("a", 80, &[]);
    world.server.intrude("a", "metallb", &["198.51.100.1"]);
    world.settle();
    assert_eq!(world.server.shown("a"), [vip("198.51.100.1")].into());
    let conditions = |world: &World| {
        let service = world.server.objects.services.get(&service_name("a")).unwrap();
        let conditions = service.status.as_ref().unwrap().conditions.clone().unwrap_or_default();
        conditions.into_iter().map(|condition| format!("{} {}", condition.status, condition.reason)).collect::<Vec<_>>()
    };
    assert_eq!(conditions(&world), ["False ForeignStatus", "False NoLeader", "True Judged"]);
    world.restart();
    let (requests, writes) = (world.requests, world.writes);
    world.settle();
    assert_eq!((world.requests - requests, world.writes - writes), (0, 0), "a new one sees whose it is");
    // The other controller now writes the address that was assigned.
    world.server.intrude("a", "metallb", &["192.0.2.10"]);
    world.settle();
    assert_eq!(conditions(&world), ["True Allocated", "False NoLeader", "True Judged"]);
    // What both wrote, vipmux may change.
    world.server.put("a", 80, &[("vipmux.io/addresses", "192.0.2.11")]);
    world.settle();
    assert_eq!(world.server.shown("a"), [vip("192.0.2.11")].into());
}

#[test]
fn a_refused_service_that_shows_the_address_of_another_controller_comes_to_rest_too() {
    let mut world = World::new(&["192.0.2.10"]);
    world.server.put("a", 80, &[("vipmux.io/addresses", "203.0.113.1")]);
    world.server.intrude("a", "metallb", &["198.51.100.1"]);
    world.settle();
    let service = world.server.objects.services.get(&service_name("a")).unwrap();
    let condition = service.status.as_ref().unwrap().conditions.as_ref().unwrap()[0].clone();
    assert_eq!(condition.reason, "AddressNotInPool");
    assert!(condition.message.contains("metallb wrote 198.51.100.1"), "{condition:?}");
    world.restart();
    let requests = world.requests;
    world.settle();
    assert_eq!(world.requests, requests, "a new one has nothing to add");
}

#[test]
fn a_status_is_withdrawn_from_a_service_that_is_not_ours_any_more() {
    let mut world = World::new(&["192.0.2.10"]);
    for service in ["typed", "classed"] {
        world.server.put(service, 80, &[KEY]);
        world.server.write(service, |object| object["spec"]["ports"] = json!([{"port": service.len()}]));
    }
    world.settle();
    assert_eq!(world.server.shown("typed"), world.server.shown("classed"));
    world.server.write("classed", |object| object["spec"]["loadBalancerClass"] = json!("example.org/other"));
    // The watch covers load balancers alone, so this Service disappears from it.
    world.server.write("typed", |object| object["spec"]["type"] = json!("ClusterIP"));
    world.watch();
    world.shown.services.remove(&service_name("typed"));
    world.write();
    for service in ["typed", "classed"] {
        let status = world.server.objects.services.get(&service_name(service)).unwrap().status.clone().unwrap();
        assert!(!is_marked(world.server.objects.services.get(&service_name(service)).unwrap()), "{status:?}");
        assert_eq!(world.server.shown(service), [].into());
    }
    world.server.put("next", 80, &[]);
    world.settle();
    assert_eq!(world.server.shown("next"), [vip("192.0.2.10")].into());
}

#[test]
fn a_status_that_the_watch_never_showed_is_withdrawn_too() {
    let mut world = World::new(&["192.0.2.10"]);
    world.server.put("a", 80, &[]);
    // A Service of another controller, which must not be withdrawn.
    world.server.put("b", 80, &[]);
    world.server.write("b", |object| object["spec"]["loadBalancerClass"] = json!("example.org/other"));
    world.watch();
    world.write();
    assert_eq!(world.server.shown("a"), [vip("192.0.2.10")].into());
    world.server.write("a", |object| object["spec"]["type"] = json!("ClusterIP"));
    world.shown.services.remove(&service_name("a"));
    world.shown.services.remove(&service_name("b"));
    assert_eq!(world.write(), 1);
    assert!(!is_marked(world.server.objects.services.get(&service_name("a")).unwrap()));
}

#[test]
fn a_status_that_another_manager_owns_too_is_withdrawn_once() {
    let mut world = World::new(&["192.0.2.10"]);
    world.server.put("a", 80, &[]);
    world.settle();
    let status = world.server.objects.services.get(&service_name("a")).unwrap().status.clone();
    let departed = |world: &mut World| {
        world.watch();
        !world
            .decider
            .decide(&world.shown, &world.server.leaders, &mut world.write_cache, world.now)
            .departed
            .is_empty()
    };
    world.server.write("a", |object| object["spec"]["loadBalancerClass"] = json!("example.org/other"));
    assert!(departed(&mut world));
    // The withdrawal changed nothing.
    let made = Arc::clone(world.server.objects.services.get(&service_name("a")).unwrap());
    world.write_cache.record_withdrawal(&service_name("a"), &made);
    assert!(!departed(&mut world) && !departed(&mut world));
    world.server.write("a", |object| object["status"] = json!(status));
    assert!(departed(&mut world), "the status was written again");
}

#[test]
fn endpoints_of_other_services_need_no_decision() {
    let mut world = World::new(&["192.0.2.10-192.0.2.12"]);
    let slice = |service: &str, address: &str| {
        vipmux_testing::object(json!({
            "metadata": {"labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
            "endpoints": [{"addresses": [address]}],
        }))
    };
    let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    world.server.objects.endpoint_slices.insert(key("shop", "a"), slice("a", "192.0.2.10"));
    world.server.objects.endpoint_slices.insert(key("default", "x"), slice("kubernetes", "192.0.2.10"));
    world.server.put("a", 80, &[]);
    world.settle();
    assert_eq!(world.server.shown("a"), [vip("192.0.2.11")].into(), "an address of the API server's is never assigned");
    let last = relevant(&world.server.objects);
    world.server.objects.endpoint_slices.insert(key("shop", "b"), slice("b", "10.0.0.1"));
    assert!(inputs_unchanged(&last, &relevant(&world.server.objects)));
    world.server.objects.endpoint_slices.insert(key("default", "x"), slice("kubernetes", "192.0.2.12"));
    assert!(!inputs_unchanged(&last, &relevant(&world.server.objects)));
}

/// An event.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Put(usize, u16, Option<&'static str>, Option<&'static str>),
    Slip(usize),
    Class(usize),
    Delete(usize),
    Pool(&'static [&'static str]),
    Lead(&'static str, &'static str),
    Intrude(usize, &'static str),
    Watch,
    Write,
    Restart,
}

fn happens() -> impl Strategy<Value = Happens> {
    let index = || 0..6_usize;
    let address = || select(vec!["192.0.2.10", "192.0.2.11", "198.51.100.1"]);
    let pools: [&'static [&'static str]; 3] =
        [&["192.0.2.10-192.0.2.13"], &["192.0.2.11"], &["192.0.2.10-192.0.2.11", "198.51.100.1"]];
    prop_oneof![
        6 => (index(), 80..83_u16, prop::option::of(select(vec!["x", "y"])), prop::option::weighted(0.3, address()))
            .prop_map(|(index, port, key, address)| Happens::Put(index, port, key, address)),
        1 => index().prop_map(Happens::Slip),
        1 => index().prop_map(Happens::Class),
        2 => index().prop_map(Happens::Delete),
        1 => select(pools.to_vec()).prop_map(Happens::Pool),
        2 => (address(), select(vec!["n1", "n2"])).prop_map(|(vip, node)| Happens::Lead(vip, node)),
        1 => (index(), address()).prop_map(|(index, vip)| Happens::Intrude(index, vip)),
        4 => Just(Happens::Watch),
        6 => Just(Happens::Write),
        1 => Just(Happens::Restart),
    ]
}

impl World {
    fn happen(&mut self, happens: Happens) {
        let service = |index: usize| format!("s{index}");
        let there =
            |world: &Self, index: usize| world.server.objects.services.contains_key(&service_name(service(index)));
        match happens {
            Happens::Put(index, port, key, address) => {
                let key = key.map(|key| ("vipmux.io/sharing-key", key));
                let address = address.map(|address| ("vipmux.io/addresses", address));
                let annotations: Vec<_> = key.into_iter().chain(address).collect();
                self.server.put(&service(index), port, &annotations);
            }
            Happens::Slip(index) if there(self, index) => self.server.write(&service(index), |object| {
                object["metadata"]["annotations"] = json!({"vipmux.io/direct-server-return": "maybe"});
            }),
            Happens::Class(index) if there(self, index) => self
                .server
                .write(&service(index), |object| object["spec"]["loadBalancerClass"] = json!("example.org/other")),
            Happens::Intrude(index, vip) if there(self, index) => {
                self.server.intrude(&service(index), "metallb", &[vip]);
            }
            Happens::Delete(index) => drop(self.server.remove(&service(index))),
            Happens::Pool(addresses) => self.server.pool("lan", addresses),
            Happens::Lead(vip, node) => self.server.lead(vip, node),
            Happens::Watch => self.watch(),
            Happens::Write => drop(self.write()),
            // A new allocator lists all Services first (`initial_list`), so it sees all writes.
            Happens::Restart => {
                self.watch();
                self.restart();
            }
            Happens::Slip(_) | Happens::Class(_) | Happens::Intrude(..) => {}
        }
    }
}

proptest! {
    /// The events come in any order, and the watch is late by any time.
    #[test]
    fn it_ends_with_correct_statuses_that_are_not_written_again(all in collection::vec(happens(), 1..60)) {
        let mut world = World::new(&["192.0.2.10-192.0.2.12"]);
        for happens in all {
            world.happen(happens);
            world.now += Duration::from_millis(100);
        }
        world.settle();
        // No edit waits any more.
        world.now += POSTPONED;
        world.settle();
        let shown = world.all();
        let slipped = |object: &Service| object.metadata.annotations.iter().flatten().any(|(_, value)| value == "maybe");
        // Each port of an address has one owner.
        let mut claims = BTreeMap::new();
        for (service, object) in &world.server.objects.services {
            let marked = is_marked(object);
            let ours = object.spec.as_ref().unwrap().load_balancer_class.is_none();
            prop_assert_eq!(marked, ours, "{} is marked if it is ours", service);
            // A Service that cannot be read is not served, and its status does not tell its ports.
            if !ours || slipped(object) || world.server.manager(service) == "metallb" {
                continue;
            }
            let port = object.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].port;
            for vip in &shown[service.name()] {
                let other = claims.insert((*vip, port), service);
                prop_assert_eq!(other, None, "{} and {} on {}", service, port, vip);
            }
        }
        let writes = world.writes;
        let taken = world.server.objects.services.keys().any(|name| world.server.intruder(name).is_some());
        for _ in 0..3 {
            world.watch();
            prop_assert_eq!(world.write(), 0, "in steady state nobody asks for anything");
        }
        world.restart();
        world.settle();
        // Statuses have neither the last good request of a Service that cannot be read, nor the
        // addresses that were assigned to a Service whose status another controller wrote. So
        // another allocator may write about these. But Services keep the addresses that they have.
        let objects = &world.server.objects.services;
        if !taken && !objects.values().any(|object| slipped(object)) {
            prop_assert_eq!(world.writes, writes, "another allocator writes nothing");
            prop_assert_eq!(&world.all(), &shown, "and moves nobody");
        }
        for (service, addresses) in world.all() {
            let had = &shown[&service];
            prop_assert!(had.is_empty() || *had == addresses, "{} had {:?} and has {:?}", service, had, addresses);
        }
    }
}
