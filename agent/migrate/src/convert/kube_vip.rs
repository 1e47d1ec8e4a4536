//! Converts the ConfigMap of kube-vip's cloud provider: `cidr-NAMESPACE`, `range-NAMESPACE` and
//! `interface-NAMESPACE`, where `global` stands for all namespaces
//! (kube-vip-cloud-provider, `pkg/provider/loadBalancer.go`).

use std::collections::{BTreeMap, BTreeSet};

use super::{Converted, pool, without_ends};
use vipmux_model::api::{VipPolicy, VipPolicySpec};

const GLOBAL: &str = "global";
/// The prefix of the pools' names.
const POOL: &str = "kube-vip";

pub(super) fn convert(data: &BTreeMap<String, String>, converted: &mut Converted) {
    let of = |setting: &str, scope: &str| data.get(&format!("{setting}-{scope}"));
    let scopes: BTreeSet<&str> = data.keys().filter_map(|key| scope(key, &["cidr", "range"])).collect();
    let skips_ends = data.get("skip-end-ips-in-cidr").is_some_and(|value| value == "true");
    let pinned = data.keys().any(|key| scope(key, &["interface"]).is_some());
    for scope in scopes {
        // The cloud provider reads no range if there is a CIDR.
        let cidr = of("cidr", scope);
        let (setting, Some(written)) =
            (if cidr.is_some() { "cidr" } else { "range" }, cidr.or_else(|| of("range", scope)))
        else {
            continue;
        };
        let object = format!("ConfigMap entry {setting}-{scope}");
        let address = |text: &str| if skips_ends { without_ends(text) } else { text.to_owned() };
        let mut made = pool(&format!("{POOL}-{scope}"), written.split(',').map(address).collect());
        if scope != GLOBAL {
            made.spec.namespaces = vec![scope.to_owned()];
            // Before the global pool.
            made.spec.priority = Some(0);
        }
        converted.add_pool(&object, made);
        if pinned {
            converted.policies.push(policy(scope, of("interface", scope).or_else(|| of("interface", GLOBAL))));
        }
    }
    for key in data.keys().filter(|key| scope(key, &["allow-share"]).is_some()) {
        let message = "has no counterpart: Services keep the addresses that they share now, and new ones share by a \
                       sharing key (vipmux.io/sharing-key)";
        converted.note(format!("ConfigMap entry {key}"), message);
    }
}

/// Returns the namespace in a key of one of these settings.
fn scope<'a>(key: &'a str, settings: &[&str]) -> Option<&'a str> {
    settings.iter().find_map(|setting| key.strip_prefix(setting)?.strip_prefix('-'))
}

/// Returns the policy of a pool. If one pool has a policy, all need one.
fn policy(scope: &str, interface: Option<&String>) -> VipPolicy {
    let name = format!("{POOL}-{scope}");
    let interfaces = interface.into_iter().cloned().collect();
    VipPolicy::new(&name.clone(), VipPolicySpec { pools: vec![name], interfaces, ..VipPolicySpec::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(entries: &[(&str, &str)]) -> Converted {
        let data = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut converted = Converted::default();
        convert(&data, &mut converted);
        converted
    }

    #[test]
    fn each_namespace_has_its_pool_and_global_is_for_all() {
        let found = converted(&[
            ("cidr-global", "192.0.2.0/29,2001:db8::/120"),
            ("range-global", "192.0.2.100-192.0.2.101"),
            ("range-shop", "192.0.2.20-192.0.2.29,192.0.2.40-192.0.2.41"),
            ("search-order", "desc"),
        ]);
        let [global, shop] = found.pools.as_slice() else { panic!("{:?}", found.pools) };
        assert_eq!(global.spec.addresses, ["192.0.2.0/29", "2001:db8::/120"], "a CIDR goes before a range");
        assert_eq!((global.spec.namespaces.len(), global.spec.priority), (0, None));
        assert_eq!(shop.metadata.name.as_deref(), Some("kube-vip-shop"));
        assert_eq!(shop.spec.addresses, ["192.0.2.20-192.0.2.29", "192.0.2.40-192.0.2.41"]);
        assert_eq!((shop.spec.namespaces.as_slice(), shop.spec.priority), (&["shop".to_owned()][..], Some(0)));
        assert!(found.policies.is_empty() && found.notes.is_empty());
    }

    #[test]
    fn interfaces_become_policies_and_every_pool_gets_one() {
        let found = converted(&[
            ("range-global", "192.0.2.1-192.0.2.2"),
            ("range-shop", "192.0.2.3-192.0.2.4"),
            ("interface-shop", "eth1"),
        ]);
        let policies: Vec<_> = found
            .policies
            .iter()
            .map(|policy| (policy.spec.pools.join(","), policy.spec.interfaces.join(",")))
            .collect();
        let expected = [("kube-vip-global", ""), ("kube-vip-shop", "eth1")];
        assert_eq!(policies, expected.map(|(pool, interface)| (pool.to_owned(), interface.to_owned())));
    }

    #[test]
    fn the_ends_of_a_cidr_are_left_out_as_configured() {
        let found = converted(&[("cidr-global", "192.0.2.0/29"), ("skip-end-ips-in-cidr", "true")]);
        assert_eq!(found.pools[0].spec.addresses, ["192.0.2.1-192.0.2.6"]);
    }

    #[test]
    fn dhcp_and_unconditional_sharing_have_no_counterpart() {
        let found = converted(&[("cidr-global", "0.0.0.0/32"), ("allow-share-global", "true")]);
        assert!(found.pools.is_empty());
        let objects: Vec<_> = found.notes.iter().map(|note| note.object.as_str()).collect();
        assert_eq!(objects.first(), Some(&"ConfigMap entry cidr-global"));
        assert_eq!(objects.last(), Some(&"ConfigMap entry allow-share-global"));
    }
}
