//! Computes an allocation from manifests, without an agent.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use imbl::ordmap::DiffItem;

use vipmux_allocate::{
    Allocation, allocate, lost_addresses,
    previous::{PreviousAssignments, with_statuses},
};
use vipmux_cluster::{
    assignments::{self, AssignmentsError},
    source::manifests::{self, ReadError},
};
use vipmux_model::{IngestOptions, Model, ServiceName, objects::Objects};

/// The most Services whose changes are tried alone. Each takes an allocation of all.
const MOST_STEPS: usize = 100;

/// The manifests or the state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The manifests cannot be read.
    #[error("cannot read the manifests")]
    Read(#[from] ReadError),
    /// The state file cannot be read.
    #[error("cannot use --state")]
    State(#[from] AssignmentsError),
    /// The state file does not exist.
    #[error("cannot use --state: {} does not exist", .0.display())]
    NoState(PathBuf),
}

/// The allocation of a set of manifests.
pub struct ManifestAllocation {
    /// The objects of the manifests.
    pub objects: Objects,
    /// The model of the objects.
    pub model: Model,
    /// The allocation.
    pub allocation: Allocation,
    options: IngestOptions,
    /// What the statuses show and Services would lose: messages.
    pub lost: BTreeMap<ServiceName, Vec<String>>,
}

impl ManifestAllocation {
    /// Reads the manifests and allocates. `held`: who holds which address; for other Services their
    /// statuses count.
    pub fn read(paths: &[PathBuf], held: &PreviousAssignments, options: &IngestOptions) -> Result<Self, InputError> {
        let objects = manifests::read(paths)?;
        let model = Model::ingest(&objects, options);
        // Who holds an address by the state file has another status only because nobody wrote it.
        let by_status = |name: &ServiceName| !held.contains_key(name);
        let allocation = allocate(&model, &with_statuses(held.clone(), &model));
        let mut lost = lost_addresses(&objects, &model, &allocation);
        lost.retain(|name, _| by_status(name));
        Ok(Self { objects, model, allocation, options: options.clone(), lost })
    }

    /// Returns the allocations after the change of one Service alone, as tools apply the changes of a commit.
    pub fn steps_to(&self, after: &Self) -> impl Iterator<Item = Allocation> {
        let changed = self.objects.services.diff(&after.objects.services).filter_map(|item| match item {
            DiffItem::Update { new: (name, service), .. } => Some((name, service)),
            DiffItem::Add(..) | DiffItem::Remove(..) => None,
        });
        changed.take(MOST_STEPS).map(|(name, service)| {
            let services = self.objects.services.update(name.clone(), Arc::clone(service));
            let model = Model::ingest(&Objects { services, ..self.objects.clone() }, &self.options);
            allocate(&model, &with_statuses(self.allocation.as_previous(), &model))
        })
    }
}

/// Reads the holders from the state file; without a file there are none.
pub fn holders(state: Option<&Path>) -> Result<PreviousAssignments, InputError> {
    match state {
        Some(path) => assignments::load(path)?.ok_or_else(|| InputError::NoState(path.to_owned())),
        None => Ok(PreviousAssignments::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use vipmux_testing::names::service_name;

    use super::*;

    /// Many Services whose port is `port`.
    fn services(port: u16) -> ManifestAllocation {
        let directory = tempfile::tempdir().unwrap();
        let mut text = String::from(
            "{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: lan}, spec: {addresses: [192.0.2.0/24]}}\n",
        );
        for number in 0..120 {
            let metadata = format!("{{name: s{number:03}, namespace: shop}}");
            let spec = format!("{{type: LoadBalancer, ports: [{{port: {port}}}]}}");
            writeln!(text, "---\n{{apiVersion: v1, kind: Service, metadata: {metadata}, spec: {spec}}}").unwrap();
        }
        std::fs::write(directory.path().join("all.yaml"), text).unwrap();
        let paths = [directory.path().to_owned()];
        ManifestAllocation::read(&paths, &PreviousAssignments::new(), &IngestOptions::default()).unwrap()
    }

    #[test]
    fn the_changes_of_the_first_hundred_services_by_name_are_tried_alone() {
        let (before, after) = (services(80), services(81));
        let has_changed = |allocation: &Allocation, number: usize| {
            let assignment = &allocation.assignments[&service_name(format!("s{number:03}"))];
            assignment.ports.iter().any(|port| port.to_string() == "81/TCP")
        };
        let changed: Vec<Vec<_>> = before
            .steps_to(&after)
            .map(|step| (0..120).filter(|number| has_changed(&step, *number)).collect())
            .collect();
        assert_eq!(changed, (0..100).map(|number| vec![number]).collect::<Vec<_>>());
    }
}
