//! Who gets what, by whose word.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use imbl::ordmap::DiffItem;

use super::stages::Memory;
use crate::{
    allocate::{
        Allocation, Allocator, Trust,
        holders::{Holders, with_statuses},
        trusted,
    },
    api,
    assignments::{self, AssignmentsError, Stamp},
    model::{
        Model,
        reason::{Reason, Refusal},
        service::Service,
    },
    source::Objects,
};

/// Who gives addresses.
#[derive(Clone, Debug)]
pub(in crate::runtime) enum Authority {
    /// All agents that share this state file.
    File(PathBuf),
    /// Somebody else, by the Services' statuses.
    Statuses(Trust),
}

/// Who gets what, and since when.
pub(super) struct Agreement {
    decision: Decision,
    /// The state file that it rests on.
    seen: Option<Stamp>,
    /// Why that could not be read, or not be written where need was. It is tried again when a Service changes, and when
    /// [`Self::write_again`] says so.
    failure: Option<String>,
    outdated: bool,
}

enum Decision {
    Own(Box<Allocator>),
    Trusted(Allocation),
}

impl Agreement {
    fn new(decision: Decision, seen: Option<Stamp>, failure: Option<String>) -> Self {
        Self { decision, seen, failure, outdated: false }
    }

    /// Whether it is that of the state file as it is now.
    pub(super) fn holds(&self, seen: Option<Stamp>) -> bool {
        !self.outdated && self.seen == seen
    }

    /// Takes it for outdated if it could not be written.
    pub(super) fn write_again(&mut self) {
        self.outdated |= self.failure.is_some();
    }

    /// What it comes to.
    pub(super) fn allocation(&self) -> &Allocation {
        match &self.decision {
            Decision::Own(allocator) => allocator.allocation(),
            Decision::Trusted(allocation) => allocation,
        }
    }

    /// What stands in its way.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

impl Authority {
    /// The state file as it is now.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::File(path) => assignments::stamp(path),
            Self::Statuses(_) => None,
        }
    }

    /// Who gets what; with a state file, as it is written there then. `memory`: of the last snapshot. `seen`: the state file
    /// as it is now.
    pub(super) fn agree(
        &self,
        last: Option<Agreement>,
        memory: &mut Memory,
        objects: &Objects,
        model: &Model,
        seen: Option<Stamp>,
    ) -> Agreement {
        match self {
            Self::File(path) => {
                let file = File { path, memory, objects, model };
                let last = last.filter(|last| last.failure.is_none() && last.holds(seen));
                file.renew(last).unwrap_or_else(|file| file.begin(seen))
            }
            Self::Statuses(trust) => {
                let allocation = trusted(model, *trust, |service| verdict(objects, service));
                Agreement::new(Decision::Trusted(allocation), None, None)
            }
        }
    }
}

/// Why the Service has nothing, as the allocator says in its status.
fn verdict(objects: &Objects, service: &Service) -> Option<Refusal> {
    let status = objects.services.get(&service.name)?.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|it| it.type_ == api::ALLOCATED && it.status == "False")?;
    let reason = serde_json::from_value(condition.reason.clone().into()).unwrap_or(Reason::Unallocated);
    Some(Refusal::new(reason, condition.message.clone()))
}

/// What the agents that share a state file decide.
pub(super) struct File<'a> {
    pub(super) path: &'a Path,
    pub(super) memory: &'a mut Memory,
    pub(super) objects: &'a Objects,
    pub(super) model: &'a Model,
}

impl File<'_> {
    /// Who gets what, from where the last allocation ended: at a cost that follows what changed, but for the state file,
    /// which is written whole. An error: all has to be looked at, or the state file is another one by now.
    pub(super) fn renew(self, last: Option<Agreement>) -> Result<Agreement, Self> {
        let Some(Agreement { decision: Decision::Own(mut allocator), seen, .. }) = last else { return Err(self) };
        let difference = self.memory.objects.services.diff(&self.objects.services);
        let changed = difference.map(|item| match item {
            DiffItem::Add(name, _) | DiffItem::Remove(name, _) | DiffItem::Update { new: (name, _), .. } => {
                name.clone()
            }
        });
        let Some(renewed) = allocator.renew(self.model, &changed.collect()) else { return Err(self) };
        if !renewed.held {
            return Ok(Agreement::new(Decision::Own(allocator), seen, None));
        }
        let holders = allocator.allocation().holders();
        let (seen, failure) = match assignments::replace(self.path, seen, &holders) {
            Ok(Some(written)) => (Some(written), None),
            Ok(None) => return Err(self),
            Err(error) => (seen, Some(in_memory_only(error))),
        };
        self.memory.holders = Arc::new(holders);
        Ok(Agreement::new(Decision::Own(allocator), seen, failure))
    }

    /// Who gets what, written to the state file. Where that fails, by what is held in memory, or, by an agent that has just
    /// started, by what could be read.
    fn begin(self, seen: Option<Stamp>) -> Agreement {
        let difference = self.memory.objects.services.diff(&self.objects.services);
        let gone: BTreeSet<_> = difference
            .filter_map(|item| match item {
                DiffItem::Remove(name, _) => Some(name.clone()),
                _ => None,
            })
            .collect();
        let allocate = |holders: &Holders| {
            let left = holders.iter().filter(|(name, _)| !gone.contains(name));
            let left = left.map(|(name, held)| (name.clone(), held.clone())).collect();
            Allocator::new(self.model, &with_statuses(left, self.model))
        };
        let mut read = Holders::new();
        let agreed = assignments::update(self.path, |holders| {
            read.clone_from(holders);
            let allocator = allocate(holders);
            (allocator.allocation().holders(), allocator)
        });
        let (allocator, failure) = match agreed {
            Ok(allocator) => (allocator, None),
            Err(error) => {
                let held = if self.memory.holders.is_empty() { &read } else { &*self.memory.holders };
                (allocate(held), Some(in_memory_only(error)))
            }
        };
        self.memory.holders = Arc::new(allocator.allocation().holders());
        Agreement::new(Decision::Own(Box::new(allocator)), seen, failure)
    }
}

fn in_memory_only(error: AssignmentsError) -> String {
    format!("{:#}; addresses are held in memory only", anyhow::Error::from(error))
}
