//! Parses label selectors (`meta/v1` LabelSelector).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as api;

use crate::{api::rules::VALUES_WITH_IN, reason::quoted};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A label selector. All its requirements must hold. Without requirements it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<(String, Requirement)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

/// A requirement that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The operator does not exist.
    #[error("operator {} on label {}: In, NotIn, Exists and DoesNotExist are known", quoted(operator), quoted(key))]
    UnknownOperator {
        /// The label.
        key: String,
        /// The operator as written.
        operator: String,
    },
    /// There are values although the operator takes none, or none although it takes some.
    #[error("operator {operator} on label {}: {}", quoted(key), VALUES_WITH_IN.1)]
    Values {
        /// The label.
        key: String,
        /// The operator.
        operator: String,
    },
}

impl Selector {
    /// Reads the API's form.
    pub fn new(selector: &api::LabelSelector) -> Result<Self, SelectorError> {
        let labels = selector.match_labels.iter().flatten();
        let labels = labels.map(|(key, value)| (key.clone(), Requirement::In([value.clone()].into())));
        let expressions = selector.match_expressions.iter().flatten();
        let expressions = expressions.map(|expression| Ok((expression.key.clone(), Requirement::new(expression)?)));
        labels.map(Ok).chain(expressions).collect::<Result<_, _>>().map(Self)
    }

    /// Reads the selectors of a list in the field `field`. Passes each error to `bad`. A malformed
    /// selector selects nothing.
    pub fn list(field: &str, written: &[api::LabelSelector], mut bad: impl FnMut(String)) -> Vec<Self> {
        let parsed = written.iter().map(Self::new).enumerate();
        parsed
            .filter_map(|(i, selector)| selector.map_err(|error| bad(format!("{field}[{i}]: {error}"))).ok())
            .collect()
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

impl Requirement {
    fn new(expression: &api::LabelSelectorRequirement) -> Result<Self, SelectorError> {
        let (key, operator) = (expression.key.clone(), expression.operator.clone());
        let values: BTreeSet<String> = expression.values.iter().flatten().cloned().collect();
        match (operator.as_str(), values.is_empty()) {
            ("In", false) => Ok(Self::In(values)),
            ("NotIn", false) => Ok(Self::NotIn(values)),
            ("Exists", true) => Ok(Self::Exists),
            ("DoesNotExist", true) => Ok(Self::DoesNotExist),
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => Err(SelectorError::Values { key, operator }),
            _ => Err(SelectorError::UnknownOperator { key, operator }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selector(json: serde_json::Value) -> Result<Selector, SelectorError> {
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

    #[test]
    fn values_go_with_in_and_not_in_alone() {
        for (operator, values) in
            [("In", json!([])), ("NotIn", json!([])), ("Exists", json!(["x"])), ("DoesNotExist", json!(["x"]))]
        {
            let error = selector(json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]}));
            assert!(error.unwrap_err().to_string().ends_with(VALUES_WITH_IN.1), "{operator}");
        }
    }
}
