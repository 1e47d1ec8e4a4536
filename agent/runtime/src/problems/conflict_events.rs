//! Sends an Event to each Service on a VIP with a problem on the LAN, in a cluster.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{mpsc, watch};

use vipmux_allocate::status::{EventContent, EventType};
use vipmux_cluster::events::{EventRecorder, EventSource};
use vipmux_model::{NodeName, Vip, objects::Objects, published_status::PublishedStatus};

/// Most problems that wait for their Events. More are left out.
pub(crate) const WAITING: usize = 256;
/// A foreign speaker has the address.
pub(crate) const ADDRESS_IN_USE: &str = "AddressInUse";
/// Somebody announces the address with the MAC of a node that does not lead it.
pub(crate) const ANNOUNCEMENT_FORGED: &str = "AnnouncementForged";
/// The frames that a node sends for the address are lost.
pub(crate) const ANSWERS_LOST: &str = "AnswersLost";

/// A problem of a VIP on the LAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VipProblem {
    pub(crate) vip: Vip,
    /// The Event's reason.
    pub(crate) reason: &'static str,
    pub(crate) note: String,
}

/// Returns the author of the Events.
pub(crate) fn author(node: &NodeName) -> EventSource {
    EventSource { controller: "vipmux-agent", action: "Announcing", instance: node.as_str().to_owned() }
}

/// Sends Events until the sender of problems is dropped. Cancel-safe: dropping it loses the Events
/// that wait.
pub(crate) async fn run(
    events: EventRecorder,
    objects: watch::Receiver<Arc<Objects>>,
    mut problems: mpsc::Receiver<VipProblem>,
) {
    let mut batch = Vec::new();
    while problems.recv_many(&mut batch, WAITING).await > 0 {
        let mut notes: BTreeMap<Vip, BTreeMap<&str, String>> = BTreeMap::new();
        for VipProblem { vip, reason, note } in batch.drain(..) {
            notes.entry(vip).or_default().insert(reason, note);
        }
        // Not borrowed while Events are sent: the source must not wait for a reader.
        let objects = Arc::clone(&objects.borrow());
        for service in objects.services.values() {
            let addresses = PublishedStatus::of(service).addresses;
            for (reason, note) in addresses.iter().filter_map(|vip| notes.get(vip)).flatten() {
                events.record(service, EventContent::new(EventType::Warning, *reason, note.clone()));
            }
        }
    }
}
