//! Converts Leases and the records of nodes to and from API objects.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use k8s_openapi::{
    api::coordination::v1::{Lease as Object, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
    jiff::Timestamp,
};
use serde_json::{Value, json};

use super::{Lease, NodeRecord, RecordContent, RecordState, StoreError, Version};
use vipmux_common::abi::Mac;
use vipmux_election::membership::{MOST_LEASE, MOST_SEGMENTS};
use vipmux_model::{NodeName, Vip, reason::quoted};

const PREFIX: &str = "vip-";
/// The annotation with the address in its usual form, since the name has it in hex.
const ADDRESS: &str = "vipmux.io/address";
/// The prefix of the names of nodes' records.
const NODE_PREFIX: &str = "node-";
/// The annotation with what a node's record was written for: `confirmed`, `challenged` or `fenced`,
const STANDING: &str = "vipmux.io/standing";
/// that with the other node that challenged or fenced it,
const BY: &str = "vipmux.io/by";
/// and that with the node's promise, milliseconds.
const PROMISE: &str = "vipmux.io/promise-ms";
/// The annotation with the MACs of all segments of a node, separated by commas.
const MACS: &str = "vipmux.io/macs";
/// The longest version, bytes. The API server's and the directory's are decimal numbers of 64 bits.
const MAX_VERSION: usize = 64;

/// Returns the name of the VIP's Lease: `vip-` and the address' 4 or 16 bytes in hex.
pub fn lease_name(vip: Vip) -> String {
    let mut name = PREFIX.to_owned();
    // Writing to a string cannot fail.
    let _ = match vip.address() {
        IpAddr::V4(address) => write!(name, "{:08x}", address.to_bits()),
        IpAddr::V6(address) => write!(name, "{:032x}", address.to_bits()),
    };
    name
}

/// Returns the name of a node's record: `node-` and the Node's name.
pub fn record_name(node: &NodeName) -> String {
    format!("{NODE_PREFIX}{node}")
}

/// Returns the node whose record has this name; `None`: it is no such name.
pub(super) fn node_of(name: &str) -> Option<NodeName> {
    NodeName::new(name.strip_prefix(NODE_PREFIX)?).ok()
}

/// Returns the VIP whose Lease has this name; `None`: it is no such name.
pub(super) fn vip_of(name: &str) -> Option<Vip> {
    let hex = name.strip_prefix(PREFIX)?;
    if !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let address: IpAddr = match hex.len() {
        8 => Ipv4Addr::from_bits(u32::from_str_radix(hex, 16).ok()?).into(),
        32 => Ipv6Addr::from_bits(u128::from_str_radix(hex, 16).ok()?).into(),
        _ => return None,
    };
    let vip = Vip::new(address);
    // No Lease has a name of 32 digits for an IPv4 address.
    (vip.address() == address).then_some(vip)
}

/// Returns the object of a Lease. `version`: the expected one, or the new one, as the store needs
/// it. `acquired` is for people: no decision depends on it.
pub(super) fn to_object(
    vip: Vip,
    version: Option<Version>,
    holder: &NodeName,
    epoch: u64,
    acquired: Timestamp,
) -> Result<Object, StoreError> {
    let transitions = i32::try_from(epoch).map_err(|_| StoreError::Inexpressible { holder: holder.clone(), epoch })?;
    Ok(Object {
        metadata: ObjectMeta {
            name: Some(lease_name(vip)),
            annotations: Some([(ADDRESS.to_owned(), vip.to_string())].into()),
            resource_version: version.map(|version| version.as_str().to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_string()),
            lease_transitions: Some(transitions),
            acquire_time: Some(MicroTime(acquired)),
            ..LeaseSpec::default()
        }),
    })
}

/// Returns the annotations with the content of a record; `None`: it has no such annotation.
fn annotations_of(content: &RecordContent) -> [(&'static str, Option<String>); 3] {
    let (state, by) = match &content.state {
        RecordState::Confirmed => ("confirmed", None),
        RecordState::Challenged(by) => ("challenged", Some(by)),
        RecordState::Fenced(by) => ("fenced", Some(by)),
    };
    let promise = content.promise.as_millis().to_string();
    [(STANDING, Some(state.to_owned())), (BY, by.map(NodeName::to_string)), (PROMISE, Some(promise))]
}

/// Returns the merge patch (RFC 7396) that puts a content into a node's record of this version.
pub(super) fn record_patch(version: &Version, content: &RecordContent, renewed: Timestamp) -> Value {
    let annotations: serde_json::Map<_, _> =
        annotations_of(content).into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    json!({
        "metadata": { "resourceVersion": version.as_str(), "annotations": annotations },
        "spec": { "renewTime": MicroTime(renewed) },
    })
}

/// Returns the merge patch that puts MACs and an owner into a node's record.
pub(super) fn macs_patch(macs: &BTreeSet<Mac>, owner: Option<&OwnerReference>) -> Value {
    json!({
        "metadata": { "annotations": { MACS: joined(macs) }, "ownerReferences": Vec::from_iter(owner) },
    })
}

fn joined(macs: &BTreeSet<Mac>) -> String {
    macs.iter().map(Mac::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the MACs in a node's record. What is no MAC is left out.
pub(super) fn macs_of(record: &Object) -> BTreeSet<Mac> {
    let text = record.metadata.annotations.as_ref().and_then(|all| all.get(MACS)).map_or("", String::as_str);
    text.split(',').take(MOST_SEGMENTS.into()).filter_map(|mac| mac.parse().ok()).collect()
}

/// Returns the object of a node's record. `renewed` is for people.
pub(super) fn record_to_object(
    node: &NodeName,
    version: Option<Version>,
    content: &RecordContent,
    renewed: Timestamp,
) -> Object {
    let annotations = annotations_of(content).into_iter();
    let annotations = annotations.filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Object {
        metadata: ObjectMeta {
            name: Some(record_name(node)),
            annotations: Some(annotations.collect()),
            resource_version: version.map(|version| version.as_str().to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_string()),
            renew_time: Some(MicroTime(renewed)),
            ..LeaseSpec::default()
        }),
    }
}

/// Returns the record in a node's object, or the object's defect.
pub(super) fn record_from_object(node: &NodeName, object: Object) -> Result<NodeRecord, String> {
    let ObjectMeta { name, annotations, resource_version, .. } = object.metadata;
    let (expected, found) = (record_name(node), name.unwrap_or_default());
    if found != expected {
        return Err(format!("metadata.name is {}, and that of {node} is {expected}", quoted(&found)));
    }
    let version = version(resource_version)?;
    let annotations = annotations.unwrap_or_default();
    let annotation = |key: &str| annotations.get(key).map(String::as_str).unwrap_or_default();
    let by = || {
        let by = annotation(BY);
        NodeName::new(by).map_err(|_| format!("{BY} is {}, which is no Node's name", quoted(by)))
    };
    let state = match annotation(STANDING) {
        "confirmed" => RecordState::Confirmed,
        "challenged" => RecordState::Challenged(by()?),
        "fenced" => RecordState::Fenced(by()?),
        other => return Err(format!("{STANDING} is {}", quoted(other))),
    };
    let promise = annotation(PROMISE).parse().map(Duration::from_millis).ok().filter(|promise| *promise <= MOST_LEASE);
    let promise = promise.ok_or_else(|| format!("{PROMISE} is {}", quoted(annotation(PROMISE))))?;
    Ok(NodeRecord { content: RecordContent { state, promise }, version })
}

/// Returns the version of an object, or its defect.
fn version(version: Option<String>) -> Result<Version, String> {
    let version = version.unwrap_or_default();
    if version.is_empty() || version.len() > MAX_VERSION {
        return Err(format!("metadata.resourceVersion has {} bytes: 1 to {MAX_VERSION} are right", version.len()));
    }
    Ok(Version::new(version))
}

/// Returns the content of the VIP's object, or its defect.
pub(super) fn from_object(vip: Vip, object: Object) -> Result<Lease, String> {
    let Object { metadata, spec } = object;
    let (expected, found) = (lease_name(vip), metadata.name.unwrap_or_default());
    if found != expected {
        return Err(format!("metadata.name is {}, and that of {vip} is {expected}", quoted(&found)));
    }
    let version = version(metadata.resource_version)?;
    let spec = spec.unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    let holder = NodeName::new(holder.as_str())
        .map_err(|_| format!("spec.holderIdentity is {}, which is no Node's name", quoted(&holder)))?;
    let transitions = spec.lease_transitions.ok_or("spec.leaseTransitions is missing")?;
    let epoch = u64::try_from(transitions).ok().filter(|epoch| *epoch <= Lease::MAX_CREDIBLE);
    let epoch = epoch.ok_or_else(|| {
        format!("spec.leaseTransitions is {transitions}: agents write from 1 to {}", Lease::MAX_CREDIBLE)
    })?;
    Ok(Lease { holder, epoch, version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::{
        names::{node_name, vip},
        pages::{FAILOVER, assert_says},
    };

    #[test]
    fn a_name_is_the_address_in_hex() {
        for (address, expected) in [
            ("192.0.2.10", "vip-c000020a"),
            ("0.0.0.1", "vip-00000001"),
            ("2001:db8::1", "vip-20010db8000000000000000000000001"),
        ] {
            assert_eq!(lease_name(vip(address)), expected);
            assert_eq!(vip_of(expected), Some(vip(address)));
        }
    }

    /// A VIP is never an IPv4-mapped IPv6 address ([`Vip::new`]).
    #[test]
    fn an_ipv4_mapped_address_has_the_name_of_its_ipv4_address() {
        assert_eq!(lease_name(vip("::ffff:192.0.2.10")), "vip-c000020a");
        assert_eq!(vip_of("vip-00000000000000000000ffffc000020a"), None);
    }

    #[test]
    fn other_names_are_no_vips() {
        for text in [
            "",
            "vip-",
            "c000020a",
            "vip-c000020",
            "vip-C000020A",
            "vip-+000020a",
            "vip-c000020a0",
            "vip-c000020\u{e4}",
        ] {
            assert_eq!(vip_of(text), None, "{text}");
        }
    }

    #[test]
    fn an_object_has_the_values_that_it_was_made_of() {
        let holder = node_name("n1.example.org");
        let version = Version::new("7");
        for epoch in [0, 1, Lease::MAX_CREDIBLE] {
            let made =
                to_object(vip("192.0.2.1"), Some(version.clone()), &holder, epoch, Timestamp::UNIX_EPOCH).unwrap();
            let expected = Lease { holder: holder.clone(), epoch, version: version.clone() };
            assert_eq!(from_object(vip("192.0.2.1"), made.clone()), Ok(expected));
            assert!(from_object(vip("192.0.2.2"), made).is_err(), "of another VIP");
        }
    }

    #[test]
    fn a_record_has_the_values_that_it_was_made_of() {
        let (node, by) = (node_name("n1.example.org"), node_name("n2"));
        assert_eq!(node_of(&record_name(&node)), Some(node.clone()));
        assert_eq!((node_of("vip-c000020a"), node_of("node-"), vip_of("node-c000020a")), (None, None, None));
        let states = [RecordState::Confirmed, RecordState::Challenged(by.clone()), RecordState::Fenced(by.clone())];
        for state in states {
            let content = RecordContent { state, promise: Duration::from_secs(2) };
            let made = record_to_object(&node, Some(Version::new("7")), &content, Timestamp::UNIX_EPOCH);
            let annotations = made.metadata.annotations.clone().unwrap_or_default();
            let states = ["confirmed", "challenged", "fenced"];
            assert!(states.contains(&annotations["vipmux.io/standing"].as_str()), "agents of other versions read it");
            let expected = NodeRecord { content, version: Version::new("7") };
            assert_eq!(record_from_object(&node, made.clone()), Ok(expected));
            assert!(record_from_object(&by, made).is_err(), "of another node");
        }
    }

    /// The parts of RFC 7396 that the API server applies here.
    fn merged(object: &Object, patch: &Value) -> Object {
        fn merge(target: &mut Value, patch: &Value) {
            let Some(patch) = patch.as_object() else { return target.clone_from(patch) };
            if !target.is_object() {
                *target = json!({});
            }
            let target = target.as_object_mut().unwrap();
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else {
                    merge(target.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        let mut target = serde_json::to_value(object).unwrap();
        merge(&mut target, patch);
        serde_json::from_value(target).unwrap()
    }

    #[test]
    fn content_and_macs_of_a_record_change_without_each_other() {
        let (node, version) = (node_name("n1"), Version::new("7"));
        let macs = BTreeSet::from([Mac::new([2, 0, 0, 0, 0, 1]), Mac::new([2, 0, 0, 0, 0, 2])]);
        let owner = OwnerReference { kind: "Node".to_owned(), uid: "u1".to_owned(), ..OwnerReference::default() };
        let content = |state| RecordContent { state, promise: Duration::from_secs(2) };
        let confirmed = content(RecordState::Confirmed);
        let record = record_to_object(&node, Some(version.clone()), &confirmed, Timestamp::UNIX_EPOCH);
        assert_eq!(macs_of(&record), BTreeSet::new());
        let mut record = merged(&record, &macs_patch(&macs, Some(&owner)));
        assert_eq!(merged(&record, &macs_patch(&macs, None)).metadata.owner_references, Some(Vec::new()));
        for state in [RecordState::Fenced(node_name("n2")), RecordState::Confirmed] {
            let content = content(state);
            record = merged(&record, &record_patch(&version, &content, Timestamp::UNIX_EPOCH));
            assert_eq!(macs_of(&record), macs);
            assert_eq!(record.metadata.owner_references, Some(vec![owner.clone()]));
            let expected = NodeRecord { content, version: version.clone() };
            assert_eq!(record_from_object(&node, record.clone()), Ok(expected));
        }
        assert_eq!(record.metadata.annotations.unwrap().get(BY), None);
    }

    #[test]
    fn what_is_no_mac_in_a_record_is_left_out() {
        let content = RecordContent { state: RecordState::Confirmed, promise: Duration::ZERO };
        let mut record = record_to_object(&node_name("n1"), None, &content, Timestamp::UNIX_EPOCH);
        let mut macs = |text: String| {
            record.metadata.annotations.as_mut().unwrap().insert(MACS.to_owned(), text);
            macs_of(&record).len()
        };
        assert_eq!(macs("02:00:00:00:00:01,,x,02:00:00:00:00:02".to_owned()), 2);
        let many: Vec<_> = (0..100).map(|n| format!("02:00:00:00:00:{n:02}")).collect();
        assert_eq!(macs(many.join(",")), usize::from(MOST_SEGMENTS), "no node has more");
    }

    #[test]
    fn a_record_that_somebody_damaged_is_refused() {
        let node = node_name("n1");
        let content = RecordContent { state: RecordState::Fenced(node_name("n2")), promise: Duration::ZERO };
        let made = record_to_object(&node, Some(Version::new("7")), &content, Timestamp::UNIX_EPOCH);
        for (key, value) in [(STANDING, "lost"), (STANDING, ""), (BY, "a/b"), (PROMISE, "-1"), (PROMISE, "30001")] {
            let mut damaged = made.clone();
            damaged.metadata.annotations.as_mut().unwrap().insert(key.to_owned(), value.to_owned());
            assert!(record_from_object(&node, damaged).is_err(), "{key}: {value}");
        }
    }

    /// After the greatest one none could follow.
    #[test]
    fn an_epoch_that_no_agent_wrote_is_refused() {
        let vip = vip("192.0.2.1");
        let made = to_object(vip, Some(Version::new("7")), &node_name("n1"), 1, Timestamp::UNIX_EPOCH).unwrap();
        for transitions in [i32::MIN, -1, (1 << 30) + 1, i32::MAX] {
            let mut damaged = made.clone();
            damaged.spec.as_mut().unwrap().lease_transitions = Some(transitions);
            let defect = format!("spec.leaseTransitions is {transitions}: agents write from 1 to 1073741824");
            assert_eq!(from_object(vip, damaged), Err(defect));
        }
        assert_says(FAILOVER, &format!("more than {}", Lease::MAX_CREDIBLE));
    }

    /// A Lease of a node with a wrong clock is read like any other.
    #[test]
    fn no_decision_depends_on_the_time_in_a_lease() {
        let holder = node_name("n1");
        let of_time = |acquired| {
            let version = Some(Version::new("7"));
            from_object(vip("192.0.2.1"), to_object(vip("192.0.2.1"), version, &holder, 3, acquired).unwrap())
        };
        let expected = of_time(Timestamp::UNIX_EPOCH);
        assert!(expected.is_ok());
        assert_eq!([of_time(Timestamp::MIN), of_time(Timestamp::MAX)], [expected.clone(), expected]);
    }

    #[test]
    fn values_that_no_lease_can_hold_are_refused() {
        let (holder, epoch) = (node_name("n1"), Lease::MAX_EPOCH + 1);
        let result = to_object(vip("192.0.2.1"), None, &holder, epoch, Timestamp::UNIX_EPOCH);
        assert!(matches!(result, Err(StoreError::Inexpressible { .. })));
        for holder in ["", "a/b", &"a".repeat(254)] {
            assert!(NodeName::new(holder).is_err(), "{holder}");
        }
    }
}
