//! A tunnel between the nodes without Ethernet, as WireGuard makes it: packets without MACs.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    net::Ipv4Addr,
    os::fd::{AsFd as _, AsRawFd as _},
    os::unix::fs::OpenOptionsExt as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Lan, Node};

/// The name of its interface on each node.
const TUNNEL: &str = "wg0";
/// The prefix length of its network.
const PREFIX_LENGTH: u8 = 24;
/// The time after which the thread looks whether it is to end.
const LOOK: u16 = 50;

/// The tunnel, removed on drop. A thread passes on its IPv4 packets.
#[derive(Debug)]
pub struct Tunnel {
    /// The addresses of the nodes' ends.
    addresses: BTreeMap<String, Ipv4Addr>,
    /// The ends that are cut off.
    cut: Arc<Mutex<Vec<Ipv4Addr>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lan {
    /// Connects all nodes by a tunnel, with addresses in 10.99.0.0/24.
    pub fn add_tunnel(&self) -> Result<Tunnel> {
        let (mut files, mut addresses) = (BTreeMap::new(), BTreeMap::new());
        for node in &self.nodes {
            let address = Ipv4Addr::new(10, 99, 0, node.number);
            files.insert(address, open(node, address)?);
            addresses.insert(node.name.clone(), address);
        }
        let (cut, ends) = (Arc::default(), Arc::default());
        let (passed, ended) = (Arc::clone(&cut), Arc::clone(&ends));
        let thread = thread::Builder::new().name("tunnel".to_owned()).spawn(move || pass(files, &passed, &ended))?;
        Ok(Tunnel { addresses, cut, ends, thread: Some(thread) })
    }
}

impl Tunnel {
    /// Returns the address of a node's end.
    pub fn address(&self, node: &str) -> Result<Ipv4Addr> {
        self.addresses.get(node).copied().with_context(|| format!("no end on {node}"))
    }

    /// Loses all packets of these nodes from now on. An empty list ends that.
    pub fn cut_off(&self, nodes: &[&str]) -> Result<()> {
        let cut = nodes.iter().map(|node| self.address(node)).collect::<Result<_>>()?;
        *self.cut.lock().map_err(|_| anyhow::anyhow!("the tunnel's thread panicked"))? = cut;
        Ok(())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Makes a node's end (Documentation/networking/tuntap.rst).
fn open(node: &Node, address: Ipv4Addr) -> Result<File> {
    let file = node.namespace.run(|| {
        let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
        let file = options.context("cannot open /dev/net/tun")?;
        // SAFETY: all fields of the C struct may be zero.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (place, byte) in request.ifr_name.iter_mut().zip(TUNNEL.bytes()) {
            *place = libc::c_char::from_ne_bytes([byte]);
        }
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI)?;
        // SAFETY: the request is valid during the call.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        nix::errno::Errno::result(result).context("cannot make a tunnel interface")?;
        Ok(file)
    })?;
    node.namespace.links(|links| {
        links.set_up(TUNNEL)?;
        links.add_address(TUNNEL, address, PREFIX_LENGTH)
    })?;
    Ok(file)
}

/// Passes packets to the end with their destination.
fn pass(mut files: BTreeMap<Ipv4Addr, File>, cut: &Mutex<Vec<Ipv4Addr>>, ends: &AtomicBool) {
    let mut packet = [0; 2_000];
    while !ends.load(Ordering::Relaxed) {
        let mut waiting: Vec<_> = files.values().map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN)).collect();
        if poll(&mut waiting, PollTimeout::from(LOOK)).is_err() {
            thread::sleep(Duration::from_millis(LOOK.into()));
        }
        let Ok(cut) = cut.lock() else { return };
        for from in files.keys().copied().collect::<Vec<_>>() {
            let read = files.get_mut(&from).map(|file| file.read(&mut packet));
            let length = match read {
                Some(Ok(length)) => length,
                Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => continue,
                // The node is gone.
                _ => return,
            };
            let Some(to) = destination(&packet[..length]) else { continue };
            if let Some(file) = files.get_mut(&to).filter(|_| !cut.contains(&from) && !cut.contains(&to)) {
                // A full queue loses packets, as a network does.
                file.write_all(&packet[..length]).ok();
            }
        }
    }
}

/// Returns the destination of an IPv4 packet (RFC 791, 3.1).
fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    (packet[0] >> 4 == 4).then(|| address.into())
}
