//! The repairs of differences between the kernel and its desired state.

use vipmux_common::abi::Interface;
use vipmux_datapath::bpf::direction::Direction;
use vipmux_plan::EntryDifference;

/// The repair of a difference.
pub(crate) enum Repair {
    Map(EntryDifference),
    Interface(u32, Interface),
    VipIndex(u32),
    ServiceIndex(u32),
    BackendIndices,
    MapPin(String, u32),
    ProgramPin,
    Link(u32),
    Place(Direction, u32),
    Tags(u32),
    Snat,
}
