//! Observes an interface in both directions, and sends raw frames.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use pnet::{
    datalink::DataLinkReceiver,
    packet::{
        Packet as _,
        ethernet::{EtherTypes, EthernetPacket},
        ip::IpNextHeaderProtocols,
        ipv4::Ipv4Packet,
        ipv6::Ipv6Packet,
        tcp::{self, TcpPacket},
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
        self.count(|frame| destination(frame) == Some(address))
    }

    /// Returns how many frames passed since the last call (or the opening), once the wire is quiet.
    pub fn count(&mut self, mut counts: impl FnMut(&[u8]) -> bool) -> Result<usize> {
        let mut count = 0;
        loop {
            match self.receiver.next() {
                Ok(frame) => count += usize::from(counts(frame)),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read from a packet socket"),
            }
        }
    }
}

/// Returns whether the checksum of a TCP segment is right; `None`: the frame has none.
pub fn has_right_checksum(frame: &[u8]) -> Option<bool> {
    let ethernet = EthernetPacket::new(frame)?;
    let right = |segment: &[u8], sum: &dyn Fn(&TcpPacket<'_>) -> u16| {
        TcpPacket::new(segment).map(|tcp| sum(&tcp) == tcp.get_checksum())
    };
    match ethernet.get_ethertype() {
        EtherTypes::Ipv4 => {
            let packet = Ipv4Packet::new(ethernet.payload())?;
            let addresses = (packet.get_source(), packet.get_destination());
            let is_tcp = packet.get_next_level_protocol() == IpNextHeaderProtocols::Tcp;
            is_tcp.then(|| right(packet.payload(), &|it| tcp::ipv4_checksum(it, &addresses.0, &addresses.1)))?
        }
        EtherTypes::Ipv6 => {
            let packet = Ipv6Packet::new(ethernet.payload())?;
            let addresses = (packet.get_source(), packet.get_destination());
            let is_tcp = packet.get_next_header() == IpNextHeaderProtocols::Tcp;
            is_tcp.then(|| right(packet.payload(), &|it| tcp::ipv6_checksum(it, &addresses.0, &addresses.1)))?
        }
        _ => None,
    }
}

/// Sends a frame this many times from an interface.
pub fn send(namespace: &Namespace, interface: &str, frame: &[u8], times: usize) -> Result<()> {
    namespace.run(|| {
        let (mut sender, _) = arp::open(&arp::interface(interface)?, QUIET)?;
        (0..times).try_for_each(|_| Ok(sender.send_to(frame, None).context("the frame does not fit the buffer")??))
    })
}

/// Sends frames from eth0 in turns, with a pause after each, until it is dropped.
pub struct Repeater {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: Option<JoinHandle<Result<()>>>,
}

impl Repeater {
    /// Starts a thread that sends.
    pub fn start(namespace: &Namespace, frames: Vec<Vec<u8>>, pause: Duration) -> Result<Self> {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let sender = namespace.spawn(move || {
            let (mut sender, _receiver) = arp::open(&arp::eth0()?, QUIET)?;
            for frame in frames.iter().cycle().take_while(|_| !stopped.load(Ordering::Relaxed)) {
                sender.send_to(frame, None).context("the frame does not fit the buffer")??;
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(pause);
            }
            Ok(())
        })?;
        Ok(Self { stop, sent, sender: Some(sender) })
    }

    /// Returns the number of frames so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Stops it. Returns an error if a frame was not sent.
    pub fn stop(mut self) -> Result<()> {
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.sender.take().map(|sender| sender.join().unwrap_or_else(|_| Err(anyhow!("it panicked"))));
        joined.unwrap_or(Ok(()))
    }
}

impl Drop for Repeater {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// Returns the destination of a TCP segment or UDP datagram. ICMP does not count: routers send
/// redirects.
pub fn destination(frame: &[u8]) -> Option<IpAddr> {
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
