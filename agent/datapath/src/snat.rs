//! Keeps the source of replies when conntrack loses their flow: identity SNAT.
//!
//! The egress program recognizes a reply of a local backend by its source address and port, and finds its
//! flow's record. Conntrack may lose a live flow: an idle UDP flow, or after a flush. The
//! backend's next packet then looks like the first of a new connection. The CNI's MASQUERADE rules
//! give it the node's address and another port, so the client does not recognize it. Therefore
//! vipmux has its own nat chain, just before theirs. It "translates" such packets to the source
//! that they already have. Then conntrack has its translation, and no later nat chain sees the
//! packet.
//!
//! A backend also starts flows of its own, which must be masqueraded as usual. A bare SYN, and an
//! INIT (the type of the first chunk), show that. Datagrams show nothing. So the table remembers who
//! sent datagrams to a backend, as long as a flow record does, and only their replies keep their
//! source. An answer to a masqueraded datagram has the node's address as its destination at the hook
//! where clients are remembered. So whoever sends one does not become a client.
//!
//! ```text
//! table inet vipmux {
//!     set backends4 { type ipv4_addr . inet_proto . inet_service }
//!     set addresses4 { type ipv4_addr . inet_proto }
//!     set clients4 {
//!         type ipv4_addr . ipv4_addr . inet_service . inet_service; size 262144; flags dynamic,timeout
//!     }
//!     ... the same for IPv6
//!     chain postrouting {
//!         type nat hook postrouting priority 99; policy accept;
//!         tcp flags & (syn | ack) == syn return
//!         meta l4proto sctp @th,96,8 1 return
//!         meta l4proto udp meta nfproto ipv4 ip daddr . ip saddr . th dport . th sport != @clients4 return
//!         meta nfproto ipv4 ip saddr . meta l4proto . th sport @backends4 counter snat ip to ip saddr
//!         meta nfproto ipv4 ip saddr . meta l4proto @addresses4 counter snat ip to ip saddr
//!         ... the same for IPv6
//!     }
//!     chain prerouting {
//!         type filter hook prerouting priority raw; policy accept;
//!         meta l4proto != udp return
//!         meta l4proto udp meta nfproto ipv4 ip daddr . meta l4proto . th dport @backends4
//!             update @clients4 { ip saddr . ip daddr . th sport . th dport timeout 300s }
//!         ... the same for @addresses4, and then for replies to members of @clients4, which stay longer
//!         ... the same for IPv6
//!     }
//! }
//! ```
//!
//! If `clients4` is full, its members stay and are refreshed. Others come in as members' times end.
//! Until then, a flow of theirs that conntrack loses is masqueraded.
//!
//! Backends with direct server return answer with the VIP as source, to packets that conntrack has
//! not seen. Conntrack would treat their first reply as invalid, which kube-proxy drops, or as a
//! new connection, which the CNI masquerades. So their replies are not tracked while this node has
//! such backends. Then the chain has no rule that returns other protocols at once:
//!
//! ```text
//!     set direct4 { type ipv4_addr . inet_proto . inet_service }
//!     set direct_addresses4 { type ipv4_addr . inet_proto }
//!     set uplinks { type iface_index }
//!     chain prerouting {
//!         ...
//!         iif @uplinks return
//!         meta nfproto ipv4 ip saddr . meta l4proto . th sport @direct4 counter notrack
//!         meta nfproto ipv4 ip saddr . meta l4proto @direct_addresses4 counter notrack
//!         ... the same for IPv6
//!     }
//! ```
//!
//! A packet from a VIP that comes in by an uplink belongs to a connection of this node or of its
//! pods, which was masqueraded. Such packets are tracked.
//!
//! There is one table of the family `inet` (with nat since Linux 5.2) rather than one each of `ip`
//! and `ip6`. So one transaction makes, repairs or removes it. A new agent leaves the clients in it.

mod expression;
mod rules;
mod ruleset;
mod sets;
mod transaction;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    net::IpAddr,
    num::NonZeroU16,
};

use imbl::{OrdMap, OrdSet, ordmap, ordset};

use self::transaction::Socket;
use crate::{bpf::apply::UDP_IDLE_SECONDS, reconciler::Reconciler};
use vipmux_model::{
    NodeName, PortClaim, Protocol, Vip,
    desired::{Desired, DesiredBackend, DesiredService},
};
use vipmux_supervisor::Supervisor;

/// An endpoint on this node, for one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalBackend {
    /// The endpoint's address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The endpoint's port; `None`: every port.
    pub port: Option<NonZeroU16>,
}

/// An element of one of the table's sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// A backend whose replies keep their source.
    Backend(LocalBackend),
    /// A port claim whose replies, sent by backends on this node, are not tracked.
    Direct(PortClaim),
    /// A VIP whose ICMP errors, sent by backends on this node, are not tracked.
    DirectErrors(Vip),
    /// The index of an interface whose packets are tracked as usual.
    Uplink(u32),
}

/// The desired content of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredTable {
    /// The elements of the sets.
    pub elements: OrdSet<Element>,
    /// How long a client of datagrams is remembered after its flow's last packet, seconds. As the
    /// record of the flow: by the longest idle timeout.
    pub remembered: u32,
}

impl DesiredTable {
    /// Returns whether the rules are the same.
    fn has_rules_for(&self, other: &Self) -> bool {
        self.remembered == other.remembered && has_direct(&self.elements) == has_direct(&other.elements)
    }
}

impl Default for DesiredTable {
    fn default() -> Self {
        Self { elements: OrdSet::new(), remembered: UDP_IDLE_SECONDS }
    }
}

/// The desired table, updated by changes.
#[derive(Debug, Default)]
pub struct TableBuilder {
    services: OrdMap<PortClaim, DesiredService>,
    /// The number of claims that need each element.
    claims: BTreeMap<Element, usize>,
    elements: OrdSet<Element>,
    /// The number of claims with each idle timeout, of datagrams to backends on this node.
    timeouts: BTreeMap<u32, usize>,
}

impl TableBuilder {
    /// Returns the table for a desired state. The cost depends only on what changed since the last
    /// call. The node must be the same in all calls. `uplinks`: the interfaces with the addresses of
    /// the announcing segments.
    pub fn update(&mut self, desired: &Desired, uplinks: impl Iterator<Item = u32>) -> DesiredTable {
        let before = std::mem::replace(&mut self.services, desired.services.clone());
        for item in before.diff(&self.services) {
            let (claim, old, new) = match item {
                ordmap::DiffItem::Add(claim, new) => (claim, None, Some(new)),
                ordmap::DiffItem::Update { old: (_, old), new: (claim, new) } => (claim, Some(old), Some(new)),
                ordmap::DiffItem::Remove(claim, old) => (claim, Some(old), None),
            };
            let needs = |service: Option<&DesiredService>| {
                service.map(|service| (elements(&desired.local, claim, service), service.treatment.idle))
            };
            let (new, old) = (needs(new), needs(old));
            for element in new.iter().flat_map(|(elements, _)| elements) {
                add(&mut self.claims, *element);
                self.elements.insert(*element);
            }
            for element in old.iter().flat_map(|(elements, _)| elements) {
                if remove(&mut self.claims, element) {
                    self.elements.remove(element);
                }
            }
            if let Some(timeout) = new.as_ref().and_then(timeout) {
                add(&mut self.timeouts, timeout);
            }
            if let Some(timeout) = old.as_ref().and_then(timeout) {
                remove(&mut self.timeouts, &timeout);
            }
        }
        let mut elements = self.elements.clone();
        if has_direct(&elements) {
            elements.extend(uplinks.map(Element::Uplink));
        }
        let remembered = self.timeouts.last_key_value().map_or(UDP_IDLE_SECONDS, |(timeout, _)| *timeout);
        DesiredTable { elements, remembered }
    }
}

/// Returns the idle timeout of the flows of a claim's elements, if they are of datagrams.
fn timeout((elements, idle): &(BTreeSet<Element>, Option<u32>)) -> Option<u32> {
    let is_udp = |element: &Element| matches!(element, Element::Backend(backend) if backend.protocol == Protocol::Udp);
    elements.iter().any(is_udp).then(|| idle.unwrap_or(UDP_IDLE_SECONDS))
}

fn add<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    *counts.entry(key).or_insert(0) += 1;
}

/// Returns whether it was the last one.
fn remove<K: Ord + Copy>(counts: &mut BTreeMap<K, usize>, key: &K) -> bool {
    let Entry::Occupied(mut count) = counts.entry(*key) else { return false };
    *count.get_mut() -= 1;
    if *count.get() != 0 {
        return false;
    }
    count.remove();
    true
}

/// Returns the elements of a port claim. These are its endpoints on this node, draining ones
/// included, since they keep their flows. With direct server return, they are the claim itself and
/// its VIP.
fn elements(here: &NodeName, claim: &PortClaim, service: &DesiredService) -> BTreeSet<Element> {
    let mut here = service.backends.iter().filter(|backend| backend.node.as_ref() == Some(here)).peekable();
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

/// The table could not be changed or read.
#[derive(Debug, thiserror::Error)]
pub enum SnatError {
    /// No netfilter netlink socket.
    #[error("cannot open a netfilter netlink socket")]
    Open(#[source] io::Error),
    /// Sending or receiving failed.
    #[error("cannot {operation} over netlink")]
    Exchange {
        /// The operation.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused a message, and so its whole transaction.
    #[error(
        "the kernel refused to {operation} (table inet {table}; it needs CAP_NET_ADMIN and nf_tables with nat)",
        table = sets::TABLE
    )]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel sent no acknowledgement.
    #[error("the kernel did not acknowledge the request to {operation}")]
    Unanswered {
        /// The operation.
        operation: &'static str,
    },
    /// An answer could not be parsed.
    #[error("cannot parse the kernel's answer to the request to {operation}: {reason}")]
    Malformed {
        /// The operation.
        operation: &'static str,
        /// The defect.
        reason: String,
    },
}

/// The result of [`IdentitySnat::sync`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncResult {
    /// The table was as desired.
    Unchanged,
    /// Elements were added and removed.
    Updated {
        /// The number of added elements.
        added: usize,
        /// The number of removed elements.
        removed: usize,
    },
    /// The whole table was made, or replaced.
    Replaced,
}

/// The table in the network namespace of the thread that called [`Self::open`].
///
/// All calls are synchronous and short (one system call each way). A commit can wait for another
/// nftables transaction, so call them only where blocking is allowed. Each change is one nftables
/// transaction: packets see the old rules or the new ones. After a drop the table stays in place
/// for the agent's next start. [`Self::remove`] removes it.
#[derive(Debug)]
pub struct IdentitySnat {
    socket: Socket,
    installed: Option<InstalledTable>,
}

#[derive(Debug)]
struct InstalledTable {
    /// The table's handle. If it changes or is missing, somebody flushed the ruleset.
    handle: u64,
    content: DesiredTable,
}

/// Starts a task that reconciles the table of this network namespace. A commit waits for other
/// nftables transactions, and kube-proxy's can take longer than the fence deadline. The table
/// outlives the reconciler.
pub fn start_reconciler(supervisor: &Supervisor) -> Result<Reconciler<DesiredTable>, SnatError> {
    let mut snat = IdentitySnat::open()?;
    let sync = move |desired: &DesiredTable| Vec::from_iter(snat.sync(desired).err());
    Ok(Reconciler::start("identity SNAT table", sync, supervisor))
}

/// Returns whether there are elements for direct server return.
pub fn has_direct(elements: &OrdSet<Element>) -> bool {
    // They sort after the backends. `Uplink` elements exist only with them.
    elements.get_max().is_some_and(|last| !matches!(last, Element::Backend(_)))
}

impl IdentitySnat {
    /// Opens the socket. Changes nothing in the kernel.
    pub fn open() -> Result<Self, SnatError> {
        Ok(Self { socket: Socket::open()?, installed: None })
    }

    /// Makes the table as desired. What it knows of clients stays.
    ///
    /// The first call replaces the table of an earlier agent in one transaction. So does a call with
    /// other rules: another time for clients, the first or no more backends with direct server
    /// return. The cost of other calls depends on what changed. A repeated call repairs a flushed
    /// ruleset.
    pub fn sync(&mut self, desired: &DesiredTable) -> Result<SyncResult, SnatError> {
        if let Some(installed) = self.installed.take()
            && installed.content.has_rules_for(desired)
            && ruleset::table_handle(&mut self.socket)? == Some(installed.handle)
            && let Ok((installed, synced)) = self.update(installed, &desired.elements)
        {
            self.installed = Some(installed);
            return Ok(synced);
        }
        ruleset::replace(&mut self.socket, desired)?;
        let Some(handle) = ruleset::table_handle(&mut self.socket)? else {
            return Err(SnatError::Unanswered { operation: "read the table back" });
        };
        self.installed = Some(InstalledTable { handle, content: desired.clone() });
        Ok(SyncResult::Replaced)
    }

    /// Checks whether the kernel accepts the table, and changes nothing. An existing table stays.
    pub fn check(&mut self) -> Result<(), SnatError> {
        ruleset::check(&mut self.socket, &DesiredTable::default())
    }

    /// Returns whether the table exists.
    pub fn exists(&mut self) -> Result<bool, SnatError> {
        Ok(ruleset::table_handle(&mut self.socket)?.is_some())
    }

    /// Removes the table, if it exists.
    pub fn remove(&mut self) -> Result<(), SnatError> {
        self.installed = None;
        ruleset::remove(&mut self.socket)
    }

    /// Adds and removes the elements that differ. An error means that the kernel's elements are not
    /// the expected ones.
    fn update(
        &mut self,
        mut installed: InstalledTable,
        elements: &OrdSet<Element>,
    ) -> Result<(InstalledTable, SyncResult), SnatError> {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for item in installed.content.elements.diff(elements) {
            match item {
                ordset::DiffItem::Add(element) => added.push(*element),
                ordset::DiffItem::Remove(element) => removed.push(*element),
            }
        }
        if added.is_empty() && removed.is_empty() {
            return Ok((installed, SyncResult::Unchanged));
        }
        ruleset::update(&mut self.socket, &added, &removed)?;
        installed.content.elements = elements.clone();
        Ok((installed, SyncResult::Updated { added: added.len(), removed: removed.len() }))
    }
}

#[cfg(test)]
mod tests;
