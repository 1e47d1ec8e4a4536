//! Links, addresses, routes and neighbors of one network namespace, by rtnetlink.

mod namespaces;

use std::{
    net::{IpAddr, Ipv6Addr},
    pin::pin,
};

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use netlink_packet_route::{
    address::AddressHeaderFlags,
    link::{BondMode, LinkAttribute, LinkFlags, LinkMessage, LinkXdp, MacVlanMode, XdpAttached},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
    route::{RouteAttribute, RouteMetric, RouteScope},
};
use pnet::util::MacAddr;
use rtnetlink::{
    Error, Handle, LinkBond, LinkBridge, LinkDummy, LinkMacVlan, LinkMessageBuilder, LinkTeam, LinkUnspec, LinkVlan,
    RouteMessageBuilder,
};
use tokio::runtime::{Builder, Runtime};

/// A netlink socket in the network namespace of the thread that opened it.
pub struct Links {
    runtime: Runtime,
    handle: Handle,
}

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The interface's name.
    pub name: &'a str,
    /// Its MAC; `None`: a random one.
    pub mac: Option<MacAddr>,
}

impl<'a> End<'a> {
    /// An end with a random MAC.
    pub fn named(name: &'a str) -> Self {
        Self { name, mac: None }
    }
}

impl Links {
    /// Opens the socket.
    pub fn open() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (connection, handle, _) = {
            let _context = runtime.enter();
            rtnetlink::new_connection().context("cannot open a netlink socket")?
        };
        runtime.spawn(connection);
        Ok(Self { runtime, handle })
    }

    /// Returns an interface's index.
    pub fn index(&self, name: &str) -> Result<u32> {
        Ok(self.get(name)?.0)
    }

    /// Returns an interface's MAC.
    pub fn mac(&self, name: &str) -> Result<MacAddr> {
        Ok(self.get(name)?.1)
    }

    /// Returns whether an XDP program is attached to an interface.
    pub fn has_xdp(&self, name: &str) -> Result<bool> {
        let mut attributes = self.message(name)?.attributes.into_iter();
        Ok(attributes.any(|attribute| match attribute {
            LinkAttribute::Xdp(xdp) => {
                xdp.iter().any(|part| matches!(part, LinkXdp::Attached(mode) if *mode != XdpAttached::None))
            }
            _ => false,
        }))
    }

    /// Returns the number of frames that an interface has received.
    pub fn received(&self, name: &str) -> Result<u64> {
        let frames = self.message(name)?.attributes.into_iter().find_map(|attribute| match attribute {
            LinkAttribute::Stats64(stats) => Some(stats.rx_packets),
            _ => None,
        });
        frames.with_context(|| format!("{name} does not count frames"))
    }

    fn message(&self, name: &str) -> Result<LinkMessage> {
        let mut links = pin!(self.handle.link().get().match_name(name).execute());
        self.runtime.block_on(links.try_next())?.with_context(|| format!("no interface {name}"))
    }

    fn get(&self, name: &str) -> Result<(u32, MacAddr)> {
        let link = self.message(name)?;
        let mac = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok(),
            _ => None,
        });
        Ok((link.header.index, mac.unwrap_or_default().into()))
    }

    /// Returns whether an interface has a carrier.
    pub fn has_carrier(&self, name: &str) -> Result<bool> {
        Ok(self.message(name)?.header.flags.contains(LinkFlags::LowerUp))
    }

    /// Makes a bridge that behaves like a plain switch: it forwards at once, and floods multicast.
    pub fn add_bridge(&self, name: &str) -> Result<()> {
        let bridge = LinkBridge::new(name).forward_delay(0).mcast_snooping(false).build();
        self.runtime
            .block_on(self.handle.link().add(bridge).execute())
            .with_context(|| format!("cannot make the bridge {name}"))
    }

    /// Makes a VLAN interface.
    pub fn add_vlan(&self, name: &str, parent: &str, id: u16) -> Result<()> {
        self.add(LinkVlan::new(name, self.index(parent)?, id).build())
            .with_context(|| format!("cannot make the VLAN {id} of {parent}"))
    }

    /// Makes an active-backup bond.
    pub fn add_bond(&self, name: &str) -> Result<()> {
        self.add(LinkBond::new(name).mode(BondMode::ActiveBackup).miimon(20).build())
            .with_context(|| format!("cannot make the bond {name}"))
    }

    /// Makes a team, which has no mode yet.
    pub fn add_team(&self, name: &str) -> Result<()> {
        self.add(LinkMessageBuilder::<LinkTeam>::new(name).build())
            .with_context(|| format!("cannot make the team {name}"))
    }

    /// Makes a macvlan on an interface; its driver has no native XDP.
    pub fn add_macvlan(&self, name: &str, parent: &str) -> Result<()> {
        self.add(LinkMacVlan::new(name, self.index(parent)?, MacVlanMode::Bridge).up().build())
            .with_context(|| format!("cannot make a macvlan on {parent}"))
    }

    fn add(&self, message: LinkMessage) -> Result<()> {
        Ok(self.runtime.block_on(self.handle.link().add(message).execute())?)
    }

    /// Deletes an interface.
    pub fn delete(&self, name: &str) -> Result<()> {
        let index = self.index(name)?;
        self.runtime.block_on(self.handle.link().del(index).execute()).with_context(|| format!("cannot delete {name}"))
    }

    /// Gives an interface an MTU, bytes.
    pub fn set_mtu(&self, name: &str, mtu: u32) -> Result<()> {
        self.set(LinkUnspec::new_with_name(name).mtu(mtu))
            .with_context(|| format!("cannot give {name} an MTU of {mtu}"))
    }

    /// Lets an interface send and join frames of up to 180 KB, whose length fields are zero (BIG TCP).
    pub fn enable_big_tcp(&self, name: &str) -> Result<()> {
        const LONGEST: u32 = 180_000;
        let sizes = [
            LinkAttribute::GsoMaxSize(LONGEST),
            LinkAttribute::GsoIpv4MaxSize(LONGEST),
            LinkAttribute::GroMaxSize(LONGEST),
            LinkAttribute::GroIpv4MaxSize(LONGEST),
        ];
        let link = sizes.into_iter().fold(LinkUnspec::new_with_name(name), LinkMessageBuilder::append_extra_attribute);
        self.set(link).with_context(|| format!("{name} cannot have longer frames"))
    }

    /// Gives an interface a MAC.
    pub fn set_mac(&self, name: &str, mac: MacAddr) -> Result<()> {
        self.set(LinkUnspec::new_with_name(name).address(mac.octets().to_vec()))
            .with_context(|| format!("cannot give {name} the MAC {mac}"))
    }

    /// Detaches an interface from its bridge.
    pub fn remove_port(&self, port: &str) -> Result<()> {
        self.set(LinkUnspec::new_with_name(port).nocontroller())
            .with_context(|| format!("cannot take {port} out of its bridge"))
    }

    /// Makes an interface that only holds addresses, like kube-proxy's ipvs mode: a dummy, or a
    /// bridge without ports if the kernel has no dummies.
    pub fn add_holder(&self, name: &str) -> Result<()> {
        let add = |message| self.runtime.block_on(self.handle.link().add(message).execute());
        match add(LinkDummy::new(name).up().build()) {
            Err(Error::NetlinkError(error)) if error.raw_code() == -libc::EOPNOTSUPP => {
                add(LinkBridge::new(name).build())
            }
            result => result,
        }
        .with_context(|| format!("cannot make the interface {name}"))
    }

    /// Makes an interface a port of a bridge.
    pub fn add_port(&self, bridge: &str, port: &str) -> Result<()> {
        let bridge_index = self.index(bridge)?;
        self.set(LinkUnspec::new_with_name(port).controller(bridge_index))
            .with_context(|| format!("cannot make {port} a port of {bridge}"))
    }

    /// Sets an interface up.
    pub fn set_up(&self, name: &str) -> Result<()> {
        self.set(LinkUnspec::new_with_name(name).up()).with_context(|| format!("cannot set {name} up"))
    }

    /// Sets an interface down. A veth's peer then has no carrier.
    pub fn set_down(&self, name: &str) -> Result<()> {
        self.set(LinkUnspec::new_with_name(name).down()).with_context(|| format!("cannot set {name} down"))
    }

    fn set(&self, link: LinkMessageBuilder<LinkUnspec>) -> Result<()> {
        Ok(self.runtime.block_on(self.handle.link().set(link.build()).execute())?)
    }

    /// Adds an address to an interface. It is usable at once, without duplicate address detection.
    pub fn add_address(&self, interface: &str, address: impl Into<IpAddr>, prefix_length: u8) -> Result<()> {
        let address = address.into();
        let mut request = self.handle.address().add(self.index(interface)?, address, prefix_length);
        if address.is_ipv6() {
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        }
        self.runtime
            .block_on(request.execute())
            .with_context(|| format!("cannot give {interface} the address {address}/{prefix_length}"))
    }

    /// Removes an address from an interface. With the last one of a subnet its routes go.
    pub fn remove_address(&self, interface: &str, address: impl Into<IpAddr>, prefix_length: u8) -> Result<()> {
        let (address, handle) = (address.into(), self.handle.address());
        let message = handle.add(self.index(interface)?, address, prefix_length).message_mut().clone();
        self.runtime
            .block_on(handle.del(message).execute())
            .with_context(|| format!("cannot take the address {address}/{prefix_length} from {interface}"))
    }

    /// Adds a route. Without a gateway, the destination is on the link.
    pub fn add_route<A: Into<IpAddr>>(
        &self,
        interface: &str,
        (destination, prefix_length): (A, u8),
        gateway: Option<A>,
    ) -> Result<()> {
        let destination = destination.into();
        let route = self.route(interface, destination, prefix_length)?;
        let route = match gateway {
            Some(gateway) => route.gateway(gateway.into())?,
            None => route.scope(RouteScope::Link),
        };
        self.runtime
            .block_on(self.handle.route().add(route.build()).execute())
            .with_context(|| format!("cannot add the route to {destination}/{prefix_length} on {interface}"))
    }

    /// Makes the kernel send to a subnet by this interface, where it is in the subnet by several.
    pub fn prefer_route(&self, interface: &str, (subnet, prefix_length): (impl Into<IpAddr>, u8)) -> Result<()> {
        let subnet = subnet.into();
        let route = self.route(interface, subnet, prefix_length)?.scope(RouteScope::Link);
        self.runtime
            .block_on(self.handle.route().add(route.build()).replace().execute())
            .with_context(|| format!("cannot move the route to {subnet}/{prefix_length} to {interface}"))
    }

    /// Changes an existing route to another gateway through this interface.
    pub fn move_route<A: Into<IpAddr>>(
        &self,
        interface: &str,
        (destination, prefix_length): (A, u8),
        gateway: A,
    ) -> Result<()> {
        let destination = destination.into();
        let route = self.route(interface, destination, prefix_length)?.gateway(gateway.into())?;
        self.runtime
            .block_on(self.handle.route().add(route.build()).replace().execute())
            .with_context(|| format!("cannot move the route to {destination}/{prefix_length} to {interface}"))
    }

    fn route(&self, interface: &str, destination: IpAddr, prefix_length: u8) -> Result<RouteMessageBuilder<IpAddr>> {
        let route = RouteMessageBuilder::<IpAddr>::new().destination_prefix(destination, prefix_length)?;
        Ok(route.output_interface(self.index(interface)?))
    }

    /// Sets the MTU of the on-link route to an address, as if a narrower link were behind it.
    pub fn narrow_route(&self, interface: &str, address: impl Into<IpAddr>, mtu: u32) -> Result<()> {
        let address = address.into();
        let host = if address.is_ipv4() { 32 } else { 128 };
        let mut route = self.route(interface, address, host)?.scope(RouteScope::Link).build();
        route.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
        self.runtime
            .block_on(self.handle.route().add(route).replace().execute())
            .with_context(|| format!("cannot narrow the route to {address} on {interface}"))
    }

    /// Adds a permanent neighbor entry.
    pub fn add_neighbor(&self, interface: &str, address: impl Into<IpAddr>, mac: MacAddr) -> Result<()> {
        let (index, address) = (self.index(interface)?, address.into());
        self.runtime
            .block_on(
                self.handle.neighbours().add(index, address).link_layer_address(&mac.octets()).replace().execute(),
            )
            .with_context(|| format!("cannot add the neighbor {address} on {interface}"))
    }

    /// Makes the kernel answer for an IPv6 address on an interface, at once: a proxy (RFC 4861,
    /// 7.2.8). The interface's `proxy_ndp` must be on.
    pub fn add_proxy(&self, interface: &str, address: Ipv6Addr) -> Result<()> {
        let proxy = self.handle.neighbours().add(self.index(interface)?, address.into()).flags(NeighbourFlags::Proxy);
        self.runtime
            .block_on(proxy.execute())
            .with_context(|| format!("cannot be a proxy for {address} on {interface}"))
    }

    /// Returns the MAC that the kernel has for an address on the segment, if any.
    pub fn neighbor(&self, address: impl Into<IpAddr>) -> Result<Option<MacAddr>> {
        Ok(self.find_neighbor(address.into())?.as_ref().and_then(neighbor_mac))
    }

    /// Returns the addresses whose neighbor entries have `NDA_PROTOCOL`: neither the kernel nor
    /// `ip` made them.
    pub fn managed_neighbors(&self) -> Result<Vec<IpAddr>> {
        let mut all = pin!(self.handle.neighbours().get().execute());
        let mut found = Vec::new();
        while let Some(message) = self.runtime.block_on(all.try_next())? {
            let is_marked =
                message.attributes.iter().any(|attribute| matches!(attribute, NeighbourAttribute::Protocol(_)));
            found.extend(message.attributes.iter().find_map(|attribute| match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) if is_marked => {
                    Some(IpAddr::V4(*address))
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) if is_marked => {
                    Some(IpAddr::V6(*address))
                }
                _ => None,
            }));
        }
        Ok(found)
    }

    /// Makes the kernel forget an address, so that the next packet resolves it again.
    pub fn forget_neighbor(&self, address: impl Into<IpAddr>) -> Result<()> {
        let address = address.into();
        let Some(message) = self.find_neighbor(address)? else { return Ok(()) };
        self.runtime
            .block_on(self.handle.neighbours().del(message).execute())
            .with_context(|| format!("cannot delete the neighbor {address}"))
    }

    fn find_neighbor(&self, address: IpAddr) -> Result<Option<NeighbourMessage>> {
        let wanted = NeighbourAttribute::Destination(match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        });
        let mut all = pin!(self.handle.neighbours().get().execute());
        while let Some(message) = self.runtime.block_on(all.try_next())? {
            if message.attributes.contains(&wanted) && message.header.state != NeighbourState::Noarp {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }
}

fn neighbor_mac(message: &NeighbourMessage) -> Option<MacAddr> {
    if matches!(message.header.state, NeighbourState::Failed | NeighbourState::Incomplete) {
        return None;
    }
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => Some(<[u8; 6]>::try_from(bytes.as_slice()).ok()?.into()),
        _ => None,
    })
}
