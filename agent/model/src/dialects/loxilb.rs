//! Describes the annotations of kube-loxilb (<https://github.com/loxilb-io/kube-loxilb>).

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Additional, Addresses, Pool, Unsupported, WithoutEffect},
};

const PROBES: &str = "backends are the endpoints that are ready in Kubernetes: use a readinessProbe of the pods";
const PODS: &str = "packets go to the pods in the Service's EndpointSlices";

pub(super) const DIALECT: Dialect = Dialect {
    name: "loxilb",
    prefixes: &["loxilb.io/"],
    annotations: &[
        (&["loxilb.io/staticIP"], Addresses),
        (&["loxilb.io/secondaryIPs"], Additional),
        (&["loxilb.io/poolSelect"], Pool),
        (
            &["loxilb.io/poolSelectSecondary"],
            Unsupported {
                harmless: &[],
                remedy: "additional addresses do not come from pools; name them in loxilb.io/secondaryIPs",
            },
        ),
        (
            &["loxilb.io/num-secondary-networks"],
            Unsupported {
                harmless: &["0"],
                remedy: "additional addresses do not come from pools; name them in loxilb.io/secondaryIPs",
            },
        ),
        (
            &["loxilb.io/ipam"],
            Unsupported {
                harmless: &["ipv4", "ipv6"],
                remedy: "packets are not translated between IPv4 and IPv6; set spec.ipFamilies to the families of the \
                         pods",
            },
        ),
        (
            &["loxilb.io/useproxyprotov2"],
            Unsupported {
                harmless: &["no", "false"],
                remedy: "connections get no PROXY protocol header; backends see the client's own address, so turn the \
                         protocol off there",
            },
        ),
        (
            &["loxilb.io/lbmode"],
            WithoutEffect("backends see the client's own address; use vipmux.io/direct-server-return instead of dsr"),
        ),
        (
            &["loxilb.io/epselect"],
            WithoutEffect(
                "backends are chosen by consistent hashing; spec.sessionAffinity sends a client's flows to one backend",
            ),
        ),
        (&["loxilb.io/timeout"], WithoutEffect("use vipmux.io/tcp-idle-timeout, and the same for UDP and SCTP")),
        (&["loxilb.io/liveness"], WithoutEffect(PROBES)),
        (&["loxilb.io/probetype"], WithoutEffect(PROBES)),
        (&["loxilb.io/probeport"], WithoutEffect(PROBES)),
        (&["loxilb.io/probereq"], WithoutEffect(PROBES)),
        (&["loxilb.io/proberesp"], WithoutEffect(PROBES)),
        (&["loxilb.io/probetimeout"], WithoutEffect(PROBES)),
        (&["loxilb.io/proberetries"], WithoutEffect(PROBES)),
        (&["loxilb.io/usepodnetwork"], WithoutEffect(PODS)),
        (&["loxilb.io/prefLocalPod"], WithoutEffect(PODS)),
        (&["loxilb.io/nodelabel"], WithoutEffect(PODS)),
        (&["loxilb.io/multus-nets"], WithoutEffect(PODS)),
        (&["loxilb.io/useExternalEndpoint"], WithoutEffect(PODS)),
        (&["loxilb.io/zoneselect"], WithoutEffect("a VipPolicy or an L2Advertisement selects the nodes that may lead")),
        (&["loxilb.io/egress"], WithoutEffect("traffic that pods start keeps the source address from the CNI")),
    ],
    scope: KeyScope::Namespace,
    never_spills: false,
    shares_by_address: true,
    marked_by_any: false,
    limits: Limits { per_family: 1, excludes_field: false, one_address_request: false },
};
