//! Builds the schemas of lists and of types that are not vipmux's own. All lengths are bounded,
//! since the API server estimates a rule's cost by them.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::rules::{
    CelRule, INTERFACE_PATTERN, LIST_MAX, NAME_MAX, NAME_PATTERN, NAMED_ADDRESSES, RANGE, RANGE_MAX, RANGES_MAX,
    VALUES_WITH_IN,
};

/// Returns the schema of a list of address ranges.
pub(super) fn ranges(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": RANGES_MAX,
        "items": {"type": "string", "maxLength": RANGE_MAX, "x-kubernetes-validations": validations(RANGE)},
    })
}

/// Returns the schema of addresses by name.
pub(super) fn named_addresses(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": LIST_MAX,
        "additionalProperties": {"type": "string", "maxLength": RANGE_MAX},
        "x-kubernetes-validations": validations(NAMED_ADDRESSES),
    })
}

/// Returns the schema of a list of objects' names.
pub(super) fn names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": LIST_MAX,
        "items": {"type": "string", "maxLength": NAME_MAX, "pattern": NAME_PATTERN},
    })
}

/// Returns the schema of a list of interfaces.
pub(super) fn interfaces(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": LIST_MAX, "items": {"type": "string", "pattern": INTERFACE_PATTERN}})
}

/// Returns the schema of a list of label selectors.
pub(super) fn selectors(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": LIST_MAX, "items": selector(generator)})
}

/// Returns the schema of a label selector (`meta/v1` LabelSelector).
pub(super) fn selector(_: &mut SchemaGenerator) -> Schema {
    let requirement = json!({
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {"type": "string"},
            "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            "values": {"type": "array", "maxItems": LIST_MAX, "items": {"type": "string"}},
        },
        "x-kubernetes-validations": validations(VALUES_WITH_IN),
    });
    json_schema!({
        "type": "object",
        "description": "All its requirements must hold; without any it matches everything.",
        "properties": {
            "matchLabels": {"type": "object", "additionalProperties": {"type": "string"}},
            "matchExpressions": {"type": "array", "maxItems": LIST_MAX, "items": requirement},
        },
    })
}

fn validations((rule, message): CelRule) -> Value {
    json!([{"rule": rule, "message": message}])
}
