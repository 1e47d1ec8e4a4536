//! Drives the election of this node: inputs, drain, the published leaders, and what peers must know
//! of this node.

pub(crate) mod announcements;
pub(crate) mod drain;
pub(crate) mod elector;
pub(crate) mod gossip_keys;
pub(crate) mod gossip_task;
pub(crate) mod handover_macs;
pub(crate) mod peer_health;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::{
    control::DrainProgress,
    election::{drain::Drain, elector::Elector},
    published::Published,
    serving::{
        desired::{PeerAddresses, PeerMacs},
        interfaces::AttachedInterfaces,
        kernel::Kernel,
        kernel_error::KernelError,
        pipeline::ServingState,
    },
};
use vipmux_cluster::source::SourceGuard;
use vipmux_common::abi::{Mac, NODE_SILENT};
use vipmux_datapath::{
    bpf::maps::MapsError,
    link::{Doubt, Doubts, Links, SegmentReaches},
};
use vipmux_election::{
    Command, Input,
    membership::{Item, ItemKey, MOST_ADDRESSES, MOST_SEGMENTS, MemberStatus, Peer},
};
use vipmux_gossip::Addresses;
use vipmux_model::{NodeName, Vip, desired::Desired, reach::SegmentReach};
use vipmux_plan::Observed;

/// The election, with what it decides by and what it shows.
pub(crate) struct ElectionDriver {
    node: NodeName,
    pub(crate) elector: Elector,
    /// This node is to lead nothing.
    drain: Option<Drain>,
    published: Published,
    peer_macs: PeerMacs,
    peer_addresses: PeerAddresses,
    /// The MACs of this node, for its record.
    recorded_macs: watch::Sender<BTreeSet<Mac>>,
    /// The addresses that this node publishes.
    addresses: BTreeSet<IpAddr>,
    /// How it reaches others on the segments of these, as it publishes it.
    reaches: BTreeMap<IpAddr, SegmentReach>,
    source: SourceGuard,
    /// The number of the last refresh of the source that was asked for. The next wanted VIPs must
    /// include it.
    awaited: u64,
}

impl ElectionDriver {
    pub(crate) fn new(
        node: NodeName,
        elector: Elector,
        published: Published,
        source: SourceGuard,
        recorded_macs: watch::Sender<BTreeSet<Mac>>,
    ) -> Self {
        let (peer_macs, peer_addresses, addresses) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let reaches = BTreeMap::new();
        Self {
            node,
            elector,
            drain: None,
            published,
            peer_macs,
            peer_addresses,
            recorded_macs,
            addresses,
            reaches,
            source,
            awaited: 0,
        }
    }

    /// Requests that the source be read again. The wanted VIPs wait for it.
    pub(crate) fn request_refresh(&mut self) {
        self.awaited = self.source.request_refresh();
    }

    /// Returns whether a serving state includes the last refresh that was asked for.
    pub(crate) fn is_current(&self, state: &ServingState) -> bool {
        state.refresh >= self.awaited
    }

    /// Tells the election which VIPs are wanted, and which nodes are candidates.
    pub(crate) fn set_wanted(
        &mut self,
        kernel: &mut Kernel,
        state: &ServingState,
        desired: &Desired,
    ) -> Result<Vec<Command>, KernelError> {
        let wanted = state.candidates.iter().filter(|(vip, _)| desired.vips.contains_key(vip));
        let wanted = wanted.map(|(vip, candidates)| (*vip, candidates.clone())).collect();
        self.elector.handle(kernel, Input::Wanted(Arc::new(wanted)))
    }

    /// Publishes this node's MACs to the peers, and reports to the election which VIPs cannot be
    /// announced here. `unserved`: VIPs of which nothing found room in the maps. `lossy`: VIPs
    /// whose answers are lost.
    pub(crate) fn update_node(
        &mut self,
        kernel: &mut Kernel,
        (interfaces, links): (&AttachedInterfaces, &Links),
        state: &ServingState,
        desired: &Desired,
        (unserved, lossy): (BTreeSet<Vip>, BTreeSet<Vip>),
    ) -> Result<Vec<Command>, KernelError> {
        self.elector.set_nodes(&state.nodes)?;
        let (own, owners) = (state.nodes.get(&self.node).map_or(&[][..], Vec::as_slice), links.owners());
        let mac = own.first().and_then(|own| owners.get(own).and_then(|interface| interface.mac));
        self.publish_macs(mac, interfaces.macs())?;
        self.publish_addresses(interfaces.addresses(links))?;
        // An agent on another machine that has this Node's name by mistake holds its Leases as
        // well. The addresses may be on a dummy, where routes lead to them.
        let is_here = |address: &IpAddr| links.iter().any(|interface| interface.has(*address));
        let elsewhere = !own.is_empty() && !own.iter().any(is_here);
        let unable = desired.vips.iter().filter(|(address, vip)| {
            let carries = interfaces.carries(vip.interfaces, vip.vlan.map_or(0, NonZeroU16::get).into());
            elsewhere || !carries || unserved.contains(address)
        });
        let unable = unable.map(|(vip, _)| *vip).collect();
        let mut commands = self.elector.handle(kernel, Input::Unable(unable))?;
        commands.extend(self.elector.handle(kernel, Input::Lossy(lossy))?);
        Ok(commands)
    }

    /// Publishes this node's MACs, by gossip and in its record, that of its InternalIP's interface first. Peers must know the
    /// others, too: they tell a node's announcements from a foreign speaker's.
    fn publish_macs(&self, first: Option<Mac>, all: BTreeSet<Mac>) -> Result<(), KernelError> {
        if let Some(mac) = first {
            self.elector.publish(Item::Mac { segment: 0, mac })?;
        }
        self.recorded_macs.send_if_modified(|recorded| {
            let is_new = *recorded != all;
            recorded.clone_from(&all);
            is_new
        });
        let mut others = all.into_iter().filter(|mac| Some(*mac) != first);
        for segment in 1..MOST_SEGMENTS {
            match others.next() {
                Some(mac) => self.elector.publish(Item::Mac { segment, mac })?,
                None => self.elector.withdraw(&ItemKey::Mac(segment))?,
            }
        }
        Ok(())
    }

    /// Publishes this node's addresses on its segments, by which peers reach it there.
    fn publish_addresses(&mut self, all: BTreeSet<IpAddr>) -> Result<(), KernelError> {
        let all: BTreeSet<_> = all.into_iter().take(MOST_ADDRESSES).collect();
        for gone in self.addresses.difference(&all) {
            self.elector.withdraw(&ItemKey::Address(*gone))?;
        }
        for new in all.difference(&self.addresses) {
            self.elector.publish(Item::Address(*new))?;
        }
        self.addresses = all;
        Ok(())
    }

    /// Publishes how this node reaches others on the segments of its addresses.
    pub(crate) fn publish_reaches(&mut self, links: &Links, reaches: &SegmentReaches) -> Result<(), KernelError> {
        let owners = links.owners();
        let reach = |address: &IpAddr| Some((*address, *reaches.get(&owners.get(address)?.ifindex)?));
        let all: BTreeMap<_, _> = self.addresses.iter().filter_map(reach).collect();
        for gone in self.reaches.keys().filter(|address| !all.contains_key(address)) {
            self.elector.withdraw(&ItemKey::Reach(*gone))?;
        }
        for (address, reach) in all.iter().filter(|(address, reach)| self.reaches.get(address) != Some(reach)) {
            self.elector.publish(Item::Reach { address: *address, reach: *reach })?;
        }
        self.reaches = all;
        Ok(())
    }

    /// Returns the other living nodes on these segments: their addresses, and the best reach of one.
    pub(crate) fn on_segments(
        &self,
        links: &Links,
        segments: &BTreeSet<u32>,
    ) -> BTreeMap<u32, (BTreeSet<IpAddr>, Option<SegmentReach>)> {
        let nodes = self.elector.nodes();
        let mut found: BTreeMap<u32, (BTreeSet<IpAddr>, Option<SegmentReach>)> = BTreeMap::new();
        self.elector.peers(|peers| {
            // One that is suspected for a moment keeps its place.
            let living = peers.members.iter().filter(|(_, peer)| peer.status.is_alive());
            for (_, peer) in living.filter(|(name, _)| nodes.contains_key(*name)) {
                for address in &peer.state.addresses {
                    let Some(segment) = links.on_link(*address, segments) else { continue };
                    let (addresses, best) = found.entry(segment).or_default();
                    addresses.insert(*address);
                    *best = (*best).max(peer.state.reach.get(address).copied());
                }
            }
        });
        found
    }

    /// Reads the MACs and addresses that peers publish: by gossip, and the MACs of those that are not
    /// heard by their records. Returns whether they changed.
    pub(crate) fn update_peers(&mut self) -> bool {
        // If a peer is down, the neighbor table has better information on where frames go. But it
        // may still announce VIPs.
        let of_peer = |(name, peer): (&NodeName, &Peer)| {
            let macs = peer.state.macs.iter().filter(|(segment, _)| **segment > 0 || peer.status.is_alive());
            (name.clone(), macs.map(|(segment, mac)| (*segment, *mac)).collect())
        };
        let mut macs: PeerMacs = self.elector.peers(|peers| peers.members.iter().map(of_peer).collect());
        for (name, unheard) in self.elector.unheard_macs() {
            macs.insert(name, (1..).zip(unheard).collect());
        }
        // A peer whose state is not known yet has published nothing, not even its MACs.
        let is_known = |(_, peer): &(&NodeName, &Peer)| !peer.state.macs.is_empty();
        let addresses = |(name, peer): (&NodeName, &Peer)| (name.clone(), peer.state.addresses.clone());
        let addresses: PeerAddresses =
            self.elector.peers(|peers| peers.members.iter().filter(is_known).map(addresses).collect());
        let changed = macs != self.peer_macs || addresses != self.peer_addresses;
        (self.peer_macs, self.peer_addresses) = (macs, addresses);
        changed
    }

    /// Returns the addresses that peers publish.
    pub(crate) fn peer_addresses(&self) -> &PeerAddresses {
        &self.peer_addresses
    }

    /// Returns the MACs and addresses that peers publish.
    pub(crate) fn peers(&self) -> (&PeerMacs, &PeerAddresses) {
        (&self.peer_macs, &self.peer_addresses)
    }

    /// Returns which of the nodes may be dead, since their agents do not answer, by their InternalIPs and
    /// their addresses on segments. Gossip may run on another network than the one that leads to a node.
    pub(crate) fn doubts(&self, nodes: &Addresses, observed: &Observed) -> Doubts {
        let was_silent = |node: &NodeName| observed.node(node).is_some_and(|node| node.flags & NODE_SILENT != 0);
        self.elector.peers(|peers| {
            let of_node = |(name, addresses): (&NodeName, &Vec<IpAddr>)| {
                let status = peers.members.get(name).map(|peer| peer.status);
                let doubt = doubt(status, was_silent(name))?;
                let published = self.peer_addresses.get(name).into_iter().flatten();
                let all: Vec<_> = addresses.first().into_iter().chain(published).map(|it| (*it, doubt)).collect();
                Some(all)
            };
            nodes.iter().filter_map(of_node).flatten().collect()
        })
    }

    /// Publishes leaders and members in the maps, once a second. Returns whether it did.
    pub(crate) fn publish(&mut self, kernel: &mut Kernel, now: Duration) -> Result<bool, MapsError> {
        if !self.published.take_due(now) {
            return Ok(false);
        }
        self.published.publish_leaders(kernel, &self.elector)?;
        self.published.publish_members(kernel, &self.elector, &self.node, now)?;
        Ok(true)
    }

    /// Publishes the leader of a VIP in the maps, at once.
    pub(crate) fn publish_leader(&mut self, kernel: &mut Kernel, vip: Vip) -> Result<(), MapsError> {
        self.published.publish_leader(kernel, &self.elector, vip)
    }

    /// Begins or cancels a drain. An agent that was asked to stop goes on draining.
    pub(crate) fn set_drain(&mut self, kernel: &mut Kernel, drain: bool) -> Result<Vec<Command>, KernelError> {
        if drain == self.drain.is_some() || self.is_stopping() {
            return Ok(Vec::new());
        }
        let led = self.elector.own_vips().map(|(vip, _)| vip).collect();
        self.drain = drain.then(|| Drain::new(led));
        self.elector.handle(kernel, Input::Drain(drain))
    }

    /// Notes that the agent is to stop after the drain.
    pub(crate) fn stop_after_drain(&mut self) {
        let vips = self.elector.own_vips().count();
        if let Some(drain) = &mut self.drain
            && drain.stop(Instant::now())
        {
            tracing::info!(vips, "stopping, transferring led VIPs");
        }
    }

    /// Returns the progress of the drain.
    pub(crate) fn drain_progress(&self) -> DrainProgress {
        let Some(drain) = &self.drain else { return DrainProgress::default() };
        let held = self.elector.own_vips().map(|(vip, _)| vip).collect();
        let leader = |vip| self.elector.leadership(vip)?.leader;
        drain.progress(&held, |vip| self.elector.has_other(vip), leader)
    }

    /// Returns whether the agent was asked to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.drain.as_ref().is_some_and(Drain::is_stopping)
    }

    /// Returns whether the agent was asked to stop, and the drain is over.
    pub(crate) fn may_stop(&self) -> bool {
        let waited = self.drain.as_ref().and_then(Drain::stopping_for);
        waited.is_some_and(|waited| self.elector.has_drained(waited))
    }
}

/// Returns whether a node may be dead. An agent that has just started has not heard of most nodes: it
/// doubts only those that were silent before.
fn doubt(status: Option<MemberStatus>, was_silent: bool) -> Option<Doubt> {
    match status {
        Some(MemberStatus::Alive) => None,
        Some(status) => Some(Doubt { is_down: !status.is_alive(), was_silent }),
        None => was_silent.then_some(Doubt { is_down: false, was_silent }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_whose_agents_do_not_answer_may_be_dead() {
        let doubted = |is_down, was_silent| Some(Doubt { is_down, was_silent });
        for (status, was_silent, expected) in [
            (Some(MemberStatus::Alive), false, None),
            (Some(MemberStatus::Alive), true, None),
            (Some(MemberStatus::Suspected), false, doubted(false, false)),
            (Some(MemberStatus::Down), false, doubted(true, false)),
            (Some(MemberStatus::Left), true, doubted(true, true)),
            (None, false, None),
            (None, true, doubted(false, true)),
        ] {
            assert_eq!(doubt(status, was_silent), expected, "{status:?}");
        }
    }
}
