//! Describes the annotations of AKO, the Avi Kubernetes Operator
//! (<https://github.com/vmware/load-balancer-and-ingress-services-for-kubernetes>).

use super::{
    Dialect, KeyScope, Limits,
    Meaning::{Addresses, Alike, SharingKey, Unsupported, WithoutEffect},
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "ako",
    prefixes: &["ako.vmware.com/", "aviinfrasetting.ako.vmware.com/", "skipnodeport.ako.vmware.com/"],
    annotations: &[
        (&["ako.vmware.com/enable-shared-vip"], SharingKey),
        (&["ako.vmware.com/load-balancer-ip"], Addresses),
        (&["aviinfrasetting.ako.vmware.com/name"], Alike),
        (
            &["ako.vmware.com/l4rule"],
            Unsupported {
                harmless: &[],
                remedy: "an L4Rule may restrict the clients, but it is not read; use spec.loadBalancerSourceRanges, \
                         and remove the annotation",
            },
        ),
        (
            &["ako.vmware.com/application-profile"],
            WithoutEffect("packets are balanced on layer 4, and clients keep their addresses"),
        ),
        (
            &["ako.vmware.com/tenant-name"],
            WithoutEffect("there are no tenants; a pool can be restricted to some namespaces"),
        ),
        (&["skipnodeport.ako.vmware.com/enabled"], WithoutEffect("packets go to pods, never through a node port")),
        (
            &["ako.vmware.com/controller-cluster-uuid", "ako.vmware.com/host-fqdn-vs-uuid-map"],
            WithoutEffect("AKO records its own actions there"),
        ),
    ],
    scope: KeyScope::Namespace,
    never_spills: true,
    shares_by_address: false,
    marked_by_any: false,
    limits: Limits { per_family: 1, excludes_field: false, one_address_request: true },
};
