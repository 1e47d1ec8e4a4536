//! Tests which nodes may announce which pools on which interfaces.

use serde_json::{Value, json};

use super::*;
use crate::{
    IngestOptions, Model,
    fixture::{node_name, vip},
};
use vipmux_testing::object;

/// Returns pools `a` (label `tier: front`), `b` (alias `old`, if it is asked for) and `c`, with the
/// addresses 192.0.2.1 to .3, and nodes `n1` and `n2` in rack `x`, `n3` in rack `y`.
fn objects() -> Objects {
    let mut objects = Objects::default();
    let pool =
        |name: &str, labels: Value, spec: Value| json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
    let a = pool("a", json!({"tier": "front"}), json!({"addresses": ["192.0.2.1/32"]}));
    objects.address_pools.insert("a".to_owned(), object(a));
    let b = pool("b", json!({}), json!({"addresses": ["192.0.2.2"], "aliases": ["old"]}));
    objects.vip_pools.insert("b".to_owned(), object(b));
    objects.vip_pools.insert("c".to_owned(), object(pool("c", json!({}), json!({"addresses": ["192.0.2.3"]}))));
    for (name, rack) in [("n1", "x"), ("n2", "x"), ("n3", "y")] {
        let node = object(json!({"metadata": {"name": name, "labels": {"rack": rack}}}));
        objects.nodes.insert(node_name(name), node);
    }
    objects
}

fn l2_advertisement(mut objects: Objects, name: &str, spec: &Value) -> Objects {
    objects.l2_advertisements.insert(name.to_owned(), object(json!({ "spec": spec })));
    objects
}

fn policy(mut objects: Objects, name: &str, spec: &Value) -> Objects {
    objects.vip_policies.insert(name.to_owned(), object(json!({"metadata": {"name": name}, "spec": spec})));
    objects
}

fn rack(name: &str) -> Value {
    json!([{"matchLabels": {"rack": name}}])
}

/// Returns, for each pool and for an address in no pool, the nodes with their weights and
/// interfaces, if those are not the default.
fn shown(objects: &Objects) -> [String; 4] {
    let model = Model::ingest(objects, &IngestOptions::default());
    ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.99"].map(|address| {
        let eligible_nodes = model.eligible_nodes(vip(address));
        let node = |(name, node): (&NodeName, &EligibleNode)| {
            let weight = if node.weight == 1 { String::new() } else { format!("*{}", node.weight) };
            let score = if node.score == 0 { String::new() } else { format!("^{}", node.score) };
            let interfaces = match &node.interfaces {
                Interfaces::All => String::new(),
                Interfaces::Named(names) => format!("@{}", names.iter().cloned().collect::<Vec<_>>().join("+")),
            };
            format!("{}{weight}{score}{interfaces}", name.as_str())
        };
        eligible_nodes.iter().map(node).collect::<Vec<_>>().join(" ")
    })
}

fn notes(objects: &Objects) -> Vec<String> {
    let notes = Model::ingest(objects, &IngestOptions::default()).notes;
    notes.iter().map(|note| format!("{}: {}", note.object, note.message)).collect()
}

#[test]
fn without_any_every_node_announces_every_pool() {
    assert_eq!(shown(&objects()), ["n1 n2 n3"; 4]);
    assert_eq!(notes(&objects()), [""; 0]);
}

#[test]
fn nodes_and_interfaces_are_those_that_all_advertisements_allow_together() {
    let (none, all) = ("", "n1 n2 n3");
    let table = [
        ("one that says nothing allows all", vec![json!({})], [all; 4]),
        ("by name", vec![json!({"pools": ["a"]})], [all, none, none, all]),
        ("by an alias", vec![json!({"pools": ["old"]})], [none, all, none, all]),
        ("by label", vec![json!({"poolSelectors": [{"matchLabels": {"tier": "front"}}]})], [all, none, none, all]),
        (
            "by name or label",
            vec![json!({"pools": ["c"], "poolSelectors": [{"matchLabels": {"tier": "front"}}]})],
            [all, none, all, all],
        ),
        ("nodes by label", vec![json!({"nodeSelectors": rack("x")})], ["n1 n2"; 4]),
        (
            "nodes by name, though the manifest has no such label",
            vec![json!({"nodeSelectors": [{"matchLabels": {"kubernetes.io/hostname": "n3"}}]})],
            ["n3"; 4],
        ),
        (
            "two for one pool add up, and an address in no pool is announced by whoever announces any",
            vec![
                json!({"pools": ["a"], "nodeSelectors": rack("x")}),
                json!({"pools": ["a", "b"], "nodeSelectors": rack("y")}),
            ],
            [all, "n3", none, all],
        ),
        (
            "interfaces add up on the nodes that both select",
            vec![
                json!({"interfaces": ["eth1"], "nodeSelectors": rack("x")}),
                json!({"interfaces": ["eth2"], "nodeSelectors": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]}),
            ],
            ["n1@eth1+eth2 n2@eth1+eth2 n3@eth2"; 4],
        ),
        (
            "one without interfaces allows all of them",
            vec![json!({"interfaces": ["eth1"]}), json!({"nodeSelectors": rack("y")})],
            ["n1@eth1 n2@eth1 n3"; 4],
        ),
        (
            "weights add up",
            vec![
                json!({"preferredNodes": [
                    {"weight": 50, "nodeSelector": {"matchLabels": {"rack": "x"}}},
                    {"weight": 7, "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "n2"}}},
                ]}),
                json!({"pools": ["a"], "preferredNodes": [{"weight": 3, "nodeSelector": {}}]}),
            ],
            ["n1*53 n2*60 n3*3", "n1*50 n2*57 n3", "n1*50 n2*57 n3", "n1*53 n2*60 n3*3"],
        ),
    ];
    for (what, specs, expected) in table {
        let add = |objects, (i, spec): (usize, &Value)| policy(objects, &format!("p{i}"), spec);
        let objects = specs.iter().enumerate().fold(objects(), add);
        assert_eq!(shown(&objects), expected, "{what}");
    }
}

#[test]
fn the_scores_of_the_l2_advertisements_that_select_a_node_add_up() {
    let by = |weight: u32, labels: Value| json!({"weight": weight, "preference": {"matchLabels": labels}});
    let spec = json!({
        "nodeSelectors": rack("x"),
        "preferredNodeSelectors": [by(50, json!({"rack": "x"})), by(7, json!({"kubernetes.io/hostname": "n2"}))],
    });
    let objects = l2_advertisement(objects(), "racks", &spec);
    assert_eq!(shown(&objects), ["n1^50 n2^57"; 4]);

    let spec = json!({"ipAddressPools": ["a"], "preferredNodeSelectors": [by(3, json!({}))]});
    let objects = l2_advertisement(objects, "all", &spec);
    let (a, others) = ("n1^53 n2^60 n3^3", "n1^50 n2^57");
    assert_eq!(shown(&objects), [a, others, others, a]);
    assert_eq!(notes(&objects), [""; 0]);

    let bad = json!({"preferredNodeSelectors": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
    ]});
    let [note] = &notes(&l2_advertisement(objects, "bad", &bad))[..] else { panic!("not one note") };
    assert!(note.starts_with("L2Advertisement bad: spec.preferredNodeSelectors[0].preference: "), "{note}");
    assert!(note.ends_with("; left out"), "{note}");
}

#[test]
fn an_l2_advertisement_says_the_same_in_its_own_words_and_both_kinds_add_up() {
    let spec = json!({
        "ipAddressPools": ["c"], "ipAddressPoolSelectors": [{"matchLabels": {"tier": "front"}}],
        "nodeSelectors": rack("x"), "interfaces": ["eth1"],
    });
    let objects = l2_advertisement(objects(), "metal", &spec);
    assert_eq!(shown(&objects), ["n1@eth1 n2@eth1", "", "n1@eth1 n2@eth1", "n1@eth1 n2@eth1"]);
    let objects = policy(objects, "own", &json!({"pools": ["a", "b"], "nodeSelectors": rack("y")}));
    assert_eq!(shown(&objects), ["n1@eth1 n2@eth1 n3", "n3", "n1@eth1 n2@eth1", "n1@eth1 n2@eth1 n3"]);
}

#[test]
fn advertisements_without_effect_are_noted_with_the_remedy() {
    let objects = policy(objects(), "p", &json!({"pools": ["a", "gone"], "nodeSelectors": rack("z")}));
    let expected = [
        "VipPolicy p: it names pool gone, which does not exist",
        "VipPolicy p: spec.nodeSelectors selects no Node, so nothing is announced by it",
        "VipPool b: its addresses are announced by nobody: no L2Advertisement or VipPolicy covers pool b; name b in one of them",
        "VipPool c: its addresses are announced by nobody: no L2Advertisement or VipPolicy covers pool c; name c in one of them",
    ];
    assert_eq!(notes(&objects), expected);
}

#[test]
fn a_selector_that_is_malformed_selects_nothing() {
    let bad = json!([{"matchExpressions": [{"key": "rack", "operator": "Gt"}]}]);
    for field in ["nodeSelectors", "ipAddressPoolSelectors"] {
        let objects = l2_advertisement(objects(), "metal", &json!({ field: bad }));
        assert_eq!(shown(&objects)[0], "", "{field}");
        let expected = format!("L2Advertisement metal: spec.{field}[0]: operator \"Gt\" on label \"rack\"");
        assert!(notes(&objects).iter().any(|note| note.starts_with(&expected)), "{:?}", notes(&objects));
    }
}

#[test]
fn fields_of_metallb_without_effect_are_noted() {
    let objects = l2_advertisement(objects(), "metal", &json!({"serviceSelectors": [{"matchLabels": {"a": "b"}}]}));
    let expected = "L2Advertisement metal: spec.serviceSelectors has no effect: an address is announced for all Services that share it";
    assert_eq!(notes(&objects), [expected]);
    assert_eq!(shown(&objects), ["n1 n2 n3"; 4]);
}

#[test]
fn the_reason_that_nobody_announces_an_address_is_noted() {
    let vip = vip("192.0.2.2");
    let silence = |objects: &Objects| Model::ingest(objects, &IngestOptions::default()).silence(vip);
    assert_eq!(silence(&objects()), None);
    let covered = policy(objects(), "p", &json!({"pools": ["a"]}));
    assert_eq!(silence(&covered).unwrap(), "no L2Advertisement or VipPolicy covers pool b; name b in one of them");
    let nowhere = policy(objects(), "p", &json!({"nodeSelectors": rack("z")}));
    assert_eq!(silence(&nowhere).unwrap(), "VipPolicy p selects no Node");
    let mut down = policy(objects(), "p", &json!({"nodeSelectors": rack("y")}));
    let unavailable = json!({
        "metadata": {"labels": {"rack": "y"}},
        "status": {"conditions": [{"type": "NetworkUnavailable", "status": "True"}]},
    });
    down.nodes.insert(node_name("n3"), object(unavailable));
    assert_eq!(silence(&down).unwrap(), "the network of all nodes that VipPolicy p selects is unavailable");
    down.nodes.clear();
    assert_eq!(silence(&down), None, "the missing nodes are noted once");
    let mut without_nodes = covered;
    without_nodes.nodes.clear();
    assert!(silence(&without_nodes).is_some(), "no node could announce it");
}

#[test]
fn a_node_that_may_not_lead_has_the_address_on_all_interfaces() {
    let objects = policy(objects(), "p", &json!({"nodeSelectors": rack("x"), "interfaces": ["eth1"]}));
    let model = Model::ingest(&objects, &IngestOptions::default());
    let eligible_nodes = model.eligible_nodes(vip("192.0.2.1"));
    let named = Interfaces::Named(["eth1".to_owned()].into());
    assert_eq!(eligible_nodes.interfaces(&node_name("n1")), &named);
    assert_eq!(eligible_nodes.interfaces(&node_name("n3")), &Interfaces::All);
}
