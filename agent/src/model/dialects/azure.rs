//! Azure's cloud provider (<https://cloud-provider-azure.sigs.k8s.io/topics/loadbalancer/>), as far as it means something on
//! bare metal.

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{
        Additional, Address, AddressName, EitherWithoutEffect, Label, PoolIfTrue, PoolInstead, PoolMode, PoolPath,
        Probe, Treatment, Unsupported, WithoutEffect,
    },
};
use crate::model::{Family, policy, probe, service::NO_RULE};

const RESOURCE: &str = "there are no resources of Azure that it could be about";
const PRIVATE_LINK: &str = "there is no Private Link";

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
        (&[policy::AZURE_ALL_PORTS], Treatment),
        (&[policy::AZURE_TCP_IDLE], Treatment),
        (&[policy::AZURE_TAGS], Treatment),
        (&[policy::AZURE_RANGES], Treatment),
        (&[policy::AZURE_DENY_OTHERS], Treatment),
        (&[NO_RULE], Treatment),
        (probe::NO_PROBE, Probe),
        (probe::PORT, Probe),
        (probe::PROTOCOL, Probe),
        (probe::INTERVAL, Probe),
        (probe::THRESHOLD, Probe),
        (probe::PATH, Probe),
        (
            &["service.beta.kubernetes.io/azure-disable-load-balancer-floating-ip"],
            EitherWithoutEffect(
                "a backend that is to see the VIP itself is asked for by vipmux.io/direct-server-return",
            ),
        ),
        (
            &["service.beta.kubernetes.io/azure-shared-securityrule"],
            EitherWithoutEffect("there are no security rules that could be shared"),
        ),
        (&["service.beta.kubernetes.io/azure-load-balancer-resource-group"], WithoutEffect(RESOURCE)),
        (&["service.beta.kubernetes.io/azure-pip-tags"], WithoutEffect(RESOURCE)),
        (&["service.beta.kubernetes.io/azure-pip-ip-tags"], WithoutEffect(RESOURCE)),
        (
            &["service.beta.kubernetes.io/azure-load-balancer-configurations"],
            WithoutEffect("there is one load balancer; a pool is asked for by vipmux.io/pool"),
        ),
        (
            &["service.beta.kubernetes.io/azure-load-balancer-disable-tcp-reset"],
            EitherWithoutEffect("a flow that was idle for too long is forgotten, and nobody is told"),
        ),
        (
            &["service.beta.kubernetes.io/azure-load-balancer-mixed-protocols"],
            EitherWithoutEffect("protocols can be mixed in any Service"),
        ),
        (
            &["service.beta.kubernetes.io/azure-pls-proxy-protocol"],
            Unsupported {
                harmless: &["false"],
                remedy: "no header is put before a connection; backends see the client's own address, so let them expect \
                         no PROXY protocol",
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
