//! What passes an interface, in both directions.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result};
use pnet::{
    datalink::DataLinkReceiver,
    packet::{
        Packet as _,
        ethernet::{EtherTypes, EthernetPacket},
        ip::IpNextHeaderProtocols,
        ipv4::Ipv4Packet,
        ipv6::Ipv6Packet,
    },
};

use crate::{arp, netns::Namespace};

/// A silence of this length ends a look at the wire: a hop takes microseconds.
const QUIET: Duration = Duration::from_millis(20);

/// A packet socket on an interface. It keeps a few hundred frames.
pub struct Tap {
    receiver: Box<dyn DataLinkReceiver>,
}

impl Tap {
    /// Begins to listen on an interface.
    pub fn open(namespace: &Namespace, interface: &str) -> Result<Self> {
        let (_, receiver) = namespace.run(|| arp::open(&arp::interface(interface)?, QUIET))?;
        Ok(Self { receiver })
    }

    /// How many segments and datagrams to an address passed since the last look (or the opening), once the wire is quiet.
    pub fn packets_to(&mut self, address: IpAddr) -> Result<usize> {
        let mut count = 0;
        loop {
            match self.receiver.next() {
                Ok(frame) => count += usize::from(destination(frame) == Some(address)),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read from a packet socket"),
            }
        }
    }
}

/// Of a TCP segment or UDP datagram. ICMP is another matter: routers tell of a better way by it.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    let ethernet = EthernetPacket::new(frame)?;
    let (protocol, destination) = match ethernet.get_ethertype() {
        EtherTypes::Ipv4 => {
            let packet = Ipv4Packet::new(ethernet.payload())?;
            (packet.get_next_level_protocol(), packet.get_destination().into())
        }
        EtherTypes::Ipv6 => {
            let packet = Ipv6Packet::new(ethernet.payload())?;
            (packet.get_next_header(), packet.get_destination().into())
        }
        _ => return None,
    };
    matches!(protocol, IpNextHeaderProtocols::Tcp | IpNextHeaderProtocols::Udp).then_some(destination)
}
