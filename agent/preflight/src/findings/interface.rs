//! Checks the interfaces where VIPs would be announced.

use std::collections::BTreeMap;

use super::{CheckStatus, Finding, Seen, kernel::KernelObservation, list};
use vipmux_datapath::{
    bpf::attach::XdpAttachMode,
    link::{CardReason, OtherEnd},
};

/// The greatest MTU, in bytes, at which drivers run a program for packets in one buffer.
pub const MTU_LIMIT: u32 = 3_498;

/// `NETDEV_XDP_ACT_BASIC` of include/uapi/linux/netdev.h: programs can drop, pass and send back.
const BASIC: u64 = 1;
/// `NETDEV_XDP_ACT_REDIRECT`: programs can send frames to other interfaces.
const REDIRECT: u64 = 2;
/// `NETDEV_XDP_ACT_RX_SG`: frames in several buffers.
const SEVERAL: u64 = 32;

/// Drivers with native XDP, for kernels that do not report it (before Linux 6.3).
const NATIVE: [&str; 33] = [
    "atlantic",
    "bnxt",
    "bnxt_en",
    "bonding",
    "cpsw",
    "dpaa2_eth",
    "dpaa_eth",
    "ena",
    "enetc",
    "fsl_dpaa2_eth",
    "fsl_enetc",
    "gve",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mana",
    "mlx4_en",
    "mlx5_core",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "sfc",
    "stmmac",
    "tun",
    "veth",
    "vif",
    "virtio_net",
    "vmxnet3",
];

const HOST_REMEDY: &str = "generic mode (--xdp-mode auto) serves as well; for native mode let the hypervisor offer \
                           ctrl_guest_offloads, or turn guest offloads off (docs/interfaces.md)";

/// An interface that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Its name; `None`: no interface was found.
    pub name: Option<String>,
    /// The reason.
    pub why: String,
}

/// Sysctls of one interface; `None`: the address family is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSysctlObservation {
    /// `rp_filter`, the greater value of the interface and `all`: 0, 1 or 2.
    pub rp_filter: Option<u8>,
    /// `net.ipv4.conf.IF.forwarding`.
    pub forwarding: Option<bool>,
    /// `net.ipv4.conf.IF.ignore_routes_with_linkdown`.
    pub ignores_linkdown: Option<bool>,
    /// `arp_ignore`, the greater value of the interface and `all`.
    pub arp_ignore: Option<u8>,
    /// `net.ipv6.conf.IF.disable_ipv6`.
    pub ipv6_disabled: Option<bool>,
    /// `net.ipv6.conf.IF.forwarding`.
    pub ipv6_forwarding: Option<bool>,
    /// `net.ipv6.conf.IF.accept_ra`: 0, 1 or 2.
    pub accept_ra: Option<u8>,
    /// It has a global IPv6 address.
    pub has_ipv6: bool,
    /// It has routes from router advertisements.
    pub has_advertised_routes: bool,
}

/// A layer-2 segment where the agent would announce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentObservation {
    /// The interface with the node's addresses.
    pub name: String,
    /// Its kind: `device`, `vlan`, `bond`.
    pub kind: String,
    /// It is up.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    /// The 802.1Q VLAN of its frames; 0: untagged.
    pub vlan: u16,
    /// The interfaces where its frames come in.
    pub ports: Vec<InterfaceObservation>,
    /// Its subnets in which the node has other cards, too, and this one announces.
    pub shared: Vec<SharedSubnetObservation>,
    /// Settings of the network stack for it.
    pub stack: InterfaceSysctlObservation,
}

/// A subnet with several cards of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSubnetObservation {
    /// The subnet.
    pub subnet: String,
    /// The names of the cards that do not announce.
    pub others: Vec<String>,
    /// Why this one announces.
    pub reason: CardReason,
}

/// An interface where XDP would run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub struct InterfaceObservation {
    /// Its name.
    pub name: String,
    /// It is up.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    /// Its driver, if known.
    pub driver: Option<String>,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// `NETDEV_A_DEV_XDP_FEATURES`; `None`: the kernel does not report it (before Linux 6.3).
    pub features: Option<u64>,
    /// The other ends of the veths by which it sends: of itself, or of a bond's cards, by name.
    pub veths: BTreeMap<String, OtherEnd>,
    /// XDP programs on it or on a bond's cards.
    pub attached: Vec<AttachedProgram>,
    /// It is a virtio_net whose host merges segments and does not let it turn that off, or a bond of such.
    pub fixed_offloads: bool,
    /// VIPs are announced in a VLAN there.
    pub tagged: bool,
    /// Its handling of VLAN tags, or that of a bond's cards.
    pub tags: Seen<TagHandling>,
    /// The numbers of frames from there that the kernel refused after the program's verdict, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// An XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    /// The interface.
    pub interface: String,
    /// The program's id.
    pub id: u32,
    /// Its name, if it may be read.
    pub name: Option<String>,
    /// It runs in generic mode.
    pub generic: bool,
    /// It is pinned below the pin path, so it is vipmux's.
    pub ours: bool,
    /// Frames bypass it, as the agent found.
    pub bypassed: bool,
}

/// A card's handling of VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagHandling {
    /// They stay in the frames.
    Kept,
    /// It strips them; this can be turned off.
    Stripped,
    /// It strips them; this cannot be turned off.
    AlwaysStripped,
}

/// Returns the findings about the interfaces.
pub(super) fn assess(
    kernel: &KernelObservation,
    interfaces: &Seen<Vec<Result<SegmentObservation, Unusable>>>,
) -> Vec<Finding> {
    match interfaces {
        Ok(all) if all.is_empty() => vec![Finding::fail(
            "interface",
            "no interface to announce on",
            "name one by --interface, or give the Node an InternalIP on a subnet of this machine",
        )],
        Ok(all) => {
            let ports = || all.iter().flatten().flat_map(|segment| &segment.ports);
            let veth = ports().find_map(|port| port.veths.keys().next()).map(String::as_str);
            all.iter().flat_map(|one| of_one(kernel, veth, one)).collect()
        }
        Err(unseen) => vec![Finding::unseen("interface", unseen)],
    }
}

/// `veth`: a veth among all ports, if there is one.
fn of_one(kernel: &KernelObservation, veth: Option<&str>, one: &Result<SegmentObservation, Unusable>) -> Vec<Finding> {
    let segment = match one {
        Ok(segment) => segment,
        Err(Unusable { name, why }) => {
            let remedy = "name another one by --interface (docs/interfaces.md)";
            let finding = Finding::fail("interface", why, remedy);
            return vec![match name {
                Some(name) => finding.about(name),
                None => finding,
            }];
        }
    };
    let mut found = vec![shape(segment), carrier(segment)];
    found.extend(segment.shared.iter().map(|shared| shared_subnet(segment, shared)));
    for port in &segment.ports {
        let of_port = [xdp(kernel, veth, port), programs(port), refused(port), mtu(port)];
        found.extend(of_port.map(|finding| finding.about(&port.name)));
        found.extend(vlan(port).map(|finding| finding.about(&port.name)));
    }
    found
}

fn shape(segment: &SegmentObservation) -> Finding {
    let ports = list(segment.ports.iter().map(|port| match &port.driver {
        Some(driver) => format!("{} ({driver})", port.name),
        None => port.name.clone(),
    }));
    let tag = if segment.vlan == 0 { "untagged".to_owned() } else { format!("with VLAN tag {}", segment.vlan) };
    Finding::pass("interface", format!("{}; frames come in at {ports}, {tag}", segment.kind)).about(&segment.name)
}

fn carrier(segment: &SegmentObservation) -> Finding {
    const CHECK: &str = "carrier";
    let down =
        std::iter::once((&segment.name, segment.up)).chain(segment.ports.iter().map(|port| (&port.name, port.up)));
    let finding = if let Some((name, _)) = down.into_iter().find(|(_, up)| !up) {
        let remedy = format!("`ip link set {name} up`, and in the system's network configuration");
        Finding::fail(CHECK, format!("{name} is down"), remedy)
    } else if !segment.carrier || !segment.ports.iter().any(|port| port.carrier) {
        let remedy = "check the cable, the switch port, or the other end of the interface";
        Finding::fail(CHECK, "up, but without a carrier: the node cannot lead VIPs there", remedy)
    } else {
        Finding::pass(CHECK, "up, with a carrier")
    };
    finding.about(&segment.name)
}

/// Without a carrier, the kernel goes on sending by a card unless it is told not to. Then the other card
/// announces, and replies get lost.
fn shared_subnet(segment: &SegmentObservation, shared: &SharedSubnetObservation) -> Finding {
    const CHECK: &str = "shared-subnet";
    let SharedSubnetObservation { subnet, others, reason } = shared;
    let found = format!("{} is in {subnet} like {}, and announces alone: {reason}", segment.name, list(others));
    let finding = if segment.stack.ignores_linkdown == Some(false) {
        Finding::warn(
            CHECK,
            format!("{found}. Without a carrier, its routes stay unless the node's network manager removes them"),
            "`sysctl -w net.ipv4.conf.all.ignore_routes_with_linkdown=1`, the same for `default`, the cards and ipv6, \
             and in /etc/sysctl.d; or make a bond of the cards",
        )
    } else {
        Finding::pass(CHECK, found)
    };
    finding.about(&segment.name)
}

/// Returns why native XDP is not possible there.
fn native_obstacle(kernel: &KernelObservation, port: &InterfaceObservation) -> Option<String> {
    let driver = port.driver.as_deref().unwrap_or("its driver");
    if port.fixed_offloads {
        return Some(format!("the host merges segments for {driver}, which cannot turn that off"));
    }
    match port.features {
        Some(features) if features & (BASIC | REDIRECT) != BASIC | REDIRECT => {
            return Some(format!("{driver} has no native XDP here"));
        }
        None if !NATIVE.contains(&driver) => {
            return Some(format!("{driver} is not known to have native XDP (the kernel reports it since 6.3)"));
        }
        _ => {}
    }
    if port.mtu <= MTU_LIMIT {
        None
    } else if !kernel.has_fragments() {
        Some(format!("an MTU of {} needs Linux 5.18", port.mtu))
    } else if port.features.is_some_and(|features| features & SEVERAL == 0) {
        Some(format!("{driver} has no native XDP for an MTU of {}", port.mtu))
    } else {
        None
    }
}

fn xdp(kernel: &KernelObservation, veth: Option<&str>, port: &InterfaceObservation) -> Finding {
    const CHECK: &str = "xdp-mode";
    let driver = port.driver.as_deref().unwrap_or("driver unknown");
    let veth = veth.filter(|_| kernel.mode == XdpAttachMode::Auto);
    let veth = veth.map(|veth| format!("{veth} is a veth, which loses frames that native XDP sends"));
    // A running program is better evidence than a prediction.
    if let Some(own) = port.attached.iter().find(|program| program.ours) {
        if own.bypassed {
            let found = format!("frames bypass the agent's program: it is attached, but {driver} does not run it");
            let remedy = "use --xdp-mode auto or generic; let nothing divert frames before the program \
                          (docs/interfaces.md)";
            return Finding::fail(CHECK, found, remedy);
        }
        let native = || Finding::pass(CHECK, format!("native: the agent's program runs in {driver}"));
        return match (own.generic, kernel.mode) {
            (false, _) => loss(port).unwrap_or_else(native),
            (true, XdpAttachMode::Generic) => Finding::pass(CHECK, "generic, as requested"),
            (true, _) => {
                let why = veth.or_else(|| native_obstacle(kernel, port));
                generic(port, why.as_deref().unwrap_or("the agent's program runs in generic mode"))
            }
        };
    }
    match (kernel.mode, veth.or_else(|| native_obstacle(kernel, port))) {
        (XdpAttachMode::Generic, _) => Finding::pass(CHECK, "generic, as requested"),
        (_, None) => loss(port).unwrap_or_else(|| Finding::pass(CHECK, format!("native ({driver})"))),
        (XdpAttachMode::Auto, Some(why)) => generic(port, &why),
        (XdpAttachMode::Native, Some(why)) => Finding::fail(
            CHECK,
            format!("--xdp-mode native is set, but {why}"),
            if port.fixed_offloads { HOST_REMEDY } else { "use --xdp-mode auto, or another card or kernel" },
        ),
    }
}

/// Returns the finding about frames that native XDP sends by a veth, if they may be lost.
fn loss(port: &InterfaceObservation) -> Option<Finding> {
    const CHECK: &str = "xdp-mode";
    const REMEDY: &str = "use --xdp-mode auto, which is generic on a veth, or attach an XDP program to the other end";
    let with = |wanted| port.veths.iter().find(|(_, end)| **end == wanted).map(|(veth, _)| veth);
    if let Some(veth) = with(OtherEnd::NoProgram) {
        let found =
            format!("frames that native XDP sends are lost: the other end of the veth {veth} has no XDP program");
        return Some(Finding::fail(CHECK, found, REMEDY));
    }
    let veth = with(OtherEnd::Unknown)?;
    let found = format!(
        "native; the other end of the veth {veth} cannot be read, and without an XDP program there frames are lost"
    );
    Some(Finding::warn(CHECK, found, REMEDY))
}

fn generic(port: &InterfaceObservation, why: &str) -> Finding {
    let remedy = if port.fixed_offloads { HOST_REMEDY } else { "nothing is broken; a card with native XDP is faster" };
    Finding::warn("xdp-mode", format!("generic, which is slower: {why}"), remedy)
}

fn programs(port: &InterfaceObservation) -> Finding {
    const CHECK: &str = "xdp-program";
    let foreign: Vec<_> = port.attached.iter().filter(|program| !program.ours).collect();
    if foreign.is_empty() {
        let ours = if port.attached.is_empty() { "no XDP program yet" } else { "vipmux's own program" };
        return Finding::pass(CHECK, ours);
    }
    let named = list(foreign.iter().map(|program| {
        let name = program.name.as_deref().unwrap_or("a program with an unreadable name");
        format!("{name} (id {}) on {}", program.id, program.interface)
    }));
    let of_vipmux =
        foreign.iter().any(|program| program.name.as_deref().is_some_and(|name| name.starts_with("vipmux_")));
    let remedy = if of_vipmux {
        "it belongs to a vipmux with another pin path: name that path by --pin-path, or run `vipmux unload --pin-path PATH`"
            .to_owned()
    } else {
        let name = &foreign[0].interface;
        format!(
            "stop the software that attached it (Cilium: `loadBalancer.acceleration: disabled`), or run `ip link set {name} xdp off`"
        )
    };
    Finding::fail(CHECK, format!("another XDP program: {named}; an interface can have only one"), remedy)
}

fn refused(port: &InterfaceObservation) -> Finding {
    const CHECK: &str = "refused-frames";
    if port.refused.is_empty() {
        return Finding::pass(CHECK, "no frame that the program sent on was refused or lost");
    }
    let reasons = list(port.refused.iter().map(|(reason, frames)| format!("{frames} ({reason})")));
    let remedy = "`vipmux inspect stats` shows whether the number grows; docs/packets.md explains the reasons";
    Finding::warn(CHECK, format!("frames that were refused or lost after the program's verdict: {reasons}"), remedy)
}

fn mtu(port: &InterfaceObservation) -> Finding {
    // The check `xdp-mode` says whether the MTU prevents native mode.
    Finding::pass("mtu", format!("{} bytes; frames to backends on other nodes keep their length", port.mtu))
}

/// Without VIPs in a VLAN, only what is wrong is a finding.
fn vlan(port: &InterfaceObservation) -> Option<Finding> {
    const CHECK: &str = "vlan-tags";
    const REMEDY: &str = "let nothing turn rx-vlan-offload on: `ReceiveVLANCTAGHardwareAcceleration=no` in a .link file of \
                          systemd, `ethtool.feature-rxvlan off` in NetworkManager (docs/interfaces.md)";
    let InterfaceObservation { name, tagged, .. } = port;
    let is_attached = port.attached.iter().any(|program| program.ours);
    let finding = match &port.tags {
        Err(unseen) => Finding::unseen(CHECK, unseen),
        Ok(TagHandling::Kept) => Finding::pass(CHECK, "kept in the frames (rx-vlan-offload is off)"),
        Ok(TagHandling::Stripped) if !is_attached => {
            Finding::pass(CHECK, "stripped from frames; the agent turns rx-vlan-offload off")
        }
        Ok(TagHandling::Stripped) if *tagged => Finding::fail(
            CHECK,
            format!("{name} strips tags from frames before the program sees them: rx-vlan-offload was turned on again"),
            REMEDY,
        ),
        Ok(TagHandling::Stripped) => Finding::warn(
            CHECK,
            "frames of all VLANs look untagged, and get answers: rx-vlan-offload was turned on again",
            REMEDY,
        ),
        Ok(TagHandling::AlwaysStripped) if *tagged => Finding::fail(
            CHECK,
            format!("{name} strips tags from frames before a program sees them; this cannot be turned off"),
            "announce VIPs on an untagged interface, or use another card",
        ),
        Ok(TagHandling::AlwaysStripped) => Finding::warn(
            CHECK,
            "frames of all VLANs look untagged, and get answers: rx-vlan-offload cannot be turned off",
            "let the switch send only untagged frames to this port, or use another card",
        ),
    };
    let is_wrong = finding.status != CheckStatus::Pass && port.tags.is_ok();
    (*tagged || is_wrong).then_some(finding)
}
