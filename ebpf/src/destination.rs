//! The destination of a packet, and what the flow table has of its flow.

use crate::flow::Target;

/// What the table has of a packet's flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// A record.
    Present,
    /// A record that does not translate the backend's replies, or not those to this SYN.
    Partial,
    /// A record of an established connection, to which the client, or a forger in its name, has sent
    /// another SYN.
    Renewed,
    /// A record in the reserve, which is to move to one of the flow's sets.
    Reserve,
    /// A record, although the packet was taken for a flow's first one. It is unchanged.
    Existing,
    /// No record: there is no room.
    NoRoom,
    /// No record: the replies would be those of another live flow.
    Collision,
}

/// The destination of a packet, with its Service's state.
pub(crate) struct Destination {
    pub(crate) target: Target,
    pub(crate) slot: u32,
    /// [`ServiceState::generation`].
    pub(crate) slot_generation: u32,
    /// [`ServiceState::flags`].
    pub(crate) flags: u32,
    /// [`ServiceState::ranges`].
    pub(crate) ranges: u32,
    pub(crate) entry: EntryState,
}
