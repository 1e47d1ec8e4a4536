//! Orders the pools of both kinds, and decides to which pool a shared name or address belongs.

use std::collections::BTreeMap;

use crate::{
    Family,
    objects::Objects,
    pool::Pool,
    range::AddressRange,
    reason::Note,
    selector::Labels,
    service::{Families, Service},
};

/// Returns the pools, best first (rule 6). Notes their contradictions.
///
/// Both kinds share their names, since a Service names no kind. A VipPool replaces an IPAddressPool
/// of the same name. A pool's name takes precedence over an alias. If two pools have the same
/// alias, the better pool gets it.
pub(super) fn ingest(objects: &Objects, notes: &mut Vec<Note>) -> Vec<Pool> {
    let mut pools: Vec<Pool> =
        objects.vip_pools.iter().map(|(name, pool)| Pool::of_vipmux(name, pool, notes)).collect();
    for (name, pool) in &objects.address_pools {
        if objects.vip_pools.contains_key(name) {
            let message = format!("VipPool {name} takes its place: rename one of them, or delete this one");
            notes.push(Note::new(format!("IPAddressPool {name}"), message));
        } else {
            pools.push(Pool::of_metallb(name, pool, notes));
        }
    }
    pools.sort_by(|a, b| a.rank().cmp(&b.rank()));
    assign_aliases(&mut pools, notes);
    note_overlaps(&pools, notes);
    pools
}

/// Assigns each alias to one pool.
fn assign_aliases(pools: &mut [Pool], notes: &mut Vec<Note>) {
    let mut owners: BTreeMap<String, String> = pools.iter().map(|pool| (pool.name.clone(), pool.object())).collect();
    for pool in pools {
        let object = pool.object();
        pool.aliases.retain(|alias| match owners.get(alias) {
            Some(owner) => {
                let message = format!("spec.aliases: {owner} already has the name {alias}; left out");
                notes.push(Note::new(object.clone(), message));
                false
            }
            None => owners.insert(alias.clone(), object.clone()).is_none(),
        });
    }
}

fn note_overlaps(pools: &[Pool], notes: &mut Vec<Note>) {
    let mut ranges: Vec<(AddressRange, &Pool)> =
        pools.iter().flat_map(|pool| pool.ranges().iter().map(move |range| (*range, pool))).collect();
    ranges.sort_by_key(|(range, _)| *range);
    let mut ranges = ranges.into_iter();
    // The range so far with the highest end. A wide range may overlap many others.
    let Some((mut low, mut pool)) = ranges.next() else { return };
    for (high, other) in ranges {
        if high.first() <= low.last() {
            let (better, why) = better(pool, other);
            let message = format!(
                "{low} overlaps {high} of {}: addresses in both belong to {}, {why}; remove them from one of the two",
                other.object(),
                better.object(),
            );
            notes.push(Note::new(pool.object(), message));
        }
        if high.last() > low.last() {
            (low, pool) = (high, other);
        }
    }
}

/// Returns the notice for a Service that prefers both families and is served only by pools of one
/// family each. `labels`: the labels of its namespace.
pub(super) fn split_families(pools: &[Pool], service: &Service, labels: &Labels) -> Option<String> {
    let request = &service.request;
    let prefers_both = matches!(service.families, Families::PreferDual(_)) && request.addresses.is_empty();
    if !prefers_both || service.fault.is_some() {
        return None;
    }
    let serves = |pool: &&Pool| match request.pool.name() {
        Some(name) => pool.is_called(name),
        None => pool.auto_assign && pool.serves(service.name.namespace(), labels, &service.labels),
    };
    let has = |pool: &Pool, family| pool.first(family).is_some();
    let with = |family: Family| pools.iter().filter(serves).find(|pool| has(pool, family));
    let (v4, v6) = (with(Family::V4)?, with(Family::V6)?);
    let of_both = pools.iter().filter(serves).any(|pool| Family::ALL.into_iter().all(|family| has(pool, family)));
    (!of_both).then(|| {
        format!(
            "spec.ipFamilyPolicy prefers an address of each family, both come from one pool, and no pool has both: \
             pool {} has only IPv4 addresses, pool {} only IPv6 ones; put ranges of both into one pool, or name an \
             address of each",
            v4.name, v6.name
        )
    })
}

/// Returns the pool that goes first, and the reason.
fn better<'a>(a: &'a Pool, b: &'a Pool) -> (&'a Pool, &'static str) {
    let why = if a.priority == b.priority { "the first by name" } else { "the first by priority" };
    (if a.rank() <= b.rank() { a } else { b }, why)
}

#[cfg(test)]
mod tests;
