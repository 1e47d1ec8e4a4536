//! Observes a VIP with several clients while something happens to it: requests of four kinds, one
//! of each every 10 ms.
//!
//! | | client | asks |
//! | --- | --- | --- |
//! | [`View::warm`] | the first | by UDP; its kernel keeps the MAC until an announcement |
//! | [`View::connections`] | the first | for a TCP connection, likewise |
//! | [`View::anew`] | the second | by UDP; its kernel is made to forget the MAC each time |
//! | [`View::arp_requests`] | the third | by ARP, so that it is seen who answers |

mod arp_requests;
mod connections;
mod datagrams;
mod series;

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use pnet::util::MacAddr;

pub use self::{arp_requests::ArpRequests, series::Series};
use crate::{lan::Lan, netns::Namespace, wait};

/// The pause between requests of a kind.
pub const PAUSE: Duration = Duration::from_millis(10);
/// The time limit of a request. A SYN is repeated only after a second.
const GRACE: Duration = Duration::from_millis(900);

/// The number of clients that a [`Watch`] needs.
pub const CLIENTS: u8 = 3;

/// The state that a client's thread shares with its observer.
#[derive(Debug)]
struct Shared<T> {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<T>>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { stop: Arc::clone(&self.stop), seen: Arc::clone(&self.seen) }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A running client.
#[derive(Debug)]
struct Asker<T> {
    shared: Shared<T>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl<T: Clone + Default + Send + 'static> Asker<T> {
    fn start(
        namespace: &Namespace,
        stop: &Arc<AtomicBool>,
        ask: impl FnOnce(&Shared<T>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let shared = Shared { stop: Arc::clone(stop), seen: Arc::default() };
        let theirs = shared.clone();
        Ok(Self { thread: Some(namespace.spawn(move || ask(&theirs))?), shared })
    }

    /// Returns the results, after [`Shared::stop`] is set.
    fn finish(&mut self) -> Result<T> {
        self.join()?;
        Ok(self.shared.lock().clone())
    }
}

impl<T> Asker<T> {
    fn join(&mut self) -> Result<()> {
        let thread = self.thread.take();
        thread.map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a watching client panicked"))))
    }

    /// Fails if the client has ended early.
    fn check(&mut self) -> Result<()> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join().context("a watching client gave up")?;
        }
        Ok(())
    }
}

impl<T> Drop for Asker<T> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.join();
    }
}

/// Clients that send requests until they are stopped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    warm: Asker<Series>,
    anew: Asker<Series>,
    connections: Asker<Series>,
    arp_requests: Asker<ArpRequests>,
}

/// The results.
#[derive(Clone, Debug)]
pub struct View {
    /// Datagrams of a client that knows the VIP's MAC.
    pub warm: Series,
    /// Datagrams of a client that resolves the MAC each time.
    pub anew: Series,
    /// TCP connections of a client that knows the MAC.
    pub connections: Series,
    /// ARP requests.
    pub arp_requests: ArpRequests,
}

impl Watch {
    /// Starts the clients for an address, with a UDP echo server at one port and a TCP server at
    /// the other. The LAN has [`CLIENTS`] clients.
    pub fn start(lan: &Lan, vip: Ipv4Addr, udp: u16, tcp: u16) -> Result<Self> {
        let [first, second, third, ..] = lan.clients.as_slice() else {
            anyhow::bail!("a watch takes {CLIENTS} clients")
        };
        let stop = Arc::default();
        Ok(Self {
            warm: Asker::start(first.namespace(), &stop, move |shared| {
                datagrams::ask(SocketAddrV4::new(vip, udp), false, shared)
            })?,
            anew: Asker::start(second.namespace(), &stop, move |shared| {
                datagrams::ask(SocketAddrV4::new(vip, udp), true, shared)
            })?,
            connections: Asker::start(first.namespace(), &stop, move |shared| {
                connections::ask(SocketAddrV4::new(vip, tcp), shared)
            })?,
            arp_requests: Asker::start(third.namespace(), &stop, move |shared| arp_requests::ask(vip, shared))?,
            stop,
        })
    }

    /// Waits until this many more requests of each kind were answered, one after the other.
    pub fn wait_for_answers(&mut self, count: usize, timeout: Duration) -> Result<()> {
        let begin = Instant::now();
        wait::until("answers to each kind of requests", timeout, || {
            let answered = self.answered_since(begin);
            ensure!(answered.iter().all(|answered| *answered >= count), "{answered:?} of {count} answered");
            Ok(())
        })
        .and_then(|()| self.check())
    }

    /// Returns the number of answered requests of each kind.
    fn answered_since(&self, begin: Instant) -> [usize; 4] {
        [
            self.warm.shared.lock().answered_since(begin),
            self.anew.shared.lock().answered_since(begin),
            self.connections.shared.lock().answered_since(begin),
            self.arp_requests.shared.lock().answered_since(begin),
        ]
    }

    /// Waits until another MAC than this one answers an ARP request that is sent from now on.
    pub fn wait_for_another(&mut self, than: MacAddr, timeout: Duration) -> Result<MacAddr> {
        let begin = Instant::now();
        wait::until(&format!("another answer than {than}"), timeout, || {
            let arp_requests = self.arp_requests.shared.lock();
            arp_requests.answers_since(begin).find(|mac| *mac != than).context("there is none")
        })
    }

    /// Returns the MACs that answered ARP requests so far, in order.
    pub fn leaders(&self) -> Vec<MacAddr> {
        self.arp_requests.shared.lock().leaders()
    }

    fn check(&mut self) -> Result<()> {
        [&mut self.warm, &mut self.anew, &mut self.connections].into_iter().try_for_each(Asker::check)?;
        self.arp_requests.check()
    }

    /// Stops sending, waits a moment for the last answers, and returns the results.
    pub fn stop(mut self) -> Result<View> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(View {
            warm: self.warm.finish()?,
            anew: self.anew.finish()?,
            connections: self.connections.finish()?,
            arp_requests: self.arp_requests.finish()?,
        })
    }
}

impl View {
    /// Checks that every datagram and every connection was answered. Kernels repeat an ARP request
    /// that falls between two leaders, so these do not count.
    pub fn check_nothing_lost(&self) -> Result<()> {
        self.check_nothing_lost_by_who_knows_the_mac()?;
        check_nothing_lost("datagrams of who asks anew", &self.anew)
    }

    /// Checks the same for clients that know the MAC.
    pub fn check_nothing_lost_by_who_knows_the_mac(&self) -> Result<()> {
        check_nothing_lost("datagrams", &self.warm)?;
        check_nothing_lost("connections", &self.connections)
    }

    /// Checks that no request was answered by two nodes, and that exactly these nodes answered, one
    /// after the other.
    pub fn check_leaders(&self, expected: &[MacAddr]) -> Result<()> {
        let (twice, leaders) = (self.arp_requests.answered_twice(), self.arp_requests.leaders());
        ensure!(twice == 0, "{twice} requests were answered by two nodes; they answered in this order: {leaders:?}");
        ensure!(leaders == expected, "{leaders:?} answered one after the other, and not {expected:?}");
        Ok(())
    }
}

fn check_nothing_lost(kind: &str, series: &Series) -> Result<()> {
    let (lost, asked) = (series.lost(), series.count());
    ensure!(lost == 0 && asked > 0, "{lost} of {asked} {kind} were lost, nothing came back for {:?}", series.outage());
    Ok(())
}
