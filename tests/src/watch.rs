//! What clients see of an address while something happens to it: requests of four kinds, one of each every 10 ms.
//!
//! | | client | asks |
//! | --- | --- | --- |
//! | [`View::warm`] | the first | by UDP; its kernel knows the address's MAC, until an announcement tells it another |
//! | [`View::connections`] | the first | for a TCP connection, likewise |
//! | [`View::anew`] | the second | by UDP; its kernel is made to forget the MAC whenever it knows it, so that it asks for each datagram |
//! | [`View::questions`] | the third | by ARP, so that it is seen who answers |

mod connections;
mod datagrams;
mod questions;
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

pub use self::{questions::Questions, series::Series};
use crate::{lan::Lan, netns::Namespace, wait};

/// Between the requests of a kind.
pub const PAUSE: Duration = Duration::from_millis(10);
/// An answer that takes longer is none. A SYN is sent again after a second.
const GRACE: Duration = Duration::from_millis(900);

/// Clients that a [`Watch`] needs.
pub const CLIENTS: u8 = 3;

/// What is shared between the thread that asks and who looks on.
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

/// One of the clients at work.
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

    /// What was seen, once [`Shared::stop`] is set.
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

    /// Fails if it has ended early.
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

/// Clients that ask until they are stopped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    warm: Asker<Series>,
    anew: Asker<Series>,
    connections: Asker<Series>,
    questions: Asker<Questions>,
}

/// What they saw.
#[derive(Clone, Debug)]
pub struct View {
    /// Datagrams of a client that knows the MAC.
    pub warm: Series,
    /// Datagrams of a client that asks for it each time.
    pub anew: Series,
    /// TCP connections of a client that knows it.
    pub connections: Series,
    /// ARP requests.
    pub questions: Questions,
}

impl Watch {
    /// Begins to ask for an address: a UDP echo server at one port, and whatever takes TCP connections at the other. The LAN
    /// has [`CLIENTS`].
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
            questions: Asker::start(third.namespace(), &stop, move |shared| questions::ask(vip, shared))?,
            stop,
        })
    }

    /// Waits until so many more requests of each kind were answered, one after the other.
    pub fn wait_for_answers(&mut self, count: usize, timeout: Duration) -> Result<()> {
        let begin = Instant::now();
        wait::until("answers to each kind of requests", timeout, || {
            let answered = self.answered_since(begin);
            ensure!(answered.iter().all(|answered| *answered >= count), "{answered:?} of {count} answered");
            Ok(())
        })
        .and_then(|()| self.check())
    }

    /// Of each kind.
    fn answered_since(&self, begin: Instant) -> [usize; 4] {
        [
            self.warm.shared.lock().answered_since(begin),
            self.anew.shared.lock().answered_since(begin),
            self.connections.shared.lock().answered_since(begin),
            self.questions.shared.lock().answered_since(begin),
        ]
    }

    /// Waits until another MAC than this one is the answer to an ARP request that is asked from now on.
    pub fn wait_for_another(&mut self, than: MacAddr, timeout: Duration) -> Result<MacAddr> {
        let begin = Instant::now();
        wait::until(&format!("another answer than {than}"), timeout, || {
            let questions = self.questions.shared.lock();
            questions.answers_since(begin).find(|mac| *mac != than).context("there is none")
        })
    }

    /// Who answered ARP requests so far, in their order.
    pub fn leaders(&self) -> Vec<MacAddr> {
        self.questions.shared.lock().leaders()
    }

    fn check(&mut self) -> Result<()> {
        [&mut self.warm, &mut self.anew, &mut self.connections].into_iter().try_for_each(Asker::check)?;
        self.questions.check()
    }

    /// Stops asking, and waits a moment for the last answers.
    pub fn stop(mut self) -> Result<View> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(View {
            warm: self.warm.finish()?,
            anew: self.anew.finish()?,
            connections: self.connections.finish()?,
            questions: self.questions.finish()?,
        })
    }
}

impl View {
    /// That every datagram and every connection was answered; an ARP request that falls between two leaders is asked again
    /// by any kernel.
    pub fn check_nothing_lost(&self) -> Result<()> {
        self.check_nothing_lost_by_who_knows_the_mac()?;
        check_nothing_lost("datagrams of who asks anew", &self.anew)
    }

    /// The same of clients that need not ask.
    pub fn check_nothing_lost_by_who_knows_the_mac(&self) -> Result<()> {
        check_nothing_lost("datagrams", &self.warm)?;
        check_nothing_lost("connections", &self.connections)
    }

    /// That nobody's request was answered by two nodes, and that the answers came from these nodes, one after the other and none
    /// of them again.
    pub fn check_leaders(&self, expected: &[MacAddr]) -> Result<()> {
        let (twice, leaders) = (self.questions.answered_twice(), self.questions.leaders());
        ensure!(twice == 0, "{twice} requests were answered by two nodes; they answered in this order: {leaders:?}");
        ensure!(leaders == expected, "{leaders:?} answered one after the other, and not {expected:?}");
        Ok(())
    }
}

fn check_nothing_lost(kind: &str, series: &Series) -> Result<()> {
    let (lost, asked) = (series.lost(), series.asked());
    ensure!(lost == 0 && asked > 0, "{lost} of {asked} {kind} were lost, nothing came back for {:?}", series.outage());
    Ok(())
}
