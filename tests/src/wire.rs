//! What passes an interface, in both directions.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result, bail};
use pnet::{
    datalink::{self, Channel, Config, DataLinkReceiver},
    packet::{
        Packet as _,
        ethernet::{EtherTypes, EthernetPacket},
        ipv4::Ipv4Packet,
    },
};

use crate::netns::Namespace;

/// A silence of this length ends a look at the wire: a hop takes microseconds.
const QUIET: Duration = Duration::from_millis(20);

/// A packet socket on an interface. It keeps a few hundred frames.
pub struct Tap {
    receiver: Box<dyn DataLinkReceiver>,
}

impl Tap {
    /// Begins to listen on an interface.
    pub fn open(namespace: &Namespace, interface: &str) -> Result<Self> {
        let receiver = namespace.run(|| {
            let all = datalink::interfaces();
            let interface = all
                .iter()
                .find(|found| found.name == interface)
                .with_context(|| format!("no interface {interface}"))?;
            let config = Config { read_timeout: Some(QUIET), ..Config::default() };
            match datalink::channel(interface, config).context("cannot open a packet socket")? {
                Channel::Ethernet(_, receiver) => Ok(receiver),
                _ => bail!("no Ethernet channel on {}", interface.name),
            }
        })?;
        Ok(Self { receiver })
    }

    /// How many IPv4 packets to an address passed since the last look (or the opening), once the wire is quiet.
    pub fn packets_to(&mut self, address: Ipv4Addr) -> Result<usize> {
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

fn destination(frame: &[u8]) -> Option<Ipv4Addr> {
    let ethernet = EthernetPacket::new(frame)?;
    let is_ipv4 = ethernet.get_ethertype() == EtherTypes::Ipv4;
    is_ipv4.then(|| Ipv4Packet::new(ethernet.payload()).map(|packet| packet.get_destination())).flatten()
}
