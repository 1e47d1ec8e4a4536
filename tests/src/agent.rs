//! Runs `vipmux`: agents on nodes, and its other commands.

use std::{
    ffi::{OsStr, OsString},
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    cleanup::Folder,
    container,
    lan::Node,
    netns::Namespace,
    pod,
    process::{self, Process},
    wait::PATIENCE,
};

/// The ServiceAccount of the agents.
pub const ACCOUNT: &str = "vipmux-agent";
/// Entries of each agent's flow tables. Tables sized by RAM would be too large for several LANs.
const FLOWS: u32 = 16_384;

/// The source of an agent's objects.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A folder of manifests.
    Manifests(PathBuf),
    /// An API server.
    Cluster(Access),
}

/// An agent's access to its API server and its peers.
#[derive(Clone, Debug)]
pub struct Access {
    /// A kubeconfig with exactly the agent's rights.
    pub kubeconfig: PathBuf,
    /// The namespace of its Leases.
    pub namespace: String,
    /// The file with the gossip key.
    pub gossip_key: PathBuf,
    /// `on`: vipmux's allocator assigns addresses. `off`: the test does.
    pub allocator: &'static str,
}

/// An agent's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source of its objects.
    pub origin: Origin,
    /// The folder of assignments, Leases and sockets, which all agents share.
    pub state: PathBuf,
    /// The announcing interface.
    pub interface: String,
    /// `auto`, `native` or `generic`.
    pub xdp_mode: &'static str,
    /// Entries of each flow table.
    pub flows: u32,
    /// The interval of the self-check.
    pub self_check: &'static str,
    /// `reject`, `drop` or `pass`.
    pub unclaimed: &'static str,
    /// `refuse` or `kernel`.
    pub unreachable_endpoints: &'static str,
    /// `derived` or `own`.
    pub handover_mac: &'static str,
    /// `auto`, `tcx` or `clsact`.
    pub tc: &'static str,
    /// The time that a leader answers after its last evidence.
    pub lease: &'static str,
    /// The time that a node waits after its start before VIPs are moved to it.
    pub hold_down: &'static str,
    /// The container image's files to start it from. `None`: start it as an ordinary process.
    pub image: Option<PathBuf>,
    /// The address of metrics and health endpoints; `off` for a second agent in a network
    /// namespace.
    pub http_listen: &'static str,
    /// The version that it names instead of its own. Its gossip then has what this version does not
    /// know.
    pub later_version: Option<&'static str>,
    /// Only the first hashing, as older agents have it.
    pub first_hashing: bool,
    /// An older program to start instead. It gets the options that it knows.
    pub older: Option<PathBuf>,
}

impl Options {
    /// Options for a folder of manifests, with native XDP on eth0. The harness's switch is made for
    /// native XDP, so a fallback would hide a failure.
    pub fn new(manifests: &Path, state: &Path) -> Self {
        Self::with(Origin::Manifests(manifests.to_owned()), state)
    }

    /// Options for any source of objects.
    pub fn with(origin: Origin, state: &Path) -> Self {
        Self {
            origin,
            state: state.to_owned(),
            interface: "eth0".to_owned(),
            xdp_mode: "native",
            flows: FLOWS,
            self_check: "30s",
            unclaimed: "reject",
            unreachable_endpoints: "refuse",
            handover_mac: "derived",
            tc: "auto",
            // Most tests are not about failovers and run beside many others. There the leader must
            // not change, however slow the machine is.
            lease: "3s",
            hold_down: "60m",
            image: None,
            http_listen: "[::]:7945",
            later_version: None,
            first_hashing: false,
            older: None,
        }
    }

    /// Returns the `vipmux` command, in a container or as an ordinary process.
    pub fn program(&self, namespace: &Namespace) -> Result<Command> {
        match &self.image {
            Some(image) => container::command(image, namespace),
            None => namespace.command(self.binary()?),
        }
    }

    fn binary(&self) -> Result<PathBuf> {
        self.older.clone().map_or_else(binary, Ok)
    }

    /// Returns the socket of the agent on a node.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.state.join(format!("{node}.sock"))
    }
}

/// An agent on a node, with its pins. On drop it is killed and its pins are removed.
#[derive(Debug)]
pub struct Agent {
    node: String,
    process: Process,
    pins: Folder,
    options: Options,
}

impl Agent {
    /// Starts an agent on a node. [`Agent::wait_ready`] waits until it works.
    pub fn start(node: &Node, options: &Options) -> Result<Self> {
        let pins = Folder::of_pins(&node.name);
        let process = spawn(node, options, pins.path())?;
        Ok(Self { node: node.name.clone(), process, pins, options: options.clone() })
    }

    /// Starts the agent again after its end, with the same pins.
    pub fn restart(&mut self, node: &Node) -> Result<()> {
        self.process.kill()?;
        self.process = spawn(node, &self.options, self.pins.path())?;
        Ok(())
    }

    /// Like [`Self::restart`], with other options.
    pub fn restart_with(&mut self, node: &Node, options: Options) -> Result<()> {
        self.options = options;
        self.restart(node)
    }

    /// Stops the agent with SIGTERM, and waits for its end.
    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait(PATIENCE).map(drop)
    }

    /// Returns the options of the next restart.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Waits until the agent logs that it is ready: attached and in sync.
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        self.process.wait_for_line("ready", timeout, is_ready).map(drop)
    }

    /// Returns the agent's process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the agent's process.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns the name of its node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the folder of its pinned maps, programs and links.
    pub fn pins(&self) -> &Path {
        self.pins.path()
    }

    /// Runs `vipmux inspect WHAT` and returns its text.
    pub fn inspect(&self, node: &Node, what: &[&str]) -> Result<String> {
        process::run(self.command(node, "inspect", what)?)
    }

    /// Runs `vipmux inspect WHAT -j` and returns its JSON.
    pub fn inspect_json(&self, node: &Node, what: &[&str]) -> Result<Value> {
        let mut command = self.command(node, "inspect", what)?;
        command.arg("-j");
        serde_json::from_str(&process::run(command)?).context("vipmux inspect wrote no JSON")
    }

    /// Runs `vipmux explain TARGET -j`. Returns its exit status, and its JSON or its error text.
    pub fn explain(&self, node: &Node, target: &str, arguments: &[&str]) -> Result<(i32, Value)> {
        let mut command = self.command(node, "explain", &[target, "-j", "--socket"])?;
        command.arg(self.options.socket(&self.node)).args(arguments);
        answered(command).context("vipmux explain")
    }

    /// Runs `vipmux inspect diff -j`. Returns its exit status, and its JSON or its error text.
    pub fn diff(&self, node: &Node) -> Result<(i32, Value)> {
        let mut command = self.command(node, "inspect", &["diff", "-j", "--socket"])?;
        command.arg(self.options.socket(&self.node));
        answered(command).context("vipmux inspect diff")
    }

    /// Runs `vipmux drain`. Returns its exit status, stdout and stderr.
    pub fn drain(&self, node: &Node, arguments: &[&str]) -> Result<(i32, String, String)> {
        let mut command = node.namespace().command(binary()?)?;
        command.args(["drain", "--socket"]).arg(self.options.socket(&self.node)).args(arguments);
        let output = process::output(command)?;
        let code = output.status.code().context("vipmux drain was killed")?;
        Ok((code, String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }

    /// Runs `vipmux unload`.
    pub fn unload(&self, node: &Node) -> Result<String> {
        process::run(self.command(node, "unload", &[])?)
    }

    fn command(&self, node: &Node, name: &str, arguments: &[&str]) -> Result<Command> {
        let mut command = node.namespace().command(self.options.binary()?)?;
        command.arg(name).arg("--pin-path").arg(self.pins()).args(arguments);
        Ok(command)
    }
}

/// Runs `vipmux check -j` on a node. Returns its exit status, and its JSON or its error text.
pub fn check<A: AsRef<OsStr>>(node: &Node, arguments: impl IntoIterator<Item = A>) -> Result<(i32, Value)> {
    let mut command = node.namespace().command(binary()?)?;
    command.args(["check", "-j"]).args(arguments);
    answered(command).context("vipmux check")
}

/// Runs `vipmux migrate -j` in a namespace. Returns its exit status, and its JSON or its error text.
pub fn migrate(
    namespace: &Namespace,
    kubeconfig: &Path,
    command: &str,
    folder: &Path,
    arguments: &[&str],
) -> Result<(i32, Value)> {
    let mut process = namespace.command(binary()?)?;
    process.args(["migrate", command, "-j", "--kubeconfig"]).arg(kubeconfig).arg(folder).args(arguments);
    answered(process).with_context(|| format!("vipmux migrate {command}"))
}

/// Runs a command whose exit status 2 means a finding. Returns its exit status, and its JSON or its
/// error text.
fn answered(command: Command) -> Result<(i32, Value)> {
    let output = process::output(command)?;
    let code = output.status.code().context("it was killed")?;
    if !matches!(code, 0 | 2) {
        return Ok((code, Value::String(String::from_utf8_lossy(&output.stderr).into_owned())));
    }
    Ok((code, serde_json::from_slice(&output.stdout).context("it wrote no JSON")?))
}

/// Returns the agent's command line on a node.
pub fn command(node: &Node, options: &Options, pins: &Path) -> Result<Command> {
    command_as(node.namespace(), &node.name, options, pins)
}

/// Returns the command line of an agent whose node name is `node`.
pub fn command_as(namespace: &Namespace, node: &str, options: &Options, pins: &Path) -> Result<Command> {
    let mut arguments: Vec<(&str, OsString)> = vec![
        ("--node-name", node.into()),
        ("--interface", options.interface.clone().into()),
        ("--xdp-mode", options.xdp_mode.into()),
        ("--flows", options.flows.to_string().into()),
        ("--self-check", options.self_check.into()),
        ("--socket", options.socket(node).into()),
        ("--unclaimed", options.unclaimed.into()),
        ("--tc", options.tc.into()),
        ("--lease", options.lease.into()),
        ("--hold-down", options.hold_down.into()),
        ("--http-listen", options.http_listen.into()),
        ("--unreachable-endpoints", options.unreachable_endpoints.into()),
        ("--handover-mac", options.handover_mac.into()),
        ("--state-dir", options.state.clone().into()),
        ("--pin-path", pins.into()),
    ];
    match &options.origin {
        Origin::Manifests(folder) => arguments.push(("--manifests", folder.into())),
        Origin::Cluster(Access { kubeconfig, namespace, gossip_key, allocator }) => arguments.extend([
            ("--kubeconfig", kubeconfig.into()),
            ("--namespace", namespace.into()),
            ("--allocator", allocator.into()),
            ("--gossip-key", gossip_key.into()),
        ]),
    }
    if let Some(older) = &options.older {
        let mut help = Command::new(older);
        help.args(["agent", "--help"]);
        let help = process::run(help)?;
        arguments.retain(|(option, _)| help.contains(option));
    }
    let mut command = options.program(namespace)?;
    command.arg("agent");
    for (option, value) in arguments {
        command.arg(option).arg(value);
    }
    command.envs(options.later_version.map(|version| ("VIPMUX_TEST_LATER_VERSION", version)));
    command.envs(options.first_hashing.then_some(("VIPMUX_TEST_FIRST_HASHING", "1")));
    Ok(command)
}

fn spawn(node: &Node, options: &Options, pins: &Path) -> Result<Process> {
    Process::spawn(&format!("the agent on {}", node.name), command(node, options, pins)?)
}

/// Returns whether a line has the word `ready`. The word `already` does not count.
fn is_ready(line: &str) -> bool {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == "ready")
}

/// Returns the agent's binary: `VIPMUX_BIN`, or the one that cargo built beside the running
/// program.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("VIPMUX_BIN") {
        return Ok(path.into());
    }
    let path = pod::build_folder()?.join("vipmux");
    if !path.exists() {
        bail!(
            "{} is missing: build it with `cargo build --package vipmux`, or name another by VIPMUX_BIN",
            path.display()
        );
    }
    Ok(path)
}

/// The output of `vipmux plan -o json` for a folder of manifests.
#[derive(Clone, Debug)]
pub struct Plan(Value);

impl Plan {
    /// Runs `vipmux plan`. Exit status 2 (a Service gets nothing) is no error.
    pub fn of(manifests: &Path) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command.arg("plan").arg(manifests).args(["-o", "json"]);
        let output = process::output(command)?;
        if !matches!(output.status.code(), Some(0 | 2)) {
            bail!("vipmux plan failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(Self(serde_json::from_slice(&output.stdout).context("vipmux plan wrote no JSON")?))
    }

    /// Returns the first address of a Service, `namespace/name`.
    pub fn address(&self, service: &str) -> Result<Ipv4Addr> {
        let entry = self.service(service)?;
        entry["addresses"][0]
            .as_str()
            .with_context(|| format!("{service} has no address: {entry}"))?
            .parse()
            .with_context(|| format!("the address of {service}"))
    }

    /// Returns the node that leads an address.
    pub fn leader(&self, vip: impl Into<IpAddr>) -> Result<String> {
        let vip = vip.into();
        let vips = self.0["vips"].as_array().context("the plan has no vips")?;
        let entry = vips.iter().find(|entry| entry["address"] == vip.to_string());
        let leader = entry.and_then(|entry| entry["leader"].as_str());
        leader.map(str::to_owned).with_context(|| format!("{vip} has no leader in {:?}", self.0["vips"]))
    }

    /// Returns the entry of a Service.
    pub fn service(&self, service: &str) -> Result<&Value> {
        let all = self.0["services"].as_array().context("the plan has no services")?;
        all.iter()
            .find(|entry| service.split_once('/') == entry["namespace"].as_str().zip(entry["name"].as_str()))
            .with_context(|| format!("{service} is not in the plan"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_ready_means_readiness() {
        assert!(is_ready(r#"{"level":"INFO","fields":{"message":"ready"}}"#));
        assert!(is_ready("INFO vipmux: ready vips=1"));
        assert!(!is_ready("the program is already attached"));
        assert!(!is_ready("ready_backends=0"));
    }
}
