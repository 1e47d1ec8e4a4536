//! Runs the election: its executor, with the membership, the Leases and the kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{
        mpsc,
        watch::{self, error::RecvError},
    },
    task::JoinHandle,
    time::{sleep, timeout},
};

use vipmux_common::abi::Mac;

use super::gossip_task::{GossipTask, Shared};
use crate::{
    problems::{
        key_conflict::KeyConflict,
        leadership_faults::missing,
        log_limit::LogLimit,
        peer_versions::{self, VersionCounts},
        warnings::log_changes,
    },
    serving::{
        kernel::{HeardAnnouncement, Kernel, boottime},
        kernel_error::KernelError,
    },
};
use vipmux_cluster::store::{
    self, ConfiguredStore, LeaseSnapshot, StoreOperation, StoreOperations, StoreReport, Swapped,
};
use vipmux_election::{
    Command, Election, Executor, Input, Leadership, LeaseOutcome, NodeIo, PeerAnnouncement, RecordOutcome, Role,
    membership::{self, Full, Membership, Peer, Peers},
};
use vipmux_gossip::{self, Addresses, Counters, DatagramWarnings, Gossip};
use vipmux_model::{NodeName, Vip};
use vipmux_supervisor::Supervisor;

/// The time for a farewell, besides `--lease`.
const FAREWELL: Duration = Duration::from_secs(1);

/// The election of this node, and all that carries out its commands.
pub(crate) struct Elector {
    local: NodeName,
    /// `--lease`.
    lease: Duration,
    executor: Executor,
    shared: Arc<Shared>,
    gossip: JoinHandle<()>,
    /// The gossip's datagrams, by outcome.
    counters: Arc<Counters>,
    /// Marked by the gossip task when there are events; closed when it ends.
    events: watch::Receiver<()>,
    addresses: watch::Sender<Addresses>,
    store: StoreOperations<ConfiguredStore>,
    /// The store of `store`.
    leases: ConfiguredStore,
    /// The Leases as last seen.
    watched: LeaseSnapshot,
    /// The problems of the Leases, as last logged.
    faults: BTreeSet<String>,
    keys: KeyConflict,
    full_log: FullLog,
}

impl Elector {
    /// Starts the gossip. Nothing is led before the first [`Input::Wanted`].
    pub(crate) fn start(
        election: Election,
        lease: Duration,
        gossip: vipmux_gossip::GossipSettings,
        leases: ConfiguredStore,
        seed: u64,
        own_key: Option<PathBuf>,
        supervisor: &Supervisor,
    ) -> Result<(Self, mpsc::Receiver<StoreReport>), crate::AgentError> {
        let now = boottime()?;
        let local = gossip.local.clone();
        let mut membership =
            Membership::new(local.clone(), seed, membership::MembershipSettings::for_lease(lease), now);
        // The first item of a node fits.
        let _ = membership.publish(membership::Item::Agent(peer_versions::own_info(lease)), now);
        let (addresses, known) = watch::channel(Addresses::new());
        let (gossip, payloads) = Gossip::start(gossip, known, supervisor)?;
        let shared = Arc::new(Shared::new(membership));
        let counters = Arc::clone(gossip.counters());
        // Leases that all nodes share have one leader anyway.
        let yields = matches!(leases, ConfiguredStore::Directory(_));
        let keys = KeyConflict::new(gossip.other_keys(), yields, own_key);
        let (sender, events) = watch::channel(());
        let task = GossipTask {
            shared: Arc::clone(&shared),
            gossip,
            payloads,
            events: sender,
            warnings: DatagramWarnings::default(),
        };
        // Answers the peers, also while the event loop is busy. Dropping the elector aborts it: at
        // most a batch of datagrams is lost, and the peers repeat what matters.
        let gossip = supervisor.spawn("membership", task.run());
        let (store, reports) = StoreOperations::new(leases.clone());
        let elector = Self {
            local,
            lease,
            executor: Executor::new(election),
            shared,
            gossip,
            counters,
            events,
            addresses,
            store,
            leases,
            watched: LeaseSnapshot::default(),
            faults: BTreeSet::new(),
            keys,
            full_log: FullLog::default(),
        };
        Ok((elector, reports))
    }

    /// Sets the Nodes of the cluster, with their InternalIPs. Agents whose Node is gone keep its last addresses,
    /// this one too, until they have transferred their VIPs.
    pub(crate) fn set_nodes(&mut self, nodes: &Addresses) -> Result<(), KernelError> {
        if *self.addresses.borrow() == *nodes {
            return Ok(());
        }
        self.keys.set_nodes(nodes.len());
        let mut all = nodes.clone();
        {
            let mut membership = self.shared.lock();
            membership.set_nodes(nodes.keys().cloned().collect(), boottime()?);
            let last = self.addresses.borrow();
            let deleted = membership.deleted().chain([&self.local]).filter(|name| !nodes.contains_key(*name));
            all.extend(deleted.filter_map(|name| Some((name.clone(), last.get(name)?.clone()))));
        }
        self.addresses.send_replace(all);
        self.shared.outgoing.notify_one();
        Ok(())
    }

    /// Waits until there are events of the membership. An error: the gossip task has ended. Cancel-safe.
    pub(crate) async fn peers_changed(&mut self) -> Result<(), RecvError> {
        self.events.changed().await
    }

    /// Returns when to call [`Self::advance`], `CLOCK_BOOTTIME`.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.executor.election().next()
    }

    /// Passes the membership's events and the time to the state machine.
    pub(crate) fn advance(&mut self, kernel: &mut Kernel) -> Result<Vec<Command>, KernelError> {
        let events = self.shared.lock().take_events(boottime()?);
        self.executor.push_events(events);
        self.process(kernel)
    }

    /// A heartbeat of the event loop: passes on the VIPs that the programs gave up, and extends the
    /// fence deadline.
    pub(crate) fn heartbeat(&mut self, kernel: &mut Kernel, carrier: bool) -> Result<Vec<Command>, KernelError> {
        let now = boottime()?;
        self.shared.lock().note_event_loop(self.lease, now);
        if !self.keys.is_quiet() {
            let members = self.members();
            self.executor.push(self.keys.update(&members, now).map(Input::Outranked));
        }
        let heard = kernel.heartbeat()?;
        let heard = self.announcements(heard);
        self.executor.push_heartbeat(heard, carrier);
        self.process(kernel)
    }

    /// Converts announcements: names the peers that have their MACs.
    fn announcements(&self, heard: BTreeMap<Vip, HeardAnnouncement>) -> Vec<PeerAnnouncement> {
        if heard.is_empty() {
            return Vec::new();
        }
        let mut owners = MacOwners::new();
        let mut add = |name: &NodeName, mac: &Mac| {
            owners.entry(*mac).or_default().insert(name.clone());
        };
        self.peers(|peers| {
            peers.members.iter().for_each(|(name, peer)| peer.state.macs.values().for_each(|mac| add(name, mac)));
        });
        self.unheard_macs().iter().for_each(|(name, macs)| macs.iter().for_each(|mac| add(name, mac)));
        heard.into_iter().map(|(vip, heard)| announcement(vip, &heard, &owners)).collect()
    }

    /// Passes on the result of an operation on the Leases.
    pub(crate) fn store_report(
        &mut self,
        kernel: &mut Kernel,
        report: StoreReport,
    ) -> Result<Vec<Command>, KernelError> {
        let StoreReport { operation, asked, result } = report;
        let log = |error: &store::StoreError| {
            tracing::debug!(error = error as &dyn std::error::Error, "operation on a Lease failed");
        };
        let result = result.inspect_err(log);
        let input = match (operation, result) {
            (StoreOperation::Survey, Ok(store::StoreOutcome::Surveyed(survey))) => {
                self.log_faults(survey.faults.values().map(|error| anyhow::Error::from(Arc::clone(error))));
                // A Lease that could not be read is no evidence of its holder.
                let known = self.own_vips().all(|(vip, _)| !survey.faults.contains_key(&vip));
                Input::Surveyed { asked, leases: known.then_some(survey.leases) }
            }
            (StoreOperation::Survey, result) => {
                self.log_faults(result.err().map(anyhow::Error::from));
                Input::Surveyed { asked, leases: None }
            }
            (StoreOperation::Delete { .. }, _) => return Ok(Vec::new()),
            (StoreOperation::ReadRecord { node, .. } | StoreOperation::SwapRecord { node, .. }, result) => {
                let outcome = match result {
                    Ok(store::StoreOutcome::Record(record)) => RecordOutcome::Read(record),
                    Ok(store::StoreOutcome::Swapped(Swapped::Done(version))) => RecordOutcome::Swapped(version),
                    Ok(store::StoreOutcome::Swapped(Swapped::Conflict)) => RecordOutcome::Conflict,
                    _ => RecordOutcome::Unavailable,
                };
                Input::Recorded { node, asked, outcome }
            }
            (StoreOperation::Read(vip) | StoreOperation::Swap { vip, .. }, result) => {
                let outcome = match result {
                    Ok(store::StoreOutcome::Read(lease)) => LeaseOutcome::Read(lease),
                    Ok(store::StoreOutcome::Swapped(Swapped::Done(version))) => LeaseOutcome::Swapped(version),
                    Ok(store::StoreOutcome::Swapped(Swapped::Conflict)) => LeaseOutcome::Conflict,
                    _ => LeaseOutcome::Unavailable,
                };
                Input::Stored { vip, outcome }
            }
        };
        self.executor.push(self.leases.id().map(Input::Store));
        self.executor.push_report(asked, input);
        self.process(kernel)
    }

    /// Passes what changed in the Leases since the last call. Returns also whether MACs of nodes did.
    pub(crate) fn leases_changed(
        &mut self,
        kernel: &mut Kernel,
        watched: LeaseSnapshot,
    ) -> Result<(Vec<Command>, bool), KernelError> {
        let leases = store::changes(&self.watched.leases, &watched.leases);
        let records = store::changes(&self.watched.records, &watched.records);
        let macs_changed = !store::changes(&self.watched.macs, &watched.macs).is_empty();
        self.watched = watched;
        self.executor.push(leases.into_iter().map(|(vip, lease)| Input::LeaseChanged { vip, lease }));
        self.executor.push(records.into_iter().map(|(node, record)| Input::RecordChanged { node, record }));
        Ok((self.process(kernel)?, macs_changed))
    }

    /// Passes an input to the state machine, and executes the commands for the kernel, the store
    /// and the peers. Returns all commands: the caller executes the others.
    pub(crate) fn handle(&mut self, kernel: &mut Kernel, input: Input) -> Result<Vec<Command>, KernelError> {
        self.executor.push([input]);
        self.process(kernel)
    }

    fn process(&mut self, kernel: &mut Kernel) -> Result<Vec<Command>, KernelError> {
        let mut all = Vec::new();
        let mut io = AgentIo { kernel, store: &self.store, full_log: &self.full_log };
        while self.executor.next_input().is_some() {
            let mut membership = self.shared.lock();
            self.executor.handle_next(membership.peers(), boottime()?);
            while let Some(command) = self.executor.execute_next(&mut membership, &mut io)? {
                all.push(command);
            }
        }
        self.shared.outgoing.notify_one();
        Ok(all)
    }

    /// Logs the problems of the Leases that changed.
    fn log_faults(&mut self, errors: impl IntoIterator<Item = anyhow::Error>) {
        let faults = errors.into_iter().map(|error| format!("{error:#}")).collect();
        log_changes(&self.faults, &faults);
        self.faults = faults;
    }

    /// Publishes an item of this node to the peers.
    pub(crate) fn publish(&self, item: membership::Item) -> Result<(), KernelError> {
        let now = boottime()?;
        if let Err(full) = self.shared.lock().publish(item, now) {
            self.full_log.log(full);
        }
        self.shared.outgoing.notify_one();
        Ok(())
    }

    /// Withdraws a published item.
    pub(crate) fn withdraw(&self, key: &membership::ItemKey) -> Result<(), KernelError> {
        let now = boottime()?;
        self.shared.lock().withdraw(key, now);
        self.shared.outgoing.notify_one();
        Ok(())
    }

    /// Returns the Nodes of the cluster, with their InternalIPs.
    pub(crate) fn nodes(&self) -> watch::Ref<'_, Addresses> {
        self.addresses.borrow()
    }

    /// Calls `read` with the peers.
    pub(crate) fn peers<T>(&self, read: impl FnOnce(&Peers) -> T) -> T {
        read(self.shared.lock().peers())
    }

    /// Returns the MACs of other Nodes that have published none by gossip, by their records.
    pub(crate) fn unheard_macs(&self) -> BTreeMap<NodeName, BTreeSet<Mac>> {
        let nodes = self.addresses.borrow();
        self.peers(|peers| {
            let is_heard = |name: &NodeName| peers.members.get(name).is_some_and(|peer| !peer.state.macs.is_empty());
            let is_unheard = |name: &NodeName| *name != self.local && nodes.contains_key(name) && !is_heard(name);
            let unheard = self.watched.macs.iter().filter(|(name, _)| is_unheard(name));
            unheard.map(|(name, macs)| (name.clone(), macs.clone())).collect()
        })
    }

    /// Returns the MACs that a peer publishes.
    pub(crate) fn macs_of(&self, name: &NodeName) -> BTreeSet<Mac> {
        self.peers(|peers| {
            peers.members.get(name).into_iter().flat_map(|peer| peer.state.macs.values().copied()).collect()
        })
    }

    /// Returns the counters of the gossip's datagrams.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns this node and the living members.
    fn members(&self) -> BTreeSet<NodeName> {
        let alive = |(name, peer): (&NodeName, &Peer)| peer.status.is_alive().then(|| name.clone());
        let peers: Vec<_> = self.peers(|peers| peers.members.iter().filter_map(alive).collect());
        peers.into_iter().chain([self.local.clone()]).collect()
    }

    /// Returns the conflict of gossip keys, as the last heartbeat found it.
    pub(crate) fn keys(&self) -> &KeyConflict {
        &self.keys
    }

    /// Returns why this node is not ready although it hears nobody: the Leases name other leaders.
    pub(crate) fn solitude(&self, now: Duration) -> Option<String> {
        self.peers(|peers| {
            let leaders = self.executor.election().unheard_leaders(peers, now);
            let first = leaders.first()?;
            let others = match leaders.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            Some(format!(
                "this agent hears no other, and Leases name {first}{others} as leader: is gossip's UDP port open between the nodes, and is the key the same?"
            ))
        })
    }

    /// Returns the Nodes without an agent that is alive.
    pub(crate) fn missing_members(&self) -> Vec<NodeName> {
        self.peers(|peers| missing(&self.local, &self.nodes(), peers))
    }

    /// Returns whether this node may answer only because the Leases say so.
    pub(crate) fn uses_store_evidence(&self, now: Duration) -> bool {
        self.peers(|peers| self.executor.election().uses_store_evidence(peers, now))
    }

    /// Returns the numbers of living nodes by the version of their agents.
    pub(crate) fn versions(&self) -> VersionCounts {
        self.peers(|peers| peer_versions::count(&peer_versions::own_version(), peers))
    }

    /// Returns the VIPs that are wanted.
    pub(crate) fn vips(&self) -> impl Iterator<Item = Vip> {
        self.executor.election().vips()
    }

    /// Returns whether this node is ready, and whether it drains, as it publishes it.
    pub(crate) fn published_ability(&self) -> (bool, bool) {
        self.executor.election().published_ability()
    }

    /// Returns whether this node transfers its VIPs, since its deadline passes again and again.
    pub(crate) fn is_unstable(&self) -> bool {
        self.executor.election().is_unstable()
    }

    /// Returns this node's generation among the members.
    pub(crate) fn generation(&self) -> u64 {
        self.shared.lock().generation()
    }

    /// Returns whether another node should lead a VIP instead of this one, and can lead it now.
    pub(crate) fn has_other(&self, vip: Vip) -> bool {
        self.executor.election().has_other(vip, self.shared.lock().peers())
    }

    /// Returns whether the drain is over: others took what they can take, or `waited` is too long.
    pub(crate) fn has_drained(&self, waited: Duration) -> bool {
        self.executor.election().has_left(waited, self.shared.lock().peers())
    }

    /// Returns this node's knowledge of a VIP's leader.
    pub(crate) fn leadership(&self, vip: Vip) -> Option<Leadership> {
        self.executor.election().leadership(vip)
    }

    /// Returns this node's own VIPs with its role, whether or not it answers for them.
    pub(crate) fn own_vips(&self) -> impl Iterator<Item = (Vip, Role)> {
        self.executor.election().own_vips()
    }

    /// Leaves the membership, so that no peer waits for this node. The agent ends after it, and
    /// nothing cancels it.
    pub(crate) async fn leave_membership(&self) {
        let Ok(now) = boottime() else { return };
        self.shared.lock().leave(now);
        self.shared.outgoing.notify_one();
        // After that the gossip task sends nothing any more, since the event loop has ended.
        let sent = async {
            while let Some(next) = self.shared.next() {
                let Ok(now) = boottime() else { return };
                sleep(next.saturating_sub(now) + Duration::from_millis(1)).await;
            }
        };
        let _ = timeout(self.lease + FAREWELL, sent).await;
        // The last datagrams are still with the task of the sockets.
        sleep(Duration::from_millis(5)).await;
    }
}

/// The kernel of this node, and the store.
struct AgentIo<'a> {
    kernel: &'a mut Kernel,
    store: &'a StoreOperations<ConfiguredStore>,
    full_log: &'a FullLog,
}

impl NodeIo for AgentIo<'_> {
    type Error = KernelError;

    fn lead(&mut self, vip: Vip, epoch: u64) -> Result<(), KernelError> {
        self.kernel.lead(vip, epoch)
    }

    fn follow(&mut self, vip: Vip) -> Result<(), KernelError> {
        self.kernel.follow(vip)
    }

    fn assure(&mut self, vip: Vip, assured: bool) -> Result<(), KernelError> {
        self.kernel.assure(vip, assured)
    }

    fn extend(&mut self, deadline: Duration) -> Result<(), KernelError> {
        self.kernel.extend(deadline)
    }

    fn begin(&mut self, operation: StoreOperation, asked: Duration) -> bool {
        self.store.begin(operation, asked)
    }

    fn note_full(&mut self, full: Full) {
        self.full_log.log(full);
    }
}

/// Logs that items have no room. Thousands may come at once.
#[derive(Default)]
struct FullLog(Mutex<LogLimit>);

impl FullLog {
    fn log(&self, full: Full) {
        let (now, mut limit) = (Instant::now(), self.0.lock().unwrap_or_else(PoisonError::into_inner));
        limit.end(now);
        if limit.take(now) {
            tracing::error!(error = &full as &dyn std::error::Error, "cannot publish everything to peers");
        }
    }
}

/// The peers that publish each MAC.
type MacOwners = BTreeMap<Mac, BTreeSet<NodeName>>;

/// Names all peers that have the MACs of an announcement.
fn announcement(vip: Vip, heard: &HeardAnnouncement, owners: &MacOwners) -> PeerAnnouncement {
    let HeardAnnouncement { macs, at, yielded } = heard;
    let known: Option<Vec<_>> = macs.iter().map(|mac| owners.get(mac)).collect();
    let by = known.into_iter().flatten().flatten().cloned().collect();
    PeerAnnouncement { vip, by, at: *at, yielded: *yielded }
}

impl Drop for Elector {
    fn drop(&mut self) {
        self.gossip.abort();
    }
}

#[cfg(test)]
mod tests;
