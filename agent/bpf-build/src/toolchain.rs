//! Finds the tools that build the BPF object.
//!
//! A build for `bpfel-unknown-none` needs the unstable `-Z build-std=core`, the sources of `core`
//! for the same rustc, and a `bpf-linker` with the same LLVM. A rustup nightly with `rust-src` has
//! the first two. Debian's packages `rustc-web`, `cargo-web` and `rust-web-src` have them too, with
//! `RUSTC_BOOTSTRAP=1` instead of a nightly.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::cache;

/// The path of `core`'s sources below the sysroot, in rustup's `rust-src` and Debian's
/// `rust-web-src`.
const CORE_SOURCES: &str = "lib/rustlib/src/rust/library/core/src/lib.rs";

/// A rustc and a cargo that can build BPF programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The cargo binary.
    pub cargo: PathBuf,
    /// The rustc binary.
    pub rustc: PathBuf,
    /// The tools are stable ones, which need `RUSTC_BOOTSTRAP=1` for `-Z` flags.
    pub bootstrap: bool,
    /// The major version of this rustc's LLVM.
    pub llvm: u32,
}

impl Toolchain {
    /// Returns the toolchains that have `core`'s sources, the preferred one first.
    pub fn installed() -> Vec<Self> {
        [Self::nightly(), Self::debian()].into_iter().flatten().collect()
    }

    fn nightly() -> Option<Self> {
        let mut which = Command::new("rustup");
        // Only looks: rustup must not download a missing nightly.
        which.args(["which", "--toolchain", "nightly", "rustc"]).env("RUSTUP_AUTO_INSTALL", "0");
        let rustc = PathBuf::from(output(&mut which)?);
        let cargo = rustc.with_file_name("cargo");
        Self::with_sources(cargo, rustc, false)
    }

    fn debian() -> Option<Self> {
        Self::with_sources("/usr/bin/cargo".into(), "/usr/bin/rustc".into(), true)
    }

    fn with_sources(cargo: PathBuf, rustc: PathBuf, bootstrap: bool) -> Option<Self> {
        let complete = cargo.exists() && sysroot(&rustc)?.join(CORE_SOURCES).exists();
        let llvm = complete.then(|| llvm_of_rustc(&rustc))??;
        Some(Self { cargo, rustc, bootstrap, llvm })
    }
}

/// Returns the folder of a rustc's libraries and sources.
pub fn sysroot(rustc: &Path) -> Option<PathBuf> {
    output(Command::new(rustc).args(["--print", "sysroot"])).map(PathBuf::from)
}

/// Returns a toolchain and the `bpf-linker` that fits it.
pub fn detect() -> Option<(Toolchain, PathBuf)> {
    let linkers: Vec<_> = linkers().into_iter().map(|path| (llvm_of_linker(&path), path)).collect();
    fitting(&Toolchain::installed(), &linkers)
}

/// Returns the first toolchain that has the LLVM major version of one of `linkers`. A linker with
/// unknown LLVM (one linked statically) is used if no other fits.
fn fitting(toolchains: &[Toolchain], linkers: &[(Option<u32>, PathBuf)]) -> Option<(Toolchain, PathBuf)> {
    let of = |toolchain: &Toolchain, llvm: Option<u32>| {
        let (_, linker) = linkers.iter().find(|(found, _)| *found == llvm)?;
        Some((toolchain.clone(), linker.clone()))
    };
    let same = toolchains.iter().find_map(|toolchain| of(toolchain, Some(toolchain.llvm)));
    same.or_else(|| toolchains.iter().find_map(|toolchain| of(toolchain, None)))
}

/// Returns the folder into which `cargo xtask` installs tools. It never overwrites the user's own
/// tools.
pub fn tools_folder() -> Option<PathBuf> {
    Some(cache::folder()?.join("tools"))
}

/// Returns all `bpf-linker`s that run: on `PATH`, and in the folders of `cargo install` and `cargo
/// xtask setup`.
fn linkers() -> Vec<PathBuf> {
    let on_path = env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    let mut seen = BTreeSet::new();
    on_path
        .chain([cargo_home(), tools_folder()].into_iter().flatten().map(|folder| folder.join("bin")))
        .map(|folder| folder.join("bpf-linker"))
        .filter(|candidate| seen.insert(candidate.clone()) && candidate.is_file())
        .filter(|candidate| output(Command::new(candidate).arg("--version")).is_some())
        .collect()
}

/// Returns cargo's folder and those of its registries, each with what stands for it in a program. The name of
/// a registry's folder has the host that served the crates, which may be a mirror. Of the folders that contain
/// a path, rustc takes the last one.
pub fn cargo_folders() -> Vec<(PathBuf, &'static str)> {
    let Some(home) = cargo_home() else { return Vec::new() };
    let entries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries.map(|entry| (entry.path(), "cargo/registry")).collect();
    folders.push((home, "cargo"));
    folders.sort_unstable();
    folders
}

fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| env::home_dir().map(|home| home.join(".cargo")))
}

fn llvm_of_rustc(rustc: &Path) -> Option<u32> {
    let text = output(Command::new(rustc).arg("-vV"))?;
    let version = text.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.parse().ok()
}

/// Returns the LLVM major version that a binary is linked against: the number in the name of its
/// library (`libLLVM.so.22.1`, or `libLLVM-22.so.1`).
fn llvm_of_linker(binary: &Path) -> Option<u32> {
    const NAME: &[u8] = b"libLLVM";
    // The strings of the dynamic section come early in an executable.
    let mut bytes = Vec::new();
    File::open(binary).ok()?.take(1 << 20).read_to_end(&mut bytes).ok()?;
    bytes.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME).find_map(|(at, _)| {
        let rest = &bytes[at + NAME.len()..];
        let version = rest.strip_prefix(b".so.").or_else(|| rest.strip_prefix(b"-"))?;
        let digits = version.iter().take_while(|byte| byte.is_ascii_digit()).count();
        str::from_utf8(&version[..digits]).ok()?.parse().ok()
    })
}

/// Returns the standard output of a command, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolchain(name: &str, llvm: u32) -> Toolchain {
        Toolchain { cargo: name.into(), rustc: name.into(), bootstrap: false, llvm }
    }

    fn chosen(linkers: &[(Option<u32>, &str)]) -> Option<(String, String)> {
        let linkers: Vec<_> = linkers.iter().map(|(llvm, path)| (*llvm, PathBuf::from(path))).collect();
        let (toolchain, linker) = fitting(&[toolchain("nightly", 23), toolchain("debian", 22)], &linkers)?;
        Some((toolchain.rustc.display().to_string(), linker.display().to_string()))
    }

    #[test]
    fn the_linker_decides_between_toolchains() {
        let pair = |toolchain: &str, linker: &str| Some((toolchain.to_owned(), linker.to_owned()));
        assert_eq!(chosen(&[(Some(22), "a")]), pair("debian", "a"));
        assert_eq!(chosen(&[(Some(22), "a"), (Some(23), "b")]), pair("nightly", "b"));
        assert_eq!(chosen(&[(None, "a"), (Some(22), "b")]), pair("debian", "b"));
        assert_eq!(chosen(&[(None, "a")]), pair("nightly", "a"));
    }

    #[test]
    fn a_linker_for_another_llvm_does_not_count() {
        assert_eq!(chosen(&[(Some(21), "a")]), None);
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn the_llvm_of_a_linker_is_known_by_the_library_it_loads() {
        let path = env::temp_dir().join(format!("vipmux-linker-{}", std::process::id()));
        let llvm_of = |content: &str| {
            fs::write(&path, content).unwrap();
            llvm_of_linker(&path)
        };
        assert_eq!(llvm_of("\0libc.so.6\0libLLVM.so.22.1\0"), Some(22));
        assert_eq!(llvm_of("libLLVMCore\0libLLVM-19.so.1\0"), Some(19));
        assert_eq!(llvm_of("\0libc.so.6\0libLLVM"), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(llvm_of_linker(&path), None);
    }
}
