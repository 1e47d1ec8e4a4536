//! Identity SNAT: replies keep their source when conntrack loses their flow.
//!
//! A reply of a local backend is told from other traffic by its source address and port (the `REVERSE` map). Conntrack
//! may lose the flow while it lives: an idle UDP flow, a flush. The backend's next packet then looks like the first of
//! a connection of its own, the CNI's MASQUERADE rules give it the node's address and another port, and the client gets
//! it from a stranger. So an own nat chain, just before theirs, "translates" such packets to the source that they have:
//! conntrack then has its answer, and no later nat chain is asked.
//!
//! ```text
//! table inet vipmux {
//!     set backends4 { type ipv4_addr . inet_proto . inet_service }
//!     set addresses4 { type ipv4_addr . inet_proto }
//!     set backends6 { type ipv6_addr . inet_proto . inet_service }
//!     set addresses6 { type ipv6_addr . inet_proto }
//!     chain postrouting {
//!         type nat hook postrouting priority 99; policy accept;
//!         tcp flags & (syn | ack) == syn return
//!         meta l4proto sctp @th,96,8 1 return
//!         meta nfproto ipv4 ip saddr . meta l4proto . th sport @backends4 counter snat ip to ip saddr
//!         meta nfproto ipv4 ip saddr . meta l4proto @addresses4 counter snat ip to ip saddr
//!         meta nfproto ipv6 ip6 saddr . meta l4proto . th sport @backends6 counter snat ip6 to ip6 saddr
//!         meta nfproto ipv6 ip6 saddr . meta l4proto @addresses6 counter snat ip6 to ip6 saddr
//!     }
//! }
//! ```
//!
//! Backends with direct server return answer in the VIP's name, to packets that conntrack has not seen: their first reply
//! would be invalid to it, which kube-proxy drops, or begin a connection, which the CNI masquerades. So, as long as there
//! are such backends here, their replies are not tracked:
//!
//! ```text
//!     set direct4 { type ipv4_addr . inet_proto . inet_service }
//!     set direct_addresses4 { type ipv4_addr . inet_proto }
//!     set direct6 { type ipv6_addr . inet_proto . inet_service }
//!     set direct_addresses6 { type ipv6_addr . inet_proto }
//!     set uplinks { type iface_index }
//!     chain prerouting {
//!         type filter hook prerouting priority raw; policy accept;
//!         iif @uplinks return
//!         meta nfproto ipv4 ip saddr . meta l4proto . th sport @direct4 counter notrack
//!         meta nfproto ipv4 ip saddr . meta l4proto @direct_addresses4 counter notrack
//!         ...
//!     }
//! ```
//!
//! What comes in by an uplink from a VIP is for a connection of this node or of its pods, which were masqueraded: it is
//! tracked.
//!
//! A bare SYN, and an INIT (the type of the first chunk), open a connection of the backend's own, which is to be
//! masqueraded as ever. One table of the family `inet` (nat there is as old as Linux 5.2) rather than one each of `ip` and
//! `ip6`: it is made, healed and removed in one transaction.

mod keeper;
mod ruleset;
mod transaction;

use std::{collections::BTreeSet, io, net::IpAddr};

pub use self::keeper::Keeper;
use self::transaction::Socket;
use crate::{
    model::{PortClaim, Protocol, Vip},
    plan::{Desired, DesiredBackend, DesiredService},
};

/// An endpoint on this node, for one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalBackend {
    /// The endpoint's address.
    pub address: IpAddr,
    /// The protocol that it is reached by.
    pub protocol: Protocol,
    /// The endpoint's port; 0: every port.
    pub port: u16,
}

/// An element of one of the table's sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// Its replies keep their source.
    Backend(LocalBackend),
    /// Replies that backends here send in its name are not tracked.
    Direct(PortClaim),
    /// Nor are the ICMP errors that they send in its name.
    DirectErrors(Vip),
    /// An interface whose packets are tracked as ever, by its index.
    Uplink(u32),
}

impl Element {
    const fn is_direct(&self) -> bool {
        matches!(self, Self::Direct(_))
    }
}

/// What the sets are to hold. `uplinks`: the interfaces with the addresses of the segments that VIPs are announced on.
pub fn wanted(desired: &Desired, uplinks: impl Iterator<Item = u32>) -> BTreeSet<Element> {
    let mut wanted: BTreeSet<_> = local_backends(desired).into_iter().map(Element::Backend).collect();
    let mut claims = desired.direct_here().peekable();
    if claims.peek().is_some() {
        wanted.extend(uplinks.map(Element::Uplink));
    }
    wanted.extend(claims.flat_map(|claim| [Element::Direct(claim), Element::DirectErrors(claim.vip)]));
    wanted
}

/// The endpoints on this node; draining ones too, since they keep their flows.
fn local_backends(desired: &Desired) -> BTreeSet<LocalBackend> {
    let on_this_node = |backend: &&DesiredBackend| backend.node == desired.local;
    // Nothing is translated of the others' replies, or not here.
    let translated = |service: &DesiredService| !service.treatment.direct && !service.treatment.kernel;
    let services = desired.services.iter().filter(|(_, service)| translated(service));
    services
        .flat_map(|(claim, service)| {
            service.backends.iter().filter(on_this_node).map(|backend| LocalBackend {
                address: backend.address,
                protocol: claim.protocol,
                port: backend.port,
            })
        })
        .collect()
}

/// The chain could not be brought into the kernel, or out of it.
#[derive(Debug, thiserror::Error)]
pub enum SnatError {
    /// No netfilter netlink socket.
    #[error("could not open a netfilter netlink socket")]
    Open(#[source] io::Error),
    /// Sending or receiving failed.
    #[error("could not {operation} over netlink")]
    Exchange {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused a message; nothing of its transaction was done.
    #[error("the kernel refused to {operation} (table inet {table}; it needs CAP_NET_ADMIN and nf_tables with nat)", table = ruleset::TABLE)]
    Refused {
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel did not say whether it was done.
    #[error("the kernel did not answer whether it could {operation}")]
    Unanswered {
        /// What was tried.
        operation: &'static str,
    },
    /// An answer that could not be read.
    #[error("the kernel's answer to {operation} makes no sense: {reason}")]
    Malformed {
        /// What was tried.
        operation: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// What [`IdentitySnat::sync`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// Nothing was to be done.
    Unchanged,
    /// Elements were added and removed, so many of each.
    Updated {
        /// Elements that came.
        added: usize,
        /// Elements that went.
        removed: usize,
    },
    /// The whole table was made, or made anew.
    Replaced,
}

/// The table in the network namespace of the thread that called [`Self::open`].
///
/// All calls are synchronous and short (one system call each way); a commit can wait for another nftables transaction,
/// so call them where blocking is allowed. Each change is one nftables transaction: packets see the old rules or the
/// new ones. Dropping this leaves the table in place, for the agent's next start; [`Self::remove`] takes it away.
#[derive(Debug)]
pub struct IdentitySnat {
    socket: Socket,
    installed: Option<Installed>,
}

#[derive(Debug)]
struct Installed {
    /// The table's handle: another one, or none, tells that somebody flushed the ruleset.
    handle: u64,
    elements: BTreeSet<Element>,
}

impl Installed {
    /// Whether the table has the chain that these elements need.
    fn has_chain_for(&self, elements: &BTreeSet<Element>) -> bool {
        has_direct(&self.elements) == has_direct(elements)
    }
}

fn has_direct(elements: &BTreeSet<Element>) -> bool {
    elements.iter().any(Element::is_direct)
}

impl IdentitySnat {
    /// Opens the socket; changes nothing.
    pub fn open() -> Result<Self, SnatError> {
        Ok(Self { socket: Socket::open()?, installed: None })
    }

    /// Makes the table hold exactly these elements. The first call replaces whatever an earlier agent left, in one
    /// transaction, and so does one after which there are direct ones for the first time, or no more; others cost what
    /// changed. Calling it again from time to time heals a flushed ruleset.
    pub fn sync(&mut self, elements: &BTreeSet<Element>) -> Result<Synced, SnatError> {
        if let Some(installed) = self.installed.take()
            && installed.has_chain_for(elements)
            && ruleset::table_handle(&mut self.socket)? == Some(installed.handle)
            && let Ok((installed, synced)) = self.update(installed, elements)
        {
            self.installed = Some(installed);
            return Ok(synced);
        }
        ruleset::replace(&mut self.socket, elements)?;
        let Some(handle) = ruleset::table_handle(&mut self.socket)? else {
            return Err(SnatError::Unanswered { operation: "read the table back" });
        };
        self.installed = Some(Installed { handle, elements: elements.clone() });
        Ok(Synced::Replaced)
    }

    /// Whether the table is there.
    pub fn is_there(&mut self) -> Result<bool, SnatError> {
        Ok(ruleset::table_handle(&mut self.socket)?.is_some())
    }

    /// Removes the table; one that is not there is no error.
    pub fn remove(&mut self) -> Result<(), SnatError> {
        self.installed = None;
        ruleset::remove(&mut self.socket)
    }

    /// Adds and removes what differs. An error means that the kernel's elements are not what was believed.
    fn update(
        &mut self,
        mut installed: Installed,
        elements: &BTreeSet<Element>,
    ) -> Result<(Installed, Synced), SnatError> {
        let added: Vec<_> = elements.difference(&installed.elements).copied().collect();
        let removed: Vec<_> = installed.elements.difference(elements).copied().collect();
        if added.is_empty() && removed.is_empty() {
            return Ok((installed, Synced::Unchanged));
        }
        ruleset::update(&mut self.socket, &added, &removed)?;
        for element in &removed {
            installed.elements.remove(element);
        }
        installed.elements.extend(&added);
        Ok((installed, Synced::Updated { added: added.len(), removed: removed.len() }))
    }
}

#[cfg(test)]
mod tests;
