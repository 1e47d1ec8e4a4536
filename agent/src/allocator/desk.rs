//! The loop that writes: reads the clock, lets others decide, and executes what they decided.

mod reports;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use tokio::{
    select,
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

use super::{
    Pulse,
    decision::{Decider, Decision},
    fresh::{self, Fresh, FreshError, Listed},
    keeper::Tenure,
    leaders::Followed,
    ledger::{Custom, CustomStatus, Ledger, Verdict},
    queue::{Measure, Next, Queue},
    write::{LIMIT, Report, Work, Writer},
};
use crate::{
    clock::boottime,
    events::Teller,
    model::ServiceName,
    source::Objects,
    status::{Difference, Statement},
};

/// No storm: so many requests at once, and fifty a second.
const MEASURE: Measure = Measure {
    at_once: 8,
    pace: Duration::from_millis(20),
    burst: 50,
    backoff: Duration::from_secs(1),
    backoff_max: Duration::from_mins(5),
};
/// Who leads may change again at once, and is told when it has settled.
const SETTLES: Duration = Duration::from_secs(2);
/// From one writing of a pool's status to the next.
const SPACING: Duration = Duration::from_secs(5);
/// The shortest time from one decision to the next.
const BETWEEN: Duration = Duration::from_millis(50);
/// How often the loop turns at least.
const TURN: Duration = Duration::from_secs(5);
/// From one attempt to take over to the next.
const AGAIN: Duration = Duration::from_secs(2);

/// Who is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Service(ServiceName),
    /// It is not ours any more.
    Departed(ServiceName),
    Custom(Custom),
}

/// See the module.
pub(super) struct Desk {
    writer: Writer,
    teller: Teller,
    tenure: watch::Receiver<Tenure>,
    leaders: watch::Receiver<Followed>,
    objects: watch::Receiver<Arc<Objects>>,
    pulse: Arc<watch::Sender<Pulse>>,
    /// What was begun; each ends within [`LIMIT`].
    under_way: JoinSet<Report>,
    /// `None`: another allocator writes, or nobody.
    turn: Option<Turn>,
    /// When to try again to take over.
    again: Duration,
}

/// What is known while this allocator is the one that writes. Forgotten with the mandate.
struct Turn {
    /// [`Tenure::term`].
    term: i32,
    decider: Decider,
    ledger: Ledger,
    fresh: Fresh,
    queue: Queue<Key>,
    services: BTreeMap<ServiceName, (Arc<Service>, Statement, Difference)>,
    customs: BTreeMap<Custom, (ObjectMeta, CustomStatus)>,
    departed: BTreeSet<ServiceName>,
    /// When pools and policies were written last.
    written: BTreeMap<Custom, Duration>,
    /// What Services were denied, as it was told.
    denied: BTreeMap<ServiceName, String>,
    complaints: BTreeSet<String>,
    /// When it was told last that writes fail.
    told: Duration,
    /// There is something new to decide on.
    dirty: bool,
    /// When the next decision may be made.
    decides: Duration,
}

impl Desk {
    pub(super) fn new(
        writer: Writer,
        teller: Teller,
        tenure: watch::Receiver<Tenure>,
        leaders: watch::Receiver<Followed>,
        objects: watch::Receiver<Arc<Objects>>,
        pulse: Arc<watch::Sender<Pulse>>,
    ) -> Self {
        let (turn, again) = (None, Duration::ZERO);
        Self { writer, teller, tenure, leaders, objects, pulse, under_way: JoinSet::new(), turn, again }
    }

    /// Runs until the objects' source is gone.
    ///
    /// Cancel-safe: what is dropped is the decision in work. What was begun goes on; see [`finish`](Self::finish).
    pub(super) async fn run(&mut self) {
        loop {
            self.look().await;
            self.begin();
            self.beat();
            let wake = self.wake().saturating_sub(boottime());
            select! {
                changed = self.objects.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.soil();
                }
                Ok(()) = self.leaders.changed() => self.soil(),
                Ok(()) = self.tenure.changed() => {}
                Some(report) = self.under_way.join_next() => match report {
                    Ok(report) => self.hear(report),
                    Err(error) => {
                        tracing::error!(%error, "a write failed; it is begun anew from the statuses");
                        (self.turn, self.again) = (None, boottime() + AGAIN);
                    }
                },
                () = sleep(wake) => {}
            }
        }
    }

    /// Waits for what was begun. Whether all of it has ended.
    pub(super) async fn finish(&mut self) -> bool {
        let ended = async { while self.under_way.join_next().await.is_some() {} };
        timeout(LIMIT, ended).await.is_ok()
    }

    fn soil(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.dirty = true;
        }
    }

    /// Whether it is this allocator's turn, and what is to be written then.
    async fn look(&mut self) {
        let now = boottime();
        let tenure = self.tenure.borrow_and_update().clone();
        if self.turn.take_if(|turn| !tenure.lets_write_in(turn.term, now)).is_some() {
            tracing::warn!("the mandate has ended: nothing is written any more");
        }
        if !tenure.is_ours(now) {
            return;
        }
        if self.may_take_over() && now >= self.again {
            self.take_over(tenure.term).await;
        }
        if self.turn.as_ref().and_then(|turn| turn.fresh.until()).is_some_and(|until| now >= until) {
            self.list_anew().await;
        }
        let now = boottime();
        let Some(turn) = self.turn.take() else { return };
        if !turn.dirty || now < turn.decides {
            self.turn = Some(turn);
            return;
        }
        let leaders = self.leaders.borrow_and_update().clone().unwrap_or_default();
        let objects = Arc::clone(&self.objects.borrow_and_update());
        let decided = spawn_blocking(move || {
            let mut turn = turn;
            let objects = turn.fresh.over(&objects);
            let decision = turn.decider.decide(&objects, &leaders, &mut turn.ledger);
            (turn, decision)
        });
        if let Ok((turn, decision)) = decided.await {
            self.turn = Some(turn.ordered(decision, now));
        } else {
            self.again = boottime() + AGAIN;
            tracing::error!("a decision failed; it is begun anew from the statuses");
        }
    }

    /// Whether a turn may begin, if the mandate is there. Not before it is known what is led by whom; nor while anything is under way
    /// that was begun in the turn before, since it may be written after all has been listed.
    fn may_take_over(&self) -> bool {
        self.turn.is_none() && self.under_way.is_empty() && self.leaders.borrow().is_some()
    }

    async fn take_over(&mut self, term: i32) {
        let listed = self.list().await;
        let now = boottime();
        self.again = now + AGAIN;
        match listed {
            Ok(Listed { fresh, departed, ledger }) => {
                tracing::info!("this allocator writes from now on");
                self.turn = Some(Turn {
                    term,
                    decider: Decider::new(self.writer.options.clone(), self.writer.adopt),
                    ledger,
                    fresh,
                    queue: Queue::new(MEASURE),
                    services: BTreeMap::new(),
                    customs: BTreeMap::new(),
                    departed,
                    written: BTreeMap::new(),
                    denied: BTreeMap::new(),
                    complaints: BTreeSet::new(),
                    told: Duration::ZERO,
                    dirty: true,
                    decides: now,
                });
            }
            Err(error) => tracing::warn!(%error, "this allocator cannot begin"),
        }
    }

    /// The watch does not show all that was listed: is it that late, or is something gone?
    async fn list_anew(&mut self) {
        let listed = self.list().await;
        let Some(turn) = &mut self.turn else { return };
        match listed {
            Ok(Listed { fresh, .. }) => (turn.fresh, turn.dirty) = (fresh, true),
            Err(error) => {
                tracing::warn!(%error, "the watch is late, and what it does not show is not known");
                turn.fresh.put_off(boottime() + AGAIN);
            }
        }
    }

    async fn list(&self) -> Result<Listed, FreshError> {
        let turned = || self.pulse.send_modify(|pulse| pulse.turned = boottime());
        fresh::list(&self.writer.client, &self.writer.options, turned).await
    }

    /// Begins what may be begun.
    fn begin(&mut self) {
        while let Some(turn) = &mut self.turn
            && self.tenure.borrow().lets_write_in(turn.term, boottime())
            && let Next::Begin(key) = turn.queue.next(boottime())
        {
            match turn.work(&key) {
                Some(work) => drop(self.under_way.spawn(work.done_by(self.writer.clone()))),
                None => turn.queue.skip(&key),
            }
        }
    }

    /// When there is something to do without being told.
    fn wake(&self) -> Duration {
        let now = boottime();
        let mut wake = now + TURN;
        let tenure = self.tenure.borrow().until;
        match &self.turn {
            Some(turn) => {
                if turn.dirty {
                    wake = wake.min(turn.decides);
                }
                match turn.queue.peek(now) {
                    Next::Begin(_) => wake = now,
                    Next::At(at) => wake = wake.min(at),
                    Next::Nothing => {}
                }
                wake = [tenure, turn.fresh.until()].into_iter().flatten().fold(wake, Duration::min);
            }
            None if tenure.is_some() && self.may_take_over() => wake = wake.min(self.again.max(now + BETWEEN)),
            None => {}
        }
        wake
    }

    /// Tells how it fares.
    fn beat(&self) {
        self.pulse.send_modify(|pulse| {
            pulse.synced = true;
            pulse.turned = boottime();
            pulse.writes = self.turn.is_some();
            pulse.waiting = self.turn.as_ref().map_or(0, |turn| turn.queue.waiting().count());
            pulse.services = self.turn.as_ref().map_or((0, 0), |turn| turn.decider.counts());
        });
    }
}

impl Turn {
    /// What there is to write; `None`: nothing any more.
    fn work(&mut self, key: &Key) -> Option<Work> {
        match key {
            Key::Service(name) => {
                let (base, statement, _) = self.services.get(name)?;
                let write = self.ledger.verdict(name, base, statement) == Verdict::Write;
                let work =
                    || Work::Service { name: name.clone(), base: Arc::clone(base), statement: statement.clone() };
                write.then(work)
            }
            Key::Departed(name) => self.departed.contains(name).then(|| Work::Departed { name: name.clone() }),
            Key::Custom(object) => {
                let (base, status) = self.customs.get(object)?;
                let write = self.ledger.verdict_of(object, base, status) == Verdict::Write;
                let work =
                    || Work::Custom { object: object.clone(), base: Box::new(base.clone()), status: status.clone() };
                let work = write.then(work)?;
                self.written.insert(object.clone(), boottime());
                Some(work)
            }
        }
    }

    /// With what was decided in the queue, and nothing else.
    fn ordered(mut self, decision: Decision, began: Duration) -> Self {
        let now = boottime();
        // A decision on ten thousand Services takes a while; half of the time is for other things.
        (self.dirty, self.decides) = (false, now + BETWEEN.max(now.saturating_sub(began)));
        self.departed.extend(decision.departed);
        (self.services, self.customs) = (decision.services, decision.customs);
        let decider = &self.decider;
        self.departed.retain(|name| !decider.serves(name));
        self.denied.retain(|name, _| self.services.contains_key(name));
        self.written.retain(|object, _| decider.knows(object));
        let (services, customs, departed) = (&self.services, &self.customs, &self.departed);
        let differs = |key: &Key| match key {
            Key::Service(name) => services.contains_key(name),
            Key::Departed(name) => departed.contains(name),
            Key::Custom(object) => customs.contains_key(object),
        };
        let exists = |key: &Key| match key {
            Key::Service(name) => decider.serves(name),
            Key::Departed(name) => departed.contains(name),
            Key::Custom(object) => decider.knows(object),
        };
        self.queue.retain(differs, exists);
        for (name, (_, _, difference)) in &self.services {
            let (urgency, from) = match difference {
                Difference::Outcome => (0, now),
                Difference::Announcement => (1, now + SETTLES),
            };
            self.queue.put(Key::Service(name.clone()), urgency, from);
        }
        for name in &self.departed {
            self.queue.put(Key::Departed(name.clone()), 0, now);
        }
        for object in self.customs.keys() {
            let spaced = self.written.get(object).map_or(now, |written| *written + SPACING);
            self.queue.put(Key::Custom(object.clone()), 2, spaced.max(now + SETTLES));
        }
        tell(&self.complaints, &decision.complaints);
        self.complaints = decision.complaints;
        self
    }
}

/// Logs what is new and what is mended: of thousands at once, the first.
fn tell(before: &BTreeSet<String>, after: &BTreeSet<String>) {
    /// Lines of each kind.
    const MOST: usize = 100;
    for complaint in after.difference(before).take(MOST) {
        tracing::warn!("{complaint}");
    }
    for complaint in before.difference(after).take(MOST) {
        tracing::info!(was = complaint, "mended");
    }
}

#[cfg(test)]
mod tests;
