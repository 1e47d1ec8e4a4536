//! Converts Cilium's CiliumLoadBalancerIPPools and CiliumL2AnnouncementPolicies.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Converted, name, pool, without_ends};
use vipmux_model::api::{VipPolicy, VipPolicySpec, rules::is_interface};

/// In a pool's selector it stands for the Service's namespace.
const NAMESPACE: &str = "io.kubernetes.service.namespace";
/// In a pool's selector it stands for the Service's name.
const NAME: &str = "io.kubernetes.service.name";

#[derive(Deserialize)]
struct Document<S> {
    metadata: ObjectMeta,
    spec: S,
}

/// `cilium.io/v2` and `v2alpha1` CiliumLoadBalancerIPPool.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PoolSpec {
    #[serde(default)]
    blocks: Vec<Block>,
    /// The name of `blocks` before Cilium 1.15.
    #[serde(default)]
    cidrs: Vec<Block>,
    service_selector: Option<LabelSelector>,
    #[serde(default)]
    disabled: bool,
    #[serde(rename = "allowFirstLastIPs")]
    allow_first_last_ips: Option<String>,
}

#[derive(Deserialize)]
struct Block {
    cidr: Option<String>,
    start: Option<String>,
    stop: Option<String>,
}

/// `cilium.io/v2alpha1` CiliumL2AnnouncementPolicy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicySpec {
    node_selector: Option<LabelSelector>,
    service_selector: Option<LabelSelector>,
    #[serde(default, rename = "loadBalancerIPs")]
    load_balancer_ips: bool,
    #[serde(default)]
    interfaces: Vec<String>,
}

pub(super) fn convert(pools: &[Value], policies: &[Value], converted: &mut Converted) {
    for value in pools {
        if let Some(found) = read::<PoolSpec>("CiliumLoadBalancerIPPool", value, converted) {
            convert_pool(found, converted);
        }
    }
    let found: Vec<_> = policies
        .iter()
        .filter_map(|value| read::<PolicySpec>("CiliumL2AnnouncementPolicy", value, converted))
        .collect();
    let announced: Vec<_> = found.into_iter().filter(|policy| policy.spec.load_balancer_ips).collect();
    if !pools.is_empty() && announced.is_empty() {
        let message = "none has loadBalancerIPs: true, so Cilium announces no address of Services by ARP and NDP";
        converted.note("CiliumL2AnnouncementPolicy", message);
    }
    for policy in announced {
        convert_policy(policy, converted);
    }
}

/// Reads an object, or notes why that is impossible.
fn read<S: DeserializeOwned>(kind: &str, value: &Value, converted: &mut Converted) -> Option<Document<S>> {
    match Document::deserialize(value) {
        Ok(found) => Some(found),
        Err(error) => {
            let name = value["metadata"]["name"].as_str().unwrap_or_default();
            converted.note(format!("{kind} {name}"), format!("left out: {error}"));
            None
        }
    }
}

fn convert_pool(Document { metadata, spec }: Document<PoolSpec>, converted: &mut Converted) {
    let (name, inner) = (name(&metadata), spec.allow_first_last_ips.as_deref() == Some("No"));
    let object = format!("CiliumLoadBalancerIPPool {name}");
    let addresses = spec.blocks.iter().chain(&spec.cidrs).map(|block| range(block, inner)).collect();
    let mut made = pool(&name, addresses);
    made.metadata.labels = metadata.labels;
    made.spec.auto_assign = !spec.disabled;
    match spec.service_selector.map(audience) {
        None => {}
        Some(Ok((namespaces, selector))) => {
            made.spec.namespaces = namespaces;
            made.spec.service_selectors = selector.into_iter().collect();
        }
        Some(Err(key)) => {
            made.spec.auto_assign = false;
            let message = format!(
                "its selector of {key} has no counterpart: Services that it selects must name the pool (vipmux.io/pool)"
            );
            converted.note(&object, message);
        }
    }
    converted.add_pool(&object, made);
}

/// Returns the range of a block. `inner`: a CIDR of more than two addresses is without the first and
/// the last one.
fn range(block: &Block, inner: bool) -> String {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    match (&block.cidr, &block.stop) {
        (Some(cidr), _) if inner => without_ends(cidr),
        (Some(cidr), _) => cidr.clone(),
        (None, Some(stop)) => format!("{}-{stop}", text(&block.start)),
        (None, None) => text(&block.start),
    }
}

/// Splits a pool's selector into namespaces and a selector of Services' labels; `Err`: a key that
/// vipmux cannot select by.
fn audience(mut selector: LabelSelector) -> Result<(Vec<String>, Option<LabelSelector>), &'static str> {
    let mut namespaces = Vec::new();
    let labels = selector.match_labels.get_or_insert_default();
    namespaces.extend(labels.remove(NAMESPACE));
    if labels.contains_key(NAME) {
        return Err(NAME);
    }
    let expressions = selector.match_expressions.get_or_insert_default();
    for expression in expressions.extract_if(.., |expression| expression.key == NAMESPACE) {
        if expression.operator != "In" || !namespaces.is_empty() {
            return Err(NAMESPACE);
        }
        namespaces = expression.values.unwrap_or_default();
    }
    if expressions.iter().any(|expression| expression.key == NAME) {
        return Err(NAME);
    }
    let is_empty = labels_are_empty(&selector);
    Ok((namespaces, (!is_empty).then_some(selector)))
}

fn labels_are_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.iter().flatten().next().is_none()
        && selector.match_expressions.iter().flatten().next().is_none()
}

fn convert_policy(Document { metadata, spec }: Document<PolicySpec>, converted: &mut Converted) {
    let name = name(&metadata);
    let object = format!("CiliumL2AnnouncementPolicy {name}");
    if spec.service_selector.is_some_and(|selector| !labels_are_empty(&selector)) {
        converted.note(&object, "serviceSelector has no counterpart: the addresses of all Services are announced");
    }
    let (interfaces, patterns): (Vec<_>, Vec<_>) =
        spec.interfaces.iter().map(|pattern| literal(pattern).ok_or(pattern)).partition(Result::is_ok);
    if !patterns.is_empty() {
        let message =
            "interfaces are regular expressions, which have no counterpart: name the interfaces in its VipPolicy";
        converted.note(&object, message);
    }
    let spec = VipPolicySpec {
        node_selectors: spec.node_selector.into_iter().collect(),
        interfaces: interfaces.into_iter().flatten().map(str::to_owned).collect(),
        ..VipPolicySpec::default()
    };
    converted.policies.push(VipPolicy::new(&name, spec));
}

/// Returns the one name that a regular expression stands for, such as `^eth0$`.
fn literal(pattern: &str) -> Option<&str> {
    let name = pattern.trim_start_matches('^').trim_end_matches('$');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (is_interface(name) && name.chars().all(plain)).then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pools(specs: &[Value]) -> Converted {
        let policy = json!({"metadata": {"name": "l2"}, "spec": {"loadBalancerIPs": true}});
        let pool = |spec: &Value| json!({"metadata": {"name": "blue"}, "spec": spec});
        let mut converted = Converted::default();
        convert(&specs.iter().map(pool).collect::<Vec<_>>(), &[policy], &mut converted);
        converted
    }

    #[test]
    fn blocks_are_cidrs_ranges_and_single_addresses() {
        let blocks =
            json!([{"cidr": "192.0.2.0/29"}, {"start": "192.0.2.20", "stop": "192.0.2.22"}, {"start": "192.0.2.9"}]);
        let of = |spec| pools(&[spec]).pools[0].spec.addresses.clone();
        assert_eq!(of(json!({"blocks": blocks})), ["192.0.2.0/29", "192.0.2.20-192.0.2.22", "192.0.2.9"]);
        let inner = of(json!({"blocks": blocks, "allowFirstLastIPs": "No"}));
        assert_eq!(inner, ["192.0.2.1-192.0.2.6", "192.0.2.20-192.0.2.22", "192.0.2.9"]);
        let pair = of(json!({"cidrs": [{"cidr": "192.0.2.8/31"}], "allowFirstLastIPs": "No"}));
        assert_eq!(pair, ["192.0.2.8/31"]);
    }

    #[test]
    fn a_selector_of_namespaces_becomes_namespaces() {
        let found = pools(&[json!({"blocks": [{"start": "192.0.2.1"}], "disabled": true, "serviceSelector": {
            "matchLabels": {"color": "blue"},
            "matchExpressions": [{"key": NAMESPACE, "operator": "In", "values": ["a", "b"]}]}})]);
        let spec = &found.pools[0].spec;
        assert_eq!((spec.namespaces.join(","), spec.auto_assign), ("a,b".to_owned(), false));
        let selector = serde_json::to_value(&spec.service_selectors).unwrap();
        assert_eq!(selector[0]["matchLabels"], json!({"color": "blue"}));
        assert!(found.notes.is_empty(), "{:?}", found.notes);
    }

    #[test]
    fn a_selector_without_counterpart_gives_addresses_to_nobody_unasked() {
        for selector in [
            json!({"matchLabels": {NAME: "web"}}),
            json!({"matchExpressions": [{"key": NAMESPACE, "operator": "NotIn", "values": ["a"]}]}),
        ] {
            let found = pools(&[json!({"blocks": [{"start": "192.0.2.1"}], "serviceSelector": selector})]);
            assert!(!found.pools[0].spec.auto_assign);
            assert!(found.notes[0].message.contains("no counterpart"), "{:?}", found.notes);
        }
    }

    #[test]
    fn policies_keep_nodes_and_named_interfaces() {
        let policy = |spec: Value| json!({"metadata": {"name": "l2"}, "spec": spec});
        let mut found = Converted::default();
        convert(
            &[],
            &[
                policy(json!({"loadBalancerIPs": true, "interfaces": ["^eth0$", "eth1"],
                    "nodeSelector": {"matchExpressions": [{"key": "control-plane", "operator": "DoesNotExist"}]}})),
                policy(
                    json!({"loadBalancerIPs": true, "interfaces": ["^eth[0-9]+"], "serviceSelector": {"matchLabels": {"a": "b"}}}),
                ),
                policy(json!({"externalIPs": true})),
            ],
            &mut found,
        );
        assert_eq!(found.policies.len(), 2);
        assert_eq!(
            (found.policies[0].spec.interfaces.join(","), found.policies[0].spec.node_selectors.len()),
            ("eth0,eth1".to_owned(), 1)
        );
        assert!(found.policies[1].spec.interfaces.is_empty());
        assert_eq!(found.notes.len(), 2, "{:?}", found.notes);
    }

    #[test]
    fn an_object_that_cannot_be_read_is_noted() {
        let found = pools(&[json!({"blocks": 7})]);
        assert!(found.notes[0].message.starts_with("left out: "), "{:?}", found.notes);
    }
}
