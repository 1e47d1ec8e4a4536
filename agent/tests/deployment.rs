//! Compares `deploy/` with the code.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::PodSpec,
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use vipmux_datapath::capabilities::CAPABILITIES;
use vipmux_model::permissions::{AGENT, ALLOCATOR, Right, RightScope};

/// A right: scope, API group, resource, verb, and the object's name if it is for one object only.
type Grant = (RightScope, String, String, String, Option<String>);

fn documents(file: &str) -> Result<Vec<Value>> {
    let path = format!("{}/../deploy/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).context(path)?;
    serde_saphyr::from_multiple(&text).with_context(|| file.to_owned())
}

fn of_kind<T: DeserializeOwned>(documents: &[Value], kind: &str) -> Result<T> {
    let found: Vec<_> = documents.iter().filter(|document| document["kind"] == kind).collect();
    let [document] = found.as_slice() else { bail!("{} of {kind}", found.len()) };
    serde_json::from_value((*document).clone()).with_context(|| kind.to_owned())
}

/// Adds the rights of rules. Each right must be granted once: a second one would hide that the
/// first is gone.
fn add_grants(scope: RightScope, rules: &[PolicyRule], grants: &mut BTreeSet<Grant>) {
    for rule in rules {
        assert_eq!(rule.non_resource_urls, None);
        let names = rule.resource_names.clone().unwrap_or_default();
        let names = if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for (verb, name) in rule.verbs.iter().flat_map(|verb| names.iter().map(move |name| (verb, name))) {
                    let grant = (scope, group.clone(), resource.clone(), verb.clone(), name.clone());
                    assert!(grants.insert(grant.clone()), "twice: {grant:?}");
                }
            }
        }
    }
}

fn needed(rights: &[Right]) -> BTreeSet<Grant> {
    let grant = |right: &Right| {
        let [group, resource, verb] = [right.group, right.resource, right.verb].map(str::to_owned);
        (right.scope, group, resource, verb, right.name.map(str::to_owned))
    };
    rights.iter().map(grant).collect()
}

/// Checks that the binding gives the role to the account.
fn check_binding((name, account): (&str, &str), role: &RoleRef, kind: &str, subjects: Option<Vec<Subject>>) {
    assert_eq!((role.kind.as_str(), role.name.as_str()), (kind, name));
    let subjects: Vec<_> =
        subjects.unwrap_or_default().into_iter().map(|it| (it.kind, it.name, it.namespace)).collect();
    let account = ("ServiceAccount".to_owned(), account.to_owned(), Some("vipmux-system".to_owned()));
    assert_eq!(subjects, [account]);
}

fn check_roles(name: &str, file: &str, rights: &[Right]) -> Result<()> {
    let documents = documents(file)?;
    let cluster: ClusterRole = of_kind(&documents, "ClusterRole")?;
    let mut grants = BTreeSet::new();
    add_grants(RightScope::Cluster, &cluster.rules.unwrap_or_default(), &mut grants);
    let binding: ClusterRoleBinding = of_kind(&documents, "ClusterRoleBinding")?;
    check_binding((name, name), &binding.role_ref, "ClusterRole", binding.subjects);
    for scope in [RightScope::Namespace, RightScope::AllocatorNamespace] {
        let namespace = scope.namespace("vipmux-system").context("not of a namespace")?;
        let there: Vec<_> =
            documents.iter().filter(|document| document["metadata"]["namespace"] == *namespace).cloned().collect();
        if there.is_empty() {
            continue;
        }
        let role: Role = of_kind(&there, "Role")?;
        add_grants(scope, &role.rules.unwrap_or_default(), &mut grants);
        let binding: RoleBinding = of_kind(&there, "RoleBinding")?;
        let role = role.metadata.name.context("no name")?;
        check_binding((&role, name), &binding.role_ref, "Role", binding.subjects);
    }
    assert_eq!(grants, needed(rights), "{file}");
    Ok(())
}

#[test]
fn the_agents_roles_grant_exactly_its_rights() -> Result<()> {
    check_roles("vipmux-agent", "kustomize/rbac-agent.yaml", &AGENT)
}

#[test]
fn the_allocators_roles_grant_exactly_its_rights() -> Result<()> {
    check_roles("vipmux-allocator", "kustomize/rbac-allocator.yaml", &ALLOCATOR)
}

/// Returns the Pod of a folder's DaemonSet.
fn agents_pod(folder: &str) -> Result<PodSpec> {
    let daemon_set: DaemonSet = of_kind(&documents(&format!("{folder}/agent.yaml"))?, "DaemonSet")?;
    daemon_set.spec.template.spec.context("no Pod")
}

/// The capabilities are those that the agent checks when it starts; the container is not
/// privileged.
#[test]
fn the_agents_containers_have_exactly_the_needed_capabilities() -> Result<()> {
    let unloading = agents_pod("uninstall")?;
    let unload = unloading.init_containers.context("nothing unloads")?;
    for container in [agents_pod("kustomize")?.containers, unload, unloading.containers].concat() {
        let context = container.security_context.context("no securityContext")?;
        let capabilities = context.capabilities.context("no capabilities")?;
        let added: BTreeSet<_> = capabilities.add.iter().flatten().map(|name| format!("CAP_{name}")).collect();
        assert_eq!(added, CAPABILITIES.iter().map(|(_, name)| (*name).to_owned()).collect());
        assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
        assert_eq!((context.privileged, context.read_only_root_filesystem), (None, Some(true)));
    }
    Ok(())
}

/// Until there is a Secret, the kubelet would not start the first agents, and say so in Events. And
/// a probe waits longer for the answer than an agent takes to start.
#[test]
fn the_first_agents_start_without_events_of_failures() -> Result<()> {
    let pod = agents_pod("kustomize")?;
    let sources = pod.volumes.iter().flatten().filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
    let secrets: Vec<_> = sources.flatten().filter_map(|source| source.secret.as_ref()).collect();
    assert_eq!(secrets.iter().map(|secret| secret.optional).collect::<Vec<_>>(), [Some(true)]);
    let probe = pod.containers[0].startup_probe.as_ref().context("no probe")?;
    assert_eq!((probe.timeout_seconds, probe.initial_delay_seconds), (Some(30), Some(1)));
    Ok(())
}

/// docs/failover.md says so. VIPs that no other node can take hold up no update.
#[test]
fn an_agents_pod_is_drained_before_it_stops() -> Result<()> {
    let pod = agents_pod("kustomize")?;
    let hook = pod.containers[0].lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let command = hook.and_then(|hook| hook.exec.as_ref()?.command.clone()).context("no hook")?;
    assert_eq!(command[..3], ["vipmux", "drain", "--ignore-unmovable"]);
    Ok(())
}
