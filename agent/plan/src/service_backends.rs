//! Tells which backends Service ports have, for flow records, which name both.

use std::sync::Arc;

use imbl::{OrdMap, ordmap::DiffItem};
use vipmux_common::abi::FlowRecord;

use crate::endpoints::Resolution;

/// The backends of a Service port, whatever their state is.
#[derive(Clone, Debug)]
struct SlotBackends {
    /// [`vipmux_common::abi::ServiceState::generation`].
    generation: u32,
    backends: Arc<Resolution>,
}

impl PartialEq for SlotBackends {
    fn eq(&self, other: &Self) -> bool {
        self.generation == other.generation && Arc::ptr_eq(&self.backends, &other.backends)
    }
}

/// The backends of all Service ports, by slot. A copy is cheap.
#[derive(Clone, Debug, Default)]
pub struct ServiceBackends {
    by_slot: OrdMap<u32, SlotBackends>,
}

impl ServiceBackends {
    pub(super) fn insert(&mut self, slot: u32, generation: u32, backends: Arc<Resolution>) {
        self.by_slot.insert(slot, SlotBackends { generation, backends });
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.by_slot.remove(&slot);
    }

    /// Returns whether a record's Service port does not have its backend any more. If the port is gone, too,
    /// or the node's own stack has its packets, nothing is known.
    pub fn is_orphan(&self, record: &FlowRecord) -> bool {
        let slot = self.by_slot.get(&record.slot).filter(|slot| slot.generation == record.slot_generation);
        slot.is_some_and(|slot| !slot.backends.has(record.backend))
    }

    /// Returns whether a Service port lost a backend since an earlier state.
    pub fn lost_any_since(&self, earlier: &Self) -> bool {
        earlier.by_slot.diff(&self.by_slot).any(|item| match item {
            // An earlier agent may have served it with others.
            DiffItem::Add(..) => true,
            DiffItem::Update { old: (_, old), new: (_, new) } => {
                old.backends.all().any(|index| !new.backends.has(*index))
            }
            DiffItem::Remove(..) => false,
        })
    }
}
