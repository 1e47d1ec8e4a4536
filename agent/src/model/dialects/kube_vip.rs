//! kube-vip (<https://kube-vip.io/docs/usage/kubernetes-services/>).

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Unsupported, WithoutEffect},
};

const DHCP: &str = "no address comes from DHCP, but from pools";
const NOTED: &str = "kube-vip notes there what it did";
const EGRESS: &str = "what pods send of their own accord keeps the source address that the CNI gives it";

pub(super) const DIALECT: Dialect = Dialect {
    name: "kube-vip",
    prefixes: &["kube-vip.io/"],
    annotations: &[
        (&["kube-vip.io/loadbalancerIPs"], Addresses),
        (
            &["kube-vip.io/ignore"],
            Unsupported {
                harmless: &["false"],
                remedy: "a Service that is to be left alone has another spec.loadBalancerClass; set one, or remove the \
                         annotation",
            },
        ),
        (&["kube-vip.io/requestedIP"], WithoutEffect(DHCP)),
        (&["kube-vip.io/hwaddr"], WithoutEffect(DHCP)),
        (&["kube-vip.io/loadbalancerHostname"], WithoutEffect(DHCP)),
        (&["kube-vip.io/vipHost"], WithoutEffect(NOTED)),
        (&["kube-vip.io/active-endpoint", "kube-vip.io/active-endpoint-ipv6"], WithoutEffect(NOTED)),
        (
            &["kube-vip.io/serviceInterface"],
            WithoutEffect("the interfaces of a pool are in its L2Advertisement or VipPolicy"),
        ),
        (
            &["kube-vip.io/ignore-service-security"],
            WithoutEffect("a port of the address that no Service has is always closed"),
        ),
        (&["kube-vip.io/leaseName"], WithoutEffect("there is no Lease of one Service")),
        (&["kube-vip.io/forwardUPNP"], WithoutEffect("no router is told by UPnP: forward the port there by hand")),
        (&["kube-vip.io/upnp-lease-duration"], WithoutEffect("no router is told by UPnP")),
        (&["kube-vip.io/rp_filter"], WithoutEffect("no address is put on an interface, so its filter is not asked")),
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
