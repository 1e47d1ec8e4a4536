//! Many nodes without machines: the state machines of real agents, with gossip in memory, and with Leases,
//! records and watches on a real API server, each node by a connection of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tokio::{sync::mpsc, time::sleep};
use vipmux_cluster::{
    access::{ClusterAccess, ClusterClient},
    store::{
        self, ConfiguredStore, KubernetesStore, StoreOperation, StoreOperations, StoreOutcome, StoreReport, Swapped,
        Watched, WatchedLeases,
    },
};
use vipmux_election::{
    AddressOwner, Command, Election, ElectionSettings, HEARTBEAT, Input, LeaseOutcome, RecordOutcome,
    membership::{Membership, MembershipEvent, MembershipSettings},
    placement::{Candidate, Candidates},
};
use vipmux_model::{NodeName, Vip};

use crate::cluster::PATIENCE;

/// The interval at which all nodes are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// The time at the beginning. A node must have a past.
const BEGIN: Duration = Duration::from_secs(1_000);

/// The nodes, and the VIPs that they share.
pub struct Fleet {
    nodes: Vec<FleetNode>,
    numbers: BTreeMap<NodeName, usize>,
    vips: BTreeSet<Vip>,
    began: Instant,
    /// VIPs for which two nodes answered at a time, with these nodes.
    pub overlaps: BTreeSet<String>,
}

struct FleetNode {
    name: NodeName,
    membership: Membership,
    election: Election,
    store: StoreOperations<ConfiguredStore>,
    reports: mpsc::Receiver<StoreReport>,
    leases: WatchedLeases,
    watched: Watched,
    wanted: Arc<BTreeMap<Vip, Candidates>>,
    /// The last operation of each VIP, as in the agent.
    latest: BTreeMap<Vip, Duration>,
    operations: u64,
    pending: Vec<Input>,
    led: BTreeSet<Vip>,
    deadline: Duration,
    beat: Duration,
    lapses: usize,
    is_alive: bool,
}

impl FleetNode {
    /// Handles what has come, and executes the commands.
    fn advance(&mut self, now: Duration) {
        if self.membership.next().is_some_and(|at| at <= now) {
            self.membership.turn(now);
        }
        while let Ok(report) = self.reports.try_recv() {
            let input = self.reported(report);
            self.pending.extend(input);
        }
        if self.leases.has_changed().unwrap_or_default()
            && let Some(watched) = self.leases.borrow_and_update().clone()
        {
            let leases = store::changes(&self.watched.leases, &watched.leases);
            let records = store::changes(&self.watched.records, &watched.records);
            self.watched = watched;
            self.pending.extend(leases.into_iter().map(|(vip, lease)| Input::LeaseChanged { vip, lease }));
            let record = |(node, record): (NodeName, Option<_>)| Some(Input::RecordChanged { node, record: record? });
            self.pending.extend(records.into_iter().filter_map(record));
        }
        self.pending.extend(self.membership.take_events(now).into_iter().map(|event| match event {
            MembershipEvent::Changed => Input::Peers,
            MembershipEvent::Disowned => Input::Disowned,
            MembershipEvent::Message { from, message } => Input::Message { from, message },
        }));
        if self.election.next().is_some_and(|at| at <= now) {
            self.pending.push(Input::Peers);
        }
        if self.beat <= now {
            self.beat = now + HEARTBEAT;
            self.pending.push(Input::Tick { carrier: true });
        }
        for input in std::mem::take(&mut self.pending) {
            for command in self.election.handle(input, self.membership.peers(), now) {
                self.execute(command, now);
            }
        }
    }

    fn reported(&mut self, StoreReport { operation, asked, result }: StoreReport) -> Option<Input> {
        Some(match (operation, result) {
            (StoreOperation::Survey, Ok(StoreOutcome::Surveyed(survey))) => {
                Input::Surveyed { asked, leases: Some(survey.leases) }
            }
            (StoreOperation::Survey, _) => Input::Surveyed { asked, leases: None },
            (StoreOperation::Delete { .. }, _) => return None,
            (StoreOperation::ReadRecord(node) | StoreOperation::SwapRecord { node, .. }, result) => {
                let outcome = match result {
                    Ok(StoreOutcome::Record(record)) => RecordOutcome::Read(record),
                    Ok(StoreOutcome::Swapped(Swapped::Done(version))) => RecordOutcome::Swapped(version),
                    Ok(StoreOutcome::Swapped(Swapped::Conflict)) => RecordOutcome::Conflict,
                    _ => RecordOutcome::Unavailable,
                };
                Input::Recorded { node, asked, outcome }
            }
            (StoreOperation::Read(vip) | StoreOperation::Swap { vip, .. }, result) => {
                self.latest.get(&vip).filter(|latest| **latest == asked)?;
                self.latest.remove(&vip);
                let outcome = match result {
                    Ok(StoreOutcome::Read(lease)) => LeaseOutcome::Read(lease),
                    Ok(StoreOutcome::Swapped(Swapped::Done(version))) => LeaseOutcome::Swapped(version),
                    Ok(StoreOutcome::Swapped(Swapped::Conflict)) => LeaseOutcome::Conflict,
                    _ => LeaseOutcome::Unavailable,
                };
                Input::Stored { vip, outcome }
            }
        })
    }

    fn execute(&mut self, command: Command, now: Duration) {
        match command {
            Command::Lead { vip, .. } => {
                self.led.insert(vip);
            }
            Command::Follow { vip, .. } => {
                self.led.remove(&vip);
            }
            Command::Extend(deadline) => self.deadline = deadline,
            Command::Reload => {
                self.lapses += 1;
                self.pending.push(Input::Wanted(Arc::clone(&self.wanted)));
            }
            Command::Probe { vip, .. } => self.pending.push(Input::Probed { vip, owner: AddressOwner::Nobody }),
            Command::Heartbeat => self.membership.send_heartbeats(now),
            Command::DiscardEvidence => self.membership.discard_evidence(now),
            Command::Send { to, message } => self.membership.send_message(&to, message),
            Command::Publish(item) => self.membership.publish(item, now).expect("a few VIPs fit"),
            Command::Withdraw(key) => self.membership.withdraw(&key, now),
            Command::Ask(name) => self.membership.ask(&name, now),
            Command::Assure { .. } | Command::Conflict { .. } | Command::Forged { .. } => {}
            Command::Read(vip) => self.operate(StoreOperation::Read(vip), now),
            Command::Swap { vip, expected, epoch } => {
                self.operate(StoreOperation::Swap { vip, expected, holder: self.name.clone(), epoch }, now);
            }
            Command::Delete { vip, version } => self.operate(StoreOperation::Delete { vip, version }, now),
            Command::ReadRecord(node) => self.operate(StoreOperation::ReadRecord(node), now),
            Command::SwapRecord { node, expected, content } => {
                self.operate(StoreOperation::SwapRecord { node, expected, content }, now);
            }
            Command::Survey => self.operate(StoreOperation::Survey, now),
        }
    }

    fn operate(&mut self, operation: StoreOperation, now: Duration) {
        let mut asked = now;
        if let StoreOperation::Read(vip) | StoreOperation::Swap { vip, .. } = operation {
            // Two operations of a VIP must not have the same time.
            self.operations += 1;
            asked += Duration::from_nanos(self.operations % 1_000);
            self.latest.insert(vip, asked);
        }
        // Thousands would have to be under way for it to be refused.
        self.store.begin(operation, asked);
    }
}

impl Fleet {
    /// Makes nodes and VIPs of these numbers. Nothing happens before the first [`Self::run`]. Must be
    /// called within a tokio runtime.
    pub async fn new(access: &ClusterAccess, nodes: u16, vips: u16, lease: Duration) -> Result<Self> {
        let names = (1..=nodes).map(|number| Ok(NodeName::new(format!("node-{number}"))?));
        let names = names.collect::<Result<Vec<_>>>()?;
        let candidate = |node: &NodeName| Candidate { node: node.clone(), weight: 1, excluded: false, cordoned: false };
        let candidates: Candidates = names.iter().map(candidate).collect();
        let vip =
            |number: u16| Vip::new(Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + u32::from(number)).into());
        let vips: BTreeSet<_> = (1..=vips).map(vip).collect();
        let wanted = Arc::new(vips.iter().map(|vip| (*vip, candidates.clone())).collect::<BTreeMap<_, _>>());
        let mut made = Vec::new();
        for (number, name) in (0_u64..).zip(&names) {
            let store = ConfiguredStore::Kubernetes(KubernetesStore::new(&ClusterClient::connect(access).await?));
            let leases = store::follow(&store);
            let (store, reports) = StoreOperations::new(store);
            let mut membership = Membership::new(name.clone(), number, MembershipSettings::for_lease(lease), BEGIN);
            membership.set_nodes(names.iter().cloned().collect(), BEGIN);
            let settings = ElectionSettings { lease, hold_down: Duration::ZERO, detect: false };
            made.push(FleetNode {
                name: name.clone(),
                membership,
                election: Election::new(name.clone(), settings, BEGIN),
                store,
                reports,
                leases,
                watched: Watched::default(),
                wanted: Arc::clone(&wanted),
                latest: BTreeMap::new(),
                operations: 0,
                pending: vec![Input::Wanted(Arc::clone(&wanted))],
                led: BTreeSet::new(),
                deadline: Duration::ZERO,
                // Not all beat at once.
                beat: BEGIN + HEARTBEAT * u32::try_from(number)? / u32::from(nodes),
                lapses: 0,
                is_alive: true,
            });
        }
        let numbers = names.into_iter().zip(0..).collect();
        Ok(Self { nodes: made, numbers, vips, began: Instant::now(), overlaps: BTreeSet::new() })
    }

    fn now(&self) -> Duration {
        BEGIN + self.began.elapsed()
    }

    /// Lets everything go on for this time.
    pub async fn run(&mut self, time: Duration) {
        let end = self.began.elapsed() + time;
        while self.began.elapsed() < end {
            for number in 0..self.nodes.len() {
                let now = self.now();
                let node = &mut self.nodes[number];
                if !node.is_alive {
                    continue;
                }
                node.advance(now);
                let (from, payloads) = (node.name.clone(), node.membership.take_outbox());
                for (to, payload) in payloads {
                    let receiver = self.numbers.get(&to).map(|number| &mut self.nodes[*number]);
                    if let Some(receiver) = receiver.filter(|receiver| receiver.is_alive) {
                        // Agents of one version understand each other.
                        let _ = receiver.membership.receive(&from, &payload, now);
                    }
                }
            }
            self.check();
            sleep(LOOK).await;
        }
    }

    /// Returns which VIPs are answered for now. The kernel of a node that is gone answers until its
    /// deadline.
    fn answers(&self) -> BTreeMap<Vip, Vec<&FleetNode>> {
        let now = self.now();
        let mut answers = BTreeMap::<_, Vec<_>>::new();
        for node in self.nodes.iter().filter(|node| now < node.deadline) {
            node.led.iter().for_each(|vip| answers.entry(*vip).or_default().push(node));
        }
        answers
    }

    fn check(&mut self) {
        let now = self.now();
        let twice = self.answers().into_iter().filter(|(_, nodes)| nodes.len() > 1);
        let text = |(vip, nodes): (Vip, Vec<&FleetNode>)| {
            let node = |node: &&FleetNode| format!("{} until {:?}", node.name, node.deadline);
            format!("{vip} at {now:?}: {:?}", nodes.iter().map(node).collect::<Vec<_>>())
        };
        let found: Vec<_> = twice.map(text).collect();
        self.overlaps.extend(found);
    }

    /// Lets everything go on until living nodes answer for all VIPs. Returns how long that took.
    pub async fn run_until_answered(&mut self) -> Result<Duration> {
        let began = Instant::now();
        loop {
            let answers = self.answers();
            let missing =
                self.vips.iter().filter(|vip| !answers.get(vip).is_some_and(|by| by.iter().any(|it| it.is_alive)));
            let missing = missing.count();
            if missing == 0 {
                return Ok(began.elapsed());
            }
            if began.elapsed() > PATIENCE {
                bail!("{missing} VIPs are not answered for");
            }
            self.run(LOOK * 10).await;
        }
    }

    /// Ends the agents of the second half of the nodes, without a word to the others.
    pub fn kill_half(&mut self) {
        let half = self.nodes.len() / 2;
        self.nodes.iter_mut().skip(half).for_each(|node| node.is_alive = false);
    }

    /// Returns how often the deadline of a living node has passed.
    pub fn lapses(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_alive).map(|node| node.lapses).sum()
    }
}
