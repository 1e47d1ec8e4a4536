//! Takes the addresses of Services from their statuses: in a cluster the allocator or another
//! controller assigns them.

use crate::{
    allocation::Allocation,
    allocation_run::AllocationRun,
    allocation_state::AllocationState,
    outcome::assignment,
    previous::{from_status, judged_request},
};
use vipmux_model::{
    Model, Vip,
    reason::{Reason, Refusal},
    service::Service,
};

/// The writer of the statuses that are trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatusAuthor {
    /// vipmux's allocator. It assigns addresses of pools.
    #[default]
    Allocator,
    /// Anyone (`--allocator off`), with any addresses.
    Anyone,
}

/// Returns the allocation that the statuses show.
///
/// If two statuses show the same port claim, the Service that is earlier by rule 7 has it. So all
/// agents decide alike, without a message. Services that were edited since they got their
/// addresses come last, and are served without the ports that others hold. So an edit takes nothing
/// from anybody (rule 9) before the allocator has judged it.
///
/// `refusal_of` returns the reason in a Service's status why it has nothing.
pub fn allocation_from_statuses(
    model: &Model,
    author: StatusAuthor,
    refusal_of: impl Fn(&Service) -> Option<Refusal>,
) -> Allocation {
    let is_edited = |service: &Service| {
        let judged = judged_request(&service.name, model);
        service.fault.is_none() && judged.is_some_and(|judged| judged.is_exceeded_by(service))
    };
    let mut services: Vec<_> = model.services.values().map(|service| (is_edited(service), service)).collect();
    services
        .sort_by(|(a_is_edited, a), (b_is_edited, b)| (a_is_edited, a.seniority()).cmp(&(b_is_edited, b.seniority())));
    let mut state = AllocationState::new(model);
    let mut run = AllocationRun::new(model, &mut state);
    let mut allocation = Allocation { refusals: model.refused.clone(), ..Allocation::default() };
    for (is_edited, service) in &services {
        let shown = match author {
            StatusAuthor::Allocator => from_status(&service.name, model).map(|held| held.addresses).unwrap_or_default(),
            StatusAuthor::Anyone => service.status.addresses.clone(),
        };
        let Err(refusal) = run.accept_shown(service, shown.clone()) else { continue };
        allocation.refusals.insert(service.name.clone(), refusal);
        if *is_edited && !run.state.placed.contains_key(&service.name) {
            // The allocator may wait for the rest of the change (rule 9). Meanwhile the other ports are served.
            let mut rest = (*service).clone();
            let occupied = |vip: &Vip| run.state.occupancy.on(*vip);
            rest.ports.retain(|port, _| !shown.iter().filter_map(occupied).any(|it| it.holds(*port, &service.name)));
            if !rest.ports.is_empty() {
                let _ = run.accept_shown(&rest, shown);
            }
        }
    }
    for (_, service) in services {
        match run.state.placed.get(&service.name) {
            Some(given) => {
                let mut assignment = assignment(&run, service, given, true);
                assignment.ports.clone_from(&given.occupant.snapshot.ports);
                // An address that its status shows and that it does not get.
                let lost = allocation.refusals.remove(&service.name).map(|refusal| refusal.message);
                assignment.warnings.extend(lost);
                allocation.assignments.insert(service.name.clone(), assignment);
            }
            None if !allocation.refusals.contains_key(&service.name) => {
                let refusal = refusal_of(service)
                    .or_else(|| service.fault.clone())
                    .unwrap_or_else(|| unallocated(service, author));
                allocation.refusals.insert(service.name.clone(), refusal);
            }
            None => {}
        }
    }
    allocation
}

fn unallocated(service: &Service, author: StatusAuthor) -> Refusal {
    let shown: Vec<_> = service.status.addresses.iter().map(ToString::to_string).collect();
    let message = match (author, shown.is_empty()) {
        (StatusAuthor::Allocator, true) => "no allocator has given it an address yet".to_owned(),
        (StatusAuthor::Anyone, true) => "no controller has given it an address yet".to_owned(),
        (_, false) => format!("its status shows {}, which is in no pool", shown.join(", ")),
    };
    Refusal::new(Reason::Unallocated, message)
}

#[cfg(test)]
mod tests;
