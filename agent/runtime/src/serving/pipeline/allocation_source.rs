//! Gets the allocation of addresses: decides it with a state file, or reads it from statuses.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use imbl::ordmap::DiffItem;

use vipmux_allocate::{
    Allocation, Allocator, StatusAuthor, allocation_from_statuses,
    previous::{PreviousAssignments, with_statuses},
};
use vipmux_cluster::assignments::{self, AssignmentsError, FileVersion};
use vipmux_model::{
    Model, api,
    objects::Objects,
    reason::{Reason, Refusal},
    service::Service,
};

/// The state that outlives a failure of the pipeline.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// The holders of addresses, in case the state file cannot be used: no address moves for that.
    pub(super) holders: Arc<PreviousAssignments>,
    /// The last snapshot. Services that were in it and are gone hold nothing any more, even if some
    /// documents cannot be read.
    pub(super) objects: Arc<Objects>,
}

/// The source of the allocation.
#[derive(Clone, Debug)]
pub(crate) enum AllocationSource {
    /// The agents that share this state file decide.
    File(PathBuf),
    /// Another controller decides, and the Services' statuses show it.
    Statuses(StatusAuthor),
}

/// An allocation, and the state file that it belongs to.
pub(super) struct CurrentAllocation {
    kind: AllocationKind,
    /// The version of the state file.
    seen: Option<FileVersion>,
    /// Why the file could not be read or written. It is tried again when a Service changes, and
    /// after [`Self::write_again`].
    failure: Option<String>,
    outdated: bool,
}

enum AllocationKind {
    Own(Box<Allocator>),
    Trusted(Allocation),
}

impl CurrentAllocation {
    fn new(kind: AllocationKind, seen: Option<FileVersion>, failure: Option<String>) -> Self {
        Self { kind, seen, failure, outdated: false }
    }

    /// Returns whether it belongs to the state file as it is now.
    pub(super) fn holds(&self, seen: Option<FileVersion>) -> bool {
        !self.outdated && self.seen == seen
    }

    /// Marks it as outdated if it could not be written.
    pub(super) fn write_again(&mut self) {
        self.outdated |= self.failure.is_some();
    }

    /// Returns the allocation.
    pub(super) fn allocation(&self) -> &Allocation {
        match &self.kind {
            AllocationKind::Own(allocator) => allocator.allocation(),
            AllocationKind::Trusted(allocation) => allocation,
        }
    }

    /// Returns why the state file could not be read or written.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

impl AllocationSource {
    /// Returns the version of the state file now.
    pub(super) fn stamp(&self) -> Option<FileVersion> {
        match self {
            Self::File(path) => assignments::file_version(path),
            Self::Statuses(_) => None,
        }
    }

    /// Returns the allocation, and writes it to the state file if there is one. `memory`: of the
    /// last snapshot. `seen`: the state file as it is now.
    pub(super) fn allocate(
        &self,
        last: Option<CurrentAllocation>,
        memory: &mut Memory,
        objects: &Objects,
        model: &Model,
        seen: Option<FileVersion>,
    ) -> CurrentAllocation {
        match self {
            Self::File(path) => {
                let file = File { path, memory, objects, model };
                let last = last.filter(|last| last.failure.is_none() && last.holds(seen));
                file.renew(last).unwrap_or_else(|file| file.begin(seen))
            }
            Self::Statuses(trust) => {
                let allocation = allocation_from_statuses(model, *trust, |service| refusal(objects, service));
                CurrentAllocation::new(AllocationKind::Trusted(allocation), None, None)
            }
        }
    }
}

/// Returns why a Service has no address, from the condition in its status.
fn refusal(objects: &Objects, service: &Service) -> Option<Refusal> {
    let status = objects.services.get(&service.name)?.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|it| it.type_ == api::ALLOCATED && it.status == "False")?;
    let reason = serde_json::from_value(condition.reason.clone().into()).unwrap_or(Reason::Unallocated);
    Some(Refusal::new(reason, condition.message.clone()))
}

/// The inputs of an allocation with a state file.
pub(super) struct File<'a> {
    pub(super) path: &'a Path,
    pub(super) memory: &'a mut Memory,
    pub(super) objects: &'a Objects,
    pub(super) model: &'a Model,
}

impl File<'_> {
    /// Updates the last allocation. The cost follows the number of changes, except for the state
    /// file, which is written whole. Returns an error if all has to be allocated again, or if the
    /// state file changed meanwhile.
    pub(super) fn renew(self, last: Option<CurrentAllocation>) -> Result<CurrentAllocation, Self> {
        let Some(CurrentAllocation { kind: AllocationKind::Own(mut allocator), seen, .. }) = last else {
            return Err(self);
        };
        let difference = self.memory.objects.services.diff(&self.objects.services);
        let changed = difference.map(|item| match item {
            DiffItem::Add(name, _) | DiffItem::Remove(name, _) | DiffItem::Update { new: (name, _), .. } => {
                name.clone()
            }
        });
        let Some(renewed) = allocator.renew(self.model, &changed.collect()) else { return Err(self) };
        if !renewed.assignments_changed {
            return Ok(CurrentAllocation::new(AllocationKind::Own(allocator), seen, None));
        }
        let holders = allocator.allocation().as_previous();
        let (seen, failure) = match assignments::replace(self.path, seen, &holders) {
            Ok(Some(written)) => (Some(written), None),
            Ok(None) => return Err(self),
            Err(error) => (seen, Some(in_memory_only(error))),
        };
        self.memory.holders = Arc::new(holders);
        Ok(CurrentAllocation::new(AllocationKind::Own(allocator), seen, failure))
    }

    /// Allocates all, and writes it to the state file. If that fails, uses the holders in memory;
    /// an agent that has just started uses those that it could read.
    fn begin(self, seen: Option<FileVersion>) -> CurrentAllocation {
        let difference = self.memory.objects.services.diff(&self.objects.services);
        let gone: BTreeSet<_> = difference
            .filter_map(|item| match item {
                DiffItem::Remove(name, _) => Some(name.clone()),
                _ => None,
            })
            .collect();
        let allocate = |holders: &PreviousAssignments| {
            let left = holders.iter().filter(|(name, _)| !gone.contains(name));
            let left = left.map(|(name, held)| (name.clone(), held.clone())).collect();
            Allocator::new(self.model, &with_statuses(left, self.model))
        };
        let mut read = PreviousAssignments::new();
        let agreed = assignments::update(self.path, |holders| {
            read.clone_from(holders);
            let allocator = allocate(holders);
            (allocator.allocation().as_previous(), allocator)
        });
        let (allocator, failure) = match agreed {
            Ok(allocator) => (allocator, None),
            Err(error) => {
                let held = if self.memory.holders.is_empty() { &read } else { &*self.memory.holders };
                (allocate(held), Some(in_memory_only(error)))
            }
        };
        self.memory.holders = Arc::new(allocator.allocation().as_previous());
        CurrentAllocation::new(AllocationKind::Own(Box::new(allocator)), seen, failure)
    }
}

fn in_memory_only(error: AssignmentsError) -> String {
    format!("{:#}; addresses are held in memory only", anyhow::Error::from(error))
}
