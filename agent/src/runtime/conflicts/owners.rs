//! What the owners of Services are told of strangers that have their addresses, in a cluster: an Event on each Service that
//! shows one.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{mpsc, watch};

use crate::{
    events::{Author, Teller},
    model::{NodeName, Vip, shown::Shown},
    source::Objects,
    status::{News, Weight},
};

/// Addresses that wait for their turn; what is said of more is left out.
pub(in crate::runtime) const WAITING: usize = 256;
/// The reason of an Event, for machines.
const ADDRESS_IN_USE: &str = "AddressInUse";

/// Who tells it.
pub(in crate::runtime) fn author(node: &NodeName) -> Author {
    Author { controller: "vipmux-agent", action: "Announcing", instance: node.0.clone() }
}

/// Tells what comes, as long as somebody may say more.
pub(in crate::runtime) async fn tell(
    teller: Teller,
    objects: watch::Receiver<Arc<Objects>>,
    mut conflicts: mpsc::Receiver<(Vip, String)>,
) {
    let mut some = Vec::new();
    while conflicts.recv_many(&mut some, WAITING).await > 0 {
        let notes: BTreeMap<_, _> = some.drain(..).collect();
        // Not held while it is told: the source waits for no reader.
        let objects = Arc::clone(&objects.borrow());
        for service in objects.services.values() {
            let shown = Shown::of(service).addresses;
            for note in shown.iter().filter_map(|vip| notes.get(vip)) {
                teller.tell(service, News::new(Weight::Warning, ADDRESS_IN_USE, note.clone()));
            }
        }
    }
}
