//! Binds one socket for each family in which this Node has an InternalIP.

use std::{
    collections::BTreeSet,
    future::pending,
    io, iter,
    net::{self, IpAddr},
};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::{net::UdpSocket, select};

use super::Addresses;
use vipmux_election::membership::sealing::LONGEST_DATAGRAM;
use vipmux_model::{Family, NodeName};

/// Bytes of datagrams that may wait in the kernel, since the nodes of a cluster of 1,000 answer at
/// once. Without CAP_NET_ADMIN the kernel allows no more than `net.core.rmem_max` (socket(7)).
const RECEIVE_BUFFER: usize = 512 << 10;

/// The sockets, and the addresses that they should be bound to.
pub(super) struct Sockets {
    local: NodeName,
    port: u16,
    v4: Option<Bound>,
    v6: Option<Bound>,
    /// Why sockets are not bound. Each is logged once.
    problems: BTreeSet<String>,
}

struct Bound {
    address: IpAddr,
    incoming: UdpSocket,
    /// The same socket: a datagram is either sent at once or lost, and nothing waits for it.
    outgoing: net::UdpSocket,
}

impl Sockets {
    pub(super) fn new(local: NodeName, port: u16) -> Self {
        Self { local, port, v4: None, v6: None, problems: BTreeSet::new() }
    }

    /// Returns whether a socket should be bound and is not.
    pub(super) fn incomplete(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Binds to this Node's first address of each family. Before any Node is known there is nothing
    /// to warn of.
    pub(super) fn bind(&mut self, addresses: &Addresses) {
        let own = addresses.get(&self.local).map_or(&[][..], Vec::as_slice);
        let mut problems = BTreeSet::new();
        if own.is_empty() && !addresses.is_empty() {
            problems.insert(format!("{} is no Node with an InternalIP: the agent has no gossip", self.local));
        }
        for family in Family::ALL {
            let wanted = first_of(family, own);
            let port = self.port;
            let bound = self.of_mut(family);
            if bound.as_ref().map(|bound| bound.address) == wanted {
                continue;
            }
            *bound = None;
            let Some(address) = wanted else { continue };
            match Bound::to(address, port) {
                Ok(new) => {
                    *bound = Some(new);
                    tracing::info!(%address, port, "listening for gossip");
                }
                Err(error) => {
                    problems.insert(self.bind_problem(address, &error));
                }
            }
        }
        for problem in problems.difference(&self.problems) {
            tracing::warn!(problem, "gossip socket is not bound");
        }
        self.problems = problems;
    }

    fn bind_problem(&self, address: IpAddr, error: &io::Error) -> String {
        let Self { local, port, .. } = self;
        match error.kind() {
            io::ErrorKind::AddrNotAvailable => format!(
                "{address}, an InternalIP of {local}, is not an address of this machine: is it this Node, or is another \
                 agent running as {local}?"
            ),
            io::ErrorKind::AddrInUse => {
                format!("port {port} of {address} is taken: is another agent running here as {local}?")
            }
            _ => format!("cannot listen for gossip on port {port} of {address}: {error}"),
        }
    }

    /// Waits until a datagram may have come in. Cancel-safe.
    pub(super) async fn readable(&self) -> Family {
        select! {
            () = readable(self.v4.as_ref()) => Family::V4,
            () = readable(self.v6.as_ref()) => Family::V6,
        }
    }

    /// Returns at most `most` datagrams that have come in, with their source. A datagram that is
    /// longer than any of ours is cut off, and still longer than any of ours.
    pub(super) fn receive(&self, family: Family, most: usize) -> Vec<(Vec<u8>, IpAddr)> {
        let Some(bound) = self.of(family) else { return Vec::new() };
        let mut buffer = [0; LONGEST_DATAGRAM + 1];
        let one = || {
            // There is none left, or the socket has an error, which the kernel reports once.
            let (length, from) = bound.incoming.try_recv_from(&mut buffer).ok()?;
            Some((buffer[..length].to_vec(), from.ip()))
        };
        iter::from_fn(one).take(most).collect()
    }

    /// Sends to the first of these addresses. If this Node has no address of its family, or the
    /// system refuses, sends to the first address of the other family. Returns whether the system
    /// took it. Never waits.
    pub(super) fn send(&self, datagram: &[u8], to: &[IpAddr]) -> bool {
        let preferred = to.first().map_or(Family::V4, |address| Family::of(*address));
        [preferred, preferred.other()].into_iter().any(|family| {
            let (Some(bound), Some(address)) = (self.of(family), first_of(family, to)) else { return false };
            let sent = bound.outgoing.send_to(datagram, (address, self.port));
            if let Err(error) = &sent {
                tracing::debug!(%error, %address, "gossip was not sent");
            }
            sent.is_ok()
        })
    }

    const fn of(&self, family: Family) -> Option<&Bound> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }

    const fn of_mut(&mut self, family: Family) -> &mut Option<Bound> {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

impl Bound {
    fn to(address: IpAddr, port: u16) -> io::Result<Self> {
        let outgoing = net::UdpSocket::bind((address, port))?;
        outgoing.set_nonblocking(true)?;
        setsockopt(&outgoing, sockopt::RcvBufForce, &RECEIVE_BUFFER)
            .or_else(|_| setsockopt(&outgoing, sockopt::RcvBuf, &RECEIVE_BUFFER))?;
        Ok(Self { address, incoming: UdpSocket::from_std(outgoing.try_clone()?)?, outgoing })
    }
}

fn first_of(family: Family, addresses: &[IpAddr]) -> Option<IpAddr> {
    addresses.iter().copied().find(|address| Family::of(*address) == family)
}

async fn readable(bound: Option<&Bound>) {
    // An error: the runtime is shutting down.
    let ready = match bound {
        Some(bound) => bound.incoming.readable().await.is_ok(),
        None => false,
    };
    if !ready {
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;

    use super::*;

    #[tokio::test]
    async fn the_receive_buffer_is_larger_than_the_systems_limit() {
        let bound = Bound::to(IpAddr::from([127, 0, 0, 1]), 0).unwrap();
        // The kernel doubles what was asked for (`__sock_set_rcvbuf` of net/core/sock.c).
        assert_eq!(getsockopt(&bound.outgoing, sockopt::RcvBuf).unwrap(), 2 * RECEIVE_BUFFER);
    }
}
