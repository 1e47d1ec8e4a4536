//! All arrays that the agent derives from other maps, as last written.

use vipmux_common::{abi::VipSlot, service_index::IndexedService};

use super::{Maps, MapsError, backend_indices::BackendIndices, written_array::WrittenArray};

/// Each from the first change on.
#[derive(Debug, Default)]
pub(in crate::bpf) struct Indices {
    /// `VIP_INDEX`.
    pub(in crate::bpf) vips: Option<WrittenArray<VipSlot>>,
    /// `SERVICE_INDEX`.
    pub(in crate::bpf) services: Option<WrittenArray<IndexedService>>,
    /// `LOCAL_PORTS` and `BACKEND_NODES`.
    pub(super) backends: Option<BackendIndices>,
}

impl Maps {
    /// Changes an index, which is read first if it is not in memory. After an error it is read again.
    pub(in crate::bpf) fn change_index<I>(
        &mut self,
        place: fn(&mut Indices) -> &mut Option<I>,
        read: fn(&mut Self) -> Result<I, MapsError>,
        change: impl FnOnce(&mut I, &mut Self) -> Result<(), MapsError>,
    ) -> Result<(), MapsError> {
        let mut index = match place(&mut self.indices).take() {
            Some(index) => index,
            None => read(self)?,
        };
        let changed = change(&mut index, self);
        *place(&mut self.indices) = changed.is_ok().then_some(index);
        changed
    }
}
