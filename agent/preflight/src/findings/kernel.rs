//! Checks the kernel: what the loader and the agent need.

use super::{Finding, Seen};
use vipmux_datapath::bpf::attach::{TcAttachMode, XdpAttachMode};

/// The oldest supported kernel.
const OLDEST: (u32, u32) = (5, 15);
/// The same on arm64.
const OLDEST_ARM64: (u32, u32) = (6, 0);
/// The first kernel with BPF programs for frames in several buffers (`xdp.frags`).
const FRAGMENTS: (u32, u32) = (5, 18);
/// The first kernel with tcx links; the agent decides by the version too.
const TCX: (u32, u32) = (6, 6);
/// The first kernel for real time where programs on one CPU may interrupt each other: a softirq holds no
/// lock of its CPU there (`CONFIG_PREEMPT_RT_NEEDS_BH_LOCK`).
const PREEMPTED: (u32, u32) = (6, 18);
/// The first kernel where BPF objects count against the control group's memory, not against
/// `RLIMIT_MEMLOCK`.
const UNLOCKED: (u32, u32) = (5, 11);

/// The observations of the kernel and of this process's rights.
#[derive(Clone, Debug)]
pub struct KernelObservation {
    /// How XDP programs should run.
    pub mode: XdpAttachMode,
    /// How classifiers should be attached.
    pub tc: TcAttachMode,
    /// Its release string.
    pub release: String,
    /// Major and minor version.
    pub version: (u32, u32),
    /// It is one for arm64.
    pub is_arm64: bool,
    /// It is one for real time (`PREEMPT_RT`).
    pub is_realtime: bool,
    /// It has BTF, the types of its structures (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// The capabilities that the agent needs and this process lacks, with their purpose.
    pub lacking: Seen<Vec<String>>,
    /// The result of loading the agent's own programs with small maps; the kernel's error.
    pub programs: Result<(), String>,
    /// True if the kernel answers requests for tcx links.
    pub tcx: Seen<bool>,
    /// The result of attaching a filter in a clsact qdisc; tried only where one is used.
    pub clsact: Option<Seen<Result<(), String>>>,
    /// The kernel's answer to the agent's nftables table, which was proposed but not created.
    pub nftables: Result<(), String>,
    /// `net.core.bpf_jit_enable`; `None`: there is no such setting.
    pub jit: Option<u32>,
    /// The limit on locked memory.
    pub memlock: Memlock,
    /// The seconds that this process's `CLOCK_BOOTTIME` is ahead of the kernel's.
    pub clock_offset: Seen<f64>,
    /// The path for pinned maps, programs and links.
    pub pins: PinPathObservation,
}

/// `RLIMIT_MEMLOCK` of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memlock {
    /// There is no limit.
    Unlimited,
    /// The limit in bytes; this process may raise it.
    Raisable(u64),
    /// The limit in bytes.
    Limited(u64),
}

/// The pin path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinPathObservation {
    /// The path.
    pub path: String,
    /// The file system there.
    pub bpffs: Bpffs,
}

/// The file system at the pin path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bpffs {
    /// A writable bpffs.
    Writable,
    /// A bpffs that is not writable: the error.
    Refused(String),
    /// No bpffs, but the agent can mount one.
    Mountable,
    /// No bpffs.
    Absent,
}

impl KernelObservation {
    /// Returns whether it has programs for frames in several buffers, and so for jumbo frames.
    pub(super) fn has_fragments(&self) -> bool {
        self.version >= FRAGMENTS
    }

    /// Returns whether the agent attaches classifiers by filters, not by tcx links.
    pub(super) fn uses_filters(&self) -> bool {
        match self.tc {
            TcAttachMode::Auto => self.version < TCX,
            TcAttachMode::Tcx => false,
            TcAttachMode::Clsact => true,
        }
    }
}

/// Returns the findings about the kernel.
pub(super) fn assess(kernel: &KernelObservation) -> Vec<Finding> {
    let mut found = vec![
        version(kernel),
        capabilities(kernel),
        clock(&kernel.clock_offset),
        programs(kernel),
        replies(kernel),
        nftables(kernel),
        memlock(kernel),
        bpffs(&kernel.pins),
    ];
    found.extend(jit(kernel.jit));
    found.extend(realtime(kernel));
    found
}

/// Programs pass facts about a packet to each other in memory of their CPU.
fn realtime(kernel: &KernelObservation) -> Option<Finding> {
    const CHECK: &str = "realtime";
    if !kernel.is_realtime {
        return None;
    }
    if kernel.version < PREEMPTED {
        return Some(Finding::pass(CHECK, "PREEMPT_RT; programs on one CPU do not interrupt each other"));
    }
    Some(Finding::warn(
        CHECK,
        "PREEMPT_RT since Linux 6.18: programs on one CPU may interrupt each other, and mix up two packets",
        "use a kernel without PREEMPT_RT, or one for real time before 6.18",
    ))
}

fn version(kernel: &KernelObservation) -> Finding {
    const CHECK: &str = "kernel";
    let btf = if kernel.btf { "with BTF" } else { "without BTF, which vipmux does not need" };
    let found = format!("Linux {}, {btf}", kernel.release);
    let oldest = if kernel.is_arm64 { OLDEST_ARM64 } else { OLDEST };
    if kernel.version < oldest {
        let oldest = format!("{found}; the oldest supported version is {}.{}", oldest.0, oldest.1);
        return Finding::warn(CHECK, oldest, "use a newer kernel");
    }
    let jumbo = if kernel.has_fragments() { "jumbo frames" } else { "no jumbo frames (Linux 5.18)" };
    Finding::pass(CHECK, format!("{found}; {jumbo}"))
}

fn capabilities(kernel: &KernelObservation) -> Finding {
    const CHECK: &str = "capabilities";
    match &kernel.lacking {
        Ok(lacking) if lacking.is_empty() => Finding::pass(CHECK, "the process has all that the agent needs"),
        Ok(lacking) => Finding::fail(
            CHECK,
            format!("missing: {}", lacking.join(", ")),
            "run it as root, or give the container these under securityContext.capabilities.add",
        ),
        Err(unseen) => Finding::unseen(CHECK, unseen),
    }
}

/// Checks that an agent beside this process has the programs' clock.
fn clock(offset: &Seen<f64>) -> Finding {
    const CHECK: &str = "clock";
    match offset {
        Ok(0.0) => Finding::pass(CHECK, "this process and the programs read the same time since boot"),
        Ok(offset) => Finding::fail(
            CHECK,
            format!(
                "this process is in a time namespace, {offset:+} s ahead of the programs: an agent does not start here"
            ),
            "start the agent outside of it (`unshare --time`, or the container runtime's time offsets)",
        ),
        Err(unseen) => Finding::unseen(CHECK, unseen),
    }
}

fn programs(kernel: &KernelObservation) -> Finding {
    const CHECK: &str = "bpf-programs";
    match &kernel.programs {
        Ok(()) => Finding::pass(CHECK, "the kernel accepts the XDP and tc programs"),
        Err(why) if kernel.lacking.as_ref().is_ok_and(|lacking| !lacking.is_empty()) => {
            Finding::fail(CHECK, format!("not loaded: {why}"), "see `capabilities` first")
        }
        Err(why) => Finding::fail(
            CHECK,
            format!("the kernel refuses the programs: {why}"),
            "the kernel needs CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT and CONFIG_NET_CLS_BPF, and no lockdown=confidentiality",
        ),
    }
}

/// Checks how the program that translates replies would be attached.
fn replies(kernel: &KernelObservation) -> Finding {
    const CHECK: &str = "tc";
    let by_link = !kernel.uses_filters();
    match (&kernel.tcx, &kernel.clsact) {
        (Ok(true), _) if by_link => Finding::pass(CHECK, "tcx links, before all other programs"),
        (Err(unseen), _) if by_link => Finding::unseen(CHECK, unseen),
        (Ok(false), _) if by_link => Finding::fail(
            CHECK,
            format!(
                "Linux {}.{} has tcx links, but this kernel was built without them",
                kernel.version.0, kernel.version.1
            ),
            "use a kernel with CONFIG_NET_XGRESS (CONFIG_NET_CLS_ACT selects it), or start the agent with VIPMUX_TC=clsact",
        ),
        (_, Some(Ok(Ok(())))) => Finding::pass(CHECK, "a filter in a clsact qdisc, before all other filters"),
        (_, Some(Ok(Err(why)))) => Finding::fail(
            CHECK,
            format!("the kernel refuses a filter in a clsact qdisc: {why}"),
            "load the modules sch_ingress and cls_bpf, or build them (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF)",
        ),
        (_, Some(Err(unseen))) => Finding::unseen(CHECK, unseen),
        (_, None) => Finding::pass(CHECK, "a filter in a clsact qdisc, before all other filters; not tried"),
    }
}

fn nftables(kernel: &KernelObservation) -> Finding {
    const CHECK: &str = "nftables";
    match &kernel.nftables {
        Ok(()) => Finding::pass(CHECK, "the kernel accepts vipmux's table (inet, nat)"),
        Err(why) => Finding::fail(
            CHECK,
            format!("the kernel refuses vipmux's table: {why}"),
            "load the modules nf_tables, nft_nat and nft_chain_nat (they keep the source of replies)",
        ),
    }
}

fn memlock(kernel: &KernelObservation) -> Finding {
    const CHECK: &str = "memlock";
    match kernel.memlock {
        _ if kernel.version >= UNLOCKED => Finding::pass(CHECK, "BPF maps count against the control group's memory"),
        Memlock::Unlimited => Finding::pass(CHECK, "unlimited"),
        Memlock::Raisable(bytes) => Finding::pass(CHECK, format!("{bytes} bytes; the agent may and will raise it")),
        Memlock::Limited(bytes) => Finding::fail(
            CHECK,
            format!("{bytes} bytes, and before Linux 5.11 BPF maps count against it"),
            "`ulimit -l unlimited`, LimitMEMLOCK=infinity in the unit, or CAP_SYS_RESOURCE",
        ),
    }
}

fn bpffs(pins: &PinPathObservation) -> Finding {
    const CHECK: &str = "bpffs";
    let path = &pins.path;
    match &pins.bpffs {
        Bpffs::Writable => Finding::pass(CHECK, format!("{path} is on a writable bpffs")),
        Bpffs::Refused(why) => Finding::fail(
            CHECK,
            format!("{path} is on a bpffs that is not writable: {why}"),
            "mount it read-write, in a container as a hostPath volume that is not readOnly",
        ),
        Bpffs::Mountable => Finding::warn(
            CHECK,
            format!("{path} is not on a bpffs; the agent mounts one, which disappears with its mount namespace"),
            "mount it on the host: `mount -t bpf bpf /sys/fs/bpf`",
        ),
        Bpffs::Absent => Finding::fail(
            CHECK,
            format!("{path} is not on a bpffs: programs and maps would not outlive the agent, so it does not start"),
            "mount one: `mount -t bpf bpf /sys/fs/bpf`, in a container as a hostPath volume; or choose another --pin-path",
        ),
    }
}

fn jit(enabled: Option<u32>) -> Option<Finding> {
    const CHECK: &str = "bpf-jit";
    match enabled? {
        0 => Some(Finding::warn(
            CHECK,
            "off: every packet is interpreted, several times slower",
            "`sysctl -w net.core.bpf_jit_enable=1`",
        )),
        _ => Some(Finding::pass(CHECK, "on")),
    }
}
