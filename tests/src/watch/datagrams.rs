//! A UDP client that sends numbers at a fixed rate, even if earlier ones were not answered.

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use super::{GRACE, PAUSE, Series, Shared};
use crate::links::Links;

/// The largest reply: an identification and the number.
const MAX_REPLY: usize = 1_024;

/// The time limit for the last replies. A late reply is no loss.
const LAST: Duration = Duration::from_secs(20);

/// Sends requests to an echo server until it is stopped. With `anew`, the kernel forgets the
/// server's MAC whenever it has it.
pub(super) fn ask(server: SocketAddrV4, anew: bool, shared: &Shared<Series>) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(server)?;
    socket.set_nonblocking(true)?;
    let links = anew.then(Links::open).transpose()?;
    let mut next = Instant::now();
    while !shared.is_over() {
        if let Some(links) = &links {
            forget(links, *server.ip())?;
        }
        let now = Instant::now();
        let number = shared.lock().begin(now);
        // A send fails if nobody has the address or the last datagram was refused. Then the request
        // is lost.
        let _ = socket.send(format!("echo {number}").as_bytes());
        // A delay of this machine must not cause a burst.
        next = (next + PAUSE).max(now);
        receive(&socket, shared, next, |_| false)?;
    }
    receive(&socket, shared, Instant::now() + LAST, Series::is_last_answered)?;
    receive(&socket, shared, Instant::now() + GRACE, |series| series.lost() == 0)
}

/// An incomplete entry queues datagrams, which would be lost with it.
fn forget(links: &Links, address: Ipv4Addr) -> Result<()> {
    if links.neighbor(address)?.is_some() { links.forget_neighbor(address) } else { Ok(()) }
}

/// Receives replies until `until`, or until there are enough.
fn receive(
    socket: &UdpSocket,
    shared: &Shared<Series>,
    until: Instant,
    is_enough: impl Fn(&Series) -> bool,
) -> Result<()> {
    let mut reply = [0; MAX_REPLY];
    loop {
        match socket.recv(&mut reply) {
            Ok(length) => {
                if let Some(number) = number(&reply[..length]) {
                    shared.lock().answer(number, Instant::now());
                }
                continue;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // An ICMP error for an earlier datagram.
            Err(_) => continue,
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || is_enough(&shared.lock()) {
            return Ok(());
        }
        await_readable(socket, left)?;
    }
}

fn await_readable(socket: &UdpSocket, limit: Duration) -> Result<()> {
    let limit = PollTimeout::try_from(limit.max(Duration::from_millis(1)))?;
    match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], limit) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("waiting for a datagram"),
    }
}

/// Returns the number at the end of a reply. Kubernetes' `agnhost netexec` replies with it alone.
fn number(reply: &[u8]) -> Option<usize> {
    std::str::from_utf8(reply).ok()?.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_names_its_request() {
        assert_eq!(number(b"service=a/b pod=c client=192.0.2.1:1 said=echo 17"), Some(17));
        assert_eq!(number(b"17"), Some(17));
        assert_eq!(number(b"said=echo hello"), None);
        assert_eq!(number(b""), None);
    }
}
