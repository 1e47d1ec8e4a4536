//! The node's rules: nftables by nfnetlink (include/uapi/linux/netfilter/nf_tables.h), legacy
//! iptables by `iptables-save`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    process::Command,
};

use netlink_packet_core::{DefaultNla, NLM_F_DUMP, NlasIterator, parse_u32_be};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    nftables::{
        Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, ExpressionAttribute, Expressions, HookNumber,
        Immediate, InetHookNumber, ListAttribute, Lookup, Meta, MetaKey, NfTablesMessage, Operator, Payload, Register,
        RuleAttribute, RuleMessage, Verdict, VerdictAttribute,
    },
};

use super::generic_netlink::value;
use crate::findings::{
    Seen, Unseen,
    firewall::{Chain, Conditions, Does, Firewall, Hook, RuleObservation, TableObservation, parse_saved, target},
};
use vipmux_datapath::netlink::{self, NETLINK_NETFILTER};

/// The families whose rules an IP packet meets.
const FAMILIES: [(NetfilterProtoFamily, &str); 3] =
    [(NetfilterProtoFamily::Inet, "inet"), (NetfilterProtoFamily::IPv4, "ip"), (NetfilterProtoFamily::IPv6, "ip6")];
/// `NF_DROP`, also as a chain's policy.
const DROP: u32 = 0;
/// `NFTA_DATA_VALUE`.
const DATA_VALUE: u16 = 1;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const NEW: u32 = 8;
/// The protocol's number.
const UDP: u8 = 17;

pub(super) fn observe() -> Firewall {
    Firewall { nftables: nftables().map_err(Unseen::without_rights), legacy: legacy() }
}

/// The names of nftables' tables and of all chains.
pub(super) fn names(firewall: &Firewall) -> BTreeSet<String> {
    let tables = firewall.nftables.iter().chain(&firewall.legacy).flatten();
    let of = |table: &TableObservation| {
        let last = table.name.rsplit(' ').next().map(str::to_owned);
        last.into_iter().chain(table.chains.iter().map(|chain| chain.name.clone())).collect::<Vec<_>>()
    };
    tables.flat_map(of).collect()
}

/// Finds the first attribute of a variant, and returns its value.
macro_rules! attribute {
    ($attributes:expr, $variant:path) => {
        $attributes.iter().find_map(|attribute| match attribute {
            $variant(value) => Some(value),
            _ => None,
        })
    };
}

fn nftables() -> io::Result<Vec<TableObservation>> {
    // By family and table. Chains are in the order of the dump, which is that of their creation.
    let mut tables: BTreeMap<(u8, String), Vec<Chain>> = BTreeMap::new();
    for (family, message) in dump(NfTablesMessage::GetChain(ChainMessage { attributes: Vec::new() }))? {
        if let NfTablesMessage::NewChain(message) = message
            && let Some((table, chain)) = chain(&message)
        {
            tables.entry((family, table)).or_default().push(chain);
        }
    }
    for (family, message) in dump(NfTablesMessage::GetRule(RuleMessage { attributes: Vec::new() }))? {
        let NfTablesMessage::NewRule(RuleMessage { attributes }) = message else { continue };
        let table = attribute!(attributes, RuleAttribute::Table).cloned().unwrap_or_default();
        let name = attribute!(attributes, RuleAttribute::Chain);
        let chains = tables.get_mut(&(family, table));
        if let Some(chain) = chains.and_then(|chains| chains.iter_mut().find(|chain| Some(&chain.name) == name)) {
            let expressions = attribute!(attributes, RuleAttribute::Expressions);
            chain.rules.push(rule(expressions.map(Vec::as_slice).unwrap_or_default()));
        }
    }
    let named = |((number, table), chains)| {
        let (_, family) = FAMILIES.iter().find(|(family, _)| u8::from(*family) == number)?;
        Some(TableObservation { name: format!("nftables table {family} {table}"), ipv6: *family == "ip6", chains })
    };
    Ok(tables.into_iter().filter_map(named).collect())
}

/// Dumps objects of all families, each with the number of its family.
fn dump(message: NfTablesMessage) -> io::Result<Vec<(u8, NfTablesMessage)>> {
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let answer = netlink::request(NETLINK_NETFILTER, NetfilterMessage::new(header, message), NLM_F_DUMP)?;
    let found = |message: NetfilterMessage| match message.inner {
        NetfilterMessageInner::NfTables(inner) => Some((message.header.family.into(), inner)),
        _ => None,
    };
    Ok(answer.into_iter().filter_map(found).collect())
}

/// Returns a chain without rules, and its table.
fn chain(ChainMessage { attributes }: &ChainMessage) -> Option<(String, Chain)> {
    use netlink_packet_netfilter::nftables::Hook as HookAttribute;
    let is_filter = attribute!(attributes, ChainAttribute::Type).is_some_and(|kind| kind == "filter");
    let number = attribute!(attributes, ChainAttribute::Hook).and_then(|hook| attribute!(hook, HookAttribute::Number));
    let hook = match number {
        Some(HookNumber::Inet(InetHookNumber::LocalIn)) if is_filter => Some(Hook::Input),
        Some(HookNumber::Inet(InetHookNumber::Forward)) if is_filter => Some(Hook::Forward),
        _ => None,
    };
    let drops = attribute!(attributes, ChainAttribute::Policy) == Some(&DROP);
    let name = attribute!(attributes, ChainAttribute::Name)?.clone();
    Some((attribute!(attributes, ChainAttribute::Table)?.clone(), Chain { name, hook, drops, rules: Vec::new() }))
}

/// The value that the last expression has loaded, for the next one to compare.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadedValue {
    Protocol,
    DestinationPort,
    InputInterface,
    /// Conntrack's state.
    State,
    /// The same, with these bits of it.
    States(u32),
    Other,
}

/// Reads a rule's expressions one by one.
fn rule(expressions: &[ListAttribute<ExpressionAttribute>]) -> RuleObservation {
    let (mut asked, mut does, mut loaded) = (Conditions::default(), Does::Nothing, LoadedValue::Other);
    for expression in expressions {
        let ListAttribute::Element(parts) = expression else { continue };
        match attribute!(parts, ExpressionAttribute::Data) {
            Some(Expressions::Immediate(attributes)) => does = verdict(attributes).unwrap_or(does),
            Some(Expressions::Payload(attributes)) => loaded = payload(attributes),
            Some(Expressions::Meta(attributes)) => loaded = meta(attributes),
            Some(Expressions::Cmp(attributes)) => compare(loaded, attributes, &mut asked),
            // A verdict map is not followed: its verdict may be to accept.
            Some(Expressions::Lookup(attributes))
                if attribute!(attributes, Lookup::DestinationRegister) == Some(&Register::Verdict) =>
            {
                (asked.others, does) = (true, Does::Accept);
            }
            Some(Expressions::Bitwise(attributes)) if loaded == LoadedValue::State => {
                let mask = attribute!(attributes, Bitwise::Mask).and_then(|mask| data(mask).first_chunk().copied());
                loaded = mask.map_or(LoadedValue::Other, |mask| LoadedValue::States(u32::from_ne_bytes(mask)));
            }
            Some(Expressions::Bitwise(_)) => loaded = LoadedValue::Other,
            other => {
                let name = attribute!(parts, ExpressionAttribute::Name).map(String::as_str).unwrap_or_default();
                let attributes = match other {
                    Some(Expressions::Other { attributes, .. }) => attributes.as_slice(),
                    _ => &[],
                };
                match name {
                    "reject" => does = Does::Drop,
                    // `NFTA_TARGET_NAME`.
                    "target" => does = target(&text(&value(attributes, 1).unwrap_or_default()), false),
                    "range" => in_range(loaded, attributes, &mut asked),
                    "match" => extension(attributes, &mut asked),
                    // They decide nothing. The verdict behind them does.
                    "counter" | "log" | "last" | "notrack" | "nat" | "masq" => {}
                    // `NFTA_CT_KEY`: `NFT_CT_STATE`.
                    "ct" if number(attributes, 2) == Some(0) => loaded = LoadedValue::State,
                    // They load a value for a comparison.
                    "ct" | "fib" | "rt" | "socket" | "exthdr" | "byteorder" => loaded = LoadedValue::Other,
                    // Other expressions are conditions themselves.
                    _ => asked.others = true,
                }
            }
        }
    }
    // Ports of any protocol but one that is said are UDP's too.
    asked.udp |= asked.ports.is_some() && !asked.other_protocol;
    RuleObservation { when: asked.when(), does }
}

/// Returns the effect of a verdict. `None`: the expression loads a value into a register.
fn verdict(attributes: &[Immediate]) -> Option<Does> {
    let DataAttribute::Verdict(attributes) = attribute!(attributes, Immediate::Data)? else { return None };
    let chain = || attribute!(attributes, VerdictAttribute::Chain).cloned().unwrap_or_default();
    Some(match attribute!(attributes, VerdictAttribute::Code)? {
        Verdict::Other(DROP) => Does::Drop,
        Verdict::Jump => Does::Jump(chain()),
        Verdict::Goto => Does::Goto(chain()),
        Verdict::Return => Does::Return,
        Verdict::Continue | Verdict::Break => Does::Nothing,
        // `NF_ACCEPT`, and `NF_QUEUE`: a program that is not visible here decides.
        _ => Does::Accept,
    })
}

fn payload(attributes: &[Payload]) -> LoadedValue {
    /// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
    const NETWORK: u32 = 1;
    const TRANSPORT: u32 = 2;
    let part = (
        attribute!(attributes, Payload::Base).copied(),
        attribute!(attributes, Payload::Offset).copied(),
        attribute!(attributes, Payload::Len).copied(),
    );
    match part {
        // IPv4's protocol (RFC 791), IPv6's next header (RFC 8200).
        (Some(NETWORK), Some(9 | 6), Some(1)) => LoadedValue::Protocol,
        (Some(TRANSPORT), Some(2), Some(2)) => LoadedValue::DestinationPort,
        _ => LoadedValue::Other,
    }
}

fn meta(attributes: &[Meta]) -> LoadedValue {
    match attribute!(attributes, Meta::Key) {
        Some(MetaKey::Iif | MetaKey::Iifname) => LoadedValue::InputInterface,
        Some(MetaKey::L4Proto) => LoadedValue::Protocol,
        _ => LoadedValue::Other,
    }
}

fn compare(loaded: LoadedValue, attributes: &[Cmp], asked: &mut Conditions) {
    let operator = attribute!(attributes, Cmp::Op).copied();
    let equal = operator == Some(Operator::Equal);
    let value = attribute!(attributes, Cmp::Data).map(data).unwrap_or_default();
    let port = || Some(u16::from_be_bytes(value.first_chunk().copied()?));
    match loaded {
        LoadedValue::Protocol if equal && value == [UDP] => asked.udp = true,
        LoadedValue::Protocol if equal => asked.other_protocol = true,
        LoadedValue::DestinationPort if equal => asked.ports = port().map(|port| (port, port)),
        // A range may be two comparisons.
        LoadedValue::DestinationPort if operator == Some(Operator::GreatherThanEqual) => {
            asked.ports = port().map(|first| (first, asked.ports.map_or(u16::MAX, |(_, last)| last)));
        }
        LoadedValue::DestinationPort if operator == Some(Operator::LessThanEqual) => {
            asked.ports = port().map(|last| (asked.ports.map_or(0, |(first, _)| first), last));
        }
        LoadedValue::InputInterface if equal && (text(value) == "lo" || value == 1_u32.to_ne_bytes()) => {
            asked.loopback = true;
        }
        // Any of these states.
        LoadedValue::States(states) if operator == Some(Operator::NotEqual) && states & NEW == 0 => {
            asked.not_new = true;
        }
        _ => asked.others = true,
    }
}

/// `NFTA_RANGE_OP`, `_FROM_DATA`, `_TO_DATA`.
fn in_range(loaded: LoadedValue, attributes: &[DefaultNla], asked: &mut Conditions) {
    let equal = number(attributes, 2) == Some(0);
    let end = |kind| {
        let data = value(attributes, kind)?;
        let mut parts = NlasIterator::new(data.as_slice()).filter_map(Result::ok);
        let port = parts.find(|part| part.kind() == DATA_VALUE)?;
        Some(u16::from_be_bytes(port.value().first_chunk().copied()?))
    };
    match (loaded, equal, end(3), end(4)) {
        (LoadedValue::DestinationPort, true, Some(first), Some(last)) => asked.ports = Some((first, last)),
        _ => asked.others = true,
    }
}

/// Reads a match of iptables: `NFTA_MATCH_NAME`, `_INFO`. For UDP, the info is `struct xt_udp`: two
/// source ports, two destination ports, and flags that invert them.
fn extension(attributes: &[DefaultNla], asked: &mut Conditions) {
    let info = value(attributes, 3).unwrap_or_default();
    match text(&value(attributes, 1).unwrap_or_default()).as_str() {
        "comment" => {}
        "udp" => {
            let number = |at| half(&info, at);
            let any_source = (number(0), number(2)) == (Some(0), Some(u16::MAX));
            asked.udp = true;
            asked.ports = number(4).zip(number(6));
            asked.others |= !any_source || info.get(8) != Some(&0);
        }
        "conntrack" if known_states(&info).is_some_and(|states| states & NEW == 0) => asked.not_new = true,
        "tcp" | "icmp" | "icmp6" | "sctp" => asked.other_protocol = true,
        _ => asked.others = true,
    }
}

/// Returns the first attribute of this kind as a number in network byte order.
fn number(attributes: &[DefaultNla], kind: u16) -> Option<u32> {
    parse_u32_be(&value(attributes, kind)?).ok()
}

/// Returns the value of a data attribute. A verdict has none.
fn data(attribute: &DataAttribute) -> &[u8] {
    match attribute {
        DataAttribute::Value(value) => value,
        _ => &[],
    }
}

/// Returns a text that may end with zeros.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// Returns the number of 16 bits at an offset, in native byte order.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// The states that `struct xt_conntrack_mtinfo3` asks for, if it asks for nothing else
/// (include/uapi/linux/netfilter/xt_conntrack.h).
fn known_states(info: &[u8]) -> Option<u32> {
    /// Bytes: behind eight addresses and masks, two times and five numbers of 16 bits.
    const FLAGS: usize = 146;
    const STATE: u16 = 1;
    let number = |at| half(info, at);
    let asks_for_that_alone = (number(FLAGS), number(FLAGS + 2)) == (Some(STATE), Some(0));
    asks_for_that_alone.then(|| number(FLAGS + 4)).flatten().map(u32::from)
}

/// Of both families, where the kernel has such tables.
fn legacy() -> Seen<Vec<TableObservation>> {
    let mut tables = Vec::new();
    for (family, program) in [("ip", "iptables"), ("ip6", "ip6tables")] {
        // It is there as soon as there are such tables, and root may read it.
        let there = fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names")).unwrap_or_default();
        if there.lines().any(|table| table == "filter") {
            tables.extend(parse_saved(&format!("legacy {program}"), family == "ip6", &saved(program)?));
        }
    }
    Ok(tables)
}

fn saved(program: &str) -> Seen<String> {
    let mut said = Vec::new();
    for name in [format!("{program}-legacy-save"), format!("{program}-save")] {
        match Command::new(&name).output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                // The other one reads nftables.
                if output.status.success() && !text.contains("(nf_tables)") && !text.contains("iptables-nft-save") {
                    return Ok(text);
                }
            }
            Err(error) => said.push(format!("{name}: {error}")),
        }
    }
    Err(Unseen {
        why: format!("legacy {program} has rules here, and nothing to read them by ({})", said.join("; ")),
        remedy: format!("look at `{program}-legacy-save -t filter` on the host: does FORWARD accept packets to pods?"),
    })
}

#[cfg(test)]
mod tests;
