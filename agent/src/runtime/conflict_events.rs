//! Sends an Event to each Service whose address a foreign speaker has, in a cluster.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{mpsc, watch};

use vipmux_allocate::status::{EventContent, EventType};
use vipmux_cluster::events::{EventRecorder, EventSource};
use vipmux_model::{NodeName, Vip, objects::Objects, published_status::PublishedStatus};

/// Most conflicts that wait for their Events. More are left out.
pub(super) const WAITING: usize = 256;
/// The reason of the Events.
const ADDRESS_IN_USE: &str = "AddressInUse";

/// Returns the author of the Events.
pub(super) fn author(node: &NodeName) -> EventSource {
    EventSource { controller: "vipmux-agent", action: "Announcing", instance: node.as_str().to_owned() }
}

/// Sends Events until the sender of conflicts is dropped. Cancel-safe: dropping it loses the Events
/// that wait.
pub(super) async fn run(
    events: EventRecorder,
    objects: watch::Receiver<Arc<Objects>>,
    mut conflicts: mpsc::Receiver<(Vip, String)>,
) {
    let mut batch = Vec::new();
    while conflicts.recv_many(&mut batch, WAITING).await > 0 {
        let notes: BTreeMap<_, _> = batch.drain(..).collect();
        // Not borrowed while Events are sent: the source must not wait for a reader.
        let objects = Arc::clone(&objects.borrow());
        for service in objects.services.values() {
            let addresses = PublishedStatus::of(service).addresses;
            for note in addresses.iter().filter_map(|vip| notes.get(vip)) {
                events.record(service, EventContent::new(EventType::Warning, ADDRESS_IN_USE, note.clone()));
            }
        }
    }
}
