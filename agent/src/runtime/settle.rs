//! From objects to what should be served: the pure stages in a row, on a thread of their own, so that 10,000 Services
//! never keep the event loop from its heartbeat.

mod agreement;
mod probed;
mod question;
mod stages;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use imbl::OrdMap;
use tokio::{
    pin, select,
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{sleep, sleep_until},
};

use self::stages::{Memory, Stages};
pub(super) use self::{agreement::Authority, question::Question};
use super::health::Probes;
use crate::{
    election::placement::Contenders,
    metrics::Tally,
    model::{NodeName, Options, PortClaim, Vip, advertisement::Candidates},
    plan::DesiredService,
    source::Objects,
};

/// What should be served, and by whom each VIP is led.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// Port claims.
    pub(super) services: OrdMap<PortClaim, DesiredService>,
    /// VIPs, with the leaders that they have where all nodes start together.
    pub(super) leaders: Arc<BTreeMap<Vip, Option<NodeName>>>,
    /// Those who contend for each of them.
    pub(super) contenders: Arc<BTreeMap<Vip, Contenders>>,
    /// Who may lead each of them, and where it is announced there.
    pub(super) candidates: Arc<BTreeMap<Vip, Arc<Candidates>>>,
    /// Nodes' first InternalIP of each family, IPv4 first.
    pub(super) nodes: Arc<BTreeMap<NodeName, Vec<IpAddr>>>,
    /// What could not be done as asked, with whom it is about: told once, when it is new.
    pub(super) complaints: Arc<BTreeSet<String>>,
    /// The last look at the source that was asked for and that this rests on (see [`Follower::look`](crate::source::Follower::look)).
    pub(super) look: u64,
    /// What became of the Services.
    pub(super) tally: Arc<Tally>,
    /// How it came about.
    pub(super) course: Course,
}

/// How something was settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Course {
    /// When the first event came that it takes in; `None`: it was another occasion.
    pub(super) since: Option<Instant>,
    /// How long it took; zero: nothing was settled yet.
    pub(super) took: Duration,
}

/// How often the state file is looked at for what other agents wrote.
const LOOK: Duration = Duration::from_secs(1);
/// When it is written again that could not be written.
const AGAIN: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(30) };

/// Settles each new snapshot, after each look that was asked for, and where addresses are written to a state file again when
/// another agent changed that: all that share it end with the same view, whoever saw an edit first. Rests on what the probes
/// found, and tells them what to check. Answers questions about it in between.
///
/// Runs until the objects' source is gone. Cancel-safe: dropping it loses at most the snapshot in work.
pub(super) async fn follow(
    mut objects: watch::Receiver<Arc<Objects>>,
    mut looked: watch::Receiver<u64>,
    mut questions: mpsc::Receiver<Question>,
    authority: Authority,
    options: Options,
    mut probes: Probes,
    settled: watch::Sender<Arc<Settled>>,
) {
    let mut stages = Stages::new(options.clone(), authority.clone(), Memory::default());
    // When something changed that is not settled yet.
    let mut since = None;
    // When to write again what could not be written.
    let mut again: Option<Instant> = None;
    loop {
        if again.take_if(|again| *again <= Instant::now()).is_some() {
            stages.write_again();
        }
        // Taken before it is read: what changes from here on is looked at again, our own writing included.
        let seen = authority.stamp();
        // Before the snapshot, which is then at least as new.
        let look = *looked.borrow_and_update();
        let snapshot = Arc::clone(&objects.borrow_and_update());
        stages.hear(Arc::clone(&probes.health.borrow_and_update()));
        let memory = Memory { objects: Arc::clone(&snapshot), ..stages.memory() };
        let run = spawn_blocking(move || {
            let begun = Instant::now();
            let result = stages.settle(&snapshot, seen);
            (stages, result, begun.elapsed())
        });
        pin!(run);
        let mut next = None;
        let run = loop {
            select! {
                run = &mut run => break run,
                // That there will be none any more is seen below.
                Ok(()) = objects.changed(), if next.is_none() => next = Some(Instant::now()),
            }
        };
        let taken_in = std::mem::replace(&mut since, next);
        if let Ok((same, result, took)) = run {
            stages = same;
            probes.want(stages.checkups(&probes.node));
            tell(&settled.borrow().complaints, &result.complaints);
            settled.send_replace(Arc::new(Settled { look, course: Course { since: taken_in, took }, ..result }));
        } else {
            tracing::error!("settling a snapshot failed; the last good state stays in force until the next one");
            stages = Stages::new(options.clone(), authority.clone(), memory);
        }
        again = if stages.is_kept() { None } else { again.or_else(|| Some(Instant::now() + AGAIN)) };
        // However much changes.
        while let Ok(question) = questions.try_recv() {
            question.answer(&stages, &probes.findings.borrow());
        }
        while since.is_none() {
            select! {
                changed = objects.changed() => if changed.is_ok() { since = Some(Instant::now()) } else { return },
                Ok(()) = looked.changed() => break,
                Ok(()) = probes.health.changed() => break,
                Some(question) = questions.recv() => question.answer(&stages, &probes.findings.borrow()),
                () = sleep(LOOK) => if authority.stamp() != seen { break },
                () = sleep_until(again.unwrap_or_else(Instant::now).into()), if again.is_some() => break,
            }
        }
    }
}

/// Lines of log of each kind at once.
const MOST_LINES: usize = 100;

/// Logs what is new and what is mended: of thousands at once, the first.
pub(super) fn tell(before: &BTreeSet<String>, after: &BTreeSet<String>) {
    let (new, mended) = (after.difference(before), before.difference(after));
    for complaint in new.clone().take(MOST_LINES) {
        tracing::warn!("{complaint}");
    }
    for complaint in mended.clone().take(MOST_LINES) {
        tracing::info!(was = complaint, "mended");
    }
    let untold = new.count().saturating_sub(MOST_LINES) + mended.count().saturating_sub(MOST_LINES);
    if untold > 0 {
        tracing::warn!(untold, "more was refused or mended; `vipmux plan` tells all");
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        path::Path,
    };

    use nix::fcntl::{Flock, FlockArg};
    use tokio::time::timeout;

    use super::{stages::tests::objects, *};

    const PATIENCE: Duration = Duration::from_mins(1);

    /// The state file's lock, as an agent has it that was stopped while it wrote.
    fn locked(path: &Path) -> Flock<File> {
        let lock = File::create(path.with_extension("yaml.lock")).unwrap();
        Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error).unwrap()
    }

    fn told(settled: &Settled) -> bool {
        settled.complaints.iter().any(|it| it.contains("is one stopped?"))
    }

    /// Runs [`follow`] on what the sender says, from these objects on.
    fn following(path: &Path, objects: Objects) -> (watch::Sender<Arc<Objects>>, watch::Receiver<Arc<Settled>>) {
        let (sender, snapshots) = watch::channel(Arc::new(objects));
        let (results, settled) = watch::channel(Arc::new(Settled::default()));
        let authority = Authority::File(path.to_owned());
        tokio::spawn(async move {
            let ((_looks, looked), (_asker, questions)) = (watch::channel(0), mpsc::channel(1));
            let (probes, _hearsay) = Probes::start(NodeName("here".to_owned())).unwrap();
            follow(snapshots, looked, questions, authority, Options::default(), probes, results).await;
        });
        (sender, settled)
    }

    #[tokio::test]
    async fn what_changed_is_settled_with_the_time_at_which_it_did() {
        let directory = tempfile::tempdir().unwrap();
        let (objects, mut settled) = following(&directory.path().join("assignments.yaml"), Objects::default());
        timeout(PATIENCE, settled.changed()).await.unwrap().unwrap();
        let first = settled.borrow_and_update().course;
        assert!(first.since.is_none() && !first.took.is_zero(), "{first:?}");
        let before = Instant::now();
        objects.send_replace(Arc::default());
        let changed = timeout(PATIENCE, settled.wait_for(|settled| settled.course.since.is_some())).await.unwrap();
        let since = changed.unwrap().course.since.unwrap();
        assert!(since >= before && since <= Instant::now(), "{since:?}, {before:?}");
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_served_and_told_and_written_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("assignments.yaml");
        let lock = locked(&path);
        let (_objects, mut settled) = following(&path, objects(&["a"]));
        let without = timeout(PATIENCE, settled.wait_for(|settled| told(settled))).await.unwrap().unwrap().clone();
        assert_eq!((without.leaders.len(), path.exists()), (1, false));
        drop(lock);
        let with = timeout(PATIENCE, settled.wait_for(|settled| !told(settled))).await.unwrap().unwrap().clone();
        assert_eq!((&with.leaders, path.exists()), (&without.leaders, true));
    }

    #[tokio::test]
    async fn an_agent_that_starts_serves_what_it_could_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("assignments.yaml");
        fs::write(&path, "version: 1\nservices:\n  shop/a:\n    addresses: [192.0.2.2]\n").unwrap();
        let _lock = locked(&path);
        let (_objects, mut settled) = following(&path, objects(&["a", "b"]));
        let settled = timeout(PATIENCE, settled.wait_for(|settled| told(settled))).await.unwrap().unwrap().clone();
        let owners: Vec<_> =
            settled.services.iter().map(|(claim, it)| format!("{} {}", it.owner.name, claim.vip)).collect();
        assert_eq!(owners, ["b 192.0.2.1", "a 192.0.2.2"]);
    }
}
