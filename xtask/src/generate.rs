//! `cargo xtask generate`: writes the generated files.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{
    program,
    setup::{self, Need},
    workspace,
};

const HEADER: &str = "# Written by `cargo xtask generate` from the chart deploy/helm/vipmux.\n";
/// The folders of `deploy` with manifests that the chart makes: a value of the chart, what `spec` begins with,
/// and the chart's templates. The directive lets a patch replace the whole `spec`.
const MANIFESTS: [(&str, &str, &str, &[&str]); 2] = [
    (
        "kustomize",
        "agent.unload=false",
        "",
        &["agent.yaml", "allocator.yaml", "rbac-agent.yaml", "rbac-allocator.yaml"],
    ),
    ("uninstall", "agent.unload=true", "  $patch: replace\n", &["agent.yaml", "allocator.yaml"]),
];

/// Writes the files that are generated from the code. The tests that compare these files write them
/// if `BLESS` is set. The manifests come last, since they have the chart's version.
pub(crate) fn run() -> Result<()> {
    setup::bpf_toolchain()?;
    let mut test =
        workspace::cargo(["test", "--quiet", "-p", "vipmux", "--test", "generated", "--test", "configuration"]);
    workspace::run(test.args(workspace::locked()).env("BLESS", "1"))?;
    setup::cluster_programs(Need::Tests)?;
    for (path, text) in manifests()? {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Fails if a manifest is not what the chart makes.
pub(crate) fn check() -> Result<()> {
    for (path, text) in manifests()? {
        let found = fs::read_to_string(&path).unwrap_or_default();
        ensure!(found == text, "{} differs from the chart: run `cargo xtask generate`", path.display());
    }
    Ok(())
}

/// Returns the manifests that the chart makes, with their paths.
fn manifests() -> Result<Vec<(PathBuf, String)>> {
    let (deploy, program) = (workspace::root().join("deploy"), setup::cluster_program("helm")?);
    let mut manifests = Vec::new();
    for (folder, value, spec, files) in MANIFESTS {
        for file in files {
            let mut helm = Command::new(&program);
            helm.args(["template", "vipmux"]).arg(deploy.join("helm/vipmux")).args(["--namespace", "vipmux-system"]);
            helm.args(["--set", value, "--show-only", &format!("templates/{file}")]);
            let text = program::output(&mut helm)?.replace("\n\n\n", "\n");
            let text = text.replace("\nspec:\n", &format!("\nspec:\n{spec}"));
            manifests.push((deploy.join(folder).join(file), format!("{HEADER}{text}\n")));
        }
    }
    Ok(manifests)
}
