//! Publishes this node's MACs in its record, so that others know its announcements without gossip.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, api::ListParams};
use tokio::{select, sync::watch, time::sleep};

use super::{ConfiguredStore, KubernetesStore, LeaseSnapshots, StoreError};
use vipmux_common::abi::Mac;
use vipmux_model::NodeName;
use vipmux_supervisor::Supervisor;

/// The pause after a write. It doubles with each failure, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Keeps this node's MACs in its record, which the election creates: writes them when the record lacks
/// them, as `watched` shows it. Returns where to put the MACs. Without a cluster they are not written. Must
/// be called within a tokio runtime.
pub fn publish(
    store: &ConfiguredStore,
    node: NodeName,
    watched: LeaseSnapshots,
    supervisor: &Supervisor,
) -> watch::Sender<BTreeSet<Mac>> {
    let (sender, macs) = watch::channel(BTreeSet::new());
    if let ConfiguredStore::Kubernetes(store) = store {
        // Ends when the sender or the watch is gone, and may be canceled at any point.
        supervisor.spawn("MACs of this node", run(store.clone(), node, watched, macs));
    }
    sender
}

async fn run(
    store: KubernetesStore,
    node: NodeName,
    mut watched: LeaseSnapshots,
    mut macs: watch::Receiver<BTreeSet<Mac>>,
) {
    let mut failures = 0;
    loop {
        let wanted = macs.borrow_and_update().clone();
        let lacks = watched
            .borrow_and_update()
            .as_ref()
            .is_some_and(|seen| seen.records.contains_key(&node) && seen.macs.get(&node) != Some(&wanted));
        if lacks && !wanted.is_empty() {
            failures = match write(&store, &node, &wanted).await {
                Ok(()) => 0,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    if failures == 0 {
                        tracing::warn!(error, "cannot write this node's MACs into its record, trying again");
                    }
                    failures + 1
                }
            };
            // The watch must have time to show it.
            sleep((PAUSE * 2_u32.saturating_pow(failures)).min(LONGEST_PAUSE)).await;
            if failures > 0 {
                continue;
            }
        }
        let changed = select! {
            changed = macs.changed() => changed,
            changed = watched.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

async fn write(store: &KubernetesStore, node: &NodeName, macs: &BTreeSet<Mac>) -> Result<(), StoreError> {
    let owner = owner(store, node).await?;
    store.write_macs(node, macs, owner.as_ref()).await
}

/// Returns the Node as the owner of its record: Kubernetes deletes the record after the Node. `None`:
/// there is no such Node.
async fn owner(store: &KubernetesStore, node: &NodeName) -> Result<Option<OwnerReference>, StoreError> {
    let nodes: Api<Node> = Api::all(store.leases().clone().into_client());
    let named = ListParams::default().fields(&format!("metadata.name={node}"));
    let listed = store.limited(nodes.list_metadata(&named)).await;
    let listed = listed.map_err(|error| super::kubernetes::unavailable(format!("read the Node {node}"), error))?;
    let owner = |uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_string(),
        uid,
        ..OwnerReference::default()
    };
    Ok(listed.items.into_iter().find_map(|found| found.metadata.uid).map(owner))
}
