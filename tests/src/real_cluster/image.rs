//! Makes image archives that container runtimes load, from programs on this machine.

#[path = "../../../xtask/src/archive.rs"]
mod archive;
#[path = "../../../xtask/src/oci.rs"]
mod oci;

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use self::oci::Files;

/// An image of one layer.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// Its full name.
    pub(super) name: &'a str,
    /// Its tag.
    pub(super) tag: &'a str,
    /// The command line of its containers.
    pub(super) entrypoint: &'a [&'a str],
}

impl Image<'_> {
    /// Writes an archive of the files below `root`, as root's.
    pub(super) fn write(&self, root: &Path, archive: &Path) -> Result<()> {
        let image = oci::Image {
            name: self.name,
            tag: self.tag,
            entrypoint: self.entrypoint,
            arguments: &[],
            created: "1970-01-01T00:00:00Z",
            annotations: &[],
            compress: false,
        };
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        image.write(&[Files { architecture, root }], archive)
    }
}

/// Puts programs into the folder of an image's files, by their paths in the image.
pub(super) fn install(root: &Path, programs: &[(&Path, &str)]) -> Result<()> {
    for (program, place) in programs {
        let target = root.join(place);
        let copy = || {
            target.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::copy(program, &target)?;
            fs::set_permissions(&target, Permissions::from_mode(0o755))
        };
        copy().with_context(|| format!("cannot copy {} to {}", program.display(), target.display()))?;
    }
    // Pods mount into it.
    fs::create_dir_all(root.join("tmp")).with_context(|| format!("cannot make {}/tmp", root.display()))
}

/// Makes links to a program with many names.
pub(super) fn link(root: &Path, target: &str, names: &[&str]) -> Result<()> {
    for name in names {
        let link: PathBuf = root.join("bin").join(name);
        symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}
