//! Decides when each backend is probed, and whether it is up: without a clock, I/O or randomness of
//! its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use rand_core::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;

use vipmux_model::health::{Checkup, CheckupResult, Checkups, Findings, HealthKey};

/// Most attempts at the same time.
const MOST_ATTEMPTS: usize = 64;
/// Most attempts of one namespace, so that its slow backends delay no other's.
const MOST_OF_NAMESPACE: usize = MOST_ATTEMPTS / 2;

/// An attempt to be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// Identifies it to [`ProbeSchedule::finish`].
    pub(super) serial: u64,
    /// The checkup to make.
    pub(super) checkup: Checkup,
}

/// A backend went down, or came up again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthChange {
    pub(super) key: HealthKey,
    /// Why the last attempt failed; `None`: it is up again.
    pub(super) error: Option<String>,
}

/// A checkup in the schedule.
#[derive(Clone, Debug)]
struct ScheduledProbe {
    checkup: Checkup,
    namespace: Arc<str>,
    state: AttemptState,
    /// Failed attempts in a row.
    failed: u32,
}

/// The next attempt: it waits until it is due, or it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptState {
    Waiting { due: Duration },
    Running { serial: u64, since: Duration },
}

/// All checkups of this node. The attempts of each are [`Checkup::interval`] apart, a tenth more or
/// less. The first one comes within an interval, so that an agent that starts does not probe all
/// backends at once.
///
/// ```text
///           failures in a row
///  unknown ───────────────────► down
///     │  a success               │ ▲
///     └────────────► up ◄────────┘ │ failures in a row
///                     └────────────┘
/// ```
#[derive(Clone, Debug)]
pub(super) struct ProbeSchedule {
    random: XorShiftRng,
    probes: BTreeMap<HealthKey, ScheduledProbe>,
    /// The checkups that wait.
    queue: BTreeSet<(Duration, HealthKey)>,
    /// The attempts under way, also of checkups that are gone.
    running: BTreeMap<u64, (HealthKey, Arc<str>)>,
    last_serial: u64,
    findings: Findings,
}

impl ProbeSchedule {
    pub(super) fn new(seed: u64) -> Self {
        let (probes, queue, running, findings) = Default::default();
        Self { random: XorShiftRng::seed_from_u64(seed), probes, queue, running, last_serial: 0, findings }
    }

    /// Replaces the wanted checkups. One that stays keeps its result.
    pub(super) fn want(&mut self, checkups: &Checkups, now: Duration) {
        let gone: Vec<_> = self.probes.keys().filter(|key| !checkups.all.contains_key(key)).copied().collect();
        for key in gone {
            if let Some(ScheduledProbe { state: AttemptState::Waiting { due }, .. }) = self.probes.remove(&key) {
                self.queue.remove(&(due, key));
            }
            self.findings.remove(&key);
        }
        for (key, (checkup, namespace)) in &checkups.all {
            let namespace = Arc::clone(namespace);
            if let Some(probe) = self.probes.get_mut(key) {
                probe.namespace = namespace;
                continue;
            }
            let due = now + checkup.interval * self.permille(0..1000) / 1000;
            self.queue.insert((due, *key));
            let state = AttemptState::Waiting { due };
            self.probes.insert(*key, ScheduledProbe { checkup: checkup.clone(), namespace, state, failed: 0 });
        }
    }

    /// Returns when the next attempt can start; `None`: after one ends, or when other checkups are
    /// wanted.
    pub(super) fn next(&self) -> Option<Duration> {
        self.first().map(|(due, _)| due)
    }

    /// Starts the attempt that has been due longest.
    pub(super) fn start(&mut self, now: Duration) -> Option<Attempt> {
        let (due, key) = self.first().filter(|(due, _)| *due <= now)?;
        self.queue.remove(&(due, key));
        let probe = self.probes.get_mut(&key)?;
        self.last_serial += 1;
        let serial = self.last_serial;
        probe.state = AttemptState::Running { serial, since: now };
        self.running.insert(serial, (key, Arc::clone(&probe.namespace)));
        Some(Attempt { serial, checkup: probe.checkup.clone() })
    }

    /// Ends an attempt. Returns whether the backend went down or came up again.
    pub(super) fn finish(&mut self, serial: u64, outcome: Result<(), String>, now: Duration) -> Option<HealthChange> {
        let (key, _) = self.running.remove(&serial)?;
        let share = self.permille(900..1101);
        let probe = self.probes.get_mut(&key)?;
        let since = match probe.state {
            AttemptState::Running { serial: current, since } if current == serial => since,
            // The checkup went and came again in the meantime.
            _ => return None,
        };
        let due = now.max(since + probe.checkup.interval * share / 1000);
        probe.state = AttemptState::Waiting { due };
        self.queue.insert((due, key));
        probe.failed = if outcome.is_ok() { 0 } else { probe.failed.saturating_add(1) };
        let was_up = self.findings.get(&key).map(|finding| finding.up);
        match outcome {
            Ok(()) if was_up != Some(true) => {
                self.findings.insert(key, CheckupResult { up: true, since: now, error: None });
                was_up.map(|_| HealthChange { key, error: None })
            }
            Err(error) if was_up == Some(false) => {
                if let Some(finding) = self.findings.get_mut(&key) {
                    finding.error = Some(error);
                }
                None
            }
            Err(error) if probe.failed >= probe.checkup.failures => {
                self.findings.insert(key, CheckupResult { up: false, since: now, error: Some(error.clone()) });
                Some(HealthChange { key, error: Some(error) })
            }
            _ => None,
        }
    }

    /// Returns the results.
    pub(super) fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Returns the checkup that waits longest, of those that may run.
    fn first(&self) -> Option<(Duration, HealthKey)> {
        if self.running.len() >= MOST_ATTEMPTS {
            return None;
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, namespace) in self.running.values() {
            *counts.entry(namespace).or_default() += 1;
        }
        let count = |key| counts.get(&*self.probes.get(key)?.namespace).copied();
        self.queue.iter().find(|(_, key)| count(key).is_none_or(|count| count < MOST_OF_NAMESPACE)).copied()
    }

    /// Returns a random number in the range.
    fn permille(&mut self, range: Range<u32>) -> u32 {
        range.start + self.random.next_u32() % (range.end - range.start)
    }
}

#[cfg(test)]
mod tests;
