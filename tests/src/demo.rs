//! The demo's cluster: the manifests in `deploy/demo` and their pods.

use anyhow::Result;

use crate::{
    client::Kind,
    cluster::Cluster,
    lan::{Lan, Options},
    manifests::Manifests,
    pod::Listener,
};

macro_rules! manifest {
    ($file:literal) => {
        ($file, include_str!(concat!("../../deploy/demo/", $file)))
    };
}

/// The manifests at the beginning: file names and contents.
pub const MANIFESTS: [(&str, &str); 7] = [
    manifest!("nodes.yaml"),
    manifest!("pool.yaml"),
    manifest!("web.yaml"),
    manifest!("secure.yaml"),
    manifest!("dns-udp.yaml"),
    manifest!("dns-tcp.yaml"),
    manifest!("admin.yaml"),
];

/// The manifest that is added and removed while traffic runs.
pub const LATER: (&str, &str) = ("metrics.yaml", include_str!("../../deploy/demo/later/metrics.yaml"));

/// A Service of the demo.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// `namespace/name`.
    pub name: &'static str,
    /// The kind of its servers.
    pub kind: Kind,
    /// Service port.
    pub port: u16,
    /// Its pods.
    pub pods: &'static [&'static str],
}

/// The Services that share the address from the beginning.
pub const SERVICES: [Service; 5] = [
    Service { name: "shop/web", kind: Kind::Http, port: 80, pods: &["web-1", "web-2"] },
    Service { name: "shop/secure", kind: Kind::Echo, port: 443, pods: &["secure-1"] },
    Service { name: "infra/dns-udp", kind: Kind::DnsUdp, port: 53, pods: &["dns-1"] },
    Service { name: "infra/dns-tcp", kind: Kind::DnsTcp, port: 53, pods: &["dns-1"] },
    Service { name: "ops/admin", kind: Kind::Http, port: 8080, pods: &["admin-1"] },
];

/// The Service of [`LATER`].
pub const LATER_SERVICE: Service = Service { name: "ops/metrics", kind: Kind::Http, port: 9100, pods: &["metrics-1"] };

/// A pod: node, name, last byte of its address, and servers (kind, port, Service).
type PodSpec = (&'static str, &'static str, u8, &'static [(Kind, u16, &'static str)]);

const PODS: [PodSpec; 6] = [
    ("node-1", "web-1", 10, &[(Kind::Http, 8080, "shop/web")]),
    ("node-2", "web-2", 10, &[(Kind::Http, 8080, "shop/web")]),
    ("node-2", "secure-1", 11, &[(Kind::Echo, 8443, "shop/secure")]),
    ("node-3", "dns-1", 10, &[(Kind::DnsUdp, 5353, "infra/dns-udp"), (Kind::DnsTcp, 5353, "infra/dns-tcp")]),
    ("node-1", "admin-1", 11, &[(Kind::Http, 9000, "ops/admin")]),
    ("node-3", "metrics-1", 20, &[(Kind::Http, 9100, "ops/metrics")]),
];

/// Makes the nodes, the client and the manifests, without pods and agents.
pub fn cluster() -> Result<Cluster> {
    let lan = Lan::new(Options { kubernetes_rules: true, ..Options::default() })?;
    let manifests = Manifests::empty()?;
    for (file, text) in MANIFESTS {
        manifests.write_text(file, text)?;
    }
    Cluster::new(lan, manifests)
}

/// Starts all pods.
pub fn start_pods(cluster: &mut Cluster) -> Result<()> {
    for (node, name, host, servers) in PODS {
        let listeners: Vec<_> =
            servers.iter().map(|(kind, port, service)| Listener::new(*kind, *port, service)).collect();
        cluster.add_pod(node, name, host, &listeners)?;
    }
    Ok(())
}
