//! Follows the nodes that have another gossip key than this one, and says what that means.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use tokio::sync::watch;

use vipmux_election::membership::OtherKeys;
use vipmux_election::membership::sealing::KEY_REMEDY;
use vipmux_model::NodeName;

/// The nodes that have another gossip key, and what this node does about them.
pub(crate) struct KeyConflict {
    heard: watch::Receiver<OtherKeys>,
    /// This node may have to leave VIPs to nodes with another key.
    yields: bool,
    /// The key file that this agent made at its start, until other Nodes are known.
    made: Option<PathBuf>,
    /// The number of Nodes.
    nodes: usize,
    /// The nodes that were heard lately and are no members, and when they were heard last.
    strangers: BTreeMap<NodeName, Duration>,
    /// The nodes that may lead rather than this one; empty: this one may.
    preferred: BTreeSet<NodeName>,
}

impl KeyConflict {
    pub(crate) fn new(heard: watch::Receiver<OtherKeys>, yields: bool, made: Option<PathBuf>) -> Self {
        Self { heard, yields, made, nodes: 0, strangers: BTreeMap::new(), preferred: BTreeSet::new() }
    }

    /// Notes the number of Nodes.
    pub(crate) fn set_nodes(&mut self, nodes: usize) {
        self.nodes = nodes;
        if nodes > 1
            && let Some(path) = self.made.take()
        {
            tracing::warn!(
                path = %path.display(), nodes,
                "made a gossip key, copy it to the other nodes unless they share this directory"
            );
        }
    }

    /// Returns whether no node with another key was ever heard.
    pub(crate) fn is_quiet(&self) -> bool {
        self.strangers.is_empty() && self.heard.borrow().is_empty()
    }

    /// Looks who was heard lately. Returns whether this node must lead nothing, if that is new.
    /// `members`: this node and the living members.
    pub(crate) fn update(&mut self, members: &BTreeSet<NodeName>, now: Duration) -> Option<bool> {
        let (strangers, preferred) = {
            let heard = self.heard.borrow();
            let preferred = heard.preferred(members, self.nodes, now).filter(|_| self.yields);
            (heard.strangers(members, self.nodes, now), preferred.unwrap_or_default())
        };
        let is_new = strangers.keys().ne(self.strangers.keys());
        self.strangers = strangers;
        let was_outranked = !std::mem::replace(&mut self.preferred, preferred).is_empty();
        let outranked = !self.preferred.is_empty();
        if is_new || outranked != was_outranked {
            self.log();
        }
        (outranked != was_outranked).then_some(outranked)
    }

    fn log(&self) {
        let nodes = names(self.strangers.keys());
        if self.strangers.is_empty() {
            tracing::info!("no node has another gossip key any more");
        } else if self.preferred.is_empty() {
            tracing::warn!(nodes, remedy = KEY_REMEDY, "nodes have another gossip key, they are no members");
        } else {
            tracing::error!(nodes, remedy = KEY_REMEDY, "nodes have another gossip key, leading nothing");
        }
    }

    /// Returns the nodes that were heard lately and are no members, and when they were heard last.
    pub(crate) fn strangers(&self) -> &BTreeMap<NodeName, Duration> {
        &self.strangers
    }

    /// Returns why this node leads nothing; `None`: it may lead.
    pub(crate) fn silence(&self) -> Option<String> {
        let nodes = names(&self.preferred);
        let why = || format!("this node leads nothing: its gossip key is not that of {nodes}, which may lead");
        (!self.preferred.is_empty()).then(why)
    }
}

fn names<'a>(nodes: impl IntoIterator<Item = &'a NodeName>) -> String {
    nodes.into_iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}
