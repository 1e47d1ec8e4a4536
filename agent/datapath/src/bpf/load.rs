//! Loads the programs onto pinned maps.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfError,
    programs::{ProgramError, links::LinkError},
    util::{KernelVersion, nr_cpus},
};
use nix::{
    mount::{MsFlags, mount},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

use vipmux_common::abi::{Config, capacity};

use super::{
    apply::new_secret,
    clsact::FilterError,
    flow_table,
    maps::{Maps, MapsError, read_globals, use_pins},
    object::{loader, object},
    pins::{self, EGRESS_PROGRAM, INGRESS_PROGRAM, PinError, PinLock, Pins, XDP_PROGRAM},
    place::load_classifiers,
    refusals,
    service_index::ServiceIndex,
    transition::Transition,
    vip_index::VipIndex,
    xdp::{Buffers, XdpError, load_xdp},
};
use crate::error_chain::error_chain;
use vipmux_plan::Step;

/// The programs could not be loaded, pinned or attached.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The pin path is not on a bpffs, and none could be mounted.
    #[error("{} is on no bpffs, and none could be mounted: run `mount -t bpf bpf /sys/fs/bpf`", path.display())]
    Bpffs {
        /// The pin path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A folder or pin could not be made or removed.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Another agent uses the same maps. Two agents would give the same slots to different
    /// Services.
    #[error("another agent or `vipmux unload` works with the pins in {}: stop it, or choose another pin path", path.display())]
    Taken {
        /// The pin path.
        path: PathBuf,
    },
    /// The kernel's JIT for arm64 compiles no such programs.
    #[error("on arm64, programs with both functions and tail calls need Linux 6.0 or later")]
    Arm64,
    /// The kernel refused the object.
    #[error("the kernel refused the BPF object")]
    Object(#[source] EbpfError),
    /// The object could not be read.
    #[error("cannot read the BPF object")]
    Parse(#[source] aya_obj::ParseError),
    /// The object does not contain a program.
    #[error("the BPF object has no program {0}")]
    NoProgram(&'static str),
    /// The kernel refused a program.
    #[error("the kernel refused the program {program}")]
    Program {
        /// Its name.
        program: &'static str,
        /// The error of aya or the kernel.
        #[source]
        source: ProgramError,
    },
    /// The kernel refused an XDP program.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// The interface has another XDP program.
    #[error("{interface} already has an XDP program that is not vipmux's: remove it, or choose another interface")]
    Occupied {
        /// The interface's name.
        interface: String,
    },
    /// A program could not be attached.
    #[error("cannot attach {program} to {interface}")]
    Attach {
        /// The program's name.
        program: &'static str,
        /// The interface's name.
        interface: String,
        /// The error of aya or the kernel.
        #[source]
        source: ProgramError,
    },
    /// The driver has no native XDP for frames of this length.
    #[error(
        "the driver of {interface} runs no XDP program at an MTU of {mtu}: set it to {limit} or less, use \
         `--xdp-mode generic`, or a kernel (5.18 or later) and driver with XDP for jumbo frames",
        limit = super::attach::MTU_LIMIT
    )]
    Mtu {
        /// The interface's name.
        interface: String,
        /// Its MTU, bytes.
        mtu: u32,
        /// The error of aya or the kernel.
        #[source]
        source: ProgramError,
    },
    /// A tc filter or its qdisc could not be removed.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A link could not be pinned.
    #[error("cannot pin the link of {program} on {interface}")]
    Link {
        /// The program's name.
        program: &'static str,
        /// The interface's name.
        interface: String,
        /// The error of aya or the kernel.
        #[source]
        source: LinkError,
    },
    /// The maps could not be opened.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The kernel gave no random numbers.
    #[error("cannot make the secret of the flow table")]
    Random(#[from] getrandom::Error),
}

/// The loaded programs.
pub struct Programs {
    pub(super) ebpf: Ebpf,
    pub(super) pins: Pins,
    /// The XDP program for the interfaces, by its name in the object.
    pub(super) xdp: &'static str,
    lock: PinLock,
}

/// Loads the programs onto the pinned maps, or onto new ones, without attaching them to new
/// interfaces.
///
/// If the pinned maps have another layout or size, their entries are copied to new maps, and pinned
/// links get the new programs. `flows` is the number of flows that the flow table has room for.
pub fn load(pins: &Pins, flows: u32) -> Result<(Programs, Maps), LoadError> {
    check_kernel()?;
    ensure_bpffs(pins.root())?;
    let lock = lock(pins.root())?;
    let mut transition = Transition::begin(pins, flows)?;
    let maps = transition.folder(pins);
    for folder in [maps.clone(), pins.programs(), pins.links()] {
        fs::create_dir_all(&folder).map_err(PinError::new("make", &folder))?;
    }
    let globals = read_globals(&maps)?;
    let mut loader = loader();
    use_pins(&mut loader, &maps, &globals);
    for (name, entries) in sizes(flows) {
        loader.map_max_entries(name, entries);
    }
    let mut ebpf = loader.load(&object()).map_err(LoadError::Object)?;
    let buffers = Buffers::here();
    load_xdp(&mut ebpf, buffers)?;
    load_classifiers(&mut ebpf)?;
    // Only after the kernel has accepted the programs.
    transition.fill(pins)?;
    let mut maps = Maps::open(pins.root())?;
    let config = maps.read_config()?;
    let flow_mask = maps.flow_mask()?;
    // Before these programs see a packet.
    if config.abi == 0 {
        maps.apply(&Step::Config(Config { flow_secret: new_secret()?, flow_mask, ..config }))?;
        maps.begin_backend_indices();
    } else {
        // Maps of another layout may have no indices, or other ones.
        VipIndex::rebuild(&mut maps)?;
        maps.rebuild_backend_indices()?;
        maps.complete_service_states()?;
    }
    // Also if some of the pins were lost: a copy counts before its entry.
    ServiceIndex::rebuild(&mut maps)?;
    let mut programs = Programs { ebpf, pins: pins.clone(), xdp: buffers.entry(), lock };
    programs.pin()?;
    transition.finish(pins, || programs.take_over())?;
    if let Err(error) = refusals::count(&mut programs.ebpf, buffers.entry()) {
        tracing::warn!(error = error_chain(&error), "frames that the kernel refuses are not counted");
    }
    Ok((programs, maps))
}

/// Returns the maps whose size the node decides, with their numbers of elements. Of an LRU map, each
/// CPU keeps up to 128 elements for itself (`LOCAL_FREE_TARGET` in kernel/bpf/bpf_lru_list.c). On a
/// machine with many CPUs a small map would have no others.
pub(super) fn sizes(flows: u32) -> [(&'static str, u32); 5] {
    const FOR_A_CPU: u32 = 512;
    let cpus = nr_cpus().map_or(1, |cpus| u32::try_from(cpus).unwrap_or(1));
    let lru = |least: u32| least.max(cpus.saturating_mul(FOR_A_CPU));
    [
        ("FLOWS", flow_table::elements(flows)),
        ("FRAGMENTS", lru(capacity::FRAGMENTS)),
        ("EGRESS_FRAGMENTS", lru(capacity::FRAGMENTS)),
        ("SPEAKERS", lru(capacity::SPEAKERS)),
        ("AFFINITY", lru(capacity::AFFINITY)),
    ]
}

/// Refuses a kernel whose verifier would refuse the programs with a message that says little
/// (`bpf_jit_supports_subprog_tailcalls` in arch/arm64/net/bpf_jit_comp.c).
pub(super) fn check_kernel() -> Result<(), LoadError> {
    if cfg!(target_arch = "aarch64") && !kernel_is(6, 0) { Err(LoadError::Arm64) } else { Ok(()) }
}

/// Returns whether the kernel has this version or a later one.
pub(super) fn kernel_is(major: u8, minor: u8) -> bool {
    KernelVersion::current().is_ok_and(|current| current >= KernelVersion::new(major, minor, 0))
}

pub(super) fn program<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut T, LoadError>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(LoadError::NoProgram(name))?;
    program.try_into().map_err(|source| LoadError::Program { program: name, source })
}

/// Mounts a bpffs on `/sys/fs/bpf` if the pin path is below it and none is mounted. A host's init
/// usually does so.
fn ensure_bpffs(path: &Path) -> Result<(), LoadError> {
    const USUAL: &str = "/sys/fs/bpf";
    let is_bpffs = |path: &Path| statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    if path.ancestors().any(is_bpffs) {
        return Ok(());
    }
    let mounted = if path.starts_with(USUAL) {
        tracing::info!(path = USUAL, "mounting a bpffs");
        mount(Some("bpf"), USUAL, Some("bpf"), MsFlags::empty(), None::<&str>).map_err(io::Error::from)
    } else {
        Err(io::ErrorKind::NotFound.into())
    };
    mounted.map_err(|source| LoadError::Bpffs { path: path.into(), source })
}

/// Locks the pin path, and makes it if it is missing.
fn lock(root: &Path) -> Result<PinLock, LoadError> {
    fs::create_dir_all(root).map_err(PinError::new("make", root))?;
    PinLock::take(root)?.ok_or_else(|| LoadError::Taken { path: root.into() })
}

impl Programs {
    /// Returns whether the pins' folders are still there. If not, somebody removes vipmux from the
    /// kernel.
    pub fn has_pins(&self) -> bool {
        self.lock.is_intact(&self.pins)
    }

    /// Pins the programs, and replaces older pins.
    pub fn pin(&mut self) -> Result<(), LoadError> {
        let classifiers = [EGRESS_PROGRAM, INGRESS_PROGRAM].map(|name| (name, name));
        for (pinned, name) in [(XDP_PROGRAM, self.xdp)].into_iter().chain(classifiers) {
            let path = self.pins.program(pinned);
            pins::remove(&path)?;
            let program = self.ebpf.program_mut(name).ok_or(LoadError::NoProgram(name))?;
            program.pin(&path).map_err(io::Error::other).map_err(PinError::new("pin", &path))?;
        }
        Ok(())
    }
}
