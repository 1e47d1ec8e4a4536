//! Checks the port and the key of the agents' gossip.

use super::Finding;

/// The observations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipObservation {
    /// The UDP port.
    pub port: u16,
    /// The process that uses it.
    pub holder: Holder,
    /// The key file.
    pub key: GossipKeyObservation,
}

/// The process that uses the gossip port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// An agent of vipmux.
    Agent,
    /// Another process.
    Other(String),
    /// A process that is not visible from here; no agent is known to run.
    Hidden,
    /// Not known: the reason.
    Unknown(String),
}

/// The gossip key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GossipKeyObservation {
    /// It is valid.
    Good {
        /// The file.
        path: String,
    },
    /// It is valid, but not only its owner can read it.
    Exposed {
        /// The file.
        path: String,
    },
    /// It does not exist; the agent creates one.
    Made {
        /// The file.
        path: String,
    },
    /// It does not exist yet; in a cluster the agent waits for the Secret.
    Awaited {
        /// The file.
        path: String,
    },
    /// None is named; in a cluster the agent creates none.
    Unnamed,
    /// It cannot be used: the reason.
    Bad(String),
}

/// Returns the findings about gossip.
pub(super) fn assess(gossip: &GossipObservation) -> Vec<Finding> {
    vec![port(gossip), key(&gossip.key)]
}

fn port(GossipObservation { port, holder, .. }: &GossipObservation) -> Finding {
    const CHECK: &str = "gossip-port";
    let remedy = "stop it, or give all agents another --gossip-port";
    match holder {
        Holder::Nobody => Finding::pass(CHECK, format!("UDP port {port} is free")),
        Holder::Agent => Finding::pass(CHECK, format!("UDP port {port} is used by the agent on this node")),
        Holder::Other(who) => Finding::fail(CHECK, format!("UDP port {port} is used by {who}"), remedy),
        Holder::Hidden => {
            Finding::warn(CHECK, format!("UDP port {port} is used by a process that is not visible from here"), remedy)
        }
        Holder::Unknown(why) => {
            Finding::warn(CHECK, format!("could not be checked: {why}"), "run `vipmux check` as root")
        }
    }
}

fn key(key: &GossipKeyObservation) -> Finding {
    const CHECK: &str = "gossip-key";
    match key {
        GossipKeyObservation::Good { path } => {
            Finding::pass(CHECK, format!("{path} is valid, and only its owner can read it"))
        }
        GossipKeyObservation::Exposed { path } => Finding::warn(
            CHECK,
            format!("not only the owner of {path} can read it"),
            "`chmod 600` it, or `defaultMode: 0400` on the Secret's volume",
        ),
        GossipKeyObservation::Made { path } => Finding::pass(
            CHECK,
            format!("the agent creates {path}; nodes that do not share it need the same key by --gossip-key"),
        ),
        GossipKeyObservation::Awaited { path } => Finding::warn(
            CHECK,
            format!("there is no {path} yet; the agent reads the Secret vipmux-gossip, or waits for it"),
            "see that the allocator runs, which makes it; a Pod sees it a minute later",
        ),
        GossipKeyObservation::Unnamed => Finding::warn(
            CHECK,
            "none is named, and in a cluster the agent does not start without one",
            "--gossip-key FILE (the DaemonSet mounts the Secret vipmux-gossip and names it)",
        ),
        GossipKeyObservation::Bad(why) => Finding::fail(
            CHECK,
            why,
            "create one with `openssl rand -base64 32`, and give all nodes the same one by --gossip-key",
        ),
    }
}
