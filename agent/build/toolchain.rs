//! Which tools build the BPF object; shared by the build scripts and by `cargo xtask setup`.
//!
//! Building for `bpfel-unknown-none` needs an unstable `-Z build-std=core`, `core`'s sources for that very rustc, and a
//! `bpf-linker` built against the same LLVM. A rustup nightly with `rust-src` has them; otherwise Debian's `rustc-web`,
//! `cargo-web` and `rust-web-src` packages, with `RUSTC_BOOTSTRAP=1` in place of the nightly.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Where Debian's `rust-web-src` puts `core`'s sources.
const DEBIAN_SOURCES: &str = "lib/rustlib/src/rust/library/core/src/lib.rs";

/// A rustc and a cargo that can build BPF programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    /// The cargo binary.
    pub(crate) cargo: PathBuf,
    /// The rustc binary.
    pub(crate) rustc: PathBuf,
    /// Stable tools that need `RUSTC_BOOTSTRAP=1` for `-Z` flags.
    pub(crate) bootstrap: bool,
}

impl Toolchain {
    /// The toolchain to use: a rustup nightly with `rust-src` if there is one, else Debian's packages.
    pub(crate) fn detect() -> Option<Self> {
        Self::nightly().or_else(Self::debian)
    }

    fn nightly() -> Option<Self> {
        let output = Command::new("rustup").args(["which", "--toolchain", "nightly", "rustc"]).output().ok()?;
        let rustc = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        let prefix = rustc.parent()?.parent()?;
        (output.status.success() && prefix.join(DEBIAN_SOURCES).exists()).then(|| Self {
            cargo: rustc.with_file_name("cargo"),
            rustc: rustc.clone(),
            bootstrap: false,
        })
    }

    fn debian() -> Option<Self> {
        let rustc = Path::new("/usr/bin/rustc");
        let output = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
        let sysroot = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        let cargo = Path::new("/usr/bin/cargo");
        (cargo.exists() && sysroot.join(DEBIAN_SOURCES).exists()).then(|| Self {
            cargo: cargo.into(),
            rustc: rustc.into(),
            bootstrap: true,
        })
    }

    /// The LLVM major version of this rustc; `bpf-linker` must be built against the same.
    #[allow(dead_code, reason = "only `cargo xtask setup` chooses packages by it")]
    pub(crate) fn llvm_major(&self) -> Option<u32> {
        let output = Command::new(&self.rustc).arg("-vV").output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let version = text.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
        version.split('.').next()?.parse().ok()
    }
}

/// `bpf-linker`'s path: on `PATH`, or where `cargo install` puts it.
pub(crate) fn bpf_linker() -> Option<PathBuf> {
    let on_path = env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    on_path
        .chain(cargo_home.map(|home| home.join("bin")))
        .map(|folder| folder.join("bpf-linker"))
        .find(|candidate| candidate.exists())
}
