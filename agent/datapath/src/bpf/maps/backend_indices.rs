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

use super::{Maps, MapsError};

const BITS: u32 = u64::BITS;

/// What was last written.
#[derive(Debug, Default)]
pub(super) struct BackendIndices {
    /// The number of backends on each bit in use.
    ports: BTreeMap<u32, u32>,
    /// The used elements.
    nodes: BTreeMap<u32, u64>,
    /// The local backends by index, those that are gone too.
    local: BTreeMap<u32, Backend>,
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
    /// Makes the maps fit all backends in `BACKENDS`, those that are gone too.
    pub(super) fn rebuild(maps: &mut Maps) -> Result<Self, MapsError> {
        let backends = maps.backends.elements(0, maps.backends.len())?;
        for (index, element) in (0..).zip(local_ports(&backends)) {
            maps.set_local_ports(index, element)?;
        }
        let mut indices = Self::default();
        for (index, element) in (0..).zip(nodes(&backends)) {
            maps.set_backend_nodes(index, element)?;
            if element != 0 {
                indices.nodes.insert(index, element);
            }
        }
        for (index, backend) in (0..).zip(backends) {
            let Some(bit) = bit(&backend) else { continue };
            *indices.ports.entry(bit).or_default() += 1;
            indices.local.insert(index, backend);
        }
        Ok(indices)
    }

    /// Returns the local backend of an index, even if it is gone.
    pub(super) fn local(&self, index: u32) -> Option<Backend> {
        self.local.get(&index).copied()
    }

    /// Returns the used elements of `LOCAL_PORTS`.
    pub(super) fn local_ports(&self) -> BTreeMap<u32, u64> {
        let mut elements = BTreeMap::new();
        for bit in self.ports.keys() {
            *elements.entry(bit / BITS).or_default() |= 1 << (bit % BITS);
        }
        elements
    }

    /// Returns the used elements of `BACKEND_NODES`.
    pub(super) fn nodes(&self) -> &BTreeMap<u32, u64> {
        &self.nodes
    }

    /// Adds a backend. Call it before the backend is written.
    pub(super) fn add(&mut self, maps: &mut Maps, index: u32, backend: &Backend) -> Result<(), MapsError> {
        let element = backend_nodes::element(index);
        let before = self.nodes.get(&element).copied().unwrap_or_default();
        let after = backend_nodes::with(before, index, backend);
        if after != before {
            maps.set_backend_nodes(element, after)?;
        }
        if after == 0 {
            self.nodes.remove(&element)
        } else {
            self.nodes.insert(element, after)
        };
        let Some(bit) = bit(backend) else {
            self.local.remove(&index);
            return Ok(());
        };
        self.local.insert(index, *backend);
        let count = self.ports.entry(bit).or_default();
        *count += 1;
        if *count == 1 { self.write(maps, bit) } else { Ok(()) }
    }

    /// Removes a backend, if no other one has its bit. Call it after the backend was overwritten.
    pub(super) fn remove(&mut self, maps: &mut Maps, backend: &Backend) -> Result<(), MapsError> {
        let Some(bit) = bit(backend) else { return Ok(()) };
        match self.ports.get_mut(&bit) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.ports.remove(&bit);
                return self.write(maps, bit);
            }
            None => {}
        }
        Ok(())
    }

    /// Writes the element of a bit.
    fn write(&self, maps: &mut Maps, bit: u32) -> Result<(), MapsError> {
        let first = bit / BITS * BITS;
        let bits = self.ports.range(first..first + BITS).fold(0, |bits, (bit, _)| bits | 1 << (bit - first));
        maps.set_local_ports(bit / BITS, bits)
    }
}
