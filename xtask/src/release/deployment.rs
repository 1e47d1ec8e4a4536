//! Makes what users apply to a cluster: manifests in one file each, and the packaged chart.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::source::Source;
use crate::{image, program, setup, workspace};

/// The files, each with its folder in `deploy`, and what it is for.
const MANIFESTS: [(&str, &str, &str); 3] = [
    ("install.yaml", "kustomize", "All of vipmux: kubectl apply -f install.yaml"),
    (
        "uninstall.yaml",
        "uninstall",
        "Removes vipmux from the nodes. When its Pods are ready: kubectl delete -f uninstall.yaml (docs/install.md)",
    ),
    ("crds.yaml", "crds", "The kinds VipPool and VipPolicy alone. install.yaml has them too"),
];

/// The alerts for Prometheus without its operator, in `deploy`.
const ALERTS: &str = "helm/vipmux/files/alerts.yaml";

/// Writes the manifests, the alerts and the chart into the release's folder.
pub(super) fn write(source: &Source, folder: &Path) -> Result<()> {
    let deploy = workspace::root().join("deploy");
    for (name, kustomization, purpose) in MANIFESTS {
        let mut kubectl = Command::new(setup::cluster_program("kubectl")?);
        let manifests = program::output(kubectl.arg("kustomize").arg(deploy.join(kustomization)))?;
        let text = format!("# vipmux {}. {purpose}\n{manifests}\n", source.version);
        fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    image::put(&deploy.join(ALERTS), &folder.join("alerts.yaml"), 0o644)?;
    let mut helm = Command::new(setup::cluster_program("helm")?);
    // The chart's files get this time.
    helm.env("SOURCE_DATE_EPOCH", &source.epoch);
    workspace::prepare(helm.arg("package").arg(deploy.join("helm/vipmux")).arg("--destination").arg(folder))
}
