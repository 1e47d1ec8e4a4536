//! Mirrors the maps as this agent last wrote them, so that plans and checks need not read them.

use vipmux_common::abi::{self, Address};

use super::boottime;
use crate::serving::kernel_error::KernelError;
use vipmux_datapath::bpf::{
    jiffies,
    maps::{Maps, MapsError},
};
use vipmux_model::{ServiceName, desired::Desired};
use vipmux_plan as plan;
use vipmux_plan::{Capacities, EntryDifference, MapEntries, Observed, Plan, Step};

/// The maps, as last written. Each method that writes changes the maps and the mirror together.
pub(super) struct MapWriter {
    observed: Observed,
    /// Entries were corrected since the indices last had exactly those of their maps.
    corrected: bool,
    writes: u64,
}

impl MapWriter {
    /// Reads the maps, which an earlier agent may have filled.
    pub(super) fn read(maps: &Maps) -> Result<Self, MapsError> {
        let observed = Observed::from_entries(Capacities::default(), entries(maps, maps.backends.len())?);
        Ok(Self { observed, corrected: false, writes: 0 })
    }

    /// Returns the maps that plans are about.
    pub(super) fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Returns the number of writes.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// Counts a write. A self-check that reads the kernel meanwhile has to read again.
    pub(super) fn count_write(&mut self) {
        self.writes += 1;
    }

    /// Plans the way to the desired state.
    pub(super) fn plan(&mut self, desired: &Desired) -> Result<Plan, KernelError> {
        let now = boottime()?;
        self.observed.forget_rested(now);
        Ok(plan::plan(desired, &self.observed, now)?)
    }

    /// Executes a step of a plan.
    pub(super) fn execute(&mut self, maps: &mut Maps, step: &Step) -> Result<(), KernelError> {
        self.count_write();
        maps.apply(step)?;
        self.observed.record(step, boottime()?);
        if step.is_removal() { self.note_removal(maps) } else { Ok(()) }
    }

    /// Notes the time of a removal for the programs: older flow records may be invalid.
    fn note_removal(&mut self, maps: &mut Maps) -> Result<(), KernelError> {
        let config = *self.observed.config();
        let removed = jiffies::now_low(config.hz).map_err(KernelError::Clock)?;
        if removed == config.removed {
            return Ok(());
        }
        let step = Step::Config(abi::Config { removed, ..config });
        maps.apply(&step)?;
        self.observed.record(&step, boottime()?);
        Ok(())
    }

    /// Ends a plan, all of whose steps were executed.
    pub(super) fn finish(&mut self, maps: &mut Maps, desired: &Desired, plan: &Plan) -> Result<(), MapsError> {
        if self.corrected || plan.steps.iter().any(|step| matches!(step, Step::Vip(_, None))) {
            self.count_write();
            maps.renew_vip_index(self.observed.vips())?;
        }
        if self.corrected {
            maps.renew_service_index(self.observed.services())?;
            self.corrected = false;
        }
        if plan.refused.is_empty() {
            self.observed.mark_reached(desired, plan);
        }
        Ok(())
    }

    /// Puts a difference into the mirror, so that the next plan repairs it.
    pub(super) fn correct(&mut self, maps: &mut Maps, difference: &EntryDifference) -> Result<(), KernelError> {
        self.count_write();
        self.corrected = true;
        let again = self.observed.correct(difference, boottime()?);
        again.map_or(Ok(()), |step| self.execute(maps, &step))
    }

    /// Takes over the value of a VIP that the programs changed.
    pub(super) fn refresh_vip(&mut self, address: Address, value: abi::VipValue) {
        self.count_write();
        self.observed.refresh_vip(address, value);
    }
}

/// Reads the maps that a plan starts from, and of `BACKENDS` the first indices.
pub(crate) fn entries(maps: &Maps, backends: u32) -> Result<MapEntries, MapsError> {
    let names = maps.read_node_names()?;
    let mut entries = MapEntries {
        config: maps.read_config()?,
        vips: maps.read_vips()?,
        services: maps.read_services()?,
        service_states: maps.read_service_states()?,
        backends: maps.read_backends_below(backends)?,
        nodes: maps.nodes.read()?,
        node_names: names.into_iter().map(|(index, label)| (index, label.to_string())).collect(),
        peers: maps.peers.read()?,
        source_ranges: maps.read_source_ranges()?,
        ..MapEntries::default()
    };
    for (slot, owner) in maps.read_service_names()? {
        let (namespace, name) = owner.parts();
        entries.service_names.insert(slot, ServiceName::new(namespace, name));
    }
    for (offset, length) in entries.table_ranges() {
        entries.tables.insert((offset, length), maps.read_table(offset, length)?);
    }
    Ok(entries)
}
