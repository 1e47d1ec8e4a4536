//! Flushes a network namespace's connection tracking.

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};
use std::{io, os::fd::AsRawFd as _};

/// `struct nlmsghdr` and `struct nfgenmsg` (linux/netlink.h, linux/netfilter/nfnetlink.h).
const LENGTH: u8 = 20;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 0x0102;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const REQUEST_AND_ACK: u16 = 0x0005;
/// `NLMSG_ERROR`: also the acknowledgement, with an error of 0.
const ACKNOWLEDGEMENT: u16 = 2;

/// Makes the kernel forget all connections of the calling thread's network namespace.
pub fn flush() -> Result<()> {
    let netlink = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)
        .context("cannot open a netfilter socket")?;
    bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    let mut request = [0; LENGTH as usize];
    request[..4].copy_from_slice(&u32::from(LENGTH).to_ne_bytes());
    request[4..6].copy_from_slice(&DELETE.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_AND_ACK.to_ne_bytes());
    send(netlink.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut reply = [0; 256];
    let length = recv(netlink.as_raw_fd(), &mut reply, MsgFlags::empty())?;
    ensure!(
        length >= request.len() && reply[4..6] == ACKNOWLEDGEMENT.to_ne_bytes(),
        "an unexpected reply of {length} bytes"
    );
    let error = i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]]);
    if error != 0 {
        return Err(io::Error::from_raw_os_error(-error)).context("cannot flush the connection tracking table");
    }
    Ok(())
}
