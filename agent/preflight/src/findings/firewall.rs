//! Checks for firewall chains that drop packets to pods, or the agents' gossip.
//!
//! Rules are not evaluated. One of them may accept the packets, so a chain that drops is a warning.

use super::{Finding, Seen};

/// All rule sets of the node.
#[derive(Clone, Debug)]
pub struct Firewall {
    /// nftables, including rules of `iptables-nft`.
    pub nftables: Seen<Vec<TableObservation>>,
    /// Legacy iptables: the tables named `filter`, for IPv4 and IPv6.
    pub legacy: Seen<Vec<TableObservation>>,
}

/// The name of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableName {
    /// Of nftables: the family and the name.
    Nftables(&'static str, String),
    /// The table `filter` of the program that changes it, such as `iptables-legacy`.
    Legacy(String),
}

/// A table of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableObservation {
    /// Its name.
    pub name: TableName,
    /// Its rules are only for IPv6.
    pub ipv6: bool,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// The hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Input and output: packets of the node itself.
    Local,
    /// Packets that the node forwards.
    Forward,
    /// Prerouting and postrouting: all packets.
    Routing,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Its hook; `None`: another hook, or it is called by rules only.
    pub hook: Option<Hook>,
    /// It drops packets that no rule decides about, by its policy or by a rule without conditions.
    pub drops: bool,
    /// One of its rules accepts UDP packets to the gossip port.
    pub accepts_gossip: bool,
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
    let mut forward = warnings(&tables, Hook::Forward, forwarded);
    if forward.is_empty() {
        forward.push(Finding::pass("forward", "no chain drops forwarded packets that no rule decides about"));
    }
    tables.retain(|table| !table.chains.iter().any(|chain| chain.accepts_gossip));
    let mut local = warnings(&tables, Hook::Local, |table, chain| gossip(table, chain, port));
    if local.is_empty() {
        let accepts = format!("no chain drops UDP port {port} if no rule decides about it, or a rule there accepts it");
        local.push(Finding::pass("gossip-firewall", accepts));
    }
    [forward, local, unseen].concat()
}

/// Returns a warning for each chain that drops at a hook.
fn warnings(
    tables: &[&TableObservation],
    hook: Hook,
    warning: impl Fn(&TableObservation, &Chain) -> Finding,
) -> Vec<Finding> {
    let chains = tables.iter().flat_map(|table| table.chains.iter().map(move |chain| (table, chain)));
    let meets = |chain: &Chain| chain.hook == Some(hook) || chain.hook == Some(Hook::Routing);
    chains.filter(|(_, chain)| chain.drops && meets(chain)).map(|(table, chain)| warning(table, chain)).collect()
}

fn forwarded(table: &TableObservation, chain: &Chain) -> Finding {
    let family = if table.ipv6 { "ip6" } else { "ip" };
    let command = command(table, chain, &format!("{family} daddr POD-CIDR"), "-d POD-CIDR");
    Finding::warn(
        "forward",
        format!(
            "{} drops packets that none of its rules accepts: packets of clients to pods carry no mark of kube-proxy",
            title(table, chain)
        ),
        format!(
            "if no rule accepts packets to the pods' network and replies: {command}, and with the source in place of the \
             destination, for each IP family; also in the firewall's own configuration"
        ),
    )
}

fn gossip(table: &TableObservation, chain: &Chain, port: u16) -> Finding {
    let command = command(table, chain, &format!("udp dport {port}"), &format!("-p udp --dport {port}"));
    Finding::warn(
        "gossip-firewall",
        format!("{} drops UDP port {port} unless one of its rules accepts it", title(table, chain)),
        format!("if none does: {command}; also in the firewall's own configuration"),
    )
}

fn title(table: &TableObservation, chain: &Chain) -> String {
    match &table.name {
        TableName::Nftables(family, table) => format!("chain {} of nftables table {family} {table}", chain.name),
        TableName::Legacy(program) => format!("chain {} of {program}", chain.name),
    }
}

/// Returns the command that inserts a rule before all others, since the last one may drop.
fn command(table: &TableObservation, chain: &Chain, nft: &str, iptables: &str) -> String {
    let chain = &chain.name;
    match &table.name {
        TableName::Nftables(family, table) => format!("`nft insert rule {family} {table} {chain} {nft} accept`"),
        TableName::Legacy(program) => format!("`{program} -I {chain} {iptables} -j ACCEPT`"),
    }
}
