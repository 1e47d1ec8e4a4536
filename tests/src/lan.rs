//! The LAN: a switch, nodes with their pods, and clients, each in its network namespace.
//!
//! ```text
//!  client-1      client-N            192.0.2.101, 2001:db8::c:1 ...
//!     |             |
//!  ===+======+======+======+===      switch: a bridge; ports to nodes by SwitchPorts
//!            |             |
//!         node-1        node-N       192.0.2.11, 2001:db8::a:1 ...; they forward
//!          |   |           |
//!       pod     pod       pod        10.244.NODE.X, 2001:db8:244:NODE::X, by a PodNetwork
//! ```
//!
//! A node's cable is a veth, or a wire between two cards (`lan/card.rs`).
//! With an [`Uplink`] other than the card itself, the veth is called `card0`, and eth0 is on top of
//! it.

mod bypass;
mod card;
mod options;
mod tunnel;
mod uplink;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use pnet::util::MacAddr;

pub(crate) use self::uplink::plug_in;
pub use self::{
    bypass::Bypass,
    card::driver,
    options::{Options, PodNetwork, PodRoutes, SwitchPorts},
    tunnel::Tunnel,
    uplink::Uplink,
};
use self::{
    card::Wire,
    uplink::{PassingProgram, plug_in_card},
};
use crate::{
    cleanup,
    ip_families::IpFamilies,
    links::{End, Links},
    netns::Namespace,
    offload::{self, Offload},
    process, requirement,
};

const BRIDGE: &str = "br0";
/// Ethernet's MTU.
const ORDINARY_MTU: u32 = 1_500;
/// The default of `--gossip-port`.
const GOSSIP: u16 = 7_944;
/// Prefix lengths of the LAN, IPv4 and IPv6.
const PREFIX_LENGTHS: (u8, u8) = (24, 64);
/// The ranges of all nodes' Pods, IPv4 and IPv6.
pub(crate) const POD_NETWORKS: (&str, &str) = ("10.244.0.0/16", "2001:db8:244::/48");
/// Prefix lengths of a node's pod network, IPv4 and IPv6.
pub(crate) const POD_PREFIX_LENGTHS: (u8, u8) = (24, 64);

/// The most nodes of a LAN.
pub const MOST_NODES: u8 = 80;

/// The LAN, removed on drop.
#[derive(Debug)]
pub struct Lan {
    /// The nodes, ordered by name.
    pub nodes: Vec<Node>,
    /// Clients.
    pub clients: Vec<Client>,
    /// The passing program for the switch's ports to the nodes.
    pass: PassingProgram,
    switch: Namespace,
    options: Options,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its name, as in the manifests: `node-1` etc.
    pub name: String,
    /// Its address on the LAN.
    pub address: Ipv4Addr,
    /// Its IPv6 address on the LAN.
    pub address_v6: Ipv6Addr,
    /// The MAC of its eth0.
    pub mac: MacAddr,
    number: u8,
    pub(crate) lan: String,
    pub(crate) options: Options,
    namespace: Namespace,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    /// Its address on the LAN.
    pub address: Ipv4Addr,
    /// Its IPv6 address on the LAN.
    pub address_v6: Ipv6Addr,
    /// The MAC of its eth0.
    pub mac: MacAddr,
    namespace: Namespace,
}

/// A machine that is neither node nor client.
#[derive(Debug)]
pub struct Machine {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its IPv6 address.
    pub address_v6: Ipv6Addr,
    /// Its network namespace.
    pub namespace: Namespace,
    /// The families of the cluster that it serves.
    pub families: IpFamilies,
}

impl Machine {
    const ADDRESSES: (Ipv4Addr, Ipv6Addr) =
        (Ipv4Addr::new(192, 0, 2, 5), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 5));

    /// Makes a machine that is on no LAN.
    pub fn alone() -> Result<Self> {
        const INTERFACE: &str = "alone0";
        let namespace = Namespace::new(&format!("{}-alone", cleanup::number()))?;
        let (address, address_v6) = Self::ADDRESSES;
        namespace.links(|links| {
            links.add_holder(INTERFACE)?;
            links.set_up(INTERFACE)?;
            links.add_address(INTERFACE, address, PREFIX_LENGTHS.0)?;
            links.add_address(INTERFACE, address_v6, PREFIX_LENGTHS.1)
        })?;
        Ok(Self { address, address_v6, namespace, families: IpFamilies::Dual })
    }
}

impl Lan {
    /// Makes a LAN for a test; `None` if the test is skipped ([`requirement::root`],
    /// [`requirement::uplink`], [`requirement::pods`]).
    pub fn for_test(options: Options) -> Result<Option<Self>> {
        if !requirement::root()? || !requirement::uplink(options.uplink)? || !requirement::pods(options.pods)? {
            return Ok(None);
        }
        Self::new(options).map(Some)
    }

    /// Makes a LAN.
    pub fn new(options: Options) -> Result<Self> {
        let name = format!("{}", cleanup::number());
        let switch = Namespace::new(&format!("{name}-switch"))?;
        switch.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
        switch.links(|links| links.add_bridge(BRIDGE))?;
        let node = |number| Node::plug_in(&name, number, &switch, options);
        let nodes = (1..=options.nodes).map(node).collect::<Result<Vec<_>>>()?;
        let client = |number| Client::plug_in(&name, number, &switch, options);
        let clients = (1..=options.clients).map(client).collect::<Result<_>>()?;
        let pass = PassingProgram::load(options.mtu)?;
        let mut lan = Self { nodes, clients, pass, switch, options };
        if options.ports == SwitchPorts::Native {
            (1..=options.nodes).try_for_each(|number| lan.attach_pass(&format!("node-{number}")))?;
        }
        if options.pod_routes == PodRoutes::Static {
            lan.route_pods()?;
        }
        Ok(lan)
    }

    /// Lets a port of the switch take the frames that native XDP on its other end sends. Cards other than veths
    /// do so by themselves.
    pub fn attach_pass(&mut self, port: &str) -> Result<()> {
        if Wire::of(port)?.is_some() {
            return Ok(());
        }
        let pass = &mut self.pass;
        self.switch.run(|| pass.attach(port))
    }

    /// Undoes [`Self::attach_pass`].
    pub fn detach_pass(&mut self, port: &str) -> Result<()> {
        self.pass.detach(port)
    }

    /// Lets all frames to a node's card bypass native XDP there, as `bpf_redirect_peer` of Cilium does:
    /// the kernel counts them as received, and gives them to the node's stack.
    pub fn bypass(&self, node: &str) -> Result<Bypass> {
        Bypass::begin(&self.switch, node)
    }

    /// Undoes [`Self::bypass`].
    pub fn end_bypass(&self, bypass: Bypass) -> Result<()> {
        bypass.end(&self.switch)
    }

    /// Gives every node a second card, eth1, on the same segment, with an address in 192.0.3.0/24.
    /// Returns their MACs, by node. Each card answers only for its own addresses.
    pub fn add_cards(&mut self) -> Result<Vec<MacAddr>> {
        let mut macs = Vec::new();
        for node in &self.nodes {
            node.namespace.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
            let addresses = (
                Ipv4Addr::new(192, 0, 3, 10 + node.number),
                Ipv6Addr::new(0x2001, 0xdb8, 0, 3, 0, 0, 0xa, node.number.into()),
            );
            let port = format!("{}-eth1", node.name);
            let mtu = self.options.mtu;
            macs.push(plug_in_card((&node.namespace, "eth1"), addresses, (&self.switch, BRIDGE, &port), mtu)?);
            let pass = &mut self.pass;
            self.switch.run(|| pass.attach(&port))?;
        }
        Ok(macs)
    }

    /// Gives every node a second card, eth1, on the same segment and in the same subnet, with an address
    /// from 192.0.2.21 on. Each card answers only for its own addresses. A card without a carrier has no
    /// routes, as with a network manager. Returns their MACs, by node. The switch's ports are called
    /// `node-1-eth1` etc.
    pub fn add_cards_beside(&mut self) -> Result<Vec<MacAddr>> {
        let mut macs = Vec::new();
        for node in &self.nodes {
            let addresses = (
                Ipv4Addr::new(192, 0, 2, 20 + node.number),
                Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xb, node.number.into()),
            );
            let port = format!("{}-eth1", node.name);
            let mtu = self.options.mtu;
            macs.push(plug_in_card((&node.namespace, "eth1"), addresses, (&self.switch, BRIDGE, &port), mtu)?);
            node.namespace.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
            for family in ["ipv4", "ipv6"] {
                for whose in ["all", "eth0", "eth1"] {
                    let sysctl = format!("net/{family}/conf/{whose}/ignore_routes_with_linkdown");
                    node.namespace.sysctl(&sysctl, "1")?;
                }
            }
            let pass = &mut self.pass;
            self.switch.run(|| pass.attach(&port))?;
        }
        Ok(macs)
    }

    /// Adds a second card, card1, to every node's bond. The switch's ports are called `node-1-card1`
    /// etc.
    pub fn add_bond_cards(&mut self) -> Result<()> {
        for node in &self.nodes {
            let port = format!("{}-card1", node.name);
            node.namespace.links(|links| {
                links.add_veth(End::named("card1"), End::named(&port), &self.switch)?;
                links.set_mtu("card1", self.options.mtu)?;
                // A bond takes no card that is up.
                links.set_down("card1")?;
                links.add_port("eth0", "card1")
            })?;
            self.switch.links(|links| {
                links.set_mtu(&port, self.options.mtu)?;
                links.add_port(BRIDGE, &port)
            })?;
            let pass = &mut self.pass;
            self.switch.run(|| pass.attach(&port))?;
        }
        Ok(())
    }

    /// Returns the node of this name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.iter().find(|node| node.name == name).with_context(|| format!("no node {name}"))
    }

    /// Returns the node that has this MAC on the LAN.
    pub fn node_of(&self, mac: MacAddr) -> Option<&Node> {
        self.nodes.iter().find(|node| node.mac == mac)
    }

    /// Returns the first client, the only one in most tests.
    pub fn client(&self) -> Result<&Client> {
        self.clients.first().context("the LAN has no client")
    }

    /// Unplugs a node's cable: the node loses its carrier.
    pub fn unplug(&self, node: &str) -> Result<()> {
        if let Some(wire) = Wire::of(node)? {
            return wire.set_plugged(false);
        }
        self.switch.links(|links| links.set_down(node))
    }

    /// Plugs the cable in again.
    pub fn plug(&self, node: &str) -> Result<()> {
        if let Some(wire) = Wire::of(node)? {
            return wire.set_plugged(true);
        }
        self.switch.links(|links| links.set_up(node))
    }

    /// Drops a node's frames that are longer than the MTU, as a wire does. The switch's ports must be
    /// [`SwitchPorts::Plain`]: others merge frames.
    pub fn drop_long_frames_of(&self, node: &str) -> Result<()> {
        let mtu = self.options.mtu;
        self.switch.nft(&format!(
            "table netdev {node} {{
                chain ingress {{
                    type filter hook ingress device \"{node}\" priority 0;
                    meta length > {mtu} drop
                }}
            }}"
        ))?;
        Ok(())
    }

    /// Isolates a node: the switch forwards nothing to it or from it, but the node keeps its
    /// carrier.
    pub fn cut_off(&self, node: &str) -> Result<()> {
        self.switch.links(|links| links.remove_port(node))
    }

    /// Ends the isolation of a node.
    pub fn join(&self, node: &str) -> Result<()> {
        self.switch.links(|links| links.add_port(BRIDGE, node))
    }

    /// Returns the MTU of all interfaces.
    pub fn mtu(&self) -> u32 {
        self.options.mtu
    }

    /// Returns the switch's network namespace. Its ports have the names of nodes and clients.
    pub fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// Gives nodes a second card, eth1, on a segment of its own with one client: 203.0.113.0/24 and
    /// 2001:db8:113::/64. The other nodes reach that segment through the first of these nodes.
    pub fn add_segment(&mut self, nodes: &[&str]) -> Result<Client> {
        const BRIDGE: &str = "br1";
        const NETWORKS: (Ipv4Addr, Ipv6Addr) =
            (Ipv4Addr::new(203, 0, 113, 0), Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 0));
        let machine = |number: u8| {
            let address_v6 = Ipv6Addr::from_bits(NETWORKS.1.to_bits() | u128::from(number));
            (Ipv4Addr::from_bits(NETWORKS.0.to_bits() | u32::from(number)), address_v6)
        };
        self.switch.links(|links| links.add_bridge(BRIDGE))?;
        for name in nodes {
            let (node, port) = (self.node(name)?, format!("{name}-eth1"));
            let (here, there) = ((&node.namespace, "eth1"), (&self.switch, BRIDGE, port.as_str()));
            plug_in_card(here, machine(node.number), there, self.options.mtu)?;
            let pass = &mut self.pass;
            self.switch.run(|| pass.attach(&port))?;
        }
        let router = self.node(nodes.first().context("no node on the segment")?)?;
        for other in self.nodes.iter().filter(|other| !nodes.contains(&other.name.as_str())) {
            other.namespace.links(|links| {
                links.add_route("eth0", (NETWORKS.0, PREFIX_LENGTHS.0), Some(router.address))?;
                links.add_route("eth0", (NETWORKS.1, PREFIX_LENGTHS.1), Some(router.address_v6))
            })?;
        }
        let namespace = Namespace::new(&format!("{}-beside", cleanup::number()))?;
        let (address, address_v6) = machine(101);
        let here = (&namespace, "eth0");
        let mac = plug_in_card(here, (address, address_v6), (&self.switch, BRIDGE, "beside"), self.options.mtu)?;
        if !self.options.offloads {
            namespace.run(|| offload::disable("eth0", Offload::TxChecksum))?;
        }
        Ok(Client { address, address_v6, mac, namespace })
    }

    /// Puts a node and the first client into VLAN 100 too, by the interface vlan100: 203.0.113.0/24
    /// and 2001:db8:113::/64. The other nodes reach that VLAN through the node.
    pub fn add_vlan(&self, node: &str) -> Result<()> {
        const VLAN: u16 = 100;
        const INTERFACE: &str = "vlan100";
        let (node, client) = (self.node(node)?, self.client()?);
        let machine = |number: u8| {
            (Ipv4Addr::new(203, 0, 113, number), Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, number.into()))
        };
        let uplink = self.options.uplink;
        for (namespace, uplink, port, number) in
            [(&node.namespace, uplink, node.name.as_str(), 1), (&client.namespace, uplink.of_client(), "client-1", 101)]
        {
            if Wire::of(port)?.is_none() {
                // A veth would carry the tag beside the frame, where XDP does not see it.
                namespace.run(|| offload::disable(uplink.card(), Offload::TxVlan))?;
                self.switch.run(|| offload::disable(port, Offload::TxVlan))?;
            }
            namespace.links(|links| {
                links.add_vlan(INTERFACE, "eth0", VLAN)?;
                links.set_up(INTERFACE)?;
                links.add_address(INTERFACE, machine(number).0, PREFIX_LENGTHS.0)?;
                links.add_address(INTERFACE, machine(number).1, PREFIX_LENGTHS.1)
            })?;
        }
        for other in self.nodes.iter().filter(|other| other.number != node.number) {
            other.namespace.links(|links| {
                links.add_route("eth0", (machine(0).0, PREFIX_LENGTHS.0), Some(node.address))?;
                links.add_route("eth0", (machine(0).1, PREFIX_LENGTHS.1), Some(node.address_v6))
            })?;
        }
        Ok(())
    }

    /// Adds a machine that is neither node nor client, at 192.0.2.5 and 2001:db8::5, which reaches
    /// the pods. There is only one such machine.
    pub fn add_machine(&self, name: &str) -> Result<Machine> {
        let namespace = Namespace::new(&format!("{}-{name}", cleanup::number()))?;
        let (address, address_v6) = Machine::ADDRESSES;
        let uplink = self.options.uplink.of_client();
        plug_in(&namespace, (address, address_v6), &self.switch, name, (uplink, self.options.mtu))?;
        namespace.links(|links| self.nodes.iter().try_for_each(|node| route_pods_of(links, node)))?;
        Ok(Machine { address, address_v6, namespace, families: self.options.families })
    }

    /// Lets every node reach the other nodes' pods, as a CNI does.
    fn route_pods(&self) -> Result<()> {
        for node in &self.nodes {
            let others = self.nodes.iter().filter(|other| other.number != node.number);
            node.namespace.links(|links| others.into_iter().try_for_each(|other| route_pods_of(links, other)))?;
        }
        Ok(())
    }
}

fn route_pods_of(links: &Links, node: &Node) -> Result<()> {
    links.add_route("eth0", (node.pod_address(0), POD_PREFIX_LENGTHS.0), Some(node.address))?;
    links.add_route("eth0", (node.pod_address_v6(0), POD_PREFIX_LENGTHS.1), Some(node.address_v6))
}

impl Node {
    fn plug_in(lan: &str, number: u8, switch: &Namespace, options: Options) -> Result<Self> {
        let name = format!("node-{number}");
        let namespace = Namespace::new(&format!("{lan}-{name}"))?;
        let address = Ipv4Addr::new(192, 0, 2, 10 + number);
        let address_v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xa, number.into());
        let mac = plug_in(&namespace, (address, address_v6), switch, &name, (options.uplink, options.mtu))?;
        let filter = options.reverse_path_filter.to_string();
        let sysctls = [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/send_redirects", "0"),
            ("net/ipv4/conf/default/send_redirects", "0"),
            ("net/ipv4/conf/eth0/send_redirects", "0"),
            ("net/ipv4/conf/all/rp_filter", filter.as_str()),
            ("net/ipv4/conf/default/rp_filter", filter.as_str()),
            ("net/ipv4/conf/eth0/rp_filter", filter.as_str()),
        ];
        for (key, value) in sysctls {
            namespace.sysctl(key, value)?;
        }
        let node = Self { name, address, address_v6, mac, number, lan: lan.to_owned(), options, namespace };
        options.pods.prepare(&node)?;
        if options.kubernetes_rules || options.cni_rules {
            node.nft(&options.pods.rules(&node))?;
        }
        if options.kubernetes_rules {
            ["ip", "ip6"].into_iter().try_for_each(|family| node.nft(&kube_proxy_rules(family)).map(drop))?;
        }
        Ok(node)
    }

    /// Runs `nft` with these commands on the node and returns what it writes.
    pub fn nft(&self, commands: &str) -> Result<String> {
        self.namespace.nft(commands)
    }

    /// Adds a packet filter of the node's own for incoming gossip.
    pub fn filter_gossip(&self, verdict: &str) -> Result<()> {
        self.nft(&format!(
            "table inet filter {{
                chain input {{
                    type filter hook input priority 0;
                    udp dport {GOSSIP} {verdict}
                }}
            }}"
        ))
        .map(drop)
    }

    /// Removes the packet filter.
    pub fn unfilter_gossip(&self) -> Result<()> {
        self.nft("delete table inet filter").map(drop)
    }

    /// Returns the packets of a named counter ([`Namespace::nft_packets`]).
    pub fn nft_packets(&self, counter: (&str, &str, &str)) -> Result<u64> {
        self.namespace.nft_packets(counter)
    }

    /// Returns an address in the node's pod network.
    pub fn pod_address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, self.number, host)
    }

    /// Returns an IPv6 address in the node's pod network.
    pub fn pod_address_v6(&self, host: u8) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0x244, self.number.into(), 0, 0, 0, host.into())
    }

    /// Returns the ranges of the node's pods, one of each family of the cluster.
    pub(crate) fn pod_ranges(&self) -> Vec<String> {
        let (v4, v6) = POD_PREFIX_LENGTHS;
        let ranges = (format!("{}/{v4}", self.pod_address(0)), format!("{}/{v6}", self.pod_address_v6(0)));
        self.options.families.of(ranges.0, ranges.1)
    }

    /// Returns the families of the cluster.
    pub fn families(&self) -> IpFamilies {
        self.options.families
    }

    /// Runs `tc` with these arguments on the node and returns what it writes.
    pub fn tc(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.namespace.command("tc")?;
        command.args(arguments);
        process::run(command).context("tc comes with the package iproute2")
    }

    /// Returns the node's network namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

/// Returns rules like those of kube-proxy's iptables mode: INVALID is dropped, marked packets are
/// masqueraded.
fn kube_proxy_rules(family: &str) -> String {
    format!(
        "table {family} kube-proxy {{
            chain filter-forward {{
                type filter hook forward priority 0; policy accept;
                ct state invalid drop
            }}
            chain nat-postrouting {{
                type nat hook postrouting priority 100; policy accept;
                meta mark & 0x4000 == 0x4000 masquerade
            }}
        }}"
    )
}

impl Client {
    fn plug_in(lan: &str, number: u8, switch: &Namespace, options: Options) -> Result<Self> {
        let name = format!("client-{number}");
        let namespace = Namespace::new(&format!("{lan}-{name}"))?;
        let address = Ipv4Addr::new(192, 0, 2, 100 + number);
        let address_v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xc, number.into());
        let uplink = options.uplink.of_client();
        let mac = plug_in(&namespace, (address, address_v6), switch, &name, (uplink, options.mtu))?;
        let interfaces: &[&str] = if uplink == Uplink::Card { &["eth0"] } else { &[uplink.card(), "eth0"] };
        for interface in interfaces.iter().filter(|_| !options.offloads) {
            namespace.run(|| offload::disable(interface, Offload::TxChecksum))?;
        }
        Ok(Self { address, address_v6, mac, namespace })
    }

    /// Routes a node's pod network to that node, for connections to pods without a Service.
    pub fn route_pods_of(&self, node: &Node) -> Result<()> {
        self.namespace.links(|links| route_pods_of(links, node))
    }

    /// Returns the MAC that the client's kernel has for an address.
    pub fn neighbor(&self, address: impl Into<IpAddr> + Send) -> Result<Option<MacAddr>> {
        self.namespace.links(|links| links.neighbor(address))
    }

    /// Returns the client's network namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}
