//! The sockets by which the agents tell each other things: UDP on this Node's InternalIPs. What is said is sealed
//! ([`sealing`](crate::membership::sealing)); what it means is [`membership`](crate::membership)'s business.
//!
//! A task of its own owns the sockets. It loses what comes faster than it can be taken, and counts it: datagrams get lost
//! on the way as well, and whoever speaks by them repeats what matters.

mod complaint;
mod counters;
mod key_file;
mod sockets;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use nix::{
    errno::Errno,
    time::{ClockId, clock_gettime},
};
use tokio::{
    select,
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use self::{complaint::Complaints, sockets::Sockets};
pub use self::{
    counters::{Count, Counters},
    key_file::{KeyFileError, follow, is_exposed, load, load_or_make},
};
use crate::{
    membership::sealing::{Keys, Opened, Origin, Sealer},
    model::{Family, NodeName},
};

/// The port, unless the configuration says otherwise.
pub const DEFAULT_PORT: u16 = 7944;

/// Payloads that wait to be taken.
const INCOMING: usize = 1_024;
/// Batches that wait to be sent.
const OUTGOING: usize = 64;
/// Datagrams that are received before it is somebody else's turn.
const BATCH: usize = 64;
/// How long after a failure an address is bound again.
const RETRY: Duration = Duration::from_secs(1);

/// All Nodes' InternalIPs, this one's as well; the first one of a family is the one that is spoken to, and every one may
/// be spoken from. Empty: they are not known yet.
pub type Addresses = BTreeMap<NodeName, Vec<IpAddr>>;

/// How the agent speaks.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This Node.
    pub local: NodeName,
    /// The UDP port, the same on all nodes.
    pub port: u16,
    /// The keys, the same on all nodes.
    pub keys: watch::Receiver<Keys>,
}

/// Something that a peer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Who.
    pub node: NodeName,
    /// What.
    pub bytes: Vec<u8>,
}

/// Payloads, each to one node.
pub type Batch = Vec<(NodeName, Vec<u8>)>;

/// The agent cannot speak.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Nothing unguessable is to be had.
    #[error("the system gives no random numbers, for the gossip's session")]
    Random(#[source] getrandom::Error),
}

/// The task, which ends when this is dropped.
#[derive(Debug)]
pub struct Gossip {
    outgoing: mpsc::Sender<Batch>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

impl Gossip {
    /// Starts the task. What peers say comes out of the channel; if nobody receives any more, the task ends.
    ///
    /// Addresses that are not there yet, or taken, are told once and tried again each second.
    pub fn start(
        settings: Settings,
        addresses: watch::Receiver<Addresses>,
    ) -> Result<(Self, mpsc::Receiver<Incoming>), StartError> {
        let (mut session, mut secret) = ([0; 16], [0; 32]);
        getrandom::fill(&mut session).and_then(|()| getrandom::fill(&mut secret)).map_err(StartError::Random)?;
        let Settings { local, port, mut keys } = settings;
        let sealer = Sealer::new(&keys.borrow_and_update(), local.clone(), session, secret);
        let (outgoing, batches) = mpsc::channel(OUTGOING);
        let (incoming, payloads) = mpsc::channel(INCOMING);
        let counters = Arc::new(Counters::default());
        let task = Task {
            sealer,
            sockets: Sockets::new(local, port),
            keys,
            addresses,
            incoming,
            counters: Arc::clone(&counters),
            complaints: Complaints::default(),
        };
        Ok((Self { outgoing, counters, task: tokio::spawn(task.run(batches)) }, payloads))
    }

    /// Sends these payloads, soon. They are lost, and counted, if too many batches wait already.
    pub fn send(&self, batch: Batch) {
        let payloads = batch.len();
        if self.outgoing.try_send(batch).is_err() {
            self.counters.add(Count::Unsent, payloads);
        }
    }

    /// What was sent and received so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    sealer: Sealer,
    sockets: Sockets,
    keys: watch::Receiver<Keys>,
    addresses: watch::Receiver<Addresses>,
    incoming: mpsc::Sender<Incoming>,
    counters: Arc<Counters>,
    complaints: Complaints,
}

/// Why the task ends.
enum End {
    /// Whoever spoke or listened is gone.
    Unwanted,
    /// No clock.
    Clock(Errno),
}

impl Task {
    /// Every branch waits for something that is still there if another one comes first.
    async fn run(mut self, mut batches: mpsc::Receiver<Batch>) {
        let mut retry = interval(RETRY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.follow_addresses();
        let end = loop {
            let done = select! {
                changed = self.addresses.changed() => {
                    changed.map(|()| self.follow_addresses()).map_err(|_| End::Unwanted)
                }
                // Those whom nobody follows any more stay.
                Ok(()) = self.keys.changed() => {
                    self.sealer.rekey(self.keys.borrow_and_update().clone());
                    Ok(())
                }
                _ = retry.tick(), if self.sockets.incomplete() => {
                    self.sockets.bind(&self.addresses.borrow());
                    Ok(())
                }
                batch = batches.recv() => batch.map(|batch| self.send(&batch)).ok_or(End::Unwanted),
                family = self.sockets.readable() => self.receive(family),
            };
            if let Err(end) = done {
                break end;
            }
        };
        if let End::Clock(error) = end {
            tracing::error!(%error, "the clock cannot be read: the agent no longer hears its peers");
        }
    }

    fn follow_addresses(&mut self) {
        let addresses = self.addresses.borrow_and_update();
        self.sealer.retain(|node| addresses.contains_key(node));
        self.sockets.bind(&addresses);
    }

    fn send(&mut self, batch: &Batch) {
        let addresses = self.addresses.borrow();
        for (node, payload) in batch {
            let to = addresses.get(node).map_or(&[][..], Vec::as_slice);
            let sent = match self.sealer.seal(node, payload) {
                Ok(datagram) => self.sockets.send(&datagram, to),
                Err(error) => {
                    tracing::debug!(%error, %node, "a payload was not sent");
                    false
                }
            };
            self.counters.add(if sent { Count::Sent } else { Count::Unsent }, 1);
        }
    }

    fn reply(&self, datagram: &[u8], to: IpAddr) -> Count {
        if self.sockets.send(datagram, &[to]) { Count::Replied } else { Count::Unsent }
    }

    fn receive(&mut self, family: Family) -> Result<(), End> {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).map_err(End::Clock)?;
        for (datagram, from) in self.sockets.receive(family, BATCH) {
            let addresses = self.addresses.borrow();
            let origin = |node: &NodeName, from| match addresses.get(node) {
                None => Origin::Stranger,
                Some(own) if own.contains(&from) => Origin::Expected,
                Some(_) => Origin::WrongAddress,
            };
            let count = match self.sealer.open(&datagram, from, origin, now) {
                Opened::Payload { node, bytes, reply } => {
                    if let Some(reply) = reply {
                        self.counters.add(self.reply(&reply, from), 1);
                    }
                    match self.incoming.try_send(Incoming { node, bytes }) {
                        Ok(()) => Count::Taken,
                        Err(TrySendError::Full(_)) => Count::Overflowed,
                        Err(TrySendError::Closed(_)) => return Err(End::Unwanted),
                    }
                }
                Opened::Reply(reply) => self.reply(&reply, from),
                Opened::Admitted => Count::Admitted,
                Opened::Nothing { reason, sender } => {
                    if let Some(datagrams) = self.complaints.hear(reason, now)
                        && let Some(complaint) = complaint::text(reason, sender.as_ref(), from)
                    {
                        tracing::warn!(datagrams, "{complaint}");
                    }
                    Count::Unopened(reason)
                }
            };
            self.counters.add(count, 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
