//! Checks for firewall rules that drop packets to pods, or the agents' gossip.
//!
//! Not every condition of a rule is understood, and such a condition may hold or not. So the result
//! is what *can* happen to a packet.

mod saved;

use std::collections::BTreeSet;

pub use self::saved::{parse as parse_saved, target};
use super::{Finding, Seen, list};

/// The greatest depth of chains that call each other; the kernel allows 16.
const DEPTH: u8 = 16;

/// All rule sets of the node.
#[derive(Clone, Debug)]
pub struct Firewall {
    /// nftables, including rules of `iptables-nft`.
    pub nftables: Seen<Vec<TableObservation>>,
    /// Legacy iptables: the tables named `filter`, for IPv4 and IPv6.
    pub legacy: Seen<Vec<TableObservation>>,
}

/// A table of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableObservation {
    /// Its name for people: `nftables table inet filter`.
    pub name: String,
    /// Its rules are only for IPv6.
    pub ipv6: bool,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// The hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets for the node itself.
    Input,
    /// Packets that the node forwards.
    Forward,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Its hook; `None`: another hook, or it is called by rules only.
    pub hook: Option<Hook>,
    /// Its policy is to drop packets that no rule decides about.
    pub drops: bool,
    /// Its rules, in their order.
    pub rules: Vec<RuleObservation>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleObservation {
    /// The condition under which it applies.
    pub when: When,
    /// Its action on a match.
    pub does: Does,
}

/// The condition under which a rule applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// To UDP packets to these ports; `also`: under further conditions.
    UdpPorts {
        /// The lowest.
        first: u16,
        /// The highest.
        last: u16,
        /// Under further conditions.
        also: bool,
    },
    /// To packets of protocols other than UDP, perhaps under further conditions.
    OtherProtocol,
    /// To packets that come in on the loopback interface.
    Loopback,
    /// To packets of known connections, or to invalid ones, but not to a packet that opens a
    /// connection (conntrack).
    NotNew,
    /// Under a condition that is not understood.
    Sometimes,
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Does {
    /// The packet passes this base chain.
    Accept,
    /// It is dropped or refused.
    Drop,
    /// Evaluates another chain, then the next rules.
    Jump(String),
    /// Evaluates another chain, then continues in the calling chain.
    Goto(String),
    /// Continues in the calling chain; in a base chain the policy decides.
    Return,
    /// Decides nothing: it counts, logs or marks.
    Nothing,
}

/// A packet whose way through the rules is evaluated.
#[derive(Clone, Copy)]
enum Packet {
    /// A client's first packet, to a pod.
    ToPod,
    /// Another agent's gossip, with the UDP port.
    Gossip(u16),
}

/// The possible outcomes for a packet.
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcomes {
    accepted: bool,
    /// Dropped by a rule without conditions, or by the policy.
    dropped: bool,
    /// Dropped by a rule with conditions.
    dropped_sometimes: bool,
    /// It reaches the end of the chain.
    falls_through: bool,
}

impl Outcomes {
    fn or(self, other: Self) -> Self {
        Self {
            accepted: self.accepted || other.accepted,
            dropped: self.dropped || other.dropped,
            dropped_sometimes: self.dropped_sometimes || other.dropped_sometimes,
            falls_through: self.falls_through || other.falls_through,
        }
    }

    /// Returns the same outcomes under a condition that may not hold.
    fn on_condition(self) -> Self {
        let dropped_sometimes = self.dropped || self.dropped_sometimes;
        Self { dropped: false, dropped_sometimes, ..self }
    }
}

/// Returns the findings about the rules. `port`: the gossip port. Rules for IPv6 only do not matter
/// for a Node without an IPv6 address.
pub(super) fn assess(firewall: &Firewall, port: u16, node_has_ipv6: Option<bool>) -> Vec<Finding> {
    let mut unseen = Vec::new();
    let mut tables = Vec::new();
    for seen in [&firewall.nftables, &firewall.legacy] {
        match seen {
            Ok(found) => tables.extend(found.iter().filter(|table| !table.ipv6 || node_has_ipv6 != Some(false))),
            Err(why) => unseen.push(Finding::unseen("firewall", why)),
        }
    }
    let forward = evaluate(&tables, Hook::Forward, Packet::ToPod);
    let input = evaluate(&tables, Hook::Input, Packet::Gossip(port));
    [vec![forwarded(&forward), gossip(&input, port)], unseen].concat()
}

/// A base chain, and the possible outcomes for a packet there.
struct ChainOutcomes {
    chain: String,
    outcomes: Outcomes,
}

fn evaluate(tables: &[&TableObservation], hook: Hook, packet: Packet) -> Vec<ChainOutcomes> {
    let of_table = |table: &&TableObservation| {
        let bases = table.chains.iter().filter(|chain| chain.hook == Some(hook));
        let evaluated = |chain: &Chain| {
            let mut outcomes = follow(table, chain, packet, DEPTH);
            if std::mem::take(&mut outcomes.falls_through) {
                *(if chain.drops { &mut outcomes.dropped } else { &mut outcomes.accepted }) = true;
            }
            ChainOutcomes { chain: format!("chain {} of {}", chain.name, table.name), outcomes }
        };
        bases.map(evaluated).collect::<Vec<_>>()
    };
    tables.iter().flat_map(of_table).collect()
}

/// Returns the possible outcomes for a packet in a chain.
fn follow(table: &TableObservation, chain: &Chain, packet: Packet, depth: u8) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for rule in &chain.rules {
        let Some(certain) = applies(&rule.when, packet) else { continue };
        let (outcome, ends) = outcome(table, &rule.does, packet, depth);
        if certain {
            let goes_on = !ends && outcome.falls_through;
            outcomes = outcomes
                .or(Outcomes { falls_through: outcomes.falls_through || ends && outcome.falls_through, ..outcome });
            if !goes_on {
                return outcomes;
            }
        } else {
            outcomes = outcomes.or(Outcomes { falls_through: ends && outcome.falls_through, ..outcome.on_condition() });
        }
    }
    outcomes.falls_through = true;
    outcomes
}

/// Returns the outcomes of a rule, and whether the rules after it do not count then.
fn outcome(table: &TableObservation, does: &Does, packet: Packet, depth: u8) -> (Outcomes, bool) {
    let called = |name: &String| match table.chains.iter().find(|chain| chain.name == *name) {
        Some(chain) if depth > 0 => follow(table, chain, packet, depth - 1),
        _ => Outcomes { falls_through: true, ..Outcomes::default() },
    };
    match does {
        Does::Accept => (Outcomes { accepted: true, ..Outcomes::default() }, true),
        Does::Drop => (Outcomes { dropped: true, ..Outcomes::default() }, true),
        Does::Return => (Outcomes { falls_through: true, ..Outcomes::default() }, true),
        Does::Nothing => (Outcomes { falls_through: true, ..Outcomes::default() }, false),
        Does::Jump(name) => (called(name), false),
        Does::Goto(name) => (called(name), true),
    }
}

/// Returns whether a rule applies to a packet: always (`true`), perhaps (`false`), or never
/// (`None`).
fn applies(when: &When, packet: Packet) -> Option<bool> {
    match (when, packet) {
        (When::Always, _) => Some(true),
        (When::Loopback, _) | (When::OtherProtocol, Packet::Gossip(_)) | (When::NotNew, Packet::ToPod) => None,
        (When::UdpPorts { first, last, also }, Packet::Gossip(port)) => {
            (*first..=*last).contains(&port).then_some(!also)
        }
        // Another agent's message may belong to a known connection: it may answer this one.
        (When::Sometimes | When::OtherProtocol | When::NotNew | When::UdpPorts { .. }, _) => Some(false),
    }
}

fn forwarded(evaluated: &[ChainOutcomes]) -> Finding {
    const CHECK: &str = "forward";
    const REMEDY: &str = "accept packets to the pods' network there (`ip daddr POD-CIDR accept`, also for IPv6), or set the \
                          chain's policy to accept";
    if let Some(chains) = all(evaluated, |outcomes| outcomes.dropped && !outcomes.accepted) {
        return Finding::fail(
            CHECK,
            format!("{chains} drops all forwarded connections, including those of clients to pods"),
            REMEDY,
        );
    }
    match all(evaluated, |outcomes| outcomes.dropped) {
        Some(chains) => Finding::warn(
            CHECK,
            format!(
                "{chains} drops packets that none of its rules accepts: packets of clients to pods carry no mark of kube-proxy"
            ),
            REMEDY,
        ),
        None if evaluated.is_empty() => Finding::pass(CHECK, "no rules for forwarded packets"),
        None => Finding::pass(CHECK, "packets that no rule decides about are accepted"),
    }
}

fn gossip(evaluated: &[ChainOutcomes], port: u16) -> Finding {
    const CHECK: &str = "gossip-firewall";
    let remedy = format!("accept UDP port {port} from the other nodes there (`udp dport {port} accept`)");
    if let Some(chains) = all(evaluated, |outcomes| outcomes.dropped && !outcomes.accepted) {
        return Finding::fail(
            CHECK,
            format!("{chains} drops UDP port {port}: the agents cannot hear each other"),
            remedy,
        );
    }
    match all(evaluated, |outcomes| outcomes.dropped) {
        Some(chains) => {
            Finding::warn(CHECK, format!("{chains} drops UDP port {port} unless one of its rules accepts it"), remedy)
        }
        None => Finding::pass(CHECK, format!("no rule that vipmux understands blocks UDP port {port}")),
    }
}

/// Returns the chains for which `is_so` holds, if there are any.
fn all(evaluated: &[ChainOutcomes], is_so: impl Fn(Outcomes) -> bool) -> Option<String> {
    let chains: BTreeSet<_> =
        evaluated.iter().filter(|evaluated| is_so(evaluated.outcomes)).map(|evaluated| &evaluated.chain).collect();
    (!chains.is_empty()).then(|| list(chains))
}

/// The conditions of a rule, collected while it is read.
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// UDP.
    pub udp: bool,
    /// Another protocol.
    pub other_protocol: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// Destination ports, the lowest and the highest.
    pub ports: Option<(u16, u16)>,
    /// A conntrack state that excludes packets that open a connection.
    pub not_new: bool,
    /// Any other condition.
    pub others: bool,
}

impl Conditions {
    /// Returns when a rule with these conditions applies.
    pub fn when(self) -> When {
        match self {
            Self { loopback: true, .. } => When::Loopback,
            Self { not_new: true, .. } => When::NotNew,
            Self { other_protocol: true, .. } => When::OtherProtocol,
            Self { ports: Some((first, last)), udp: true, others: also, .. } => When::UdpPorts { first, last, also },
            Self { udp: true, others: false, .. } => When::UdpPorts { first: 0, last: u16::MAX, also: false },
            Self { ports: None, others: false, .. } => When::Always,
            _ => When::Sometimes,
        }
    }
}
