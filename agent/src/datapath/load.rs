//! Loading the programs onto pinned maps, and attaching them.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    programs::{
        LinkOrder, ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode,
        links::{FdLink, LinkError, PinnedLink},
        tc::TcAttachOptions,
    },
};
use nix::{
    fcntl::{Flock, FlockArg},
    mount::{MsFlags, mount},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};
use vipmux_common::abi::ABI_VERSION;

use super::{
    OBJECT,
    maps::{Maps, MapsError},
    pins::{EGRESS_PROGRAM, LinkKind, Pins, XDP_PROGRAM},
    xdp::{Buffers, XdpError, load_xdp},
};

/// The programs could not be loaded, pinned or attached.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The pin path is not on a bpffs, and none could be mounted.
    #[error("{} is on no bpffs, and mounting one failed: mount it with `mount -t bpf bpf /sys/fs/bpf`", path.display())]
    Bpffs {
        /// The pin path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A folder or pin could not be made or removed.
    #[error("cannot {operation} {}", path.display())]
    Pin {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Two agents on one set of maps would give the same places to different Services.
    #[error("another agent works with the pins in {}: stop it, or choose another pin path", path.display())]
    Taken {
        /// The pin path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The object was refused.
    #[error("the kernel refused the BPF object")]
    Object(#[source] EbpfError),
    /// The object lacks a program.
    #[error("the BPF object has no program {0}")]
    NoProgram(&'static str),
    /// A program was refused.
    #[error("the kernel refused the program {program}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What aya or the kernel said.
        #[source]
        source: ProgramError,
    },
    /// An XDP program was refused.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// Another XDP program is there.
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
        /// What aya or the kernel said.
        #[source]
        source: ProgramError,
    },
    /// A link could not be pinned.
    #[error("cannot pin the link of {program} on {interface} (Linux 6.6 or later is needed)")]
    Link {
        /// The program's name.
        program: &'static str,
        /// The interface's name.
        interface: String,
        /// What aya or the kernel said.
        #[source]
        source: LinkError,
    },
    /// The maps could not be opened.
    #[error(transparent)]
    Maps(#[from] MapsError),
}

/// How XDP programs are to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Native where the driver has it, else generic.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the stack, on any interface, slower.
    Generic,
}

/// The loaded programs.
pub struct Programs {
    ebpf: Ebpf,
    pins: Pins,
    /// The XDP program for the interfaces, by its name in the object.
    xdp: &'static str,
    /// On the folder of the pins.
    _lock: Flock<File>,
}

/// Loads the programs onto the maps that are pinned already, or onto new ones; attaches nothing yet. `flows` is the
/// number of entries of each flow table, if it is made anew.
pub fn load(pins: Pins, flows: u32) -> Result<(Programs, Maps), LoadError> {
    ensure_bpffs(pins.root())?;
    let lock = lock(pins.root())?;
    match Maps::open(pins.root()) {
        Err(MapsError::Abi { found, .. }) => {
            tracing::warn!(
                found,
                expected = ABI_VERSION,
                "the pinned maps have another layout: starting with new ones"
            );
            remove_pins(&pins.maps())?;
        }
        Err(error @ MapsError::NoPermission { .. }) => return Err(error.into()),
        Ok(_) | Err(_) => {}
    }
    for folder in [pins.maps(), pins.programs(), pins.links()] {
        fs::create_dir_all(&folder).map_err(pin_error("make", &folder))?;
    }
    let mut loader = EbpfLoader::new();
    for name in Maps::NAMES.iter().chain(Maps::PROGRAM_ARRAYS) {
        loader.map_pin_path(name, pins.map(name));
    }
    loader.map_max_entries("FLOWS", flows).map_max_entries("REVERSE", flows);
    let mut ebpf = loader.load(OBJECT).map_err(LoadError::Object)?;
    let load_error = |program| move |source| LoadError::Program { program, source };
    let buffers = Buffers::here();
    load_xdp(&mut ebpf, buffers)?;
    let egress: &mut SchedClassifier = program(&mut ebpf, EGRESS_PROGRAM)?;
    egress.load().map_err(load_error(EGRESS_PROGRAM))?;
    let maps = Maps::open(pins.root())?;
    let mut programs = Programs { ebpf, pins, xdp: buffers.entry(), _lock: lock };
    programs.pin()?;
    Ok((programs, maps))
}

fn program<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut T, LoadError>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(LoadError::NoProgram(name))?;
    program.try_into().map_err(|source| LoadError::Program { program: name, source })
}

fn pin_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LoadError {
    move |source| LoadError::Pin { operation, path: path.into(), source }
}

/// Mounts a bpffs on `/sys/fs/bpf` if the pin path is there and none is mounted, as a host's init usually does.
fn ensure_bpffs(path: &Path) -> Result<(), LoadError> {
    const USUAL: &str = "/sys/fs/bpf";
    let is_bpffs = |path: &Path| statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    if path.ancestors().any(is_bpffs) {
        return Ok(());
    }
    let mounted = if path.starts_with(USUAL) {
        tracing::info!("mounting a bpffs on {USUAL}");
        mount(Some("bpf"), USUAL, Some("bpf"), MsFlags::empty(), None::<&str>).map_err(io::Error::from)
    } else {
        Err(io::ErrorKind::NotFound.into())
    };
    mounted.map_err(|source| LoadError::Bpffs { path: path.into(), source })
}

/// One agent per pin path, whatever its node's name and state directory.
fn lock(root: &Path) -> Result<Flock<File>, LoadError> {
    fs::create_dir_all(root).map_err(pin_error("make", root))?;
    let folder = File::open(root).map_err(pin_error("open", root))?;
    Flock::lock(folder, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, errno)| LoadError::Taken { path: root.into(), source: errno.into() })
}

/// Removes every pin in a folder.
fn remove_pins(folder: &Path) -> Result<(), LoadError> {
    for entry in fs::read_dir(folder).map_err(pin_error("read", folder))? {
        let path = entry.map_err(pin_error("read", folder))?.path();
        fs::remove_file(&path).map_err(pin_error("remove", &path))?;
    }
    Ok(())
}

/// Removes a pin that may not be there.
fn remove_pin(path: &Path) -> Result<(), LoadError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(pin_error("remove", path)(error)),
        _ => Ok(()),
    }
}

impl Programs {
    /// Pins the programs in place of those of an earlier agent.
    fn pin(&mut self) -> Result<(), LoadError> {
        for (pinned, name) in [(XDP_PROGRAM, self.xdp), (EGRESS_PROGRAM, EGRESS_PROGRAM)] {
            let path = self.pins.program(pinned);
            remove_pin(&path)?;
            let program = self.ebpf.program_mut(name).ok_or(LoadError::NoProgram(name))?;
            program.pin(&path).map_err(|error| pin_error("pin", &path)(io::Error::other(error)))?;
        }
        Ok(())
    }

    /// Attaches both programs to an interface: replaces the programs of a pinned link in place, so that no packet
    /// meets none, or makes and pins new links. `generic`: the mode of the pinned link, where there is one. Whether XDP
    /// runs in generic mode.
    pub fn attach(&mut self, name: &str, ifindex: u32, mode: Mode, generic: Option<bool>) -> Result<bool, LoadError> {
        let pin = self.pins.link(LinkKind::Xdp, ifindex);
        let keep = match (mode, generic) {
            (_, None) | (Mode::Native, Some(true)) | (Mode::Generic, Some(false)) => None,
            (_, generic) => generic,
        };
        let generic = if let Some(generic) = keep.filter(|_| self.adopt::<Xdp>(self.xdp, &pin)) {
            generic
        } else {
            remove_pin(&pin)?;
            self.attach_xdp(name, ifindex, mode)?
        };
        let pin = self.pins.link(LinkKind::Egress, ifindex);
        if !self.adopt::<SchedClassifier>(EGRESS_PROGRAM, &pin) {
            remove_pin(&pin)?;
            self.attach_egress(name, &pin)?;
        }
        Ok(generic)
    }

    /// Removes the links of an interface that is gone: they attach nothing any more.
    pub fn forget(&self, ifindex: u32) -> Result<(), LoadError> {
        [LinkKind::Xdp, LinkKind::Egress].into_iter().try_for_each(|kind| remove_pin(&self.pins.link(kind, ifindex)))
    }

    /// Puts the program into the pinned link; not if there is none, or its interface is gone.
    fn adopt<T: Adopt>(&mut self, name: &'static str, pin: &Path) -> bool
    where
        for<'a> &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
    {
        let Ok(link) = PinnedLink::from_pin(pin) else { return false };
        match program::<T>(&mut self.ebpf, name).map(|program| program.replace(link.into())) {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(program = name, %error, "the pinned link is of no use any more");
                false
            }
            Err(_) => false,
        }
    }

    fn attach_xdp(&mut self, interface: &str, ifindex: u32, mode: Mode) -> Result<bool, LoadError> {
        let pin = self.pins.link(LinkKind::Xdp, ifindex);
        let program: &mut Xdp = program(&mut self.ebpf, self.xdp)?;
        let attached = match mode {
            Mode::Native => program.attach_to_if_index(ifindex, XdpMode::Driver).map(|link| (link, false)),
            Mode::Generic => program.attach_to_if_index(ifindex, XdpMode::Skb).map(|link| (link, true)),
            Mode::Auto => match program.attach_to_if_index(ifindex, XdpMode::Driver) {
                Ok(link) => Ok((link, false)),
                Err(error) if is_busy(&error) => Err(error),
                Err(error) => {
                    tracing::warn!(interface, %error, "no native XDP here: using generic mode, which is slower");
                    program.attach_to_if_index(ifindex, XdpMode::Skb).map(|link| (link, true))
                }
            },
        };
        let (id, generic) = attached.map_err(|source| {
            let interface = interface.to_owned();
            if is_busy(&source) {
                LoadError::Occupied { interface }
            } else {
                LoadError::Attach { program: XDP_PROGRAM, interface, source }
            }
        })?;
        let link = program.take_link(id);
        let link = link.map_err(|source| attach_error(XDP_PROGRAM, interface, source))?;
        let link: Result<FdLink, LinkError> = link.try_into();
        pin_link(XDP_PROGRAM, interface, link, &pin)?;
        Ok(generic)
    }

    /// After every other program on the way out, the CNI's among them.
    fn attach_egress(&mut self, interface: &str, pin: &Path) -> Result<(), LoadError> {
        let program: &mut SchedClassifier = program(&mut self.ebpf, EGRESS_PROGRAM)?;
        let options = TcAttachOptions::TcxOrder(LinkOrder::last());
        let link = program
            .attach_with_options(interface, TcAttachType::Egress, options)
            .and_then(|id| program.take_link(id))
            .map_err(|source| attach_error(EGRESS_PROGRAM, interface, source))?;
        pin_link(EGRESS_PROGRAM, interface, link.try_into(), pin)
    }
}

fn attach_error(program: &'static str, interface: &str, source: ProgramError) -> LoadError {
    LoadError::Attach { program, interface: interface.to_owned(), source }
}

fn pin_link(
    program: &'static str,
    interface: &str,
    link: Result<FdLink, LinkError>,
    pin: &Path,
) -> Result<(), LoadError> {
    let link = link.map_err(|source| LoadError::Link { program, interface: interface.to_owned(), source })?;
    link.pin(pin).map(drop).map_err(|error| pin_error("pin", pin)(io::Error::other(error)))
}

/// Whether another program holds the interface's XDP hook.
fn is_busy(error: &ProgramError) -> bool {
    let errno = match error {
        ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    };
    matches!(errno, Some(libc::EBUSY | libc::EEXIST))
}

/// A program type whose pinned links can be given another program.
trait Adopt {
    /// Replaces the link's program with this one, atomically. The link's pin keeps it attached.
    fn replace(&mut self, link: FdLink) -> Result<(), ProgramError>;
}

impl Adopt for Xdp {
    fn replace(&mut self, link: FdLink) -> Result<(), ProgramError> {
        let id = self.attach_to_link(link.try_into().map_err(not_adoptable)?)?;
        self.take_link(id).map(drop)
    }
}

impl Adopt for SchedClassifier {
    fn replace(&mut self, link: FdLink) -> Result<(), ProgramError> {
        let id = self.attach_to_link(link.try_into().map_err(not_adoptable)?)?;
        self.take_link(id).map(drop)
    }
}

fn not_adoptable(error: LinkError) -> ProgramError {
    ProgramError::IOError(io::Error::other(error))
}
