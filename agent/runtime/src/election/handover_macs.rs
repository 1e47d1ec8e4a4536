//! The hand-over MACs of all nodes, by the gossip keys.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::watch;
use vipmux_common::abi::Mac;

use vipmux_election::membership::sealing::SealingKeys;
use vipmux_model::NodeName;

/// The hand-over MACs of the nodes of the last call, so that equal nodes are not hashed again.
pub(crate) struct HandoverMacs {
    keys: watch::Receiver<SealingKeys>,
    macs: Arc<BTreeMap<NodeName, Vec<Mac>>>,
}

impl HandoverMacs {
    pub(crate) fn new(keys: watch::Receiver<SealingKeys>) -> Self {
        Self { keys, macs: Arc::default() }
    }

    /// Returns the MACs of these nodes: by the sealing key first.
    pub(crate) fn of<'a>(
        &mut self,
        nodes: impl ExactSizeIterator<Item = &'a NodeName> + Clone,
    ) -> Arc<BTreeMap<NodeName, Vec<Mac>>> {
        let is_rekeyed = self.keys.has_changed().unwrap_or_default();
        if is_rekeyed || !nodes.clone().eq(self.macs.keys()) {
            let keys = self.keys.borrow_and_update();
            self.macs = Arc::new(nodes.map(|node| (node.clone(), keys.handover_macs(node))).collect());
        }
        Arc::clone(&self.macs)
    }
}

#[cfg(test)]
mod tests {
    use vipmux_testing::names::node_name;

    use super::*;

    #[test]
    fn each_node_has_a_mac_for_each_key_and_a_new_key_gives_a_new_one() {
        let nodes: Vec<NodeName> = ["node-1", "node-2"].map(node_name).into();
        let old = SealingKeys::generate([1; 32]);
        let (sender, keys) = watch::channel(old.clone());
        let mut macs = HandoverMacs::new(keys);
        let first = macs.of(nodes.iter());
        assert!(Arc::ptr_eq(&first, &macs.of(nodes.iter())));
        assert!(first.values().all(|macs| macs.len() == 1 && macs[0].may_be_handover()));
        assert_ne!(first[&nodes[0]], first[&nodes[1]]);
        let both = SealingKeys::parse(&(SealingKeys::generate([2; 32]).file() + &old.file())).unwrap();
        sender.send_replace(both);
        let second = macs.of(nodes.iter());
        assert!(nodes.iter().all(|node| second[node].len() == 2 && second[node][1] == first[node][0]));
        assert_eq!(macs.of(nodes[..1].iter()).len(), 1);
    }
}
