//! The loaded programs, and the errors of all that is done with them.

use std::{
    collections::BTreeMap,
    io,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

use aya::{
    Ebpf, EbpfError,
    maps::{MapError, ProgramArray},
    programs::{
        Program, ProgramError, ProgramFd,
        links::{FdLink, LinkError},
    },
};

use super::{
    clsact::FilterError,
    maps::MapsError,
    pins::{self, EGRESS_PROGRAM, INGRESS_PROGRAM, PinError, PinLock, Pins, XDP_PROGRAM},
    uninterrupted::uninterrupted,
    unload,
};

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
    /// The object could not be read, or the kernel refused a map.
    #[error("cannot load the BPF object")]
    Object(#[from] EbpfError),
    /// The object does not contain a program.
    #[error("the BPF object has no program {0}")]
    NoProgram(&'static str),
    /// The kernel refused a program, or its place in the array from which others call it.
    #[error("cannot load the program {program}")]
    Program {
        /// Its name.
        program: &'static str,
        /// The error of aya or the kernel.
        #[source]
        source: ProgramError,
    },
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
        limit = super::xdp::MTU_LIMIT
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
    pub(super) lock: PinLock,
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

/// Loads programs, several at a time: the verifier has no lock for a process that may load any program
/// (`bpf_check` in kernel/bpf/verifier.c).
pub(super) fn load_all(ebpf: &mut Ebpf, names: impl Iterator<Item = &'static str>) -> Result<(), LoadError> {
    // The verifier takes up to 20 MiB for each.
    const MOST: usize = 4;
    let mut all: BTreeMap<_, _> = ebpf.programs_mut().collect();
    let mut take = |name| all.remove(name).map(|program| (name, program)).ok_or(LoadError::NoProgram(name));
    let programs: Vec<_> = names.map(&mut take).collect::<Result<_, _>>()?;
    let waiting = Mutex::new(programs.into_iter());
    let load = || loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((name, program)) = next else { return Ok(()) };
        load_one(program).map_err(|source| LoadError::Program { program: name, source })?;
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST);
    thread::scope(|scope| {
        // Without another thread, this one loads all.
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, load).ok();
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let own = load();
        let others = others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        others.fold(own, Result::and)
    })
}

fn load_one(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::Xdp(xdp) => uninterrupted(|| xdp.load()),
        Program::SchedClassifier(classifier) => uninterrupted(|| classifier.load()),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

pub(super) fn program<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut T, LoadError>
where
    &'a mut T: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(LoadError::NoProgram(name))?;
    program.try_into().map_err(|source| LoadError::Program { program: name, source })
}

/// Writes a loaded program to the array from which others call it.
pub(super) fn make_callable(ebpf: &mut Ebpf, array: &str, program: &'static str, index: u32) -> Result<(), LoadError> {
    let mut set = || {
        let fd = ebpf.program(program).map(Program::fd).transpose()?;
        let file = fd.map(ProgramFd::try_clone).transpose()?;
        if let (Some(file), Some(array)) = (file, ebpf.map_mut(array)) {
            return Ok(ProgramArray::try_from(array)?.set(index, &file, 0)?);
        }
        Err(MapError::InvalidName { name: array.to_owned() }.into())
    };
    set().map_err(|source| LoadError::Program { program, source })
}

/// Detaches a pinned link, if there is one, and removes its pin.
pub(super) fn detach_pin(pin: &Path) -> Result<(), LoadError> {
    match unload::detach(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => Ok(result.map_err(PinError::new("detach the link", pin)).and_then(|()| pins::remove(pin))?),
    }
}

pub(super) fn attach_error(program: &'static str, interface: &str, source: ProgramError) -> LoadError {
    LoadError::Attach { program, interface: interface.to_owned(), source }
}

pub(super) fn link_error(program: &'static str, interface: &str, source: LinkError) -> LoadError {
    LoadError::Link { program, interface: interface.to_owned(), source }
}

pub(super) fn pin_link(
    program: &'static str,
    interface: &str,
    link: Result<FdLink, LinkError>,
    pin: &Path,
) -> Result<(), LoadError> {
    let link = link.map_err(|source| link_error(program, interface, source))?;
    Ok(link.pin(pin).map(drop).map_err(io::Error::other).map_err(PinError::new("pin", pin))?)
}
