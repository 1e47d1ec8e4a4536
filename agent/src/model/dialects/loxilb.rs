//! kube-loxilb (<https://github.com/loxilb-io/kube-loxilb>).

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Additional, Addresses, Pool, Unsupported, WithoutEffect},
};

const PROBES: &str = "backends are those that Kubernetes finds ready: a readinessProbe of the pods is what counts";
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
                remedy: "further addresses are not taken from pools; name them by loxilb.io/secondaryIPs",
            },
        ),
        (
            &["loxilb.io/num-secondary-networks"],
            Unsupported {
                harmless: &["0"],
                remedy: "further addresses are not taken from pools; name them by loxilb.io/secondaryIPs",
            },
        ),
        (
            &["loxilb.io/ipam"],
            Unsupported {
                harmless: &["ipv4", "ipv6"],
                remedy: "no packet becomes one of the other family; spec.ipFamilies has those that the pods have",
            },
        ),
        (
            &["loxilb.io/useproxyprotov2"],
            Unsupported {
                harmless: &["no", "false"],
                remedy: "no header is put before a connection; backends see the client's own address, so let them expect \
                         no PROXY protocol",
            },
        ),
        (
            &["loxilb.io/lbmode"],
            WithoutEffect("backends see the client's own address; vipmux.io/direct-server-return is what dsr is there"),
        ),
        (
            &["loxilb.io/epselect"],
            WithoutEffect(
                "backends are chosen by consistent hashing; a client's flows go to one by spec.sessionAffinity",
            ),
        ),
        (&["loxilb.io/timeout"], WithoutEffect("that is said by vipmux.io/tcp-idle-timeout and its like")),
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
        (&["loxilb.io/zoneselect"], WithoutEffect("who may lead is in a VipPolicy or an L2Advertisement")),
        (
            &["loxilb.io/egress"],
            WithoutEffect("what pods send of their own accord keeps the source address that the CNI gives it"),
        ),
    ],
    scope: KeyScope::Namespace,
    never_spills: false,
    shares_by_address: true,
    marked_by_any: false,
    limits: Limits { per_family: 1, excludes_field: false, one_address_request: false },
};
