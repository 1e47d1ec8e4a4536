//! Makes image archives that container runtimes load, from programs on this machine.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use xtask::oci::{self, Files};

use crate::process;

/// An image of one layer.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// Its full name.
    name: String,
    /// Its tag.
    tag: String,
    /// The command line of its containers.
    entrypoint: &'a [&'a str],
}

impl<'a> Image<'a> {
    /// Returns an image with this full name and tag.
    pub(super) fn named(name: &str, entrypoint: &'a [&'a str]) -> Result<Self> {
        let (name, tag) = name.rsplit_once(':').with_context(|| format!("{name} has no tag"))?;
        Ok(Self { name: name.to_owned(), tag: tag.to_owned(), entrypoint })
    }

    /// Writes an archive of the files below `root`, as root's.
    pub(super) fn write(&self, root: &Path, archive: &Path) -> Result<()> {
        let image = oci::Image {
            name: &self.name,
            tag: &self.tag,
            entrypoint: self.entrypoint,
            arguments: &[],
            created: "1970-01-01T00:00:00Z",
            annotations: &[],
            compress: false,
        };
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        image.write(&[Files { architecture, root }], archive.with_extension("layout"), archive)
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

/// Puts programs of this machine into such a folder, with the libraries that they load, by their paths here.
pub(super) fn install_with_libraries(root: &Path, programs: &[&Path]) -> Result<()> {
    for program in programs {
        let mut ldd = Command::new("ldd");
        ldd.arg(program);
        let listed = process::run(ldd)?;
        // A library's path is the first word that is absolute; the kernel's own library has none.
        let libraries = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
        for file in libraries.map(Path::new).chain([*program]) {
            let place = file.strip_prefix("/")?.to_str().context("a path is no text")?;
            install(root, &[(file, place)])?;
        }
    }
    Ok(())
}

/// Makes links to a program with many names.
pub(super) fn link(root: &Path, target: &str, names: &[&str]) -> Result<()> {
    fs::create_dir_all(root.join("bin")).with_context(|| format!("cannot make {}/bin", root.display()))?;
    for name in names {
        let link: PathBuf = root.join("bin").join(name);
        symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}
