//! Finds the ports of a Service that are only for the cluster, such as one for health checks.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    dialects::{self, Annotations, azure::NO_RULE},
    policy::Policy,
    port::Port,
    reason::{Reason, Refusal},
};

/// The prefix of the annotation's key.
const BEGINNING: &str = "service.beta.kubernetes.io/port_";

/// Returns the Service's ports that are not to be exposed. A value that cannot be understood is an
/// error.
pub(super) fn read(
    annotations: &Annotations,
    ports: &BTreeMap<Port, String>,
    policy: &Policy,
) -> Result<BTreeSet<Port>, Refusal> {
    let mut unexposed = BTreeSet::new();
    if !dialects::any_begins(annotations, BEGINNING) {
        return Ok(unexposed);
    }
    for port in ports.keys() {
        let key = dialects::of_port(NO_RULE, port.number.into());
        let value = annotations.get(&key).filter(|text| !text.is_empty());
        if value.map_or(Ok(false), |text| dialects::boolean(&key, text))? {
            if policy.all_ports {
                let message = format!("{key} is true, and the Service has every port of its address: use one of them");
                return Err(Refusal::new(Reason::AmbiguousRequest, message));
            }
            unexposed.insert(*port);
        }
    }
    match unexposed.first().filter(|_| unexposed.len() == ports.len()) {
        None => Ok(unexposed),
        Some(port) => {
            let key = dialects::of_port(NO_RULE, port.number.into());
            let message = format!("{key} is true, and all ports of the Service have it: nothing would be exposed");
            Err(Refusal::new(Reason::InvalidAnnotation, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{address_names::AddressNames, fixture::web, service::Service, tag::ServiceTags};

    #[test]
    fn a_port_without_a_rule_is_not_exposed() {
        let read = |annotations: &[(&str, &str)]| {
            let key =
                |(what, value): &(&str, &str)| (format!("service.beta.kubernetes.io/{what}"), (*value).to_owned());
            let annotations: BTreeMap<String, String> = annotations.iter().map(key).collect();
            let ports = serde_json::json!([
                {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}, {"name": "web", "port": 80},
            ]);
            let json = serde_json::json!({"metadata": {"annotations": annotations}, "spec": {"ports": ports}});
            let name = web();
            let object = serde_json::from_value(json).unwrap();
            Service::ingest(&name, &object, &AddressNames::default(), &ServiceTags::default())
        };
        let shown = |ports: Vec<&Port>| ports.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let exposed = |annotations: &[_]| {
            let service = read(annotations).unwrap();
            format!("{}, not {}", shown(service.ports.keys().collect()), shown(service.unexposed.iter().collect()))
        };
        let probe = ("azure-load-balancer-health-probe-interval", "5");
        assert_eq!(exposed(&[("port_53_no_lb_rule", "True")]), "80/TCP, not 53/TCP 53/UDP");
        assert_eq!(exposed(&[("port_80_no_lb_rule", "true"), probe]), "53/TCP 53/UDP, not 80/TCP");
        assert_eq!(
            exposed(&[("port_80_no_lb_rule", "false"), ("port_53_no_lb_rule", "")]),
            "53/TCP 53/UDP 80/TCP, not "
        );
        let service = read(&[("port_80_no_lb_rule", "true"), probe]).unwrap();
        assert_eq!(shown(service.probes.keys().collect()), "53/TCP", "and is not probed");
        let all_ports = ("azure-load-balancer-enable-high-availability-ports", "true");
        for (annotations, reason, message) in [
            (
                &[("port_80_no_lb_rule", "yes")][..],
                Reason::InvalidAnnotation,
                "\"yes\" is malformed; allowed: true or false",
            ),
            (
                &[("port_80_no_lb_rule", "true"), ("port_53_no_lb_rule", "true")],
                Reason::InvalidAnnotation,
                "port_53_no_lb_rule is true, and all ports of the Service have it: nothing would be exposed",
            ),
            (
                &[("port_80_no_lb_rule", "true"), all_ports],
                Reason::AmbiguousRequest,
                "port_80_no_lb_rule is true, and the Service has every port of its address: use one of them",
            ),
        ] {
            let refusal = read(annotations).unwrap_err();
            assert_eq!(refusal.reason, reason);
            assert!(refusal.message.ends_with(message), "{}", refusal.message);
        }
    }
}
