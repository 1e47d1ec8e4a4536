//! Gives new tables of backends their ranges in `TABLES`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    arena::{FreeRanges, TableMembers, TableRange},
    capacity::Shortage,
    mirror::MapMirror,
    step::Step,
};
use vipmux_model::hashing::{Endpoint, Hashing};

/// The ranges of existing tables, and of those that are new in this plan.
pub(super) struct TablePlaces<'a> {
    maps: &'a MapMirror,
    hashing: Hashing,
    now: Duration,
    /// Computed when the first table needs a place.
    free_ranges: Option<FreeRanges>,
    by_members: BTreeMap<TableMembers, TableRange>,
    steps: Vec<Step>,
}

impl<'a> TablePlaces<'a> {
    pub(super) fn new(maps: &'a MapMirror, hashing: Hashing, now: Duration) -> Self {
        Self { maps, hashing, now, free_ranges: None, by_members: BTreeMap::new(), steps: Vec::new() }
    }

    /// Returns the range of the table with these members, if there is one.
    pub(super) fn find(&self, members: &TableMembers) -> Option<TableRange> {
        let length = self.hashing.length(members.len());
        self.maps.tables.find(members, length).or_else(|| self.by_members.get(members).copied())
    }

    /// Takes free ranges for tables with these members: for all of them or for none.
    pub(super) fn make_room(&mut self, tables: &[&TableMembers]) -> Result<Vec<TableRange>, Shortage> {
        if tables.is_empty() {
            return Ok(Vec::new());
        }
        let lengths: Vec<_> = tables.iter().map(|members| self.hashing.length(members.len())).collect();
        self.free_ranges.get_or_insert_with(|| self.maps.tables.free_ranges(self.now)).take_all(&lengths)
    }

    /// Adds a new table in a range that was taken for it.
    pub(super) fn add(
        &mut self,
        members: &TableMembers,
        range: TableRange,
        endpoint: impl Fn(u32) -> Option<Endpoint>,
    ) {
        let endpoints = members.iter().filter_map(|&index| Some((endpoint(index)?, index)));
        self.steps.push(Step::Table(range.offset, self.hashing.table(endpoints).into()));
        self.by_members.insert(Arc::clone(members), range);
    }

    /// Returns the steps that write the new tables.
    pub(super) fn into_steps(self) -> Vec<Step> {
        self.steps
    }
}
