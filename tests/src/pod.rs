//! Runs pods: a network namespace behind a node, with the `pod` program in it.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use pnet::util::MacAddr;

use crate::{
    client::Kind,
    lan::{Node, Options},
    netns::Namespace,
    offload::{self, Offload},
    pod_network::Plug,
    process::Process,
};

/// A port that a pod serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The kind of server.
    pub kind: Kind,
    /// The pod's port.
    pub port: u16,
    /// The Service, `namespace/name`.
    pub service: String,
}

impl Listener {
    /// A listener.
    pub fn new(kind: Kind, port: u16, service: &str) -> Self {
        Self { kind, port, service: service.to_owned() }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.kind, self.port, self.service)
    }
}

impl FromStr for Listener {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.splitn(3, ':');
        let (Some(kind), Some(port), Some(service)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("{text:?} is not KIND:PORT:NAMESPACE/SERVICE");
        };
        Ok(Self { kind: kind.parse()?, port: port.parse()?, service: service.to_owned() })
    }
}

/// The time limit for a process's start on a busy machine.
const START: Duration = Duration::from_mins(1);

/// A pod, which ends on drop.
#[derive(Debug)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its IPv6 address.
    pub address_v6: Ipv6Addr,
    /// Its own MAC.
    pub mac: MacAddr,
    /// The MAC of its gateway.
    pub gateway: MacAddr,
    servers: Option<Process>,
    listeners: Vec<Listener>,
    namespace: Namespace,
}

/// Returns the name of the node's end of a pod's veth pair.
fn port(address: Ipv4Addr) -> String {
    let [.., third, fourth] = address.octets();
    format!("pod{third}-{fourth}")
}

impl Node {
    /// Makes a pod at `10.244.NODE.host` and `2001:db8:244:NODE::host`. [`Pod::serve`] starts its
    /// servers.
    pub fn add_pod(&self, name: &str, host: u8) -> Result<Pod> {
        Pod::attach(&self.lan, self, name, host, self.options)
    }
}

impl Pod {
    /// Makes the pod's network behind a node, as the LAN's options say.
    fn attach(lan: &str, node: &Node, name: &str, host: u8, options: Options) -> Result<Self> {
        let (address, address_v6) = (node.pod_address(host), node.pod_address_v6(host));
        let namespace = Namespace::new(&format!("{lan}-{name}"))?;
        let [.., third, fourth] = address.octets();
        let mac = MacAddr(0x02, 0, 10, 244, third, fourth);
        let plug = Plug { port: &port(address), addresses: (address, address_v6), mac, mtu: options.mtu };
        let gateway = options.pods.connect(node, &namespace, &plug)?;
        if !options.offloads {
            namespace.run(|| offload::disable("eth0", Offload::TxChecksum))?;
        }
        Ok(Self {
            name: name.to_owned(),
            node: node.name.clone(),
            address,
            address_v6,
            mac,
            gateway,
            servers: None,
            listeners: Vec::new(),
            namespace,
        })
    }

    /// Returns the name of the node's end of its veth pair.
    pub fn port(&self) -> String {
        port(self.address)
    }

    /// Sets the MTU of the path from its node, if the pod is routed.
    pub fn narrow(&self, node: &Node, mtu: u32) -> Result<()> {
        node.namespace().links(|links| {
            links.narrow_route(&port(self.address), self.address, mtu)?;
            links.narrow_route(&port(self.address), self.address_v6, mtu)
        })
    }

    /// Starts the pod's servers, and waits until they listen.
    pub fn serve(&mut self, listeners: &[Listener]) -> Result<()> {
        self.servers =
            Some(start_at(&self.namespace, &self.name, &[self.address.into(), self.address_v6.into()], listeners)?);
        self.listeners = listeners.to_vec();
        Ok(())
    }

    /// Adds addresses to the pod, as direct server return needs them. Starts its servers only on
    /// these addresses.
    pub fn serve_as(&mut self, addresses: &[IpAddr], listeners: &[Listener]) -> Result<()> {
        self.namespace.links(|links| {
            addresses
                .iter()
                .try_for_each(|address| links.add_address("lo", *address, if address.is_ipv4() { 32 } else { 128 }))
        })?;
        self.servers = Some(start_at(&self.namespace, &self.name, addresses, listeners)?);
        self.listeners = listeners.to_vec();
        Ok(())
    }

    /// Returns its listeners.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Kills the servers and so their connections. The network stays.
    pub fn stop(&mut self) -> Result<()> {
        self.servers.take().map_or(Ok(()), |mut servers| servers.kill())
    }

    /// Returns the servers' process, if it runs.
    pub fn process(&self) -> Option<&Process> {
        self.servers.as_ref()
    }

    /// Returns its network namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

/// Starts servers in a network namespace that has the address: a pod's, or a node's for a
/// host-network pod.
pub fn start(namespace: &Namespace, name: &str, address: impl Into<IpAddr>, listeners: &[Listener]) -> Result<Process> {
    start_at(namespace, name, &[address.into()], listeners)
}

fn start_at(namespace: &Namespace, name: &str, addresses: &[IpAddr], listeners: &[Listener]) -> Result<Process> {
    let mut command = namespace.command(program("pod")?)?;
    command.args(["--name", name]);
    for address in addresses {
        command.args(["--address", &address.to_string()]);
    }
    for listener in listeners {
        command.args(["--listen", &listener.to_string()]);
    }
    let process = Process::spawn(name, command)?;
    process.wait_for_line("listening", START, |line| line == "listening")?;
    Ok(process)
}

/// Returns a program of this package, built beside the running one.
fn program(name: &str) -> Result<PathBuf> {
    let folder = build_folder()?;
    let path = folder.join(name);
    if !path.exists() {
        bail!("{} is missing: build it with `cargo build --package vipmux-tests --bins`", path.display());
    }
    Ok(path)
}

/// Returns the folder of this build's programs. Test executables are one folder below.
pub(crate) fn build_folder() -> Result<PathBuf> {
    let executable = std::env::current_exe().context("cannot tell the running program's path")?;
    let folder = executable.parent().context("the running program has no folder")?;
    let above_deps = folder.ends_with("deps").then(|| folder.parent()).flatten();
    Ok(above_deps.unwrap_or(folder).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_survives_its_text() {
        for kind in Kind::ALL {
            let listener = Listener::new(kind, 8080, "shop/web");
            assert_eq!(listener.to_string().parse::<Listener>().unwrap(), listener);
        }
    }

    #[test]
    fn half_a_listener_is_refused() {
        assert!("http:80".parse::<Listener>().is_err());
        assert!("smtp:25:a/b".parse::<Listener>().is_err());
        assert!("http:port:a/b".parse::<Listener>().is_err());
    }
}
