//! Builds the cluster programs that the tests start: kube-apiserver, etcd, kube-proxy, kubectl and
//! helm.
//!
//! No registry that a test can rely on has these programs, but their sources are Go modules. Each
//! version is built once, into the cache folder. KUBEBUILDER_ASSETS names a folder with other
//! builds.

mod build;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::go::Go;
pub(crate) use crate::cluster_programs::Need;
use vipmux_bpf_build::cache;

use crate::{
    cluster_programs::{self, MODULES, Module, Program},
    workspace,
};

/// The variable that names a folder with other builds, as in other projects' tests.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// The programs that a folder named by the variable must have.
const EXPECTED: [&str; 2] = ["kube-apiserver", "etcd"];

/// Ensures that the programs which somebody needs are there.
pub(crate) fn install(need: Need) -> Result<()> {
    let assets = assets();
    if let Some(folder) = &assets {
        check(folder)?;
    }
    let cache = cache::folder().context("no cache folder for Kubernetes: set XDG_CACHE_HOME or HOME")?;
    if missing(need, assets.as_deref(), &cache).is_empty() {
        return Ok(());
    }
    let folder = cache.join("cluster");
    let _lock = workspace::lock(&folder)?;
    // Another run may have built them in between.
    let missing = missing(need, assets.as_deref(), &cache);
    if missing.is_empty() {
        return Ok(());
    }
    build_all(need, &folder, &cache, &missing)
}

/// Returns the path of a program that is installed.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let found = cluster_programs::find(name, assets().as_deref(), cache::folder().as_deref());
    found.with_context(|| format!("there is no {name}: run `cargo xtask setup`"))
}

fn assets() -> Option<OsString> {
    env::var_os(ASSETS).filter(|folder| !folder.is_empty())
}

/// Fails if the folder that the user named lacks a program.
fn check(assets: &OsStr) -> Result<()> {
    for program in EXPECTED {
        let path = Path::new(assets).join(program);
        if !path.is_file() {
            bail!("{ASSETS} names a folder without {program}: missing {}", path.display());
        }
    }
    Ok(())
}

/// Returns the missing programs, grouped by module.
fn missing(need: Need, assets: Option<&OsStr>, cache: &Path) -> Vec<(&'static Module, Vec<&'static Program>)> {
    let is_missing = |program: &&Program| {
        program.need == need && cluster_programs::find(program.name, assets, Some(cache)).is_none()
    };
    let of_module = |module: &'static Module| (module, module.programs.iter().filter(is_missing).collect::<Vec<_>>());
    MODULES.iter().map(of_module).filter(|(_, programs)| !programs.is_empty()).collect()
}

/// Builds the programs in a folder that stays if this is interrupted, so nothing is compiled twice.
fn build_all(need: Need, folder: &Path, cache: &Path, missing: &[(&Module, Vec<&Program>)]) -> Result<()> {
    let names: Vec<_> = missing.iter().flat_map(|(_, programs)| programs).map(|program| program.name).collect();
    workspace::progress(&format!("building {} from Go modules (once, some minutes)", names.join(", ")));
    // go.mod has the dependencies of what was needed first.
    let work = folder.join(match need {
        Need::Tests => "build",
        Need::Nodes => "build-nodes",
        Need::Flannel => "build-flannel",
        Need::Conformance => "build-conformance",
        Need::Alerts => "build-alerts",
        Need::MetalLb => "build-metallb",
        Need::KubeVip => "build-kube-vip",
    });
    let go = Go::install(&work)?;
    for (module, programs) in missing {
        let tree = build::Tree::new(&go, &work, module, programs)?;
        for file in module.files {
            let name = Path::new(file).file_name().and_then(OsStr::to_str).context("a file of a module has no name")?;
            tree.keep(file, &module.place(cache, name))?;
        }
        for program in programs {
            let place = module.place(cache, program.name);
            tree.build(program, &place)?;
            workspace::progress(&format!("built {} {}: {}", program.name, module.version, place.display()));
        }
    }
    remove(&work)
}

/// Removes the sources and build products: gigabytes that only the next version could use.
fn remove(work: &Path) -> Result<()> {
    fs::remove_dir_all(work).with_context(|| format!("cannot remove {}", work.display()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn folder(label: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("vipmux-{}-cluster-{label}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn names(missing: &[(&Module, Vec<&Program>)]) -> Vec<&'static str> {
        missing.iter().flat_map(|(_, programs)| programs).map(|program| program.name).collect()
    }

    #[test]
    fn a_program_that_the_user_named_or_built_is_not_missing() {
        let (cache, assets) = (folder("cache"), folder("assets"));
        assert_eq!(
            names(&missing(Need::Tests, None, &cache)),
            ["kube-apiserver", "kube-proxy", "kubectl", "etcd", "helm"]
        );

        fs::write(assets.join("kube-apiserver"), "").unwrap();
        assert!(check(assets.as_os_str()).unwrap_err().to_string().contains("etcd"));
        fs::write(assets.join("etcd"), "").unwrap();
        check(assets.as_os_str()).unwrap();
        assert_eq!(names(&missing(Need::Tests, Some(assets.as_os_str()), &cache)), ["kube-proxy", "kubectl", "helm"]);

        let place = MODULES[0].place(&cache, "kube-proxy");
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(&place, "").unwrap();
        assert_eq!(names(&missing(Need::Tests, Some(assets.as_os_str()), &cache)), ["kubectl", "helm"]);
        assert_eq!(cluster_programs::find("kube-proxy", None, Some(&cache)), Some(place));
        assert_eq!(cluster_programs::find("etcd", Some(assets.as_os_str()), None), Some(assets.join("etcd")));
        assert_eq!(cluster_programs::find("bash", None, Some(&cache)), None);
        for folder in [cache, assets] {
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn a_version_is_written_once_for_people_and_once_for_the_linker() {
        for module in MODULES {
            let (_, minor_and_patch) = module.version.split_once('.').unwrap();
            assert!(module.siblings.ends_with(&format!(".{minor_and_patch}")), "{}", module.name);
            let mut versions =
                module.stamps.iter().filter(|(variable, _)| variable.to_lowercase().ends_with("version"));
            assert!(versions.all(|(_, value)| *value == module.version), "{}", module.name);
            let mut minors = module.stamps.iter().filter(|(variable, _)| variable.ends_with("Minor"));
            assert!(minors.all(|(_, value)| minor_and_patch.starts_with(&format!("{value}."))), "{}", module.name);
        }
    }
}
