//! Builds nftables expressions, the parts of rules (include/uapi/linux/netfilter/nf_tables.h).
//!
//! netlink-packet-netfilter has no types for `nat`, `counter`, `notrack` and `dynset`: these are
//! `Expressions::Other`.

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::nftables::{
    Bitwise, Cmp, DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute, Lookup, Meta, MetaKey,
    Operator, Payload, Register, Verdict, VerdictAttribute,
};

/// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
pub(super) const NETWORK: u32 = 1;
pub(super) const TRANSPORT: u32 = 2;

/// Attributes of the `nat` expression, and their values.
const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFT_NAT_SNAT: u32 = 0;

/// Attributes of the `dynset` expression, and their values.
const NFTA_DYNSET_SET_NAME: u16 = 1;
const NFTA_DYNSET_OP: u16 = 3;
const NFTA_DYNSET_SREG_KEY: u16 = 4;
const NFTA_DYNSET_TIMEOUT: u16 = 6;
const NFT_DYNSET_OP_UPDATE: u32 = 1;

/// `NFT_LOOKUP_F_INV`.
const INVERTED: u32 = 1;

pub(super) type Expression = ListAttribute<ExpressionAttribute>;

/// Loads a property of the packet.
pub(super) fn meta(key: MetaKey, register: Register) -> Expression {
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

/// Keeps only these bits of the first byte of [`Register::Reg1`].
pub(super) fn mask(bits: u8) -> Expression {
    Expressions::Bitwise(vec![
        Bitwise::SourceRegister(Register::Reg1),
        Bitwise::DestinationRegister(Register::Reg1),
        Bitwise::Length(1),
        Bitwise::Mask(DataAttribute::Value(vec![bits])),
        Bitwise::Xor(DataAttribute::Value(vec![0])),
    ])
    .into()
}

/// Ends the rule unless the key that starts at `key` is in a set.
pub(super) fn is_in(set: &str, key: Register) -> Expression {
    Expressions::Lookup(vec![Lookup::Set(set.to_owned()), Lookup::SourceRegister(key)]).into()
}

/// Ends the rule if the key is in a set.
pub(super) fn is_not_in(set: &str, key: Register) -> Expression {
    let lookup = vec![Lookup::Set(set.to_owned()), Lookup::SourceRegister(key), Lookup::Flags(INVERTED)];
    Expressions::Lookup(lookup).into()
}

/// Adds the key to a set, or starts its time anew. Ends the rule if the set is full.
pub(super) fn update(set: &str, key: Register, seconds: u32) -> Expression {
    let timeout = u64::from(seconds) * 1_000;
    other(
        "dynset",
        vec![
            DefaultNla::new(NFTA_DYNSET_SET_NAME, [set.as_bytes(), &[0]].concat()),
            be32(NFTA_DYNSET_OP, NFT_DYNSET_OP_UPDATE),
            be32(NFTA_DYNSET_SREG_KEY, key.into()),
            DefaultNla::new(NFTA_DYNSET_TIMEOUT, timeout.to_be_bytes().to_vec()),
        ],
    )
}

/// Translates the source of the packet's connection to the address at a register.
pub(super) fn snat_to(family: u8, address: Register) -> Expression {
    other(
        "nat",
        vec![
            be32(NFTA_NAT_TYPE, NFT_NAT_SNAT),
            be32(NFTA_NAT_FAMILY, family.into()),
            be32(NFTA_NAT_REG_ADDR_MIN, address.into()),
        ],
    )
}

/// Counts packets.
pub(super) fn counter() -> Expression {
    other("counter", vec![])
}

/// Ends the chain.
pub(super) fn return_verdict() -> Expression {
    let verdict = DataAttribute::Verdict(vec![VerdictAttribute::Code(Verdict::Return)]);
    Expressions::Immediate(vec![Immediate::DestinationRegister(Register::Verdict), Immediate::Data(verdict)]).into()
}

/// Returns an expression for which netlink-packet-netfilter has no type.
pub(super) fn other(name: &str, attributes: Vec<DefaultNla>) -> Expression {
    Expressions::Other { expression_type: name.to_owned(), attributes }.into()
}

fn be32(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_be_bytes().to_vec())
}
