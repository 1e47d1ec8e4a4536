//! Runs Kubernetes' own tests of Services in a real cluster that vipmux serves.
//!
//! They run on the client behind the router. On the LAN itself they would take the client's address for a
//! node's: "preserves the client's address" accepts no address of the nodes' subnet.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::RealCluster;
use crate::{api_server::SYSTEM, cluster_programs};

/// Load balancers, the affinity of Services to clients, and several protocols on one port.
pub const FOCUS: &str = "LoadBalancers|Services should .*(session affinity|same port and different protocol)";
/// The time limit of one test; the rolling updates need a quarter of an hour.
const LIMIT: &str = "25m";
/// Tests that vipmux cannot pass, by a part of their names, and the reason.
const LEFT_OUT: [(&str, &str); 1] = [(
    "should handle load balancer cleanup finalizer",
    "vipmux sets no finalizer: docs/decisions/2026-11-25-no-cleanup-finalizer.md",
)];
const POOL: &str = "
apiVersion: vipmux.io/v1alpha1
kind: VipPool
metadata: { name: conformance }
spec: { addresses: [192.0.2.200-192.0.2.239] }
";

/// A test, and how it ended.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    #[serde(default)]
    leaf_node_text: String,
    leaf_node_type: String,
    state: String,
    /// Nanoseconds.
    #[serde(default)]
    run_time: u64,
    failure: Option<Failure>,
}

/// Why a test failed, or was skipped.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

/// A suite in a report of Ginkgo.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Option<Vec<Spec>>,
}

impl Spec {
    fn name(&self) -> String {
        let containers = self.container_hierarchy_texts.iter().flatten();
        containers.chain([&self.leaf_node_text]).map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

/// Deploys vipmux, and runs the tests whose names match a regular expression (RE2), one after the other.
/// `outcome` gets a line for each. Returns whether none failed.
pub fn run(cluster: &RealCluster, focus: &str, logs: &Path, outcome: &mut dyn FnMut(&str)) -> Result<bool> {
    cluster.as_admin("kubectl apply -k deploy/kustomize")?;
    cluster.await_rollout(SYSTEM, "daemonset/vipmux-agent")?;
    cluster.await_rollout(SYSTEM, "deployment/vipmux-allocator")?;
    cluster.api.kubectl_apply(POOL, &[])?;
    fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let tests = Ginkgo { cluster, logs }.run("list", focus, true)?;
    ensure!(!tests.is_empty(), "no test matches {focus:?}");
    outcome(&format!("tests: {}; their logs are in {}", tests.len(), logs.display()));
    let mut counts = [0_u32; 3];
    for (number, test) in tests.iter().enumerate() {
        if let Some((_, why)) = LEFT_OUT.iter().find(|(part, _)| test.name().contains(part)) {
            counts[1] += 1;
            outcome(&format!("{:02} skipped         {}\n                    {why}", number + 1, test.name()));
            continue;
        }
        let found = Ginkgo { cluster, logs }.run(&format!("{:02}", number + 1), &exactly(&test.name()), false)?;
        let [spec] = &found[..] else { anyhow::bail!("{} tests are called {}", found.len(), test.name()) };
        ensure!(spec.name() == test.name(), "e2e.test ran {} as {}", spec.name(), test.name());
        let (column, why) = match (spec.state.as_str(), &spec.failure) {
            ("passed", _) => (0, ""),
            ("skipped", failure) => (1, failure.as_ref().map_or("", |failure| failure.message.as_str())),
            (_, failure) => (2, failure.as_ref().map_or("no message", |failure| failure.message.as_str())),
        };
        counts[column] += 1;
        let seconds = Duration::from_nanos(spec.run_time).as_secs();
        outcome(&format!("{:02} {:<7} {seconds:>4} s  {}", number + 1, spec.state, spec.name()));
        why.lines().take(3).for_each(|line| outcome(&format!("                    {line}")));
    }
    let [passed, skipped, failed] = counts;
    outcome(&format!("{passed} passed, {failed} failed, {skipped} skipped"));
    Ok(failed == 0)
}

/// Kubernetes' test program.
struct Ginkgo<'a> {
    cluster: &'a RealCluster,
    logs: &'a Path,
}

impl Ginkgo<'_> {
    /// Runs the tests that match, or only lists them. Returns what is known of each.
    fn run(&self, label: &str, focus: &str, list: bool) -> Result<Vec<Spec>> {
        let file = |extension: &str| self.logs.join(format!("{label}.{extension}"));
        let (report, log) = (file("json"), file("log"));
        // A report of an earlier run must not count.
        match fs::remove_file(&report) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", report.display()));
            }
            _ => {}
        }
        let mut tests = self.command(focus, &report)?;
        tests.arg(format!("--ginkgo.dry-run={list}"));
        let output = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        tests.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // A test that fails has its state in the report.
        tests.status().context("cannot run e2e.test")?;
        let text = fs::read(&report).with_context(|| format!("e2e.test wrote no report; see {}", log.display()))?;
        specs(&text).with_context(|| format!("{} is no report", report.display()))
    }

    fn command(&self, focus: &str, report: &Path) -> Result<Command> {
        let mut tests = self.cluster.router.client().command(cluster_programs::find("e2e.test")?)?;
        tests.arg("--kubeconfig").arg(self.cluster.kubeconfig()?).args(["--provider=skeleton", "--ginkgo.no-color"]);
        tests.args(["--ginkgo.v", "--ginkgo.timeout", LIMIT, "--ginkgo.focus", focus]);
        tests.arg("--num-nodes").arg(self.cluster.nodes.len().to_string());
        tests.arg("--ginkgo.json-report").arg(report);
        tests.env("PATH", cluster_programs::search_path()?).env("HOME", self.logs).current_dir(self.logs);
        Ok(tests)
    }
}

/// Returns the tests that were run, or would have been run.
fn specs(report: &[u8]) -> Result<Vec<Spec>> {
    let suites: Vec<Suite> = serde_json::from_slice(report)?;
    let all = suites.into_iter().flat_map(|suite| suite.spec_reports.unwrap_or_default());
    // Ginkgo has the others, too, as skipped without a word.
    let chosen = |spec: &Spec| spec.leaf_node_type == "It" && (spec.state != "skipped" || spec.failure.is_some());
    Ok(all.filter(chosen).collect())
}

/// Returns a regular expression (RE2) for a name.
fn exactly(name: &str) -> String {
    let mut expression = String::new();
    for character in name.chars() {
        if !character.is_alphanumeric() && character != ' ' {
            expression.push('\\');
        }
        expression.push(character);
    }
    expression + "$"
}

/// Returns the names that the tests have for an image.
pub(super) fn images(of: &str) -> Result<Vec<String>> {
    let mut list = Command::new(cluster_programs::find("e2e.test")?);
    list.arg("--list-images");
    let names = crate::process::run(list)?;
    let is_of = |name: &&str| name.contains(&format!("/{of}:"));
    Ok(names.lines().filter(is_of).map(str::to_owned).collect())
}

/// Returns the folder of the logs, which stay.
pub fn logs(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{name}-conformance"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_tests_that_were_chosen() {
        let report = br#"[{"SuiteDescription": "e2e", "SpecReports": [
            {"ContainerHierarchyTexts": null, "LeafNodeText": "", "LeafNodeType": "ReportBeforeSuite", "State": "passed"},
            {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeText": "a", "LeafNodeType": "It",
             "State": "skipped"},
            {"ContainerHierarchyTexts": ["[sig-network] LoadBalancers"], "LeafNodeText": "b [Slow]", "LeafNodeType": "It",
             "State": "failed", "RunTime": 1500000000, "Failure": {"Message": "no answer\nfor 5 s"}},
            {"ContainerHierarchyTexts": ["c"], "LeafNodeText": "d", "LeafNodeType": "It", "State": "skipped",
             "Failure": {"Message": "only on another provider"}}]}, {"SpecReports": null}]"#;
        let found = specs(report).unwrap();
        let names: Vec<_> = found.iter().map(Spec::name).collect();
        assert_eq!(names, ["[sig-network] LoadBalancers b [Slow]", "c d"]);
        assert_eq!(found[0].failure.as_ref().unwrap().message, "no answer\nfor 5 s");
    }

    #[test]
    fn a_name_is_matched_literally() {
        assert_eq!(exactly("[sig] a=b (c)"), r"\[sig\] a\=b \(c\)$");
    }
}
