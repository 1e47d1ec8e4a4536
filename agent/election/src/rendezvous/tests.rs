//! Tests rendezvous hashing.

use std::collections::BTreeMap;

use proptest::{collection, prelude::*};

use super::*;
use vipmux_testing::names::node_name;

fn vips(count: u32) -> impl Iterator<Item = Vip> {
    (0..count).map(|i| Vip::new(std::net::Ipv4Addr::from_bits(0xc000_0200 + i).into()))
}

fn names(count: usize) -> Vec<NodeName> {
    (0..count).map(|i| node_name(format!("n{i}"))).collect()
}

fn leader<'a>(vip: Vip, nodes: impl IntoIterator<Item = (&'a NodeName, u32)>) -> Option<&'a NodeName> {
    let nodes: Vec<_> = nodes.into_iter().collect();
    first(vip, nodes.iter().copied(), 1).first().map(|at| nodes[*at].0)
}

/// The leader among nodes that weigh the same.
fn unweighted<'a>(vip: Vip, nodes: impl IntoIterator<Item = &'a NodeName>) -> Option<&'a NodeName> {
    leader(vip, nodes.into_iter().map(|name| (name, 1)))
}

fn weighted<'a>(vip: Vip, nodes: &'a [NodeName], weights: &[u32]) -> Option<&'a NodeName> {
    leader(vip, nodes.iter().zip(weights.iter().copied()))
}

#[test]
fn leaders_are_spread_evenly() {
    let nodes = names(5);
    let mut led: BTreeMap<&NodeName, u32> = BTreeMap::new();
    vips(5_000).for_each(|vip| *led.entry(unweighted(vip, &nodes).unwrap()).or_default() += 1);
    assert!(led.values().all(|count| (900..1_100).contains(count)), "{led:?}");
}

#[test]
fn leaders_are_spread_by_weight() {
    let (nodes, weights) = (names(4), [1, 9, 30, 60]);
    let mut led: BTreeMap<&NodeName, u32> = BTreeMap::new();
    vips(20_000).for_each(|vip| *led.entry(weighted(vip, &nodes, &weights).unwrap()).or_default() += 1);
    for (count, weight) in led.values().zip(weights) {
        let expected = weight * 200;
        assert!(count.abs_diff(expected) < 60 + expected / 20, "{led:?}");
    }
}

#[test]
#[allow(clippy::cast_precision_loss, reason = "the comparison allows for it")]
fn rarity_is_the_logarithm() {
    assert_eq!((rarity(u64::MAX), rarity(0), rarity(u64::MAX / 2)), (0, 64 << FRACTION, 1 << FRACTION));
    for hash in [1, 2, 3, 1_000_003, u64::MAX / 3, u64::MAX / 5 * 4, u64::MAX - (1 << 40), u64::MAX - (1 << 12)] {
        let exact = 64.0 - (hash as f64 + 1.0).log2();
        let found = rarity(hash) as f64 / (1_u64 << FRACTION) as f64;
        assert!((found - exact).abs() < 1e-12, "{hash}: {found}, and not {exact}");
    }
}

#[test]
fn the_hash_is_pinned_for_agents_of_other_versions() {
    let nodes = names(3);
    let leaders: String = vips(12).filter_map(|vip| unweighted(vip, &nodes)).map(|name| &name.as_str()[1..]).collect();
    assert_eq!(leaders, "012222012122");
    let weighted: String =
        vips(12).filter_map(|vip| weighted(vip, &nodes, &[5, 2, 1])).map(|name| &name.as_str()[1..]).collect();
    assert_eq!(weighted, "011010000020");
}

proptest! {
    #[test]
    fn removing_a_node_moves_only_its_vips(weights in collection::vec(1_u32..200, 2..20), gone in 0_usize..20) {
        let nodes = names(weights.len());
        let gone = &nodes[gone % weights.len()];
        for vip in vips(100) {
            let all = || nodes.iter().zip(weights.iter().copied());
            let (before, after) = (leader(vip, all()), leader(vip, all().filter(|(name, _)| *name != gone)));
            prop_assert!(before == after || before == Some(gone));
        }
    }

    #[test]
    fn a_node_that_gains_weight_loses_no_vip_and_takes_them_alone(
        weights in collection::vec(1_u32..200, 2..20), heavier in 0_usize..20, by in 1_u32..200,
    ) {
        let nodes = names(weights.len());
        let heavier = heavier % weights.len();
        let mut gained = weights.clone();
        gained[heavier] += by;
        for vip in vips(100) {
            let (before, after) = (weighted(vip, &nodes, &weights), weighted(vip, &nodes, &gained));
            prop_assert!(before == after || after == Some(&nodes[heavier]));
        }
    }

    #[test]
    fn equal_weights_are_no_weights(weight in 1_u32..=25_600) {
        let nodes = names(7);
        for vip in vips(50) {
            prop_assert_eq!(weighted(vip, &nodes, &[weight; 7]), unweighted(vip, &nodes));
        }
    }

    #[test]
    fn the_order_of_the_nodes_does_not_matter(nodes in Just(names(8)).prop_shuffle()) {
        let weight = |name: &NodeName| u32::from(name.as_str().as_bytes()[1] % 3);
        let leader = |vip, nodes: &[NodeName]| leader(vip, nodes.iter().map(|name| (name, weight(name)))).cloned();
        for vip in vips(50) {
            prop_assert_eq!(leader(vip, &nodes), leader(vip, &names(8)));
        }
    }

    #[test]
    fn a_higher_hash_is_no_less_rare(a: u64, b: u64, near in 0_u64..1_000) {
        for (low, high) in [(a.min(b), a.max(b)), (a, a.saturating_add(near))] {
            prop_assert!(rarity(low) >= rarity(high));
        }
    }
}
