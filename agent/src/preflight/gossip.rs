//! What the agents need to speak to each other.

use super::Finding;

/// What was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gossip {
    /// The UDP port.
    pub port: u16,
    /// Who has it here.
    pub holder: Holder,
    /// The key file.
    pub key: Key,
}

/// Who has the gossip's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// An agent of vipmux.
    Agent,
    /// Another process.
    Other(String),
    /// Some process that cannot be seen from here, and no agent is known to run.
    Hidden,
    /// It is not known whether anybody has: why.
    Unknown(String),
}

/// The gossip's key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// It is good.
    Good {
        /// The file.
        path: String,
    },
    /// It is good, and others than its owner can read it.
    Exposed {
        /// The file.
        path: String,
    },
    /// It is not there, and the agent makes one.
    Made {
        /// The file.
        path: String,
    },
    /// None was named, and in a cluster the agent makes none.
    Unnamed,
    /// It cannot be used: why.
    Bad(String),
}

/// What there is to say about it.
pub(super) fn assess(gossip: &Gossip) -> Vec<Finding> {
    vec![port(gossip), key(&gossip.key)]
}

fn port(Gossip { port, holder, .. }: &Gossip) -> Finding {
    const CHECK: &str = "gossip-port";
    let remedy = "stop it, or give all agents another --gossip-port";
    match holder {
        Holder::Nobody => Finding::pass(CHECK, format!("UDP port {port} is free")),
        Holder::Agent => Finding::pass(CHECK, format!("UDP port {port} is the agent's that runs here")),
        Holder::Other(who) => Finding::fail(CHECK, format!("UDP port {port} is taken by {who}"), remedy),
        Holder::Hidden => {
            Finding::warn(CHECK, format!("UDP port {port} is taken by a process that cannot be seen from here"), remedy)
        }
        Holder::Unknown(why) => Finding::warn(CHECK, format!("could not be looked at: {why}"), "run it as root"),
    }
}

fn key(key: &Key) -> Finding {
    const CHECK: &str = "gossip-key";
    match key {
        Key::Good { path } => Finding::pass(CHECK, format!("{path} has one, which its owner alone can read")),
        Key::Exposed { path } => Finding::warn(
            CHECK,
            format!("{path} is open to others than its owner"),
            "`chmod 600` it, or `defaultMode: 0400` on the Secret's volume",
        ),
        Key::Made { path } => Finding::pass(
            CHECK,
            format!("the agent makes {path}; nodes that do not share it need the same by --gossip-key"),
        ),
        Key::Unnamed => Finding::warn(
            CHECK,
            "none was named, and in a cluster the agent does not start without one",
            "--gossip-key FILE (the DaemonSet mounts the Secret vipmux-gossip and names it)",
        ),
        Key::Bad(why) => Finding::fail(
            CHECK,
            why,
            "make one by `openssl rand -base64 32`, and give all nodes the same by --gossip-key",
        ),
    }
}
