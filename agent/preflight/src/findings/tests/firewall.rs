//! Firewall rules and their findings. Most are in the format of `iptables-save`, which is shorter.

use super::super::{
    CheckStatus::{self, Fail, Pass, Warn},
    firewall::{Conditions, Does, Firewall, When, assess, parse_saved},
};

/// The status of `forward` and of `gossip-firewall` with these rules.
fn statuses(rules: &str) -> (CheckStatus, CheckStatus) {
    let legacy = parse_saved("legacy iptables", false, rules);
    let found = assess(&Firewall { nftables: Ok(Vec::new()), legacy: Ok(legacy) }, 7944, None);
    assert_eq!([found[0].check, found[1].check], ["forward", "gossip-firewall"]);
    (found[0].status, found[1].status)
}

const OPEN: &str = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n";
const SHUT: &str = "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n";

#[test]
fn policies_and_unconditional_rules_decide_for_all_packets() {
    for (rules, forward, gossip) in [
        ("", Pass, Pass),
        (OPEN, Pass, Pass),
        (SHUT, Fail, Fail),
        ("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n", Fail, Pass),
        // Another table's policy does not matter.
        ("*mangle\n:FORWARD DROP [0:0]\nCOMMIT\n*filter\n:FORWARD ACCEPT [0:0]\n", Pass, Pass),
        (&format!("{OPEN}-A FORWARD -j DROP\n"), Fail, Pass),
        (&format!("{OPEN}-A INPUT -j REJECT --reject-with icmp-port-unreachable\n"), Pass, Fail),
        (&format!("{SHUT}-A FORWARD -j ACCEPT\n-A INPUT -j ACCEPT\n"), Pass, Pass),
        (&format!("{SHUT}-A FORWARD -m comment --comment \"a b\" -j ACCEPT\n"), Pass, Fail),
        (&format!("{OPEN}-A FORWARD -j LOG --log-prefix \"x \"\n-A FORWARD -j DROP\n"), Fail, Pass),
    ] {
        assert_eq!(statuses(rules), (forward, gossip), "{rules}");
    }
}

#[test]
fn rules_with_conditions_leave_it_open() {
    for (rules, forward, gossip) in [
        // kube-proxy's.
        (&format!("{SHUT}-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"), Fail, Fail),
        (&format!("{SHUT}-A FORWARD -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT\n"), Warn, Fail),
        (&format!("{SHUT}-A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n"), Warn, Fail),
        (&format!("{SHUT}-A INPUT -m state --state ESTABLISHED -j ACCEPT\n"), Fail, Warn),
        (&format!("{OPEN}-A FORWARD -m conntrack --ctstate INVALID -j DROP\n"), Pass, Pass),
        // Flannel's.
        (&format!("{SHUT}-A FORWARD -d 10.244.0.0/16 -j ACCEPT\n"), Warn, Fail),
        (&format!("{SHUT}-A FORWARD -p tcp -j ACCEPT\n"), Warn, Fail),
        (&format!("{SHUT}-A INPUT ! -i lo -j ACCEPT\n-A INPUT ! -p tcp -j ACCEPT\n"), Fail, Warn),
    ] {
        assert_eq!(statuses(rules), (forward, gossip), "{rules}");
    }
}

#[test]
fn the_gossip_port_differs_from_other_ports() {
    for (rule, gossip) in [
        ("-p udp -m udp --dport 7944 -j ACCEPT", Pass),
        ("-p udp -m udp --dport 7000:8000 -j ACCEPT", Pass),
        ("-p udp -m udp --dport 53 -j ACCEPT", Fail),
        ("-s 192.0.2.0/24 -p udp -m udp --dport 7944 -j ACCEPT", Warn),
        ("-p tcp -m tcp --dport 7944 -j ACCEPT", Fail),
        ("-p udp -j ACCEPT", Pass),
        ("-i lo -j ACCEPT", Fail),
        ("-p udp -m multiport --dports 53,7944 -j ACCEPT", Warn),
        ("-p udp -m udp --sport 53 -j ACCEPT", Warn),
    ] {
        assert_eq!(statuses(&format!("{SHUT}-A FORWARD -j ACCEPT\n-A INPUT {rule}\n")).1, gossip, "{rule}");
    }
    let explicit = format!("{OPEN}-A INPUT -p udp -m udp --dport 7944 -j DROP\n");
    assert_eq!(statuses(&explicit), (Pass, Fail));
}

#[test]
fn chains_that_are_called_are_followed() {
    const CALLED: &str = "*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n:allow - [0:0]\n:deny - [0:0]\n";
    for (rules, forward, gossip) in [
        ("-A INPUT -j allow\n-A allow -p udp --dport 7944 -j ACCEPT\n", Pass, Pass),
        ("-A INPUT -j allow\n-A allow -p udp --dport 53 -j ACCEPT\n", Pass, Fail),
        ("-A FORWARD -j deny\n-A deny -j DROP\n", Fail, Fail),
        ("-A FORWARD -j deny\n-A deny -j RETURN\n-A deny -j DROP\n", Pass, Fail),
        ("-A FORWARD -s 10.0.0.0/8 -j deny\n-A deny -j DROP\n", Pass, Fail),
        // A goto does not return to the rules after it.
        ("-A FORWARD -g deny\n-A FORWARD -j DROP\n", Pass, Fail),
        // The recursion ends at a depth; the kernel refuses such rules.
        ("-A FORWARD -j deny\n-A deny -j deny\n", Pass, Fail),
    ] {
        assert_eq!(statuses(&format!("{CALLED}{rules}")), (forward, gossip), "{rules}");
    }
}

#[test]
fn chains_that_drop_are_named() {
    let legacy = parse_saved("legacy ip6tables", true, SHUT);
    let firewall = Firewall { nftables: Ok(Vec::new()), legacy: Ok(legacy) };
    for node_has_ipv6 in [None, Some(true)] {
        let found = assess(&firewall, 7944, node_has_ipv6);
        assert!(found[0].found.starts_with("chain FORWARD of legacy ip6tables drops"), "{found:?}");
        assert!(found[1].remedy.as_deref().unwrap().contains("udp dport 7944 accept"), "{found:?}");
    }
    // Docker drops IPv6 on nodes without IPv6.
    let found = assess(&firewall, 7944, Some(false));
    assert!(found.iter().all(|finding| finding.status == Pass), "{found:?}");
}

#[test]
fn conditions_decide_when_a_rule_applies() {
    let udp = Conditions { udp: true, ..Conditions::default() };
    for (conditions, when) in [
        (Conditions::default(), When::Always),
        (udp, When::UdpPorts { first: 0, last: u16::MAX, also: false }),
        (Conditions { others: true, ..udp }, When::Sometimes),
        (Conditions { ports: Some((1, 2)), ..Conditions::default() }, When::Sometimes),
        (Conditions { ports: Some((1, 2)), ..udp }, When::UdpPorts { first: 1, last: 2, also: false }),
        (Conditions { ports: Some((1, 2)), others: true, ..udp }, When::UdpPorts { first: 1, last: 2, also: true }),
        (Conditions { other_protocol: true, ..Conditions::default() }, When::OtherProtocol),
        (Conditions { loopback: true, others: true, ..Conditions::default() }, When::Loopback),
        (Conditions { others: true, ..Conditions::default() }, When::Sometimes),
    ] {
        assert_eq!(conditions.when(), when, "{conditions:?}");
    }
    assert_eq!(super::super::firewall::target("web", true), Does::Goto("web".to_owned()));
}
