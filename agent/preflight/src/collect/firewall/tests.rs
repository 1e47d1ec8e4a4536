//! Tests that the rules are read as nft writes them into the kernel.

use std::process::Command as Program;

use super::*;
use crate::findings::firewall::When;
use vipmux_testing::netns::Namespace;

/// The tables after these commands; `None`: the test is to be skipped.
fn read(commands: &str) -> Option<Vec<TableObservation>> {
    let [node] = Namespace::new()?;
    node.enter(|| {
        let output = Program::new("nft").arg(commands).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(nftables().unwrap())
    })
}

fn rules(table: &TableObservation, chain: &str) -> Vec<RuleObservation> {
    table.chains.iter().find(|found| found.name == chain).unwrap().rules.clone()
}

#[test]
fn base_chains_are_read_with_hook_and_policy() {
    let Some(tables) = read(
        "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }
                           chain other { }; }
         table inet fw { chain in { type filter hook input priority 0; policy accept; }; }
         table ip nat { chain pre { type nat hook input priority 0; policy accept; }; }
         table bridge b { chain forward { type filter hook forward priority 0; policy drop; }; }",
    ) else {
        return;
    };
    let of = |name: &str| tables.iter().find(|table| table.name == name).map(|table| table.chains.clone());
    let chain = |name: &str, hook, drops| Chain { name: name.to_owned(), hook, drops, rules: Vec::new() };
    let filter = of("nftables table ip filter").unwrap();
    assert!(
        filter.contains(&chain("FORWARD", Some(Hook::Forward), true)) && filter.contains(&chain("other", None, false))
    );
    assert_eq!(of("nftables table inet fw"), Some(vec![chain("in", Some(Hook::Input), false)]));
    assert_eq!(of("nftables table ip nat"), Some(vec![chain("pre", None, false)]), "nat decides nothing");
    assert_eq!(tables.len(), 3, "a bridge's rules are another matter: {tables:?}");
    let firewall = Firewall { nftables: Ok(tables), legacy: Ok(Vec::new()) };
    assert!(names(&firewall).is_superset(&BTreeSet::from([
        "filter".to_owned(),
        "FORWARD".to_owned(),
        "fw".to_owned()
    ])));
}

#[test]
fn rules_are_read_with_their_conditions_and_actions() {
    let Some(tables) = read(
        "table inet fw {
            set ports { type inet_service; elements = { 7944 } }
            chain called { }
            chain in {
                type filter hook input priority 0; policy drop;
                udp dport 7944 accept
                ip saddr 192.0.2.0/24 udp dport 7944 counter accept
                udp dport 7000-8000 drop
                udp dport @ports accept
                tcp dport 22 accept
                iif lo accept
                iifname \"lo\" accept
                ct state established accept
                ct state established,related accept
                ct state established,new accept
                meta l4proto udp accept
                ct state vmap { established : accept, invalid : drop }
                counter
                jump called
                goto called
                return
                reject
            }
        }",
    ) else {
        return;
    };
    let udp = |first, last, also| When::UdpPorts { first, last, also };
    let called = || "called".to_owned();
    let expected = [
        (udp(7944, 7944, false), Does::Accept),
        (udp(7944, 7944, true), Does::Accept),
        (udp(7000, 8000, false), Does::Drop),
        (When::Sometimes, Does::Accept),
        (When::OtherProtocol, Does::Accept),
        (When::Loopback, Does::Accept),
        (When::Loopback, Does::Accept),
        (When::NotNew, Does::Accept),
        (When::NotNew, Does::Accept),
        (When::Sometimes, Does::Accept),
        (udp(0, u16::MAX, false), Does::Accept),
        (When::Sometimes, Does::Accept),
        (When::Always, Does::Nothing),
        (When::Always, Does::Jump(called())),
        (When::Always, Does::Goto(called())),
        (When::Always, Does::Return),
        (When::Always, Does::Drop),
    ];
    let found = rules(&tables[0], "in");
    assert_eq!(found.len(), expected.len());
    for (at, (rule, (when, does))) in found.into_iter().zip(expected).enumerate() {
        assert_eq!(rule, RuleObservation { when, does }, "rule {at}");
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
    let rules = rules(&tables[0], "in");
    assert_eq!(rules.len(), 11, "{rules:?}");
}
