//! Joins the solicited-node groups of IPv6 VIPs (RFC 4291, 2.7.1), to which neighbors send
//! solicitations.
//!
//! No interface has a VIP as an address, so the kernel does not join its group. Without a
//! membership, a network card may ignore frames to the group, and a switch that snoops on MLD (RFC
//! 4541) may not forward them. So the agent joins on every interface that a VIP is announced on. It
//! joins on all nodes, not only on the leader: any node may lead next, and a failover must not wait
//! until a switch has learned. On other nodes the XDP program drops the solicitations.
//!
//! There are two memberships, since each covers a case that the other does not:
//! - A packet socket joins by MAC. That sets the network card's filter, even where IPv6 is
//!   disabled.
//! - An IPv6 socket joins the group. The kernel then reports it to switches (MLD, RFC 3810), unless
//!   IPv6 is disabled.
//!
//! Both belong to the process and end with it, so `unload` has nothing to remove.

mod sockets;

use std::{collections::BTreeSet, net::Ipv6Addr};

use self::sockets::GroupSockets;
use crate::reconciler::Reconciler;
use vipmux_supervisor::Supervisor;

/// A solicited-node group on an interface. VIPs with the same last 24 bits share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SolicitedNodeGroup {
    /// The interface.
    pub ifindex: u32,
    /// The multicast address.
    pub address: Ipv6Addr,
}

impl SolicitedNodeGroup {
    /// Returns the group of `vip`: `ff02::1:ff00:0/104` and the last 24 bits of `vip`.
    pub fn of(vip: Ipv6Addr, ifindex: u32) -> Self {
        let [.., high, low] = vip.segments();
        Self { ifindex, address: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low) }
    }

    /// Returns the destination MAC of frames to the group (RFC 2464, 7).
    pub(super) fn mac(self) -> [u8; 6] {
        let [.., a, b, c, d] = self.address.octets();
        [0x33, 0x33, a, b, c, d]
    }
}

/// Starts a task that keeps the node in the desired groups: to join thousands takes the kernel a
/// while. The memberships end with the reconciler.
pub fn start_reconciler(supervisor: &Supervisor) -> Reconciler<BTreeSet<SolicitedNodeGroup>> {
    let mut groups = GroupSockets::default();
    Reconciler::start("solicited-node groups", move |desired| groups.sync(desired), supervisor)
}

#[cfg(test)]
mod tests;
