//! Following the kernel: interfaces, addresses, neighbours and routes as they change.

use std::{collections::BTreeSet, mem, net::IpAddr, sync::Arc, time::Duration};

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
    LinkError, Links, Neighbors,
    book::{Book, Wanted},
    fdb::Fdb,
    kernel,
    neighbors::{self, Command, Entry},
    routes::{self, Pace},
};

const GROUPS: [MulticastGroup; 4] =
    [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr, MulticastGroup::Neigh];

/// Heard by a socket of their own: there may be any number of routes, and what is lost of these is no loss to the others.
const ROUTE_GROUPS: [MulticastGroup; 2] = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];

/// Notifications that are taken in before their outcome is published.
const CHUNK: usize = 256;

/// How long a neighbour entry that was removed or ignored is left alone, and a failed socket too.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps [`Links`] and [`Neighbors`] up to date, in the network namespace of the thread that started it.
///
/// Both are watched values: whoever reads them late sees the newest state and never a backlog. When the kernel had to
/// drop notifications, everything is read anew.
#[derive(Debug)]
pub struct Monitor {
    links: watch::Receiver<Arc<Links>>,
    neighbors: watch::Receiver<Arc<Neighbors>>,
    wanted: watch::Sender<Wanted>,
    task: JoinHandle<()>,
}

impl Monitor {
    /// Subscribes, reads everything once, and starts the task that follows.
    ///
    /// The task ends after [`Self::stop`] or when the monitor is dropped; both take its neighbour entries back. Aborted
    /// with the runtime, it leaves them in the kernel, where the next monitor knows them for its own.
    pub async fn start() -> Result<Self, LinkError> {
        let session = Session::open().await?;
        let (links_sender, links) = watch::channel(Arc::new(session.links.clone()));
        let (neighbors_sender, neighbors) = watch::channel(Arc::default());
        let (wanted, wanted_receiver) = watch::channel(Wanted::default());
        let follower = Follower { wanted: wanted_receiver, links: links_sender, neighbors: neighbors_sender };
        Ok(Self { links, neighbors, wanted, task: tokio::spawn(follower.run(session)) })
    }

    /// The interfaces, now and as they change.
    pub fn links(&self) -> watch::Receiver<Arc<Links>> {
        self.links.clone()
    }

    /// The addresses that are [resolved](Self::resolve), now and as they change. Those just asked for are missing until
    /// they have been looked up.
    pub fn neighbors(&self) -> watch::Receiver<Arc<Neighbors>> {
        self.neighbors.clone()
    }

    /// Has these addresses (the Nodes') resolved from now on, on those interfaces (the announcing ones), and no others.
    pub fn resolve(&self, interfaces: BTreeSet<u32>, addresses: BTreeSet<IpAddr>) {
        let wanted = Wanted { interfaces, addresses };
        self.wanted.send_if_modified(|current| {
            let changed = *current != wanted;
            *current = wanted;
            changed
        });
    }

    /// Takes the neighbour entries back and ends the task.
    pub async fn stop(self) {
        drop(self.wanted);
        if let Err(error) = self.task.await {
            warn!(%error, "the task that follows the network interfaces failed");
        }
    }
}

type Notifications = ReadyChunks<BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>>;

/// Sockets, and what was learned by them.
struct Session {
    requests: Handle,
    notifications: Notifications,
    route_notifications: Notifications,
    pace: Pace,
    links: Links,
    book: Book,
    fdb: Fdb,
    /// Carry messages from the sockets for notifications; aborted with the session, which loses what nobody reads.
    _carriers: JoinSet<()>,
}

/// Subscribes by a socket of its own, whose messages a task carries.
fn subscribe(groups: &[MulticastGroup], carriers: &mut JoinSet<()>) -> Result<Notifications, LinkError> {
    let (connection, _, messages) = rtnetlink::new_multicast_connection(groups).map_err(LinkError::Open)?;
    carriers.spawn(connection);
    Ok(messages.map(|(message, _)| message).boxed().ready_chunks(CHUNK))
}

impl Session {
    async fn open() -> Result<Self, LinkError> {
        // Subscribed before the first read, so that no change falls between. A socket of its own: an overrun must not
        // swallow answers.
        let mut carriers = JoinSet::new();
        let notifications = subscribe(&GROUPS, &mut carriers)?;
        let route_notifications = subscribe(&ROUTE_GROUPS, &mut carriers)?;
        let requests = kernel::connect()?;
        let links = kernel::links(&requests).await?;
        let fdb = Fdb::read(&requests).await?;
        let (book, pace) = (Book::default(), Pace::new(Instant::now()));
        Ok(Self { requests, notifications, route_notifications, pace, links, book, fdb, _carriers: carriers })
    }

    /// Reads everything anew, by another socket, after notifications were lost: what still waits at this one is older
    /// than what is read now, and until all of it was taken the kernel adds nothing to it, and tells of no further loss.
    async fn reopen(&mut self) -> Result<(), LinkError> {
        let fresh = Self::open().await?;
        *self = Self { book: mem::take(&mut self.book), ..fresh };
        self.book.forget();
        Ok(())
    }

    /// Finds the place of every wanted address and what the kernel has there, and asks it for the rest.
    async fn place(&mut self, wanted: &Wanted) -> Result<(), LinkError> {
        let commands = self.book.place(wanted, &self.links);
        self.execute(commands).await;
        if self.book.is_incomplete() {
            for (ifindex, address, entry) in neighbors::entries(&self.requests).await? {
                self.book.observe(ifindex, address, Some(entry));
            }
        }
        self.care().await;
        Ok(())
    }

    async fn read_routes(&mut self) -> Result<(), LinkError> {
        let from = Instant::now();
        self.links.routed = routes::read(&self.requests).await?;
        self.pace.read(from, Instant::now());
        Ok(())
    }

    async fn care(&mut self) {
        let commands = self.book.care();
        self.execute(commands).await;
    }

    /// Refused requests are tried again with the next [`RETRY`]; an interface that is down refuses them all.
    async fn execute(&mut self, commands: Vec<Command>) {
        for command in commands {
            if let Err(error) = neighbors::execute(&self.requests, command).await {
                debug!(?command, error = &error as &dyn std::error::Error, "a neighbour entry was not changed");
            }
        }
    }
}

/// What notifications changed.
#[derive(Default)]
struct Changed {
    links: bool,
    neighbors: bool,
    /// Some were lost.
    overrun: bool,
}

impl Session {
    fn take_in(&mut self, messages: Vec<NetlinkMessage<RouteNetlinkMessage>>) -> Changed {
        let mut changed = Changed::default();
        for message in messages {
            match message.payload {
                NetlinkPayload::Overrun(_) => changed.overrun = true,
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbor)) => {
                    changed.neighbors |= self.fdb.observe(&neighbor, true);
                    if let Some((ifindex, address, entry)) = Entry::parse(&neighbor) {
                        changed.neighbors |= self.book.observe(ifindex, address, Some(entry));
                    }
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(neighbor)) => {
                    changed.neighbors |= self.fdb.observe(&neighbor, false);
                    if let Some((ifindex, address, _)) = Entry::parse(&neighbor) {
                        changed.neighbors |= self.book.observe(ifindex, address, None);
                    }
                }
                NetlinkPayload::InnerMessage(message) => changed.links |= self.links.apply(&message),
                _ => {}
            }
        }
        changed
    }
}

/// Whether a notification is of a route that leads out to a gateway, or of the loss of some.
fn is_of_exit(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    use RouteNetlinkMessage::{DelRoute, NewRoute};
    match &message.payload {
        NetlinkPayload::Overrun(_) => true,
        NetlinkPayload::InnerMessage(NewRoute(route) | DelRoute(route)) => !routes::exits(route).is_empty(),
        _ => false,
    }
}

/// The task's side of a [`Monitor`].
struct Follower {
    wanted: watch::Receiver<Wanted>,
    links: watch::Sender<Arc<Links>>,
    neighbors: watch::Sender<Arc<Neighbors>>,
}

impl Follower {
    /// Follows until the monitor is gone. A broken session is replaced by a new one, which reads everything anew.
    async fn run(mut self, mut session: Session) {
        loop {
            match self.follow(&mut session).await {
                Ok(()) => {
                    let commands = session.book.leave();
                    return session.execute(commands).await;
                }
                Err(error) => {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "lost track of the network interfaces; starting over"
                    );
                }
            }
            loop {
                sleep(RETRY).await;
                match session.reopen().await {
                    Ok(()) => break,
                    Err(_) if self.wanted.has_changed().is_err() => return,
                    Err(error) => {
                        warn!(error = &error as &dyn std::error::Error, "cannot follow the network interfaces");
                    }
                }
            }
        }
    }

    /// `Ok` when the monitor is gone. Every branch of the `select!` is cancel-safe: a chunk of notifications is either
    /// handed out or still in the channel, `changed` keeps its mark, and the timers are instants.
    async fn follow(&mut self, session: &mut Session) -> Result<(), LinkError> {
        self.place(session).await?;
        let mut care_at = None;
        loop {
            if !session.book.needs_care() {
                care_at = None;
            } else if care_at.is_none() {
                care_at = Some(Instant::now() + RETRY);
            }
            let routes_at = session.pace.due();
            tokio::select! {
                messages = session.notifications.next() => {
                    let messages = messages.ok_or(LinkError::Closed)?;
                    self.notified(session, messages).await?;
                }
                messages = session.route_notifications.next() => {
                    if messages.ok_or(LinkError::Closed)?.iter().any(is_of_exit) {
                        session.pace.heard(Instant::now());
                    }
                }
                () = sleep_until(routes_at.unwrap_or_else(Instant::now)), if routes_at.is_some() => {
                    session.read_routes().await?;
                    self.publish(session);
                }
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.place(session).await?;
                }
                () = sleep_until(care_at.unwrap_or_else(Instant::now)), if care_at.is_some() => {
                    care_at = None;
                    session.care().await;
                }
            }
        }
    }

    async fn notified(
        &mut self,
        session: &mut Session,
        messages: Vec<NetlinkMessage<RouteNetlinkMessage>>,
    ) -> Result<(), LinkError> {
        let changed = session.take_in(messages);
        if changed.overrun {
            session.reopen().await?;
            self.place(session).await?;
        } else if changed.links {
            // Addresses may be on another interface now, or on none, and routes be gone with them.
            session.pace.heard(Instant::now());
            self.place(session).await?;
            let commands = session.book.hurry();
            session.execute(commands).await;
        } else if changed.neighbors {
            self.publish(session);
        }
        Ok(())
    }

    async fn place(&mut self, session: &mut Session) -> Result<(), LinkError> {
        let wanted = self.wanted.borrow_and_update().clone();
        session.place(&wanted).await?;
        self.publish(session);
        Ok(())
    }

    /// Readers are woken only by what differs.
    fn publish(&self, session: &Session) {
        replace(&self.links, &session.links);
        let mut neighbors = session.book.neighbors();
        session.fdb.locate(&session.links, &mut neighbors);
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
