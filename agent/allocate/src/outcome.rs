//! Describes the outcome for a Service: its assignment with message and warnings.
//!
//! Everything follows from the result alone, not from how it came about. So another run returns the
//! same.

use crate::{
    allocation::Assignment,
    allocation_run::{AllocationRun, group_agreement::differing_holder},
    allocation_state::PlacedService,
    occupancy::Occupants,
};
use vipmux_model::{Model, Vip, reason::Reason, service::Service};

/// Returns the assignment of the Service, or of its placeholder. `known`: the request that it holds
/// the addresses for is known.
pub(super) fn assignment(run: &AllocationRun<'_>, service: &Service, given: &PlacedService, known: bool) -> Assignment {
    let mut parts = Vec::new();
    let mut warnings: Vec<String> = split_group(run, service, given).into_iter().collect();
    let mut reason = Reason::Allocated;
    for &vip in &given.addresses {
        let pool = run.pools.pool_of(vip).map(|pool| pool.name.as_str());
        let from = pool.map_or_else(|| vip.to_string(), |pool| format!("{vip} from pool {pool}"));
        warnings.extend(adrift(run.model, service, vip));
        warnings.extend(run.model.claim(vip).map(|what| {
            format!("{vip} is {what}, too; its holders keep it and nobody else gets it: give one of the two another")
        }));
        warnings.extend(run.model.silence(vip).map(|why| format!("{vip} is announced by nobody: {why}")));
        let Some(occupants) = run.state.occupancy.on(vip) else { continue };
        let others = others(occupants, service);
        if others.is_empty() {
            parts.push(from);
        } else {
            reason = Reason::Shared;
            parts.push(format!("{from}, shared with {others}"));
        }
        // Of a request that cannot be understood it is not known whether it allows that.
        let mismatch = run.mismatch(vip, occupants, service).map(|(other, why)| (&other.name, why));
        if let Some((other, why)) = mismatch.filter(|(other, _)| service.fault.is_none() && !run.is_faulty(other)) {
            warnings.push(format!(
                "{vip} is shared with {other}, although the two may not share it any more: {why}; it is kept until \
                 one of them changes or goes"
            ));
        }
    }
    if let Some(disagreement) = differing_holder(service, &run.state.occupancy) {
        warnings.push(format!("{disagreement}; both keep what they hold, and others who differ get nothing"));
    }
    if let Some(fault) = &service.fault {
        reason = fault.reason;
        warnings.push(format!("{}; it keeps what it holds until that is fixed", fault.message));
    }
    Assignment {
        addresses: given.addresses.clone(),
        ports: service.claims().collect(),
        snapshot: known.then(|| given.occupant.snapshot.clone()),
        reason,
        message: parts.join("; "),
        warnings,
    }
}

/// Returns the warning for an address that is no longer in its pool, or whose pool is gone. The
/// Service keeps it (rule 9).
fn adrift(model: &Model, service: &Service, vip: Vip) -> Option<String> {
    let named = service.request.pool.name().filter(|_| !service.request.additional.contains(&vip));
    let pool = named.map(|name| model.pool(name).ok_or_else(|| model.no_pool(name))).transpose();
    let (what, remedy) = match (pool, model.pool_of(vip)) {
        (Ok(Some(pool)), Some(_)) if pool.contains(vip) => return None,
        (Ok(None), Some(_)) => return None,
        // Pools may be created last.
        (Ok(_), None) if model.pools.is_empty() => {
            (format!("{vip} is in no pool, since there is none"), "create a pool that has it")
        }
        (Ok(_), None) => (format!("{vip} is in no pool any more"), "put it into a pool again"),
        (Ok(Some(pool)), Some(_)) => (format!("{vip} is not in pool {}", pool.name), "put it into that pool"),
        (Err(missing), _) => (missing, "give a pool that name or alias"),
    };
    Some(format!(
        "{what}; {vip} is kept until the Service changes or goes: {remedy}, or let the Service ask for another pool or address"
    ))
}

/// Returns up to three of the other Services on the address, and the number of the rest.
fn others(occupants: &Occupants, service: &Service) -> String {
    /// The maximum number of names. More of them help nobody.
    const NAMED: usize = 3;
    let others = occupants.all().len().saturating_sub(1);
    let named = occupants.all().iter().map(|occupant| &occupant.name).filter(|name| **name != service.name).take(NAMED);
    let named = named.map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match others.saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Returns the warning about a clash that gave the group another address (rule 8).
fn split_group(run: &AllocationRun<'_>, service: &Service, given: &PlacedService) -> Option<String> {
    let clash = given.occupant.snapshot.spill.then(|| run.group_clash(service, &given.own().collect(), false))??;
    Some(format!("{}, so the group has another address", clash.message))
}
