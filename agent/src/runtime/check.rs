//! Comparing what the kernel holds with what the agent put there: of itself, every so often, with repair; and when it
//! is asked to, without.
//!
//! The kernel is read on a thread of its own, beside the event loop. What was read while the agent wrote tells nothing
//! and is read again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    future::pending,
    time::{Duration, Instant},
};

use tokio::task::{JoinHandle, spawn_blocking};
use vipmux_common::abi::{Interface, VipSlot};

use super::{
    Agent, AgentError,
    kernel::{Kernel, KernelError, entries},
};
use crate::{
    control::{Answer, Diff, Difference, Query},
    datapath::{
        maps::{Maps, MapsError},
        pinned::{Link, Pinned},
        pins::{LinkKind, PinError, Pins},
    },
    plan::{self, Entries},
    snat::{IdentitySnat, SnatError},
};

/// How soon what was read too late is read again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often, for whoever asks.
const ATTEMPTS: u32 = 5;
/// Who may wait for an answer at the same time.
const MOST_WAITING: usize = 16;
/// Repairs that are told one by one.
const MOST_LINES: usize = 100;

/// The kernel could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    #[error(transparent)]
    Maps(#[from] MapsError),
    #[error(transparent)]
    Pinned(#[from] PinError),
    #[error(transparent)]
    Snat(#[from] SnatError),
    #[error("the check failed")]
    Failed,
}

/// What the kernel holds.
pub(super) struct Reading {
    pinned: Pinned,
    /// Not there if other maps are pinned than the agent's.
    maps: Option<ReadMaps>,
    snat: bool,
}

struct ReadMaps {
    entries: Entries,
    interfaces: BTreeMap<u32, Interface>,
    vip_index: BTreeMap<u32, VipSlot>,
}

impl Reading {
    fn take(pins: &Pins, known: &Pinned) -> Result<Self, CheckError> {
        let pinned = Pinned::read(pins)?;
        let maps = if pinned.maps.is_empty() || known.has_maps_of(&pinned) {
            let maps = Maps::open(pins.root())?;
            let (interfaces, vip_index) = (maps.read_interfaces()?, maps.read_vip_index()?);
            Some(ReadMaps { entries: entries(&maps)?, interfaces, vip_index })
        } else {
            None
        };
        Ok(Self { pinned, maps, snat: IdentitySnat::open()?.is_there()? })
    }
}

/// What a difference is about, with what it takes to put it right.
enum Finding {
    Map(plan::Difference),
    Interface(u32, Interface),
    VipIndex(u32),
    MapPin(String, u32),
    ProgramPin,
    Link(u32),
    Snat,
}

/// The checks that are due and under way.
pub(super) struct Checks {
    every: Option<Duration>,
    due: Option<Instant>,
    /// The writes before it began.
    running: Option<(u64, JoinHandle<Result<Reading, CheckError>>)>,
    waiting: Vec<Query>,
    /// Readings for them that were of no use.
    attempts: u32,
    /// What could not be read, as last told.
    trouble: Option<String>,
}

impl Checks {
    /// `every`: zero for never.
    pub(super) fn new(every: Duration) -> Self {
        let every = (!every.is_zero()).then_some(every);
        let due = every.map(|every| Instant::now() + every);
        Self { every, due, running: None, waiting: Vec::new(), attempts: 0, trouble: None }
    }

    /// When the next one is to begin; none while one is under way.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.filter(|_| self.running.is_none())
    }

    /// Someone asks.
    pub(super) fn ask(&mut self, query: Query, kernel: &Kernel) {
        if self.waiting.len() >= MOST_WAITING {
            query.answer(Answer::Error("too many are asking: try again".to_owned()));
            return;
        }
        self.waiting.push(query);
        self.begin(kernel);
    }

    /// Reads the kernel, unless that is under way.
    pub(super) fn begin(&mut self, kernel: &Kernel) {
        if self.running.is_none() {
            let (pins, known) = kernel.pinned();
            self.running = Some((kernel.writes(), spawn_blocking(move || Reading::take(&pins, &known))));
        }
    }

    /// Waits for the end of the reading under way. Cancel-safe.
    pub(super) async fn read(&mut self) -> (u64, Result<Reading, CheckError>) {
        let Some((writes, task)) = &mut self.running else { return pending().await };
        let (writes, result) = (*writes, task.await.unwrap_or(Err(CheckError::Failed)));
        self.running = None;
        (writes, result)
    }

    /// What was read is of no use: it is read again, at once for whoever waits.
    fn again(&mut self, kernel: &Kernel) {
        self.due = self.due.map(|at| at.max(Instant::now() + AGAIN));
        if self.waiting.is_empty() {
            return;
        }
        self.attempts += 1;
        if self.attempts < ATTEMPTS {
            self.begin(kernel);
        } else {
            self.answer(&Answer::Error("the maps kept changing while they were read: ask again".to_owned()));
        }
    }

    fn answer(&mut self, answer: &Answer) {
        self.attempts = 0;
        self.waiting.drain(..).for_each(|query| query.answer(answer.clone()));
    }

    fn tell(&mut self, trouble: Option<String>) {
        if trouble != self.trouble {
            if let Some(error) = &trouble {
                tracing::warn!("the kernel's state cannot be checked: {error}");
            } else {
                tracing::info!("mended: the kernel's state can be checked");
            }
            self.trouble = trouble;
        }
    }
}

impl Agent {
    /// Takes in what was read; whether something is to be repaired by the next update.
    pub(super) fn checked(
        &mut self,
        checks: &mut Checks,
        (writes, reading): (u64, Result<Reading, CheckError>),
    ) -> Result<bool, AgentError> {
        let due = checks.due.is_some_and(|due| due <= Instant::now());
        let reading = match reading {
            Ok(_) | Err(_) if writes != self.kernel.writes() => {
                checks.again(&self.kernel);
                return Ok(false);
            }
            Ok(reading) => reading,
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                checks.answer(&Answer::Error(error.clone()));
                checks.tell(Some(error));
                checks.due = checks.every.map(|every| Instant::now() + every);
                return Ok(false);
            }
        };
        checks.tell(None);
        self.meters.checked();
        let found = self.findings(&reading);
        let refused = self.refused.iter().cloned().collect();
        let differences = found.iter().map(|(difference, _)| difference.clone()).collect();
        checks.answer(&Answer::Diff(Diff { differences, refused }));
        if !due {
            return Ok(false);
        }
        checks.due = checks.every.map(|every| Instant::now() + every);
        for (difference, _) in found.iter().take(MOST_LINES) {
            let Difference { what, entry, wanted, found } = difference;
            tracing::warn!(what, entry, wanted, found, "repairing what differs from what is wanted");
        }
        if found.len() > MOST_LINES {
            tracing::warn!(untold = found.len() - MOST_LINES, "more is repaired");
        }
        for (difference, finding) in &found {
            self.meters.repaired(&difference.what);
            self.repair(finding)?;
        }
        Ok(!found.is_empty())
    }

    fn findings(&self, reading: &Reading) -> Vec<(Difference, Finding)> {
        let mut found = self.kernel.pin_findings(&reading.pinned);
        if let Some(ReadMaps { entries, interfaces, vip_index }) = &reading.maps {
            let maps = self.kernel.observed().differences(entries).into_iter();
            found.extend(maps.map(|difference| (Difference::from(&difference), Finding::Map(difference))));
            let wanted = self.kernel.interfaces();
            found.extend(array_findings("INTERFACES", wanted, interfaces, Finding::Interface));
            found.extend(array_findings("VIP_INDEX", self.kernel.vip_index(), vip_index, |index, _| {
                Finding::VipIndex(index)
            }));
        }
        if !reading.snat {
            let wanted = Some("the identity-SNAT chain".to_owned());
            let difference =
                Difference { what: "nftables".to_owned(), entry: "vipmux".to_owned(), wanted, found: None };
            found.push((difference, Finding::Snat));
        }
        found
    }

    /// What the update that follows does not do.
    fn repair(&mut self, finding: &Finding) -> Result<(), AgentError> {
        match finding {
            Finding::Map(difference) => self.kernel.correct(difference)?,
            Finding::Interface(ifindex, wanted) => self.kernel.write_interface(*ifindex, *wanted)?,
            Finding::VipIndex(index) => self.kernel.repair_vip_index(*index)?,
            Finding::MapPin(name, id) => self.kernel.restore_map(name, *id)?,
            Finding::ProgramPin => self.kernel.programs.pin().map_err(KernelError::from)?,
            Finding::Link(ifindex) => {
                self.interfaces.unlink(*ifindex);
                self.linked.clear();
            }
            // The update wants the same backends once more, which brings back what is gone.
            Finding::Snat => {}
        }
        Ok(())
    }
}

impl Kernel {
    fn pin_findings(&self, found: &Pinned) -> Vec<(Difference, Finding)> {
        let (_, known) = self.pinned();
        let id = |id: &u32| format!("id {id}");
        let mut findings = Vec::new();
        for (name, wanted) in known.maps.iter().filter(|(name, wanted)| found.maps.get(*name) != Some(wanted)) {
            let difference = Difference::new("map", name, Some(id(wanted)), found.maps.get(name).map(id));
            findings.push((difference, Finding::MapPin(name.clone(), *wanted)));
        }
        for (name, wanted) in known.programs.iter().filter(|(name, wanted)| found.programs.get(*name) != Some(wanted)) {
            let difference = Difference::new("program", name, Some(id(wanted)), found.programs.get(name).map(id));
            findings.push((difference, Finding::ProgramPin));
        }
        let link = |Link { id, program, ifindex }: &Link| match ifindex {
            0 => format!("id {id}, detached"),
            _ => format!("id {id}, program {program}, interface {ifindex}"),
        };
        for (key, wanted) in known.links.iter().filter(|(key, wanted)| found.links.get(key) != Some(wanted)) {
            let (kind, ifindex) = *key;
            let kind = match kind {
                LinkKind::Xdp => "XDP",
                LinkKind::Egress => "tcx egress",
                LinkKind::Ingress => "tcx ingress",
            };
            let entry = format!("{kind} of interface {ifindex}");
            let difference = Difference::new("link", &entry, Some(link(wanted)), found.links.get(key).map(link));
            findings.push((difference, Finding::Link(ifindex)));
        }
        findings
    }
}

/// The elements of an array that differ; those that are not in use are zero.
fn array_findings<V: Copy + Default + PartialEq + Debug>(
    map: &str,
    wanted: &BTreeMap<u32, V>,
    found: &BTreeMap<u32, V>,
    finding: impl Fn(u32, V) -> Finding,
) -> Vec<(Difference, Finding)> {
    let indices: BTreeSet<_> = wanted.keys().chain(found.keys()).copied().collect();
    let differing = indices.into_iter().filter(|index| wanted.get(index) != found.get(index));
    let text = |value: &V| format!("{value:?}");
    differing
        .map(|index| {
            let (wanted, found) = (wanted.get(&index), found.get(&index));
            let difference = Difference::new(map, &index.to_string(), wanted.map(text), found.map(text));
            (difference, finding(index, wanted.copied().unwrap_or_default()))
        })
        .collect()
}

impl From<&plan::Difference> for Difference {
    fn from(difference: &plan::Difference) -> Self {
        let plan::Difference { map, entry, wanted, found, .. } = difference;
        Self::new(map, entry, wanted.clone(), found.clone())
    }
}
