//! Checks which crate may depend on which, and that the pure crates cannot reach a runtime, the
//! kernel or the cluster.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace;

/// Each crate with the crates of this workspace that it may depend on, from the ground up. All names but `vipmux` begin
/// with `vipmux-`.
const LAYERS: [(&str, &[&str]); 18] = [
    ("common", &[]),
    ("bpf-build", &[]),
    ("model", &["common"]),
    ("allocate", &["model"]),
    ("plan", &["common", "model"]),
    ("election", &["common", "model"]),
    ("supervisor", &[]),
    ("telemetry", &["supervisor"]),
    ("datapath", &["bpf-build", "common", "model", "plan", "supervisor"]),
    ("cluster", &["allocate", "common", "election", "model", "supervisor"]),
    ("gossip", &["cluster", "election", "model", "supervisor"]),
    ("allocator", &["allocate", "cluster", "election", "model", "supervisor", "telemetry"]),
    ("inspect", &["allocate", "cluster", "common", "datapath", "election", "model"]),
    ("preflight", &["allocate", "cluster", "common", "datapath", "gossip", "inspect", "model"]),
    ("migrate", &["allocate", "allocator", "cluster", "common", "datapath", "inspect", "model", "preflight"]),
    (
        "runtime",
        &[
            "allocate",
            "cluster",
            "common",
            "datapath",
            "election",
            "gossip",
            "inspect",
            "model",
            "plan",
            "supervisor",
            "telemetry",
        ],
    ),
    (
        "vipmux",
        &[
            "allocate",
            "allocator",
            "cluster",
            "common",
            "datapath",
            "election",
            "gossip",
            "inspect",
            "migrate",
            "model",
            "preflight",
            "runtime",
            "supervisor",
            "telemetry",
        ],
    ),
    ("testing", &["model"]),
];

/// The pure crates, which decide. They get the time and random numbers as arguments.
const PURE: [&str; 4] = ["vipmux-model", "vipmux-allocate", "vipmux-plan", "vipmux-election"];

/// Crates that do I/O. A pure crate must not depend on them, not even through others.
const IMPURE: [&str; 13] = [
    "aya",
    "clap",
    "getrandom",
    "hyper",
    "kube-client",
    "kube-runtime",
    "netlink-sys",
    "nix",
    "notify",
    "pnet",
    "rtnetlink",
    "tempfile",
    "tokio",
];

/// Checks layers and purity, and prints each violation.
pub(super) fn check() -> Result<()> {
    let mut violations = upward(&metadata()?)?;
    for pure in PURE {
        violations.extend(impure(pure, &tree(pure)?));
    }
    for violation in &violations {
        eprintln!("{violation}");
    }
    if !violations.is_empty() {
        bail!("{} dependencies break the layers (xtask/src/lint/layers.rs)", violations.len());
    }
    Ok(())
}

fn metadata() -> Result<Value> {
    let output = output(&["metadata", "--format-version", "1", "--no-deps"])?;
    serde_json::from_slice(&output).context("cannot read cargo's metadata")
}

/// Returns the folders of the workspace's crates.
pub(super) fn folders() -> Result<Vec<PathBuf>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    let manifests = packages.iter().filter_map(|package| package["manifest_path"].as_str());
    Ok(manifests.map(|manifest| PathBuf::from(manifest).with_file_name("")).collect())
}

/// Returns all crates that `name` needs at run time, one name and version per line.
fn tree(name: &str) -> Result<String> {
    let output = output(&["tree", "--package", name, "--edges", "normal", "--prefix", "none"])?;
    String::from_utf8(output).context("cargo's tree is not UTF-8")
}

fn output(arguments: &[&str]) -> Result<Vec<u8>> {
    let mut command = workspace::cargo(arguments);
    command.args(workspace::locked());
    let output = command.output().with_context(|| format!("cannot run `{}`", workspace::command_line(&command)))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {message}", workspace::command_line(&command), output.status);
    }
    Ok(output.stdout)
}

/// Returns the dependencies between the workspace's crates that [`LAYERS`] does not allow.
/// Dev-dependencies are not checked, nor what tests of other crates need of a crate.
fn upward(metadata: &Value) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    for (layer, allowed) in LAYERS {
        let name = if layer == "vipmux" { layer.to_owned() } else { format!("vipmux-{layer}") };
        let package = packages.iter().find(|package| package["name"] == name);
        let package = package.with_context(|| format!("the workspace has no crate {name}"))?;
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        for dependency in dependencies.filter(|it| it["kind"] != "dev" && it["path"].is_string()) {
            let used = dependency["name"].as_str().unwrap_or_default();
            let for_tests = used == "vipmux-testing" && dependency["optional"] == true;
            if !for_tests && !allowed.iter().any(|allowed| used.strip_prefix("vipmux-") == Some(allowed)) {
                violations.push(format!("{name} must not depend on {used}"));
            }
        }
    }
    Ok(violations)
}

/// Returns a violation for each crate in `tree` that a pure crate must not reach.
fn impure(name: &str, tree: &str) -> Vec<String> {
    let used = tree.lines().filter_map(|line| line.split_whitespace().next());
    let mut reached: Vec<_> = used.filter(|used| IMPURE.contains(used)).collect();
    reached.sort_unstable();
    reached.dedup();
    reached.into_iter().map(|used| format!("{name} is pure and must not depend on {used}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workspace(model: &Value) -> Value {
        let package = |&(name, _): &(&str, &[&str])| {
            let dependencies = if name == "model" { model.clone() } else { json!([]) };
            let name = if name == "vipmux" { name.to_owned() } else { format!("vipmux-{name}") };
            json!({ "name": name, "dependencies": dependencies })
        };
        json!({ "packages": LAYERS.iter().map(package).collect::<Vec<_>>() })
    }

    #[test]
    fn a_dependency_on_a_higher_layer_is_a_violation_unless_only_tests_have_it() {
        let path = "/somewhere";
        let fine = json!([
            {"name": "vipmux-common", "kind": null, "path": path},
            {"name": "vipmux-testing", "kind": "dev", "path": path},
            {"name": "vipmux-testing", "kind": null, "path": path, "optional": true},
            {"name": "serde", "kind": null},
        ]);
        assert_eq!(upward(&workspace(&fine)).unwrap(), [""; 0]);
        let upwards = json!([{"name": "vipmux-allocate", "kind": null, "path": path}]);
        assert_eq!(upward(&workspace(&upwards)).unwrap(), ["vipmux-model must not depend on vipmux-allocate"]);
    }

    #[test]
    fn a_workspace_without_one_of_the_crates_is_an_error() {
        assert!(upward(&json!({ "packages": [] })).is_err());
    }

    #[test]
    fn a_pure_crate_reaches_no_io() {
        let tree = "vipmux-plan v0.1.0 (/somewhere)\nserde v1.0.0\ntokio v1.0.0\ntokio v1.0.0 (*)\n";
        assert_eq!(impure("vipmux-plan", tree), ["vipmux-plan is pure and must not depend on tokio"]);
        assert_eq!(impure("vipmux-plan", "serde v1.0.0\n"), [""; 0]);
    }
}
