//! The node's rules: nftables by nfnetlink (include/uapi/linux/netfilter/nf_tables.h), legacy iptables by
//! `iptables-save`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    process::Command,
};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::netlink::{DUMP, ask, attributes, find, half, network_word, text, word};
use crate::preflight::{
    Seen, Unseen,
    firewall::{Chain, Conditions, Does, Firewall, Hook, Rule, Table, parse_saved, target},
};

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message's type.
const NFTABLES: u16 = 10 << 8;
const GET_CHAIN: u16 = NFTABLES | 4;
const GET_RULE: u16 = NFTABLES | 7;
/// Bytes of `struct nfgenmsg`, of which the first is the family.
const GENERAL: usize = 4;
/// The families whose rules an IP packet meets, by `NFPROTO_*`.
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];

/// Attributes of chains and rules.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const LOCAL_IN: u32 = 1;
const FORWARD: u32 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
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
    let of = |table: &Table| {
        let last = table.name.rsplit(' ').next().map(str::to_owned);
        last.into_iter().chain(table.chains.iter().map(|chain| chain.name.clone())).collect::<Vec<_>>()
    };
    tables.flat_map(of).collect()
}

fn nftables() -> io::Result<Vec<Table>> {
    // By family and table: chains in the order in which they are told, which is that of their making.
    let mut tables: BTreeMap<(u8, String), Vec<Chain>> = BTreeMap::new();
    for message in ask(NETLINK_NETFILTER, GET_CHAIN, DUMP, &[0; GENERAL])? {
        if let Some((family, table, chain)) = chain(&message.payload) {
            tables.entry((family, table)).or_default().push(chain);
        }
    }
    for message in ask(NETLINK_NETFILTER, GET_RULE, DUMP, &[0; GENERAL])? {
        let Some((family, attributes)) = message.payload.split_at_checked(GENERAL) else { continue };
        let name = |kind| find(attributes, kind).map(text).unwrap_or_default();
        let chains = tables.get_mut(&(family[0], name(RULE_TABLE)));
        let chain = chains.and_then(|chains| chains.iter_mut().find(|chain| chain.name == name(RULE_CHAIN)));
        if let Some(chain) = chain {
            chain.rules.push(rule(find(attributes, RULE_EXPRESSIONS).unwrap_or_default()));
        }
    }
    let named = |((family, table), chains)| {
        let (_, family) = FAMILIES.iter().find(|(number, _)| *number == family)?;
        Some(Table { name: format!("nftables table {family} {table}"), ipv6: *family == "ip6", chains })
    };
    Ok(tables.into_iter().filter_map(named).collect())
}

/// A chain with its family and table.
fn chain(payload: &[u8]) -> Option<(u8, String, Chain)> {
    let (general, attributes) = payload.split_at_checked(GENERAL)?;
    let is_filter = find(attributes, CHAIN_TYPE).is_some_and(|kind| text(kind) == "filter");
    let hook = find(attributes, CHAIN_HOOK).and_then(|hook| network_word(find(hook, HOOK_NUMBER)?));
    let hook = match hook {
        Some(LOCAL_IN) if is_filter => Some(Hook::Input),
        Some(FORWARD) if is_filter => Some(Hook::Forward),
        _ => None,
    };
    let drops = find(attributes, CHAIN_POLICY).and_then(network_word) == Some(0);
    let name = text(find(attributes, CHAIN_NAME)?);
    Some((general[0], text(find(attributes, CHAIN_TABLE)?), Chain { name, hook, drops, rules: Vec::new() }))
}

/// What the last expression has loaded, for the next one to compare.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Protocol,
    DestinationPort,
    InputInterface,
    /// Conntrack's state.
    State,
    /// The same, with these bits of it.
    States(u32),
    Other,
}

/// A rule's expressions, one by one.
fn rule(expressions: &[u8]) -> Rule {
    let (mut asked, mut does, mut loaded) = (Conditions::default(), Does::Nothing, Loaded::Other);
    for (_, expression) in attributes(expressions) {
        let data = find(expression, EXPRESSION_DATA).unwrap_or_default();
        match find(expression, EXPRESSION_NAME).map(text).unwrap_or_default().as_str() {
            "immediate" => does = verdict(data).unwrap_or(does),
            "reject" => does = Does::Drop,
            "target" => does = target(&find(data, 1).map(text).unwrap_or_default(), false),
            "payload" => loaded = payload(data),
            "meta" => loaded = meta(data),
            "cmp" => compare(loaded, data, &mut asked),
            "range" => in_range(loaded, data, &mut asked),
            "match" => extension(data, &mut asked),
            // By `NFTA_LOOKUP_DREG` a verdict is looked up: what it may be is not told apart, so it may be this one.
            "lookup" if find(data, 3).and_then(network_word) == Some(0) => {
                (asked.others, does) = (true, Does::Accept);
            }
            // They decide nothing; the verdict behind them does.
            "counter" | "log" | "last" | "notrack" | "nat" | "masq" => {}
            // `ct`, `fib` and others load something for a comparison, others are conditions themselves.
            // `NFTA_CT_KEY`: `NFT_CT_STATE`.
            "ct" if find(data, 2).and_then(network_word) == Some(0) => loaded = Loaded::State,
            // `NFTA_BITWISE_MASK`.
            "bitwise" if loaded == Loaded::State => {
                let mask = find(data, 4).and_then(|mask| word(find(mask, 1)?));
                loaded = mask.map_or(Loaded::Other, Loaded::States);
            }
            "ct" | "fib" | "rt" | "socket" | "exthdr" | "bitwise" | "byteorder" => loaded = Loaded::Other,
            _ => asked.others = true,
        }
    }
    // Ports of any protocol but one that is said are UDP's too.
    asked.udp |= asked.ports.is_some() && !asked.other_protocol;
    Rule { when: asked.when(), does }
}

/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CODE` and `_CHAIN`; `None`: a value for a register.
fn verdict(data: &[u8]) -> Option<Does> {
    let verdict = find(find(data, 2)?, 2)?;
    let chain = || find(verdict, 2).map(text).unwrap_or_default();
    Some(match network_word(find(verdict, 1)?)?.cast_signed() {
        0 => Does::Drop,
        -3 => Does::Jump(chain()),
        -4 => Does::Goto(chain()),
        -5 => Does::Return,
        // NFT_CONTINUE and NFT_BREAK.
        -1 | -2 => Does::Nothing,
        // NF_ACCEPT, and NF_QUEUE: somebody decides who is not seen here.
        _ => Does::Accept,
    })
}

/// `NFTA_PAYLOAD_BASE`, `_OFFSET`, `_LEN`.
fn payload(data: &[u8]) -> Loaded {
    const NETWORK: u32 = 1;
    const TRANSPORT: u32 = 2;
    let number = |kind| find(data, kind).and_then(network_word);
    match (number(2), number(3), number(4)) {
        // IPv4's protocol (RFC 791), IPv6's next header (RFC 8200).
        (Some(NETWORK), Some(9 | 6), Some(1)) => Loaded::Protocol,
        (Some(TRANSPORT), Some(2), Some(2)) => Loaded::DestinationPort,
        _ => Loaded::Other,
    }
}

/// `NFTA_META_KEY`: `NFT_META_IIF`, `_IIFNAME`, `_L4PROTO`.
fn meta(data: &[u8]) -> Loaded {
    match find(data, 2).and_then(network_word) {
        Some(4 | 6) => Loaded::InputInterface,
        Some(16) => Loaded::Protocol,
        _ => Loaded::Other,
    }
}

/// `NFTA_CMP_OP`, `NFTA_CMP_DATA`.
fn compare(loaded: Loaded, data: &[u8], asked: &mut Conditions) {
    let operator = find(data, 2).and_then(network_word);
    let equal = operator == Some(0);
    let value = find(data, 3).and_then(|value| find(value, 1)).unwrap_or_default();
    let port = || Some(u16::from_be_bytes(value.first_chunk().copied()?));
    match loaded {
        Loaded::Protocol if equal && value == [UDP] => asked.udp = true,
        Loaded::Protocol if equal => asked.other_protocol = true,
        Loaded::DestinationPort if equal => asked.ports = port().map(|port| (port, port)),
        // A range may be two comparisons: `NFT_CMP_GTE`, `NFT_CMP_LTE`.
        Loaded::DestinationPort if operator == Some(5) => {
            asked.ports = port().map(|first| (first, asked.ports.map_or(u16::MAX, |(_, last)| last)));
        }
        Loaded::DestinationPort if operator == Some(3) => {
            asked.ports = port().map(|last| (asked.ports.map_or(0, |(first, _)| first), last));
        }
        Loaded::InputInterface if equal && (text(value) == "lo" || value == 1_u32.to_ne_bytes()) => {
            asked.loopback = true;
        }
        // Any of them.
        Loaded::States(states) if operator == Some(1) && states & NEW == 0 => asked.not_new = true,
        _ => asked.others = true,
    }
}

/// `NFTA_RANGE_OP`, `_FROM_DATA`, `_TO_DATA`.
fn in_range(loaded: Loaded, data: &[u8], asked: &mut Conditions) {
    let equal = find(data, 2).and_then(network_word) == Some(0);
    let end = |kind| Some(u16::from_be_bytes(find(find(data, kind)?, 1)?.first_chunk().copied()?));
    match (loaded, equal, end(3), end(4)) {
        (Loaded::DestinationPort, true, Some(first), Some(last)) => asked.ports = Some((first, last)),
        _ => asked.others = true,
    }
}

/// A match of iptables: `NFTA_MATCH_NAME`, `_INFO`. Of UDP that is `struct xt_udp`: two source ports, two destination
/// ports, and flags for what is not to be so.
fn extension(data: &[u8], asked: &mut Conditions) {
    let info = find(data, 3).unwrap_or_default();
    match find(data, 1).map(text).unwrap_or_default().as_str() {
        "comment" => {}
        "udp" => {
            let number = |at: usize| info.get(at..).and_then(half);
            let any_source = (number(0), number(2)) == (Some(0), Some(u16::MAX));
            asked.udp = true;
            asked.ports = number(4).zip(number(6));
            asked.others |= !any_source || info.get(8) != Some(&0);
        }
        "conntrack" if known_states(info).is_some_and(|states| states & NEW == 0) => asked.not_new = true,
        "tcp" | "icmp" | "icmp6" | "sctp" => asked.other_protocol = true,
        _ => asked.others = true,
    }
}

/// The states that `struct xt_conntrack_mtinfo3` asks for, if it asks for nothing else (include/uapi/linux/netfilter/xt_conntrack.h).
fn known_states(info: &[u8]) -> Option<u32> {
    /// Bytes: behind eight addresses and masks, two times and five numbers of 16 bits.
    const FLAGS: usize = 146;
    const STATE: u16 = 1;
    let number = |at: usize| info.get(at..).and_then(half);
    let asks_for_that_alone = (number(FLAGS), number(FLAGS + 2)) == (Some(STATE), Some(0));
    asks_for_that_alone.then(|| number(FLAGS + 4)).flatten().map(u32::from)
}

/// Of both families, where the kernel has such tables.
fn legacy() -> Seen<Vec<Table>> {
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
