//! Follows which versions the living agents run, and says when they differ.

use std::{collections::BTreeMap, time::Duration};

#[cfg(debug_assertions)]
use vipmux_election::membership::as_of_a_later_version;
use vipmux_election::membership::{AgentInfo, Peers, WireVersions};

/// This build's version.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// The number of living nodes by the version of their agents, this node included.
pub(crate) type VersionCounts = BTreeMap<String, usize>;

/// The versions that were logged last.
#[derive(Debug, Default)]
pub(crate) struct PeerVersions {
    mixed: Option<String>,
}

/// Counts the versions. Peers whose state was not read yet are left out.
pub(crate) fn count(own: &str, peers: &Peers) -> VersionCounts {
    let alive = peers.members.values().filter(|peer| peer.status.is_alive());
    let versions = alive.filter_map(|peer| Some(peer.state.agent.as_ref()?.version.as_str()));
    let mut counts = VersionCounts::new();
    for version in versions.chain([own]) {
        *counts.entry(version.to_owned()).or_default() += 1;
    }
    counts
}

impl PeerVersions {
    /// Logs when nodes begin to run several versions, when these versions change, and when all run
    /// one again. The numbers of nodes change with each step of a rolling update, so they are logged
    /// only with these lines.
    pub(crate) fn log_changes(&mut self, counts: &VersionCounts) {
        let versions = counts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let mixed = (counts.len() > 1).then_some(versions);
        if mixed == self.mixed {
            return;
        }
        if let Some(versions) = &mixed {
            let nodes = counts.values().map(usize::to_string).collect::<Vec<_>>().join(", ");
            tracing::warn!(versions, nodes, "nodes run several versions");
        } else {
            tracing::info!(version = counts.keys().next(), "all nodes run one version again");
        }
        self.mixed = mixed;
    }
}

/// Returns what this agent publishes of itself.
pub(crate) fn own_info(lease: Duration) -> AgentInfo {
    AgentInfo { version: own_version(), wire: WireVersions::OWN, lease }
}

/// Returns the version that this agent publishes.
pub(crate) fn own_version() -> String {
    #[cfg(debug_assertions)]
    if let Some(later) = later_version() {
        return later;
    }
    OWN.to_owned()
}

/// Returns the version that this agent pretends to be: its gossip is that of a later version. For
/// tests of upgrades, in debug builds.
#[cfg(debug_assertions)]
fn later_version() -> Option<String> {
    std::env::var("VIPMUX_TEST_LATER_VERSION").ok()
}

/// Returns payloads as the published version sends them.
#[cfg(debug_assertions)]
pub(crate) fn as_published(outbox: vipmux_gossip::Batch) -> vipmux_gossip::Batch {
    if later_version().is_none() {
        return outbox;
    }
    outbox.into_iter().map(|(node, payload)| (node, as_of_a_later_version(&payload))).collect()
}
