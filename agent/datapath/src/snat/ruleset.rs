//! Builds the nftables messages of the table (include/uapi/linux/netfilter/nf_tables.h).
//!
//! netlink-packet-netfilter has no types for the expressions `nat`, `counter` and `notrack`: these
//! are `Expressions::Other`.

use imbl::OrdSet;
use std::{net::IpAddr, num::NonZeroU16};

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
    Element, SnatError,
    transaction::{Socket, TransactionMessage},
};
use vipmux_model::Protocol;

/// The table's name.
pub(super) const TABLE: &str = "vipmux";
const ACCEPT: u32 = 1;

/// A chain at one of netfilter's hooks.
struct BaseChain {
    name: &'static str,
    kind: &'static str,
    hook: InetHookNumber,
    priority: i32,
}

/// Its priority is just before `NF_IP_PRI_NAT_SRC` (100), where kube-proxy and the CNIs masquerade.
const POSTROUTING: BaseChain =
    BaseChain { name: "postrouting", kind: "nat", hook: InetHookNumber::PostRouting, priority: 99 };
/// Its priority is `NF_IP_PRI_RAW`: before connection tracking, and after defragmentation.
const PREROUTING: BaseChain =
    BaseChain { name: "prerouting", kind: "filter", hook: InetHookNumber::PreRouting, priority: -300 };

/// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
pub(super) const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// Offsets in bytes: RFC 9293, 3.1 and RFC 9260, 3.
const SOURCE_PORT: u32 = 0;
const TCP_FLAGS: u32 = 13;
const SCTP_FIRST_CHUNK: u32 = 12;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// The chunk type INIT. Such a chunk is the only one of its packet.
const INIT: u8 = 1;

/// Attributes of the `nat` expression, and their values.
const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFT_NAT_SNAT: u32 = 0;

/// The limit of elements per message: an attribute has at most 65,535 bytes, an element takes 36.
const ELEMENTS: usize = 1024;

type Expression = ListAttribute<ExpressionAttribute>;

/// The constants of an IP version for rules.
pub(super) struct FamilyLayout {
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    protocol: u8,
    /// The offset of the source address in the header, bytes (RFC 791, 3.1; RFC 8200, 3).
    pub(super) source: u32,
    /// The length of an address, bytes.
    pub(super) length: u32,
    /// The registers of a set's key: address, protocol, port. Each part fills whole 32-bit
    /// registers.
    registers: [Register; 3],
    /// nft(8)'s id of the address type. It only helps nft to print the sets.
    address_type: u32,
    /// The protocol number of ICMP.
    icmp: u8,
}

pub(super) const IPV4: FamilyLayout = FamilyLayout {
    protocol: 2,
    source: 12,
    length: 4,
    registers: [Register::Reg32_00, Register::Reg32_01, Register::Reg32_02],
    address_type: 7,
    icmp: 1,
};
pub(super) const IPV6: FamilyLayout = FamilyLayout {
    protocol: 10,
    source: 8,
    length: 16,
    registers: [Register::Reg32_00, Register::Reg32_04, Register::Reg32_05],
    address_type: 8,
    icmp: 58,
};

/// nft(8)'s id of the type of interface indices.
const INTERFACE_TYPE: u32 = 20;

/// A set of sources.
struct NftSourceSet {
    name: &'static str,
    family: &'static FamilyLayout,
    /// The keys have a port. Otherwise they stand for all ports of an address and protocol.
    ports: bool,
}

/// All sets but [`UPLINKS`], in the order of [`set_and_key`]: those of backends, then those of
/// direct server return.
const SETS: [NftSourceSet; 8] = [
    NftSourceSet { name: "backends4", family: &IPV4, ports: true },
    NftSourceSet { name: "addresses4", family: &IPV4, ports: false },
    NftSourceSet { name: "backends6", family: &IPV6, ports: true },
    NftSourceSet { name: "addresses6", family: &IPV6, ports: false },
    NftSourceSet { name: "direct4", family: &IPV4, ports: true },
    NftSourceSet { name: "direct_addresses4", family: &IPV4, ports: false },
    NftSourceSet { name: "direct6", family: &IPV6, ports: true },
    NftSourceSet { name: "direct_addresses6", family: &IPV6, ports: false },
];
/// The number of sets of backends. The other sets exist only with [`PREROUTING`].
const ALWAYS: usize = 4;
/// The set of interfaces, the last one in [`set_and_key`].
const UPLINKS: &str = "uplinks";

/// Returns the index of an element's set, and its key.
fn set_and_key(element: Element) -> (usize, Vec<u8>) {
    let (first, address, protocol, port) = match element {
        Element::Backend(backend) => (0, backend.address, backend.protocol.number(), backend.port),
        Element::Direct(claim) => (ALWAYS, claim.vip.address(), claim.protocol.number(), claim.port.one()),
        Element::DirectErrors(vip) => {
            (ALWAYS, vip.address(), if vip.address().is_ipv4() { IPV4.icmp } else { IPV6.icmp }, None)
        }
        Element::Uplink(ifindex) => return (SETS.len(), ifindex.to_ne_bytes().to_vec()),
    };
    (first + 2 * usize::from(address.is_ipv6()) + usize::from(port.is_none()), key(address, protocol, port))
}

impl NftSourceSet {
    /// Returns the type of the key. Each part of a concatenation takes six bits: the address, then
    /// `inet_proto` and `inet_service`.
    fn key_type(&self) -> u32 {
        let address_and_protocol = self.family.address_type << 6 | 0x0c;
        if self.ports { address_and_protocol << 6 | 0x0d } else { address_and_protocol }
    }

    fn key_bytes(&self) -> u32 {
        self.family.length + if self.ports { 8 } else { 4 }
    }
}

/// Replaces the table, or makes it, with these elements.
pub(super) fn replace(socket: &mut Socket, desired: &OrdSet<Element>) -> Result<(), SnatError> {
    socket.commit("make the identity SNAT chain", replacement(desired))
}

/// Checks whether the kernel accepts [`replace`], without a change.
pub(super) fn check(socket: &mut Socket, desired: &OrdSet<Element>) -> Result<(), SnatError> {
    socket.check("make the identity SNAT chain", replacement(desired))
}

fn replacement(desired: &OrdSet<Element>) -> Vec<TransactionMessage> {
    let direct = super::has_direct(desired);
    let (always, also) = SETS.split_at(ALWAYS);
    let also = if direct { also } else { &[] };
    let mut sets: Vec<_> = always.iter().chain(also).map(|set| (set.name, set.key_type(), set.key_bytes())).collect();
    let mut rules: Vec<_> =
        [return_bare_syn(), return_init()].into_iter().chain(always.iter().map(keep_source)).collect();
    let mut chains = vec![&POSTROUTING];
    if direct {
        sets.push((UPLINKS, INTERFACE_TYPE, 4));
        chains.push(&PREROUTING);
        rules.push(return_uplinks());
        rules.extend(also.iter().map(leave_untracked));
    }
    let mut changes = vec![
        // To delete a missing table is an error, so it is made first.
        TransactionMessage::Create(NfTablesMessage::NewTable(table())),
        TransactionMessage::Delete(NfTablesMessage::DeleteTable(table())),
        TransactionMessage::Create(NfTablesMessage::NewTable(table())),
    ];
    changes.extend(
        chains.into_iter().map(|desired| TransactionMessage::Create(NfTablesMessage::NewChain(chain(desired)))),
    );
    changes.extend(
        (1..).zip(sets).map(|(id, desired)| TransactionMessage::Create(NfTablesMessage::NewSet(set(id, desired)))),
    );
    changes.extend(rules.into_iter().map(|rule| TransactionMessage::Append(NfTablesMessage::NewRule(rule))));
    let desired: Vec<_> = desired.iter().copied().collect();
    changes.extend(elements(&desired).map(NfTablesMessage::NewSetElement).map(TransactionMessage::Create));
    changes
}

/// Adds and removes elements of the sets.
pub(super) fn update(socket: &mut Socket, added: &[Element], removed: &[Element]) -> Result<(), SnatError> {
    let gone = elements(removed).map(NfTablesMessage::DeleteSetElement).map(TransactionMessage::Delete);
    let come = elements(added).map(NfTablesMessage::NewSetElement).map(TransactionMessage::Create);
    socket.commit("update the identity SNAT's sets", gone.chain(come).collect())
}

/// Removes the table, if it exists.
pub(super) fn remove(socket: &mut Socket) -> Result<(), SnatError> {
    let changes = vec![
        TransactionMessage::Create(NfTablesMessage::NewTable(table())),
        TransactionMessage::Delete(NfTablesMessage::DeleteTable(table())),
    ];
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

/// Returns a message that makes a set. The rules of the transaction use the set's name; the kernel
/// requires an id as well.
fn set(id: u32, (name, key_type, key_bytes): (&str, u32, u32)) -> SetMessage {
    SetMessage {
        attributes: vec![
            SetAttribute::Table(TABLE.to_owned()),
            SetAttribute::Name(name.to_owned()),
            SetAttribute::Flags(SetFlags::empty()),
            SetAttribute::KeyType(key_type),
            SetAttribute::KeyLen(key_bytes),
            SetAttribute::Id(id),
        ],
    }
}

fn chain(chain: &BaseChain) -> ChainMessage {
    let priority = Hook::Priority(chain.priority.cast_unsigned());
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(TABLE.to_owned()),
            ChainAttribute::Name(chain.name.to_owned()),
            ChainAttribute::Hook(vec![Hook::Number(chain.hook.into()), priority]),
            ChainAttribute::Policy(ACCEPT),
            ChainAttribute::Type(chain.kind.to_owned()),
        ],
    }
}

/// `meta nfproto ipv4 ip saddr . meta l4proto . th sport @backends4 counter snat ip to ip saddr`.
fn keep_source(set: &NftSourceSet) -> RuleMessage {
    let FamilyLayout { protocol, source, length, .. } = *set.family;
    let identity = [load(NETWORK, source, length, Register::Reg1), snat_to(protocol, Register::Reg1)];
    rule(&POSTROUTING, comes_from(set).into_iter().chain(identity).collect())
}

/// `meta nfproto ipv4 ip saddr . meta l4proto . th sport @direct4 counter notrack`.
fn leave_untracked(set: &NftSourceSet) -> RuleMessage {
    rule(&PREROUTING, comes_from(set).into_iter().chain([other("notrack", vec![])]).collect())
}

/// `iif @uplinks return`.
fn return_uplinks() -> RuleMessage {
    let lookup = vec![Lookup::Set(UPLINKS.to_owned()), Lookup::SourceRegister(Register::Reg1)];
    rule(&PREROUTING, vec![meta(MetaKey::Iif, Register::Reg1), Expressions::Lookup(lookup).into(), return_verdict()])
}

/// Returns the expressions that match packets whose source is in the set.
fn comes_from(set: &NftSourceSet) -> Vec<Expression> {
    let FamilyLayout { protocol, source, length, registers, .. } = *set.family;
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
    ]);
    expressions
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

/// `meta l4proto sctp @th,96,8 1 return`. The type of the first chunk is loaded as plain bytes,
/// which every kernel supports.
fn return_init() -> RuleMessage {
    return_if(Protocol::Sctp, [load(TRANSPORT, SCTP_FIRST_CHUNK, 1, Register::Reg1), compare(Operator::Equal, &[INIT])])
}

fn return_if(protocol: Protocol, condition: impl IntoIterator<Item = Expression>) -> RuleMessage {
    let mut expressions = vec![meta(MetaKey::L4Proto, Register::Reg1), compare(Operator::Equal, &[protocol.number()])];
    expressions.extend(condition);
    expressions.push(return_verdict());
    rule(&POSTROUTING, expressions)
}

fn return_verdict() -> Expression {
    let verdict = DataAttribute::Verdict(vec![VerdictAttribute::Code(Verdict::Return)]);
    Expressions::Immediate(vec![Immediate::DestinationRegister(Register::Verdict), Immediate::Data(verdict)]).into()
}

fn rule(chain: &BaseChain, expressions: Vec<Expression>) -> RuleMessage {
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(TABLE.to_owned()),
            RuleAttribute::Chain(chain.name.to_owned()),
            RuleAttribute::Expressions(expressions),
        ],
    }
}

fn meta(key: MetaKey, register: Register) -> Expression {
    Expressions::Meta(vec![Meta::Key(key), Meta::DestinationRegister(register)]).into()
}

/// Loads `length` bytes of a header. The rest of the 32-bit register becomes zero.
pub(super) fn load(base: u32, offset: u32, length: u32, register: Register) -> Expression {
    Expressions::Payload(vec![
        Payload::DestinationRegister(register),
        Payload::Base(base),
        Payload::Offset(offset),
        Payload::Len(length),
    ])
    .into()
}

/// Compares the first bytes of [`Register::Reg1`].
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

/// Returns an expression for which netlink-packet-netfilter has no type.
pub(super) fn other(name: &str, attributes: Vec<DefaultNla>) -> Expression {
    Expressions::Other { expression_type: name.to_owned(), attributes }.into()
}

/// Returns the messages with these elements.
fn elements(all: &[Element]) -> impl Iterator<Item = SetElementMessage> {
    let mut by_set = [(); SETS.len() + 1].map(|()| Vec::new());
    for &element in all {
        let (set, key) = set_and_key(element);
        let element = SetElementAttribute::Key(DataAttribute::Value(key));
        by_set[set].push(ListAttribute::Element(vec![element]));
    }
    SETS.iter().map(|set| set.name).chain([UPLINKS]).zip(by_set).flat_map(|(set, elements)| {
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
            let set = &SETS[place];
            assert_eq!(key.len(), set.key_bytes() as usize);
            assert_eq!((set.name, key), (name, expected));
        }
        assert_eq!(set_and_key(Element::Uplink(7)), (SETS.len(), 7_u32.to_ne_bytes().to_vec()));
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
