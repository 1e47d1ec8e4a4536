//! The paths of pinned programs, maps and links, which outlive the agent.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

/// Where a bpffs usually is.
const BPFFS: &str = "/sys/fs/bpf";

/// The default pin path, on a bpffs.
pub const DEFAULT_PIN_PATH: &str = "/sys/fs/bpf/vipmux";

/// The program on each announcing interface.
pub const XDP_PROGRAM: &str = "vipmux_xdp";
/// The classifier on each uplink's egress.
pub const EGRESS_PROGRAM: &str = "vipmux_egress";
/// The classifier on the ports' ingress, while backends on this node have direct server return.
pub const INGRESS_PROGRAM: &str = "vipmux_ingress";

/// An operation on a pin or a folder of pins failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct PinError {
    operation: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl PinError {
    /// Returns a function that makes the error of `operation` on `path` from its cause.
    pub fn new(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { operation, path: path.into(), source }
    }
}

/// The lock on a pin path. An agent has it while it runs, whatever its node name and state directory
/// are, and `vipmux unload` while it removes the pins.
#[derive(Debug)]
pub struct PinLock(Flock<File>);

impl PinLock {
    /// Locks an existing pin path. `None`: another process has the lock.
    pub(super) fn take(root: &Path) -> Result<Option<Self>, PinError> {
        let folder = File::open(root).map_err(PinError::new("open", root))?;
        match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
            // The process that had the lock may have removed the folder.
            Ok(folder) => Ok(Some(Self(folder)).filter(|lock| lock.is_at(root))),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(PinError::new("lock", root)(errno.into())),
        }
    }

    /// Returns whether the locked folder is still at this path.
    fn is_at(&self, root: &Path) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let (locked, found) = (self.0.metadata().map(identity), fs::metadata(root).map(identity));
        locked.is_ok_and(|locked| found.is_ok_and(|found| found == locked))
    }

    /// Returns whether the folders of the pins are still there, below the locked one.
    pub(super) fn is_intact(&self, pins: &Pins) -> bool {
        self.is_at(pins.root()) && [pins.maps(), pins.programs(), pins.links()].iter().all(|folder| folder.is_dir())
    }
}

/// Returns the pins in a folder, or none if there is no such folder.
pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>, PinError> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect()),
    };
    listed.map_err(PinError::new("list", folder))
}

/// Removes a pin, if it exists.
pub(super) fn remove(pin: &Path) -> Result<(), PinError> {
    absent_or(fs::remove_file(pin)).map_err(PinError::new("remove", pin))
}

/// Removes a folder with its pins, if it exists. Returns the number of pins.
pub(super) fn remove_folder(folder: &Path) -> Result<usize, PinError> {
    let pins = list(folder)?;
    pins.iter().try_for_each(|pin| remove(pin))?;
    absent_or(fs::remove_dir(folder)).map_err(PinError::new("remove", folder))?;
    Ok(pins.len())
}

fn absent_or(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The program that a pinned link attaches. The pin's name starts with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// [`XDP_PROGRAM`].
    Xdp,
    /// [`EGRESS_PROGRAM`].
    Egress,
    /// [`INGRESS_PROGRAM`].
    Ingress,
}

impl LinkKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Xdp, Self::Egress, Self::Ingress];

    /// Returns the name under which the program is pinned.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Xdp => XDP_PROGRAM,
            Self::Egress => EGRESS_PROGRAM,
            Self::Ingress => INGRESS_PROGRAM,
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Xdp => "xdp-",
            Self::Egress => "egress-",
            Self::Ingress => "ingress-",
        }
    }
}

/// The layout below one pin path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    root: PathBuf,
}

impl Pins {
    /// Creates the layout below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the layouts with pinned links, at most two folders below the usual bpffs.
    pub fn loaded() -> Vec<Self> {
        let below = |folder: &PathBuf| list(folder).unwrap_or_default();
        let first = below(&PathBuf::from(BPFFS));
        let second: Vec<_> = first.iter().flat_map(below).collect();
        let all = first.into_iter().chain(second).map(Self::new);
        all.filter(|pins| pins.pinned_links().is_ok_and(|links| !links.is_empty())).collect()
    }

    /// Returns the pin path itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of the maps.
    pub fn maps(&self) -> PathBuf {
        self.root.join("maps")
    }

    /// Returns the folder in which an agent with another layout fills its maps.
    pub fn next_maps(&self) -> PathBuf {
        self.root.join("maps-next")
    }

    /// Returns the folder of the old maps during a transition.
    pub fn old_maps(&self) -> PathBuf {
        self.root.join("maps-old")
    }

    /// Returns the pin of the map `name`.
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Returns the folder of the programs.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// Returns the pin of the program `name` ([`LinkKind::program`]).
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
    }

    /// Returns the folder of the links.
    pub fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// Returns the pin of a program's link to the interface `ifindex`.
    pub fn link(&self, kind: LinkKind, ifindex: u32) -> PathBuf {
        self.links().join(format!("{}{ifindex}", kind.prefix()))
    }

    /// Returns the program and the ifindex of a pin in [`Pins::links`]. `None`: the pin is not
    /// vipmux's.
    pub(super) fn parse_link(pin: &Path) -> Option<(LinkKind, u32)> {
        let name = pin.file_name()?.to_str()?;
        LinkKind::ALL.into_iter().find_map(|kind| Some((kind, name.strip_prefix(kind.prefix())?.parse().ok()?)))
    }

    /// Returns the programs and ifindexes of all pins of vipmux in [`Pins::links`].
    pub(super) fn pinned_links(&self) -> Result<BTreeSet<(LinkKind, u32)>, PinError> {
        Ok(list(&self.links())?.iter().filter_map(|pin| Self::parse_link(pin)).collect())
    }
}

impl Default for Pins {
    fn default() -> Self {
        Self::new(DEFAULT_PIN_PATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_links_pin_tells_what_it_attaches_where() {
        let pins = Pins::new("/p");
        let paths = ["/p/links/xdp-7", "/p/links/egress-7", "/p/links/ingress-7"];
        for (kind, path) in LinkKind::ALL.into_iter().zip(paths) {
            assert_eq!(pins.link(kind, 7), Path::new(path));
            assert_eq!(Pins::parse_link(Path::new(path)), Some((kind, 7)));
        }
        for other in ["xdp-", "xdp-eth0", "tc-7", "", "xdp-4294967296"] {
            assert_eq!(Pins::parse_link(Path::new(other)), None, "{other}");
        }
    }
}
