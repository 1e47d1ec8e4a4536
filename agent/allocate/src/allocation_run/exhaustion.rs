//! Refuses Services when pools are full (rule 11).

use super::AllocationRun;
use vipmux_model::{
    Family, Vip,
    pool::{Pool, PoolSharing},
    reason::{Reason, Refusal},
    request::{ByAddress, Sharer, Sharing},
    service::Service,
};

/// The number of addresses that are examined to find one that a sharing key would open. Advice must
/// not cost more than allocating.
const LOOKED_AT: usize = 64;

/// Returns the refusal: which pools are full, how many addresses they have, and whether a sharing
/// key would have let the Service fit.
///
/// The Service wants an address of each of `families`. Each pool of `full` lacks the families that
/// are named beside it.
pub(super) fn refusal(
    run: &AllocationRun<'_>,
    service: &Service,
    families: &[Family],
    full: &[(&Pool, Vec<Family>)],
) -> Refusal {
    let lacks = full.iter().flat_map(|(pool, lacking)| lacking.iter().map(move |family| (*pool, *family)));
    let lacks: Vec<String> = lacks.map(|(pool, family)| describe(run, pool, family)).collect();
    let both = if families.len() > 1 { "an address of each family is needed, from one pool: " } else { "" };
    let message = format!("{both}{}; {}", lacks.join("; "), advice(run, service, families, full));
    Refusal::new(Reason::PoolExhausted, message)
}

fn describe(run: &AllocationRun<'_>, pool: &Pool, family: Family) -> String {
    let name = &pool.name;
    let is_reserved = |vip: Vip| vip.family() == family && pool.contains(vip);
    let reserved = run
        .model
        .reserved
        .keys()
        .chain(run.model.claimed.keys())
        .filter(|address| is_reserved(Vip::new(**address)))
        .count();
    let note =
        if reserved == 0 { String::new() } else { format!(" ({reserved} of them reserved for nodes and the like)") };
    match pool.capacity(family) {
        0 => format!("pool {name} has no {family} addresses"),
        1 => format!("pool {name} is full: its one {family} address is in use{note}"),
        capacity => format!("pool {name} is full: all {capacity} {family} addresses are in use{note}"),
    }
}

fn advice(run: &AllocationRun<'_>, service: &Service, families: &[Family], full: &[(&Pool, Vec<Family>)]) -> String {
    let first = families.first().copied();
    let ranges = full.iter().flat_map(|(pool, _)| pool.ranges()).filter(|range| Some(range.family()) == first);
    let mut occupied = ranges
        .flat_map(|range| run.state.occupancy.between(Vip::from_number(range.first()), Vip::from_number(range.last())));
    let has_room = |vip: Vip| run.state.occupancy.on(vip).is_some_and(|occupants| occupants.clash(service).is_none());
    let mut with_consent = None;
    for (vip, occupants) in occupied.by_ref().take(LOOKED_AT) {
        let sharing = run.pools.sharing_on(vip);
        let pairs = families.len() == 1 || run.state.occupancy.partners(vip).any(has_room);
        if sharing == PoolSharing::None || !has_room(vip) || !pairs {
            continue;
        }
        for (theirs, holder) in occupants.sharings() {
            let Some(key) = &theirs.key else { continue };
            let adopted = Sharing { key: Some(key.clone()), by_address: ByAddress::Never };
            let sharer = Sharer { namespace: service.name.namespace(), sharing: &adopted };
            if occupants.mismatch(sharer, &service.name, sharing).is_none() {
                return format!("with the sharing key {} it would fit on {vip}, beside {}", key.shown(), holder.name);
            }
        }
        with_consent = with_consent.or_else(|| Some((vip, &occupants.all().first()?.name)));
    }
    match with_consent {
        Some((vip, holder)) => format!("with a sharing key in common with {holder} it would fit on {vip}"),
        None if occupied.next().is_some() => {
            format!("no sharing key would let it fit on the first {LOOKED_AT} of them")
        }
        None => "no sharing key would let it fit".to_owned(),
    }
}
