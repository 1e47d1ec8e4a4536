//! Computes the serving state from the objects: the pure stages in a row.
//!
//! They run on a thread of their own, so that 10,000 Services never keep the event loop from its
//! heartbeat.

mod allocation_source;
mod explain_request;
mod node_objects;
mod probe_targets;
mod stages;

use std::{
    collections::{BTreeMap, BTreeSet},
    future,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use imbl::OrdMap;
use tokio::{
    pin, select,
    sync::{
        mpsc,
        watch::{self, error::RecvError},
    },
    task::spawn_blocking,
    time::{sleep, sleep_until},
};

pub(crate) use self::{allocation_source::AllocationSource, explain_request::ExplainRequest};
use self::{allocation_source::Memory, node_objects::NodeObjects, stages::Stages};
use crate::{election::peer_health::HealthProbes, metrics::ServiceCounts, problems::warnings::log_changes};
use vipmux_cluster::{assignments::FileVersion, clock::boottime};
use vipmux_election::placement::Candidates;
use vipmux_model::{
    IngestOptions, NodeName, PortClaim, Vip, advertisement::EligibleNodes, desired::DesiredService, objects::Objects,
};

/// The Services to serve, and the eligible nodes for each VIP. The result of the pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServingState {
    /// The port claims, with their Services.
    pub(crate) services: OrdMap<PortClaim, DesiredService>,
    /// The VIPs, with the leaders that they have if all nodes start together.
    pub(crate) leaders: Arc<BTreeMap<Vip, Option<NodeName>>>,
    /// The nodes that contend for each VIP.
    pub(crate) candidates: Arc<BTreeMap<Vip, Candidates>>,
    /// The nodes that may lead each VIP, and where they announce it.
    pub(crate) eligible_nodes: Arc<BTreeMap<Vip, Arc<EligibleNodes>>>,
    /// The nodes' first InternalIP of each family, IPv4 first.
    pub(crate) nodes: Arc<BTreeMap<NodeName, Vec<IpAddr>>>,
    /// Requests that could not be met, with the object that each is about. Each is logged once.
    pub(crate) warnings: Arc<BTreeSet<String>>,
    /// The number of the last refresh that this includes (see
    /// [`SourceGuard::request_refresh`](vipmux_cluster::source::SourceGuard::request_refresh)).
    pub(crate) refresh: u64,
    /// The numbers of Services by result.
    pub(crate) service_counts: Arc<ServiceCounts>,
    /// The timing of its computation.
    pub(crate) timing: Timing,
}

/// The timing of a serving state's computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    /// The time of the first change that it includes; `None`: no objects changed.
    pub(crate) since: Option<Instant>,
    /// The duration; zero: nothing was computed yet.
    pub(crate) took: Duration,
}

/// The interval at which the state file is checked for writes of other agents.
const FILE_CHECK: Duration = Duration::from_secs(1);
/// The time after which a failed write is tried again.
const RETRY: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(30) };

/// The inputs of the pipeline beside the objects, and its output.
pub(crate) struct Pipeline {
    /// The number of the last refresh of the source that is done.
    pub(crate) refreshed: watch::Receiver<u64>,
    pub(crate) requests: mpsc::Receiver<ExplainRequest>,
    pub(crate) source: AllocationSource,
    pub(crate) options: IngestOptions,
    pub(crate) probes: HealthProbes,
    pub(crate) published: watch::Sender<Arc<ServingState>>,
}

impl Pipeline {
    /// Computes the serving state of each new snapshot of the objects, and after each refresh of
    /// the source. It uses the results of the health probes, and sets the checkups
    /// to make. It answers explain requests in between.
    ///
    /// If addresses are written to a state file, it also runs when another agent changed that: all
    /// agents that share the file end with the same state, whichever saw an edit first.
    ///
    /// Runs until the objects' source is gone. Cancel-safe: dropping it loses at most the snapshot
    /// in work.
    pub(crate) async fn run(mut self, mut objects: watch::Receiver<Arc<Objects>>) {
        let (mut stages, mut nodes) = (self.stages(Memory::default()), NodeObjects::default());
        // The time of the objects' change after the last snapshot.
        let mut since = None;
        // The time to try a failed write again.
        let mut retry: Option<Instant> = None;
        loop {
            if retry.take_if(|retry| *retry <= Instant::now()).is_some() {
                stages.write_again();
            }
            // Taken before the file is read: later changes are read again, our own included.
            let seen = self.source.stamp();
            (stages, since) = self.compute(stages, &mut nodes, seen, &mut objects, since).await;
            retry = if stages.is_kept() { None } else { retry.or_else(|| Some(Instant::now() + RETRY)) };
            // Requests are answered however often the objects change.
            while let Ok(request) = self.requests.try_recv() {
                request.answer(&stages, &self.probes.findings.borrow());
            }
            if since.is_none() {
                let edit = stages.next().map(|at| Instant::now() + at.saturating_sub(boottime()));
                let due = retry.into_iter().chain(nodes.next()).chain(edit).min();
                let Ok(changed) = self.wait(&stages, seen, &mut objects, due).await else { return };
                since = changed;
            }
        }
    }

    fn stages(&self, memory: Memory) -> Stages {
        Stages::new(self.options.clone(), self.source.clone(), memory)
    }

    /// Runs the stages on the newest snapshot, and publishes the result. `seen`: the state file.
    /// `since`: when the first change came that the snapshot takes in. Returns the stages, and when
    /// the objects changed meanwhile.
    async fn compute(
        &mut self,
        mut stages: Stages,
        nodes: &mut NodeObjects,
        seen: Option<FileVersion>,
        objects: &mut watch::Receiver<Arc<Objects>>,
        since: Option<Instant>,
    ) -> (Stages, Option<Instant>) {
        // Before the snapshot, which is then at least as new.
        let refresh = *self.refreshed.borrow_and_update();
        let snapshot = nodes.complete(Arc::clone(&objects.borrow_and_update()), Instant::now());
        stages.set_health(Arc::clone(&self.probes.health.borrow_and_update()));
        let memory = Memory { objects: Arc::clone(&snapshot), ..stages.memory() };
        // Runs the stages, which take too long for the asynchronous runtime. Dropping the handle
        // loses the result only: a state file is written completely or not at all.
        let run = spawn_blocking(move || {
            let start = Instant::now();
            let result = stages.run(&snapshot, seen, boottime());
            (stages, result, start.elapsed())
        });
        pin!(run);
        let mut next = None;
        let run = loop {
            select! {
                run = &mut run => break run,
                // The end of the source is seen by the wait for the next run.
                Ok(()) = objects.changed(), if next.is_none() => next = Some(Instant::now()),
            }
        };
        let (stages, result, took) = match run {
            Ok(run) => run,
            // It never began, since the agent ends.
            Err(error) if error.is_cancelled() => future::pending().await,
            Err(_) => {
                // Objects may cause it on all nodes at once, so the agents do not end.
                tracing::error!("pipeline failed, last good state stays in force until the next snapshot");
                return (self.stages(memory), next);
            }
        };
        self.probes.want(stages.checkups(&self.probes.node));
        log_changes(&self.published.borrow().warnings, &result.warnings);
        self.published.send_replace(Arc::new(ServingState { refresh, timing: Timing { since, took }, ..result }));
        (stages, next)
    }

    /// Answers explain requests until there is a reason for the next run. `due`: a time that is one.
    /// Returns when the objects changed, if that is the reason; an error if their source is gone.
    async fn wait(
        &mut self,
        stages: &Stages,
        seen: Option<FileVersion>,
        objects: &mut watch::Receiver<Arc<Objects>>,
        due: Option<Instant>,
    ) -> Result<Option<Instant>, RecvError> {
        loop {
            select! {
                changed = objects.changed() => return changed.map(|()| Some(Instant::now())),
                Ok(()) = self.refreshed.changed() => return Ok(None),
                Ok(()) = self.probes.health.changed() => return Ok(None),
                Some(request) = self.requests.recv() => request.answer(stages, &self.probes.findings.borrow()),
                () = sleep(FILE_CHECK) => if self.source.stamp() != seen { return Ok(None) },
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        path::Path,
        pin,
        task::{self, Waker},
    };

    use nix::fcntl::{Flock, FlockArg};
    use tokio::{runtime::Runtime, time::timeout};

    use super::{stages::tests::objects, *};
    use vipmux_supervisor::Supervisor;
    use vipmux_testing::{PATIENCE, names::node_name};

    /// The state file's lock, as an agent has it that was stopped while it wrote.
    fn locked(path: &Path) -> Flock<File> {
        let lock = File::create(path.with_extension("yaml.lock")).unwrap();
        Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error).unwrap()
    }

    fn warns_of_lock(state: &ServingState) -> bool {
        state.warnings.iter().any(|warning| warning.contains("is one stopped?"))
    }

    /// Starts the pipeline on the objects that the sender sends, from these on.
    fn start(path: &Path, objects: Objects) -> (watch::Sender<Arc<Objects>>, watch::Receiver<Arc<ServingState>>) {
        let (sender, snapshots) = watch::channel(Arc::new(objects));
        let (published, states) = watch::channel(Arc::new(ServingState::default()));
        let source = AllocationSource::File(path.to_owned());
        tokio::spawn(async move {
            let ((_refreshes, refreshed), (_sender, requests)) = (watch::channel(0), mpsc::channel(1));
            let (probes, _peers) = HealthProbes::start(node_name("here"), &Supervisor::default()).unwrap();
            let options = IngestOptions::default();
            Pipeline { refreshed, requests, source, options, probes, published }.run(snapshots).await;
        });
        (sender, states)
    }

    /// Work that has not begun is cancelled then.
    #[test]
    fn a_pipeline_does_nothing_more_while_the_runtime_ends() {
        let runtime = Runtime::new().unwrap();
        let (_sender, snapshots) = watch::channel(Arc::new(Objects::default()));
        let (published, states) = watch::channel(Arc::new(ServingState::default()));
        let ((_refreshes, refreshed), (_requests, requests)) = (watch::channel(0), mpsc::channel(1));
        let source = AllocationSource::File(tempfile::tempdir().unwrap().path().join("assignments.yaml"));
        let (probes, _peers) =
            runtime.block_on(async { HealthProbes::start(node_name("here"), &Supervisor::default()) }).unwrap();
        let options = IngestOptions::default();
        let pipeline = Pipeline { refreshed, requests, source, options, probes, published };
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        let _context = handle.enter();
        let mut run = pin::pin!(pipeline.run(snapshots));
        assert!(run.as_mut().poll(&mut task::Context::from_waker(Waker::noop())).is_pending());
        assert!(!states.has_changed().unwrap(), "a state of nothing");
    }

    #[tokio::test]
    async fn a_state_has_the_time_of_the_change_that_it_includes() {
        let directory = tempfile::tempdir().unwrap();
        let (objects, mut states) = start(&directory.path().join("assignments.yaml"), Objects::default());
        timeout(PATIENCE, states.changed()).await.unwrap().unwrap();
        let first = states.borrow_and_update().timing;
        assert!(first.since.is_none() && !first.took.is_zero(), "{first:?}");
        let before = Instant::now();
        objects.send_replace(Arc::default());
        let changed = timeout(PATIENCE, states.wait_for(|state| state.timing.since.is_some())).await.unwrap();
        let since = changed.unwrap().timing.since.unwrap();
        assert!(since >= before && since <= Instant::now(), "{since:?}, {before:?}");
    }

    #[tokio::test]
    async fn addresses_that_cannot_be_written_are_served_with_a_warning_and_written_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("assignments.yaml");
        let lock = locked(&path);
        let (_objects, mut states) = start(&path, objects(&["a"]));
        let without = timeout(PATIENCE, states.wait_for(|state| warns_of_lock(state))).await.unwrap().unwrap().clone();
        assert_eq!((without.leaders.len(), path.exists()), (1, false));
        drop(lock);
        let with = timeout(PATIENCE, states.wait_for(|state| !warns_of_lock(state))).await.unwrap().unwrap().clone();
        assert_eq!((&with.leaders, path.exists()), (&without.leaders, true));
    }

    #[tokio::test]
    async fn an_agent_that_starts_serves_the_addresses_that_it_could_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("assignments.yaml");
        fs::write(&path, "version: 1\nservices:\n  shop/a:\n    addresses: [192.0.2.2]\n").unwrap();
        let _lock = locked(&path);
        let (_objects, mut states) = start(&path, objects(&["a", "b"]));
        let state = timeout(PATIENCE, states.wait_for(|state| warns_of_lock(state))).await.unwrap().unwrap().clone();
        let owners: Vec<_> =
            state.services.iter().map(|(claim, it)| format!("{} {}", it.owner.name(), claim.vip)).collect();
        assert_eq!(owners, ["b 192.0.2.1", "a 192.0.2.2"]);
    }
}
