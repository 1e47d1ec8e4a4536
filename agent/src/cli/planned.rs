//! What manifests come to, computed without an agent.

use std::path::{Path, PathBuf};

use crate::{
    allocate::{
        Allocation, allocate,
        holders::{Holders, with_statuses},
    },
    assignments::{self, AssignmentsError},
    model::{Model, Options, tag::ServiceTag},
    source::{
        Objects,
        manifests::{self, ReadError},
    },
};

/// The input cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The manifests.
    #[error("cannot read the manifests")]
    Read(#[from] ReadError),
    /// The state file.
    #[error("cannot use --state")]
    State(#[from] AssignmentsError),
    /// The state file is not there.
    #[error("cannot use --state: {} does not exist", .0.display())]
    NoState(PathBuf),
}

/// What becomes of some manifests.
pub(crate) struct Planned {
    pub(crate) objects: Objects,
    pub(crate) model: Model,
    pub(crate) allocation: Allocation,
}

impl Planned {
    /// `held`: who holds what; where that says nothing, the Services' statuses count.
    pub(crate) fn read(paths: &[PathBuf], held: Holders, tags: &[ServiceTag]) -> Result<Self, InputError> {
        let objects = manifests::read(paths)?;
        let options = Options { service_tags: tags.iter().cloned().collect(), ..Options::default() };
        let model = Model::ingest(&objects, &options);
        let allocation = allocate(&model, &with_statuses(held, &model));
        Ok(Self { objects, model, allocation })
    }
}

/// Who holds what, by the state file that was named.
pub(super) fn holders(state: Option<&Path>) -> Result<Holders, InputError> {
    match state {
        Some(path) => assignments::load(path)?.ok_or_else(|| InputError::NoState(path.to_owned())),
        None => Ok(Holders::new()),
    }
}
