//! Tests Azure's annotations.

use super::*;

const IPV4: &str = "service.beta.kubernetes.io/azure-load-balancer-ipv4";
const IPV6: &str = "service.beta.kubernetes.io/azure-load-balancer-ipv6";
const NAME: &str = "service.beta.kubernetes.io/azure-pip-name";
const NAME_V6: &str = "service.beta.kubernetes.io/azure-pip-name-ipv6";
const PREFIX: &str = "service.beta.kubernetes.io/azure-pip-prefix-id";
const INTERNAL: &str = "service.beta.kubernetes.io/azure-load-balancer-internal";
const SUBNET: &str = "service.beta.kubernetes.io/azure-load-balancer-internal-subnet";
const MODE: &str = "service.beta.kubernetes.io/azure-load-balancer-mode";
const ADDITIONAL: &str = "service.beta.kubernetes.io/azure-additional-public-ips";
const LABEL: &str = "service.beta.kubernetes.io/azure-dns-label-name";
const FLOATING: &str = "service.beta.kubernetes.io/azure-disable-load-balancer-floating-ip";
const GROUP: &str = "service.beta.kubernetes.io/azure-load-balancer-resource-group";
const IDLE: &str = "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout";

/// The ID as shown in the portal.
const PREFIX_ID: &str = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/rg/providers/\
                         Microsoft.Network/publicIPPrefixes/Edge_Prefix";

#[test]
fn an_address_of_each_family_is_asked_for_beside_the_field() {
    for (annotations, field, addresses) in [
        (&[(IPV4, "192.0.2.10")][..], None, &["192.0.2.10"][..]),
        (&[(IPV6, "2001:db8::1")], None, &["2001:db8::1"]),
        (&[(IPV4, "192.0.2.10"), (IPV6, "2001:db8::1")], None, &["192.0.2.10", "2001:db8::1"]),
        (&[(IPV4, "192.0.2.10")], Some("192.0.2.10"), &["192.0.2.10"]),
        (&[(IPV6, "2001:db8::1")], Some("192.0.2.10"), &["192.0.2.10", "2001:db8::1"]),
        (&[(IPV4, ""), (IPV6, "")], Some("192.0.2.10"), &["192.0.2.10"]),
    ] {
        let request = ask(annotations, field).unwrap();
        assert_eq!((request.addresses, request.sharing.by_address), (vips(addresses), by_address_of(annotations)));
    }
    let (reason, message) = refusal(&[(IPV4, "192.0.2.10")], Some("192.0.2.11"));
    assert_eq!(reason, Reason::AmbiguousRequest);
    assert!(message.contains(IPV4) && message.contains(FIELD), "{message}");
}

/// Empty values count as absent.
fn by_address_of(annotations: &[(&str, &str)]) -> ByAddress {
    if annotations.iter().all(|(_, value)| value.is_empty()) { ByAddress::Plain } else { ByAddress::Explicit }
}

#[test]
fn an_address_that_is_named_is_shared_by_all_of_azures_services() {
    let by_address = |annotations: &[_], field| ask(annotations, field).unwrap().sharing.by_address;
    let field = Some("192.0.2.10");
    assert_eq!(by_address(&[(GROUP, "rg")], field), ByAddress::Explicit, "as static addresses are asked for on AKS");
    assert_eq!(by_address(&[(IDLE, "5")], field), ByAddress::Explicit);
    assert_eq!(by_address(&[(NAME, "edge")], None), ByAddress::Explicit);
    assert_eq!(by_address(&[(ADDITIONAL, "203.0.113.1")], None), ByAddress::Explicit);
    assert_eq!(by_address(&[(INTERNAL, "true")], None), ByAddress::Plain, "the first gets its address from the pool");
    assert_eq!(by_address(&[("service.beta.kubernetes.io/azure-unknown", "x")], field), ByAddress::Plain);
}

#[test]
fn addresses_are_asked_for_by_name_and_further_ones_beside_them() {
    let request = ask(&[(NAME, "edge"), (NAME_V6, "edge-v6"), (ADDITIONAL, "203.0.113.1, 2001:db8::7")], None).unwrap();
    assert_eq!(request.address_names, ["edge".to_owned(), "edge-v6".to_owned()].into());
    assert_eq!((request.addresses, request.additional), (vips(&[]), vips(&["203.0.113.1", "2001:db8::7"])));
}

#[test]
fn a_pool_is_asked_for_as_a_subnet_a_prefix_or_a_set_of_machines() {
    let named = |name: &str| PoolChoice::Named(name.to_owned());
    for (annotations, pool) in [
        (&[(INTERNAL, "true")][..], named("internal")),
        (&[(INTERNAL, "True"), (SUBNET, "Apps")], named("apps")),
        (&[(INTERNAL, "false"), (SUBNET, "apps")], PoolChoice::Best),
        (&[(SUBNET, "apps")], PoolChoice::Best),
        (&[(PREFIX, PREFIX_ID)], named("edge-prefix")),
        (&[(PREFIX, "edge")], named("edge")),
        (
            &[(PREFIX, PREFIX_ID), ("service.beta.kubernetes.io/azure-pip-prefix-id-ipv6", PREFIX_ID)],
            named("edge-prefix"),
        ),
        (&[(MODE, "__auto__")], PoolChoice::FewestClaims),
        (&[(MODE, "__AUTO__ ")], PoolChoice::FewestClaims),
        (&[(MODE, "vmss1")], named("vmss1")),
        (&[(MODE, "__auto__"), (INTERNAL, "true")], named("internal")),
        (&[(MODE, "apps"), (INTERNAL, "true"), (SUBNET, "apps")], named("apps")),
    ] {
        assert_eq!(ask(annotations, None).unwrap().pool, pool, "{annotations:?}");
    }
}

#[test]
fn pools_that_contradict_each_other_are_ambiguous() {
    for (one, other) in [
        ((INTERNAL, "true"), (MODE, "vmss1")),
        ((INTERNAL, "true"), (PREFIX, PREFIX_ID)),
        ((MODE, "vmss1"), (PREFIX, PREFIX_ID)),
        ((INTERNAL, "true"), ("vipmux.io/pool", "lan")),
        ((PREFIX, PREFIX_ID), ("service.beta.kubernetes.io/azure-pip-prefix-id-ipv6", "/other")),
    ] {
        let (reason, message) = refusal(&[one, other], None);
        assert_eq!(reason, Reason::AmbiguousRequest, "{one:?} {other:?}");
        assert!(message.contains(one.0) && message.contains(other.0), "{message}");
    }
}

#[test]
fn a_label_is_one_that_azure_takes() {
    let longest = format!("a{}", "1".repeat(62));
    for label in ["web", "web-1", &longest] {
        assert_eq!(ask(&[(LABEL, label)], None).unwrap().label.as_deref(), Some(label));
    }
    assert_eq!(ask(&[(LABEL, "")], None).unwrap().label, None);
    for label in ["ab", "1web", "web-", "-web", "Web", "web.example.org", "web_1", " web", &format!("{longest}1")] {
        let (reason, message) = refusal(&[(LABEL, label)], None);
        assert_eq!(reason, Reason::InvalidAnnotation, "{label}");
        assert!(message.starts_with(&format!("{LABEL}: \"{label}\" is malformed; allowed: 3 to 63 ")), "{message}");
    }
}

#[test]
fn a_malformed_value_is_refused_with_what_is_allowed() {
    let long = "a".repeat(81);
    for (annotation, value, allowed) in [
        (IPV4, "2001:db8::1", "one IPv4 address"),
        (IPV4, "192.0.2.10,192.0.2.11", "one IPv4 address"),
        (IPV6, "192.0.2.10", "one IPv6 address"),
        (IPV6, "::", "none comes from DHCP"),
        (NAME, &"a".repeat(254), "at most 253 bytes"),
        (PREFIX, "/subscriptions/publicIPPrefixes/", "a path that ends in the name of a pool"),
        (INTERNAL, "yes", "true or false"),
        (SUBNET, "my subnet", "the name of a pool: letters, digits, hyphens, underscores and dots"),
        (SUBNET, &long, "the name of a pool"),
        (MODE, "vmss1,vmss2", "__auto__, or the name of a pool"),
        (ADDITIONAL, "203.0.113.1,", "IP addresses"),
        (FLOATING, "on", "true or false"),
        ("service.beta.kubernetes.io/azure-shared-securityrule", "1", "true or false"),
    ] {
        let (reason, message) = refusal(&[(annotation, value)], None);
        assert_eq!(reason, Reason::InvalidAnnotation, "{annotation}={value}");
        assert!(message.starts_with(&format!("{annotation}: \"")) && message.contains(allowed), "{message}");
    }
    let (reason, message) = refusal(&[("service.beta.kubernetes.io/azure-pls-proxy-protocol", "true")], None);
    assert_eq!(reason, Reason::InvalidAnnotation);
    assert!(message.contains("turn the protocol off there"), "{message}");
}

#[test]
fn annotations_without_effect_are_noted_once_and_ask_for_nothing() {
    let mentioned = |annotations: &[(&str, &str)]| {
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        notices(&annotations, &ports())
    };
    for (annotation, value, instead) in [
        (FLOATING, "true", "use vipmux.io/direct-server-return"),
        (FLOATING, "false", "use vipmux.io/direct-server-return"),
        ("service.beta.kubernetes.io/azure-shared-securityrule", "true", "no security rules"),
        (GROUP, "rg", "no Azure resources"),
        ("service.beta.kubernetes.io/azure-pip-tags", "a=b", "no Azure resources"),
        ("service.beta.kubernetes.io/azure-pip-ip-tags", "RoutingPreference=Internet", "no Azure resources"),
    ] {
        let noted = mentioned(&[(annotation, value)]);
        assert_eq!(noted.len(), 1, "{annotation}");
        assert!(
            noted[0].starts_with(&format!("{annotation} has no effect here: ")) && noted[0].contains(instead),
            "{noted:?}"
        );
        let asked = Request { dialects: BTreeSet::new(), ..ask(&[(annotation, value)], None).unwrap() };
        assert_eq!(asked, ask(&[], None).unwrap());
    }
    assert_eq!(mentioned(&[(SUBNET, "apps")]), [format!("{SUBNET} has no effect without {INTERNAL}: \"true\"")]);
    assert_eq!(mentioned(&[(SUBNET, "apps"), (INTERNAL, "false")]).len(), 1);
    assert_eq!(mentioned(&[(SUBNET, "apps"), (INTERNAL, "true"), (MODE, "__auto__"), (IDLE, "5")]), [""; 0]);
}

#[test]
fn an_annotation_about_a_port_that_the_service_does_not_have_is_noted() {
    let notices_of =
        |what: &str| notices(&[(format!("service.beta.kubernetes.io/{what}"), "5".to_owned())].into(), &ports());
    for fine in ["port_80_no_lb_rule", "port_53_no_lb_rule", "port_80_health-probe_interval"] {
        assert_eq!(notices_of(fine), [""; 0], "{fine}");
    }
    for (what, expected) in [
        ("port_8080_no_lb_rule", "the Service has no port \"8080\""),
        ("port_080_no_lb_rule", "the Service has no port \"080\""),
        ("port_http_no_lb_rule", "the Service has no port \"http\""),
        ("port_53_health-probe_interval", "the Service has no TCP port \"53\""),
        ("port_53_no_probe_rule", "the Service has no TCP port \"53\""),
        ("port_80_no-lb-rule", "did you mean service.beta.kubernetes.io/port_80_no_lb_rule?"),
        ("port_80_health-probe_intervals", "did you mean service.beta.kubernetes.io/port_80_health-probe_interval?"),
        ("azure-load-balancer-ipv5", "did you mean service.beta.kubernetes.io/azure-load-balancer-ipv4?"),
        ("azure-loadbalancer-internal", "did you mean service.beta.kubernetes.io/azure-load-balancer-internal?"),
    ] {
        let noted = notices_of(what);
        assert!(noted.len() == 1 && noted[0].ends_with(expected), "{noted:?}");
    }
    for of_others in ["aws-load-balancer-type", "load-balancer-source-ranges", "port"] {
        assert_eq!(notices_of(of_others), [""; 0], "{of_others}");
    }
}
