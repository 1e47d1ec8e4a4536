//! Tests that the chains are read as nft writes them into the kernel, and as iptables saves them.

use std::process::Command as Program;

use super::*;
use vipmux_testing::netns::Namespace;

const PORT: u16 = 7944;

/// The tables after these commands; `None`: the test is to be skipped.
fn read(commands: &str) -> Option<Vec<TableObservation>> {
    read_after("nft", &[commands])
}

fn read_after(program: &str, arguments: &[&str]) -> Option<Vec<TableObservation>> {
    let [node] = Namespace::new()?;
    node.enter(|| {
        let output = Program::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(nftables(PORT).unwrap())
    })
}

fn chain(name: &str, hook: Option<Hook>, drops: bool) -> Chain {
    Chain { name: name.to_owned(), hook, drops, accepts_gossip: false }
}

#[test]
fn base_chains_are_read_with_hook_and_policy() {
    let Some(tables) = read(
        "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }
                           chain other { }; }
         table inet fw { chain in { type filter hook input priority 0; policy accept; }
                         chain out { type filter hook output priority 0; policy drop; }
                         chain pre { type filter hook prerouting priority 0; policy drop; }; }
         table ip nat { chain pre { type nat hook input priority 0; policy accept; }; }
         table bridge b { chain forward { type filter hook forward priority 0; policy drop; }; }",
    ) else {
        return;
    };
    let of = |family, name: &str| {
        let name = TableName::Nftables(family, name.to_owned());
        tables.iter().find(|table| table.name == name).map(|table| table.chains.clone())
    };
    assert_eq!(
        of("ip", "filter"),
        Some(vec![chain("FORWARD", Some(Hook::Forward), true), chain("other", None, false)])
    );
    let fw = [
        chain("in", Some(Hook::Local), false),
        chain("out", Some(Hook::Local), true),
        chain("pre", Some(Hook::Routing), true),
    ];
    assert_eq!(of("inet", "fw"), Some(fw.to_vec()));
    assert_eq!(of("ip", "nat"), Some(vec![chain("pre", None, false)]), "nat decides nothing");
    assert_eq!(tables.len(), 3, "a bridge's rules are another matter: {tables:?}");
    let firewall = Firewall { nftables: Ok(tables), legacy: Ok(Vec::new()) };
    assert!(names(&firewall).is_superset(&["filter", "FORWARD", "fw"].map(str::to_owned).into()));
}

/// Whether a chain with this policy and these rules drops, and whether it accepts gossip.
fn nft(policy: &str, rules: &str) -> Option<(bool, bool)> {
    let tables = read(&format!(
        "table inet fw {{ set ports {{ type inet_service; elements = {{ 7944 }}; }}
                          chain called {{ drop; }}
                          chain in {{ type filter hook input priority 0; policy {policy}; {rules}; }}; }}"
    ))?;
    let chain = tables[0].chains.iter().find(|chain| chain.name == "in").unwrap();
    Some((chain.drops, chain.accepts_gossip))
}

/// The same for legacy iptables.
fn saved(policy: &str, rules: &str) -> (bool, bool) {
    let rules = rules.replace("; ", "\n-A INPUT ");
    let text = format!(
        "*mangle\n:INPUT DROP [0:0]\n*filter\n:INPUT {policy} [0:0]\n:INPUT2 - [0:0]\n-A INPUT {rules}\nCOMMIT\n"
    );
    let chains = parse_saved(&text, PORT);
    assert_eq!((chains.len(), chains[0].hook), (2, Some(Hook::Local)));
    (chains[0].drops, chains[0].accepts_gossip)
}

#[test]
fn the_first_rule_without_conditions_decides_like_a_policy() {
    for (policy, rules, drops) in [
        ("accept", "ct state invalid drop", false),
        ("accept", "tcp dport 22 accept; counter log drop", true),
        // firewalld's last rule.
        ("accept", "iif lo accept; reject with icmpx admin-prohibited", true),
        ("accept", "accept; drop", false),
        ("drop", "counter", true),
        ("drop", "counter accept", false),
        ("drop", "ip daddr 10.244.0.0/16 accept", true),
        ("drop", "jump called", true),
        ("accept", "jump called", false),
        ("drop", "ct state vmap { established : accept, invalid : drop }", true),
    ] {
        let Some(chain) = nft(policy, rules) else { return };
        assert_eq!(chain, (drops, false), "{policy}, {rules}");
    }
    for (policy, rules, drops) in [
        ("DROP", "-p tcp -j ACCEPT", true),
        ("ACCEPT", "-p tcp -j DROP", false),
        ("ACCEPT", "-i lo -j ACCEPT; -j REJECT --reject-with icmp-host-prohibited", true),
        ("DROP", "-j LOG; -j ACCEPT", false),
    ] {
        assert_eq!(saved(policy, rules), (drops, false), "{policy}, {rules}");
    }
}

#[test]
fn rules_of_iptables_nft_are_read_too() {
    for (rule, drops, accepts_gossip) in [
        ("-p udp --dport 7944 -j ACCEPT", false, true),
        ("-p udp -m multiport --dports 53,7944 -j ACCEPT", false, false),
        ("-m comment --comment words -j REJECT", true, false),
        ("-m mark --mark 1 -j REJECT", false, false),
        ("-j DROP", true, false),
    ] {
        let arguments: Vec<_> = ["-A", "INPUT"].into_iter().chain(rule.split(' ')).collect();
        let Some(tables) = read_after("iptables-nft", &arguments) else { return };
        let chain = Chain { accepts_gossip, ..chain("INPUT", Some(Hook::Local), drops) };
        assert_eq!(tables[0].chains, [chain], "{rule}");
    }
}

#[test]
fn rules_that_accept_gossip_have_its_port() {
    for (rule, accepts) in [
        ("udp dport 7944 accept", true),
        ("ip saddr 192.0.2.0/24 udp dport 7944 counter accept", true),
        ("udp dport 7944 drop", false),
        ("udp dport 53 accept", false),
        ("udp dport != 7944 accept", false),
        ("tcp dport 7944 accept", false),
        // Sets and ranges are not followed.
        ("udp dport @ports accept", false),
        ("udp dport 7000-8000 accept", false),
    ] {
        let Some(chain) = nft("drop", rule) else { return };
        assert_eq!(chain, (true, accepts), "{rule}");
    }
    for (rule, accepts) in [
        ("-p udp -m udp --dport 7944 -j ACCEPT", true),
        ("-p udp -m udp --dport 7944 -j DROP", false),
        ("-p tcp -m tcp --dport 7944 -j ACCEPT", false),
        ("-p udp -m udp --dport 53 -j ACCEPT", false),
    ] {
        assert_eq!(saved("DROP", rule), (true, accepts), "{rule}");
    }
}

#[test]
fn rules_with_other_expressions_are_decoded_too() {
    let Some(tables) = read(
        r#"table inet fw {
            comment "räume"
            counter counted { }
            quota most { over 1 mbytes }
            limit slow { rate 10/second burst 5 packets }
            set sources { type ipv4_addr; flags interval; elements = { 192.0.2.0/25, 198.51.100.7 } }
            set seen { type ipv4_addr; flags dynamic,timeout; timeout 1m; }
            map ports { type inet_service : verdict; elements = { 80 : drop, 443 : accept } }
            chain in {
                type filter hook input priority filter; policy accept;
                ct state established,related accept comment "öffnet nichts"
                ct state invalid counter name counted drop
                iifname "eth*" meta mark set 0x1 limit rate 5/minute log prefix "new: " group 3
                ip saddr @sources tcp flags & (syn | ack) == syn reject with tcp reset
                update @seen { ip saddr limit rate 10/second }
                fib daddr type local tcp dport vmap @ports
                meta l4proto icmp icmp type echo-request limit name "slow" accept
                ip6 nexthdr icmpv6 icmpv6 type echo-request accept
                numgen inc mod 2 vmap { 0 : continue, 1 : return }
                jhash ip saddr mod 2 vmap { 0 : continue, 1 : return }
                socket transparent 1 quota over 1 mbytes ct mark set 1
                reject
            }
            chain out {
                type nat hook postrouting priority srcnat; policy accept;
                ip daddr 192.0.2.1 meta l4proto tcp snat ip to 192.0.2.2:1024-2048 random
                masquerade fully-random
            }
        }"#,
    ) else {
        return;
    };
    assert_eq!(tables[0].chains, [chain("in", Some(Hook::Local), true), chain("out", None, false)]);
}
