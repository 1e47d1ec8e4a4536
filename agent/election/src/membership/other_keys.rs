//! Nodes whose gossip is sealed with an unknown key. They are no members, and may lead VIPs all the
//! same.
//!
//! Without a store of Leases that all nodes share, nothing keeps two such nodes from leading one
//! VIP. So the nodes of one key lead, and those of all other keys lead nothing. It is the key of the
//! most nodes, and of two equal groups that of the first node by name. Each node finds the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::sealing::KeyId;
use vipmux_model::NodeName;

/// The time after the last datagram for which a node counts, in a cluster of one node,
const HEARD: Duration = Duration::from_secs(10);
/// and this for each Node more. A node contacts three of the nodes that it does not know, each
/// second.
const HEARD_EACH: Duration = Duration::from_secs(3);

/// The nodes that were heard with an unknown key. A datagram's source can be forged, so only Nodes
/// of the cluster that are no members count: where most nodes are members of each other, a forger
/// changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherKeys(BTreeMap<NodeName, (KeyId, Duration)>);

impl OtherKeys {
    /// Notes a datagram from a Node's address, sealed with this key, at `now` (`CLOCK_BOOTTIME`).
    pub fn note(&mut self, node: NodeName, key: KeyId, now: Duration) {
        self.0.insert(node, (key, now));
    }

    /// Forgets all nodes but these.
    pub fn retain(&mut self, keep: impl Fn(&NodeName) -> bool) {
        self.0.retain(|node, _| keep(node));
    }

    /// Returns the nodes that were heard lately, by key. `nodes`: the number of Nodes.
    fn groups(&self, nodes: usize, now: Duration) -> BTreeMap<KeyId, BTreeSet<&NodeName>> {
        let lately = HEARD + HEARD_EACH * u32::try_from(nodes).unwrap_or(u32::MAX);
        let mut groups = BTreeMap::<_, BTreeSet<_>>::new();
        for (node, (key, heard)) in &self.0 {
            if now < *heard + lately {
                groups.entry(*key).or_default().insert(node);
            }
        }
        groups
    }

    /// Returns whether no node was ever heard.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the nodes that were heard lately and are no members, and when they were heard last.
    /// `members`: this node and the living members. `nodes`: the number of Nodes.
    pub fn strangers(&self, members: &BTreeSet<NodeName>, nodes: usize, now: Duration) -> BTreeMap<NodeName, Duration> {
        let lately = self.groups(nodes, now).into_values().flatten().filter(|node| !members.contains(*node));
        lately.filter_map(|node| Some((node.clone(), self.0.get(node)?.1))).collect()
    }

    /// Returns the nodes that may lead rather than `members`, which are this node and the living
    /// members. `nodes`: the number of Nodes. `None`: these may lead.
    pub fn preferred(&self, members: &BTreeSet<NodeName>, nodes: usize, now: Duration) -> Option<BTreeSet<NodeName>> {
        let rank = |group: &BTreeSet<&NodeName>| (group.len(), std::cmp::Reverse(group.first().copied().cloned()));
        let groups = self.groups(nodes, now).into_values();
        let others = groups.map(|group| group.into_iter().filter(|node| !members.contains(*node)).collect());
        let best = others.filter(|group: &BTreeSet<_>| !group.is_empty()).max_by_key(rank)?;
        (rank(&best) > rank(&members.iter().collect())).then(|| best.into_iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::names::node_name;

    const NOW: Duration = Duration::from_secs(100);

    fn names(names: &[&str]) -> BTreeSet<NodeName> {
        names.iter().copied().map(node_name).collect()
    }

    /// Returns what a node finds that heard the others of these groups, each with a key of its own.
    fn found(groups: &[&[&str]], own: usize) -> Option<BTreeSet<NodeName>> {
        let mut heard = OtherKeys::default();
        for (key, group) in (0..).zip(groups).filter(|(key, _)| usize::from(*key) != own) {
            group.iter().for_each(|node| heard.note(node_name(node), [key; 4], NOW));
        }
        heard.preferred(&names(groups[own]), 5, NOW)
    }

    #[test]
    fn the_page_has_the_times_of_the_code() {
        let (heard, each) = (HEARD.as_secs(), HEARD_EACH.as_secs());
        let words = format!("others may lead after {heard} seconds, plus {each} seconds for each Node");
        vipmux_testing::pages::assert_says(vipmux_testing::pages::FAILOVER, &words);
    }

    #[test]
    fn nodes_of_one_key_lead_and_all_find_the_same() {
        let table: &[(&[&[&str]], usize)] = &[
            (&[&["n1"], &["n2"], &["n3"]], 0),
            (&[&["n3"], &["n2"]], 1),
            (&[&["n1"], &["n2", "n3"]], 1),
            (&[&["n2", "n4"], &["n1", "n5"], &["n3"]], 1),
            (&[&["n1", "n2", "n3"], &["n4", "n5"]], 0),
            (&[&["n1"]], 0),
        ];
        for (groups, leading) in table {
            for own in 0..groups.len() {
                let expected = (own != *leading).then(|| names(groups[*leading]));
                assert_eq!(found(groups, own), expected, "{own} of {groups:?}");
            }
        }
    }

    #[test]
    fn members_and_nodes_that_fell_silent_do_not_count() {
        let mut heard = OtherKeys::default();
        heard.note(node_name("n1"), [1; 4], NOW);
        let (alone, two) = (names(&["n2"]), names(&["n1", "n2"]));
        assert_eq!(heard.preferred(&alone, 2, NOW), Some(names(&["n1"])));
        assert_eq!(heard.strangers(&alone, 2, NOW), BTreeMap::from([(node_name("n1"), NOW)]));
        assert_eq!((heard.preferred(&two, 2, NOW), heard.strangers(&two, 2, NOW)), (None, BTreeMap::new()));
        let later = NOW + HEARD + HEARD_EACH * 2;
        assert!(heard.preferred(&alone, 2, NOW + HEARD).is_some());
        assert_eq!(heard.preferred(&alone, 2, later), None);
        heard.retain(|_| false);
        assert!(heard.is_empty());
    }

    /// A forger sends in the names of all nodes that are no members.
    #[test]
    fn where_most_nodes_are_members_a_forger_changes_nothing() {
        let mut heard = OtherKeys::default();
        for node in ["n1", "n2", "n3", "n4", "n5"] {
            heard.note(node_name(node), [9; 4], NOW);
        }
        assert_eq!(heard.preferred(&names(&["n3", "n4", "n5"]), 5, NOW), None);
        assert!(heard.preferred(&names(&["n4", "n5"]), 5, NOW).is_some());
    }
}
