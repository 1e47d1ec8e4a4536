//! Tests `deploy/`: the API server accepts the objects of kustomize and of the chart, and they grant the
//! right permissions.

mod chart_options;

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vipmux_model::permissions::{AGENT, ALLOCATOR, Right, RightScope, allocator_namespace};
use vipmux_tests::{
    api_server::{self, ApiServer, SYSTEM},
    cleanup::Folder,
    cluster::PATIENCE,
    rights, wait,
};

/// The chart requires this version. `helm template` does not ask an API server for its own.
const KUBERNETES: &str = "1.31.0";

/// A namespace for restricted Pods only, with vipmux's accounts.
const STRICT: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: strict, labels: { pod-security.kubernetes.io/enforce: restricted } }
---
apiVersion: v1
kind: ServiceAccount
metadata: { namespace: strict, name: vipmux-agent }
---
apiVersion: v1
kind: ServiceAccount
metadata: { namespace: strict, name: vipmux-allocator }
";

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

fn path(of: &str) -> String {
    format!("{}/../deploy/{of}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the rendered objects.
fn objects(yaml: &str) -> Result<Objects> {
    let mut objects = Objects::new();
    for document in api_server::documents(yaml)? {
        let text = |value: &Value| value.as_str().map(str::to_owned).with_context(|| format!("no object: {document}"));
        let key = (text(&document["kind"])?, text(&document["metadata"]["name"])?);
        ensure!(objects.insert(key.clone(), document).is_none(), "{key:?} twice");
    }
    Ok(objects)
}

/// Returns a kustomization's objects.
fn kustomized(api: &ApiServer, folder: &str) -> Result<String> {
    api.kubectl(&["kustomize", &path(folder)])
}

/// Returns the chart's objects with these values. An error is Helm's.
fn charted(api: &ApiServer, values: &Value) -> Result<String> {
    let folder = Folder::temporary("values")?;
    let file = folder.path().join("values.yaml");
    fs::write(&file, values.to_string())?;
    let file = file.to_str().context("the temporary folder's name is no text")?;
    let chart = path("helm/vipmux");
    api.helm(&["template", "any", &chart, "--namespace", SYSTEM, "--kube-version", KUBERNETES, "--values", file])
}

/// Runs `kubectl create` on one document, and returns its output.
fn create(api: &ApiServer, document: &Value, arguments: &[&str]) -> Result<String> {
    let folder = Folder::temporary("create")?;
    let file = folder.path().join("object.json");
    fs::write(&file, document.to_string())?;
    let file = file.to_str().context("the temporary folder's name is no text")?;
    api.kubectl(&[&["create", "--filename", file], arguments].concat())
}

/// Makes vipmux's namespaces: a dry run makes none, and its namespaced objects need theirs.
fn add_namespaces(api: &ApiServer) -> Result<()> {
    [SYSTEM, &allocator_namespace(SYSTEM)].into_iter().try_for_each(|name| api.add_namespace(name))
}

/// A dry run checks each object alone.
fn accept(api: &ApiServer, yaml: &str) -> Result<()> {
    let applied = api.kubectl_apply(yaml, &["--server-side", "--dry-run=server", "--validate=strict"])?;
    let lines: Vec<_> = applied.lines().collect();
    ensure!(lines.iter().all(|line| line.ends_with("serverside-applied (server dry run)")), "{applied}");
    ensure!(lines.len() == objects(yaml)?.len(), "{applied}");
    Ok(())
}

/// Waits until the installed kinds can be used.
fn await_kinds(api: &ApiServer) -> Result<()> {
    objects(&kustomized(api, "crds")?)?.values().try_for_each(|definition| api.await_kind(definition))
}

#[test]
fn the_api_server_takes_every_object_and_its_tables_have_columns() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    add_namespaces(&api)?;
    for folder in ["crds", "kustomize", "uninstall"] {
        accept(&api, &kustomized(&api, folder)?)?;
    }
    api.kubectl(&["apply", "--server-side", "--kustomize", &path("kustomize")])?;
    // Again over existing objects, then in the order of an uninstallation.
    api.kubectl(&["apply", "--server-side", "--kustomize", &path("kustomize")])?;
    api.kubectl(&["apply", "--server-side", "--kustomize", &path("uninstall")])?;
    let daemon_set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": SYSTEM, "name": "vipmux-agent"},
    });
    let found = api.get(&daemon_set)?.context("no DaemonSet")?;
    let pod = &found["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"][0]["args"], json!(["unload"]));
    assert_eq!(pod["containers"][0]["args"], json!(["unload", "--stay"]));
    assert!(pod["containers"][0]["livenessProbe"].is_null(), "{pod}");

    await_kinds(&api)?;
    api.apply(
        "{apiVersion: vipmux.io/v1alpha1, kind: VipPool, metadata: {name: lan}, spec: {addresses: [192.0.2.0/28]}}",
    )?;
    let table = api.kubectl(&["get", "vpool"])?;
    assert!(table.starts_with("NAME   ADDRESSES") && table.contains(r#"lan    ["192.0.2.0/28"]"#), "{table}");
    let explained = [
        ("vpool.spec.priority", "A pool with a lower number goes first"),
        ("vpolicy", "Which nodes announce the addresses of which pools"),
    ];
    for (what, text) in explained {
        // The API server publishes the schemas of new kinds a moment after the kinds.
        wait::until(&format!("an explanation of {what}"), PATIENCE, || {
            let output = api.kubectl(&["explain", what])?;
            ensure!(output.contains(text), "{output}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_chart_is_installed_upgraded_and_taken_out_and_the_pools_stay() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    let chart = path("helm/vipmux");
    let notes = api.helm(&["install", "any", &chart, "--namespace", SYSTEM, "--create-namespace"])?;
    assert!(notes.contains(&format!("kubectl label namespace {SYSTEM} pod-security.kubernetes.io/enforce=privileged")));
    assert!(!notes.contains("create secret"), "{notes}");
    let pool = json!({
        "apiVersion": "vipmux.io/v1alpha1", "kind": "VipPool", "metadata": {"name": "lan"},
        "spec": {"addresses": ["192.0.2.0/28"]},
    });
    await_kinds(&api)?;
    api.apply_all(std::slice::from_ref(&pool))?;
    api.kubectl(&["label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=privileged"])?;
    let upgrade = ["upgrade", "any", &chart, "--namespace", SYSTEM, "--reset-then-reuse-values"];
    let notes = api.helm(&[&upgrade[..], &["--set", "allocator.enabled=false"]].concat())?;
    assert!(notes.contains("create secret generic vipmux-gossip") && !notes.contains("label namespace"), "{notes}");
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": SYSTEM, "name": "vipmux-allocator"},
    });
    assert_eq!(api.get(&deployment)?, None);
    let notes = api.helm(&[&upgrade[..], &["--set", "agent.unload=true"]].concat())?;
    assert!(notes.contains("helm -n vipmux-system uninstall any"), "{notes}");
    api.helm(&["uninstall", "any", "--namespace", SYSTEM])?;
    assert!(api.get(&pool)?.is_some(), "the pool went with the release");
    Ok(())
}

/// Value sets that users have, with expected parts of the chart's output.
fn value_sets() -> Vec<(Value, &'static [&'static str], &'static [&'static str])> {
    vec![
        (
            json!({
                "image": {
                    "repository": "registry.example/vipmux", "digest": format!("sha256:{}", "0a".repeat(32)),
                    "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}],
                },
                "crds": {"install": false},
            }),
            &[
                concat!("image: registry.example/vipmux:", env!("CARGO_PKG_VERSION"), "@sha256:0a0a"),
                "- name: registry",
                "imagePullPolicy: Always",
            ],
            &["CustomResourceDefinition"],
        ),
        (
            json!({"config": {"gossipPort": 7000, "httpListen": "127.0.0.1:7001", "interface": ["eth1", "eth2"]}}),
            &[
                "containerPort: 7000",
                "containerPort: 7001",
                "    gossipPort: 7000\n",
                "    - eth2\n",
                "checksum/config: ",
                // The agents' probes use the host's address, which the allocator's Pod does not
                // have.
                "host: \"127.0.0.1\"",
                "name: VIPMUX_HTTP_LISTEN\n          value: \"[::]:7001\"",
            ],
            &["containerPort: 7945", "containerPort: 7944"],
        ),
        (
            json!({"config": {"httpListen": "off"}}),
            &["httpListen: \"off\""],
            &["Probe:", "name: http", "containerPort: 7945", "VIPMUX_HTTP_LISTEN"],
        ),
        (
            json!({"agent": {"unload": true, "env": [{"name": "VIPMUX_PIN_PATH", "value": "/sys/fs/bpf/edge"}]}}),
            &["value: /sys/fs/bpf/edge", "value: /etc/vipmux/config.yaml"],
            &["name: vipmux-gossip\n      - name"],
        ),
        (
            json!({"allocator": {"enabled": false}}),
            &["- name: VIPMUX_ALLOCATOR\n          value: \"off\""],
            &["kind: Deployment", "PodDisruptionBudget", "name: vipmux-allocator", "checksum/config"],
        ),
        (
            json!({
                "agent": {
                    "maxUnavailable": "10%", "resources": {"limits": {"memory": "1Gi"}},
                    "nodeSelector": {"edge": "true"},
                    "tolerations": [{"key": "edge", "operator": "Exists", "effect": "NoSchedule"}],
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "arch", "operator": "Exists"}]}],
                    }}},
                    "podAnnotations": {"team": "network"}, "podLabels": {"tier": "edge"},
                    "env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "192.0.2.5"}],
                },
                "allocator": {"replicas": 3, "env": [{"name": "RUST_LOG", "value": "debug"}], "tolerations": [
                    {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
                ]},
            }),
            &["maxUnavailable: 10%", "memory: 1Gi", "edge: \"true\"", "team: network", "replicas: 3", "RUST_LOG"],
            &["replicas: 2"],
        ),
    ]
}

#[test]
fn the_chart_makes_what_its_values_say_and_the_api_server_takes_it() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    add_namespaces(&api)?;
    for (values, present, absent) in value_sets() {
        let made = charted(&api, &values)?;
        for text in present {
            assert!(made.contains(text), "no {text:?} for {values} in:\n{made}");
        }
        for text in absent {
            assert!(!made.contains(text), "{text:?} for {values} in:\n{made}");
        }
        accept(&api, &made).with_context(|| values.to_string())?;
    }
    Ok(())
}

#[test]
fn values_that_make_no_sense_are_refused_by_name() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    let refused = [
        (json!({"agents": {}}), "agents"),
        (json!({"image": {"repo": "x"}}), "repo"),
        (json!({"image": {"digest": "latest"}}), "/image/digest"),
        (json!({"agent": {"maxUnavailable": 0}}), "/agent/maxUnavailable"),
        (json!({"agent": {"unload": "yes"}}), "/agent/unload"),
        (json!({"agent": {"updateStrategy": "Recreate"}}), "/agent/updateStrategy"),
        (json!({"agent": {"serviceAccount": {"annotation": {}}}}), "annotation"),
        (json!({"agent": {"extraVolumes": [{"name": "state", "emptyDir": {}}]}}), "/agent/extraVolumes/0/name"),
        (json!({"allocator": {"extraVolumeMounts": [{"name": "x", "mountPath": "x"}]}}), "/mountPath"),
        (json!({"allocator": {"updateStrategy": "OnDelete"}}), "/allocator/updateStrategy"),
        (json!({"nameOverride": "Edge"}), "/nameOverride"),
        (json!({"podMonitor": {"enabled": true, "interval": "often"}}), "/podMonitor/interval"),
        (json!({"prometheusRule": {"rules": []}}), "rules"),
        (json!({"networkPolicy": {"enabled": true, "apiServerPorts": []}}), "/networkPolicy/apiServerPorts"),
        (json!({"agent": {"env": [{"name": "VIPMUX_NODE_NAME", "value": "n"}]}}), "/agent/env/0/name"),
        (json!({"agent": {"resources": {"limit": {}}}}), "limit"),
        (json!({"allocator": {"replicas": 0}}), "/allocator/replicas"),
        (json!({"agent": {"podLabels": {"app.kubernetes.io/component": "x"}}}), "/agent/podLabels"),
        (json!({"allocator": {"podAnnotations": {"checksum/config": "x"}}}), "/allocator/podAnnotations"),
        // YAML's `off` without quotes.
        (json!({"config": {"httpListen": false}}), "/config/httpListen"),
        (json!({"config": {"nodeName": "n"}}), "/config/nodeName"),
        (json!({"config": {"gossipPort": 70_000}}), "/config/gossipPort"),
    ];
    for (values, named) in refused {
        let error = charted(&api, &values).err().with_context(|| format!("{values} is taken"))?;
        let text = format!("{error:#}");
        assert!(text.contains(named), "{values}: {text}");
        assert!(text.contains("schema"), "{values}: {text}");
    }
    Ok(())
}

/// Returns a Pod of a template, as its controller would make it.
fn pod_of(objects: &Objects, kind: &str, name: &str, namespace: &str) -> Result<Value> {
    let object = objects.get(&(kind.to_owned(), name.to_owned())).with_context(|| format!("no {kind} {name}"))?;
    let template = &object["spec"]["template"];
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}, "spec": template["spec"],
    }))
}

/// The API server checks the Pod Security Standards, but only for Pods.
#[test]
fn the_allocators_pods_are_admitted_where_restricted_ones_alone_are_and_the_agents_in_their_namespace() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.kubectl(&["apply", "--server-side", "--kustomize", &path("kustomize")])?;
    api.apply(STRICT)?;
    let objects = objects(&kustomized(&api, "kustomize")?)?;
    let create = |pod: &Value| create(&api, pod, &["--dry-run=server", "--validate=strict"]);
    create(&pod_of(&objects, "Deployment", "vipmux-allocator", "strict")?)?;
    let agent = pod_of(&objects, "DaemonSet", "vipmux-agent", "strict")?;
    let error = create(&agent).err().context("a Pod with capabilities and the host's network is a restricted one")?;
    assert!(format!("{error:#}").contains("violates PodSecurity"), "{error:#}");
    create(&pod_of(&objects, "DaemonSet", "vipmux-agent", SYSTEM)?).map(drop)
}

#[test]
fn the_accounts_have_their_rights_and_not_each_others() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.kubectl(&["apply", "--server-side", "--kustomize", &path("kustomize")])?;
    for (account, whole) in [("vipmux-agent", &AGENT[..]), ("vipmux-allocator", &ALLOCATOR[..])] {
        for right in whole {
            // The API server sees changed roles a moment later.
            wait::until("the rights", PATIENCE, || {
                ensure!(rights::is_allowed(&api, account, right)?, "{account} lacks {right:?}");
                Ok(())
            })?;
        }
    }
    let agents_alone = AGENT.iter().filter(|right| right.verb == "update").collect::<Vec<_>>();
    ensure!(!agents_alone.is_empty(), "the agents update nothing");
    for right in agents_alone {
        assert!(!rights::is_allowed(&api, "vipmux-allocator", right)?, "the allocator may {right:?}");
    }
    let is_for_writers = |right: &&Right| {
        right.resource.ends_with("/status")
            || right.resource == "secrets"
            || right.scope == RightScope::AllocatorNamespace
    };
    for right in
        ALLOCATOR.iter().filter(is_for_writers).filter(|right| (right.resource, right.verb) != ("secrets", "get"))
    {
        assert!(!rights::is_allowed(&api, "vipmux-agent", right)?, "the agents may {right:?}");
    }
    Ok(())
}

/// The chart's documentation names exactly its values.
#[test]
fn the_charts_page_names_every_value() -> Result<()> {
    let values: Value = serde_saphyr::from_str(&fs::read_to_string(path("helm/vipmux/values.yaml"))?)?;
    let page = fs::read_to_string(path("helm/vipmux/README.md"))?;
    for (group, values) in values.as_object().context("no values")? {
        let Some(values) = values.as_object().filter(|values| !values.is_empty()) else {
            assert!(page.contains(&format!("`{group}`")), "{group} is not in the chart's README.md");
            continue;
        };
        for value in values.keys() {
            let (first, name) = (format!("`{group}."), format!(".{value}`"));
            let documented = page.lines().any(|line| line.contains(&first) && line.contains(&name));
            assert!(documented, "{group}.{value} is not in the chart's README.md");
        }
    }
    Ok(())
}
