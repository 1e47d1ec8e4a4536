//! Who may lead: highest-random-weight hashing (Thaler and Ravishankar, 1998), the same on every node.

use std::collections::{BTreeMap, BTreeSet};

use twox_hash::XxHash64;

use crate::model::{NodeName, Vip, node::Node};

/// The node that should lead the VIP: the one whose hash with it is highest; of equals, the first by name. When a node
/// goes, only the VIPs that it led move; when one comes, VIPs move to it only. `None` without nodes.
pub fn leader<'a>(vip: Vip, nodes: impl IntoIterator<Item = &'a NodeName>) -> Option<&'a NodeName> {
    nodes.into_iter().max_by(|a, b| weight(vip, a).cmp(&weight(vip, b)).then_with(|| b.cmp(a)))
}

/// XxHash64, seed 0, of the VIP's 16 bytes (IPv4 in its mapped form) and the node's name. Changing it moves nearly every
/// VIP, and agents that differ in it disagree.
fn weight(vip: Vip, node: &NodeName) -> u64 {
    let mut bytes = Vec::with_capacity(16 + node.0.len());
    bytes.extend_from_slice(&vip.number().to_be_bytes());
    bytes.extend_from_slice(node.0.as_bytes());
    XxHash64::oneshot(0, &bytes)
}

/// The nodes that may lead: the network is up, not excluded by label (ignored where no node would be left), and not
/// cordoned (those come last: they lead where no other may).
pub fn eligible(nodes: &BTreeMap<NodeName, Node>) -> BTreeSet<&NodeName> {
    let reachable: Vec<&Node> = nodes.values().filter(|node| !node.network_unavailable).collect();
    let preferred = prefer(reachable, |node| !node.excluded);
    prefer(preferred, |node| !node.cordoned).into_iter().map(|node| &node.name).collect()
}

/// Those that are preferred; all, where none is.
fn prefer(nodes: Vec<&Node>, preferred: impl Fn(&Node) -> bool) -> Vec<&Node> {
    let some: Vec<&Node> = nodes.iter().copied().filter(|node| preferred(node)).collect();
    if some.is_empty() { nodes } else { some }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vips(count: u32) -> impl Iterator<Item = Vip> {
        (0..count).map(|i| Vip(std::net::Ipv4Addr::from_bits(0xc000_0200 + i).into()))
    }

    fn names(count: usize) -> Vec<NodeName> {
        (0..count).map(|i| NodeName(format!("n{i}"))).collect()
    }

    /// A node, with `x` excluded, `c` cordoned, `u` network unavailable.
    fn node(name: &str, flags: &str) -> (NodeName, Node) {
        let name = NodeName(name.to_owned());
        let node = Node {
            name: name.clone(),
            internal: BTreeSet::new(),
            addresses: BTreeSet::new(),
            excluded: flags.contains('x'),
            cordoned: flags.contains('c'),
            network_unavailable: flags.contains('u'),
        };
        (name, node)
    }

    #[test]
    fn excluded_and_cordoned_nodes_lead_only_where_no_other_may_and_unreachable_ones_never() {
        for (nodes, expected) in [
            (vec![("a", ""), ("b", "x"), ("c", "c"), ("d", "u")], vec!["a"]),
            (vec![("b", "x"), ("c", "c"), ("d", "u")], vec!["c"]),
            (vec![("b", "x"), ("e", "xc"), ("d", "u")], vec!["b"]),
            (vec![("e", "xc"), ("d", "u")], vec!["e"]),
            (vec![("d", "u")], vec![]),
        ] {
            let nodes: BTreeMap<_, _> = nodes.into_iter().map(|(name, flags)| node(name, flags)).collect();
            assert_eq!(eligible(&nodes).into_iter().map(|name| name.0.as_str()).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn leaders_are_spread_evenly() {
        let nodes = names(5);
        let mut led: BTreeMap<&NodeName, u32> = BTreeMap::new();
        vips(5_000).for_each(|vip| *led.entry(leader(vip, &nodes).unwrap()).or_default() += 1);
        assert!(led.values().all(|count| (900..1_100).contains(count)), "{led:?}");
    }

    #[test]
    fn the_hash_is_pinned_for_agents_of_other_versions() {
        let nodes = names(3);
        let leaders: String = vips(12).filter_map(|vip| leader(vip, &nodes)).map(|name| &name.0[1..]).collect();
        assert_eq!(leaders, "012222012122");
    }

    proptest! {
        #[test]
        fn removing_a_node_moves_only_its_vips(count in 2_usize..20, gone in 0_usize..20) {
            let nodes = names(count);
            let gone = &nodes[gone % count];
            for vip in vips(200) {
                let (before, after) = (leader(vip, &nodes), leader(vip, nodes.iter().filter(|name| *name != gone)));
                prop_assert!(before == after || before == Some(gone));
            }
        }

        #[test]
        fn the_order_of_the_nodes_does_not_matter(nodes in Just(names(8)).prop_shuffle()) {
            for vip in vips(50) {
                prop_assert_eq!(leader(vip, &nodes), leader(vip, &names(8)).map(|name| nodes.iter().find(|n| *n == name).unwrap()));
            }
        }
    }
}
