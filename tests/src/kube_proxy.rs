//! Runs the real kube-proxy on a node.

mod mode;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

pub use self::mode::Mode;
use crate::{
    api_server::{ApiServer, KUBE_PROXY},
    cleanup::Folder,
    cluster_programs,
    lan::{self, Node},
    process::Process,
    wait,
};

/// The time limit for a start on a busy machine.
const START: Duration = Duration::from_mins(1);
const ATTEMPT: Duration = Duration::from_secs(5);
const HEALTH: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_256);
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249);
/// The metric of its last write of rules, seconds since 1970; 0 before the first.
const WRITTEN: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

/// The range of the Services' cluster addresses.
const SERVICE_NETWORKS: ((Ipv4Addr, u8), (Ipv6Addr, u8)) =
    ((Ipv4Addr::new(10, 96, 0, 0), 16), (Ipv6Addr::new(0x2001, 0xdb8, 0x96, 0, 0, 0, 0, 0), 112));

/// A running kube-proxy, killed on drop. Its rules stay, as on a real node.
#[derive(Debug)]
pub struct KubeProxy {
    process: Process,
    _folder: Folder,
}

impl KubeProxy {
    /// Starts it on a node that the API server has ([`ApiServer::add_nodes`]), and waits for its
    /// rules.
    pub fn start(node: &Node, api: &ApiServer, mode: Mode) -> Result<Self> {
        route_services(node, api)?;
        let folder = Folder::temporary(&format!("kube-proxy-{}", node.name))?;
        let path = folder.path().join("config.json");
        fs::write(&path, configuration(node, api, mode)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mut command = node.namespace().command(cluster_programs::find("kube-proxy")?)?;
        command.arg("--config").arg(&path);
        let process = Process::spawn(&format!("kube-proxy on {}", node.name), command)?;
        let mut proxy = Self { process, _folder: folder };
        proxy.await_rules(node)?;
        Ok(proxy)
    }

    /// Returns its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Stops it. Its rules stay.
    pub fn stop(&mut self) -> Result<()> {
        self.process.kill()
    }

    fn await_rules(&mut self, node: &Node) -> Result<()> {
        let written = wait::until(&format!("the rules of kube-proxy on {}", node.name), START, || {
            ensure!(self.process.poll()?.is_none(), "it has ended");
            node.namespace().run(|| {
                ensure!(has_written(&get(METRICS, "/metrics")?), "it has not written them yet");
                get(HEALTH, "/healthz").map(drop)
            })
        });
        written.with_context(|| format!("its last output:\n{}", self.process.last_output()))
    }
}

/// Adds a route for cluster addresses to a node. Every cluster's nodes have one, at least the
/// default route: the kernel looks it up before kube-proxy's rules translate the address.
fn route_services(node: &Node, api: &ApiServer) -> Result<()> {
    let (v4, v6) = SERVICE_NETWORKS;
    node.namespace().links(|links| {
        links.move_route("eth0", v4, api.machine().address)?;
        links.move_route("eth0", v6, api.machine().address_v6)
    })
}

fn configuration(node: &Node, api: &ApiServer, mode: Mode) -> Result<String> {
    let configuration = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode.to_string(),
        "hostnameOverride": node.name,
        "clientConnection": { "kubeconfig": api.kubeconfig(KUBE_PROXY)? },
        "healthzBindAddress": HEALTH.to_string(),
        "metricsBindAddress": METRICS.to_string(),
        "detectLocalMode": "ClusterCIDR",
        "clusterCIDR": node.families().list(&lan::POD_NETWORKS.0, &lan::POD_NETWORKS.1),
        // These sysctls are global and cannot be written in a network namespace.
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
    });
    Ok(configuration.to_string())
}

/// Returns whether its metrics say that the rules of all families were written. Each family has its
/// own line from the start.
fn has_written(metrics: &str) -> bool {
    let mut times = metrics.lines().filter(|line| line.starts_with(WRITTEN)).peekable();
    times.peek().is_some() && times.all(|line| line.rsplit(' ').next().is_some_and(|time| time != "0"))
}

/// Requests a Service's `healthCheckNodePort` of a node. Returns the HTTP status, and the number of
/// local endpoints.
pub fn local_endpoints(server: SocketAddr) -> Result<(u16, u64)> {
    let (status, body) = ask(server, "/")?;
    let body: Value = serde_json::from_str(&body).with_context(|| format!("{server}: {body}"))?;
    Ok((status, body["localEndpoints"].as_u64().with_context(|| format!("{server}: no localEndpoints in {body}"))?))
}

/// Returns the body of a page whose status is 200.
fn get(address: SocketAddr, path: &str) -> Result<String> {
    let (status, body) = ask(address, path)?;
    ensure!(status == 200, "{address}{path}: {status} {body}");
    Ok(body)
}

/// Returns a page's status and body.
fn ask(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream =
        TcpStream::connect_timeout(&address, ATTEMPT).with_context(|| format!("cannot reach {address}"))?;
    stream.set_read_timeout(Some(ATTEMPT))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{address}{path}: no HTTP"))?;
    let status = head.split(' ').nth(1).with_context(|| format!("{address}{path}: {head}"))?;
    Ok((status.parse().with_context(|| format!("{address}{path}: {head}"))?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_once_each_family_has_its_own() {
        let line = |family: &str, time: &str| format!("{WRITTEN}{{ip_family=\"{family}\"}} {time}\n");
        assert!(!has_written(""));
        assert!(!has_written(&format!("# HELP {WRITTEN} x\n")));
        assert!(!has_written(&(line("IPv4", "1.7e+09") + &line("IPv6", "0"))));
        assert!(has_written(&(line("IPv4", "1.7e+09") + &line("IPv6", "1.7e+09"))));
    }
}
