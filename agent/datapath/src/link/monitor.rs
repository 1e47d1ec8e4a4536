//! Follows interfaces, addresses, neighbors and routes in the kernel as they change.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures_util::{
    StreamExt,
    stream::{BoxStream, ReadyChunks},
};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{Handle, MulticastGroup};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, warn};

use super::{
    LinkError, Links, Neighbor, ResolvedNeighbors,
    fdb::Fdb,
    kernel,
    neighbor_table::{NeighborTable, ResolveTargets},
    neighbors::{self, NeighborEntry, NeighborRequest},
    probing::{PeersBySegment, SegmentProbes, SegmentReaches},
    routes::{self, RouteReadTimer},
    unreachability::{Doubts, UnreachabilityDetection},
    veth,
};
use crate::error_chain::error_chain;

const GROUPS: [MulticastGroup; 4] =
    [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr, MulticastGroup::Neigh];

/// Received by another socket: there may be any number of routes, and a loss of their notifications
/// must not affect the others.
const ROUTE_GROUPS: [MulticastGroup; 2] = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];

/// The limit of notifications that are processed before the result is published.
const CHUNK: usize = 256;

/// The interval at which the other ends of veths are read: the kernel does not report their changes.
const VETHS: Duration = Duration::from_secs(1);

/// The interval at which the frames of ports are read.
const FRAMES: Duration = Duration::from_secs(1);

/// The pause before a removed or ignored neighbor entry is requested again, and before a failed
/// socket is replaced.
const RETRY: Duration = Duration::from_secs(1);

/// What is followed beside the interfaces themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Targets {
    resolve: ResolveTargets,
    /// The veths whose other ends are read.
    veths: BTreeSet<u32>,
    /// The nodes in doubt.
    doubts: Doubts,
    /// The interfaces whose incoming frames show that this node's own link works.
    ports: BTreeSet<u32>,
    /// The other nodes on each segment.
    peers: PeersBySegment,
    /// The ports whose frames are counted, each with the interfaces by which they come in.
    entrances: BTreeMap<u32, BTreeSet<u32>>,
}

/// Keeps [`Links`] and [`ResolvedNeighbors`] up to date, in the network namespace of the thread
/// that started it.
///
/// Both are watched values: a late reader sees the newest state, never a backlog. When the kernel
/// drops notifications, everything is read again.
#[derive(Debug)]
pub struct Monitor {
    links: watch::Receiver<Arc<Links>>,
    neighbors: watch::Receiver<Arc<ResolvedNeighbors>>,
    reaches: watch::Receiver<Arc<SegmentReaches>>,
    frames: watch::Receiver<Arc<BTreeMap<u32, u64>>>,
    targets: watch::Sender<Targets>,
    task: JoinHandle<()>,
}

impl Monitor {
    /// Subscribes, reads everything once, and starts the task that follows changes.
    ///
    /// The task ends after [`Self::stop`] or when the monitor is dropped. Both remove its neighbor
    /// entries. If the task is aborted with the runtime, the entries stay in the kernel, and the
    /// next monitor recognizes them.
    pub async fn start() -> Result<Self, LinkError> {
        let session = NetlinkSession::open().await?;
        let (links_sender, links) = watch::channel(Arc::new(session.links.clone()));
        let (neighbors_sender, neighbors) = watch::channel(Arc::default());
        let (reaches_sender, reaches) = watch::channel(Arc::default());
        let (frames_sender, frames) = watch::channel(Arc::default());
        let (targets, targets_receiver) = watch::channel(Targets::default());
        let follower = MonitorTask {
            targets: targets_receiver,
            links: links_sender,
            neighbors: neighbors_sender,
            reaches: reaches_sender,
            frames: frames_sender,
        };
        Ok(Self { links, neighbors, reaches, frames, targets, task: tokio::spawn(follower.run(session)) })
    }

    /// Returns a receiver of the interfaces, now and as they change.
    pub fn links(&self) -> watch::Receiver<Arc<Links>> {
        self.links.clone()
    }

    /// Returns a receiver of the [resolved](Self::resolve) addresses, now and as they change. A new
    /// address is missing until it has been looked up.
    pub fn neighbors(&self) -> watch::Receiver<Arc<ResolvedNeighbors>> {
        self.neighbors.clone()
    }

    /// Sets the addresses to resolve (the Nodes') and the interfaces to use (the announcing ones).
    pub fn resolve(&self, interfaces: BTreeSet<u32>, addresses: BTreeSet<IpAddr>) {
        self.change_targets(|targets| targets.resolve = ResolveTargets { interfaces, addresses });
    }

    /// Sets the veths whose other ends [`Links::delivery`] needs.
    pub fn follow_veths(&self, veths: BTreeSet<u32>) {
        self.change_targets(|targets| targets.veths = veths);
    }

    /// Sets the nodes in doubt, by the address to resolve. Their kernels are asked, and those that do
    /// not answer become [`Neighbor::Silent`]. `ports`: the interfaces whose incoming frames show that
    /// this node's own link works.
    pub fn doubt(&self, doubts: Doubts, ports: BTreeSet<u32>) {
        self.change_targets(|targets| (targets.doubts, targets.ports) = (doubts, ports));
    }

    /// Sets the other nodes on each segment, of which some are asked. Each address must be one to
    /// [resolve](Self::resolve).
    pub fn probe(&self, peers: PeersBySegment) {
        self.change_targets(|targets| targets.peers = peers);
    }

    /// Returns how this node reaches others on each [probed](Self::probe) segment.
    pub fn reaches(&self) -> Arc<SegmentReaches> {
        Arc::clone(&self.reaches.borrow())
    }

    /// Sets the ports whose frames are counted, each with the interfaces by which they come in: itself,
    /// or a bond's cards.
    pub fn count_frames(&self, entrances: BTreeMap<u32, BTreeSet<u32>>) {
        self.change_targets(|targets| targets.entrances = entrances);
    }

    /// Returns the number of frames that came in by each [counted](Self::count_frames) port, as it was
    /// up to a second ago.
    pub fn frames(&self) -> Arc<BTreeMap<u32, u64>> {
        Arc::clone(&self.frames.borrow())
    }

    fn change_targets(&self, change: impl FnOnce(&mut Targets)) {
        self.targets.send_if_modified(|targets| {
            let before = targets.clone();
            change(targets);
            *targets != before
        });
    }

    /// Removes the neighbor entries and ends the task.
    pub async fn stop(self) {
        drop(self.targets);
        if let Err(error) = self.task.await {
            warn!(%error, "interface monitor failed");
        }
    }
}

type Notifications = ReadyChunks<BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>>;

/// The netlink sockets, and the state that they delivered.
struct NetlinkSession {
    requests: Handle,
    notifications: Notifications,
    route_notifications: Notifications,
    route_timer: RouteReadTimer,
    links: Links,
    neighbor_table: NeighborTable,
    unreachability: UnreachabilityDetection,
    probes: SegmentProbes,
    fdb: Fdb,
    /// Carry messages from the notification sockets. They are aborted with the session, which loses
    /// only unread messages.
    _carriers: JoinSet<()>,
}

/// Subscribes by a new socket, whose messages a task carries.
fn subscribe(groups: &[MulticastGroup], carriers: &mut JoinSet<()>) -> Result<Notifications, LinkError> {
    let (connection, _, messages) = rtnetlink::new_multicast_connection(groups).map_err(LinkError::Open)?;
    carriers.spawn(connection);
    Ok(messages.map(|(message, _)| message).boxed().ready_chunks(CHUNK))
}

impl NetlinkSession {
    async fn open() -> Result<Self, LinkError> {
        // Subscribes before the first read, so that no change is missed. Requests have their own
        // socket: an overrun of notifications must not lose answers.
        let mut carriers = JoinSet::new();
        let notifications = subscribe(&GROUPS, &mut carriers)?;
        let route_notifications = subscribe(&ROUTE_GROUPS, &mut carriers)?;
        let requests = kernel::connect()?;
        let links = kernel::links(&requests).await?;
        let fdb = Fdb::read(&requests).await?;
        let (neighbor_table, route_timer) = (NeighborTable::default(), RouteReadTimer::new(Instant::now()));
        Ok(Self {
            requests,
            notifications,
            route_notifications,
            route_timer,
            links,
            neighbor_table,
            unreachability: UnreachabilityDetection::default(),
            probes: SegmentProbes::default(),
            fdb,
            _carriers: carriers,
        })
    }

    /// Reads everything again by a new socket, after notifications were lost. Messages that still
    /// wait at the old socket are outdated. Until all of them are read, the kernel adds none and
    /// reports no further loss.
    async fn reopen(&mut self) -> Result<(), LinkError> {
        let fresh = Self::open().await?;
        let (neighbor_table, unreachability) =
            (mem::take(&mut self.neighbor_table), mem::take(&mut self.unreachability));
        let (probes, before) = (mem::take(&mut self.probes), mem::take(&mut self.links));
        *self = Self { neighbor_table, unreachability, probes, ..fresh };
        self.links.linger(&before, Instant::now());
        self.neighbor_table.clear_entries();
        Ok(())
    }

    /// Locates all addresses to resolve, reads the kernel's entries, and requests the missing ones.
    /// Reads the other ends of veths.
    async fn set_targets(&mut self, targets: &Targets) -> Result<(), LinkError> {
        self.read_other_ends(&targets.veths).await;
        let requests = self.neighbor_table.set_targets(&targets.resolve, &self.links);
        self.execute(requests).await;
        if self.neighbor_table.is_incomplete() {
            self.read_neighbors().await?;
        }
        self.refresh().await;
        Ok(())
    }

    async fn read_other_ends(&mut self, veths: &BTreeSet<u32>) {
        self.links.other_ends = veth::read(&self.requests, veths).await;
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
    async fn detect_unreachability(&mut self, ports: &BTreeSet<u32>) -> Result<bool, LinkError> {
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
    async fn probe_segments(&mut self) {
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
    async fn read_frames(&mut self, entrances: &BTreeMap<u32, BTreeSet<u32>>) -> BTreeMap<u32, u64> {
        let mut frames = BTreeMap::new();
        for (port, interfaces) in entrances {
            frames.insert(*port, kernel::received(&self.requests, interfaces).await);
        }
        frames
    }

    async fn read_routes(&mut self) -> Result<bool, LinkError> {
        let from = Instant::now();
        let changed = self.links.set_routes(routes::read(&self.requests).await?, Instant::now());
        self.route_timer.read(from, Instant::now());
        Ok(changed)
    }

    async fn refresh(&mut self) {
        let requests = self.neighbor_table.refresh();
        self.execute(requests).await;
    }

    /// Executes requests. Refused ones are tried again after [`RETRY`]; an interface that is down
    /// refuses all.
    async fn execute(&mut self, requests: Vec<NeighborRequest>) {
        for request in requests {
            if let Err(error) = neighbors::execute(&self.requests, request).await {
                debug!(?request, error = error_chain(&error), "cannot change a neighbor entry");
            }
        }
    }
}

/// The parts of the state that notifications changed.
#[derive(Default)]
struct Changed {
    links: bool,
    neighbors: bool,
    /// Notifications were lost.
    overrun: bool,
}

impl NetlinkSession {
    fn observe(&mut self, messages: Vec<NetlinkMessage<RouteNetlinkMessage>>) -> Changed {
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
                    changed.links |= self.links.follow(&message, Instant::now());
                }
                _ => {}
            }
        }
        changed
    }
}

/// Returns whether a notification is about a route to a gateway or a subnet, or about a loss.
fn concerns_routes(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    use RouteNetlinkMessage::{DelRoute, NewRoute};
    match &message.payload {
        NetlinkPayload::Overrun(_) => true,
        NetlinkPayload::InnerMessage(NewRoute(route) | DelRoute(route)) => {
            !routes::exits(route).is_empty() || routes::subnet(route).is_some()
        }
        _ => false,
    }
}

/// The task of a [`Monitor`].
struct MonitorTask {
    targets: watch::Receiver<Targets>,
    links: watch::Sender<Arc<Links>>,
    neighbors: watch::Sender<Arc<ResolvedNeighbors>>,
    reaches: watch::Sender<Arc<SegmentReaches>>,
    frames: watch::Sender<Arc<BTreeMap<u32, u64>>>,
}

impl MonitorTask {
    /// Follows changes until the monitor is dropped. A new session replaces a broken one, and reads
    /// everything again.
    async fn run(mut self, mut session: NetlinkSession) {
        loop {
            match self.follow(&mut session).await {
                Ok(()) => {
                    let requests = session.neighbor_table.clear();
                    return session.execute(requests).await;
                }
                Err(error) => {
                    warn!(error = error_chain(&error), "lost track of network interfaces, starting over");
                }
            }
            loop {
                sleep(RETRY).await;
                match session.reopen().await {
                    Ok(()) => break,
                    Err(_) if self.targets.has_changed().is_err() => return,
                    Err(error) => {
                        warn!(error = error_chain(&error), "cannot follow network interfaces");
                    }
                }
            }
        }
    }

    /// Returns `Ok` when the monitor is dropped. Every branch of the `select!` is cancel-safe: a
    /// chunk of notifications is either returned or still in the channel, `changed` keeps its mark,
    /// and the timers are instants.
    async fn follow(&mut self, session: &mut NetlinkSession) -> Result<(), LinkError> {
        self.set_targets(session).await?;
        let (mut refresh_at, mut veths_at, mut frames_at) = (None, Instant::now() + VETHS, Instant::now());
        loop {
            if !session.neighbor_table.needs_refresh() {
                refresh_at = None;
            } else if refresh_at.is_none() {
                refresh_at = Some(Instant::now() + RETRY);
            }
            let (routes_at, detect_at) = (session.route_timer.due(), session.unreachability.next());
            let (probe_at, expire_at) = (session.probes.next(Instant::now()), session.links.next_expiry());
            tokio::select! {
                messages = session.notifications.next() => {
                    let messages = messages.ok_or(LinkError::Closed)?;
                    self.process(session, messages).await?;
                }
                messages = session.route_notifications.next() => {
                    if messages.ok_or(LinkError::Closed)?.iter().any(concerns_routes) {
                        session.route_timer.routes_changed(Instant::now());
                    }
                }
                () = sleep_until(routes_at.unwrap_or_else(Instant::now)), if routes_at.is_some() => {
                    // Other cards may lead to addresses now.
                    if session.read_routes().await? {
                        self.set_targets(session).await?;
                    }
                }
                changed = self.targets.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.set_targets(session).await?;
                }
                () = sleep_until(detect_at.unwrap_or_else(Instant::now)), if detect_at.is_some() => {
                    let ports = self.targets.borrow().ports.clone();
                    if session.detect_unreachability(&ports).await? {
                        self.publish(session);
                    }
                }
                () = sleep_until(probe_at.unwrap_or_else(Instant::now)), if probe_at.is_some() => {
                    session.probe_segments().await;
                    replace(&self.reaches, &session.probes.reaches());
                }
                () = sleep_until(expire_at.unwrap_or_else(Instant::now)), if expire_at.is_some() => {
                    if session.links.expire(Instant::now()) {
                        self.set_targets(session).await?;
                    }
                }
                () = sleep_until(refresh_at.unwrap_or_else(Instant::now)), if refresh_at.is_some() => {
                    refresh_at = None;
                    session.refresh().await;
                }
                () = sleep_until(frames_at) => {
                    frames_at = Instant::now() + FRAMES;
                    let entrances = self.targets.borrow().entrances.clone();
                    replace(&self.frames, &session.read_frames(&entrances).await);
                }
                () = sleep_until(veths_at), if !session.links.other_ends.is_empty() => {
                    veths_at = Instant::now() + VETHS;
                    let veths = self.targets.borrow().veths.clone();
                    session.read_other_ends(&veths).await;
                    self.publish(session);
                }
            }
        }
    }

    async fn process(
        &mut self,
        session: &mut NetlinkSession,
        messages: Vec<NetlinkMessage<RouteNetlinkMessage>>,
    ) -> Result<(), LinkError> {
        let changed = session.observe(messages);
        if changed.overrun {
            session.reopen().await?;
            self.set_targets(session).await?;
        } else if changed.links {
            // Addresses may have moved to another interface or gone, and routes with them.
            session.route_timer.routes_changed(Instant::now());
            self.set_targets(session).await?;
            let requests = session.neighbor_table.retry_unresolved();
            session.execute(requests).await;
        } else if changed.neighbors {
            self.publish(session);
        }
        Ok(())
    }

    async fn set_targets(&mut self, session: &mut NetlinkSession) -> Result<(), LinkError> {
        let targets = self.targets.borrow_and_update().clone();
        session.unreachability.set_doubts(&targets.doubts, Instant::now());
        session.probes.set_segments(&targets.peers, Instant::now());
        session.set_targets(&targets).await?;
        replace(&self.reaches, &session.probes.reaches());
        self.publish(session);
        Ok(())
    }

    /// Publishes the state. Readers wake up only if it differs.
    fn publish(&self, session: &NetlinkSession) {
        replace(&self.links, &session.links);
        let mut neighbors = session.neighbor_table.neighbors();
        session.fdb.set_ports(&session.links, &mut neighbors);
        for address in session.unreachability.silent() {
            neighbors.entry(address).and_modify(Neighbor::set_silent);
        }
        replace(&self.neighbors, &neighbors);
    }
}

fn replace<T: Clone + PartialEq>(sender: &watch::Sender<Arc<T>>, value: &T) {
    sender.send_if_modified(|current| {
        let changed = **current != *value;
        if changed {
            *current = Arc::new(value.clone());
        }
        changed
    });
}
