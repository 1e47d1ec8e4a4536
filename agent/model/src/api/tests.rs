//! Tests the schemas and rules that the API server gets.

use std::collections::BTreeSet;

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::*;

/// Returns the schema of the only version of a kind.
fn schema(crd: &impl serde::Serialize) -> Value {
    let crd = serde_json::to_value(crd).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap().clone();
    let [version] = versions.as_slice() else { panic!("{versions:?}") };
    assert_eq!((&version["served"], &version["storage"]), (&json!(true), &json!(true)));
    version["schema"]["openAPIV3Schema"].clone()
}

fn schemas() -> [(&'static str, Value); 2] {
    [("VipPool", schema(&VipPool::crd())), ("VipPolicy", schema(&VipPolicy::crd()))]
}

/// Finds all schemas below this one, itself included, with their paths.
fn walk<'a>(path: &str, schema: &'a Value, found: &mut Vec<(String, &'a Value)>) {
    found.push((path.to_owned(), schema));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, found);
    }
    for inner in ["items", "additionalProperties"] {
        if !schema[inner].is_null() {
            walk(&format!("{path}.{inner}"), &schema[inner], found);
        }
    }
}

fn all<'a>(kind: &str, schema: &'a Value) -> Vec<(String, &'a Value)> {
    let mut found = Vec::new();
    walk(kind, schema, &mut found);
    found
}

#[test]
fn the_kinds_are_cluster_wide_and_have_a_status_of_their_own() {
    let crds = [(VipPool::crd(), "vippools.vipmux.io"), (VipPolicy::crd(), "vippolicies.vipmux.io")];
    for (crd, name) in crds {
        let crd = serde_json::to_value(crd).unwrap();
        assert_eq!(crd["metadata"]["name"], name);
        assert_eq!(crd["spec"]["scope"], "Cluster");
        assert_eq!(crd["spec"]["versions"][0]["subresources"]["status"], json!({}));
        let version = format!(
            "{}/{}",
            crd["spec"]["group"].as_str().unwrap(),
            crd["spec"]["versions"][0]["name"].as_str().unwrap()
        );
        assert_eq!(version, API_VERSION);
        let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap().len();
        assert!(columns >= 4, "{columns} columns");
    }
}

/// <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>
#[test]
fn the_schemas_are_structural() {
    for (kind, schema) in schemas() {
        for (path, schema) in all(kind, &schema) {
            assert!(schema["type"].is_string(), "{path} has no type: {schema}");
            for keyword in
                ["$ref", "definitions", "$defs", "oneOf", "anyOf", "allOf", "not", "const", "patternProperties"]
            {
                assert!(schema[keyword].is_null(), "{path} has {keyword}: {schema}");
            }
            assert!(!schema["additionalProperties"].is_boolean(), "{path}: {schema}");
            let both = !schema["properties"].is_null() && !schema["additionalProperties"].is_null();
            assert!(!both, "{path} has properties and additionalProperties: {schema}");
            if schema["type"] == "array" {
                assert!(schema["items"].is_object(), "{path} has no items: {schema}");
            }
            let format = schema["format"].as_str();
            assert!(format.is_none_or(|format| ["int32", "int64"].contains(&format)), "{path}: {format:?}");
        }
    }
}

#[test]
fn every_field_of_a_spec_is_described_and_bounded() {
    for (kind, schema) in schemas() {
        for (name, field) in schema["properties"]["spec"]["properties"].as_object().unwrap() {
            assert!(field["description"].as_str().is_some_and(|text| text.len() > 10), "{kind} {name}: {field}");
            if field["type"] == "array" {
                assert!(field["maxItems"].is_u64(), "{kind} {name} is unbounded: {field}");
            }
        }
    }
}

#[test]
fn the_schemas_carry_the_rules_and_no_others() {
    let schemas = schemas();
    let all = schemas.iter().flat_map(|(kind, schema)| all(kind, schema));
    let rules = all.flat_map(|(_, schema)| schema["x-kubernetes-validations"].as_array().cloned().unwrap_or_default());
    let text = |rule: &Value, field: &str| rule[field].as_str().unwrap_or_default().to_owned();
    let found: BTreeSet<_> = rules.map(|rule| (text(&rule, "rule"), text(&rule, "message"))).collect();
    let known = rules::ALL.iter().map(|(rule, message)| ((*rule).to_owned(), (*message).to_owned())).collect();
    assert_eq!(found, known);
    for (rule, message) in rules::ALL {
        assert!(!message.contains('\n') && !rule.contains('\n'), "{message}");
        assert_eq!(rule.matches('(').count(), rule.matches(')').count(), "{rule}");
    }
}

#[test]
fn allowed_values_are_enumerated_and_missing_ones_have_a_default() {
    let (_, pool) = &schemas()[0];
    let spec = &pool["properties"]["spec"];
    assert_eq!(spec["required"], json!(["addresses"]));
    let field = |name: &str| &spec["properties"][name];
    let sorted = |list: &Value| -> BTreeSet<String> {
        list.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let set = |list: &[&str]| -> BTreeSet<String> { list.iter().map(|it| (*it).to_owned()).collect() };
    let sharing = ["any", "same-namespace", "key-only", "none", "by-address"];
    assert_eq!(sorted(&field("sharing")["enum"]), set(&sharing));
    assert_eq!(sorted(&field("onConflict")["enum"]), set(&["spill", "pending"]));
    assert_eq!((&field("sharing")["default"], &field("onConflict")["default"]), (&json!("any"), &json!("spill")));
    assert_eq!((&field("autoAssign")["default"], &field("avoidBuggyIPs")["default"]), (&json!(true), &json!(false)));
    let (_, policy) = &schemas()[1];
    let weight = &policy["properties"]["spec"]["properties"]["preferredNodes"]["items"]["properties"]["weight"];
    let (least, most) = (weight["minimum"].as_f64(), weight["maximum"].as_f64());
    let bounds = (f64::from(*rules::WEIGHTS.start()), f64::from(*rules::WEIGHTS.end()));
    assert_eq!((least, most), (Some(bounds.0), Some(bounds.1)));
}

#[test]
fn written_objects_are_read_again() {
    let spec = json!({
        "addresses": ["192.0.2.0/28", "2001:db8::7"], "autoAssign": false, "avoidBuggyIPs": true, "priority": 3,
        "sharing": "key-only", "onConflict": "pending", "namespaces": ["shop"],
        "namespaceSelectors": [{"matchLabels": {"team": "a"}}], "serviceSelectors": [{"matchLabels": {"tier": "b"}}],
        "aliases": ["internal"], "addressNames": {"web": "192.0.2.1"},
    });
    let status = json!({
        "observedGeneration": 2, "ipv4": {"capacity": 14, "used": 1}, "ipv6": {"capacity": 1, "used": 0},
        "leading": [{"node": "n1", "addresses": ["192.0.2.1"]}],
    });
    let pool = json!({
        "apiVersion": API_VERSION, "kind": "VipPool", "metadata": {"name": "lan"}, "spec": spec, "status": status,
    });
    let read: VipPool = serde_json::from_value(pool.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), pool);
    let policy = json!({
        "apiVersion": API_VERSION, "kind": "VipPolicy", "metadata": {"name": "lan"},
        "spec": {
            "pools": ["lan"], "poolSelectors": [{"matchLabels": {"a": "b"}}], "interfaces": ["eth1"],
            "nodeSelectors": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}],
            "preferredNodes": [{"weight": 50, "nodeSelector": {"matchLabels": {"fast": ""}}}],
        },
        "status": {"pools": ["lan"], "usage": {"capacity": 14, "used": 1}, "leading": [{"node": "", "addresses": []}]},
    });
    let read: VipPolicy = serde_json::from_value(policy.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), policy);
}
