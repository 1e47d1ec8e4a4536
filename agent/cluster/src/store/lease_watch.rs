//! Follows the Leases, so that agents soon learn of a change that another one made, or a person.
//!
//! The changes are hints. A watch can be half-open for minutes, and what it says can be older than
//! what its reader wrote since. So no promise depends on one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease as Object;
use kube::{
    Api,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::{sync::mpsc, time::sleep};

use super::{
    ConfiguredStore, DirectoryStore, Lease, LeaseStore as _, StoreOperation, StoreOutcome, Version, lease_object,
};
use vipmux_model::Vip;

/// The changes that wait for their reader, at most. A watch waits then.
const CAPACITY: usize = 256;
/// The time from one look at a directory to the next. A look costs little if nothing changed. A
/// directory on a network file system reports no changes of other machines.
const LOOK: Duration = Duration::from_secs(1);

/// A change of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseChange {
    /// The VIP.
    pub vip: Vip,
    /// The Lease; `None`: it is gone, or cannot be read.
    pub lease: Option<Lease>,
}

/// Follows the Leases until the receiver is dropped. Must be called within a tokio runtime.
pub fn follow(store: &ConfiguredStore) -> mpsc::Receiver<LeaseChange> {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    // Both end at the first change after the receiver is gone, or with the runtime. They hold
    // nothing that needs care.
    match store {
        ConfiguredStore::Directory(store) => drop(tokio::spawn(follow_directory(store.clone(), sender))),
        ConfiguredStore::Kubernetes(store) => drop(tokio::spawn(follow_api(store.leases().clone(), sender))),
    }
    receiver
}

async fn follow_directory(store: DirectoryStore, sender: mpsc::Sender<LeaseChange>) {
    let mut known = KnownLeases::default();
    while !sender.is_closed() {
        if let Ok(StoreOutcome::Surveyed(survey)) = store.run(StoreOperation::Survey).await {
            let changes = known.replace(survey.leases.into_iter().map(|(vip, lease)| (vip, Some(lease))));
            for change in changes {
                if sender.send(change).await.is_err() {
                    return;
                }
            }
        }
        sleep(LOOK).await;
    }
}

async fn follow_api(leases: Api<Object>, sender: mpsc::Sender<LeaseChange>) {
    let mut events = watcher(leases, watcher::Config::default()).default_backoff().boxed();
    let (mut known, mut listed, mut logged) = (KnownLeases::default(), Vec::new(), None);
    while let Some(event) = events.next().await {
        let changes = match event {
            Ok(Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(Event::InitApply(object)) => {
                listed.extend(read(object));
                Vec::new()
            }
            Ok(Event::InitDone) => known.replace(listed.drain(..)),
            Ok(Event::Apply(object)) => {
                read(object).and_then(|(vip, lease)| known.put(vip, lease)).into_iter().collect()
            }
            Ok(Event::Delete(object)) => read(object).and_then(|(vip, _)| known.remove(vip)).into_iter().collect(),
            Err(error) => {
                log_failure(&mut logged, error.to_string());
                continue;
            }
        };
        logged = None;
        for change in changes {
            if sender.send(change).await.is_err() {
                return;
            }
        }
    }
}

/// Logs why the Leases cannot be watched, if it is another reason than before.
fn log_failure(logged: &mut Option<String>, error: String) {
    if logged.as_ref() != Some(&error) {
        tracing::warn!(error, "cannot watch the Leases, changes by others are noticed later");
        *logged = Some(error);
    }
}

/// Returns the VIP of an object and its Lease; `None`: it is no VIP's.
fn read(object: Object) -> Option<(Vip, Option<Lease>)> {
    let vip = lease_object::vip_of(object.metadata.name.as_deref()?)?;
    Some((vip, lease_object::from_object(vip, object).ok()))
}

/// The versions of the Leases, as last reported.
#[derive(Debug, Default)]
struct KnownLeases(BTreeMap<Vip, Version>);

impl KnownLeases {
    /// Takes in a Lease. Returns the change, if it is one.
    fn put(&mut self, vip: Vip, lease: Option<Lease>) -> Option<LeaseChange> {
        let Some(lease) = lease else { return self.remove(vip) };
        let before = self.0.insert(vip, lease.version.clone());
        (before.as_ref() != Some(&lease.version)).then_some(LeaseChange { vip, lease: Some(lease) })
    }

    fn remove(&mut self, vip: Vip) -> Option<LeaseChange> {
        self.0.remove(&vip).map(|_| LeaseChange { vip, lease: None })
    }

    /// Takes in all Leases. Returns what changed since.
    fn replace(&mut self, all: impl IntoIterator<Item = (Vip, Option<Lease>)>) -> Vec<LeaseChange> {
        let mut there = BTreeSet::new();
        let mut changes = Vec::new();
        for (vip, lease) in all {
            there.insert(vip);
            changes.extend(self.put(vip, lease));
        }
        let gone: Vec<_> = self.0.keys().filter(|vip| !there.contains(vip)).copied().collect();
        changes.extend(gone.into_iter().filter_map(|vip| self.remove(vip)));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::names::{node_name, vip4};

    fn lease(version: &str) -> Lease {
        Lease { holder: node_name("n1"), epoch: 1, version: Version::new(version) }
    }

    fn texts(changes: impl IntoIterator<Item = LeaseChange>) -> Vec<String> {
        let text = |change: LeaseChange| {
            let version = change.lease.map_or("gone".to_owned(), |lease| lease.version.to_string());
            format!("{} {version}", change.vip)
        };
        changes.into_iter().map(text).collect()
    }

    #[test]
    fn each_change_is_reported_once_and_what_a_list_lacks_is_gone() {
        let mut known = KnownLeases::default();
        let (one, two, three) = (vip4(1), vip4(2), vip4(3));
        let listed = known.replace([(one, Some(lease("1"))), (two, Some(lease("2"))), (three, None)]);
        assert_eq!(texts(listed), [format!("{one} 1"), format!("{two} 2")], "the third cannot be read");
        assert_eq!(texts(known.put(one, Some(lease("1")))), [""; 0]);
        assert_eq!(texts(known.put(one, Some(lease("3")))), [format!("{one} 3")]);
        assert_eq!(texts(known.put(two, None)), [format!("{two} gone")]);
        assert_eq!(texts(known.remove(two)), [""; 0]);
        assert_eq!(texts(known.replace([(two, Some(lease("4")))])), [format!("{two} 4"), format!("{one} gone")]);
    }
}
