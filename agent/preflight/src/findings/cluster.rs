//! Checks the source of objects: the API server, or manifests.

use std::{collections::BTreeSet, net::IpAddr};

use super::{Finding, Seen, list};
use vipmux_model::permissions::{METALLB, Right};

/// The source of objects.
#[derive(Clone, Debug)]
pub enum ObjectSourceObservation {
    /// A directory.
    Manifests {
        /// Its path and the number of documents that cannot be used; or the error.
        read: Result<(String, usize), String>,
        /// This Node in the manifests.
        node: NodeObservation,
    },
    /// The API server.
    Cluster(Box<Cluster>),
    /// Neither is known: the reason.
    Nowhere(String),
}

/// The observations of a cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The version of its API server.
    pub version: Result<String, String>,
    /// The user of this process, if the server says.
    pub user: Option<String>,
    /// Rights that the agent needs and this account lacks.
    pub denied: Seen<Vec<Right>>,
    /// The namespace of the Leases.
    pub namespace: String,
    /// The number of Leases there.
    pub leases: Seen<usize>,
    /// The kinds of `vipmux.io/v1alpha1` that are served.
    pub own: Seen<BTreeSet<String>>,
    /// The kinds of `metallb.io/v1beta1` that are served.
    pub metallb: Seen<BTreeSet<String>>,
    /// This Node.
    pub node: NodeObservation,
}

/// This Node in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeObservation {
    /// Its name is not given.
    Unnamed,
    /// It could not be read: its name and the error.
    Unread(String, String),
    /// There is none with this name: the name, and the existing Nodes.
    Absent(String, Vec<String>),
    /// Its name, its InternalIPs, and those InternalIPs that this machine has.
    Found(String, Vec<IpAddr>, Vec<IpAddr>),
}

/// The kinds of vipmux.
const OWN_KINDS: [&str; 2] = ["VipPool", "VipPolicy"];
/// MetalLB's kinds that vipmux reads.
const METALLB_KINDS: [&str; 2] = ["IPAddressPool", "L2Advertisement"];

impl ObjectSourceObservation {
    fn node(&self) -> Option<&NodeObservation> {
        match self {
            Self::Manifests { node, .. } => Some(node),
            Self::Cluster(cluster) => Some(&cluster.node),
            Self::Nowhere(_) => None,
        }
    }

    /// Returns whether this Node has an IPv6 InternalIP; `None`: not known.
    pub(super) fn node_has_ipv6(&self) -> Option<bool> {
        match self.node()? {
            NodeObservation::Found(_, addresses, _) => Some(addresses.iter().any(IpAddr::is_ipv6)),
            _ => None,
        }
    }
}

/// Returns the findings about the source.
pub(super) fn assess(source: &ObjectSourceObservation) -> Vec<Finding> {
    let mut found = match source {
        ObjectSourceObservation::Manifests { read, .. } => vec![manifests(read)],
        ObjectSourceObservation::Cluster(cluster) => of_cluster(cluster),
        ObjectSourceObservation::Nowhere(why) => vec![Finding::warn(
            "api",
            format!("not checked: {why}"),
            "name a --kubeconfig (or --manifests), and the Node by --node-name",
        )],
    };
    found.extend(source.node().map(node));
    found
}

fn manifests(read: &Result<(String, usize), String>) -> Finding {
    const CHECK: &str = "manifests";
    match read {
        Ok((path, 0)) => Finding::pass(CHECK, format!("{path}: all objects can be used")),
        Ok((path, problems)) => Finding::warn(
            CHECK,
            format!("{path}: {problems} problems"),
            format!("run `vipmux plan {path}` to see them"),
        ),
        Err(why) => Finding::fail(CHECK, why, "name a directory of Kubernetes YAML by --manifests"),
    }
}

fn of_cluster(cluster: &Cluster) -> Vec<Finding> {
    let api = match &cluster.version {
        Ok(version) => Finding::pass("api", format!("the API server answers: Kubernetes {version}")),
        Err(why) => {
            let remedy = "check that the API server runs and that this node can reach it, and that the kubeconfig is for this server";
            return vec![Finding::fail("api", format!("the API server does not answer: {why}"), remedy)];
        }
    };
    vec![api, rights(cluster), kinds(cluster), metallb(&cluster.metallb), leases(cluster)]
}

fn rights(cluster: &Cluster) -> Finding {
    const CHECK: &str = "permissions";
    let user = cluster.user.as_ref().map_or_else(|| "this account".to_owned(), |user| format!("{user:?}"));
    match &cluster.denied {
        Ok(denied) if denied.is_empty() => Finding::pass(CHECK, format!("{user} has all rights that the agent needs")),
        Ok(denied) => Finding::fail(
            CHECK,
            format!("{user} may not {}", list(denied.iter().map(|right| phrase(right, &cluster.namespace)))),
            "apply the roles and bindings in deploy/, or use the agent's own account",
        ),
        Err(unseen) => Finding::unseen(CHECK, unseen),
    }
}

fn phrase(right: &Right, namespace: &str) -> String {
    let dot = if right.group.is_empty() { "" } else { "." };
    let place = right.scope.namespace(namespace).map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    format!("{} {}{dot}{}{place}", right.verb, right.resource, right.group)
}

fn kinds(cluster: &Cluster) -> Finding {
    const CHECK: &str = "crds";
    let has_metallb =
        cluster.metallb.as_ref().is_ok_and(|kinds| METALLB_KINDS.iter().all(|kind| kinds.contains(*kind)));
    let missing: Vec<_> = match &cluster.own {
        Ok(own) => OWN_KINDS.iter().filter(|kind| !own.contains(**kind)).collect(),
        Err(unseen) => return Finding::unseen(CHECK, unseen),
    };
    let remedy = "`kubectl apply -k deploy/crds`; deploy/kustomize and the chart bring them too";
    if missing.is_empty() {
        return Finding::pass(CHECK, "vipmux.io/v1alpha1 is served: VipPool, VipPolicy");
    }
    let found = format!("vipmux.io/v1alpha1 is not served for {}", list(missing));
    if has_metallb {
        Finding::warn(CHECK, format!("{found}; MetalLB's kinds are, and are enough"), remedy)
    } else {
        Finding::warn(CHECK, format!("{found}: no pool can be created yet"), remedy)
    }
}

fn metallb(kinds: &Seen<BTreeSet<String>>) -> Finding {
    const CHECK: &str = "metallb-crds";
    match kinds {
        Ok(kinds) if METALLB_KINDS.iter().all(|kind| kinds.contains(*kind)) => {
            Finding::pass(CHECK, format!("{METALLB}/v1beta1 is served: its pools and advertisements are used too"))
        }
        Ok(_) => Finding::pass(CHECK, format!("{METALLB}/v1beta1 is not served, and not needed")),
        Err(unseen) => Finding::unseen(CHECK, unseen),
    }
}

fn leases(cluster: &Cluster) -> Finding {
    const CHECK: &str = "leases";
    match &cluster.leases {
        Ok(leases) => Finding::pass(CHECK, format!("namespace {}: {leases} Leases", cluster.namespace)),
        Err(unseen) => Finding::unseen(CHECK, unseen),
    }
}

fn node(node: &NodeObservation) -> Finding {
    const CHECK: &str = "node";
    let naming = "name this Node by --node-name, as shown by `kubectl get nodes`";
    match node {
        NodeObservation::Unnamed => Finding::warn(CHECK, "not checked: the Node's name is not given", naming),
        NodeObservation::Unread(name, why) => {
            Finding::fail(CHECK, format!("Node {name} could not be read: {why}"), naming)
        }
        NodeObservation::Absent(name, present) => {
            Finding::fail(CHECK, format!("there is no Node {name}; present: {}", list(present)), naming)
        }
        NodeObservation::Found(name, addresses, _) if addresses.is_empty() => Finding::fail(
            CHECK,
            format!("Node {name} has no InternalIP: its peers cannot find it"),
            "set the kubelet's --node-ip, or write status.addresses in the manifest",
        ),
        NodeObservation::Found(name, addresses, here) if here.is_empty() => Finding::fail(
            CHECK,
            format!(
                "Node {name} has the InternalIP {}, but this machine does not have it: is it another Node?",
                list(addresses)
            ),
            naming,
        ),
        NodeObservation::Found(name, addresses, _) => {
            Finding::pass(CHECK, format!("{name}, InternalIP {}", list(addresses)))
        }
    }
}
