//! Builds the nftables messages of the table (include/uapi/linux/netfilter/nf_tables.h).

use std::{net::IpAddr, num::NonZeroU16};

use netlink_packet_netfilter::{
    NetfilterMessageInner,
    nftables::{
        DataAttribute, ListAttribute, NfTablesMessage, RuleAttribute, RuleMessage, SetAttribute, SetDescription,
        SetElementAttribute, SetElementList, SetElementMessage, SetFlags, SetMessage, TableAttribute, TableMessage,
    },
};

use super::{
    DesiredTable, Element, SnatError, has_direct,
    rules::{chains, rules},
    sets::{ClientSet, DIRECT, IPV4, IPV6, NftSet, SOURCES, TABLE, UPLINKS},
    transaction::{Socket, TransactionMessage},
};

/// The operation, for errors.
const MAKE: &str = "make the identity SNAT chain";

/// The limit of elements per message: an attribute has at most 65,535 bytes, an element takes 36.
const ELEMENTS: usize = 1024;

/// nft(8)'s ids of types, which only help nft to print the sets.
const PROTOCOL_TYPE: u32 = 12;
const PORT_TYPE: u32 = 13;
const INTERFACE_TYPE: u32 = 20;

/// The sets whose elements the agent writes, in the order of [`set_and_key`].
const WRITTEN: usize = SOURCES.len() + DIRECT.len() + 1;

impl ClientSet {
    /// Returns the type and the length of the key: both addresses, then both ports.
    fn key(&self) -> (u32, u32) {
        let address = self.family.address_type;
        (concatenated(&[address, address, PORT_TYPE, PORT_TYPE]), 2 * self.family.length + 8)
    }
}

/// Returns the index of an element's set, and its key.
fn set_and_key(element: Element) -> (usize, Vec<u8>) {
    let (first, address, protocol, port) = match element {
        Element::Backend(backend) => (0, backend.address, backend.protocol.number(), backend.port),
        Element::Direct(claim) => (SOURCES.len(), claim.vip.address(), claim.protocol.number(), claim.port.one()),
        Element::DirectErrors(vip) => {
            (SOURCES.len(), vip.address(), if vip.address().is_ipv4() { IPV4.icmp } else { IPV6.icmp }, None)
        }
        Element::Uplink(ifindex) => return (WRITTEN - 1, ifindex.to_ne_bytes().to_vec()),
    };
    (first + 2 * usize::from(address.is_ipv6()) + usize::from(port.is_none()), key(address, protocol, port))
}

/// Returns the names of the sets whose elements the agent writes.
fn written() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().chain(&DIRECT).map(|set| set.name).chain([UPLINKS])
}

/// Returns the type of a key of several parts, each of which takes six bits.
fn concatenated(parts: &[u32]) -> u32 {
    parts.iter().fold(0, |whole, part| whole << 6 | part)
}

impl NftSet {
    /// Returns the type and the length of the key: address, protocol, port.
    fn key(&self) -> (u32, u32) {
        let parts = [self.family.address_type, PROTOCOL_TYPE, PORT_TYPE];
        let (parts, length) = if self.ports { (&parts[..], 8) } else { (&parts[..2], 4) };
        (concatenated(parts), self.family.length + length)
    }
}

/// Makes the table, or replaces all in it but the clients: their flows live on, and their next
/// packets may come late. If the kernel refuses that, the table is of another version of vipmux and
/// has other things of these names. Then it is replaced whole.
pub(super) fn replace(socket: &mut Socket, desired: &DesiredTable) -> Result<(), SnatError> {
    let changes = [create_table()].into_iter().chain(made()).chain(emptied()).chain(filled(desired));
    match socket.commit(MAKE, changes.collect()) {
        Err(SnatError::Refused { .. }) => socket.commit(MAKE, whole(desired)),
        result => result,
    }
}

/// Checks whether the kernel accepts a new table, without a change.
pub(super) fn check(socket: &mut Socket, desired: &DesiredTable) -> Result<(), SnatError> {
    socket.check(MAKE, whole(desired))
}

/// Returns the messages that make the table anew.
fn whole(desired: &DesiredTable) -> Vec<TransactionMessage> {
    let delete = TransactionMessage::Delete(NfTablesMessage::DeleteTable(table()));
    [create_table(), delete, create_table()].into_iter().chain(made()).chain(filled(desired)).collect()
}

/// Returns the messages that make the chains and the sets that are missing. The rules of the
/// transaction use a set's name; the kernel requires an id as well.
fn made() -> impl Iterator<Item = TransactionMessage> {
    let sources = SOURCES.iter().chain(&DIRECT).map(|set| (set.name, set.key(), None));
    let uplinks = (UPLINKS, (INTERFACE_TYPE, 4), None);
    let clients = ClientSet::ALL.iter().map(|set| (set.name, set.key(), Some(ClientSet::LIMIT)));
    let sets = (1..).zip(sources.chain([uplinks]).chain(clients)).map(|(id, desired)| set(id, desired));
    chains().map(NfTablesMessage::NewChain).chain(sets.map(NfTablesMessage::NewSet)).map(TransactionMessage::Create)
}

/// Returns the messages that remove all rules, and all elements that the agent writes.
fn emptied() -> impl Iterator<Item = TransactionMessage> {
    // A rule without a chain stands for all rules, and a set without elements for all elements.
    let all_rules = RuleMessage { attributes: vec![RuleAttribute::Table(TABLE.to_owned())] };
    let all_of = |set: &str| SetElementMessage {
        attributes: vec![SetElementList::Table(TABLE.to_owned()), SetElementList::Set(set.to_owned())],
    };
    let elements = written().map(move |set| NfTablesMessage::DeleteSetElement(all_of(set)));
    [NfTablesMessage::DeleteRule(all_rules)].into_iter().chain(elements).map(TransactionMessage::Delete)
}

/// Returns the messages that add the rules and the desired elements.
fn filled(desired: &DesiredTable) -> impl Iterator<Item = TransactionMessage> {
    let rules = rules(desired.remembered, has_direct(&desired.elements)).into_iter();
    let rules = rules.map(NfTablesMessage::NewRule).map(TransactionMessage::Append);
    let all: Vec<_> = desired.elements.iter().copied().collect();
    let elements: Vec<_> = elements(&all).collect();
    rules.chain(elements.into_iter().map(NfTablesMessage::NewSetElement).map(TransactionMessage::Create))
}

/// Adds and removes elements of the sets.
pub(super) fn update(socket: &mut Socket, added: &[Element], removed: &[Element]) -> Result<(), SnatError> {
    let gone = elements(removed).map(NfTablesMessage::DeleteSetElement).map(TransactionMessage::Delete);
    let come = elements(added).map(NfTablesMessage::NewSetElement).map(TransactionMessage::Create);
    socket.commit("update the identity SNAT's sets", gone.chain(come).collect())
}

/// Removes the table, if it exists.
pub(super) fn remove(socket: &mut Socket) -> Result<(), SnatError> {
    let changes = vec![create_table(), TransactionMessage::Delete(NfTablesMessage::DeleteTable(table()))];
    socket.commit("remove the identity SNAT chain", changes)
}

/// Returns the table's handle in the kernel. `None`: there is no table.
pub(super) fn table_handle(socket: &mut Socket) -> Result<Option<u64>, SnatError> {
    let operation = "read the identity SNAT table";
    let answer = socket.ask(operation, NfTablesMessage::GetTable(table()))?;
    let Some(NetfilterMessageInner::NfTables(NfTablesMessage::NewTable(table))) = answer else { return Ok(None) };
    let handle = table.attributes.iter().find_map(|attribute| match attribute {
        TableAttribute::Handle(handle) => Some(*handle),
        _ => None,
    });
    handle.map(Some).ok_or_else(|| SnatError::Malformed { operation, reason: "it has no handle".to_owned() })
}

fn table() -> TableMessage {
    TableMessage { attributes: vec![TableAttribute::Name(TABLE.to_owned())] }
}

/// It changes nothing if there is a table. To delete a missing one is an error, so it is made first.
fn create_table() -> TransactionMessage {
    TransactionMessage::Create(NfTablesMessage::NewTable(table()))
}

/// Returns a message that makes a set. `limit`: of elements, for a set that rules write.
fn set(id: u32, (name, (key_type, key_bytes), limit): (&str, (u32, u32), Option<u32>)) -> SetMessage {
    let flags = if limit.is_some() { SetFlags::Eval | SetFlags::Timeout } else { SetFlags::empty() };
    let mut attributes = vec![
        SetAttribute::Table(TABLE.to_owned()),
        SetAttribute::Name(name.to_owned()),
        SetAttribute::Flags(flags),
        SetAttribute::KeyType(key_type),
        SetAttribute::KeyLen(key_bytes),
        SetAttribute::Id(id),
    ];
    attributes.extend(limit.map(|limit| SetAttribute::Description(vec![SetDescription::Size(limit)])));
    SetMessage { attributes }
}

/// Returns the messages with these elements.
fn elements(all: &[Element]) -> impl Iterator<Item = SetElementMessage> {
    let mut by_set = [(); WRITTEN].map(|()| Vec::new());
    for &element in all {
        let (set, key) = set_and_key(element);
        let element = SetElementAttribute::Key(DataAttribute::Value(key));
        by_set[set].push(ListAttribute::Element(vec![element]));
    }
    written().zip(by_set).flat_map(|(set, elements)| {
        let message = |elements: &[_]| SetElementMessage {
            attributes: vec![
                SetElementList::Table(TABLE.to_owned()),
                SetElementList::Set(set.to_owned()),
                SetElementList::Elements(elements.to_vec()),
            ],
        };
        elements.chunks(ELEMENTS).map(message).collect::<Vec<_>>()
    })
}

/// Returns the key of a source: each part in network byte order, at the start of its 32-bit
/// registers.
fn key(address: IpAddr, protocol: u8, port: Option<NonZeroU16>) -> Vec<u8> {
    let mut key = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    key.extend([protocol, 0, 0, 0]);
    if let Some(port) = port {
        let [high, low] = port.get().to_be_bytes();
        key.extend([high, low, 0, 0]);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snat::LocalBackend;
    use vipmux_model::Protocol;
    use vipmux_testing::names::{claim, vip};

    fn backend(address: &str, port: u16) -> Element {
        Element::Backend(LocalBackend {
            address: address.parse().unwrap(),
            protocol: Protocol::Udp,
            port: NonZeroU16::new(port),
        })
    }

    fn direct(address: &str, port: u16) -> Element {
        Element::Direct(claim(vip(address), Protocol::Udp, port))
    }

    #[test]
    fn a_key_has_each_part_in_its_own_register() {
        let v6 = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        let protocol = [17, 0, 0, 0];
        let port = [0x14, 0xe9, 0, 0];
        let icmp6 = [58, 0, 0, 0];
        for (element, name, expected) in [
            (backend("10.244.1.2", 5353), "backends4", [&[10, 244, 1, 2][..], &protocol, &port].concat()),
            (backend("10.244.1.2", 0), "addresses4", [&[10, 244, 1, 2][..], &protocol].concat()),
            (backend("2001:db8::2", 5353), "backends6", [&v6[..], &protocol, &port].concat()),
            (backend("2001:db8::2", 0), "addresses6", [&v6[..], &protocol].concat()),
            (direct("10.244.1.2", 5353), "direct4", [&[10, 244, 1, 2][..], &protocol, &port].concat()),
            (direct("10.244.1.2", 0), "direct_addresses4", [&[10, 244, 1, 2][..], &protocol].concat()),
            (direct("2001:db8::2", 5353), "direct6", [&v6[..], &protocol, &port].concat()),
            (Element::DirectErrors(vip("2001:db8::2")), "direct_addresses6", [&v6[..], &icmp6].concat()),
        ] {
            let (place, key) = set_and_key(element);
            let set = SOURCES.iter().chain(&DIRECT).nth(place).unwrap();
            assert_eq!(key.len(), set.key().1 as usize);
            assert_eq!((set.name, key), (name, expected));
        }
        assert_eq!(set_and_key(Element::Uplink(7)), (WRITTEN - 1, 7_u32.to_ne_bytes().to_vec()));
    }

    #[test]
    fn no_message_outgrows_an_attribute() {
        let backends = [vec![backend("2001:db8::2", 80); ELEMENTS + 1], vec![backend("127.0.0.1", 80)]].concat();
        let counts: Vec<_> = elements(&backends)
            .map(|message| match &message.attributes[2] {
                SetElementList::Elements(elements) => elements.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(counts, [1, ELEMENTS, 1]);
        const { assert!(ELEMENTS * 36 < u16::MAX as usize) };
    }
}
