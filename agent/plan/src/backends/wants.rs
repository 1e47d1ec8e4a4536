//! Collects the purposes that backends are wanted for.

use std::collections::BTreeMap;

use crate::endpoints::Resolution;

/// The purposes that a backend is wanted for in this plan.
#[expect(clippy::struct_excessive_bools, reason = "any of them goes with any other")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Want {
    /// It is in a table of this plan.
    pub(super) ready: bool,
    /// It keeps its flows.
    pub(super) draining: bool,
    /// It fails its health probe.
    pub(super) failing: bool,
    /// Flows of datagrams leave it.
    pub(super) stopping: bool,
    /// A table that could not be replaced leads to it.
    pub(super) kept: bool,
}

/// The purposes of backends, by index.
#[derive(Default)]
pub(super) struct Wants(BTreeMap<u32, Want>);

impl Wants {
    /// Returns the purposes of a backend; none if nothing wants it.
    pub(super) fn of(&self, index: u32) -> Want {
        self.0.get(&index).copied().unwrap_or_default()
    }

    /// Returns the backends that are wanted, ascending.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// Returns the purposes of a backend, to add one.
    pub(super) fn want(&mut self, index: u32) -> &mut Want {
        self.0.entry(index).or_default()
    }

    /// Adds the purposes of all endpoints of a set.
    pub(super) fn want_all(&mut self, resolution: &Resolution) {
        for &index in resolution.ready() {
            self.want(index).ready = true;
        }
        for &index in &*resolution.draining {
            self.want(index).draining = true;
        }
        for &index in &*resolution.failing {
            self.want(index).failing = true;
        }
        for &index in &*resolution.stopping {
            self.want(index).stopping = true;
        }
    }
}
