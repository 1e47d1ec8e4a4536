//! Writes backends and Service ports, and keeps of departed ones what the last replies need.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use vipmux_common::{
    abi::{BACKEND_GONE, BACKEND_LOCAL, Backend, SERVICE_GONE, ServiceState},
    backend_nodes,
};

use super::backend_indices::BackendIndices;
use super::{
    Maps, MapsError,
    mapped_array::{self, mapped},
};

/// Writes an element of a mapped array. Without such an element, the map is too small for the
/// backend, whose own write fails.
fn store(elements: &[AtomicU64], element: u32, value: u64) {
    if let Some(element) = elements.get(element as usize) {
        element.store(value, Relaxed);
        mapped_array::publish();
    }
}

/// Returns the number of elements of `BACKEND_NODES` for this many backends.
fn node_elements(backends: u32) -> u32 {
    backends.checked_sub(1).map_or(0, |last| backend_nodes::element(last) + 1)
}

impl Maps {
    /// Writes an element of `BACKENDS`. A local backend that goes stays known to the replies of its
    /// flows.
    pub(in crate::bpf) fn write_backend(&mut self, index: u32, value: Backend) -> Result<(), MapsError> {
        self.change_index(
            |indices| &mut indices.backends,
            BackendIndices::rebuild,
            |indices, maps| {
                let before = indices.local(index);
                let value = match before {
                    Some(before) if value.generation == 0 => Backend { flags: BACKEND_LOCAL | BACKEND_GONE, ..before },
                    _ => value,
                };
                indices.add(maps, index, &value)?;
                maps.backends.write(index, value)?;
                before.map_or(Ok(()), |before| indices.remove(maps, &before))
            },
        )
    }

    /// Notes that these maps are new: `LOCAL_PORTS` and `BACKEND_NODES` are empty.
    pub(in crate::bpf) fn begin_backend_indices(&mut self) {
        self.indices.backends = Some(BackendIndices::default());
    }

    /// Makes `LOCAL_PORTS` and `BACKEND_NODES` again.
    pub fn rebuild_backend_indices(&mut self) -> Result<(), MapsError> {
        self.indices.backends = Some(BackendIndices::rebuild(self)?);
        Ok(())
    }

    /// Returns the used elements of `LOCAL_PORTS`, as last written.
    pub fn written_local_ports(&self) -> BTreeMap<u32, u64> {
        self.indices.backends.as_ref().map(BackendIndices::local_ports).cloned().unwrap_or_default()
    }

    /// Returns the used elements of `BACKEND_NODES` for the first `count` backends.
    pub fn read_backend_nodes(&self, count: u32) -> Result<BTreeMap<u32, u64>, MapsError> {
        self.backend_nodes.used_below(node_elements(count), |nodes| *nodes != 0)
    }

    /// Returns the same, as last written.
    pub fn written_backend_nodes(&self, count: u32) -> BTreeMap<u32, u64> {
        let nodes = self.indices.backends.as_ref().map(|indices| indices.nodes().range(..node_elements(count)));
        nodes.into_iter().flatten().map(|(element, nodes)| (*element, *nodes)).collect()
    }

    pub(super) fn write_local_ports(&mut self, element: u32, _: Option<u64>, bits: u64) -> Result<(), MapsError> {
        store(mapped(&mut self.local_ports_mapping, &self.local_ports)?, element, bits);
        Ok(())
    }

    pub(super) fn write_backend_nodes(&mut self, element: u32, _: Option<u64>, nodes: u64) -> Result<(), MapsError> {
        store(mapped(&mut self.backend_nodes_mapping, &self.backend_nodes)?, element, nodes);
        Ok(())
    }

    /// Writes an element of `SERVICE_STATES`. A Service port that goes stays known to the replies of
    /// its flows.
    pub(in crate::bpf) fn write_service_state(&mut self, slot: u32, value: ServiceState) -> Result<(), MapsError> {
        let value = match value.generation {
            0 => {
                let before = self.service_states.look_up(slot)?.unwrap_or_default();
                let flags = if before.generation == 0 { 0 } else { SERVICE_GONE };
                ServiceState { flags, ..before }
            }
            _ => value,
        };
        self.service_states.write(slot, value)
    }
}
