//! Who else is at work on the node and in the cluster: other load balancers, kube-proxy, the CNI.

use std::{collections::BTreeSet, net::IpAddr};

use super::{Finding, list};

/// What was observed.
#[derive(Clone, Debug)]
pub struct Others {
    /// The node's interfaces.
    pub interfaces: BTreeSet<String>,
    /// The names of nftables' tables and chains, and of legacy iptables' chains.
    pub chains: BTreeSet<String>,
    /// Processes that can be seen.
    pub processes: Vec<Process>,
    /// The names of files in `/etc/cni/net.d`.
    pub cni_files: BTreeSet<String>,
    /// k3s' configuration and its unit, as they are written; empty: none.
    pub k3s_config: String,
    /// DaemonSets in the cluster, `namespace/name`; `None`: no cluster is looked at, or they may not be listed.
    pub daemon_sets: Option<BTreeSet<String>>,
    /// VIPs that are known, and on which interface this node has them.
    pub vips: Vec<(IpAddr, Option<String>)>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// How kube-proxy's work is done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proxy {
    Ipvs,
    Nftables,
    Iptables,
    Cilium,
}

/// CNIs, by interfaces (`*`: any that begins so) and a part of their configuration files' names, and what they mean here.
const CNIS: [(&str, &[&str], Option<&str>, &str); 9] = [
    (
        "Cilium",
        &["cilium_host", "lxc*"],
        Some("cilium"),
        "its network policies hold, seeing clients' own addresses; see xdp-program and tc-programs",
    ),
    (
        "Calico with eBPF",
        &["bpfin.cali"],
        None,
        "its own programs decide what reaches pods; prefer its iptables or nftables data plane",
    ),
    ("Calico", &["cali*", "vxlan.calico", "tunl0"], Some("calico"), "its policies hold, seeing clients' own addresses"),
    ("Flannel", &["flannel*"], Some("flannel"), "nothing to do"),
    ("Antrea", &["antrea-gw0"], Some("antrea"), "not tested: Open vSwitch has the pods' packets"),
    (
        "OVN-Kubernetes",
        &["ovn-k8s-mp0"],
        Some("ovn"),
        "not tested: Open vSwitch has the card; name the card itself by --interface",
    ),
    ("kube-router", &["kube-bridge"], Some("kube-router"), "its policies hold, seeing clients' own addresses"),
    ("Weave", &["weave"], Some("weave"), "nothing to do"),
    ("a bridge", &["cni0", "cbr0"], Some("bridge"), "nothing to do"),
];

/// What there is to say about others.
pub(super) fn assess(others: &Others) -> Vec<Finding> {
    let mut found = vec![proxy(others), cni(others)];
    found.extend(load_balancers(others));
    found.push(addresses(&others.vips));
    found
}

impl Others {
    /// Where nobody else is.
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

    fn process(&self, name: &str) -> Option<&Process> {
        self.processes.iter().find(|process| process.name == name)
    }

    fn has_interface(&self, pattern: &str) -> bool {
        match pattern.strip_suffix('*') {
            Some(start) => self.interfaces.iter().any(|name| name.starts_with(start)),
            None => self.interfaces.contains(pattern),
        }
    }

    /// The DaemonSets whose name begins so.
    fn daemon_sets(&self, start: &str) -> Vec<&String> {
        let name = |full: &&String| full.split_once('/').is_some_and(|(_, name)| name.starts_with(start));
        self.daemon_sets.iter().flatten().filter(name).collect()
    }

    fn proxy(&self) -> Option<Proxy> {
        if self.has_interface("kube-ipvs0") {
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
        Some(Proxy::Ipvs) => {
            Finding::pass(CHECK, "ipvs: VIPs on kube-ipvs0 are as they should be, and strictARP is not needed")
        }
        Some(Proxy::Nftables) => Finding::pass(CHECK, "nftables"),
        Some(Proxy::Iptables) => Finding::pass(CHECK, "iptables"),
        Some(Proxy::Cilium) => Finding::pass(CHECK, "none, and Cilium, which takes its place if it is told to"),
        None => Finding::warn(
            CHECK,
            "no trace of it: this node and its own pods do not reach VIPs, since that is kube-proxy's work",
            "run kube-proxy on the node, or what replaces it",
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
            Finding::pass(CHECK, "none that is known here: any will do that routes pods' addresses by the node's stack")
        }
    }
}

/// Others that announce addresses, by name.
fn load_balancers(others: &Others) -> Vec<Finding> {
    let found = [service_lb(others), kube_vip(others), metallb(others), keepalived(others)];
    let found: Vec<_> = found.into_iter().flatten().collect();
    if !found.is_empty() {
        return found;
    }
    let of = if others.daemon_sets.is_some() {
        "on this node or in the cluster"
    } else {
        "among the processes that are seen here"
    };
    vec![Finding::pass("other-balancers", format!("no ServiceLB, kube-vip, MetalLB speaker or keepalived {of}"))]
}

/// k3s' own load balancer takes every Service of type LoadBalancer by pods with host ports.
fn service_lb(others: &Others) -> Option<Finding> {
    const CHECK: &str = "other-balancers";
    const REMEDY: &str = "start k3s with `--disable servicelb`, or write `disable: [servicelb]` into /etc/rancher/k3s/config.yaml, \
                          and restart it on all servers";
    let pods = others.daemon_sets("svclb-");
    if !pods.is_empty() {
        let found = format!("k3s' ServiceLB takes Services of type LoadBalancer: {}", list(pods));
        return Some(Finding::fail(CHECK, found, REMEDY));
    }
    let is_server = |process: &&Process| {
        let server = process.arguments.iter().any(|argument| argument == "server");
        process.name == "k3s-server" || process.name == "k3s" && server
    };
    let server = others.processes.iter().find(is_server)?;
    let disabled = server.arguments.iter().map(String::as_str).chain(others.k3s_config.lines());
    if disabled.into_iter().any(|text| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "servicelb"))
    {
        return None;
    }
    // It hides its arguments, and takes them from more places than these.
    Some(Finding::warn(
        CHECK,
        format!(
            "k3s runs (pid {}), and nothing that is seen here switches its ServiceLB off, which takes every LoadBalancer Service",
            server.pid
        ),
        REMEDY,
    ))
}

fn kube_vip(others: &Others) -> Option<Finding> {
    let seen = seen(others, "kube-vip", "kube-vip")?;
    Some(Finding::warn(
        "other-balancers",
        format!("kube-vip runs: {seen}; it may announce the control plane's address, and no Service's"),
        "leave `svc_enable` out or set it to false (docs/migrating.md)",
    ))
}

fn metallb(others: &Others) -> Option<Finding> {
    // The speaker's program has that name alone.
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
        format!("MetalLB's speaker runs ({by}): two would answer for one address"),
        "scale the speaker away, its controller may stay (docs/migrating.md); or give it other addresses than vipmux",
    ))
}

fn keepalived(others: &Others) -> Option<Finding> {
    let seen = seen(others, "keepalived", "keepalived")?;
    Some(Finding::warn(
        "other-balancers",
        format!("keepalived runs: {seen}"),
        "make sure that no virtual_ipaddress of it is in a pool of vipmux",
    ))
}

/// Where a program was seen, as a process or DaemonSet.
fn seen(others: &Others, process: &str, daemon_set: &str) -> Option<String> {
    let process = others.process(process).map(|process| format!("pid {}", process.pid));
    process.or_else(|| Some(others.daemon_sets(daemon_set)).filter(|sets| !sets.is_empty()).map(list))
}

fn addresses(vips: &[(IpAddr, Option<String>)]) -> Finding {
    const CHECK: &str = "vip-addresses";
    let held: Vec<_> = vips.iter().filter_map(|(vip, on)| on.as_ref().map(|interface| (vip, interface))).collect();
    match held.first() {
        None if vips.is_empty() => Finding::pass(CHECK, "no VIP is known yet"),
        None => {
            Finding::pass(CHECK, format!("none of {} VIPs is an address of this node's real interfaces", vips.len()))
        }
        Some((vip, interface)) => Finding::fail(
            CHECK,
            format!(
                "{} on this node, whose kernel answers for it: such a VIP is refused here",
                list(held.iter().map(|(vip, interface)| format!("{vip} is on {interface}")))
            ),
            format!(
                "`ip address del {vip} dev {interface}`, and stop what put it there (another load balancer, keepalived)"
            ),
        ),
    }
}
