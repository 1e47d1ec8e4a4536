//! The election at work: the membership's state machine on the gossip, the election's on that, the store and the kernel.
//!
//! Gossip is answered on a task of its own ([`Voice`]), so that a long look at the manifests is not taken for death; it falls
//! silent where the event loop has not turned for [`HUNG`], since an agent that is stuck must not seem alive.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    select,
    sync::{
        Notify, mpsc,
        watch::{self, error::RecvError},
    },
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    kernel::{Kernel, KernelError, boottime, nanoseconds},
    settle::tell,
};
use crate::{
    election::{Command, Election, Input, Leadership, Outcome, Role},
    gossip::{self, Addresses, Counters, Gossip, Incoming},
    membership::{self, Event, Membership, Peers},
    model::{NodeName, Vip},
    store::{self, Operation, Operations, Place, Report, Swapped},
};

/// How long the event loop may be away before gossip falls silent.
const HUNG: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Elector {
    local: NodeName,
    election: Election,
    shared: Arc<Shared>,
    voice: JoinHandle<()>,
    /// What came of the gossip's datagrams.
    counters: Arc<Counters>,
    /// Marked by the voice when there are events; closed when it ends.
    happened: watch::Receiver<()>,
    addresses: watch::Sender<Addresses>,
    store: Operations<Place>,
    /// The store operation that is under way for each VIP, by when it was asked for: of one that was overtaken the end is
    /// of no interest.
    latest: BTreeMap<Vip, Duration>,
    operations: u64,
    /// What is to be given to the state machine next.
    pending: Vec<Input>,
    /// What is wrong with the Leases, as last told.
    faults: BTreeSet<String>,
}

/// What the event loop and the task that speaks both hold.
struct Shared {
    membership: Mutex<Membership>,
    /// There is something in the outbox.
    outgoing: Notify,
    /// `CLOCK_BOOTTIME` of the event loop's last turn, nanoseconds.
    turned: AtomicU64,
}

impl Shared {
    /// A task that panicked while it held the lock left a state machine that may be inconsistent, but the event loop ends
    /// with it, and the fence closes.
    fn lock(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the membership has something to do next. The lock is not held beyond this: the task that speaks needs it.
    fn next(&self) -> Option<Duration> {
        self.lock().next()
    }
}

/// Speaks for the membership.
struct Voice {
    shared: Arc<Shared>,
    gossip: Gossip,
    payloads: mpsc::Receiver<Incoming>,
    happened: watch::Sender<()>,
}

/// Payloads that are taken in before it is somebody else's turn.
const BATCH: usize = 64;

impl Voice {
    /// Ends with the task of the sockets, or when it is aborted.
    async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let due = self.until_due();
            select! {
                taken = self.payloads.recv_many(&mut batch, BATCH) => if taken == 0 { return },
                () = sleep(due) => {}
                () = self.shared.outgoing.notified() => {}
            }
            let Ok(now) = boottime() else { return };
            let turned = Duration::from_nanos(self.shared.turned.load(Ordering::Relaxed));
            let hung = now.saturating_sub(turned) > HUNG;
            let (outbox, happened) = {
                let mut membership = self.shared.lock();
                if hung {
                    batch.clear();
                } else {
                    for Incoming { node, bytes } in batch.drain(..) {
                        if let Err(error) = membership.receive(&node, &bytes, now) {
                            tracing::debug!(%node, %error, "a peer's message makes no sense");
                        }
                    }
                    membership.turn(now);
                }
                (membership.take_outbox(), membership.has_events())
            };
            if !outbox.is_empty() && !hung {
                self.gossip.send(outbox);
            }
            if happened {
                self.happened.send_replace(());
            }
        }
    }

    fn until_due(&self) -> Duration {
        let next = self.shared.next();
        let wait = next.and_then(|next| Some(next.saturating_sub(boottime().ok()?)));
        // While the event loop hangs nothing is done, also if it is due.
        wait.unwrap_or(HUNG).clamp(Duration::from_millis(1), HUNG)
    }
}

impl Elector {
    /// Starts to listen to the peers. Nothing is led before the first [`Input::Wanted`].
    pub(super) fn start(
        election: Election,
        lease: Duration,
        gossip: gossip::Settings,
        place: Place,
        seed: u64,
    ) -> Result<(Self, mpsc::Receiver<Report>), super::AgentError> {
        let now = boottime()?;
        let local = gossip.local.clone();
        let membership = Membership::new(local.clone(), seed, membership::Settings::for_lease(lease), now);
        let (addresses, known) = watch::channel(Addresses::new());
        let (gossip, payloads) = Gossip::start(gossip, known)?;
        let shared = Arc::new(Shared {
            membership: Mutex::new(membership),
            outgoing: Notify::new(),
            turned: AtomicU64::new(nanoseconds(now)),
        });
        let counters = Arc::clone(gossip.counters());
        let (marked, happened) = watch::channel(());
        let voice = Voice { shared: Arc::clone(&shared), gossip, payloads, happened: marked };
        let voice = tokio::spawn(voice.run());
        let (store, reports) = Operations::new(place);
        let (latest, operations, pending, faults) = (BTreeMap::new(), 0, Vec::new(), BTreeSet::new());
        let elector = Self {
            local,
            election,
            shared,
            voice,
            counters,
            happened,
            addresses,
            store,
            latest,
            operations,
            pending,
            faults,
        };
        Ok((elector, reports))
    }

    /// The Nodes of the cluster, with their InternalIPs.
    pub(super) fn know(&mut self, nodes: &Addresses) -> Result<(), KernelError> {
        if *self.addresses.borrow() == *nodes {
            return Ok(());
        }
        self.shared.lock().know(nodes.keys().cloned().collect(), boottime()?);
        self.addresses.send_replace(nodes.clone());
        self.shared.outgoing.notify_one();
        Ok(())
    }

    /// Waits until a peer said something; an error if none will be heard any more. Cancel-safe.
    pub(super) async fn happened(&mut self) -> Result<(), RecvError> {
        self.happened.changed().await
    }

    /// When to call [`Self::turn`], `CLOCK_BOOTTIME`.
    pub(super) fn next(&self) -> Option<Duration> {
        self.election.next()
    }

    /// Time has passed, or peers have spoken.
    pub(super) fn turn(&mut self, kernel: &mut Kernel) -> Result<Vec<Command>, KernelError> {
        for event in self.shared.lock().take_events() {
            self.pending.push(match event {
                Event::Changed => Input::Peers,
                Event::Disowned => Input::Disowned,
                Event::Told { from, message } => Input::Told { from, message },
            });
        }
        self.pending.push(Input::Peers);
        self.work(kernel)
    }

    /// One turn of the agent's loop: what the programs gave up, and the fence.
    pub(super) fn beat(&mut self, kernel: &mut Kernel, carrier: bool) -> Result<Vec<Command>, KernelError> {
        self.shared.turned.store(nanoseconds(boottime()?), Ordering::Relaxed);
        let yielded = kernel.beat()?;
        self.pending.extend(yielded.into_iter().map(Input::PeerAnnounced));
        self.pending.push(Input::Tick { carrier });
        self.work(kernel)
    }

    /// An operation on the store is through.
    pub(super) fn report(&mut self, kernel: &mut Kernel, report: Report) -> Result<Vec<Command>, KernelError> {
        let Report { operation, asked, result } = report;
        let failed = |error: &store::StoreError| {
            tracing::debug!(error = error as &dyn std::error::Error, "an operation on the Leases failed");
        };
        let result = result.inspect_err(failed);
        let input = match (operation, result) {
            (Operation::Survey, Ok(store::Outcome::Surveyed(survey))) => {
                self.complain(survey.faults.values().map(|error| anyhow::Error::from(Arc::clone(error))));
                // Nothing is known of what could not be read, so it is no evidence for who holds it.
                let known = self.election.held().all(|(vip, _)| !survey.faults.contains_key(&vip));
                Input::Surveyed { asked, leases: known.then_some(survey.leases) }
            }
            (Operation::Survey, result) => {
                self.complain(result.err().map(anyhow::Error::from));
                Input::Surveyed { asked, leases: None }
            }
            (Operation::Delete { .. }, _) => return Ok(Vec::new()),
            (Operation::Read(vip) | Operation::Swap { vip, .. }, result) => {
                if self.latest.get(&vip).is_none_or(|latest| *latest != asked) {
                    return Ok(Vec::new());
                }
                self.latest.remove(&vip);
                let outcome = match result {
                    Ok(store::Outcome::Read(lease)) => Outcome::Read(lease),
                    Ok(store::Outcome::Swapped(Swapped::Done(version))) => Outcome::Swapped(version),
                    Ok(store::Outcome::Swapped(Swapped::Conflict)) => Outcome::Conflict,
                    _ => Outcome::Unavailable,
                };
                Input::Stored { vip, outcome }
            }
        };
        self.give(kernel, input)
    }

    /// Gives the state machine something, and carries out what is for the kernel, the store and the peers. What it
    /// said is for the caller to react to.
    pub(super) fn give(&mut self, kernel: &mut Kernel, input: Input) -> Result<Vec<Command>, KernelError> {
        self.pending.push(input);
        self.work(kernel)
    }

    fn work(&mut self, kernel: &mut Kernel) -> Result<Vec<Command>, KernelError> {
        let mut said = Vec::new();
        while !self.pending.is_empty() {
            for input in std::mem::take(&mut self.pending) {
                let now = boottime()?;
                let shared = Arc::clone(&self.shared);
                let mut membership = shared.lock();
                let commands = self.election.handle(input, membership.peers(), now);
                for command in &commands {
                    self.carry_out(command, kernel, &mut membership, now)?;
                }
                said.extend(commands);
            }
        }
        self.shared.outgoing.notify_one();
        Ok(said)
    }

    fn carry_out(
        &mut self,
        command: &Command,
        kernel: &mut Kernel,
        membership: &mut Membership,
        now: Duration,
    ) -> Result<(), KernelError> {
        match command {
            Command::Follow { vip, .. } => kernel.follow(*vip)?,
            Command::Lead { vip, epoch, .. } => kernel.lead(*vip, *epoch)?,
            Command::Extend(deadline) => kernel.extend(*deadline)?,
            Command::Ask => membership.ask(now),
            Command::Renounce => membership.renounce(now),
            Command::Tell { to, message } => membership.tell(to, *message),
            Command::Publish(item) => {
                if let Err(full) = membership.publish(item.clone(), now) {
                    tracing::error!(error = &full as &dyn std::error::Error, "peers are not told everything");
                }
            }
            Command::Withdraw(key) => membership.withdraw(key, now),
            Command::Read(vip) => self.operate(*vip, Operation::Read(*vip), now),
            Command::Swap { vip, expected, epoch } => {
                let (expected, holder) = (expected.clone(), self.local.clone());
                self.operate(*vip, Operation::Swap { vip: *vip, expected, holder, epoch: *epoch }, now);
            }
            Command::Delete { vip, version } => {
                self.store.begin(Operation::Delete { vip: *vip, version: version.clone() }, now);
            }
            Command::Survey => {
                if !self.store.begin(Operation::Survey, now) {
                    self.pending.push(Input::Surveyed { asked: now, leases: None });
                }
            }
            Command::Gather | Command::Probe { .. } | Command::Conflict { .. } => {}
        }
        Ok(())
    }

    /// Tells what is wrong with the Leases, where that changed.
    fn complain(&mut self, errors: impl IntoIterator<Item = anyhow::Error>) {
        let faults = errors.into_iter().map(|error| format!("{error:#}")).collect();
        tell(&self.faults, &faults);
        self.faults = faults;
    }

    fn operate(&mut self, vip: Vip, operation: Operation, now: Duration) {
        // Two of a VIP in one nanosecond would be told apart by nothing.
        self.operations += 1;
        let asked = now + Duration::from_nanos(self.operations % 1_000);
        if self.store.begin(operation, asked) {
            self.latest.insert(vip, asked);
        } else {
            self.latest.remove(&vip);
            self.pending.push(Input::Stored { vip, outcome: Outcome::Unavailable });
        }
    }

    /// Tells peers something of this node.
    pub(super) fn publish(&self, item: membership::Item) -> Result<(), KernelError> {
        let now = boottime()?;
        if let Err(full) = self.shared.lock().publish(item, now) {
            tracing::error!(error = &full as &dyn std::error::Error, "peers are not told everything");
        }
        self.shared.outgoing.notify_one();
        Ok(())
    }

    /// Tells peers that something is no longer so.
    pub(super) fn withdraw(&self, key: &membership::Key) -> Result<(), KernelError> {
        let now = boottime()?;
        self.shared.lock().withdraw(key, now);
        self.shared.outgoing.notify_one();
        Ok(())
    }

    /// Looks at the peers.
    pub(super) fn peers<T>(&self, look: impl FnOnce(&Peers) -> T) -> T {
        look(self.shared.lock().peers())
    }

    /// What came of the gossip's datagrams.
    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// The VIPs that are wanted.
    pub(super) fn vips(&self) -> impl Iterator<Item = Vip> {
        self.election.vips()
    }

    /// Whether this node's hold-down is over.
    pub(super) fn is_ready(&self) -> bool {
        self.election.is_ready()
    }

    /// This node's generation among the members.
    pub(super) fn generation(&self) -> u64 {
        self.shared.lock().generation()
    }

    /// Whether another node is to lead a VIP rather than this one, and can now.
    pub(super) fn has_other(&self, vip: Vip) -> bool {
        self.election.has_other(vip, self.shared.lock().peers())
    }

    /// Whether an agent that was told so long ago to stop has handed over what others can take, or waits in vain.
    pub(super) fn has_left(&self, waited: Duration) -> bool {
        self.election.has_left(waited, self.shared.lock().peers())
    }

    /// What is known of who leads a VIP.
    pub(super) fn leadership(&self, vip: Vip) -> Option<Leadership> {
        self.election.leadership(vip)
    }

    /// The VIPs that this node holds.
    pub(super) fn held(&self) -> impl Iterator<Item = (Vip, Role)> {
        self.election.held()
    }

    /// Says farewell, so that nobody waits for this node.
    pub(super) async fn leave(&self) {
        let Ok(now) = boottime() else { return };
        self.shared.lock().leave(now);
        self.shared.outgoing.notify_one();
        // After HUNG nothing would be said any more.
        let said = async {
            while let Some(next) = self.shared.next() {
                let Ok(now) = boottime() else { return };
                sleep(next.saturating_sub(now) + Duration::from_millis(1)).await;
            }
        };
        let _ = timeout(HUNG, said).await;
        // The last of it is with the task that sends.
        sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        self.voice.abort();
    }
}

#[cfg(test)]
mod tests;
