//! Reads JSON: values that follow one another, and none with a key that stands twice.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Returns the JSON of a YAML document; `None`: it is other YAML.
pub(super) fn of_document(text: &str) -> Option<&str> {
    Some(text.strip_prefix("---").unwrap_or(text).trim_start()).filter(|json| json.starts_with('{'))
}

/// Splits a document into JSON objects that follow one another, as kubectl does. The rest after an
/// error stays in one piece.
pub(super) fn split(text: &str) -> Vec<&str> {
    let Some(json) = of_document(text) else { return vec![text] };
    let (mut pieces, mut start, before) = (Vec::new(), 0, text.len() - json.len());
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<IgnoredAny>();
    while let Some(Ok(_)) = values.next() {
        let end = before + values.byte_offset();
        if text[end..].trim_start().starts_with('{') {
            pieces.push(&text[start..end]);
            start = end;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// A value without a key that stands twice. Of two values, [`Value`] itself takes the last one.
pub(super) struct UniqueKeys(pub(super) Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Self)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(UniqueKeys(value)) = sequence.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((key, UniqueKeys(value))) = mapping.next_entry::<String, _>()? {
            if fields.insert(key, value).is_some() {
                return Err(A::Error::custom("duplicate key"));
            }
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_json_unless_a_key_stands_twice() {
        let text = r#"{"a": [null, true, -1, 18446744073709551615, 0.5, "x", "\u00e4"], "b": {"a": {}}}"#;
        assert_eq!(serde_json::from_str::<UniqueKeys>(text).unwrap().0, serde_json::from_str::<Value>(text).unwrap());
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "a": 2}}]"#] {
            assert!(serde_json::from_str::<UniqueKeys>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn objects_that_follow_one_another_are_split() {
        let table: [(&str, &[&str]); 6] = [
            ("{\"a\": {}}\n{}\n", &["{\"a\": {}}", "\n{}\n"]),
            ("--- {}{}{}", &["--- {}", "{}", "{}"]),
            ("{} {\"a\": {} {}", &["{}", " {\"a\": {} {}"]),
            ("{}\n# {}\n", &["{}\n# {}\n"]),
            ("{a: 1}\n{}", &["{a: 1}\n{}"]),
            ("a: {}\n", &["a: {}\n"]),
        ];
        for (text, pieces) in table {
            assert_eq!(split(text), pieces);
        }
    }
}
