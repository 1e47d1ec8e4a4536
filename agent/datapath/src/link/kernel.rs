//! Reads interfaces and addresses by rtnetlink, and applies notifications of changes
//! (rtnetlink(7)).

use std::{collections::BTreeSet, mem, net::IpAddr};

use futures_util::TryStreamExt;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{
        BondPortState, InfoBondPort, InfoData, InfoKind, InfoPortData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo,
        LinkLayerType, LinkMessage, VlanProtocol,
    },
};
use rtnetlink::Handle;
use tokio::time::Instant;
use vipmux_common::abi::Mac;

use super::{Interface, InterfaceKind, LinkError, Links, routes};

/// Reads all interfaces with their addresses, and those that routes use to reach gateways.
pub(super) async fn links(handle: &Handle) -> Result<Links, LinkError> {
    let mut found = Links::default();
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await.map_err(LinkError::request("list interfaces"))? {
        found.apply(&RouteNetlinkMessage::NewLink(link));
    }
    let mut addresses = handle.address().get().execute();
    while let Some(address) = addresses.try_next().await.map_err(LinkError::request("list addresses"))? {
        found.apply(&RouteNetlinkMessage::NewAddress(address));
    }
    found.set_routes(routes::read(handle).await?, Instant::now());
    Ok(found)
}

/// Returns the number of frames that came in by these interfaces. One that is gone counts as 0.
pub(super) async fn received(handle: &Handle, interfaces: &BTreeSet<u32>) -> u64 {
    let mut frames = 0;
    for ifindex in interfaces {
        let link = handle.link().get().match_index(*ifindex).execute().try_next().await;
        let attributes = link.ok().flatten().map(|link| link.attributes).unwrap_or_default();
        frames += attributes.iter().find_map(received_packets).unwrap_or_default();
    }
    frames
}

fn received_packets(attribute: &LinkAttribute) -> Option<u64> {
    match attribute {
        LinkAttribute::Stats64(stats) => Some(stats.rx_packets),
        _ => None,
    }
}

impl Links {
    /// Applies a notification. Returns whether it changed anything.
    pub(super) fn apply(&mut self, message: &RouteNetlinkMessage) -> bool {
        match message {
            RouteNetlinkMessage::NewLink(link) => self.put(link),
            // A bridge sends the same message in its own family when a port leaves it. That
            // interface still exists.
            RouteNetlinkMessage::DelLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                self.interfaces.remove(&link.header.index).is_some()
            }
            RouteNetlinkMessage::NewAddress(address) => self.with_address(address, |addresses, address| {
                // The kernel, too, treats the same address with another prefix length as another
                // entry.
                addresses.insert(address)
            }),
            RouteNetlinkMessage::DelAddress(address) => {
                self.with_address(address, |addresses, address| addresses.remove(&address))
            }
            _ => false,
        }
    }

    fn put(&mut self, link: &LinkMessage) -> bool {
        let Some(mut interface) = interface(link) else { return false };
        match self.interfaces.get_mut(&interface.ifindex) {
            Some(known) => {
                interface.addresses = mem::take(&mut known.addresses);
                let changed = known.differs(&interface);
                *known = interface;
                changed
            }
            None => self.interfaces.insert(interface.ifindex, interface).is_none(),
        }
    }

    fn with_address(
        &mut self,
        message: &AddressMessage,
        change: impl FnOnce(&mut BTreeSet<(IpAddr, u8)>, (IpAddr, u8)) -> bool,
    ) -> bool {
        let interface = self.interfaces.get_mut(&message.header.index);
        interface.zip(address(message)).is_some_and(|(interface, address)| change(&mut interface.addresses, address))
    }
}

impl Interface {
    /// Returns whether anything but the addresses differs.
    fn differs(&self, other: &Self) -> bool {
        let of = |i: &Self| (i.ifindex, i.mac, i.mtu, i.carrier, i.carrier_ups, i.controller, i.backup);
        of(self) != of(other) || self.name != other.name || self.kind != other.kind
    }
}

/// Returns an interface without its addresses. `None`: the message has another family, or is
/// incomplete.
fn interface(link: &LinkMessage) -> Option<Interface> {
    if link.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let flags = link.header.flags;
    let (mut name, mut mac, mut mtu, mut controller, mut carrier_ups) = (None, None, None, None, 0);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::Address(bytes) => mac = <[u8; 6]>::try_from(bytes.as_slice()).ok(),
            LinkAttribute::Mtu(bytes) => mtu = Some(*bytes),
            LinkAttribute::CarrierUpCount(count) => carrier_ups = *count,
            LinkAttribute::Controller(index) => controller = Some(*index).filter(|index| *index != 0),
            _ => {}
        }
    }
    let kind = if flags.contains(LinkFlags::Loopback) { InterfaceKind::Loopback } else { kind(&link.attributes) };
    let ethernet = link.header.link_layer_type == LinkLayerType::Ether;
    Some(Interface {
        name: name?,
        ifindex: link.header.index,
        mac: mac.filter(|mac| ethernet && *mac != [0; 6]).map(Mac::new),
        mtu: mtu?,
        kind,
        controller,
        backup: is_backup(&link.attributes),
        // LOWER_UP is cleared at once when the carrier goes. RUNNING is set later than LOWER_UP,
        // when the queue is open: before that, sent frames are dropped without an error. Only an
        // interface made some milliseconds ago has both flags too early.
        carrier: flags.contains(LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Running),
        carrier_ups,
        addresses: BTreeSet::new(),
    })
}

/// Returns the parts of `IFLA_LINKINFO`.
fn info(attributes: &[LinkAttribute]) -> &[LinkInfo] {
    let info = attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => Some(info.as_slice()),
        _ => None,
    });
    info.unwrap_or_default()
}

/// Returns whether the bond of this card uses another one (`IFLA_BOND_SLAVE_STATE`).
fn is_backup(attributes: &[LinkAttribute]) -> bool {
    let of_card = info(attributes).iter().filter_map(|part| match part {
        LinkInfo::PortData(InfoPortData::BondPort(card)) => Some(card),
        _ => None,
    });
    of_card.flatten().any(|of_card| *of_card == InfoBondPort::BondPortState(BondPortState::Backup))
}

fn kind(attributes: &[LinkAttribute]) -> InterfaceKind {
    let info = info(attributes);
    let kind = info.iter().find_map(|part| match part {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    });
    match kind {
        None => InterfaceKind::Device,
        Some(InfoKind::Dummy) => InterfaceKind::Dummy,
        Some(InfoKind::Vlan) => vlan(attributes, info),
        Some(kind) => InterfaceKind::Virtual(kind.to_string()),
    }
}

/// Returns the kind of a VLAN interface. The parent's index has no meaning here if the parent is in
/// another network namespace.
fn vlan(attributes: &[LinkAttribute], info: &[LinkInfo]) -> InterfaceKind {
    let is_elsewhere = attributes.iter().any(|attribute| matches!(attribute, LinkAttribute::LinkNetNsId(_)));
    let parent = attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) if !is_elsewhere => Some(*index),
        _ => None,
    });
    let (mut id, mut customer) = (0, true);
    for part in info {
        let LinkInfo::Data(InfoData::Vlan(data)) = part else { continue };
        for part in data {
            match part {
                InfoVlan::Id(number) => id = *number,
                InfoVlan::Protocol(protocol) => customer = *protocol == VlanProtocol::Ieee8021Q,
                _ => {}
            }
        }
    }
    InterfaceKind::Vlan { parent, id, customer }
}

/// Returns the node's own address, and the prefix length of its subnet.
pub(super) fn address(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    let (mut local, mut subnet) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => subnet = Some(*address),
            _ => {}
        }
    }
    match (local, subnet) {
        // Point to point: the prefix belongs to the peer's address. The own address is a host
        // address.
        (Some(local), Some(peer)) if local != peer => Some((local, if local.is_ipv4() { 32 } else { 128 })),
        (Some(address), _) | (None, Some(address)) => Some((address, message.header.prefix_len)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkHeader;

    use super::*;

    fn link(family: AddressFamily, attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header = LinkHeader {
            interface_family: family,
            index: 7,
            link_layer_type: LinkLayerType::Ether,
            flags: LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Running,
            ..LinkHeader::default()
        };
        link.attributes = attributes;
        link
    }

    fn dummy(mtu: u32) -> LinkMessage {
        let name = LinkAttribute::IfName("d0".to_owned());
        let mac = LinkAttribute::Address(vec![2, 0, 0, 0, 0, 7]);
        let kind = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Dummy)]);
        link(AddressFamily::Unspec, vec![name, mac, LinkAttribute::Mtu(mtu), kind])
    }

    fn own(local: &str, subnet: &str, prefix: u8) -> AddressMessage {
        let mut message = AddressMessage::default();
        (message.header.index, message.header.prefix_len) = (7, prefix);
        let (local, subnet) = (local.parse().unwrap(), subnet.parse().unwrap());
        message.attributes = vec![AddressAttribute::Address(subnet), AddressAttribute::Local(local)];
        message
    }

    #[test]
    fn notifications_that_change_nothing_are_recognized() {
        use RouteNetlinkMessage::{DelAddress, DelLink, NewAddress, NewLink};
        let mut links = Links::default();
        let address = || own("192.0.2.1", "192.0.2.1", 24);
        // Its carrier was away in between.
        let again = || {
            let mut link = dummy(1400);
            link.attributes.push(LinkAttribute::CarrierUpCount(2));
            link
        };
        let card = |state| {
            let mut link = again();
            let state = InfoPortData::BondPort(vec![InfoBondPort::BondPortState(state)]);
            link.attributes[3] =
                LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Dummy), LinkInfo::PortData(state)]);
            link
        };
        assert!(!links.apply(&NewAddress(address())), "of an interface that is not known");
        for (message, changes) in [
            (NewLink(dummy(1500)), true),
            (NewLink(dummy(1500)), false),
            (NewAddress(address()), true),
            (NewAddress(address()), false),
            (NewLink(dummy(1400)), true),
            (NewLink(again()), true),
            (NewLink(again()), false),
            (NewLink(card(BondPortState::Backup)), true),
            (NewLink(card(BondPortState::Active)), true),
            (NewLink(again()), false),
            (NewLink(link(AddressFamily::Unspec, vec![])), false),
            (NewLink(link(AddressFamily::Bridge, dummy(9000).attributes)), false),
            (DelLink(link(AddressFamily::Bridge, dummy(9000).attributes)), false),
        ] {
            assert_eq!(links.apply(&message), changes, "{message:?}");
        }
        let interface = links.get(7).unwrap();
        assert_eq!((interface.mtu, &interface.kind), (1400, &InterfaceKind::Dummy));
        assert_eq!(interface.addresses, BTreeSet::from([("192.0.2.1".parse().unwrap(), 24)]), "they outlive a change");
        assert!(links.apply(&DelAddress(address())) && !links.apply(&DelAddress(address())));
        assert!(links.apply(&DelLink(dummy(1400))) && links == Links::default());
    }

    #[test]
    fn the_own_end_of_a_point_to_point_link_is_a_host() {
        assert_eq!(address(&own("192.0.2.1", "192.0.2.9", 24)), Some(("192.0.2.1".parse().unwrap(), 32)));
        assert_eq!(address(&own("192.0.2.1", "192.0.2.1", 24)), Some(("192.0.2.1".parse().unwrap(), 24)));
        assert_eq!(address(&AddressMessage::default()), None);
    }
}
