//! Observes an interface in both directions, sends raw frames, and counts resets of a namespace.

use std::{fs, net::IpAddr, time::Duration};

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

/// A silence of this length ends an observation: a hop takes microseconds.
const QUIET: Duration = Duration::from_millis(20);

/// A packet socket on an interface. It buffers a few hundred frames.
pub struct Tap {
    receiver: Box<dyn DataLinkReceiver>,
}

impl Tap {
    /// Opens the socket on an interface.
    pub fn open(namespace: &Namespace, interface: &str) -> Result<Self> {
        let (_, receiver) = namespace.run(|| arp::open(&arp::interface(interface)?, QUIET))?;
        Ok(Self { receiver })
    }

    /// Returns how many segments and datagrams to an address passed since the last call (or the
    /// opening), once the wire is quiet.
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

/// Sends a frame this many times from an interface.
pub fn send(namespace: &Namespace, interface: &str, frame: &[u8], times: usize) -> Result<()> {
    namespace.run(|| {
        let (mut sender, _) = arp::open(&arp::interface(interface)?, QUIET)?;
        (0..times).try_for_each(|_| Ok(sender.send_to(frame, None).context("the frame does not fit the buffer")??))
    })
}

/// Returns how many TCP segments with RST a network namespace has sent: `tcpOutRsts` (RFC 4022), of
/// both families.
pub fn resets(namespace: &Namespace) -> Result<u64> {
    // `/proc/net` would show the network namespace of the process's first thread.
    let text =
        namespace.run(|| fs::read_to_string("/proc/thread-self/net/snmp").context("cannot read the counters"))?;
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = rows.next().zip(rows.next()).context("no counters of TCP")?;
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = both.find(|(name, _)| *name == "OutRsts").context("no OutRsts")?;
    Ok(value.parse()?)
}

/// Returns the destination of a TCP segment or UDP datagram. ICMP does not count: routers send
/// redirects.
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
