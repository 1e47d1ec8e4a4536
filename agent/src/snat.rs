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

mod ruleset;
mod transaction;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    net::IpAddr,
};

use imbl::{OrdMap, OrdSet, ordmap, ordset};

use self::transaction::Socket;
use crate::{
    keeper::Keeper,
    model::{NodeName, PortClaim, Protocol, Vip},
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

/// What the sets are to hold.
#[derive(Debug, Default)]
pub struct Wanted {
    services: OrdMap<PortClaim, DesiredService>,
    /// By how many claims each is wanted.
    claims: BTreeMap<Element, usize>,
    elements: OrdSet<Element>,
}

impl Wanted {
    /// What is wanted now; it costs what changed since the last call. The node must be the same. `uplinks`: the interfaces
    /// with the addresses of the segments that VIPs are announced on.
    pub fn follow(&mut self, desired: &Desired, uplinks: impl Iterator<Item = u32>) -> OrdSet<Element> {
        let before = std::mem::replace(&mut self.services, desired.services.clone());
        for item in before.diff(&self.services) {
            let (claim, old, new) = match item {
                ordmap::DiffItem::Add(claim, new) => (claim, None, Some(new)),
                ordmap::DiffItem::Update { old: (_, old), new: (claim, new) } => (claim, Some(old), Some(new)),
                ordmap::DiffItem::Remove(claim, old) => (claim, Some(old), None),
            };
            for element in new.into_iter().flat_map(|service| elements(&desired.local, claim, service)) {
                *self.claims.entry(element).or_insert(0) += 1;
                self.elements.insert(element);
            }
            for element in old.into_iter().flat_map(|service| elements(&desired.local, claim, service)) {
                let Entry::Occupied(mut claims) = self.claims.entry(element) else { continue };
                *claims.get_mut() -= 1;
                if *claims.get() == 0 {
                    claims.remove();
                    self.elements.remove(&element);
                }
            }
        }
        let mut wanted = self.elements.clone();
        if has_direct(&wanted) {
            wanted.extend(uplinks.map(Element::Uplink));
        }
        wanted
    }
}

/// What a claim wants: its endpoints on this node, draining ones too, since they keep their flows; or what it takes for
/// them to reply in its name.
fn elements(here: &NodeName, claim: &PortClaim, service: &DesiredService) -> BTreeSet<Element> {
    let mut here = service.backends.iter().filter(|backend| backend.node == *here).peekable();
    match (here.peek(), service.treatment.direct, service.treatment.kernel) {
        (Some(_), true, _) => [Element::Direct(*claim), Element::DirectErrors(claim.vip)].into(),
        // Nothing is translated here.
        (None, ..) | (_, _, true) => BTreeSet::new(),
        (Some(_), false, false) => {
            let of = |backend: &DesiredBackend| LocalBackend {
                address: backend.address,
                protocol: claim.protocol,
                port: backend.port,
            };
            here.map(of).map(Element::Backend).collect()
        }
    }
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
    #[error(
        "the kernel refused to {operation} (table inet {table}; it needs CAP_NET_ADMIN and nf_tables with nat)",
        table = ruleset::TABLE
    )]
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
    elements: OrdSet<Element>,
}

impl Installed {
    /// Whether the table has the chain that these elements need.
    fn has_chain_for(&self, elements: &OrdSet<Element>) -> bool {
        has_direct(&self.elements) == has_direct(elements)
    }
}

/// Keeps the table of this network namespace: a commit waits for other nftables transactions, and kube-proxy's can take
/// longer than the fence's deadline. The table outlives the keeper.
pub fn keep() -> Result<Keeper<OrdSet<Element>>, SnatError> {
    let mut snat = IdentitySnat::open()?;
    Ok(Keeper::start(move |elements| {
        let error = snat.sync(elements).err().map(anyhow::Error::from);
        error.map(|error| format!("the identity-SNAT chain is not in place: {error:#}")).into_iter().collect()
    }))
}

/// Whether backends here reply in a Service's name.
pub fn has_direct(elements: &OrdSet<Element>) -> bool {
    // The others come after the backends, and none without a direct one.
    elements.get_max().is_some_and(|last| !matches!(last, Element::Backend(_)))
}

impl IdentitySnat {
    /// Opens the socket; changes nothing.
    pub fn open() -> Result<Self, SnatError> {
        Ok(Self { socket: Socket::open()?, installed: None })
    }

    /// Makes the table hold exactly these elements. The first call replaces whatever an earlier agent left, in one
    /// transaction, and so does one after which there are direct ones for the first time, or no more; others cost what
    /// changed. Calling it again from time to time heals a flushed ruleset.
    pub fn sync(&mut self, elements: &OrdSet<Element>) -> Result<Synced, SnatError> {
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

    /// Asks whether the kernel would take the table, and changes nothing: a table that is there stays.
    pub fn propose(&mut self) -> Result<(), SnatError> {
        ruleset::propose(&mut self.socket, &OrdSet::new())
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
        elements: &OrdSet<Element>,
    ) -> Result<(Installed, Synced), SnatError> {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for item in installed.elements.diff(elements) {
            match item {
                ordset::DiffItem::Add(element) => added.push(*element),
                ordset::DiffItem::Remove(element) => removed.push(*element),
            }
        }
        if added.is_empty() && removed.is_empty() {
            return Ok((installed, Synced::Unchanged));
        }
        ruleset::update(&mut self.socket, &added, &removed)?;
        installed.elements = elements.clone();
        Ok((installed, Synced::Updated { added: added.len(), removed: removed.len() }))
    }
}

#[cfg(test)]
mod tests;
