//! The nftables messages (include/uapi/linux/netfilter/nf_tables.h).

use std::collections::BTreeSet;

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::{
    NetfilterMessageInner,
    nftables::{
        Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, ExpressionAttribute, Expressions, Hook,
        InetHookNumber, ListAttribute, Lookup, Meta, MetaKey, NfTablesMessage, Operator, Payload, Register,
        RuleAttribute, RuleMessage, SetAttribute, SetElementAttribute, SetElementList, SetElementMessage, SetFlags,
        SetMessage, TableAttribute, TableMessage,
    },
};

use super::{
    LocalBackend, SnatError,
    transaction::{Change, Socket},
};
use crate::model::Protocol;

/// The table's name.
pub(super) const TABLE: &str = "vipmux";
/// The set's name.
pub(super) const SET: &str = "backends";
const CHAIN: &str = "postrouting";

/// Just before `NF_IP_PRI_NAT_SRC` (100), where kube-proxy and the CNIs masquerade.
const PRIORITY: u32 = 99;
const ACCEPT: u32 = 1;

/// nft(8)'s ids of `ipv4_addr`, `inet_proto` and `inet_service`, six bits each: only so that nft can print the set.
const KEY_TYPE: u32 = (0x07 << 12) | (0x0c << 6) | 0x0d;
/// Each part of a concatenation fills whole 32-bit registers.
const KEY_BYTES: u32 = 12;

/// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
pub(super) const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// Offsets in bytes: RFC 791, 3.1 and RFC 9293, 3.1.
const IP_PROTOCOL: u32 = 9;
pub(super) const IP_SOURCE: u32 = 12;
const SOURCE_PORT: u32 = 0;
const TCP_FLAGS: u32 = 13;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// The attributes of the `nat` expression, which the crate does not know, and their values.
const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFT_NAT_SNAT: u32 = 0;
const NFPROTO_IPV4: u32 = 2;

/// Elements of one message: an attribute is at most 65,535 bytes long, an element takes 24.
const ELEMENTS: usize = 2048;

type Expression = ListAttribute<ExpressionAttribute>;

/// Replaces the table, if there is one, by a new one with these backends.
pub(super) fn replace(socket: &mut Socket, backends: &BTreeSet<LocalBackend>) -> Result<(), SnatError> {
    let mut changes = vec![
        // Deleting a table that is not there fails, so it is made first.
        Change::Create(NfTablesMessage::NewTable(table())),
        Change::Delete(NfTablesMessage::DeleteTable(table())),
        Change::Create(NfTablesMessage::NewTable(table())),
        Change::Create(NfTablesMessage::NewSet(set())),
        Change::Create(NfTablesMessage::NewChain(chain())),
        Change::Append(NfTablesMessage::NewRule(rule(Protocol::Udp, vec![]))),
        Change::Append(NfTablesMessage::NewRule(rule(Protocol::Tcp, unless_bare_syn()))),
    ];
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

fn set() -> SetMessage {
    SetMessage {
        attributes: vec![
            SetAttribute::Table(TABLE.to_owned()),
            SetAttribute::Name(SET.to_owned()),
            SetAttribute::Flags(SetFlags::empty()),
            SetAttribute::KeyType(KEY_TYPE),
            SetAttribute::KeyLen(KEY_BYTES),
            // Rules of this transaction name the set by its name; the kernel wants an id nevertheless.
            SetAttribute::Id(1),
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

/// `meta l4proto <protocol> <condition> ip saddr . ip protocol . th sport @backends counter snat to ip saddr`.
fn rule(protocol: Protocol, condition: Vec<Expression>) -> RuleMessage {
    let mut expressions = vec![
        Expressions::Meta(vec![Meta::Key(MetaKey::L4Proto), Meta::DestinationRegister(Register::Reg1)]).into(),
        compare(Operator::Equal, &[protocol.number()]),
    ];
    expressions.extend(condition);
    expressions.extend([
        load(NETWORK, IP_SOURCE, 4, Register::Reg32_00),
        load(NETWORK, IP_PROTOCOL, 1, Register::Reg32_01),
        load(TRANSPORT, SOURCE_PORT, 2, Register::Reg32_02),
        Expressions::Lookup(vec![Lookup::Set(SET.to_owned()), Lookup::SourceRegister(Register::Reg32_00)]).into(),
        other("counter", vec![]),
        load(NETWORK, IP_SOURCE, 4, Register::Reg1),
        snat_to(Register::Reg1),
    ]);
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(TABLE.to_owned()),
            RuleAttribute::Chain(CHAIN.to_owned()),
            RuleAttribute::Expressions(expressions),
        ],
    }
}

/// `tcp flags & (syn | ack) != syn`.
fn unless_bare_syn() -> Vec<Expression> {
    let masked = Expressions::Bitwise(vec![
        Bitwise::SourceRegister(Register::Reg1),
        Bitwise::DestinationRegister(Register::Reg1),
        Bitwise::Length(1),
        Bitwise::Mask(DataAttribute::Value(vec![SYN | ACK])),
        Bitwise::Xor(DataAttribute::Value(vec![0])),
    ]);
    vec![load(TRANSPORT, TCP_FLAGS, 1, Register::Reg1), masked.into(), compare(Operator::NotEqual, &[SYN])]
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

fn snat_to(address: Register) -> Expression {
    let be32 = |kind, value: u32| DefaultNla::new(kind, value.to_be_bytes().to_vec());
    other(
        "nat",
        vec![
            be32(NFTA_NAT_TYPE, NFT_NAT_SNAT),
            be32(NFTA_NAT_FAMILY, NFPROTO_IPV4),
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
    backends.chunks(ELEMENTS).map(|backends| {
        let element = |&backend: &LocalBackend| {
            ListAttribute::Element(vec![SetElementAttribute::Key(DataAttribute::Value(key(backend)))])
        };
        SetElementMessage {
            attributes: vec![
                SetElementList::Table(TABLE.to_owned()),
                SetElementList::Set(SET.to_owned()),
                SetElementList::Elements(backends.iter().map(element).collect()),
            ],
        }
    })
}

/// The set's key: each part in network byte order, at the start of its 32-bit register.
fn key(backend: LocalBackend) -> Vec<u8> {
    let [a, b, c, d] = backend.address.octets();
    let [high, low] = backend.port.to_be_bytes();
    vec![a, b, c, d, backend.protocol.number(), 0, 0, 0, high, low, 0, 0]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_key_has_each_part_in_its_own_register() {
        let backend = LocalBackend { address: Ipv4Addr::new(10, 244, 1, 2), protocol: Protocol::Udp, port: 5353 };
        assert_eq!(key(backend), [10, 244, 1, 2, 17, 0, 0, 0, 0x14, 0xe9, 0, 0]);
        assert_eq!(key(backend).len(), KEY_BYTES as usize);
    }

    #[test]
    fn no_message_outgrows_an_attribute() {
        let backend = LocalBackend { address: Ipv4Addr::LOCALHOST, protocol: Protocol::Tcp, port: 80 };
        let counts: Vec<_> = elements(&vec![backend; ELEMENTS + 1])
            .map(|message| match &message.attributes[2] {
                SetElementList::Elements(elements) => elements.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(counts, [ELEMENTS, 1]);
        const { assert!(ELEMENTS * 24 < u16::MAX as usize) };
    }
}
