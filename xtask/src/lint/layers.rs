//! Checks which crate may depend on which, and that the pure crates cannot reach a runtime, the
//! kernel or the cluster.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace;

/// Each crate of the agent, with the crates of this workspace that it may depend on.
const LAYERS: [(&str, &[&str]); 10] = [
    ("vipmux-common", &[]),
    ("vipmux-model", &["vipmux-common"]),
    ("vipmux-allocate", &["vipmux-model"]),
    ("vipmux-plan", &["vipmux-common", "vipmux-model"]),
    ("vipmux-election", &["vipmux-common", "vipmux-model"]),
    ("vipmux-supervisor", &[]),
    ("vipmux-datapath", &["vipmux-common", "vipmux-model", "vipmux-plan", "vipmux-supervisor"]),
    ("vipmux-cluster", &["vipmux-allocate", "vipmux-common", "vipmux-election", "vipmux-model", "vipmux-supervisor"]),
    (
        "vipmux",
        &[
            "vipmux-allocate",
            "vipmux-cluster",
            "vipmux-common",
            "vipmux-datapath",
            "vipmux-election",
            "vipmux-model",
            "vipmux-plan",
            "vipmux-supervisor",
        ],
    ),
    ("vipmux-testing", &["vipmux-model"]),
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
/// Dev-dependencies are not checked.
fn upward(metadata: &Value) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    for (name, allowed) in LAYERS {
        let package = packages.iter().find(|package| package["name"] == name);
        let package = package.with_context(|| format!("the workspace has no crate {name}"))?;
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        for dependency in dependencies.filter(|it| it["kind"] != "dev" && it["path"].is_string()) {
            let used = dependency["name"].as_str().unwrap_or_default();
            if !allowed.contains(&used) {
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
            let dependencies = if name == "vipmux-model" { model.clone() } else { json!([]) };
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
