//! Runs Debian's keepalived on the same LAN, to compare failovers. It holds the address on one of
//! three nodes, which all have the same servers.

use std::{fs, net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    arp,
    cleanup::Folder,
    cluster::PATIENCE,
    failover,
    lan::{Lan, Node},
    pod::{self, Listener},
    process::{self, Process},
    wait,
    watch::Watch,
};

const ADDRESS: Ipv4Addr = failover::ADDRESS;
/// The time limit for one ARP request.
const WINDOW: Duration = Duration::from_millis(100);
/// The first node's VRRP priority. The others' are lower by one step each.
const PRIORITY: usize = 150;
const STEP: usize = 25;

/// The master's advertisement interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advertisements {
    /// One second, the default.
    Default,
    /// A tenth of a second.
    Fast,
}

impl Advertisements {
    /// `vrrp_version` and `advert_int`. Only VRRP 3 has fractions of a second (RFC 5798, 5.2.7).
    fn settings(self) -> (u8, &'static str) {
        match self {
            Self::Default => (2, "1"),
            Self::Fast => (3, "0.1"),
        }
    }
}

/// The processes of a node that get a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The main process and its children.
    All,
    /// The main process.
    Main,
}

/// Three nodes with keepalived, and clients.
#[derive(Debug)]
pub struct Keepalived {
    daemons: Vec<Process>,
    _servers: Vec<Process>,
    advertisements: Advertisements,
    folder: Folder,
    /// The LAN.
    pub lan: Lan,
}

/// Returns its version, or an error if it is not installed.
pub fn version() -> Result<String> {
    let mut command = std::process::Command::new("keepalived");
    let output = command.arg("--version").output().context("keepalived comes with the package keepalived")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

impl Keepalived {
    /// Starts it on every node, and waits until one answers.
    pub fn new(lan: Lan, advertisements: Advertisements) -> Result<Self> {
        let folder = Folder::temporary("keepalived")?;
        let mut servers = Vec::new();
        for node in &lan.nodes {
            // The servers listen on every node, whichever has the address.
            node.namespace().sysctl("net/ipv4/ip_nonlocal_bind", "1")?;
            let listeners = [
                Listener::new(crate::client::Kind::UdpEcho, failover::DATAGRAMS, "failing/datagrams"),
                Listener::new(crate::client::Kind::Echo, failover::LINES, "failing/lines"),
            ];
            servers.push(pod::start(node.namespace(), &format!("on-{}", node.name), ADDRESS, &listeners)?);
        }
        let mut cluster = Self { daemons: Vec::new(), _servers: servers, advertisements, folder, lan };
        for number in 0..cluster.lan.nodes.len() {
            let daemon = cluster.spawn(number)?;
            cluster.daemons.push(daemon);
        }
        cluster.leader()?;
        Ok(cluster)
    }

    fn spawn(&self, number: usize) -> Result<Process> {
        let node = &self.lan.nodes[number];
        let file = |extension: &str| self.folder.path().join(format!("{}.{extension}", node.name));
        let priority = PRIORITY - number * STEP;
        let (version, interval) = self.advertisements.settings();
        fs::write(
            file("conf"),
            format!(
                "global_defs {{\n  vrrp_version {version}\n}}\n\
                 vrrp_instance lan {{\n  state BACKUP\n  nopreempt\n  interface eth0\n  virtual_router_id 51\n  \
                 priority {priority}\n  advert_int {interval}\n  virtual_ipaddress {{\n    {ADDRESS}/32\n  }}\n}}\n"
            ),
        )?;
        let mut command = node.namespace().command("keepalived")?;
        command.args(["--dont-fork", "--vrrp", "--log-console", "--use-file"]).arg(file("conf"));
        command.arg("--pid").arg(file("pid")).arg("--vrrp_pid").arg(file("vrrp.pid"));
        Process::spawn(&format!("keepalived on {}", node.name), command)
    }

    /// Waits until exactly one node answers, and returns it.
    pub fn leader(&self) -> Result<&Node> {
        let client = self.lan.client()?;
        wait::until("one node that answers", PATIENCE, || {
            let answers = arp::answers(client.namespace(), client.address, ADDRESS, WINDOW)?;
            ensure!(answers.len() == 1, "{answers:?} answer");
            self.lan.node_of(answers[0]).context("it is no node")
        })
    }

    /// Starts clients that send requests all the time, and waits until each kind is answered.
    pub fn watch(&self) -> Result<Watch> {
        let mut watch = Watch::start(&self.lan, ADDRESS, failover::DATAGRAMS, failover::LINES)?;
        watch.wait_for_answers(20, PATIENCE)?;
        Ok(watch)
    }

    /// Sends a signal to keepalived on a node. Children first: the main process would restart them.
    pub fn signal(&self, node: &str, whom: Whom, signal: Signal) -> Result<()> {
        let daemon = &self.daemons[self.number(node)?];
        if whom == Whom::All {
            for child in children(daemon.id())? {
                match kill(child, signal) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => return Err(error).with_context(|| format!("cannot send {signal} to {child}")),
                }
            }
        }
        daemon.signal(signal)
    }

    /// Waits for the end of killed processes, removes the address if it was left, and starts
    /// keepalived again.
    pub fn start(&mut self, node: &str) -> Result<()> {
        let number = self.number(node)?;
        self.daemons[number].kill()?;
        let namespace = self.lan.nodes[number].namespace();
        let mut command = namespace.command("ip")?;
        command.args(["address", "flush", "dev", "eth0", "to", &format!("{ADDRESS}/32")]);
        process::run(command).context("ip comes with the package iproute2")?;
        self.daemons[number] = self.spawn(number)?;
        Ok(())
    }

    fn number(&self, node: &str) -> Result<usize> {
        let position = self.lan.nodes.iter().position(|other| other.name == node);
        position.with_context(|| format!("no node {node}"))
    }
}

impl Drop for Keepalived {
    /// Orphans of a killed main process would continue.
    fn drop(&mut self) {
        for daemon in &self.daemons {
            for child in children(daemon.id()).unwrap_or_default() {
                let _ = kill(child, Signal::SIGKILL);
            }
        }
    }
}

/// Returns the children of a process.
fn children(process: u32) -> Result<Vec<Pid>> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    text.split_ascii_whitespace().map(|pid| Ok(Pid::from_raw(pid.parse()?))).collect()
}
