//! Tables of observations and their findings.

mod firewall;
mod vlan_tags;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{
    CheckStatus::{self, Fail, Pass, Warn},
    Finding, Observations, Unseen, assess,
    classifiers::ClassifierObservation,
    cluster::{Cluster, NodeObservation, ObjectSourceObservation},
    firewall::Firewall,
    gossip::{GossipKeyObservation, GossipObservation, Holder},
    interface::{
        AttachedProgram, InterfaceObservation, InterfaceSysctlObservation, SegmentObservation, SharedSubnetObservation,
        TagHandling, Unusable,
    },
    kernel::{Bpffs, KernelObservation, Memlock, PinPathObservation},
    others::{Others, ProcessObservation},
    routes::{ReplyPath, RouteInterface, Routes},
    settings::NodeSysctlObservation,
};
use vipmux_datapath::{
    bpf::{
        attach::{TcAttachMode, XdpAttachMode},
        clsact::Filter,
        place::{Chain, Classifier},
    },
    link::{CardReason, OtherEnd},
};
use vipmux_model::permissions::AGENT;

/// A node of a cluster that passes all checks.
fn good() -> Observations {
    let port = InterfaceObservation {
        name: "eth0".to_owned(),
        up: true,
        carrier: true,
        driver: Some("virtio_net".to_owned()),
        mtu: 1500,
        features: Some(0x23),
        veths: BTreeMap::new(),
        attached: Vec::new(),
        refused: BTreeMap::new(),
        fixed_offloads: false,
        tagged: false,
        tags: Ok(TagHandling::Stripped),
    };
    let stack = InterfaceSysctlObservation {
        rp_filter: Some(2),
        forwarding: Some(true),
        ignores_linkdown: Some(false),
        arp_ignore: Some(0),
        ipv6_disabled: Some(false),
        ipv6_forwarding: Some(true),
        accept_ra: Some(2),
        has_ipv6: true,
        has_advertised_routes: true,
    };
    let segment = SegmentObservation {
        name: "eth0".to_owned(),
        kind: "device".to_owned(),
        up: true,
        carrier: true,
        vlan: 0,
        ports: vec![port],
        shared: Vec::new(),
        stack,
    };
    Observations {
        kernel: KernelObservation {
            mode: XdpAttachMode::Auto,
            tc: TcAttachMode::Auto,
            release: "6.12.1".to_owned(),
            version: (6, 12),
            is_arm64: false,
            is_realtime: false,
            btf: true,
            lacking: Ok(Vec::new()),
            programs: Ok(()),
            tcx: Ok(true),
            clsact: None,
            nftables: Ok(()),
            jit: Some(1),
            memlock: Memlock::Limited(65_536),
            clock_offset: Ok(0.0),
            pins: PinPathObservation { path: "/sys/fs/bpf/vipmux".to_owned(), bpffs: Bpffs::Writable },
        },
        interfaces: Ok(vec![Ok(segment)]),
        classifiers: Ok(vec![ClassifierObservation {
            interface: "eth0".to_owned(),
            egress: Ok(Chain::default()),
            ingress: Ok(Chain::default()),
        }]),
        settings: NodeSysctlObservation { tcp_loose: Some(true), tcp_be_liberal: Some(false) },
        firewall: Firewall { nftables: Ok(Vec::new()), legacy: Ok(Vec::new()) },
        routes: Ok(Routes { exits: vec![exit("eth0", ReplyPath::Announced)], ..Routes::default() }),
        others: Others { chains: BTreeSet::from(["KUBE-SERVICES".to_owned()]), ..Others::nothing() },
        gossip: GossipObservation {
            port: 7944,
            holder: Holder::Nobody,
            key: GossipKeyObservation::Good { path: "/k".to_owned() },
        },
        source: ObjectSourceObservation::Cluster(Box::new(cluster())),
    }
}

fn cluster() -> Cluster {
    let kinds = |kinds: &[&str]| Ok(kinds.iter().map(|kind| (*kind).to_owned()).collect());
    let address: IpAddr = [192, 0, 2, 11].into();
    Cluster {
        version: Ok("v1.35.0".to_owned()),
        user: Some("system:serviceaccount:vipmux-system:vipmux-agent".to_owned()),
        denied: Ok(Vec::new()),
        namespace: "vipmux-system".to_owned(),
        leases: Ok(3),
        own: kinds(&["VipPool", "VipPolicy"]),
        metallb: Ok(BTreeSet::new()),
        node: NodeObservation::Found("node-1".to_owned(), vec![address], vec![address]),
    }
}

fn exit(name: &str, path: ReplyPath) -> RouteInterface {
    RouteInterface { name: name.to_owned(), path }
}

fn segment(observed: &mut Observations) -> &mut SegmentObservation {
    observed.interfaces.as_mut().unwrap()[0].as_mut().unwrap()
}

/// Puts another card into the segment's subnet.
fn share(observed: &mut Observations, reason: CardReason) {
    let (subnet, others) = ("192.0.2.0/24".to_owned(), vec!["eth1".to_owned()]);
    segment(observed).shared = vec![SharedSubnetObservation { subnet, others, reason }];
}

fn port(observed: &mut Observations) -> &mut InterfaceObservation {
    &mut segment(observed).ports[0]
}

/// Makes the port a veth with this other end.
fn veth(observed: &mut Observations, end: OtherEnd) {
    let port = port(observed);
    (port.driver, port.veths) = (Some("veth".to_owned()), [("eth0".to_owned(), end)].into());
}

fn api(observed: &mut Observations) -> &mut Cluster {
    match &mut observed.source {
        ObjectSourceObservation::Cluster(cluster) => cluster,
        other => panic!("{other:?}"),
    }
}

fn process(name: &str, arguments: &str) -> ProcessObservation {
    ProcessObservation { pid: 42, name: name.to_owned(), arguments: arguments.split(' ').map(str::to_owned).collect() }
}

fn foreign(name: Option<&str>) -> AttachedProgram {
    AttachedProgram {
        interface: "eth0".to_owned(),
        id: 7,
        name: name.map(str::to_owned),
        generic: false,
        ours: false,
        bypassed: false,
    }
}

fn unseen() -> Unseen {
    Unseen { why: "not permitted".to_owned(), remedy: "ask root".to_owned() }
}

/// The check, its status, words of the finding and of the remedy, and the change of a good node
/// that leads to them.
type Case = (&'static str, CheckStatus, &'static str, &'static str, fn(&mut Observations));

/// Expects that each case changes the status or words of one check, and that no other check fails.
fn expect(cases: &[Case]) {
    for (check, status, words, remedy, change) in cases {
        let mut observed = good();
        change(&mut observed);
        let found = assess(&observed);
        let of_check: Vec<_> = found.iter().filter(|finding| finding.check == *check).collect();
        let finding = of_check.iter().find(|finding| finding.found.contains(words));
        let finding = finding.unwrap_or_else(|| panic!("{check} does not say {words:?}: {of_check:#?}"));
        assert_eq!(finding.status, *status, "{finding:?}");
        assert_eq!(finding.remedy.is_some(), *status != Pass, "{finding:?}");
        assert!(finding.remedy.as_deref().unwrap_or_default().contains(remedy), "{finding:?}");
        let others: Vec<&Finding> =
            found.iter().filter(|other| other.check != *check && other.status == Fail).collect();
        assert!(others.is_empty(), "{check}, {words:?}: {others:?}");
    }
}

#[test]
fn a_good_node_passes_every_check() {
    let found = assess(&good());
    let others: Vec<_> = found.iter().filter(|finding| finding.status != Pass).collect();
    assert!(others.is_empty(), "{others:#?}");
    let checks: Vec<_> = found.iter().map(|finding| finding.check).collect();
    let distinct: BTreeSet<_> = checks.iter().collect();
    assert_eq!(checks.len(), distinct.len(), "with one interface each check has one line");
    assert!(found.iter().all(|finding| !finding.found.is_empty() && finding.remedy.is_none()));
}

#[test]
fn each_state_of_the_kernel_and_of_the_rights_has_its_finding() {
    expect(&[
        ("kernel", Warn, "oldest supported", "newer", |o| {
            (o.kernel.version, o.kernel.memlock) = ((5, 10), Memlock::Unlimited);
        }),
        ("kernel", Warn, "the oldest supported version is 6.0", "newer", |o| {
            (o.kernel.version, o.kernel.is_arm64) = ((5, 15), true);
        }),
        ("kernel", Pass, "no jumbo frames", "", |o| o.kernel.version = (5, 15)),
        ("kernel", Pass, "without BTF", "", |o| o.kernel.btf = false),
        ("capabilities", Fail, "CAP_BPF (maps)", "capabilities.add", |o| {
            o.kernel.lacking = Ok(vec!["CAP_BPF (maps)".to_owned()]);
        }),
        ("capabilities", Warn, "not permitted", "ask root", |o| o.kernel.lacking = Err(unseen())),
        ("clock", Fail, "time namespace, +100000 s ahead", "outside", |o| o.kernel.clock_offset = Ok(100_000.0)),
        ("clock", Warn, "not permitted", "ask root", |o| o.kernel.clock_offset = Err(unseen())),
        ("bpf-programs", Fail, "refuses the programs: invalid", "CONFIG_BPF", |o| {
            o.kernel.programs = Err("invalid".to_owned());
        }),
        ("tc", Fail, "built without them", "CONFIG_NET_XGRESS", |o| o.kernel.tcx = Ok(false)),
        ("tc", Warn, "not permitted", "ask root", |o| o.kernel.tcx = Err(unseen())),
        ("tc", Pass, "clsact", "", |o| (o.kernel.version, o.kernel.clsact) = ((6, 1), Some(Ok(Ok(()))))),
        ("tc", Fail, "no such file", "cls_bpf", |o| {
            (o.kernel.version, o.kernel.clsact) = ((6, 1), Some(Ok(Err("no such file".to_owned()))));
        }),
        ("tc", Warn, "not permitted", "ask root", |o| {
            (o.kernel.version, o.kernel.clsact) = ((6, 1), Some(Err(unseen())));
        }),
        ("tc", Pass, "not tried", "", |o| o.kernel.version = (6, 1)),
        ("tc", Pass, "clsact", "", |o| {
            (o.kernel.tc, o.kernel.clsact) = (TcAttachMode::Clsact, Some(Ok(Ok(()))));
        }),
        ("nftables", Fail, "unknown", "nft_chain_nat", |o| o.kernel.nftables = Err("unknown".to_owned())),
        ("memlock", Fail, "65536", "ulimit", |o| o.kernel.version = (5, 10)),
        ("memlock", Pass, "will raise", "", |o| (o.kernel.version, o.kernel.memlock) = ((5, 10), Memlock::Raisable(1))),
        ("memlock", Pass, "unlimited", "", |o| (o.kernel.version, o.kernel.memlock) = ((5, 10), Memlock::Unlimited)),
        ("bpffs", Fail, "/sys/fs/bpf/vipmux is not on a bpffs", "mount -t bpf bpf", |o| {
            o.kernel.pins.bpffs = Bpffs::Absent;
        }),
        ("bpffs", Warn, "the agent mounts one", "mount -t bpf bpf", |o| o.kernel.pins.bpffs = Bpffs::Mountable),
        ("bpffs", Fail, "read-only", "read-write", |o| o.kernel.pins.bpffs = Bpffs::Refused("read-only".to_owned())),
        ("bpf-jit", Warn, "off", "bpf_jit_enable=1", |o| o.kernel.jit = Some(0)),
        ("realtime", Warn, "interrupt each other", "without PREEMPT_RT", |o| {
            (o.kernel.version, o.kernel.is_realtime) = ((6, 18), true);
        }),
        ("realtime", Pass, "do not interrupt", "", |o| {
            (o.kernel.version, o.kernel.is_realtime) = ((6, 17), true);
        }),
    ]);
}

/// The programs cannot be loaded without them.
#[test]
fn missing_capabilities_are_said_to_come_first() {
    let mut observed = good();
    observed.kernel.lacking = Ok(vec!["CAP_BPF".to_owned()]);
    observed.kernel.programs = Err("not permitted".to_owned());
    let found = assess(&observed);
    let programs = found.iter().find(|finding| finding.check == "bpf-programs").unwrap();
    assert_eq!((programs.status, programs.remedy.as_deref()), (Fail, Some("see `capabilities` first")));
}

#[test]
fn each_state_of_an_interface_has_its_finding() {
    expect(&[
        (
            "shared-subnet",
            Warn,
            "eth0 is in 192.0.2.0/24 like eth1, and announces alone: the node's replies",
            "linkdown=1",
            |o| {
                share(o, CardReason::Replies);
            },
        ),
        ("shared-subnet", Pass, "announces alone: its index is the lowest", "", |o| {
            share(o, CardReason::LowestIndex);
            segment(o).stack.ignores_linkdown = Some(true);
        }),
        ("interface", Pass, "frames come in at eth0 (virtio_net), untagged", "", |_| {}),
        ("interface", Pass, "with VLAN tag 100", "", |o| segment(o).vlan = 100),
        ("interface", Fail, "is not there", "--interface", |o| {
            let gone = Unusable { name: Some("eth7".to_owned()), why: "eth7 is not there".to_owned() };
            o.interfaces.as_mut().unwrap().push(Err(gone));
        }),
        ("interface", Fail, "no interface to announce on", "InternalIP", |o| o.interfaces = Ok(Vec::new())),
        ("interface", Warn, "not permitted", "ask root", |o| o.interfaces = Err(unseen())),
        ("carrier", Fail, "eth0 is down", "ip link set eth0 up", |o| segment(o).up = false),
        ("carrier", Fail, "eth0 is down", "ip link set eth0 up", |o| port(o).up = false),
        ("carrier", Fail, "without a carrier", "cable", |o| segment(o).carrier = false),
        ("xdp-mode", Pass, "native (virtio_net)", "", |_| {}),
        ("xdp-mode", Warn, "macvlan has no native XDP", "faster", |o| {
            (port(o).features, port(o).driver) = (Some(0), Some("macvlan".to_owned()));
        }),
        ("xdp-mode", Warn, "MTU of 9000", "faster", |o| (port(o).mtu, port(o).features) = (9000, Some(3))),
        ("xdp-mode", Pass, "native", "", |o| port(o).mtu = 9000),
        ("xdp-mode", Warn, "needs Linux 5.18", "faster", |o| (o.kernel.version, port(o).mtu) = ((5, 15), 9000)),
        ("xdp-mode", Pass, "native (ixgbe)", "", |o| {
            (port(o).features, port(o).driver) = (None, Some("ixgbe".to_owned()));
        }),
        ("xdp-mode", Warn, "e1000e is not known", "faster", |o| {
            (port(o).features, port(o).driver) = (None, Some("e1000e".to_owned()));
        }),
        ("xdp-mode", Fail, "--xdp-mode native", "auto", |o| {
            (o.kernel.mode, port(o).features) = (XdpAttachMode::Native, Some(0));
        }),
        ("xdp-mode", Pass, "as requested", "", |o| {
            (o.kernel.mode, port(o).features) = (XdpAttachMode::Generic, Some(0));
        }),
        ("xdp-mode", Pass, "the agent's program runs", "", |o| {
            port(o).attached = vec![AttachedProgram { ours: true, ..foreign(None) }];
        }),
        ("xdp-mode", Warn, "the agent's program runs in generic mode", "faster", |o| {
            port(o).attached = vec![AttachedProgram { ours: true, generic: true, ..foreign(None) }];
        }),
        ("xdp-mode", Fail, "frames bypass the agent's program", "--xdp-mode auto", |o| {
            port(o).attached = vec![AttachedProgram { ours: true, bypassed: true, ..foreign(None) }];
        }),
        ("xdp-mode", Warn, "generic, which is slower: eth0 is a veth", "faster", |o| veth(o, OtherEnd::Program)),
        ("xdp-mode", Warn, "generic, which is slower: eth0 is a veth", "faster", |o| {
            veth(o, OtherEnd::NoProgram);
            port(o).attached = vec![AttachedProgram { ours: true, generic: true, ..foreign(None) }];
        }),
        ("xdp-mode", Fail, "frames that native XDP sends are lost", "--xdp-mode auto", |o| {
            veth(o, OtherEnd::NoProgram);
            o.kernel.mode = XdpAttachMode::Native;
        }),
        ("xdp-mode", Fail, "frames that native XDP sends are lost", "--xdp-mode auto", |o| {
            veth(o, OtherEnd::NoProgram);
            port(o).attached = vec![AttachedProgram { ours: true, ..foreign(None) }];
        }),
        ("xdp-mode", Warn, "cannot be read", "--xdp-mode auto", |o| {
            veth(o, OtherEnd::Unknown);
            o.kernel.mode = XdpAttachMode::Native;
        }),
        ("xdp-mode", Pass, "native (veth)", "", |o| {
            veth(o, OtherEnd::Program);
            o.kernel.mode = XdpAttachMode::Native;
        }),
        ("xdp-mode", Pass, "as requested", "", |o| {
            veth(o, OtherEnd::NoProgram);
            o.kernel.mode = XdpAttachMode::Generic;
        }),
        ("refused-frames", Warn, "7 (redirect EMSGSIZE)", "docs/packets.md", |o| {
            port(o).refused = [("redirect EMSGSIZE".to_owned(), 7)].into();
        }),
        ("xdp-program", Pass, "vipmux's own", "", |o| {
            port(o).attached = vec![AttachedProgram { ours: true, ..foreign(None) }];
        }),
        ("xdp-program", Fail, "cil_xdp_entry (id 7) on eth0", "xdp off", |o| {
            port(o).attached = vec![foreign(Some("cil_xdp_entry"))];
        }),
        ("xdp-program", Fail, "unreadable name (id 7)", "xdp off", |o| port(o).attached = vec![foreign(None)]),
        ("xdp-program", Fail, "vipmux_xdp_frags", "--pin-path", |o| {
            port(o).attached = vec![foreign(Some("vipmux_xdp_frags"))];
        }),
    ]);
}

#[test]
fn native_xdp_that_a_host_prevents_has_its_finding() {
    expect(&[
        ("xdp-mode", Warn, "the host merges segments for virtio_net", "ctrl_guest_offloads", |o| {
            port(o).fixed_offloads = true;
        }),
        ("xdp-mode", Warn, "the host merges segments for virtio_net", "ctrl_guest_offloads", |o| {
            port(o).fixed_offloads = true;
            port(o).attached = vec![AttachedProgram { ours: true, generic: true, ..foreign(None) }];
        }),
        ("xdp-mode", Fail, "native is set, but the host merges", "ctrl_guest_offloads", |o| {
            port(o).fixed_offloads = true;
            o.kernel.mode = XdpAttachMode::Native;
        }),
    ]);
}

#[test]
fn each_place_among_other_programs_has_its_finding() {
    expect(&[
        ("tc-programs", Pass, "before vipmux's; all: cil_to_netdev (id 9), a flower filter of priority 1", "", |o| {
            set_egress(o, vec![cilium(), flower()], None);
        }),
        ("tc-programs", Pass, "all: vipmux_egress (id 4), cil_to_netdev (id 9)", "", |o| {
            set_egress(o, vec![own(), cilium()], Some(0));
        }),
        ("tc-programs", Fail, "outgoing packets before vipmux's: cil_to_netdev (id 9)", "BPF_F_AFTER", |o| {
            set_egress(o, vec![cilium(), own()], Some(1));
        }),
        ("tc-programs", Fail, "incoming packets before vipmux's: cil_to_netdev (id 9)", "BPF_F_AFTER", |o| {
            chains(o).ingress = Ok(Chain { all: vec![cilium(), own()], own: Some(1) });
        }),
        ("tc-programs", Fail, "64 tcx programs", "bpftool net", |o| set_egress(o, vec![cilium(); 64], None)),
        ("tc-programs", Fail, "cil_to_netdev (id 9)", "without VIPMUX_TC=clsact", |o| {
            o.kernel.tc = TcAttachMode::Clsact;
            set_egress(o, vec![cilium()], None);
        }),
        ("tc-programs", Fail, "cil_to_netdev (id 9); packets", "without VIPMUX_TC=clsact", |o| {
            set_egress(o, vec![cilium(), filter("bpf", true)], Some(1));
        }),
        ("tc-programs", Fail, "a bpf filter of priority 1; packets", "TC_ACT_UNSPEC", |o| {
            o.kernel.version = (6, 1);
            set_egress(o, vec![filter("bpf", false), filter("bpf", true)], Some(1));
        }),
        ("tc-programs", Pass, "a bpf filter of priority 1", "", |o| {
            o.kernel.version = (6, 1);
            set_egress(o, vec![filter("bpf", false)], None);
        }),
        ("tc-programs", Fail, "a flower filter of priority 1, which vipmux's filter needs", "pref 10", |o| {
            o.kernel.version = (6, 1);
            set_egress(o, vec![flower()], None);
        }),
        ("tc-programs", Warn, "not permitted", "ask root", |o| chains(o).egress = Err(unseen())),
    ]);
}

fn chains(observed: &mut Observations) -> &mut ClassifierObservation {
    &mut observed.classifiers.as_mut().unwrap()[0]
}

fn set_egress(observed: &mut Observations, all: Vec<Classifier>, own: Option<usize>) {
    chains(observed).egress = Ok(Chain { all, own });
}

fn cilium() -> Classifier {
    Classifier::Tcx { id: 9, link: 3, name: Some("cil_to_netdev".to_owned()) }
}

fn own() -> Classifier {
    Classifier::Tcx { id: 4, link: 2, name: Some("vipmux_egress".to_owned()) }
}

fn filter(kind: &str, ours: bool) -> Classifier {
    Classifier::Filter(Filter { kind: kind.to_owned(), priority: 1, all_protocols: true, ours })
}

fn flower() -> Classifier {
    filter("flower", false)
}

#[test]
fn each_setting_has_its_finding() {
    expect(&[
        ("rp-filter", Pass, "loose", "", |_| {}),
        ("rp-filter", Pass, "off", "", |o| segment(o).stack.rp_filter = Some(0)),
        ("rp-filter", Warn, "strict (1)", "net.ipv4.conf.eth0.rp_filter=2", |o| segment(o).stack.rp_filter = Some(1)),
        ("rp-filter", Fail, "routes use eth1", "net.ipv4.conf.eth0.rp_filter=2", |o| {
            segment(o).stack.rp_filter = Some(1);
            o.routes.as_mut().unwrap().exits = vec![exit("eth1", ReplyPath::Outlet)];
        }),
        ("ip-forward", Fail, "off on eth0", "ip_forward=1", |o| segment(o).stack.forwarding = Some(false)),
        ("ipv6-forward", Pass, "no IPv6 address", "", |o| segment(o).stack.ipv6_forwarding = Some(false)),
        ("ipv6-forward", Fail, "off on eth0", "all.forwarding=1", |o| {
            let v6 = vec!["2001:db8::b".parse().unwrap()];
            api(o).node = NodeObservation::Found("node-1".to_owned(), v6.clone(), v6);
            segment(o).stack.ipv6_forwarding = Some(false);
        }),
        ("ipv6-forward", Warn, "off on eth0", "all.forwarding=1", |o| {
            api(o).node = NodeObservation::Unnamed;
            segment(o).stack.ipv6_forwarding = Some(false);
        }),
        ("ipv6-forward", Pass, "IPv6 is off", "", |o| segment(o).stack.ipv6_disabled = Some(true)),
        ("accept-ra", Warn, "expire", "accept_ra=2", |o| segment(o).stack.accept_ra = Some(1)),
        ("arp", Fail, "arp_ignore is 8", "arp_ignore=0", |o| segment(o).stack.arp_ignore = Some(8)),
        ("arp", Warn, "arp_ignore is 0", "strictARP: true", ipvs),
        ("arp", Pass, "does not answer for the VIPs on kube-ipvs0", "", |o| {
            ipvs(o);
            segment(o).stack.arp_ignore = Some(1);
        }),
        ("arp", Warn, "arp_ignore is 4", "strictARP: true", |o| {
            ipvs(o);
            segment(o).stack.arp_ignore = Some(4);
        }),
        ("conntrack", Warn, "tcp_loose is 0", "tcp_loose=1", |o| o.settings.tcp_loose = Some(false)),
        ("conntrack", Pass, "conntrack is not loaded", "", |o| o.settings.tcp_loose = None),
        ("conntrack", Pass, "be_liberal is on", "", |o| o.settings.tcp_be_liberal = Some(true)),
    ]);
    let mut observed = good();
    (segment(&mut observed).stack.accept_ra, segment(&mut observed).stack.has_advertised_routes) = (Some(1), false);
    assert!(assess(&observed).iter().all(|finding| finding.check != "accept-ra"), "there is nothing to run out");
}

#[test]
fn each_kind_of_route_has_its_finding() {
    expect(&[
        ("routes", Pass, "leave by eth0", "", |_| {}),
        ("routes", Warn, "no route with a gateway", "default route", |o| o.routes = Ok(Routes::default())),
        ("routes", Fail, "wg0 (not Ethernet)", "Ethernet", |o| {
            o.routes.as_mut().unwrap().exits.push(exit("wg0", ReplyPath::NoEthernet));
        }),
        ("routes", Fail, "eth1 (a veth", "--interface", |o| {
            o.routes.as_mut().unwrap().exits.push(exit("eth1", ReplyPath::ToPod));
        }),
        ("routes", Pass, "clients of 10.0.0.1/24 on eth2", "", |o| {
            o.routes.as_mut().unwrap().others = vec![("eth2".to_owned(), "10.0.0.1/24".to_owned())];
        }),
        ("routing-rules", Warn, "(100)", "--interface", |o| o.routes.as_mut().unwrap().tables = vec![100]),
        ("routes", Warn, "not permitted", "ask root", |o| o.routes = Err(unseen())),
    ]);
}

fn ipvs(observed: &mut Observations) {
    observed.others.interfaces = BTreeSet::from(["kube-ipvs0".to_owned()]);
}

#[test]
fn each_other_user_of_the_node_has_its_finding() {
    expect(&[
        ("kube-proxy", Pass, "iptables", "", |_| {}),
        ("kube-proxy", Pass, "nftables", "", |o| o.others.chains = BTreeSet::from(["kube-proxy".to_owned()])),
        ("kube-proxy", Pass, "VIPs on kube-ipvs0 are correct", "", ipvs),
        ("kube-proxy", Pass, "Cilium", "", |o| {
            (o.others.chains, o.others.interfaces) = (BTreeSet::new(), BTreeSet::from(["cilium_host".to_owned()]));
        }),
        ("kube-proxy", Warn, "not found", "kube-proxy", |o| o.others.chains = BTreeSet::new()),
        ("cni", Pass, "Flannel", "", |o| {
            o.others.interfaces = BTreeSet::from(["flannel.1".to_owned(), "cni0".to_owned()]);
        }),
        ("cni", Pass, "Calico:", "", |o| o.others.cni_files = BTreeSet::from(["10-calico.conflist".to_owned()])),
        ("cni", Pass, "Flannel", "", |o| o.others.cni_files = BTreeSet::from(["10-flannel.conflist".to_owned()])),
        ("cni", Pass, "Calico:", "", |o| o.others.interfaces = BTreeSet::from(["cali123".to_owned()])),
        ("cni", Warn, "Calico with eBPF", "try", |o| {
            o.others.interfaces = BTreeSet::from(["cali123".to_owned(), "bpfin.cali".to_owned()]);
        }),
        ("cni", Pass, "Cilium", "", |o| o.others.cni_files = BTreeSet::from(["05-cilium.conflist".to_owned()])),
        ("cni", Warn, "Antrea", "try", |o| o.others.interfaces = BTreeSet::from(["antrea-gw0".to_owned()])),
        ("other-balancers", Pass, "among the visible processes", "", |_| {}),
        ("other-balancers", Pass, "in the cluster", "", |o| o.others.daemon_sets = Some(BTreeSet::new())),
        ("other-balancers", Fail, "kube-system/svclb-web-1", "--disable servicelb", |o| {
            o.others.daemon_sets = Some(BTreeSet::from(["kube-system/svclb-web-1".to_owned()]));
        }),
        ("other-balancers", Warn, "k3s runs (pid 42)", "--disable servicelb", |o| {
            o.others.processes = vec![process("k3s-server", "/usr/local/bin/k3s server --disable=traefik")];
        }),
        ("other-balancers", Pass, "no ServiceLB", "", |o| {
            o.others.processes = vec![process("k3s-server", "/usr/local/bin/k3s server")];
            o.others.k3s_config =
                "ExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--disable=traefik,servicelb' \\\n".to_owned();
        }),
        ("other-balancers", Pass, "no ServiceLB", "", |o| {
            o.others.processes = vec![process("k3s-server", "/usr/local/bin/k3s server")];
            o.others.k3s_config = "disable:\n- servicelb\n".to_owned();
        }),
        ("other-balancers", Pass, "no ServiceLB", "", |o| {
            o.others.processes = vec![process("k3s", "/usr/local/bin/k3s agent")];
        }),
        ("other-balancers", Warn, "kube-vip runs: pid 42", "svc_enable", |o| {
            o.others.processes = vec![process("kube-vip", "/kube-vip manager")];
        }),
        ("other-balancers", Warn, "kube-system/kube-vip-ds", "svc_enable", |o| {
            o.others.daemon_sets = Some(BTreeSet::from(["kube-system/kube-vip-ds".to_owned()]));
        }),
        ("other-balancers", Fail, "MetalLB's speaker runs (pid 42)", "scale", |o| {
            o.others.processes = vec![process("speaker", "/speaker --port=7472 --log-level=info")];
        }),
        ("other-balancers", Fail, "metallb-system/speaker", "scale", |o| {
            o.others.daemon_sets = Some(BTreeSet::from(["metallb-system/speaker".to_owned()]));
        }),
        ("other-balancers", Fail, "metallb/release-metallb-speaker", "scale", |o| {
            o.others.daemon_sets = Some(BTreeSet::from(["metallb/release-metallb-speaker".to_owned()]));
        }),
        ("other-balancers", Pass, "no ServiceLB", "", |o| {
            o.others.daemon_sets = Some(BTreeSet::from(["metallb-system/frr-k8s".to_owned()]));
        }),
        ("other-balancers", Pass, "no ServiceLB", "", |o| {
            o.others.processes = vec![process("speaker", "/usr/bin/speaker-test")];
        }),
        ("other-balancers", Warn, "keepalived runs", "virtual_ipaddress", |o| {
            o.others.processes = vec![process("keepalived", "keepalived")];
        }),
        ("vip-addresses", Pass, "none of 1 VIPs", "", |o| o.others.vips = vec![([192, 0, 2, 200].into(), None)]),
        ("vip-addresses", Fail, "192.0.2.200 is on eth0", "ip address del 192.0.2.200 dev eth0", |o| {
            o.others.vips = vec![([192, 0, 2, 200].into(), Some("eth0".to_owned()))];
        }),
    ]);
}

#[test]
fn each_state_of_gossip_has_its_finding() {
    expect(&[
        ("gossip-port", Pass, "free", "", |_| {}),
        ("gossip-port", Pass, "used by the agent", "", |o| o.gossip.holder = Holder::Agent),
        ("gossip-port", Fail, "used by nc (pid 3)", "--gossip-port", |o| {
            o.gossip.holder = Holder::Other("nc (pid 3)".to_owned());
        }),
        ("gossip-port", Warn, "not visible", "--gossip-port", |o| o.gossip.holder = Holder::Hidden),
        ("gossip-port", Warn, "no /proc", "root", |o| o.gossip.holder = Holder::Unknown("no /proc".to_owned())),
        ("gossip-key", Warn, "not only the owner", "chmod 600", |o| {
            o.gossip.key = GossipKeyObservation::Exposed { path: "/k".to_owned() }
        }),
        ("gossip-key", Pass, "the agent creates /k", "", |o| {
            o.gossip.key = GossipKeyObservation::Made { path: "/k".to_owned() }
        }),
        ("gossip-key", Warn, "no /k yet", "allocator runs", |o| {
            o.gossip.key = GossipKeyObservation::Awaited { path: "/k".to_owned() }
        }),
        ("gossip-key", Warn, "none is named", "--gossip-key", |o| o.gossip.key = GossipKeyObservation::Unnamed),
        ("gossip-key", Fail, "damaged", "openssl rand", |o| {
            o.gossip.key = GossipKeyObservation::Bad("damaged".to_owned());
        }),
    ]);
}

#[test]
fn each_state_of_the_cluster_has_its_finding() {
    expect(&[
        ("api", Pass, "v1.35.0", "", |_| {}),
        ("api", Fail, "refused", "kubeconfig", |o| api(o).version = Err("refused".to_owned())),
        ("api", Warn, "nobody said", "--kubeconfig", |o| {
            o.source = ObjectSourceObservation::Nowhere("nobody said".to_owned());
        }),
        ("permissions", Pass, "vipmux-agent\" has all rights", "", |_| {}),
        (
            "permissions",
            Fail,
            "may not list services, watch nodes, create leases.coordination.k8s.io in vipmux-system",
            "deploy/",
            |o| {
                let find = |resource, verb| {
                    *AGENT.iter().find(|right| (right.resource, right.verb) == (resource, verb)).unwrap()
                };
                api(o).denied = Ok(vec![find("services", "list"), find("nodes", "watch"), find("leases", "create")]);
            },
        ),
        ("permissions", Warn, "not permitted", "ask root", |o| api(o).denied = Err(unseen())),
        ("crds", Warn, "VipPolicy", "kubectl apply", |o| api(o).own = Ok(BTreeSet::from(["VipPool".to_owned()]))),
        ("crds", Warn, "MetalLB's kinds are", "kubectl apply", |o| {
            let metallb = ["IPAddressPool", "L2Advertisement"].map(str::to_owned);
            (api(o).own, api(o).metallb) = (Ok(BTreeSet::new()), Ok(BTreeSet::from(metallb)));
        }),
        ("metallb-crds", Pass, "not needed", "", |_| {}),
        ("leases", Pass, "vipmux-system: 3 Leases", "", |_| {}),
        ("leases", Warn, "not permitted", "ask root", |o| api(o).leases = Err(unseen())),
        ("node", Pass, "node-1, InternalIP 192.0.2.11", "", |_| {}),
        ("node", Warn, "is not given", "--node-name", |o| api(o).node = NodeObservation::Unnamed),
        ("node", Fail, "no Node node-9; present: node-1", "kubectl get nodes", |o| {
            api(o).node = NodeObservation::Absent("node-9".to_owned(), vec!["node-1".to_owned()]);
        }),
        ("node", Fail, "no InternalIP", "--node-ip", |o| {
            api(o).node = NodeObservation::Found("node-1".to_owned(), vec![], vec![]);
        }),
        ("node", Fail, "this machine does not have it", "--node-name", |o| {
            api(o).node = NodeObservation::Found("node-1".to_owned(), vec![[192, 0, 2, 12].into()], vec![]);
        }),
        ("manifests", Pass, "can be used", "", |o| manifests(o, Ok(("m".to_owned(), 0)))),
        ("manifests", Warn, "2 problems", "vipmux plan m", |o| manifests(o, Ok(("m".to_owned(), 2)))),
        ("manifests", Fail, "not there", "--manifests", |o| manifests(o, Err("not there".to_owned()))),
    ]);
}

fn manifests(observed: &mut Observations, read: Result<(String, usize), String>) {
    let node = api(observed).node.clone();
    observed.source = ObjectSourceObservation::Manifests { read, node };
}
