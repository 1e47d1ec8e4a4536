//! Computes the desired state of the data plane for each port claim.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::OrdMap;

use crate::{
    Model, PortClaim, ServiceName,
    desired::{DesiredBackend, DesiredService, Treatment},
    health::{self, Health},
    port::Port,
    prefix::Prefix,
};

/// Returns the desired state of each claim, with this health of its backends.
///
/// Claims of Services that the model does not have, or that have no such port, are left out.
/// `before` is an earlier result: everything that stays is kept, so the difference is cheap to see.
/// Otherwise equal sets of backends, and of source ranges, are one allocation.
pub fn desired_services(
    model: &Model,
    claims: &BTreeMap<PortClaim, ServiceName>,
    health: &Health,
    before: &OrdMap<PortClaim, DesiredService>,
) -> OrdMap<PortClaim, DesiredService> {
    let mut sets: BTreeSet<Arc<BTreeSet<DesiredBackend>>> = BTreeSet::new();
    let mut sources: BTreeSet<Arc<BTreeSet<Prefix>>> = BTreeSet::new();
    let mut desired = before.clone();
    for (claim, owner) in claims {
        let Some(mut service) = desired_service(model, claim, owner, health) else {
            desired.remove(claim);
            continue;
        };
        if before.get(claim) == Some(&service) {
            continue;
        }
        service.backends = shared(&mut sets, service.backends);
        service.treatment.sources = service.treatment.sources.map(|list| shared(&mut sources, list));
        desired.insert(*claim, service);
    }
    for claim in before.keys().filter(|claim| !claims.contains_key(claim)) {
        desired.remove(claim);
    }
    desired
}

/// Returns the shared allocation of this set.
fn shared<T: Ord>(known: &mut BTreeSet<Arc<BTreeSet<T>>>, set: Arc<BTreeSet<T>>) -> Arc<BTreeSet<T>> {
    if let Some(equal) = known.get(&set) {
        return Arc::clone(equal);
    }
    known.insert(Arc::clone(&set));
    set
}

/// Returns the desired state of a claim; `None` if the model does not have the Service, or the
/// Service has no such port.
pub fn desired_service(
    model: &Model,
    claim: &PortClaim,
    owner: &ServiceName,
    health: &Health,
) -> Option<DesiredService> {
    let port = Port { number: claim.port, protocol: claim.protocol };
    let service = model.services.get(owner)?;
    let port_name = service.ports.get(&port)?;
    let backends = model.endpoints.backends(owner, port_name, claim.protocol, claim.vip.family());
    let backends = health::judge(model, claim, owner, health, backends);
    let treatment = Treatment {
        sources: service.policy.sources_of(claim.vip.family()).map(Arc::new),
        affinity: service.policy.affinity,
        idle: service.idle.of(claim.protocol),
        direct: service.policy.direct,
        kernel: service.policy.kernel,
    };
    Some(DesiredService { owner: owner.clone(), backends: Arc::new(backends), treatment })
}
