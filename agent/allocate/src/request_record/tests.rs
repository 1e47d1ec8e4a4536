//! Tests the text of requests.

use proptest::{collection, option, prelude::*, sample::select};

use super::*;
use crate::status::DesiredCondition;
use k8s_openapi::jiff::Timestamp;
use vipmux_model::api::REQUEST;
use vipmux_testing::names::vip;

fn word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9-]{1,12}", "\\PC{1,20}", Just("# :=,%*".to_owned())]
}

fn key() -> impl Strategy<Value = SharingKey> {
    let scope =
        prop_oneof![Just(Scope::Cluster), collection::btree_set("[a-z0-9-]{1,12}", 0..4).prop_map(Scope::Namespaces),];
    (word(), word(), scope).prop_map(|(dialect, key, scope)| SharingKey { dialect, key, scope })
}

/// Returns a request with up to so many ports.
fn request(most: usize) -> impl Strategy<Value = RequestSnapshot> {
    let ports = collection::btree_set((any::<u16>(), select(vec!["TCP", "UDP", "SCTP"])), 0..=most);
    let ports = ports.prop_map(|ports| {
        let text = |(number, protocol): (u16, &str)| match number {
            0 => format!("all/{protocol}"),
            number => format!("{number}/{protocol}"),
        };
        ports.into_iter().map(|port| text(port).parse().unwrap()).collect()
    });
    let by_address = select(vec![ByAddress::Never, ByAddress::Plain, ByAddress::Explicit]);
    let additional = collection::btree_set(select(vec!["192.0.2.1", "2001:db8::1"]), 0..3);
    let additional = additional.prop_map(|all| all.into_iter().map(vip).collect());
    let alike = collection::btree_map(word(), word(), 0..3);
    (ports, option::of(key()), by_address, option::of(word()), additional, alike, option::of(word()), any::<bool>())
        .prop_map(|(ports, key, by_address, pool, additional, alike, label, spill)| RequestSnapshot {
            ports,
            sharing: Sharing { key, by_address },
            pool,
            additional,
            alike,
            label,
            spill,
        })
}

#[test]
fn the_text_is_for_people_too() {
    let key = SharingKey { dialect: "metallb".to_owned(), key: "edge of town".to_owned(), scope: Scope::Cluster };
    let request = RequestSnapshot {
        ports: ["443/TCP", "53/UDP"].map(|port| port.parse().unwrap()).into(),
        sharing: Sharing { key: Some(key), by_address: ByAddress::Never },
        pool: Some("lan".to_owned()),
        ..RequestSnapshot::default()
    };
    assert_eq!(encode(&request), "1 key=metallb:edge%20of%20town:* pool=lan ports=53/UDP,443/TCP");
}

#[test]
fn a_text_of_another_version_or_a_damaged_one_says_nothing() {
    for text in ["", "2 ports=80/TCP", "1 ports=80", "1 ports", "1 shade=red", "1 key=a:b", "1 additional=x", "1  "] {
        assert_eq!(decode(text, None), None, "{text:?}");
    }
    assert_eq!(decode("1 by-address=never", None), Some(RequestSnapshot::default()));
}

/// A Service with a hundred ports.
#[test]
fn what_is_too_long_is_compared_as_a_whole() {
    let ports = |from: u16| (from..from + 100).map(|port| format!("{port}/TCP").parse().unwrap()).collect();
    let before = RequestSnapshot { ports: ports(8_000), pool: Some("lan".to_owned()), ..RequestSnapshot::default() };
    let after = RequestSnapshot { ports: ports(8_001), ..before.clone() };
    let text = encode(&before);
    assert_eq!(decode(&text, Some(&before)), Some(before.clone()));
    let judged = decode(&text, Some(&after)).unwrap();
    assert_eq!((judged.ports.is_empty(), judged.pool.as_deref()), (true, Some("lan")));
}

proptest! {
    #[test]
    fn a_request_is_its_text_again(request in request(4)) {
        prop_assert_eq!(decode(&encode(&request), Some(&request)), Some(request));
    }

    /// With its condition, as JSON: docs/status.md.
    #[test]
    fn the_text_of_any_request_is_short(request in request(100)) {
        let text = encode(&request);
        prop_assert!(text.len() <= MOST_BYTES, "{text}");
        let condition = DesiredCondition::judged(&request).condition(REQUEST, None, None, Timestamp::UNIX_EPOCH);
        let json = serde_json::to_string(&condition).unwrap();
        prop_assert!(json.len() <= 300, "{json}");
    }

    #[test]
    fn any_text_is_read_without_harm(text in "\\PC{0,200}", fields in "1( [a-z-]{1,10}=[a-z0-9/:,#%*]{0,20}){0,8}") {
        let _ = (decode(&text, None), decode(&fields, None));
    }
}
