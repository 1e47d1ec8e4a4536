//! Compiles the static program, so that a release's bytes do not depend on the folders of this machine.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    setup::{self, Platform},
    workspace,
};

/// A profile to compile the program with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// For a cluster.
    Release,
    /// For the tests.
    Dev,
}

impl Profile {
    const fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "debug",
        }
    }
}

/// Compiles the program for a platform. Returns its path.
pub(crate) fn compile(platform: Platform, profile: Profile) -> Result<PathBuf> {
    setup::bpf_toolchain()?;
    platform.install()?;
    let target = workspace::target_folder()?;
    let mut cargo = workspace::cargo(["build", "-p", "vipmux", "--bin", "vipmux"]);
    cargo.args(workspace::locked()).arg("--target-dir").arg(&target);
    platform.configure(&mut cargo);
    if profile == Profile::Release {
        optimize(&mut cargo, &target)?;
    }
    workspace::run(&mut cargo)?;
    Ok(target.join(platform.triple).join(profile.folder()).join("vipmux"))
}

/// A release has no debug information: most of it is about libraries. The symbols stay, for backtraces.
fn optimize(cargo: &mut Command, target: &Path) -> Result<()> {
    let rustc = Rustc::of_workspace()?;
    let mut flags = OsString::new();
    for (folder, name) in rustc.folders(target)? {
        if !flags.is_empty() {
            flags.push("\u{1f}");
        }
        flags.push("--remap-path-prefix=");
        flags.push(folder);
        flags.push("=");
        flags.push(name);
    }
    cargo.arg("--release").env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo").env("CARGO_ENCODED_RUSTFLAGS", flags);
    Ok(())
}

/// The rustc that compiles the workspace.
pub(crate) struct Rustc {
    /// What `rustc -vV` prints.
    pub(crate) version: String,
    sysroot: PathBuf,
}

impl Rustc {
    /// Asks it about itself.
    pub(crate) fn of_workspace() -> Result<Self> {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let ask = |question: &[&str]| {
            let mut command = Command::new(&rustc);
            output(command.args(question).current_dir(workspace::root()))
        };
        Ok(Self { version: ask(&["-vV"])?, sysroot: ask(&["--print", "sysroot"])?.into() })
    }

    /// Returns its version, without its commit.
    pub(crate) fn release(&self) -> Result<&str> {
        self.field("release")
    }

    fn field(&self, name: &str) -> Result<&str> {
        let mut lines = self.version.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.with_context(|| format!("`rustc -vV` does not print the {name}"))
    }

    /// Returns the folders whose paths get into the program, each with what stands for it there. Without
    /// the component `rust-src` the paths of Rust's library stand for its commit already.
    fn folders(&self, target: &Path) -> Result<[(PathBuf, String); 4]> {
        let library = format!("/rustc/{}", self.field("commit-hash")?);
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo"))).context("no CARGO_HOME or HOME")?;
        Ok([
            (workspace::root(), "vipmux".to_owned()),
            (target.to_path_buf(), "target".to_owned()),
            (home, "cargo".to_owned()),
            (self.sysroot.join("lib/rustlib/src/rust"), library),
        ])
    }
}

/// Returns what a command prints.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = workspace::command_line(command);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
