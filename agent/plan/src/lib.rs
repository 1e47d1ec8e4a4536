//! Plans the writes that lead from the observed to the desired state of the kernel's maps.
//!
//! [`plan()`] compares [`Desired`] with [`Observed`], the mirror of the maps, and returns
//! [`Step`]s. The caller executes them and reports each to the mirror with [`Observed::record`].
//! After a failure in the middle, the next plan starts from what the kernel really holds.
//!
//! # Order
//!
//! No packet ever sees a mixture of the old and the new state:
//!
//! - Entries that packets may read are never changed, except where any single write is safe: a
//!   backend's flags, a node's MACs and epoch, a VIP's flags.
//! - New tables, backends and Service slots go to free places. One step switches over: it writes `SERVICES`,
//!   and the copy of the entry in `SERVICE_INDEX`.
//! - Old places rest for [`REST`] before they are used again.
//!
//! # Modules
//!
//! Each uses only the ones above it:
//!
//! | modules | contents |
//! | --- | --- |
//! | `rest`, `capacity`, `error`, `step` | the steps, and why some are missing |
//! | `arena`, `index_pool`, `endpoints`, `sources` | free and used places of one kind |
//! | `entries`, `mirror` | the entries of all maps, as read and as remembered |
//! | `reachability`, `service_backends`, `reached`, `observed` | the mirror, and the last reached desired state |
//! | `nodes`, `vips`, `backends`, `services` | the steps for one map or a few each |
//! | `differences` | the comparison of maps and mirror for the self-check |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

mod arena;
mod backends;
mod capacity;
mod differences;
mod endpoints;
mod entries;
mod error;
mod index_pool;
mod mirror;
mod nodes;
mod observed;
mod reachability;
mod reached;
mod rest;
mod service_backends;
mod services;
mod sources;
mod step;
mod vips;

use std::time::Duration;

use vipmux_common::abi;

use self::{backends::BackendPlanner, nodes::NodeSteps, services::ServiceSteps, vips::VipSteps};
pub use self::{
    capacity::{Capacities, CapacityMap, CapacityRefusal, Shortage, Subject},
    differences::EntryDifference,
    entries::MapEntries,
    error::PlanError,
    observed::Observed,
    rest::REST,
    service_backends::ServiceBackends,
    step::{Plan, Step},
};
use vipmux_model::desired::Desired;

/// Returns the steps from `observed` to `desired`, at the monotonic time `now`: none if both agree.
///
/// The plan looks at all port claims and all of `observed`. If that state was
/// [reached](Observed::mark_reached) and nothing was done to it since, the plan looks only at
/// nodes, VIPs and the port claims that differ.
///
/// # Errors
/// Those of [`PlanError`]. A full map is no error: what fits is served, the rest is in
/// [`Plan::refused`].
pub fn plan(desired: &Desired, observed: &Observed, now: Duration) -> Result<Plan, PlanError> {
    let maps = &observed.maps;
    let mut refused = Vec::new();
    let mut nodes = NodeSteps::plan(desired, maps, now, &mut refused);
    let vips = VipSteps::plan(desired, maps, &mut refused)?;
    let exact = observed.is_at_reached_state() && refused.is_empty();
    let changes = observed.reached.changes(desired, &nodes.indices, exact);
    let mut planner = BackendPlanner::new(observed, &nodes.indices, desired, changes.as_deref(), now)?;
    let services =
        ServiceSteps::plan(desired, observed, &vips.ids, changes.as_deref(), &mut planner, now, &mut refused)?;
    let first = planner.generation();
    let backends = planner.finish();
    if let Some(referred) = &backends.nodes {
        nodes.release(maps, referred);
    }
    let next = match (services.after_sources, backends.generation.or(services.generation)) {
        (Some(after), _) => after,
        (None, Some(generation)) => generation.checked_add(1).ok_or(PlanError::GenerationsExhausted)?,
        (None, None) => first,
    };
    let next = nodes.change_epochs(maps, &backends.stale_epochs, next)?;

    let config = abi::Config {
        next_vip: vips.next_id,
        // This plan uses them up, even if it fails in the middle.
        next_generation: if next == first { maps.config.next_generation } else { next },
        handover: nodes::handover_macs(desired, &desired.local).first().copied().unwrap_or_default(),
        ..maps.config
    };
    let mut steps = Vec::new();
    steps.extend((config != maps.config).then_some(Step::Config(config)));
    let stages = [
        nodes.arrivals,
        // Withdrawals come first, and make room in the hash maps: a VIP goes before its Services.
        vips.withdrawals,
        services.removals,
        // Before any change of an existing backend: one that takes new flows again may also have
        // become local.
        nodes.endings,
        backends.arrivals,
        backends.tables,
        services.new_slots,
        services.switches,
        // A VIP appears after its Services.
        vips.announcements,
        services.superseded,
        services.retired_slots,
        // No table in use leads to these any more.
        backends.drained,
        backends.departures,
        nodes.beginnings,
        nodes.departures,
    ];
    steps.extend(stages.into_iter().flatten());
    Ok(Plan { steps, refused, unreachable: services.unreachable })
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
