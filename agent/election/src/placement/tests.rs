//! Tests which node should lead a VIP.

use k8s_openapi::api::core::v1 as api;
use proptest::{collection, prelude::*};
use serde_json::json;

use super::*;
use vipmux_model::{IngestOptions, objects::Objects};
use vipmux_testing::{
    names::{node_name, vip},
    object,
};

fn vips(count: u32) -> impl Iterator<Item = Vip> {
    (0..count).map(|i| Vip::new(std::net::Ipv4Addr::from_bits(0xc000_0200 + i).into()))
}

fn candidate(number: usize, weight: u32) -> Candidate {
    Candidate { node: node_name(format!("n{number}")), weight, score: 0, excluded: false, cordoned: false }
}

fn loads<'a>(leaders: impl IntoIterator<Item = &'a NodeName>) -> BTreeMap<&'a NodeName, u64> {
    let mut loads = BTreeMap::new();
    for leader in leaders {
        *loads.entry(leader).or_default() += 1;
    }
    loads
}

fn owned(loads: &BTreeMap<&NodeName, u64>) -> BTreeMap<NodeName, u64> {
    loads.iter().map(|(node, load)| ((*node).clone(), *load)).collect()
}

/// A node, with `x` excluded, `c` cordoned, `u` network unavailable.
fn node(name: &str, flags: &str) -> (NodeName, Node) {
    let name = node_name(name);
    let node = Node {
        excluded: flags.contains('x'),
        cordoned: flags.contains('c'),
        network_unavailable: flags.contains('u'),
        ..Node::ingest(&name, &api::Node::default())
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
        let candidates = candidates(&nodes, &EligibleNodes::everybody(&nodes));
        let foremost = foremost(&candidates).into_iter().map(|candidate| candidate.node.as_str());
        assert_eq!(foremost.collect::<Vec<_>>(), expected);
    }
}

/// Nodes `a`, which is excluded by label, `b` and `c`, and a policy for pool `a` that selects node
/// `a` alone.
fn model_with_a_policy() -> Model {
    let mut objects = Objects::default();
    for (pool, address) in [("a", "192.0.2.1"), ("b", "192.0.2.2")] {
        objects.address_pools.insert(pool.to_owned(), object(json!({"spec": {"addresses": [address]}})));
    }
    for name in ["a", "b", "c"] {
        let labels = if name == "a" { json!({(vipmux_model::node::EXCLUDE_LABEL): ""}) } else { json!({}) };
        let node = object(json!({"metadata": {"name": name, "labels": labels}}));
        objects.nodes.insert(node_name(name), node);
    }
    let spec = json!({"pools": ["a"], "nodeSelectors": [{"matchLabels": {"kubernetes.io/hostname": "a"}}]});
    objects.vip_policies.insert("a".to_owned(), object(json!({"metadata": {"name": "a"}, "spec": spec})));
    Model::ingest(&objects, &IngestOptions::default())
}

#[test]
fn each_vip_is_led_by_a_node_that_may_announce_its_pool_or_by_none() {
    let model = model_with_a_policy();
    let leaders = leaders(&candidates_of(&model, ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(vip)));
    let shown: Vec<_> = leaders.values().map(|leader| leader.as_ref().map(NodeName::as_str)).collect();
    // The excluded one leads, since it is the only one that may; pool b is covered by nothing; the
    // third is in no pool.
    assert_eq!(shown, [Some("a"), None, Some("a")]);
}

/// Each VIP's list is looked up at each evaluation, so lists are told apart by a number and not by their nodes.
#[test]
fn pools_with_equal_candidates_share_one_list() {
    let mut objects = Objects::default();
    for (pool, address) in [("a", "192.0.2.1"), ("b", "192.0.2.2")] {
        objects.address_pools.insert(pool.to_owned(), object(json!({"spec": {"addresses": [address]}})));
    }
    let named = object(json!({"metadata": {"name": "n"}}));
    objects.nodes.insert(node_name("n"), named);
    let model = Model::ingest(&objects, &IngestOptions::default());
    let lists = candidates_of(&model, ["192.0.2.1", "192.0.2.2"].map(vip));
    assert_eq!(lists[&vip("192.0.2.1")].id(), lists[&vip("192.0.2.2")].id());
    let others = candidates_of(&model_with_a_policy(), ["192.0.2.1", "192.0.2.2"].map(vip));
    assert_ne!(others[&vip("192.0.2.1")].id(), others[&vip("192.0.2.2")].id());
}

proptest! {
    #[test]
    fn no_node_leads_more_than_its_share_rounded_up_and_one(
        weights in collection::vec(1_u32..=100, 1..12), count in 0_u32..300,
    ) {
        let pool: Candidates = weights.iter().enumerate().map(|(number, weight)| candidate(number, *weight)).collect();
        let wanted = vips(count).map(|vip| (vip, pool.clone())).collect();
        let leaders = leaders(&wanted);
        prop_assert!(leaders.values().all(Option::is_some));
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let loads = loads(leaders.values().flatten());
        for candidate in pool.iter() {
            let share = (u64::from(count) * u64::from(candidate.weight)).div_ceil(total);
            prop_assert!(loads.get(&candidate.node).copied().unwrap_or_default() <= share + 1);
        }
    }

    #[test]
    fn when_nodes_go_only_what_they_led_is_placed_anew_and_all_who_see_it_agree(
        nodes in 2_usize..40, count in 1_u32..200, gone in 0_usize..40,
    ) {
        let pool: Candidates = (0..nodes).map(|number| candidate(number, 1)).collect();
        let wanted: BTreeMap<_, _> = vips(count).map(|vip| (vip, pool.clone())).collect();
        let before = leaders(&wanted);
        let gone = node_name(format!("n{}", gone % nodes));
        let preference = |candidate: &Candidate| (candidate.node != gone).then(Preference::default);
        let held: Vec<_> = before.values().flatten().filter(|node| **node != gone).collect();
        let (preferences, led) = (Preferences::new(wanted.values(), &preference), owned(&loads(held.iter().copied())));
        let mut placement = LeaderPlacement::new(&wanted, &preference, &preferences, &led);
        let mut after = held.clone();
        for (vip, leader) in &before {
            if leader.as_ref() == Some(&gone) {
                let heir = placement.place(*vip, 0, |_| true).unwrap();
                prop_assert!(*heir != gone);
                after.push(heir);
            }
        }
        let most = u64::from(count).div_ceil((nodes - 1) as u64) + 1;
        prop_assert!(loads(after).values().all(|load| *load <= most));
    }

    #[test]
    fn each_turn_is_another_nodes(nodes in 1_usize..40, start in 0_u32..50) {
        let pool: Candidates = (0..nodes).map(|number| candidate(number, 1)).collect();
        let vip = vips(start + 1).last().unwrap();
        let wanted: BTreeMap<_, _> = [(vip, pool)].into();
        let preference = |_: &Candidate| Some(Preference::default());
        let (preferences, led) = (Preferences::new(wanted.values(), &preference), BTreeMap::new());
        let turns: std::collections::BTreeSet<_> = (0..nodes)
            .map(|turn| LeaderPlacement::new(&wanted, &preference, &preferences, &led).place(vip, turn, |_| true).unwrap().clone())
            .collect();
        prop_assert_eq!(turns.len(), nodes);
    }

    #[test]
    fn what_is_remembered_of_the_bids_changes_nothing(
        nodes in collection::vec((1_u32..4, 0_u64..4, 0_u8..4, any::<bool>()), 1..60), start in 0_u32..50, turn in 0_usize..60,
    ) {
        let pool: Candidates = nodes.iter().enumerate().map(|(number, node)| candidate(number, node.0)).collect();
        let vip = vips(start + 1).last().unwrap();
        let wanted: BTreeMap<_, _> = [(vip, pool.clone())].into();
        let number = |node: &NodeName| node.as_str()[1..].parse::<usize>().unwrap();
        let preference = |candidate: &Candidate| {
            let preference = nodes[number(&candidate.node)].2;
            (preference > 0).then_some(Preference { leaving: preference > 2, ..Preference::default() })
        };
        let able = |node: &NodeName| nodes[number(node)].3;
        let preferences = Preferences::new(wanted.values(), &preference);
        let led = nodes.iter().enumerate().map(|(number, node)| (node_name(format!("n{number}")), node.1)).collect();
        let mut placement = LeaderPlacement::new(&wanted, &preference, &preferences, &led);
        let expected = placement.place_among_all(&pool, vip, turn, able).cloned();
        prop_assert_eq!(placement.place(vip, turn, able).cloned(), expected);
        let least = pool.iter().filter(|candidate| able(&candidate.node)).filter_map(preference).min();
        prop_assert_eq!(placement.best(vip, able), least);
    }
}

#[test]
fn who_stands_best_leads_and_the_others_where_it_cannot() {
    let pool: Candidates = (0..3).map(|number| candidate(number, 1)).collect();
    let wanted: BTreeMap<_, _> = vips(1).map(|vip| (vip, pool.clone())).collect();
    let vip = *wanted.keys().next().unwrap();
    let preference = |candidate: &Candidate| {
        let n = candidate.node.as_str();
        (n != "n2").then_some(Preference {
            excluded: false,
            leaving: n == "n0",
            readiness: if n == "n1" { Readiness::HoldDown } else { Readiness::Ready },
            ..Preference::default()
        })
    };
    let (preferences, led) = (Preferences::new(wanted.values(), &preference), BTreeMap::new());
    let place = |able: &dyn Fn(&NodeName) -> bool| {
        LeaderPlacement::new(&wanted, &preference, &preferences, &led)
            .place(vip, 0, able)
            .map(|node| node.as_str().to_owned())
    };
    assert_eq!(place(&|_| true).as_deref(), Some("n1"), "rather one that has just come than one that leaves");
    assert_eq!(place(&|node| node.as_str() != "n1").as_deref(), Some("n0"));
    assert_eq!(place(&|node| node.as_str() == "n2"), None);
}

#[test]
fn the_highest_score_leads_after_the_hold_down_while_it_can() {
    let scored = |number, score| Candidate { score, ..candidate(number, 1) };
    let pool: Candidates = [scored(0, 0), scored(1, 10), scored(2, 100)].into_iter().collect();
    let wanted: BTreeMap<_, _> = vips(50).map(|vip| (vip, pool.clone())).collect();
    let leaders = |alive: &[&str], unready: &str| {
        let preference = |candidate: &Candidate| {
            let n = candidate.node.as_str();
            let score = Reverse(candidate.score);
            let readiness = if n == unready { Readiness::HoldDown } else { Readiness::Ready };
            alive.contains(&n).then_some(Preference { readiness, score, ..Preference::default() })
        };
        let (preferences, led) = (Preferences::new(wanted.values(), &preference), BTreeMap::new());
        let mut placement = LeaderPlacement::new(&wanted, &preference, &preferences, &led);
        let leaders: Vec<_> = wanted.keys().map(|vip| placement.place(*vip, 0, |_| true).unwrap().as_str()).collect();
        leaders.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(leaders(&["n0", "n1", "n2"], ""), "n2");
    assert_eq!(leaders(&["n0", "n1"], ""), "n1");
    assert_eq!(leaders(&["n0", "n1", "n2"], "n2"), "n1", "n2 is in its hold-down");
    assert_eq!(leaders(&["n2"], "n2"), "n2");
}

#[test]
fn a_vip_moves_to_a_higher_score_but_not_during_a_hold_down() {
    let scored = |score, unready| {
        let readiness = if unready { Readiness::HoldDown } else { Readiness::Ready };
        Preference { score: Reverse(score), readiness, ..Preference::default() }
    };
    assert!(scored(10, false).precedes(scored(0, false)));
    assert!(scored(10, false).precedes(scored(0, true)));
    assert!(!scored(10, true).precedes(scored(0, false)));
    assert!(!scored(10, false).precedes(scored(10, true)));
    assert!(!scored(0, false).precedes(scored(10, true)), "one that has just come keeps what it leads");
    assert!(!scored(10, false).precedes(Preference { score: Reverse(20), ..Preference::default() }));
    assert!(scored(0, false).precedes(Preference { leaving: true, score: Reverse(20), ..Preference::default() }));
}

#[test]
fn those_with_a_lower_score_have_their_turns_after_the_highest() {
    let pool: Candidates =
        [0, 10, 100].into_iter().zip(0..).map(|(score, n)| Candidate { score, ..candidate(n, 1) }).collect();
    let vip = vips(1).next().unwrap();
    let wanted: BTreeMap<_, _> = [(vip, pool)].into();
    let turns = |preference: &dyn Fn(&Candidate) -> Option<Preference>| {
        let (preferences, led) = (Preferences::new(wanted.values(), preference), BTreeMap::new());
        let mut place = |turn| {
            LeaderPlacement::new(&wanted, preference, &preferences, &led).place(vip, turn, |_| true).unwrap().as_str()
        };
        (0..4).map(&mut place).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(turns(&as_the_objects_say), "n2 n1 n0 n2");
    let excluded = |candidate: &Candidate| {
        let excluded = candidate.node.as_str() == "n1";
        as_the_objects_say(candidate).map(|preference| Preference { excluded, ..preference })
    };
    assert_eq!(turns(&excluded), "n2 n0 n2 n0", "an excluded node has no turn while others may lead");
}
