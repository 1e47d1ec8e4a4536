//! The netlink sockets of a monitor, and the state that they delivered.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use futures_util::{
    StreamExt,
    stream::{BoxStream, ReadyChunks},
};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{Handle, MulticastGroup};
use tokio::{task::JoinSet, time::Instant};
use tracing::debug;

use super::{
    super::{
        Ethtool, LinkError, Links, connection,
        fdb::Fdb,
        kernel,
        neighbor_table::NeighborTable,
        neighbors::{self, NeighborEntry, NeighborRequest},
        probing::SegmentProbes,
        routes::{self, RouteReadTimer},
        unreachability::UnreachabilityDetection,
        veth,
    },
    Targets,
};
use crate::error_chain::error_chain;

const GROUPS: [MulticastGroup; 4] =
    [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr, MulticastGroup::Neigh];

/// Received by another socket: there may be any number of routes, and a loss of their notifications
/// must not affect the others.
const ROUTE_GROUPS: [MulticastGroup; 2] = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];

/// The limit of notifications that are processed before the result is published.
const CHUNK: usize = 256;

type Notifications = ReadyChunks<BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>>;

/// The netlink sockets, and the state that they delivered.
pub(super) struct NetlinkSession {
    requests: Handle,
    ethtool: Ethtool,
    pub(super) notifications: Notifications,
    pub(super) route_notifications: Notifications,
    pub(super) route_timer: RouteReadTimer,
    pub(super) links: Links,
    pub(super) neighbor_table: NeighborTable,
    pub(super) unreachability: UnreachabilityDetection,
    pub(super) probes: SegmentProbes,
    pub(super) fdb: Fdb,
    /// Carry messages from and to the sockets. They are aborted with the session, which loses only unread
    /// messages. They are not supervised: if one ends, the monitor opens another session.
    pub(super) carriers: JoinSet<()>,
}

/// Subscribes by a new socket, whose messages a task carries.
fn subscribe(groups: &[MulticastGroup], carriers: &mut JoinSet<()>) -> Result<Notifications, LinkError> {
    let (connection, _, messages) = rtnetlink::new_multicast_connection(groups).map_err(LinkError::Open)?;
    carriers.spawn(connection);
    Ok(messages.map(|(message, _)| message).boxed().ready_chunks(CHUNK))
}

impl NetlinkSession {
    pub(super) async fn open() -> Result<Self, LinkError> {
        // Subscribes before the first read, so that no change is missed. Requests have their own
        // socket: an overrun of notifications must not lose answers.
        let mut carriers = JoinSet::new();
        let notifications = subscribe(&GROUPS, &mut carriers)?;
        let route_notifications = subscribe(&ROUTE_GROUPS, &mut carriers)?;
        let requests = connection::connect_in(&mut carriers)?;
        let links = kernel::links(&requests).await?;
        let fdb = Fdb::read(&requests).await?;
        let ethtool = Ethtool::open()?;
        let (neighbor_table, route_timer) = (NeighborTable::default(), RouteReadTimer::new(Instant::now()));
        Ok(Self {
            requests,
            ethtool,
            notifications,
            route_notifications,
            route_timer,
            links,
            neighbor_table,
            unreachability: UnreachabilityDetection::default(),
            probes: SegmentProbes::default(),
            fdb,
            carriers,
        })
    }

    /// Reads everything again by a new socket, after notifications were lost. Messages that still
    /// wait at the old socket are outdated. Until all of them are read, the kernel adds none and
    /// reports no further loss.
    pub(super) async fn reopen(&mut self) -> Result<(), LinkError> {
        let fresh = Self::open().await?;
        let (neighbor_table, unreachability) =
            (mem::take(&mut self.neighbor_table), mem::take(&mut self.unreachability));
        let (probes, before) = (mem::take(&mut self.probes), mem::take(&mut self.links));
        *self = Self { neighbor_table, unreachability, probes, ..fresh };
        self.links.linger(&before, Instant::now());
        self.links.tag_notifications = before.tag_notifications + 1;
        self.neighbor_table.clear_entries();
        Ok(())
    }

    /// Locates all addresses to resolve, reads the kernel's entries, and requests the missing ones.
    /// Reads the other ends of veths, and who takes VLAN tags out of frames.
    pub(super) async fn set_targets(&mut self, targets: &Targets) -> Result<(), LinkError> {
        self.read_other_ends(&targets.veths).await;
        self.read_tags(&targets.tags);
        let requests = self.neighbor_table.set_targets(&targets.resolve, &self.links);
        self.execute(requests).await;
        if self.neighbor_table.is_incomplete() {
            self.read_neighbors().await?;
        }
        self.refresh().await;
        Ok(())
    }

    pub(super) async fn read_other_ends(&mut self, veths: &BTreeSet<u32>) {
        self.links.other_ends = veth::read(&self.requests, veths).await;
    }

    /// Reads which of these interfaces take VLAN tags out of frames. One that does not tell has none
    /// of this hardware.
    pub(super) fn read_tags(&mut self, interfaces: &BTreeSet<u32>) {
        let (ethtool, links) = (&self.ethtool, &self.links);
        let strips = |ifindex: &u32| {
            let interface = links.get(*ifindex);
            interface.is_some_and(|interface| ethtool.strips_tags(&interface.name).unwrap_or_default())
        };
        self.links.strips_tags = interfaces.iter().copied().filter(strips).collect();
    }

    /// Counts notifications about interfaces that took VLAN tags out of frames before. If they still do,
    /// readers may have turned that off, and others on again.
    pub(super) fn count_tag_notifications(&mut self, changed: &Changed) {
        let again = !changed.interfaces.is_disjoint(&self.links.strips_tags);
        self.links.tag_notifications += u64::from(again);
    }

    async fn read_neighbors(&mut self) -> Result<(), LinkError> {
        for (ifindex, address, entry) in neighbors::entries(&self.requests).await? {
            self.observe_neighbor(ifindex, address, Some(entry));
        }
        Ok(())
    }

    /// Records an entry, or that it is gone. Returns whether anything changed for readers.
    fn observe_neighbor(&mut self, ifindex: u32, address: IpAddr, entry: Option<NeighborEntry>) -> bool {
        let is_answer = entry.is_some_and(|entry| entry.is_confirmed()) && self.neighbor_table.is_at(ifindex, address);
        if is_answer {
            self.probes.answered(address, Instant::now());
        }
        let changed = is_answer && self.unreachability.answered(address, Instant::now());
        self.neighbor_table.observe(ifindex, address, entry) || changed
    }

    /// Asks the kernels of nodes in doubt. Returns whether other nodes are silent now.
    pub(super) async fn detect_unreachability(&mut self, ports: &BTreeSet<u32>) -> Result<bool, LinkError> {
        let frames = kernel::received(&self.requests, ports).await;
        if self.unreachability.is_deciding(Instant::now()) {
            // Notifications of answers may still wait to be read.
            self.read_neighbors().await?;
        }
        let (table, links) = (&self.neighbor_table, &self.links);
        let can_ask = |address| table.ask_request(address).is_some() && !links.cannot_ask(address);
        let (changed, asked) = self.unreachability.poll(frames, can_ask, Instant::now());
        let requests = asked.into_iter().filter_map(|address| self.neighbor_table.ask_request(address)).collect();
        self.execute(requests).await;
        Ok(changed)
    }

    /// Asks other nodes on each segment.
    pub(super) async fn probe_segments(&mut self) {
        let mut frames = BTreeMap::new();
        for ifindex in self.probes.interfaces().collect::<Vec<_>>() {
            frames.insert(ifindex, kernel::received(&self.requests, &BTreeSet::from([ifindex])).await);
        }
        let (table, links) = (&self.neighbor_table, &self.links);
        let can_ask = |address| table.ask_request(address).is_some() && !links.cannot_ask(address);
        let asked = self.probes.poll(&frames, can_ask, Instant::now());
        let requests = asked.into_iter().filter_map(|address| table.ask_request(address)).collect();
        self.execute(requests).await;
    }

    /// Returns the number of frames that came in by each port.
    pub(super) async fn read_frames(&mut self, entrances: &BTreeMap<u32, BTreeSet<u32>>) -> BTreeMap<u32, u64> {
        let mut frames = BTreeMap::new();
        for (port, interfaces) in entrances {
            frames.insert(*port, kernel::received(&self.requests, interfaces).await);
        }
        frames
    }

    pub(super) async fn read_routes(&mut self) -> Result<bool, LinkError> {
        let from = Instant::now();
        let changed = self.links.set_routes(routes::read(&self.requests).await?, Instant::now());
        self.route_timer.read(from, Instant::now());
        Ok(changed)
    }

    pub(super) async fn refresh(&mut self) {
        let requests = self.neighbor_table.refresh();
        self.execute(requests).await;
    }

    /// Executes requests. Refused ones are tried again later; an interface that is down
    /// refuses all.
    pub(super) async fn execute(&mut self, requests: Vec<NeighborRequest>) {
        for request in requests {
            if let Err(error) = neighbors::execute(&self.requests, request).await {
                debug!(?request, error = error_chain(&error), "cannot change a neighbor entry");
            }
        }
    }
}

/// The parts of the state that notifications changed.
#[derive(Default)]
pub(super) struct Changed {
    pub(super) links: bool,
    pub(super) neighbors: bool,
    /// The interfaces that notifications were about. The kernel also sends one if a driver's settings
    /// changed, which it does not contain (`NETDEV_FEAT_CHANGE` in net/core/rtnetlink.c).
    pub(super) interfaces: BTreeSet<u32>,
    /// Notifications were lost.
    pub(super) overrun: bool,
}

impl NetlinkSession {
    pub(super) fn observe(&mut self, messages: Vec<NetlinkMessage<RouteNetlinkMessage>>) -> Changed {
        let mut changed = Changed::default();
        for message in messages {
            match message.payload {
                NetlinkPayload::Overrun(_) => changed.overrun = true,
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbor)) => {
                    changed.neighbors |= self.fdb.observe(&neighbor, true);
                    if let Some((ifindex, address, entry)) = NeighborEntry::parse(&neighbor) {
                        changed.neighbors |= self.observe_neighbor(ifindex, address, Some(entry));
                    }
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(neighbor)) => {
                    changed.neighbors |= self.fdb.observe(&neighbor, false);
                    if let Some((ifindex, address, _)) = NeighborEntry::parse(&neighbor) {
                        changed.neighbors |= self.observe_neighbor(ifindex, address, None);
                    }
                }
                NetlinkPayload::InnerMessage(message) => {
                    if let RouteNetlinkMessage::NewLink(link) = &message {
                        changed.interfaces.insert(link.header.index);
                    }
                    changed.links |= self.links.follow(&message, Instant::now());
                }
                _ => {}
            }
        }
        changed
    }
}

/// Returns whether a notification is about a route to a gateway or a subnet, or about a loss.
pub(super) fn concerns_routes(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    use RouteNetlinkMessage::{DelRoute, NewRoute};
    match &message.payload {
        NetlinkPayload::Overrun(_) => true,
        NetlinkPayload::InnerMessage(NewRoute(route) | DelRoute(route)) => {
            !routes::exits(route).is_empty() || routes::subnet(route).is_some()
        }
        _ => false,
    }
}
