//! Who gets which address: the rules of sharing, as one pure function.
//!
//! `(Services, pools, holders) -> (assignments, refusals)`. No clock, no I/O, no hash order, and the input's order never
//! matters; given its own result as the holders, it returns that result again.

mod exhaustion;
pub mod holders;
mod occupancy;
mod placement;

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use self::{
    holders::{Held, Holders, Terms},
    occupancy::Part,
    placement::{Placement, conflict},
};
use crate::model::{
    Model, PortClaim, ServiceName, Vip,
    name::Port,
    reason::{Reason, Refusal},
    request::SharingKey,
    service::Service,
};

/// Who gets what, and who does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Services with addresses.
    pub assignments: BTreeMap<ServiceName, Assignment>,
    /// Services that wait.
    pub refusals: BTreeMap<ServiceName, Refusal>,
    /// What is kept for Services that cannot be read now: nothing is served there, and nobody else gets it.
    pub withheld: Holders,
}

/// What a Service got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Its addresses; at least one.
    pub addresses: BTreeSet<Vip>,
    /// Its ports, claimed on each of the addresses.
    pub ports: BTreeSet<Port>,
    /// Its sharing key.
    pub sharing_key: Option<SharingKey>,
    /// The pool that it asks for by name.
    pub pool: Option<String>,
    /// [`Reason::Allocated`] or [`Reason::Shared`]; or why it did not get what it asks for, and keeps what it had.
    pub reason: Reason,
    /// For people.
    pub message: String,
    /// What its owner should know although it got an address.
    pub warnings: Vec<String>,
}

impl Assignment {
    /// Whether it is what the Service asks for.
    pub fn is_as_asked(&self) -> bool {
        matches!(self.reason, Reason::Allocated | Reason::Shared)
    }
}

impl Allocation {
    /// Whether all Services got what they ask for.
    pub fn is_complete(&self) -> bool {
        self.refusals.is_empty() && self.assignments.values().all(Assignment::is_as_asked)
    }

    /// The same as holders, for the next allocation.
    pub fn holders(&self) -> Holders {
        let held = |a: &Assignment| Held {
            addresses: a.addresses.clone(),
            terms: Some(Terms { ports: a.ports.clone(), sharing_key: a.sharing_key.clone(), pool: a.pool.clone() }),
        };
        let assigned = self.assignments.iter().map(|(name, assignment)| (name.clone(), held(assignment)));
        assigned.chain(self.withheld.clone()).collect()
    }

    /// The owner of each claim.
    pub fn claims(&self) -> BTreeMap<PortClaim, ServiceName> {
        let mut claims = BTreeMap::new();
        for (name, assignment) in &self.assignments {
            for &vip in &assignment.addresses {
                let claim = |port: &Port| PortClaim { vip, protocol: port.protocol, port: port.number };
                claims.extend(assignment.ports.iter().map(|port| (claim(port), name.clone())));
            }
        }
        claims
    }

    /// The Services on each address.
    pub fn vips(&self) -> BTreeMap<Vip, BTreeSet<&ServiceName>> {
        let mut vips: BTreeMap<Vip, BTreeSet<&ServiceName>> = BTreeMap::new();
        for (name, assignment) in &self.assignments {
            for vip in &assignment.addresses {
                vips.entry(*vip).or_default().insert(name);
            }
        }
        vips
    }
}

/// Decides who gets what. `holders` are those of the last allocation; holders that the model does not know are
/// ignored, if it is complete.
pub fn allocate(model: &Model, holders: &Holders) -> Allocation {
    let stand_ins = holders::stand_ins(model, holders);
    let mut placement = Placement::new(model);
    placement.run(&stand_ins, holders);
    let assignment = |(name, addresses): (&&ServiceName, &BTreeSet<Vip>)| {
        let service = model.services.get(*name)?;
        Some(((*name).clone(), explain(&placement, stand_ins.get(*name).unwrap_or(service), addresses)))
    };
    let unread = |name: &ServiceName| !model.services.contains_key(name);
    let refused = placement.refused.iter().map(|(name, refusal)| (*name, refusal)).filter(|(name, _)| !unread(name));
    let withheld = placement.placed.keys().filter(|name| unread(name));
    Allocation {
        assignments: placement.placed.iter().filter_map(assignment).collect(),
        refusals: refused.chain(&model.refused).map(|(name, refusal)| (name.clone(), refusal.clone())).collect(),
        withheld: withheld.filter_map(|name| Some(((*name).clone(), holders.get(*name)?.clone()))).collect(),
    }
}

/// Reason and message follow from the result alone, not from the way to it: another run shows the same.
fn explain(placement: &Placement<'_>, service: &Service, addresses: &BTreeSet<Vip>) -> Assignment {
    let mut parts = Vec::new();
    let mut warnings: Vec<String> = split_group(placement, service, addresses).into_iter().collect();
    let mut reason = Reason::Allocated;
    for vip in addresses {
        let pool = placement.pool_of(*vip).map(|pool| pool.name.as_str());
        let from = pool.map_or_else(|| vip.to_string(), |pool| format!("{vip} from pool {pool}"));
        warnings.extend(adrift(placement.model, service, *vip));
        warnings.extend(placement.model.silence(*vip).map(|why| format!("{vip} is announced by nobody: {why}")));
        let others = others(placement, service, *vip);
        if others.is_empty() {
            parts.push(from);
        } else {
            reason = Reason::Shared;
            parts.push(format!("{from}, shared with {others}"));
        }
    }
    if let Some(fault) = &service.fault {
        reason = fault.reason;
        warnings.push(format!("{}; it keeps what it holds until that is mended", fault.message));
    }
    Assignment {
        addresses: addresses.clone(),
        ports: service.claims().collect(),
        sharing_key: service.request.sharing.key.clone(),
        pool: service.request.pool.name().map(str::to_owned),
        reason,
        message: parts.join("; "),
        warnings,
    }
}

/// What is told of an address that its pool does not have any more, or whose pool is gone: a Service keeps what it holds,
/// whatever becomes of the pools.
fn adrift(model: &Model, service: &Service, vip: Vip) -> Option<String> {
    let named = service.request.pool.name();
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
fn others(placement: &Placement<'_>, service: &Service, vip: Vip) -> String {
    /// More names than this help nobody.
    const NAMED: usize = 3;
    let Some(tenancy) = placement.occupancy.on(vip) else { return String::new() };
    let others = tenancy.tenants().len().saturating_sub(1);
    let named = tenancy.tenants().iter().filter(|name| ***name != service.name).take(NAMED);
    let named = named.map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match others.saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Why the Service is not on lower addresses of its group (rule 8).
fn split_group(placement: &Placement<'_>, service: &Service, addresses: &BTreeSet<Vip>) -> Option<String> {
    if !service.request.addresses.is_empty() {
        return None;
    }
    // Lower pairs are where most of those who hold two did not fit.
    let pair = addresses.first().filter(|_| addresses.len() > 1).map(|v4| (Part::Pairs, v4));
    let each = addresses.iter().map(|own| (Part::Of(own.family()), own));
    pair.into_iter().chain(each).find_map(|(part, own)| {
        let lower = placement.occupancy.group(part, service).map(|(vip, _)| vip).take_while(|vip| vip < own);
        let partners = |vip| placement.occupancy.partners(vip).filter(|_| part == Part::Pairs);
        lower.flat_map(|vip| iter::once(vip).chain(partners(vip))).find_map(|vip| {
            let tenancy = placement.occupancy.on(vip)?;
            let (port, holder) = tenancy.clash(service)?;
            let of_the_group = placement.mismatch(vip, tenancy, service).is_none();
            of_the_group.then(|| format!("{}, so the group has another address", conflict(vip, port, holder).message))
        })
    })
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
