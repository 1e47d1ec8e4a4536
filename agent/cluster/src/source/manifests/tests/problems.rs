//! Tests each problem with its location.

use super::*;
use vipmux_model::api::rules;

const HEADER: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n";
const SLICE: &str = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, namespace: shop}\n";

/// Expects exactly one problem of a document behind another one, and that the other one is used.
fn expect(text: &str, line: usize, field: &str, message: &str) {
    let objects = objects(&format!("{}---\n{text}", service("other", 80)));
    let [problem] = objects.problems.as_slice() else { panic!("{text}: {:?}", objects.problems) };
    assert_eq!(problem.file, Path::new("a.yaml"));
    assert_eq!(problem.document, 2, "{text}");
    assert_eq!(problem.field, field, "{text}: {problem}");
    assert_eq!(problem.line, Some(line + 10), "{text}: {problem}");
    assert!(problem.message.contains(message), "{text}: {problem}");
    assert_eq!(objects.services.len(), 1, "{text}");
    assert!(objects.endpoint_slices.is_empty(), "{text}");
    assert!(objects.vip_pools.is_empty() && objects.vip_policies.is_empty(), "{text}");
    assert!(objects.l2_advertisements.is_empty(), "{text}");
}

fn expect_all(header: &str, table: &[(&str, usize, &str, &str)]) {
    for (body, line, field, message) in table {
        expect(&format!("{header}{body}"), *line, field, message);
    }
}

#[test]
fn a_service_that_the_api_server_would_refuse_is_a_problem() {
    let table = [
        ("spec: {ports: [{port: 0}]}", 4, "spec.ports[0].port", "0 is no port"),
        (
            "spec:\n  ports:\n  - port: 80\n    name: a\n  - name: b\n    port: 65536",
            9,
            "spec.ports[1].port",
            "65536 is no port",
        ),
        ("spec:\n  ports:\n  - port: -1", 6, "spec.ports[0].port", "-1 is no port"),
        ("spec:\n  ports:\n  - port: \"80\"", 6, "spec.ports[0].port", "invalid type: string \"80\", expected i32"),
        ("spec:\n  ports:\n  - port: 80.5", 6, "spec.ports[0].port", "invalid type: floating point"),
        ("spec:\n  ports:\n  - port: 80\n    protocol: tcp", 7, "spec.ports[0].protocol", "unknown protocol \"tcp\""),
        ("spec:\n  ports:\n  - port: 80\n    name: Http", 7, "spec.ports[0].name", "RFC 1123 label"),
        (
            "spec:\n  ports:\n  - port: 80\n    name: a\n  - port: 81",
            5,
            "spec.ports[1].name",
            "required where there is more",
        ),
        ("spec:\n  ports: [{port: 80, name: a}, {port: 81, name: a}]", 5, "spec.ports[1].name", "a stands twice"),
        ("spec:\n  ports: [{port: 80, name: a}, {port: 80, name: b}]", 5, "spec.ports[1].port", "80/TCP stands twice"),
        ("spec:\n  ports: 80", 5, "spec.ports", "invalid type: integer `80`"),
        ("spec:\n  type: Loadbalancer", 5, "spec.type", "unknown value \"Loadbalancer\""),
        ("spec:\n  externalTrafficPolicy: local", 5, "spec.externalTrafficPolicy", "Cluster, Local are known"),
        ("spec:\n  ipFamilies: [IPv4, IPv5]", 5, "spec.ipFamilies[1]", "\"IPv5\""),
        ("spec:\n  ipFamilyPolicy: DualStack", 5, "spec.ipFamilyPolicy", "\"DualStack\""),
        ("spec:\n  sessionAffinity: Client", 5, "spec.sessionAffinity", "\"Client\""),
        (
            "spec:\n  loadBalancerSourceRanges: [10.0.0.0/8, 10.0.0.1]",
            5,
            "spec.loadBalancerSourceRanges[1]",
            "\"10.0.0.1\" is no CIDR",
        ),
        (
            "spec:\n  sessionAffinityConfig:\n    clientIP:\n      timeoutSeconds: 86401",
            7,
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            "86401 is not within 1 to 86400",
        ),
        ("status: {}", 1, "spec", "required"),
    ];
    expect_all(HEADER, &table);
}

#[test]
fn an_endpoint_slice_that_the_api_server_would_refuse_is_a_problem() {
    let table = [
        ("addressType: ipv4\nendpoints: []", 4, "addressType", "IPv4, IPv6, FQDN are known"),
        (
            "addressType: IPv4\nendpoints:\n- addresses: [10.0.0.1]\n- addresses: [10.0.0]",
            7,
            "endpoints[1].addresses[0]",
            "no IP address",
        ),
        (
            "addressType: IPv4\nendpoints:\n- addresses: [\"fd00::1\"]",
            6,
            "endpoints[0].addresses[0]",
            "not of the slice's addressType",
        ),
        ("addressType: IPv4\nendpoints:\n- addresses: [127.0.0.1]", 6, "endpoints[0].addresses[0]", "loopback"),
        ("addressType: IPv6\nendpoints:\n- addresses: [\"fe80::1\"]", 6, "endpoints[0].addresses[0]", "link-local"),
        ("addressType: IPv6\nendpoints:\n- addresses: [\"::\"]", 6, "endpoints[0].addresses[0]", "unspecified"),
        ("addressType: IPv4\nendpoints:\n- addresses: [224.0.0.1]", 6, "endpoints[0].addresses[0]", "multicast"),
        ("addressType: IPv4\nendpoints:\n- addresses: []", 6, "endpoints[0].addresses", "required"),
        (
            "addressType: IPv4\nendpoints:\n- {addresses: [10.0.0.1], nodeName: N_1}",
            6,
            "endpoints[0].nodeName",
            "subdomain",
        ),
        ("addressType: IPv4\nendpoints: []\nports: [{port: 70000}]", 6, "ports[0].port", "70000 is no port"),
        ("addressType: IPv4\nendpoints: []\nports:\n- port: 1\n- port: 2", 6, "ports[1].name", "\"\" stands twice"),
        ("addressType: IPv4\nendpoints: []\nports: [{port: 1, protocol: QUIC}]", 6, "ports[0].protocol", "\"QUIC\""),
    ];
    expect_all(SLICE, &table);
}

#[test]
fn an_object_without_a_usable_name_is_a_problem() {
    let long = "a".repeat(64);
    let table = [
        ("metadata: {namespace: shop}\nspec: {}".to_owned(), 3, "metadata.name", "required"),
        ("spec: {}".to_owned(), 1, "metadata.name", "required"),
        ("metadata:\n  name: Web\nspec: {}".to_owned(), 4, "metadata.name", "RFC 1123 label"),
        ("metadata:\n  name: -web\nspec: {}".to_owned(), 4, "metadata.name", "RFC 1123 label"),
        (format!("metadata:\n  name: {long}\nspec: {{}}"), 4, "metadata.name", "at most 63"),
        (format!("metadata:\n  name: web\n  namespace: {long}\nspec: {{}}"), 5, "metadata.namespace", "at most 63"),
        ("metadata:\n  name: 80\nspec: {}".to_owned(), 4, "metadata.name", "invalid type: integer `80`"),
        (
            "metadata:\n  name: web\n  annotations:\n    vipmux.io/a.b: true\nspec: {}".to_owned(),
            6,
            "metadata.annotations.vipmux.io/a.b",
            "invalid type: boolean `true`, expected a string",
        ),
        (
            "metadata:\n  name: web\n  metallb.io/allow-shared-ip: web\nspec: {}".to_owned(),
            5,
            "metadata.metallb.io/allow-shared-ip",
            "no field of metadata: an annotation belongs under metadata.annotations",
        ),
    ];
    for (body, line, field, message) in &table {
        expect(&format!("apiVersion: v1\nkind: Service\n{body}"), *line, field, message);
    }
    let long = format!("{}a", "a.".repeat(127));
    expect(&format!("apiVersion: v1\nkind: Node\nmetadata:\n  name: {long}"), 4, "metadata.name", "at most 253");
    expect("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a.b", 4, "metadata.name", "label");
    let pool =
        "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata:\n  name: a\nspec:\n  addresses: 10.0.0.0/24";
    expect(pool, 6, "spec.addresses", "invalid type: string");
}

/// Each rule's words are those of [`rules`], which the API server says, too.
#[test]
fn a_custom_resource_that_its_schema_or_rules_would_refuse_is_a_problem() {
    let pool = "apiVersion: vipmux.io/v1alpha1\nkind: VipPool\nmetadata: {name: lan}\nspec:\n";
    let table = [
        ("  addresses: [192.0.2.0/28, 192.0.2.0/33]", 5, "spec.addresses[1]", rules::RANGE.1),
        ("  addresses: [192.0.2.9-192.0.2.1]", 5, "spec.addresses[0]", "ends before it begins"),
        ("  addresses: [127.0.0.0/8]", 5, "spec.addresses[0]", "loopback"),
        ("  addresses: []", 5, "spec.addresses", "required"),
        ("  autoAssign: true", 4, "spec", "missing field `addresses`"),
        (
            "  addresses: [192.0.2.1]\n  sharing: everyone",
            6,
            "spec.sharing",
            "unknown variant `everyone`, expected one of `any`, `same-namespace`, `key-only`, `by-address`, `none`",
        ),
        (
            "  addresses: [192.0.2.1]\n  onConflict: wait",
            6,
            "spec.onConflict",
            "unknown variant `wait`, expected `spill` or `pending`",
        ),
        ("  addresses: [192.0.2.1]\n  priority: -1", 6, "spec.priority", "-1 is less than 0"),
        ("  addresses: [192.0.2.1]\n  aliases: [lan]", 6, "spec.aliases", rules::ALIAS_IS_ANOTHER_NAME.1),
        ("  addresses: [192.0.2.1]\n  aliases: [a, A]", 6, "spec.aliases[1]", "RFC 1123 subdomain"),
        ("  addresses: [192.0.2.1]\n  addressNames: {web: web}", 6, "spec.addressNames.web", rules::NAMED_ADDRESSES.1),
        (
            "  addresses: [192.0.2.1]\n  serviceSelectors:\n  - matchExpressions: [{key: a, operator: In}]",
            7,
            "spec.serviceSelectors[0]",
            rules::VALUES_WITH_IN.1,
        ),
        (
            "  addresses: [192.0.2.1]\n  namespaceSelectors:\n  - matchExpressions: [{key: a, operator: in}]",
            7,
            "spec.namespaceSelectors[0]",
            "In, NotIn, Exists and DoesNotExist are known",
        ),
        ("  addresses: [192.0.2.1]\n  autoassign: false", 6, "spec.autoassign", "unknown field"),
    ];
    expect_all(pool, &table);
    let policy = "apiVersion: vipmux.io/v1alpha1\nkind: VipPolicy\nmetadata: {name: lan}\nspec:\n";
    let table = [
        ("  pools: [lan, Lan]", 5, "spec.pools[1]", "RFC 1123 subdomain"),
        ("  interfaces: [eth0, eth0/1]", 5, "spec.interfaces[1]", "\"eth0/1\" is no interface's name"),
        (
            "  preferredNodes:\n  - {weight: 1, nodeSelector: {}}\n  - {weight: 101, nodeSelector: {}}",
            7,
            "spec.preferredNodes[1].weight",
            "101 is not within 1 to 100",
        ),
        ("  preferredNodes:\n  - nodeSelector: {}", 6, "spec.preferredNodes[0]", "missing field `weight`"),
        (
            "  preferredNodes:\n  - weight: 1\n    nodeSelector: {matchExpressions: [{key: a, operator: Is}]}",
            7,
            "spec.preferredNodes[0].nodeSelector",
            "operator \"Is\"",
        ),
        (
            "  nodeSelectors: [{matchLabels: {a: b}, matchLabel: {}}]",
            5,
            "spec.nodeSelectors[0].matchLabel",
            "unknown field",
        ),
    ];
    expect_all(policy, &table);
    let advertisement = "apiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: lan}\nspec:\n";
    let table = [
        ("  ipAddressPools: lan", 5, "spec.ipAddressPools", "invalid type: string"),
        (
            "  nodeSelectors: [{}, {matchExpressions: [{key: a, operator: Exists, values: [b]}]}]",
            5,
            "spec.nodeSelectors[1]",
            rules::VALUES_WITH_IN.1,
        ),
    ];
    expect_all(advertisement, &table);
}

#[test]
fn a_document_that_is_no_object_of_a_known_version_is_a_problem() {
    let table = [
        (
            "apiVersion: v2\nkind: Service\nmetadata: {name: web}",
            1,
            "apiVersion",
            "unsupported version of Service: v1 is read",
        ),
        ("apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice", 1, "apiVersion", "discovery.k8s.io/v1 is read"),
        ("metadata:\n  name: web\nkind: Service", 1, "apiVersion", "required"),
        ("apiVersion: v1\nmetadata: {}", 1, "kind", "required"),
        ("apiVersion: v1\nkind: 3", 2, "kind", "expected a string"),
        ("- a\n- b", 1, "", "expected a mapping"),
        ("just text", 1, "", "expected a mapping"),
        ("apiVersion: v1\nkind: List\nitems: 3", 3, "items", "expected a sequence"),
    ];
    expect_all("", &table);
}

#[test]
fn a_document_that_is_no_yaml_is_a_problem_of_that_document() {
    let table = [
        ("a: [1\nb: 2", 2, "", ""),
        ("a: 1\na: 2", 2, "", "duplicate mapping key"),
        ("a: 1\n\tb: 2", 1, "", "tab"),
        ("a: *nobody", 1, "", "unknown value"),
    ];
    expect_all("", &table);
}

#[test]
fn an_item_of_a_list_is_named_by_its_index() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: n1}}\n- apiVersion: v1\n  kind: Service\n  metadata: {name: web}\n  spec:\n    ports:\n    - port: 0\n";
    expect(list, 10, "items[1].spec.ports[0].port", "0 is no port");
}

#[test]
fn an_alias_bomb_is_refused() {
    let level = |i: usize| format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", "));
    let bomb = format!("a0: &a0 [{}]\n{}", ["x"; 10].join(", "), (1..12).map(level).collect::<String>());
    let objects = objects(&bomb);
    assert_eq!(objects.problems.len(), 1);
    assert!(objects.problems[0].document == 1 && objects.problems[0].field.is_empty(), "{}", objects.problems[0]);
}

#[test]
fn depth_is_bounded() {
    for text in ["[".repeat(100_000), "{\"a\":".repeat(100_000), "- ".repeat(100_000)] {
        assert_eq!(objects(&text).problems.len(), 1);
    }
}

#[test]
fn endless_problems_are_counted_after_the_first_thousand() {
    let list = format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{}1]}}", "1,".repeat(4_999));
    let problems = objects(&list).problems;
    assert_eq!(problems.len(), 1_001);
    assert!(problems.iter().any(|problem| problem.message == "4000 further objects are malformed"));
}
