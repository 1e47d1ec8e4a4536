//! Tests the stages of the pipeline on whole snapshots.

use std::{num::NonZeroUsize, time::SystemTime};

use super::{super::allocation_source::File, *};
use vipmux_allocate::{StatusAuthor, previous::PreviousAssignments};
use vipmux_cluster::assignments;
use vipmux_model::{endpoints::SERVICE_LABEL, objects::Problem};
use vipmux_testing::{
    names::{node_name, service_name, vip4},
    object,
};

pub(in crate::serving::pipeline) fn objects(services: &[&str]) -> Objects {
    let mut objects = Objects::default();
    let pool = serde_json::json!({"spec": {"addresses": ["192.0.2.1-192.0.2.3"]}});
    objects.address_pools.insert("lan".to_owned(), object(pool));
    for service in services {
        let spec = serde_json::json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
        objects.services.insert(service_name(service), object(spec));
    }
    objects
}

/// The holders, as `service=address`.
fn held(holders: &PreviousAssignments) -> Vec<String> {
    let one = |(name, held): (&ServiceName, &vipmux_allocate::previous::PreviousAssignment)| {
        format!("{}={}", name.name(), held.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    };
    holders.iter().map(one).collect()
}

#[test]
fn an_agent_that_starts_beside_a_broken_file_gives_no_address_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("assignments.yaml");
    // Runs the stages of an agent that starts, or that has seen the Services in `gone` before.
    let run = |snapshot: &Objects, gone: &[&str]| {
        let memory = Memory { objects: Arc::new(objects(gone)), ..Memory::default() };
        let mut stages = Stages::new(IngestOptions::default(), AllocationSource::File(path.clone()), memory);
        let state = stages.run(&Arc::new(snapshot.clone()), None, Duration::ZERO);
        (stages.memory().holders, state)
    };
    run(&objects(&["a"]), &[]);
    let mut broken = objects(&["b"]);
    broken.problems.push(Problem {
        file: "a.yaml".into(),
        document: Some(NonZeroUsize::MIN),
        line: None,
        field: String::new(),
        message: "no YAML".to_owned(),
    });
    let (holders, state) = run(&broken, &[]);
    assert_eq!(held(&holders), ["a=192.0.2.1", "b=192.0.2.2"]);
    assert_eq!(held(&assignments::load(&path).unwrap().unwrap()), held(&holders));
    let expected = "Service shop/a cannot be read: 192.0.2.1 is kept for it, and nothing is served there";
    assert!(state.warnings.contains(expected), "{:?}", state.warnings);
    assert_eq!(*state.service_counts, ServiceCounts { allocated: 1, withheld: 1, refused: BTreeMap::new() });
    assert_eq!(state.leaders.keys().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.2"]);
    let (holders, _) = run(&broken, &["a"]);
    assert_eq!(held(&holders), ["b=192.0.2.2"], "it was seen to be deleted");
}

#[test]
fn a_gateway_is_never_assigned() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("assignments.yaml");
    let gateway = ([192, 0, 2, 1].into(), "a gateway of the nodes".to_owned());
    let options = IngestOptions { reserved: [gateway].into(), ..IngestOptions::default() };
    let mut stages = Stages::new(options, AllocationSource::File(path), Memory::default());
    stages.run(&Arc::new(objects(&["a"])), None, Duration::ZERO);
    assert_eq!(held(&stages.memory().holders), ["a=192.0.2.2"]);
}

/// In a cluster each Service is new for a moment.
#[test]
fn a_service_that_waits_for_the_allocator_is_no_warning_and_one_with_an_address_of_no_pool_is() {
    let mut snapshot = objects(&["a", "b"]);
    let spec = serde_json::json!({
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}},
    });
    snapshot.services.insert(service_name("b"), object(spec));
    let mut stages =
        Stages::new(IngestOptions::default(), AllocationSource::Statuses(StatusAuthor::Allocator), Memory::default());
    let state = stages.run(&Arc::new(snapshot), None, Duration::ZERO);
    let expected = "Service shop/b is not served: its status shows 198.51.100.1, which is in no pool (Unallocated)";
    assert_eq!(state.warnings.iter().collect::<Vec<_>>(), [expected]);
    assert_eq!(state.service_counts.refused, BTreeMap::from([(Reason::Unallocated, 2)]));
}

/// `objects` with a slice for `service`, of an endpoint for each of these numbers.
fn with_slice(objects: &Objects, service: &str, endpoints: &[u8]) -> Arc<Objects> {
    let mut objects = objects.clone();
    objects.nodes.insert(node_name("n1"), object(serde_json::json!({"spec": {"podCIDR": "10.0.0.0/24"}})));
    let endpoint = |n: &u8| serde_json::json!({"addresses": [format!("10.0.0.{n}")], "nodeName": "n1"});
    let slice = serde_json::json!({
        "metadata": {"name": service, "labels": {(SERVICE_LABEL): service}}, "addressType": "IPv4",
        "ports": [{"port": 8080}], "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    });
    objects.endpoint_slices.insert(("shop".to_owned(), service.to_owned()), object(slice));
    Arc::new(objects)
}

#[test]
fn an_update_has_the_result_of_a_full_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("assignments.yaml");
    let fresh = || Stages::new(IngestOptions::default(), AllocationSource::File(path.clone()), Memory::default());
    let first = objects(&["a", "b"]);
    let mut stages = fresh();
    stages.run(&Arc::new(first.clone()), None, Duration::ZERO);
    let steps = [("a", &[1, 2][..]), ("b", &[2, 3]), ("a", &[2]), ("a", &[]), ("c", &[4]), ("b", &[2, 3])];
    let mut now = with_slice(&first, "a", &[1]);
    stages.run(&now, None, Duration::ZERO);
    for (service, endpoints) in steps {
        now = with_slice(&now, service, endpoints);
        assert!(stages.last.is_some());
        let short = stages.renew(&now, None).expect("nothing but endpoints changed");
        stages.memory.objects = Arc::clone(&now);
        assert_eq!(short, fresh().run(&now, None, Duration::ZERO), "{service}: {endpoints:?}");
    }
    assert_eq!(stages.renew(&now, Some((1, SystemTime::UNIX_EPOCH))), None, "another agent wrote the state file");
    let mut fewer = Objects::clone(&now);
    fewer.services.remove(&service_name("b"));
    assert_eq!(stages.renew(&fewer, None), None, "a Service is gone");
}

const PROBED: &str = "service.beta.kubernetes.io/azure-load-balancer-health-probe-protocol";

/// [`objects`], with slices for each of these numbers, where these are probed by TCP.
fn with_probes(services: &[(&str, &[u8])], probed: &[&str]) -> Arc<Objects> {
    let names: Vec<_> = services.iter().map(|(service, _)| *service).collect();
    let mut objects = objects(&names);
    for service in probed {
        let mut changed = k8s_openapi::api::core::v1::Service::clone(&objects.services[&service_name(service)]);
        changed.metadata.annotations = Some([(PROBED.to_owned(), "Tcp".to_owned())].into());
        objects.services.insert(service_name(service), Arc::new(changed));
    }
    services.iter().fold(Arc::new(objects), |all, (service, endpoints)| with_slice(&all, service, endpoints))
}

/// `10.0.0.n` is down on `n1`, for each of these numbers.
fn down(stages: &Stages, numbers: &[u8]) -> Arc<Health> {
    let mut health = Health::default();
    let keys = stages.checkups(&node_name("n1")).all.into_keys();
    let keys = keys.filter(|key| numbers.iter().any(|n| key.address == std::net::IpAddr::from([10, 0, 0, *n])));
    health.hear(node_name("n1"), keys.collect());
    Arc::new(health)
}

/// The backends of each Service, as `service=1 2!-`: `!` for those that fail, `-` for those that
/// take no new flows.
fn backends(state: &ServingState) -> Vec<String> {
    let one = |backend: &vipmux_model::desired::DesiredBackend| {
        let marks = [
            if backend.readiness.is_failing() { "!" } else { "" },
            if backend.readiness.is_ready() { "" } else { "-" },
        ]
        .concat();
        format!("{}{marks}", backend.address.to_string().trim_start_matches("10.0.0."))
    };
    let all = state.services.values().map(|service| {
        let backends: Vec<_> = service.backends.iter().map(one).collect();
        format!("{}={}", service.owner.name(), backends.join(" "))
    });
    all.collect()
}

#[test]
fn a_change_of_health_changes_only_the_services_that_probe_the_backend() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("assignments.yaml");
    let fresh = || Stages::new(IngestOptions::default(), AllocationSource::File(path.clone()), Memory::default());
    let mut stages = fresh();
    let now = with_probes(&[("a", &[1, 2]), ("b", &[1, 2]), ("c", &[2, 3])], &["a", "c"]);
    let before = stages.run(&now, None, Duration::ZERO);
    assert_eq!(backends(&before), ["a=1 2", "b=1 2", "c=2 3"]);
    assert_eq!(stages.checkups(&node_name("n1")).all.len(), 3);
    assert_eq!(stages.checkups(&node_name("n2")), Checkups::default());
    for (numbers, expected) in [
        (&[1][..], ["a=1!- 2", "b=1 2", "c=2 3"]),
        (&[2], ["a=1 2!-", "b=1 2", "c=2!- 3"]),
        (&[1, 2], ["a=1! 2!", "b=1 2", "c=2!- 3"]),
        (&[3], ["a=1 2", "b=1 2", "c=2 3!-"]),
        (&[], ["a=1 2", "b=1 2", "c=2 3"]),
    ] {
        let health = down(&stages, numbers);
        stages.set_health(Arc::clone(&health));
        let short = stages.renew(&now, None).expect("nothing but health changed");
        assert_eq!(backends(&short), expected, "{numbers:?}");
        let mut long = fresh();
        long.set_health(health);
        assert_eq!(short, long.run(&now, None, Duration::ZERO), "{numbers:?}");
        let unprobed = |state: &ServingState| {
            let service = state.services.values().find(|service| service.owner.name() == "b");
            Arc::clone(&service.unwrap().backends)
        };
        assert!(Arc::ptr_eq(&unprobed(&before), &unprobed(&short)));
        assert_eq!(stages.checkups(&node_name("n1")).all.len(), 3, "those that fail are still probed");
    }
}

#[test]
fn ignored_probes_are_a_warning_until_one_backend_is_up_or_comes() {
    let directory = tempfile::tempdir().unwrap();
    let mut stages = Stages::new(
        IngestOptions::default(),
        AllocationSource::File(directory.path().join("assignments.yaml")),
        Memory::default(),
    );
    let now = with_probes(&[("a", &[1, 2])], &["a"]);
    let plain = stages.run(&now, None, Duration::ZERO).warnings;
    let ignored = "Service shop/a, port 80/TCP on 192.0.2.1: all 2 backends fail their health probes: they are served \
                   nevertheless";
    let both = down(&stages, &[1, 2]);
    stages.set_health(Arc::clone(&both));
    let failing = stages.run(&now, None, Duration::ZERO);
    assert_eq!(failing.warnings.difference(&plain).collect::<Vec<_>>(), [ignored]);
    stages.set_health(down(&stages, &[2]));
    assert_eq!(stages.run(&now, None, Duration::ZERO).warnings, plain);
    stages.set_health(both);
    assert_eq!(stages.run(&now, None, Duration::ZERO).warnings, failing.warnings);
    let more = stages.run(&with_probes(&[("a", &[1, 2, 3])], &["a"]), None, Duration::ZERO);
    assert_eq!((backends(&more), &more.warnings), (vec!["a=1!- 2!- 3".to_owned()], &plain));
    let none = stages.run(&with_probes(&[("a", &[1, 2])], &[]), None, Duration::ZERO);
    assert_eq!((backends(&none), &none.warnings), (vec!["a=1 2".to_owned()], &plain));
    assert_eq!(stages.checkups(&node_name("n1")), Checkups::default());
}

#[test]
fn a_changed_service_gets_the_address_of_a_full_run_and_the_state_file_is_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("assignments.yaml");
    let mut stages = Stages::new(IngestOptions::default(), AllocationSource::File(path.clone()), Memory::default());
    stages.run(&Arc::new(objects(&["a", "b"])), None, Duration::ZERO);
    let mut seen = assignments::file_version(&path);
    stages.run(&Arc::new(objects(&["a", "b"])), seen, Duration::ZERO);
    for (services, expected) in [
        (&["a", "b", "c"][..], ["a=192.0.2.1", "b=192.0.2.2", "c=192.0.2.3"].as_slice()),
        (&["b", "c"], &["b=192.0.2.2", "c=192.0.2.3"]),
        (&["b", "c", "d"], &["b=192.0.2.2", "c=192.0.2.3", "d=192.0.2.1"]),
    ] {
        let now = Arc::new(objects(services));
        let model = Model::ingest(&now, &IngestOptions::default());
        let last = stages.last.take().unwrap();
        let file = File { path: &path, memory: &mut stages.memory, objects: &now, model: &model };
        let current = file.renew(Some(last.current)).ok().expect("nothing but a Service changed");
        assert!(current.holds(assignments::file_version(&path)));
        stages.last = Some(Last { current, ..last });
        stages.memory.objects = Arc::clone(&now);
        assert_eq!(held(&stages.memory().holders), expected);
        assert_eq!(held(&assignments::load(&path).unwrap().unwrap()), expected);
        seen = assignments::file_version(&path);
    }
    // Another agent writes: everything is allocated again.
    assignments::update(&path, |_| (PreviousAssignments::new(), ())).unwrap();
    let last = stages.last.take().unwrap();
    let now = Arc::new(objects(&["b", "c"]));
    let model = Model::ingest(&now, &IngestOptions::default());
    let file = File { path: &path, memory: &mut stages.memory, objects: &now, model: &model };
    assert!(file.renew(Some(last.current)).is_err());
    stages.run(&now, seen, Duration::ZERO);
    assert_eq!(held(&assignments::load(&path).unwrap().unwrap()), ["b=192.0.2.1", "c=192.0.2.2"]);
}

#[test]
fn an_edit_that_would_cost_its_service_an_address_waits_for_the_rest_of_the_change() {
    let directory = tempfile::tempdir().unwrap();
    let source = AllocationSource::File(directory.path().join("assignments.yaml"));
    let mut stages = Stages::new(IngestOptions::default(), source, Memory::default());
    let with_ports = |ports: [u16; 2]| {
        let mut objects = objects(&[]);
        for (service, port) in ["a", "b"].into_iter().zip(ports) {
            let annotations = serde_json::json!({"vipmux.io/sharing-key": "web"});
            let spec = serde_json::json!({"type": "LoadBalancer", "ports": [{"port": port}]});
            let service = (
                service_name(service),
                object(serde_json::json!({"metadata": {"annotations": annotations}, "spec": spec})),
            );
            objects.services.extend([service]);
        }
        Arc::new(objects)
    };
    let mut run = |ports, now| {
        let state = stages.run(&with_ports(ports), None, Duration::from_millis(now));
        let claims: Vec<_> = state.services.iter().map(|(claim, it)| format!("{} {claim}", it.owner.name())).collect();
        (claims.join(", "), stages.next())
    };
    let first = "a port 80/TCP on 192.0.2.1, b port 81/TCP on 192.0.2.1";
    assert_eq!(run([80, 81], 0), (first.to_owned(), None));
    assert_eq!(run([80, 80], 100), (first.to_owned(), Some(Duration::from_millis(2_100))), "both are served as before");
    assert_eq!(run([82, 80], 200), ("b port 80/TCP on 192.0.2.1, a port 82/TCP on 192.0.2.1".to_owned(), None));
    run([82, 82], 300);
    assert_eq!(run([82, 82], 2_300), ("a port 82/TCP on 192.0.2.1, b port 82/TCP on 192.0.2.2".to_owned(), None));
}

#[test]
fn after_a_full_run_unchanged_backends_are_the_same_object() {
    let directory = tempfile::tempdir().unwrap();
    let mut stages = Stages::new(
        IngestOptions::default(),
        AllocationSource::File(directory.path().join("assignments.yaml")),
        Memory::default(),
    );
    let now = with_slice(&objects(&["a"]), "a", &[1]);
    let before = stages.run(&now, None, Duration::ZERO);
    let mut more = Objects::clone(&now);
    more.services.extend(objects(&["b"]).services);
    let after = stages.run(&Arc::new(more), None, Duration::ZERO);
    assert_eq!((before.services.len(), after.services.len()), (1, 2));
    for (claim, service) in &before.services {
        assert!(Arc::ptr_eq(&service.backends, &after.services[claim].backends));
    }
}

#[test]
fn a_state_file_that_cannot_be_written_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("assignments.yaml");
    std::fs::write(&path, "damaged").unwrap();
    let mut stages = Stages::new(IngestOptions::default(), AllocationSource::File(path.clone()), Memory::default());
    let now = Arc::new(objects(&["a"]));
    assert_eq!(stages.run(&now, None, Duration::ZERO).warnings.len(), 1);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(
        (stages.run(&now, None, Duration::ZERO).warnings.len(), stages.is_kept()),
        (1, false),
        "not with every endpoint"
    );
    stages.write_again();
    assert_eq!((stages.run(&now, None, Duration::ZERO).warnings.len(), stages.is_kept()), (0, true));
    assert!(path.exists());
}

#[test]
fn after_a_pool_shrank_a_restart_moves_no_address_and_a_changed_request_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("assignments.yaml");
    // Each run is an agent of its own, with nothing but the state file.
    let run = |objects: &Objects| {
        let mut stages = Stages::new(IngestOptions::default(), AllocationSource::File(path.clone()), Memory::default());
        let state = stages.run(&Arc::new(objects.clone()), None, Duration::ZERO);
        (held(&stages.memory().holders), state)
    };
    let pool = |range: &str| object(serde_json::json!({"metadata": {"name": "lan"}, "spec": {"addresses": [range]}}));
    let service = |pool: &str| {
        object(serde_json::json!({
            "metadata": {"annotations": {"vipmux.io/pool": pool}},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        }))
    };
    let mut objects = Objects::default();
    objects.vip_pools.insert("lan".to_owned(), pool("192.0.2.1-192.0.2.3"));
    objects.services.insert(service_name("a"), service("lan"));
    assert_eq!(run(&objects).0, ["a=192.0.2.1"]);
    objects.vip_pools.insert("lan".to_owned(), pool("192.0.2.3"));
    for _ in 0..2 {
        let (held, state) = run(&objects);
        assert_eq!(held, ["a=192.0.2.1"]);
        let expected = "Service shop/a: 192.0.2.1 is in no pool any more; 192.0.2.1 is kept until";
        assert!(state.warnings.iter().any(|warning| warning.starts_with(expected)), "{:?}", state.warnings);
    }
    objects.vip_pools.insert("other".to_owned(), pool("192.0.2.9"));
    objects.services.insert(service_name("a"), service("other"));
    assert_eq!(run(&objects).0, ["a=192.0.2.9"]);
}

#[test]
fn each_vip_has_its_eligible_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let mut stages = Stages::new(
        IngestOptions::default(),
        AllocationSource::File(directory.path().join("assignments.yaml")),
        Memory::default(),
    );
    let mut objects = objects(&["a"]);
    for node in ["n1", "n2"] {
        objects.nodes.insert(node_name(node), object(serde_json::json!({})));
    }
    let state = stages.run(&Arc::new(objects.clone()), None, Duration::ZERO);
    let vip = vip4(1);
    assert_eq!(state.eligible_nodes[&vip].iter().count(), 2);
    let selector = serde_json::json!([{"matchLabels": {"kubernetes.io/hostname": "n2"}}]);
    let policy = serde_json::json!({"metadata": {"name": "p"}, "spec": {"nodeSelectors": selector}});
    objects.vip_policies.insert("p".to_owned(), object(policy));
    let state = stages.run(&Arc::new(objects.clone()), None, Duration::ZERO);
    assert_eq!(state.leaders[&vip], Some(node_name("n2")));
    assert_eq!(state.eligible_nodes[&vip].iter().count(), 1);
    objects
        .vip_policies
        .insert("p".to_owned(), object(serde_json::json!({"metadata": {"name": "p"}, "spec": {"pools": ["none"]}})));
    let state = stages.run(&Arc::new(objects), None, Duration::ZERO);
    assert_eq!(state.leaders[&vip], None);
    let expected = "Service shop/a: 192.0.2.1 is announced by nobody";
    assert!(state.warnings.iter().any(|warning| warning.starts_with(expected)), "{:?}", state.warnings);
}
