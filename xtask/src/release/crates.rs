//! Finds the crates that get into the program: on all platforms, and those of its BPF programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{program, setup::PLATFORMS, workspace};

/// A crate of a registry. The name and version order them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// An SPDX expression; empty: the crate names none.
    pub(super) license: String,
    /// The folder with its files.
    pub(super) folder: PathBuf,
}

/// The crates of a program, each with those that it depends on. The crates of this repository count as one,
/// the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Crates {
    /// What this repository's crates depend on.
    pub(super) direct: BTreeSet<Crate>,
    /// All crates.
    pub(super) all: BTreeMap<Crate, BTreeSet<Crate>>,
}

impl Crates {
    /// Asks cargo for them.
    pub(super) fn find() -> Result<Self> {
        let mut crates = Self::default();
        for platform in PLATFORMS {
            crates.add(&metadata("Cargo.toml", &["--filter-platform", platform.triple])?, "vipmux")?;
        }
        crates.add(&metadata("ebpf/Cargo.toml", &[])?, "vipmux-ebpf")?;
        Ok(crates)
    }

    /// Adds the crates that a workspace's package needs when it runs, from cargo's metadata.
    fn add(&mut self, metadata: &Value, root: &str) -> Result<()> {
        let graph = Graph::of(metadata)?;
        let mut queue = vec![graph.member(root)?];
        let mut seen = BTreeSet::from_iter(queue.clone());
        while let Some(id) = queue.pop() {
            let dependencies = graph.dependencies(id)?;
            queue.extend(dependencies.iter().filter(|id| seen.insert(*id)));
            let published = dependencies.iter().filter_map(|id| graph.published(id));
            match graph.published(id) {
                Some(one) => self.all.entry(one).or_default().extend(published),
                None => self.direct.extend(published),
            }
        }
        Ok(())
    }
}

/// What `cargo metadata` knows.
struct Graph<'a> {
    packages: BTreeMap<&'a str, &'a Value>,
    nodes: BTreeMap<&'a str, &'a Value>,
}

impl<'a> Graph<'a> {
    fn of(metadata: &'a Value) -> Result<Self> {
        Ok(Self { packages: by_id(&metadata["packages"])?, nodes: by_id(&metadata["resolve"]["nodes"])? })
    }

    /// Returns the id of a package of this repository.
    fn member(&self, name: &str) -> Result<&'a str> {
        let mut members = self.packages.iter().filter(|(_, package)| package["source"].is_null());
        let found = members.find(|(_, package)| package["name"] == name);
        found.map(|(id, _)| *id).with_context(|| format!("the workspace has no crate {name}"))
    }

    /// Returns what a package needs when it runs: no tests, no build scripts, no macros.
    fn dependencies(&self, id: &str) -> Result<Vec<&'a str>> {
        let node = self.nodes.get(id).with_context(|| format!("cargo resolved no {id}"))?;
        let is_normal = |dependency: &&Value| {
            dependency["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let dependencies = node["deps"].as_array().into_iter().flatten().filter(is_normal);
        Ok(dependencies.filter_map(|it| it["pkg"].as_str()).filter(|id| !self.is_macro(id)).collect())
    }

    fn is_macro(&self, id: &str) -> bool {
        let targets = self.packages.get(id).and_then(|package| package["targets"].as_array());
        targets.into_iter().flatten().any(|target| target["kind"][0] == "proc-macro")
    }

    /// Returns a package as a crate; `None`: it is of this repository.
    fn published(&self, id: &str) -> Option<Crate> {
        let package = self.packages.get(id)?;
        package["source"].as_str()?;
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        Some(Crate {
            name: text("name").to_owned(),
            version: text("version").to_owned(),
            // Old crates separate licenses by slashes.
            license: text("license").replace('/', " OR ").replace("  ", " "),
            folder: Path::new(text("manifest_path")).parent()?.to_owned(),
        })
    }
}

fn by_id(list: &Value) -> Result<BTreeMap<&str, &Value>> {
    let entries = list.as_array().context("cargo's metadata has no packages")?.iter();
    Ok(entries.filter_map(|entry| Some((entry["id"].as_str()?, entry))).collect())
}

fn metadata(manifest: &str, options: &[&str]) -> Result<Value> {
    let mut cargo = workspace::cargo(["metadata", "--locked", "--format-version", "1", "--manifest-path", manifest]);
    serde_json::from_str(&program::output(cargo.args(options))?).context("cannot read cargo's metadata")
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn published(name: &str, license: &str, folder: &Path) -> Crate {
        Crate { name: name.to_owned(), version: "1.0.0".to_owned(), license: license.to_owned(), folder: folder.into() }
    }

    #[test]
    fn crates_that_only_tests_build_scripts_or_macros_need_are_not_in_the_program() {
        let package = |name: &str, source: Value, kind: &str| {
            json!({
                "id": name, "name": name, "version": "1.0.0", "source": source, "license": "MIT/Apache-2.0",
                "manifest_path": format!("/{name}/Cargo.toml"), "targets": [{ "kind": [kind] }],
            })
        };
        let needs = |name: &str, needed: &[(&str, Value)]| {
            let needed = needed.iter().map(|(name, kind)| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] }));
            json!({ "id": name, "deps": needed.collect::<Vec<_>>() })
        };
        let metadata = json!({
            "packages": [
                package("root", Value::Null, "bin"), package("part", Value::Null, "lib"),
                package("a", json!("registry"), "lib"), package("b", json!("registry"), "lib"),
                package("test", json!("registry"), "lib"), package("build", json!("registry"), "lib"),
                package("macro", json!("registry"), "proc-macro"), package("quote", json!("registry"), "lib"),
            ],
            "resolve": { "nodes": [
                needs("root", &[("part", Value::Null), ("test", json!("dev")), ("build", json!("build"))]),
                needs("part", &[("a", Value::Null)]),
                needs("a", &[("b", Value::Null), ("macro", Value::Null)]),
                needs("b", &[]), needs("test", &[]), needs("build", &[]), needs("quote", &[]),
                needs("macro", &[("quote", Value::Null)]),
            ] },
        });
        let mut crates = Crates::default();
        crates.add(&metadata, "root").unwrap();
        let [a, b] = ["a", "b"].map(|name| published(name, "MIT OR Apache-2.0", Path::new(&format!("/{name}"))));
        assert_eq!(crates.direct, [a.clone()].into());
        assert_eq!(crates.all, [(a, [b.clone()].into()), (b, BTreeSet::new())].into());
        assert!(crates.add(&metadata, "a").unwrap_err().to_string().contains("no crate a"));
    }
}
