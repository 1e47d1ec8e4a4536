//! Tests each problem with its location.

use std::num::NonZeroUsize;

use super::*;
use vipmux_model::api::rules;

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n";
const SLICE: &str = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, namespace: shop}\n";
const POOL: &str = "apiVersion: vipmux.io/v1alpha1\nkind: VipPool\nmetadata: {name: lan}\nspec:\n";
const POLICY: &str = "apiVersion: vipmux.io/v1alpha1\nkind: VipPolicy\nmetadata: {name: lan}\nspec:\n";
const ADVERTISEMENT: &str = "apiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: lan}\nspec:\n";

/// Expects exactly one problem of a document behind another one, and that the other one is used.
fn expect(text: &str, line: usize, field: &str, message: &str) {
    let objects = objects(&format!("{}---\n{text}", service("other", 80)));
    let [problem] = objects.problems.as_slice() else { panic!("{text}: {:?}", objects.problems) };
    assert_eq!(problem.file, Path::new("a.yaml"));
    assert_eq!(problem.document, NonZeroUsize::new(2), "{text}");
    assert_eq!(problem.field, field, "{text}: {problem}");
    assert_eq!(problem.line, Some(line + 10), "{text}: {problem}");
    assert!(problem.message.contains(message), "{text}: {problem}");
    assert_eq!(objects.services.len(), 1, "{text}");
    assert!(objects.endpoint_slices.is_empty(), "{text}");
    assert!(objects.vip_pools.is_empty() && objects.vip_policies.is_empty(), "{text}");
    assert!(objects.l2_advertisements.is_empty(), "{text}");
}

/// Expects one problem of each document: the header and a row's text. The problem is in the row's
/// line of the document, and in the row's field below `parent`.
fn expect_all(header: &str, parent: &str, table: &[(&str, usize, &str, &str)]) {
    for (text, line, field, message) in table {
        expect(&format!("{header}{text}"), *line, &format!("{parent}{field}"), message);
    }
}

#[test]
fn a_service_that_the_api_server_would_refuse_is_a_problem() {
    let table =
        [("spec: {ports: [{port: 0}]}", 4, ".ports[0].port", "0 is no port"), ("status: {}", 1, "", "required")];
    expect_all(SERVICE, "spec", &table);
    let table = [
        ("  ports: [{port: 80, name: a}, {port: 81, name: a}]", 5, ".ports[1].name", "a stands twice"),
        ("  ports: [{port: 80, name: a}, {port: 80, name: b}]", 5, ".ports[1].port", "80/TCP stands twice"),
        ("  ports: 80", 5, ".ports", "80 is a number, but a list is expected"),
        ("  type: Loadbalancer", 5, ".type", "unknown value \"Loadbalancer\""),
        ("  externalTrafficPolicy: local", 5, ".externalTrafficPolicy", "Cluster, Local are known"),
        ("  ipFamilies: [IPv4, IPv5]", 5, ".ipFamilies[1]", "\"IPv5\""),
        ("  ipFamilyPolicy: DualStack", 5, ".ipFamilyPolicy", "\"DualStack\""),
        (
            "  type: LoadBalancer\n  clusterIP: None",
            6,
            ".clusterIP",
            "may not be set to 'None' for LoadBalancer services",
        ),
        ("  type: LoadBalancer\n  ports: [{port: 10250}]", 6, ".ports[0].port", "may not expose port 10250 externally"),
        (
            "  ipFamilies: [IPv4, IPv6]\n  ipFamilyPolicy: SingleStack",
            6,
            ".ipFamilyPolicy",
            "must be 'RequireDualStack' or 'PreferDualStack'",
        ),
        (
            "  loadBalancerSourceRange: [10.0.0.0/8]",
            5,
            ".loadBalancerSourceRange",
            "did you mean spec.loadBalancerSourceRanges?",
        ),
        ("  sessionAffinity: Client", 5, ".sessionAffinity", "\"Client\""),
        (
            "  loadBalancerSourceRanges: [10.0.0.0/8, 10.0.0.1]",
            5,
            ".loadBalancerSourceRanges[1]",
            "\"10.0.0.1\" is no CIDR",
        ),
        (
            "  sessionAffinityConfig:\n    clientIP:\n      timeoutSeconds: 86401",
            7,
            ".sessionAffinityConfig.clientIP.timeoutSeconds",
            "86401 is not within 1 to 86400",
        ),
    ];
    expect_all(&format!("{SERVICE}spec:\n"), "spec", &table);
    let table = [
        ("  - port: 80\n    name: a\n  - name: b\n    port: 65536", 9, "[1].port", "65536 is no port"),
        ("  - port: -1", 6, "[0].port", "-1 is no port"),
        ("  - port: \"80\"", 6, "[0].port", "\"80\" is text, but a whole number is expected"),
        ("  - port: 80.5", 6, "[0].port", "80.5 is a number, but a whole number is expected"),
        ("  - port: 80\n    protocol: tcp", 7, "[0].protocol", "unknown protocol \"tcp\""),
        ("  - port: 80\n    nodePort: 99999", 7, "[0].nodePort", "99999 is no port"),
        (
            "  - {port: 80, name: a, nodePort: 30080}\n  - {port: 81, name: b, nodePort: 30080}",
            7,
            "[1].nodePort",
            "30080/TCP stands twice",
        ),
        ("  - port: 80\n    Protocol: UDP", 7, "[0].Protocol", "did you mean spec.ports.protocol?"),
        ("  - port: 80\n    name: Http", 7, "[0].name", "RFC 1123 label"),
        ("  - port: 80\n    name: a\n  - port: 81", 5, "[1].name", "required where there is more"),
    ];
    expect_all(&format!("{SERVICE}spec:\n  ports:\n"), "spec.ports", &table);
}

#[test]
fn a_service_that_the_api_server_accepts_is_no_problem() {
    for spec in [
        "{type: ClusterIP, clusterIP: None, ports: [{port: 10250}]}",
        "{type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 80, nodePort: 0}]}",
        "{ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv4, IPv6], ports: [{port: 80}]}",
        "{type: LoadBalancer, ports: [{name: a, port: 53, nodePort: 30053}, {name: b, port: 53, nodePort: 30053, protocol: UDP}]}",
    ] {
        assert_eq!(objects(&format!("{SERVICE}spec: {spec}")).problems, [], "{spec}");
    }
}

#[test]
fn an_endpoint_slice_that_the_api_server_would_refuse_is_a_problem() {
    let table = [
        ("addressType: ipv4\nendpoints: []", 4, "addressType", "IPv4, IPv6, FQDN are known"),
        ("addressType: IPv6\nendpoints:\n- addresses: [\"fe80::1\"]", 6, "endpoints[0].addresses[0]", "link-local"),
        ("addressType: IPv6\nendpoints:\n- addresses: [\"::\"]", 6, "endpoints[0].addresses[0]", "unspecified"),
        ("addressType: IPv4\nendpoints: []\nports: [{port: 70000}]", 6, "ports[0].port", "70000 is no port"),
        ("addressType: IPv4\nendpoints: []\nports:\n- port: 1\n- port: 2", 6, "ports[1].name", "\"\" stands twice"),
        ("addressType: IPv4\nendpoints: []\nports: [{port: 1, protocol: QUIC}]", 6, "ports[0].protocol", "\"QUIC\""),
    ];
    expect_all(SLICE, "", &table);
    let table = [
        ("- addresses: [10.0.0.1]\n- addresses: [10.0.0]", 7, "[1].addresses[0]", "no IP address"),
        ("- addresses: [\"fd00::1\"]", 6, "[0].addresses[0]", "not of the slice's addressType"),
        ("- addresses: [127.0.0.1]", 6, "[0].addresses[0]", "loopback"),
        ("- addresses: [224.0.0.1]", 6, "[0].addresses[0]", "multicast"),
        ("- addresses: []", 6, "[0].addresses", "required"),
        ("- {addresses: [10.0.0.1], nodeName: N_1}", 6, "[0].nodeName", "subdomain"),
    ];
    expect_all(&format!("{SLICE}addressType: IPv4\nendpoints:\n"), "endpoints", &table);
}

#[test]
fn an_object_without_a_usable_name_is_a_problem() {
    let table = [
        ("metadata: {namespace: shop}\nspec: {}", 3, ".name", "required"),
        ("spec: {}", 1, ".name", "required"),
        ("metadata:\n  name: Web\nspec: {}", 4, ".name", "RFC 1123 label"),
        ("metadata:\n  name: -web\nspec: {}", 4, ".name", "RFC 1123 label"),
        ("metadata:\n  name: 80\nspec: {}", 4, ".name", "80 is a number, but text is expected: put it in quotes"),
        (
            "metadata:\n  name: web\n  annotations:\n    vipmux.io/a.b: true\nspec: {}",
            6,
            ".annotations.vipmux.io/a.b",
            "true is a boolean, but text is expected: put it in quotes",
        ),
        (
            "metadata:\n  name: web\n  metallb.io/allow-shared-ip: web\nspec: {}",
            5,
            ".metallb.io/allow-shared-ip",
            "unknown field: an annotation belongs under metadata.annotations",
        ),
    ];
    expect_all("apiVersion: v1\nkind: Service\n", "metadata", &table);
    let metadata = "apiVersion: v1\nkind: Service\nmetadata:\n";
    let long = "a".repeat(64);
    expect(&format!("{metadata}  name: {long}\nspec: {{}}"), 4, "metadata.name", "at most 63");
    let text = format!("{metadata}  name: web\n  namespace: {long}\nspec: {{}}");
    expect(&text, 5, "metadata.namespace", "at most 63");
    let long = format!("{}a", "a.".repeat(127));
    expect(&format!("apiVersion: v1\nkind: Node\nmetadata:\n  name: {long}"), 4, "metadata.name", "at most 253");
    expect("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a.b", 4, "metadata.name", "label");
    let pool =
        "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata:\n  name: a\nspec:\n  addresses: 10.0.0.0/24";
    expect(pool, 6, "spec.addresses", "\"10.0.0.0/24\" is text, but a list is expected");
}

/// Each rule's words are those of [`rules`], which the API server says, too.
#[test]
fn a_custom_resource_that_its_schema_or_rules_would_refuse_is_a_problem() {
    let table = [
        ("  addresses: [192.0.2.0/28, 192.0.2.0/33]", 5, ".addresses[1]", rules::RANGE.1),
        ("  addresses: [192.0.2.9-192.0.2.1]", 5, ".addresses[0]", "ends before it begins"),
        ("  addresses: [127.0.0.0/8]", 5, ".addresses[0]", "loopback"),
        ("  addresses: []", 5, ".addresses", "required"),
        ("  autoAssign: true", 4, "", "addresses is required"),
    ];
    expect_all(POOL, "spec", &table);
    let table = [
        (
            "  sharing: everyone",
            6,
            ".sharing",
            "unknown value \"everyone\": any, same-namespace, key-only, by-address, none are known",
        ),
        ("  onConflict: wait", 6, ".onConflict", "unknown value \"wait\": spill, pending are known"),
        ("  priority: -1", 6, ".priority", "-1 is less than 0"),
        ("  aliases: [lan]", 6, ".aliases", rules::ALIAS_IS_ANOTHER_NAME.1),
        ("  aliases: [a, A]", 6, ".aliases[1]", "RFC 1123 subdomain"),
        ("  addressNames: {web: web}", 6, ".addressNames.web", rules::NAMED_ADDRESSES.1),
        (
            "  serviceSelectors:\n  - matchExpressions: [{key: a, operator: In}]",
            7,
            ".serviceSelectors[0]",
            rules::VALUES_WITH_IN.1,
        ),
        (
            "  namespaceSelectors:\n  - matchExpressions: [{key: a, operator: in}]",
            7,
            ".namespaceSelectors[0]",
            "In, NotIn, Exists and DoesNotExist are known",
        ),
        ("  autoassign: false", 6, ".autoassign", "unknown field"),
    ];
    expect_all(&format!("{POOL}  addresses: [192.0.2.1]\n"), "spec", &table);
    let table = [
        ("  pools: [lan, Lan]", 5, ".pools[1]", "RFC 1123 subdomain"),
        ("  interfaces: [eth0, eth0/1]", 5, ".interfaces[1]", "\"eth0/1\" is no interface's name"),
        (
            "  nodeSelectors: [{matchLabels: {a: b}, matchLabel: {}}]",
            5,
            ".nodeSelectors[0].matchLabel",
            "unknown field",
        ),
    ];
    expect_all(POLICY, "spec", &table);
    let table = [
        (
            "  - {weight: 1, nodeSelector: {}}\n  - {weight: 101, nodeSelector: {}}",
            7,
            "[1].weight",
            "101 is not within 1 to 100",
        ),
        ("  - nodeSelector: {}", 6, "[0]", "weight is required"),
        (
            "  - weight: 1\n    nodeSelector: {matchExpressions: [{key: a, operator: Is}]}",
            7,
            "[0].nodeSelector",
            "operator \"Is\"",
        ),
    ];
    expect_all(&format!("{POLICY}  preferredNodes:\n"), "spec.preferredNodes", &table);
    let table = [
        ("  ipAddressPool: [lan]", 5, ".ipAddressPool", "did you mean spec.ipAddressPools?"),
        ("  nodeSelectors: [{rack: a}]", 5, ".nodeSelectors[0].rack", "matchExpressions, matchLabels are known"),
        ("  ipAddressPools: lan", 5, ".ipAddressPools", "\"lan\" is text, but a list is expected"),
        (
            "  nodeSelectors: [{}, {matchExpressions: [{key: a, operator: Exists, values: [b]}]}]",
            5,
            ".nodeSelectors[1]",
            rules::VALUES_WITH_IN.1,
        ),
    ];
    expect_all(ADVERTISEMENT, "spec", &table);
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
        ("apiVersion: v1\nkind: service", 2, "kind", "unknown kind: did you mean Service?"),
        ("apiVersion: vipmux.io/v1alpha1\nkind: VIPPool", 2, "kind", "unknown kind: did you mean VipPool?"),
        ("apiVersion: vipmux.io/v1alpha1\nkind: Range", 2, "kind", "unknown kind: VipPool, VipPolicy are known"),
        ("apiVersion: v1\nmetadata: {}", 1, "kind", "required"),
        ("apiVersion: v1\nkind: 3", 2, "kind", "text is expected"),
        ("- a\n- b", 1, "", "a mapping is expected"),
        ("just text", 1, "", "a mapping is expected"),
        ("apiVersion: v1\nkind: List\nitems: 3", 3, "items", "a list is expected"),
    ];
    expect_all("", "", &table);
}

#[test]
fn a_document_that_is_no_yaml_is_a_problem_of_that_document() {
    let table = [
        ("a: [1\nb: 2", 2, "", ""),
        ("a: 1\na: 2", 2, "", "duplicate mapping key"),
        ("{\"a\": {},\n \"b\": {\n \"a\": 1, \"a\": 1}}", 3, "", "duplicate mapping key"),
        ("a: 1\n\tb: 2", 1, "", "tab"),
        ("a: *nobody", 1, "", "unknown value"),
    ];
    expect_all("", "", &table);
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
    assert!(
        objects.problems[0].document == Some(NonZeroUsize::MIN) && objects.problems[0].field.is_empty(),
        "{}",
        objects.problems[0]
    );
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
