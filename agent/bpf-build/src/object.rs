//! Builds one binary of the `ebpf` crate for a build script that embeds it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::toolchain;

const TARGET: &str = "bpfel-unknown-none";
const MISSING: &str = "no rustc with core's sources and bpf-linker for the same LLVM: run `cargo xtask setup` (as root), \
                       which installs them";

/// Builds `ebpf`'s binary `name` and returns the object's path. The build script runs again only if
/// `ebpf/` or `common/` changed.
pub fn build(workspace: &Path, name: &str) -> Result<PathBuf, String> {
    let ebpf = workspace.join("ebpf");
    for watched in ["ebpf/src", "ebpf/Cargo.toml", "ebpf/Cargo.lock", "ebpf/.cargo", "common/src", "common/Cargo.toml"]
    {
        println!("cargo::rerun-if-changed={}", workspace.join(watched).display());
    }
    let (toolchain, linker) = toolchain::detect().ok_or(MISSING)?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let folder = target_folder(&out);

    let mut cargo = Command::new(&toolchain.cargo);
    // Variables of the outer cargo must not reach this one.
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        let inherited = name.starts_with("CARGO")
            && name != "CARGO_HOME"
            && !name.starts_with("CARGO_HTTP")
            && !name.starts_with("CARGO_NET");
        if inherited || name.starts_with("RUST") && name != "RUSTUP_HOME" {
            cargo.env_remove(&variable);
        }
    }
    if toolchain.bootstrap {
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    let mut path = vec![linker.parent().map(Path::to_path_buf).unwrap_or_default()];
    path.extend(env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>()));
    for (folder, name) in folders(workspace, &toolchain.rustc)? {
        let flag = format!("--remap-path-prefix={}={name}", folder.display());
        cargo.arg("--config").arg(format!("target.{TARGET}.rustflags=[{flag:?}]"));
    }
    let status = cargo
        .current_dir(&ebpf)
        .env("RUSTC", &toolchain.rustc)
        .env("PATH", env::join_paths(path).map_err(|error| error.to_string())?)
        .args(["build", "--release", "--locked", "-Zbuild-std=core", "--target", TARGET, "--bin", name])
        .arg("--target-dir")
        .arg(&folder)
        .status()
        .map_err(|error| format!("cannot run {}: {error}", toolchain.cargo.display()))?;
    if !status.success() {
        return Err(format!("building the BPF object `{name}` failed ({status})"));
    }
    let (built, object) = (folder.join(TARGET).join("release").join(name), out.join(name));
    fs::copy(&built, &object).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    Ok(object)
}

/// Returns the folders whose paths get into the object's debug information, each with what stands for it
/// there. So the object is the same wherever it is built.
fn folders(workspace: &Path, rustc: &Path) -> Result<Vec<(PathBuf, &'static str)>, String> {
    let absolute = |path: &Path| path.canonicalize().map_err(|error| format!("no {}: {error}", path.display()));
    let mut folders = vec![(absolute(workspace)?, "vipmux")];
    folders.extend(toolchain::cargo_folders());
    folders.extend(toolchain::sysroot(rustc).map(|sysroot| (sysroot, "rust")));
    Ok(folders)
}

/// Returns one target folder for all packages and profiles that embed an object, beside the
/// profiles' own folders. Cargo runs a build script again for each set of features, and all need
/// the same objects.
fn target_folder(out: &Path) -> PathBuf {
    let build = out.ancestors().find(|folder| folder.ends_with("build"));
    build.and_then(Path::parent).and_then(Path::parent).unwrap_or(out).join("bpf")
}
