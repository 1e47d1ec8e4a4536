//! Writes what is derived from `BACKENDS`, so that programs need not read it:
//!
//! - `LOCAL_PORTS`: a bit for each address and port of this node's backends. It spares most packets
//!   that leave the node a look at the flow table.
//! - `BACKEND_NODES`: the other node that each backend is on ([`backend_nodes`]).

use std::collections::BTreeMap;

use vipmux_common::{
    abi::{BACKEND_LOCAL, Backend, capacity},
    backend_nodes, hash,
};

use super::{Maps, MapsError, written_array::WrittenArray};

const BITS: u32 = u64::BITS;

/// What was last written.
#[derive(Debug)]
pub(super) struct BackendIndices {
    /// `LOCAL_PORTS`.
    ports: WrittenArray<u64>,
    /// `BACKEND_NODES`.
    nodes: WrittenArray<u64>,
    /// The number of backends on each bit of `LOCAL_PORTS` in use.
    users: BTreeMap<u32, u32>,
    /// The local backends by index, those that are gone too.
    local: BTreeMap<u32, Backend>,
}

impl Default for BackendIndices {
    fn default() -> Self {
        Self::new(BTreeMap::new(), BTreeMap::new())
    }
}

fn bit(backend: &Backend) -> Option<u32> {
    let is_local = backend.generation != 0 && backend.flags & BACKEND_LOCAL != 0;
    is_local.then(|| hash::local_port(&backend.address, backend.port))
}

/// Returns the elements of `LOCAL_PORTS` for these backends.
pub fn local_ports<'a>(backends: impl IntoIterator<Item = &'a Backend>) -> Vec<u64> {
    let mut elements = vec![0; (capacity::LOCAL_PORTS / BITS) as usize];
    for bit in backends.into_iter().filter_map(bit) {
        elements[(bit / BITS) as usize] |= 1 << (bit % BITS);
    }
    elements
}

/// Returns the elements of `BACKEND_NODES` for these backends, the first of which has index 0.
pub fn nodes(backends: &[Backend]) -> Vec<u64> {
    let element = |(first, four): (u32, &[Backend])| {
        (first..).zip(four).fold(0, |element, (index, backend)| backend_nodes::with(element, index, backend))
    };
    let fours = backends.chunks(backend_nodes::BACKENDS as usize);
    (0..).step_by(backend_nodes::BACKENDS as usize).zip(fours).map(element).collect()
}

impl BackendIndices {
    fn new(ports: BTreeMap<u32, u64>, nodes: BTreeMap<u32, u64>) -> Self {
        Self {
            ports: WrittenArray::new(ports, Maps::write_local_ports),
            nodes: WrittenArray::new(nodes, Maps::write_backend_nodes),
            users: BTreeMap::new(),
            local: BTreeMap::new(),
        }
    }

    /// Makes the maps fit all backends in `BACKENDS`, those that are gone too.
    pub(super) fn rebuild(maps: &mut Maps) -> Result<Self, MapsError> {
        let backends = maps.backends.elements(0, maps.backends.len())?;
        let [ports, nodes] = [local_ports(&backends), nodes(&backends)].map(|elements| (0..).zip(elements));
        ports.clone().try_for_each(|(index, element)| maps.write_local_ports(index, None, element))?;
        nodes.clone().try_for_each(|(index, element)| maps.write_backend_nodes(index, None, element))?;
        let used = |(_, element): &(u32, u64)| *element != 0;
        let mut indices = Self::new(ports.filter(used).collect(), nodes.filter(used).collect());
        for (index, backend) in (0..).zip(backends) {
            let Some(bit) = bit(&backend) else { continue };
            *indices.users.entry(bit).or_default() += 1;
            indices.local.insert(index, backend);
        }
        Ok(indices)
    }

    /// Returns the local backend of an index, even if it is gone.
    pub(super) fn local(&self, index: u32) -> Option<Backend> {
        self.local.get(&index).copied()
    }

    /// Returns the used elements of `LOCAL_PORTS`.
    pub(super) fn local_ports(&self) -> &BTreeMap<u32, u64> {
        self.ports.elements()
    }

    /// Returns the used elements of `BACKEND_NODES`.
    pub(super) fn nodes(&self) -> &BTreeMap<u32, u64> {
        self.nodes.elements()
    }

    /// Adds a backend. Call it before the backend is written.
    pub(super) fn add(&mut self, maps: &mut Maps, index: u32, backend: &Backend) -> Result<(), MapsError> {
        let element = backend_nodes::element(index);
        self.nodes.set(maps, element, backend_nodes::with(self.nodes.get(element), index, backend))?;
        let Some(bit) = bit(backend) else {
            self.local.remove(&index);
            return Ok(());
        };
        self.local.insert(index, *backend);
        *self.users.entry(bit).or_default() += 1;
        self.ports.set(maps, bit / BITS, self.ports.get(bit / BITS) | 1 << (bit % BITS))
    }

    /// Removes a backend, if no other one has its bit. Call it after the backend was overwritten.
    pub(super) fn remove(&mut self, maps: &mut Maps, backend: &Backend) -> Result<(), MapsError> {
        let Some(bit) = bit(backend) else { return Ok(()) };
        match self.users.get_mut(&bit) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.users.remove(&bit);
                return self.ports.set(maps, bit / BITS, self.ports.get(bit / BITS) & !(1 << (bit % BITS)));
            }
            None => {}
        }
        Ok(())
    }
}
