//! Sends announcements by a packet socket.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::Frame;

/// A packet socket (packet(7)) that only sends. Its protocol is 0, so the kernel never copies a
/// received frame to it. It belongs to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Sender {
    socket: OwnedFd,
}

/// A frame could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No packet socket could be opened. It needs `CAP_NET_RAW`.
    #[error("cannot open a packet socket (it needs CAP_NET_RAW)")]
    Open(#[source] io::Error),
    /// The interface is gone or down, or its queue is full. There is no retry: the burst has later
    /// rounds.
    #[error("cannot send an announcement on interface {ifindex}")]
    Send {
        /// The interface.
        ifindex: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel accepted only a part of the frame.
    #[error("interface {ifindex} accepted {sent} of {length} bytes of an announcement")]
    Short {
        /// The interface.
        ifindex: u32,
        /// Accepted bytes.
        sent: usize,
        /// Bytes of the frame.
        length: usize,
    },
}

impl Sender {
    /// Opens a socket for all interfaces.
    pub fn open() -> Result<Self, SendError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket =
            socket(AddressFamily::Packet, SockType::Raw, flags, None).map_err(|e| SendError::Open(e.into()))?;
        Ok(Self { socket })
    }

    /// Sends one frame. It never blocks.
    pub fn send(&self, frame: &Frame) -> Result<(), SendError> {
        let ifindex = frame.ifindex;
        match send_to(&self.socket, frame) {
            Ok(sent) if sent == frame.bytes.len() => Ok(()),
            Ok(sent) => Err(SendError::Short { ifindex, sent, length: frame.bytes.len() }),
            Err(source) => Err(SendError::Send { ifindex, source }),
        }
    }
}

/// Returns the frame's EtherType in network byte order, or 0 if the frame is too short.
fn ethertype(frame: &Frame) -> u16 {
    frame.bytes.get(12..14).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

fn send_to(socket: &OwnedFd, frame: &Frame) -> io::Result<usize> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(invalid)?,
        sll_protocol: ethertype(frame),
        sll_ifindex: i32::try_from(frame.ifindex).map_err(invalid)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of_val(&address)).map_err(invalid)?;
    // SAFETY: the descriptor is open as long as `socket` is borrowed; the kernel reads
    // `bytes.len()` bytes of the frame and `length` bytes of `address`, both alive and initialized
    // during the call, and keeps no pointer.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.bytes.as_ptr().cast(),
            frame.bytes.len(),
            0,
            (&raw const address).cast(),
            length,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
