//! Tests `vipmux plan`, from manifests to output and exit status.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result};
use serde_json::Value;
use vipmux_model::reason::Reason;

const CLUSTER: &str = r"
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system}
spec: {addresses: [192.0.2.10-192.0.2.11]}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {vipmux.io/sharing-key: edge}}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: shop, annotations: {vipmux.io/sharing-key: edge}}
spec: {type: LoadBalancer, ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53}]}
---
apiVersion: v1
kind: Service
metadata: {name: internal, namespace: shop}
spec: {ports: [{port: 80}]}
";

const CLASHES: &str = r"
apiVersion: v1
kind: Service
metadata:
  name: rival
  namespace: shop
  creationTimestamp: 2023-01-01T00:00:00Z
  annotations: {vipmux.io/sharing-key: edge, vipmux.io/addresses: 192.0.2.10}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata:
  name: late
  namespace: shop
  creationTimestamp: 2024-01-01T00:00:00Z
  annotations: {vipmux.io/addresses: 192.0.2.10}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {type: LoadBalancer, loadBalancerClass: example.org/lb, ports: [{port: 80}]}
";

fn plan(directory: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vipmux"));
    Ok(command.arg("plan").args(args).current_dir(directory).env_remove("NO_COLOR").output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn manifests(files: &[(&str, &str)]) -> Result<tempfile::TempDir> {
    let directory = tempfile::tempdir()?;
    for (name, text) in files {
        fs::write(directory.path().join(name), text)?;
    }
    Ok(directory)
}

fn service<'a>(plan: &'a Value, name: &str) -> Result<&'a Value> {
    let services = plan["services"].as_array().context("services")?;
    services.iter().find(|service| service["name"] == name).with_context(|| name.to_owned())
}

#[test]
fn the_table_shows_addresses_and_leaders() -> Result<()> {
    let directory = manifests(&[("cluster.yaml", CLUSTER)])?;
    let output = plan(directory.path(), &["."])?;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        "\
SERVICE   STATE      ADDRESSES   PORTS          REASON  MESSAGE
shop/dns  allocated  192.0.2.10  53/UDP,53/TCP  Shared  192.0.2.10 from pool lan, shared with shop/web
shop/web  allocated  192.0.2.10  80/TCP         Shared  192.0.2.10 from pool lan, shared with shop/dns
(not shown: 1 of other types)

VIP         LEADER  SERVICES
192.0.2.10  n1      shop/dns,shop/web
"
    );
    Ok(())
}

#[test]
fn an_input_without_services_is_said_to_have_none() -> Result<()> {
    let internal = "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}, spec: {ports: [{port: 80}]}}";
    let none = "no Services of type LoadBalancer\n";
    for (name, manifest, status, shown, said) in [
        ("README.md", "not a manifest", 0, none.to_owned(), "warning: the input has no objects that vipmux reads\n"),
        (
            "a.yaml",
            "kind: [",
            1,
            none.replace("Services", "usable Services"),
            "error: ./a.yaml:1: document 1: unclosed bracket '['\n",
        ),
        ("a.yaml", internal, 0, format!("{none}(not shown: 1 of other types)\n"), ""),
    ] {
        let directory = manifests(&[(name, manifest)])?;
        let output = plan(directory.path(), &["."])?;
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(status), shown), "{manifest}");
        assert_eq!(text(&output.stderr), said);
    }
    Ok(())
}

#[test]
fn json_has_the_documented_fields_and_yaml_is_the_same() -> Result<()> {
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("clashes.yaml", CLASHES)])?;
    let output = plan(directory.path(), &["-o", "json", "cluster.yaml", "clashes.yaml"])?;
    assert_eq!(output.status.code(), Some(2));
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(json["version"], 1);
    // An explicit request goes first, and brings the group to 192.0.2.10; the clash spills.
    let expected = serde_json::json!({
        "namespace": "shop", "name": "web", "state": "allocated", "addresses": ["192.0.2.11"],
        "ports": [{"port": 80, "protocol": "TCP"}], "reason": "Allocated", "message": "192.0.2.11 from pool lan",
        "warnings": ["port 80/TCP on 192.0.2.10 is held by shop/rival, so the group has another address"],
        "notices": [],
    });
    assert_eq!(service(&json, "web")?, &expected);
    let expected = serde_json::json!({
        "namespace": "shop", "name": "late", "state": "pending", "addresses": [],
        "ports": [{"port": 80, "protocol": "TCP"}], "reason": "PortConflict",
        "message": "port 80/TCP on 192.0.2.10 is held by shop/rival", "remedy": Reason::PortConflict.remedy(),
        "warnings": [], "notices": [],
    });
    assert_eq!(service(&json, "late")?, &expected);
    assert_eq!(service(&json, "other")?["state"], "ignored");
    assert_eq!(service(&json, "other")?["reason"], "OtherClass");
    assert_eq!(
        json["vips"][0],
        serde_json::json!({"address": "192.0.2.10", "services": ["shop/dns", "shop/rival"], "leader": "n1"})
    );
    let output = plan(directory.path(), &["-o", "yaml", "."])?;
    assert_eq!(serde_saphyr::from_str::<Value>(&text(&output.stdout))?, json);
    Ok(())
}

const DUAL: &str = r#"
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system}
spec: {addresses: [192.0.2.10-192.0.2.11, "2001:db8::10/124"]}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {vipmux.io/sharing-key: edge}}
spec: {type: LoadBalancer, ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: shop, annotations: {vipmux.io/sharing-key: edge}}
spec: {type: LoadBalancer, ipFamilies: [IPv6], ports: [{port: 53, protocol: UDP}]}
"#;

#[test]
fn a_dual_stack_service_shows_both_addresses() -> Result<()> {
    let state = "version: 1\nservices: {shop/web: {addresses: [192.0.2.11]}}";
    let directory = manifests(&[("cluster.yaml", DUAL), ("state", state)])?;
    let output = plan(directory.path(), &["cluster.yaml", "--state", "state"])?;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        "\
SERVICE   STATE      ADDRESSES                PORTS   REASON  MESSAGE
shop/dns  allocated  2001:db8::10             53/UDP  Shared  2001:db8::10 from pool lan, shared with shop/web
shop/web  allocated  192.0.2.11,2001:db8::10  80/TCP  Shared  192.0.2.11 from pool lan; 2001:db8::10 from pool lan, shared with shop/dns

VIP           LEADER  SERVICES
192.0.2.11    n1      shop/web
2001:db8::10  n1      shop/dns,shop/web
"
    );
    let output = plan(directory.path(), &["-o", "json", "cluster.yaml"])?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(service(&json, "web")?["addresses"], serde_json::json!(["192.0.2.10", "2001:db8::10"]));
    let pool = serde_json::json!({"name": "lan", "capacity": 2, "used": 1, "ipv6_capacity": 16, "ipv6_used": 1});
    assert_eq!(json["pools"][0], pool);
    let output = plan(directory.path(), &["-o", "yaml", "cluster.yaml"])?;
    assert_eq!(serde_saphyr::from_str::<Value>(&text(&output.stdout))?, json);
    Ok(())
}

#[test]
fn the_treatment_of_a_services_packets_is_shown() -> Result<()> {
    let guarded = "\
apiVersion: v1
kind: Service
metadata:
  name: guarded
  namespace: shop
  annotations: {vipmux.io/sharing-key: edge, vipmux.io/tcp-idle-timeout: 90s}
spec:
  type: LoadBalancer
  ports: [{port: 8443}]
  sessionAffinity: ClientIP
  loadBalancerSourceRanges: [198.51.100.7/24]
";
    let open = guarded.replace("guarded", "slip").replace("90s", "9s");
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("guarded.yaml", guarded), ("slip.yaml", &open)])?;
    let output = plan(directory.path(), &["cluster.yaml", "guarded.yaml"])?;
    let line = text(&output.stdout).lines().find(|line| line.starts_with("shop/guarded")).map(str::to_owned);
    let line = line.context("shop/guarded")?;
    assert!(line.ends_with("  affinity=10800s,tcp-idle=90s,ranges=1"), "{line}");
    let output = plan(directory.path(), &["-o", "json", "."])?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let expected = serde_json::json!({
        "source_ranges": ["198.51.100.0/24"], "affinity_s": 10800, "all_ports": false, "direct": false, "kernel": false,
        "idle_s": {"tcp": 90, "udp": null, "sctp": null},
    });
    assert_eq!(service(&json, "guarded")?["treatment"], expected);
    assert_eq!(service(&json, "web")?.get("treatment"), None);
    let message = "vipmux.io/tcp-idle-timeout: \"9s\" is malformed; allowed: 10s to 24h: a whole number of seconds (90s), \
                   minutes (15m) or hours (2h)";
    assert_eq!(
        (&service(&json, "slip")?["state"], &service(&json, "slip")?["message"]),
        (&"pending".into(), &message.into())
    );
    Ok(())
}

#[test]
fn a_service_from_azure_is_shown_with_its_tags_probes_and_unexposed_ports() -> Result<()> {
    let azure = "\
apiVersion: v1
kind: Service
metadata:
  name: gateway
  namespace: shop
  annotations:
    service.beta.kubernetes.io/azure-allowed-service-tags: Office
    service.beta.kubernetes.io/port_443_health-probe_protocol: Http
    service.beta.kubernetes.io/port_443_health-probe_port: status
    service.beta.kubernetes.io/port_443_health-probe_request-path: /healthz/ready
    service.beta.kubernetes.io/port_15021_no_lb_rule: \"true\"
spec:
  type: LoadBalancer
  ports: [{name: status, port: 15021}, {name: https, port: 443}]
";
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("azure.yaml", azure)])?;
    let tag = ["--service-tag", "office=198.51.100.0/24,2001:db8::/32"];
    let output = plan(directory.path(), &[&tag[..], &["."]].concat())?;
    let line = text(&output.stdout).lines().find(|line| line.starts_with("shop/gateway")).map(str::to_owned);
    let line = line.context("shop/gateway")?;
    assert!(line.starts_with("shop/gateway  allocated  192.0.2.11  443/TCP "), "{line}");
    assert!(line.ends_with("  ranges=2,unexposed=15021/TCP,probes=1"), "{line}");
    let output = plan(directory.path(), &[&tag[..], &["-o", "json", "."]].concat())?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let treatment = &service(&json, "gateway")?["treatment"];
    let probe = serde_json::json!({
        "protocol": "http", "path": "/healthz/ready", "port": "status", "interval_s": 5, "failures": 2,
    });
    assert_eq!(treatment["probes"], serde_json::json!({ "443/TCP": probe }));
    assert_eq!(treatment["unexposed"], serde_json::json!(["15021/TCP"]));
    assert_eq!(treatment["source_ranges"], serde_json::json!(["198.51.100.0/24", "2001:db8::/32"]));
    let output = plan(directory.path(), &["."])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).contains("no service tag is called \"Office\"; known: Internet (--service-tag"));
    let output = plan(directory.path(), &["--service-tag", "office=198.51.100.0", "."])?;
    assert_eq!(output.status.code(), Some(1), "unusable input");
    assert!(
        text(&output.stderr).contains("service tag office: \"198.51.100.0\" is no CIDR"),
        "{}",
        text(&output.stderr)
    );
    Ok(())
}

#[test]
fn a_service_that_keeps_its_address_by_grace_is_not_as_asked() -> Result<()> {
    let slip = "\
apiVersion: v1
kind: Service
metadata: {name: slip, namespace: shop, annotations: {vipmux.io/addresses: 192.0.2.1O}}
spec: {type: LoadBalancer, ports: [{port: 80}]}
";
    let state = "version: 1\nservices: {shop/slip: {addresses: [192.0.2.10], ports: [80/TCP]}}";
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("slip.yaml", slip), ("state", state)])?;
    let output = plan(directory.path(), &["cluster.yaml", "slip.yaml", "--state", "state"])?;
    assert_eq!(output.status.code(), Some(2));
    let kept = "shop/slip  allocated  192.0.2.10  80/TCP         InvalidAnnotation  192.0.2.10 from pool lan";
    assert!(text(&output.stdout).contains(kept), "{}", text(&output.stdout));
    assert!(text(&output.stderr).starts_with("warning: shop/slip: vipmux.io/addresses: \"192.0.2.1O\" is malformed"));
    Ok(())
}

#[test]
fn a_plan_without_nodes_warns_that_nobody_would_lead() -> Result<()> {
    let directory = manifests(&[("cluster.yaml", &CLUSTER.replace("kind: Node", "kind: Namespace"))])?;
    let output = plan(directory.path(), &["."])?;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "warning: nobody would lead: there are no Nodes in the input\n");
    Ok(())
}

#[test]
fn the_configuration_of_the_allocator_decides() -> Result<()> {
    let config = "{loadBalancerClass: example.org/lb, unsetClass: false, reserve: [192.0.2.10], xdpMode: native}";
    let classed = "\
apiVersion: v1
kind: Service
metadata: {name: classed, namespace: shop, annotations: {vipmux.io/sharing-key: other}}
spec: {type: LoadBalancer, loadBalancerClass: example.org/lb, ports: [{port: 80}]}
";
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("classed.yaml", classed), ("config", config)])?;
    let outcome = |args: &[&str], environment: &[(&str, &str)]| -> Result<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vipmux"));
        command.args(["plan", "-o", "json", "cluster.yaml", "classed.yaml"]).args(args).current_dir(directory.path());
        let json: Value = serde_json::from_slice(&command.envs(environment.iter().copied()).output()?.stdout)?;
        let shown =
            |name| service(&json, name).map(|row| format!("{name}:{}", row["addresses"][0].as_str().unwrap_or("-")));
        Ok([shown("classed")?, shown("web")?].join(" "))
    };
    let limit = ("VIPMUX_NAMESPACE_ADDRESSES", "1");
    for (args, environment, expected) in [
        (&[][..], &[][..], "classed:- web:192.0.2.10"),
        (&["--config", "config"], &[], "classed:192.0.2.11 web:-"),
        (&[], &[("VIPMUX_CONFIG", "config")], "classed:192.0.2.11 web:-"),
        (&["--config", "config", "--unset-class", "true"], &[limit], "classed:192.0.2.11 web:-"),
        (&["--load-balancer-class", "example.org/lb"], &[], "classed:192.0.2.10 web:192.0.2.11"),
        (&["--reserve", "192.0.2.10"], &[], "classed:- web:192.0.2.11"),
        (&["--service-addresses", "0"], &[], "classed:- web:-"),
    ] {
        assert_eq!(outcome(args, environment)?, expected, "{args:?} {environment:?}");
    }
    Ok(())
}

/// There is no agent, and there are no maps.
#[test]
fn explain_from_manifests_takes_the_same_options() -> Result<()> {
    let directory = manifests(&[("cluster.yaml", CLUSTER)])?;
    let explain = |args: &[&str]| -> Result<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vipmux"));
        command.args(["explain", "--socket", "none", "--pin-path", "none", "--manifests", "cluster.yaml", "shop/web"]);
        Ok(text(&command.args(args).current_dir(directory.path()).output()?.stdout))
    };
    assert!(explain(&[])?.contains("192.0.2.10 from pool lan"));
    assert!(explain(&["--reserve", "192.0.2.10"])?.contains("192.0.2.11 from pool lan"));
    assert!(explain(&["--unset-class", "false"])?.contains("spec.loadBalancerClass is not set"));
    Ok(())
}

#[test]
fn the_order_of_the_files_does_not_matter() -> Result<()> {
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("clashes.yaml", CLASHES)])?;
    let forward = plan(directory.path(), &["-o", "json", "cluster.yaml", "clashes.yaml"])?;
    let backward = plan(directory.path(), &["-o", "json", "clashes.yaml", "cluster.yaml"])?;
    assert_eq!(text(&forward.stdout), text(&backward.stdout));
    Ok(())
}

#[test]
fn standard_input_can_be_a_list() -> Result<()> {
    let items: Vec<Value> = serde_saphyr::from_str_multiple::<Value, _>(CLUSTER)?;
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vipmux"))
        .args(["plan", "-", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("stdin")?.write_all(list.as_bytes())?;
    let output = child.wait_with_output()?;
    assert_eq!(output.status.code(), Some(0));
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(service(&json, "web")?["addresses"], serde_json::json!(["192.0.2.10"]));
    Ok(())
}

#[test]
fn addresses_in_the_state_file_are_kept() -> Result<()> {
    let state = "version: 1\nservices: {shop/web: {addresses: [192.0.2.11]}}";
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("state", state), ("damaged", "version: 1\nservices: [")])?;
    let output = plan(directory.path(), &["cluster.yaml", "-o", "json", "--state", "state"])?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(service(&json, "dns")?["addresses"], serde_json::json!(["192.0.2.11"]));
    for (state, message) in [("damaged", "the assignments damaged are damaged: "), ("gone", "gone does not exist")] {
        let output = plan(directory.path(), &["cluster.yaml", "--state", state])?;
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).starts_with(&format!("vipmux: cannot use --state: {message}")),
            "{}",
            text(&output.stderr)
        );
    }
    Ok(())
}

#[test]
fn unusable_input_has_status_1_and_the_rest_is_still_planned() -> Result<()> {
    let bad =
        "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {type: LoadBalancer, ports: [{port: many}]}\n";
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("bad.yaml", bad)])?;
    let output = plan(directory.path(), &["."])?;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: ./bad.yaml:4"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("shop/web  allocated"));
    for args in [&["gone.yaml"][..], &[], &["cluster.yaml", "--no-such-option"]] {
        assert_eq!(plan(directory.path(), args)?.status.code(), Some(1), "{args:?}");
    }
    Ok(())
}

#[test]
fn a_reader_that_leaves_early_is_not_an_error() -> Result<()> {
    let service = |i| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{i}}}\nspec: {{type: LoadBalancer, ports: [{{port: 1}}]}}\n"
        )
    };
    let many: String = (0..2_000).map(service).collect();
    let directory = manifests(&[("many.yaml", &many)])?;
    let mut child = Command::new(env!("CARGO_BIN_EXE_vipmux"))
        .args(["plan", "many.yaml"])
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    assert_eq!(output.status.code(), Some(2));
    let remedy = Reason::NoPool.remedy().context("a remedy")?;
    assert_eq!(text(&output.stderr), format!("remedy: NoPool: {remedy}\n"), "and nothing of a broken pipe");
    Ok(())
}

#[test]
fn the_json_of_a_change_has_both_sides() -> Result<()> {
    let after = CLUSTER.replace("port: 80}", "port: 8080}");
    let directory = manifests(&[("before.yaml", CLUSTER), ("after.yaml", &after)])?;
    let output = plan(directory.path(), &["--before", "before.yaml", "after.yaml", "-o", "json"])?;
    assert_eq!(output.status.code(), Some(2));
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(json["version"], 1);
    let web = service(&json, "web")?;
    assert_eq!(web["changes"], serde_json::json!(["ports"]));
    assert_eq!(web["before"]["ports"], serde_json::json!([{"port": 80, "protocol": "TCP"}]));
    assert_eq!(web["after"]["ports"], serde_json::json!([{"port": 8080, "protocol": "TCP"}]));
    assert_eq!(json["unchanged"], serde_json::json!({"services": 1, "vips": 1}));
    let lost = serde_json::json!([{
        "address": "192.0.2.10", "service": {"namespace": "shop", "name": "web"}, "ports": ["80/TCP"],
    }]);
    assert_eq!(json["disturbances"], lost);
    let yaml = plan(directory.path(), &["--before", "before.yaml", "after.yaml", "-o", "yaml"])?;
    assert_eq!(serde_saphyr::from_str::<Value>(&text(&yaml.stdout))?, json);
    Ok(())
}

#[test]
fn a_change_starts_from_the_state_file() -> Result<()> {
    let state = "version: 1\nservices: {shop/web: {addresses: [192.0.2.11]}, shop/dns: {addresses: [192.0.2.11]}}";
    let directory = manifests(&[("cluster.yaml", CLUSTER), ("state", state)])?;
    let same = ["--before", "cluster.yaml", "cluster.yaml", "--state", "state"];
    let output = plan(directory.path(), &same)?;
    assert_eq!(text(&output.stdout), "unchanged: Services 2, VIPs 1\n");
    let explicit = CLUSTER
        .replace("{vipmux.io/sharing-key: edge}", "{vipmux.io/sharing-key: edge, vipmux.io/addresses: 192.0.2.10}");
    fs::write(directory.path().join("after.yaml"), explicit)?;
    let output = plan(directory.path(), &["--before", "cluster.yaml", "after.yaml", "--state", "state"])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).contains("192.0.2.11 -> 192.0.2.10"), "{}", text(&output.stdout));
    Ok(())
}

#[test]
fn a_change_with_an_unreadable_file_names_it() -> Result<()> {
    let directory = manifests(&[("cluster.yaml", CLUSTER)])?;
    for args in [["--before", "gone.yaml", "cluster.yaml"], ["--before", "cluster.yaml", "gone.yaml"]] {
        let output = plan(directory.path(), &args)?;
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(text(&output.stderr).contains("cannot read \"gone.yaml\""), "{}", text(&output.stderr));
    }
    let output = plan(directory.path(), &["--before", "-", "-"])?;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("one of --before and PATH only"), "{}", text(&output.stderr));
    Ok(())
}
