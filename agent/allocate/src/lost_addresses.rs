//! Finds the addresses that Services' statuses show and that Services do not keep.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    allocation::Allocation,
    allocation_run::AllocationRun,
    allocation_state::AllocationState,
    status::{ingress, list},
};
use vipmux_model::{
    Model, PortClaim, ServiceName, Vip, objects::Objects, port::Port, published_status::PublishedStatus,
    service::Service,
};

/// Returns, for each Service, one message for each address that its status shows and that it does not keep.
pub fn lost_addresses(objects: &Objects, model: &Model, allocation: &Allocation) -> BTreeMap<ServiceName, Vec<String>> {
    let mut state = AllocationState::new(model);
    let run = AllocationRun::new(model, &mut state);
    let claims = allocation.claims();
    let lost = model.services.iter().filter_map(|(name, service)| {
        let PublishedStatus { given, foreign, .. } = service.status;
        // An allocator of vipmux's has taken them away already.
        let is_over = given == Some(false) && !foreign;
        let object = objects.services.get(name).filter(|_| !is_over)?;
        let kept = allocation.holding(name).map(|(addresses, _)| addresses);
        let messages: Vec<_> = ingress(object)
            .iter()
            .filter_map(|entry| {
                Some((Vip::new(entry.ip.as_deref()?.parse::<IpAddr>().ok()?), entry.ip_mode.as_deref()))
            })
            .filter(|(vip, _)| kept.is_none_or(|kept| !kept.contains(vip)))
            .map(|(vip, mode)| {
                let why = if mode == Some("Proxy") {
                    "its ipMode is Proxy, so packets to it do not reach the nodes".to_owned()
                } else {
                    why_lost(vip, service, allocation, &claims, &run)
                };
                format!("it would lose {vip}, which its status shows: {why}")
            })
            .collect();
        (!messages.is_empty()).then(|| (name.clone(), messages))
    });
    lost.collect()
}

/// Returns why the Service does not keep the address. `claims`: the owner of each port claim.
fn why_lost(
    vip: Vip,
    service: &Service,
    allocation: &Allocation,
    claims: &BTreeMap<PortClaim, ServiceName>,
    run: &AllocationRun<'_>,
) -> String {
    let named = &service.request.addresses;
    if !named.is_empty() && !named.contains(&vip) {
        return format!("it asks for {}", list(named));
    }
    if let Some(what) = run.model.reservation(vip) {
        return format!("it is {what}");
    }
    if let Err(refusal) = run.pools.may_have(vip, service.request.pool.name(), service) {
        return refusal.message;
    }
    let claim = |port: Port| PortClaim { vip, protocol: port.protocol, port: port.number };
    if let Some((claim, holder)) = service.claims().find_map(|port| Some((claim(port), claims.get(&claim(port))?))) {
        return format!("{claim} is held by {holder}");
    }
    match (allocation.refusals.get(&service.name), allocation.assignments.get(&service.name)) {
        (Some(refusal), _) => refusal.message.clone(),
        (None, Some(given)) => format!("it gets one address of each family at most: {}", list(&given.addresses)),
        (None, None) => String::new(),
    }
}
