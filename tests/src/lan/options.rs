//! The options of a LAN.

use super::{ORDINARY_MTU, uplink::Uplink};
use crate::ip_families::IpFamilies;

/// The options of a LAN.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Nodes, at most [`MOST_NODES`](super::MOST_NODES).
    pub nodes: u8,
    /// Clients, at most 80.
    pub clients: u8,
    /// Nodes have nftables rules like those of kube-proxy and of a CNI.
    pub kubernetes_rules: bool,
    /// Nodes have only a CNI's rules, because a real kube-proxy adds its own.
    pub cni_rules: bool,
    /// How pods are connected.
    pub pods: PodNetwork,
    /// `net.ipv4.conf.*.rp_filter` of the nodes: 0, 1 or 2.
    pub reverse_path_filter: u8,
    /// Clients and pods leave checksums and segmentation to their interfaces, as Linux does by
    /// default. If false, their packets are complete, as on a wire.
    pub offloads: bool,
    /// The MTU of all interfaces.
    pub mtu: u32,
    /// The kind of the machines' interfaces.
    pub uplink: Uplink,
    /// The switch's ports to the nodes.
    pub ports: SwitchPorts,
    /// The families of the cluster on it.
    pub families: IpFamilies,
    /// Who makes the nodes' routes to the other nodes' pods.
    pub pod_routes: PodRoutes,
}

/// Who makes the nodes' routes to the other nodes' pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodRoutes {
    /// The LAN: through the other node's address.
    Static,
    /// A CNI that the test runs.
    Cni,
}

/// The kind of the switch's ports to the nodes: the other ends of the nodes' veths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchPorts {
    /// They take frames that native XDP sends, as the ports of a real switch do: each has a passing
    /// XDP program.
    Native,
    /// They are plain veths in a bridge, as with kind, k3d, minikube and LXC.
    Plain,
}

impl Options {
    /// Three nodes and a client, without rules.
    pub const DEFAULT: Self = Self {
        nodes: 3,
        clients: 1,
        kubernetes_rules: false,
        cni_rules: false,
        pods: PodNetwork::Routed,
        reverse_path_filter: 0,
        offloads: false,
        mtu: ORDINARY_MTU,
        uplink: Uplink::Card,
        ports: SwitchPorts::Native,
        families: IpFamilies::Dual,
        pod_routes: PodRoutes::Static,
    };
    /// [`Options::DEFAULT`] with rules like those of kube-proxy and of a CNI, and the strict
    /// reverse path filter that distributions set.
    pub const HOSTILE: Self = Self { kubernetes_rules: true, reverse_path_filter: 1, ..Self::DEFAULT };
}

impl Default for Options {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The way to connect pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetwork {
    /// Each pod by a routed veth.
    Routed,
    /// All pods of a node by one bridge, without hairpins. Frames between its ports pass iptables
    /// (`net.bridge.bridge-nf-call-iptables`). A cluster address needs that if its pod is on the
    /// caller's bridge.
    Bridged,
}
