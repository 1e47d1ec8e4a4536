//! Chains and their findings.

use super::super::{
    CheckStatus::{self, Pass, Warn},
    Finding,
    firewall::{Chain, Firewall, Hook, TableName, TableObservation, assess},
};

const GOSSIP: &str = "gossip-firewall";

/// A table with one chain that drops.
fn table(name: TableName, chain: &str, hook: Hook) -> TableObservation {
    let chain = Chain { name: chain.to_owned(), hook: Some(hook), drops: true, accepts_gossip: false };
    TableObservation { name, ipv6: false, chains: vec![chain] }
}

fn inet(chain: &str, hook: Hook) -> TableObservation {
    table(TableName::Nftables("inet", "fw".to_owned()), chain, hook)
}

fn found(tables: Vec<TableObservation>) -> Vec<Finding> {
    assess(&Firewall { nftables: Ok(tables), legacy: Ok(Vec::new()) }, 7944, None)
}

/// The status of each check.
fn statuses(tables: Vec<TableObservation>) -> Vec<(&'static str, CheckStatus)> {
    found(tables).into_iter().map(|finding| (finding.check, finding.status)).collect()
}

#[test]
fn chains_that_drop_are_warnings_of_the_checks_whose_packets_they_meet() {
    assert_eq!(statuses(Vec::new()), [("forward", Pass), (GOSSIP, Pass)]);
    assert_eq!(statuses(vec![inet("in", Hook::Local)]), [("forward", Pass), (GOSSIP, Warn)]);
    assert_eq!(statuses(vec![inet("fwd", Hook::Forward)]), [("forward", Warn), (GOSSIP, Pass)]);
    assert_eq!(statuses(vec![inet("pre", Hook::Routing)]), [("forward", Warn), (GOSSIP, Warn)]);
    let several = vec![inet("in", Hook::Local), inet("out", Hook::Local)];
    assert_eq!(statuses(several), [("forward", Pass), (GOSSIP, Warn), (GOSSIP, Warn)]);
    let mut open = inet("fwd", Hook::Routing);
    open.chains[0].drops = false;
    assert_eq!(statuses(vec![open.clone()]), [("forward", Pass), (GOSSIP, Pass)]);
    open.chains[0] = Chain { hook: None, drops: true, ..open.chains[0].clone() };
    assert_eq!(statuses(vec![open]), [("forward", Pass), (GOSSIP, Pass)]);
}

/// firewalld and ufw put the rule into a chain that is called.
#[test]
fn a_rule_for_the_gossip_port_anywhere_in_the_table_is_enough() {
    let mut table = inet("in", Hook::Routing);
    table.chains.push(Chain { name: "allow".to_owned(), hook: None, drops: false, accepts_gossip: true });
    assert_eq!(statuses(vec![table.clone()]), [("forward", Warn), (GOSSIP, Pass)]);
    assert_eq!(statuses(vec![table, inet("in", Hook::Local)]), [("forward", Warn), (GOSSIP, Warn)]);
}

#[test]
fn each_chain_has_the_command_that_adds_a_rule() {
    let legacy = || TableName::Legacy("iptables-legacy".to_owned());
    let ip6 = || TableName::Nftables("ip6", "filter".to_owned());
    for (table, ipv6, words, command) in [
        (
            inet("in", Hook::Local),
            false,
            "chain in of nftables table inet fw drops UDP port 7944",
            "`nft insert rule inet fw in udp dport 7944 accept`",
        ),
        (
            table(ip6(), "FORWARD", Hook::Forward),
            true,
            "chain FORWARD of nftables table ip6 filter drops",
            "`nft insert rule ip6 filter FORWARD ip6 daddr POD-CIDR accept`",
        ),
        (
            table(legacy(), "INPUT", Hook::Local),
            false,
            "chain INPUT of iptables-legacy drops",
            "`iptables-legacy -I INPUT -p udp --dport 7944 -j ACCEPT`",
        ),
        (
            table(legacy(), "FORWARD", Hook::Forward),
            false,
            "chain FORWARD of iptables-legacy drops",
            "`iptables-legacy -I FORWARD -d POD-CIDR -j ACCEPT`",
        ),
    ] {
        let found = found(vec![TableObservation { ipv6, ..table }]);
        let finding = found.iter().find(|finding| finding.status == Warn).unwrap();
        assert!(finding.found.starts_with(words), "{finding:?}");
        assert!(finding.remedy.as_deref().unwrap().contains(command), "{finding:?}");
    }
}

#[test]
fn rules_for_ipv6_do_not_matter_without_it() {
    let table = TableObservation { ipv6: true, ..inet("all", Hook::Routing) };
    let firewall = Firewall { nftables: Ok(vec![table]), legacy: Ok(Vec::new()) };
    // Docker drops IPv6 on nodes without IPv6.
    for (node_has_ipv6, status) in [(None, Warn), (Some(true), Warn), (Some(false), Pass)] {
        let found = assess(&firewall, 7944, node_has_ipv6);
        assert!(found.iter().all(|finding| finding.status == status), "{node_has_ipv6:?}: {found:?}");
    }
}
