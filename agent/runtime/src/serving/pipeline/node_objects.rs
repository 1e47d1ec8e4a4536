//! Keeps Nodes that are gone for a moment, or show no address: a Node may be deleted and made again,
//! and what writes its addresses may be restarted. No flow may end for that.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use imbl::OrdMap;
use k8s_openapi::api::core::v1::Node;
use vipmux_model::{NodeName, objects::Objects};

/// The time for which a Node's last object counts.
const LINGER: Duration = Duration::from_secs(5);

type Nodes = OrdMap<NodeName, Arc<Node>>;

/// The last Nodes, and until when those count that the source does not have now.
#[derive(Debug, Default)]
pub(super) struct NodeObjects {
    last: Nodes,
    gone: BTreeMap<NodeName, Instant>,
}

impl NodeObjects {
    /// Returns the objects with the last state of Nodes that have been gone for a short time.
    pub(super) fn complete(&mut self, objects: Arc<Objects>, now: Instant) -> Arc<Objects> {
        if self.gone.is_empty() && objects.nodes.ptr_eq(&self.last) {
            return objects;
        }
        let (mut nodes, mut gone) = (objects.nodes.clone(), BTreeMap::new());
        for (name, last) in &self.last {
            if !has_address(last) || objects.nodes.get(name).is_some_and(|node| has_address(node)) {
                continue;
            }
            let until = self.gone.get(name).copied().unwrap_or(now + LINGER);
            if now < until {
                gone.insert(name.clone(), until);
                nodes.insert(name.clone(), Arc::clone(last));
            }
        }
        (self.last, self.gone) = (nodes.clone(), gone);
        if self.gone.is_empty() { objects } else { Arc::new(Objects { nodes, ..Objects::clone(&objects) }) }
    }

    /// Returns when a Node ceases to count.
    pub(super) fn next(&self) -> Option<Instant> {
        self.gone.values().min().copied()
    }
}

fn has_address(node: &Node) -> bool {
    let mut addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.any(|address| address.type_ == "InternalIP")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vipmux_testing::names::node_name;

    use super::*;

    fn objects(nodes: &[(&str, Option<&str>)]) -> Arc<Objects> {
        let node = |address: Option<&str>| {
            let addresses: Vec<_> = address.iter().map(|it| json!({"type": "InternalIP", "address": it})).collect();
            Arc::new(serde_json::from_value(json!({"status": {"addresses": addresses}})).unwrap())
        };
        let nodes = nodes.iter().map(|(name, address)| (node_name(name), node(*address))).collect();
        Arc::new(Objects { nodes, ..Objects::default() })
    }

    #[test]
    fn a_node_that_is_gone_counts_for_a_short_time() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let both = objects(&[("a", Some("192.0.2.1")), ("b", Some("192.0.2.2"))]);
        let deleted = objects(&[("a", Some("192.0.2.1"))]);
        let without_address = objects(&[("a", Some("192.0.2.1")), ("b", None)]);
        let mut nodes = NodeObjects::default();
        let mut complete = |objects: &Arc<Objects>, after| nodes.complete(Arc::clone(objects), start + after);
        assert_eq!(complete(&deleted, Duration::ZERO), deleted, "nothing is known of b");
        assert_eq!(complete(&both, Duration::ZERO), both);

        assert_eq!(complete(&deleted, Duration::ZERO), both);
        assert_eq!(complete(&without_address, second), both);
        assert_eq!(complete(&both, 2 * second), both);

        assert_eq!(complete(&deleted, 3 * second), both);
        assert_eq!(complete(&deleted, 3 * second + LINGER), deleted);
        assert_eq!(complete(&deleted, 4 * second + LINGER), deleted);
        assert_eq!(nodes.next(), None);
    }

    #[test]
    fn the_time_counts_since_a_node_is_gone() {
        let now = Instant::now();
        let mut nodes = NodeObjects::default();
        nodes.complete(objects(&[("a", Some("192.0.2.1"))]), now);
        nodes.complete(objects(&[]), now);
        nodes.complete(objects(&[("a", None)]), now + LINGER / 2);
        assert_eq!(nodes.next(), Some(now + LINGER));
    }

    #[test]
    fn another_address_counts_at_once() {
        let now = Instant::now();
        let mut nodes = NodeObjects::default();
        nodes.complete(objects(&[("a", Some("192.0.2.1"))]), now);
        let changed = objects(&[("a", Some("192.0.2.9"))]);
        assert_eq!(nodes.complete(Arc::clone(&changed), now), changed);
        assert_eq!(nodes.next(), None);
    }
}
