//! Describes the annotations of Azure's cloud provider
//! (<https://cloud-provider-azure.sigs.k8s.io/topics/loadbalancer/>), as far as they have a meaning
//! on bare metal.

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{
        Additional, Address, AddressName, EitherWithoutEffect, Label, PoolIfTrue, PoolInstead, PoolMode, PoolPath,
        Probe, Treatment, Unsupported, WithoutEffect,
    },
};
use crate::Family;

const RESOURCE: &str = "there are no Azure resources here";
const PRIVATE_LINK: &str = "there is no Private Link";

pub(crate) const AZURE_ALL_PORTS: &str =
    "service.beta.kubernetes.io/azure-load-balancer-enable-high-availability-ports";
pub(crate) const AZURE_TCP_IDLE: &str = "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout";
pub(crate) const AZURE_RANGES: &str = "service.beta.kubernetes.io/azure-allowed-ip-ranges";
pub(crate) const AZURE_TAGS: &str = "service.beta.kubernetes.io/azure-allowed-service-tags";
/// It changes nothing: only the ranges let in traffic from outside anyway, and kube-proxy handles
/// traffic from inside the cluster.
pub(crate) const AZURE_DENY_OTHERS: &str =
    "service.beta.kubernetes.io/azure-deny-all-except-load-balancer-source-ranges";

/// A port with this annotation is not exposed.
pub(crate) const NO_RULE: &str = "service.beta.kubernetes.io/port_{port}_no_lb_rule";

/// The spellings of a setting: for one port, then for the whole Service. The one for a port takes
/// precedence.
pub(crate) type SettingSpellings = &'static [&'static str];

pub(crate) const NO_PROBE: SettingSpellings = &["service.beta.kubernetes.io/port_{port}_no_probe_rule"];
pub(crate) const PORT: SettingSpellings = &["service.beta.kubernetes.io/port_{port}_health-probe_port"];
pub(crate) const PROTOCOL: SettingSpellings = &[
    "service.beta.kubernetes.io/port_{port}_health-probe_protocol",
    "service.beta.kubernetes.io/azure-load-balancer-health-probe-protocol",
];
pub(crate) const INTERVAL: SettingSpellings = &[
    "service.beta.kubernetes.io/port_{port}_health-probe_interval",
    "service.beta.kubernetes.io/azure-load-balancer-health-probe-interval",
];
pub(crate) const THRESHOLD: SettingSpellings = &[
    "service.beta.kubernetes.io/port_{port}_health-probe_num-of-probe",
    "service.beta.kubernetes.io/azure-load-balancer-health-probe-num-of-probe",
];
pub(crate) const PATH: SettingSpellings = &[
    "service.beta.kubernetes.io/port_{port}_health-probe_request-path",
    "service.beta.kubernetes.io/azure-load-balancer-health-probe-request-path",
];

pub(super) const DIALECT: Dialect = Dialect {
    name: "azure",
    prefixes: &["service.beta.kubernetes.io/azure-", "service.beta.kubernetes.io/port_"],
    annotations: &[
        (&["service.beta.kubernetes.io/azure-load-balancer-ipv4"], Address(Family::V4)),
        (&["service.beta.kubernetes.io/azure-load-balancer-ipv6"], Address(Family::V6)),
        (&["service.beta.kubernetes.io/azure-pip-name"], AddressName),
        (&["service.beta.kubernetes.io/azure-pip-name-ipv6"], AddressName),
        (&["service.beta.kubernetes.io/azure-pip-prefix-id"], PoolPath),
        (&["service.beta.kubernetes.io/azure-pip-prefix-id-ipv6"], PoolPath),
        (&["service.beta.kubernetes.io/azure-load-balancer-internal"], PoolIfTrue("internal")),
        (&["service.beta.kubernetes.io/azure-load-balancer-internal-subnet"], PoolInstead),
        (&["service.beta.kubernetes.io/azure-load-balancer-mode"], PoolMode),
        (&["service.beta.kubernetes.io/azure-additional-public-ips"], Additional),
        (&["service.beta.kubernetes.io/azure-dns-label-name"], Label),
        (&[AZURE_ALL_PORTS], Treatment),
        (&[AZURE_TCP_IDLE], Treatment),
        (&[AZURE_TAGS], Treatment),
        (&[AZURE_RANGES], Treatment),
        (&[AZURE_DENY_OTHERS], Treatment),
        (&[NO_RULE], Treatment),
        (NO_PROBE, Probe),
        (PORT, Probe),
        (PROTOCOL, Probe),
        (INTERVAL, Probe),
        (THRESHOLD, Probe),
        (PATH, Probe),
        (
            &["service.beta.kubernetes.io/azure-disable-load-balancer-floating-ip"],
            EitherWithoutEffect("use vipmux.io/direct-server-return if a backend must see the VIP"),
        ),
        (
            &["service.beta.kubernetes.io/azure-shared-securityrule"],
            EitherWithoutEffect("there are no security rules to share"),
        ),
        (&["service.beta.kubernetes.io/azure-load-balancer-resource-group"], WithoutEffect(RESOURCE)),
        (&["service.beta.kubernetes.io/azure-pip-tags"], WithoutEffect(RESOURCE)),
        (&["service.beta.kubernetes.io/azure-pip-ip-tags"], WithoutEffect(RESOURCE)),
        (
            &["service.beta.kubernetes.io/azure-load-balancer-configurations"],
            WithoutEffect("there is one load balancer; request a pool with vipmux.io/pool"),
        ),
        (
            &["service.beta.kubernetes.io/azure-load-balancer-disable-tcp-reset"],
            EitherWithoutEffect("an idle flow is forgotten without a TCP reset"),
        ),
        (
            &["service.beta.kubernetes.io/azure-load-balancer-mixed-protocols"],
            EitherWithoutEffect("protocols can be mixed in any Service"),
        ),
        (
            &["service.beta.kubernetes.io/azure-pls-proxy-protocol"],
            Unsupported {
                harmless: &["false"],
                remedy: "connections get no PROXY protocol header; backends see the client's own address, so turn the \
                         protocol off there",
            },
        ),
        (&["service.beta.kubernetes.io/azure-pls-create"], EitherWithoutEffect(PRIVATE_LINK)),
        (
            &[
                "service.beta.kubernetes.io/azure-pls-name",
                "service.beta.kubernetes.io/azure-pls-resource-group",
                "service.beta.kubernetes.io/azure-pls-ip-configuration-subnet",
                "service.beta.kubernetes.io/azure-pls-ip-configuration-ip-address-count",
                "service.beta.kubernetes.io/azure-pls-ip-configuration-ip-address",
                "service.beta.kubernetes.io/azure-pls-fqdns",
                "service.beta.kubernetes.io/azure-pls-visibility",
                "service.beta.kubernetes.io/azure-pls-auto-approval",
            ],
            WithoutEffect(PRIVATE_LINK),
        ),
    ],
    scope: KeyScope::Namespace,
    never_spills: false,
    shares_by_address: true,
    marked_by_any: true,
    limits: Limits { per_family: 1, excludes_field: false, one_address_request: false },
};
