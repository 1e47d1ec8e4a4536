//! The interfaces that VIPs are to be announced on.

use super::{Finding, Seen, kernel::Kernel, list};

/// The longest MTU at which drivers run a program that takes packets in one buffer, bytes.
pub const MTU_LIMIT: u32 = 3_498;

/// `NETDEV_XDP_ACT_BASIC` of include/uapi/linux/netdev.h: programs that drop, pass and send back.
const BASIC: u64 = 1;
/// `NETDEV_XDP_ACT_REDIRECT`: programs that hand frames to other interfaces.
const REDIRECT: u64 = 2;
/// `NETDEV_XDP_ACT_RX_SG`: frames in several buffers.
const SEVERAL: u64 = 32;

/// Drivers with native XDP on the kernels that do not tell (before Linux 6.3).
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

/// An interface that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Its name; `None`: none was found.
    pub name: Option<String>,
    /// Why.
    pub why: String,
}

/// A layer-2 segment, as the agent would announce on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The interface with the node's addresses.
    pub name: String,
    /// What it is: `device`, `vlan`, `bond`.
    pub kind: String,
    /// It is set up.
    pub up: bool,
    /// What is sent on it leaves.
    pub carrier: bool,
    /// The 802.1Q VLAN of its frames; 0: untagged.
    pub vlan: u16,
    /// Where its frames come in.
    pub ports: Vec<Port>,
    /// How the stack treats what it takes in there.
    pub stack: super::settings::Interface,
}

/// An interface where XDP would run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// It is set up.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    /// Its driver, if it says.
    pub driver: Option<String>,
    /// Bytes.
    pub mtu: u32,
    /// `NETDEV_A_DEV_XDP_FEATURES`; `None`: the kernel does not tell (before Linux 6.3).
    pub features: Option<u64>,
    /// XDP programs on it, or on a bond's cards.
    pub attached: Vec<Attached>,
    /// What it does with VLAN tags; `None` where frames have none.
    pub tags: Option<Seen<Tags>>,
    /// Programs and filters that are on the way out, in their order.
    pub egress: Seen<Vec<Egress>>,
}

/// An XDP program that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The interface.
    pub interface: String,
    /// The program's id.
    pub id: u32,
    /// Its name, where it may be read.
    pub name: Option<String>,
    /// It runs in generic mode.
    pub generic: bool,
    /// It is pinned below the pin path.
    pub ours: bool,
}

/// What a card does with VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// They stay in the frames.
    Left,
    /// It takes them out, and can be told not to.
    Taken,
    /// It takes them out, and cannot be told otherwise.
    TakenForGood,
}

/// Something on the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Egress {
    /// A program by a tcx link.
    Tcx {
        /// Its id.
        id: u32,
        /// Its name, where it may be read.
        name: Option<String>,
        /// It is vipmux's.
        ours: bool,
    },
    /// A tc filter in a clsact qdisc.
    Filter {
        /// Its kind: `bpf`, `flower`.
        kind: String,
        /// Its priority; the lowest comes first.
        priority: u16,
        /// It is vipmux's.
        ours: bool,
    },
}

/// How XDP programs are to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Native where that is possible.
    #[default]
    Auto,
    /// Native, or not at all.
    Native,
    /// Generic.
    Generic,
}

/// What there is to say about the interfaces.
pub(super) fn assess(kernel: &Kernel, interfaces: &Seen<Vec<Result<Segment, Unusable>>>) -> Vec<Finding> {
    match interfaces {
        Ok(all) if all.is_empty() => vec![Finding::fail(
            "interface",
            "none to announce on",
            "name one by --interface, or give the Node an InternalIP on a subnet of this machine",
        )],
        Ok(all) => all.iter().flat_map(|one| of_one(kernel, one)).collect(),
        Err(unseen) => vec![Finding::unseen("interface", unseen)],
    }
}

fn of_one(kernel: &Kernel, one: &Result<Segment, Unusable>) -> Vec<Finding> {
    let segment = match one {
        Ok(segment) => segment,
        Err(Unusable { name, why }) => {
            let remedy = "name another by --interface (docs/interfaces.md says what works where)";
            let finding = Finding::fail("interface", why, remedy);
            return vec![match name {
                Some(name) => finding.about(name),
                None => finding,
            }];
        }
    };
    let mut found = vec![shape(segment), carrier(segment)];
    for port in &segment.ports {
        found.extend([xdp(kernel, port), programs(port), mtu(port)].map(|finding| finding.about(&port.name)));
        found.extend(port.tags.as_ref().map(|tags| vlan(port, tags).about(&port.name)));
        found.push(egress(kernel, port).about(&port.name));
    }
    found
}

fn shape(segment: &Segment) -> Finding {
    let ports = list(segment.ports.iter().map(|port| match &port.driver {
        Some(driver) => format!("{} ({driver})", port.name),
        None => port.name.clone(),
    }));
    let tag = if segment.vlan == 0 { "untagged".to_owned() } else { format!("with VLAN tag {}", segment.vlan) };
    Finding::pass("interface", format!("{}; frames come in at {ports}, {tag}", segment.kind)).about(&segment.name)
}

fn carrier(segment: &Segment) -> Finding {
    const CHECK: &str = "carrier";
    let down =
        std::iter::once((&segment.name, segment.up)).chain(segment.ports.iter().map(|port| (&port.name, port.up)));
    let finding = if let Some((name, _)) = down.into_iter().find(|(_, up)| !up) {
        let remedy = format!("`ip link set {name} up`, and in the system's network configuration");
        Finding::fail(CHECK, format!("{name} is down"), remedy)
    } else if !segment.carrier || !segment.ports.iter().any(|port| port.carrier) {
        let remedy = "look at the cable, the switch's port, or the interface's other end";
        Finding::fail(CHECK, "up, but without a carrier: a node leads nothing there", remedy)
    } else {
        Finding::pass(CHECK, "up, with a carrier")
    };
    finding.about(&segment.name)
}

/// What speaks against native XDP there.
fn against_native(kernel: &Kernel, port: &Port) -> Option<String> {
    let driver = port.driver.as_deref().unwrap_or("its driver");
    match port.features {
        Some(features) if features & (BASIC | REDIRECT) != BASIC | REDIRECT => {
            return Some(format!("{driver} has no native XDP here"));
        }
        None if !NATIVE.contains(&driver) => {
            return Some(format!("{driver} is not known to have native XDP (the kernel tells since 6.3)"));
        }
        _ => {}
    }
    if port.mtu <= MTU_LIMIT {
        None
    } else if !kernel.has_fragments() {
        Some(format!("an MTU of {} takes Linux 5.18", port.mtu))
    } else if port.features.is_some_and(|features| features & SEVERAL == 0) {
        Some(format!("{driver} has no native XDP for an MTU of {}", port.mtu))
    } else {
        None
    }
}

fn xdp(kernel: &Kernel, port: &Port) -> Finding {
    const CHECK: &str = "xdp-mode";
    let driver = port.driver.as_deref().unwrap_or("driver unknown");
    // What runs already knows better than what could.
    if let Some(own) = port.attached.iter().find(|program| program.ours && program.interface == port.name) {
        return match (own.generic, kernel.mode) {
            (false, _) => Finding::pass(CHECK, format!("native: the agent's program runs in {driver}")),
            (true, Mode::Generic) => Finding::pass(CHECK, "generic, as it is asked for"),
            (true, _) => generic("the agent's program runs so"),
        };
    }
    match (kernel.mode, against_native(kernel, port)) {
        (Mode::Generic, _) => Finding::pass(CHECK, "generic, as it is asked for"),
        (_, None) => Finding::pass(CHECK, format!("native ({driver})")),
        (Mode::Auto, Some(why)) => generic(&why),
        (Mode::Native, Some(why)) => Finding::fail(
            CHECK,
            format!("--xdp-mode native, and {why}"),
            "use --xdp-mode auto, or another card or kernel",
        ),
    }
}

fn generic(why: &str) -> Finding {
    Finding::warn(
        "xdp-mode",
        format!("generic, which is slower: {why}"),
        "nothing breaks; a card with native XDP is faster",
    )
}

fn programs(port: &Port) -> Finding {
    const CHECK: &str = "xdp-program";
    let foreign: Vec<_> = port.attached.iter().filter(|program| !program.ours).collect();
    if foreign.is_empty() {
        let ours = if port.attached.is_empty() { "no XDP program yet" } else { "vipmux's own" };
        return Finding::pass(CHECK, ours);
    }
    let named = list(foreign.iter().map(|program| {
        let name = program.name.as_deref().unwrap_or("whose name cannot be read");
        format!("{name} (id {}) on {}", program.id, program.interface)
    }));
    let of_vipmux =
        foreign.iter().any(|program| program.name.as_deref().is_some_and(|name| name.starts_with("vipmux_")));
    let remedy = if of_vipmux {
        "it is of a vipmux with another pin path: name that one by --pin-path, or `vipmux unload --pin-path` it"
            .to_owned()
    } else {
        let name = &foreign[0].interface;
        format!(
            "stop what attached it (Cilium: `loadBalancer.acceleration: disabled`), or `ip link set {name} xdp off`"
        )
    };
    Finding::fail(CHECK, format!("another XDP program: {named}; an interface takes one"), remedy)
}

fn mtu(port: &Port) -> Finding {
    // Whether that costs native mode is said there.
    Finding::pass("mtu", format!("{} bytes; frames to backends elsewhere stay as long as they are", port.mtu))
}

fn vlan(port: &Port, tags: &Seen<Tags>) -> Finding {
    const CHECK: &str = "vlan-tags";
    match tags {
        Ok(Tags::Left) => Finding::pass(CHECK, "stay in the frames (rx-vlan-offload is off)"),
        Ok(Tags::Taken) => Finding::pass(CHECK, "taken out of frames; the agent turns rx-vlan-offload off"),
        Ok(Tags::TakenForGood) => Finding::fail(
            CHECK,
            format!("{} takes tags out of frames before a program sees them, for good", port.name),
            "announce VIPs on an untagged interface, or use another card",
        ),
        Err(unseen) => Finding::unseen(CHECK, unseen),
    }
}

fn egress(kernel: &Kernel, port: &Port) -> Finding {
    const CHECK: &str = "tc-programs";
    let programs = match &port.egress {
        Ok(programs) => programs,
        Err(unseen) => return Finding::unseen(CHECK, unseen),
    };
    let before: Vec<_> = programs.iter().filter(|other| kernel.comes_first(other)).collect();
    if before.is_empty() {
        return Finding::pass(CHECK, format!("nothing on the way out before vipmux's; there: {}", list(programs)));
    }
    Finding::warn(
        CHECK,
        format!(
            "before vipmux's on the way out: {}; what one of them ends (TC_ACT_OK) is not translated",
            list(before)
        ),
        "let them return TCX_NEXT (-1; of filters TC_ACT_UNSPEC), or stop what attached them",
    )
}

impl Kernel {
    /// Whether that runs before vipmux's program, and can end a packet's way there.
    fn comes_first(&self, other: &Egress) -> bool {
        match other {
            Egress::Tcx { ours, .. } => !ours,
            // tcx links come before all filters; vipmux's own filter is the first of priority 1.
            Egress::Filter { ours, priority, .. } => !ours && *priority <= 1 && !self.has_tcx(),
        }
    }
}

impl std::fmt::Display for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcx { id, name, .. } => write!(f, "{} (id {id})", name.as_deref().unwrap_or("a program")),
            Self::Filter { kind, priority, .. } => write!(f, "a {kind} filter of priority {priority}"),
        }
    }
}
