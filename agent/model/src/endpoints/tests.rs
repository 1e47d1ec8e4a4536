//! Tests rule 13 of docs/allocation-rules.md, and the conditions of endpoints.

use super::*;
use std::sync::Arc;

use imbl::OrdMap;

use crate::{
    IngestOptions, Model,
    fixture::{claim, node_name, service_name, tcp_claim, vip, vip4, web},
    health::Health,
    objects::Objects,
    serving::desired_services,
};
use vipmux_testing::object;

/// Returns a Service `shop/web` (ports `http` 80/TCP and `dns` 53/UDP), nodes `n1` (192.0.2.1) and
/// `n2` (192.0.2.2), and slices.
fn model(slices: &[serde_json::Value]) -> Model {
    annotated(&serde_json::json!({}), slices)
}

/// Returns the same with annotations on the Service.
fn annotated(annotations: &serde_json::Value, slices: &[serde_json::Value]) -> Model {
    let mut objects = Objects::default();
    let service = serde_json::json!({"metadata": {"annotations": annotations}, "spec": {"type": "LoadBalancer", "ports": [
        {"name": "http", "port": 80, "targetPort": 1}, {"name": "dns", "port": 53, "protocol": "UDP"},
    ]}});
    objects.services.insert(web(), object(service));
    for (name, address) in [("n1", "192.0.2.1"), ("n2", "192.0.2.2")] {
        let node = serde_json::json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        objects.nodes.insert(node_name(name), object(node));
    }
    for (i, slice) in slices.iter().enumerate() {
        let mut slice = slice.clone();
        slice["metadata"] = serde_json::json!({"name": format!("web-{i}"), "labels": {(SERVICE_LABEL): "web"}});
        if slice["addressType"].is_null() {
            slice["addressType"] = "IPv4".into();
        }
        let key = ("shop".to_owned(), format!("web-{i}"));
        objects.endpoint_slices.insert(key, object(slice));
    }
    Model::ingest(&objects, &IngestOptions::default())
}

fn slice(port: u16, endpoints: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({"ports": [{"name": "http", "port": port}], "endpoints": endpoints})
}

/// Returns `address:port@node` of each backend, with a mark at the end if it takes no new flows: `~` if it
/// drains, `-` if it is stopping, `!` if it is not ready.
fn http(model: &Model) -> Vec<String> {
    let backends = model.endpoints.backends(&web(), "http", Protocol::Tcp, Family::V4);
    let mark = |b: &DesiredBackend| match b.readiness {
        Readiness::Ready => "",
        Readiness::Draining => "~",
        Readiness::Stopping => "-",
        Readiness::NotReady => "!",
        Readiness::Failing | Readiness::ReadyThoughFailing => "?",
    };
    let node = |b: &DesiredBackend| b.node.as_ref().map(ToString::to_string).unwrap_or_default();
    let shown = |b: &DesiredBackend| format!("{}:{}@{}{}", b.address, b.port_number(), node(b), mark(b));
    backends.iter().map(shown).collect()
}

fn pod(address: &str, conditions: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({"addresses": [address], "nodeName": "n1", "conditions": conditions})
}

#[test]
fn the_port_is_found_by_name_and_protocol_and_slices_may_differ_in_its_number() {
    let no = serde_json::json!({});
    let mut other = slice(9000, &serde_json::json!([pod("10.0.0.3", &no)]));
    other["ports"] = serde_json::json!([
        {"name": "http", "port": 9000, "protocol": "UDP"}, {"name": "dns", "port": 5353, "protocol": "UDP"}, {"name": "all"},
    ]);
    let model = model(&[
        slice(8080, &serde_json::json!([pod("10.0.0.1", &no)])),
        slice(8081, &serde_json::json!([pod("10.0.0.2", &no)])),
        other,
    ]);
    assert_eq!(http(&model), ["10.0.0.1:8080@n1", "10.0.0.2:8081@n1"]);
    let dns = model.endpoints.backends(&web(), "dns", Protocol::Udp, Family::V4);
    assert_eq!(dns.iter().map(DesiredBackend::port_number).collect::<Vec<_>>(), [5353]);
}

#[test]
fn conditions_decide_who_takes_new_flows() {
    let endpoint = |address, ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>| {
        pod(address, &serde_json::json!({"ready": ready, "serving": serving, "terminating": terminating}))
    };
    let unset = endpoint("10.0.0.1", None, None, None);
    let draining = endpoint("10.0.0.2", Some(false), Some(true), Some(true));
    let stopping = endpoint("10.0.0.3", Some(false), Some(false), Some(true));
    let unready = endpoint("10.0.0.4", Some(false), None, None);
    let published = endpoint("10.0.0.5", Some(true), Some(false), Some(true));
    for (endpoints, expected) in [
        (vec![&unset], vec!["10.0.0.1:80@n1"]),
        (vec![&unset, &draining, &stopping], vec!["10.0.0.1:80@n1", "10.0.0.2:80@n1~", "10.0.0.3:80@n1-"]),
        (vec![&draining, &stopping, &unready], vec!["10.0.0.2:80@n1", "10.0.0.3:80@n1-", "10.0.0.4:80@n1!"]),
        (vec![&published, &draining], vec!["10.0.0.2:80@n1~", "10.0.0.5:80@n1"]),
        (vec![&unready], vec!["10.0.0.4:80@n1!"]),
    ] {
        assert_eq!(http(&model(&[slice(80, &serde_json::json!(endpoints))])), expected);
    }
}

#[test]
fn an_endpoint_in_two_slices_counts_once_and_by_its_better_report() {
    let unready = slice(80, &serde_json::json!([pod("10.0.0.1", &serde_json::json!({"ready": false}))]));
    let ready = slice(80, &serde_json::json!([pod("10.0.0.1", &serde_json::json!({"ready": true}))]));
    assert_eq!(http(&model(&[unready.clone(), ready.clone()])), ["10.0.0.1:80@n1"]);
    assert_eq!(http(&model(&[ready, unready])), ["10.0.0.1:80@n1"]);
}

#[test]
fn host_network_endpoints_are_on_the_node_whose_address_they_have() {
    let model = model(&[slice(80, &serde_json::json!([{"addresses": ["192.0.2.2"]}]))]);
    assert_eq!(http(&model), ["192.0.2.2:80@n2"]);
    assert_eq!(model.notes, []);
}

#[test]
fn endpoints_on_no_known_node_or_without_a_host_address_are_left_out_and_noted() {
    let model = model(&[slice(
        80,
        &serde_json::json!([
            {"addresses": ["10.0.0.1"], "nodeName": "n9"},
            {"addresses": ["10.0.0.2"]},
            {"addresses": ["127.0.0.1"], "nodeName": "n1"},
            {"addresses": ["10.0.0.3"], "nodeName": "n2"},
        ]),
    )]);
    assert_eq!(http(&model), ["10.0.0.3:80@n2"]);
    let note = Note::new(
        "EndpointSlice shop/web-0",
        "endpoints of shop/web left out: 10.0.0.1 is on node \"n9\", which is not known (and 2 more)",
    );
    assert_eq!(model.notes, [note]);
}

#[test]
fn a_drain_counts_only_against_endpoints_that_can_be_reached() {
    let lost = serde_json::json!({"addresses": ["10.0.0.1"], "nodeName": "n9"});
    let draining = pod("10.0.0.2", &serde_json::json!({"ready": false, "serving": true, "terminating": true}));
    assert_eq!(http(&model(&[slice(80, &serde_json::json!([lost, draining]))])), ["10.0.0.2:80@n1"]);
}

#[test]
fn endpoints_on_no_known_node_are_those_of_a_service_that_has_no_others() {
    let lost = || serde_json::json!({"addresses": ["10.0.0.1"], "nodeName": "n9"});
    let nowhere = serde_json::json!({"addresses": ["10.0.0.2"]});
    let unready = pod("10.0.0.3", &serde_json::json!({"ready": false}));
    assert_eq!(
        http(&model(&[slice(80, &serde_json::json!([lost(), nowhere, unready]))])),
        ["10.0.0.1:80@n9", "10.0.0.2:80@", "10.0.0.3:80@n1!"]
    );
    let ready = pod("10.0.0.3", &serde_json::json!({}));
    assert_eq!(http(&model(&[slice(80, &serde_json::json!([lost(), ready]))])), ["10.0.0.3:80@n1"]);
}

#[test]
fn a_service_with_every_port_has_the_addresses_of_all_its_slices() {
    let no = serde_json::json!({});
    let mut none = slice(0, &serde_json::json!([pod("10.0.0.2", &no)]));
    none["ports"] = serde_json::json!([]);
    let slices = [slice(8080, &serde_json::json!([pod("10.0.0.1", &no)])), none];
    let model = annotated(&serde_json::json!({"vipmux.io/all-ports": "true"}), &slices);
    let claims = [
        claim(vip4(10), Protocol::Tcp, 0),
        claim(vip4(10), Protocol::Udp, 0),
        claim(vip4(10), Protocol::Sctp, 0),
        claim(vip4(10), Protocol::Tcp, 80),
    ];
    let desired =
        desired_services(&model, &claims.map(|claim| (claim, web())).into(), &Health::default(), &OrdMap::new());
    assert_eq!(desired.len(), 3, "its own ports claim nothing");
    for service in desired.values() {
        let backends: Vec<_> = service.backends.iter().map(|it| (it.address.to_string(), it.port_number())).collect();
        assert_eq!(backends, [("10.0.0.1".to_owned(), 0), ("10.0.0.2".to_owned(), 0)]);
    }
}

#[test]
fn direct_server_return_takes_only_endpoints_with_the_services_own_port() {
    let no = serde_json::json!({});
    let slices = [
        slice(8080, &serde_json::json!([pod("10.0.0.1", &no)])),
        slice(80, &serde_json::json!([pod("10.0.0.2", &no)])),
    ];
    let model = annotated(&serde_json::json!({"vipmux.io/direct-server-return": "true"}), &slices);
    assert_eq!(http(&model), ["10.0.0.2:80@n1"]);
    let message = "1 of 2 endpoints of port 80/TCP are not used: they are on another port (10.0.0.1:8080 for instance), and \
                   direct server return translates nothing; let targetPort be 80 too";
    assert_eq!(model.notes, [Note::new("Service shop/web", message)]);
    let model = annotated(&serde_json::json!({"vipmux.io/direct-server-return": "true"}), &slices[..1]);
    assert!(http(&model).is_empty());
    assert!(model.notes[0].message.starts_with("port 80/TCP is not served: its endpoints are on another port"));
}

#[test]
fn the_treatment_of_a_service_reaches_each_of_its_claims() {
    let annotations = serde_json::json!({
        "service.beta.kubernetes.io/load-balancer-source-ranges": "198.51.100.0/24,2001:db8::/32",
        "vipmux.io/tcp-idle-timeout": "90s", "vipmux.io/forwarding": "kernel",
    });
    let model = annotated(&annotations, &[]);
    let claims = [
        claim(vip4(10), Protocol::Tcp, 80),
        claim(vip4(10), Protocol::Udp, 53),
        claim(vip("2001:db8::10"), Protocol::Tcp, 80),
    ];
    let desired =
        desired_services(&model, &claims.map(|claim| (claim, web())).into(), &Health::default(), &OrdMap::new());
    let of = |claim| &desired[&claim].treatment;
    assert!(desired.values().all(|service| service.treatment.kernel));
    assert_eq!((of(claims[0]).idle, of(claims[1]).idle), (Some(90), None));
    let sources = |claim| of(claim).sources.as_ref().unwrap();
    assert!(Arc::ptr_eq(sources(claims[0]), sources(claims[1])));
    assert_eq!(sources(claims[0]).iter().map(ToString::to_string).collect::<Vec<_>>(), ["198.51.100.0/24"]);
    assert_eq!(sources(claims[2]).iter().map(ToString::to_string).collect::<Vec<_>>(), ["2001:db8::/32"]);
}

#[test]
fn fqdn_slices_are_skipped_and_families_are_kept_apart() {
    let mut fqdn = slice(80, &serde_json::json!([{"addresses": ["web.example.org"], "nodeName": "n1"}]));
    fqdn["addressType"] = "FQDN".into();
    let mut v6 = slice(80, &serde_json::json!([pod("2001:db8::1", &serde_json::json!({}))]));
    v6["addressType"] = "IPv6".into();
    let model = model(&[fqdn, v6]);
    assert_eq!(http(&model), Vec::<String>::new());
    assert_eq!(model.endpoints.backends(&web(), "http", Protocol::Tcp, Family::V6).len(), 1);
    assert!(model.notes[0].message.contains("FQDN"));
}

#[test]
fn a_vip_gets_the_backends_of_its_own_family() {
    let draining = serde_json::json!({"ready": false, "serving": true, "terminating": true});
    let v4 = slice(80, &serde_json::json!([pod("10.0.0.1", &serde_json::json!({}))]));
    let mut v6 = slice(8080, &serde_json::json!([pod("2001:db8::1", &draining)]));
    v6["addressType"] = "IPv6".into();
    let model = model(&[v4, v6]);
    let (v4, v6) = (tcp_claim(vip4(10), 80), tcp_claim(vip("2001:db8::10"), 80));
    let desired = desired_services(&model, &[(v4, web()), (v6, web())].into(), &Health::default(), &OrdMap::new());
    let shown = |claim| {
        let of_claim: Vec<_> = desired[claim]
            .backends
            .iter()
            .map(|b| (b.address.to_string(), b.port_number(), b.readiness.is_ready()))
            .collect();
        of_claim
    };
    assert_eq!(shown(&v4), [("10.0.0.1".to_owned(), 80, true)]);
    assert_eq!(shown(&v6), [("2001:db8::1".to_owned(), 8080, true)], "of its family none is ready");
}

#[test]
fn equal_sets_of_backends_are_one() {
    let mut both = slice(80, &serde_json::json!([pod("10.0.0.1", &serde_json::json!({}))]));
    both["ports"] = serde_json::json!([{"name": "http", "port": 80}, {"name": "dns", "port": 80, "protocol": "UDP"}]);
    let model = model(&[both]);
    let (http, dns, stray) =
        (claim(vip4(10), Protocol::Tcp, 80), claim(vip4(10), Protocol::Udp, 53), claim(vip4(10), Protocol::Tcp, 81));
    let desired = desired_services(
        &model,
        &[(http, web()), (dns, web()), (stray, web())].into(),
        &Health::default(),
        &OrdMap::new(),
    );
    assert_eq!(desired.len(), 2);
    assert!(Arc::ptr_eq(&desired[&http].backends, &desired[&dns].backends));
    assert_eq!(desired[&http].owner, web());
}

/// Returns the endpoints of both families, and the notes, of a Service `shop/sig` (port 38412/SCTP)
/// with a slice for each of these endpoint ports.
fn sctp(ports: &[u16]) -> (Vec<String>, Vec<Note>) {
    let mut objects = Objects::default();
    let sig = service_name("sig");
    let spec = serde_json::json!({"type": "LoadBalancer", "ports": [{"port": 38412, "protocol": "SCTP"}]});
    objects.services.insert(sig.clone(), object(serde_json::json!({ "spec": spec })));
    objects.nodes.insert(node_name("n1"), object(serde_json::json!({})));
    for (i, port) in ports.iter().enumerate() {
        let (family, address) =
            if i == 0 { ("IPv6", "2001:db8::1".to_owned()) } else { ("IPv4", format!("10.0.0.{i}")) };
        let slice = serde_json::json!({
            "metadata": {"labels": {(SERVICE_LABEL): "sig"}}, "addressType": family,
            "ports": [{"port": port, "protocol": "SCTP"}], "endpoints": [pod(&address, &serde_json::json!({}))],
        });
        objects.endpoint_slices.insert(("shop".to_owned(), format!("sig-{i}")), object(slice));
    }
    let model = Model::ingest(&objects, &IngestOptions::default());
    let of = |family| model.endpoints.backends(&sig, "", Protocol::Sctp, family);
    let backends = Family::ALL.into_iter().flat_map(of);
    (backends.map(|backend| SocketAddr::new(backend.address, backend.port_number()).to_string()).collect(), model.notes)
}

#[test]
fn sctp_is_served_where_the_endpoints_port_is_the_services() {
    let (served, notes) = sctp(&[38412, 38412]);
    assert_eq!((served, notes), (vec!["10.0.0.1:38412".to_owned(), "[2001:db8::1]:38412".to_owned()], vec![]));
}

#[test]
fn sctp_is_refused_where_the_ports_would_have_to_be_translated() {
    let because = "SCTP's checksum covers the ports, so that they cannot be translated; let targetPort be 38412 too";
    let (served, notes) = sctp(&[9000, 9001]);
    let message = "port 38412/SCTP is not served: its endpoints are on another port (10.0.0.1:9001 for instance)";
    assert_eq!((served, notes), (vec![], vec![Note::new("Service shop/sig", format!("{message}, and {because}"))]));
}

#[test]
fn sctp_endpoints_on_another_port_alone_are_not_used() {
    let (served, notes) = sctp(&[9000, 38412, 38412]);
    assert_eq!(served, ["10.0.0.1:38412", "10.0.0.2:38412"]);
    let message = "1 of 3 endpoints of port 38412/SCTP are not used: they are on another port ([2001:db8::1]:9000 for";
    assert!(notes[0].message.starts_with(message), "{}", notes[0].message);
}
