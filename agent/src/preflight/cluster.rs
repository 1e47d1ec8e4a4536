//! Where Services come from: the API server, or manifests.

use std::{collections::BTreeSet, net::IpAddr};

use super::{Finding, Seen, list};
use crate::permissions::{METALLB, Right, Scope};

/// Where Services come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A directory.
    Manifests {
        /// It, and how many documents in it cannot be used.
        read: Result<(String, usize), String>,
        /// This Node there.
        node: Node,
    },
    /// The API server.
    Cluster(Box<Cluster>),
    /// Neither is known: why.
    Nowhere(String),
}

/// What was observed of a cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The version of its API server.
    pub version: Result<String, String>,
    /// Who this process is there, where the server says.
    pub user: Option<String>,
    /// Rights that the agent needs and this account lacks.
    pub denied: Seen<Vec<Right>>,
    /// The namespace of the Leases.
    pub namespace: String,
    /// How many Leases are there.
    pub leases: Seen<usize>,
    /// The kinds of `vipmux.io/v1alpha1` that are served.
    pub own: Seen<BTreeSet<String>>,
    /// The kinds of `metallb.io/v1beta1` that are served.
    pub metallb: Seen<BTreeSet<String>>,
    /// This Node.
    pub node: Node,
}

/// This Node, as the source has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Its name was not said.
    Unnamed,
    /// It could not be read: why.
    Unread(String, String),
    /// There is none of that name; those that there are.
    Absent(String, Vec<String>),
    /// Its name, its InternalIPs, and those of them that are an address of this machine.
    Found(String, Vec<IpAddr>, Vec<IpAddr>),
}

/// The kinds that vipmux brings along.
const OWN_KINDS: [&str; 2] = ["VipPool", "VipPolicy"];
/// Those that it reads of MetalLB.
const METALLB_KINDS: [&str; 2] = ["IPAddressPool", "L2Advertisement"];

impl Source {
    fn node(&self) -> Option<&Node> {
        match self {
            Self::Manifests { node, .. } => Some(node),
            Self::Cluster(cluster) => Some(&cluster.node),
            Self::Nowhere(_) => None,
        }
    }

    /// Whether this Node has an InternalIP of IPv6; `None`: nothing is known of it.
    pub(super) fn node_has_ipv6(&self) -> Option<bool> {
        match self.node()? {
            Node::Found(_, addresses, _) => Some(addresses.iter().any(IpAddr::is_ipv6)),
            _ => None,
        }
    }
}

/// What there is to say about it.
pub(super) fn assess(source: &Source) -> Vec<Finding> {
    let mut found = match source {
        Source::Manifests { read, .. } => vec![manifests(read)],
        Source::Cluster(cluster) => of_cluster(cluster),
        Source::Nowhere(why) => vec![Finding::warn(
            "api",
            format!("not looked at: {why}"),
            "name a --kubeconfig (or --manifests), and the Node by --node-name",
        )],
    };
    found.extend(source.node().map(node));
    found
}

fn manifests(read: &Result<(String, usize), String>) -> Finding {
    const CHECK: &str = "manifests";
    match read {
        Ok((path, 0)) => Finding::pass(CHECK, format!("{path}: all that was read can be used")),
        Ok((path, problems)) => {
            Finding::warn(CHECK, format!("{path}: {problems} problems"), format!("`vipmux plan {path}` names them"))
        }
        Err(why) => Finding::fail(CHECK, why, "name a directory of Kubernetes YAML by --manifests"),
    }
}

fn of_cluster(cluster: &Cluster) -> Vec<Finding> {
    let api = match &cluster.version {
        Ok(version) => Finding::pass("api", format!("the API server answers: Kubernetes {version}")),
        Err(why) => {
            let remedy = "see whether the API server runs and is reached from this node, and the kubeconfig is its own";
            return vec![Finding::fail("api", format!("the API server does not answer: {why}"), remedy)];
        }
    };
    vec![api, rights(cluster), kinds(cluster), metallb(&cluster.metallb), leases(cluster)]
}

fn rights(cluster: &Cluster) -> Finding {
    const CHECK: &str = "permissions";
    let user = cluster.user.as_ref().map_or_else(|| "this account".to_owned(), |user| format!("{user:?}"));
    match &cluster.denied {
        Ok(denied) if denied.is_empty() => Finding::pass(CHECK, format!("{user} may do all that the agent does")),
        Ok(denied) => Finding::fail(
            CHECK,
            format!("{user} may not {}", list(denied.iter().map(|right| phrase(right, &cluster.namespace)))),
            "apply the roles and their bindings in deploy/, or use the agent's own account",
        ),
        Err(unseen) => Finding::unseen(CHECK, unseen),
    }
}

fn phrase(right: &Right, namespace: &str) -> String {
    let dot = if right.group.is_empty() { "" } else { "." };
    let place = match right.scope {
        Scope::Cluster => String::new(),
        Scope::Namespace => format!(" in {namespace}"),
    };
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
        Finding::warn(CHECK, format!("{found}; MetalLB's kinds are, which do as well"), remedy)
    } else {
        Finding::warn(CHECK, format!("{found}: there can be no pool yet"), remedy)
    }
}

fn metallb(kinds: &Seen<BTreeSet<String>>) -> Finding {
    const CHECK: &str = "metallb-crds";
    match kinds {
        Ok(kinds) if METALLB_KINDS.iter().all(|kind| kinds.contains(*kind)) => {
            Finding::pass(CHECK, format!("{METALLB}/v1beta1 is served: its pools and advertisements count too"))
        }
        Ok(_) => Finding::pass(CHECK, format!("{METALLB}/v1beta1 is not served, and need not be")),
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

fn node(node: &Node) -> Finding {
    const CHECK: &str = "node";
    let naming = "name this Node by --node-name as `kubectl get nodes` has it";
    match node {
        Node::Unnamed => Finding::warn(CHECK, "not looked at: the Node's name was not said", naming),
        Node::Unread(name, why) => Finding::fail(CHECK, format!("Node {name} could not be read: {why}"), naming),
        Node::Absent(name, present) => {
            Finding::fail(CHECK, format!("there is no Node {name}; present: {}", list(present)), naming)
        }
        Node::Found(name, addresses, _) if addresses.is_empty() => Finding::fail(
            CHECK,
            format!("Node {name} has no InternalIP: its peers do not know where it is"),
            "set the kubelet's --node-ip, or write status.addresses in the manifest",
        ),
        Node::Found(name, addresses, here) if here.is_empty() => Finding::fail(
            CHECK,
            format!(
                "Node {name} has the InternalIP {}, and this machine has not: is it another Node?",
                list(addresses)
            ),
            naming,
        ),
        Node::Found(name, addresses, _) => Finding::pass(CHECK, format!("{name}, InternalIP {}", list(addresses))),
    }
}
