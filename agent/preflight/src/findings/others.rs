//! Checks other software on the node and in the cluster: other load balancers, kube-proxy, the CNI.

use std::{collections::BTreeSet, net::IpAddr};

use super::{Finding, list};

/// The observations.
#[derive(Clone, Debug)]
pub struct Others {
    /// The node's interfaces.
    pub interfaces: BTreeSet<String>,
    /// The names of nftables' tables and chains, and of legacy iptables' chains.
    pub chains: BTreeSet<String>,
    /// The visible processes.
    pub processes: Vec<ProcessObservation>,
    /// The names of files in `/etc/cni/net.d`.
    pub cni_files: BTreeSet<String>,
    /// The text of k3s' configuration and unit; empty: none.
    pub k3s_config: String,
    /// DaemonSets in the cluster, `namespace/name`; `None`: there is no cluster, or they may not be
    /// listed.
    pub daemon_sets: Option<BTreeSet<String>>,
    /// The known VIPs, and the interface of this node that has the address.
    pub vips: Vec<(IpAddr, Option<String>)>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessObservation {
    /// Its id.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// How Services are proxied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proxy {
    Ipvs,
    Nftables,
    Iptables,
    Cilium,
}

/// CNIs: name, interfaces (`*`: any suffix), a part of the names of their configuration files, and
/// the consequence.
const CNIS: [(&str, &[&str], Option<&str>, &str); 9] = [
    (
        "Cilium",
        &["cilium_host", "lxc*"],
        Some("cilium"),
        "its network policies work and see the clients' own addresses; see xdp-program and tc-programs",
    ),
    (
        "Calico with eBPF",
        &["bpfin.cali"],
        None,
        "its own programs decide what reaches pods; prefer its iptables or nftables data plane",
    ),
    (
        "Calico",
        &["cali*", "vxlan.calico", "tunl0"],
        Some("calico"),
        "its policies work and see the clients' own addresses",
    ),
    ("Flannel", &["flannel*"], Some("flannel"), "nothing to do"),
    ("Antrea", &["antrea-gw0"], Some("antrea"), "not tested: Open vSwitch handles the pods' packets"),
    (
        "OVN-Kubernetes",
        &["ovn-k8s-mp0"],
        Some("ovn"),
        "not tested: Open vSwitch uses the card; name the card itself by --interface",
    ),
    ("kube-router", &["kube-bridge"], Some("kube-router"), "its policies work and see the clients' own addresses"),
    ("Weave", &["weave"], Some("weave"), "nothing to do"),
    ("a bridge", &["cni0", "cbr0"], Some("bridge"), "nothing to do"),
];

/// Returns the findings about other software.
pub(super) fn assess(others: &Others) -> Vec<Finding> {
    let mut found = vec![proxy(others), cni(others)];
    found.extend(load_balancers(others));
    found.push(addresses(&others.vips));
    found
}

impl Others {
    /// Returns a value without any other software.
    pub fn nothing() -> Self {
        Self {
            interfaces: BTreeSet::new(),
            chains: BTreeSet::new(),
            processes: Vec::new(),
            cni_files: BTreeSet::new(),
            k3s_config: String::new(),
            daemon_sets: None,
            vips: Vec::new(),
        }
    }

    fn process(&self, name: &str) -> Option<&ProcessObservation> {
        self.processes.iter().find(|process| process.name == name)
    }

    fn has_interface(&self, pattern: &str) -> bool {
        match pattern.strip_suffix('*') {
            Some(start) => self.interfaces.iter().any(|name| name.starts_with(start)),
            None => self.interfaces.contains(pattern),
        }
    }

    /// Returns the DaemonSets whose name starts with `start`.
    fn daemon_sets(&self, start: &str) -> Vec<&String> {
        let name = |full: &&String| full.split_once('/').is_some_and(|(_, name)| name.starts_with(start));
        self.daemon_sets.iter().flatten().filter(name).collect()
    }

    /// Returns whether kube-proxy is in ipvs mode.
    pub(super) fn has_ipvs(&self) -> bool {
        self.has_interface("kube-ipvs0")
    }

    fn proxy(&self) -> Option<Proxy> {
        if self.has_ipvs() {
            Some(Proxy::Ipvs)
        } else if self.chains.contains("kube-proxy") {
            Some(Proxy::Nftables)
        } else if self.chains.contains("KUBE-SERVICES") {
            Some(Proxy::Iptables)
        } else {
            self.has_interface("cilium_host").then_some(Proxy::Cilium)
        }
    }
}

fn proxy(others: &Others) -> Finding {
    const CHECK: &str = "kube-proxy";
    match others.proxy() {
        Some(Proxy::Ipvs) => Finding::pass(CHECK, "ipvs: VIPs on kube-ipvs0 are correct"),
        Some(Proxy::Nftables) => Finding::pass(CHECK, "nftables"),
        Some(Proxy::Iptables) => Finding::pass(CHECK, "iptables"),
        Some(Proxy::Cilium) => Finding::pass(CHECK, "none, but Cilium, which can replace it"),
        None => Finding::warn(
            CHECK,
            "not found: without it, this node and its pods cannot reach VIPs",
            "run kube-proxy on the node, or a replacement",
        ),
    }
}

fn cni(others: &Others) -> Finding {
    const CHECK: &str = "cni";
    let is_there = |(_, interfaces, file, _): &&(&str, &[&str], Option<&str>, &str)| {
        let by_file = file.is_some_and(|file| others.cni_files.iter().any(|name| name.contains(file)));
        by_file || interfaces.iter().any(|pattern| others.has_interface(pattern))
    };
    match CNIS.iter().find(is_there) {
        Some((name, _, _, meaning)) if meaning.starts_with("not tested") || meaning.starts_with("its own") => {
            Finding::warn(CHECK, format!("{name}: {meaning}"), "try it with one Service first")
        }
        Some((name, _, _, meaning)) => Finding::pass(CHECK, format!("{name}: {meaning}")),
        None => {
            Finding::pass(CHECK, "no known one; any CNI works that routes the pods' addresses through the node's stack")
        }
    }
}

/// Checks for other software that announces addresses.
fn load_balancers(others: &Others) -> Vec<Finding> {
    let found = [service_lb(others), kube_vip(others), metallb(others), keepalived(others)];
    let found: Vec<_> = found.into_iter().flatten().collect();
    if !found.is_empty() {
        return found;
    }
    let of =
        if others.daemon_sets.is_some() { "on this node or in the cluster" } else { "among the visible processes" };
    vec![Finding::pass("other-balancers", format!("no ServiceLB, kube-vip, MetalLB speaker or keepalived {of}"))]
}

/// Checks for k3s' own load balancer, which serves every LoadBalancer Service by pods with host
/// ports.
fn service_lb(others: &Others) -> Option<Finding> {
    const CHECK: &str = "other-balancers";
    const REMEDY: &str = "start k3s with `--disable servicelb`, or write `disable: [servicelb]` into /etc/rancher/k3s/config.yaml, \
                          and restart it on all servers";
    let pods = others.daemon_sets("svclb-");
    if !pods.is_empty() {
        let found = format!("k3s' ServiceLB serves Services of type LoadBalancer: {}", list(pods));
        return Some(Finding::fail(CHECK, found, REMEDY));
    }
    let is_server = |process: &&ProcessObservation| {
        let server = process.arguments.iter().any(|argument| argument == "server");
        process.name == "k3s-server" || process.name == "k3s" && server
    };
    let server = others.processes.iter().find(is_server)?;
    let disabled = server.arguments.iter().map(String::as_str).chain(others.k3s_config.lines());
    if disabled.into_iter().any(|text| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "servicelb"))
    {
        return None;
    }
    // It hides its arguments, and reads them from more places than these.
    Some(Finding::warn(
        CHECK,
        format!(
            "k3s runs (pid {}), and no visible setting disables its ServiceLB, which serves every LoadBalancer Service",
            server.pid
        ),
        REMEDY,
    ))
}

fn kube_vip(others: &Others) -> Option<Finding> {
    let seen = seen(others, "kube-vip", "kube-vip")?;
    Some(Finding::warn(
        "other-balancers",
        format!("kube-vip runs: {seen}; it may announce the control plane's address, but no Service's"),
        "leave `svc_enable` out or set it to false (docs/migrating.md)",
    ))
}

fn metallb(others: &Others) -> Option<Finding> {
    // The speaker's process is just called `speaker`.
    let process =
        others.process("speaker").filter(|process| process.arguments.iter().any(|word| word.contains("port=7472")));
    let sets: Vec<_> = others
        .daemon_sets
        .iter()
        .flatten()
        .filter(|name| name.ends_with("/speaker") || name.contains("metallb") && name.ends_with("-speaker"))
        .collect();
    if process.is_none() && sets.is_empty() {
        return None;
    }
    let by = match process {
        Some(process) => format!("pid {}", process.pid),
        None => list(sets),
    };
    Some(Finding::fail(
        "other-balancers",
        format!("MetalLB's speaker runs ({by}): two machines would answer for one address"),
        "scale the speaker to zero (docs/migrating.md; its controller may stay), or give it other addresses than vipmux",
    ))
}

fn keepalived(others: &Others) -> Option<Finding> {
    let seen = seen(others, "keepalived", "keepalived")?;
    Some(Finding::warn(
        "other-balancers",
        format!("keepalived runs: {seen}"),
        "make sure that no pool of vipmux contains one of its virtual_ipaddress entries",
    ))
}

/// Returns where a program runs, as a process or DaemonSet.
fn seen(others: &Others, process: &str, daemon_set: &str) -> Option<String> {
    let process = others.process(process).map(|process| format!("pid {}", process.pid));
    process.or_else(|| Some(others.daemon_sets(daemon_set)).filter(|sets| !sets.is_empty()).map(list))
}

fn addresses(vips: &[(IpAddr, Option<String>)]) -> Finding {
    const CHECK: &str = "vip-addresses";
    let held: Vec<_> = vips.iter().filter_map(|(vip, on)| on.as_ref().map(|interface| (vip, interface))).collect();
    match held.first() {
        None if vips.is_empty() => Finding::pass(CHECK, "no VIP is known yet"),
        None => Finding::pass(CHECK, format!("none of {} VIPs is on a real interface of this node", vips.len())),
        Some((vip, interface)) => Finding::fail(
            CHECK,
            format!(
                "{} on this node, whose kernel answers for it: the agent here refuses such a VIP",
                list(held.iter().map(|(vip, interface)| format!("{vip} is on {interface}")))
            ),
            format!(
                "`ip address del {vip} dev {interface}`, and stop the software that put it there (another load balancer, keepalived)"
            ),
        ),
    }
}
