//! Finds the cluster programs that tests start: kube-apiserver, etcd, kube-proxy, kubectl and helm.
//!
//! `cargo xtask setup` builds them. KUBEBUILDER_ASSETS names a folder with other builds.

use std::{env, ffi::OsString, path::PathBuf};

use anyhow::{Context as _, Result};
use vipmux_bpf_build::cache;
use xtask::cluster_programs::{self, MODULES, Module};

/// The remedy for a missing program.
pub const REMEDY: &str = "run `cargo xtask setup`, which builds it, or name a folder with kube-apiserver and etcd by \
                          KUBEBUILDER_ASSETS";

/// Returns the value of `PATH` with kubectl and helm before the others.
pub fn search_path() -> Result<OsString> {
    let folders = ["kubectl", "helm"].into_iter().map(|program| Ok(find(program)?.with_file_name("")));
    let mut folders = folders.collect::<Result<Vec<_>>>()?;
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    Ok(env::join_paths(folders)?)
}

/// Returns a program's path.
pub fn find(program: &str) -> Result<PathBuf> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").filter(|folder| !folder.is_empty());
    let found = cluster_programs::find(program, assets.as_deref(), cache::folder().as_deref());
    found.with_context(|| format!("there is no {program}: {REMEDY}"))
}

/// Returns the version of a program's module, such as `v1.37.1`.
pub fn version(program: &str) -> Option<&'static str> {
    let has = |module: &&Module| module.programs.iter().any(|built| built.name == program);
    MODULES.iter().find(has).map(|module| module.version)
}
