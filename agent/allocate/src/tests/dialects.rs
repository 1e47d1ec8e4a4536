//! Tests each dialect with a table: features and limits that users of that load balancer know.

use super::*;

/// A name, the Services, and the outcome. Each Service has one port.
type Case = (&'static str, &'static [Member], &'static str);

/// `namespace/name`, port, annotations, `spec.loadBalancerIP` (empty: none).
type Member = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

/// Checks the cases with pools `lan` (192.0.2.10 to .12 and 2001:db8::10 to ::12), which assigns
/// automatically, and `dmz` (192.0.2.20 to .21).
fn hold(cases: &[Case]) {
    for (what, members, outcome) in cases {
        let lan = Cluster::new(&["192.0.2.10-192.0.2.12", "2001:db8::10-2001:db8::12"]);
        let dmz = serde_json::json!({"addresses": ["192.0.2.20-192.0.2.21"], "autoAssign": false});
        let cluster = members.iter().fold(lan.pool("dmz", &dmz), |cluster, (name, port, annotations, field)| {
            let field = (!field.is_empty()).then(|| (*field).to_owned());
            cluster.service(name, &[port], annotations).spec(name, |spec| spec.load_balancer_ip = field)
        });
        assert_eq!(cluster.outcome(), *outcome, "{what}");
    }
}

#[test]
fn metallb() {
    const WEB: (&str, &str) = ("metallb.io/allow-shared-ip", "web");
    const OLD: (&str, &str) = ("metallb.universe.tf/allow-shared-ip", "web");
    hold(&[
        (
            "a key reaches every namespace",
            &[("a/x", "80/TCP", &[WEB], ""), ("b/x", "443/TCP", &[OLD], "")],
            "a/x=10 b/x=10",
        ),
        (
            "without a key there is no sharing",
            &[
                ("a/x", "80/TCP", &[("metallb.io/loadBalancerIPs", "192.0.2.10")], ""),
                ("a/y", "443/TCP", &[("metallb.io/loadBalancerIPs", "192.0.2.10")], ""),
            ],
            "a/x=10 a/y:SharingMismatch",
        ),
        (
            "a key and an address",
            &[
                ("a/x", "80/TCP", &[WEB, ("metallb.io/loadBalancerIPs", "192.0.2.11")], ""),
                ("a/y", "53/UDP", &[OLD], "192.0.2.11"),
            ],
            "a/x=11 a/y=11",
        ),
        (
            "both an annotation and the field are an error",
            &[("a/x", "80/TCP", &[("metallb.io/loadBalancerIPs", "192.0.2.10")], "192.0.2.10")],
            "a/x:AmbiguousRequest",
        ),
        (
            "one address of each family",
            &[
                ("a/x", "80/TCP", &[("metallb.io/loadBalancerIPs", "192.0.2.11,2001:db8::11")], ""),
                ("a/y", "80/TCP", &[("metallb.io/loadBalancerIPs", "192.0.2.10,192.0.2.12")], ""),
            ],
            "a/x=11,::11 a/y:InvalidAnnotation",
        ),
        (
            "a pool is named, and what MetalLB notes names none",
            &[
                ("a/x", "80/TCP", &[("metallb.io/address-pool", "dmz")], ""),
                ("a/y", "80/TCP", &[("metallb.io/ip-allocated-from-pool", "dmz")], ""),
                ("a/z", "80/TCP", &[("metallb.universe.tf/address-pool", "wan")], ""),
            ],
            "a/x=20 a/y=10 a/z:NoPool",
        ),
        (
            "an address is of the pool that is named",
            &[(
                "a/x",
                "80/TCP",
                &[("metallb.io/address-pool", "dmz"), ("metallb.io/loadBalancerIPs", "192.0.2.10")],
                "",
            )],
            "a/x:AddressNotInPool",
        ),
        (
            "a clash within a group is given another address",
            &[("a/x", "80/TCP", &[WEB], ""), ("a/y", "80/TCP", &[WEB], ""), ("a/z", "81/TCP", &[WEB], "")],
            "a/x=10 a/y=11 a/z=10",
        ),
    ]);
}

#[test]
fn ako() {
    const WEB: (&str, &str) = ("ako.vmware.com/enable-shared-vip", "web");
    const TEN: (&str, &str) = ("ako.vmware.com/load-balancer-ip", "192.0.2.10");
    const GOLD: (&str, &str) = ("aviinfrasetting.ako.vmware.com/name", "gold");
    const SILVER: (&str, &str) = ("aviinfrasetting.ako.vmware.com/name", "silver");
    hold(&[
        (
            "a group of one setting and one address is served",
            &[("a/x", "80/TCP", &[WEB, GOLD, TEN], ""), ("a/y", "80/UDP", &[WEB, GOLD], "192.0.2.10")],
            "a/x=10 a/y=10",
        ),
        (
            "where settings differ none is",
            &[
                ("a/x", "80/TCP", &[WEB, GOLD], ""),
                ("a/y", "80/UDP", &[WEB, SILVER], ""),
                ("a/z", "81/TCP", &[WEB, GOLD], ""),
            ],
            "a/x:GroupMismatch a/y:GroupMismatch a/z:GroupMismatch",
        ),
        (
            "nor where addresses do, or one names none",
            &[
                ("a/x", "80/TCP", &[WEB, TEN], ""),
                ("a/y", "80/UDP", &[WEB], ""),
                ("b/x", "80/TCP", &[WEB], "192.0.2.11"),
                ("b/y", "81/TCP", &[WEB], "192.0.2.12"),
            ],
            "a/x:GroupMismatch a/y:GroupMismatch b/x:GroupMismatch b/y:GroupMismatch",
        ),
        (
            "a key stays in its namespace",
            &[("a/x", "80/TCP", &[WEB], ""), ("a/y", "80/UDP", &[WEB], ""), ("b/x", "443/TCP", &[WEB], "")],
            "a/x=10 a/y=10 b/x=11",
        ),
        (
            "a key never spills",
            &[("a/x", "80/TCP", &[WEB], ""), ("a/y", "80/TCP", &[WEB], "")],
            "a/x=10 a/y:PortConflict",
        ),
        (
            "the annotation and the field are one request",
            &[("a/x", "80/TCP", &[WEB, TEN], ""), ("a/y", "443/TCP", &[WEB], "192.0.2.10")],
            "a/x=10 a/y=10",
        ),
        (
            "and contradict each other where they differ",
            &[("a/x", "80/TCP", &[TEN], "192.0.2.11")],
            "a/x:AmbiguousRequest",
        ),
        (
            "an address alone shares with nobody",
            &[("a/x", "80/TCP", &[TEN], ""), ("a/y", "443/TCP", &[TEN], "")],
            "a/x=10 a/y:SharingMismatch",
        ),
        (
            "an L4Rule is not ignored",
            &[("a/x", "80/TCP", &[("ako.vmware.com/l4rule", "edge")], "")],
            "a/x:InvalidAnnotation",
        ),
    ]);
}

#[test]
fn cilium() {
    const WEB: (&str, &str) = ("lbipam.cilium.io/sharing-key", "web");
    const OLD: (&str, &str) = ("io.cilium/lb-ipam-sharing-key", "web");
    const TO_B: (&str, &str) = ("lbipam.cilium.io/sharing-cross-namespace", "b");
    const TO_ALL: (&str, &str) = ("io.cilium/lb-ipam-sharing-cross-namespace", "*");
    hold(&[
        (
            "a key stays in its namespace",
            &[("a/x", "80/TCP", &[WEB], ""), ("a/y", "443/TCP", &[OLD], ""), ("b/x", "81/TCP", &[WEB], "")],
            "a/x=10 a/y=10 b/x=11",
        ),
        (
            "unless both let the other in",
            &[("a/x", "80/TCP", &[WEB, TO_B], ""), ("b/x", "443/TCP", &[WEB, TO_ALL], "")],
            "a/x=10 b/x=10",
        ),
        (
            "one alone does not suffice",
            &[("a/x", "80/TCP", &[WEB, TO_B], ""), ("b/x", "443/TCP", &[WEB], "")],
            "a/x=10 b/x=11",
        ),
        (
            "several addresses",
            &[
                ("a/x", "80/TCP", &[("lbipam.cilium.io/ips", "192.0.2.10,192.0.2.12")], ""),
                ("a/y", "80/TCP", &[("io.cilium/lb-ipam-ips", "192.0.2.11, 2001:db8::11")], ""),
            ],
            "a/x=10,12 a/y=11,::11",
        ),
        (
            "an address without a key shares with nobody",
            &[
                ("a/x", "80/TCP", &[("lbipam.cilium.io/ips", "192.0.2.10")], ""),
                ("a/y", "443/TCP", &[("lbipam.cilium.io/ips", "192.0.2.10")], ""),
            ],
            "a/x=10 a/y:SharingMismatch",
        ),
        (
            "the two spellings are one",
            &[("a/x", "80/TCP", &[WEB, ("io.cilium/lb-ipam-sharing-key", "api")], "")],
            "a/x:AmbiguousRequest",
        ),
        (
            "a clash within a group is given another address",
            &[("a/x", "80/TCP", &[WEB], ""), ("a/y", "80/TCP", &[WEB], "")],
            "a/x=10 a/y=11",
        ),
    ]);
}

#[test]
fn kube_vip() {
    const TEN: (&str, &str) = ("kube-vip.io/loadbalancerIPs", "192.0.2.10");
    hold(&[
        (
            "naming the address is the request to share it",
            &[("a/x", "80/TCP", &[TEN], ""), ("b/x", "443/TCP", &[TEN], "")],
            "a/x=10 b/x=10",
        ),
        (
            "with the first one, which got it from the pool, too",
            &[
                ("a/x", "80/TCP", &[], ""),
                ("b/x", "443/TCP", &[("kube-vip.io/loadbalancerIPs", "192.0.2.12")], ""),
                ("b/y", "443/UDP", &[("kube-vip.io/loadbalancerIPs", "192.0.2.12")], ""),
            ],
            "a/x=10 b/x=12 b/y=12",
        ),
        (
            "never with one that has a key",
            &[
                (
                    "a/x",
                    "80/TCP",
                    &[("metallb.io/allow-shared-ip", "web"), ("metallb.io/loadBalancerIPs", "192.0.2.10")],
                    "",
                ),
                ("b/x", "443/TCP", &[TEN], ""),
            ],
            "a/x=10 b/x:SharingMismatch",
        ),
        (
            "a port has one owner",
            &[("a/x", "80/TCP", &[TEN], ""), ("b/x", "80/TCP", &[TEN], "")],
            "a/x=10 b/x:PortConflict",
        ),
        (
            "both families, and the first in the field as its cloud provider has it",
            &[("a/x", "80/TCP", &[("kube-vip.io/loadbalancerIPs", "192.0.2.10,2001:db8::10")], "192.0.2.10")],
            "a/x=10,::10",
        ),
        (
            "DHCP is not to be had",
            &[("a/x", "80/TCP", &[("kube-vip.io/loadbalancerIPs", "0.0.0.0")], ""), ("a/y", "80/TCP", &[], "0.0.0.0")],
            "a/x:InvalidAnnotation a/y:InvalidService",
        ),
        (
            "an address in no pool",
            &[("a/x", "80/TCP", &[("kube-vip.io/loadbalancerIPs", "192.0.2.99")], "")],
            "a/x:AddressNotInPool",
        ),
    ]);
}

#[test]
fn purelb() {
    const WEB: (&str, &str) = ("purelb.io/allow-shared-ip", "web");
    hold(&[
        (
            "a key reaches every namespace",
            &[("a/x", "80/TCP", &[WEB], ""), ("b/x", "443/TCP", &[WEB], "")],
            "a/x=10 b/x=10",
        ),
        (
            "a key never spills",
            &[("a/x", "80/TCP", &[WEB], ""), ("a/y", "80/TCP", &[WEB], "")],
            "a/x=10 a/y:PortConflict",
        ),
        ("a ServiceGroup is a pool", &[("a/x", "80/TCP", &[WEB, ("purelb.io/service-group", "dmz")], "")], "a/x=20"),
        (
            "an address of each family",
            &[
                ("a/x", "80/TCP", &[("purelb.io/addresses", "192.0.2.11,2001:db8::11")], ""),
                ("a/y", "80/TCP", &[("purelb.io/addresses", "192.0.2.10,192.0.2.12")], ""),
            ],
            "a/x=11,::11 a/y:InvalidAnnotation",
        ),
        (
            "an address without a key shares with nobody",
            &[
                ("a/x", "80/TCP", &[("purelb.io/addresses", "192.0.2.10")], ""),
                ("a/y", "443/TCP", &[("purelb.io/addresses", "192.0.2.10")], ""),
            ],
            "a/x=10 a/y:SharingMismatch",
        ),
        (
            "not an address of every range",
            &[("a/x", "80/TCP", &[("purelb.io/multi-pool", "true")], "")],
            "a/x:InvalidAnnotation",
        ),
    ]);
}

#[test]
fn openelb() {
    const OURS: (&str, &str) = ("lb.kubesphere.io/v1alpha1", "openelb");
    const TEN: (&str, &str) = ("eip.openelb.kubesphere.io/v1alpha1", "192.0.2.10");
    hold(&[
        (
            "naming the address is the request to share it",
            &[("a/x", "80/TCP", &[OURS, TEN], ""), ("b/x", "443/TCP", &[OURS, TEN], "")],
            "a/x=10 b/x=10",
        ),
        (
            "by the field too",
            &[("a/x", "80/TCP", &[OURS], "192.0.2.10"), ("b/x", "443/TCP", &[OURS], "192.0.2.10")],
            "a/x=10 b/x=10",
        ),
        (
            "without that each has its own",
            &[("a/x", "80/TCP", &[OURS], ""), ("b/x", "443/TCP", &[OURS], "")],
            "a/x=10 b/x=11",
        ),
        (
            "a port has one owner",
            &[("a/x", "80/TCP", &[OURS, TEN], ""), ("b/x", "80/TCP", &[OURS, TEN], "")],
            "a/x=10 b/x:PortConflict",
        ),
        (
            "an Eip is a pool",
            &[("a/x", "80/TCP", &[OURS, ("eip.openelb.kubesphere.io/v1alpha2", "dmz")], "")],
            "a/x=20",
        ),
        (
            "layer 2 alone",
            &[
                ("a/x", "80/TCP", &[OURS, ("protocol.openelb.kubesphere.io/v1alpha1", "layer2")], ""),
                ("a/y", "80/TCP", &[OURS, ("protocol.openelb.kubesphere.io/v1alpha1", "bgp")], ""),
            ],
            "a/x=10 a/y:InvalidAnnotation",
        ),
    ]);
}

#[test]
fn kube_loxilb() {
    const TEN: (&str, &str) = ("loxilb.io/staticIP", "192.0.2.10");
    hold(&[
        (
            "naming the address is the request to share it",
            &[("a/x", "80/TCP", &[TEN], ""), ("b/x", "443/TCP", &[TEN], "")],
            "a/x=10 b/x=10",
        ),
        (
            "a port has one owner",
            &[("a/x", "80/TCP", &[TEN], ""), ("b/x", "80/TCP", &[TEN], "")],
            "a/x=10 b/x:PortConflict",
        ),
        ("a pool is selected", &[("a/x", "80/TCP", &[("loxilb.io/poolSelect", "dmz")], "")], "a/x=20"),
        (
            "no PROXY protocol",
            &[("a/x", "80/TCP", &[TEN, ("loxilb.io/useproxyprotov2", "yes")], "")],
            "a/x:InvalidAnnotation",
        ),
        ("the balancing has no effect", &[("a/x", "80/TCP", &[TEN, ("loxilb.io/lbmode", "dsr")], "")], "a/x=10"),
    ]);
}

#[test]
fn dialects_do_not_mix() {
    hold(&[
        (
            "keys of two dialects",
            &[("a/x", "80/TCP", &[("metallb.io/allow-shared-ip", "web"), ("purelb.io/allow-shared-ip", "web")], "")],
            "a/x:AmbiguousRequest",
        ),
        (
            "different addresses in two",
            &[(
                "a/x",
                "80/TCP",
                &[("kube-vip.io/loadbalancerIPs", "192.0.2.10"), ("loxilb.io/staticIP", "192.0.2.11")],
                "",
            )],
            "a/x:AmbiguousRequest",
        ),
        (
            "equal addresses in two",
            &[
                (
                    "a/x",
                    "80/TCP",
                    &[("kube-vip.io/loadbalancerIPs", "192.0.2.10"), ("loxilb.io/staticIP", "192.0.2.10")],
                    "",
                ),
                ("a/y", "81/TCP", &[("eip.openelb.kubesphere.io/v1alpha1", "192.0.2.10")], ""),
            ],
            "a/x=10 a/y=10",
        ),
        (
            "equal keys of two dialects on two Services",
            &[
                ("a/x", "80/TCP", &[("metallb.io/allow-shared-ip", "web")], ""),
                ("a/y", "81/TCP", &[("purelb.io/allow-shared-ip", "web")], ""),
            ],
            "a/x=10 a/y=11",
        ),
    ]);
}
