//! Where the programs, maps and links are pinned, so that they outlive the agent.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// Where everything is pinned unless the configuration says otherwise; on a bpffs.
pub const DEFAULT_PIN_PATH: &str = "/sys/fs/bpf/vipmux";

/// The program on each announcing interface.
pub const XDP_PROGRAM: &str = "vipmux_xdp";
/// The program on each uplink's way out.
pub const EGRESS_PROGRAM: &str = "vipmux_egress";
/// The program on the ports' way in, as long as backends here have direct server return.
pub const INGRESS_PROGRAM: &str = "vipmux_ingress";

/// Something could not be done with a pin, or with a folder of pins.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct PinError {
    operation: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl PinError {
    pub(crate) fn new(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { operation, path: path.into(), source }
    }
}

/// The pins in a folder; none where there is no folder.
pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>, PinError> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect()),
    };
    listed.map_err(PinError::new("list", folder))
}

/// Removes a pin that may not be there.
pub(super) fn remove(pin: &Path) -> Result<(), PinError> {
    absent_or(fs::remove_file(pin)).map_err(PinError::new("remove", pin))
}

/// Removes a folder of pins that may not be there, and them; how many there were.
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

/// What a pinned link attaches, as its pin's name says it.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Xdp, Self::Egress, Self::Ingress];

    /// The program's name, as it is pinned.
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
    /// The layout below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The pin path itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the maps.
    pub fn maps(&self) -> PathBuf {
        self.root.join("maps")
    }

    /// The folder in which an agent with another layout fills its maps.
    pub fn next_maps(&self) -> PathBuf {
        self.root.join("maps-next")
    }

    /// The folder of the maps that it leaves, until it has left them.
    pub fn old_maps(&self) -> PathBuf {
        self.root.join("maps-old")
    }

    /// The map `name`.
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// The folder of the programs.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// The program `name`: [`LinkKind::program`].
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
    }

    /// The folder of the links.
    pub fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// The link of a program to the interface `ifindex`.
    pub fn link(&self, kind: LinkKind, ifindex: u32) -> PathBuf {
        self.links().join(format!("{}{ifindex}", kind.prefix()))
    }

    /// What a pin in [`Pins::links`] attaches, and the ifindex it is attached to; `None` if it is not one of ours.
    pub(super) fn parse_link(pin: &Path) -> Option<(LinkKind, u32)> {
        let name = pin.file_name()?.to_str()?;
        LinkKind::ALL.into_iter().find_map(|kind| Some((kind, name.strip_prefix(kind.prefix())?.parse().ok()?)))
    }

    /// What all pins of ours in [`Pins::links`] attach.
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
