//! Follows the VIPs' Leases, which name each VIP's leader.

use std::sync::Arc;

use imbl::OrdMap;
use kube::{Api, Client};
use tokio::sync::watch;

use vipmux_allocate::status::Leaders;
use vipmux_cluster::{
    rollback::Rollbacks,
    store::{changes, follow_api},
};
use vipmux_supervisor::Supervisor;

/// The leader of each VIP; `None` until the Leases were listed once.
pub(super) type KnownLeaders = Option<Arc<Leaders>>;

/// Returns that nobody leads any VIP, whatever Leases the agents have left.
pub(super) fn nobody() -> watch::Receiver<KnownLeaders> {
    watch::channel(Some(Arc::default())).1
}

/// Follows the Leases of this namespace until nobody listens.
pub(super) fn follow(
    client: Client,
    namespace: &str,
    rollbacks: Rollbacks,
    supervisor: &Supervisor,
) -> watch::Receiver<KnownLeaders> {
    let (sender, receiver) = watch::channel(None);
    let mut leases = follow_api(Api::namespaced(client, namespace), rollbacks, supervisor);
    // Ends at the first change after the last receiver is gone. It may be canceled at any point.
    supervisor.spawn("leaders of VIPs", async move {
        let (mut before, mut leaders) = (OrdMap::new(), Leaders::new());
        while !sender.is_closed() && leases.changed().await.is_ok() {
            let Some(now) = leases.borrow_and_update().clone() else { continue };
            for (vip, lease) in changes(&before, &now.leases) {
                match lease {
                    Some(lease) => drop(leaders.insert(vip, lease.holder)),
                    None => drop(leaders.remove(&vip)),
                }
            }
            before = now.leases;
            sender.send_if_modified(|published| {
                let changed = published.as_deref() != Some(&leaders);
                if changed {
                    *published = Some(Arc::new(leaders.clone()));
                }
                changed
            });
        }
    });
    receiver
}
