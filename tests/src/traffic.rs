//! Requests that go on in the background, and what became of them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};

use crate::{client::Request, netns::Namespace, wait};

/// How long a request may take before it counts as lost. A SYN is sent again after a second, and after three; a datagram is
/// not, so that one that comes late was never lost.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_UDP: Duration = Duration::from_secs(20);
/// Failures that are kept word for word.
const KEPT_FAILURES: usize = 20;

/// What became of the requests.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Answered requests.
    pub answered: u64,
    /// Unanswered requests.
    pub lost: u64,
    /// The first failures, in words.
    pub failures: Vec<String>,
    /// Answers by (Service, pod).
    pub by_pod: BTreeMap<(String, String), u64>,
}

impl Tally {
    /// That there were requests, that all were answered, and all by the one Service.
    pub fn check_all_by(&self, service: &str) -> Result<()> {
        ensure!(
            self.lost == 0,
            "{} of {} requests to {service} were lost: {:?}",
            self.lost,
            self.total(),
            self.failures
        );
        ensure!(self.answered > 0, "no request to {service} was made");
        self.check_none_by_others(service)
    }

    /// That no other Service answered.
    pub fn check_none_by_others(&self, service: &str) -> Result<()> {
        match self.by_pod.keys().find(|(answered_by, _)| answered_by != service) {
            None => Ok(()),
            Some((other, pod)) => Err(anyhow!("pod {pod} of {other} answered a request to {service}")),
        }
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.answered + self.lost
    }
}

/// A client that asks one request after the other, each on a new connection, until it is stopped.
#[derive(Debug)]
pub struct Traffic {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    client: Option<JoinHandle<Result<Tally>>>,
}

impl Traffic {
    /// Starts a client in a namespace, with a pause between requests.
    pub fn start(namespace: &Namespace, request: Request, pause: Duration) -> Result<Self> {
        let patience = if request.kind.protocol() == "UDP" { PATIENCE_UDP } else { PATIENCE };
        Self::with_patience(namespace, request, pause, patience)
    }

    /// Starts a client that gives a request up after `patience`.
    pub fn with_patience(namespace: &Namespace, request: Request, pause: Duration, patience: Duration) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let lost = Arc::new(AtomicU64::new(0));
        let (stopped, count, losses) = (Arc::clone(&stop), Arc::clone(&answered), Arc::clone(&lost));
        let client = namespace.spawn(move || {
            let mut tally = Tally::default();
            while !stopped.load(Ordering::Relaxed) {
                ask(request, patience, &mut tally);
                count.store(tally.answered, Ordering::Relaxed);
                losses.store(tally.lost, Ordering::Relaxed);
                // The rate of the traffic, not a wait for anything.
                std::thread::park_timeout(pause);
            }
            Ok(tally)
        })?;
        Ok(Self { stop, answered, lost, client: Some(client) })
    }

    /// Requests answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until another `count` requests were answered.
    pub fn wait_for_more(&self, count: u64, timeout: Duration) -> Result<()> {
        let wanted = self.answered() + count;
        wait::until("more requests answered", timeout, || {
            ensure!(self.answered() >= wanted, "{} of {wanted} answered", self.answered());
            Ok(())
        })
    }

    /// Waits until a request was lost, ever.
    pub fn wait_for_a_loss(&self, timeout: Duration) -> Result<()> {
        wait::until("a lost request", timeout, || {
            ensure!(self.lost.load(Ordering::Relaxed) > 0, "all {} answered", self.answered());
            Ok(())
        })
    }

    /// Stops after the request under way, and tells.
    pub fn stop(mut self) -> Result<Tally> {
        self.join().unwrap_or_else(|| Err(anyhow!("the client was stopped before")))
    }

    fn join(&mut self) -> Option<Result<Tally>> {
        self.stop.store(true, Ordering::Relaxed);
        let client = self.client.take()?;
        client.thread().unpark();
        Some(client.join().unwrap_or_else(|_| Err(anyhow!("the client panicked"))))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

fn ask(request: Request, patience: Duration, tally: &mut Tally) {
    match request.send(patience) {
        Ok(answer) => {
            tally.answered += 1;
            *tally.by_pod.entry((answer.service, answer.pod)).or_default() += 1;
        }
        Err(error) => {
            tally.lost += 1;
            if tally.failures.len() < KEPT_FAILURES {
                tally.failures.push(format!("{error:#}"));
            }
        }
    }
}
