//! Notices that the state of the API server went back, as after etcd was restored from a backup.
//!
//! A watch that resumes at a version that the restored etcd does not have yet reports nothing until
//! that is reached, which may take days. It does not fail. A restore with `etcdutl snapshot restore
//! --bump-revision --mark-compacted` avoids that, but not everybody knows the options
//! (<https://etcd.io/docs/v3.6/op-guide/recovery/#restoring-with-revision-bump>).

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};
use tokio::{sync::watch, time::sleep};

use vipmux_supervisor::Supervisor;

/// The time from one look at the API server's version to the next.
pub const LOOK: Duration = Duration::from_mins(5);

/// The number of times that the state went back.
pub type Rollbacks = watch::Receiver<u64>;

/// Returns that the state never goes back: there is no API server.
pub fn never() -> Rollbacks {
    watch::channel(0).1
}

/// Looks at the API server's version at these intervals, while somebody listens. Must be called
/// within a tokio runtime.
///
/// Each look lists one Node, since there is one.
pub fn follow(client: Client, interval: Duration, supervisor: &Supervisor) -> Rollbacks {
    let api = Api::all(client);
    let (sender, receiver) = watch::channel(0);
    // Ends at the first look after the last receiver is gone, and may be canceled at any point.
    supervisor.spawn("rollbacks of the API server", async move {
        let mut last = 0;
        while !sender.is_closed() {
            if let Some(version) = version(&api).await {
                if version < last {
                    tracing::warn!(version, last, "state of the API server went back, listing all objects again");
                    sender.send_modify(|rollbacks| *rollbacks += 1);
                }
                last = version;
            }
            sleep(interval).await;
        }
    });
    receiver
}

/// Returns the API server's version; `None`: it does not answer, or its versions are no numbers.
///
/// A list that names no version is as new as the last write, and versions can be compared
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
async fn version(api: &Api<Node>) -> Option<u64> {
    let list = api.list_metadata(&ListParams::default().limit(1)).await.ok()?;
    list.metadata.resource_version?.parse().ok()
}

/// Waits until the state goes back once more. Cancel-safe.
pub(crate) async fn next(rollbacks: &mut Rollbacks) {
    if rollbacks.changed().await.is_err() {
        // Nobody looks, or nobody any more: the runtime ends.
        std::future::pending::<()>().await;
    }
}
