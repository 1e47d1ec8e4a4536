//! Checks sysctls of the network stack.

use super::{
    Finding,
    interface::{InterfaceSysctlObservation, SegmentObservation},
};

/// Sysctls of the whole node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSysctlObservation {
    /// `net.netfilter.nf_conntrack_tcp_loose`; `None`: conntrack is not loaded.
    pub tcp_loose: Option<bool>,
    /// `net.netfilter.nf_conntrack_tcp_be_liberal`.
    pub tcp_be_liberal: Option<bool>,
}

/// True if the Node has an IPv6 InternalIP; `None`: no Node is known.
pub(super) type NodeHasIpv6 = Option<bool>;

/// Returns the findings about an interface's settings. `exits`: the interfaces of routes with a
/// gateway. `has_ipvs`: kube-proxy's ipvs mode gives the node all VIPs.
pub(super) fn assess_interface(
    segment: &SegmentObservation,
    exits: &[&str],
    node_has_ipv6: NodeHasIpv6,
    has_ipvs: bool,
) -> Vec<Finding> {
    let (name, stack) = (&segment.name, &segment.stack);
    let found = [
        rp_filter(name, stack.rp_filter, exits),
        forwarding(name, stack),
        ipv6(name, stack, node_has_ipv6),
        advertisements(name, stack),
        arp(name, stack.arp_ignore, has_ipvs),
    ];
    found.into_iter().flatten().map(|finding| finding.about(name)).collect()
}

/// Returns the finding about the node's settings.
pub(super) fn assess(settings: NodeSysctlObservation) -> Finding {
    const CHECK: &str = "conntrack";
    let Some(loose) = settings.tcp_loose else {
        return Finding::pass(CHECK, "conntrack is not loaded");
    };
    if !loose {
        return Finding::warn(
            CHECK,
            "nf_conntrack_tcp_loose is 0: connections that conntrack forgets stay INVALID, and kube-proxy drops them",
            "`sysctl -w net.netfilter.nf_conntrack_tcp_loose=1`",
        );
    }
    let liberal = if settings.tcp_be_liberal == Some(true) { "on" } else { "off" };
    Finding::pass(
        CHECK,
        format!(
            "nf_conntrack_tcp_be_liberal is {liberal} and not needed: a backend's node sees both directions of its flows"
        ),
    )
}

fn rp_filter(name: &str, filter: Option<u8>, exits: &[&str]) -> Option<Finding> {
    const CHECK: &str = "rp-filter";
    if filter? != 1 {
        return Some(Finding::pass(CHECK, if filter == Some(2) { "loose (2)" } else { "off (0)" }));
    }
    let remedy = format!("`sysctl -w net.ipv4.conf.{name}.rp_filter=2`, and in /etc/sysctl.d");
    let others: Vec<_> = exits.iter().filter(|exit| **exit != name).copied().collect();
    Some(if others.is_empty() {
        Finding::warn(
            CHECK,
            "strict (1): packets are dropped if replies leave by another interface, and for pods with direct server return",
            remedy,
        )
    } else {
        Finding::fail(
            CHECK,
            format!(
                "strict (1), and routes use {}: packets of clients behind them come in on {name} and are dropped",
                others.join(", ")
            ),
            remedy,
        )
    })
}

fn forwarding(name: &str, stack: &InterfaceSysctlObservation) -> Option<Finding> {
    const CHECK: &str = "ip-forward";
    Some(if stack.forwarding? {
        Finding::pass(CHECK, "on")
    } else {
        Finding::fail(
            CHECK,
            format!("off on {name}: packets that are translated to a pod's address go no further"),
            format!(
                "`sysctl -w net.ipv4.ip_forward=1` (net.ipv4.conf.{name}.forwarding follows it), and in /etc/sysctl.d"
            ),
        )
    })
}

fn ipv6(name: &str, stack: &InterfaceSysctlObservation, node_has_ipv6: NodeHasIpv6) -> Option<Finding> {
    const CHECK: &str = "ipv6-forward";
    let wanted = node_has_ipv6 == Some(true);
    if stack.ipv6_disabled != Some(false) {
        let found = "IPv6 is off: this node serves only IPv4 VIPs, and joins no multicast group for IPv6 ones";
        let remedy = format!("`sysctl -w net.ipv6.conf.{name}.disable_ipv6=0`");
        return Some(if wanted { Finding::fail(CHECK, found, remedy) } else { Finding::pass(CHECK, found) });
    }
    if stack.ipv6_forwarding? {
        return Some(Finding::pass(CHECK, "on"));
    }
    let remedy = "`sysctl -w net.ipv6.conf.all.forwarding=1`, and in /etc/sysctl.d (see accept-ra)";
    let found = format!("off on {name}: IPv6 packets that are translated to a pod's address go no further");
    Some(match (wanted, stack.has_ipv6) {
        (true, _) => Finding::fail(CHECK, found, remedy),
        (false, true) if node_has_ipv6.is_none() => Finding::warn(CHECK, found, remedy),
        (false, _) => Finding::pass(CHECK, "off, but this Node has no IPv6 address"),
    })
}

/// With forwarding on, `accept_ra` 1 means 0 (Documentation/networking/ip-sysctl.rst): routes from
/// advertisements expire.
fn advertisements(name: &str, stack: &InterfaceSysctlObservation) -> Option<Finding> {
    const CHECK: &str = "accept-ra";
    let ignored = stack.ipv6_forwarding == Some(true) && stack.accept_ra == Some(1);
    (ignored && stack.has_advertised_routes).then(|| {
        Finding::warn(
            CHECK,
            format!(
                "1, and forwarding is on: {name}'s routes from router advertisements expire, the default route too"
            ),
            format!("`sysctl -w net.ipv6.conf.{name}.accept_ra=2`, or a static default route"),
        )
    })
}

/// The stack answers for any address of the node, unless `arp_ignore` says otherwise
/// (Documentation/networking/ip-sysctl.rst). IPv6 only answers for those of the interface.
fn arp(name: &str, ignore: Option<u8>, has_ipvs: bool) -> Option<Finding> {
    const CHECK: &str = "arp";
    /// Of those that are less than 8, these two do not answer for addresses of other interfaces.
    const STRICT: [u8; 2] = [1, 2];
    Some(match ignore? {
        ignored @ 8.. => Finding::fail(
            CHECK,
            format!(
                "arp_ignore is {ignored}: {name} does not answer for the node's own address, so no peer can reach it"
            ),
            format!("`sysctl -w net.ipv4.conf.{name}.arp_ignore=0` (and of `all`)"),
        ),
        ignored if has_ipvs && !STRICT.contains(&ignored) => Finding::warn(
            CHECK,
            format!(
                "arp_ignore is {ignored}, and kube-proxy's ipvs mode gives this node all VIPs: it answers for them \
                 before an agent attaches, and from ten minutes after its last agent ended"
            ),
            "`strictARP: true` in the section `ipvs` of kube-proxy's configuration, or `sysctl -w \
             net.ipv4.conf.all.arp_ignore=1`",
        ),
        _ if has_ipvs => Finding::pass(CHECK, "the stack does not answer for the VIPs on kube-ipvs0 (strictARP)"),
        _ => Finding::pass(CHECK, "the stack has no VIPs to answer for: no arp_ignore is needed"),
    })
}
