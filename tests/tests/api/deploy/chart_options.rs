//! Tests the chart's options beyond the objects that kustomize makes too.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use vipmux_tests::{
    api_server::{self, ApiServer, SYSTEM},
    cleanup::Folder,
};

use super::{KUBERNETES, Objects, accept, add_namespaces, charted, objects, path};

/// The operator's kinds, with the part of its schemas that the chart uses. A misspelled field is refused.
const OPERATOR: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: PodMonitor, plural: podmonitors, singular: podmonitor, listKind: PodMonitorList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [selector]
            properties:
              selector:
                type: object
                properties:
                  matchLabels: {type: object, additionalProperties: {type: string}}
              podMetricsEndpoints:
                type: array
                items:
                  type: object
                  properties:
                    port: {type: string}
                    interval: {type: string, pattern: '^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$'}
                    relabelings:
                      type: array
                      items:
                        type: object
                        properties:
                          sourceLabels: {type: array, items: {type: string}}
                          targetLabel: {type: string}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: PrometheusRule, plural: prometheusrules, singular: prometheusrule, listKind: PrometheusRuleList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            properties:
              groups:
                type: array
                items:
                  type: object
                  required: [name]
                  properties:
                    name: {type: string, minLength: 1}
                    rules:
                      type: array
                      items:
                        type: object
                        required: [expr]
                        properties:
                          alert: {type: string}
                          expr: {type: string}
                          for: {type: string}
                          labels: {type: object, additionalProperties: {type: string}}
                          annotations: {type: object, additionalProperties: {type: string}}
";

fn object<'a>(objects: &'a Objects, kind: &str, name: &str) -> Result<&'a Value> {
    objects.get(&(kind.to_owned(), name.to_owned())).with_context(|| format!("no {kind} {name}"))
}

/// Returns an API server with the operator's kinds and the namespaces of the chart, without labels.
fn prepared() -> Result<Option<ApiServer>> {
    let Some(api) = ApiServer::alone()? else { return Ok(None) };
    add_namespaces(&api)?;
    let kinds = api_server::documents(OPERATOR)?;
    api.apply_all(&kinds)?;
    kinds.iter().try_for_each(|kind| api.await_kind(kind))?;
    Ok(Some(api))
}

#[test]
fn the_options_of_pods_get_into_their_templates() -> Result<()> {
    let Some(api) = prepared()? else { return Ok(()) };
    let volumes = json!([{"name": "ca", "configMap": {"name": "ca"}}]);
    let mounts = json!([{"name": "ca", "mountPath": "/etc/ssl/certs", "readOnly": true}]);
    let both = json!({
        "runtimeClassName": "native", "serviceAccount": {"annotations": {"team": "network"}},
        "extraVolumes": volumes, "extraVolumeMounts": mounts,
    });
    let mut values = json!({"agent": both, "allocator": both});
    values["agent"]["updateStrategy"] = json!("OnDelete");
    values["allocator"]["updateStrategy"] = json!("Recreate");
    let made = charted(&api, &values)?;
    accept(&api, &made)?;
    let made = objects(&made)?;
    for (kind, name) in [("DaemonSet", "vipmux-agent"), ("Deployment", "vipmux-allocator")] {
        let pod = &object(&made, kind, name)?["spec"]["template"]["spec"];
        assert_eq!(pod["runtimeClassName"], "native", "{kind}");
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        assert!(list(&pod["volumes"]).contains(&volumes[0]), "{kind}: {pod}");
        assert!(list(&pod["containers"][0]["volumeMounts"]).contains(&mounts[0]), "{kind}: {pod}");
        assert_eq!(object(&made, "ServiceAccount", name)?["metadata"]["annotations"]["team"], "network");
    }
    assert_eq!(object(&made, "DaemonSet", "vipmux-agent")?["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    assert_eq!(object(&made, "Deployment", "vipmux-allocator")?["spec"]["strategy"], json!({"type": "Recreate"}));
    // An uninstallation has its own strategies.
    values["agent"]["unload"] = json!(true);
    let made = objects(&charted(&api, &values)?)?;
    for container in ["initContainers", "containers"] {
        let pod = &object(&made, "DaemonSet", "vipmux-agent")?["spec"]["template"]["spec"];
        let mounted = pod[container][0]["volumeMounts"].as_array().context("no mounts")?;
        assert!(mounted.contains(&mounts[0]), "{container}: {mounted:?}");
    }
    let strategy = &object(&made, "DaemonSet", "vipmux-agent")?["spec"]["updateStrategy"];
    assert_eq!(strategy["rollingUpdate"]["maxUnavailable"], "100%");
    let strategy = &object(&made, "Deployment", "vipmux-allocator")?["spec"]["strategy"];
    assert_eq!((&strategy["type"], &strategy["rollingUpdate"]["maxSurge"]), (&json!("RollingUpdate"), &json!(0)));
    Ok(())
}

/// Helm applies on the server. Defaults that it does not write would stay in the object, where they contradict
/// another strategy.
#[test]
fn an_installed_allocator_takes_another_strategy() -> Result<()> {
    let Some(api) = prepared()? else { return Ok(()) };
    for strategy in ["RollingUpdate", "Recreate", "RollingUpdate"] {
        let made = charted(&api, &json!({ "allocator": { "updateStrategy": strategy } }))?;
        let deployment = object(&objects(&made)?, "Deployment", "vipmux-allocator")?.clone();
        let installed = api.apply_all(&[deployment])?;
        assert_eq!(installed[0]["spec"]["strategy"]["type"], strategy);
    }
    Ok(())
}

/// What refers to an object uses its new name too.
#[test]
fn an_override_renames_every_object_except_the_kinds() -> Result<()> {
    let Some(api) = prepared()? else { return Ok(()) };
    let values = |name: &str| {
        json!({
            "nameOverride": name, "podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true},
            "networkPolicy": {"enabled": true},
        })
    };
    let (made, usual) = (charted(&api, &values("edge"))?, charted(&api, &values(""))?);
    accept(&api, &made)?;
    let renamed: BTreeSet<_> = objects(&made)?.into_keys().collect();
    let expected = objects(&usual)?.into_keys().map(|(kind, name)| match name.as_str() {
        "vipmux-system-allocator" => (kind, name),
        _ if kind == "CustomResourceDefinition" => (kind, name),
        _ => (kind, name.replacen("vipmux", "edge", 1)),
    });
    assert_eq!(renamed, expected.collect());
    // These belong to the code, the key's Secret and the allocator's Lease, and to alerts.yaml, its group.
    let fixed = ["vipmux-gossip", "resourceNames: [vipmux-allocator]", "vipmux-system", "vipmux.io", "/vipmux"];
    let fixed = [&fixed[..], &["  - name: vipmux"]].concat();
    for line in made.lines().filter(|line| !line.trim_start().starts_with(['#', '"'])) {
        let is_name = line.contains("vipmux-") || line.ends_with(": vipmux");
        assert!(!is_name || fixed.iter().any(|text| line.contains(text)), "{line}");
    }
    Ok(())
}

/// A change of the names would replace all agents at once.
#[test]
fn an_alias_in_a_parent_chart_renames_nothing() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    let parent = Folder::temporary("parent")?;
    let version = env!("CARGO_PKG_VERSION");
    let chart = json!({
        "apiVersion": "v2", "name": "parent", "version": "1.0.0",
        "dependencies": [{"name": "vipmux", "version": version, "alias": "edge"}],
    });
    fs::write(parent.path().join("Chart.yaml"), chart.to_string())?;
    fs::create_dir(parent.path().join("charts"))?;
    symlink(fs::canonicalize(path("helm/vipmux"))?, parent.path().join("charts/vipmux"))?;
    let of = parent.path().to_str().context("the temporary folder's name is no text")?;
    let made = api.helm(&["template", "any", of, "--namespace", SYSTEM, "--kube-version", KUBERNETES])?;
    let names = |yaml: &str| Ok::<_, anyhow::Error>(objects(yaml)?.into_keys().collect::<BTreeSet<_>>());
    assert_eq!(names(&made)?, names(&charted(&api, &json!({}))?)?);
    Ok(())
}

#[test]
fn monitoring_objects_select_the_pods_and_have_the_alerts() -> Result<()> {
    let Some(api) = prepared()? else { return Ok(()) };
    // Prometheus may select by a label that the chart sets too.
    let labels = json!({"release": "prometheus", "app.kubernetes.io/name": "prometheus"});
    let values = json!({
        "podMonitor": {"enabled": true, "interval": "1m", "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": true, "labels": labels, "disabled": ["AgentsMissing"]},
    });
    let made = charted(&api, &values)?;
    accept(&api, &made)?;
    let made = objects(&made)?;
    let monitor = object(&made, "PodMonitor", "vipmux")?;
    let own = json!({"release": "prometheus", "app.kubernetes.io/name": "vipmux"});
    assert_eq!(monitor["metadata"]["labels"], own);
    assert_eq!(object(&made, "PrometheusRule", "vipmux")?["metadata"]["labels"], labels);
    let selected = monitor["spec"]["selector"]["matchLabels"].as_object().context("no labels")?;
    for (kind, name) in [("DaemonSet", "vipmux-agent"), ("Deployment", "vipmux-allocator")] {
        let template = &object(&made, kind, name)?["spec"]["template"];
        assert!(selected.iter().all(|(label, value)| template["metadata"]["labels"][label] == *value), "{kind}");
        let ports = template["spec"]["containers"][0]["ports"].as_array().context("no ports")?;
        assert!(ports.iter().any(|port| port["name"] == monitor["spec"]["podMetricsEndpoints"][0]["port"]));
    }
    let file: Value = serde_saphyr::from_str(&fs::read_to_string(path("helm/vipmux/files/alerts.yaml"))?)?;
    let rules = |rules: &Value| rules["groups"][0]["rules"].as_array().cloned().context("no rules");
    let mut expected = rules(&file)?;
    expected.retain(|rule| rule["alert"] != "AgentsMissing");
    assert_eq!(rules(&object(&made, "PrometheusRule", "vipmux")?["spec"])?, expected);

    let made = charted(&api, &json!({"prometheusRule": {"enabled": true}, "allocator": {"enabled": false}}))?;
    assert!(made.contains("alert: AgentsMissing") && !made.contains("NoAllocatorLeads"), "{made}");
    for (values, error) in [
        (json!({"prometheusRule": {"enabled": true, "disabled": ["AgentMissing"]}}), "no alert AgentMissing"),
        (json!({"podMonitor": {"enabled": true}, "config": {"httpListen": "off"}}), "config.httpListen is \"off\""),
    ] {
        let text = format!("{:#}", charted(&api, &values).err().with_context(|| format!("{values} is taken"))?);
        assert!(text.contains(error), "{text}");
    }
    Ok(())
}

/// The API server fills in what a strategy lacks. Helm removes only what it wrote itself.
#[test]
fn an_upgrade_changes_the_strategies_of_a_release_and_changes_them_back() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    let chart = path("helm/vipmux");
    api.helm(&["install", "any", &chart, "--namespace", SYSTEM, "--create-namespace"])?;
    let upgrade = ["upgrade", "any", &chart, "--namespace", SYSTEM, "--reset-then-reuse-values"];
    let strategy = |kind: &str, name: &str, field: &str| -> Result<Value> {
        let named = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"namespace": SYSTEM, "name": name}});
        Ok(api.get(&named)?.with_context(|| format!("no {kind}"))?["spec"][field].clone())
    };
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
    let unloading = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}});
    let of_allocator = |expected: &Value, values: &str| -> Result<()> {
        api.helm(&[&upgrade[..], &["--set", values]].concat()).with_context(|| values.to_owned())?;
        assert_eq!(strategy("Deployment", "vipmux-allocator", "strategy")?, *expected, "{values}");
        Ok(())
    };
    assert_eq!(strategy("Deployment", "vipmux-allocator", "strategy")?, rolling);
    of_allocator(&json!({"type": "Recreate"}), "allocator.updateStrategy=Recreate,agent.updateStrategy=OnDelete")?;
    assert_eq!(strategy("DaemonSet", "vipmux-agent", "updateStrategy")?["type"], "OnDelete");
    of_allocator(&unloading, "agent.unload=true")?;
    of_allocator(&json!({"type": "Recreate"}), "agent.unload=false")?;
    of_allocator(&rolling, "allocator.updateStrategy=RollingUpdate,agent.updateStrategy=RollingUpdate")?;
    let agents = strategy("DaemonSet", "vipmux-agent", "updateStrategy")?;
    assert_eq!((&agents["type"], &agents["rollingUpdate"]["maxUnavailable"]), (&json!("RollingUpdate"), &json!(1)));
    Ok(())
}

#[test]
fn a_policy_lets_the_allocator_reach_the_api_server_and_prometheus_reach_the_allocator() -> Result<()> {
    let Some(api) = prepared()? else { return Ok(()) };
    let from = json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
    let policy = |values: Value| -> Result<Value> {
        let made = charted(&api, &values)?;
        accept(&api, &made)?;
        let made = objects(&made)?;
        let policy = object(&made, "NetworkPolicy", "vipmux-allocator")?.clone();
        let pod = &object(&made, "Deployment", "vipmux-allocator")?["spec"]["template"]["metadata"]["labels"];
        assert_eq!(policy["spec"]["podSelector"]["matchLabels"], *pod);
        Ok(policy["spec"].clone())
    };
    let limited = json!({"enabled": true, "metricsFrom": from, "apiServerPorts": [8443]});
    let spec = policy(json!({"networkPolicy": limited}))?;
    assert_eq!(spec["ingress"], json!([{"ports": [{"port": "http"}], "from": from}]));
    assert_eq!(spec["egress"], json!([{"ports": [{"port": 8443}]}]));
    assert_eq!(policy(json!({"networkPolicy": {"enabled": true}}))?["ingress"], json!([{"ports": [{"port": "http"}]}]));
    let closed = policy(json!({"networkPolicy": {"enabled": true}, "config": {"httpListen": "off"}}))?;
    assert!(closed["ingress"] == json!([]) && closed["policyTypes"][0] == "Ingress", "{closed}");
    let without = charted(&api, &json!({"networkPolicy": {"enabled": true}, "allocator": {"enabled": false}}))?;
    assert!(!without.contains("NetworkPolicy"), "{without}");
    Ok(())
}
