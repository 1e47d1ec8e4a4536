//! Tests segments outside of the window. If there is a rule of kube-proxy or the CNI against what
//! conntrack finds invalid, it drops them. Connections continue in either case.

use std::{fs, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Kind, Session},
    cluster::{PATIENCE, TIMEOUT},
    frames::{ACK, Ethernet, PSH, Tcp},
    kube_proxy::Mode,
    lan::{Node, PodNetwork},
    process, wait, wire,
};

use super::services::{Offer, SharedServices, VIPS, of_family};

/// Segments of each kind from the client and from the pod.
const STRAY: u8 = 5;
/// Of two numbers that are half the number space apart, one is before the window and one after it,
/// for every connection. The kernel always finds the latter invalid. Since Linux 6.2 it takes the
/// former for a late segment.
const NUMBERS: [u32; 2] = [0x1234_5678, 0x9234_5678];

pub(super) fn segments_harm_nobody(services: &SharedServices) -> Result<()> {
    for node in &services.cluster.lan.nodes {
        check_rule(services, node)?;
        watch(node)?;
    }
    // A segment that arrives after its connection has ended is answered by a RST, correctly. So the
    // connections stay open.
    let mut sessions = Vec::new();
    for offer in services.offers_of(Kind::Echo) {
        for vip in VIPS {
            sessions.push(harm_nobody(services, &offer, vip).with_context(|| offer.at(vip).to_string())?);
        }
    }
    sessions.iter_mut().try_for_each(|session| session.echo("and now?").map(drop)).context("a connection is broken")?;
    services.cluster.lan.nodes.iter().try_for_each(|node| node.nft("delete table inet watch").map(drop))
}

/// With iptables, kube-proxy drops invalid packets unless conntrack is set to be liberal. With
/// nftables it never does.
fn check_rule(services: &SharedServices, node: &Node) -> Result<()> {
    let path = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
    let liberal = node.namespace().run(|| fs::read_to_string(path).context(path))?;
    assert_eq!(liberal.trim(), "0", "{}", node.name);
    if services.mode == Mode::Iptables {
        for program in ["iptables-save", "ip6tables-save"] {
            let mut command = node.namespace().command(program)?;
            command.args(["-t", "filter"]);
            let rules = process::run(command)?;
            let drop = rules.lines().find(|rule| rule.contains("KUBE-FORWARD") && rule.contains("--ctstate INVALID"));
            ensure!(drop.is_some_and(|rule| rule.ends_with("-j DROP")), "{}: {rules}", node.name);
        }
    }
    Ok(())
}

/// Counts the packets that are sent here, and the invalid ones of them, before and after the rules
/// of kube-proxy and of the CNI, which have priority 0.
fn watch(node: &Node) -> Result<()> {
    let [one, other] = NUMBERS;
    node.nft(&format!(
        "table inet watch {{
            counter stray {{}}
            counter invalid {{}}
            counter left {{}}
            chain before {{
                type filter hook forward priority -10;
                tcp sequence {{ {one}, {other} }} counter name stray
                ct state invalid counter name invalid
            }}
            chain after {{ type filter hook forward priority 10; ct state invalid counter name left; }}
        }}"
    ))
    .map(drop)
}

fn harm_nobody(services: &SharedServices, offer: &Offer<'_>, vip: IpAddr) -> Result<Session> {
    let client = services.cluster.lan.client()?;
    let mut session = client.namespace().run(|| Session::connect(offer.at(vip).server, TIMEOUT))?;
    session.echo("hello")?;
    let port = session.local_address()?.port();
    let own = of_family(vip, client.address, client.address_v6);
    let leader = client.neighbor(vip)?.context("the client has no MAC for the VIP")?;
    let counted = |counter| offer.node.nft_packets(("inet", "watch", counter));
    let before = (counted("stray")?, counted("invalid")?, counted("left")?);

    let to_vip = Ethernet::new(client.mac.octets(), leader.octets());
    let to_client = Ethernet::new(offer.pod.mac.octets(), offer.pod.gateway.octets());
    for sequence in NUMBERS {
        let stray = |from, to| Tcp::new(from, to, ACK | PSH).numbers(sequence, sequence).data(b"stray");
        let request = to_vip.tcp((own, vip), stray(port, offer.port))?;
        wire::send(client.namespace(), "eth0", &request, STRAY.into())?;
        let reply = to_client.tcp((offer.pod_address(vip), own), stray(offer.port, port))?;
        wire::send(offer.pod.namespace(), "eth0", &reply, STRAY.into())?;
    }
    wait::until("the segments at the node of the pod", PATIENCE, || {
        let (all, invalid) = (counted("stray")? - before.0, counted("invalid")? - before.1);
        let (left, expected) = (counted("left")? - before.2, if goes_on(services) { invalid } else { 0 });
        let sent = u64::from(STRAY) * 2;
        ensure!(all == 2 * sent && invalid >= sent, "{all} have come, of which {invalid} are invalid");
        ensure!(left == expected, "{left} of {invalid} have gone on, and not {expected}");
        Ok(())
    })?;
    session.echo("still there?").context("the connection is broken")?;
    Ok(session)
}

/// Returns whether invalid packets are forwarded: neither flannel nor kube-proxy with nftables has
/// a rule against them.
fn goes_on(services: &SharedServices) -> bool {
    (services.mode, services.pods) == (Mode::Nftables, PodNetwork::Bridged)
}
