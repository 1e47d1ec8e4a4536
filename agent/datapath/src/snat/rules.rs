//! The chains of the table, and their rules.

use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Hook, InetHookNumber, MetaKey, Operator, Register, RuleAttribute, RuleMessage,
};

use super::{
    expression::{
        Expression, NETWORK, TRANSPORT, compare, counter, is_in, is_not_in, load, mask, meta, other, return_verdict,
        snat_to, update,
    },
    sets::{ClientSet, DIRECT, FamilyLayout, NftSet, SOURCES, TABLE, UPLINKS},
};
use vipmux_model::Protocol;

const ACCEPT: u32 = 1;

/// Offsets in bytes: RFC 9293, 3.1 and RFC 9260, 3.
const SOURCE_PORT: u32 = 0;
const DESTINATION_PORT: u32 = 2;
const TCP_FLAGS: u32 = 13;
const SCTP_FIRST_CHUNK: u32 = 12;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// The chunk type INIT. Such a chunk is the only one of its packet.
const INIT: u8 = 1;

/// Where an address and a port of a packet are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Source,
    Destination,
}

impl FamilyLayout {
    fn is_of_family(&self) -> [Expression; 2] {
        [meta(MetaKey::Nfproto, Register::Reg1), compare(Operator::Equal, &[self.protocol])]
    }

    fn load_address(&self, end: End, register: Register) -> Expression {
        let offset = self.source + if end == End::Destination { self.length } else { 0 };
        load(NETWORK, offset, self.length, register)
    }

    /// Loads a client's key from a packet, whose sender is the client or the backend.
    fn load_client(&self, client: End) -> [Expression; 4] {
        let backend = if client == End::Source { End::Destination } else { End::Source };
        let [address, backend_address, port, backend_port] = self.client_registers;
        [
            self.load_address(client, address),
            self.load_address(backend, backend_address),
            load_port(client, port),
            load_port(backend, backend_port),
        ]
    }
}

fn load_port(end: End, register: Register) -> Expression {
    load(TRANSPORT, if end == End::Source { SOURCE_PORT } else { DESTINATION_PORT }, 2, register)
}

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
/// Its priority is `NF_IP_PRI_RAW`: before connection tracking, and after defragmentation. What
/// answers a masqueraded packet still has the node's address as its destination here.
const PREROUTING: BaseChain =
    BaseChain { name: "prerouting", kind: "filter", hook: InetHookNumber::PreRouting, priority: -300 };

/// Returns all chains.
pub(super) fn chains() -> impl Iterator<Item = ChainMessage> {
    [&POSTROUTING, &PREROUTING].into_iter().map(chain)
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

/// Returns all rules, in the order of their chains. `remembered`: how long a client is remembered,
/// seconds. `direct`: there are backends with direct server return.
pub(super) fn rules(remembered: u32, direct: bool) -> Vec<RuleMessage> {
    let clients = &ClientSet::ALL;
    let untracked = [return_uplinks()].into_iter().chain(DIRECT.iter().map(leave_untracked));
    [return_bare_syn(), return_init()]
        .into_iter()
        .chain(clients.iter().map(return_unless_to_a_client))
        .chain(SOURCES.iter().map(keep_source))
        .chain((!direct).then(return_unless_udp))
        .chain(SOURCES.iter().map(|backends| remember_client(backends, remembered)))
        .chain(clients.iter().map(|clients| remember_again(clients, remembered)))
        .chain(untracked.filter(|_| direct))
        .collect()
}

/// `tcp flags & (syn | ack) == syn return`.
fn return_bare_syn() -> RuleMessage {
    let flags = [load(TRANSPORT, TCP_FLAGS, 1, Register::Reg1), mask(SYN | ACK), compare(Operator::Equal, &[SYN])];
    return_if(Protocol::Tcp, flags)
}

/// `meta l4proto sctp @th,96,8 1 return`. The type of the first chunk is loaded as plain bytes,
/// which every kernel supports.
fn return_init() -> RuleMessage {
    return_if(Protocol::Sctp, [load(TRANSPORT, SCTP_FIRST_CHUNK, 1, Register::Reg1), compare(Operator::Equal, &[INIT])])
}

/// `meta l4proto udp meta nfproto ipv4 ip daddr . ip saddr . th dport . th sport != @clients4 return`.
fn return_unless_to_a_client(clients: &ClientSet) -> RuleMessage {
    let of_family = clients.family.is_of_family();
    let key = clients.family.load_client(End::Destination);
    let is_new = is_not_in(clients.name, clients.family.client_registers[0]);
    return_if(Protocol::Udp, of_family.into_iter().chain(key).chain([is_new]))
}

fn return_if(protocol: Protocol, condition: impl IntoIterator<Item = Expression>) -> RuleMessage {
    rule(&POSTROUTING, is_of(protocol).into_iter().chain(condition).chain([return_verdict()]))
}

/// `meta nfproto ipv4 ip saddr . meta l4proto . th sport @backends4 counter snat ip to ip saddr`.
fn keep_source(set: &NftSet) -> RuleMessage {
    let family = set.family;
    let identity = [family.load_address(End::Source, Register::Reg1), snat_to(family.protocol, Register::Reg1)];
    rule(&POSTROUTING, is_element(set, End::Source).into_iter().chain([counter()]).chain(identity))
}

/// `meta l4proto != udp return`: most packets of a node. All rules after this one are about datagrams.
fn return_unless_udp() -> RuleMessage {
    let is_other = compare(Operator::NotEqual, &[Protocol::Udp.number()]);
    rule(&PREROUTING, [meta(MetaKey::L4Proto, Register::Reg1), is_other, return_verdict()])
}

/// `meta l4proto udp meta nfproto ipv4 ip daddr . meta l4proto . th dport @backends4
/// update @clients4 { ip saddr . ip daddr . th sport . th dport timeout 300s }`.
fn remember_client(backends: &NftSet, seconds: u32) -> RuleMessage {
    let clients = ClientSet::of(backends.family);
    let is_to_backend = is_of(Protocol::Udp).into_iter().chain(is_element(backends, End::Destination));
    let key = backends.family.load_client(End::Source);
    let remember = update(clients.name, backends.family.client_registers[0], seconds);
    rule(&PREROUTING, is_to_backend.chain(key).chain([remember]))
}

/// `meta l4proto udp meta nfproto ipv4 ip daddr . ip saddr . th dport . th sport @clients4
/// update @clients4 { ip daddr . ip saddr . th dport . th sport timeout 300s }`.
fn remember_again(clients: &ClientSet, seconds: u32) -> RuleMessage {
    let ClientSet { name, family } = *clients;
    let first = family.client_registers[0];
    let key = is_of(Protocol::Udp).into_iter().chain(family.is_of_family()).chain(family.load_client(End::Destination));
    rule(&PREROUTING, key.chain([is_in(name, first), update(name, first, seconds)]))
}

/// `iif @uplinks return`.
fn return_uplinks() -> RuleMessage {
    let register = Register::Reg1;
    rule(&PREROUTING, [meta(MetaKey::Iif, register), is_in(UPLINKS, register), return_verdict()])
}

/// `meta nfproto ipv4 ip saddr . meta l4proto . th sport @direct4 counter notrack`.
fn leave_untracked(set: &NftSet) -> RuleMessage {
    rule(&PREROUTING, is_element(set, End::Source).into_iter().chain([counter(), other("notrack", vec![])]))
}

fn is_of(protocol: Protocol) -> [Expression; 2] {
    [meta(MetaKey::L4Proto, Register::Reg1), compare(Operator::Equal, &[protocol.number()])]
}

/// Returns the expressions that match packets one of whose ends is in the set.
fn is_element(set: &NftSet, end: End) -> Vec<Expression> {
    let [address, transport, port] = set.family.registers;
    let mut expressions = set.family.is_of_family().to_vec();
    expressions.extend([set.family.load_address(end, address), meta(MetaKey::L4Proto, transport)]);
    expressions.extend(set.ports.then(|| load_port(end, port)));
    expressions.push(is_in(set.name, address));
    expressions
}

fn rule(chain: &BaseChain, expressions: impl IntoIterator<Item = Expression>) -> RuleMessage {
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(TABLE.to_owned()),
            RuleAttribute::Chain(chain.name.to_owned()),
            RuleAttribute::Expressions(expressions.into_iter().collect()),
        ],
    }
}
