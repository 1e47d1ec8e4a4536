//! What to say when pools are full (rule 11).

use crate::{
    allocate::placement::Placement,
    model::{
        Vip,
        pool::{Pool, PoolSharing},
        reason::{Reason, Refusal},
        request::{ByAddress, Party, Sharing},
        service::Service,
    },
};

/// How many addresses are looked at for one that a sharing key would open: advice must not cost more than allocating.
const LOOKED_AT: usize = 64;

/// Says which pools are full, how many addresses they have, and whether a sharing key would have let the Service fit.
pub(super) fn refusal(placement: &Placement<'_>, service: &Service, full: &[&Pool]) -> Refusal {
    let pools: Vec<String> = full.iter().map(|pool| describe(placement, pool)).collect();
    let message = format!("{}; {}", pools.join("; "), advice(placement, service, full));
    Refusal::new(Reason::PoolExhausted, message)
}

fn describe(placement: &Placement<'_>, pool: &Pool) -> String {
    let name = &pool.name;
    let reserved = placement.model.reserved.keys().filter(|address| pool.contains(Vip(**address))).count();
    let note =
        if reserved == 0 { String::new() } else { format!(" ({reserved} of them reserved for nodes and the like)") };
    match pool.capacity_v4() {
        0 => format!("pool {name} has no IPv4 addresses"),
        1 => format!("pool {name} is full: its one address is in use{note}"),
        capacity => format!("pool {name} is full: all {capacity} addresses are in use{note}"),
    }
}

fn advice(placement: &Placement<'_>, service: &Service, full: &[&Pool]) -> String {
    let ranges = full.iter().flat_map(|pool| pool.ranges());
    let mut occupied = ranges
        .flat_map(|range| placement.occupancy.between(Vip::from_number(range.first()), Vip::from_number(range.last())));
    let mut with_consent = None;
    for (vip, tenancy) in occupied.by_ref().take(LOOKED_AT) {
        let sharing = placement.sharing_on(vip);
        if sharing == PoolSharing::None || tenancy.clash(service).is_some() {
            continue;
        }
        for (theirs, holder) in tenancy.sharings() {
            let Some(key) = &theirs.key else { continue };
            let adopted = Sharing { key: Some(key.clone()), by_address: ByAddress::Never };
            let party = Party { namespace: &service.name.namespace, sharing: &adopted };
            if tenancy.mismatch(party, sharing).is_none() {
                return format!("with the sharing key {} it would fit on {vip}, beside {holder}", key.shown());
            }
        }
        with_consent = with_consent.or_else(|| Some((vip, tenancy.tenants().first()?)));
    }
    match with_consent {
        Some((vip, holder)) => format!("with a sharing key in common with {holder} it would fit on {vip}"),
        None if occupied.next().is_some() => {
            format!("no sharing key would let it fit on the first {LOOKED_AT} of them")
        }
        None => "no sharing key would let it fit".to_owned(),
    }
}
