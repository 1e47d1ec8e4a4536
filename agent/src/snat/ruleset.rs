//! The nftables messages (include/uapi/linux/netfilter/nf_tables.h).

use std::{collections::BTreeSet, net::IpAddr};

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::{
    NetfilterMessageInner,
    nftables::{
        Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, ExpressionAttribute, Expressions, Hook, Immediate,
        InetHookNumber, ListAttribute, Lookup, Meta, MetaKey, NfTablesMessage, Operator, Payload, Register,
        RuleAttribute, RuleMessage, SetAttribute, SetElementAttribute, SetElementList, SetElementMessage, SetFlags,
        SetMessage, TableAttribute, TableMessage, Verdict, VerdictAttribute,
    },
};

use super::{
    LocalBackend, SnatError,
    transaction::{Change, Socket},
};
use crate::model::Protocol;

/// The table's name.
pub(super) const TABLE: &str = "vipmux";
const CHAIN: &str = "postrouting";

/// Just before `NF_IP_PRI_NAT_SRC` (100), where kube-proxy and the CNIs masquerade.
const PRIORITY: u32 = 99;
const ACCEPT: u32 = 1;

/// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
pub(super) const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// Offsets in bytes: RFC 9293, 3.1 and RFC 9260, 3.
const SOURCE_PORT: u32 = 0;
const TCP_FLAGS: u32 = 13;
const SCTP_FIRST_CHUNK: u32 = 12;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// The type of an SCTP chunk that is the only one of its packet.
const INIT: u8 = 1;

/// The attributes of the `nat` expression, which the crate does not know, and their values.
const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFT_NAT_SNAT: u32 = 0;

/// Elements of one message: an attribute is at most 65,535 bytes long, an element takes 36.
const ELEMENTS: usize = 1024;

type Expression = ListAttribute<ExpressionAttribute>;

/// What a rule has to know of a version of IP.
pub(super) struct Family {
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    protocol: u8,
    /// Where the source address is, in bytes from the header's start (RFC 791, 3.1; RFC 8200, 3).
    pub(super) source: u32,
    /// Its length in bytes.
    pub(super) length: u32,
    /// Where the parts of a set's key are put together: address, protocol, port. Each fills whole 32-bit registers.
    registers: [Register; 3],
    /// nft(8)'s id of the address's type: only so that nft can print the sets.
    address_type: u32,
}

pub(super) const IPV4: Family = Family {
    protocol: 2,
    source: 12,
    length: 4,
    registers: [Register::Reg32_00, Register::Reg32_01, Register::Reg32_02],
    address_type: 7,
};
pub(super) const IPV6: Family = Family {
    protocol: 10,
    source: 8,
    length: 16,
    registers: [Register::Reg32_00, Register::Reg32_04, Register::Reg32_05],
    address_type: 8,
};

/// A set of backends.
struct Set {
    name: &'static str,
    family: &'static Family,
    /// With their ports, or every port of an address and protocol.
    ports: bool,
}

/// In the order of [`Set::of`].
const SETS: [Set; 4] = [
    Set { name: "backends4", family: &IPV4, ports: true },
    Set { name: "addresses4", family: &IPV4, ports: false },
    Set { name: "backends6", family: &IPV6, ports: true },
    Set { name: "addresses6", family: &IPV6, ports: false },
];

impl Set {
    /// The place in [`SETS`] of the set that a backend belongs to.
    fn of(backend: LocalBackend) -> usize {
        2 * usize::from(backend.address.is_ipv6()) + usize::from(backend.port == 0)
    }

    /// Each part of a concatenation is six bits of the type: `inet_proto` and `inet_service` after the address.
    fn key_type(&self) -> u32 {
        let address_and_protocol = self.family.address_type << 6 | 0x0c;
        if self.ports { address_and_protocol << 6 | 0x0d } else { address_and_protocol }
    }

    fn key_bytes(&self) -> u32 {
        self.family.length + if self.ports { 8 } else { 4 }
    }
}

/// Replaces the table, if there is one, by a new one with these backends.
pub(super) fn replace(socket: &mut Socket, backends: &BTreeSet<LocalBackend>) -> Result<(), SnatError> {
    let mut changes = vec![
        // Deleting a table that is not there fails, so it is made first.
        Change::Create(NfTablesMessage::NewTable(table())),
        Change::Delete(NfTablesMessage::DeleteTable(table())),
        Change::Create(NfTablesMessage::NewTable(table())),
        Change::Create(NfTablesMessage::NewChain(chain())),
    ];
    changes.extend((1..).zip(&SETS).map(|(id, wanted)| Change::Create(NfTablesMessage::NewSet(set(id, wanted)))));
    let rules = [return_bare_syn(), return_init()].into_iter().chain(SETS.iter().map(keep_source));
    changes.extend(rules.map(|rule| Change::Append(NfTablesMessage::NewRule(rule))));
    let backends: Vec<_> = backends.iter().copied().collect();
    changes.extend(elements(&backends).map(NfTablesMessage::NewSetElement).map(Change::Create));
    socket.commit("make the identity SNAT chain", changes)
}

/// Adds and removes elements of the set.
pub(super) fn update(socket: &mut Socket, added: &[LocalBackend], removed: &[LocalBackend]) -> Result<(), SnatError> {
    let gone = elements(removed).map(NfTablesMessage::DeleteSetElement).map(Change::Delete);
    let come = elements(added).map(NfTablesMessage::NewSetElement).map(Change::Create);
    socket.commit("update the identity SNAT's backends", gone.chain(come).collect())
}

/// Removes the table, if there is one.
pub(super) fn remove(socket: &mut Socket) -> Result<(), SnatError> {
    let changes =
        vec![Change::Create(NfTablesMessage::NewTable(table())), Change::Delete(NfTablesMessage::DeleteTable(table()))];
    socket.commit("remove the identity SNAT chain", changes)
}

/// The handle that the kernel gave the table; `None`: there is no table.
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

/// Rules of the same transaction name the set by its name; the kernel wants an id nevertheless.
fn set(id: u32, set: &Set) -> SetMessage {
    SetMessage {
        attributes: vec![
            SetAttribute::Table(TABLE.to_owned()),
            SetAttribute::Name(set.name.to_owned()),
            SetAttribute::Flags(SetFlags::empty()),
            SetAttribute::KeyType(set.key_type()),
            SetAttribute::KeyLen(set.key_bytes()),
            SetAttribute::Id(id),
        ],
    }
}

fn chain() -> ChainMessage {
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(TABLE.to_owned()),
            ChainAttribute::Name(CHAIN.to_owned()),
            ChainAttribute::Hook(vec![Hook::Number(InetHookNumber::PostRouting.into()), Hook::Priority(PRIORITY)]),
            ChainAttribute::Policy(ACCEPT),
            ChainAttribute::Type("nat".to_owned()),
        ],
    }
}

/// `meta nfproto ipv4 ip saddr . meta l4proto . th sport @backends4 counter snat ip to ip saddr`.
fn keep_source(set: &Set) -> RuleMessage {
    let Family { protocol, source, length, registers, .. } = *set.family;
    let [address, transport, port] = registers;
    let mut expressions = vec![
        meta(MetaKey::Nfproto, Register::Reg1),
        compare(Operator::Equal, &[protocol]),
        load(NETWORK, source, length, address),
        meta(MetaKey::L4Proto, transport),
    ];
    if set.ports {
        expressions.push(load(TRANSPORT, SOURCE_PORT, 2, port));
    }
    expressions.extend([
        Expressions::Lookup(vec![Lookup::Set(set.name.to_owned()), Lookup::SourceRegister(address)]).into(),
        other("counter", vec![]),
        load(NETWORK, source, length, Register::Reg1),
        snat_to(protocol, Register::Reg1),
    ]);
    rule(expressions)
}

/// `tcp flags & (syn | ack) == syn return`.
fn return_bare_syn() -> RuleMessage {
    let masked = Expressions::Bitwise(vec![
        Bitwise::SourceRegister(Register::Reg1),
        Bitwise::DestinationRegister(Register::Reg1),
        Bitwise::Length(1),
        Bitwise::Mask(DataAttribute::Value(vec![SYN | ACK])),
        Bitwise::Xor(DataAttribute::Value(vec![0])),
    ]);
    let flags = [load(TRANSPORT, TCP_FLAGS, 1, Register::Reg1), masked.into(), compare(Operator::Equal, &[SYN])];
    return_if(Protocol::Tcp, flags)
}

/// `meta l4proto sctp @th,96,8 1 return`; the first chunk's type as plain bytes, which every kernel can load.
fn return_init() -> RuleMessage {
    return_if(Protocol::Sctp, [load(TRANSPORT, SCTP_FIRST_CHUNK, 1, Register::Reg1), compare(Operator::Equal, &[INIT])])
}

fn return_if(protocol: Protocol, condition: impl IntoIterator<Item = Expression>) -> RuleMessage {
    let mut expressions = vec![meta(MetaKey::L4Proto, Register::Reg1), compare(Operator::Equal, &[protocol.number()])];
    expressions.extend(condition);
    let verdict = DataAttribute::Verdict(vec![VerdictAttribute::Code(Verdict::Return)]);
    let verdict = vec![Immediate::DestinationRegister(Register::Verdict), Immediate::Data(verdict)];
    expressions.push(Expressions::Immediate(verdict).into());
    rule(expressions)
}

fn rule(expressions: Vec<Expression>) -> RuleMessage {
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(TABLE.to_owned()),
            RuleAttribute::Chain(CHAIN.to_owned()),
            RuleAttribute::Expressions(expressions),
        ],
    }
}

fn meta(key: MetaKey, register: Register) -> Expression {
    Expressions::Meta(vec![Meta::Key(key), Meta::DestinationRegister(register)]).into()
}

/// Loads `length` bytes of a header; the rest of the 32-bit register becomes zero.
pub(super) fn load(base: u32, offset: u32, length: u32, register: Register) -> Expression {
    Expressions::Payload(vec![
        Payload::DestinationRegister(register),
        Payload::Base(base),
        Payload::Offset(offset),
        Payload::Len(length),
    ])
    .into()
}

/// Compares what [`Register::Reg1`] starts with.
pub(super) fn compare(operator: Operator, value: &[u8]) -> Expression {
    let value = DataAttribute::Value(value.to_vec());
    Expressions::Cmp(vec![Cmp::SourceRegister(Register::Reg1), Cmp::Op(operator), Cmp::Data(value)]).into()
}

fn snat_to(family: u8, address: Register) -> Expression {
    let be32 = |kind, value: u32| DefaultNla::new(kind, value.to_be_bytes().to_vec());
    other(
        "nat",
        vec![
            be32(NFTA_NAT_TYPE, NFT_NAT_SNAT),
            be32(NFTA_NAT_FAMILY, family.into()),
            be32(NFTA_NAT_REG_ADDR_MIN, address.into()),
        ],
    )
}

/// An expression that the crate has no type for.
pub(super) fn other(name: &str, attributes: Vec<DefaultNla>) -> Expression {
    Expressions::Other { expression_type: name.to_owned(), attributes }.into()
}

/// Messages that carry these elements.
fn elements(backends: &[LocalBackend]) -> impl Iterator<Item = SetElementMessage> {
    let mut by_set = [(); SETS.len()].map(|()| Vec::new());
    for &backend in backends {
        let element = SetElementAttribute::Key(DataAttribute::Value(key(backend)));
        by_set[Set::of(backend)].push(ListAttribute::Element(vec![element]));
    }
    SETS.iter().zip(by_set).flat_map(|(set, elements)| {
        let message = |elements: &[_]| SetElementMessage {
            attributes: vec![
                SetElementList::Table(TABLE.to_owned()),
                SetElementList::Set(set.name.to_owned()),
                SetElementList::Elements(elements.to_vec()),
            ],
        };
        elements.chunks(ELEMENTS).map(message).collect::<Vec<_>>()
    })
}

/// The set's key: each part in network byte order, at the start of its 32-bit registers.
fn key(backend: LocalBackend) -> Vec<u8> {
    let mut key = match backend.address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    key.extend([backend.protocol.number(), 0, 0, 0]);
    if backend.port != 0 {
        let [high, low] = backend.port.to_be_bytes();
        key.extend([high, low, 0, 0]);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(address: &str, port: u16) -> LocalBackend {
        LocalBackend { address: address.parse().unwrap(), protocol: Protocol::Udp, port }
    }

    #[test]
    fn a_key_has_each_part_in_its_own_register() {
        let v6 = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        let protocol = [17, 0, 0, 0];
        let port = [0x14, 0xe9, 0, 0];
        for (backend, name, expected) in [
            (backend("10.244.1.2", 5353), "backends4", [&[10, 244, 1, 2][..], &protocol, &port].concat()),
            (backend("10.244.1.2", 0), "addresses4", [&[10, 244, 1, 2][..], &protocol].concat()),
            (backend("2001:db8::2", 5353), "backends6", [&v6[..], &protocol, &port].concat()),
            (backend("2001:db8::2", 0), "addresses6", [&v6[..], &protocol].concat()),
        ] {
            let set = &SETS[Set::of(backend)];
            assert_eq!((set.name, key(backend)), (name, expected));
            assert_eq!(key(backend).len(), set.key_bytes() as usize);
        }
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
