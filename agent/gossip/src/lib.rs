//! Sends and receives the agents' gossip: sealed UDP datagrams on this Node's InternalIPs.
//!
//! [`sealing`](vipmux_election::membership::sealing) seals the payloads, and
//! [`membership`](vipmux_election::membership) interprets them. A task of its own owns the sockets.
//! It drops datagrams that come faster than they are read, and counts them: datagrams get lost on
//! the way as well, and senders repeat what matters.

mod counters;
mod datagram_warnings;
mod key_file;
mod sockets;
mod strays;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use nix::errno::Errno;
use tokio::{
    select,
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

pub use self::{
    counters::{Counters, GossipCount},
    datagram_warnings::DatagramWarnings,
    key_file::{KeyFileError, follow, is_exposed, load, load_or_make},
};
use self::{sockets::Sockets, strays::Strays};
use vipmux_election::membership::{
    OtherKeys,
    sealing::{Opened, Sealer, SealingKeys, Unopened},
};
use vipmux_model::{Family, NodeName};
use vipmux_supervisor::Supervisor;

/// The port, unless the configuration says otherwise.
pub const DEFAULT_PORT: u16 = 7944;

/// Most payloads that wait to be read.
const INCOMING: usize = 1_024;
/// Most batches that wait to be sent.
const OUTGOING: usize = 64;
/// Most datagrams that are received before other work.
const BATCH: usize = 64;
/// The time after a failure until an address is bound again.
const RETRY: Duration = Duration::from_secs(1);

/// All Nodes' InternalIPs, this one's as well. Datagrams go to the first one of a family, and may
/// come from every one. Empty: they are not known yet.
pub type Addresses = BTreeMap<NodeName, Vec<IpAddr>>;

/// The settings of the gossip.
#[derive(Clone, Debug)]
pub struct GossipSettings {
    /// This Node.
    pub local: NodeName,
    /// The UDP port, the same on all nodes.
    pub port: u16,
    /// The keys, the same on all nodes.
    pub keys: watch::Receiver<SealingKeys>,
}

/// A payload of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The peer.
    pub node: NodeName,
    /// The payload.
    pub bytes: Vec<u8>,
}

/// Payloads, each to one node.
pub type Batch = Vec<(NodeName, Vec<u8>)>;

/// The task, which ends when this is dropped.
#[derive(Debug)]
pub struct Gossip {
    outgoing: mpsc::Sender<Batch>,
    counters: Arc<Counters>,
    other_keys: watch::Receiver<OtherKeys>,
    task: JoinHandle<()>,
}

impl Gossip {
    /// Starts the task. The payloads of peers come out of the channel. If its receiver is dropped,
    /// the task ends.
    ///
    /// Addresses that are not there yet, or taken, are logged once and tried again each second. Fails if there
    /// are no random numbers for the session.
    pub fn start(
        settings: GossipSettings,
        addresses: watch::Receiver<Addresses>,
        supervisor: &Supervisor,
    ) -> Result<(Self, mpsc::Receiver<Incoming>), getrandom::Error> {
        let (mut session, mut secret) = ([0; 16], [0; 32]);
        getrandom::fill(&mut session).and_then(|()| getrandom::fill(&mut secret))?;
        let GossipSettings { local, port, mut keys } = settings;
        let sealer = Sealer::new(&keys.borrow_and_update(), local.clone(), session, secret);
        let (outgoing, batches) = mpsc::channel(OUTGOING);
        let (incoming, payloads) = mpsc::channel(INCOMING);
        let counters = Arc::new(Counters::default());
        let (heard, other_keys) = watch::channel(OtherKeys::default());
        let task = Task {
            sealer,
            sockets: Sockets::new(local, port),
            keys,
            addresses,
            incoming,
            counters: Arc::clone(&counters),
            warnings: DatagramWarnings::default(),
            owners: BTreeMap::new(),
            strays: Strays::default(),
            other_keys: heard,
        };
        // Owns the sockets. Dropping the `Gossip` aborts it: datagrams that wait are lost, and
        // peers repeat what matters.
        let task = supervisor.spawn("gossip", task.run(batches));
        Ok((Self { outgoing, counters, other_keys, task }, payloads))
    }

    /// Sends these payloads, soon. They are lost, and counted, if too many batches wait already.
    pub fn send(&self, batch: Batch) {
        let payloads = batch.len();
        if self.outgoing.try_send(batch).is_err() {
            self.counters.add(GossipCount::Unsent, payloads);
        }
    }

    /// Returns the counters of datagrams that were sent and received so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns the Nodes that were heard with an unknown key.
    pub fn other_keys(&self) -> watch::Receiver<OtherKeys> {
        self.other_keys.clone()
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
    keys: watch::Receiver<SealingKeys>,
    addresses: watch::Receiver<Addresses>,
    incoming: mpsc::Sender<Incoming>,
    counters: Arc<Counters>,
    warnings: DatagramWarnings,
    /// The Node that has each address.
    owners: BTreeMap<IpAddr, NodeName>,
    strays: Strays,
    other_keys: watch::Sender<OtherKeys>,
}

/// The reason why the task ends.
enum End {
    /// The other end of a channel is gone.
    Unwanted,
    /// The clock cannot be read.
    Clock(Errno),
}

impl Task {
    /// Each branch is cancel-safe: what it waits for is still there if another one comes first.
    async fn run(mut self, mut batches: mpsc::Receiver<Batch>) {
        let mut retry = interval(RETRY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.follow_addresses();
        let end = loop {
            let done = select! {
                changed = self.addresses.changed() => {
                    changed.map(|()| self.follow_addresses()).map_err(|_| End::Unwanted)
                }
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
            tracing::error!(%error, "cannot read the clock, gossip ends");
        }
    }

    fn follow_addresses(&mut self) {
        let addresses = self.addresses.borrow_and_update();
        self.sealer.retain(|node| addresses.contains_key(node));
        self.other_keys.send_modify(|keys| keys.retain(|node| addresses.contains_key(node)));
        let owned =
            |(node, own): (&NodeName, &Vec<IpAddr>)| own.iter().map(|own| (*own, node.clone())).collect::<Vec<_>>();
        self.owners = addresses.iter().flat_map(owned).collect();
        self.sockets.bind(&addresses);
    }

    fn send(&mut self, batch: &Batch) {
        let addresses = self.addresses.borrow();
        for (node, payload) in batch {
            let to = addresses.get(node).map_or(&[][..], Vec::as_slice);
            let sent = match self.sealer.seal(node, payload) {
                Ok(datagram) => self.sockets.send(&datagram, to),
                Err(error) => {
                    tracing::debug!(%error, %node, "cannot seal a payload");
                    false
                }
            };
            self.counters.add(if sent { GossipCount::Sent } else { GossipCount::Unsent }, 1);
        }
    }

    fn reply(&self, datagram: &[u8], to: IpAddr) -> GossipCount {
        if self.sockets.send(datagram, &[to]) { GossipCount::Replied } else { GossipCount::Unsent }
    }

    fn receive(&mut self, family: Family) -> Result<(), End> {
        let now = vipmux_cluster::clock::try_boottime().map_err(End::Clock)?;
        for (datagram, from) in self.sockets.receive(family, BATCH) {
            if !self.owners.contains_key(&from) && !self.strays.take(now) {
                self.counters.add(GossipCount::Stray, 1);
                continue;
            }
            let addresses = self.addresses.borrow();
            let origin = |node: &NodeName, from| match addresses.get(node) {
                None => Err(Unopened::Stranger),
                Some(own) if own.contains(&from) => Ok(()),
                Some(_) => Err(Unopened::WrongAddress),
            };
            let count = match self.sealer.open(&datagram, from, origin, now) {
                Opened::Payload { node, bytes, reply } => {
                    if let Some(reply) = reply {
                        self.counters.add(self.reply(&reply, from), 1);
                    }
                    match self.incoming.try_send(Incoming { node, bytes }) {
                        Ok(()) => GossipCount::Taken,
                        Err(TrySendError::Full(_)) => GossipCount::Overflowed,
                        Err(TrySendError::Closed(_)) => return Err(End::Unwanted),
                    }
                }
                Opened::Reply(reply) => self.reply(&reply, from),
                Opened::Admitted => GossipCount::Admitted,
                Opened::Nothing { reason, key, sender } => {
                    if let Some((key, node)) = key.zip(self.owners.get(&from)) {
                        self.other_keys.send_modify(|keys| keys.note(node.clone(), key, now));
                    }
                    if let Some(datagrams) = self.warnings.take(GossipCount::Unopened(reason), now)
                        && let Some(warning) = datagram_warnings::text(reason, sender.as_ref(), from)
                    {
                        tracing::warn!(datagrams, warning, "gossip ignored");
                    }
                    GossipCount::Unopened(reason)
                }
            };
            self.counters.add(count, 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
