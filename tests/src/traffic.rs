//! Sends requests in the background, and counts the results.

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

/// The time limit of a request, after which it counts as lost. A SYN is repeated after one and
/// three seconds. A datagram is not repeated, so a late reply is no loss.
const TIMEOUT: Duration = Duration::from_secs(3);
const TIMEOUT_UDP: Duration = Duration::from_secs(20);
/// Failures whose text is kept.
const KEPT_FAILURES: usize = 20;

/// The results of the requests.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Answered requests.
    pub answered: u64,
    /// Unanswered requests.
    pub lost: u64,
    /// The text of the first failures.
    pub failures: Vec<String>,
    /// Answers by (Service, pod).
    pub by_pod: BTreeMap<(String, String), u64>,
}

impl Tally {
    /// Checks that there were requests, and that this Service answered all of them.
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

    /// Checks that no other Service answered.
    pub fn check_none_by_others(&self, service: &str) -> Result<()> {
        match self.by_pod.keys().find(|(answered_by, _)| answered_by != service) {
            None => Ok(()),
            Some((other, pod)) => Err(anyhow!("pod {pod} of {other} answered a request to {service}")),
        }
    }

    /// Returns the number of requests.
    pub fn total(&self) -> u64 {
        self.answered + self.lost
    }
}

/// A client that sends one request after the other, each on a new connection, until it is stopped.
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
        let timeout = if request.kind.protocol() == "UDP" { TIMEOUT_UDP } else { TIMEOUT };
        Self::with_timeout(namespace, request, pause, timeout)
    }

    /// Starts a client with this time limit for each request.
    pub fn with_timeout(namespace: &Namespace, request: Request, pause: Duration, timeout: Duration) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let lost = Arc::new(AtomicU64::new(0));
        let (stopped, count, losses) = (Arc::clone(&stop), Arc::clone(&answered), Arc::clone(&lost));
        let client = namespace.spawn(move || {
            let mut tally = Tally::default();
            while !stopped.load(Ordering::Relaxed) {
                ask(request, timeout, &mut tally);
                count.store(tally.answered, Ordering::Relaxed);
                losses.store(tally.lost, Ordering::Relaxed);
                // This is the rate of the traffic, not a wait.
                std::thread::park_timeout(pause);
            }
            Ok(tally)
        })?;
        Ok(Self { stop, answered, lost, client: Some(client) })
    }

    /// Returns the number of answered requests so far.
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

    /// Waits until a request was lost since the start.
    pub fn wait_for_a_loss(&self, timeout: Duration) -> Result<()> {
        wait::until("a lost request", timeout, || {
            ensure!(self.lost.load(Ordering::Relaxed) > 0, "all {} answered", self.answered());
            Ok(())
        })
    }

    /// Stops after the current request, and returns the results.
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

fn ask(request: Request, timeout: Duration, tally: &mut Tally) {
    match request.send(timeout) {
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
