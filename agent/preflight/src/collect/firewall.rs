//! The node's base chains: nftables by nfnetlink (include/uapi/linux/netfilter/nf_tables.h), legacy
//! iptables by `iptables-save`.
//!
//! Of rules, two matter: one without conditions decides like a policy, and one for the gossip port
//! accepts gossip. The others are not followed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    process::Command,
};

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    nftables::{
        ChainAttribute, ChainMessage, Cmp, DataAttribute, ExpressionAttribute, Expressions, HookNumber, Immediate,
        InetHookNumber, ListAttribute, NfTablesMessage, Operator, RuleAttribute, RuleMessage, Verdict,
        VerdictAttribute,
    },
};

use super::generic_netlink::value;
use crate::findings::{
    Seen, Unseen,
    firewall::{Chain, Firewall, Hook, TableName, TableObservation},
};
use vipmux_datapath::netlink::{self, NETLINK_NETFILTER};

/// The families whose rules an IP packet meets.
const FAMILIES: [(NetfilterProtoFamily, &str); 3] =
    [(NetfilterProtoFamily::Inet, "inet"), (NetfilterProtoFamily::IPv4, "ip"), (NetfilterProtoFamily::IPv6, "ip6")];
/// `NF_DROP` and `NF_ACCEPT`, also as a chain's policy.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// The protocol's number.
const UDP: u8 = 17;

/// Reads all chains. `port`: the gossip port.
pub(super) fn observe(port: u16) -> Firewall {
    Firewall { nftables: nftables(port).map_err(Unseen::without_rights), legacy: legacy(port) }
}

/// The names of nftables' tables and of all chains.
pub(super) fn names(firewall: &Firewall) -> BTreeSet<String> {
    let tables = firewall.nftables.iter().chain(&firewall.legacy).flatten();
    let of = |table: &TableObservation| {
        let (TableName::Nftables(_, name) | TableName::Legacy(name)) = &table.name;
        let chains = table.chains.iter().map(|chain| chain.name.clone());
        chains.chain([name.clone()]).collect::<Vec<_>>()
    };
    tables.flat_map(of).collect()
}

/// A rule, as far as it matters.
#[derive(Clone, Copy, Debug, Default)]
struct Rule {
    /// It applies to some packets only.
    conditional: bool,
    /// It is for UDP.
    udp: bool,
    /// It is for the gossip port.
    port: bool,
    /// Its verdict, if it is to drop or to accept.
    drops: Option<bool>,
}

/// The rules of a chain, taken together.
#[derive(Clone, Copy, Debug, Default)]
struct RuleSummary {
    /// The verdict of the first rule without conditions.
    drops: Option<bool>,
    accepts_gossip: bool,
}

impl RuleSummary {
    fn add(&mut self, rule: Rule) {
        if !rule.conditional {
            self.drops = self.drops.or(rule.drops);
        }
        self.accepts_gossip |= rule.udp && rule.port && rule.drops == Some(false);
    }
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

fn nftables(port: u16) -> io::Result<Vec<TableObservation>> {
    // By family, table and chain.
    let mut rules: BTreeMap<_, RuleSummary> = BTreeMap::new();
    for (family, message) in dump(NfTablesMessage::GetRule(RuleMessage { attributes: Vec::new() }))? {
        let NfTablesMessage::NewRule(RuleMessage { attributes }) = message else { continue };
        let table = attribute!(attributes, RuleAttribute::Table).cloned().unwrap_or_default();
        let chain = attribute!(attributes, RuleAttribute::Chain).cloned().unwrap_or_default();
        let expressions = attribute!(attributes, RuleAttribute::Expressions).map(Vec::as_slice).unwrap_or_default();
        rules.entry((family, table, chain)).or_default().add(rule(expressions, port));
    }
    let mut tables: BTreeMap<(u8, String), Vec<Chain>> = BTreeMap::new();
    for (family, message) in dump(NfTablesMessage::GetChain(ChainMessage { attributes: Vec::new() }))? {
        let NfTablesMessage::NewChain(ChainMessage { attributes }) = message else { continue };
        let table = attribute!(attributes, ChainAttribute::Table).cloned().unwrap_or_default();
        let name = attribute!(attributes, ChainAttribute::Name).cloned().unwrap_or_default();
        let rules = rules.remove(&(family, table.clone(), name.clone())).unwrap_or_default();
        let drops = rules.drops.unwrap_or(attribute!(attributes, ChainAttribute::Policy) == Some(&DROP));
        let chain = Chain { name, hook: hook(&attributes), drops, accepts_gossip: rules.accepts_gossip };
        tables.entry((family, table)).or_default().push(chain);
    }
    let named = |((number, table), chains)| {
        let (_, family) = FAMILIES.iter().find(|(family, _)| u8::from(*family) == number)?;
        Some(TableObservation { name: TableName::Nftables(family, table), ipv6: *family == "ip6", chains })
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

/// Returns the hook of a base chain of type filter.
fn hook(attributes: &[ChainAttribute]) -> Option<Hook> {
    use netlink_packet_netfilter::nftables::Hook as HookAttribute;
    attribute!(attributes, ChainAttribute::Type).filter(|kind| *kind == "filter")?;
    match attribute!(attribute!(attributes, ChainAttribute::Hook)?, HookAttribute::Number)? {
        HookNumber::Inet(InetHookNumber::LocalIn | InetHookNumber::LocalOut) => Some(Hook::Local),
        HookNumber::Inet(InetHookNumber::Forward) => Some(Hook::Forward),
        HookNumber::Inet(InetHookNumber::PreRouting | InetHookNumber::PostRouting) => Some(Hook::Routing),
        _ => None,
    }
}

/// Reads a rule's expressions one by one.
fn rule(expressions: &[ListAttribute<ExpressionAttribute>], port: u16) -> Rule {
    let mut rule = Rule::default();
    for expression in expressions {
        let ListAttribute::Element(parts) = expression else { continue };
        let name = attribute!(parts, ExpressionAttribute::Name).map(String::as_str).unwrap_or_default();
        match (name, attribute!(parts, ExpressionAttribute::Data)) {
            (_, Some(Expressions::Immediate(attributes))) => rule.drops = verdict(attributes),
            (_, Some(Expressions::Cmp(attributes))) => {
                rule.conditional = true;
                if attribute!(attributes, Cmp::Op) == Some(&Operator::Equal)
                    && let Some(DataAttribute::Value(value)) = attribute!(attributes, Cmp::Data)
                {
                    rule.udp |= *value == [UDP];
                    rule.port |= *value == port.to_be_bytes();
                }
            }
            ("reject", _) => rule.drops = Some(true),
            // `NFTA_TARGET_NAME`: a target of iptables.
            ("target", Some(Expressions::Other { attributes, .. })) => {
                rule.drops = target(&text(&value(attributes, 1).unwrap_or_default()));
            }
            // `NFTA_MATCH_NAME`: a match of iptables.
            ("match", Some(Expressions::Other { attributes, .. })) => {
                rule.conditional |= text(&value(attributes, 1).unwrap_or_default()) != "comment";
            }
            // They decide nothing. The verdict behind them does.
            ("counter" | "log" | "last", _) => {}
            _ => rule.conditional = true,
        }
    }
    rule
}

/// Returns whether a verdict is to drop. `None`: it is another one, or no verdict.
fn verdict(attributes: &[Immediate]) -> Option<bool> {
    let DataAttribute::Verdict(attributes) = attribute!(attributes, Immediate::Data)? else { return None };
    match attribute!(attributes, VerdictAttribute::Code)? {
        Verdict::Other(DROP) => Some(true),
        Verdict::Other(ACCEPT) => Some(false),
        _ => None,
    }
}

/// Returns whether a target of iptables is to drop. `None`: it decides nothing, or is a chain.
fn target(name: &str) -> Option<bool> {
    match name {
        "ACCEPT" => Some(false),
        "DROP" | "REJECT" => Some(true),
        _ => None,
    }
}

/// Returns a text that may end with zeros.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// Of both families, where the kernel has such tables.
fn legacy(port: u16) -> Seen<Vec<TableObservation>> {
    let mut tables = Vec::new();
    for (family, program) in [("ip", "iptables"), ("ip6", "ip6tables")] {
        // It is there as soon as there are such tables, and root may read it.
        let there = fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names")).unwrap_or_default();
        if there.lines().any(|table| table == "filter") {
            let (name, text) = saved(program)?;
            let (name, chains) = (TableName::Legacy(name), parse_saved(&text, port));
            tables.push(TableObservation { name, ipv6: family == "ip6", chains });
        }
    }
    Ok(tables)
}

/// Parses the table `filter` in the output of `iptables-save`.
fn parse_saved(text: &str, port: u16) -> Vec<Chain> {
    let lines = text.lines().skip_while(|line| *line != "*filter").take_while(|line| *line != "COMMIT");
    let declared = |line: &str| {
        // Such as `:FORWARD DROP [0:0]`.
        let (name, policy) = line.strip_prefix(':')?.split_once(' ')?;
        let hook = match name {
            "INPUT" | "OUTPUT" => Some(Hook::Local),
            "FORWARD" => Some(Hook::Forward),
            _ => None,
        };
        let mut rules = RuleSummary::default();
        for line in lines.clone() {
            if let Some(rule) = line.strip_prefix("-A ").and_then(|line| line.strip_prefix(name)?.strip_prefix(' ')) {
                rules.add(saved_rule(rule, port));
            }
        }
        let drops = rules.drops.unwrap_or(policy.starts_with("DROP"));
        Some(Chain { name: name.to_owned(), hook, drops, accepts_gossip: rules.accepts_gossip })
    };
    lines.clone().filter_map(declared).collect()
}

/// Parses a rule after its chain's name.
fn saved_rule(text: &str, port: u16) -> Rule {
    let words: Vec<_> = text.split_ascii_whitespace().collect();
    let value = |option| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1).copied());
    Rule {
        conditional: words.first() != Some(&"-j"),
        udp: value("-p") == Some("udp"),
        port: value("--dport") == Some(&port.to_string()),
        drops: value("-j").and_then(target),
    }
}

/// Returns the output of the program that reads the rules, and the name of the one that changes them.
fn saved(program: &str) -> Seen<(String, String)> {
    let mut said = Vec::new();
    for name in [format!("{program}-legacy"), program.to_owned()] {
        match Command::new(format!("{name}-save")).output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                // The other one reads nftables.
                if output.status.success() && !text.contains("(nf_tables)") && !text.contains("iptables-nft-save") {
                    return Ok((name, text));
                }
            }
            Err(error) => said.push(format!("{name}-save: {error}")),
        }
    }
    Err(Unseen {
        why: format!("legacy {program} has rules here, and nothing to read them by ({})", said.join("; ")),
        remedy: format!("look at `{program}-legacy-save -t filter` on the host: does FORWARD accept packets to pods?"),
    })
}

#[cfg(test)]
mod tests;
