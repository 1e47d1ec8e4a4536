//! `cargo xtask image`: makes the container image's files, and the image if a builder is installed.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{setup, workspace};

/// Folders of the image that Pods mount into. Everything else is the one program.
const FOLDERS: [&str; 8] = ["dev", "etc/vipmux", "proc", "run/vipmux", "sys", "tmp", "usr/bin", "var/lib/vipmux"];
/// Licenses of the program and of its BPF programs.
const LICENSES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "ebpf/LICENSE-GPL-2.0"];
/// The folder of the licenses in the image.
const LICENSE_FOLDER: &str = "usr/share/licenses/vipmux";
/// The image's full name, as container runtimes expand `vipmux`. An archive is imported under
/// exactly this name, and buildah would keep it short.
const NAME: &str = "docker.io/library/vipmux";
/// Programs that build an image from a Dockerfile, in order of preference, each with a command that
/// succeeds if it works. Docker does not work without its daemon.
const BUILDERS: [(&str, &str); 3] = [("buildah", "--version"), ("podman", "--version"), ("docker", "info")];

/// A profile to compile the program with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// For a cluster.
    Release,
    /// For the tests.
    Dev,
}

/// Makes the image's files. Builds the image, tagged with the version, if this machine can.
pub(crate) fn run() -> Result<()> {
    let context = context(Profile::Release)?;
    let tag = format!("{NAME}:{}", env!("CARGO_PKG_VERSION"));
    let Some(builder) = builder() else {
        workspace::progress(&format!(
            "found no buildah, podman or docker daemon; the image's files are in {}; on a machine with one, run \
             `docker build --file deploy/Dockerfile --tag {tag} {}`",
            context.join("root").display(),
            context.display()
        ));
        return Ok(());
    };
    let archive = context.join(format!("vipmux-{}.tar", env!("CARGO_PKG_VERSION")));
    workspace::progress(&format!("building the image {tag} with {builder}"));
    workspace::run(&mut build(builder, &tag, &context))?;
    remove(&archive)?;
    workspace::run(&mut save(builder, &tag, &archive))?;
    workspace::progress(&format!("image: {tag}, archive: {}", archive.display()));
    Ok(())
}

/// Makes the context of the image's build. The image's files are in its folder `root`.
pub(crate) fn context(profile: Profile) -> Result<PathBuf> {
    setup::bpf_toolchain()?;
    let triple = setup::static_target()?;
    let target = workspace::target_folder()?;
    workspace::run(&mut compile(triple, profile, &target))?;
    let program = target.join(triple).join(profile.folder()).join("vipmux");
    let context = target.join(match profile {
        Profile::Release => "image",
        Profile::Dev => "image-dev",
    });
    assemble(&program, &context.join("root"))?;
    Ok(context)
}

impl Profile {
    const fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "debug",
        }
    }
}

/// Returns the command that compiles the program. A release has no debug information: most of it is
/// about libraries.
fn compile(triple: &str, profile: Profile, target: &Path) -> Command {
    let mut cargo = workspace::cargo(["build", "-p", "vipmux", "--bin", "vipmux", "--target", triple]);
    cargo.args(workspace::locked()).arg("--target-dir").arg(target);
    if profile == Profile::Release {
        cargo.arg("--release").env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    }
    cargo
}

/// Puts the image's files into `root`, and replaces what is there.
fn assemble(program: &Path, root: &Path) -> Result<()> {
    remove(root)?;
    for folder in FOLDERS.iter().chain([&LICENSE_FOLDER]) {
        let path = root.join(folder);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    put(program, &root.join("usr/bin/vipmux"), 0o755)?;
    for license in LICENSES {
        let name = Path::new(license).file_name().unwrap_or(OsStr::new(license));
        put(&workspace::root().join(license), &root.join(LICENSE_FOLDER).join(name), 0o644)?;
    }
    Ok(())
}

fn put(source: &Path, target: &Path, mode: u32) -> Result<()> {
    let copy = || {
        fs::copy(source, target)?;
        fs::set_permissions(target, fs::Permissions::from_mode(mode))
    };
    copy().with_context(|| format!("cannot copy {} to {}", source.display(), target.display()))
}

/// Removes a file or folder if it exists.
fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns an installed program that can build an image.
fn builder() -> Option<&'static str> {
    let works = |(builder, question): &(&str, &str)| {
        setup::find_program(builder).is_some_and(|path| workspace::succeeds(Command::new(path).arg(question)))
    };
    BUILDERS.iter().find(|builder| works(builder)).map(|(builder, _)| *builder)
}

fn build(builder: &str, tag: &str, context: &Path) -> Command {
    let mut command = Command::new(builder);
    command.args(["build", "--file"]).arg(workspace::root().join("deploy/Dockerfile"));
    command.args(["--tag", tag]).arg(context);
    command
}

/// Returns the command that saves the image to a file which every container runtime can load.
fn save(builder: &str, tag: &str, archive: &Path) -> Command {
    let mut command = Command::new(builder);
    match builder {
        "buildah" => {
            let mut target = OsString::from("oci-archive:");
            target.push(archive);
            target.push(format!(":{tag}"));
            command.args(["push", "--quiet", tag]).arg(target)
        }
        "podman" => command.args(["save", "--format", "oci-archive", "--output"]).arg(archive).arg(tag),
        _ => command.args(["save", "--output"]).arg(archive).arg(tag),
    };
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_the_program_the_licenses_and_empty_folders() {
        let folder = std::env::temp_dir().join(format!("vipmux-xtask-image-{}", std::process::id()));
        let (program, root) = (folder.join("program"), folder.join("root"));
        fs::create_dir_all(root.join("of-another-time")).unwrap();
        fs::write(&program, "ELF").unwrap();
        assemble(&program, &root).unwrap();
        let mut files = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() { folders.push(entry) } else { files.push(entry) }
            }
        }
        files.sort();
        let names: Vec<_> = files.iter().map(|file| file.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
        let licenses = "usr/share/licenses/vipmux/LICENSE-";
        let expected = ["APACHE", "GPL-2.0", "MIT"].map(|name| format!("{licenses}{name}"));
        assert_eq!(names[0], "usr/bin/vipmux");
        assert_eq!(names[1..], expected);
        assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(FOLDERS.iter().all(|folder| root.join(folder).is_dir()));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_archive_is_one_that_runtimes_load() {
        let shown = |builder| workspace::command_line(&save(builder, "vipmux:1", Path::new("/a.tar")));
        assert_eq!(shown("buildah"), "buildah push --quiet vipmux:1 oci-archive:/a.tar:vipmux:1");
        assert_eq!(shown("podman"), "podman save --format oci-archive --output /a.tar vipmux:1");
        assert_eq!(shown("docker"), "docker save --output /a.tar vipmux:1");
    }
}
