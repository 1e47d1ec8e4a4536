//! Makes ServiceAccounts with exactly the rights that a test needs.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use vipmux_model::permissions::{Right, RightScope, allocator_namespace};

use crate::{
    api_server::{ApiServer, SYSTEM},
    cluster::PATIENCE,
    wait,
};

/// Returns an account in vipmux's namespace, and roles with these rights.
fn objects(account: &str, rights: &[Right]) -> Vec<Value> {
    let rules = |scope| -> Vec<Value> {
        let rule = |right: &Right| {
            let names: Vec<_> = right.name.into_iter().collect();
            json!({
                "apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb], "resourceNames": names,
            })
        };
        rights.iter().filter(|right| right.scope == scope).map(rule).collect()
    };
    let subjects = json!([{ "kind": "ServiceAccount", "name": account, "namespace": SYSTEM }]);
    let group = "rbac.authorization.k8s.io";
    let object = |kind: &str, mut rest: Value| {
        rest["apiVersion"] = format!("{group}/v1").into();
        rest["kind"] = kind.into();
        rest["metadata"] = json!({ "name": account, "namespace": SYSTEM });
        if kind.starts_with("Cluster")
            && let Some(metadata) = rest["metadata"].as_object_mut()
        {
            metadata.remove("namespace");
        }
        rest
    };
    let apart = |mut object: Value| {
        object["metadata"]["namespace"] = allocator_namespace(SYSTEM).into();
        object
    };
    let role = |kind: &str| json!({ "apiGroup": group, "kind": kind, "name": account });
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": allocator_namespace(SYSTEM) } }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "namespace": SYSTEM, "name": account } }),
        object("ClusterRole", json!({ "rules": rules(RightScope::Cluster) })),
        object("Role", json!({ "rules": rules(RightScope::Namespace) })),
        object("ClusterRoleBinding", json!({ "subjects": subjects, "roleRef": role("ClusterRole") })),
        object("RoleBinding", json!({ "subjects": subjects, "roleRef": role("Role") })),
        apart(object("Role", json!({ "rules": rules(RightScope::AllocatorNamespace) }))),
        apart(object("RoleBinding", json!({ "subjects": subjects, "roleRef": role("Role") }))),
    ]
}

/// Makes an account in vipmux's namespace with these rights, and waits until the API server grants
/// them.
pub fn grant(api: &ApiServer, account: &str, rights: &[Right]) -> Result<()> {
    api.apply_all(&objects(account, rights))?;
    rights.iter().try_for_each(|right| {
        wait::until("what was granted is in force", PATIENCE, || {
            ensure!(is_allowed(api, account, right)?, "{account} may not {right:?}");
            Ok(())
        })
    })
}

/// Returns whether the API server would let an account of vipmux's namespace do this.
pub fn is_allowed(api: &ApiServer, account: &str, right: &Right) -> Result<bool> {
    let resource_attributes = Some(right.attributes(SYSTEM));
    let spec = SubjectAccessReviewSpec { user: Some(user(account)), resource_attributes, ..Default::default() };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let reviews = Api::<SubjectAccessReview>::all(api.client()?);
    let answer = api.block_on(async { Ok(reviews.create(&PostParams::default(), &review).await?) })?;
    Ok(answer.status.context("no answer")?.allowed)
}

/// An account that lacks a right.
#[derive(Clone, Debug)]
pub struct Lacking {
    /// The missing right.
    pub right: Right,
    /// Its user name in the audit log.
    pub user: String,
    /// A file for `--kubeconfig`.
    pub kubeconfig: PathBuf,
}

/// Makes an account `label-N` for each of these rights, with all rights of `whole` except that one,
/// and `label-witness` with all. Waits until the API server enforces them.
pub fn lacking(api: &ApiServer, whole: &[Right], label: &str, lacks: &[Right]) -> Result<Vec<Lacking>> {
    let account = |index: usize| format!("{label}-{index}");
    for (index, right) in lacks.iter().enumerate() {
        let rest: Vec<_> = whole.iter().filter(|other| *other != right).copied().collect();
        ensure!(rest.len() + 1 == whole.len(), "{right:?} is no right of theirs");
        api.apply_all(&objects(&account(index), &rest))?;
    }
    // The API server learns of roles and bindings in the order of their creation, each kind
    // separately.
    grant(api, &format!("{label}-witness"), whole)?;
    let lacking = |(index, right): (usize, &Right)| {
        let kubeconfig = api.service_account(SYSTEM, &account(index))?.kubeconfig;
        Ok(Lacking { right: *right, user: user(&account(index)), kubeconfig })
    };
    lacks.iter().enumerate().map(lacking).collect()
}

fn user(account: &str) -> String {
    format!("system:serviceaccount:{SYSTEM}:{account}")
}
