//! `vipmux` itself: agents on nodes, and its other commands.

use std::{
    ffi::OsStr,
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
    cluster::PATIENCE,
    container,
    lan::Node,
    netns::Namespace,
    pod,
    process::{self, Process},
};

/// The ServiceAccount of the agents.
pub const ACCOUNT: &str = "vipmux-agent";
/// Entries of each agent's flow tables: sized by the memory, those of several LANs would not fit into it.
const FLOWS: u32 = 16_384;

/// Where an agent's objects come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A folder of manifests.
    Manifests(PathBuf),
    /// An API server.
    Cluster(Access),
}

/// How an agent reaches its API server, and its peers.
#[derive(Clone, Debug)]
pub struct Access {
    /// With the rights that it is to have.
    pub kubeconfig: PathBuf,
    /// Where it keeps its Leases.
    pub namespace: String,
    /// The file with the agents' key.
    pub gossip_key: PathBuf,
    /// `on`: vipmux's allocator gives addresses; `off`: the test does.
    pub allocator: &'static str,
}

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its objects come from.
    pub origin: Origin,
    /// Where the agents keep the assignments, or whatever else they have; shared by all of them.
    pub state: PathBuf,
    /// The announcing interface.
    pub interface: String,
    /// `auto`, `native` or `generic`.
    pub xdp_mode: &'static str,
    /// Entries of each flow table.
    pub flows: u32,
    /// How often it checks the kernel's state.
    pub self_check: &'static str,
    /// `reject`, `drop` or `pass`.
    pub unclaimed: &'static str,
    /// `refuse` or `kernel`.
    pub unreachable_endpoints: &'static str,
    /// `derived` or `own`.
    pub handover_mac: &'static str,
    /// `auto`, `tcx` or `clsact`.
    pub tc: &'static str,
    /// How long a leader answers after the last evidence.
    pub lease: &'static str,
    /// How long a node that came waits before VIPs are moved to it.
    pub hold_down: &'static str,
    /// The files of the container image to start it from; `None`: as an ordinary process.
    pub image: Option<PathBuf>,
    /// Where it serves metrics and probes; `off` for a second agent in a network namespace.
    pub http_listen: &'static str,
}

impl Options {
    /// Native XDP on eth0: the harness's switch is made for it, so a fallback would hide a failure.
    pub fn new(manifests: &Path, state: &Path) -> Self {
        Self::with(Origin::Manifests(manifests.to_owned()), state)
    }

    /// The same, wherever the objects come from.
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
            // Most tests are not about failing over, and run beside many others: who leads is to stay, however long it takes.
            lease: "3s",
            hold_down: "60m",
            image: None,
            http_listen: "[::]:7945",
        }
    }

    /// `vipmux` as the agent is started: in a container, or as an ordinary process.
    pub fn program(&self, namespace: &Namespace) -> Result<Command> {
        match &self.image {
            Some(image) => container::command(image, namespace),
            None => namespace.command(binary()?),
        }
    }

    /// Where the agent on a node listens.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.state.join(format!("{node}.sock"))
    }
}

/// An agent on a node, with its pins. Dropped, it is killed and its pins are removed.
#[derive(Debug)]
pub struct Agent {
    node: String,
    process: Process,
    pins: Folder,
    options: Options,
}

impl Agent {
    /// Starts an agent on a node. [`Agent::wait_ready`] says when it works.
    pub fn start(node: &Node, options: &Options) -> Result<Self> {
        let pins = Folder::of_pins(&node.name);
        let process = spawn(node, options, pins.path())?;
        Ok(Self { node: node.name.clone(), process, pins, options: options.clone() })
    }

    /// Starts the agent again, with the same pins, after its end.
    pub fn restart(&mut self, node: &Node) -> Result<()> {
        self.process.kill()?;
        self.process = spawn(node, &self.options, self.pins.path())?;
        Ok(())
    }

    /// The same with other options.
    pub fn restart_with(&mut self, node: &Node, options: Options) -> Result<()> {
        self.options = options;
        self.restart(node)
    }

    /// Tells the agent to stop, and waits for its end.
    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait(PATIENCE).map(drop)
    }

    /// How it is started the next time.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Waits until the agent says that it is ready: attached and in sync.
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        self.process.wait_for_line("ready", timeout, says_ready).map(drop)
    }

    /// The agent's process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The agent's process.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The node it runs on.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Where it pins its maps, programs and links.
    pub fn pins(&self) -> &Path {
        self.pins.path()
    }

    /// `vipmux inspect WHAT`, as people see it.
    pub fn inspect(&self, node: &Node, what: &[&str]) -> Result<String> {
        process::run(self.command(node, "inspect", what)?)
    }

    /// `vipmux inspect WHAT -j`.
    pub fn inspect_json(&self, node: &Node, what: &[&str]) -> Result<Value> {
        let mut command = self.command(node, "inspect", what)?;
        command.arg("-j");
        serde_json::from_str(&process::run(command)?).context("vipmux inspect wrote no JSON")
    }

    /// `vipmux explain TARGET -j`: its exit status, and what it says; its error if it is one.
    pub fn explain(&self, node: &Node, target: &str, arguments: &[&str]) -> Result<(i32, Value)> {
        let mut command = self.command(node, "explain", &[target, "-j", "--socket"])?;
        command.arg(self.options.socket(&self.node)).args(arguments);
        answered(command).context("vipmux explain")
    }

    /// `vipmux inspect diff -j`: its exit status, and what it says if it is no error.
    pub fn diff(&self, node: &Node) -> Result<(i32, Value)> {
        let mut command = self.command(node, "inspect", &["diff", "-j", "--socket"])?;
        command.arg(self.options.socket(&self.node));
        answered(command).context("vipmux inspect diff")
    }

    /// `vipmux drain`: its exit status, and what it wrote to stdout and to stderr.
    pub fn drain(&self, node: &Node, arguments: &[&str]) -> Result<(i32, String, String)> {
        let mut command = node.namespace().command(binary()?)?;
        command.args(["drain", "--socket"]).arg(self.options.socket(&self.node)).args(arguments);
        let output = process::output(command)?;
        let code = output.status.code().context("vipmux drain was killed")?;
        Ok((code, String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }

    /// `vipmux unload`.
    pub fn unload(&self, node: &Node) -> Result<String> {
        process::run(self.command(node, "unload", &[])?)
    }

    fn command(&self, node: &Node, name: &str, arguments: &[&str]) -> Result<Command> {
        let mut command = node.namespace().command(binary()?)?;
        command.arg(name).arg("--pin-path").arg(self.pins()).args(arguments);
        Ok(command)
    }
}

/// `vipmux check -j` on a node: its exit status, and what it says; its error if it is one.
pub fn check<A: AsRef<OsStr>>(node: &Node, arguments: impl IntoIterator<Item = A>) -> Result<(i32, Value)> {
    let mut command = node.namespace().command(binary()?)?;
    command.args(["check", "-j"]).args(arguments);
    answered(command).context("vipmux check")
}

/// The exit status and the JSON of a command that tells by status 2 that something is not as it should be; the error text of
/// one that fails.
fn answered(command: Command) -> Result<(i32, Value)> {
    let output = process::output(command)?;
    let code = output.status.code().context("it was killed")?;
    if !matches!(code, 0 | 2) {
        return Ok((code, Value::String(String::from_utf8_lossy(&output.stderr).into_owned())));
    }
    Ok((code, serde_json::from_slice(&output.stdout).context("it wrote no JSON")?))
}

/// The agent's command line on a node.
pub fn command(node: &Node, options: &Options, pins: &Path) -> Result<Command> {
    command_as(node.namespace(), &node.name, options, pins)
}

/// The command line of an agent that believes itself on the node of this name.
pub fn command_as(namespace: &Namespace, node: &str, options: &Options, pins: &Path) -> Result<Command> {
    let mut command = options.program(namespace)?;
    command
        .args(["agent", "--node-name", node, "--interface", &options.interface, "--xdp-mode", options.xdp_mode])
        .args(["--flows", &options.flows.to_string(), "--self-check", options.self_check])
        .arg("--socket")
        .arg(options.socket(node))
        .args(["--unclaimed", options.unclaimed, "--tc", options.tc, "--lease", options.lease])
        .args(["--hold-down", options.hold_down])
        .args(["--http-listen", options.http_listen])
        .args(["--unreachable-endpoints", options.unreachable_endpoints, "--handover-mac", options.handover_mac])
        .arg("--state-dir")
        .arg(&options.state)
        .arg("--pin-path")
        .arg(pins);
    match &options.origin {
        Origin::Manifests(folder) => command.arg("--manifests").arg(folder),
        Origin::Cluster(Access { kubeconfig, namespace, gossip_key, allocator }) => command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--namespace", namespace, "--allocator", allocator, "--gossip-key"])
            .arg(gossip_key),
    };
    Ok(command)
}

fn spawn(node: &Node, options: &Options, pins: &Path) -> Result<Process> {
    Process::spawn(&format!("the agent on {}", node.name), command(node, options, pins)?)
}

/// The word by itself; `already` does not count.
fn says_ready(line: &str) -> bool {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == "ready")
}

/// The agent's binary: `VIPMUX_BIN`, or the one that cargo built beside the running program.
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

/// What `vipmux plan -o json` says about a folder of manifests.
#[derive(Clone, Debug)]
pub struct Plan(Value);

impl Plan {
    /// Runs `vipmux plan`. That some Service gets nothing (exit status 2) is a result like any other.
    pub fn of(manifests: &Path) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command.arg("plan").arg(manifests).args(["-o", "json"]);
        let output = process::output(command)?;
        if !matches!(output.status.code(), Some(0 | 2)) {
            bail!("vipmux plan failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(Self(serde_json::from_slice(&output.stdout).context("vipmux plan wrote no JSON")?))
    }

    /// The first address of a Service, `namespace/name`.
    pub fn address(&self, service: &str) -> Result<Ipv4Addr> {
        let entry = self.service(service)?;
        entry["addresses"][0]
            .as_str()
            .with_context(|| format!("{service} has no address: {entry}"))?
            .parse()
            .with_context(|| format!("the address of {service}"))
    }

    /// The node that leads an address.
    pub fn leader(&self, vip: impl Into<IpAddr>) -> Result<String> {
        let vip = vip.into();
        let vips = self.0["vips"].as_array().context("the plan has no vips")?;
        let entry = vips.iter().find(|entry| entry["address"] == vip.to_string());
        let leader = entry.and_then(|entry| entry["leader"].as_str());
        leader.map(str::to_owned).with_context(|| format!("{vip} has no leader in {:?}", self.0["vips"]))
    }

    /// What it says of a Service.
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
    fn readiness_is_told_from_words_that_hold_it() {
        assert!(says_ready(r#"{"level":"INFO","fields":{"message":"ready"}}"#));
        assert!(says_ready("INFO vipmux: ready vips=1"));
        assert!(!says_ready("the program is already attached"));
        assert!(!says_ready("ready_backends=0"));
    }
}
