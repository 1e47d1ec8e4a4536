//! The bridges' forwarding databases: behind which port a MAC is (`AF_BRIDGE` neighbours, bridge(8)).

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use netlink_packet_route::{
    AddressFamily,
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
};
use rtnetlink::Handle;
use vipmux_common::abi::Mac;

use super::{LinkError, Links, Neighbor, Neighbors};

/// Most entries that are remembered, over all bridges; a MAC beyond them counts as not learnt.
const LIMIT: usize = 65_536;

/// What the bridges have learnt: (bridge, MAC) to the port.
#[derive(Debug, Default)]
pub(super) struct Fdb {
    ports: BTreeMap<(u32, Mac), u32>,
}

impl Fdb {
    /// All that the kernel has now.
    pub(super) async fn read(handle: &Handle) -> Result<Self, LinkError> {
        let mut fdb = Self::default();
        let mut entries = handle.neighbours().get().set_address_family(AddressFamily::Bridge).execute();
        while let Some(entry) = entries.try_next().await.map_err(LinkError::request("list what bridges learnt"))? {
            fdb.observe(&entry, true);
        }
        Ok(fdb)
    }

    /// Takes in an entry, or that it is gone (`there` is false); whether that changed anything.
    pub(super) fn observe(&mut self, message: &NeighbourMessage, there: bool) -> bool {
        let Some((bridge, mac)) = parse(message) else { return false };
        let port = message.header.ifindex;
        if !there {
            // One that moved is told of as new behind its port, and may be told of as gone from the old one after that.
            return self.ports.get(&(bridge, mac)) == Some(&port) && self.ports.remove(&(bridge, mac)).is_some();
        }
        if self.ports.len() >= LIMIT && !self.ports.contains_key(&(bridge, mac)) {
            return false;
        }
        self.ports.insert((bridge, mac), port) != Some(port)
    }

    /// Tells the neighbours that are reached through a bridge by which port.
    pub(super) fn locate(&self, links: &Links, neighbors: &mut Neighbors) {
        for neighbor in neighbors.values_mut() {
            if let Neighbor::Resolved { ifindex, mac, port } = neighbor {
                *port = links.bridge(*ifindex).and_then(|bridge| self.ports.get(&(bridge, *mac))).copied();
            }
        }
    }
}

/// The bridge and the MAC; `None` for what is no bridge's entry, or one of the bridge's own addresses.
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
        let (mut fdb, learnt) = (Fdb::default(), NeighbourState::Reachable);
        let port = |fdb: &Fdb| fdb.ports.get(&(BRIDGE, Mac::new([2, 0, 0, 0, 0, 7]))).copied();
        assert!(fdb.observe(&entry(2, 7, learnt), true) && !fdb.observe(&entry(2, 7, learnt), true));
        assert!(fdb.observe(&entry(3, 7, learnt), true));
        assert!(!fdb.observe(&entry(2, 7, learnt), false), "it has left there already");
        assert_eq!(port(&fdb), Some(3));
        assert!(fdb.observe(&entry(3, 7, learnt), false));
        assert_eq!(port(&fdb), None);
    }

    #[test]
    fn a_bridges_own_addresses_and_other_neighbours_are_nothing_learnt() {
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
    fn what_is_remembered_is_bounded() {
        let bridges = 100..100 + u32::try_from(LIMIT).unwrap();
        let mut fdb = Fdb { ports: bridges.map(|bridge| ((bridge, Mac::default()), 1)).collect() };
        assert!(!fdb.observe(&entry(2, 7, NeighbourState::Reachable), true));
        assert_eq!(fdb.ports.len(), LIMIT);
    }
}
