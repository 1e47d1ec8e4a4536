//! Connects pods to their nodes as two kinds of CNIs do, with the CNIs' rules.
//!
//! ```text
//!  routed, as Calico has it                       bridged, as flannel has it without a tunnel (host-gw)
//!
//!  pod  10.244.N.X/32, 2001:db8:244:N::X/128      pod  10.244.N.X/24, 2001:db8:244:N::X/64
//!   |                                              |
//!  podN-X   gateway 169.254.1.1 and fe80::1       podN-X ... podN-Y
//!           for each pod, by fixed neighbors      |          |
//!                                                 cni0    10.244.N.1, 2001:db8:244:N::1: all pods' gateway
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use pnet::util::MacAddr;

use crate::{
    lan::{Node, POD_PREFIX_LENGTHS, PodNetwork},
    links::{End, Links},
    netns::Namespace,
};

/// The gateway of every routed pod, as in Calico: the node's end of the veth.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const GATEWAY_MAC: MacAddr = MacAddr(0xee, 0xee, 0xee, 0xee, 0xee, 0xee);
/// The bridge's name, as in the CNI project's plugin.
const BRIDGE: &str = "cni0";
/// The bridge's own address in a node's pod network.
const BRIDGE_HOST: u8 = 1;
/// All nodes' pod networks, with nftables' keyword for the family.
const NETWORKS: [(&str, &str); 2] = [("ip", "10.244.0.0/16"), ("ip6", "2001:db8:244::/48")];

/// A pod's end of the veth, and its configuration.
pub(crate) struct Plug<'a> {
    /// The name of the node's end.
    pub(crate) port: &'a str,
    /// The pod's addresses.
    pub(crate) addresses: (Ipv4Addr, Ipv6Addr),
    /// Its MAC.
    pub(crate) mac: MacAddr,
    /// The MTU of both ends.
    pub(crate) mtu: u32,
}

impl PodNetwork {
    /// Sets up a node before its first pod.
    pub(crate) fn prepare(self, node: &Node) -> Result<()> {
        if self == Self::Routed {
            return Ok(());
        }
        for family in ["iptables", "ip6tables"] {
            node.namespace().sysctl(&format!("net/bridge/bridge-nf-call-{family}"), "1")?;
        }
        node.namespace().links(|links| {
            links.add_bridge(BRIDGE)?;
            links.set_mac(BRIDGE, bridge_mac(node))?;
            links.set_up(BRIDGE)?;
            links.add_address(BRIDGE, node.pod_address(BRIDGE_HOST), POD_PREFIX_LENGTHS.0)?;
            links.add_address(BRIDGE, node.pod_address_v6(BRIDGE_HOST), POD_PREFIX_LENGTHS.1)
        })
    }

    /// Connects a pod's eth0. Returns the MAC of its gateway.
    pub(crate) fn connect(self, node: &Node, pod: &Namespace, plug: &Plug<'_>) -> Result<MacAddr> {
        let connected = match self {
            Self::Routed => connect_routed(node, pod, plug).map(|()| GATEWAY_MAC),
            Self::Bridged => connect_bridged(node, pod, plug).map(|()| bridge_mac(node)),
        };
        connected.with_context(|| format!("cannot connect the pod at {}", plug.port))
    }

    /// Returns a CNI's rules on a node, without network policies. Packets that leave the pod
    /// networks are masqueraded. Calico also drops packets from and to pods that conntrack finds
    /// invalid; flannel does not.
    pub(crate) fn rules(self, node: &Node) -> String {
        let own = [
            IpAddr::from(node.pod_address(0)).to_string() + &format!("/{}", POD_PREFIX_LENGTHS.0),
            IpAddr::from(node.pod_address_v6(0)).to_string() + &format!("/{}", POD_PREFIX_LENGTHS.1),
        ];
        let both = NETWORKS.into_iter().zip(own);
        both.map(|((family, pods), own)| match self {
            Self::Routed => calico(family, pods),
            Self::Bridged => flannel(family, pods, &own),
        })
        .collect()
    }
}

fn bridge_mac(node: &Node) -> MacAddr {
    let [a, b, c, d] = node.pod_address(BRIDGE_HOST).octets();
    MacAddr(0x02, 0, a, b, c, d)
}

/// Makes a veth pair with a /32 and a /128 on each side. The node is the gateway.
fn connect_routed(node: &Node, pod: &Namespace, plug: &Plug<'_>) -> Result<()> {
    let (Plug { port, mac, .. }, (address, address_v6)) = (plug, plug.addresses);
    node.namespace().links(|links| {
        add_veth(links, pod, plug, Some(GATEWAY_MAC))?;
        links.add_route(port, (address, 32), None)?;
        links.add_neighbor(port, address, *mac)?;
        links.add_route(port, (address_v6, 128), None)?;
        links.add_neighbor(port, address_v6, *mac)
    })?;
    pod.links(|links| {
        links.set_mtu("eth0", plug.mtu)?;
        links.add_address("eth0", address, 32)?;
        links.add_route("eth0", (GATEWAY, 32), None)?;
        links.add_neighbor("eth0", GATEWAY, GATEWAY_MAC)?;
        links.add_route("eth0", (Ipv4Addr::UNSPECIFIED, 0), Some(GATEWAY))?;
        links.add_address("eth0", address_v6, 128)?;
        links.add_neighbor("eth0", GATEWAY_V6, GATEWAY_MAC)?;
        links.add_route("eth0", (Ipv6Addr::UNSPECIFIED, 0), Some(GATEWAY_V6))
    })
}

/// Makes a port of the bridge. Neighbors are resolved as on any segment.
fn connect_bridged(node: &Node, pod: &Namespace, plug: &Plug<'_>) -> Result<()> {
    let (address, address_v6) = plug.addresses;
    // For an interface that is not made yet: link-local addresses are usable at once, and no router
    // is solicited.
    pod.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    pod.sysctl("net/ipv6/conf/default/accept_ra", "0")?;
    node.namespace().links(|links| {
        add_veth(links, pod, plug, None)?;
        links.add_port(BRIDGE, plug.port)
    })?;
    pod.links(|links| {
        links.set_mtu("eth0", plug.mtu)?;
        links.add_address("eth0", address, POD_PREFIX_LENGTHS.0)?;
        links.add_route("eth0", (Ipv4Addr::UNSPECIFIED, 0), Some(node.pod_address(BRIDGE_HOST)))?;
        links.add_address("eth0", address_v6, POD_PREFIX_LENGTHS.1)?;
        links.add_route("eth0", (Ipv6Addr::UNSPECIFIED, 0), Some(node.pod_address_v6(BRIDGE_HOST)))
    })
}

fn add_veth(links: &Links, pod: &Namespace, plug: &Plug<'_>, mac: Option<MacAddr>) -> Result<()> {
    let here = End { name: plug.port, mac };
    links.add_veth(here, End { name: "eth0", mac: Some(plug.mac) }, pod)?;
    links.set_mtu(plug.port, plug.mtu)
}

/// `cali-nat-outgoing` and the first rules of every workload's chains.
fn calico(family: &str, pods: &str) -> String {
    format!(
        "table {family} cni {{
            chain workload {{
                ct state established,related accept
                ct state invalid drop
            }}
            chain forward {{
                type filter hook forward priority 0; policy accept;
                iifname \"pod*\" jump workload
                oifname \"pod*\" jump workload
            }}
            chain postrouting {{
                type nat hook postrouting priority 100; policy accept;
                {family} saddr {pods} {family} daddr != {pods} masquerade fully-random
            }}
        }}
        "
    )
}

/// `FLANNEL-FWD` and `FLANNEL-POSTRTG`. `own` is the node's own pod network.
fn flannel(family: &str, pods: &str, own: &str) -> String {
    let multicast = if family == "ip" { "224.0.0.0/4" } else { "ff00::/8" };
    format!(
        "table {family} cni {{
            chain forward {{
                type filter hook forward priority 0; policy accept;
                {family} saddr {pods} accept
                {family} daddr {pods} accept
            }}
            chain postrouting {{
                type nat hook postrouting priority 100; policy accept;
                meta mark & 0x4000 == 0x4000 return
                {family} saddr {own} {family} daddr {pods} return
                {family} saddr {pods} {family} daddr {own} return
                {family} saddr != {pods} {family} daddr {own} return
                {family} saddr {pods} {family} daddr != {multicast} masquerade fully-random
                {family} saddr != {pods} {family} daddr {pods} masquerade fully-random
            }}
        }}
        "
    )
}
