//! Tests which backends are probed, and how results change their readiness.

use serde_json::json;

use super::*;
use crate::{
    IngestOptions,
    endpoints::SERVICE_LABEL,
    fixture::{node_name, tcp_claim, vip4, web},
    objects::Objects,
    serving::desired_services,
};
use vipmux_testing::object;

const PROTOCOL: &str = "service.beta.kubernetes.io/azure-load-balancer-health-probe-protocol";
const PORT: &str = "service.beta.kubernetes.io/port_80_health-probe_port";

fn claim(port: u16) -> PortClaim {
    tcp_claim(vip4(10), port)
}

/// Returns `shop/web` (ports `main` 80 and `status` 15021) with these annotations. Its endpoints
/// `10.0.0.n` are on `n1` and `n2` in turn, and serve on 8080 and 9000.
fn model(annotations: &serde_json::Value, endpoints: &[serde_json::Value]) -> Model {
    let mut objects = Objects::default();
    let ports = json!([{"name": "main", "port": 80}, {"name": "status", "port": 15021}]);
    let service = json!({"metadata": {"annotations": annotations}, "spec": {"type": "LoadBalancer", "ports": ports}});
    objects.services.insert(web(), object(service));
    for name in ["n1", "n2"] {
        objects.nodes.insert(node_name(name), object(json!({"spec": {"podCIDR": "10.0.0.0/29"}})));
    }
    let endpoints = endpoints.iter().zip(1..).map(|(conditions, n)| {
        let on = if n % 2 == 1 { "n1" } else { "n2" };
        json!({"addresses": [format!("10.0.0.{n}")], "nodeName": on, "conditions": conditions})
    });
    let slice = json!({
        "metadata": {"labels": {(SERVICE_LABEL): "web"}}, "addressType": "IPv4",
        "ports": [{"name": "main", "port": 8080}, {"name": "status", "port": 9000}],
        "endpoints": endpoints.collect::<Vec<_>>(),
    });
    objects.endpoint_slices.insert(("shop".to_owned(), "web".to_owned()), object(slice));
    Model::ingest(&objects, &IngestOptions::default())
}

/// Returns the model with these annotations and this number of ready endpoints.
fn ready(annotations: &serde_json::Value, endpoints: usize) -> Model {
    model(annotations, &vec![json!({}); endpoints])
}

fn desired(model: &Model, port: u16, health: &Health) -> DesiredService {
    let mut all = desired_services(model, &[(claim(port), web())].into(), health, &OrdMap::new());
    all.remove(&claim(port)).unwrap()
}

/// Returns the last byte of each backend's address; `-`: it takes no new flows; `!`: it fails.
fn shown(service: &DesiredService) -> String {
    let one = |backend: &DesiredBackend| {
        let IpAddr::V4(address) = backend.address else { panic!("{backend:?}") };
        let marks = [(backend.readiness.is_failing(), "!"), (!backend.readiness.is_ready(), "-")];
        let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect();
        format!("{}{marks}", address.octets()[3])
    };
    service.backends.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Returns the health after these nodes reported that `10.0.0.n` on this port is down for the probe
/// of port 80.
fn down(model: &Model, of: &[(&str, u8, u16)]) -> Health {
    let check = model.services[&web()].probes.values().next().unwrap().id();
    let mut health = Health::default();
    let mut all: BTreeMap<&str, BTreeSet<HealthKey>> = BTreeMap::new();
    for (node, n, port) in of {
        all.entry(node).or_default().insert(HealthKey { address: [10, 0, 0, *n].into(), port: *port, check });
    }
    for (name, keys) in all {
        health.hear(node_name(name), keys);
    }
    health
}

#[test]
fn a_backend_that_fails_takes_no_new_flows_and_keeps_its_own() {
    let model = ready(&json!({(PROTOCOL): "tcp"}), 3);
    assert_eq!(shown(&desired(&model, 80, &Health::default())), "1 2 3");
    let service = desired(&model, 80, &down(&model, &[("n2", 2, 8080)]));
    assert_eq!(shown(&service), "1 2!- 3");
    assert_eq!(ignored(&claim(80), &service), None);
    assert_eq!(shown(&desired(&model, 80, &down(&model, &[("n1", 1, 8080), ("n2", 2, 8080)]))), "1!- 2!- 3");
}

#[test]
fn if_all_fail_the_probes_are_ignored_and_that_is_noted() {
    let model = ready(&json!({(PROTOCOL): "tcp"}), 2);
    let service = desired(&model, 80, &down(&model, &[("n1", 1, 8080), ("n2", 2, 8080)]));
    assert_eq!(shown(&service), "1! 2!");
    let expected = "Service shop/web, port 80/TCP on 192.0.2.10: all 2 backends fail their health probes: they are served nevertheless";
    assert_eq!(ignored(&claim(80), &service).as_deref(), Some(expected));
    let alone = ready(&json!({(PROTOCOL): "tcp"}), 1);
    let service = desired(&alone, 80, &down(&alone, &[("n1", 1, 8080)]));
    let expected = "Service shop/web, port 80/TCP on 192.0.2.10: the only backend fails its health probe: it is served nevertheless";
    assert_eq!((shown(&service).as_str(), ignored(&claim(80), &service).as_deref()), ("1!", Some(expected)));
    let none = ready(&json!({(PROTOCOL): "tcp"}), 0);
    assert_eq!(ignored(&claim(80), &desired(&none, 80, &Health::default())), None);
}

#[test]
fn backends_that_take_no_new_flows_anyway_are_neither_probed_nor_counted() {
    let unready = json!({"ready": false});
    let model = model(&json!({(PROTOCOL): "tcp"}), &[json!({}), unready.clone(), unready]);
    let health = down(&model, &[("n1", 1, 8080), ("n2", 2, 8080)]);
    let service = desired(&model, 80, &health);
    assert_eq!(shown(&service), "1! 2- 3-", "the only one that is ready is served");
    assert_eq!(checkups(&model, &claim(80), &service).len(), 1);
}

#[test]
fn a_backend_that_fails_while_it_terminates_stays_known_as_failing() {
    let terminating = json!({"ready": false, "serving": true, "terminating": true});
    let model = model(&json!({(PROTOCOL): "tcp"}), &[json!({}), terminating]);
    let service = desired(&model, 80, &down(&model, &[("n2", 2, 8080)]));
    assert_eq!(shown(&service), "1 2!-");
    assert_eq!(checkups(&model, &claim(80), &service).len(), 2, "it is probed as long as it fails");
    assert_eq!(checkups(&model, &claim(80), &desired(&model, 80, &Health::default())).len(), 1);
}

#[test]
fn only_the_word_of_a_backends_own_node_counts() {
    let model = ready(&json!({(PROTOCOL): "tcp"}), 2);
    for (nodes, expected) in [(["n2", "n1"], "1 2"), (["n1", "n1"], "1!- 2"), (["n2", "n2"], "1 2!-")] {
        let health = down(&model, &[(nodes[0], 1, 8080), (nodes[1], 2, 8080)]);
        assert_eq!(shown(&desired(&model, 80, &health)), expected, "{nodes:?}");
    }
}

#[test]
fn a_service_without_probes_or_left_to_the_stack_minds_no_health() {
    let probed = ready(&json!({(PROTOCOL): "tcp"}), 2);
    let health = down(&probed, &[("n1", 1, 8080)]);
    let left = json!({(PROTOCOL): "tcp", "vipmux.io/forwarding": "kernel"});
    for annotations in [json!({}), left, json!({(PROTOCOL): "tcp", PORT: "9999"})] {
        let model = ready(&annotations, 2);
        assert_eq!(shown(&desired(&model, 80, &health)), "1 2", "{annotations}");
    }
}

#[test]
fn the_probed_port_is_the_port_itself_another_of_the_service_or_any_number() {
    let asked = |annotations: &serde_json::Value, port| {
        let model = ready(annotations, 2);
        let checkups = checkups(&model, &claim(port), &desired(&model, port, &Health::default()));
        let shown = checkups.iter().map(|(node, key, checkup)| {
            assert_eq!((key.address, key.port), (checkup.to.ip(), checkup.to.port()));
            format!("{} on {node}", checkup.to)
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    let tcp = |more: &[(&str, &str)]| {
        let mut annotations = json!({(PROTOCOL): "tcp"});
        for (key, value) in more {
            annotations[key] = json!(value);
        }
        annotations
    };
    assert_eq!(asked(&tcp(&[]), 80), "10.0.0.1:8080 on n1, 10.0.0.2:8080 on n2");
    assert_eq!(asked(&tcp(&[(PORT, "status")]), 80), "10.0.0.1:9000 on n1, 10.0.0.2:9000 on n2");
    assert_eq!(asked(&tcp(&[(PORT, "status")]), 15021), "10.0.0.1:9000 on n1, 10.0.0.2:9000 on n2");
    assert_eq!(asked(&tcp(&[(PORT, "30000")]), 80), "10.0.0.1:30000 on n1, 10.0.0.2:30000 on n2");
    let all = tcp(&[("vipmux.io/all-ports", "true"), (PORT, "status")]);
    assert_eq!(asked(&all, 0), "10.0.0.1:15021 on n1, 10.0.0.2:15021 on n2", "nothing is translated");
}

#[test]
fn a_backend_without_the_port_that_is_asked_counts_as_up() {
    let mut objects = Objects::default();
    let annotations = json!({(PROTOCOL): "tcp", (PORT): "status"});
    let ports = json!([{"name": "main", "port": 80}, {"name": "status", "port": 15021}]);
    let service = json!({"metadata": {"annotations": annotations}, "spec": {"type": "LoadBalancer", "ports": ports}});
    objects.services.insert(web(), object(service));
    objects.nodes.insert(node_name("n1"), object(json!({})));
    let slice = json!({
        "metadata": {"labels": {(SERVICE_LABEL): "web"}}, "addressType": "IPv4",
        "ports": [{"name": "main", "port": 8080}], "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "n1"}],
    });
    objects.endpoint_slices.insert(("shop".to_owned(), "web".to_owned()), object(slice));
    let model = Model::ingest(&objects, &IngestOptions::default());
    let service = desired(&model, 80, &down(&model, &[("n1", 1, 8080), ("n1", 1, 9000)]));
    assert_eq!(shown(&service), "1");
    assert_eq!(checkups(&model, &claim(80), &service), []);
}

#[test]
fn the_form_sent_between_agents_stays_the_same_and_differs_for_all_probes() {
    let probe = |check: Check, interval, failures| Probe { check, target: ProbePort::Number(80), interval, failures };
    let path = |path: &str| path.to_owned();
    let probes = [
        probe(Check::Tcp, 5, 2),
        probe(Check::Tcp, 6, 2),
        probe(Check::Tcp, 5, 3),
        probe(Check::Http { path: path("/") }, 5, 2),
        probe(Check::Https { path: path("/") }, 5, 2),
        probe(Check::Http { path: path("/up") }, 5, 2),
    ];
    let ids: BTreeSet<u64> = probes.iter().map(Probe::id).collect();
    assert_eq!(ids.len(), probes.len());
    assert_eq!(Probe { target: ProbePort::Number(81), ..probes[0].clone() }.id(), probes[0].id());
    assert_eq!([probes[0].id(), probes[5].id()], [0xe70c_8312_da25_82f2, 0xcdb2_ab4e_b99a_0210]);
}

#[test]
fn differences_are_what_one_of_two_alone_has() {
    let model = ready(&json!({(PROTOCOL): "tcp"}), 2);
    let health = |of: &[(&str, u8, u16)]| down(&model, of);
    let (a, b) = (health(&[("n1", 1, 80), ("n2", 2, 80)]), health(&[("n1", 1, 80), ("n1", 3, 80)]));
    let named = |(node, key): &(NodeName, HealthKey)| format!("{} on {node}", key.address);
    let differences = |a: &Health, b: &Health| a.differences(b).iter().map(named).collect::<Vec<_>>();
    assert_eq!(differences(&a, &b), ["10.0.0.3 on n1", "10.0.0.2 on n2"]);
    assert_eq!(differences(&b, &a), differences(&a, &b));
    assert_eq!(differences(&a, &a.clone()), Vec::<String>::new());
    let mut gone = a.clone();
    gone.hear(node_name("n2"), BTreeSet::new());
    gone.hear(node_name("n1"), BTreeSet::new());
    assert_eq!(gone, Health::default());
}

#[test]
fn backends_whose_addresses_are_no_pods_are_not_probed_and_count_as_up() {
    let nine = ready(&json!({(PROTOCOL): "tcp"}), 9);
    let service = desired(&nine, 80, &Health::default());
    let probed = checkups(&nine, &claim(80), &service);
    assert_eq!(probed.iter().map(|(_, _, checkup)| checkup.to.ip()).max(), Some([10, 0, 0, 7].into()));
    assert_eq!(
        not_probed(&nine, &claim(80), &service).unwrap(),
        "Service shop/web, port 80/TCP on 192.0.2.10: 10.0.0.8 and 1 more are not probed, since no podCIDR of a Node has \
         it: name the range of the pods with --pod-range"
    );
    assert_eq!(shown(&service), "1 2 3 4 5 6 7 8 9");
    let seven = ready(&json!({(PROTOCOL): "tcp"}), 7);
    assert_eq!(not_probed(&seven, &claim(80), &desired(&seven, 80, &Health::default())), None);
    let unasked = ready(&json!({}), 9);
    assert_eq!(not_probed(&unasked, &claim(80), &desired(&unasked, 80, &Health::default())), None);
}
