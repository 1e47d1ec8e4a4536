//! Makes a guest's files: an initramfs with the programs that the suites need.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{machine::Machine, suites::Executables};
use crate::{setup, workspace};

/// Programs of this machine. The kernel calls kmod's `modprobe` to load a module.
const PROGRAMS: [(&str, &str); 4] =
    [("busybox", "bin/busybox"), ("modprobe", "sbin/modprobe"), ("nft", "bin/nft"), ("teamnl", "bin/teamnl")];

/// Makes the tree below `folder` and packs it. Returns the archive's path.
pub(super) fn pack(machine: &Machine, folder: &Path, executables: &Executables) -> Result<PathBuf> {
    workspace::progress("packing the guest's files");
    let root = folder.join("root");
    remove(&root)?;
    // Another machine's are with its kernel.
    for (name, target) in PROGRAMS.into_iter().filter(|_| machine.platform.is_host()) {
        let program = setup::find_program(name).with_context(|| format!("no program {name}"))?;
        put(&program, &root.join(target))?;
        put_libraries(&program, &root)?;
    }
    for (name, program) in &executables.programs {
        let target = root.join("vipmux").join(name);
        fs::create_dir_all(root.join("vipmux"))?;
        // Debug information is most of an executable, and a guest keeps its files in memory.
        workspace::run(
            Command::new(machine.platform.strip()).arg("--strip-debug").arg("-o").arg(&target).arg(program),
        )?;
        if machine.platform.is_host() {
            put_libraries(program, &root)?;
        }
    }
    for name in ["proc", "sys", "dev", "run", "tmp", "root"] {
        fs::create_dir_all(root.join(name))?;
    }
    let init = root.join("init");
    fs::write(&init, include_str!("init.sh"))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let archive = folder.join(format!("files-{}.cpio", machine.platform.architecture));
    self::archive(&root, &archive)?;
    remove(&root)?;
    Ok(archive)
}

/// Packs a folder's contents in the format that the kernel reads
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
pub(super) fn archive(folder: &Path, target: &Path) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "find . | cpio --create --format=newc --quiet --owner=0:0 > \"$0\""]).arg(target);
    workspace::run(command.current_dir(folder)).with_context(|| format!("cannot pack {}", folder.display()))
}

/// Removes a folder if it exists.
pub(super) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn put(source: &Path, target: &Path) -> Result<()> {
    let copy = || {
        fs::create_dir_all(target.parent().unwrap_or(target))?;
        fs::copy(source, target)
    };
    copy().map(drop).with_context(|| format!("cannot copy {} to {}", source.display(), target.display()))
}

/// Copies the shared libraries of a program to the paths where its loader looks for them.
fn put_libraries(program: &Path, root: &Path) -> Result<()> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("cannot run `ldd`")?;
    // The exit status is ignored: `ldd` fails for static programs.
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("{} lacks a library: {}", program.display(), line.trim());
    }
    for library in libraries(&text) {
        let target = root.join(library.trim_start_matches('/'));
        if !target.exists() {
            put(Path::new(library), &target)?;
        }
    }
    Ok(())
}

/// Returns the paths in the output of `ldd`.
fn libraries(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_as_ldd_writes_them() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f3)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries(text).collect::<Vec<_>>(), expected);
        assert_eq!(libraries("\tstatically linked\n").count(), 0);
    }
}
