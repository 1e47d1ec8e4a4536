//! Membership of the solicited-node groups of IPv6 VIPs (RFC 4291, 2.7.1), to which neighbours send their questions.
//!
//! Nobody has a VIP as an address, so nobody joins its group by itself, and then a network card need not take frames to
//! it, nor a switch that snoops on MLD (RFC 4541) forward them. So the agent joins, on every interface that a VIP is
//! announced on, whether this node leads it or not: any node may be the next leader, and a failover must not wait for a
//! switch to learn. Solicitations at a node that does not lead are dropped by the program.
//!
//! Two memberships, since either may lack what the other gives:
//! - a packet socket's, by MAC: the network card's filter, whatever IPv6 does on the interface;
//! - an IPv6 socket's: the kernel tells the switches (MLD, RFC 3810), which it cannot where IPv6 is disabled.
//!
//! Both are the process's, and end with it: nothing is left for `unload`.

mod sockets;

use std::{collections::BTreeSet, net::Ipv6Addr};

use self::sockets::Groups;
use crate::keeper::Keeper;

/// A group on an interface. VIPs that end alike share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The interface.
    pub ifindex: u32,
    /// The multicast address.
    pub address: Ipv6Addr,
}

impl Group {
    /// The group that neighbours on the interface ask for `vip` in: `ff02::1:ff00:0/104` and its last 24 bits.
    pub fn of(vip: Ipv6Addr, ifindex: u32) -> Self {
        let [.., high, low] = vip.segments();
        Self { ifindex, address: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low) }
    }

    /// The MAC that frames to it bear (RFC 2464, 7).
    pub(super) fn mac(self) -> [u8; 6] {
        let [.., a, b, c, d] = self.address.octets();
        [0x33, 0x33, a, b, c, d]
    }
}

/// Keeps the node in the groups that are wanted: joining thousands takes the kernel a while. The memberships end with
/// the keeper.
pub fn keep() -> Keeper<BTreeSet<Group>> {
    let mut groups = Groups::default();
    Keeper::start(move |wanted| {
        groups.sync(wanted).into_iter().map(|error| format!("{:#}", anyhow::Error::from(error))).collect()
    })
}

#[cfg(test)]
mod tests;
