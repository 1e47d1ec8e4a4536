//! Writes `LOCAL_PORTS`: a bit for each address and port of this node's backends. It spares most
//! packets that leave the node a look at the flow table.

use std::collections::BTreeMap;

use vipmux_common::{
    abi::{BACKEND_LOCAL, Backend, capacity},
    hash,
};

use super::maps::{Maps, MapsError};

const BITS: u32 = u64::BITS;

/// The number of backends on each bit in use.
#[derive(Debug, Default)]
pub(super) struct LocalPorts(BTreeMap<u32, u32>);

fn bit(backend: &Backend) -> Option<u32> {
    let is_local = backend.generation != 0 && backend.flags & BACKEND_LOCAL != 0;
    is_local.then(|| hash::local_port(&backend.address, backend.port))
}

/// Returns the elements of `LOCAL_PORTS` for these backends.
pub fn elements<'a>(backends: impl IntoIterator<Item = &'a Backend>) -> Vec<u64> {
    let mut elements = vec![0; (capacity::LOCAL_PORTS / BITS) as usize];
    for bit in backends.into_iter().filter_map(bit) {
        elements[(bit / BITS) as usize] |= 1 << (bit % BITS);
    }
    elements
}

impl LocalPorts {
    /// Makes the map hold the bits of all backends in `BACKENDS`, those that are gone too.
    pub(super) fn rebuild(maps: &mut Maps) -> Result<Self, MapsError> {
        let backends = maps.read_all_backends()?;
        for (index, element) in (0..).zip(elements(&backends)) {
            maps.set_local_ports(index, element)?;
        }
        let mut counts = Self::default();
        backends.iter().filter_map(bit).for_each(|bit| *counts.0.entry(bit).or_default() += 1);
        Ok(counts)
    }

    /// Returns the used elements of the map.
    pub(super) fn elements(&self) -> BTreeMap<u32, u64> {
        let mut elements = BTreeMap::new();
        for bit in self.0.keys() {
            *elements.entry(bit / BITS).or_default() |= 1 << (bit % BITS);
        }
        elements
    }

    /// Sets the bit of a backend. Call it before the backend is written.
    pub(super) fn add(&mut self, maps: &mut Maps, backend: &Backend) -> Result<(), MapsError> {
        let Some(bit) = bit(backend) else { return Ok(()) };
        let count = self.0.entry(bit).or_default();
        *count += 1;
        if *count == 1 { self.write(maps, bit) } else { Ok(()) }
    }

    /// Clears the bit of a backend, if no other one has it. Call it after the backend was
    /// overwritten.
    pub(super) fn remove(&mut self, maps: &mut Maps, backend: &Backend) -> Result<(), MapsError> {
        let Some(bit) = bit(backend) else { return Ok(()) };
        match self.0.get_mut(&bit) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.0.remove(&bit);
                return self.write(maps, bit);
            }
            None => {}
        }
        Ok(())
    }

    /// Writes the element of a bit.
    fn write(&self, maps: &mut Maps, bit: u32) -> Result<(), MapsError> {
        let first = bit / BITS * BITS;
        let bits = self.0.range(first..first + BITS).fold(0, |bits, (bit, _)| bits | 1 << (bit - first));
        maps.set_local_ports(bit / BITS, bits)
    }
}
