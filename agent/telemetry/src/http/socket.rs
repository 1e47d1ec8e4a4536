//! Opens the listening socket.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt::Ipv6V6Only},
};
use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum HttpListenError {
    /// Another process listens there.
    #[error("something else listens on {address}: stop it, or choose another --http-listen")]
    Taken {
        /// The address.
        address: SocketAddr,
    },
    /// The system refused.
    #[error("cannot listen on {address} (--http-listen)")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Listens on the address. `[::]` means all addresses of both families; where the system has no
/// IPv6, all addresses of IPv4.
pub fn bind(address: SocketAddr) -> Result<TcpListener, HttpListenError> {
    let bound = match listen(address) {
        Err(error) if address.ip().is_unspecified() && address.is_ipv6() && lacks_ipv6(&error) => {
            listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()))
        }
        bound => bound,
    };
    bound.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => HttpListenError::Taken { address },
        _ => HttpListenError::Refused { address, source },
    })
}

fn lacks_ipv6(error: &io::Error) -> bool {
    let codes = [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL].map(|code| code as i32);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    // So that the port of an agent that has just ended is free.
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Independent of net.ipv6.bindv6only.
        setsockopt(&socket, Ipv6V6Only, &false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
