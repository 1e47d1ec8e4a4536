//! Follows the VIPs' Leases, which name each VIP's leader.

use std::{mem, sync::Arc};

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::sync::watch;

use vipmux_allocate::status::Leaders;
use vipmux_cluster::store::leader;

/// The leader of each VIP; `None` until the Leases were listed once.
pub(super) type KnownLeaders = Option<Arc<Leaders>>;

/// Returns that nobody leads any VIP, whatever Leases the agents have left.
pub(super) fn nobody() -> watch::Receiver<KnownLeaders> {
    watch::channel(Some(Arc::default())).1
}

/// Follows the Leases of this namespace until nobody listens.
pub(super) fn follow(client: Client, namespace: &str) -> watch::Receiver<KnownLeaders> {
    let (sender, receiver) = watch::channel(None);
    let all = watcher(Api::<Lease>::namespaced(client, namespace), watcher::Config::default());
    let mut events = all.default_backoff().boxed();
    // Ends at the first event after the last receiver is gone. A watch that is cut off holds
    // nothing that needs care.
    tokio::spawn(async move {
        let mut table = LeaderTable::default();
        while !sender.is_closed()
            && let Some(event) = events.next().await
        {
            match event {
                Ok(event) => table.apply(event),
                Err(error) => table.log_failure(error.to_string()),
            }
            sender.send_if_modified(|published| {
                let changed = table.logged.is_none() && table.listed && published.as_deref() != Some(&table.leaders);
                if changed {
                    *published = Some(Arc::new(table.leaders.clone()));
                }
                changed
            });
        }
    });
    receiver
}

#[derive(Default)]
struct LeaderTable {
    leaders: Leaders,
    /// The leaders in a list that is being read.
    listing: Leaders,
    /// The Leases were listed once.
    listed: bool,
    /// Why they cannot be followed now, as it was logged.
    logged: Option<String>,
}

impl LeaderTable {
    fn apply(&mut self, event: Event<Lease>) {
        self.logged = None;
        match event {
            Event::Init => self.listing = Leaders::new(),
            Event::InitApply(lease) => put(&mut self.listing, &lease),
            Event::InitDone => (self.leaders, self.listed) = (mem::take(&mut self.listing), true),
            Event::Apply(lease) => put(&mut self.leaders, &lease),
            Event::Delete(lease) => drop(leader(&lease).and_then(|(vip, _)| self.leaders.remove(&vip))),
        }
    }

    fn log_failure(&mut self, error: String) {
        if self.logged.as_ref() != Some(&error) {
            tracing::warn!(error, "cannot watch the leases of VIPs");
            self.logged = Some(error);
        }
    }
}

fn put(leaders: &mut Leaders, lease: &Lease) {
    match leader(lease) {
        Some((vip, Some(node))) => drop(leaders.insert(vip, node)),
        Some((vip, None)) => drop(leaders.remove(&vip)),
        None => {}
    }
}
