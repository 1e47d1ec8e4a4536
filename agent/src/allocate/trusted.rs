//! What the Services' statuses say is so: in a cluster somebody else gives addresses, the allocator or another controller.

use super::{
    Allocation,
    holders::by_status,
    outcome::assignment,
    placement::{Books, Placement},
};
use crate::model::{
    Model,
    reason::{Reason, Refusal},
    service::Service,
};

/// Whose statuses are trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// vipmux's allocator's: addresses of pools.
    #[default]
    Allocator,
    /// Whoever's (`--allocator off`): any addresses.
    Anybody,
}

/// Who has what by the statuses. Of two that show one port claim it is the earlier one's (rule 7), whoever looks: all agents
/// settle it alike, without a word. Those whose spec was changed since they got their addresses come last, so that an edit takes
/// nothing from anybody (rule 9) before the allocator has judged it. `told`: why a Service has nothing, as its status says.
pub fn trusted(model: &Model, trust: Trust, told: impl Fn(&Service) -> Option<Refusal>) -> Allocation {
    let mut services: Vec<&Service> = model.services.values().collect();
    services.sort_by(|a, b| (a.status.outdated, a.seniority()).cmp(&(b.status.outdated, b.seniority())));
    let mut books = Books::new(model);
    let mut placement = Placement::new(model, &mut books);
    let mut allocation = Allocation { refusals: model.refused.clone(), ..Allocation::default() };
    for service in &services {
        let shown = match trust {
            Trust::Allocator => by_status(&service.name, model).map(|held| held.addresses).unwrap_or_default(),
            Trust::Anybody => service.status.addresses.clone(),
        };
        if let Err(refusal) = placement.trust(service, shown) {
            allocation.refusals.insert(service.name.clone(), refusal);
        }
    }
    for service in services {
        match placement.books.placed.get(&service.name) {
            Some(given) => {
                let mut assignment = assignment(&placement, service, given, true);
                // What it does not get of what its status shows.
                let lost = allocation.refusals.remove(&service.name).map(|refusal| refusal.message);
                assignment.warnings.extend(lost);
                allocation.assignments.insert(service.name.clone(), assignment);
            }
            None if !allocation.refusals.contains_key(&service.name) => {
                let refusal =
                    told(service).or_else(|| service.fault.clone()).unwrap_or_else(|| unallocated(service, trust));
                allocation.refusals.insert(service.name.clone(), refusal);
            }
            None => {}
        }
    }
    allocation
}

fn unallocated(service: &Service, trust: Trust) -> Refusal {
    let shown: Vec<_> = service.status.addresses.iter().map(ToString::to_string).collect();
    let message = match (trust, shown.is_empty()) {
        (Trust::Allocator, true) => "no allocator has given it an address yet".to_owned(),
        (Trust::Anybody, true) => "no controller has given it an address yet".to_owned(),
        (_, false) => format!("its status shows {}, which is in no pool", shown.join(", ")),
    };
    Refusal::new(Reason::Unallocated, message)
}

#[cfg(test)]
mod tests;
