//! `cargo xtask image`: makes the container image's files and its archive, without a container engine.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    oci::{Files, Image},
    program::{self, Profile},
    setup::Platform,
    workspace,
};

/// Folders of the image that Pods mount into. Everything else is the one program.
const FOLDERS: [&str; 8] = ["dev", "etc/vipmux", "proc", "run/vipmux", "sys", "tmp", "usr/bin", "var/lib/vipmux"];
/// Licenses of the program and of its BPF programs.
const LICENSES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "ebpf/LICENSE-GPL-2.0"];
/// The folder of the licenses in the image.
pub(crate) const LICENSE_FOLDER: &str = "usr/share/licenses/vipmux";
/// The image's full name, as container runtimes expand `vipmux`. An archive is imported under
/// exactly this name.
const NAME: &str = "docker.io/library/vipmux";
/// The image of this checkout is of no time. Equal programs give equal images.
const NO_TIME: &str = "1970-01-01T00:00:00Z";

/// Makes the image's files, and an archive of it for this machine's platform.
pub(crate) fn run() -> Result<()> {
    let context = context(Profile::Release)?;
    let archive = context.join(format!("vipmux-{}.tar", env!("CARGO_PKG_VERSION")));
    let files = Files { architecture: Platform::host()?.architecture, root: &context.join("root") };
    write(&[files], &[], NO_TIME, context.join("layout"), &archive)?;
    workspace::progress(&format!("image: {NAME}:{}, archive: {}", env!("CARGO_PKG_VERSION"), archive.display()));
    Ok(())
}

/// Makes the folder of the image. The image's files are in its folder `root`.
pub(crate) fn context(profile: Profile) -> Result<PathBuf> {
    let program = program::compile(Platform::host()?, profile)?;
    let context = workspace::target_folder()?.join(match profile {
        Profile::Release => "image",
        Profile::Dev => "image-dev",
    });
    assemble(&program, &context.join("root"))?;
    Ok(context)
}

/// Writes an archive of the image, of which `annotations` tell more, by way of a folder `draft`.
pub(crate) fn write(
    platforms: &[Files<'_>],
    annotations: &[(&str, &str)],
    created: &str,
    draft: PathBuf,
    archive: &Path,
) -> Result<()> {
    let image = Image {
        name: NAME,
        tag: env!("CARGO_PKG_VERSION"),
        entrypoint: &["/usr/bin/vipmux"],
        arguments: &["--help"],
        created,
        annotations,
        compress: true,
    };
    image.write(platforms, draft, archive)
}

/// Puts the image's files into `root`, and replaces what is there.
pub(crate) fn assemble(program: &Path, root: &Path) -> Result<()> {
    remove(root)?;
    for folder in FOLDERS.iter().chain([&LICENSE_FOLDER]) {
        let path = root.join(folder);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    put(program, &root.join("usr/bin/vipmux"), 0o755)?;
    put_licenses(&root.join(LICENSE_FOLDER))
}

/// Copies the licenses into a folder.
pub(crate) fn put_licenses(folder: &Path) -> Result<()> {
    LICENSES.iter().try_for_each(|license| {
        let name = Path::new(license).file_name().unwrap_or(OsStr::new(license));
        put(&workspace::root().join(license), &folder.join(name), 0o644)
    })
}

/// Copies a file, and gives the copy these rights.
pub(crate) fn put(source: &Path, target: &Path, mode: u32) -> Result<()> {
    let copy = || {
        fs::copy(source, target)?;
        fs::set_permissions(target, fs::Permissions::from_mode(mode))
    };
    copy().with_context(|| format!("cannot copy {} to {}", source.display(), target.display()))
}

/// Removes a file or folder if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
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
}
