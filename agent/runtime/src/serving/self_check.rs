//! Compares the kernel with the desired state: at intervals, with repair, and on request, without.
//!
//! A thread of its own reads the kernel, beside the event loop. If the agent wrote meanwhile, it
//! reads again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    future::pending,
    io,
    time::{Duration, Instant},
};

use tokio::task::{JoinHandle, spawn_blocking};
use vipmux_common::{
    abi::{Interface, VipSlot},
    service_index::IndexedService,
};

use super::{
    Serving,
    kernel::entries,
    kernel_error::KernelError,
    link_kernel::LinkKernel,
    program_places::{AttachedClassifier, Moves, Places, place_differences},
    repair::Repair,
};
use crate::{
    AgentError,
    control::{Answer, Diff, Query, ReportedDifference},
    metrics::Meters,
};
use vipmux_datapath::{
    bpf::{
        maps::{Maps, MapsError},
        pinned::{PinnedLinkInfo, PinnedObjects},
        pins::{LinkKind, PinError, Pins},
    },
    link::{Ethtool, EthtoolError, interface_name},
    snat::{IdentitySnat, SnatError},
};
use vipmux_plan as plan;
use vipmux_plan::MapEntries;

/// The time after which the kernel is read again, if the agent wrote meanwhile.
const RETRY: Duration = Duration::from_secs(1);
/// Most readings for queries that wait for an answer.
const ATTEMPTS: u32 = 5;
/// Queries that wait for an answer at the same time.
const MOST_WAITING: usize = 16;
/// Repairs that are logged one by one.
const MOST_LINES: usize = 100;

/// The kernel could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SelfCheckError {
    #[error(transparent)]
    Maps(#[from] MapsError),
    #[error(transparent)]
    Pinned(#[from] PinError),
    #[error(transparent)]
    Snat(#[from] SnatError),
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    #[error("cannot list the programs on an interface")]
    Programs(#[from] io::Error),
    #[error("the check failed")]
    Failed,
}

/// The number of writes before a reading, and its result.
pub(crate) type KernelReading = (u64, Result<KernelSnapshot, SelfCheckError>);

/// The state of the kernel at one time.
pub(crate) struct KernelSnapshot {
    pinned: PinnedObjects,
    /// `None` if other maps are pinned than the agent's.
    maps: Option<ReadMaps>,
    snat: bool,
    places: Places,
    /// The ports and bonds' cards with `rx-vlan-offload` on, although it can be turned off.
    strips_tags: BTreeSet<u32>,
}

struct ReadMaps {
    entries: MapEntries,
    interfaces: BTreeMap<u32, Interface>,
    vip_index: BTreeMap<u32, VipSlot>,
    service_index: BTreeMap<u32, IndexedService>,
    local_ports: BTreeMap<u32, u64>,
    backend_nodes: BTreeMap<u32, u64>,
    /// The number of backends' indices that were read.
    backends: u32,
}

impl KernelSnapshot {
    /// Reads the kernel, but of backends only as many indices as were ever used: nothing names the
    /// others, and to read all of them was a fifth of the CPU time of an agent at rest.
    fn take(
        pins: &Pins,
        known: &PinnedObjects,
        classifiers: &[AttachedClassifier],
        cards: &BTreeSet<u32>,
        backends: u32,
    ) -> Result<Self, SelfCheckError> {
        let pinned = PinnedObjects::read(pins)?;
        let maps = if pinned.maps.is_empty() || known.has_maps_of(&pinned) {
            let maps = Maps::open(pins.root())?;
            let (interfaces, vip_index) = (maps.read_interfaces()?, maps.vip_index.read()?);
            let service_index = maps.service_index.read()?;
            let (local_ports, backend_nodes) = (maps.local_ports.read()?, maps.read_backend_nodes(backends)?);
            Some(ReadMaps {
                entries: entries(&maps, backends)?,
                interfaces,
                vip_index,
                service_index,
                local_ports,
                backend_nodes,
                backends,
            })
        } else {
            None
        };
        let places = Places::read(classifiers, &pinned)?;
        let strips_tags = strips_tags(cards)?;
        Ok(Self { pinned, maps, snat: IdentitySnat::open()?.exists()?, places, strips_tags })
    }
}

/// Returns which interfaces take VLAN tags out of frames although that can be turned off. One that is gone
/// does not.
fn strips_tags(interfaces: &BTreeSet<u32>) -> Result<BTreeSet<u32>, EthtoolError> {
    let ethtool = Ethtool::open()?;
    let strips = |name: &str| Ok::<_, EthtoolError>(ethtool.strips_tags(name)? && ethtool.can_change_tags(name)?);
    let is_on = |ifindex: &u32| strips(&interface_name(*ifindex)).unwrap_or_default();
    Ok(interfaces.iter().copied().filter(is_on).collect())
}

/// The self-check: when it is due, and the reading under way.
pub(crate) struct SelfCheck {
    every: Option<Duration>,
    due: Option<Instant>,
    /// The number of writes before the reading began, and its task.
    running: Option<(u64, JoinHandle<Result<KernelSnapshot, SelfCheckError>>)>,
    /// The queries that wait for an answer.
    waiting: Vec<Query>,
    /// The readings for them that were of no use.
    attempts: u32,
    /// Why the kernel could not be read, as last logged.
    failure: Option<String>,
    /// The moves of programs to the first place.
    moves: Moves,
    meters: Meters,
}

impl SelfCheck {
    /// `every`: zero for never.
    pub(crate) fn new(every: Duration, meters: Meters) -> Self {
        let every = (!every.is_zero()).then_some(every);
        let due = every.map(|every| Instant::now() + every);
        let (waiting, moves) = (Vec::new(), Moves::default());
        Self { every, due, running: None, waiting, attempts: 0, failure: None, moves, meters }
    }

    /// Returns when the next one is to begin; `None` while one is under way.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.filter(|_| self.running.is_none())
    }

    /// Begins a check for a query, which is answered when it ends.
    pub(crate) fn ask(&mut self, query: Query, serving: &Serving) {
        if self.waiting.len() >= MOST_WAITING {
            query.answer(Answer::Error("too many are asking: try again".to_owned()));
            return;
        }
        self.waiting.push(query);
        self.begin(serving);
    }

    /// Begins to read the kernel, unless that or an attach is under way.
    pub(crate) fn begin(&mut self, serving: &Serving) {
        let Some(links) = serving.attach.kernel() else { return };
        if self.running.is_none() {
            // Reads the kernel, which takes too long for the event loop. It writes nothing; if the
            // agent ends, so does it.
            let kernel = &serving.kernel;
            let (pins, known, classifiers) =
                (kernel.pins().clone(), links.pinned().clone(), serving.classifiers(links));
            let (cards, backends) = (serving.interfaces.cards(), kernel.observed().reached_backends());
            let take = move || KernelSnapshot::take(&pins, &known, &classifiers, &cards, backends);
            let reading = spawn_blocking(take);
            self.running = Some((kernel.writes() + links.writes(), reading));
        }
    }

    /// Begins to read the kernel for queries that wait, after an attach.
    pub(crate) fn resume(&mut self, serving: &Serving) {
        if !self.waiting.is_empty() {
            self.begin(serving);
        }
    }

    /// Waits for the end of the reading under way. Cancel-safe.
    pub(crate) async fn read(&mut self) -> KernelReading {
        let Some((writes, task)) = &mut self.running else { return pending().await };
        let (writes, result) = (*writes, task.await.unwrap_or(Err(SelfCheckError::Failed)));
        self.running = None;
        (writes, result)
    }

    /// Reads again after a reading that was of no use: at once if a query waits.
    fn retry(&mut self, serving: &Serving) {
        self.due = self.due.map(|at| at.max(Instant::now() + RETRY));
        if self.waiting.is_empty() {
            return;
        }
        self.attempts += 1;
        if self.attempts < ATTEMPTS {
            self.begin(serving);
        } else {
            self.answer(&Answer::Error("the maps kept changing while they were read: ask again".to_owned()));
        }
    }

    fn answer(&mut self, answer: &Answer) {
        self.attempts = 0;
        self.waiting.drain(..).for_each(|query| query.answer(answer.clone()));
    }

    fn log_failure(&mut self, failure: Option<String>) {
        if failure != self.failure {
            if let Some(error) = &failure {
                tracing::warn!(error, "cannot check kernel state");
            } else {
                tracing::info!("kernel state checked again");
            }
            self.failure = failure;
        }
    }

    /// Compares a reading with the desired state, answers queries, and repairs differences if a
    /// check is due. Returns whether the next reconciliation has to finish a repair.
    pub(crate) fn finish(
        &mut self,
        (writes, reading): KernelReading,
        serving: &mut Serving,
    ) -> Result<bool, AgentError> {
        let due = self.due.is_some_and(|due| due <= Instant::now());
        let reading = match reading {
            Ok(_) | Err(_) if serving.writes() != Some(writes) => {
                self.retry(serving);
                return Ok(false);
            }
            Ok(reading) => reading,
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                self.answer(&Answer::Error(error.clone()));
                self.log_failure(Some(error));
                self.due = self.every.map(|every| Instant::now() + every);
                return Ok(false);
            }
        };
        self.log_failure(None);
        self.meters.checked();
        self.meters.classifiers_not_first(reading.places.not_first());
        let Some(links) = serving.attach.kernel() else { return Ok(false) };
        let found = differences(serving, links, &reading);
        let refused = serving.warnings().iter().cloned().collect();
        let differences = found.iter().map(|(difference, _)| difference.clone()).collect();
        self.answer(&Answer::Diff(Diff { differences, refused }));
        if !due {
            return Ok(false);
        }
        self.due = self.every.map(|every| Instant::now() + every);
        let mut found = self.moves.without_contested(found);
        found.retain(|(_, repair)| match repair {
            Repair::Tags(ifindex) => serving.interfaces.may_defend_tags(*ifindex),
            _ => true,
        });
        for (difference, _) in found.iter().take(MOST_LINES) {
            let ReportedDifference { what, entry, wanted, found } = difference;
            tracing::warn!(what, entry, wanted, found, "repairing drift");
        }
        if found.len() > MOST_LINES {
            tracing::warn!(untold = found.len() - MOST_LINES, "repairing more drift");
        }
        for (difference, repair) in &found {
            self.meters.repaired(&difference.what);
            carry_out(serving, repair)?;
        }
        Ok(!found.is_empty())
    }
}

/// Returns the differences, with the repair of each.
fn differences(serving: &Serving, links: &LinkKernel, reading: &KernelSnapshot) -> Vec<(ReportedDifference, Repair)> {
    let mut found = pin_differences(links.pinned(), &reading.pinned);
    if let Some(reading) = &reading.maps {
        let ReadMaps { entries, interfaces, vip_index, service_index, local_ports, backend_nodes, backends } = reading;
        let maps = serving.kernel.observed().differences(entries).into_iter();
        found.extend(maps.map(|difference| (ReportedDifference::from(&difference), Repair::Map(difference))));
        found.extend(array_differences("INTERFACES", links.interfaces(), interfaces, Repair::Interface));
        let maps = &serving.kernel.maps;
        found.extend(array_differences("VIP_INDEX", maps.written_vip_index(), vip_index, |index, _| {
            Repair::VipIndex(index)
        }));
        let wanted = maps.written_service_index();
        found.extend(array_differences("SERVICE_INDEX", wanted, service_index, |index, _| Repair::ServiceIndex(index)));
        for (name, wanted, read) in [
            ("LOCAL_PORTS", maps.written_local_ports(), local_ports),
            ("BACKEND_NODES", maps.written_backend_nodes(*backends), backend_nodes),
        ] {
            found.extend(array_differences(name, &wanted, read, |_, _| Repair::BackendIndices));
        }
    }
    found.extend(place_differences(&reading.places));
    found.extend(reading.strips_tags.iter().map(|ifindex| tag_difference(*ifindex)));
    if !reading.snat {
        let wanted = Some("the identity-SNAT chain".to_owned());
        let difference =
            ReportedDifference { what: "nftables".to_owned(), entry: "vipmux".to_owned(), wanted, found: None };
        found.push((difference, Repair::Snat));
    }
    found
}

/// Repairs what the next reconciliation alone does not.
fn carry_out(serving: &mut Serving, repair: &Repair) -> Result<(), AgentError> {
    let Serving { kernel, attach, .. } = serving;
    let Some(links) = attach.kernel_mut() else { return Ok(()) };
    match repair {
        Repair::Map(difference) => kernel.correct(difference)?,
        Repair::Interface(ifindex, wanted) => links.write_interface(*ifindex, *wanted)?,
        Repair::VipIndex(index) => kernel.maps.repair_vip_index(*index)?,
        Repair::ServiceIndex(index) => kernel.maps.repair_service_index(*index)?,
        Repair::BackendIndices => kernel.maps.rebuild_backend_indices()?,
        Repair::MapPin(name, id) => links.restore_map(name, *id)?,
        Repair::ProgramPin => links.programs.pin().map_err(KernelError::from)?,
        Repair::Link(ifindex) => attach.forget_link(*ifindex),
        Repair::Place(direction, ifindex) => attach.put_first(*direction, *ifindex),
        Repair::Tags(ifindex) => attach.note_drifted_tags(*ifindex),
        // The reconciliation wants the same NAT elements once more, which brings back the chain.
        Repair::Snat => {}
    }
    Ok(())
}

/// Returns the pinned objects that differ.
fn pin_differences(known: &PinnedObjects, found: &PinnedObjects) -> Vec<(ReportedDifference, Repair)> {
    let id = |id: &u32| format!("id {id}");
    let mut differences = Vec::new();
    for (name, wanted) in known.maps.iter().filter(|(name, wanted)| found.maps.get(*name) != Some(wanted)) {
        let difference = ReportedDifference::new("map", name, Some(id(wanted)), found.maps.get(name).map(id));
        differences.push((difference, Repair::MapPin(name.clone(), *wanted)));
    }
    for (name, wanted) in known.programs.iter().filter(|(name, wanted)| found.programs.get(*name) != Some(wanted)) {
        let difference = ReportedDifference::new("program", name, Some(id(wanted)), found.programs.get(name).map(id));
        differences.push((difference, Repair::ProgramPin));
    }
    let link = |PinnedLinkInfo { id, program, ifindex }: &PinnedLinkInfo| match ifindex {
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
        let difference = ReportedDifference::new("link", &entry, Some(link(wanted)), found.links.get(key).map(link));
        differences.push((difference, Repair::Link(ifindex)));
    }
    differences
}

/// Returns the difference of an interface whose `rx-vlan-offload` is on.
fn tag_difference(ifindex: u32) -> (ReportedDifference, Repair) {
    let entry = format!("rx-vlan-offload of {}", interface_name(ifindex));
    let (wanted, found) = (Some("off".to_owned()), Some("on".to_owned()));
    (ReportedDifference::new("setting", &entry, wanted, found), Repair::Tags(ifindex))
}

/// Returns the elements of an array that differ. Those that are not in use are zero.
fn array_differences<V: Copy + Default + PartialEq + Debug>(
    map: &str,
    wanted: &BTreeMap<u32, V>,
    found: &BTreeMap<u32, V>,
    repair: impl Fn(u32, V) -> Repair,
) -> Vec<(ReportedDifference, Repair)> {
    let indices: BTreeSet<_> = wanted.keys().chain(found.keys()).copied().collect();
    let differing = indices.into_iter().filter(|index| wanted.get(index) != found.get(index));
    let text = |value: &V| format!("{value:?}");
    differing
        .map(|index| {
            let (wanted, found) = (wanted.get(&index), found.get(&index));
            let difference = ReportedDifference::new(map, &index.to_string(), wanted.map(text), found.map(text));
            (difference, repair(index, wanted.copied().unwrap_or_default()))
        })
        .collect()
}

impl From<&plan::EntryDifference> for ReportedDifference {
    fn from(difference: &plan::EntryDifference) -> Self {
        let plan::EntryDifference { map, entry, wanted, found, .. } = difference;
        Self::new(map, entry, wanted.clone(), found.clone())
    }
}
