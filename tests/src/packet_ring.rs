//! Sends frames by a ring of a packet socket (Documentation/networking/packet_mmap.rst). Of such a
//! frame, only the Ethernet header is in the linear part.

use std::{ffi::c_int, io, mem, num::NonZero, os::fd::AsRawFd as _, ptr};

use anyhow::{Context as _, Result, ensure};
use nix::sys::{
    mman::{MapFlags, ProtFlags, mmap, munmap},
    socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socket},
};

use crate::netns::Namespace;

/// Bytes of the ring's only frame, with its header.
const LENGTH: usize = 4_096;
/// The bytes from the header's start to the frame, `TPACKET_HDRLEN` less a `sockaddr_ll`.
const HEADER: usize = 32;
/// `TP_STATUS_SEND_REQUEST`.
const SEND_REQUEST: libc::c_ulong = 1;
/// `ETH_P_ALL`, wire.
const ALL: u16 = 3_u16.to_be();

/// Sends one frame from eth0 of a namespace.
pub fn send_frame(namespace: &Namespace, frame: &[u8]) -> Result<()> {
    ensure!(frame.len() <= LENGTH - HEADER, "a frame of {} bytes", frame.len());
    namespace.run(|| send_here(frame))
}

fn send_here(frame: &[u8]) -> Result<()> {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).context("packet socket")?;
    let length = u32::try_from(LENGTH)?;
    let ring = libc::tpacket_req { tp_block_size: length, tp_block_nr: 1, tp_frame_size: length, tp_frame_nr: 1 };
    // SAFETY: the option's value is as long as is said.
    let made = unsafe {
        let (value, size) = ((&raw const ring).cast(), libc::socklen_t::try_from(size_of_val(&ring))?);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_TX_RING, value, size)
    };
    ensure!(made == 0, "PACKET_TX_RING: {}", io::Error::last_os_error());
    bind(socket.as_raw_fd())?;
    let size = NonZero::new(LENGTH).context("a ring with room")?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, which nothing else refers to.
    let ring = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, &socket, 0) }.context("mapping the ring")?;
    let header = ring.cast::<libc::tpacket_hdr>().as_ptr();
    // SAFETY: the ring has room for the header and the frame. The kernel reads both once it is told
    // to, below.
    unsafe {
        ptr::copy_nonoverlapping(frame.as_ptr(), ring.as_ptr().cast::<u8>().add(HEADER), frame.len());
        (*header).tp_len = u32::try_from(frame.len())?;
        ptr::write_volatile(&raw mut (*header).tp_status, SEND_REQUEST);
    }
    // It returns after the frame has left.
    let sent = send(socket.as_raw_fd(), &[], MsgFlags::empty()).context("sending the ring")?;
    // SAFETY: the mapping from above, which is not used any more.
    unsafe { munmap(ring, LENGTH) }?;
    ensure!(sent == frame.len(), "{sent} of {} bytes were sent", frame.len());
    Ok(())
}

fn bind(socket: c_int) -> Result<()> {
    // SAFETY: zeros are such an address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET)?;
    address.sll_protocol = ALL;
    address.sll_ifindex = i32::try_from(nix::net::if_::if_nametoindex("eth0")?)?;
    // SAFETY: the address is as long as is said.
    let bound =
        unsafe { libc::bind(socket, (&raw const address).cast(), libc::socklen_t::try_from(size_of_val(&address))?) };
    ensure!(bound == 0, "binding a packet socket: {}", io::Error::last_os_error());
    Ok(())
}
