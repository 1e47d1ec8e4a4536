//! ARP (RFC 826) for clients on the LAN: requests and a capture.

use std::{
    net::Ipv4Addr,
    os::fd::IntoRawFd as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use pnet::{
    datalink::{self, Channel, Config, DataLinkReceiver, DataLinkSender, NetworkInterface},
    packet::{
        Packet as _,
        arp::{ArpHardwareTypes, ArpOperation, ArpOperations, ArpPacket, MutableArpPacket},
        ethernet::{EtherTypes, EthernetPacket, MutableEthernetPacket},
    },
    util::MacAddr,
};

use crate::netns::Namespace;

const ETHERNET_HEADER: usize = 14;
const ARP_LENGTH: usize = 28;
/// The longest wait for a frame. A capture checks between waits whether it must stop.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// An ARP frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpFrame {
    /// The time when it was read.
    pub at: Instant,
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's MAC in the ARP body.
    pub sender_mac: MacAddr,
    /// The sender's address.
    pub sender: Ipv4Addr,
    /// The target's address.
    pub target: Ipv4Addr,
}

impl ArpFrame {
    /// Returns whether this announces an address (RFC 5227, 2.3 and 3): sender and target are the
    /// same.
    pub fn announces(&self, address: Ipv4Addr) -> bool {
        self.sender == address && self.target == address
    }
}

/// Sends a request for an address from `source` on eth0. Returns all replies within `window`.
pub fn answers(namespace: &Namespace, source: Ipv4Addr, target: Ipv4Addr, window: Duration) -> Result<Vec<MacAddr>> {
    namespace.run(|| send_request(source, target, window, usize::MAX))
}

/// Sends a request for an address from `source` on eth0. Returns the first reply within `window`,
/// if any.
pub fn first_answer(
    namespace: &Namespace,
    source: Ipv4Addr,
    target: Ipv4Addr,
    window: Duration,
) -> Result<Option<MacAddr>> {
    Ok(namespace.run(|| send_request(source, target, window, 1))?.pop())
}

/// Announces an address with eth0's MAC (RFC 5227, 2.3). The frame takes the kernel's way, past the
/// egress programs.
pub fn announce(namespace: &Namespace, address: Ipv4Addr) -> Result<()> {
    namespace.run(|| {
        let interface = eth0()?;
        let (mut sender, _) = open(&interface, TICK)?;
        let mac = interface.mac.context("eth0 has no MAC")?;
        let frame = request(mac, address, address).context("cannot build an ARP announcement")?;
        Ok(sender.send_to(&frame, None).context("the frame does not fit the buffer")??)
    })
}

fn send_request(source: Ipv4Addr, target: Ipv4Addr, window: Duration, enough: usize) -> Result<Vec<MacAddr>> {
    let interface = eth0()?;
    let (mut sender, mut receiver) = open(&interface, TICK)?;
    let mac = interface.mac.context("eth0 has no MAC")?;
    let frame = request(mac, source, target).context("cannot build an ARP request")?;
    sender.send_to(&frame, None).context("the frame does not fit the buffer")??;
    let (mut found, mut waited) = (Vec::new(), Duration::ZERO);
    while waited < window && found.len() < enough {
        let begin = Instant::now();
        if let Some(seen) = receive(receiver.as_mut())?
            && seen.operation == ArpOperations::Reply
            && seen.sender == target
            // An announcement may be a reply too, but with another target.
            && seen.target == source
        {
            found.push(seen.sender_mac);
        }
        // A wait takes no longer than a tick. The rest is this thread's own delay, in which a reply
        // may have come.
        waited += begin.elapsed().min(TICK);
    }
    Ok(found)
}

/// Returns a broadcast ARP request.
pub(crate) fn request(mac: MacAddr, source: Ipv4Addr, target: Ipv4Addr) -> Option<[u8; ETHERNET_HEADER + ARP_LENGTH]> {
    let mut frame = [0; ETHERNET_HEADER + ARP_LENGTH];
    let mut ethernet = MutableEthernetPacket::new(&mut frame)?;
    ethernet.set_destination(MacAddr::broadcast());
    ethernet.set_source(mac);
    ethernet.set_ethertype(EtherTypes::Arp);
    let mut arp = MutableArpPacket::new(&mut frame[ETHERNET_HEADER..])?;
    arp.set_hardware_type(ArpHardwareTypes::Ethernet);
    arp.set_protocol_type(EtherTypes::Ipv4);
    arp.set_hw_addr_len(6);
    arp.set_proto_addr_len(4);
    arp.set_operation(ArpOperations::Request);
    arp.set_sender_hw_addr(mac);
    arp.set_sender_proto_addr(source);
    arp.set_target_proto_addr(target);
    Some(frame)
}

/// Captures all ARP on a client's eth0 until it is stopped.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<ArpFrame>>>,
    listener: Option<JoinHandle<Result<()>>>,
}

impl Capture {
    /// Starts the capture. On return the socket is open.
    pub fn start(namespace: &Namespace) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (stopped, all) = (Arc::clone(&stop), Arc::clone(&seen));
        let (opened, is_open) = mpsc::channel();
        let listener = namespace.spawn(move || {
            let (_sender, mut receiver) = open(&eth0()?, TICK)?;
            let _ = opened.send(());
            while !stopped.load(Ordering::Relaxed) {
                if let Some(frame) = receive(receiver.as_mut())? {
                    all.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
                }
            }
            Ok(())
        })?;
        let mut capture = Self { stop, seen, listener: Some(listener) };
        if is_open.recv().is_err() {
            capture.join()?;
            bail!("the capture ended before it began");
        }
        Ok(capture)
    }

    /// Returns the frames so far.
    pub fn frames(&self) -> Vec<ArpFrame> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the MACs that claimed an address by replies or announcements, in the order of the
    /// frames.
    pub fn claims(&self, address: Ipv4Addr) -> Vec<MacAddr> {
        self.frames().into_iter().filter(|seen| seen.sender == address).map(|seen| seen.sender_mac).collect()
    }

    /// Stops the capture and returns its frames.
    pub fn stop(mut self) -> Result<Vec<ArpFrame>> {
        self.join()?;
        Ok(self.frames())
    }

    fn join(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.listener
            .take()
            .map_or(Ok(()), |listener| listener.join().unwrap_or_else(|_| Err(anyhow!("the capture panicked"))))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

pub(crate) fn eth0() -> Result<NetworkInterface> {
    interface("eth0")
}

pub(crate) fn interface(name: &str) -> Result<NetworkInterface> {
    let mut all = datalink::interfaces().into_iter();
    all.find(|interface| interface.name == name).with_context(|| format!("no interface {name}"))
}

/// Opens a packet socket. A read waits at most `tick`.
pub(crate) fn open(
    interface: &NetworkInterface,
    tick: Duration,
) -> Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    // Every process started from now on would inherit pnet's own socket, and keep its namespace
    // alive after the test.
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?.into_raw_fd();
    let config = Config { read_timeout: Some(tick), socket_fd: Some(socket), ..Config::default() };
    match datalink::channel(interface, config).context("cannot open a packet socket")? {
        Channel::Ethernet(sender, receiver) => Ok((sender, receiver)),
        _ => bail!("no Ethernet channel on {}", interface.name),
    }
}

/// Returns the next ARP frame, or `None` if the next frame is another one or none comes within a
/// tick.
pub(crate) fn receive(receiver: &mut dyn DataLinkReceiver) -> Result<Option<ArpFrame>> {
    Ok(next_frame(receiver)?.and_then(parse))
}

/// Returns the next frame, or `None` if none comes within a tick.
pub(crate) fn next_frame(receiver: &mut dyn DataLinkReceiver) -> Result<Option<&[u8]>> {
    match receiver.next() {
        Ok(frame) => Ok(Some(frame)),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn parse(frame: &[u8]) -> Option<ArpFrame> {
    let ethernet = EthernetPacket::new(frame)?;
    if ethernet.get_ethertype() != EtherTypes::Arp {
        return None;
    }
    let arp = ArpPacket::new(ethernet.payload())?;
    Some(ArpFrame {
        at: Instant::now(),
        operation: arp.get_operation(),
        sender_mac: arp.get_sender_hw_addr(),
        sender: arp.get_sender_proto_addr(),
        target: arp.get_target_proto_addr(),
    })
}
