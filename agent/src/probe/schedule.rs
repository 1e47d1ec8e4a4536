//! Who is asked when, and what the answers come to: without a clock, I/O or randomness of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use rand_core::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;

use crate::model::health::{Checkup, Checkups, Finding, Findings, HealthKey};

/// Most attempts at the same time.
const MOST_ATTEMPTS: usize = 64;
/// Most of one namespace, so that backends that hold up their answers hold up nobody else's.
const MOST_OF_NAMESPACE: usize = MOST_ATTEMPTS / 2;

/// An attempt to be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// What [`Schedule::finish`] knows it by.
    pub(super) serial: u64,
    /// What is asked.
    pub(super) checkup: Checkup,
}

/// A backend went down, or came up again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) key: HealthKey,
    /// Why the last attempt failed; `None`: it is up again.
    pub(super) error: Option<String>,
}

/// One checkup.
#[derive(Clone, Debug)]
struct Course {
    checkup: Checkup,
    namespace: Arc<str>,
    stage: Stage,
    /// Attempts that failed, in a row.
    failed: u32,
}

/// Waiting (the next attempt is due then) and running take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting { due: Duration },
    Running { serial: u64, since: Duration },
}

/// All checkups of this node. The attempts of each are [`Checkup::interval`] apart, a tenth more or less; the first is made
/// within that of its coming, so that an agent that starts does not ask all at once.
///
/// ```text
///           failures in a row
///  unknown ───────────────────► down
///     │  a success               │ ▲
///     └────────────► up ◄────────┘ │ failures in a row
///                     └────────────┘
/// ```
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    random: XorShiftRng,
    courses: BTreeMap<HealthKey, Course>,
    /// Those that wait.
    queue: BTreeSet<(Duration, HealthKey)>,
    /// Attempts under way, also of checkups that went.
    running: BTreeMap<u64, (HealthKey, Arc<str>)>,
    last_serial: u64,
    findings: Findings,
}

impl Schedule {
    pub(super) fn new(seed: u64) -> Self {
        let (courses, queue, running, findings) = Default::default();
        Self { random: XorShiftRng::seed_from_u64(seed), courses, queue, running, last_serial: 0, findings }
    }

    /// Takes what is wanted. Of a checkup that stays, what is known stays, too.
    pub(super) fn want(&mut self, checkups: &Checkups, now: Duration) {
        let gone: Vec<_> = self.courses.keys().filter(|key| !checkups.all.contains_key(key)).copied().collect();
        for key in gone {
            if let Some(Course { stage: Stage::Waiting { due }, .. }) = self.courses.remove(&key) {
                self.queue.remove(&(due, key));
            }
            self.findings.remove(&key);
        }
        for (key, (checkup, namespace)) in &checkups.all {
            let namespace = Arc::clone(namespace);
            if let Some(course) = self.courses.get_mut(key) {
                course.namespace = namespace;
                continue;
            }
            let due = now + checkup.interval * self.permille(0..1000) / 1000;
            self.queue.insert((due, *key));
            let stage = Stage::Waiting { due };
            self.courses.insert(*key, Course { checkup: checkup.clone(), namespace, stage, failed: 0 });
        }
    }

    /// When an attempt can be made next; `None`: when one has ended, or something else is wanted.
    pub(super) fn next(&self) -> Option<Duration> {
        self.first().map(|(due, _)| due)
    }

    /// The attempt that is due longest.
    pub(super) fn start(&mut self, now: Duration) -> Option<Attempt> {
        let (due, key) = self.first().filter(|(due, _)| *due <= now)?;
        self.queue.remove(&(due, key));
        let course = self.courses.get_mut(&key)?;
        self.last_serial += 1;
        let serial = self.last_serial;
        course.stage = Stage::Running { serial, since: now };
        self.running.insert(serial, (key, Arc::clone(&course.namespace)));
        Some(Attempt { serial, checkup: course.checkup.clone() })
    }

    /// Takes what came of an attempt.
    pub(super) fn finish(&mut self, serial: u64, outcome: Result<(), String>, now: Duration) -> Option<Turn> {
        let (key, _) = self.running.remove(&serial)?;
        let share = self.permille(900..1101);
        let course = self.courses.get_mut(&key)?;
        let since = match course.stage {
            Stage::Running { serial: current, since } if current == serial => since,
            // It went and came again in the meantime.
            _ => return None,
        };
        let due = now.max(since + course.checkup.interval * share / 1000);
        course.stage = Stage::Waiting { due };
        self.queue.insert((due, key));
        course.failed = if outcome.is_ok() { 0 } else { course.failed.saturating_add(1) };
        let was_up = self.findings.get(&key).map(|finding| finding.up);
        match outcome {
            Ok(()) if was_up != Some(true) => {
                self.findings.insert(key, Finding { up: true, since: now, error: None });
                was_up.map(|_| Turn { key, error: None })
            }
            Err(error) if was_up == Some(false) => {
                if let Some(finding) = self.findings.get_mut(&key) {
                    finding.error = Some(error);
                }
                None
            }
            Err(error) if course.failed >= course.checkup.failures => {
                self.findings.insert(key, Finding { up: false, since: now, error: Some(error.clone()) });
                Some(Turn { key, error: Some(error) })
            }
            _ => None,
        }
    }

    /// What is known.
    pub(super) fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Who waits longest of those who may run.
    fn first(&self) -> Option<(Duration, HealthKey)> {
        if self.running.len() >= MOST_ATTEMPTS {
            return None;
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, namespace) in self.running.values() {
            *counts.entry(namespace).or_default() += 1;
        }
        let count = |key| counts.get(&*self.courses.get(key)?.namespace).copied();
        self.queue.iter().find(|(_, key)| count(key).is_none_or(|count| count < MOST_OF_NAMESPACE)).copied()
    }

    /// A number in the range.
    fn permille(&mut self, range: Range<u32>) -> u32 {
        range.start + self.random.next_u32() % (range.end - range.start)
    }
}

#[cfg(test)]
mod tests;
