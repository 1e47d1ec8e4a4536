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
    toolchain, workspace,
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

/// A release has no debug information: most of it is about libraries. The symbols stay, for backtraces. It is
/// optimized as one unit. That takes minutes more, and saves a quarter of the program and of an agent's
/// resident memory, most of which is the program (docs/benchmarks-cluster.md).
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
    for (variable, _) in env::vars_os().filter(|(variable, _)| is_of_user(&variable.to_string_lossy())) {
        cargo.env_remove(variable);
    }
    cargo.arg("--release").env("CARGO_ENCODED_RUSTFLAGS", flags);
    cargo.envs([
        ("CARGO_PROFILE_RELEASE_STRIP", "debuginfo"),
        ("CARGO_PROFILE_RELEASE_LTO", "fat"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ]);
    Ok(())
}

/// Returns whether a variable changes how cargo and the C compilers optimize, so that the user's would change
/// the bytes: profiles, incremental compilation, and `CFLAGS` with a target before or behind it.
fn is_of_user(variable: &str) -> bool {
    let mut parts = variable.split('_');
    variable.starts_with("CARGO_PROFILE_RELEASE_")
        || ["CARGO_INCREMENTAL", "CARGO_BUILD_INCREMENTAL", "CRATE_CC_NO_DEFAULTS"].contains(&variable)
        || parts.any(|part| part == "CFLAGS")
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
    fn folders(&self, target: &Path) -> Result<Vec<(PathBuf, String)>> {
        let library = format!("/rustc/{}", self.field("commit-hash")?);
        let mut folders = vec![(workspace::root(), "vipmux".to_owned()), (target.to_path_buf(), "target".to_owned())];
        folders.extend(toolchain::cargo_folders().into_iter().map(|(folder, name)| (folder, name.to_owned())));
        folders.push((self.sysroot.join("lib/rustlib/src/rust"), library));
        Ok(folders)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::PLATFORMS;

    #[test]
    fn variables_that_change_how_code_is_optimized_are_the_users() {
        let triple = PLATFORMS[0].triple;
        let cflags = format!("CFLAGS_{}", triple.replace('-', "_"));
        let profile = "CARGO_PROFILE_RELEASE_LTO";
        for variable in [profile, "CFLAGS", "TARGET_CFLAGS", &cflags, "CARGO_INCREMENTAL"] {
            assert!(is_of_user(variable), "{variable}");
        }
        for variable in ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_PROFILE_DEV_DEBUG", "PATH", "CC"] {
            assert!(!is_of_user(variable), "{variable}");
        }
    }

    #[test]
    fn a_registry_is_named_by_no_host_and_is_replaced_after_the_folder_around_it() {
        let folders = Rustc::of_workspace().unwrap().folders(Path::new("/target")).unwrap();
        let home = folders.iter().position(|(_, name)| name == "cargo").unwrap();
        let registries: Vec<_> = (0..folders.len()).filter(|index| folders[*index].1 == "cargo/registry").collect();
        // The crates that these tests were built from.
        assert!(!registries.is_empty(), "{folders:?}");
        assert!(registries.iter().all(|index| *index > home), "{folders:?}");
    }
}
