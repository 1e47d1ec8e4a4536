//! The kernel: what the loader and the agent need of it.

use super::{Finding, Seen};

/// The oldest kernel that is promised to work.
const OLDEST: (u32, u32) = (5, 15);
/// BPF programs for frames in several buffers (`xdp.frags`).
const FRAGMENTS: (u32, u32) = (5, 18);
/// tcx links; the agent goes by the version too.
const TCX: (u32, u32) = (6, 6);
/// BPF objects count for the control group's memory, and no longer for `RLIMIT_MEMLOCK`.
const UNLOCKED: (u32, u32) = (5, 11);

/// What was observed of the kernel and of this process's rights.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// How XDP programs are to run there.
    pub mode: super::interface::Mode,
    /// As it calls itself.
    pub release: String,
    /// Major and minor version.
    pub version: (u32, u32),
    /// It tells the types of its structures (`/sys/kernel/btf/vmlinux`).
    pub btf: bool,
    /// The capabilities that the agent needs and this process lacks, with what for.
    pub lacking: Seen<Vec<String>>,
    /// How loading the agent's own programs onto small maps went: what the kernel said against them.
    pub programs: Result<(), String>,
    /// Whether tcx links could be asked for.
    pub tcx: Seen<bool>,
    /// What the kernel said against a filter in a clsact qdisc; looked at only where there are no tcx links.
    pub clsact: Option<Seen<Result<(), String>>>,
    /// What the kernel said against the agent's nftables table, which was proposed and not made.
    pub nftables: Result<(), String>,
    /// `net.core.bpf_jit_enable`; `None`: there is no such setting.
    pub jit: Option<u32>,
    /// How much memory may be locked.
    pub memlock: Memlock,
    /// Where maps, programs and links are to be pinned.
    pub pins: Pins,
}

/// `RLIMIT_MEMLOCK` of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memlock {
    /// As much as there is.
    Unlimited,
    /// Bytes; this process may raise it.
    Raisable(u64),
    /// Bytes.
    Limited(u64),
}

/// The pin path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// The path.
    pub path: String,
    /// What is there.
    pub bpffs: Bpffs,
}

/// What is at the pin path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bpffs {
    /// A bpffs, where something could be made.
    Writable,
    /// A bpffs, where nothing could: why.
    Refused(String),
    /// No bpffs, but the agent may mount one there.
    Mountable,
    /// None.
    Absent,
}

impl Kernel {
    /// Whether it has programs for frames in several buffers, so for jumbo frames.
    pub(super) fn has_fragments(&self) -> bool {
        self.version >= FRAGMENTS
    }

    /// Whether the agent attaches by tcx links.
    pub(super) fn has_tcx(&self) -> bool {
        self.version >= TCX
    }
}

/// What there is to say about the kernel.
pub(super) fn assess(kernel: &Kernel) -> Vec<Finding> {
    let mut found = vec![
        version(kernel),
        capabilities(kernel),
        programs(kernel),
        replies(kernel),
        nftables(kernel),
        memlock(kernel),
        bpffs(&kernel.pins),
    ];
    found.extend(jit(kernel.jit));
    found
}

fn version(kernel: &Kernel) -> Finding {
    const CHECK: &str = "kernel";
    let btf = if kernel.btf { "with BTF" } else { "without BTF, which vipmux does not need" };
    let found = format!("Linux {}, {btf}", kernel.release);
    if kernel.version < OLDEST {
        let oldest = format!("{found}; the oldest that is promised to work is {}.{}", OLDEST.0, OLDEST.1);
        return Finding::warn(CHECK, oldest, "run a newer kernel");
    }
    let jumbo = if kernel.has_fragments() { "jumbo frames" } else { "no jumbo frames (Linux 5.18)" };
    Finding::pass(CHECK, format!("{found}; {jumbo}"))
}

fn capabilities(kernel: &Kernel) -> Finding {
    const CHECK: &str = "capabilities";
    match &kernel.lacking {
        Ok(lacking) if lacking.is_empty() => Finding::pass(CHECK, "all that the agent needs"),
        Ok(lacking) => Finding::fail(
            CHECK,
            format!("missing: {}", lacking.join(", ")),
            "run it as root, or give the container these under securityContext.capabilities.add",
        ),
        Err(unseen) => Finding::unseen(CHECK, unseen),
    }
}

fn programs(kernel: &Kernel) -> Finding {
    const CHECK: &str = "bpf-programs";
    match &kernel.programs {
        Ok(()) => Finding::pass(CHECK, "the kernel takes the XDP and tc programs"),
        Err(why) if kernel.lacking.as_ref().is_ok_and(|lacking| !lacking.is_empty()) => {
            Finding::fail(CHECK, format!("not loaded: {why}"), "see `capabilities` first")
        }
        Err(why) => Finding::fail(
            CHECK,
            format!("the kernel refuses them: {why}"),
            "the kernel needs CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT and CONFIG_NET_CLS_BPF, and no lockdown=confidentiality",
        ),
    }
}

/// How the program that translates replies would be attached.
fn replies(kernel: &Kernel) -> Finding {
    const CHECK: &str = "tc";
    match (&kernel.tcx, &kernel.clsact) {
        (Ok(true), _) if kernel.has_tcx() => Finding::pass(CHECK, "tcx links, after all other programs"),
        (Err(unseen), _) if kernel.has_tcx() => Finding::unseen(CHECK, unseen),
        (Ok(false), _) if kernel.has_tcx() => Finding::fail(
            CHECK,
            format!(
                "Linux {}.{} has tcx links, and this one was built without them",
                kernel.version.0, kernel.version.1
            ),
            "use a kernel with CONFIG_NET_XGRESS (CONFIG_NET_CLS_ACT selects it), or start the agent with VIPMUX_TC=clsact",
        ),
        (_, Some(Ok(Ok(())))) => Finding::pass(CHECK, "a filter in a clsact qdisc (tcx links come with Linux 6.6)"),
        (_, Some(Ok(Err(why)))) => Finding::fail(
            CHECK,
            format!("the kernel takes no filter in a clsact qdisc: {why}"),
            "load the modules sch_ingress and cls_bpf, or build them (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF)",
        ),
        (_, Some(Err(unseen))) => Finding::unseen(CHECK, unseen),
        (_, None) => Finding::pass(CHECK, "a filter in a clsact qdisc (tcx links come with Linux 6.6); not tried"),
    }
}

fn nftables(kernel: &Kernel) -> Finding {
    const CHECK: &str = "nftables";
    match &kernel.nftables {
        Ok(()) => Finding::pass(CHECK, "the kernel takes vipmux's table (inet, nat)"),
        Err(why) => Finding::fail(
            CHECK,
            format!("the kernel refuses vipmux's table: {why}"),
            "load the modules nf_tables, nft_nat and nft_chain_nat (replies keep their source by them)",
        ),
    }
}

fn memlock(kernel: &Kernel) -> Finding {
    const CHECK: &str = "memlock";
    match kernel.memlock {
        _ if kernel.version >= UNLOCKED => Finding::pass(CHECK, "BPF maps count for the control group's memory"),
        Memlock::Unlimited => Finding::pass(CHECK, "unlimited"),
        Memlock::Raisable(bytes) => Finding::pass(CHECK, format!("{bytes} bytes, which the agent may and will raise")),
        Memlock::Limited(bytes) => Finding::fail(
            CHECK,
            format!("{bytes} bytes, and before Linux 5.11 BPF maps count for it"),
            "`ulimit -l unlimited`, LimitMEMLOCK=infinity in the unit, or CAP_SYS_RESOURCE",
        ),
    }
}

fn bpffs(pins: &Pins) -> Finding {
    const CHECK: &str = "bpffs";
    let path = &pins.path;
    match &pins.bpffs {
        Bpffs::Writable => Finding::pass(CHECK, format!("{path} is on a bpffs, and writable")),
        Bpffs::Refused(why) => Finding::fail(
            CHECK,
            format!("{path} is on a bpffs, and nothing can be made there: {why}"),
            "mount it read-write, in a container as a hostPath volume that is not readOnly",
        ),
        Bpffs::Mountable => Finding::warn(
            CHECK,
            format!("{path} is on no bpffs; the agent mounts one, which goes with the mount namespace that it is in"),
            "mount it on the host: `mount -t bpf bpf /sys/fs/bpf`",
        ),
        Bpffs::Absent => Finding::fail(
            CHECK,
            format!("{path} is on no bpffs: programs and maps would not outlive the agent, and it does not start"),
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
