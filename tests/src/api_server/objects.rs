//! Writes objects to the API server, also those that a controller manager or a kubelet would write.

use std::{fs, net::IpAddr, sync::PoisonError, time::Duration};

use anyhow::{Context as _, Result, bail};
use kube::{
    Api, Client, CustomResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind, TypeMeta},
    discovery::{self, Scope},
};
use serde_json::{Value, json};
use vipmux_model::api::{VipPolicy, VipPool};

use super::{ADMIN, ApiServer};
use crate::{
    cleanup,
    lan::{Lan, Node},
    manifests, process, wait,
};

/// The field manager of the tests' writes.
const FIELD_MANAGER: &str = "vipmux-tests";
/// The API server serves a new kind a moment after it has accepted it.
const NEW_KIND: Duration = Duration::from_secs(90);

/// A kind's API resource, and the path of its objects.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    resource: ApiResource,
    scope: Scope,
}

impl ApiServer {
    /// Applies the documents of a YAML stream (server-side apply), and returns the resulting
    /// objects. A document's status is applied too, as a controller would. Unknown fields are an
    /// error.
    pub fn apply(&self, yaml: &str) -> Result<Vec<Value>> {
        self.apply_all(&documents(yaml)?)
    }

    /// Like [`ApiServer::apply`], for parsed documents.
    pub fn apply_all(&self, documents: &[Value]) -> Result<Vec<Value>> {
        documents.iter().map(|document| self.apply_one(document)).collect()
    }

    fn apply_one(&self, document: &Value) -> Result<Value> {
        let parameters = PatchParams::apply(FIELD_MANAGER).force().validation_strict();
        let (objects, name) = self.objects_of(document)?;
        let mut wanted = document.clone();
        if let Some(fields) = wanted.as_object_mut() {
            fields.remove("status");
        }
        let applied = self.block_on(async { Ok(objects.patch(&name, &parameters, &Patch::Apply(&wanted)).await?) });
        let applied = applied.with_context(|| format!("cannot apply {}", described(document)))?;
        if document["status"].is_null() { Ok(serde_json::to_value(applied)?) } else { self.set_status(document) }
    }

    /// Replaces the status of the object that a document names, and returns the resulting object.
    /// Server-side apply cannot write a Node's addresses if two have the same type.
    pub fn set_status(&self, document: &Value) -> Result<Value> {
        let (objects, name) = self.objects_of(document)?;
        let status = json!({ "status": document["status"] });
        let written = async { Ok(objects.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?) };
        let written = self.block_on(written);
        let written = written.with_context(|| format!("cannot write the status of {}", described(document)))?;
        Ok(serde_json::to_value(written)?)
    }

    /// Assigns addresses to a Service, as a controller does.
    pub fn give(&self, service: &str, addresses: &[IpAddr]) -> Result<()> {
        let (namespace, name) = service.split_once('/').with_context(|| format!("{service} is no namespace/name"))?;
        let ingress: Vec<_> =
            addresses.iter().map(|address| json!({ "ip": address.to_string(), "ipMode": "VIP" })).collect();
        let document = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "namespace": namespace, "name": name },
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        self.set_status(&document).map(drop)
    }

    /// Deletes the objects that documents name.
    pub fn delete_all(&self, documents: &[Value]) -> Result<()> {
        documents.iter().try_for_each(|document| {
            let (objects, name) = self.objects_of(document)?;
            self.block_on(async { Ok(objects.delete(&name, &DeleteParams::default()).await.map(drop)?) })
                .with_context(|| format!("cannot delete {}", described(document)))
        })
    }

    /// Returns the current object that a document names; `None` if there is none.
    pub fn get(&self, document: &Value) -> Result<Option<Value>> {
        let (objects, name) = self.objects_of(document)?;
        let found = self.block_on(async { Ok(objects.get_opt(&name).await?) });
        let found = found.with_context(|| format!("cannot read {}", described(document)))?;
        found.map(|object| Ok(serde_json::to_value(object)?)).transpose()
    }

    /// Makes a namespace.
    pub fn add_namespace(&self, name: &str) -> Result<()> {
        self.apply_all(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})]).map(drop)
    }

    /// Makes a LAN's Nodes, ready, with their addresses and pod networks, as kubelets and a
    /// controller manager do.
    pub fn add_nodes(&self, lan: &Lan) -> Result<()> {
        self.apply_all(&lan.nodes.iter().map(node).collect::<Vec<_>>()).map(drop)
    }

    /// Installs vipmux's custom kinds, and waits until they can be used.
    pub fn add_custom_kinds(&self) -> Result<()> {
        let kinds = [serde_json::to_value(VipPool::crd())?, serde_json::to_value(VipPolicy::crd())?];
        self.apply_all(&kinds)?;
        kinds.iter().try_for_each(|definition| self.await_kind(definition))
    }

    /// Installs the MetalLB kinds that vipmux reads, without their schemas, and waits until they
    /// can be used.
    pub fn add_metallb_kinds(&self) -> Result<()> {
        self.add_foreign_kind("metallb.io/v1beta1", "Namespaced", "IPAddressPool", "ipaddresspools")?;
        self.add_foreign_kind("metallb.io/v1beta1", "Namespaced", "L2Advertisement", "l2advertisements")
    }

    /// Installs a kind of another project, without its schema, and waits until it can be used.
    pub fn add_foreign_kind(&self, api_version: &str, scope: &str, kind: &str, plural: &str) -> Result<()> {
        let definition = foreign_kind(api_version, scope, kind, plural)?;
        self.apply_all(std::slice::from_ref(&definition))?;
        self.await_kind(&definition)
    }

    /// Waits until the API server serves the kind that a CustomResourceDefinition defines.
    pub fn await_kind(&self, definition: &Value) -> Result<()> {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().map(str::to_owned).context("it is no CustomResourceDefinition");
        let kind = GroupVersionKind::gvk(
            &text(&spec["group"])?,
            &text(&spec["versions"][0]["name"])?,
            &text(&spec["names"]["kind"])?,
        );
        wait::until(&format!("the kind {}", kind.kind), NEW_KIND, || {
            let client = self.client()?;
            let resource = self.kind(&kind)?.resource;
            let listed =
                async { Ok(Api::<DynamicObject>::all_with(client, &resource).list(&ListParams::default()).await?) };
            self.block_on(listed).map(drop)
        })
    }

    /// Runs `kubectl` with these arguments as the administrator, and returns its stdout.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.run_as_admin("kubectl", arguments)
    }

    /// Runs `kubectl apply -f` on a YAML stream, and returns its stdout.
    pub fn kubectl_apply(&self, yaml: &str, arguments: &[&str]) -> Result<String> {
        let path = self.launch.path(&format!("{}.yaml", cleanup::number()));
        fs::write(&path, yaml).with_context(|| format!("cannot write {}", path.display()))?;
        let file = path.to_str().context("the temporary folder's name is no text")?;
        self.kubectl(&[&["apply", "-f", file], arguments].concat())
    }

    /// Runs `helm` with these arguments as the administrator, and returns its stdout.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        self.run_as_admin("helm", arguments)
    }

    fn run_as_admin(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.launch.command(program)?;
        command.env("KUBECONFIG", self.kubeconfig(ADMIN)?).args(arguments);
        process::run(command)
    }

    /// Returns the API of a document's object, and its name.
    fn objects_of(&self, document: &Value) -> Result<(Api<DynamicObject>, String)> {
        let types: TypeMeta = serde_json::from_value(json!({
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
        }))
        .with_context(|| format!("no apiVersion and kind in {document}"))?;
        let name = document["metadata"]["name"].as_str().with_context(|| format!("no metadata.name in {document}"))?;
        let kind = self.kind(&GroupVersionKind::try_from(types)?)?;
        let client = self.client()?;
        let objects = match (kind.scope, document["metadata"]["namespace"].as_str()) {
            (Scope::Cluster, None) => Api::all_with(client, &kind.resource),
            (Scope::Cluster, Some(_)) => bail!("{} is in no namespace", described(document)),
            (Scope::Namespaced, namespace) => {
                Api::namespaced_with(client, namespace.unwrap_or("default"), &kind.resource)
            }
        };
        Ok((objects, name.to_owned()))
    }

    fn kind(&self, kind: &GroupVersionKind) -> Result<Kind> {
        if let Some(known) = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).get(kind) {
            return Ok(known.clone());
        }
        let found = self.block_on(find(self.client()?, kind.clone()));
        let found = found.with_context(|| format!("the API server does not tell of the kind {}", kind.kind))?;
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner).insert(kind.clone(), found.clone());
        Ok(found)
    }
}

async fn find(client: Client, kind: GroupVersionKind) -> Result<Kind> {
    let (resource, capabilities) = discovery::pinned_kind(&client, &kind).await?;
    Ok(Kind { resource, scope: capabilities.scope })
}

/// Returns the documents of a YAML stream that are not empty.
pub fn documents(yaml: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).context("this is no YAML")?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

fn described(document: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let metadata = &document["metadata"];
    let namespace = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/")).unwrap_or_default();
    format!("{} {namespace}{}", text(&document["kind"]), text(&metadata["name"]))
}

/// Returns a CustomResourceDefinition that allows all fields.
fn foreign_kind(api_version: &str, scope: &str, kind: &str, plural: &str) -> Result<Value> {
    let (group, version) = api_version.split_once('/').context("the core group has no custom kinds")?;
    Ok(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "scope": scope,
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    }))
}

fn node(node: &Node) -> Value {
    let (v4, v6) = (format!("{}/24", node.pod_address(0)), format!("{}/64", node.pod_address_v6(0)));
    let mut document = manifests::node_document(node, &[node.address.into(), node.address_v6.into()], false);
    document["metadata"]["labels"] = json!({ "kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux" });
    document["spec"] = json!({ "podCIDR": v4, "podCIDRs": [v4, v6] });
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_as_many_documents_as_are_not_empty() {
        let documents = documents("---\n# nothing\n---\na: 1\n---\nb: [2]\n").unwrap();
        assert_eq!(documents, [json!({"a": 1}), json!({"b": [2]})]);
        assert!(super::documents("a: [").is_err());
    }

    #[test]
    fn documents_are_described_as_one_would_name_them() {
        let service = json!({"kind": "Service", "metadata": {"namespace": "shop", "name": "web"}});
        assert_eq!(described(&service), "Service shop/web");
        assert_eq!(described(&json!({"kind": "Node", "metadata": {"name": "node-1"}})), "Node node-1");
    }
}
