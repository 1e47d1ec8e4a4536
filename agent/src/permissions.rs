//! What the API server must let each account do. `vipmux check` asks for each of these rights, and the tests hold the RBAC
//! objects in `deploy/` to them.

use k8s_openapi::api::authorization::v1::ResourceAttributes;

/// Where a right holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// In all namespaces, or for what is in none: a ClusterRole.
    Cluster,
    /// In vipmux's own namespace: a Role.
    Namespace,
}

/// One verb on one kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The API group; empty: the core one.
    pub group: &'static str,
    /// The resource in the plural; of a subresource `services/status`.
    pub resource: &'static str,
    /// The verb.
    pub verb: &'static str,
    /// Where.
    pub scope: Scope,
    /// The one object that it is for; `None`: all of them.
    pub name: Option<&'static str>,
}

impl Right {
    /// As an access review has it; `namespace` is vipmux's own. What a ClusterRole grants holds in every namespace.
    pub fn attributes(&self, namespace: &str) -> ResourceAttributes {
        let (resource, subresource) = match self.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (self.resource, None),
        };
        ResourceAttributes {
            group: Some(self.group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource,
            verb: Some(self.verb.to_owned()),
            namespace: (self.scope == Scope::Namespace).then(|| namespace.to_owned()),
            name: self.name.map(str::to_owned),
            ..ResourceAttributes::default()
        }
    }
}

/// The group of vipmux's own resources.
const OWN: &str = "vipmux.io";
/// The group of MetalLB's resources, which are read where they are installed.
pub const METALLB: &str = "metallb.io";
/// The name of the allocator's own Lease.
pub const ALLOCATOR_LEASE: &str = "vipmux-allocator";
/// The name of the Secret with the gossip's key.
pub const GOSSIP_SECRET: &str = "vipmux-gossip";

/// What both read, and follow.
const READ: [(&str, &str); 8] = [
    ("", "services"),
    ("", "nodes"),
    ("", "namespaces"),
    ("discovery.k8s.io", "endpointslices"),
    (OWN, "vippools"),
    (OWN, "vippolicies"),
    (METALLB, "ipaddresspools"),
    (METALLB, "l2advertisements"),
];

/// Of the agents' account, which every node has: nothing that changes a Service or a Node.
pub const AGENT: [Right; 2 * READ.len() + 7] = joined(
    following(),
    [
        // Reads that are as new as the last write, and no watch: see `store::kubernetes`.
        namespaced("coordination.k8s.io", "leases", "get"),
        namespaced("coordination.k8s.io", "leases", "list"),
        namespaced("coordination.k8s.io", "leases", "create"),
        namespaced("coordination.k8s.io", "leases", "update"),
        namespaced("coordination.k8s.io", "leases", "delete"),
        // On Services, so in their namespaces.
        cluster("events.k8s.io", "events", "create"),
        cluster("events.k8s.io", "events", "patch"),
    ],
);

/// Of the allocator's account.
pub const ALLOCATOR: [Right; 2 * READ.len() + 12] = joined(
    following(),
    [
        cluster("", "services/status", "patch"),
        cluster(OWN, "vippools/status", "patch"),
        cluster(OWN, "vippolicies/status", "patch"),
        namespaced("coordination.k8s.io", "leases", "list"),
        namespaced("coordination.k8s.io", "leases", "watch"),
        namespaced("coordination.k8s.io", "leases", "create"),
        // The VIPs' are the agents' to change.
        Right { name: Some(ALLOCATOR_LEASE), ..namespaced("coordination.k8s.io", "leases", "get") },
        Right { name: Some(ALLOCATOR_LEASE), ..namespaced("coordination.k8s.io", "leases", "update") },
        cluster("events.k8s.io", "events", "create"),
        cluster("events.k8s.io", "events", "patch"),
        // The name of what is created is not known to the API server when it decides.
        namespaced("", "secrets", "create"),
        Right { name: Some(GOSSIP_SECRET), ..namespaced("", "secrets", "get") },
    ],
);

const fn cluster(group: &'static str, resource: &'static str, verb: &'static str) -> Right {
    Right { group, resource, verb, scope: Scope::Cluster, name: None }
}

const fn namespaced(group: &'static str, resource: &'static str, verb: &'static str) -> Right {
    Right { group, resource, verb, scope: Scope::Namespace, name: None }
}

/// `list` and `watch` of all that is read.
const fn following() -> [Right; 2 * READ.len()] {
    let mut rights = [cluster("", "", ""); 2 * READ.len()];
    let mut at = 0;
    while at < READ.len() {
        let (group, resource) = READ[at];
        rights[2 * at] = cluster(group, resource, "list");
        rights[2 * at + 1] = cluster(group, resource, "watch");
        at += 1;
    }
    rights
}

/// One list after the other; `ALL` is the sum of their lengths.
const fn joined<const A: usize, const B: usize, const ALL: usize>(
    first: [Right; A],
    second: [Right; B],
) -> [Right; ALL] {
    assert!(A + B == ALL, "the list has another length");
    let mut all = [cluster("", "", ""); ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < A { first[at] } else { second[at - A] };
        at += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_right_is_listed_twice_or_left_empty() {
        for rights in [&AGENT[..], &ALLOCATOR] {
            let distinct: BTreeSet<_> = rights.iter().collect();
            assert_eq!(distinct.len(), rights.len());
            assert!(rights.iter().all(|right| !right.resource.is_empty() && !right.verb.is_empty()));
        }
    }

    /// Whoever takes a node over has its agent's token.
    #[test]
    fn an_agent_cannot_write_anything_but_leases_and_events() {
        let writes = AGENT.iter().filter(|right| !matches!(right.verb, "get" | "list" | "watch"));
        let written: BTreeSet<_> = writes.map(|right| right.resource).collect();
        assert_eq!(written, BTreeSet::from(["events", "leases"]));
        assert!(AGENT.iter().filter(|right| right.resource == "leases").all(|right| right.scope == Scope::Namespace));
    }
}
