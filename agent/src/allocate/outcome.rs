//! What is told of a Service that got addresses. It follows from the result alone, not from the way to it: another run tells
//! the same.

use std::iter;

use super::{
    Assignment,
    occupancy::{Part, Tenancy},
    placement::{Given, Placement, conflict},
};
use crate::model::{Model, Vip, reason::Reason, service::Service};

/// What the Service, or who stands in for it, got. `known`: so are the terms on which it holds that.
pub(super) fn assignment(placement: &Placement<'_>, service: &Service, given: &Given, known: bool) -> Assignment {
    let mut parts = Vec::new();
    let mut warnings: Vec<String> = split_group(placement, service, given).into_iter().collect();
    let mut reason = Reason::Allocated;
    for &vip in &given.addresses {
        let pool = placement.pool_of(vip).map(|pool| pool.name.as_str());
        let from = pool.map_or_else(|| vip.to_string(), |pool| format!("{vip} from pool {pool}"));
        warnings.extend(adrift(placement.model, service, vip));
        warnings.extend(placement.model.silence(vip).map(|why| format!("{vip} is announced by nobody: {why}")));
        let Some(tenancy) = placement.books.occupancy.on(vip) else { continue };
        let others = others(tenancy, service);
        if others.is_empty() {
            parts.push(from);
        } else {
            reason = Reason::Shared;
            parts.push(format!("{from}, shared with {others}"));
        }
        if let Some((other, why)) = placement.mismatch(vip, tenancy, service) {
            let other = &other.name;
            warnings.push(format!(
                "{vip} is shared with {other}, and newly the two might not: {why}; it is kept until one of them changes or goes"
            ));
        }
    }
    if let Some(disagreement) = placement.differing_holder(service) {
        warnings.push(format!("{disagreement}; both keep what they hold, and others who differ get nothing"));
    }
    if let Some(fault) = &service.fault {
        reason = fault.reason;
        warnings.push(format!("{}; it keeps what it holds until that is mended", fault.message));
    }
    Assignment {
        addresses: given.addresses.clone(),
        ports: service.claims().collect(),
        terms: known.then(|| given.tenant.terms.clone()),
        reason,
        message: parts.join("; "),
        warnings,
    }
}

/// What is told of an address that its pool does not have any more, or whose pool is gone: a Service keeps what it holds,
/// whatever becomes of the pools.
fn adrift(model: &Model, service: &Service, vip: Vip) -> Option<String> {
    let named = service.request.pool.name().filter(|_| !service.request.additional.contains(&vip));
    let pool = named.map(|name| model.pool(name).ok_or_else(|| model.no_pool(name))).transpose();
    let (what, remedy) = match (pool, model.pool_of(vip)) {
        (Ok(Some(pool)), Some(_)) if pool.contains(vip) => return None,
        (Ok(None), Some(_)) => return None,
        (Ok(_), None) => (format!("{vip} is in no pool any more"), "put it into a pool again"),
        (Ok(Some(pool)), Some(_)) => {
            (format!("{vip} is not in pool {} any more", pool.name), "put it into that pool again")
        }
        (Err(missing), _) => (missing, "give a pool that name or alias"),
    };
    Some(format!(
        "{what}; {vip} is kept until the Service changes or goes: {remedy}, or let the Service ask for another pool or address"
    ))
}

/// Up to three of the others on the address, and how many more there are.
fn others(tenancy: &Tenancy, service: &Service) -> String {
    /// More names than this help nobody.
    const NAMED: usize = 3;
    let others = tenancy.tenants().len().saturating_sub(1);
    let named = tenancy.tenants().iter().map(|tenant| &tenant.name).filter(|name| **name != service.name).take(NAMED);
    let named = named.map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match others.saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Why the Service is not on lower addresses of its group (rule 8).
fn split_group(placement: &Placement<'_>, service: &Service, given: &Given) -> Option<String> {
    if !service.request.addresses.is_empty() {
        return None;
    }
    let occupancy = &placement.books.occupancy;
    // Lower pairs are where most of those who hold two did not fit.
    let pair = given.own().next().filter(|_| given.own().count() > 1).map(|v4| (Part::Pairs, v4));
    let each = given.own().map(|own| (Part::Of(own.family()), own));
    pair.into_iter().chain(each).find_map(|(part, own)| {
        let lower = occupancy.group(part, service).map(|(vip, _)| vip).take_while(|vip| *vip < own);
        let partners = |vip| occupancy.partners(vip).filter(|_| part == Part::Pairs);
        lower.flat_map(|vip| iter::once(vip).chain(partners(vip))).find_map(|vip| {
            let tenancy = occupancy.on(vip)?;
            let clash = tenancy.clash(service)?;
            let of_the_group = placement.mismatch(vip, tenancy, service).is_none();
            of_the_group.then(|| format!("{}, so the group has another address", conflict(vip, service, clash).message))
        })
    })
}
