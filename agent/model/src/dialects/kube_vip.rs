//! Describes the annotations of kube-vip (<https://kube-vip.io/docs/usage/kubernetes-services/>).

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Unsupported, WithoutEffect},
};

const DHCP: &str = "addresses come from pools, not from DHCP";
const NOTED: &str = "kube-vip records its own actions there";
const EGRESS: &str = "traffic that pods start keeps the source address from the CNI";

pub(super) const DIALECT: Dialect = Dialect {
    name: "kube-vip",
    prefixes: &["kube-vip.io/"],
    annotations: &[
        (&["kube-vip.io/loadbalancerIPs"], Addresses),
        (
            &["kube-vip.io/ignore"],
            Unsupported {
                harmless: &["false"],
                remedy: "to exclude a Service, set another spec.loadBalancerClass; else remove the annotation",
            },
        ),
        (&["kube-vip.io/requestedIP"], WithoutEffect(DHCP)),
        (&["kube-vip.io/hwaddr"], WithoutEffect(DHCP)),
        (&["kube-vip.io/loadbalancerHostname"], WithoutEffect(DHCP)),
        (&["kube-vip.io/ddns"], WithoutEffect(DHCP)),
        (&["kube-vip.io/dhcp-broadcast"], WithoutEffect(DHCP)),
        (&["kube-vip.io/macvlanName"], WithoutEffect(DHCP)),
        (&["kube-vip.io/vipHost"], WithoutEffect(NOTED)),
        (&["kube-vip.io/active-endpoint", "kube-vip.io/active-endpoint-ipv6"], WithoutEffect(NOTED)),
        (
            &["kube-vip.io/serviceInterface", "kube-vip.io/serviceVLAN"],
            WithoutEffect("the interfaces of a pool are in its L2Advertisement or VipPolicy"),
        ),
        (
            &["kube-vip.io/allow-reconcile-without-endpoints"],
            WithoutEffect("a Service without endpoints keeps its address"),
        ),
        (
            &["kube-vip.io/ignore-service-security"],
            WithoutEffect("ports of the address that no Service has are always closed"),
        ),
        (&["kube-vip.io/leaseName"], WithoutEffect("there is no Lease per Service")),
        (
            &["kube-vip.io/forwardUPNP"],
            WithoutEffect("vipmux does not use UPnP: configure the port forwarding on the router"),
        ),
        (&["kube-vip.io/upnp-lease-duration"], WithoutEffect("vipmux does not use UPnP")),
        (
            &["kube-vip.io/rp_filter"],
            WithoutEffect("no address is added to an interface, so its filter does not apply"),
        ),
        (&["kube-vip.io/egress"], WithoutEffect(EGRESS)),
        (&["kube-vip.io/egress-internal"], WithoutEffect(EGRESS)),
        (&["kube-vip.io/egress-ipv6"], WithoutEffect(EGRESS)),
        (&["kube-vip.io/egress-destination-ports"], WithoutEffect(EGRESS)),
        (&["kube-vip.io/egress-source-ports"], WithoutEffect(EGRESS)),
        (&["kube-vip.io/egress-allowed-networks"], WithoutEffect(EGRESS)),
        (&["kube-vip.io/egress-denied-networks"], WithoutEffect(EGRESS)),
        (&["kube-vip.io/flush-conntrack"], WithoutEffect(EGRESS)),
    ],
    scope: KeyScope::Namespace,
    never_spills: false,
    shares_by_address: true,
    marked_by_any: false,
    limits: Limits { per_family: 16, excludes_field: false, one_address_request: false },
};
