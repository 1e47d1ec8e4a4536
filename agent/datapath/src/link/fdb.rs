//! Reads the forwarding databases of bridges: the port behind which a MAC is (`AF_BRIDGE`
//! neighbors, bridge(8)).

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use netlink_packet_route::{
    AddressFamily,
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
};
use rtnetlink::Handle;
use vipmux_common::abi::Mac;

use super::{LinkError, Links, Neighbor, ResolvedNeighbors};

/// The limit of stored entries over all bridges. A MAC beyond the limit counts as not learned.
const LIMIT: usize = 65_536;

/// The learned MACs: (bridge, MAC) to the port.
#[derive(Debug, Default)]
pub(super) struct Fdb {
    ports: BTreeMap<(u32, Mac), u32>,
}

impl Fdb {
    /// Reads all entries from the kernel.
    pub(super) async fn read(handle: &Handle) -> Result<Self, LinkError> {
        let mut fdb = Self::default();
        let mut entries = handle.neighbours().get().set_address_family(AddressFamily::Bridge).execute();
        while let Some(entry) =
            entries.try_next().await.map_err(LinkError::request("list forwarding entries of bridges"))?
        {
            fdb.observe(&entry, true);
        }
        Ok(fdb)
    }

    /// Records an entry, or its removal (`present` is false). Returns whether that changed
    /// anything.
    pub(super) fn observe(&mut self, message: &NeighbourMessage, present: bool) -> bool {
        let Some((bridge, mac)) = parse(message) else { return false };
        let port = message.header.ifindex;
        if !present {
            // After a move, the removal from the old port may come after the entry with the new
            // port.
            return self.ports.get(&(bridge, mac)) == Some(&port) && self.ports.remove(&(bridge, mac)).is_some();
        }
        if self.ports.len() >= LIMIT && !self.ports.contains_key(&(bridge, mac)) {
            return false;
        }
        self.ports.insert((bridge, mac), port) != Some(port)
    }

    /// Sets the port of each neighbor that is reached through a bridge.
    pub(super) fn set_ports(&self, links: &Links, neighbors: &mut ResolvedNeighbors) {
        for neighbor in neighbors.values_mut() {
            if let Neighbor::Resolved { ifindex, mac, port } = neighbor {
                *port = links.bridge(*ifindex).and_then(|bridge| self.ports.get(&(bridge, *mac))).copied();
            }
        }
    }
}

/// Returns the bridge and the MAC. `None`: not an entry of a bridge, or one of the bridge's own
/// addresses.
fn parse(message: &NeighbourMessage) -> Option<(u32, Mac)> {
    if message.header.family != AddressFamily::Bridge || message.header.state == NeighbourState::Permanent {
        return None;
    }
    let (mut bridge, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Controller(index) => bridge = Some(*index),
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac::new);
            }
            _ => {}
        }
    }
    bridge.zip(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: u32 = 9;

    fn entry(port: u32, last: u8, state: NeighbourState) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        (message.header.family, message.header.ifindex, message.header.state) = (AddressFamily::Bridge, port, state);
        message.attributes = vec![
            NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, last]),
            NeighbourAttribute::Controller(BRIDGE),
        ];
        message
    }

    #[test]
    fn a_mac_that_moves_is_behind_its_new_port() {
        let (mut fdb, learned) = (Fdb::default(), NeighbourState::Reachable);
        let port = |fdb: &Fdb| fdb.ports.get(&(BRIDGE, Mac::new([2, 0, 0, 0, 0, 7]))).copied();
        assert!(fdb.observe(&entry(2, 7, learned), true) && !fdb.observe(&entry(2, 7, learned), true));
        assert!(fdb.observe(&entry(3, 7, learned), true));
        assert!(!fdb.observe(&entry(2, 7, learned), false), "it has left there already");
        assert_eq!(port(&fdb), Some(3));
        assert!(fdb.observe(&entry(3, 7, learned), false));
        assert_eq!(port(&fdb), None);
    }

    #[test]
    fn a_bridges_own_addresses_and_other_neighbors_are_nothing_learned() {
        let mut fdb = Fdb::default();
        assert!(!fdb.observe(&entry(2, 7, NeighbourState::Permanent), true));
        let mut other = entry(2, 7, NeighbourState::Reachable);
        other.header.family = AddressFamily::Inet;
        assert!(!fdb.observe(&other, true));
        // A tunnel's own table has no bridge.
        other.header.family = AddressFamily::Bridge;
        other.attributes.pop();
        assert!(!fdb.observe(&other, true) && fdb.ports.is_empty());
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let bridges = 100..100 + u32::try_from(LIMIT).unwrap();
        let mut fdb = Fdb { ports: bridges.map(|bridge| ((bridge, Mac::default()), 1)).collect() };
        assert!(!fdb.observe(&entry(2, 7, NeighbourState::Reachable), true));
        assert_eq!(fdb.ports.len(), LIMIT);
    }
}
