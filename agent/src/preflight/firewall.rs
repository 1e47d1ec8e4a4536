//! Rules that drop what vipmux delivers, or what the agents say to each other.
//!
//! Rules are followed as far as they can be told apart: a condition that is not understood may or may not hold, so the
//! result is what *can* become of a packet.

mod saved;

use std::collections::BTreeSet;

pub use self::saved::{parse as parse_saved, target};
use super::{Finding, Seen, list};

/// Chains that call each other are followed so deep; the kernel allows 16.
const DEPTH: u8 = 16;

/// All rule sets of the node.
#[derive(Clone, Debug)]
pub struct Firewall {
    /// Of nftables, what `iptables-nft` made included.
    pub nftables: Seen<Vec<Table>>,
    /// Of legacy iptables, IPv4 and IPv6: the tables named `filter`.
    pub legacy: Seen<Vec<Table>>,
}

/// A table of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// As people name it: `nftables table inet filter`.
    pub name: String,
    /// Its rules are for IPv6 alone.
    pub ipv6: bool,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// Where a base chain is called from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// What is for the node itself.
    Input,
    /// What goes through it.
    Forward,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Where it is called from; `None`: by rules only, or from elsewhere.
    pub hook: Option<Hook>,
    /// What no rule decides is dropped.
    pub drops: bool,
    /// Its rules, in their order.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// When it applies.
    pub when: When,
    /// What it does then.
    pub does: Does,
}

/// When a rule applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// To UDP packets to these ports; `also`: on other conditions too.
    UdpPorts {
        /// The lowest.
        first: u16,
        /// The highest.
        last: u16,
        /// See above.
        also: bool,
    },
    /// To packets of other protocols than UDP, perhaps on other conditions too.
    OtherProtocol,
    /// To packets that come in by the loopback interface.
    Loopback,
    /// To packets of connections that conntrack knows, or to invalid ones: to none that opens a connection.
    NotNew,
    /// On conditions that are not told apart.
    Sometimes,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Does {
    /// The packet goes on, past this chain's base.
    Accept,
    /// It is dropped or refused.
    Drop,
    /// Another chain is asked, and then the rules behind.
    Jump(String),
    /// Another chain is asked, and then those that called this one.
    Goto(String),
    /// The chain that called this one goes on; a base chain's policy decides.
    Return,
    /// Nothing that decides: it counts, logs, marks.
    Nothing,
}

/// A packet, as far as rules are followed.
#[derive(Clone, Copy)]
enum Packet {
    /// New, from a client, to a pod.
    ToPod,
    /// A UDP packet of another agent.
    Gossip(u16),
}

/// What can become of a packet.
#[expect(clippy::struct_excessive_bools, reason = "any of them goes with any other")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fates {
    accepted: bool,
    /// By a rule or policy that is reached whatever the conditions before are, once they do not hold.
    dropped: bool,
    /// By a rule with conditions.
    dropped_sometimes: bool,
    /// The chain's end is reached.
    falls_through: bool,
}

impl Fates {
    fn or(self, other: Self) -> Self {
        Self {
            accepted: self.accepted || other.accepted,
            dropped: self.dropped || other.dropped,
            dropped_sometimes: self.dropped_sometimes || other.dropped_sometimes,
            falls_through: self.falls_through || other.falls_through,
        }
    }

    /// The same where it is not sure that it comes to this.
    fn on_condition(self) -> Self {
        let dropped_sometimes = self.dropped || self.dropped_sometimes;
        Self { dropped: false, dropped_sometimes, ..self }
    }
}

/// What there is to say about the rules. `port`: the gossip's. Rules for IPv6 alone say nothing of a Node that has no address
/// of it.
pub(super) fn assess(firewall: &Firewall, port: u16, node_has_ipv6: Option<bool>) -> Vec<Finding> {
    let mut unseen = Vec::new();
    let mut tables = Vec::new();
    for seen in [&firewall.nftables, &firewall.legacy] {
        match seen {
            Ok(found) => tables.extend(found.iter().filter(|table| !table.ipv6 || node_has_ipv6 != Some(false))),
            Err(why) => unseen.push(Finding::unseen("firewall", why)),
        }
    }
    let forward = judge(&tables, Hook::Forward, Packet::ToPod);
    let input = judge(&tables, Hook::Input, Packet::Gossip(port));
    [vec![forwarded(&forward), gossip(&input, port)], unseen].concat()
}

/// Base chains at a hook, and what can become of the packet there.
struct Judged {
    chain: String,
    fates: Fates,
}

fn judge(tables: &[&Table], hook: Hook, packet: Packet) -> Vec<Judged> {
    let of_table = |table: &&Table| {
        let bases = table.chains.iter().filter(|chain| chain.hook == Some(hook));
        let judged = |chain: &Chain| {
            let mut fates = follow(table, chain, packet, DEPTH);
            if std::mem::take(&mut fates.falls_through) {
                *(if chain.drops { &mut fates.dropped } else { &mut fates.accepted }) = true;
            }
            Judged { chain: format!("chain {} of {}", chain.name, table.name), fates }
        };
        bases.map(judged).collect::<Vec<_>>()
    };
    tables.iter().flat_map(of_table).collect()
}

/// What can become of a packet in a chain.
fn follow(table: &Table, chain: &Chain, packet: Packet, depth: u8) -> Fates {
    let mut fates = Fates::default();
    for rule in &chain.rules {
        let Some(certain) = applies(&rule.when, packet) else { continue };
        let (outcome, ends) = outcome(table, &rule.does, packet, depth);
        if certain {
            let goes_on = !ends && outcome.falls_through;
            fates = fates.or(Fates { falls_through: fates.falls_through || ends && outcome.falls_through, ..outcome });
            if !goes_on {
                return fates;
            }
        } else {
            fates = fates.or(Fates { falls_through: ends && outcome.falls_through, ..outcome.on_condition() });
        }
    }
    fates.falls_through = true;
    fates
}

/// What a rule leads to, and whether the rules behind it are out of the game then.
fn outcome(table: &Table, does: &Does, packet: Packet, depth: u8) -> (Fates, bool) {
    let called = |name: &String| match table.chains.iter().find(|chain| chain.name == *name) {
        Some(chain) if depth > 0 => follow(table, chain, packet, depth - 1),
        _ => Fates { falls_through: true, ..Fates::default() },
    };
    match does {
        Does::Accept => (Fates { accepted: true, ..Fates::default() }, true),
        Does::Drop => (Fates { dropped: true, ..Fates::default() }, true),
        Does::Return => (Fates { falls_through: true, ..Fates::default() }, true),
        Does::Nothing => (Fates { falls_through: true, ..Fates::default() }, false),
        Does::Jump(name) => (called(name), false),
        Does::Goto(name) => (called(name), true),
    }
}

/// Whether a rule applies to a packet: surely, perhaps (`false`), or not (`None`).
fn applies(when: &When, packet: Packet) -> Option<bool> {
    match (when, packet) {
        (When::Always, _) => Some(true),
        (When::Loopback, _) | (When::OtherProtocol, Packet::Gossip(_)) | (When::NotNew, Packet::ToPod) => None,
        (When::UdpPorts { first, last, also }, Packet::Gossip(port)) => {
            (*first..=*last).contains(&port).then_some(!also)
        }
        // What other agents say may come as the answer to what this one said.
        (When::Sometimes | When::OtherProtocol | When::NotNew | When::UdpPorts { .. }, _) => Some(false),
    }
}

fn forwarded(judged: &[Judged]) -> Finding {
    const CHECK: &str = "forward";
    const REMEDY: &str = "accept what goes to the pods' network there (`ip daddr POD-CIDR accept`, in IPv6 as well), or set the \
                          chain's policy to accept";
    if let Some(chains) = all(judged, |fates| fates.dropped && !fates.accepted) {
        return Finding::fail(
            CHECK,
            format!("{chains} drops every connection that is forwarded, so those of clients to pods"),
            REMEDY,
        );
    }
    match all(judged, |fates| fates.dropped) {
        Some(chains) => Finding::warn(
            CHECK,
            format!(
                "{chains} drops what none of its rules accepts: packets of clients to pods come unmarked, past kube-proxy"
            ),
            REMEDY,
        ),
        None if judged.is_empty() => Finding::pass(CHECK, "no rules for what is forwarded"),
        None => Finding::pass(CHECK, "what no rule decides is accepted"),
    }
}

fn gossip(judged: &[Judged], port: u16) -> Finding {
    const CHECK: &str = "gossip-firewall";
    let remedy = format!("accept UDP port {port} from the other nodes there (`udp dport {port} accept`)");
    if let Some(chains) = all(judged, |fates| fates.dropped && !fates.accepted) {
        return Finding::fail(
            CHECK,
            format!("{chains} drops UDP port {port}: the agents do not hear each other"),
            remedy,
        );
    }
    match all(judged, |fates| fates.dropped) {
        Some(chains) => {
            Finding::warn(CHECK, format!("{chains} drops UDP port {port} unless one of its rules accepts it"), remedy)
        }
        None => Finding::pass(CHECK, format!("no rule that is understood keeps UDP port {port} from this node")),
    }
}

/// The chains of which that is true, if there are any.
fn all(judged: &[Judged], is_so: impl Fn(Fates) -> bool) -> Option<String> {
    let chains: BTreeSet<_> = judged.iter().filter(|judged| is_so(judged.fates)).map(|judged| &judged.chain).collect();
    (!chains.is_empty()).then(|| list(chains))
}

/// What a rule asks for, while it is read.
#[expect(clippy::struct_excessive_bools, reason = "any of them goes with any other")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// UDP.
    pub udp: bool,
    /// Another protocol.
    pub other_protocol: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// Ports that it is to be for, the lowest and the highest.
    pub ports: Option<(u16, u16)>,
    /// A state of conntrack that no packet has which opens a connection.
    pub not_new: bool,
    /// Something else.
    pub others: bool,
}

impl Conditions {
    /// When such a rule applies.
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
