//! What `deploy/` says that the code says too.

use std::{collections::BTreeSet, fs};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vipmux::{
    permissions::{AGENT, ALLOCATOR, Right, Scope},
    runtime::CAPABILITIES,
};

/// A verb on a resource, in a scope; the last is an object's name, if it is for one alone.
type Grant = (Scope, String, String, String, Option<String>);

fn documents(file: &str) -> Vec<Value> {
    let path = format!("{}/../deploy/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

fn of_kind<T: DeserializeOwned>(documents: &[Value], kind: &str) -> T {
    let found: Vec<_> = documents.iter().filter(|document| document["kind"] == kind).collect();
    let [document] = found.as_slice() else { panic!("{} of {kind}", found.len()) };
    serde_json::from_value((*document).clone()).unwrap()
}

/// What rules grant. Each right is given once: a second one would hide that the first is gone.
fn granted(scope: Scope, rules: &[PolicyRule], grants: &mut BTreeSet<Grant>) {
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

fn asked(rights: &[Right]) -> BTreeSet<Grant> {
    let grant = |right: &Right| {
        let [group, resource, verb] = [right.group, right.resource, right.verb].map(str::to_owned);
        (right.scope, group, resource, verb, right.name.map(str::to_owned))
    };
    rights.iter().map(grant).collect()
}

fn bound(name: &str, role: &RoleRef, kind: &str, subjects: Option<Vec<Subject>>) {
    assert_eq!((role.kind.as_str(), role.name.as_str()), (kind, name));
    let subjects: Vec<_> =
        subjects.unwrap_or_default().into_iter().map(|it| (it.kind, it.name, it.namespace)).collect();
    let account = ("ServiceAccount".to_owned(), name.to_owned(), Some("vipmux-system".to_owned()));
    assert_eq!(subjects, [account]);
}

fn check_roles(name: &str, file: &str, rights: &[Right]) {
    let documents = documents(file);
    let cluster: ClusterRole = of_kind(&documents, "ClusterRole");
    let own: Role = of_kind(&documents, "Role");
    let mut grants = BTreeSet::new();
    granted(Scope::Cluster, &cluster.rules.unwrap_or_default(), &mut grants);
    granted(Scope::Namespace, &own.rules.unwrap_or_default(), &mut grants);
    assert_eq!(grants, asked(rights), "{file}");
    let binding: ClusterRoleBinding = of_kind(&documents, "ClusterRoleBinding");
    bound(name, &binding.role_ref, "ClusterRole", binding.subjects);
    let binding: RoleBinding = of_kind(&documents, "RoleBinding");
    bound(name, &binding.role_ref, "Role", binding.subjects);
}

#[test]
fn the_agents_roles_grant_what_they_ask_for_and_nothing_else() {
    check_roles("vipmux-agent", "kustomize/rbac-agent.yaml", &AGENT);
}

#[test]
fn the_allocators_roles_grant_what_it_asks_for_and_nothing_else() {
    check_roles("vipmux-allocator", "kustomize/rbac-allocator.yaml", &ALLOCATOR);
}

/// Those that it looks for when it starts, and no privileged container.
#[test]
fn the_agents_containers_have_the_capabilities_that_the_agent_needs() {
    let daemon_set: DaemonSet = of_kind(&documents("kustomize/agent.yaml"), "DaemonSet");
    let unload = documents("uninstall/unload.yaml").remove(0);
    let unload = serde_json::from_value(unload["spec"]["template"]["spec"]["initContainers"][0].clone()).unwrap();
    let agent = daemon_set.spec.template.spec.unwrap().containers.remove(0);
    for context in [agent, unload].map(|container: k8s_openapi::api::core::v1::Container| container.security_context) {
        let context = context.unwrap();
        let capabilities = context.capabilities.unwrap();
        let added: BTreeSet<_> = capabilities.add.unwrap().iter().map(|name| format!("CAP_{name}")).collect();
        assert_eq!(added, CAPABILITIES.iter().map(|(_, name)| (*name).to_owned()).collect());
        assert_eq!(capabilities.drop.unwrap(), ["ALL"]);
        assert_eq!((context.privileged, context.read_only_root_filesystem), (None, Some(true)));
    }
}

#[test]
fn the_chart_and_the_base_are_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = documents("helm/vipmux/Chart.yaml").remove(0);
    assert_eq!((chart["version"].as_str(), chart["appVersion"].as_str()), (Some(version), Some(version)));
    for folder in ["kustomize", "uninstall"] {
        let kustomization = documents(&format!("{folder}/kustomization.yaml")).remove(0);
        assert_eq!(kustomization["images"], json!([{"name": "vipmux", "newTag": version}]), "{folder}");
    }
}
