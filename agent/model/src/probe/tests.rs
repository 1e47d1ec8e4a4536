//! Tests the probes that annotations ask for, by port.

use super::*;

const INTERVAL_OF_ALL: &str = INTERVAL[1];
const PATH_OF_ALL: &str = PATH[1];
const PROTOCOL_OF_ALL: &str = PROTOCOL[1];

/// Returns ports 80 (`http`), 443 (`https`, with that `appProtocol`), 15021 (`status`) and 53/UDP
/// (`dns`).
fn ports() -> Vec<api::ServicePort> {
    let ports = serde_json::json!([
        {"name": "http", "port": 80},
        {"name": "https", "port": 443, "protocol": "TCP", "appProtocol": "HTTPS"},
        {"name": "status", "port": 15021},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]);
    serde_json::from_value(ports).unwrap()
}

/// Reads the probes. `{80}protocol` is short for the annotation about port 80.
fn read(annotations: &[(&str, &str)]) -> Result<Probes, Refusal> {
    let key = |key: &str| match key.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some((port, what)) => format!("service.beta.kubernetes.io/port_{port}_{what}"),
        None => key.to_owned(),
    };
    let annotations = annotations.iter().map(|(name, value)| (key(name), (*value).to_owned())).collect();
    Probes::read(&annotations, &ports())
}

/// Returns `port probe` for each port.
fn shown(annotations: &[(&str, &str)]) -> String {
    let probes = read(annotations).unwrap().of_ports;
    probes.iter().map(|(port, probe)| format!("{} {probe}", u16::from(port.number))).collect::<Vec<_>>().join("; ")
}

#[test]
fn all_annotations_about_probes_begin_alike() {
    for spelling in ASKING.iter().chain(&[NO_PROBE]).copied().flatten() {
        assert!(BEGINNINGS.iter().any(|beginning| spelling.starts_with(beginning)), "{spelling}");
    }
}

#[test]
fn backends_are_probed_only_where_an_annotation_asks_for_it() {
    assert_eq!(read(&[]), Ok(Probes::default()));
    assert_eq!(read(&[(PATH_OF_ALL, ""), ("{80}health-probe_port", " ")]), Ok(Probes::default()));
    assert_eq!(read(&[("{80}no_probe_rule", "true"), ("{80}no_lb_rule", "true")]), Ok(Probes::default()));
    for (annotation, value, probe) in [
        ("{80}health-probe_protocol", "Tcp", "tcp:http every 5s, down after 2"),
        ("{80}health-probe_port", "15021", "tcp:status every 5s, down after 2"),
        ("{80}health-probe_interval", "10", "tcp:http every 10s, down after 2"),
        ("{80}health-probe_num-of-probe", "3", "tcp:http every 5s, down after 3"),
        ("{443}health-probe_request-path", "/up", "https:https/up every 5s, down after 2"),
    ] {
        let port = &annotation[1..annotation.find('}').unwrap()];
        assert_eq!(shown(&[(annotation, value)]), format!("{port} {probe}"), "{annotation}");
    }
}

#[test]
fn settings_for_all_ports_apply_to_tcp_ports_without_a_setting_of_their_own() {
    let all = "80 http:http/up every 10s, down after 2; 443 https:https/up every 10s, down after 2; \
               15021 http:status/up every 10s, down after 2";
    let of_all = [(PROTOCOL_OF_ALL, "HTTP"), (INTERVAL_OF_ALL, "10"), (PATH_OF_ALL, "/up")];
    assert_eq!(shown(&of_all), all, "appProtocol goes before the protocol of all");
    let mut mixed = of_all.to_vec();
    mixed.extend([
        ("{80}health-probe_interval", "7"),
        ("{80}health-probe_request-path", "/ready"),
        ("{443}health-probe_protocol", " http "),
        ("{443}health-probe_port", "30000"),
        ("{15021}no_probe_rule", "True"),
    ]);
    let expected = "80 http:http/ready every 7s, down after 2; 443 http:30000/up every 10s, down after 2";
    assert_eq!(shown(&mixed), expected);
}

#[test]
fn an_application_protocol_that_is_not_probed_is_probed_by_tcp() {
    let mut ports = ports();
    ports[0].app_protocol = Some("kubernetes.io/h2c".to_owned());
    let annotations = [(PROTOCOL_OF_ALL.to_owned(), "http".to_owned())].into();
    let probes = Probes::read(&annotations, &ports).unwrap().of_ports;
    let checks: Vec<&Check> = probes.values().map(|probe| &probe.check).collect();
    let path = || "/".to_owned();
    assert_eq!(checks, [&Check::Tcp, &Check::Https { path: path() }, &Check::Http { path: path() }]);
}

#[test]
fn a_probe_goes_to_a_port_of_the_service_by_name_or_number_or_to_any_other() {
    for (value, target) in [
        ("status", ProbePort::OfService("status".to_owned())),
        ("Status", ProbePort::OfService("status".to_owned())),
        ("15021", ProbePort::OfService("status".to_owned())),
        ("30000", ProbePort::Number(30000)),
        ("53", ProbePort::Number(53)),
        ("1", ProbePort::Number(1)),
        ("65535", ProbePort::Number(65535)),
    ] {
        let probes = read(&[("{80}health-probe_port", value)]).unwrap();
        assert_eq!(probes.of_ports.values().map(|probe| &probe.target).collect::<Vec<_>>(), [&target], "{value}");
    }
}

#[test]
fn a_malformed_value_is_refused_with_what_is_allowed() {
    let long = format!("/{}", "a".repeat(MAX_PATH));
    for (annotation, value, allowed) in [
        ("{80}health-probe_protocol", "udp", "Tcp, Http or Https"),
        (PROTOCOL_OF_ALL, "grpc", "Tcp, Http or Https"),
        ("{80}health-probe_port", "0", "a port, 1 to 65535, or the name of a TCP port of the Service"),
        ("{80}health-probe_port", "65536", "a port, 1 to 65535"),
        ("{80}health-probe_port", "dns", "the name of a TCP port of the Service"),
        ("{80}health-probe_port", "-1", "a port, 1 to 65535"),
        ("{80}health-probe_interval", "4", "a whole number of seconds, 5 at least"),
        (INTERVAL_OF_ALL, "5s", "a whole number of seconds, 5 at least"),
        (INTERVAL_OF_ALL, "+5", "a whole number of seconds, 5 at least"),
        (THRESHOLD[1], "1", "a whole number of failures, 2 at least"),
        (THRESHOLD[1], "99999999999", "a whole number of failures, 2 at least"),
        (PATH_OF_ALL, "healthz", "a path of at most 2048 bytes, such as /healthz"),
        (PATH_OF_ALL, "/a b", "a path of at most 2048 bytes"),
        (PATH_OF_ALL, "/a#b", "with other characters percent-encoded"),
        (PATH_OF_ALL, "/a<b", "with other characters percent-encoded"),
        (PATH_OF_ALL, &long, "a path of at most 2048 bytes"),
        ("{80}no_probe_rule", "yes", "true or false"),
    ] {
        let refusal = read(&[(annotation, value)]).unwrap_err();
        let key = annotation.replace("{80}", "service.beta.kubernetes.io/port_80_");
        assert_eq!(refusal.reason, Reason::InvalidAnnotation);
        let message = refusal.message;
        assert!(message.starts_with(&format!("{key}: \"")) && message.contains("is malformed; allowed: "), "{message}");
        assert!(message.contains(allowed), "{message}");
    }
}

#[test]
fn a_failure_is_seen_within_two_minutes() {
    let both = |interval, failures| read(&[(INTERVAL_OF_ALL, interval), ("{80}health-probe_num-of-probe", failures)]);
    assert!(both("17", "7").is_ok(), "119 s");
    for (interval, failures) in [("15", "8"), ("60", "2"), ("4294967295", "4294967295")] {
        let refusal = both(interval, failures).unwrap_err();
        assert_eq!(refusal.reason, Reason::InvalidAnnotation);
        let expected = format!("{INTERVAL_OF_ALL}: {failures} failures in a row, {interval} s apart, take ");
        assert!(refusal.message.starts_with(&expected), "{}", refusal.message);
        assert!(refusal.message.ends_with("allowed: less than 120 s together"), "{}", refusal.message);
    }
    let alone = read(&[("{80}health-probe_num-of-probe", "24")]).unwrap_err();
    assert!(alone.message.starts_with("service.beta.kubernetes.io/port_80_health-probe_num-of-probe: 24 failures"));
}

#[test]
fn a_path_that_no_probe_has_is_noted_and_stops_nothing() {
    let probes = read(&[(PATH_OF_ALL, "/up")]).unwrap();
    assert_eq!(probes.of_ports.len(), 3);
    let expected = format!(
        "{PATH_OF_ALL} has no effect on 80/TCP and 1 more: a Tcp probe has no path; request Http or Https with \
         service.beta.kubernetes.io/port_80_health-probe_protocol"
    );
    assert_eq!(probes.notice, Some(expected));
    assert_eq!(read(&[(PATH_OF_ALL, "/up"), (PROTOCOL_OF_ALL, "http")]).unwrap().notice, None);
}

#[test]
fn ports_that_are_not_exposed_are_not_probed_and_with_every_port_the_first_probe_counts() {
    let probes = || read(&[(INTERVAL_OF_ALL, "5"), ("{80}no_probe_rule", "true")]).unwrap();
    let of = |exposed: &[Port]| {
        let probes = probes().of_exposed(exposed.iter(), &ports()).of_ports;
        probes.iter().map(|(port, probe)| format!("{port} {probe}")).collect::<Vec<_>>()
    };
    let https = Port { number: 443.into(), protocol: Protocol::Tcp };
    assert_eq!(of(&[https]), ["443/TCP https:https/ every 5s, down after 2"]);
    let every: Vec<Port> = Port::every().collect();
    let expected = ["TCP", "UDP", "SCTP"].map(|protocol| format!("all/{protocol} https:443/ every 5s, down after 2"));
    assert_eq!(of(&every), expected);
}

#[test]
fn a_probe_is_shown_to_programs_with_its_units() {
    let probes = read(&[("{80}health-probe_protocol", "http"), ("{15021}health-probe_port", "9000")]).unwrap();
    let json = serde_json::to_value(probes.of_ports.values().collect::<Vec<_>>()).unwrap();
    let expected = serde_json::json!([
        {"protocol": "http", "path": "/", "port": "http", "interval_s": 5, "failures": 2},
        {"protocol": "tcp", "port": 9000, "interval_s": 5, "failures": 2},
    ]);
    assert_eq!(json, expected);
}
