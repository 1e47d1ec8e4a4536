//! Lists the rights that each account needs on the API server. `vipmux check` asks for each of
//! these rights, and the tests compare the RBAC objects in `deploy/` with them.

use k8s_openapi::api::authorization::v1::ResourceAttributes;

/// The scope of a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RightScope {
    /// In all namespaces, or for cluster-wide objects: a ClusterRole.
    Cluster,
    /// In vipmux's own namespace: a Role.
    Namespace,
    /// In the allocator's namespace ([`allocator_namespace`]): a Role.
    AllocatorNamespace,
}

impl RightScope {
    /// Returns the namespace where the right is needed; `None`: all of them. `own` is vipmux's own.
    pub fn namespace(self, own: &str) -> Option<String> {
        match self {
            Self::Cluster => None,
            Self::Namespace => Some(own.to_owned()),
            Self::AllocatorNamespace => Some(allocator_namespace(own)),
        }
    }
}

/// Returns the namespace of the allocator's Lease. RBAC cannot restrict `create` to names, and
/// agents write the Leases in vipmux's own namespace. So they have no rights in this one.
pub fn allocator_namespace(own: &str) -> String {
    format!("{own}-allocator")
}

/// One verb on one kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The API group; empty: the core one.
    pub group: &'static str,
    /// The resource in the plural; for a subresource, for example `services/status`.
    pub resource: &'static str,
    /// The verb.
    pub verb: &'static str,
    /// The scope.
    pub scope: RightScope,
    /// The name of the only object that the right is for; `None`: all objects.
    pub name: Option<&'static str>,
}

impl Right {
    /// Returns the attributes for an access review. `namespace` is vipmux's own. A right from a
    /// ClusterRole is valid in every namespace.
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
            namespace: self.scope.namespace(namespace),
            name: self.name.map(str::to_owned),
            ..ResourceAttributes::default()
        }
    }
}

/// The group of vipmux's own resources.
const OWN: &str = "vipmux.io";
/// The group of MetalLB's resources. They are read if they are installed.
pub const METALLB: &str = "metallb.io";
/// The name of the allocator's own Lease.
pub const ALLOCATOR_LEASE: &str = "vipmux-allocator";
/// The name of the Secret with the gossip key.
pub const GOSSIP_SECRET: &str = "vipmux-gossip";

/// The kinds that both accounts read and watch.
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

/// The rights of the agents' account, which every node has. None of them changes a Service or a
/// Node.
pub const AGENT: [Right; 2 * READ.len() + 10] = joined(
    following(),
    [
        // Each read is as new as the last write: see `store::kubernetes`.
        namespaced("coordination.k8s.io", "leases", "get"),
        namespaced("coordination.k8s.io", "leases", "list"),
        namespaced("coordination.k8s.io", "leases", "create"),
        namespaced("coordination.k8s.io", "leases", "update"),
        // The records of nodes, in which others keep something, too.
        namespaced("coordination.k8s.io", "leases", "patch"),
        namespaced("coordination.k8s.io", "leases", "delete"),
        namespaced("coordination.k8s.io", "leases", "watch"),
        // Events are about Services, so they are in the Services' namespaces.
        cluster("events.k8s.io", "events", "create"),
        cluster("events.k8s.io", "events", "patch"),
        // Before the kubelet has mounted it.
        Right { name: Some(GOSSIP_SECRET), ..namespaced("", "secrets", "get") },
    ],
);

/// The rights of the allocator's account.
pub const ALLOCATOR: [Right; 2 * READ.len() + 14] = joined(
    following(),
    [
        cluster("", "services/status", "patch"),
        cluster(OWN, "vippools/status", "patch"),
        cluster(OWN, "vippolicies/status", "patch"),
        namespaced("coordination.k8s.io", "leases", "list"),
        namespaced("coordination.k8s.io", "leases", "watch"),
        apart("coordination.k8s.io", "leases", "create"),
        Right { name: Some(ALLOCATOR_LEASE), ..apart("coordination.k8s.io", "leases", "list") },
        Right { name: Some(ALLOCATOR_LEASE), ..apart("coordination.k8s.io", "leases", "watch") },
        Right { name: Some(ALLOCATOR_LEASE), ..apart("coordination.k8s.io", "leases", "get") },
        Right { name: Some(ALLOCATOR_LEASE), ..apart("coordination.k8s.io", "leases", "update") },
        cluster("events.k8s.io", "events", "create"),
        cluster("events.k8s.io", "events", "patch"),
        // The API server does not know the name of a new object when it decides.
        namespaced("", "secrets", "create"),
        Right { name: Some(GOSSIP_SECRET), ..namespaced("", "secrets", "get") },
    ],
);

const fn cluster(group: &'static str, resource: &'static str, verb: &'static str) -> Right {
    Right { group, resource, verb, scope: RightScope::Cluster, name: None }
}

const fn namespaced(group: &'static str, resource: &'static str, verb: &'static str) -> Right {
    Right { group, resource, verb, scope: RightScope::Namespace, name: None }
}

const fn apart(group: &'static str, resource: &'static str, verb: &'static str) -> Right {
    Right { group, resource, verb, scope: RightScope::AllocatorNamespace, name: None }
}

/// Returns `list` and `watch` for all kinds that are read.
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

/// Joins two lists; `ALL` is the sum of their lengths.
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

    /// An attacker who takes over a node has its agent's token.
    #[test]
    fn an_agent_cannot_write_anything_but_leases_and_events() {
        let writes = AGENT.iter().filter(|right| !matches!(right.verb, "get" | "list" | "watch"));
        let written: BTreeSet<_> = writes.map(|right| right.resource).collect();
        assert_eq!(written, BTreeSet::from(["events", "leases"]));
        assert!(
            AGENT.iter().filter(|right| right.resource == "leases").all(|right| right.scope == RightScope::Namespace)
        );
        assert!(AGENT.iter().all(|right| right.scope != RightScope::AllocatorNamespace));
    }

    /// Agents can delete any Lease of their namespace, and so could stop the allocator.
    #[test]
    fn an_allocator_writes_no_leases_where_agents_do() {
        let leases = ALLOCATOR.iter().filter(|right| right.resource == "leases");
        let (here, apart): (Vec<&Right>, Vec<&Right>) = leases.partition(|right| right.scope == RightScope::Namespace);
        assert!(here.iter().all(|right| matches!(right.verb, "get" | "list" | "watch")));
        assert!(!apart.is_empty() && apart.iter().all(|right| right.scope == RightScope::AllocatorNamespace));
    }
}
