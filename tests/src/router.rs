//! A router on the LAN with a client behind it.
//!
//! ```text
//!  LAN ---- eth0 router eth1 ---- eth0 client
//!  192.0.2.90         198.51.100.1     198.51.100.10
//!  2001:db8::b:1      2001:db8:be::1   2001:db8:be::10
//!  192.0.3.90, 2001:db8:0:3::b:1: for the nodes' second cards
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;

use crate::{
    cleanup,
    lan::{Lan, Uplink, plug_in},
    links::End,
    netns::Namespace,
    offload::{self, Offload},
};

/// The router's address on the LAN.
const ON_THE_LAN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 90);
const ON_THE_LAN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xb, 1);
/// The router's address on the network of the nodes' second cards ([`Lan::add_cards`]).
const FOR_SECOND_CARDS: Ipv4Addr = Ipv4Addr::new(192, 0, 3, 90);
const FOR_SECOND_CARDS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 3, 0, 0, 0xb, 1);
/// The router's addresses for the client.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xbe, 0, 0, 0, 0, 1);
/// The networks behind the router.
const BEYOND: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 51, 100, 0), 24);
const BEYOND_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2001, 0xdb8, 0xbe, 0, 0, 0, 0, 0), 64);

/// The router and the client, removed on drop.
#[derive(Debug)]
pub struct Router {
    /// The client's address.
    pub address: Ipv4Addr,
    /// The client's IPv6 address.
    pub address_v6: Ipv6Addr,
    namespace: Namespace,
    client: Namespace,
}

impl Router {
    /// Connects a router to a LAN, and adds routes to the nodes.
    pub fn plug_in(lan: &Lan) -> Result<Self> {
        let name = cleanup::number();
        let router = Namespace::new(&format!("{name}-router"))?;
        let client = Namespace::new(&format!("{name}-beyond"))?;
        let address = Ipv4Addr::new(198, 51, 100, 10);
        let address_v6 = Ipv6Addr::new(0x2001, 0xdb8, 0xbe, 0, 0, 0, 0, 0x10);
        plug_in(&router, (ON_THE_LAN, ON_THE_LAN_V6), lan.switch(), "router", (Uplink::Card, lan.mtu()))?;
        router.links(|links| {
            links.add_address("eth0", FOR_SECOND_CARDS, 24)?;
            links.add_address("eth0", FOR_SECOND_CARDS_V6, 64)?;
            links.add_veth(End::named("eth1"), End::named("eth0"), &client)?;
            links.add_address("eth1", GATEWAY, BEYOND.1)?;
            links.add_address("eth1", GATEWAY_V6, BEYOND_V6.1)
        })?;
        router.sysctl("net/ipv4/ip_forward", "1")?;
        router.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        client.links(|links| {
            links.add_address("eth0", address, BEYOND.1)?;
            links.add_route("eth0", (Ipv4Addr::UNSPECIFIED, 0), Some(GATEWAY))?;
            links.add_address("eth0", address_v6, BEYOND_V6.1)?;
            links.add_route("eth0", (Ipv6Addr::UNSPECIFIED, 0), Some(GATEWAY_V6))
        })?;
        client.run(|| offload::disable("eth0", Offload::TxChecksum))?;
        let plugged_in = Self { address, address_v6, namespace: router, client };
        lan.nodes.iter().try_for_each(|node| plugged_in.serve(node.namespace()))?;
        Ok(plugged_in)
    }

    /// Lets a machine of the LAN reach the client.
    pub fn serve(&self, machine: &Namespace) -> Result<()> {
        machine.links(|links| {
            links.add_route("eth0", BEYOND, Some(ON_THE_LAN))?;
            links.add_route("eth0", BEYOND_V6, Some(ON_THE_LAN_V6))
        })
    }

    /// Sets the MTUs of the path to an address on the LAN and of the path to the client.
    pub fn narrow(&self, address: IpAddr, to_the_address: u32, to_the_client: u32) -> Result<()> {
        let client = if address.is_ipv4() { self.address.into() } else { IpAddr::from(self.address_v6) };
        self.namespace.links(|links| {
            links.narrow_route("eth0", address, to_the_address)?;
            links.narrow_route("eth1", client, to_the_client)
        })
    }

    /// Lets the nodes send the client's packets through their eth1, or through eth0 again.
    pub fn move_routes(&self, lan: &Lan, second: bool) -> Result<()> {
        let (card, gateway, gateway_v6) =
            if second { ("eth1", FOR_SECOND_CARDS, FOR_SECOND_CARDS_V6) } else { ("eth0", ON_THE_LAN, ON_THE_LAN_V6) };
        lan.nodes.iter().try_for_each(|node| {
            node.namespace().links(|links| {
                links.move_route(card, BEYOND, gateway)?;
                links.move_route(card, BEYOND_V6, gateway_v6)
            })
        })
    }

    /// Returns the client's network namespace.
    pub fn client(&self) -> &Namespace {
        &self.client
    }
}
