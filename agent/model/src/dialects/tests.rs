//! Tests the requests and notices of annotations, by dialect.

mod azure;

use std::collections::BTreeSet;

use super::{read::MAX_KEY, *};
use crate::{
    Vip,
    fixture::vip,
    port::Port,
    reason::{Reason, Refusal},
    request::{ByAddress, PoolChoice, Request, Scope, Sharing, SharingKey},
};

/// `spec.loadBalancerIP`, in messages.
const FIELD: &str = "spec.loadBalancerIP";

fn ask(annotations: &[(&str, &str)], field: Option<&str>) -> Result<Request, Refusal> {
    let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    request(&annotations, field)
}

fn refusal(annotations: &[(&str, &str)], field: Option<&str>) -> (Reason, String) {
    let refusal = ask(annotations, field).unwrap_err();
    (refusal.reason, refusal.message)
}

fn key(annotations: &[(&str, &str)]) -> SharingKey {
    ask(annotations, None).unwrap().sharing.key.unwrap()
}

/// Returns the ports of a Service.
fn ports() -> BTreeMap<Port, String> {
    ["80/TCP", "443/TCP", "53/UDP"].map(|port| (port.parse().unwrap(), port.to_owned())).into()
}

fn vips(addresses: &[&str]) -> BTreeSet<Vip> {
    addresses.iter().map(|text| vip(text)).collect()
}

/// README.md, "Status".
#[test]
fn the_readme_names_each_dialect() {
    let readme = include_str!("../../../../README.md").to_lowercase();
    let (_, list) = readme.split_once("sharing rules of").unwrap();
    let (list, _) = list.split_once(".\n").unwrap();
    for dialect in ALL {
        assert!(list.contains(&dialect.name.to_lowercase()), "{} is missing in {list:?}", dialect.name);
    }
}

#[test]
fn without_annotations_a_service_is_plain() {
    let request = ask(&[("example.org/other", "x")], None).unwrap();
    assert_eq!(request.sharing, Sharing { key: None, by_address: ByAddress::Plain });
    assert_eq!((request.addresses, request.pool), (vips(&[]), PoolChoice::Best));
    let request = ask(&[], Some("192.0.2.10")).unwrap();
    assert_eq!(request.sharing.by_address, ByAddress::Plain);
    assert_eq!(request.addresses, vips(&["192.0.2.10"]));
}

#[test]
fn a_sharing_key_reaches_as_far_as_its_dialect_lets_it() {
    let home = || Scope::Namespaces(BTreeSet::new());
    for (annotation, dialect, scope) in [
        ("vipmux.io/sharing-key", "vipmux", home()),
        ("metallb.io/allow-shared-ip", "metallb", Scope::Cluster),
        ("metallb.universe.tf/allow-shared-ip", "metallb", Scope::Cluster),
        ("ako.vmware.com/enable-shared-vip", "ako", home()),
        ("lbipam.cilium.io/sharing-key", "cilium", home()),
        ("io.cilium/lb-ipam-sharing-key", "cilium", home()),
        ("purelb.io/allow-shared-ip", "purelb", Scope::Cluster),
    ] {
        let expected = SharingKey { dialect: dialect.to_owned(), key: "web".to_owned(), scope };
        assert_eq!(key(&[(annotation, "web")]), expected, "{annotation}");
        let request = ask(&[(annotation, "web")], None).unwrap();
        assert_eq!(request.never_spills, ["ako", "purelb"].contains(&dialect), "{annotation}");
        assert_eq!(request.sharing.by_address, ByAddress::Never, "{annotation}");
    }
    for (annotation, namespaces) in [
        ("vipmux.io/sharing-key", "vipmux.io/sharing-namespaces"),
        ("lbipam.cilium.io/sharing-key", "lbipam.cilium.io/sharing-cross-namespace"),
        ("io.cilium/lb-ipam-sharing-key", "io.cilium/lb-ipam-sharing-cross-namespace"),
    ] {
        let listed = Scope::Namespaces(["a".to_owned(), "b".to_owned()].into());
        for (text, scope) in [("a, b", listed), ("*", Scope::Cluster)] {
            assert_eq!(key(&[(annotation, "web"), (namespaces, text)]).scope, scope, "{namespaces}={text}");
        }
    }
}

#[test]
fn addresses_are_asked_for_and_shared_as_in_the_dialect() {
    for (annotation, pair, by_address) in [
        ("vipmux.io/addresses", true, ByAddress::Never),
        ("metallb.io/loadBalancerIPs", true, ByAddress::Never),
        ("metallb.universe.tf/loadBalancerIPs", true, ByAddress::Never),
        ("ako.vmware.com/load-balancer-ip", false, ByAddress::Never),
        ("lbipam.cilium.io/ips", true, ByAddress::Never),
        ("io.cilium/lb-ipam-ips", true, ByAddress::Never),
        ("kube-vip.io/loadbalancerIPs", true, ByAddress::Explicit),
        ("purelb.io/addresses", true, ByAddress::Never),
        ("eip.openelb.kubesphere.io/v1alpha1", false, ByAddress::Explicit),
        ("loxilb.io/staticIP", false, ByAddress::Explicit),
    ] {
        let addresses: &[&str] = if pair { &["192.0.2.10", "2001:db8::1"] } else { &["192.0.2.10"] };
        let request = ask(&[(annotation, &addresses.join(", "))], None).unwrap();
        assert_eq!((request.addresses, request.sharing.by_address), (vips(addresses), by_address), "{annotation}");
    }
    let both = [("loxilb.io/staticIP", "192.0.2.10"), ("loxilb.io/secondaryIPs", "192.0.2.11,192.0.2.12")];
    let request = ask(&both, None).unwrap();
    assert_eq!(request.addresses, vips(&["192.0.2.10"]));
    assert_eq!(request.additional, vips(&["192.0.2.11", "192.0.2.12"]));
}

#[test]
fn a_pool_is_asked_for_by_its_name() {
    for annotation in [
        "vipmux.io/pool",
        "metallb.io/address-pool",
        "metallb.universe.tf/address-pool",
        "purelb.io/service-group",
        "eip.openelb.kubesphere.io/v1alpha2",
        "loxilb.io/poolSelect",
    ] {
        assert_eq!(ask(&[(annotation, "lan")], None).unwrap().pool.name(), Some("lan"), "{annotation}");
    }
}

#[test]
fn a_service_of_a_dialect_that_shares_by_address_does_so_with_the_field_too() {
    let openelb = ("lb.kubesphere.io/v1alpha1", "openelb");
    let by_address = |annotations: &[_], field| ask(annotations, field).unwrap().sharing.by_address;
    assert_eq!(by_address(&[openelb], Some("192.0.2.10")), ByAddress::Explicit);
    assert_eq!(by_address(&[openelb], None), ByAddress::Plain, "the first one, which gets its address from the pool");
    assert_eq!(by_address(&[("loxilb.io/poolSelect", "lan")], None), ByAddress::Plain);
    let noted = [("kube-vip.io/vipHost", "n1"), ("metallb.io/ip-allocated-from-pool", "lan")];
    assert_eq!(by_address(&noted, Some("192.0.2.10")), ByAddress::Plain, "notes of a controller ask for nothing");
}

#[test]
fn a_group_of_ako_must_say_alike_which_address_and_which_infrastructure_setting() {
    let alike = |annotations: &[_], field| {
        let alike = ask(annotations, field).unwrap().alike;
        alike.into_iter().map(|(what, value)| format!("{what}={value}")).collect::<Vec<_>>().join(" ")
    };
    let key = ("ako.vmware.com/enable-shared-vip", "web");
    assert_eq!(alike(&[key], None), "");
    let gold = ("aviinfrasetting.ako.vmware.com/name", "gold");
    let expected = "aviinfrasetting.ako.vmware.com/name=gold the static address=192.0.2.10";
    assert_eq!(alike(&[key, gold], Some("192.0.2.10")), expected);
    assert_eq!(alike(&[key, gold, ("ako.vmware.com/load-balancer-ip", "192.0.2.10")], None), expected);
    assert_eq!(alike(&[gold], Some("192.0.2.10")), "", "one without a key is in no group");
}

#[test]
fn annotations_without_effect_are_noted_with_the_remedy() {
    let notices_of = |key: &str, value: &str| notices(&[(key.to_owned(), value.to_owned())].into(), &ports());
    for dialect in ALL {
        for (spellings, meaning) in dialect.annotations {
            for spelling in *spellings {
                let spelling = &spelling.replace(PORT, "80");
                match meaning {
                    Meaning::WithoutEffect(instead) | Meaning::EitherWithoutEffect(instead) => {
                        assert_eq!(notices_of(spelling, "true"), [format!("{spelling} has no effect here: {instead}")]);
                        assert_eq!(notices_of(spelling, ""), [""; 0], "an empty value counts as not there");
                        assert!(ask(&[(spelling, "true")], None).is_ok(), "{spelling}");
                    }
                    // It is reported if the other annotation is absent.
                    Meaning::PoolInstead => assert_eq!(notices_of(spelling, "x").len(), 1, "{spelling}"),
                    _ => assert_eq!(notices_of(spelling, "x"), [""; 0], "{spelling}"),
                }
            }
        }
    }
    let many = (0..40).map(|number| (format!("vipmux.io/unknown-annotation-{number}"), "x".to_owned())).collect();
    assert_eq!(notices(&many, &ports()).last().unwrap(), "24 further annotations have no effect here");
}

#[test]
fn a_label_with_the_key_of_an_annotation_is_noted() {
    let labels = ["metallb.io/allow-shared-ip", "metallb.io/other", "app", "vipmux.io/pool"];
    let labels = labels.map(|key| (key.to_owned(), "x".to_owned())).into();
    let annotations = [("vipmux.io/pool".to_owned(), "x".to_owned())].into();
    let notices: Vec<_> = of_labels(&labels, &annotations).collect();
    let message = "\"metallb.io/allow-shared-ip\" has no effect as a label: it belongs under metadata.annotations";
    assert_eq!(notices, [message]);
}

#[test]
fn unsupported_annotations_that_change_the_service_are_refused_with_the_remedy() {
    for (annotation, value, remedy) in [
        ("kube-vip.io/loadbalancerIPs", "0.0.0.0", "none comes from DHCP: leave it out to get one from a pool"),
        ("kube-vip.io/loadbalancerIPs", "192.0.2.10,::", "none comes from DHCP: leave it out to get one from a pool"),
        ("kube-vip.io/ignore", "true", "set another spec.loadBalancerClass; else remove the annotation"),
        ("ako.vmware.com/l4rule", "edge", "use spec.loadBalancerSourceRanges"),
        ("purelb.io/multi-pool", "true", "name the addresses in vipmux.io/addresses"),
        ("protocol.openelb.kubesphere.io/v1alpha1", "bgp", "announced by ARP and Neighbor Discovery"),
        ("node-proxy.openelb.kubesphere.io/type", "daemonset", "no Service gets a node's address"),
        ("loxilb.io/poolSelectSecondary", "a,b", "name them in loxilb.io/secondaryIPs"),
        ("loxilb.io/num-secondary-networks", "2", "name them in loxilb.io/secondaryIPs"),
        ("loxilb.io/ipam", "ipv6to4", "set spec.ipFamilies"),
        ("loxilb.io/useproxyprotov2", "yes", "turn the protocol off there"),
    ] {
        let (reason, message) = refusal(&[(annotation, value)], None);
        assert_eq!(reason, Reason::InvalidAnnotation, "{annotation}={value}");
        assert!(message.starts_with(annotation) && message.contains(remedy), "{message}");
    }
    for (annotation, value) in [
        ("kube-vip.io/ignore", "false"),
        ("purelb.io/multi-pool", "false"),
        ("protocol.openelb.kubesphere.io/v1alpha1", "layer2"),
        ("loxilb.io/ipam", "IPv4"),
        ("loxilb.io/useproxyprotov2", "no"),
    ] {
        assert!(ask(&[(annotation, value)], None).is_ok(), "{annotation}={value}");
    }
    let (reason, message) = refusal(&[], Some("0.0.0.0"));
    assert_eq!(reason, Reason::InvalidService);
    assert!(message.starts_with(FIELD) && message.contains("none comes from DHCP"), "{message}");
}

#[test]
fn a_misspelled_annotation_is_noted_with_the_right_spelling() {
    let notices_of = |key: &str| notices(&[(key.to_owned(), "x".to_owned())].into(), &ports()).concat();
    for (key, meant) in [
        ("vipmux.io/sharing-keys", "vipmux.io/sharing-key"),
        ("vipmux.io/Sharing-Key", "vipmux.io/sharing-key"),
        ("vipmux.io/address", "vipmux.io/addresses"),
        ("metallb.io/allow-share-ip", "metallb.io/allow-shared-ip"),
        ("metallb.io/loadbalancerips", "metallb.io/loadBalancerIPs"),
        ("metallb.universe.tf/ip-address-pool", "metallb.universe.tf/address-pool"),
        ("lbipam.cilium.io/ip", "lbipam.cilium.io/ips"),
        ("io.cilium/lb-ipam-share-key", "io.cilium/lb-ipam-sharing-key"),
        ("kube-vip.io/loadBalancerIPs", "kube-vip.io/loadbalancerIPs"),
        ("purelb.io/service_group", "purelb.io/service-group"),
        ("eip.openelb.kubesphere.io/v1alpha3", "eip.openelb.kubesphere.io/v1alpha1"),
        ("loxilb.io/static-ip", "loxilb.io/staticIP"),
        ("metallb.com/allow-shared-ip", "metallb.io/allow-shared-ip"),
        ("metallb.universe.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"),
        ("purelb.to/addresses", "purelb.io/addresses"),
        ("metallb.universe.tf/shared-ip", "metallb.io/allow-shared-ip"),
        ("metallb.universe.tf/ip-pool", "metallb.io/address-pool"),
        ("metallb.io/pool", "metallb.io/address-pool"),
        ("io.cilium/lb-ipam-pool", "vipmux.io/pool"),
        ("kube-vip.io/allow-shared-ip", "metallb.io/allow-shared-ip"),
        ("kube-vip.io/address-pool", "metallb.io/address-pool"),
    ] {
        assert!(
            notices_of(key).ends_with(&format!("and has no effect: did you mean {meant}?")),
            "{key}: {}",
            notices_of(key)
        );
    }
    for spelling in ALL.iter().flat_map(|dialect| dialect.annotations).flat_map(|(spellings, _)| *spellings) {
        let prefixes = ALL.iter().flat_map(|dialect| dialect.prefixes);
        let prefix = prefixes.filter(|prefix| spelling.starts_with(**prefix)).map(|prefix| prefix.len()).max().unwrap();
        for place in prefix..spelling.len() {
            let key = format!("{}{}", &spelling[..place], &spelling[place + 1..]);
            let known = ALL.iter().any(|dialect| dialect.meaning(&key).is_some());
            assert!(known || notices_of(&key).contains("did you mean "), "{key}, for {spelling}");
        }
    }
    let expected = "\"vipmux.io/colour\" is an unknown annotation of vipmux and has no effect: docs/annotations.md \
                    lists those with an effect";
    assert_eq!(notices_of("vipmux.io/colour"), expected);
    for key in ["example.org/addresses", "kubectl.kubernetes.io/last-applied-configuration", "addresses", "/", ""] {
        assert_eq!(notices_of(key), "", "{key} is nobody's that is known here");
    }
    let endless = format!("vipmux.io/{}", "a".repeat(1 << 20));
    assert!(notices_of(&endless).ends_with("docs/annotations.md lists those with an effect"));
}

#[test]
fn a_malformed_value_is_refused_with_annotation_value_and_what_is_allowed() {
    for (annotation, value, allowed) in [
        ("vipmux.io/addresses", "192.0.2.300", "IP addresses"),
        ("vipmux.io/addresses", "192.0.2.1,", "\"192.0.2.1,\" is malformed; allowed: IP addresses, separated"),
        ("vipmux.io/addresses", "224.0.0.1", "multicast"),
        ("metallb.io/loadBalancerIPs", "lan", "IP addresses"),
        ("metallb.io/loadBalancerIPs", "192.0.2.1,192.0.2.2", "at most 1 of each address family"),
        ("vipmux.io/pool", "Not A Pool", "the name of a pool"),
        ("vipmux.io/sharing-namespaces", "a,,b", "separated by commas"),
        ("vipmux.io/sharing-namespaces", "a,*", "separated by commas"),
        ("vipmux.io/sharing-key", &"k".repeat(MAX_KEY + 1), "at most 253 bytes"),
        ("vipmux.io/addresses", &vec!["192.0.2.1"; 65].join(","), "at most 64 IP addresses"),
        ("ako.vmware.com/load-balancer-ip", "192.0.2.1,192.0.2.2", "at most 1 of each address family"),
        ("purelb.io/addresses", "192.0.2.1,192.0.2.2", "at most 1 of each address family"),
        ("kube-vip.io/loadbalancerIPs", "dhcp", "IP addresses"),
        ("eip.openelb.kubesphere.io/v1alpha1", "layer2-eip", "IP addresses"),
        ("lbipam.cilium.io/sharing-cross-namespace", "Shop", "separated by commas"),
        ("loxilb.io/poolSelect", "Pool 1", "the name of a pool"),
    ] {
        let (reason, message) = refusal(&[(annotation, value)], None);
        assert_eq!(reason, Reason::InvalidAnnotation, "{annotation}={value}");
        assert!(message.starts_with(&format!("{annotation}: \"")) && message.contains(allowed), "{message}");
    }
    let (reason, message) = refusal(&[], Some("example.org"));
    assert_eq!(reason, Reason::InvalidService);
    assert!(message.starts_with("spec.loadBalancerIP: \"example.org\""), "{message}");
    let (_, message) = refusal(&[], Some("192.0.2.1,2001:db8::1"));
    let allowed = "one IP address, such as 192.0.2.10; vipmux.io/addresses names several";
    assert!(message.ends_with(&format!("is malformed; allowed: {allowed}")), "{message}");
}

#[test]
fn keys_of_two_dialects_are_ambiguous_even_when_equal() {
    let (reason, message) = refusal(&[("vipmux.io/sharing-key", "web"), ("metallb.io/allow-shared-ip", "web")], None);
    assert_eq!(reason, Reason::AmbiguousRequest);
    assert!(message.contains("vipmux.io/sharing-key") && message.contains("metallb.io/allow-shared-ip"), "{message}");
}

#[test]
fn the_field_agrees_with_a_list_that_has_it() {
    // kube-vip's cloud provider writes both addresses into the annotation, and the first one into
    // the field too.
    let both = [("kube-vip.io/loadbalancerIPs", "192.0.2.1,2001:db8::1")];
    assert_eq!(ask(&both, Some("192.0.2.1")).unwrap().addresses, vips(&["192.0.2.1", "2001:db8::1"]));
    assert_eq!(refusal(&both, Some("192.0.2.2")).0, Reason::AmbiguousRequest);
}

#[test]
fn different_addresses_or_pools_in_two_dialects_are_ambiguous() {
    let addresses = |theirs| [("vipmux.io/addresses", "192.0.2.1"), ("metallb.io/loadBalancerIPs", theirs)];
    assert_eq!(refusal(&addresses("192.0.2.2"), None).0, Reason::AmbiguousRequest);
    assert_eq!(ask(&addresses("192.0.2.1"), None).unwrap().addresses, vips(&["192.0.2.1"]));
    let pools = [("vipmux.io/pool", "a"), ("metallb.io/address-pool", "b")];
    assert_eq!(refusal(&pools, None).0, Reason::AmbiguousRequest);
    assert_eq!(refusal(&[("vipmux.io/addresses", "192.0.2.1")], Some("192.0.2.2")).0, Reason::AmbiguousRequest);
}

#[test]
fn the_two_spellings_of_one_dialect_are_one() {
    let both = |other| [("metallb.io/allow-shared-ip", "web"), ("metallb.universe.tf/allow-shared-ip", other)];
    assert_eq!(key(&both("web")).key, "web");
    assert_eq!(refusal(&both("api"), None).0, Reason::AmbiguousRequest);
}

#[test]
fn metallb_annotation_and_field_exclude_each_other_even_when_equal() {
    let (reason, message) = refusal(&[("metallb.universe.tf/loadBalancerIPs", "192.0.2.1")], Some("192.0.2.1"));
    assert_eq!(reason, Reason::AmbiguousRequest);
    assert!(message.contains("metallb.universe.tf/loadBalancerIPs") && message.contains(FIELD), "{message}");
    assert!(ask(&[("vipmux.io/addresses", "192.0.2.1")], Some("192.0.2.1")).is_ok());
}

#[test]
fn an_empty_value_asks_for_nothing() {
    let request = ask(&[("vipmux.io/sharing-key", ""), ("metallb.io/loadBalancerIPs", "")], Some("")).unwrap();
    assert_eq!(request, Request { sharing: Sharing { key: None, by_address: ByAddress::Plain }, ..Request::default() });
}

#[test]
fn no_two_dialects_have_the_same_annotation_or_prefix() {
    let mut seen = BTreeSet::new();
    let prefixes = ALL.iter().flat_map(|dialect| dialect.prefixes);
    for dialect in ALL {
        for spelling in dialect.annotations.iter().flat_map(|(spellings, _)| *spellings) {
            assert!(seen.insert(spelling), "{spelling}");
            let owners = prefixes.clone().filter(|prefix| spelling.starts_with(**prefix)).count();
            assert!(owners == 1 && dialect.owns(spelling), "{spelling} is under one prefix, its dialect's");
        }
    }
}
