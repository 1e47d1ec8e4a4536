//! Tests the order of the event loop's events.

use std::path::Path;

use tokio::time::{sleep, timeout};

use super::*;
use crate::{election::peer_health::HealthProbes, metrics::Meters, serving::kernel::boottime};
use vipmux_cluster::store::{ConfiguredStore, DirectoryStore, LeaseSnapshot, StoreOperation, StoreOutcome, Survey};
use vipmux_election::{Election, ElectionSettings, membership::sealing::SealingKeys};
use vipmux_supervisor::Supervisor;
use vipmux_testing::{PATIENCE, names::node_name};

/// Nothing comes within this time.
const BRIEF: Duration = Duration::from_millis(20);

/// The inputs, with the other ends of their channels.
struct World {
    inputs: Inputs,
    elector: Elector,
    health: PeerHealth,
    self_check: SelfCheck,
    attach: AttachTask,
    state: watch::Sender<Arc<ServingState>>,
    links: watch::Sender<Arc<Links>>,
    reports: mpsc::Sender<StoreReport>,
    leases: watch::Sender<Option<LeaseSnapshot>>,
    _kept: (HealthProbes, watch::Sender<Arc<ResolvedNeighbors>>, mpsc::Sender<Query>, mpsc::Receiver<StoreReport>),
}

impl World {
    fn new(state_dir: &Path) -> Self {
        let here = node_name("here");
        let election = Election::new(here.clone(), ElectionSettings::default(), boottime().unwrap());
        let keys = watch::channel(SealingKeys::generate([7; 32])).1;
        let gossip = vipmux_gossip::GossipSettings {
            local: here.clone(),
            port: vipmux_gossip::DEFAULT_PORT,
            keys: keys.clone(),
        };
        let place = ConfiguredStore::Directory(DirectoryStore::new(state_dir));
        let supervisor = Supervisor::default();
        let lease = ElectionSettings::default().lease;
        let (elector, own) = Elector::start(election, lease, gossip, place, 1, None, &supervisor).unwrap();
        let (probes, health) = HealthProbes::start(here, &supervisor).unwrap();
        let (state, serving_state) = watch::channel(Arc::default());
        let (links, new_links) = watch::channel(Arc::default());
        let (neighbors, new_neighbors) = watch::channel(Arc::default());
        let ((asking, queries), (reports, new_reports)) = (mpsc::channel(1), mpsc::channel(1));
        let (leases, watched) = watch::channel(None);
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Heartbeats come when a test asks for one.
        heartbeat.reset_after(PATIENCE);
        let inputs = Inputs {
            heartbeat,
            stop: StopSignals::listen().unwrap(),
            state: serving_state,
            links: new_links,
            neighbors: new_neighbors,
            keys,
            queries,
            reports: new_reports,
            leases: watched,
            begun: false,
        };
        let self_check = SelfCheck::new(Duration::ZERO, Meters::default());
        let kept = (probes, neighbors, asking, own);
        let attach = AttachTask::default();
        Self { inputs, elector, health, self_check, attach, state, links, reports, leases, _kept: kept }
    }

    async fn next(&mut self, timers: &Timers) -> Event {
        let Self { inputs, elector, health, self_check, attach, .. } = self;
        let sources = Sources { elector, health, self_check, attach };
        timeout(PATIENCE, inputs.next(sources, timers)).await.unwrap()
    }

    async fn nothing_comes(&mut self) -> bool {
        let Self { inputs, elector, health, self_check, attach, .. } = self;
        let sources = Sources { elector, health, self_check, attach };
        timeout(BRIEF, inputs.next(sources, &timers(None))).await.is_err()
    }
}

/// With an announcement at this time.
fn timers(announcement: Option<Instant>) -> Timers {
    Timers { announcement, ..Timers::new(Duration::ZERO, None, None) }
}

fn report() -> StoreReport {
    let result = Ok(StoreOutcome::Surveyed(Survey::default()));
    StoreReport { operation: StoreOperation::Survey, asked: Duration::ZERO, result }
}

#[tokio::test]
async fn of_events_that_are_ready_the_first_in_order_comes_and_the_others_stay() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path());
    world.state.send_replace(Arc::default());
    world.reports.send(report()).await.unwrap();
    world.leases.send_replace(Some(LeaseSnapshot::default()));
    world.inputs.heartbeat.reset_immediately();
    let due = timers(Some(Instant::now()));
    // A timer counts in milliseconds, and is ready in the next one.
    sleep(BRIEF).await;
    assert!(matches!(world.next(&due).await, Event::Heartbeat));
    world.inputs.heartbeat.reset_after(PATIENCE);
    assert!(matches!(world.next(&due).await, Event::StoreReport(_)));
    assert!(matches!(world.next(&due).await, Event::AnnouncementDue));
    assert!(matches!(world.next(&timers(None)).await, Event::Changed));
    assert!(matches!(world.next(&timers(None)).await, Event::LeasesChanged), "no VIP was known before");
    assert!(world.nothing_comes().await);
}

#[tokio::test]
async fn before_the_first_serving_state_a_change_of_the_network_waits() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path());
    world.links.send_replace(Arc::default());
    assert!(world.nothing_comes().await && !world.inputs.has_begun());
    world.state.send_replace(Arc::default());
    assert!(matches!(world.next(&timers(None)).await, Event::Changed));
    assert!(world.inputs.has_begun());
    assert!(matches!(world.next(&timers(None)).await, Event::Changed), "the links' change is still there");
    assert!(world.nothing_comes().await);
    world.links.send_replace(Arc::default());
    world.inputs.take();
    assert!(world.nothing_comes().await, "the change was taken with the rest");
}

/// The supervisor ends the agent then.
#[tokio::test]
async fn the_end_of_a_task_is_no_event() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path());
    world.state = watch::channel(Arc::default()).0;
    (world.links, world.leases) = (watch::channel(Arc::default()).0, watch::channel(None).0);
    assert!(world.nothing_comes().await);
    world.reports.send(report()).await.unwrap();
    assert!(matches!(world.next(&timers(None)).await, Event::StoreReport(_)));
}

#[tokio::test]
async fn after_a_long_heartbeat_other_events_come_before_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::new(directory.path());
    world.inputs.heartbeat.reset_immediately();
    assert!(matches!(world.next(&timers(None)).await, Event::Heartbeat));
    loop {
        world.inputs.heartbeat.reset_immediately();
        sleep(BRIEF).await;
        let end = Instant::now();
        world.inputs.end_heartbeat(HEARTBEAT);
        world.state.send_replace(Arc::default());
        let next = world.next(&timers(None)).await;
        // If the machine stalls, the next heartbeat may be due before the other event is read.
        if end.elapsed() < LISTEN {
            assert!(matches!(next, Event::Changed));
            break;
        }
    }
    assert!(matches!(world.next(&timers(None)).await, Event::Heartbeat));
}

#[tokio::test]
async fn answers_to_address_probes_are_read_often_and_a_time_that_has_passed_is_due_at_once() {
    let (start, now) = (Instant::now(), Duration::from_secs(100));
    let far = Timers::new(now, Some(now * 2), Some(now / 2));
    assert!(far.address_probe.is_some_and(|at| at >= start + LISTEN && at < start + PATIENCE));
    assert!(far.election.is_some_and(|at| at <= Instant::now()));
}
