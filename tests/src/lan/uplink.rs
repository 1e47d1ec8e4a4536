//! Connects machines to the switch by cards and by the interfaces on top of them.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader,
    programs::{XdpMode, xdp::XdpLinkId},
};
use pnet::util::MacAddr;
use vipmux_datapath::bpf::uninterrupted::uninterrupted;

use super::{BRIDGE, ORDINARY_MTU, PREFIX_LENGTHS, card::Wire};
use crate::{
    links::{End, Links},
    netns::Namespace,
    offload::{self, Offload},
    process,
    program::{self, TESTING_OBJECT},
};

/// The kind of the interface with a machine's address, which is always called eth0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// The card itself.
    Card,
    /// A VLAN of `card0`, on nodes and on clients.
    Vlan(u16),
    /// A bridge with the port `card0` and a MAC of its own, on nodes.
    Bridge,
    /// An active-backup bond with the one card `card0`, on nodes.
    Bond,
    /// A team of the one card `card0`, on nodes. It sends by its cards in turn.
    Team,
}

impl Uplink {
    /// Returns the card's name.
    pub fn card(self) -> &'static str {
        if self == Self::Card { "eth0" } else { "card0" }
    }

    /// Returns a client's kind. Clients have the nodes' VLAN, but no bonds or bridges, which are
    /// invisible from outside.
    pub(super) fn of_client(self) -> Self {
        if let Self::Vlan(_) = self { self } else { Self::Card }
    }
}

/// Connects a namespace's eth0, with these addresses, to the switch's port of this name. Returns
/// eth0's MAC.
pub(crate) fn plug_in(
    namespace: &Namespace,
    (address, address_v6): (Ipv4Addr, Ipv6Addr),
    switch: &Namespace,
    port: &str,
    (uplink, mtu): (Uplink, u32),
) -> Result<MacAddr> {
    let [a, b, c, d] = address.octets();
    let mac = MacAddr(0x02, 0, a, b, c, d);
    // For interfaces that are not made yet: link-local addresses are usable at once, and no router
    // is solicited.
    namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    namespace.sysctl("net/ipv6/conf/default/accept_ra", "0")?;
    let card = uplink.card();
    let card_mac = if uplink == Uplink::Bridge { MacAddr(0x02, 1, a, b, c, d) } else { mac };
    let (here, there) = (End { name: card, mac: Some(card_mac) }, End::named(port));
    let wire = Wire::of(port)?;
    match &wire {
        Some(wire) => wire.connect((namespace, here), (switch, there))?,
        None => namespace.links(|links| links.add_veth(here, there, switch))?,
    }
    if wire.is_none() && matches!(uplink, Uplink::Vlan(_)) {
        // A veth would carry the tag beside the frame, where XDP does not see it.
        namespace.run(|| offload::disable(card, Offload::TxVlan))?;
        switch.run(|| offload::disable(port, Offload::TxVlan))?;
    }
    namespace.links(|links| {
        match uplink {
            Uplink::Card => {}
            Uplink::Vlan(id) => links.add_vlan("eth0", card, id)?,
            Uplink::Bridge => {
                links.add_bridge("eth0")?;
                links.set_mac("eth0", mac)?;
                links.add_port("eth0", card)?;
            }
            Uplink::Bond | Uplink::Team => {
                if uplink == Uplink::Bond {
                    links.add_bond("eth0")?;
                } else {
                    add_team(namespace, links, "eth0", mac)?;
                }
                // Neither takes a card that is up.
                links.set_down(card)?;
                links.add_port("eth0", card)?;
            }
        }
        links.set_mtu(card, mtu)?;
        links.set_mtu("eth0", mtu)?;
        links.set_up("eth0")?;
        links.add_address("eth0", address, PREFIX_LENGTHS.0)?;
        links.add_address("eth0", address_v6, PREFIX_LENGTHS.1)
    })?;
    switch.links(|links: &Links| {
        links.set_mtu(port, mtu)?;
        links.add_port(BRIDGE, port)
    })?;
    Ok(mac)
}

/// Makes a team in `namespace`, whose `links` these are. It gives its MAC to its cards. Netlink's generic
/// family sets its mode.
fn add_team(namespace: &Namespace, links: &Links, name: &str, mac: MacAddr) -> Result<()> {
    links.add_team(name)?;
    links.set_mac(name, mac)?;
    let mut teamnl = namespace.command("teamnl")?;
    teamnl.args([name, "setoption", "mode", "roundrobin"]);
    process::run(teamnl).map(drop).context("teamnl comes with the package libteam-utils")
}

/// Connects a namespace's card, with these addresses, to the port of this name of a switch's
/// bridge. Returns its MAC.
pub(super) fn plug_in_card(
    (namespace, card): (&Namespace, &str),
    (address, address_v6): (Ipv4Addr, Ipv6Addr),
    (switch, bridge, port): (&Namespace, &str, &str),
    mtu: u32,
) -> Result<MacAddr> {
    let [a, b, c, d] = address.octets();
    let mac = MacAddr(0x02, 0, a, b, c, d);
    namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    namespace.links(|links| {
        links.add_veth(End { name: card, mac: Some(mac) }, End::named(port), switch)?;
        links.set_mtu(card, mtu)?;
        links.add_address(card, address, PREFIX_LENGTHS.0)?;
        links.add_address(card, address_v6, PREFIX_LENGTHS.1)
    })?;
    switch.links(|links| {
        links.set_mtu(port, mtu)?;
        links.add_port(bridge, port)
    })?;
    Ok(mac)
}

/// Returns the passing program's name. Frames in several buffers need Linux 5.18, so only long
/// frames use them.
fn pass(mtu: u32) -> &'static str {
    if mtu > ORDINARY_MTU { "pass_jumbo" } else { "pass" }
}

/// The passing program, and the ports that it is attached to.
#[derive(Debug)]
pub(super) struct PassingProgram {
    ebpf: Ebpf,
    name: &'static str,
    links: BTreeMap<String, XdpLinkId>,
}

impl PassingProgram {
    /// Loads the program.
    pub(super) fn load(mtu: u32) -> Result<Self> {
        let mut ebpf = EbpfLoader::new().load(TESTING_OBJECT).context("cannot load the testing programs")?;
        let name = pass(mtu);
        let pass = program::xdp_mut(&mut ebpf, name)?;
        uninterrupted(|| pass.load()).context("cannot load the passing program")?;
        Ok(Self { ebpf, name, links: BTreeMap::new() })
    }

    /// Attaches the program to a port of the switch. A veth drops a frame that native XDP sends
    /// back, unless its peer has an XDP program.
    pub(super) fn attach(&mut self, port: &str) -> Result<()> {
        let attached = program::xdp_mut(&mut self.ebpf, self.name)?.attach(port, XdpMode::Driver);
        let link =
            attached.with_context(|| format!("cannot attach the passing program to the switch's port {port}"))?;
        self.links.insert(port.to_owned(), link);
        Ok(())
    }

    /// Detaches the program from a port.
    pub(super) fn detach(&mut self, port: &str) -> Result<()> {
        let link = self.links.remove(port).with_context(|| format!("no passing program on the port {port}"))?;
        Ok(program::xdp_mut(&mut self.ebpf, self.name)?.detach(link)?)
    }
}
