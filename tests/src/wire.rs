//! What passes an interface, in both directions; frames that no socket would send; and what a namespace has reset.

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

/// Sends a frame so many times from an interface.
pub fn send(namespace: &Namespace, interface: &str, frame: &[u8], times: usize) -> Result<()> {
    namespace.run(|| {
        let (mut sender, _) = arp::open(&arp::interface(interface)?, QUIET)?;
        (0..times).try_for_each(|_| Ok(sender.send_to(frame, None).context("the frame does not fit the buffer")??))
    })
}

/// How many TCP segments with RST a network namespace has sent, ever: `tcpOutRsts` (RFC 4022), of both families.
pub fn resets(namespace: &Namespace) -> Result<u64> {
    // `/proc/net` would be the network namespace of the process' first thread.
    let text =
        namespace.run(|| fs::read_to_string("/proc/thread-self/net/snmp").context("cannot read the counters"))?;
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = rows.next().zip(rows.next()).context("no counters of TCP")?;
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = both.find(|(name, _)| *name == "OutRsts").context("no OutRsts")?;
    Ok(value.parse()?)
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
