//! Label selectors (`meta/v1` LabelSelector).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as api;

use crate::model::reason::quoted;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// All its requirements must hold; without any it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<(String, Requirement)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

/// A requirement that selectors do not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator {} on label {}: In, NotIn, Exists and DoesNotExist are known", quoted(operator), quoted(key))]
pub struct UnknownOperator {
    /// The label.
    pub key: String,
    /// As written.
    pub operator: String,
}

impl Selector {
    /// From the API's form.
    pub fn new(selector: &api::LabelSelector) -> Result<Self, UnknownOperator> {
        let labels = selector.match_labels.iter().flatten();
        let mut requirements: Vec<_> =
            labels.map(|(key, value)| (key.clone(), Requirement::In([value.clone()].into()))).collect();
        for expression in selector.match_expressions.iter().flatten() {
            let values = || expression.values.iter().flatten().cloned().collect();
            let requirement = match expression.operator.as_str() {
                "In" => Requirement::In(values()),
                "NotIn" => Requirement::NotIn(values()),
                "Exists" => Requirement::Exists,
                "DoesNotExist" => Requirement::DoesNotExist,
                other => return Err(UnknownOperator { key: expression.key.clone(), operator: other.to_owned() }),
            };
            requirements.push((expression.key.clone(), requirement));
        }
        Ok(Self(requirements))
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|(key, requirement)| match (requirement, labels.get(key)) {
            (Requirement::In(values), Some(value)) => values.contains(value),
            (Requirement::NotIn(values), Some(value)) => !values.contains(value),
            (Requirement::Exists, value) => value.is_some(),
            (Requirement::DoesNotExist, value) => value.is_none(),
            (Requirement::In(_), None) => false,
            (Requirement::NotIn(_), None) => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: serde_json::Value) -> Result<Selector, UnknownOperator> {
        Selector::new(&serde_json::from_value(json).unwrap())
    }

    #[test]
    fn requirements_hold_all_together() {
        let labels: Labels = [("app", "web"), ("tier", "front")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (json, matches) in [
            (serde_json::json!({}), true),
            (serde_json::json!({"matchLabels": {"app": "web"}}), true),
            (serde_json::json!({"matchLabels": {"app": "web", "tier": "back"}}), false),
            (serde_json::json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "web"]}]}), true),
            (serde_json::json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), false),
            (serde_json::json!({"matchExpressions": [{"key": "gone", "operator": "NotIn", "values": ["x"]}]}), true),
            (serde_json::json!({"matchExpressions": [{"key": "gone", "operator": "In", "values": ["x"]}]}), false),
            (serde_json::json!({"matchExpressions": [{"key": "gone", "operator": "Exists"}]}), false),
            (serde_json::json!({"matchExpressions": [{"key": "gone", "operator": "DoesNotExist"}]}), true),
        ] {
            assert_eq!(selector(json.clone()).unwrap().matches(&labels), matches, "{json}");
        }
    }

    #[test]
    fn an_unknown_operator_is_an_error_not_a_match() {
        let error = selector(serde_json::json!({"matchExpressions": [{"key": "a", "operator": "Gt"}]})).unwrap_err();
        assert!(error.to_string().contains("\"Gt\""));
    }
}
