//! Finds misspelled and misplaced fields of manifests. The API server drops them, and `kubectl`
//! refuses them.

use k8s_openapi::{
    api::{
        core::v1::{ClientIPConfig, NodeSpec, ServicePort, ServiceSpec, SessionAffinityConfig},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use serde::{
    Deserialize,
    de::{Deserializer, Error as _, Visitor, value::Error},
    forward_to_deserialize_any,
};
use serde_json::{Map, Value};

use super::{FieldPath, Flaw};
use crate::{
    api::metallb::{IpAddressPoolSpec, L2AdvertisementSpec, PreferredNodeSelector, ServiceAllocation},
    dialects::tolerated,
    objects::object::Kind,
};

/// Names of one object that are compared with those of its kind. Further ones are not.
const MAX_NAMES: usize = 16;
/// From this length on, the end of a name stands for the name: `sourceRanges`.
const MIN_NAME_END: usize = 8;

/// A mapping in the objects of a kind.
struct FieldNames {
    /// The keys from the root. Elements of a sequence have those of the sequence.
    keys: &'static [&'static str],
    names: &'static [&'static str],
    /// No later version has further fields.
    closed: bool,
}

/// Returns the flaws of an object's field names. A field that is not near to one of its kind may be
/// of a later version of Kubernetes or MetalLB. [`Object::decode`](super::super::object::Object)
/// refuses all unknown fields in `spec` of vipmux's own kinds.
pub fn field_names(kind: Kind, object: &Value) -> Vec<Flaw> {
    let (places, mut flaws) = (places(kind), Vec::new());
    let mut left = MAX_NAMES;
    for place in &places {
        each_mapping(object, place.keys, FieldPath::default(), &mut |fields, path| {
            for key in fields.keys().filter(|key| !place.names.contains(&key.as_str())).take(left) {
                left -= 1;
                let message = place.unknown(key, &places);
                flaws.extend(message.map(|message| Flaw::new(path.clone().key(key), message)));
            }
        });
    }
    flaws
}

/// Calls `visit` with each mapping at these keys.
fn each_mapping(value: &Value, keys: &[&str], path: FieldPath, visit: &mut dyn FnMut(&Map<String, Value>, FieldPath)) {
    match (value, keys) {
        (Value::Array(items), _) => {
            for (i, item) in items.iter().enumerate() {
                each_mapping(item, keys, path.clone().index(i), visit);
            }
        }
        (Value::Object(fields), []) => visit(fields, path),
        (Value::Object(fields), [key, rest @ ..]) => {
            if let Some(value) = fields.get(*key) {
                each_mapping(value, rest, path.key(key), visit);
            }
        }
        _ => {}
    }
}

fn places(kind: Kind) -> Vec<FieldNames> {
    const ROOT: &[&str] = &["apiVersion", "kind", "metadata", "spec", "status"];
    let root = if kind == Kind::EndpointSlice { names::<EndpointSlice>() } else { ROOT };
    let open = |keys, names| FieldNames { keys, names, closed: false };
    let selector = |keys| FieldNames { keys, names: names::<LabelSelector>(), closed: true };
    let mut places = vec![open(&[], root), open(&["metadata"], names::<ObjectMeta>())];
    match kind {
        Kind::Service => places.extend([
            open(&["spec"], names::<ServiceSpec>()),
            open(&["spec", "ports"], names::<ServicePort>()),
            open(&["spec", "sessionAffinityConfig"], names::<SessionAffinityConfig>()),
            open(&["spec", "sessionAffinityConfig", "clientIP"], names::<ClientIPConfig>()),
        ]),
        Kind::EndpointSlice => places.extend([
            open(&["endpoints"], names::<Endpoint>()),
            open(&["endpoints", "conditions"], names::<EndpointConditions>()),
            open(&["ports"], names::<EndpointPort>()),
        ]),
        Kind::Node => places.push(open(&["spec"], names::<NodeSpec>())),
        Kind::IpAddressPool => places.extend([
            open(&["spec"], names::<IpAddressPoolSpec>()),
            open(&["spec", "serviceAllocation"], names::<ServiceAllocation>()),
            selector(&["spec", "serviceAllocation", "namespaceSelectors"]),
            selector(&["spec", "serviceAllocation", "serviceSelectors"]),
        ]),
        Kind::L2Advertisement => places.extend([
            open(&["spec"], names::<L2AdvertisementSpec>()),
            open(&["spec", "preferredNodeSelectors"], names::<PreferredNodeSelector>()),
            selector(&["spec", "preferredNodeSelectors", "preference"]),
            selector(&["spec", "ipAddressPoolSelectors"]),
            selector(&["spec", "nodeSelectors"]),
        ]),
        Kind::Namespace | Kind::VipPool | Kind::VipPolicy => {}
    }
    places
}

impl FieldNames {
    /// Returns the message about a name that is not in this place; `None`: a later version may
    /// have it.
    fn unknown(&self, key: &str, places: &[Self]) -> Option<String> {
        let meant = places.iter().flat_map(|place| {
            let distances = place.names.iter().filter_map(|name| Some((distance(key, name)?, *name)));
            let near = distances.filter(|(distance, _)| *distance == 0 || place.keys == self.keys);
            near.map(|(distance, name)| (distance, place.keys != self.keys, [place.keys, &[name]].concat().join(".")))
        });
        match meant.min() {
            Some((_, _, meant)) => Some(format!("unknown field: did you mean {meant}?")),
            None if self.closed => Some(format!("unknown field: {} are known", self.names.join(", "))),
            None if key.contains('/') => {
                let places = "an annotation belongs under metadata.annotations, a label under metadata.labels";
                Some(format!("unknown field: {places}"))
            }
            None => None,
        }
    }
}

/// Returns the number of letters that differ, without upper and lower case; `None`: too many.
pub(in super::super) fn distance(key: &str, name: &str) -> Option<usize> {
    let most = tolerated(name.len());
    if key.len() > name.len() + most {
        return None;
    }
    let (key, name) = (key.to_ascii_lowercase(), name.to_ascii_lowercase());
    if key.len() >= MIN_NAME_END && name.ends_with(&key) {
        return Some((name.len() - key.len()).min(most));
    }
    let alike = key.len().abs_diff(name.len()) <= most;
    Some(strsim::osa_distance(&key, &name)).filter(|distance| alike && *distance <= most)
}

/// Returns the names of a type's fields.
fn names<T: Deserialize<'static>>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // The error only ends the reading.
    let _ = T::deserialize(NameCollector(&mut names));
    names
}

/// Takes the names of a structure's fields, which its `Deserialize` passes.
struct NameCollector<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for NameCollector<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("the names are all that is read"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("no structure"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flaws(kind: Kind, object: &Value) -> Vec<String> {
        field_names(kind, object).into_iter().map(|flaw| format!("{}: {}", flaw.path, flaw.message)).collect()
    }

    #[test]
    fn the_names_of_each_place_are_known_there() {
        for kind in Kind::ALL {
            for place in places(kind) {
                assert!(!place.names.is_empty(), "{kind:?} {:?}", place.keys);
                let fields: Map<String, Value> =
                    place.names.iter().map(|name| ((*name).to_owned(), json!(1))).collect();
                let nested = |value: Value, key: &&str| json!({ (*key): [value] });
                let object = place.keys.iter().rev().fold(Value::Object(fields), nested);
                assert_eq!(field_names(kind, &object), [], "{object}");
            }
        }
    }

    #[test]
    fn a_field_near_to_one_of_its_kind_is_a_flaw() {
        let table = [
            (
                json!({"spec": {"loadBalancerSourceRange": []}}),
                "spec.loadBalancerSourceRange",
                "spec.loadBalancerSourceRanges",
            ),
            (json!({"spec": {"sourceRanges": []}}), "spec.sourceRanges", "spec.loadBalancerSourceRanges"),
            (json!({"spec": {"LoadBalancerIP": ""}}), "spec.LoadBalancerIP", "spec.loadBalancerIP"),
            (json!({"spec": {"ports": [{}, {"Protocol": ""}]}}), "spec.ports[1].Protocol", "spec.ports.protocol"),
            (json!({"spec": {"protocol": ""}}), "spec.protocol", "spec.ports.protocol"),
            (json!({"annotations": {}}), "annotations", "metadata.annotations"),
            (json!({"metadata": {"annotation": {}}}), "metadata.annotation", "metadata.annotations"),
            (json!({"metadata": {"loadBalancerIP": ""}}), "metadata.loadBalancerIP", "spec.loadBalancerIP"),
        ];
        for (object, field, meant) in table {
            let expected = format!("{field}: unknown field: did you mean {meant}?");
            assert_eq!(flaws(Kind::Service, &object), [expected], "{object}");
        }
        let advertisement = json!({"spec": {"ipAddressPool": [], "nodeSelectors": [{"kubernetes.io/os": "linux"}]}});
        let expected = [
            "spec.ipAddressPool: unknown field: did you mean spec.ipAddressPools?",
            "spec.nodeSelectors[0].kubernetes.io/os: unknown field: matchExpressions, matchLabels are known",
        ];
        assert_eq!(flaws(Kind::L2Advertisement, &advertisement), expected);
    }

    #[test]
    fn a_field_that_a_later_version_may_have_is_no_flaw() {
        let object =
            json!({"x-values": {}, "spec": {"topologyKeys": [], "ipFamily": "IPv4", "ports": [{"weight": 1}]}});
        assert_eq!(flaws(Kind::Service, &object), [""; 0]);
        // `Object::decode` refuses it.
        assert_eq!(flaws(Kind::VipPool, &json!({"spec": {"autoassign": false}})), [""; 0]);
    }

    #[test]
    fn the_flaws_of_one_object_are_bounded() {
        let port = json!({ "Protocol": "UDP" });
        let object = json!({"metadata": {"Name": ""}, "spec": {"ports": vec![port; 1_000]}});
        assert_eq!(field_names(Kind::Service, &object).len(), MAX_NAMES);
        let long = json!({"spec": {"a".repeat(1 << 20): 1}});
        assert_eq!(flaws(Kind::Service, &long), [""; 0]);
    }
}
