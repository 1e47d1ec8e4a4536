//! Says in the words of Kubernetes' API why a value cannot be decoded. The decoder names the types of this
//! program.

/// Returns the message for people of a message of serde.
pub(super) fn message(text: &str) -> String {
    let parts = |prefix: &str| text.strip_prefix(prefix)?.split_once(", expected ");
    let field = || text.strip_prefix("missing field `")?.strip_suffix('`');
    if let Some((value, expected)) = parts("invalid type: ") {
        let (value, kind) = value_and_kind(value);
        let quotes =
            if is_text(expected) && ["a boolean", "a number"].contains(&kind) { ": put it in quotes" } else { "" };
        format!("{value} is {kind}, but {} is expected{quotes}", expectation(expected))
    } else if let Some((value, expected)) = parts("invalid value: ").filter(|(_, expected)| is_whole_number(expected)) {
        format!("{} is out of the range of {}", value_and_kind(value).0, expectation(expected))
    } else if let Some((value, known)) = parts("unknown variant `") {
        let known = known.trim_start_matches("one of ").replace('`', "").replace(" or ", ", ");
        format!("unknown value {:?}: {known} are known", value.trim_end_matches('`'))
    } else if let Some(field) = field() {
        format!("{field} is required")
    } else {
        text.to_owned()
    }
}

/// Returns a value as it is in the document, and its kind.
fn value_and_kind(value: &str) -> (&str, &'static str) {
    let inner = |kind| value.strip_prefix(kind).map(|value| value.trim_matches('`'));
    match value {
        "null" | "unit value" => ("the value", "missing"),
        "map" => ("it", "a mapping"),
        "sequence" => ("it", "a list"),
        _ => inner("boolean ")
            .map(|value| (value, "a boolean"))
            .or_else(|| inner("integer ").or_else(|| inner("floating point ")).map(|value| (value, "a number")))
            .or_else(|| inner("string ").map(|value| (value, "text")))
            .unwrap_or((value, "something else")),
    }
}

/// Returns what a type of this program is in a document.
fn expectation(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "IntOrString" => "a number or text",
        it if is_text(it) => "text",
        it if is_whole_number(it) => "a whole number",
        // A type of the API has a name of one word.
        it if it == "a map" || it.starts_with("struct ") || it.starts_with(char::is_uppercase) => "a mapping",
        it => it,
    }
}

fn is_text(expected: &str) -> bool {
    ["a string", "string"].contains(&expected)
}

fn is_whole_number(expected: &str) -> bool {
    expected.strip_prefix(['i', 'u']).is_some_and(|bits| bits == "size" || bits.parse::<u8>().is_ok())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::objects::object::{Kind, Object};

    fn flaw(kind: Kind, spec: &Value) -> String {
        let object = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": spec});
        let flaws = Object::decode(kind, object).unwrap_err();
        flaws.iter().map(|flaw| format!("{}: {}", flaw.path, flaw.message)).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_value_of_another_kind_is_named_with_the_kind_that_is_expected() {
        let port = |port: Value| json!({ "ports": [port] });
        for (kind, spec, message) in [
            (
                Kind::Service,
                port(json!({"port": "many"})),
                "spec.ports[0].port: \"many\" is text, but a whole number is expected",
            ),
            (
                Kind::Service,
                port(json!({"port": 1.5})),
                "spec.ports[0].port: 1.5 is a number, but a whole number is expected",
            ),
            (
                Kind::Service,
                port(json!({"port": 3_000_000_000_u32})),
                "spec.ports[0].port: 3000000000 is out of the range of a whole number",
            ),
            (Kind::Service, port(json!(80)), "spec.ports[0]: 80 is a number, but a mapping is expected"),
            (Kind::Service, json!({"ports": {}}), "spec.ports: it is a mapping, but a list is expected"),
            (Kind::Service, json!([]), "spec: it is a list, but a mapping is expected"),
            (
                Kind::Service,
                json!({"loadBalancerClass": 7}),
                "spec.loadBalancerClass: 7 is a number, but text is expected: put it in quotes",
            ),
            (
                Kind::Service,
                json!({"publishNotReadyAddresses": "yes"}),
                "spec.publishNotReadyAddresses: \"yes\" is text, but true or false is expected",
            ),
            (Kind::VipPool, json!({}), "spec: addresses is required"),
            (Kind::VipPool, json!({"addresses": null}), "spec.addresses: the value is missing, but a list is expected"),
            (
                Kind::VipPool,
                json!({"addresses": [], "onConflict": "wait"}),
                "spec.onConflict: unknown value \"wait\": spill, pending are known",
            ),
        ] {
            assert_eq!(flaw(kind, &spec), message);
        }
    }
}
