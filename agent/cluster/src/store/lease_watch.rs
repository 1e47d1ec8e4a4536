//! Follows the Leases, so that a change by another agent or by a person is soon known.
//!
//! What is seen here is a hint. A watch can be half-open for minutes, and what it says can be older
//! than what its reader wrote since. So no promise depends on it.

use std::{collections::BTreeSet, time::Duration};

use futures_util::StreamExt as _;
use imbl::{OrdMap, ordmap::DiffItem};
use k8s_openapi::api::coordination::v1::Lease as Object;
use kube::{Api, runtime::watcher::Event};
use tokio::{sync::watch, time::sleep};

use super::{
    ConfiguredStore, DirectoryStore, Lease, LeaseStore as _, NodeRecord, StoreOperation, StoreOutcome, lease_object,
};
use crate::{access::watch_config, rollback::Rollbacks, watching};
use vipmux_common::abi::Mac;
use vipmux_model::{NodeName, Vip};
use vipmux_supervisor::Supervisor;

/// The time from one look at a directory to the next. A look costs little if nothing changed. A
/// directory on a network file system reports no changes of other machines.
const LOOK: Duration = Duration::from_secs(1);
/// The name of the task.
const TASK: &str = "watch of Leases";

/// The Leases that can be read. Copies cost nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseSnapshot {
    /// The Leases of VIPs.
    pub leases: OrdMap<Vip, Lease>,
    /// The records of nodes. In files they are not followed.
    pub records: OrdMap<NodeName, NodeRecord>,
    /// The MACs in the records.
    pub macs: OrdMap<NodeName, BTreeSet<Mac>>,
}

/// The Leases as last seen; `None` until they were listed once.
pub type LeaseSnapshots = watch::Receiver<Option<LeaseSnapshot>>;

/// Follows the Leases of a store while a receiver exists, and lists them again at each rollback. Must be
/// called within a tokio runtime.
pub fn follow(store: &ConfiguredStore, rollbacks: Rollbacks, supervisor: &Supervisor) -> LeaseSnapshots {
    match store {
        ConfiguredStore::Directory(store) => follow_directory(store.clone(), supervisor),
        ConfiguredStore::Kubernetes(store) => follow_api(store.leases().clone(), rollbacks, supervisor),
    }
}

/// Follows the Leases of a namespace while a receiver exists. Must be called within a tokio runtime.
pub fn follow_api(leases: Api<Object>, rollbacks: Rollbacks, supervisor: &Supervisor) -> LeaseSnapshots {
    let (sender, receiver) = watch::channel(None);
    let mut events = watching::follow(leases, watch_config(), rollbacks);
    // Ends at the first event after the last receiver is gone. A watch that is cut off holds nothing
    // that needs care.
    supervisor.spawn(TASK, async move {
        let mut table = LeaseTable::default();
        while !sender.is_closed() {
            let Some(event) = events.next().await else { return };
            match event {
                Ok(event) => table.apply(event),
                Err(error) => table.log_failure(error.to_string()),
            }
            publish(&sender, table.listed.as_ref());
        }
    });
    receiver
}

fn follow_directory(store: DirectoryStore, supervisor: &Supervisor) -> LeaseSnapshots {
    let (sender, receiver) = watch::channel(None);
    // Ends at the first look after the last receiver is gone, and may be canceled at any point.
    supervisor.spawn(TASK, async move {
        while !sender.is_closed() {
            if let Ok(StoreOutcome::Surveyed(survey)) = store.run(StoreOperation::Survey).await {
                publish(&sender, Some(&LeaseSnapshot { leases: survey.leases, ..LeaseSnapshot::default() }));
            }
            sleep(LOOK).await;
        }
    });
    receiver
}

fn publish(sender: &watch::Sender<Option<LeaseSnapshot>>, leases: Option<&LeaseSnapshot>) {
    sender.send_if_modified(|published| {
        // This costs what differs, since both share the rest.
        let same = published.as_ref() == leases;
        if !same {
            *published = leases.cloned();
        }
        !same
    });
}

/// Returns the Leases or records that differ; `None`: it is gone. That costs what differs.
pub fn changes<K: Ord + Clone, V: PartialEq + Clone>(before: &OrdMap<K, V>, now: &OrdMap<K, V>) -> Vec<(K, Option<V>)> {
    let change = |item: DiffItem<'_, '_, K, V>| match item {
        DiffItem::Add(key, value) | DiffItem::Update { new: (key, value), .. } => (key.clone(), Some(value.clone())),
        DiffItem::Remove(key, _) => (key.clone(), None),
    };
    before.diff(now).map(change).collect()
}

/// The Leases by the events of a watch.
#[derive(Debug, Default)]
struct LeaseTable {
    /// `None`: they were not listed yet.
    listed: Option<LeaseSnapshot>,
    /// The part of a list that has been read so far.
    listing: LeaseSnapshot,
    /// Why they cannot be followed now, as it was logged.
    logged: Option<String>,
}

impl LeaseTable {
    fn apply(&mut self, event: Event<Object>) {
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            self.logged = None;
        }
        match event {
            Event::Init => self.listing = LeaseSnapshot::default(),
            Event::InitApply(object) => put(&mut self.listing, object),
            Event::InitDone => self.listed = Some(std::mem::take(&mut self.listing)),
            Event::Apply(object) => {
                if let Some(listed) = &mut self.listed {
                    put(listed, object);
                }
            }
            Event::Delete(object) => {
                if let Some(listed) = &mut self.listed {
                    remove(listed, &object);
                }
            }
        }
    }

    fn log_failure(&mut self, error: String) {
        if self.logged.as_ref() != Some(&error) {
            tracing::warn!(error, "cannot watch the leases of VIPs");
            self.logged = Some(error);
        }
    }
}

fn put(snapshot: &mut LeaseSnapshot, object: Object) {
    let name = object.metadata.name.clone().unwrap_or_default();
    remove(snapshot, &object);
    if let Some(vip) = lease_object::vip_of(&name) {
        if let Ok(lease) = lease_object::from_object(vip, object) {
            snapshot.leases.insert(vip, lease);
        }
    } else if let Some(node) = lease_object::node_of(&name) {
        let macs = lease_object::macs_of(&object);
        if !macs.is_empty() {
            snapshot.macs.insert(node.clone(), macs);
        }
        if let Ok(record) = lease_object::record_from_object(&node, object) {
            snapshot.records.insert(node, record);
        }
    }
}

/// Removes what an object is of. Others keep Leases in this namespace, too.
fn remove(snapshot: &mut LeaseSnapshot, object: &Object) {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if let Some(vip) = lease_object::vip_of(name) {
        snapshot.leases.remove(&vip);
    } else if let Some(node) = lease_object::node_of(name) {
        snapshot.records.remove(&node);
        snapshot.macs.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};

    use super::*;
    use crate::store::{RecordContent, RecordState, Version};
    use vipmux_testing::names::{node_name, vip4};

    fn object(last: u8, version: &str) -> Object {
        let version = Some(Version::new(version));
        lease_object::to_object(vip4(last), version, &node_name("n1"), 1, Timestamp::UNIX_EPOCH).unwrap()
    }

    fn unreadable(last: u8) -> Object {
        Object { spec: None, ..object(last, "9") }
    }

    /// The Leases by these events, as text: last byte of the VIP and version.
    fn listed(table: &LeaseTable) -> Option<Vec<String>> {
        let text = |(vip, lease): (&Vip, &Lease)| format!("{vip} {}", lease.version);
        table.listed.as_ref().map(|snapshot| snapshot.leases.iter().map(text).collect())
    }

    #[test]
    fn a_list_counts_when_it_is_whole_and_what_it_lacks_is_gone() {
        let mut table = LeaseTable::default();
        for event in [Event::Init, Event::InitApply(object(1, "1")), Event::InitApply(unreadable(2))] {
            table.apply(event);
            assert_eq!(listed(&table), None);
        }
        table.apply(Event::InitDone);
        assert_eq!(listed(&table).unwrap(), [format!("{} 1", vip4(1))]);
        table.apply(Event::Apply(object(2, "2")));
        table.apply(Event::Apply(unreadable(1)));
        table.apply(Event::Apply(Object { metadata: ObjectMeta::default(), ..object(3, "3") }));
        assert_eq!(listed(&table).unwrap(), [format!("{} 2", vip4(2))]);
        for event in [Event::Init, Event::InitApply(object(4, "4"))] {
            table.apply(event);
            assert_eq!(listed(&table).unwrap(), [format!("{} 2", vip4(2))], "the last whole list counts");
        }
        table.apply(Event::InitDone);
        assert_eq!(listed(&table).unwrap(), [format!("{} 4", vip4(4))]);
        table.apply(Event::Delete(object(4, "5")));
        assert_eq!(listed(&table).unwrap(), [""; 0]);
    }

    #[test]
    fn the_records_of_nodes_are_followed_beside_the_leases() {
        let node = node_name("n1");
        let content = RecordContent { state: RecordState::Confirmed, promise: Duration::from_millis(300) };
        let record = |version| {
            lease_object::record_to_object(&node, Some(Version::new(version)), &content, Timestamp::UNIX_EPOCH)
        };
        let mut table = LeaseTable::default();
        for event in [Event::Init, Event::InitApply(record("1")), Event::InitDone, Event::Apply(record("2"))] {
            table.apply(event);
        }
        let version = |table: &LeaseTable| Some(table.listed.as_ref()?.records.get(&node)?.version.clone());
        assert_eq!((version(&table), listed(&table)), (Some(Version::new("2")), Some(Vec::new())));
        table.apply(Event::Delete(record("2")));
        assert_eq!(version(&table), None);
    }

    #[test]
    fn only_what_changed_is_a_change() {
        let leases = |all: &[(u8, &str)]| -> OrdMap<_, _> {
            let lease = |(last, version): &(u8, &str)| {
                (vip4(*last), lease_object::from_object(vip4(*last), object(*last, version)).unwrap())
            };
            all.iter().map(lease).collect()
        };
        let found = changes(&leases(&[(1, "1"), (2, "2"), (3, "3")]), &leases(&[(1, "1"), (2, "4"), (5, "5")]));
        let text = |(vip, lease): &(Vip, Option<Lease>)| (*vip, lease.as_ref().map(|lease| lease.version.to_string()));
        let expected = [(vip4(2), Some("4".to_owned())), (vip4(3), None), (vip4(5), Some("5".to_owned()))];
        assert_eq!(found.iter().map(text).collect::<Vec<_>>(), expected);
    }
}
