//! SCTP sockets of the one-to-one style (RFC 6458, section 4). They are used like TCP's.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect as connect_socket,
            listen, setsockopt, socket,
            sockopt::{ReceiveTimeout, SendTimeout},
        },
        time::{TimeVal, TimeValLike as _},
    },
};

/// The backlog of connections.
const BACKLOG: i32 = 16;

/// Returns whether the kernel has SCTP.
pub fn is_supported() -> Result<bool> {
    match open(AddressFamily::Inet) {
        Ok(_) => Ok(true),
        Err(Errno::EPROTONOSUPPORT | Errno::ESOCKTNOSUPPORT) => Ok(false),
        Err(error) => Err(error).context("cannot open an SCTP socket"),
    }
}

/// Connects in the calling thread's network namespace. `timeout` limits the connection attempt, and
/// each write and read.
pub fn connect(server: SocketAddr, timeout: Duration) -> Result<TcpStream> {
    let socket = open(family(server)).context("cannot open an SCTP socket")?;
    let limit = TimeVal::microseconds(i64::try_from(timeout.as_micros())?);
    setsockopt(&socket, SendTimeout, &limit)?;
    setsockopt(&socket, ReceiveTimeout, &limit)?;
    // The send timeout also limits this (socket(7)).
    connect_socket(socket.as_raw_fd(), &SockaddrStorage::from(server)).context("no association")?;
    Ok(socket.into())
}

/// Listens in the calling thread's network namespace.
pub fn bound(at: SocketAddr) -> Result<TcpListener> {
    let socket = open(family(at)).context("cannot open an SCTP socket")?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at))?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(socket.into())
}

fn open(family: AddressFamily) -> nix::Result<OwnedFd> {
    socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
